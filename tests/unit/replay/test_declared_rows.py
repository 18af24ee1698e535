"""What the rules table declares because no trace tells it: deadlines, data and the nodes that keep it, racks; and how it is measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from schemas.jobs import Dataset
from services.allocator.core.config import Policy
from services.replay.core.baselines import Played
from services.replay.core.beliefs import Beliefs, Level
from services.replay.core.blocks import block_of
from services.replay.core.catalog import node_names
from services.replay.core.day import Day
from services.replay.core.declared import COPIES_SHARE, data_of, deadlines_of, racks_of
from services.replay.core.outcome import Attempt, End
from services.replay.core.rolling import Block, Rolled, Rolling
from services.replay.core.rule_findings import deadlines_met, gang_racks
from services.replay.core.rulebook import (
    DATA_NAMED,
    DATA_UNNAMED,
    DEADLINES,
    NONE,
    RACKS_TOLD,
    RUNNING,
    Era,
    day_of,
    rules_of,
    shared,
    site_of,
)
from services.replay.core.site import Site
from tests.oracle.queue_policies import MINUTE_MS
from tests.unit.replay.test_kueue_and_slurm_by_hand import day_of as by_hand
from tests.unit.replay.test_kueue_and_slurm_by_hand import job
from tests.unit.replay.test_policies_match_oracle import random_day

COARSE = Policy(iterations=4, step_s=3600, steps=24, forecast_wait_ms=0)


def played(day: Day, site: Site) -> Rolled:
    return Rolling(day, Beliefs(day, Level.TRUE), COARSE, launch_s=5.0, site=site).play()


def test_about_a_quarter_declare_a_deadline_the_same_ones_in_every_row() -> None:
    day = by_hand([job(f"j{number:03d}", number % 60, 1, 30) for number in range(400)], 64)
    work, wanted = shared(day, [Era(day.start_ms, {})]), deadlines_of(day)
    assert 70 < len(wanted) < 130
    said = {one.job_id: one.spec.deadline_ms for one in day_of(work, DEADLINES).jobs}
    assert said == {one.job_id: wanted.get(one.job_id) for one in day.jobs}
    assert all(one.spec.deadline_ms is None for one in day_of(work, NONE).jobs)
    jobs = {one.job_id: one for one in day.jobs}
    for job_id, at_ms in wanted.items():
        factor = (at_ms - jobs[job_id].arrival_ms) / 1000 / jobs[job_id].run_s[jobs[job_id].requested]
        assert 1.49 < factor < 6.01


def test_a_deadline_is_met_by_a_completed_end_in_time() -> None:
    day = by_hand([job(f"j{number}", 0, 1, 30) for number in range(40)], 64)
    wanted = deadlines_of(day)
    first, second, third, *_ = wanted
    ends = {first: wanted[first], second: wanted[second] + 1}
    attempts = [Attempt(name, day.start_ms, at_ms, 1, End.COMPLETED) for name, at_ms in ends.items()]
    attempts.append(Attempt(third, day.start_ms, wanted[third], 1, End.TIMED_OUT))
    assert deadlines_met(day, Played(attempts, [], [], {})) == (len(wanted), 1)


def test_every_set_of_data_is_on_a_quarter_of_the_nodes_and_a_users_jobs_read_one() -> None:
    day = replace(random_day(1), apps=(), gpus=128)
    site = data_of(day)
    copies = [sum(name in kept for kept in site.kept.values()) for name in {n for k in site.kept.values() for n in k}]
    assert set(copies) == {len(node_names(day)) // COPIES_SHARE}
    users = {one.job_id: (one.spec.team, one.spec.user) for one in day.jobs}
    read: dict[tuple[str, str], set[str]] = {}
    for job_id, (dataset,) in site.reads.items():
        read.setdefault(users[job_id], set()).add(dataset.name)
    assert read
    assert all(len(names) == 1 for names in read.values())


@pytest.mark.parametrize(("named", "node", "minutes"), [(False, "n00", 60 + 20), (True, "n01", 60)])
def test_who_names_its_data_goes_where_it_is_and_who_does_not_waits_for_it(
    named: bool, node: str, minutes: int
) -> None:
    reads = (Dataset(name="c4", size_mib=1_200_000),)
    site = Site(kept={"n01": frozenset({"c4"})}, reads={"j": reads})
    one = job("j", 0, 8, 60)
    day = by_hand([replace(one, spec=changed(one.spec, datasets=list(reads) if named else []))], 16)
    found = played(replace(day, hours=6.0), site)
    (attempt,), (block,) = found.attempts, found.blocks
    assert block.gpus == block_of(8 * node_names(day).index(node), 8)
    assert attempt.end_ms is not None
    assert attempt.end_ms - attempt.start_ms == minutes * MINUTE_MS
    assert found.staged_gpu_s == 8 * 60 * (minutes - 60)


def test_rows_about_data_and_racks_differ_only_in_what_is_told() -> None:
    day = replace(random_day(2), apps=())
    work = shared(day, [Era(day.start_ms, {})], hosts=[1, 1])
    assert site_of(work, DATA_NAMED) == site_of(work, DATA_UNNAMED) == data_of(work.day)
    assert day_of(work, DATA_UNNAMED) == work.day
    assert {one.job_id for one in day_of(work, DATA_NAMED).jobs if one.spec.datasets} == set(data_of(day).reads)
    assert list(site_of(work, RACKS_TOLD).racks.values()) == ["rack00", "rack01"]
    assert site_of(work, NONE) == Site()


def test_racks_under_gangs_are_counted_by_hand() -> None:
    day = by_hand([], 64)
    blocks = [Block(block_of(8, 16), 0, 1), Block(block_of(16, 16), 0, 1), Block(block_of(24, 8), 0, 1)]
    blocks.append(Block(block_of(0, 64), 0, 1))
    assert gang_racks(day, [3, 3, 2], Played([], [], blocks, {})) == (1 + 2 + 3, 1 + 1 + 3)
    assert racks_of(day, [3, 3, 2]).racks["n03"] == "rack01"


def test_limits_of_jobs_are_one_for_two_gpus_of_a_part() -> None:
    day = by_hand([job("j", 0, 1), job("k", 1, 1, team="b")], 16)
    work = shared(day, [Era(day.start_ms, {"a": 15, "b": 1})])
    teams = rules_of(work, RUNNING, work.eras[0]).teams
    assert {name: team.running_max for name, team in teams.items()} == {"a": 7, "b": 1}

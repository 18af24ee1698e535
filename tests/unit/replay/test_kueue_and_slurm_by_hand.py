"""Kueue's admission and Slurm's priority against cases worked out by hand from their documentation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.replay.core.baselines import Starts, Unwatched, play
from services.replay.core.day import Day, DayJob
from services.replay.core.kueue import ClusterQueue, kueue
from services.replay.core.slurm import Multifactor, Weights, fair_tree
from tests.oracle.queue_policies import MINUTE_MS
from tests.unit.replay.test_policies_match_oracle import random_day

AB = {"a": ClusterQueue(9), "b": ClusterQueue(12)}
"""The documentation's borrowing example: nine and twelve in one cohort."""


def job(name: str, minute: int, size: int, minutes: int = 60, *, team: str = "a", priority: int = 1) -> DayJob:
    from schemas.jobs import JobSpec, Kind

    spec = JobSpec(
        kind=Kind.TRAINING, team=team, user=f"{team}-u", priority=priority, sizes=[size], template="simulated"
    )
    return DayJob(name, START + minute * MINUTE_MS, spec, {size: minutes * 60.0})


START = random_day(0).start_ms


def starts_of(
    jobs: list[DayJob], scheduler: Starts, *, gpus: int = 24, watch: Unwatched | None = None
) -> dict[str, int]:
    """Minute in which each job starts."""
    day = day_of(jobs, gpus)
    return {one.job_id: (one.start_ms - START) // MINUTE_MS for one in play(day, scheduler, watch).attempts}


def day_of(jobs: list[DayJob], gpus: int) -> Day:
    return replace(random_day(0), apps=(), gpus=gpus, jobs=tuple(jobs))


def admitted(jobs: list[DayJob], *, strict: bool, queues: dict[str, ClusterQueue] | None = None) -> dict[str, int]:
    found = queues or AB
    return starts_of(jobs, kueue(lambda now_ms: found, strict=strict))


def test_a_queue_borrows_what_its_cohort_does_not_use_and_no_more() -> None:
    jobs = [job(f"a{number}", 0, 1, 600) for number in range(24)]
    assert sum(minute == 0 for minute in admitted(jobs, strict=False).values()) == 21


def test_a_borrowing_limit_is_a_limit() -> None:
    jobs = [job(f"a{number}", 0, 1, 600) for number in range(24)]
    queues = AB | {"a": ClusterQueue(9, borrowing_limit=1)}
    assert sum(minute == 0 for minute in admitted(jobs, strict=False, queues=queues).values()) == 10


def test_heads_inside_their_nominal_quota_go_before_those_that_borrow() -> None:
    jobs = [job("a0", 0, 8, 10), job("first", 1, 8, priority=9), job("second", 2, 8, team="b")]
    queues = {"a": ClusterQueue(8), "b": ClusterQueue(8)}
    blocker = job("b0", 0, 8, 10, team="b")
    found = admitted([jobs[0], blocker, *jobs[1:]], strict=False, queues=queues)
    assert found == {"a0": 0, "b0": 0, "first": 10, "second": 10}
    lone = {"a": ClusterQueue(8), "b": ClusterQueue(4), "c": ClusterQueue(4)}
    waits = [job("a0", 0, 8, 10), job("a1", 0, 8, 10), job("a2", 1, 8, priority=9), job("b0", 2, 4, team="b")]
    assert admitted(waits, strict=False, queues=lone) == {"a0": 0, "a1": 0, "b0": 10, "a2": 10}


def test_strict_fifo_waits_behind_its_head_and_best_effort_does_not() -> None:
    jobs = [job("a0", 0, 8, 30), job("large", 1, 16), job("small", 2, 1, 5), job("other", 3, 2, 5, team="b")]
    queues = {"a": ClusterQueue(16, borrowing_limit=0), "b": ClusterQueue(8)}
    assert admitted(jobs, strict=True, queues=queues) == {"a0": 0, "other": 3, "large": 30, "small": 90}
    assert admitted(jobs, strict=False, queues=queues) == {"a0": 0, "small": 2, "other": 3, "large": 30}


def test_a_head_whose_quota_was_lent_reserves_it_and_under_strict_fifo_keeps_it() -> None:
    jobs = [
        job("lent", 0, 16, 60),
        job("owner", 1, 8, 10, team="b"),
        job("more", 2, 4, 10),
        job("c0", 0, 4, 20, team="c"),
        job("c1", 0, 4, 50, team="c"),
    ]
    queues = {"a": ClusterQueue(8), "b": ClusterQueue(8), "c": ClusterQueue(8)}
    strict = admitted(jobs, strict=True, queues=queues)
    assert strict["owner"] == 50, "eight of the cohort are free once both of c have ended"
    assert strict["more"] == 60, "it would have borrowed what the owner waits for"
    best_effort = admitted(jobs, strict=False, queues=queues)
    assert (best_effort["more"], best_effort["owner"]) == (20, 50)


def test_inside_a_queue_priority_goes_before_arrival() -> None:
    jobs = [job("a0", 0, 8, 10), job("early", 1, 8, 10), job("urgent", 2, 8, 10, priority=5)]
    queues = {"a": ClusterQueue(8)}
    assert admitted(jobs, strict=True, queues=queues) == {"a0": 0, "urgent": 10, "early": 20}


def test_a_quota_that_shrinks_stops_nothing_that_runs() -> None:
    jobs = [job("a0", 0, 8, 30), job("a1", 5, 8, 30)]
    later_ms = START + 3 * MINUTE_MS
    small, large = {"a": ClusterQueue(8)}, {"a": ClusterQueue(16)}
    found = starts_of(jobs, kueue(lambda now_ms: small if now_ms >= later_ms else large, strict=False))
    assert found == {"a0": 0, "a1": 30}


def test_fair_tree_ranks_teams_by_shares_over_usage_and_then_their_users() -> None:
    users = [("a", "u"), ("a", "v"), ("b", "w"), ("c", "x")]
    usage = {("a", "u"): 30.0, ("a", "v"): 10.0, ("b", "w"): 60.0}
    # Parts of shares 2/4, 1/4, 1/4; of usage 0.4, 0.6, 0: level fair-share 1.25, 0.417 and infinite.
    found = fair_tree({"a": 2.0}, users, usage)
    assert found == {("c", "x"): 1.0, ("a", "v"): 0.75, ("a", "u"): 0.5, ("b", "w"): 0.25}


def test_users_and_teams_that_are_equal_share_a_rank() -> None:
    users = [("a", "u"), ("b", "v"), ("b", "w")]
    assert set(fair_tree({}, users, {}).values()) == {1.0}
    half = fair_tree({}, users, {("a", "u"): 5.0, ("b", "v"): 5.0})
    # Equal teams are merged: u has all of its team's usage (1.0), w none (infinite), v all with half the shares (0.5).
    assert half == {("b", "w"): 1.0, ("a", "u"): 2 / 3, ("b", "v"): 1 / 3}


def test_the_priority_is_the_weighted_sum_of_the_documented_factors() -> None:
    slurm = Multifactor({}, [("a", "a-u")])
    one = job("j", 0, 8, priority=4)
    now_ms = START + 7 * 86_400_000
    # Age half of 14 days, fair-share 0.25, an eighth of 64 GPUs, the only partition, QOS 4 of 5.
    assert slurm.priority(one, now_ms, 64, {("a", "a-u"): 0.25}) == pytest.approx(500 + 2500 + 125 + 1000 + 800)
    old = slurm.priority(one, now_ms + 30 * 86_400_000, 64, {("a", "a-u"): 0.25})
    assert old == pytest.approx(1000 + 2500 + 125 + 1000 + 800)


class Exact(Unwatched):
    """Knows how long everything takes."""

    def expected_s(self, job: DayJob, gpus: int) -> tuple[float, float]:
        return job.run_s[gpus], job.run_s[gpus]


def test_who_used_less_goes_first_and_use_fades() -> None:
    jobs = [
        job("a0", 0, 16, 60),
        job("b0", 0, 8, 60, team="b"),
        job("a1", 10, 16, 10),
        job("b1", 11, 16, 10, team="b"),
    ]
    users = [("a", "a-u"), ("b", "b-u")]
    slurm = Multifactor({}, users, Weights(half_life_s=3600.0))
    found = starts_of(jobs, slurm, watch=Exact())
    assert found == {"a0": 0, "b0": 0, "b1": 60, "a1": 70}
    # Looked at in minutes 10, 11, 60, 70 and 80: what was charged by then has faded by a half per hour since.
    charged = {10: 10, 11: 1, 60: 49, 80: 10}
    faded = sum(minutes * 2 ** (-(80 - minute) / 60) for minute, minutes in charged.items())
    assert slurm.usage[("a", "a-u")] == pytest.approx(16 * 60 * faded)


def test_backfill_starts_what_does_not_delay_the_head_of_the_order() -> None:
    jobs = [
        job("a0", 0, 16, 60),
        job("head", 1, 24, 10, team="b", priority=5),
        job("fits", 2, 8, 50, team="c"),
        job("late", 3, 8, 90, team="c"),
    ]
    users = sorted({(one.spec.team, one.spec.user) for one in jobs})
    assert starts_of(jobs, Multifactor({}, users), watch=Exact()) == {"a0": 0, "fits": 2, "head": 60, "late": 70}


def test_changing_the_size_weight_changes_the_order() -> None:
    jobs = [job("a0", 0, 16, 10), job("small", 1, 8, 10), job("large", 2, 16, 10)]
    alike = Weights(size=0.0)
    users = [("a", "a-u")]
    assert starts_of(jobs, Multifactor({}, users, alike), gpus=16, watch=Exact()) == {"a0": 0, "small": 10, "large": 20}
    assert starts_of(jobs, Multifactor({}, users), gpus=16, watch=Exact()) == {"a0": 0, "large": 10, "small": 20}

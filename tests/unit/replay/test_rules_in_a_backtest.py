"""Documents of rules on a played day: what they say, what they did, and how it is measured."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from schemas.commands import ChangeRules
from schemas.jobs import CheckpointMode, CheckpointPolicy
from services.allocator.core.config import Policy
from services.allocator.core.rule_checks import contradictions
from services.replay.core.baselines import Hold, Played, play
from services.replay.core.beliefs import Beliefs, Level
from services.replay.core.day import Day, DayJob
from services.replay.core.kueue import kueue
from services.replay.core.outcome import Attempt, End
from services.replay.core.rolling import Rolled, Rolling
from services.replay.core.rule_findings import fairness, max_min, rule_finding, starts_over
from services.replay.core.rulebook import (
    ALL_TOGETHER,
    MAXIMUM_ROWS,
    NONE,
    ROWS,
    WITHOUT_RULES,
    Era,
    SharedDay,
    cluster_queues,
    guarantees,
    maxima_of,
    orders_of,
    rules_of,
    shared,
)
from tests.oracle.queue_policies import MINUTE_MS
from tests.unit.replay.test_backtest_baselines import assert_legal
from tests.unit.replay.test_kueue_and_slurm_by_hand import day_of, job
from tests.unit.replay.test_policies_match_oracle import random_day

HOUR_MS = 60 * MINUTE_MS
COARSE = Policy(iterations=4, step_s=3600, steps=24, forecast_wait_ms=0)


def parts(day: Day, **shares: float) -> SharedDay:
    return shared(day, [Era(day.start_ms, shares)])


def rolled(work: SharedDay, row: str) -> Rolled:
    return Rolling(work.day, Beliefs(work.day, Level.TRUE), COARSE, launch_s=5.0, orders=orders_of(work, row)).play()


def test_guarantees_are_the_largest_remainders_and_use_every_gpu() -> None:
    assert guarantees(10, {"a": 1, "b": 1, "c": 1}) == {"a": 4, "b": 3, "c": 3}
    assert guarantees(64, {"a": 64, "b": 32, "c": 16, "d": 0}) == {"a": 37, "b": 18, "c": 9, "d": 0}
    assert guarantees(8, {"a": 0.0}) == {"a": 0}


@pytest.mark.parametrize("row", ROWS)
def test_every_document_holds_together(row: str) -> None:
    day = day_of([job("j", 0, 8), job("k", 1, 1, team="b")], 16)
    work = shared(day, [Era(day.start_ms, {"a": 1, "b": 3}), Era(day.start_ms + HOUR_MS, {"b": 1})])
    orders = [order for order in orders_of(work, row) if isinstance(order, ChangeRules)]
    assert all(contradictions(order.rules, {day.pool: day.gpus}) == [] for order in orders)
    versions = [order.rules.version for order in orders]
    assert versions == sorted(set(versions))
    assert bool(orders) == (row not in WITHOUT_RULES)


def test_a_maximum_never_makes_a_job_impossible() -> None:
    day = day_of([job("j", 0, 16), job("k", 1, 1, team="b")], 24)
    work = parts(day, a=1, b=7)
    assert maxima_of(work, work.eras[0]) == {"a": 16, "b": 24}
    assert cluster_queues(work, work.eras[0])["a"].borrowing_limit == 13


def test_urgent_jobs_and_those_that_save_get_queues_of_their_own() -> None:
    saves = CheckpointPolicy(mode=CheckpointMode.SIGNAL)
    urgent, late = job("u", 0, 1, priority=5), job("s", 1, 1)
    day = day_of([urgent, replace(late, spec=changed(late.spec, checkpoint=saves)), job("d", 2, 1)], 16)
    assert [one.spec.queue for one in parts(day, a=1).day.jobs] == ["urgent", "night", "default"]


@pytest.mark.parametrize("row", MAXIMUM_ROWS)
@pytest.mark.parametrize("seed", range(3))
def test_no_start_takes_a_team_above_its_maximum_while_quotas_change(seed: int, row: str) -> None:
    day = replace(random_day(seed), apps=())
    teams = sorted({one.spec.team for one in day.jobs})
    eras = [
        Era(day.start_ms + hour * HOUR_MS, {team: float((place + hour) % 3) for place, team in enumerate(teams)})
        for hour in range(6)
    ]
    work = shared(day, eras)
    played = rolled(work, row)
    pool = work.day.pool
    capped = {
        era.from_ms: {
            team: rules.maximum.get(pool, rules.guaranteed.get(pool, 0))
            for team, rules in rules_of(work, row, era).teams.items()
        }
        for era in eras
    }
    assert starts_over(day, played, capped, 5.0) == 0
    assert played.attempts


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_kueue_keeps_quotas_and_legal_grids(seed: int, strict: bool) -> None:
    day = replace(random_day(seed), apps=())
    teams = sorted({one.spec.team for one in day.jobs})
    work = parts(day, **{team: float(place + 1) for place, team in enumerate(teams)})
    queues = cluster_queues(work, work.eras[0])
    played = play(work.day, kueue(lambda now_ms: queues, strict=strict))
    assert starts_over(day, played, {day.start_ms: maxima_of(work, work.eras[0])}, 0.0) == 0
    assert_legal(day, played)


def long_night() -> DayJob:
    saves = CheckpointPolicy(mode=CheckpointMode.SIGNAL, cost_s=60.0)
    one = job("n", 0, 16, 300, priority=2)
    return replace(one, spec=changed(one.spec, checkpoint=saves))


def test_a_job_that_makes_room_saves_leaves_and_goes_on_with_the_rest() -> None:
    day = replace(day_of([long_night(), job("u", 120, 16, 30, priority=5)], 16), hours=12.0)
    played = rolled(parts(day, a=1), "preemption")
    minutes = [(one.job_id, (one.start_ms - day.start_ms) / MINUTE_MS, one.end) for one in played.attempts]
    at_ms = played.lost_places[0].ordered_ms
    assert at_ms == day.start_ms + 120 * MINUTE_MS
    assert [(name, end) for name, _, end in minutes] == [("n", End.SAVED), ("u", End.COMPLETED), ("n", End.COMPLETED)]
    first, urgent, second = played.attempts
    assert first.end_ms == at_ms + 60_000
    assert first.kept_s == pytest.approx((at_ms - first.start_ms) / 1000)
    assert urgent.start_ms == at_ms + 65_000
    assert second.end_ms is not None
    assert (second.end_ms - second.start_ms) / 1000 + first.kept_s == pytest.approx(300 * 60, abs=1)
    found = rule_finding(parts(day, a=1), "preemption", played, ours=True, capped=None, launch_s=5.0)
    assert (found.preemptions, found.completed) == (1, 2)
    assert found.lost_gpu_hours == pytest.approx(16 * 65 / 3600)


def test_without_the_rule_nobody_makes_room() -> None:
    day = replace(day_of([long_night(), job("u", 120, 16, 30, priority=5)], 16), hours=12.0)
    played = rolled(parts(day, a=1), NONE)
    assert played.lost_places == []
    assert [one.job_id for one in played.attempts] == ["n", "u"]


def test_a_reservation_keeps_its_gpus_empty_while_it_lasts() -> None:
    jobs = [job(f"j{number}", number, 8, 45) for number in range(60)]
    day = replace(day_of(jobs, 16), hours=24.0)
    work = parts(day, a=1)
    played = rolled(work, "reservation")
    from_ms, until_ms = day.start_ms + 10 * HOUR_MS, day.start_ms + 14 * HOUR_MS
    reserved = [block for block in played.blocks if block.gpus & 0xFF]
    assert reserved
    assert not [block for block in reserved if block.from_ms < until_ms and block.until_ms > from_ms]


def test_max_min_gives_what_is_left_over_to_those_who_want_more() -> None:
    assert max_min(12, {"a": 2, "b": 9, "c": 9}, {"a": 1, "b": 1, "c": 1}) == {"a": 2, "b": 5, "c": 5}
    assert max_min(12, {"a": 2, "b": 9, "c": 9}, {"a": 1, "b": 3, "c": 1}) == pytest.approx(
        {"a": 2, "b": 7.5, "c": 2.5}
    )
    assert max_min(12, {"a": 2, "b": 3}, {}) == {"a": 2, "b": 3}
    assert max_min(12, {"a": 20, "b": 0}, {"b": 1.0}) == {"a": 12, "b": 0}


def test_fairness_is_jains_index_of_what_teams_got_over_what_they_were_due() -> None:
    day = replace(day_of([job("a", 0, 8, 600), job("b", 0, 8, 600, team="b")], 16), hours=10.0)
    work = parts(day, a=1, b=1)

    def got(**hours: float) -> Played:
        attempts = [
            Attempt(name, day.start_ms, day.start_ms + round(span * HOUR_MS), 8, End.TIMED_OUT)
            for name, span in hours.items()
        ]
        return Played(attempts, [], [], {})

    assert fairness(work, got(a=5, b=5)) == pytest.approx(1.0)
    assert fairness(work, got(a=10)) == pytest.approx(0.5)
    assert fairness(work, got(a=6, b=2)) == pytest.approx(64 / (2 * 40))


def test_a_start_over_a_maximum_is_counted_once_and_a_lowered_maximum_alone_is_none() -> None:
    day = day_of([job("a", 0, 8), job("b", 0, 8)], 16)
    attempts = [
        Attempt("a", day.start_ms + 5_000, day.start_ms + HOUR_MS, 8, End.COMPLETED),
        Attempt("b", day.start_ms + HOUR_MS + 5_000, None, 8, End.RUNNING),
    ]
    played = Played(attempts, [Hold("x", 0, 0)], [], {})
    assert starts_over(day, played, {day.start_ms: {"a": 8}}, 5.0) == 0
    assert starts_over(day, played, {day.start_ms: {"a": 7}}, 5.0) == 2
    assert starts_over(day, played, {day.start_ms: {"a": 8}, day.start_ms + HOUR_MS // 2: {"a": 7}}, 5.0) == 1
    assert starts_over(day, played, {day.start_ms: {"a": 8}, day.start_ms + 2 * HOUR_MS: {"a": 0}}, 5.0) == 0


def test_all_together_is_every_rule_at_once() -> None:
    day = day_of([job("j", 0, 8)], 16)
    work = parts(day, a=1)
    rules = rules_of(work, ALL_TOGETHER, work.eras[0])
    assert rules.teams["a"].maximum
    assert rules.teams["a"].guaranteed
    assert rules.fair_share
    assert rules.queues
    assert rules.aging.overdue_s is not None
    assert rules.planned_starts.nodes_min


def test_the_same_day_gives_the_same_row_twice() -> None:
    day = replace(random_day(1), apps=())
    teams = sorted({one.spec.team for one in day.jobs})
    random.Random(0).shuffle(teams)
    work = parts(day, **dict.fromkeys(teams, 1.0))
    assert rolled(work, ALL_TOGETHER).attempts == rolled(work, ALL_TOGETHER).attempts

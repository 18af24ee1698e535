"""Nobody starves: with `overdue_s` every job starts within a time that its load and the rules give, whatever arrives after it.

Random finite loads below capacity against a stream of small jobs of the highest priority, played by the allocator's own core. Durations are
declared limits, up to three times too long, as people declare them. The bound is that of docs/policy.md, "The longest wait"; so is the
argument that it holds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from schemas.commands import ChangeRules
from schemas.rules import Aging, Rules
from services.allocator.core.config import Policy
from services.replay.core.beliefs import Beliefs, Level
from services.replay.core.day import Day, DayJob
from services.replay.core.outcome import Attempt
from services.replay.core.rolling import Rolling
from tests.regular_streams import HOUR_MS, NODE_GPUS, SHAPES, STREAM_HOURS, job

STEP_MS = Policy().step_ms
OVERDUE_S = 3600.0
GPUS = 16
HOSTILE_HOURS = 8.0
LOAD = 0.9
LAUNCH_MS = 5_000


def hostile_day(seed: int) -> Day:
    """Below capacity; then nothing arrives any more and the day is long enough for all."""
    dice, jobs, at_h = Random(seed), list[DayJob](), 0.0
    while at_h < HOSTILE_HOURS:
        size, hours = dice.choice([1, 1, 2, 4]), dice.uniform(0.3, 3.0)
        jobs.append(job(f"h{len(jobs):03d}", round(at_h * HOUR_MS), size, hours, dice.uniform(1, 3), 100))
        at_h += size * hours / (GPUS * LOAD)
    for number in range(3):
        size, hours = dice.choice([8, 16]), dice.uniform(0.5, 4.0)
        at_ms = round(dice.uniform(0.2, 4.0) * HOUR_MS)
        jobs.append(job(f"v{number}", at_ms, size, hours, dice.uniform(1, 3), 1))
    ordered = sorted(jobs, key=lambda one: (one.arrival_ms, one.job_id))
    return Day("hostile", seed, 0, 36.0, GPUS, NODE_GPUS, "c0", "h100", tuple(ordered), ())


def played(day: Day, overdue_s: float | None, steps: int = 96) -> list[Attempt]:
    rules = ChangeRules(cluster=day.cluster, rules=Rules(version=1, aging=Aging(overdue_s=overdue_s)), ordered_ms=0)
    policy = Policy(iterations=4, forecast_wait_ms=0, replan_s=1800, steps=steps)
    return Rolling(day, Beliefs(day, Level.LIMIT), policy, launch_s=LAUNCH_MS / 1000, orders=[rules]).play().attempts


def bound_ms(day: Day, one: DayJob, starts: dict[str, int]) -> int:
    """Submission + overdue_s + the longest time left, by limits, of what runs then + limits, in whole steps, of earlier jobs that wait
    then; and a launch after each, its own among them."""
    overdue_ms = one.arrival_ms + round(OVERDUE_S * 1000)
    left_ms, before_ms = 0, 0
    for other in day.jobs:
        limit_ms = round(other.spec.time_limit_s * 1000)
        start_ms = starts[other.job_id]
        if start_ms <= overdue_ms + LAUNCH_MS:
            left_ms = max(left_ms, start_ms + limit_ms - overdue_ms)
        elif other is not one and (other.arrival_ms, other.job_id) < (one.arrival_ms, one.job_id):
            before_ms += math.ceil(limit_ms / STEP_MS) * STEP_MS + LAUNCH_MS
    return overdue_ms + left_ms + before_ms + LAUNCH_MS


@pytest.mark.parametrize("seed", range(4))
def test_every_job_starts_within_the_stated_time(seed: int) -> None:
    day = hostile_day(seed)
    starts = {one.job_id: one.start_ms for one in played(day, OVERDUE_S)}
    assert starts.keys() == {one.job_id for one in day.jobs}
    late = {one.job_id: starts[one.job_id] for one in day.jobs if starts[one.job_id] > bound_ms(day, one, starts)}
    assert late == {}


def test_without_the_rule_the_stream_keeps_large_jobs_waiting_to_its_end() -> None:
    """The loads above are hostile: what the bound forbids happens without `overdue_s`."""
    day = hostile_day(0)
    starts = {one.job_id: one.start_ms for one in played(day, None)}
    large = [one.job_id for one in day.jobs if one.job_id.startswith("v")]
    assert max(starts[job_id] for job_id in large) > HOSTILE_HOURS * HOUR_MS


def test_what_arrives_later_is_not_in_the_bound() -> None:
    day = hostile_day(1)
    starts = {one.job_id: one.start_ms for one in played(day, OVERDUE_S)}
    for one in day.jobs:
        overdue_ms = one.arrival_ms + round(OVERDUE_S * 1000)
        known = replace(day, jobs=tuple(other for other in day.jobs if other.arrival_ms <= overdue_ms))
        if one in known.jobs:
            assert bound_ms(known, one, starts) == bound_ms(day, one, starts)


@pytest.mark.parametrize("name", SHAPES)
def test_a_regular_stream_does_not_move_an_overdue_job_step_by_step(name: str) -> None:
    """What starts beside a place that is waited for has left before it could be taken: to the second, not to the step."""
    day = SHAPES[name].day()
    starts = {one.job_id: one.start_ms for one in played(day, OVERDUE_S, SHAPES[name].steps)}
    late = {one.job_id: starts[one.job_id] for one in day.jobs if starts[one.job_id] > bound_ms(day, one, starts)}
    assert late == {}


@pytest.mark.parametrize("name", ["an hour less a little", "two nodes, a gang"])
def test_regular_streams_are_hostile(name: str) -> None:
    """Without the rule they keep large jobs waiting until they end."""
    day = SHAPES[name].day()
    starts = {one.job_id: one.start_ms for one in played(day, None)}
    assert max(starts.values()) == starts["v0"] > STREAM_HOURS * HOUR_MS

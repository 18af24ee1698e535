"""What a guarantee promises: docs/policy.md, "What is promised".

A job inside it starts at the latest when all has ended that ran as it came, and a launch, whatever borrowers declare, however long they
wait, and however they come; several start one after the other. Played by the allocator's own core; durations are known.
"""

from __future__ import annotations

import math
from random import Random

import pytest

from schemas.commands import ChangeRules
from schemas.jobs import JobSpec, Kind
from schemas.rules import Aging, Rules, TeamRules
from services.allocator.core.config import Policy
from services.replay.core.beliefs import Beliefs, Level
from services.replay.core.day import Day, DayJob
from services.replay.core.rolling import Rolling

POLICY = Policy(iterations=4, forecast_wait_ms=0, replan_s=1800)
GPUS, NODE_GPUS = 16, 8
LAUNCH_MS = 5_000
HOUR_MS = 3_600_000
OWNER, OTHER = "owner", "partner"


def job(name: str, at_ms: int, size: int, hours: float, priority: int) -> DayJob:
    run_s = round(hours * 3600)
    spec = JobSpec(
        kind=Kind.TRAINING,
        team=next((team for team in (OWNER, OTHER) if name.startswith(team)), "borrower"),
        user="u",
        priority=priority,
        sizes=[size],
        time_limit_s=float(run_s),
        template="simulated",
    )
    return DayJob(name, at_ms, spec, {size: float(run_s)})


def played(
    jobs: list[DayJob],
    *,
    hours: float,
    guaranteed: int,
    gpus: int = GPUS,
    aging: Aging = Aging(),
    fair_share: float = 0.0,
) -> dict[str, int]:
    """Starts by job id."""
    ordered = sorted(jobs, key=lambda one: (one.arrival_ms, one.job_id))
    day = Day("borrowing", 0, 0, hours, gpus, NODE_GPUS, "c0", "h100", tuple(ordered), ())
    teams = {team: TeamRules(guaranteed={"h100": guaranteed}) for team in (OWNER, OTHER)}
    rules = Rules(version=1, teams=teams, aging=aging, fair_share=fair_share)
    orders = [ChangeRules(cluster="c0", rules=rules, ordered_ms=0)]
    attempts = Rolling(day, Beliefs(day, Level.LIMIT), POLICY, launch_s=LAUNCH_MS / 1000, orders=orders).play().attempts
    return {attempt.job_id: attempt.start_ms for attempt in attempts}


def end_ms(one: DayJob, start_ms: int) -> int:
    return start_ms + round(one.spec.time_limit_s * 1000)


def last_end_ms(jobs: list[DayJob], starts: dict[str, int], at_ms: int) -> int:
    """When all that had its GPUs at that moment has ended."""
    ran = (one for one in jobs if starts[one.job_id] < at_ms + LAUNCH_MS)
    return max([at_ms, *(end_ms(one, starts[one.job_id]) for one in ran)])


def borrowers(dice: Random, hours: float, priority: int) -> list[DayJob]:
    """A load of 1.1, of any sizes."""
    jobs, at_h = list[DayJob](), 0.0
    while at_h < hours:
        size, run_h = dice.choice([1, 1, 2, 4, 8]), dice.uniform(0.3, 4.0)
        jobs.append(job(f"b{len(jobs):03d}", round(at_h * HOUR_MS), size, run_h, priority))
        at_h += size * run_h / (GPUS * 1.1)
    return jobs


@pytest.mark.parametrize(("seed", "priority"), [(0, 1), (1, 100), (2, 100), (3, 100)])
def test_nobody_inside_a_guarantee_waits_past_the_end_of_what_ran_as_it_came(seed: int, priority: int) -> None:
    """The owner's jobs come one at a time, each of any size inside its guarantee of a node."""
    dice = Random(seed)
    jobs = borrowers(dice, 16, priority)
    owners = [
        job(f"{OWNER}{at}", round((at + dice.random()) * HOUR_MS), dice.choice([2, 4, 8]), 0.5, 1) for at in (3, 9, 15)
    ]
    starts = played([*jobs, *owners], hours=40, guaranteed=8)
    for one in owners:
        bound_ms = last_end_ms([*jobs, *owners], starts, one.arrival_ms) + LAUNCH_MS
        assert one.arrival_ms <= starts[one.job_id] <= bound_ms


@pytest.mark.parametrize("seed", range(3))
def test_jobs_inside_guarantees_of_several_teams_start_one_after_the_other(seed: int) -> None:
    """Batches of both teams, each inside what is theirs: each job waits for what ran as it came and for those submitted before it."""
    dice = Random(seed)
    jobs, owners = borrowers(dice, 20, 100), list[DayJob]()
    for at_h in (2, 12):
        for team in (OWNER, OTHER):
            for size in dice.choice([[8], [4, 4], [4, 2, 1, 1]]):
                at_ms = round((at_h + dice.random()) * HOUR_MS)
                owners.append(job(f"{team}{len(owners)}", at_ms, size, dice.uniform(0.2, 1.5), dice.choice([1, 50])))
    starts = played([*jobs, *owners], hours=60, guaranteed=8)
    for one in owners:
        bound_ms = last_end_ms([*jobs, *owners], starts, one.arrival_ms) + LAUNCH_MS
        for other in owners:
            if other.arrival_ms <= one.arrival_ms < starts[other.job_id] and other is not one:
                steps = math.ceil(other.spec.time_limit_s * 1000 / POLICY.step_ms)
                bound_ms += steps * POLICY.step_ms + LAUNCH_MS
        assert one.arrival_ms <= starts[one.job_id] <= bound_ms


@pytest.mark.parametrize("seed", range(4))
def test_on_the_same_gpus_it_goes_before_every_borrower_whatever_its_priority(seed: int) -> None:
    """One node, and every job takes all of it: whenever it comes free, the owner's job is the next."""
    dice = Random(seed)
    jobs = [
        job(f"b{n:03d}", round(dice.uniform(0, 6) * HOUR_MS), 8, dice.uniform(0.1, 3), dice.choice([1, 30, 100]))
        for n in range(12)
    ]
    owners = [job(f"{OWNER}{n}", round(dice.uniform(1, 9) * HOUR_MS), 8, dice.uniform(0.1, 6), 1) for n in range(2)]
    starts = played([*jobs, *owners], hours=60, guaranteed=8, gpus=8)
    assert len(starts) == 14
    for one in owners:
        between = [other for other in jobs if one.arrival_ms < starts[other.job_id] < starts[one.job_id]]
        assert between == []


def stream(seed: int, priority: int) -> tuple[list[DayJob], DayJob]:
    """Single GPUs, long and staggered, of which there is always one more; and the owner's job of a whole node."""
    dice, at_h = Random(seed), 0.0
    jobs = [job(f"i{number:03d}", 0, 1, dice.uniform(0.3, 12.0), priority) for number in range(GPUS)]
    while at_h < 30:
        hours = dice.uniform(4.0, 12.0)
        jobs.append(job(f"b{len(jobs):03d}", round(at_h * HOUR_MS), 1, hours, priority))
        at_h += hours / (GPUS * 1.05)
    return jobs, job(f"{OWNER}0", 4 * HOUR_MS, 8, 2.0, 1)


@pytest.mark.parametrize("priority", [1, 30, 100])
def test_no_stream_outbids_a_large_job_inside_a_guarantee(priority: int) -> None:
    """By weights alone a single GPU for 8 h at 100 is worth more than half an hour's delay of eight at 201."""
    jobs, owner = stream(0, priority)
    starts = played([*jobs, owner], hours=60, guaranteed=8)
    assert starts[owner.job_id] <= last_end_ms(jobs, starts, owner.arrival_ms) + LAUNCH_MS


def test_no_aging_and_no_share_lifts_a_borrower_over_a_guarantee() -> None:
    """With these a borrower of 100 may reach (100 + 100) × 1.5, more than 201."""
    jobs, owner = stream(1, 100)
    aging = Aging(after_s=0, per_hour=100, priority_max=100)
    starts = played([*jobs, owner], hours=60, guaranteed=8, aging=aging, fair_share=1.0)
    assert starts[owner.job_id] <= last_end_ms(jobs, starts, owner.arrival_ms) + LAUNCH_MS


def test_a_team_above_its_guarantee_borrows_like_everybody() -> None:
    """The same job where the team holds what it is guaranteed already: the stream may keep it waiting."""
    jobs, owner = stream(0, 100)
    held = job(f"{OWNER}held", 0, 8, 30.0, 100)
    starts = played([held, *jobs, owner], hours=80, guaranteed=8, gpus=GPUS + NODE_GPUS)
    assert starts[owner.job_id] > last_end_ms(jobs, starts, owner.arrival_ms) + HOUR_MS


def test_overdue_jobs_come_before_guarantees() -> None:
    """One node: a borrower that is overdue has it before the owner's job, one that isn't after it."""
    jobs = [job("b0", 0, 8, 3.0, 1), job("b1", 60_000, 8, 1.0, 1), job(f"{OWNER}0", 7_240_000, 8, 1.0, 100)]
    jobs.append(job("b2", 7_250_000, 8, 1.0, 1))
    starts = played(jobs, hours=24, guaranteed=8, gpus=8, aging=Aging(overdue_s=7200))
    assert starts["b1"] < starts[f"{OWNER}0"] < starts["b2"]

"""`gpugrid policy check` says what applying would do: on random states, the decision that it foresees is the one that the allocator makes
when the rules are put in force on the same state at the same moment. Equal effects and equal outcomes, not similar ones."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from schemas.commands import ChangeRules
from schemas.decisions import Placed, Preempted, Promised, Waits
from schemas.jobs import CheckpointMode, CheckpointPolicy
from schemas.records import Now
from schemas.rules import Aging, Limits, PlannedStarts, QueueRules, Rules, TeamRules
from services.console.policy_effect import foreseen, outcomes
from tests import build
from tests.allocator_driver import Driver

HOUR_MS = 3_600_000
SAVES = CheckpointPolicy(mode=CheckpointMode.SIGNAL, wait_s=60.0, cost_s=30.0)


def random_rules(dice: Random) -> Rules:
    def of(pool_max: int) -> dict[str, int]:
        return {build.POOL: dice.randrange(1, pool_max)} if dice.random() < 0.5 else {}

    return Rules(
        organisation=Limits(running_max=dice.choice([None, 3, 8])),
        fair_share=dice.choice([0.0, 1.0]),
        teams={"red": TeamRules(maximum=of(16), weight=2.0), "blue": TeamRules(guaranteed=of(16))},
        queues={
            "urgent": QueueRules(preempts=dice.random() < 0.7, runtime_min_s=600.0),
            "night": QueueRules(preemptible=True, queued_max=dice.choice([None, 2])),
        },
        aging=Aging(per_hour=dice.choice([0.0, 0.25, 5.0]), overdue_s=dice.choice([None, 7200.0])),
        planned_starts=PlannedStarts(nodes_min=dice.choice([0, 1])),
    )


def random_cluster(dice: Random) -> Driver:
    """Two nodes, an application, jobs that run and wait under other rules for some hours."""
    driver = Driver().give(build.node("n0"), build.node("n1", order=1), build.application("chat", floor=1, peak=4))
    version = 0
    for number in range(24):
        driver.pass_ms(dice.randrange(HOUR_MS // 2))
        size, queue = dice.choice([1, 2, 4, 8, 8, 16]), dice.choice(["day", "night", "night", "urgent"])
        job_id = f"j{number:02d}"
        driver.give(
            build.accepted(
                job_id, size, at_ms=driver.now_ms, queue=queue, team=dice.choice(["red", "blue", "green"]),
                priority=dice.choice([1, 3, 9]), checkpoint=SAVES,
            ),
            build.forecast(job_id, {size: dice.choice([1800, 7200, 6 * 3600])}),
        )  # fmt: skip
        for job in list(driver.state.jobs.values()):
            if job.parts and job.started_ms is None:
                driver.give(*[build.started(job.job_id, part.node, driver.now_ms, job.attempt) for part in job.parts])
            elif job.parts and dice.random() < 0.15:
                for part in list(job.parts):
                    driver.give(build.completed(job.job_id, part.node, at_ms=driver.now_ms, attempt=job.attempt))
        if dice.random() < 0.15:
            version += 1
            driver.give(order(driver, msgspec.structs.replace(random_rules(dice), version=version)))
    return driver.pass_ms(dice.randrange(HOUR_MS))


def order(driver: Driver, rules: Rules) -> ChangeRules:
    return ChangeRules(cluster=build.CLUSTER, rules=rules, ordered_ms=driver.now_ms)


SEEDS = range(12)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_foreseen_is_what_is_decided(seed: int) -> None:
    dice = Random(seed)
    driver, rules = random_cluster(dice), random_rules(dice)
    bytes_before = msgspec.json.encode(driver.state)
    now = Now(driver.now_ms, driver.wall_ms)
    found = foreseen(driver.state, rules, driver.settings, now)
    assert msgspec.json.encode(driver.state) == bytes_before, "looking changes nothing"
    without = msgspec.json.decode(bytes_before, type=type(driver.state))

    driver.give(order(driver, msgspec.structs.replace(rules, version=driver.state.rules.version + 1)))
    assert found.violations == []
    assert found.effects == driver.log[-1].effects
    after = outcomes(driver.state, driver.log[-1])
    assert {one.job_id: (one.after, one.planned_after_ms) for one in found.jobs}.items() <= {
        name: (outcome.words, outcome.planned_ms) for name, outcome in after.items()
    }.items()

    apart = Driver(driver.settings)
    apart.state, apart.reader = without, msgspec.json.decode(bytes_before, type=type(without))
    apart.now_ms, apart.wall_ms = now.domain_ms, now.wall_ms
    apart.give()
    before = outcomes(apart.state, apart.log[-1])
    changed = {name for name, outcome in after.items() if name in before and before[name] != outcome}
    assert {one.job_id for one in found.jobs} == changed, "no one is left out, and no one is named without a difference"
    assert {one.job_id: (one.before, one.planned_before_ms) for one in found.jobs} == {
        name: (before[name].words, before[name].planned_ms) for name in changed
    }


def test_those_decisions_did_something() -> None:
    """The histories reach every kind of effect that rules can have."""
    kinds = set()
    for seed in SEEDS:
        dice = Random(seed)
        driver, rules = random_cluster(dice), random_rules(dice)
        effects = foreseen(driver.state, rules, driver.settings, Now(driver.now_ms, driver.wall_ms)).effects
        kinds |= {type(effect) for effect in effects}
    assert {Placed, Waits, Preempted, Promised} <= kinds

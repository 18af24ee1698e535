"""The rules in decisions: caps hold at every moment, guarantees and overdue jobs go first, limits are reasons, versions only rise."""

from __future__ import annotations

from random import Random

import pytest

from schemas.commands import ChangeRules
from schemas.rules import Aging, Limits, QueueRules, Rules, TeamRules
from services.allocator.core.groups import Group, groups_of, limits_of, maximum_of
from services.allocator.core.quotas import used_by_team
from services.allocator.core.rule_checks import contradictions
from tests import build
from tests.allocator_driver import Driver

HOUR_MS = 3_600_000


def rules(version: int = 1, **changed) -> ChangeRules:
    return ChangeRules(cluster=build.CLUSTER, rules=Rules(version=version, **changed), ordered_ms=build.START_MS)


def at_most(gpus: int, **changed) -> TeamRules:
    return TeamRules(maximum={build.POOL: gpus}, **changed)


def two_nodes(*events: ChangeRules) -> Driver:
    return Driver().give(build.node("n0"), build.node("n1", order=1), *events)


def submit(driver: Driver, job_id: str, size: int, hours: float = 2, **changed) -> None:
    driver.give(build.accepted(job_id, size, at_ms=driver.now_ms, **changed))
    driver.give(build.forecast(job_id, {size: hours * 3600}))


def running(driver: Driver) -> set[str]:
    return {job.job_id for job in driver.state.jobs.values() if job.holds_gpus}


def end(driver: Driver, job_id: str) -> None:
    part = driver.job(job_id).parts[0]
    driver.give(build.started(job_id, part.node, at_ms=driver.now_ms))
    driver.give(build.completed(job_id, part.node, at_ms=driver.now_ms))


def wait_hours(driver: Driver, hours: int) -> None:
    """Executors confirm every start, then time passes: a start that nobody confirms is given up."""
    for job in list(driver.state.jobs.values()):
        if job.parts and job.started_ms is None:
            driver.give(build.started(job.job_id, job.parts[0].node, at_ms=driver.now_ms, attempt=job.attempt))
    driver.pass_ms(hours * HOUR_MS)


def test_a_team_never_holds_more_than_its_maximum_and_says_so() -> None:
    driver = two_nodes(rules(teams={"blue": at_most(6)}))
    for number in range(3):
        submit(driver, f"b{number}", 4)
    submit(driver, "r0", 4, team="red")
    assert running(driver) == {"b0", "r0"}
    assert driver.job("b1").reason == "quota_exceeded"
    assert driver.job("b1").planned_start_p50_ms is not None
    end(driver, "b0")
    assert running(driver) == {"b1", "r0"}


def test_a_users_maximum_is_inside_the_teams_and_each_user_counts_apart() -> None:
    team = at_most(8, each_user=Limits(maximum={build.POOL: 2}), users={"zoe": Limits(maximum={build.POOL: 4})})
    driver = two_nodes(rules(teams={"blue": team}))
    for number, user in enumerate(["ann", "ann", "ben", "zoe", "zoe", "zoe"]):
        submit(driver, f"{user}{number}", 2, user=user)
    assert running(driver) == {"ann0", "ben2", "zoe3", "zoe4"}


def test_a_lowered_maximum_stops_nothing_that_runs_and_starts_nothing_new() -> None:
    driver = two_nodes()
    submit(driver, "b0", 8)
    driver.give(rules(teams={"blue": at_most(2)}))
    submit(driver, "b1", 1)
    assert running(driver) == {"b0"}
    assert driver.job("b1").reason == "quota_exceeded"


def test_a_team_that_does_not_borrow_stays_inside_its_guarantee() -> None:
    driver = two_nodes(rules(teams={"blue": TeamRules(guaranteed={build.POOL: 4}, borrows=False)}))
    submit(driver, "b0", 4)
    submit(driver, "b1", 1)
    assert running(driver) == {"b0"}


def test_idle_quota_is_borrowed_and_the_guaranteed_team_goes_first_when_it_comes_back() -> None:
    driver = two_nodes(rules(teams={"blue": TeamRules(guaranteed={build.POOL: 8})}))
    for number in range(4):
        submit(driver, f"r{number}", 8, team="red", priority=9)
    assert running(driver) == {"r0", "r1"}
    submit(driver, "b0", 8, priority=1)
    end(driver, "r0")
    assert running(driver) == {"r1", "b0"}


def test_a_guarantee_is_of_no_help_where_borrowers_filled_what_the_organisation_may_hold() -> None:
    teams = {"blue": TeamRules(guaranteed={build.POOL: 4}, each_user=Limits(maximum={build.POOL: 2}))}
    driver = two_nodes(rules(organisation=Limits(maximum={build.POOL: 8}), teams=teams))
    submit(driver, "r0", 8, team="red")
    submit(driver, "b0", 2)
    assert running(driver) == {"r0"}
    assert driver.job("b0").reason == "quota_exceeded"
    end(driver, "r0")
    submit(driver, "b1", 2)
    assert running(driver) == {"b0"}, "nor against the maximum of its own user"
    assert driver.job("b1").reason == "quota_exceeded"


def test_an_overdue_job_goes_before_every_priority() -> None:
    driver = two_nodes(rules(aging=Aging(overdue_s=7200.0)))
    submit(driver, "r0", 8, 1, team="red")
    submit(driver, "r1", 8, 1, team="red")
    submit(driver, "late", 8, 1, priority=1)
    wait_hours(driver, 3)
    for number in range(2, 5):
        submit(driver, f"r{number}", 8, 1, team="red", priority=100)
    end(driver, "r0")
    assert "late" in running(driver)


def test_a_deadline_moves_a_job_ahead_of_its_equals() -> None:
    driver = two_nodes()
    submit(driver, "r0", 8)
    submit(driver, "r1", 8)
    submit(driver, "calm", 8)
    submit(driver, "urgent", 8, deadline_ms=driver.now_ms + 4 * HOUR_MS)
    end(driver, "r0")
    assert running(driver) == {"r1", "urgent"}


def test_limits_on_numbers_of_jobs_are_reasons_of_their_own() -> None:
    driver = two_nodes(rules(queues={"night": QueueRules(running_max=1, queued_max=2)}))
    for number in range(4):
        submit(driver, f"n{number}", 1, queue="night")
    assert running(driver) == {"n0"}
    reasons = [driver.job(f"n{number}").reason for number in (1, 2, 3)]
    assert reasons == ["running_limit", "running_limit", "queue_limit"]
    end(driver, "n0")
    assert running(driver) == {"n1"}
    assert driver.job("n3").reason == "queue_limit"
    driver.give()
    assert driver.job("n3").reason == "running_limit"


def test_use_over_time_moves_the_order_and_fades() -> None:
    driver = two_nodes(rules(fair_share=1.0, half_life_s=36_000.0))
    submit(driver, "b0", 8, 10)
    submit(driver, "r0", 8, 1, team="red")
    wait_hours(driver, 8)
    end(driver, "b0")
    used = used_by_team(driver.state, [], driver.now_ms)
    assert used["blue"] == 8 * 8 * HOUR_MS
    submit(driver, "b1", 8, 10)
    submit(driver, "b2", 8, 10, priority=3)
    submit(driver, "g0", 8, 10, team="green", priority=3)
    end(driver, "b1")
    assert "g0" in running(driver)
    wait_hours(driver, 10)
    assert used_by_team(driver.state, [], driver.now_ms)["blue"] == 4 * 8 * HOUR_MS


def test_only_a_newer_version_without_contradictions_is_put_in_force() -> None:
    driver = two_nodes(rules(3, teams={"blue": at_most(4)}))
    driver.give(rules(2))
    assert driver.state.rules.version == 3
    driver.give(rules(4, teams={"blue": at_most(4, guaranteed={build.POOL: 5})}))
    assert driver.state.rules.version == 3
    driver.give(rules(5))
    assert driver.state.rules == Rules(version=5)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"teams": {"blue": at_most(4, guaranteed={"h100": 5})}},
            "team blue is guaranteed 5 GPUs of h100 but may hold 4",
        ),
        (
            {"teams": {"blue": at_most(4, users={"ann": Limits(maximum={"h100": 5})})}},
            "user ann of team blue may hold 5",
        ),
        ({"organisation": Limits(maximum={"h100": 3}), "each_team": at_most(4)}, "each team may hold 4 GPUs of h100"),
        (
            {"teams": {name: TeamRules(guaranteed={"h100": 9}) for name in ("blue", "red")}},
            "guaranteed 18 GPUs of h100",
        ),
        ({"queues": {"q": QueueRules(maximum={"a100": 1})}}, "queue q names the pool a100; the cluster has h100"),
        ({"queues": {"q": QueueRules(preempts=True, preemptible=True)}}, "queue q both preempts and is preemptible"),
        ({"each_team": TeamRules(guaranteed={"h100": 1})}, "each_team can't be guaranteed"),
    ],
)
def test_contradictions_are_named(changed: dict[str, object], words: str) -> None:
    found = contradictions(Rules(version=1, **changed), {"h100": 16})
    assert any(words in sentence for sentence in found), found


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_no_group_is_above_its_limits(seed: int) -> None:
    """Random teams, users, queues, sizes and rule changes; groups may be above a limit only if it was lowered under them."""
    dice = Random(seed)
    driver = two_nodes(_random_rules(dice, 1))
    before: dict[tuple[Group, str], int] = {}
    for number in range(60):
        driver.pass_ms(dice.randrange(HOUR_MS))
        jobs = [job for job in driver.state.jobs.values() if job.holds_gpus]
        action = dice.randrange(6)
        if action < 3:
            names = {"team": dice.choice("abc"), "user": dice.choice("xy"), "queue": dice.choice(["day", "night"])}
            submit(driver, f"j{number}", dice.choice([1, 2, 4, 8]), dice.choice([0.5, 3]), **names)
        elif action < 5 and jobs:
            end(driver, dice.choice(jobs).job_id)
        else:
            driver.give(_random_rules(dice, number + 2))
        held: dict[tuple[Group, str], int] = {}
        running_now: dict[Group, int] = {}
        for job in driver.state.jobs.values():
            if job.holds_gpus:
                for group in groups_of(job.spec):
                    held[group, job.pool] = held.get((group, job.pool), 0) + job.gpus
                    running_now[group] = running_now.get(group, 0) + 1
        for (group, pool), gpus in held.items():
            most = maximum_of(driver.state.rules, group, pool)
            assert most is None or gpus <= max(most, before.get((group, pool), 0))
            count = limits_of(driver.state.rules, group).running_max
            assert count is None or running_now[group] <= count or gpus <= before.get((group, pool), 0)
        before = held


def _random_rules(dice: Random, version: int) -> ChangeRules:
    def most() -> dict[str, int]:
        return {build.POOL: dice.randrange(1, 17)} if dice.random() < 0.6 else {}

    teams = {name: TeamRules(maximum=most(), running_max=dice.choice([None, 2, 5])) for name in "ab"}
    night = QueueRules(maximum=most(), queued_max=dice.choice([None, 3]))
    return rules(version, teams=teams, queues={"night": night}, fair_share=dice.choice([0.0, 1.0]))

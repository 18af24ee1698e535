"""Who has a claim, on how many GPUs, in which order, and what others may still do beside it."""

from __future__ import annotations

from schemas.commands import ChangeRules
from schemas.rules import Aging, Rules, TeamRules
from services.allocator.core.claims import CLAIMED_MAX
from services.allocator.core.config import Policy
from services.allocator.core.decide import Settings
from tests import build
from tests.allocator_driver import Driver

HOUR_S = 3600.0
SETTINGS = Settings(
    policy=Policy(iterations=4, forecast_wait_ms=0), memory_mib={build.POOL: 81_920}, code_version="test", writer="test"
)


def cluster(nodes: int, guaranteed: int = 0, overdue_s: float | None = None) -> Driver:
    driver = Driver(SETTINGS).give(*(build.node(f"n{i:02}", order=i) for i in range(nodes)))
    teams = {"owner": TeamRules(guaranteed={build.POOL: guaranteed})} if guaranteed else {}
    rules = Rules(version=1, teams=teams, aging=Aging(overdue_s=overdue_s))
    return driver.give(ChangeRules(cluster=build.CLUSTER, rules=rules, ordered_ms=driver.now_ms))


def submit(driver: Driver, job_id: str, *sizes: int, hours: float = 1.0, priority: int = 1, team: str = "x") -> None:
    seconds = dict.fromkeys(sizes, hours * HOUR_S)
    driver.give(
        build.accepted(job_id, *sizes, at_ms=driver.now_ms, priority=priority, team=team),
        build.forecast(job_id, seconds, stretch=1.0),
    )


def end(driver: Driver, job_id: str) -> None:
    nodes = [part.node for part in driver.job(job_id).parts]
    driver.give(*(build.completed(job_id, node, driver.now_ms) for node in nodes))


def test_who_has_left_in_time_may_run_beside_a_claim_and_nobody_else() -> None:
    driver = cluster(1, guaranteed=8)
    submit(driver, "runs", 4, hours=2)
    driver.pass_ms(600_000)
    submit(driver, "owner", 8, team="owner")
    submit(driver, "short", 4, hours=1.75, priority=100)
    assert driver.job("short").parts, (
        "an hour and 45 minutes are seven whole steps; the claim is ready in an hour and 50"
    )
    end(driver, "short")
    submit(driver, "long", 4, hours=1.8, priority=100)
    assert not driver.job("long").parts
    assert driver.job("long").reason == "promised"
    end(driver, "runs")
    assert driver.job("owner").parts


def test_an_overdue_job_waits_for_no_larger_size_than_it_needs() -> None:
    driver = cluster(1, overdue_s=600)
    submit(driver, "a", 4, hours=3)
    submit(driver, "b", 4, hours=3)
    submit(driver, "either", 2, 8, hours=1)
    driver.pass_ms(700_000)
    end(driver, "a")
    assert [len(part.gpus) for part in driver.job("either").parts] == [2]


def test_a_claim_takes_no_more_than_the_guarantee_leaves_for_all_inside_it() -> None:
    driver = cluster(1, guaranteed=4)
    submit(driver, "runs", 8, hours=3)
    for name in ("first", "second"):
        submit(driver, name, 1, 2, 4, 8, hours=2, team="owner")
    for number in range(4):
        submit(driver, f"borrows{number}", 1, hours=8, priority=100)
    end(driver, "runs")
    owners = [driver.job(name) for name in ("first", "second")]
    assert all(job.parts for job in owners)
    assert all(driver.job(f"borrows{number}").parts for number in range(4))
    assert sum(job.gpus for job in owners) <= 4


def test_more_jobs_than_have_a_place_of_their_own_still_go_before_everybody_else() -> None:
    driver = cluster(3, guaranteed=24)
    submit(driver, "runs", 8, hours=3)
    submit(driver, "also", 16, hours=3)
    count = CLAIMED_MAX + 6
    for number in range(count):
        submit(driver, f"owner{number:02}", 1, hours=9, team="owner")
        submit(driver, f"borrows{number:02}", 1, hours=2, priority=100)
    end(driver, "runs")
    end(driver, "also")
    assert all(driver.job(f"owner{number:02}").parts for number in range(count))
    assert sum(bool(driver.job(f"borrows{number:02}").parts) for number in range(count)) == 2

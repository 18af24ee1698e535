"""Jobs that accept several pools: where they are planned, that they start once, what is said of them, and mixed nodes in one pool."""

from __future__ import annotations

from msgspec.structs import replace

from schemas.commands import ChangeRules
from schemas.decisions import Placed, Waits
from schemas.rules import Limits, Rules, TeamRules
from schemas.status import NodeGpus
from services.allocator.core.pool_choice import NO_CHOICE, choose_pools
from services.allocator.core.verify_commit import verify_commit
from tests import build
from tests.allocator_driver import Driver
from tests.mixed_pools import FAST, SLOW, accepted, node_of

HOUR_S = 3600.0


def two_pools(*, fast: int = 4, slow: int = 4) -> Driver:
    return Driver().give(node_of(FAST, "f0", gpus=fast), node_of(SLOW, "s0", gpus=slow))


def submit(driver: Driver, job_id: str, size: int, hours: float, **changed) -> None:
    driver.give(accepted(job_id, size, at_ms=driver.now_ms, **changed), build.forecast(job_id, {size: hours * HOUR_S}))


def end(driver: Driver, job_id: str) -> None:
    part = driver.job(job_id).parts[0]
    driver.give(build.started(job_id, part.node, at_ms=driver.now_ms))
    driver.give(build.completed(job_id, part.node, at_ms=driver.now_ms))


def test_with_both_pools_free_a_job_takes_the_faster_one() -> None:
    driver = two_pools()
    submit(driver, "j", 4, 4, speed=0.5)
    assert driver.job("j").pool == FAST
    submit(driver, "k", 4, 4, pools=(SLOW, FAST), speed=2.0)
    assert driver.job("k").pool == SLOW


def test_what_it_takes_is_scaled_by_the_speed_of_the_pool_it_got() -> None:
    driver = two_pools(fast=2)
    submit(driver, "j", 4, 4, speed=0.5)
    job = driver.job("j")
    assert (job.pool, job.placed_p50_s) == (SLOW, 8 * HOUR_S)
    assert driver.placement("s0").assignments[0].speed == 0.5


def test_a_job_waits_for_the_better_pool_if_it_ends_sooner_there_and_says_so() -> None:
    driver = two_pools()
    submit(driver, "first", 4, 2, pools=(FAST,))
    submit(driver, "j", 4, 8, speed=0.25)
    job = driver.job("j")
    assert (job.pool, job.planned_pool, job.reason) == ("", FAST, "waits_for_better_pool")
    status = driver.status("j")
    assert status.pool == FAST
    assert (
        "It accepts a-fast (1 times as fast), b-slow (0.25 times as fast); now it is planned in a-fast."
        in status.detail
    )
    end(driver, "first")
    assert driver.job("j").pool == FAST


def test_a_job_takes_the_slower_pool_rather_than_wait_for_long() -> None:
    driver = two_pools()
    submit(driver, "first", 4, 12, pools=(FAST,))
    submit(driver, "j", 4, 2, speed=0.5)
    assert driver.job("j").pool == SLOW


def test_a_planned_start_moves_to_another_pool_when_that_becomes_better() -> None:
    driver = two_pools()
    submit(driver, "f", 4, 3, pools=(FAST,))
    submit(driver, "s", 4, 20, pools=(SLOW,))
    submit(driver, "j", 4, 2, speed=0.9)
    assert driver.job("j").planned_pool == FAST
    submit(driver, "urgent", 4, 20, pools=(FAST,), priority=90)
    end(driver, "s")
    assert driver.job("j").pool == SLOW


def test_pool_and_size_are_chosen_together() -> None:
    """On eight slow GPUs it ends after five hours, on two fast ones after ten, on two slow ones after twenty."""
    takes = build.forecast("j", {2: 10 * HOUR_S, 8: 2.6 * HOUR_S})
    for slow_gpus, expected in ((8, (SLOW, 8)), (4, (FAST, 2))):
        driver = two_pools(fast=2, slow=slow_gpus).give(accepted("j", 2, 8, speed=0.5), takes)
        assert (driver.job("j").pool, driver.job("j").gpus) == expected


def test_two_jobs_share_out_two_pools() -> None:
    driver = two_pools()
    driver.give(
        accepted("a", 4, speed=0.5), accepted("b", 4, speed=0.9),
        build.forecast("a", {4: 4 * HOUR_S}), build.forecast("b", {4: 4 * HOUR_S}),
    )  # fmt: skip
    assert (driver.job("a").pool, driver.job("b").pool) == (FAST, SLOW)


def test_a_job_is_in_one_grid_only_so_that_nobody_waits_for_its_ghost() -> None:
    driver = two_pools()
    submit(driver, "f", 4, 2, pools=(FAST,))
    submit(driver, "s", 4, 2, pools=(SLOW,))
    submit(driver, "j", 4, 2, speed=1.0)
    submit(driver, "k", 4, 2, speed=1.0)
    planned = {driver.job(name).planned_pool for name in ("j", "k")}
    assert planned == {FAST, SLOW}
    assert [sum(name in posed.problem.job_ids for posed in driver.decided.posed) for name in ("j", "k")] == [1, 1]


def test_limits_on_running_jobs_hold_over_pools() -> None:
    driver = two_pools()
    one = TeamRules(running_max=1)
    driver.give(
        ChangeRules(cluster=build.CLUSTER, rules=Rules(version=1, teams={"blue": one}), ordered_ms=build.START_MS)
    )
    driver.give(
        accepted("a", 1), accepted("b", 1, pools=(SLOW, FAST)),
        build.forecast("a", {1: HOUR_S}), build.forecast("b", {1: HOUR_S}),
    )  # fmt: skip
    assert sum(driver.job(name).holds_gpus for name in "ab") == 1


def test_a_maximum_in_one_pool_sends_a_job_to_the_other() -> None:
    driver = two_pools()
    capped = Rules(version=1, teams={"blue": TeamRules(maximum={FAST: 2}, each_user=Limits())})
    driver.give(ChangeRules(cluster=build.CLUSTER, rules=capped, ordered_ms=build.START_MS))
    submit(driver, "j", 4, 2, speed=0.5)
    assert driver.job("j").pool == SLOW


def test_memory_that_only_one_pool_has_decides() -> None:
    settings = replace(Driver().settings, memory_mib={FAST: 40_000, SLOW: 80_000})
    driver = Driver(settings).give(node_of(FAST, "f0", gpus=4), node_of(SLOW, "s0", gpus=4))
    submit(driver, "j", 4, 2, memory_mib=60_000)
    assert driver.job("j").pool == SLOW


def test_a_pool_without_nodes_is_no_choice() -> None:
    driver = Driver().give(node_of(SLOW, "s0", gpus=4))
    submit(driver, "j", 4, 2)
    assert driver.job("j").pool == SLOW


def test_without_jobs_of_several_pools_nothing_is_chosen() -> None:
    driver = two_pools()
    submit(driver, "f", 4, 20, pools=(FAST,))
    submit(driver, "g", 4, 20, pools=(FAST,))
    now = driver._now()
    assert choose_pools(driver.state, {}, driver.settings.policy, now) is NO_CHOICE
    waits = [effect for record in driver.log for effect in record.effects if isinstance(effect, Waits)]
    assert all(effect.pool is None for effect in waits)


def placed(job_id: str, pool: str, node: str) -> Placed:
    return Placed(
        job_id=job_id, attempt=1, pool=pool, gpus=1, placed=[NodeGpus(node=node, gpus=[0])], p50_s=1.0, p90_s=1.0
    )


def test_the_check_before_publishing_refuses_a_job_in_two_pools_and_nodes_of_another_pool() -> None:
    driver = two_pools()
    driver.give(accepted("j", 1))
    policy, now = driver.settings.policy, driver._now()
    state = driver.state
    assert not state.jobs["j"].holds_gpus, "its forecast is awaited"
    twice = [placed("j", FAST, "f0"), placed("j", SLOW, "s0")]
    assert "j is given GPUs twice in one decision" in verify_commit(state, twice, policy, now)
    assert verify_commit(state, twice[:1], policy, now) == []
    wrong = verify_commit(state, [placed("j", FAST, "s0")], policy, now)
    assert wrong == ["j on s0: of pool b-slow, not of a-fast"]


def test_nodes_of_two_four_six_and_eight_gpus_in_one_pool() -> None:
    driver = Driver()
    driver.give(*(build.node(f"n{order}", gpus=gpus, order=order) for order, gpus in enumerate((2, 4, 6, 8))))
    for job_id, size in (("eight", 8), ("four", 4), ("four-too", 4), ("two", 2), ("two-too", 2)):
        driver.give(build.accepted(job_id, size, at_ms=driver.now_ms), build.forecast(job_id, {size: HOUR_S}))
    held = {job.job_id: (job.parts[0].node, len(job.parts[0].gpus)) for job in driver.state.jobs.values()}
    assert held["eight"] == ("n3", 8)
    assert sorted(held.values()) == [("n0", 2), ("n1", 4), ("n2", 2), ("n2", 4), ("n3", 8)]
    assert all(len(driver.job(job_id).parts) == 1 for job_id in held)


def test_a_gang_over_nodes_of_different_sizes_takes_neighbours_that_add_up() -> None:
    driver = Driver()
    driver.give(*(build.node(f"n{order}", gpus=gpus, order=order) for order, gpus in enumerate((2, 6, 8, 4, 4))))
    driver.give(build.accepted("big", 16, at_ms=driver.now_ms), build.forecast("big", {16: HOUR_S}))
    assert [(part.node, len(part.gpus)) for part in driver.job("big").parts] in (
        [("n0", 2), ("n1", 6), ("n2", 8)], [("n2", 8), ("n3", 4), ("n4", 4)],
    )  # fmt: skip

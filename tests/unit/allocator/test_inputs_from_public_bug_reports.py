"""What schedulers elsewhere got wrong in public, each as a test of its kind."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from schemas.commands import ChangeRules
from schemas.decisions import Placed
from schemas.executions import StopCause
from schemas.nodes import Health
from schemas.rules import Rules, TeamRules
from schemas.status import JobState
from services.allocator.core.fold_executions import CLOCKS_AGREE_MS
from services.allocator.core.remarks import CLOCK_SKEW, ON_BROKEN_GPUS
from services.allocator.core.snapshot import restore, take
from tests import build
from tests.allocator_driver import Driver

EVERYWHERE = {1: 600.0, 2: 600.0, 4: 600.0, 8: 600.0, 16: 600.0}


def cluster(nodes: int = 1) -> Driver:
    return Driver().give(*(build.node(f"n{i:02}", order=i) for i in range(nodes)))


def submit(driver: Driver, job_id: str, *sizes: int, **changed) -> None:
    driver.give(build.accepted(job_id, *sizes, at_ms=driver.now_ms, **changed), build.forecast(job_id, EVERYWHERE))


def start(driver: Driver, job_id: str) -> None:
    job = driver.job(job_id)
    driver.give(*(build.started(job_id, part.node, driver.now_ms, job.attempt) for part in job.parts))


@pytest.mark.parametrize("healthy", [7, 6, 1, 0])
def test_a_full_node_with_broken_cards_has_nothing_free(healthy: int):
    driver = cluster()
    submit(driver, "whole", 8)
    start(driver, "whole")
    broken = tuple(range(healthy, 8))
    driver.give(replace(build.node("n00", health=Health.DEGRADED, unhealthy=broken), time_ms=driver.now_ms + 1))
    submit(driver, "fresh", 4)
    assert driver.job("whole").state is JobState.RUNNING, "what runs is left to its executor"
    assert driver.job("fresh").state is JobState.QUEUED
    assert not driver.job("fresh").parts
    assert driver.job("fresh").reason == "node_degraded"
    driver.give(build.completed("whole", "n00", driver.now_ms))
    placed = bool(driver.job("fresh").parts)
    assert placed == (healthy >= 4)
    assert placed or driver.job("fresh").reason == "node_degraded"
    assert all(gpu < healthy for part in driver.job("fresh").parts for gpu in part.gpus)


@pytest.mark.parametrize("gone", [(0,), (7,), (0, 1), (2, 5), (0, 1, 2, 3), (1, 3, 5, 7)])
@pytest.mark.parametrize("known_before", [True, False])
def test_cards_that_are_no_longer_listed_are_not_free_and_the_others_keep_their_places(known_before: bool, gone):
    driver = cluster() if known_before else Driver()
    whole = build.node("n00", health=Health.DEGRADED)
    driver.give(replace(whole, gpus=[gpu for gpu in whole.gpus if gpu.index not in gone], time_ms=driver.now_ms + 1))
    for number in range(8):
        submit(driver, f"j{number}", 1)
    held = [gpu for job in driver.state.jobs.values() for part in job.parts for gpu in part.gpus]
    assert sorted(held) == [index for index in range(8) if index not in gone]


@pytest.mark.parametrize("healthy", [7, 6, 1, 0])
def test_a_job_on_cards_that_break_under_it_is_flagged_until_they_are_well(healthy: int):
    driver = cluster(nodes=2)
    submit(driver, "whole", 16)
    start(driver, "whole")
    submit(driver, "other", 1)
    broken = replace(
        build.node("n00", health=Health.DEGRADED, unhealthy=tuple(range(healthy, 8))), time_ms=driver.now_ms + 1
    )
    driver.give(broken)
    status = driver.status("whole")
    assert (status.state, status.reason) == (JobState.RUNNING, ON_BROKEN_GPUS)
    assert f"{8 - healthy} on n00" in status.detail
    assert "n01" not in status.detail
    assert driver.status("other").reason != ON_BROKEN_GPUS, "it holds none of them"
    driver.give(replace(build.node("n00"), time_ms=driver.now_ms + 2))
    assert (driver.status("whole").state, driver.status("whole").reason) == (JobState.RUNNING, None)


def test_where_a_sound_node_will_do_a_broken_one_is_no_reason():
    driver = cluster(nodes=2)
    submit(driver, "one", 8)
    submit(driver, "other", 8)
    for job_id in ("one", "other"):
        start(driver, job_id)
    submit(driver, "fresh", 4)
    assert driver.job("fresh").reason == "waiting_for_gpus"
    broken = replace(build.node("n00", health=Health.DEGRADED, unhealthy=(6, 7)), time_ms=driver.now_ms + 1)
    driver.give(broken)
    assert driver.job("fresh").reason == "waiting_for_gpus", "the other node's GPUs are as good"
    driver.give(replace(build.node("n01", order=1, health=Health.DEGRADED, unhealthy=(0,)), time_ms=driver.now_ms + 1))
    assert driver.job("fresh").reason == "node_degraded"


def test_broken_cards_that_nobody_holds_flag_nobody():
    driver = cluster()
    submit(driver, "half", 4)
    start(driver, "half")
    held = set(driver.job("half").parts[0].gpus)
    free = tuple(gpu for gpu in range(8) if gpu not in held)
    driver.give(replace(build.node("n00", health=Health.DEGRADED, unhealthy=free), time_ms=driver.now_ms + 1))
    assert driver.status("half").reason is None


@pytest.mark.parametrize("ahead_ms", [-86_400_000, 60_000, 3_600_000])
def test_a_start_stamped_before_its_submission_waited_no_time_and_jumps_no_queue(ahead_ms: int):
    driver = cluster()
    submit(driver, "holder", 8)
    start(driver, "holder")
    first = replace(build.accepted("first", 8, at_ms=driver.now_ms + max(0, ahead_ms)), skewed=True)
    driver.give(first, build.forecast("first", EVERYWHERE))
    submit(driver, "second", 8)
    driver.give(build.completed("holder", "n00", driver.now_ms))
    assert (driver.job("first").state, driver.job("second").state) == (JobState.STARTING, JobState.QUEUED)
    driver.give(build.started("first", "n00", driver.now_ms + ahead_ms))
    status = driver.status("first")
    assert status.started_ms is not None
    assert build.START_MS <= status.started_ms <= driver.now_ms
    assert (status.reason, "tells nothing" in status.detail) == (CLOCK_SKEW, True), "flagged"


@pytest.mark.parametrize(
    ("early_ms", "flagged"), [(CLOCKS_AGREE_MS, False), (CLOCKS_AGREE_MS + 1, True), (3_600_000, True)]
)
def test_a_start_stamped_by_a_late_clock_is_flagged_and_waited_no_time(early_ms: int, flagged: bool):
    driver = cluster()
    submit(driver, "j", 8)
    driver.give(build.started("j", "n00", driver.now_ms - early_ms))
    status = driver.status("j")
    assert status.started_ms is not None
    assert status.submitted_ms is not None
    assert status.started_ms - status.submitted_ms == 0
    assert (status.reason == CLOCK_SKEW) == flagged


def test_a_restarted_controller_never_admits_a_finished_job_again():
    driver = cluster()
    submit(driver, "j", 8)
    start(driver, "j")
    driver.give(build.completed("j", "n00", driver.now_ms))
    chunks, manifest = take(driver.state, "a", 7)
    restored = restore(manifest, dict(enumerate(chunks)))
    assert restored is not None
    assert msgspec.json.encode(restored) == msgspec.json.encode(driver.state)
    driver.state = restored
    submit(driver, "j", 8)
    submit(driver, "other", 8)
    assert "j" not in driver.state.jobs
    assert driver.job("other").state is JobState.STARTING, "and its cards are free"


def test_a_restarted_controller_keeps_no_quota_of_a_finished_job():
    driver = cluster()
    rules = Rules(version=1, teams={"blue": TeamRules(maximum={build.POOL: 4}, running_max=1)})
    driver.give(ChangeRules(cluster=build.CLUSTER, rules=rules, ordered_ms=driver.now_ms))
    submit(driver, "first", 4)
    start(driver, "first")
    submit(driver, "second", 4)
    assert driver.job("second").reason in ("quota_exceeded", "running_limit")
    driver.give(build.completed("first", "n00", driver.now_ms))
    start(driver, "second")
    driver.give(build.completed("second", "n00", driver.now_ms))
    chunks, manifest = take(driver.state, "a", 7)
    restored = restore(manifest, dict(enumerate(chunks)))
    assert restored is not None
    driver.state = restored
    submit(driver, "first", 4)
    submit(driver, "third", 4)
    assert driver.job("third").state is JobState.STARTING


def test_two_gangs_that_each_need_all_nodes_never_hold_half():
    driver = cluster(nodes=2)
    driver.give(
        build.accepted("a", 16),
        build.accepted("b", 16),
        build.forecast("a", EVERYWHERE),
        build.forecast("b", EVERYWHERE),
    )
    for first, second in (("a", "b"), ("b", None)):
        assert {part.node for part in driver.job(first).parts} == {"n00", "n01"}
        assert second is None or (not driver.job(second).parts and driver.job(second).reason)
        start(driver, first)
        driver.pass_ms(600_000)
        driver.give(*(build.completed(first, node, driver.now_ms) for node in ("n00", "n01")))
    assert [state.state for state in driver.state.finished.values()] == [JobState.COMPLETED] * 2


def test_a_gang_that_lost_a_node_holds_nothing_until_it_can_have_all():
    driver = cluster(nodes=2)
    submit(driver, "gang", 16)
    start(driver, "gang")
    lost = replace(build.node("n01", order=1, health=Health.LOST), time_ms=driver.now_ms + 60_000)
    driver.pass_ms(60_000).give(lost)
    assert driver.job("gang").stop_cause == StopCause.GANG_BROKEN.value
    driver.give(build.stopped("gang", "n00", driver.now_ms, StopCause.GANG_BROKEN))
    assert (driver.job("gang").state, driver.job("gang").parts) == (JobState.QUEUED, [])
    submit(driver, "small", 1)
    assert driver.job("small").parts, "what it can't use now is open to others"
    assert not any(isinstance(effect, Placed) and effect.job_id == "gang" for effect in driver.log[-1].effects)

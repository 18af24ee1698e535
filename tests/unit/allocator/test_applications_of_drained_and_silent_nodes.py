"""Where an application is when its node is drained, when nothing is heard of its executor, and when its node is lost."""

from __future__ import annotations

from itertools import pairwise

from msgspec.structs import replace

from schemas.commands import DrainNode, UndrainNode
from schemas.executions import JobReady, StopCause
from schemas.jobs import ProbeKind, Readiness
from schemas.nodes import Health
from schemas.status import JobState
from services.allocator.core.due import due_wall_ms
from services.allocator.core.silence import START_WALL_MS_MAX
from tests import build
from tests.allocator_driver import POLICY, Driver

STEP_MS = POLICY.step_ms


def serving(floor: int = 2, switch_max: int = 2, **changed) -> tuple[Driver, str]:
    """Two nodes, an application, and the node it is on."""
    driver = Driver().give(build.node("n00", order=0), build.node("n01", order=1))
    driver.give(build.application("web", floor=floor, peak=floor, switch_max=switch_max, **changed))
    [(node, _)] = held(driver)
    return driver, node


def held(driver: Driver) -> list[tuple[str, int]]:
    return [(part.node, len(part.gpus)) for part in driver.state.apps["web"].parts]


def drain(driver: Driver, node: str, deadline_s: float) -> Driver:
    return driver.give(DrainNode(node=node, cluster="c0", ordered_ms=driver.now_ms, deadline_s=deadline_s))


def test_it_serves_on_a_draining_node_until_the_deadline_and_is_elsewhere_a_step_before() -> None:
    driver, node = serving()
    other = {"n00": "n01", "n01": "n00"}[node]
    drain(driver, node, 3 * STEP_MS / 1000)
    for _ in range(2):
        assert held(driver) == [(node, 2)]
        driver.pass_ms(STEP_MS).give()
    assert sorted(held(driver)) == sorted([(node, 2), (other, 2)])
    driver.pass_ms(STEP_MS).give()
    assert held(driver) == [(other, 2)]
    assert driver.placement(node).assignments == []


def test_with_few_switches_a_step_it_begins_to_grow_elsewhere_in_time_and_is_never_short() -> None:
    driver, node = serving(floor=4, switch_max=1)
    drain(driver, node, 6 * STEP_MS / 1000)
    elsewhere = []
    for _ in range(8):
        there = dict(held(driver))
        elsewhere.append(sum(there.values()) - there.get(node, 0))
        assert sum(there.values()) >= 4
        driver.pass_ms(STEP_MS).give()
    assert elsewhere == [0, 0, 1, 2, 3, 4, 4, 4]
    assert all(where != node for where, _ in held(driver))


def test_an_undrain_lets_it_give_back_what_it_has_too_many_step_by_step() -> None:
    driver, node = serving(floor=4, switch_max=1)
    drain(driver, node, 5 * STEP_MS / 1000)
    driver.pass_ms(3 * STEP_MS).give()
    counts = [sum(gpus for _, gpus in held(driver))]
    driver.pass_ms(STEP_MS).give(UndrainNode(node=node, cluster="c0", ordered_ms=driver.now_ms + 1))
    for _ in range(4):
        counts.append(sum(gpus for _, gpus in held(driver)))
        driver.pass_ms(STEP_MS).give()
    assert counts[0] > 4
    assert counts[-1] == 4
    assert all(before - after in (0, 1, -1) for before, after in pairwise(counts))


def test_what_the_drain_takes_is_no_switch_and_what_it_gets_back_is_within_the_cap() -> None:
    driver, node = serving(floor=4, switch_max=2)
    counts = []
    drain(driver, node, 0.0)
    for _ in range(3):
        assert all(where != node for where, _ in held(driver))
        counts.append(sum(gpus for _, gpus in held(driver)))
        driver.pass_ms(STEP_MS).give()
    assert counts == [2, 4, 4]


def test_an_undrain_in_time_leaves_it_where_it_is() -> None:
    driver, node = serving()
    drain(driver, node, 2 * STEP_MS / 1000)
    driver.pass_ms(STEP_MS).give(UndrainNode(node=node, cluster="c0", ordered_ms=driver.now_ms + 1))
    driver.pass_ms(3 * STEP_MS).give()
    assert held(driver) == [(node, 2)]


def test_a_silent_executor_takes_nothing_from_it() -> None:
    """Once its executor has said that it has it, an application serves on without it, whether its probe was answered or not."""
    driver, node = serving(readiness=Readiness(kind=ProbeKind.TCP))
    driver.give(build.started("web", node, driver.now_ms)).pass_ms(5 * START_WALL_MS_MAX).give()
    assert (held(driver), driver.status("web").state) == ([(node, 2)], JobState.STARTING)
    ready = JobReady(job_id="web", attempt=1, node=node, cluster="c0", time_ms=driver.now_ms, ready=True)
    driver.give(ready).pass_ms(5 * START_WALL_MS_MAX).give()
    assert (held(driver), driver.status("web").state) == ([(node, 2)], JobState.RUNNING)


def test_a_start_that_nobody_confirms_is_given_up_and_made_elsewhere_like_a_jobs() -> None:
    driver, node = serving(readiness=Readiness(kind=ProbeKind.TCP))
    other = {"n00": "n01", "n01": "n00"}[node]
    assert due_wall_ms(driver.state, POLICY) == driver.wall_ms + START_WALL_MS_MAX
    driver.pass_ms(START_WALL_MS_MAX - 1).give()
    assert held(driver) == [(node, 2)]
    driver.pass_ms(1).give()
    assert held(driver) == [(other, 2)]
    assert driver.placement(node).assignments == [], "what starts late after all is stopped"
    assert not driver.state.nodes[node].takes_new
    driver.give(build.started("web", other, driver.now_ms))
    driver.give(build.stopped("web", node, driver.now_ms, StopCause.FENCED))
    assert driver.state.nodes[node].takes_new, "its executor speaks again"
    driver.pass_ms(5 * START_WALL_MS_MAX).give()
    assert held(driver) == [(other, 2)]


def test_without_a_probe_it_counts_as_serving_and_stays() -> None:
    driver, node = serving()
    driver.pass_ms(5 * START_WALL_MS_MAX).give()
    assert (held(driver), driver.status("web").state) == ([(node, 2)], JobState.RUNNING)
    assert due_wall_ms(driver.state, POLICY) is None


def test_growing_on_a_node_that_has_it_is_no_new_start() -> None:
    driver, node = serving(readiness=Readiness(kind=ProbeKind.TCP))
    driver.give(build.started("web", node, driver.now_ms))
    known = driver.state.apps["web"]
    driver.give(application_again(floor=4, at_ms=known.accepted_ms + 1))
    assert held(driver) == [(node, 4)]
    driver.pass_ms(5 * START_WALL_MS_MAX).give()
    assert held(driver) == [(node, 4)]


def application_again(floor: int, at_ms: int):
    changed = build.application("web", floor=floor, peak=floor, switch_max=2, readiness=Readiness(kind=ProbeKind.TCP))
    return replace(changed, accepted_ms=at_ms)


def test_a_lost_node_moves_it_and_what_may_still_run_there_is_no_longer_wanted() -> None:
    driver, node = serving()
    order = int(node[1:])
    driver.give(build.node(node, order=order, health=Health.SUSPECT))
    assert held(driver) == [(node, 2)]
    driver.give(build.node(node, order=order, health=Health.LOST))
    [(other, gpus)] = held(driver)
    assert (other != node, gpus) == (True, 2)
    assert driver.placement(node).assignments == []

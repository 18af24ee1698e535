"""A node that is gone for good: its jobs wait for another place at once, all that names it ends, and late words don't bring it back."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from schemas.commands import ChangeRules, DrainNode, ForgetNode, RepartitionCards, ReserveBlock
from schemas.decisions import Promised
from schemas.executions import CardsShaped, JobCheckpointed, JobStarted, NodeReported, StopCause
from schemas.nodes import Health, NodeForgotten
from schemas.records import Now, Record
from schemas.rules import PlannedStarts, Rules
from schemas.status import JobState
from services.allocator.core.departures import FORGOTTEN_MAX, NEXT_LIFE_MS
from services.allocator.core.project import placements
from services.allocator.core.snapshot import restore, take
from services.allocator.shell.intake_batch import batches
from tests import build
from tests.allocator_driver import Driver


def word(driver: Driver, node: str, incarnation: int = 0, **changed) -> NodeForgotten:
    fields = {"time_ms": driver.now_ms, "ordered_ms": driver.now_ms, "pool": build.POOL} | changed
    return NodeForgotten(node=node, cluster=build.CLUSTER, incarnation=incarnation, **fields)


def running(size: int = 4, nodes: int = 2) -> tuple[Driver, str]:
    """Nodes of eight, a running job that has saved half of its work, and the node it is on."""
    driver = Driver().give(*(build.node(f"n0{at}", order=at) for at in range(nodes)))
    driver.give(build.accepted("a", size), build.forecast("a", {size: 6000}))
    node = driver.job("a").parts[0].node
    for part in driver.job("a").parts:
        driver.give(build.started("a", part.node, driver.now_ms))
    saved = JobCheckpointed(
        job_id="a",
        attempt=1,
        node=node,
        cluster="c0",
        time_ms=driver.now_ms,
        fraction=0.5,
        location="disk/7",
    )
    return driver.give(saved), node


def silent(driver: Driver, node: str, health: Health = Health.SUSPECT) -> Driver:
    return driver.give(replace(build.node(node, order=int(node[1:]), health=health), time_ms=driver.now_ms))


def back(driver: Driver, node: str, incarnation: int = 1, **changed):
    state = build.node(node, order=int(node[1:]), incarnation=incarnation, **changed)
    return replace(state, time_ms=driver.now_ms)


def test_a_suspect_nodes_job_goes_on_elsewhere_at_once_from_its_checkpoint() -> None:
    driver, node = running()
    other = {"n00": "n01", "n01": "n00"}[node]
    silent(driver, node).pass_ms(1000)
    assert driver.job("a").state is JobState.RUNNING
    driver.give(word(driver, node))
    job = driver.job("a")
    assert ([part.node for part in job.parts], job.attempt, job.fraction_at_start) == ([other], 2, 0.5)
    assert node not in driver.state.nodes
    assert (driver.placement(node).assignments, driver.placement(node).sequence) == ([], driver.state.sequence)


def test_its_gpus_are_in_the_grid_no_longer_and_the_order_itself_changes_nothing() -> None:
    driver, node = running(nodes=1)
    driver.give(ForgetNode(node=node, cluster="c0", ordered_ms=driver.now_ms))
    assert node in driver.state.nodes
    driver.give(word(driver, node))
    assert driver.status("a").state is JobState.QUEUED
    driver.give(build.accepted("b", 1), build.forecast("b", {1: 60}))
    assert driver.job("b").reason == "no_capacity"


def test_a_gang_that_lost_a_part_stops_the_others_and_starts_anew() -> None:
    driver = Driver().give(*(build.node(f"n0{at}", order=at) for at in range(4)))
    driver.give(build.accepted("g", 16), build.forecast("g", {16: 6000}))
    nodes = [part.node for part in driver.job("g").parts]
    driver.give(word(driver, nodes[0]))
    job = driver.job("g")
    assert (job.stop_cause, driver.placement(nodes[1]).assignments[0].desired.value) == ("gang_broken", "stop")
    driver.give(build.stopped("g", nodes[1], driver.now_ms, StopCause.GANG_BROKEN))
    assert nodes[0] not in [part.node for part in driver.job("g").parts]


def test_a_completion_that_comes_late_still_counts() -> None:
    driver, node = running()
    driver.give(word(driver, node))
    driver.give(build.completed("a", node, driver.now_ms))
    assert driver.job("a").stop_cause == "fenced"


def test_applications_lose_what_they_had_there_and_get_other_gpus() -> None:
    driver = Driver().give(build.node("n00", order=0), build.node("n01", order=1))
    driver.give(build.application("web", floor=2, peak=2, switch_max=2))
    [part] = driver.state.apps["web"].parts
    driver.state.apps["web"].ready, driver.reader.apps["web"].ready = [part.node], [part.node]
    driver.give(word(driver, part.node))
    [moved] = driver.state.apps["web"].parts
    assert (moved.node != part.node, len(moved.gpus)) == (True, 2)
    assert driver.state.apps["web"].ready == []


def test_states_of_the_former_life_bring_nobody_back_and_the_next_life_is_a_new_node() -> None:
    driver, node = running()
    late = replace(back(driver, node, 0), time_ms=driver.now_ms - 1)
    silent(driver.pass_ms(1000), node).give(word(driver, node))
    for former in (late, back(driver.pass_ms(60_000), node, 0), word(driver, node, 0, time_ms=driver.now_ms - 60_000)):
        driver.give(former)
        assert node not in driver.state.nodes
    driver.give(back(driver, node))
    known = driver.state.nodes[node]
    assert (known.incarnation, known.health, node in driver.state.forgotten) == (1, Health.USABLE, False)
    driver.give(word(driver, node, 0, time_ms=driver.now_ms - 60_000))
    assert node in driver.state.nodes, "the word comes twice, after it is back"


def test_what_is_said_long_after_is_of_a_later_life_though_nobody_remembers_its_number() -> None:
    driver, node = running()
    driver.give(word(driver, node, 3))
    driver.pass_ms(NEXT_LIFE_MS - 1000).give(back(driver, node, 0))
    assert node not in driver.state.nodes
    driver.pass_ms(2000).give(back(driver, node, 0))
    assert node in driver.state.nodes


def test_orders_from_before_do_not_wait_for_its_return_and_later_ones_do() -> None:
    driver, node = running()
    drain = DrainNode(node=node, cluster="c0", ordered_ms=driver.now_ms - 5, deadline_s=60.0)
    window = {"node": node, "cluster": "c0", "from_ms": driver.now_ms, "until_ms": driver.now_ms + 9_000_000}
    early = ReserveBlock(reservation_id="r1", ordered_ms=driver.now_ms - 5, **window)
    driver.give(word(driver, node)).give(drain, early)
    assert (driver.state.early_drains, driver.state.reservations) == ({}, {})
    driver.give(ReserveBlock(reservation_id="r2", ordered_ms=driver.now_ms + 5, **window))
    driver.give(back(driver, node))
    assert list(driver.state.reservations) == ["r2"]
    assert not driver.state.nodes[node].draining


def test_reservations_end_with_it_and_a_drain_is_over_when_it_comes_back() -> None:
    driver, node = running()
    reserve = ReserveBlock(
        reservation_id="r1",
        cluster="c0",
        node=node,
        from_ms=driver.now_ms,
        until_ms=driver.now_ms + 9_000_000,
        ordered_ms=driver.now_ms,
    )
    driver.give(reserve, DrainNode(node=node, cluster="c0", ordered_ms=driver.now_ms))
    driver.give(word(driver, node))
    assert driver.state.reservations == {}
    assert driver.state.forgotten[node].ended == ["r1"]
    driver.give(back(driver, node))
    assert driver.state.nodes[node].takes_new


def test_a_promised_start_there_is_taken_back_with_its_cause() -> None:
    driver = Driver().give(*(build.node(f"n0{at}", order=at) for at in range(2)))
    rules = Rules(version=1, planned_starts=PlannedStarts(nodes_min=2))
    driver.give(ChangeRules(cluster="c0", rules=rules, ordered_ms=driver.now_ms))
    driver.give(build.accepted("small", 8), build.forecast("small", {8: 7200}))
    driver.give(build.accepted("big", 16), build.forecast("big", {16: 3600}))
    promise = driver.state.promises["big"]
    assert promise.start_ms is not None
    idle = next(part.node for part in promise.placed if part.node != driver.job("small").parts[0].node)
    driver.give(word(driver, idle))
    said = [effect for effect in driver.decided.record.effects if isinstance(effect, Promised)]
    assert [(effect.job_id, effect.start_ms, effect.cause) for effect in said] == [("big", None, "node_withdrawn")]


def test_what_its_executor_said_of_the_machine_is_believed_when_it_comes_back() -> None:
    driver, node = running()
    report = build.reported(node, driver.now_ms, applied=0, epoch=0, boot_id="b1", datasets=["imagenet"])
    driver.give(report).give(word(driver, node)).give(back(driver, node))
    known = driver.state.nodes[node]
    assert (known.boot_id, known.datasets) == ("b1", ["imagenet"])


def test_with_a_machine_orders_to_cut_its_cards_end_and_its_next_word_counts_whatever_its_number() -> None:
    driver = Driver()
    for name, pool, slots in (("m0", build.POOL, 1), ("m0-half", "half", 2)):
        state = build.node(name, gpus=2 * slots, machine="m0", slots_per_card=slots)
        driver.give(replace(state, pool=pool))
    shaped = CardsShaped(
        node="m0", cluster="c0", time_ms=driver.now_ms, revision=7, pools=[build.POOL, build.POOL], done=True
    )
    driver.give(shaped, build.node("n05", order=5))
    driver.give(build.accepted("a", 1), build.forecast("a", {1: 6000}))
    cut = RepartitionCards(
        request_id="cut-1", cluster="c0", node="m0", cards=[0, 1], pool="half", ordered_ms=driver.now_ms
    )
    driver.give(cut)
    assert "cut-1" in driver.state.repartitions
    driver.give(word(driver, "m0"), word(driver, "m0-half", pool="half"))
    assert (driver.state.repartitions, driver.state.reservations) == ({}, {})
    assert driver.state.forgotten["m0"].ended == ["cut-1"]
    driver.give(replace(shaped, revision=1, pools=["half", "half"]))
    assert driver.state.cuts["m0"].pools == ["half", "half"]


def test_who_takes_over_says_again_that_nothing_shall_run_there() -> None:
    driver, node = running()
    driver.give(word(driver, node))
    chunks, manifest = take(driver.state, "a", 0)
    state = restore(manifest, {chunk.index: chunk for chunk in chunks})
    assert state is not None
    assert state.forgotten[node].node.pool == build.POOL
    (placed,) = placements(state, [node])
    assert (placed.node, placed.assignments, placed.pool) == (node, [], build.POOL)


def test_a_node_never_heard_of_is_remembered_and_memory_is_bounded() -> None:
    driver = Driver().give(build.node("n00"))
    driver.give(*(word(driver, f"x{at:04}") for at in range(FORGOTTEN_MAX + 5)))
    assert len(driver.state.forgotten) == FORGOTTEN_MAX
    assert "x0004" not in driver.state.forgotten
    driver.give(replace(build.node("x1000"), time_ms=driver.now_ms))
    assert "x1000" not in driver.state.nodes


@pytest.mark.parametrize("kind", [JobStarted, NodeReported])
def test_late_reports_of_its_executor_change_nothing(kind: type) -> None:
    driver, node = running()
    driver.give(word(driver, node))
    before = msgspec.json.encode(driver.state.jobs)
    if kind is JobStarted:
        driver.give(build.started("a", node, driver.now_ms))
    else:
        driver.give(build.reported(node, driver.now_ms, applied=0, epoch=0))
    assert msgspec.json.encode(driver.state.jobs) == before


def test_a_removed_word_is_covered_and_no_dead_letter() -> None:
    removed = Record("node-states", 0, 5, b"n00", None, (), 0)
    found, letters = batches([removed], {build.CLUSTER: {}}, Now(0, 0))
    assert letters == []
    assert [(batch.inputs, batch.covered) for batch in found[build.CLUSTER]] == [([], {("node-states", 0): 6})]

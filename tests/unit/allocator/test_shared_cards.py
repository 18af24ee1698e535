"""Cards that two pools share: who gets which slots, and how cards go from one pool to the other."""

from __future__ import annotations

from collections import Counter

import pytest

from schemas.commands import DrainNode, UndrainNode
from schemas.executions import StopCause
from schemas.nodes import Health
from schemas.placements import Reshape
from tests import build
from tests.allocator_driver import Driver
from tests.shared_cards import CARDS, HALF, HALVES, MACHINE, half_job, machine, order, shaped, shared

WHOLE = build.POOL


def slots_of(driver: Driver, job_id: str) -> list[int]:
    (part,) = driver.job(job_id).parts
    return part.gpus


def grid(driver: Driver) -> dict[int, str]:
    """Slot → job."""
    jobs = driver.state.jobs.values()
    return {slot: job.job_id for job in jobs for part in job.parts if part.node == HALVES for slot in part.gpus}


@pytest.mark.parametrize("count", [1, 5, 16])
def test_halves_that_come_at_once_fill_the_same_slots_as_one_by_one_and_sixteen_are_two_per_card(count: int) -> None:
    """Which of sixteen equal jobs has which of the slots is nobody's business."""
    names = [f"j{number:02}" for number in range(count)]
    at_once = shared().give(*[half_job(name, 1) for name in names], *[build.forecast(name, {1: 600}) for name in names])
    one_by_one = shared()
    for name in names:
        one_by_one.give(half_job(name, 1), build.forecast(name, {1: 600}))
    assert set(grid(at_once)) == set(grid(one_by_one)) == set(range(count))
    assert set(grid(at_once).values()) == set(names)
    if count == 16:
        assert Counter(slot // 2 for slot in grid(at_once)) == dict.fromkeys(range(8), 2)


def test_nothing_is_offered_before_the_executor_has_said_how_the_cards_are_cut() -> None:
    driver = Driver(shared().settings).give(*machine()).give(build.accepted("w", 1), half_job("h", 1))
    driver.give(build.forecast("w", {1: 600}), build.forecast("h", {1: 600}))
    assert (driver.job("w").reason, driver.job("h").reason) == ("no_capacity", "no_capacity")
    driver.give(shaped([WHOLE] * 7 + [HALF], 1))
    assert driver.job("w").parts[0].node == MACHINE
    assert (driver.job("h").parts[0].node, slots_of(driver, "h")[0] // 2) == (HALVES, 7)


def test_two_halves_lie_on_one_card_even_where_a_straddling_pair_is_free() -> None:
    driver = shared(halves=2)  # cards 6 and 7, slots 12 to 15
    for name in ("a", "b", "c", "d"):
        driver.give(half_job(name, 1), build.forecast(name, {1: 36_000}))
    driver.give(*[build.started(name, HALVES, driver.now_ms) for name in "abcd"])
    held = {name: slots_of(driver, name)[0] for name in "abcd"}
    inner = [name for name, slot in held.items() if slot in (13, 14)]
    driver.give(*[build.completed(name, HALVES, driver.now_ms) for name in inner])
    driver.give(half_job("pair", 2), build.forecast("pair", {2: 600}))
    assert (driver.job("pair").parts, driver.job("pair").reason) == ([], "fragmented")
    left = next(name for name, slot in held.items() if slot == 12)
    driver.give(build.completed(left, HALVES, driver.now_ms))
    assert slots_of(driver, "pair") == [12, 13]


def test_more_slots_than_a_card_has_and_more_memory_than_a_slot_has_are_never_planned() -> None:
    driver = shared().give(half_job("wide", 4), half_job("fat", 1, memory_mib=40_961), half_job("fits", 1, 4))
    driver.give(build.forecast("wide", {4: 600}), build.forecast("fat", {1: 600}), build.forecast("fits", {1: 9, 4: 1}))
    assert (driver.job("wide").reason, driver.job("fat").reason) == ("size_exceeds_card", "memory_exceeds_gpu")
    assert "one card" in driver.status("wide").detail
    assert driver.job("fits").gpus == 1


def test_a_card_is_cut_anew_only_when_it_is_empty_and_then_offers_its_slots() -> None:
    driver = shared(halves=0).give(build.accepted("w", 8), build.forecast("w", {8: 3600}))
    driver.give(build.started("w", MACHINE, driver.now_ms))
    driver.give(order("p1", [6, 7], HALF, driver.now_ms))
    assert driver.placement(MACHINE).reshape is None
    driver.give(half_job("h", 1), build.forecast("h", {1: 600}))
    assert driver.job("h").reason == "cut_under_way"
    assert driver.job("h").planned_start_p50_ms == driver.now_ms + 2 * driver.settings.policy.step_ms, (
        "an hour, and a cut"
    )
    driver.give(build.completed("w", MACHINE, driver.now_ms))
    assert driver.placement(MACHINE).reshape == Reshape(request_id="p1", cards=[6, 7], pool=HALF)
    driver.give(build.accepted("w2", 1), build.forecast("w2", {1: 600}))
    assert slots_of(driver, "w2")[0] < 6
    driver.give(shaped([WHOLE] * 6 + [HALF] * 2, 2, "p1"))
    assert driver.placement(MACHINE).reshape is None
    assert slots_of(driver, "h")[0] // 2 in (6, 7)
    assert (driver.state.repartitions, driver.state.reservations) == ({}, {})


def test_a_failed_cut_gives_the_cards_back_and_keeps_the_cause() -> None:
    driver = shared(halves=0).give(order("p1", list(range(CARDS)), HALF, build.START_MS))
    driver.give(build.accepted("w", 1), build.forecast("w", {1: 600}))
    assert driver.job("w").reason == "to_be_cut"
    assert "an operator ordered its cards to be cut anew" in driver.status("w").detail
    driver.give(shaped([WHOLE] * 8, 2, "p1", done=False, detail="card 0: In use by another client"))
    assert driver.job("w").parts
    assert driver.state.cuts[MACHINE].detail == "card 0: In use by another client"


def test_at_the_deadline_what_runs_on_the_cards_is_stopped_and_nothing_else() -> None:
    driver = shared(halves=0)
    driver.give(*[build.accepted(name, 4) for name in "ab"], *[build.forecast(name, {4: 36_000}) for name in "ab"])
    driver.give(*[build.started(name, MACHINE, driver.now_ms) for name in "ab"])
    driver.give(order("p1", [0], HALF, driver.now_ms, deadline_s=600.0))
    driver.pass_ms(601_000).give()
    on_it = next(name for name in "ab" if 0 in slots_of(driver, name))
    other = "b" if on_it == "a" else "a"
    assert (driver.job(on_it).stop_cause, driver.job(other).stop_cause) == ("drain", "")
    driver.give(build.stopped(on_it, MACHINE, driver.now_ms, StopCause.DRAIN))
    assert driver.placement(MACHINE).reshape is not None


def test_an_order_said_again_changes_nothing_and_a_later_one_waits_for_what_may_be_under_way() -> None:
    driver = shared(halves=0).give(order("p1", [0, 1], HALF, build.START_MS))
    driver.give(order("p1", [0, 1], HALF, build.START_MS))
    first = Reshape(request_id="p1", cards=[0, 1], pool=HALF)
    assert driver.placement(MACHINE).reshape == first
    driver.give(order("p2", [1, 2], HALF, driver.now_ms))
    driver.give(order("p3", [1, 2], WHOLE, driver.now_ms))  # nobody was asked for p2: it is withdrawn
    assert driver.placement(MACHINE).reshape == first
    assert driver.placement(MACHINE).withheld == [0, 1]  # card 2 is whole already
    driver.give(shaped([HALF, HALF] + [WHOLE] * 6, 2, "p1"))
    assert driver.state.nodes[HALVES].absent == list(range(4, 16))
    assert driver.placement(MACHINE).reshape == Reshape(request_id="p3", cards=[1], pool=WHOLE)
    driver.give(shaped([HALF] + [WHOLE] * 7, 3, "p3"))
    assert driver.placement(MACHINE).reshape is None
    assert (driver.state.repartitions, driver.state.reservations) == ({}, {})


def test_an_order_for_cards_of_a_lost_machine_stands_though_they_are_believed_to_be_cut_so() -> None:
    """Its restart may have cut them otherwise; the machine is told what they should be when it is back."""
    driver = shared(halves=2).give(*machine(Health.LOST)).give(order("p1", [6, 7], HALF, build.START_MS))
    driver.give(*machine(Health.USABLE)).give(shaped([WHOLE] * 8, 2))
    assert driver.placement(MACHINE).reshape == Reshape(request_id="p1", cards=[6, 7], pool=HALF)
    driver.give(shaped([WHOLE] * 6 + [HALF] * 2, 3, "p1"))
    assert (driver.state.repartitions, driver.state.reservations) == ({}, {})
    driver.give(order("p2", [6, 7], HALF, driver.now_ms))
    assert driver.state.repartitions == {}, "of one that is there it is known"


def test_an_order_back_counts_though_the_cut_it_takes_back_ends_badly_after_it() -> None:
    driver = shared(halves=0).give(order("p1", [0], HALF, build.START_MS))
    driver.give(order("p2", [0], WHOLE, driver.now_ms))  # as the card still is, by the last word about it
    driver.give(order("p3", [0], WHOLE, driver.now_ms))
    driver.give(shaped(["", *[WHOLE] * 7], 2, "p1", done=False, detail="not finished within 300 s"))
    assert driver.placement(MACHINE).reshape == Reshape(request_id="p3", cards=[0], pool=WHOLE)
    driver.give(shaped([WHOLE] * 8, 3, "p3"))
    assert (driver.state.repartitions, driver.state.reservations) == ({}, {})
    assert driver.state.nodes[MACHINE].absent == []


def test_an_order_for_a_machine_or_pool_that_is_not_there_changes_nothing() -> None:
    plain = Driver().give(build.node("n00")).give(order("p1", [0], HALF, build.START_MS))
    assert plain.state.repartitions == {}
    other = shared(halves=0).give(order("p1", [0], "a100-half", build.START_MS), order("p2", [99], HALF, 0))
    assert other.state.repartitions == {}


def test_an_older_word_about_the_cards_comes_too_late() -> None:
    driver = shared(halves=2).give(shaped([WHOLE] * 8, 0))
    assert driver.state.nodes[HALVES].absent == list(range(12))


def test_what_was_on_slots_that_are_no_more_goes_back_into_the_queue() -> None:
    driver = shared(halves=2).give(half_job("h", 1), build.forecast("h", {1: 600}))
    driver.give(build.started("h", HALVES, driver.now_ms))
    driver.give(shaped([WHOLE] * 8, 2))  # the machine was restarted and its instances are gone
    assert (driver.job("h").parts, driver.job("h").reason) == ([], "no_capacity")


@pytest.mark.parametrize("asked_before_the_loss", [True, False])
def test_a_node_that_is_lost_in_the_middle_comes_back_and_answers(asked_before_the_loss: bool) -> None:
    driver = shared(halves=0)
    if not asked_before_the_loss:
        driver.give(build.accepted("w", 8), build.forecast("w", {8: 3600}))
        driver.give(build.started("w", MACHINE, driver.now_ms))
    driver.give(order("p1", [0, 1], HALF, driver.now_ms))
    driver.give(*machine(Health.LOST))
    assert driver.placement(MACHINE).reshape is not None  # nothing is on the cards any more
    driver.give(*machine(incarnation=1))
    driver.give(shaped([WHOLE] * 8, 2))  # its executor starts, and says how it found the cards
    assert driver.placement(MACHINE).reshape is not None
    driver.give(shaped([HALF] * 2 + [WHOLE] * 6, 3, "p1"))
    driver.give(half_job("h", 2), build.forecast("h", {2: 600}))
    assert slots_of(driver, "h") in ([0, 1], [2, 3])


def test_a_job_that_fits_only_on_cards_of_another_pool_is_told_so_and_a_drain_of_them_is_another_matter() -> None:
    driver = shared(halves=2).give(build.accepted("w", 8), build.forecast("w", {8: 600}))
    assert driver.job("w").reason == "cut_for_another_pool"
    driver.give(DrainNode(node=MACHINE, cluster="c0", ordered_ms=driver.now_ms))
    assert driver.job("w").reason == "node_degraded"


def test_a_drain_of_the_machine_means_all_its_nodes() -> None:
    driver = shared(halves=4)
    driver.give(DrainNode(node=MACHINE, cluster="c0", ordered_ms=driver.now_ms))
    driver.give(half_job("h", 1), build.forecast("h", {1: 600}))
    assert driver.job("h").reason == "node_degraded"
    driver.give(UndrainNode(node=MACHINE, cluster="c0", ordered_ms=driver.now_ms))
    assert driver.job("h").parts


def test_half_a_card_counts_half_in_fair_share() -> None:
    driver = shared(halves=8).give(half_job("h", 1), build.forecast("h", {1: 600}))
    driver.give(build.started("h", HALVES, driver.now_ms)).pass_ms(600_000)
    driver.give(build.completed("h", HALVES, driver.now_ms))
    assert driver.state.use["blue"].gpu_ms == 300_000

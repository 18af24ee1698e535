"""`gpugrid why` of a job that waits for slots of cards being cut names the order, how far it is, and by when the cards are empty."""

from __future__ import annotations

from services.console.facts import JobView, World
from services.console.place_in_order import with_state
from services.console.sentences import Explanation, explain
from tests import build
from tests.allocator_driver import POLICY, Driver
from tests.shared_cards import HALF, MACHINE, half_job, order, shaped, shared


def told(driver: Driver, job_id: str) -> Explanation:
    status = driver.status(job_id)
    view = JobView(job_id, status=status, job=driver.job(job_id).spec, cluster=build.CLUSTER, pools=(HALF,))
    explanation = explain(view, World(jobs={job_id: view}), driver.now_ms)
    return with_state(explanation, driver.state, POLICY, driver.now_ms)


def test_it_names_the_order_its_cards_and_by_when_they_are_empty() -> None:
    driver = shared(halves=0).give(build.accepted("w", 8), build.forecast("w", {8: 3600}))
    driver.give(build.started("w", MACHINE, driver.now_ms))
    driver.give(order("p1", [6, 7], HALF, driver.now_ms, deadline_s=7200.0))
    driver.give(half_job("h", 1), build.forecast("h", {1: 600}))
    found = told(driver, "h")
    assert found.sentence.startswith(
        "h waits (cut_under_way): it is to start on cards that are being cut for this pool"
    )
    assert "Earliest planned start" in found.sentence
    assert f"Kept free of new work by p1/{MACHINE}+{HALF}." in found.sentence
    [line] = [line for line in found.lines if line.startswith("Order p1")]
    assert line.startswith(
        f"Order p1: cards 6-7 of {MACHINE} are cut for {HALF} as soon as they are empty; what still runs"
    )
    assert "(in 2 h) is checkpointed and stopped." in line
    assert found.would_help[0].startswith("Wait: its start is planned for when the cards are empty and cut")
    driver.give(build.completed("w", MACHINE, driver.now_ms))
    driver.give()
    assert (
        f"Order p1: cards 6-7 of {MACHINE} are being cut for {HALF}; that takes 5 min at most."
        in told(driver, "h").lines
    )
    driver.give(shaped([build.POOL] * 6 + [HALF] * 2, 2, "p1"))
    assert driver.job("h").parts

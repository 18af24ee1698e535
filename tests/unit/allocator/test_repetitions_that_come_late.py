"""At least once means that anything may come again, late: what was said since then stands."""

from __future__ import annotations

from msgspec.structs import replace

from schemas.commands import DrainNode, UndrainNode
from schemas.executions import JobReady, NodeReported, StopCause
from schemas.jobs import JobRevoked, ProbeKind, Readiness
from schemas.nodes import Health
from schemas.status import JobState
from tests import build
from tests.allocator_driver import Driver


def held(driver: Driver, app_id: str = "app") -> int:
    app = driver.state.apps.get(app_id)
    return 0 if app is None else sum(len(part.gpus) for part in app.parts)


def revoked(at_ms: int) -> JobRevoked:
    return JobRevoked(job_id="app", cluster=build.CLUSTER, revoked_ms=at_ms)


def reported(driver: Driver, boot_id: str, quarantined: int | None = None) -> NodeReported:
    applied, broken = driver.state.sequence, [] if quarantined is None else [quarantined]
    return build.reported("n00", driver.now_ms, applied=applied, boot_id=boot_id, quarantined=broken)


def ready(driver: Driver, serves: bool) -> JobReady:
    return JobReady(job_id="app", attempt=1, node="n00", cluster=build.CLUSTER, time_ms=driver.now_ms, ready=serves)


def serving() -> Driver:
    """An application that came back to its node under its attempt, and serves."""
    probed = replace(build.application("app", floor=2, peak=2).spec, readiness=Readiness(kind=ProbeKind.TCP, port=80))
    driver = Driver().give(build.node("n00"))
    driver.give(replace(build.application("app", floor=2, peak=2), spec=probed))
    for stay in ("first", "second"):
        driver.give(build.started("app", "n00", driver.now_ms), id=f"{stay} start").give(
            ready(driver, True), id=f"{stay} readiness"
        )
        if stay == "first":
            driver.pass_ms(1_000).give(ready(driver, False), id="first unreadiness")
            driver.give(build.stopped("app", "n00", driver.now_ms, StopCause.FENCED), id="first end")
    assert driver.state.apps["app"].ready == ["n00"]
    return driver


def test_a_revoked_application_is_not_revived_by_its_old_registration():
    driver = Driver().give(build.node("n00"))
    registered = build.application("app", floor=2, peak=2)
    driver.give(registered).give(revoked(build.START_MS + 1)).give(registered)
    assert held(driver) == 0
    driver.give(replace(registered, accepted_ms=build.START_MS + 2))
    assert held(driver) == 2


def test_an_application_registered_anew_is_not_ended_by_its_old_revocation():
    driver = Driver().give(build.node("n00"))
    registered = build.application("app", floor=2, peak=2)
    driver.give(registered).give(revoked(build.START_MS + 1))
    driver.give(replace(registered, accepted_ms=build.START_MS + 2)).give(revoked(build.START_MS + 1))
    assert held(driver) == 2
    driver.give(revoked(build.START_MS + 3))
    assert held(driver) == 0


def test_an_application_registered_again_with_the_same_numbers_outlives_an_older_revocation():
    driver = Driver().give(build.node("n00"))
    registered = build.application("app", floor=2, peak=2)
    driver.give(registered).give(replace(registered, accepted_ms=build.START_MS + 5))
    driver.give(revoked(build.START_MS + 3))
    assert held(driver) == 2


def test_a_drain_sent_twice_does_not_come_back_after_its_undrain():
    driver = Driver().give(build.node("n00"))
    drain = DrainNode(node="n00", cluster=build.CLUSTER, ordered_ms=build.START_MS)
    undrain = UndrainNode(node="n00", cluster=build.CLUSTER, ordered_ms=build.START_MS + 1)
    driver.give(drain, id="first").give(undrain, id="second").give(drain, id="first")
    assert not driver.state.nodes["n00"].draining
    driver.give(drain, id="third")
    assert driver.state.nodes["n00"].draining


def test_a_nodes_old_state_does_not_undo_its_newer_one():
    driver = Driver().give(build.node("n00"))
    lost = replace(build.node("n00", health=Health.LOST), time_ms=build.START_MS + 60_000)
    driver.give(lost).give(build.node("n00"))
    assert driver.state.nodes["n00"].health is Health.LOST
    back = replace(build.node("n00"), incarnation=1, time_ms=build.START_MS + 50_000)
    driver.give(back).give(lost)
    assert driver.state.nodes["n00"].health is Health.USABLE


def test_a_report_of_an_empty_node_said_again_does_not_end_what_began_there_after_it():
    driver = Driver().give(build.node("n00"), build.accepted("j", 1), build.forecast("j", {1: 600}))
    empty = reported(driver, "one/1")
    assert empty.applied >= driver.job("j").placed_sequence, "its executor had read the placement and not begun yet"
    driver.give(empty, id="report").give(build.started("j", "n00", driver.now_ms)).give(empty, id="report")
    assert (driver.job("j").state, driver.job("j").attempt) == (JobState.RUNNING, 1)
    driver.give(empty, id="another report")
    assert driver.job("j").attempt == 2


def test_a_report_from_before_a_restart_said_again_does_not_make_the_next_one_a_restart():
    driver = Driver().give(build.node("n00"))
    before = reported(driver, "one/1")
    driver.give(before, id="one").give(reported(driver, "two/1"), id="two").give(before, id="one")
    assert driver.state.nodes["n00"].boot_id == "two/1"


def test_a_quarantine_that_was_lifted_stays_lifted():
    driver = Driver().give(build.node("n00"))
    held = reported(driver, "one/1", quarantined=3)
    driver.give(held, id="held").give(reported(driver, "one/1"), id="free").give(held, id="held")
    assert driver.state.nodes["n00"].quarantined == []


def test_a_report_said_again_before_its_node_is_known_does_not_undo_a_newer_one():
    driver = Driver()
    held = reported(driver, "one/1", quarantined=3)
    driver.give(held, id="held").give(reported(driver, "one/1"), id="free").give(held, id="held")
    driver.give(build.node("n00"))
    assert driver.state.nodes["n00"].quarantined == []


def test_an_application_that_serves_again_is_not_undone_by_the_end_of_its_earlier_stay():
    driver = serving()
    driver.give(build.stopped("app", "n00", driver.now_ms, StopCause.FENCED), id="first end")
    driver.give(ready(driver, False), id="first unreadiness")
    assert driver.state.apps["app"].ready == ["n00"]


def test_an_application_that_ceased_to_serve_does_not_serve_by_an_old_word():
    driver = serving()
    driver.give(ready(driver, False), id="second unreadiness").give(ready(driver, True), id="second readiness")
    assert driver.state.apps["app"].ready == []

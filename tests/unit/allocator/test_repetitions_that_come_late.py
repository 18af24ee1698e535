"""At least once means that anything may come again, late: what was said since then stands."""

from __future__ import annotations

from msgspec.structs import replace

from schemas.commands import DrainNode, UndrainNode
from schemas.jobs import JobRevoked
from schemas.nodes import Health
from tests import build
from tests.allocator_driver import Driver


def held(driver: Driver, app_id: str = "app") -> int:
    app = driver.state.apps.get(app_id)
    return 0 if app is None else sum(len(part.gpus) for part in app.parts)


def revoked(at_ms: int) -> JobRevoked:
    return JobRevoked(job_id="app", cluster=build.CLUSTER, revoked_ms=at_ms)


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

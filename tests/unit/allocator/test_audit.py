"""An audit passes what the allocator decided, and finds a record that was changed afterwards."""

from __future__ import annotations

import msgspec

from schemas.decisions import DecisionMade, Placed
from services.allocator.core.audit import Audit
from tests import build
from tests.allocator_driver import SETTINGS, Driver


def decided() -> list[DecisionMade]:
    """A log in which two jobs were placed, one after the other."""
    driver = Driver()
    driver.give(build.node("n00"), build.application("chat"))
    for name in ("a", "b"):
        driver.give(build.accepted(name, 2), build.forecast(name, {2: 600}))
    return driver.log


def audited(log: list[DecisionMade]) -> Audit:
    audit = Audit(build.CLUSTER, SETTINGS.policy)
    for record in log:
        audit.follow(record)
    return audit


def test_an_honest_log_has_no_violations() -> None:
    log = decided()
    audit = audited(log)
    assert (audit.verified, audit.violations) == (len(log) - 1, [])


def test_a_placement_moved_onto_held_gpus_is_found() -> None:
    assert [sentence for sentence in audited(moved_onto_held_gpus()).violations if "held by a" in sentence]


def test_records_that_lost_a_race_are_passed_over() -> None:
    log = decided()
    loser = msgspec.structs.replace(log[-1], parent="another", sequence=log[-1].sequence)
    assert audited([*log[:-1], loser, log[-1]]).verified == len(log) - 1


def moved_onto_held_gpus() -> list[DecisionMade]:
    log = decided()
    (first, _), (second, position) = [
        (effect, at) for at, record in enumerate(log) for effect in record.effects if isinstance(effect, Placed)
    ]
    moved = msgspec.structs.replace(second, placed=first.placed)
    effects = [moved if effect is second else effect for effect in log[position].effects]
    log[position] = msgspec.structs.replace(log[position], effects=effects)
    return log


def test_what_another_version_or_another_policy_decided_is_followed_and_counted_and_not_judged() -> None:
    log = moved_onto_held_gpus()
    decisions = len(log) - 1
    digest = log[-1].config_digest
    old = Audit(build.CLUSTER, SETTINGS.policy, "a-later-version")
    other = Audit(build.CLUSTER, SETTINGS.policy, "test", "another-policy")
    same = Audit(build.CLUSTER, SETTINGS.policy, "test", digest)
    for record in log:
        for audit in (old, other, same):
            audit.follow(record)
    assert (old.verified, old.violations, old.unjudged) == (0, [], {"version test": decisions})
    assert (other.verified, other.violations, other.unjudged) == (0, [], {f"policy {digest}": decisions})
    assert (same.verified, same.unjudged) == (decisions, {})
    assert same.violations


def test_of_a_log_of_two_versions_each_is_judged_by_its_own() -> None:
    log = decided()
    later = [msgspec.structs.replace(record, code_version="later") for record in log[-2:]]
    audit = Audit(build.CLUSTER, SETTINGS.policy, "later")
    for record in [*log[:-2], *later]:
        audit.follow(record)
    assert (audit.verified, audit.violations) == (2, [])
    assert audit.unjudged == {"version test": len(log) - 3}

"""What the handler answers: let in, repeated, changed, cancelled, refused; and that a restart changes none of it."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from msgspec import structs

from schemas.jobs import (
    ApplicationAccepted,
    JobAccepted,
    JobAmended,
    JobCancelled,
    JobChanged,
    JobRevoked,
)
from schemas.records import Message, Now, Record
from schemas.status import JobState
from schemas.topics import DAY_MS
from services.intake.core.handler import IntakeHandler
from services.intake.core.memory import Memory
from tests.unit.intake.intake_builders import (
    CATALOG,
    NOW,
    NOW_MS,
    TRACE,
    as_record,
    event_of,
    events_of,
    record_of,
    registered,
    submitted,
)

LATER = Now(domain_ms=NOW_MS + 5_000, wall_ms=NOW_MS + 5_000)
OTHER_TRACE = TRACE.replace("b7ad", "c8be")


def handler() -> IntakeHandler:
    return IntakeHandler(CATALOG)


def restarted(*answers: list[Message]) -> IntakeHandler:
    """A handler that knows nothing but what is on `jobs`."""
    fresh = handler()
    for messages in answers:
        for message in messages:
            if message.topic == "jobs":
                fresh.recover(as_record(message))
    return fresh


def changed(at_ms: int = 1, **fields: Any) -> JobChanged:
    return JobChanged(job_id="j1", changed_ms=NOW_MS + at_ms, **fields)


def cancelled(job_id: str = "j1", at_ms: int = 10, cause: str = "") -> JobCancelled:
    return JobCancelled(job_id=job_id, cancelled_ms=NOW_MS + at_ms, cause=cause)


def reasons(messages: list[Message]) -> list[tuple[str, str | None]]:
    return [(message.topic, event_of(message).reason) for message in messages]


def test_a_good_submission_is_let_in_routed_and_keyed_by_its_id() -> None:
    (message,) = handler().handle(record_of(submitted(memory_mib=30_000), time_ms=NOW_MS + 7), LATER)
    event = event_of(message)
    assert isinstance(event, JobAccepted)
    assert (message.topic, message.key, message.partition) == ("jobs", b"j1", 0)
    assert (event.cluster, event.pools, event.accepted_ms, event.skewed) == ("c0", ["h100"], NOW_MS + 7, False)
    assert dict(message.headers)["traceparent"] == TRACE.encode()
    assert dict(message.headers)["ce_id"] == b"j1/accepted"


def test_a_job_goes_to_the_partition_of_its_cluster() -> None:
    (message,) = handler().handle(record_of(submitted(cluster="c1")), NOW)
    assert (event_of(message).pools, message.partition) == (["a100"], 2)


def test_a_slightly_fast_clock_is_flagged_and_an_old_backlog_is_not() -> None:
    fast = handler().handle(record_of(submitted(submitted_ms=NOW_MS + 61_000)), NOW)
    old = handler().handle(record_of(submitted(submitted_ms=1_000), time_ms=1_000), NOW)
    assert event_of(fast[0]).skewed
    assert not event_of(old[0]).skewed


@pytest.mark.parametrize("again", [{}, {"submitted_ms": NOW_MS + 3_000}])
def test_the_same_content_again_gives_the_same_bytes(again: dict[str, Any]) -> None:
    intake = handler()
    first = intake.handle(record_of(submitted()), NOW)
    repeat = record_of(submitted(**again), offset=9, id="e2", trace=OTHER_TRACE, time_ms=NOW_MS + 4_000)
    assert intake.handle(repeat, LATER) == first
    assert restarted(first).handle(repeat, LATER) == first


def test_a_repetition_is_repeated_even_when_the_catalog_no_longer_would_let_it_in() -> None:
    first = handler().handle(record_of(submitted()), NOW)
    strict = IntakeHandler(structs.replace(CATALOG, teams=["search"]))
    strict.recover(as_record(first[0]))
    assert strict.handle(record_of(submitted()), NOW) == first


def test_two_instances_that_know_nothing_of_each_other_give_the_same_bytes() -> None:
    assert handler().handle(record_of(submitted()), NOW) == handler().handle(record_of(submitted(), offset=3), LATER)


def test_other_content_is_refused_without_touching_the_status_of_the_job_that_runs() -> None:
    intake = handler()
    first = intake.handle(record_of(submitted()), NOW)
    for same in (intake, restarted(first)):
        answer = same.handle(record_of(submitted(priority=11), offset=1), NOW)
        assert reasons(answer) == [("dead-letters", "conflicting_content")]


def test_a_refused_submission_becomes_a_dead_letter_with_its_bytes_and_a_refused_status() -> None:
    record = record_of(submitted(sizes=[3]), offset=5)
    letter, status = handler().handle(record, NOW)
    assert (letter.topic, status.topic, status.key, status.partition) == ("dead-letters", "job-status", b"j1", None)
    dead, state = events_of([letter, status])
    assert (dead.reason, dead.service, dead.offset) == ("size_not_power_of_two", "intake", 5)
    assert base64.b64decode(dead.value) == record.value
    assert base64.b64decode(dead.headers["ce_id"]) == b"e1"
    assert (state.state, state.reason, state.sequence) == (JobState.REFUSED, "size_not_power_of_two", 0)
    assert "spec.sizes has 3" in state.detail
    assert dict(letter.headers)["traceparent"] == TRACE.encode()


def test_a_refused_id_may_be_submitted_again_with_better_content() -> None:
    intake = handler()
    intake.handle(record_of(submitted(sizes=[3])), NOW)
    assert isinstance(event_of(intake.handle(record_of(submitted(), offset=1), NOW)[0]), JobAccepted)


def test_changes_merge_and_are_repeated_with_the_submission() -> None:
    intake = handler()
    accepted = intake.handle(record_of(submitted()), NOW)
    intake.handle(record_of(changed(1, priority=20), offset=1), NOW)
    amended = intake.handle(record_of(changed(2, time_limit_s=60.0), offset=2), NOW)
    event = event_of(amended[0])
    assert isinstance(event, JobAmended)
    assert (event.priority, event.time_limit_s, event.amended_ms) == (20, 60.0, NOW_MS + 2)
    for same in (intake, restarted(accepted, amended)):
        assert same.handle(record_of(submitted(), offset=3), LATER) == accepted + amended


def test_an_older_change_that_comes_late_or_again_overturns_nothing() -> None:
    intake = handler()
    intake.handle(record_of(submitted()), NOW)
    newest = intake.handle(record_of(changed(5, priority=20), offset=1), NOW)
    assert intake.handle(record_of(changed(1, priority=3), offset=2), NOW) == newest


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (changed(priority=5), "unknown_id"),
        (cancelled(), "unknown_id"),
    ],
)
def test_a_change_of_an_unknown_or_refused_id_is_a_dead_letter_only(event: Any, reason: str) -> None:
    intake = handler()
    intake.handle(record_of(submitted(sizes=[3])), NOW)
    answer = intake.handle(record_of(event, offset=1), NOW)
    assert reasons(answer) == [("dead-letters", reason)]
    assert event_of(answer[0]).detail.startswith("job_id j1")


def test_changes_that_change_nothing_or_too_much_are_refused() -> None:
    intake = handler()
    intake.handle(record_of(submitted()), NOW)
    assert reasons(intake.handle(record_of(changed()), NOW)) == [("dead-letters", "nothing_to_change")]
    too_long = intake.handle(record_of(changed(time_limit_s=2e6)), NOW)
    assert reasons(too_long) == [("dead-letters", "time_limit_too_long")]


def test_a_cancellation_is_let_in_once_and_repeated_as_it_was() -> None:
    intake = handler()
    accepted = intake.handle(record_of(submitted(cluster="c1")), NOW)
    revoked = intake.handle(record_of(cancelled(cause="typo")), NOW)
    assert events_of(revoked) == [JobRevoked(job_id="j1", cluster="c1", revoked_ms=NOW_MS + 10, cause="typo")]
    assert revoked[0].partition == 2
    for same in (intake, restarted(accepted, revoked)):
        assert same.handle(record_of(cancelled(at_ms=99), trace=OTHER_TRACE), LATER) == revoked
        assert same.handle(record_of(submitted(cluster="c1")), LATER) == accepted + revoked
        assert reasons(same.handle(record_of(changed(priority=5)), LATER)) == [("dead-letters", "job_cancelled")]


def test_an_application_registered_again_is_let_in_anew_and_an_older_registration_is_not() -> None:
    intake = handler()
    first = intake.handle(record_of(registered()), NOW)
    assert isinstance(event_of(first[0]), ApplicationAccepted)
    second = intake.handle(record_of(registered(registered_ms=NOW_MS + 1, floor_gpus=4)), NOW)
    assert (event_of(second[0]).spec.floor_gpus, event_of(second[0]).accepted_ms) == (4, NOW_MS + 1)
    for same in (intake, restarted(first, second)):
        assert same.handle(record_of(registered()), LATER) == second
        assert same.handle(record_of(registered(registered_ms=NOW_MS + 1, floor_gpus=4)), LATER) == second
        conflict = same.handle(record_of(registered(registered_ms=NOW_MS + 1, floor_gpus=5)), LATER)
        assert reasons(conflict) == [("dead-letters", "conflicting_content")]


def test_an_application_can_be_cancelled_and_registered_again() -> None:
    intake = handler()
    first = intake.handle(record_of(registered()), NOW)
    revoked = intake.handle(record_of(cancelled("a1")), NOW)
    assert intake.handle(record_of(registered()), NOW) == first + revoked
    back = intake.handle(record_of(registered(registered_ms=NOW_MS + 20)), NOW)
    assert len(back) == 1
    for same in (intake, restarted(first, revoked, back)):
        assert same.handle(record_of(cancelled("a1")), LATER) == back  # the old cancellation again
        assert same.handle(record_of(registered()), LATER) == back


def test_new_numbers_that_break_a_rule_leave_the_application_as_it_is() -> None:
    intake = handler()
    intake.handle(record_of(registered()), NOW)
    answer = intake.handle(record_of(registered(registered_ms=NOW_MS + 1, floor_gpus=17)), NOW)
    assert reasons(answer) == [("dead-letters", "floor_exceeds_peak")]


def test_an_application_does_not_move_to_another_cluster_while_it_runs() -> None:
    intake = handler()
    intake.handle(record_of(registered()), NOW)
    move = record_of(registered(registered_ms=NOW_MS + 20, cluster="c1"))
    assert reasons(intake.handle(move, NOW)) == [("dead-letters", "conflicting_content")]
    intake.handle(record_of(cancelled("a1")), NOW)
    assert event_of(intake.handle(move, NOW)[0]).cluster == "c1"


def test_jobs_and_applications_cannot_share_an_id() -> None:
    intake = handler()
    intake.handle(record_of(submitted("x")), NOW)
    intake.handle(record_of(registered("y")), NOW)
    assert reasons(intake.handle(record_of(registered("x")), NOW)) == [("dead-letters", "id_taken")]
    assert reasons(intake.handle(record_of(submitted("y")), NOW)) == [("dead-letters", "id_taken")]
    wrong = record_of(JobChanged(job_id="y", changed_ms=NOW_MS, priority=2))
    assert reasons(intake.handle(wrong, NOW)) == [("dead-letters", "not_a_job")]


@pytest.mark.parametrize("key", [None, b"other", b"\xff\xfe"])
def test_a_record_whose_key_is_not_the_id_is_refused_and_its_sender_told(key: bytes | None) -> None:
    record = record_of(submitted())
    record = Record(record.topic, 0, 0, key, record.value, record.headers, NOW_MS)
    answer = handler().handle(record, NOW)
    assert reasons(answer) == [("dead-letters", "key_not_id"), ("job-status", "key_not_id")]


def test_an_unreadable_submission_still_tells_its_sender_which_field() -> None:
    record = record_of(submitted())
    assert record.value is not None
    broken = Record("job-events", 0, 0, b"j1", record.value.replace(b'"research"', b"7"), record.headers, NOW_MS)
    letter, status = events_of(handler().handle(broken, NOW))
    assert (letter.reason, status.reason, status.job_id) == ("invalid_field", "invalid_field", "j1")
    assert "spec.team" in status.detail


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b"", b"j1"),
        (b"[" * 50_000, b"j1"),
        (b'{"job_id":"j1"', b"j1"),
        (b'{"job_id":"j2","spec":1}', b"j1"),
        (b'{"job_id":7}', b"j1"),
        (None, b"j1"),
        (b'{"job_id":"j1"}', None),
    ],
)
def test_what_names_no_id_is_a_dead_letter_only(value: bytes | None, key: bytes | None) -> None:
    record = Record("job-events", 0, 0, key, value, record_of(submitted()).headers, NOW_MS)
    answer = handler().handle(record, NOW)
    assert [message.topic for message in answer] == ["dead-letters"]


def test_events_of_other_topics_are_refused_here() -> None:
    accepted = handler().handle(record_of(submitted()), NOW)[0]
    record = Record("job-events", 0, 0, b"j1", accepted.value, accepted.headers, NOW_MS)
    assert reasons(handler().handle(record, NOW)) == [("dead-letters", "wrong_topic")]


def test_a_cluster_that_left_the_catalog_refuses_repetitions_and_changes() -> None:
    accepted = handler().handle(record_of(submitted(cluster="c1")), NOW)
    smaller = IntakeHandler(structs.replace(CATALOG, clusters={"c0": CATALOG.clusters["c0"]}))
    smaller.recover(as_record(accepted[0]))
    for event in (submitted(cluster="c1"), changed(priority=5), cancelled()):
        assert reasons(smaller.handle(record_of(event), NOW)) == [("dead-letters", "unknown_cluster")]


@pytest.mark.parametrize("trace", ["", "00-nonsense", TRACE.upper(), "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_an_event_without_a_usable_trace_gets_one_that_a_repetition_gets_again(trace: str) -> None:
    first = handler().handle(record_of(submitted(), trace=trace), NOW)
    given = dict(first[0].headers)["traceparent"]
    assert len(given) == 55
    assert given not in (trace.encode(), TRACE.encode())
    assert handler().handle(record_of(submitted(), trace=trace, offset=7), LATER) == first


def test_jobs_are_forgotten_by_domain_time_and_applications_are_kept() -> None:
    memory = Memory(remembered_ms=DAY_MS)
    intake = IntakeHandler(CATALOG, memory)
    intake.handle(record_of(submitted()), NOW)
    intake.handle(record_of(registered()), NOW)
    intake.tick(Now(domain_ms=NOW_MS + DAY_MS - 1, wall_ms=0))
    assert len(memory) == 2
    intake.tick(Now(domain_ms=NOW_MS + DAY_MS, wall_ms=0))
    assert memory.get("j1") is None
    assert memory.get("a1") is not None


def test_what_was_re_read_counts_from_the_first_moment_after_the_start() -> None:
    accepted = handler().handle(record_of(submitted(submitted_ms=5), time_ms=5), NOW)
    memory = Memory(remembered_ms=DAY_MS)
    intake = IntakeHandler(CATALOG, memory)
    intake.recover(as_record(accepted[0]))
    intake.tick(NOW)
    assert len(memory) == 1
    intake.tick(Now(domain_ms=NOW_MS + DAY_MS, wall_ms=0))
    assert len(memory) == 0


def test_beyond_the_limit_the_oldest_ids_go_first() -> None:
    memory = Memory(ids_max=3)
    intake = IntakeHandler(CATALOG, memory)
    for number in range(5):
        intake.handle(record_of(submitted(f"j{number}")), NOW)
    assert [memory.get(f"j{number}") is not None for number in range(5)] == [False, False, True, True, True]


def test_recovering_ignores_what_is_not_an_answer() -> None:
    intake = handler()
    intake.recover(Record("jobs", 0, 0, b"j1", b"{", (), 0))
    intake.recover(record_of(submitted()))
    assert isinstance(event_of(intake.handle(record_of(submitted()), NOW)[0]), JobAccepted)

"""Whatever comes in, in whatever order and however often: one answer each, repeatable, and a restart changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from schemas.base import Event
from schemas.codec import decode_record
from schemas.jobs import JobCancelled, JobChanged
from schemas.records import Message, Now, Record
from schemas.registry import TYPES
from services.intake.core.handler import IntakeHandler
from tests.unit.intake.intake_builders import CATALOG, NOW, NOW_MS, as_record, record_of, registered, submitted

text = st.text(max_size=40)
header_names = st.sampled_from(
    ["ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time", "content-type", "traceparent", "CE_TYPE"]
)
header_values = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"1.0", b"application/json", b"application/cloudevents+json", b"2024-01-01T00:00:00Z"]),
    st.sampled_from(sorted(TYPES)).map(str.encode),
)
json_values: st.SearchStrategy[bytes] = st.sampled_from(
    [
        b"{}",
        b"null",
        b'{"job_id":"j1","submitted_ms":1,"spec":{}}',
        b'{"job_id":"j1","submitted_ms":1e999}',
        b'{"job_id":"j1","submitted_ms":NaN}',
        b'{"job_id":"\\ud800"}',
        b'{"specversion":"1.0","id":"e","source":"/x","type":"job.cancelled.v1","data":{"job_id":"j1","cancelled_ms":1}}',
        b'{"job_id":"j1","cancelled_ms":' + b"9" * 400 + b"}",
    ]
)
any_records = st.builds(
    lambda key, value, headers: Record("job-events", 0, 0, key, value, tuple(headers), NOW_MS),
    st.none() | st.binary(max_size=20) | st.just(b"j1"),
    st.none() | st.binary(max_size=200) | json_values,
    st.lists(st.tuples(header_names | text, header_values), max_size=8),
)


def nearly_valid(record: Record, place: int, byte: int) -> Record:
    """A good record with one byte of its value replaced."""
    assert record.value is not None
    value = bytearray(record.value)
    value[place % len(value)] = byte
    return Record(record.topic, 0, 0, record.key, bytes(value), record.headers, NOW_MS)


def assert_one_answer(messages: list[Message]) -> None:
    topics = [message.topic for message in messages]
    assert topics in (["dead-letters"], ["dead-letters", "job-status"]) or (topics and set(topics) == {"jobs"})
    for offset, message in enumerate(messages):
        decode_record(as_record(message, offset))  # every answer is a valid event


@given(any_records)
def test_any_bytes_get_exactly_one_kind_of_answer(record: Record) -> None:
    assert_one_answer(IntakeHandler(CATALOG).handle(record, NOW))


@given(st.integers(0, 400), st.integers(0, 255), st.booleans())
def test_a_flipped_byte_gets_exactly_one_kind_of_answer(place: int, byte: int, application: bool) -> None:
    good = record_of(registered() if application else submitted())
    assert_one_answer(IntakeHandler(CATALOG).handle(nearly_valid(good, place, byte), NOW))


@pytest.mark.parametrize("size", [300_000, 1_000_000])
def test_records_as_large_as_the_broker_takes_still_fit_a_dead_letter(size: int) -> None:
    headers = (("ce_type", b"x" * size), ("big", b"\xff" * size), ("n" * 60_000, b""))
    for record in (
        Record("job-events", 0, 0, b"k" * size, b"\x00" * size, headers, NOW_MS),
        Record("job-events", 0, 0, None, None, (("ce_time", b"x" * size), *headers), NOW_MS),
    ):
        assert_one_answer(IntakeHandler(CATALOG).handle(record, NOW))


ids = st.sampled_from(["x", "y"])
moments = st.integers(0, 5).map(lambda step: NOW_MS + step)
upstream = st.one_of(
    st.builds(lambda id, ms, priority: submitted(id, ms, priority=priority), ids, moments, st.integers(1, 2)),
    st.builds(lambda id, ms: submitted(id, ms, sizes=[3]), ids, moments),
    st.builds(lambda id, ms, floor: registered(id, ms, floor_gpus=floor), ids, moments, st.integers(15, 17)),
    st.builds(
        lambda id, ms, priority: JobChanged(job_id=id, changed_ms=ms, priority=priority),
        ids,
        moments,
        st.integers(3, 4),
    ),
    st.builds(
        lambda id, ms, limit: JobChanged(job_id=id, changed_ms=ms, time_limit_s=limit), ids, moments, st.just(60.0)
    ),
    st.builds(lambda id, ms: JobCancelled(job_id=id, cancelled_ms=ms), ids, moments),
)
sequences = st.lists(upstream, max_size=14)


def handled(intake: IntakeHandler, events: Sequence[Event], now: Now = NOW) -> list[list[Message]]:
    return [intake.handle(record_of(event, offset=offset), now) for offset, event in enumerate(events)]


def folded(messages: list[Message]) -> IntakeHandler:
    fresh = IntakeHandler(CATALOG)
    for offset, message in enumerate(messages):
        if message.topic == "jobs":
            fresh.recover(as_record(message, offset))
    return fresh


@settings(max_examples=200)
@given(sequences, sequences)
def test_a_restart_between_any_two_events_changes_no_answer(before: list[Any], after: list[Any]) -> None:
    intake = IntakeHandler(CATALOG)
    said = [message for messages in handled(intake, before) for message in messages]
    again = folded(said)
    assert handled(again, after) == handled(intake, after)


@settings(max_examples=200)
@given(sequences, st.integers(0, 14))
def test_redelivery_of_a_tail_says_the_same_last_word_on_every_id(events: list[Any], keep: int) -> None:
    """A crash after the outputs and before the commit: the tail is handled again by an instance rebuilt from `jobs`."""
    said = [message for messages in handled(IntakeHandler(CATALOG), events) for message in messages]
    assume(not [message for message in said if b'"reason":"unknown_id"' in (message.value or b"")])  # came too early
    repeated = [message for messages in handled(folded(said), events[keep:]) for message in messages]
    assert last_words(said + repeated) == last_words(said)
    assert {message for message in repeated if is_acceptance(message)} <= set(said)


def is_acceptance(message: Message) -> bool:
    return dict(message.headers)["ce_type"] in (b"job.accepted.v1", b"application.accepted.v1")


def last_words(messages: list[Message]) -> dict[tuple[bytes | None, str], Message]:
    """Per id and type the last message on `jobs`."""
    return {
        (message.key, dict(message.headers)["ce_type"].decode()): message
        for message in messages
        if message.topic == "jobs"
    }


@settings(max_examples=100)
@given(sequences)
def test_own_answers_folded_again_at_any_time_change_nothing(events: list[Any]) -> None:
    """After a rebalance the handler re-reads `jobs`, which holds what it said itself."""
    plain, nosy = IntakeHandler(CATALOG), IntakeHandler(CATALOG)
    for offset, event in enumerate(events):
        answer = nosy.handle(record_of(event, offset=offset), NOW)
        assert answer == plain.handle(record_of(event, offset=offset), NOW)
        for message in answer:
            if message.topic == "jobs":
                nosy.recover(as_record(message))

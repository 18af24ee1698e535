"""Whatever a broker may hold: the codec answers with an event or a DecodeError with a stable code, and with nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import DECODE_CODES, VALUE_BYTES_MAX, DecodeError, Envelope, decode, encode, format_time, parse_time
from schemas.jobs import JobCancelled
from schemas.registry import TYPES

GOOD = b'{"job_id":"j1","cancelled_ms":5}'
HEADERS = {
    "ce_specversion": b"1.0",
    "ce_id": b"e1",
    "ce_source": b"/upstream",
    "ce_type": b"job.cancelled.v1",
    "ce_time": b"2025-11-29T08:00:00.250Z",
    "content-type": b"application/json",
}
OUTER = {
    "specversion": "1.0",
    "id": "e1",
    "source": "/upstream",
    "type": "job.cancelled.v1",
    "time": "2025-11-29T08:00:00.250Z",
    "data": {"job_id": "j1", "cancelled_ms": 5},
}
STRUCTURED = (("content-type", b"application/cloudevents+json; charset=UTF-8"),)


def decoded(value: bytes | None = GOOD, **changes: bytes | None) -> Envelope:
    headers = {name: raw for name, raw in (HEADERS | changes).items() if raw is not None}
    return decode(headers.items(), value)


def code(value: bytes | None = GOOD, **changes: bytes | None) -> str:
    with pytest.raises(DecodeError) as refused:
        decoded(value, **changes)
    assert refused.value.detail
    return refused.value.code


def test_a_good_record_is_read() -> None:
    envelope = decoded()
    assert envelope.event == JobCancelled(job_id="j1", cancelled_ms=5)
    assert (envelope.id, envelope.source, envelope.time_ms) == ("e1", "/upstream", 1_764_403_200_250)


@pytest.mark.parametrize("name", ["ce_specversion", "ce_id", "ce_source", "ce_type"])
@pytest.mark.parametrize("raw", [None, b""])
def test_missing_headers_are_named(name: str, raw: bytes | None) -> None:
    with pytest.raises(DecodeError, match=name) as refused:
        decoded(**{name: raw})
    assert refused.value.code == "missing_header"


def test_time_content_type_and_trace_may_be_missing() -> None:
    envelope = decoded(**{"ce_time": None, "content-type": None})
    assert (envelope.time_ms, envelope.traceparent) == (None, "")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ce_specversion": b"0.3"}, "unsupported_version"),
        ({"ce_specversion": b"2.0"}, "unsupported_version"),
        ({"ce_type": b"job.cancelled.v2"}, "unknown_type"),
        ({"ce_type": b"com.example"}, "unknown_type"),
        ({"ce_id": b"\xff\xfe"}, "malformed_header"),
        ({"some-header": b"\x80"}, "malformed_header"),
        ({"ce_time": b"yesterday"}, "malformed_time"),
        ({"ce_time": b"2025-11-29T08:00:00"}, "malformed_time"),
        ({"ce_time": b"2025-02-30T08:00:00Z"}, "malformed_time"),
        ({"ce_time": b"1764403200"}, "malformed_time"),
    ],
)
def test_bad_headers_have_their_codes(changes: dict[str, bytes], expected: str) -> None:
    assert code(**changes) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "no_value"),
        (b"", "malformed_json"),
        (b"\xff\xfe\x00", "malformed_json"),
        (b'{"job_id":"\xff","cancelled_ms":5}', "malformed_json"),
        (b'{"job_id":"j1","cancelled_ms":5', "malformed_json"),
        (b'{"job_id":"j1","cancelled_ms":5}x', "malformed_json"),
        (b'{"job_id":"j1","cancelled_ms":NaN}', "malformed_json"),
        (b'{"job_id":"j1","cancelled_ms":Infinity}', "malformed_json"),
        (b'{"job_id":"j1","cancelled_ms":1e999}', "invalid_field"),
        (b'{"job_id":"j1","cancelled_ms":5.5}', "invalid_field"),
        (b'{"job_id":"j1","cancelled_ms":"5"}', "invalid_field"),
        (b'{"job_id":"j1","cancelled_ms":true}', "invalid_field"),
        (b'{"job_id":"j1","cancelled_ms":null}', "invalid_field"),
        (b'{"job_id":"j1","cancelled_ms":' + b"9" * 5_000 + b"}", "invalid_field"),
        (b'{"job_id":"j1","cancelled_ms":99999999999999999999}', "invalid_field"),
        (b'{"job_id":["j1"],"cancelled_ms":5}', "invalid_field"),
        (b'{"job_id":"' + b"j" * 129 + b'","cancelled_ms":5}', "invalid_field"),
        (b'{"job_id":"j1"}', "invalid_field"),
        (b"[]", "invalid_field"),
        (b"null", "invalid_field"),
        (b"[" * 200_000, "invalid_field"),
        (b'{"more":' + b"[" * 200_000, "malformed_json"),
        (b'{"job_id":"\\ud800","cancelled_ms":5}', "malformed_json"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bad_values_have_their_codes(value: bytes | None, expected: str) -> None:
    assert code(value) == expected


def test_numbers_too_large_for_a_float_are_refused_wherever_a_float_belongs() -> None:
    payload = b'{"app_id":"a","cluster":"c0","time_ms":1,"window_s":60,"load":1e999,"per_gpu":1}'
    with pytest.raises(DecodeError) as refused:
        decoded(payload, ce_type=b"demand.observed.v1")
    assert refused.value.code in ("invalid_field", "malformed_json")


def test_errors_name_the_field() -> None:
    with pytest.raises(DecodeError, match=r"\$\.cancelled_ms"):
        decoded(b'{"job_id":"j1","cancelled_ms":"5"}')


def test_header_names_are_read_in_any_case() -> None:
    shouted = [(name.upper(), raw) for name, raw in HEADERS.items()]
    assert decode(shouted, GOOD) == decoded()


def test_unknown_fields_and_headers_are_ignored() -> None:
    assert decoded(b'{"job_id":"j1","cancelled_ms":5,"colour":"blue"}', **{"x-own": b"1"}) == decoded()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"traceparent": b"t1"}, "t1"),
        ({"ce_traceparent": b"t2"}, "t2"),
        ({"traceparent": b"t1", "ce_traceparent": b"t2"}, "t1"),
        ({"traceparent": b"", "ce_traceparent": b"t2"}, "t2"),
        ({"CE_Traceparent": b"t3"}, "t3"),
    ],
)
def test_the_trace_comes_from_the_plain_header_first(changes: dict[str, bytes], expected: str) -> None:
    assert decoded(**changes).traceparent == expected


def test_structured_mode_gives_the_same_event() -> None:
    envelope = decode(STRUCTURED, json.dumps(OUTER).encode())
    assert envelope == decoded()
    traced = decode(STRUCTURED, json.dumps(OUTER | {"traceparent": "t4"}).encode())
    assert traced.traceparent == "t4"
    shouted = decode((("Content-Type", b"Application/CloudEvents+JSON"),), json.dumps(OUTER).encode())
    assert shouted == envelope


@pytest.mark.parametrize(
    ("outer", "expected"),
    [
        (OUTER | {"specversion": "0.3"}, "unsupported_version"),
        (OUTER | {"type": "nothing.v1"}, "unknown_type"),
        (OUTER | {"time": "noon"}, "malformed_time"),
        (OUTER | {"id": 7}, "malformed_json"),
        (OUTER | {"data": {"job_id": "j1"}}, "invalid_field"),
        ({name: value for name, value in OUTER.items() if name != "data"}, "invalid_field"),
        ({name: value for name, value in OUTER.items() if name != "id"}, "malformed_json"),
        ([], "malformed_json"),
    ],
)
def test_bad_structured_records_have_their_codes(outer: object, expected: str) -> None:
    with pytest.raises(DecodeError) as refused:
        decode(STRUCTURED, json.dumps(outer).encode())
    assert refused.value.code == expected


def test_deeply_nested_structured_records_are_refused() -> None:
    with pytest.raises(DecodeError):
        decode(STRUCTURED, b'{"specversion":"1.0","x":' + b"[" * 200_000)


@given(
    st.lists(
        st.tuples(st.sampled_from([*HEADERS, "traceparent"]) | st.text(max_size=8), st.binary(max_size=30)), max_size=9
    ),
    st.none() | st.binary(max_size=80) | st.just(GOOD),
    st.sampled_from(sorted(TYPES)),
)
def test_nothing_but_a_decode_error_escapes(headers: list[tuple[str, bytes]], value: bytes | None, name: str) -> None:
    for given_headers in (headers, [*HEADERS.items(), ("ce_type", name.encode()), *headers], [*headers, *STRUCTURED]):
        assert code_or_event(given_headers, value) in (*DECODE_CODES, "event")


def code_or_event(headers: list[tuple[str, bytes]], value: bytes | None) -> str:
    try:
        decode(headers, value)
    except DecodeError as error:
        return error.code
    return "event"


@given(st.integers(0, 4_102_444_800_000))
def test_times_survive_the_wire(time_ms: int) -> None:
    assert parse_time(format_time(time_ms)) == time_ms


def test_an_event_above_the_limit_is_refused_before_it_is_sent() -> None:
    event = JobCancelled(job_id="j1", cancelled_ms=5, cause="x" * VALUE_BYTES_MAX)
    with pytest.raises(ValueError, match="the limit is"):
        encode(event, id="e1", source="/upstream", time_ms=5)

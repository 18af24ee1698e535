"""The traceparent header after the W3C recommendation: what is accepted, ignored, continued."""

from __future__ import annotations

import pytest

from schemas.records import Record
from services.runtime.traceparent import TraceContext, context_of, parse_traceparent, with_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"


def record(*headers: tuple[str, bytes]) -> Record:
    return Record("t", 0, 0, None, b"", headers, 0)


def test_reads_and_writes_the_standards_example():
    assert parse_traceparent(GOOD) == TraceContext(TRACE, SPAN, True)
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-00") == TraceContext(TRACE, SPAN, False)
    assert TraceContext(TRACE, SPAN).traceparent() == GOOD
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be") == TraceContext(TRACE, SPAN, True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        GOOD + "-" * 600,
        "00-" + "a" * 10_000,
    ],
)
def test_ignores_what_the_standard_forbids(text: str):
    assert parse_traceparent(text) is None


def test_finds_the_context_of_a_record_and_prefers_the_plain_header():
    other = f"00-{TRACE}-{'1' * 16}-01"
    assert context_of(record(("traceparent", GOOD.encode()))) == TraceContext(TRACE, SPAN)
    assert context_of(record(("ce_traceparent", GOOD.encode()))) == TraceContext(TRACE, SPAN)
    assert context_of(record(("ce_traceparent", other.encode()), ("traceparent", GOOD.encode()))) == TraceContext(
        TRACE, SPAN
    )
    assert context_of(record(("traceparent", b"\xff\xfe"), ("ce_traceparent", other.encode()))) == parse_traceparent(
        other
    )
    assert context_of(record()) is None


def test_replaces_every_trace_header_by_one():
    headers = (("ce_id", b"1"), ("traceparent", b"old"), ("ce_traceparent", b"older"))
    assert with_traceparent(headers, GOOD) == (("ce_id", b"1"), ("traceparent", GOOD.encode()))

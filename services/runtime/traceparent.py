"""W3C trace context in record headers: parse, format, continue. No SDK, no state.

Owns: the `traceparent` header's form. `ce_traceparent` (CloudEvents' distributed tracing extension) is understood, too; we
write `traceparent`. Refuses malformed values by ignoring them: a broken trace header must never cost an event. Read next:
`tracing.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from schemas.records import Headers, Record

HEADER = "traceparent"
ACCEPTED_HEADERS = (HEADER, "ce_traceparent")
TRACEPARENT_LENGTH_MAX = 512
"""Later versions of the standard may append fields; whatever is longer than this is not one."""

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE = "0" * 32
_NO_SPAN = "0" * 16


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Which trace and which span in it a record belongs to. Ids are lower-case hex."""

    trace_id: str
    span_id: str
    sampled: bool = True

    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


def parse_traceparent(text: str) -> TraceContext | None:
    """The context, or None for anything the standard doesn't allow."""
    if len(text) > TRACEPARENT_LENGTH_MAX:
        return None
    found = _FORM.fullmatch(text.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or trace_id == _NO_TRACE or span_id == _NO_SPAN or (version == "00" and more):
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & 1))


def context_of(record: Record) -> TraceContext | None:
    """The context a record carries. The plain header wins over the CloudEvents one."""
    for name in ACCEPTED_HEADERS:
        text = record.header(name)
        if text and (context := parse_traceparent(text)) is not None:
            return context
    return None


def with_traceparent(headers: Headers, traceparent: str) -> Headers:
    """The headers with exactly one `traceparent`."""
    kept = tuple(header for header in headers if header[0] not in ACCEPTED_HEADERS)
    return (*kept, (HEADER, traceparent.encode()))

"""The first span of a job's trace: its publication by this command.

With a running stack the span goes into its span files, and to an OTLP back end if the standard variables name one; otherwise
a fresh trace context is all there is. The tracing SDK is imported only where it exports something.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Protocol

from services.console.session import Session
from services.runtime.span_spool import SpanLine, SpanSpool

SERVICE = "console"
SPAN = "send job-events"
ATTRIBUTES = {
    "messaging.system": "kafka",
    "messaging.operation.type": "send",
    "messaging.operation.name": "send",
    "messaging.destination.name": "job-events",
}


class PublishingSpans(Protocol):
    """`begin` gives the traceparent of one publication, `end` finishes all of them."""

    def begin(self, key: str) -> str: ...

    def end(self) -> None: ...


def new_traceparent() -> str:
    """A fresh, sampled W3C trace context: the trace of a job begins where it is published."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def publishing_spans(session: Session) -> PublishingSpans:
    """Spans of publications from here."""
    stack = session.stack()
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    if stack is None:
        return _Contexts()
    if any(os.environ.get(name) for name in endpoints):
        return _Exported(stack.run_dir)
    return _Spooled(stack.run_dir)


class _Contexts:
    def begin(self, key: str) -> str:
        return new_traceparent()

    def end(self) -> None: ...


class _Spooled:
    """Straight into the run folder's span files."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._open: list[tuple[str, str, int]] = []

    def begin(self, key: str) -> str:
        traceparent = new_traceparent()
        self._open.append((key, traceparent, time.time_ns()))
        return traceparent

    def end(self) -> None:
        try:
            spool = SpanSpool(self._run_dir, SERVICE)
        except OSError:
            return  # a run folder of somebody else: the job is published all the same
        for key, traceparent, start_ns in self._open:
            _, trace_id, span_id, _ = traceparent.split("-")
            spool.write(
                SpanLine(
                    trace_id=trace_id,
                    span_id=span_id,
                    name=SPAN,
                    service=SERVICE,
                    instance_id=SERVICE,
                    kind="producer",
                    start_ns=start_ns,
                    end_ns=time.time_ns(),
                    attributes={**ATTRIBUTES, "messaging.kafka.message.key": key},
                )
            )
        spool.close()


class _Exported:
    """Through the tracing of every other process: span files and OTLP."""

    def __init__(self, run_dir: Path) -> None:
        from services.runtime.tracing import Span, Tracing

        self._tracing = Tracing(SERVICE, SERVICE, run_dir=run_dir, environ=os.environ)
        self._open: list[Span] = []

    def begin(self, key: str) -> str:
        span = self._tracing.begin(SPAN, "", {**ATTRIBUTES, "messaging.kafka.message.key": key}, kind="producer")
        self._open.append(span)
        return span.traceparent

    def end(self) -> None:
        for span in self._open:
            span.end()
        self._tracing.stop()

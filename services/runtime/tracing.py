"""One trace per job through every process: spans in our own code, exported by OTLP if asked for, spooled locally always.

Owns: `Tracing` (the spans of one process), the attributes of messaging spans after OpenTelemetry's semantic conventions, and
`traced_handle`, which puts a span around a handler and continues the trace in its answers. Spans are plain objects of our
own (20 µs each instead of 80 with the SDK's); OpenTelemetry's SDK carries them to the back end: resource, batching, export.
Span ids of handled records are derived from the record's place, so a repeated record is answered with the same bytes.
Refuses to slow anything down: the exporter works on its own thread behind a bounded queue, and a back end that is away
costs spans, never events. Simulation uses `Untraced`. Read next: `traceparent.py`, `span_spool.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import Protocol

from msgspec.structs import replace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from schemas.records import Message, Now, Record
from services.runtime.handler import Handler
from services.runtime.logs import during
from services.runtime.span_spool import SpanLine, SpanSpool
from services.runtime.traceparent import HEADER, TraceContext, context_of, parse_traceparent, with_traceparent

EXPORT_QUEUE_SPANS_MAX = 8_192
"""Spans waiting for the exporter; further ones are dropped. Ten seconds of 300 events/s with three spans each."""
EXPORT_BATCH_SPANS_MAX = 512
EXPORT_PERIOD_MS = 500
EXPORT_TIMEOUT_S = 2.0
SHUTDOWN_S_MAX = 3.0
"""A process ends at most this much later because its trace back end is slow or away."""
LINKS_MAX = 128
"""The SDK's own limit; a decision about more jobs carries their traceparents in its body."""

Attributes = Mapping[str, str | int | float | bool]

_SCOPE = InstrumentationScope("gpugrid")

KINDS = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
}


class Span(Protocol):
    """A span in progress. `traceparent` names it for whatever it causes."""

    traceparent: str

    def set(self, name: str, value: str | int | float | bool) -> None: ...

    def end(self, error: str | None = None, *, end_ns: int | None = None) -> None: ...


class Spans(Protocol):
    """Begins spans. `traceparent` "" (or one that can't be read) begins a new trace."""

    def begin(
        self,
        name: str,
        traceparent: str,
        attributes: Attributes,
        *,
        kind: str = "internal",
        links: Sequence[str] = (),
        start_ns: int | None = None,
        span_id: str | None = None,
    ) -> Span: ...


class _Recorded:
    """A span that ends up in the spool, and in the exporter if there is one."""

    __slots__ = (
        "_attributes",
        "_context",
        "_kind",
        "_links",
        "_name",
        "_parent_id",
        "_start_ns",
        "_tracing",
        "traceparent",
    )

    def __init__(
        self,
        tracing: Tracing,
        name: str,
        context: TraceContext,
        parent_id: str,
        kind: str,
        attributes: Attributes,
        links: Sequence[str],
        start_ns: int,
    ) -> None:
        self._tracing = tracing
        self._name = name
        self._context = context
        self._parent_id = parent_id
        self._kind = kind
        self._attributes = dict(attributes)
        self._links = links
        self._start_ns = start_ns
        self.traceparent = context.traceparent()

    def set(self, name: str, value: str | int | float | bool) -> None:
        self._attributes[name] = value

    def end(self, error: str | None = None, *, end_ns: int | None = None) -> None:
        end_ns = time.time_ns() if end_ns is None else end_ns
        contexts = [context for text in self._links if (context := parse_traceparent(text)) is not None]
        line = SpanLine(
            trace_id=self._context.trace_id,
            span_id=self._context.span_id,
            parent_id=self._parent_id,
            name=self._name,
            service=self._tracing.service,
            instance_id=self._tracing.instance_id,
            kind=self._kind,
            start_ns=self._start_ns,
            end_ns=max(end_ns, self._start_ns),
            attributes=self._attributes,
            links=tuple(context.trace_id for context in contexts),
            error=error or "",
        )
        self._tracing.finished(line, contexts)


class Tracing:
    """The tracing of one process. Make it in `__main__`; `stop` flushes, for at most SHUTDOWN_S_MAX."""

    def __init__(
        self,
        service: str,
        instance_id: str,
        *,
        run_dir: str | Path,
        environ: Mapping[str, str],
        version: str = "",
    ) -> None:
        self.service = service
        self.instance_id = instance_id
        self._spool = SpanSpool(run_dir, instance_id)
        attributes = {"service.name": service, "service.instance.id": instance_id, "service.version": version}
        self._resource = Resource.create(attributes)
        self._exporting = _otlp() if exports(environ) else None

    def begin(
        self,
        name: str,
        traceparent: str,
        attributes: Attributes,
        *,
        kind: str = "internal",
        links: Sequence[str] = (),
        start_ns: int | None = None,
        span_id: str | None = None,
    ) -> Span:
        parent = parse_traceparent(traceparent)
        if parent is not None and not parent.sampled:
            return _PassedOn(traceparent)
        trace_id = token_hex(16) if parent is None else parent.trace_id
        return _Recorded(
            self,
            name,
            TraceContext(trace_id, span_id or token_hex(8)),
            "" if parent is None else parent.span_id,
            kind,
            attributes,
            links[:LINKS_MAX],
            time.time_ns() if start_ns is None else start_ns,
        )

    def finished(self, line: SpanLine, links: Sequence[TraceContext]) -> None:
        """Called by spans when they end."""
        self._spool.write(line)
        if self._exporting is not None:
            self._exporting.on_end(_readable(line, links, self._resource))

    def stop(self) -> None:
        # The exporter may be in the middle of a request to a back end that doesn't answer: don't wait for it for long.
        if self._exporting is not None:
            flushing = threading.Thread(target=self._exporting.shutdown, name="tracing-shutdown", daemon=True)
            flushing.start()
            flushing.join(SHUTDOWN_S_MAX)
        self._spool.close()


class _PassedOn:
    __slots__ = ("traceparent",)

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent

    def set(self, name: str, value: str | int | float | bool) -> None: ...

    def end(self, error: str | None = None, *, end_ns: int | None = None) -> None: ...


class Untraced:
    """Records nothing and passes the caller's `traceparent` on: simulation, tests, tools."""

    def begin(
        self,
        name: str,
        traceparent: str,
        attributes: Attributes,
        *,
        kind: str = "internal",
        links: Sequence[str] = (),
        start_ns: int | None = None,
        span_id: str | None = None,
    ) -> Span:
        return _PassedOn(traceparent)

    def stop(self) -> None: ...


def exports(environ: Mapping[str, str]) -> bool:
    """Whether the standard variables ask for OTLP export of traces."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return bool(environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))


def process_attributes(record: Record, group: str) -> dict[str, str | int | float | bool]:
    """Of a span that processes one record."""
    attributes: dict[str, str | int | float | bool] = {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": record.topic,
        "messaging.destination.partition.id": str(record.partition),
        "messaging.kafka.offset": record.offset,
        "messaging.consumer.group.name": group,
    }
    if record.key is not None:
        attributes["messaging.kafka.message.key"] = record.key.decode("utf-8", "replace")
    if record.value is None:
        attributes["messaging.kafka.message.tombstone"] = True
    if message_id := record.header("ce_id"):
        attributes["messaging.message.id"] = message_id
    return attributes


def send_attributes(message: Message) -> dict[str, str | int | float | bool]:
    """Of a span that publishes one message."""
    attributes: dict[str, str | int | float | bool] = {
        "messaging.system": "kafka",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.destination.name": message.topic,
    }
    if message.partition is not None:
        attributes["messaging.destination.partition.id"] = str(message.partition)
    if message.key is not None:
        attributes["messaging.kafka.message.key"] = message.key.decode("utf-8", "replace")
    if message.value is None:
        attributes["messaging.kafka.message.tombstone"] = True
    return attributes


def span_id_of(service: str, record: Record) -> str:
    """Always the same for a service and a record's place."""
    place = f"{service}/{record.topic}/{record.partition}/{record.offset}"
    return blake2b(place.encode(), digest_size=8).hexdigest()


def traced_handle(spans: Spans, service: str, group: str) -> Callable[[Handler, Record, Now], list[Message]]:
    """A `hop.Handle` with a consumer span per record that carries a trace; answers of that trace continue from the span."""

    def handle(handler: Handler, record: Record, now: Now) -> list[Message]:
        context = context_of(record)
        if context is None:
            return handler.handle(record, now)
        span = spans.begin(
            f"process {record.topic}",
            context.traceparent(),
            process_attributes(record, group),
            kind="consumer",
            span_id=span_id_of(service, record),
        )
        place = {"trace_id": context.trace_id, "topic": record.topic, "partition": record.partition}
        try:
            with during({**place, "offset": record.offset}):
                answers = handler.handle(record, now)
        except Exception as error:
            span.end(error=repr(error))
            raise
        span.set("messaging.batch.message_count", len(answers))
        span.end()
        return [_continued(answer, context, span.traceparent) for answer in answers]

    return handle


def _continued(message: Message, context: TraceContext, traceparent: str) -> Message:
    """Answers about another job (a forecast that changed, say) keep their own trace."""
    for name, value in message.headers:
        if name == HEADER:
            mine = value.decode("ascii", "replace")[3:35] == context.trace_id
            return replace(message, headers=with_traceparent(message.headers, traceparent)) if mine else message
    return message


def _readable(line: SpanLine, links: Sequence[TraceContext], resource: Resource) -> ReadableSpan:
    parent = _span_context(TraceContext(line.trace_id, line.parent_id), is_remote=True) if line.parent_id else None
    return ReadableSpan(
        name=line.name,
        context=_span_context(TraceContext(line.trace_id, line.span_id), is_remote=False),
        parent=parent,
        resource=resource,
        attributes=line.attributes,
        links=[Link(_span_context(context, is_remote=True)) for context in links],
        kind=KINDS[line.kind],
        status=Status(StatusCode.ERROR, line.error) if line.error else Status(StatusCode.UNSET),
        start_time=line.start_ns,
        end_time=line.end_ns,
        instrumentation_scope=_SCOPE,
    )


def _span_context(context: TraceContext, *, is_remote: bool) -> SpanContext:
    return SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=is_remote,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def _otlp() -> BatchSpanProcessor:
    # Imported here: it pulls in an HTTP client, 0.2 s that a process without export shouldn't pay.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return BatchSpanProcessor(
        OTLPSpanExporter(timeout=EXPORT_TIMEOUT_S),
        max_queue_size=EXPORT_QUEUE_SPANS_MAX,
        max_export_batch_size=EXPORT_BATCH_SPANS_MAX,
        schedule_delay_millis=EXPORT_PERIOD_MS,
    )

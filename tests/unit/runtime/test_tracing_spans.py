"""Spans: continued traces, repeatable ids, a bounded spool that can be read back, a back end that is away."""

from __future__ import annotations

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from schemas.records import Message, Now, Record
from services.runtime.span_spool import SpanLine, SpanSpool, read_spans
from services.runtime.traceparent import parse_traceparent
from services.runtime.tracing import SHUTDOWN_S_MAX, Tracing, Untraced, exports, send_attributes, traced_handle

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
OTHER = f"00-{'1' * 32}-{'2' * 16}-01"
NOW = Now(domain_ms=0, wall_ms=0)


def record(offset: int = 5, traceparent: str = PARENT) -> Record:
    headers = (("ce_id", b"event-1"), ("traceparent", traceparent.encode()))
    return Record("job-events", 2, offset, b"job-1", b"{}", headers, 0)


class Answering:
    inputs = ("job-events",)
    rebuilt_from = ()

    def recover(self, record: Record) -> None: ...

    def tick(self, now: Now) -> list[Message]:
        return []

    def handle(self, record: Record, now: Now) -> list[Message]:
        if record.value == b"bad":
            raise ValueError("bad")
        own = (("traceparent", record.headers[1][1]),)
        return [
            Message("jobs", b"job-1", b"{}", own, 0),
            Message("jobs", b"job-2", b"{}", (("traceparent", OTHER.encode()),), 0),
            Message("jobs", b"job-3", b"{}", (), 0),
        ]


@pytest.fixture
def tracing(tmp_path: Path) -> Tracing:
    return Tracing("intake", "intake-0", run_dir=tmp_path, environ={})


def test_a_handled_record_becomes_a_span_and_its_answers_continue_from_it(tracing: Tracing, tmp_path: Path):
    answers = traced_handle(tracing, "intake", "gpugrid-intake")(Answering(), record(), NOW)
    (span,) = read_spans(tmp_path, TRACE)
    assert (span.name, span.kind, span.parent_id) == ("process job-events", "consumer", "b7ad6b7169203331")
    assert (span.service, span.instance_id, span.error) == ("intake", "intake-0", "")
    assert span.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "job-events",
        "messaging.destination.partition.id": "2",
        "messaging.kafka.offset": 5,
        "messaging.consumer.group.name": "gpugrid-intake",
        "messaging.kafka.message.key": "job-1",
        "messaging.message.id": "event-1",
        "messaging.batch.message_count": 3,
    }
    assert answers[0].headers == (("traceparent", f"00-{TRACE}-{span.span_id}-01".encode()),)
    assert answers[1].headers == (("traceparent", OTHER.encode()),), "another job's trace stays its own"
    assert answers[2].headers == ()


def test_a_repeated_record_is_answered_with_the_same_bytes(tracing: Tracing, tmp_path: Path):
    handle = traced_handle(tracing, "intake", "g")
    again = traced_handle(Tracing("intake", "intake-1", run_dir=tmp_path, environ={}), "intake", "g")
    assert handle(Answering(), record(), NOW) == again(Answering(), record(), NOW)
    assert handle(Answering(), record(6), NOW) != handle(Answering(), record(5), NOW)


def test_untraced_records_and_errors(tracing: Tracing, tmp_path: Path):
    handle = traced_handle(tracing, "intake", "g")
    plain = Record("job-events", 0, 0, None, b"", (("x", b""), ("traceparent", b"junk")), 0)
    assert len(handle(Answering(), plain, NOW)) == 3
    bad = Record("job-events", 0, 1, None, b"bad", (("traceparent", PARENT.encode()),), 0)
    with pytest.raises(ValueError, match="bad"):
        handle(Answering(), bad, NOW)
    assert [span.error for span in read_spans(tmp_path, TRACE)] == ["ValueError('bad')"]


def test_spans_nest_link_and_begin_new_traces(tracing: Tracing, tmp_path: Path):
    root = tracing.begin("submit", "", send_attributes(Message("job-events", b"j", None, (), 1)), kind="producer")
    context = parse_traceparent(root.traceparent)
    assert context is not None
    child = tracing.begin("decide", root.traceparent, {"gpugrid.sequence": 7}, links=[PARENT, "junk"], start_ns=12)
    child.end()
    root.end()
    spans = {span.name: span for span in read_spans(tmp_path, context.trace_id)}
    assert spans["decide"].parent_id == context.span_id
    assert spans["decide"].links == (TRACE,)
    assert spans["decide"].start_ns == 12
    assert spans["submit"].attributes["messaging.kafka.message.tombstone"] is True
    assert [span.name for span in read_spans(tmp_path, TRACE)] == ["decide"], "a linked trace shows the span, too"


def test_an_unsampled_trace_costs_nothing_and_passes_on(tracing: Tracing, tmp_path: Path):
    unsampled = f"00-{TRACE}-b7ad6b7169203331-00"
    span = tracing.begin("x", unsampled, {})
    span.end()
    assert span.traceparent == unsampled
    assert read_spans(tmp_path, TRACE) == []
    assert Untraced().begin("x", PARENT, {}).traceparent == PARENT


def test_the_spool_is_bounded_and_survives_torn_lines(tmp_path: Path):
    spool = SpanSpool(tmp_path, "allocator", bytes_max=2_000)
    for number in range(100):
        spool.write(
            SpanLine(trace_id=TRACE, span_id=f"{number:016x}", name="n", service="s", start_ns=number, end_ns=number)
        )
    spool.close()
    files = sorted((tmp_path / "spans").iterdir())
    assert [file.name for file in files] == ["allocator.jsonl", "allocator.jsonl.1"]
    assert sum(file.stat().st_size for file in files) <= 4_000
    with files[0].open("ab") as file:
        file.write(b'{"trace_id":"' + TRACE.encode())
    numbers = [span.start_ns for span in read_spans(tmp_path, TRACE)]
    assert numbers == list(range(numbers[0], 100))
    assert len(numbers) > 10


def test_a_spool_that_cannot_write_never_raises(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    spool = SpanSpool(tmp_path, "x")
    spool.close()
    line = SpanLine(trace_id=TRACE, span_id="1", name="n", service="s", start_ns=0, end_ns=0)
    spool.write(line)
    spool.write(line)
    assert len(caplog.records) == 1


def test_a_back_end_that_is_away_delays_nothing(tmp_path: Path):
    with socket.socket() as silent:  # accepts connections and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint)
            tracing = Tracing("s", "s-0", run_dir=tmp_path, environ={"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint})
        began_s = time.process_time()
        for _ in range(20_000):
            tracing.begin("x", PARENT, {}).end()
        assert time.process_time() - began_s < 10
        stopping_s = time.monotonic()
        tracing.stop()
        assert time.monotonic() - stopping_s < SHUTDOWN_S_MAX + 5
    assert len(read_spans(tmp_path, TRACE)) == 20_000, "the spool has them all"


class _Collector(BaseHTTPRequestHandler):
    received: list[ExportTraceServiceRequest]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        self.received.append(request)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


def test_otlp_carries_resource_ids_parent_kind_attributes_links_and_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _Collector.received = []
    server = HTTPServer(("127.0.0.1", 0), _Collector)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    tracing = Tracing("intake", "intake-0", run_dir=tmp_path, environ={"OTEL_EXPORTER_OTLP_ENDPOINT": "set"})
    tracing.begin("process jobs", PARENT, {"a": 1, "b": "x"}, kind="consumer", links=[OTHER]).end(error="broken")
    tracing.stop()
    server.shutdown()
    server.server_close()
    (request,) = _Collector.received
    (resource,) = request.resource_spans
    names = {item.key: item.value.string_value for item in resource.resource.attributes}
    assert (names["service.name"], names["service.instance.id"]) == ("intake", "intake-0")
    (span,) = resource.scope_spans[0].spans
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.name) == (TRACE, "b7ad6b7169203331", "process jobs")
    assert (span.kind, span.status.code, span.status.message) == (span.SPAN_KIND_CONSUMER, 2, "broken")
    assert {item.key for item in span.attributes} == {"a", "b"}
    assert [link.trace_id.hex() for link in span.links] == ["1" * 32]
    (line,) = (json.loads(text) for text in (tmp_path / "spans" / "intake-0.jsonl").read_text().splitlines())
    assert line["span_id"] == span.span_id.hex()


def test_exports_only_when_the_standard_variables_say_so():
    assert not exports({})
    assert exports({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"})
    assert exports({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"})
    assert not exports({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"})
    assert not exports({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"})

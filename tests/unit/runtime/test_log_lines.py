"""Log lines are JSON with the trace and the job: named by the caller, or taken from the record that is being handled."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest

from schemas.records import Message, Now, Record
from services.runtime.logs import JsonLines, during
from services.runtime.tracing import Tracing, traced_handle

TRACE = "0af7651916cd43dd8448eb211c80319c"
log = logging.getLogger("tests.log_lines")


@pytest.fixture
def written():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines("intake", "intake-0"))
    log.addHandler(handler)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    log.removeHandler(handler)


class Logging:
    inputs = ("jobs",)
    rebuilt_from = ()

    def recover(self, record: Record) -> None: ...

    def tick(self, now: Now) -> list[Message]:
        return []

    def handle(self, record: Record, now: Now) -> list[Message]:
        log.warning("refused", extra={"job_id": "a", "reason": "unknown_pool"})
        return []


def test_a_line_inside_a_handler_carries_the_records_trace_and_place(written, tmp_path: Path) -> None:
    tracing = Tracing("intake", "intake-0", run_dir=tmp_path, environ={})
    headers = (("traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode()),)
    traced_handle(tracing, "intake", "g")(Logging(), Record("jobs", 2, 7, b"a", b"", headers, 0), Now(0, 0))
    log.warning("outside")
    inside, outside = written()
    assert (inside["trace_id"], inside["topic"], inside["partition"], inside["offset"]) == (TRACE, "jobs", 2, 7)
    assert (inside["job_id"], inside["reason"], inside["service"], inside["level"]) == (
        "a",
        "unknown_pool",
        "intake",
        "warning",
    )
    assert "trace_id" not in outside


def test_what_the_caller_names_wins(written) -> None:
    with during({"trace_id": "1", "topic": "jobs"}):
        log.warning("x", extra={"trace_id": "2"})
    (line,) = written()
    assert (line["trace_id"], line["topic"]) == ("2", "jobs")

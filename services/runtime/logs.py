"""Structured log lines: one JSON object per line on stderr, with the trace and the job where the caller names them.

    log.info("refused", extra={"job_id": job_id, "trace_id": trace_id, "reason": "unknown-pool"})

What is logged while a record is handled carries that record's trace and place without being told (`during`).
Owns: the line's form and the root logger's set-up. Refuses to be configured twice. Read next: `process.py`.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

FIELDS = ("trace_id", "span_id", "job_id", "node_id", "cluster", "topic", "partition", "offset", "reason", "sequence")
"""What `extra` may carry into the line."""
QUIET_LOGGERS = (
    "aiokafka",
    "aiohttp.access",
    "asyncio",
    "faust",
    "mode",
    "services.runtime.faust_hop",
    "services.runtime.faust_transport",
)
"""Libraries that log each step and reconnection (faust under the names of our modules that subclass it); their warnings
still show."""

_DURING: ContextVar[Mapping[str, Any] | None] = ContextVar("gpugrid_logs_during", default=None)

_ENCODE = msgspec.json.Encoder(enc_hook=str).encode


@contextlib.contextmanager
def during(fields: Mapping[str, Any]) -> Iterator[None]:
    """Lines written inside carry these fields, unless they name their own."""
    token = _DURING.set(fields)
    try:
        yield
    finally:
        _DURING.reset(token)


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object."""

    def __init__(self, service: str, instance_id: str) -> None:
        super().__init__()
        self._service = service
        self._instance_id = instance_id

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "instance_id": self._instance_id,
            "logger": record.name,
            "message": record.getMessage(),
        }
        during = _DURING.get() or {}
        for name in FIELDS:
            value = record.__dict__.get(name, during.get(name))
            if value is not None:
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _ENCODE(line).decode()


def set_up_logs(service: str, instance_id: str, level: str, stream: TextIO | None = None) -> None:
    """Send everything at `level` and above to stderr (or `stream`) as JSON lines."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(service, instance_id))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))

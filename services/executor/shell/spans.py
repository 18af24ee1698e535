"""Where tracing meets the executor: one span per start. A port, so that simulation and tests run without a tracer.

Read next: `node.py`, which calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Span(Protocol):
    """A span in progress. `traceparent` names it for whatever is caused by it."""

    traceparent: str

    def end(self, error: str | None = None) -> None: ...


class Spans(Protocol):
    """Begins a span that continues `traceparent` ("" begins a new trace)."""

    def begin(self, name: str, traceparent: str, attributes: Mapping[str, str | int]) -> Span: ...


class _PassedOn:
    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent

    def end(self, error: str | None = None) -> None:
        pass


class Untraced:
    """Records nothing and passes the caller's `traceparent` on."""

    def begin(self, name: str, traceparent: str, attributes: Mapping[str, str | int]) -> Span:
        return _PassedOn(traceparent)

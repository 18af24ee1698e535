"""Observed load of real-time applications (`demand`)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from schemas.base import Event, Identifier, ShortText, TimeMs

Served = Annotated[int, Meta(ge=0, le=1_000_000_000_000_000)]
LatencyS = Annotated[float, Meta(ge=0, le=86_400, description="seconds")]


class DemandObserved(Event, frozen=True, kw_only=True):
    """Mean load of one application over a window that ended at `time_ms`, and what one GPU serves in the same unit.

    The rest is for reports only, where an application counts it: in the window `requests` were answered, `requests_failed` of
    them with an error, `tokens` were made, and the application measured these latencies. None: not told.
    """

    app_id: Identifier
    cluster: Identifier
    time_ms: TimeMs
    window_s: Annotated[float, Meta(gt=0, le=86_400)]
    load: Annotated[float, Meta(ge=0, le=1e12)]
    per_gpu: Annotated[float, Meta(gt=0, le=1e12)]
    unit: ShortText = "requests/s"
    requests: Served | None = None
    requests_failed: Served | None = None
    tokens: Served | None = None
    latency_p50_s: LatencyS | None = None
    latency_p99_s: LatencyS | None = None

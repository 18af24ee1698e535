"""Observed load of real-time applications (`demand`)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from schemas.base import Event, Identifier, ShortText, TimeMs


class DemandObserved(Event, frozen=True, kw_only=True):
    """Mean load of one application over a window that ended at `time_ms`, and what one GPU serves in the same unit."""

    app_id: Identifier
    cluster: Identifier
    time_ms: TimeMs
    window_s: Annotated[float, Meta(gt=0, le=86_400)]
    load: Annotated[float, Meta(ge=0, le=1e12)]
    per_gpu: Annotated[float, Meta(gt=0, le=1e12)]
    unit: ShortText = "requests/s"

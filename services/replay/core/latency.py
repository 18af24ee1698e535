"""Wall-clock latency per hop, from an observation's marks: submit → decided → placed → running.

Owns which jobs count where: queueing is not latency, so hops after the first decision are measured from the decision that
placed the job, and the whole way only for jobs whose first decision placed them. Times have the broker's resolution, 1 ms.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from services.replay.core.observation import Marks
from services.replay.core.outcome import percentile


class Hop(Struct, frozen=True, kw_only=True):
    """Milliseconds between two marks over `jobs` jobs."""

    jobs: int
    p50_ms: float
    p90_ms: float
    p99_ms: float


def latencies(marks: Iterable[Marks]) -> dict[str, Hop]:
    """Per hop, in order. A hop nobody passed has 0 jobs."""
    seen = list(marks)
    at_once = [entry for entry in seen if entry.at_once]
    return {
        "submit → decided": _hop((entry.submitted_ms, entry.decided_ms) for entry in seen),
        "decided → placed": _hop((entry.decided_placed_ms, entry.placement_ms) for entry in seen),
        "placed → running": _hop((entry.placement_ms, entry.running_ms) for entry in seen),
        "submit → running": _hop((entry.submitted_ms, entry.running_ms) for entry in at_once),
    }


def _hop(pairs: Iterable[tuple[int | None, int | None]]) -> Hop:
    spans = [float(until - since) for since, until in pairs if since is not None and until is not None]
    return Hop(
        jobs=len(spans),
        p50_ms=percentile(spans, 0.5),
        p90_ms=percentile(spans, 0.9),
        p99_ms=percentile(spans, 0.99),
    )

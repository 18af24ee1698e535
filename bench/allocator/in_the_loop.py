"""Full mode inside the running allocator: whole days through all services in virtual time, with it and without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from services.replay.simulate import DayOptions, Simulated, day_of, simulate_day

FULL_S = 0.5
"""Deterministic seconds of the solver per answer."""


def loop_rows(seeds: Sequence[int], keep: Callable[[list[dict[str, Any]]], None]) -> list[dict[str, Any]]:
    """Two rows per day: full mode off and on."""
    rows = []
    for seed in seeds:
        day = day_of(DayOptions(seed=seed))
        for full_s in (0.0, FULL_S):
            rows.append(_row(simulate_day(day, full_s=full_s), seed, full_s))
            keep(rows)
    return rows


def _row(simulated: Simulated, seed: int, full_s: float) -> dict[str, Any]:
    outcome = simulated.outcome
    answers = Counter(simulated.answers)
    return {
        "day": simulated.day.name,
        "seed": seed,
        "full": "on" if full_s else "off",
        "value": outcome.value,
        "utilization": outcome.utilization,
        "completed": outcome.completed,
        "unmet_gpu_hours": outcome.unmet_gpu_hours,
        "decisions": simulated.decisions,
        "answers": ", ".join(f"{count} {name}" for name, count in sorted(answers.items())),
        "violations": len(simulated.violations),
        "took_s": simulated.took_s,
    }

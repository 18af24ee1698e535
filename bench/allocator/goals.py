"""The goals as data: what is measured, what it should be, what others published, and how to read it from the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from typing import Any

Results = dict[str, Any]
CONTENDED = ("training_heavy", "mixed_control", "inference_heavy", "priority_inversion", "batch_burst")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the table; `met` None: not measured."""

    measure: str
    goal: str
    published: str
    measured: str
    met: bool | None


def verdicts(results: Results) -> list[Verdict]:
    """Every goal against what these results say."""
    found = []
    for measure, goal, published, read in GOALS:
        try:
            measured, met = read(results)
        except (KeyError, StopIteration, ValueError):
            found.append(Verdict(measure, goal, published, "not measured", None))
            continue
        found.append(Verdict(measure, goal, published, measured, met))
    return found


def _published(results: Results, name: str) -> dict[str, Any]:
    return next(row for row in results["published"] if row["name"] == name)


def _draws(results: Results, held_out: bool) -> list[dict[str, Any]]:
    rows = [row for row in results["draws"] if row["held_out"] == held_out]
    if not rows:
        raise KeyError("draws")
    return rows


def _fast(results: Results) -> tuple[str, bool]:
    ratios = [row["value_of_best_known"] for row in results["published"]]
    for held_out in (False, True):
        ratios += [row["fast_of_best"] for row in results["draws"] if row["held_out"] == held_out]
    return f"min {min(ratios):.4f}, mean {mean(ratios):.4f} of {len(ratios)} draws", min(ratios) >= 0.96 and mean(
        ratios
    ) >= 0.98


def _full(results: Results) -> tuple[str, bool]:
    given = [row["value_of_best_known"] for row in results["full"]]
    drawn = [row["full_of_best"] for row in results["draws"]]
    worst = min(given + drawn)
    short = sum(ratio < 0.998 for ratio in given + drawn)
    words = f"given files min {min(given):.4f}; {len(drawn)} draws min {min(drawn):.4f}, mean {mean(drawn):.4f}; {short} below 0.998"
    return words, worst >= 0.998


def _full_where_open(results: Results) -> tuple[str, bool]:
    rows = [row for row in results["full"] if row["reference_bound_of_best_known"] > 1.01]
    worst = min(row["value_of_best_known"] for row in rows)
    return f"min {worst:.4f} of {len(rows)} files", worst >= 1.0


def _utilization(name: str, goal: float) -> Callable[[Results], tuple[str, bool]]:
    def read(results: Results) -> tuple[str, bool]:
        row = _published(results, name)
        words = (
            f"{row['utilization_fifo']:.1%} → {row['utilization']:.1%} (useful share {row['useful_utilization']:.1%})"
        )
        return words, row["utilization"] >= goal

    return read


def _gain(results: Results) -> tuple[str, bool]:
    gains = [_published(results, name)["gain_over_fifo"] for name in CONTENDED]
    return f"mean {mean(gains):+.0%}, least {min(gains):+.0%}", mean(gains) >= 1.05 and min(gains) >= 0.34


def _gain_of_scale(results: Results) -> tuple[str, bool]:
    gain = _published(results, "scale_64")["gain_over_fifo"]
    return f"{gain:+.0%}", gain >= 0.35


def _completed(results: Results) -> tuple[str, bool]:
    pairs = [(row["completed"], row["completed_fifo"]) for row in results["published"]]
    words = ", ".join(f"{ours} ({fifo})" for ours, fifo in pairs)
    return words, all(ours >= fifo for ours, fifo in pairs)


def _times(
    gpus: tuple[int, ...], steps: str, decision_ms: float, first_ms: float
) -> Callable[[Results], tuple[str, bool]]:
    """Processor time, with wall time beside it: the machine may be shared."""

    def read(results: Results) -> tuple[str, bool]:
        rows = [row for row in results["speed"] if row["gpus"] in gpus and row["steps"] == int(steps)]
        worst, wall = max(row["decision_cpu_ms"] for row in rows), max(row["decision_ms"] for row in rows)
        first = max(row["first_grid_cpu_ms"] for row in rows)
        words = f"{worst:.2f} ms (wall {wall:.2f}), first grid {first:.3f} ms"
        return words, worst <= decision_ms and first <= first_ms

    return read


def _steps(results: Results) -> tuple[str, bool]:
    ratios = [max(row["first_grid_ratio"], row["decision_ratio"]) for row in results["steps"]]
    if not ratios:
        raise KeyError("steps")
    return f"at most {max(ratios):.2f} ×", max(ratios) <= 3.0


def _one_job(results: Results) -> tuple[str, bool]:
    row = next(row for row in results["incremental"] if row["event"] == "one job added")
    return f"{row['repair_cpu_ms']:.2f} ms (wall {row['repair_ms']:.2f})", row["repair_cpu_ms"] <= 3.0


ANY = float("inf")
GOALS: tuple[tuple[str, str, str, Callable[[Results], tuple[str, bool]]], ...] = (
    ("fast mode ÷ best known, at the times below", "≥ 0.96 in every draw, mean ≥ 0.98", "–", _fast),
    ("full mode ÷ best known in 10 s on two cores", "≥ 0.998 in every draw", "–", _full),
    ("… where best known is over 1 % below its bound", "≥ 1.0", "–", _full_where_open),
    ("utilization, training-heavy", "≥ 93 %", "53.6 → 87.0 %", _utilization("training_heavy", 0.93)),
    ("utilization, uniform priority", "≥ 95 %", "76.8 → 87.5 %", _utilization("uniform_priority", 0.95)),
    ("value over FIFO, five contended files", "mean ≥ +105 %, none below +34 %", "mean +52 %", _gain),
    ("value over FIFO, 64 GPUs, 30 jobs", "≥ +35 %", "+15.9 %", _gain_of_scale),
    ("jobs completed (FIFO), given files", "never below FIFO's", "–", _completed),
    ("decision, 8–16 GPUs", "≤ 1 ms, first grid ≤ 0.05 ms", "1–2 ms", _times((8, 16), "24", 1.0, 0.05)),
    ("decision, 64 GPUs, 30 jobs", "≤ 2 ms, first grid ≤ 0.25 ms", "15 ms", _times((64,), "24", 2.0, 0.25)),
    ("1,024 GPUs, 1,000 queued, 24 steps", "≤ 20 ms", "–", _times((1024,), "24", 20.0, ANY)),
    ("10,240 GPUs, 10,000 queued, 24 steps", "≤ 300 ms", "–", _times((10240,), "24", 300.0, ANY)),
    ("… one added job", "≤ 3 ms", "–", _one_job),
    ("96 steps instead of 24", "≤ 3 × the time", "–", _steps),
)

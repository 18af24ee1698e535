"""Trailing windows of a GPU's or job's utilization: a minute, an hour and a day in equal steps, written out and read back exactly.

Owns: the rings and their means, in milliseconds of agent time. Refuses: growing, and counting time that nobody saw: a step
knows how much of it was observed. Read next: `usage.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.usage import Ring, Windows

STEPS = {"minute": (10_000, 6), "hour": (300_000, 12), "day": (3_600_000, 24)}
"""Per window: the width of a step, and how many there are."""


@dataclass
class StepRing:
    """`observed` and `busy` per step, newest first; `newest` is the newest step's number since the Unix epoch."""

    width_ms: int
    steps_max: int
    newest: int = 0
    observed: list[int] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)

    def add(self, wall_ms: int, observed_ms: int, busy_ms: int) -> None:
        """Time before the oldest step is dropped."""
        ahead = wall_ms // self.width_ms - self.newest
        if ahead > 0:
            empty = min(ahead, self.steps_max)
            self.observed[:0] = [0] * empty
            self.busy[:0] = [0] * empty
            del self.observed[self.steps_max :], self.busy[self.steps_max :]
            self.newest += ahead
            ahead = 0
        if -ahead < len(self.observed):
            self.observed[-ahead] += observed_ms
            self.busy[-ahead] += busy_ms

    def mean_pct(self, wall_ms: int) -> float | None:
        """Over the steps that still belong to the window that ends at `wall_ms`."""
        kept = self.steps_max - max(0, wall_ms // self.width_ms - self.newest)
        if kept <= 0:
            return None
        observed = sum(self.observed[:kept])
        return None if observed == 0 else round(min(100.0, 100.0 * sum(self.busy[:kept]) / observed), 2)

    def told(self) -> Ring:
        steps = [[seen, busy] if seen else [] for seen, busy in zip(self.observed, self.busy, strict=True)]
        return Ring(newest=self.newest, steps=steps)

    def restore(self, ring: Ring) -> None:
        whole = [step if len(step) == 2 else [0, 0] for step in ring.steps[: self.steps_max]]
        self.newest = ring.newest
        self.observed = [step[0] for step in whole]
        self.busy = [step[1] for step in whole]


class UsageWindows:
    """The three windows of one GPU or job."""

    __slots__ = ("_rings",)

    def __init__(self) -> None:
        self._rings = {name: StepRing(width_ms, steps) for name, (width_ms, steps) in STEPS.items()}

    def add(self, wall_ms: int, observed_ms: int, busy_ms: int) -> None:
        for ring in self._rings.values():
            ring.add(wall_ms, observed_ms, busy_ms)

    def mean_pct(self, name: str, wall_ms: int) -> float | None:
        return self._rings[name].mean_pct(wall_ms)

    def told(self, wall_ms: int) -> Windows:
        minute, hour, day = (self._rings[name] for name in STEPS)
        return Windows(
            minute_pct=minute.mean_pct(wall_ms),
            hour_pct=hour.mean_pct(wall_ms),
            day_pct=day.mean_pct(wall_ms),
            minute=minute.told(),
            hour=hour.told(),
            day=day.told(),
        )

    def restore(self, windows: Windows) -> None:
        for name, ring in self._rings.items():
            ring.restore(getattr(windows, name))

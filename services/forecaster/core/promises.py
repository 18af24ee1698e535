"""The P90 said of runs when they started, kept until it has passed: then, and not before, the calibration hears how it turned out.

The end of a short run comes in before the end of a long one. Whoever learns from ends as they come believes for a while that
everything is short, and lowers P90 just before the misses come. So a hit counts at the moment at which a miss would: when P90 has
passed. Owns this queue, bounded, and how much an outcome weighs. Refuses: clocks; time is an argument. Read next: `calibration.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import exp

from services.forecaster.core.calibration import Calibration
from services.forecaster.core.history import clamped_log_s
from services.forecaster.core.survival import LOG_S_MAX

PROMISES_MAX = 65_536
"""As many as runs that history follows, 400 bytes each. Beyond, the one that is due first counts early if it has ended, or never."""
BATCH_S = 600.0
"""Memory of the start rate: the n-th of many starts within about ten minutes counts 1 / n, because its like have spoken."""
BATCH_KEYS_MAX = 10_000
"""Teams and sizes whose start rate is kept; the one longest without a start makes room."""
SETTLED_PER_CALL_MAX = 500
"""Promises counted at once, 3 µs each: after a quiet night the rest waits for the next call."""


@dataclass(slots=True)
class Promise:
    """`log_p90`: as published; `log_s`: the end, once it is known; `weight`: in the calibration."""

    team: str
    gpus: int
    log_p90: float
    log_s: float | None = None
    weight: float = 1.0


class Promises:
    """The queue of one cluster."""

    def __init__(self, calibration: Calibration, *, promises_max: int = PROMISES_MAX) -> None:
        self._calibration = calibration
        self._max = promises_max
        self._made: dict[Hashable, tuple[int, Promise]] = {}
        self._due: list[tuple[int, int, Hashable]] = []
        self._starts: OrderedDict[tuple[str, int], tuple[float, int]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return len(self._made)

    def made(self, run: Hashable, promise: Promise, start_ms: int, speed: float = 1.0) -> None:
        """A run starts. `run` names it; the same name again takes the place of the first. `speed`: it gets through what was said in
        so many times less."""
        promise.weight = 1.0 / self._burst(promise, start_ms)
        self._count += 1
        self._made[run] = (self._count, promise)
        longest_s = exp(min(max(promise.log_p90, 0.0), LOG_S_MAX)) / speed
        heappush(self._due, (start_ms + round(longest_s * 1000), self._count, run))
        while len(self._made) > self._max or len(self._due) > 2 * self._max:
            self._count_first(early=True)

    def ended(self, run: Hashable, duration_s: float) -> None:
        """It ended by itself."""
        found = self._made.get(run)
        if found is not None:
            found[1].log_s = clamped_log_s(duration_s)

    def forget(self, run: Hashable) -> None:
        """It was stopped from outside, or is not followed any more: nobody will know."""
        self._made.pop(run, None)

    def settle(self, now_ms: int) -> None:
        """Time has passed: count what is due."""
        for _ in range(SETTLED_PER_CALL_MAX):
            if not self._due or self._due[0][0] > now_ms:
                return
            self._count_first(early=False)

    def _burst(self, promise: Promise, start_ms: int) -> float:
        """Starts of the same team and size within about ten minutes, this one among them."""
        key = (promise.team, promise.gpus)
        before, last_ms = self._starts.pop(key, (0.0, start_ms))
        burst = 1.0 + before * exp(-max(0, start_ms - last_ms) / 1000.0 / BATCH_S)
        self._starts[key] = (burst, max(start_ms, last_ms))
        if len(self._starts) > BATCH_KEYS_MAX:
            self._starts.popitem(last=False)
        return burst

    def _count_first(self, *, early: bool) -> None:
        _, number, run = heappop(self._due)
        found = self._made.get(run)
        if found is None or found[0] != number:
            return
        promise = self._made.pop(run)[1]
        if promise.log_s is None and early:
            return
        covered = promise.log_s is not None and promise.log_s <= promise.log_p90
        self._calibration.outcome(promise.team, promise.gpus, covered=covered, weight=promise.weight)

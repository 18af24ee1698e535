"""What every process uses over a run: whether its memory grows with the number of jobs it has seen, and its processor time.

Read next: `run.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import numpy as np
import psutil
from msgspec import Struct

from bench.soak.publish import Progress
from bench.soak.stack import Soaked

SAMPLE_S = 2.0
KEPT_MAX = 120
"""Samples in the result; the growth is computed from all."""
SETTLED_SHARE = 0.2
"""A process fills its caches and pools first, for as many events as a fifth of the run …"""
GROWN_SHARE = 0.1
"""… and from fewer than a tenth after that nothing is told."""


class Resources(Struct, frozen=True, kw_only=True):
    """MiB of one process with its children, processor seconds of all its lives.

    `growth_mib`: per 100,000 events, fitted over the settled part of its last life (None: too short). `series`: (events published,
    MiB).
    """

    first_mib: float
    last_mib: float
    most_mib: float
    cpu_s: float
    growth_mib: float | None
    series: list[tuple[int, float]]


class Scale:
    """Weighs a stack's processes until it is cancelled."""

    def __init__(self) -> None:
        self._series: dict[str, list[tuple[int, int, float]]] = {}
        self._cpu_s: dict[tuple[str, int], float] = {}

    async def weigh(self, stack: Soaked, progress: Progress) -> None:
        while True:
            begun_s = time.monotonic()
            for name, pid in stack.pids().items():
                mib, cpu_s = _used(pid)
                if mib:
                    self._cpu_s[name, pid] = cpu_s
                    self._series.setdefault(name, []).append((progress.published, pid, mib))
            await asyncio.sleep(max(0.0, begun_s + SAMPLE_S - time.monotonic()))

    def results(self, events: int) -> dict[str, Resources]:
        spent: dict[str, float] = {}
        for (name, _), cpu_s in self._cpu_s.items():
            spent[name] = spent.get(name, 0.0) + cpu_s
        return {name: _result(series, events, spent[name]) for name, series in sorted(self._series.items())}


def _used(pid: int) -> tuple[float, float]:
    """(MiB, processor seconds); (0, 0) if it is gone."""
    found, cpu_s = 0, 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                found += each.memory_info().rss
                times = each.cpu_times()
                cpu_s += times.user + times.system
    return found / 2**20, cpu_s


def _result(series: list[tuple[int, int, float]], events: int, cpu_s: float) -> Resources:
    step = max(1, len(series) // KEPT_MAX)
    return Resources(
        first_mib=round(series[0][2], 1),
        last_mib=round(series[-1][2], 1),
        most_mib=round(max(mib for _, _, mib in series), 1),
        cpu_s=round(cpu_s, 1),
        growth_mib=growth_mib([(at, mib) for at, pid, mib in series if pid == series[-1][1]], events),
        series=[(at, round(mib, 1)) for at, _, mib in series[::step]],
    )


def growth_mib(life: list[tuple[int, float]], events: int) -> float | None:
    """MiB per 100,000 events of one life, (events published, MiB); None where it was too short to settle and grow."""
    settled = [(at, mib) for at, mib in life if at >= life[0][0] + SETTLED_SHARE * events]
    if len({at for at, _ in settled}) < 3 or settled[-1][0] - settled[0][0] < GROWN_SHARE * events:
        return None
    slope = np.polyfit([at for at, _ in settled], [mib for _, mib in settled], 1)[0]
    return round(float(slope) * 100_000, 1)

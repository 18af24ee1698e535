"""Who used the processors meanwhile: each of our processes, and everybody else on this machine.

A benchmark on a machine that others use is only worth what is known about them: every turn is reported with theirs.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator

import psutil

Pids = Callable[[], dict[str, int]]


class Accounts:
    """Processor seconds by label and process; `others`: cores that everybody else kept busy, one number per period."""

    def __init__(self, pids: Pids) -> None:
        self._pids = pids
        self.used_s: Counter[str] = Counter()
        self.others: list[float] = []

    @contextlib.contextmanager
    def period(self, label: str) -> Iterator[None]:
        """Within, processor time counts for `label`."""
        before, busy_s, begun_s = self._ours(), _busy_s(), time.monotonic()
        yield
        elapsed_s, ours_s = max(1e-9, time.monotonic() - begun_s), 0.0
        for name, used_s in self._ours().items():
            spent_s = max(0.0, used_s - before.get(name, 0.0))
            self.used_s[f"{label}: {name}"] += spent_s
            ours_s += spent_s
        self.others.append(round(max(0.0, _busy_s() - busy_s - ours_s) / elapsed_s, 2))

    def _ours(self) -> dict[str, float]:
        found = {}
        for name, pid in self._pids().items():
            with contextlib.suppress(psutil.Error):
                used = psutil.Process(pid).cpu_times()
                found[name] = used.user + used.system
        return found


def _busy_s() -> float:
    """All processors' time that was not idle, stolen time included: what a neighbour of this machine takes, we don't get."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))

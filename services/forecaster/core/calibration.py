"""Keeps P90 honest while it runs: offsets for all, per size class and per team, moved by every forecast whose outcome is known.

A forecast is *covered* when its run ended by itself within its P90, and *missed* if the run outlived it. Each outcome moves its
three offsets by a step towards one miss in ten (adaptive conformal inference: Gibbs and Candès, arXiv 2106.00072), with a small
leak. When an outcome counts, and how much, is `promises.py`'s: hits as well as misses once P90 has passed, else the early hits of
short runs would lower it before the misses of long ones lift it; and the many alike runs of a batch hardly more than one. Owns
offsets in log seconds; refuses to know a clock.
"""

from __future__ import annotations

MISS_SHARE = 0.1
STEP = 0.01
SIZE_STEP = 0.03
"""Log seconds per outcome of full weight, for all and the team, and for the size class: there are few of these, and they last. A miss
lifts P90 by 4.6 % in all, a hit lowers it by 0.5 %."""
LEAK = 0.0003
"""Share of an offset forgotten per outcome of full weight: a bad day doesn't keep P90 wrong for ever, and a lasting bias of ten
points is taken back by nine. More was measured to leave MetaCentrum's P90 too low."""
MARGIN = 0.02
"""Always added: quantiles of what was seen fall a little short of what comes."""
OFFSET_MIN, OFFSET_MAX = -0.5, 1.5
"""Of each learnt offset, and of their sum."""
KEY_COUNT_MAX = 10_000
"""Teams with an offset of their own; later ones share the others."""
SIZE_CLASSES = ((1, "1"), (4, "2–4"), (8, "5–8"), (1 << 62, "more than 8"))
"""Largest size of each class, and its name: one GPU, part of a node, a node of eight, several. They err in other ways."""


def size_class(gpus: int) -> str:
    """The class of a size."""
    return next(name for largest, name in SIZE_CLASSES if gpus <= largest)


class Calibration:
    """Offsets to add to log P90."""

    def __init__(self) -> None:
        self._all = 0.0
        self._sizes: dict[str, float] = {}
        self._teams: dict[str, float] = {}
        self.covered = 0
        self.missed = 0

    def offset(self, team: str, gpus: int) -> float:
        """For a job of this team and size."""
        learnt = self._all + self._sizes.get(size_class(gpus), 0.0) + self._teams.get(team, 0.0)
        return MARGIN + _bounded(learnt)

    def outcome(self, team: str, gpus: int, *, covered: bool, weight: float = 1.0) -> None:
        """One forecast for this team and size turned out covered or missed."""
        if covered:
            self.covered += 1
        else:
            self.missed += 1
        error = weight * ((0.0 if covered else 1.0) - MISS_SHARE)
        step = STEP * error
        kept = 1.0 - weight * LEAK
        size = size_class(gpus)
        self._all = _bounded(kept * self._all + step)
        self._sizes[size] = _bounded(kept * self._sizes.get(size, 0.0) + SIZE_STEP * error)
        if team and (team in self._teams or len(self._teams) < KEY_COUNT_MAX):
            self._teams[team] = _bounded(kept * self._teams.get(team, 0.0) + step)


def _bounded(offset: float) -> float:
    return min(max(offset, OFFSET_MIN), OFFSET_MAX)

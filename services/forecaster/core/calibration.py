"""Keeps P90 honest while it runs: an offset per team and one for all, moved by every forecast whose outcome is known.

A forecast is *covered* when its run ended by itself within its P90, and *missed* the moment the run outlives it. Each
outcome moves the offset by a step towards one miss in ten (adaptive conformal inference: Gibbs and Candès, arXiv
2106.00072), with a small leak. Outcomes of short runs come in earlier than misses of long ones, so the steps are small: larger
ones were measured to follow that ebb and flow and cost accuracy. Owns offsets in log seconds; refuses to know a clock.
"""

from __future__ import annotations

MISS_SHARE = 0.1
STEP = 0.004
"""Log seconds per outcome and weight. A miss lifts P90 by 0.36 %, a hit lowers it by 0.04 %."""
LEAK = 0.002
"""Share of an offset forgotten per outcome. Without it a bad day keeps P90 wrong long after (measured: 1 % more loss); with it
a lasting bias is taken back by about half, not wholly."""
MARGIN = 0.02
"""Always added: quantiles of what was seen fall a little short of what comes."""
OFFSET_MIN, OFFSET_MAX = 0.0, 1.5
"""Each learnt offset only lifts: hits come in before misses, so lowering followed the ebb and was measured to hurt."""
KEY_COUNT_MAX = 10_000
"""Teams with an offset of their own; later ones share the one for all."""
ALL = ""


class Calibration:
    """Offsets to add to log P90."""

    def __init__(self) -> None:
        self._offsets: dict[str, float] = {ALL: 0.0}
        self.covered = 0
        self.missed = 0

    def offset(self, team: str) -> float:
        own = self._offsets.get(team, 0.0) if team else 0.0
        return MARGIN + min(self._offsets[ALL] + own, OFFSET_MAX)

    def outcome(self, team: str, *, covered: bool) -> None:
        """One forecast of this team turned out covered or missed."""
        step = STEP * ((0.0 if covered else 1.0) - MISS_SHARE)
        if covered:
            self.covered += 1
        else:
            self.missed += 1
        keys = (ALL, team) if team and (team in self._offsets or len(self._offsets) < KEY_COUNT_MAX) else (ALL,)
        for key in keys:
            kept = (1.0 - LEAK) * self._offsets.get(key, 0.0)
            self._offsets[key] = min(max(kept + step, OFFSET_MIN), OFFSET_MAX)

"""Expectations corrected by what came, and weighed against history: facts carry a new thing, history carries a known one.

Owns, per key (kind, kind and team, kind, team and thing): mean and spread of log (actual ÷ expected) over about the last fifty
runs, each level leaning on the one before; and the record by which the two are mixed: for jobs whose own key history knows, and for
others, the losses of both over about the last hundred runs of the kind. A job without facts has no expectation and is not touched.
Runs stopped from outside say nothing here. Refuses: clocks, models. Read next: `kind_models.py`, `duration.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from math import exp, log

from services.forecaster.core.duration import Estimate
from services.forecaster.core.kind_models import Expected

Z90 = 1.2815515655446004
MEMORY = 0.98
"""Weight a ratio keeps with every new one of its key: fifty count."""
LEANING_WEIGHT = 3.0
"""Runs that the coarser level weighs."""
RATIO_MAX = 5.0
"""A factor of 148 either way: one absurd run must not shift a key for long."""
SPREAD_MIN = 0.1
KEYS_MAX = 100_000
"""Least recently used keys go first; 200 bytes each."""
RECORD_MEMORY = 0.99
SHARPNESS = 0.5
"""How fast a better record becomes trust, per run and unit of loss."""
FIRST_SHARE_KNOWN, FIRST_SHARE_NEW = 0.3, 0.9
"""Weight of the facts before any record: little beside a history of the same thing, nearly all without."""

WIDTH_STEP = 0.01
"""How much one outcome narrows or widens P90 of its kind (adaptive conformal inference, as in `calibration.py`, but both ways: here
a miss is known when the run ends, and the distance scales with what is known of the key)."""
WIDTH_MIN, WIDTH_MAX = 0.3, 3.0
MISS_SHARE = 0.1

Key = tuple[str, ...]


@dataclass(slots=True)
class _Ratios:
    weight: float = 0.0
    mean: float = 0.0
    square: float = 0.0


@dataclass(slots=True)
class _Record:
    runs: float = 0.0
    facts_loss: float = 0.0
    history_loss: float = 0.0


@dataclass(frozen=True, slots=True)
class Opinion:
    """log P50 and P90 by the corrected expectation; `share`: how much of it counts; `runs`: (decayed) behind the correction."""

    log_p50: float
    log_p90: float
    share: float
    runs: float


@dataclass(frozen=True, slots=True)
class Told:
    """What was said at start by the facts and by history, to be scored when the run ends."""

    expected: Expected
    known: bool
    facts: tuple[float, float]
    history: tuple[float, float]

    def on_other_size(self, move: float) -> Told:
        """The same on another block: all of it `move` log seconds longer."""
        if move == 0.0:
            return self
        return Told(
            replace(self.expected, log_s=self.expected.log_s + move),
            self.known,
            (self.facts[0] + move, self.facts[1] + move),
            (self.history[0] + move, self.history[1] + move),
        )


class Expectations:
    """Of one cluster."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._ratios: OrderedDict[Key, _Ratios] = OrderedDict()
        self._records: dict[tuple[str, bool], _Record] = {}
        self._widths: dict[str, float] = {}

    @property
    def key_count(self) -> int:
        return len(self._ratios)

    def opinion(self, expected: Expected, keys: tuple[Key, ...], *, known: bool) -> Opinion:
        """`keys`: coarse to fine, the first is the kind; `known`: whether history knows the very thing."""
        mean, variance, runs = 0.0, expected.spread**2, 0.0
        for key in keys:
            own = self._ratios.get(key)
            if own is None:
                continue
            total = own.weight + LEANING_WEIGHT
            fresh = (own.mean + LEANING_WEIGHT * mean) / total
            # Spread around the new centre: own runs', and the coarser level's with the weight of its pseudo-runs.
            around = own.square - 2 * fresh * own.mean + fresh * fresh * own.weight
            variance = (around + LEANING_WEIGHT * (variance + (mean - fresh) ** 2)) / total
            mean, runs = fresh, own.weight
        spread = max(variance, SPREAD_MIN**2) ** 0.5 * self._widths.get(keys[0][0], 1.0)
        middle = expected.log_s + mean
        return Opinion(middle, middle + Z90 * spread, self._share(keys[0][0], known), runs)

    def mixed(
        self, estimate: Estimate, expected: Expected, keys: tuple[Key, ...], *, known: bool
    ) -> tuple[Estimate, Told]:
        """History's estimate with the facts' opinion mixed in, and what both said."""
        opinion = self.opinion(expected, keys, known=known)
        told = Told(expected, known, (opinion.log_p50, opinion.log_p90), (estimate.log_p50, estimate.log_p90))
        log_p50 = estimate.log_p50 + opinion.share * (opinion.log_p50 - estimate.log_p50)
        log_p90 = estimate.log_p90 + opinion.share * (opinion.log_p90 - estimate.log_p90)
        seen = estimate.known or opinion.runs >= LEANING_WEIGHT
        return replace(estimate, log_p50=log_p50, log_p90=max(log_p50, log_p90), known=seen), told

    def ended(self, told: Told, keys: tuple[Key, ...], log_s: float) -> None:
        """A run ended by itself."""
        ratio = min(max(log_s - told.expected.log_s, -RATIO_MAX), RATIO_MAX)
        for key in keys:
            own = self._ratios.pop(key, None) or _Ratios()
            own.weight = MEMORY * own.weight + 1.0
            own.mean = MEMORY * own.mean + ratio
            own.square = MEMORY * own.square + ratio * ratio
            self._ratios[key] = own
            if len(self._ratios) > self._keys_max:
                self._ratios.popitem(last=False)
        kind, missed = keys[0][0], 1.0 if log_s > told.facts[1] else 0.0
        width = self._widths.get(kind, 1.0) * exp(WIDTH_STEP * (missed - MISS_SHARE))
        self._widths[kind] = min(max(width, WIDTH_MIN), WIDTH_MAX)
        record = self._records.setdefault((kind, told.known), _Record())
        record.runs = RECORD_MEMORY * record.runs + 1.0
        record.facts_loss = RECORD_MEMORY * record.facts_loss + pinball(log_s, told.facts)
        record.history_loss = RECORD_MEMORY * record.history_loss + pinball(log_s, told.history)

    def _share(self, kind: str, known: bool) -> float:
        """Weight of the facts: prior odds times the evidence of the record, as an exponential-weights forecaster has it."""
        first = FIRST_SHARE_KNOWN if known else FIRST_SHARE_NEW
        record = self._records.get((kind, known))
        if record is None:
            return first
        lead = SHARPNESS * (record.history_loss - record.facts_loss)
        odds = log(first / (1.0 - first)) + min(max(lead, -20.0), 20.0)
        return 1.0 / (1.0 + exp(-odds))


def pinball(log_s: float, said: tuple[float, float]) -> float:
    """Loss of P50 + P90."""
    miss50, miss90 = log_s - said[0], log_s - said[1]
    return max(0.5 * miss50, -0.5 * miss50) + max(0.9 * miss90, -0.1 * miss90)

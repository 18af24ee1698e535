"""Fair share over time: how much each team used, fading with age, against what its weight gives it.

After the multifactor priority of Slurm (slurm.schedmd.com, "Multifactor Priority Plugin", fair-share factor 2^(-use/share)): a
team that used exactly its part has the factor 1/2. The power is drawn with straight lines between whole exponents, so that every
machine computes the same number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from schemas.rules import Rules
from services.allocator.core.groups import team_rules

ONE = 1000
"""Factors are thousandths."""
HALVINGS_MAX = 40
"""Use that old is nothing."""


class Use(Struct):
    """GPU milliseconds that ended jobs used, as of a moment; later they count less. What was used after that moment is in it as what
    it would have had to be then, so that every GPU-hour fades along the same curve, however often something is added."""

    gpu_ms: int = 0
    as_of_ms: int = 0


def faded(use: Use, now_ms: int, half_life_s: float) -> int:
    """What is left of it now."""
    return _halved(use.gpu_ms, max(0, now_ms - use.as_of_ms), max(1, int(half_life_s * 1000)))


def charged(use: Use, gpus: int, from_ms: int, until_ms: int, half_life_s: float, slots_per_card: int) -> Use:
    """The use after a job ended, in time of whole cards. The moment moves by whole half-lives only: fading a little at every end would
    leave more than half after one, since the straight line between them is flatter than the power where it begins."""
    used = gpus * max(0, until_ms - from_ms) // slots_per_card
    half_ms = max(1, int(half_life_s * 1000))
    if use.gpu_ms == 0:
        return Use(used, max(use.as_of_ms, until_ms))
    halvings, rest_ms = divmod(max(0, until_ms - use.as_of_ms), half_ms)
    left = _halved(use.gpu_ms, halvings * half_ms, half_ms)
    return Use(left + used * 2 * half_ms // (2 * half_ms - rest_ms), use.as_of_ms + halvings * half_ms)


def share_factors(rules: Rules, use: Mapping[str, int], teams: Iterable[str]) -> dict[str, int]:
    """Factor on the priority of each team, in thousandths: 1 at its fair part, up to 1 + fair_share/2 for one that used
    nothing, down to 1 - fair_share/2. `teams`: those with work now, in any order; `use` in GPU milliseconds by team."""
    names = sorted(teams)
    total = sum(use.get(name, 0) for name in names)
    if rules.fair_share <= 0 or total <= 0:
        return dict.fromkeys(names, ONE)
    weights = {name: round(team_rules(rules, name).weight * ONE) for name in names}
    whole = sum(weights.values())
    strength = round(rules.fair_share * ONE)
    factors = {}
    for name in names:
        part = use.get(name, 0) * whole * ONE // (total * weights[name])  # 1 000 at the fair part
        factors[name] = ONE + strength * (_halved(ONE, part, ONE) - ONE // 2) // ONE
    return factors


def _halved(amount: int, exponent: int, one: int) -> int:
    """amount × 2^(-exponent/one), straight between whole exponents, rounded down."""
    whole, rest = divmod(exponent, one)
    if whole >= HALVINGS_MAX:
        return 0
    return amount * (2 * one - rest) // (2 * one) >> whole

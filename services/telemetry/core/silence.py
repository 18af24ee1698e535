"""Silence of a node: suspect after a while, lost after a longer one, back with gently rising patience for those that flap.

Owns: the timers, in wall time. They count from when telemetry itself could hear: not over its own pauses, not before the first
sample after its start, and a whole cluster that falls silent at one moment is more likely our deafness than its death, so
then nobody is declared lost for much longer (nothing would be won: there is nowhere to run). Refuses: reading samples.
Read next: `handler.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from schemas.nodes import Health

SUSPECT_PERIODS = 3
SUSPECT_S_MIN = 15.0
"""A node is suspect after three missed samples, and not before 15 s: a broker restart takes 2 to 5 s."""
LOST_S_MIN = 60.0
LOST_OVER_SUSPECT = 2.0
"""Lost means its jobs are queued again: after a minute, and never before twice the time to suspicion."""
LOST_TOGETHER_S = 600.0
"""When all nodes of a cluster are silent, as long as a machine room takes to come back from a power failure."""
TOGETHER_MIN = 2
"""One node alone proves nothing about our own hearing."""
OWN_PAUSE_S = 3.0
"""Ticks come about every half second; a longer gap means that we stood still, not the nodes."""
DEAF_S_MAX = 120.0
"""From the start, without any sample: longer than a rebalance after a kill; then timers count anyway."""
FLAP_FORGET_S = 600.0
"""A node that was heard for so long starts with a clean record."""
RETURN_SAMPLES_MAX = 8
"""Samples in a row that a flapping node needs, at most: 40 s at the usual period. Patience doubles with each flap."""


@dataclass
class Hearing:
    """What we know of hearing one node. `heard_ms` None: not since our start."""

    health: Health = Health.USABLE
    heard_ms: int | None = None
    steady_ms: int = 0
    flaps: int = 0
    returning: int = 0


@dataclass
class Ears:
    """What we know of our own hearing of one cluster. `since_ms` None: nothing heard since our start."""

    since_ms: int | None = None
    heard_ms: int | None = None


def suspect_s(period_s: float) -> float:
    """Silence after which a node is suspect."""
    return max(SUSPECT_S_MIN, SUSPECT_PERIODS * period_s)


def lost_s(period_s: float) -> float:
    """Silence after which a node is lost."""
    return max(LOST_S_MIN, LOST_OVER_SUSPECT * suspect_s(period_s))


def hear(hearing: Hearing, ears: Ears, period_s: float, wall_ms: int, *, old: bool = False) -> bool:
    """A sample arrived; True if the node, suspect or lost until now, is back. `old`: it isn't newer than the last one, so it may have come
    twice or late, and the node be gone all the same; or its clock was set back, and then newer ones follow."""
    if ears.heard_ms is None or wall_ms - ears.heard_ms >= suspect_s(period_s) * 1000:
        ears.since_ms = wall_ms  # all were silent: now the others get their time, too
    ears.heard_ms = wall_ms
    hearing.heard_ms = wall_ms
    if hearing.health not in (Health.SUSPECT, Health.LOST):
        if wall_ms - hearing.steady_ms >= FLAP_FORGET_S * 1000:
            hearing.flaps = 0
        return False
    if old:
        return False
    hearing.returning += 1
    if hearing.returning < min(2 ** max(0, hearing.flaps - 1), RETURN_SAMPLES_MAX):
        return False
    hearing.returning, hearing.steady_ms = 0, wall_ms
    return True


def silent(hearing: Hearing, ears: Ears, period_s: float, wall_ms: int, *, together: bool) -> Health | None:
    """The worse health that silence has earned by now, or None. `together`: the whole cluster is silent."""
    if ears.since_ms is None:
        return None
    silent_ms = wall_ms - max(hearing.heard_ms or 0, ears.since_ms)
    if silent_ms < suspect_s(period_s) * 1000:
        return None
    hearing.returning = 0
    if hearing.health not in (Health.SUSPECT, Health.LOST):
        hearing.flaps += 0 if together else 1
        return Health.SUSPECT
    lost_ms = (LOST_TOGETHER_S if together else lost_s(period_s)) * 1000
    if hearing.health is Health.SUSPECT and silent_ms >= lost_ms:
        return Health.LOST
    return None


def all_silent(hearings: Iterable[tuple[Hearing, float]], wall_ms: int) -> bool:
    """Whether two nodes or more that aren't lost share one silence; pairs of hearing and period."""
    alive = [(each, period_s) for each, period_s in hearings if each.health is not Health.LOST]
    if len(alive) < TOGETHER_MIN:
        return False
    return all(
        each.heard_ms is None or wall_ms - each.heard_ms >= suspect_s(period_s) * 1000 for each, period_s in alive
    )

"""What the rules said of loads at moments that are looked at again: remembered, up to so many bytes, for all applications of a cluster.

A rule answers from what lies before its moment, so what it said stays right until a window comes late. Forgetting costs time only:
who asks for what was forgotten works it out again, to the same bits. Owns the bound and the order of forgetting, oldest first.
Refuses: knowing what is right (`demand.py`).
"""

from __future__ import annotations

from collections import OrderedDict

from services.forecaster.core.demand_rules import Said

BYTES_MAX = 64 * 2**20
"""Three days of six-hourly moments of some 300 applications at a quarter of an hour; further ones take twice the time every six hours."""


class Remembered:
    """Shared by the applications of one cluster."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._said: OrderedDict[tuple[int, int], Said] = OrderedDict()
        self._bytes_max = bytes_max
        self._owners = 0
        self.held_bytes = 0

    def owner(self) -> int:
        """A number that nothing was said under: for a new application, or one of which nothing remembered holds any more."""
        self._owners += 1
        return self._owners

    def get(self, owner: int, moment: int) -> Said | None:
        return self._said.get((owner, moment))

    def put(self, owner: int, moment: int, said: Said) -> None:
        """Of a moment that isn't remembered."""
        self._said[owner, moment] = said
        self.held_bytes += _bytes(said)
        while self.held_bytes > self._bytes_max:
            self.held_bytes -= _bytes(self._said.popitem(last=False)[1])


def _bytes(said: Said) -> int:
    return said.p50.nbytes + said.above.nbytes + said.shift.nbytes

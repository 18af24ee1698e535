"""What a GPU is to a problem: usable or not, and how its card is cut. Imports nothing heavy."""

from __future__ import annotations

from enum import IntEnum


class GpuState(IntEnum):
    """What a GPU may be used for."""

    USABLE = 0
    HELD_ONLY = 1  # suspect or draining: whoever holds it keeps it, nothing new
    UNUSABLE = 2


class CardState(IntEnum):
    """How the card of a GPU or slot is cut. Only why a job waits depends on it: what may be used is in `GpuState` and reservations."""

    HERE = 0
    TO_BE_CUT = 1  # by an order that is open; nothing new until it is over
    ELSEWHERE = 2  # healthy, and cut for another pool
    COMING = 3  # being cut for this pool: usable from the end of its reservation on

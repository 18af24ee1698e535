"""Column order of the tables a problem is made of. Kernels and numpy code index them by these names only."""

from __future__ import annotations

from enum import IntEnum


class JobColumn(IntEnum):
    """Queued jobs."""

    EARLIEST = 0
    REFUSAL = 1
    ARRIVAL = 2
    PRIORITY = 3
    REQUESTED = 4


class OptionColumn(IntEnum):
    """Offered sizes of queued jobs. CLASS is the exponent of the size, -1 where the pool can't form it.

    EARLIEST repeats the job's earliest step, DATA its row of data that nodes lack (-1: none), so that placing needs this table only.
    """

    GPUS = 0
    CLASS = 1
    STEPS = 2
    HOLD = 3
    DENSITY = 4
    EARLIEST = 5
    DATA = 6


class RunningColumn(IntEnum):
    """Running batch-like jobs."""

    FIRST = 0
    GPUS = 1
    STEPS = 2
    HOLD = 3
    PRIORITY = 4
    ARRIVAL = 5


class AppColumn(IntEnum):
    """Real-time applications; SWITCH_LEFT is the cap of step 0."""

    PRIORITY = 0
    FLOOR = 1
    SWITCH_MAX = 2
    SWITCH_LEFT = 3

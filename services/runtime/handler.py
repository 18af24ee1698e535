"""The shape of a record-at-a-time service: fold a record into state, answer with messages. Pure, deterministic.

The same handler runs under faust (production) and under `hop.run_hop` (simulation and tests, on any bus).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from schemas.records import Mark, Message, Now, Record

__all__ = ["TICK_PERIOD_S", "Handler", "Mark", "Message", "Now", "Owner", "Record", "Savable", "Settling"]

TICK_PERIOD_S = 0.5
"""Wall seconds between ticks: silence of a node is noticed within that."""


class Handler(Protocol):
    """Idempotent by (topic, partition, offset): a record folded before is not folded twice, its outputs are emitted again."""

    inputs: tuple[str, ...]
    """Topics whose records are handled."""

    rebuilt_from: tuple[str, ...]
    """Topics re-read from their beginning on start through `recover`, to rebuild state."""

    def recover(self, record: Record) -> None:
        """Fold a record into the state without answering."""
        ...

    def handle(self, record: Record, now: Now) -> list[Message]:
        """Fold a record and return what to publish, dead letters included. Never raises for bad input."""
        ...

    def tick(self, now: Now) -> list[Message]:
        """What to publish because time passed; called about every `TICK_PERIOD_S` of wall time. Most handlers return nothing."""
        ...


@runtime_checkable
class Owner(Protocol):
    """A handler whose ticks must not speak for clusters of another process: it is told what is its own.

    Records come only from owned partitions anyway; state is rebuilt from all of them, and time concerns all state.
    """

    def own(self, partitions: frozenset[int]) -> None:
        """Numbers of the cluster partitions assigned to this process, after their history was folded; none when revoked."""
        ...


@runtime_checkable
class Settling(Protocol):
    """A handler that keeps some of what it recovers back, because it may be read before what it belongs to."""

    @property
    def kept_back(self) -> int:
        """Records that wait to be folded; the first answer folds the rest."""
        ...

    def settle(self, records_max: int) -> None:
        """Fold the oldest of them."""
        ...


@runtime_checkable
class Savable(Protocol):
    """A handler whose state can be taken out and put into another one of the same make."""

    def made_with(self) -> bytes:
        """All that the state depends on besides records and code."""
        ...

    def marks(self) -> Mapping[tuple[str, int], Mark]:
        """How far it has folded."""
        ...

    def state(self) -> Any:
        """What to keep, `marks` included; can be pickled."""
        ...

    def use_state(self, state: Any) -> None:
        """Go on from what another one's `state` returned. The handler is fresh."""
        ...

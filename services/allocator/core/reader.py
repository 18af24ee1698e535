"""The small reader of the decision log: which records count, and the state they add up to. Everyone who reads the log uses it.

A record is accepted iff its sequence is the last accepted one + 1 and its parent is the last accepted id. Everything else in
the log is a loser of a race and is skipped, by everybody alike.
"""

from __future__ import annotations

from schemas.decisions import DecisionMade
from services.allocator.core.accept import is_next
from services.allocator.core.advance import advance
from services.allocator.core.state import Changes, State

__all__ = ["is_next", "read"]


def read(state: State, record: DecisionMade, step_ms: int) -> Changes | None:
    """Advance the state if the record is accepted; None if it isn't."""
    return advance(state, record, step_ms) if is_next(state, record) else None

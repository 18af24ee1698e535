"""The log's rule of acceptance, alone: for readers of decisions that need no planner (and don't want to load its kernels)."""

from __future__ import annotations

from schemas.decisions import DecisionMade
from services.allocator.core.state import State


def is_next(state: State, record: DecisionMade) -> bool:
    """Whether the log accepts this record after what `state` has seen."""
    return (
        record.cluster == state.cluster
        and record.sequence == state.sequence + 1
        and record.parent == state.last_id
        and record.epoch >= state.epoch
    )

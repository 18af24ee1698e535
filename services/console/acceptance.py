"""Which decisions count, while the log is followed record by record. Pure.

The rule is the allocator's own (`services.allocator.core.accept`). Where retention has taken the log's beginning, the first
record seen is taken for granted: a reader that needs more than a picture of the past starts from a snapshot (`decision_log`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.decisions import DecisionMade
from services.allocator.core.accept import is_next
from services.allocator.core.state import State


@dataclass(slots=True)
class Acceptance:
    """Per cluster, the last accepted decision."""

    _last: dict[str, State] = field(default_factory=dict)

    def accepts(self, decision: DecisionMade) -> bool:
        """Whether the log accepts this record after those before it; a record seen twice is refused the second time."""
        state = self._last.get(decision.cluster)
        if state is None:
            state = self._last[decision.cluster] = State(cluster=decision.cluster)
        elif not is_next(state, decision):
            return False
        state.sequence, state.last_id, state.epoch = decision.sequence, decision.id, decision.epoch
        return True

"""Audit a decision log: every accepted record checked again, by whoever reads the log, with the independent check.

Needs no planner. Read `verify_commit.py` for what is checked, `reader.py` for which records count.
"""

from __future__ import annotations

from schemas.decisions import DecisionMade, RecordKind
from schemas.records import Now
from services.allocator.core.accept import is_next
from services.allocator.core.advance import fold_all, move
from services.allocator.core.config import Policy
from services.allocator.core.enact import enact
from services.allocator.core.state import Changes, State, forget_index
from services.allocator.core.verify_commit import verify_commit


class Audit:
    """Follows one cluster's log from its beginning. `verified` counts decisions, `violations` are sentences."""

    def __init__(self, cluster: str, policy: Policy) -> None:
        self._state = State(cluster=cluster)
        self._policy = policy
        self.verified = 0
        self.violations: list[str] = []

    def follow(self, record: DecisionMade) -> None:
        """Check a record against the state before it, then move on; records the log doesn't accept are passed over."""
        state = self._state
        if not is_next(state, record):
            return
        forget_index(state)
        if record.kind is RecordKind.DECISION:
            now, changes = Now(record.now_ms, record.wall_ms), Changes()
            fold_all(state, record.inputs, now, changes)
            found = verify_commit(state, record.effects, self._policy, now)
            self.violations += [f"decision {record.sequence}: {sentence}" for sentence in found]
            self.verified += 1
            enact(state, record.effects, record.sequence, self._policy.step_ms, now, changes)
        move(state, record)

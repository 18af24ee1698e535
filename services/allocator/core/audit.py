"""Audit a decision log: every accepted record checked again, by whoever reads the log, with the independent check.

A record is judged by the rules of the code and the policy that made it. What others made is followed and counted, not judged: their
rules may have been others, and only that version knows them. Needs no planner. Read `verify_commit.py` for what is checked,
`reader.py` for which records count.
"""

from __future__ import annotations

from schemas.decisions import DecisionMade, RecordKind
from schemas.records import Now
from services.allocator.core.accept import is_next
from services.allocator.core.advance import fold_all, move
from services.allocator.core.config import Policy
from services.allocator.core.enact import enact
from services.allocator.core.slots import ask_for_reshapes
from services.allocator.core.state import Changes, State, forget_index
from services.allocator.core.verify_commit import verify_commit


class Audit:
    """Follows one cluster's log from `state` on, by default from its beginning.

    `verified` counts decisions that were judged, `violations` are sentences about them, `unjudged` counts those of another version of the
    code than `code_version`, or of another policy than that with `config_digest` (empty: all are judged).
    """

    def __init__(
        self, cluster: str, policy: Policy, code_version: str = "", config_digest: str = "", state: State | None = None
    ) -> None:
        self._state = State(cluster=cluster) if state is None else state
        self._policy = policy
        self._code_version, self._config_digest = code_version, config_digest
        self.verified = 0
        self.violations: list[str] = []
        self.unjudged: dict[str, int] = {}

    def follow(self, record: DecisionMade) -> None:
        """Check a record against the state before it, then move on; records the log doesn't accept are passed over."""
        state = self._state
        if not is_next(state, record):
            return
        forget_index(state)
        if record.kind is RecordKind.DECISION:
            now, changes = Now(record.now_ms, record.wall_ms), Changes()
            fold_all(state, record.inputs, now, changes)
            self._judge(record, now)
            enact(state, record.effects, record.sequence, self._policy.step_ms, now, changes)
            ask_for_reshapes(state, now, changes)
        move(state, record)

    def _judge(self, record: DecisionMade, now: Now) -> None:
        other = self._other(record)
        if other:
            self.unjudged[other] = self.unjudged.get(other, 0) + 1
            return
        found = verify_commit(self._state, record.effects, self._policy, now)
        self.violations += [f"decision {record.sequence}: {sentence}" for sentence in found]
        self.verified += 1

    def _other(self, record: DecisionMade) -> str:
        """Who made a record that isn't judged here; "" for one that is."""
        if self._code_version and record.code_version != self._code_version:
            return f"version {record.code_version or 'unknown'}"
        if self._config_digest and record.config_digest != self._config_digest:
            return f"policy {record.config_digest or 'unknown'}"
        return ""

"""Judges planned starts of big jobs: later, or taken back, only for a stated cause, and only for one that the log bears out.

Owns: a reading of its own of what was promised and what was heard of nodes, from the log alone. Refuses: the allocator's state and
code. Read next: `check_rules.py`, docs/policy.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from schemas.commands import ChangeRules, DrainNode, RepartitionCards, ReserveBlock
from schemas.decisions import DecisionMade, Placed, Preempted, Promised, Waits
from schemas.executions import JobStopped, NodeReported
from schemas.jobs import JobRevoked
from schemas.nodes import Health, NodeForgotten, NodeStateChanged
from tests.simulation.system.evidence import Evidence, Hearing
from tests.simulation.system.world_slots import machine_of

BY_JOBS = frozenset({"overrun", "higher_priority"})
CAUSES = frozenset({*BY_JOBS, "node_withdrawn", "reserved", "rules", "applications"})


@dataclass
class Word:
    """What a job was promised: since which decision, from when on, on which nodes."""

    sequence: int
    start_ms: int
    nodes: frozenset[str]


@dataclass
class PlannedStarts:
    """One walk over the accepted log. `withdrawn`, `reserved`: per node the last decision that heard of it."""

    evidence: Evidence
    violations: list[str] = field(default_factory=list)
    words: dict[str, Word] = field(default_factory=dict)
    withdrawn: dict[str, int] = field(default_factory=dict)
    reserved: dict[str, int] = field(default_factory=dict)
    holders: set[str] = field(default_factory=set)
    known: int = 0

    def walk(self) -> PlannedStarts:
        hearing = Hearing()
        for record in self.evidence.accepted:
            for event in hearing.of(record):
                self._hear(event, record.sequence)
            said = {effect.job_id: effect for effect in record.effects if isinstance(effect, Promised)}
            for effect in record.effects:
                if isinstance(effect, Placed):
                    self.words.pop(effect.job_id, None)
                    self.holders.add(effect.job_id)
                elif isinstance(effect, Preempted):
                    self.reserved |= dict.fromkeys((part.node for part in effect.placed), record.sequence)
                elif isinstance(effect, Waits) and effect.job_id not in said:
                    self._told(effect, record)
            for effect in said.values():
                self._promised(effect, record)
        return self

    def _hear(self, event: Any, sequence: int) -> None:
        match event:
            case NodeStateChanged():
                if event.health is not Health.USABLE or not all(gpu.healthy for gpu in event.gpus):
                    self.withdrawn[event.node] = sequence
            case DrainNode() | JobStopped() | NodeForgotten():
                self.withdrawn[event.node] = sequence
            case NodeReported() if event.quarantined:
                self.withdrawn[event.node] = sequence
            case ReserveBlock() | RepartitionCards():
                self.reserved[event.node] = sequence
            case ChangeRules():
                self.known = sequence
                if not event.rules.planned_starts.nodes_min:
                    self.words.clear()
            case JobRevoked():
                self.words.pop(event.job_id, None)

    def _told(self, effect: Waits, record: DecisionMade) -> None:
        word, planned_ms = self.words.get(effect.job_id), effect.planned_start_p50_ms
        if word is not None and planned_ms is not None and planned_ms > word.start_ms:
            self._wrong(record, f"{effect.job_id} is told a later start than it was promised")

    def _promised(self, effect: Promised, record: DecisionMade) -> None:
        word = self.words.pop(effect.job_id, None)
        if word is not None and (effect.start_ms is None or effect.start_ms > word.start_ms):
            if effect.cause not in CAUSES:
                self._wrong(
                    record, f"the planned start of {effect.job_id} moves later for {effect.cause or 'no cause'}"
                )
            elif not self._is_true(effect, word):
                self._wrong(
                    record, f"{effect.job_id} is told that {effect.cause} moves its start; nothing bears that out"
                )
        if effect.start_ms is not None:
            nodes = frozenset(part.node for part in effect.placed)
            self.words[effect.job_id] = Word(record.sequence, effect.start_ms, nodes)

    def _is_true(self, effect: Promised, word: Word) -> bool:
        """Whether the log holds anything of the kind the cause names, about the block or about those it names."""
        if effect.cause == "node_withdrawn":
            return any(node in self.withdrawn for node in word.nodes) or bool(effect.by)
        if effect.cause == "reserved":
            return any(node in self.reserved or machine_of(node) in self.reserved for node in word.nodes)
        if effect.cause == "overrun":
            return bool(effect.by) and all(name in self.holders or name in self.words for name in effect.by)
        if effect.cause == "rules":
            return self.known > 0
        return effect.cause == "higher_priority" or bool(effect.by)

    def _wrong(self, record: DecisionMade, sentence: str) -> None:
        self.violations.append(f"decision {record.sequence}: {sentence}")

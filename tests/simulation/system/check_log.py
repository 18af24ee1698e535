"""Judges the decision log: every input decided once and in order, every decision legal, every projection what the log says.

Owns: one walk over the accepted records. Refuses: knowing which faults there were. Read next: `check_jobs.py`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

from schemas.commands import DrainNode, UndrainNode
from schemas.decisions import DecisionMade, RecordKind
from schemas.nodes import Health, NodeForgotten, NodeStateChanged
from schemas.placements import NodePlaced
from schemas.records import Now
from schemas.status import FINAL_STATES, JobState, JobStatusChanged
from services.allocator.core.advance import fold_all, move
from services.allocator.core.decide import INPUT_TOPICS
from services.allocator.core.enact import enact
from services.allocator.core.fold import FOLDS
from services.allocator.core.project import placements
from services.allocator.core.slots import ask_for_reshapes
from services.allocator.core.state import Changes, State, forget_index
from services.allocator.core.verify_commit import verify_commit
from tests.simulation.system.check_applications import given_otherwise, spoken_of, taken_without_a_word
from tests.simulation.system.check_jobs import Life
from tests.simulation.system.check_restores import passed_over
from tests.simulation.system.check_slots import said_of_orders
from tests.simulation.system.evidence import Evidence, heard
from tests.simulation.system.stack import POLICY
from tests.simulation.system.world import CLUSTER


class LogWalk:
    """Moves a state over the log and notes what is wrong. `state`: as of the last accepted record."""

    def __init__(self, evidence: Evidence, lives: dict[str, Life]) -> None:
        self.state = State(cluster=CLUSTER)
        self.violations: list[str] = []
        self._evidence = evidence
        pools = evidence.world.catalog.clusters[CLUSTER].pools
        self._memory_mib = {name: pool.memory_mib for name, pool in pools.items()}
        self._complete: dict[int, list[str]] = defaultdict(list)
        for life in lives.values():
            for attempt in life.attempts.values():
                known = attempt.completed_at()
                if known is not None:
                    self._complete[known].append(life.job_id)
        self._placed: dict[int, list[NodePlaced]] = defaultdict(list)
        self._statuses: dict[int, list[JobStatusChanged]] = defaultdict(list)
        for entry in evidence.said["placements"]:
            if isinstance(entry.event, NodePlaced):
                self._placed[entry.event.sequence].append(entry.event)
        for entry in evidence.said["job-status"]:
            if isinstance(entry.event, JobStatusChanged) and entry.event.sequence:
                self._statuses[entry.event.sequence].append(entry.event)

    def walk(self) -> LogWalk:
        for record in self._evidence.accepted:
            self._step(record)
        last = self.state.sequence
        for kind, found in (("placements", self._placed), ("job-status", self._statuses)):
            for sequence in found:
                if sequence > last:
                    self._wrong(sequence, f"{kind} speaks of a decision that the log doesn't have")
        self._inputs()
        return self

    def _step(self, record: DecisionMade) -> None:
        state, now, changes = self.state, Now(record.now_ms, record.wall_ms), Changes()
        if now.domain_ms < state.now_ms:
            self._wrong(record.sequence, "its time runs backwards")
        forget_index(state)
        if record.kind is RecordKind.DECISION:
            held = spoken_of(state)
            fold_all(state, record.inputs, now, changes)
            for sentence in taken_without_a_word(held, state, record.inputs):
                self._wrong(record.sequence, sentence)
            for sentence in passed_over(state, record.effects, self._memory_mib, POLICY, now):
                self._wrong(record.sequence, sentence)
            for sentence in said_of_orders(state, record.effects):
                self._wrong(record.sequence, sentence)
            for sentence in verify_commit(state, record.effects, POLICY, now):
                self._wrong(record.sequence, sentence)
            enact(state, record.effects, record.sequence, POLICY.step_ms, now, changes)
            for sentence in given_otherwise(state, record.effects):
                self._wrong(record.sequence, sentence)
            ask_for_reshapes(state, now, changes)
        move(state, record)
        for job_id in changes.jobs:
            job = state.jobs.get(job_id)
            if job is not None and job.state is JobState.QUEUED and not job.reason:
                self._wrong(record.sequence, f"{job_id} waits without a reason")
        for job_id in self._complete.get(record.sequence, []):
            job = state.jobs.get(job_id)
            if job is not None and job.state is not JobState.STOPPING:
                self._wrong(record.sequence, f"{job_id} is known to be complete and goes on as {job.state.value}")
        self._projections(record)

    def _projections(self, record: DecisionMade) -> None:
        state = self.state
        placed = self._placed.get(record.sequence, [])
        if placed:
            right = {each.node: each for each in placements(state, [each.node for each in placed])}
            for each in placed:
                if right.get(each.node) is None or (right[each.node].assignments, right[each.node].reshape) != (
                    each.assignments,
                    each.reshape,
                ):
                    self._wrong(record.sequence, f"placements of {each.node} is not what the log says")
        for status in self._statuses.get(record.sequence, []):
            ended = state.finished.get(status.job_id)
            job = state.jobs.get(status.job_id)
            if status.application:
                continue
            known = job.state if job is not None else ended.state if ended is not None else None
            if status.state is not known:
                self._wrong(record.sequence, f"{status.job_id} is shown {status.state.value}, the log says {known}")
            if status.state is JobState.QUEUED and not status.reason:
                self._wrong(record.sequence, f"{status.job_id} is shown waiting without a reason")

    def _inputs(self) -> None:
        """Every record of every input topic is in the log exactly once, in the order of its partition."""
        decided: dict[str, list[int]] = {topic: [] for topic in INPUT_TOPICS}
        for record in self._evidence.accepted:
            for item in record.inputs:
                decided[item.topic].append(item.offset)
        partition = self._evidence.world.partition
        for topic in INPUT_TOPICS:
            offsets = decided[topic]
            if any(later <= earlier for earlier, later in itertools.pairwise(offsets)):
                self.violations.append(f"log: inputs of {topic} are decided twice or out of order")
            there = {
                entry.record.offset
                for entry in self._evidence.said[topic]
                if entry.record.partition == partition and type(entry.event) in FOLDS
            }
            missing = sorted(there - set(offsets))
            if missing and self._evidence.drained:
                self.violations.append(f"log: {topic} {missing[:5]} were never decided")
            if not self._evidence.compacted and set(offsets) - there:
                self.violations.append(f"log: {topic} {sorted(set(offsets) - there)[:5]} are decided and don't exist")
            covered = self.state.covered.get(f"{topic}/{partition}", 0)
            if self._evidence.drained and covered != self._evidence.ends[topic, partition]:
                end = self._evidence.ends[topic, partition]
                self.violations.append(f"log: {topic} is covered up to {covered}, its end is {end}")

    def _wrong(self, sequence: int, sentence: str) -> None:
        self.violations.append(f"decision {sequence}: {sentence}")


def last_shown(evidence: Evidence, state: State) -> list[str]:
    """Once all is quiet, people and executors see what the log says."""
    if not evidence.drained:
        return []
    found: list[str] = []
    shown: dict[str, JobStatusChanged] = {}
    for entry in evidence.said["job-status"]:
        status = entry.event
        if isinstance(status, JobStatusChanged) and status.sequence:
            known = shown.get(status.job_id)
            if known is None or status.sequence >= known.sequence:
                shown[status.job_id] = status
    found += _ordered_nodes(evidence, state)
    for job_id, ended in state.finished.items():
        if job_id not in shown or shown[job_id].state is not ended.state:
            found.append(f"{job_id}: the log says {ended.state.value}, people are shown {shown.get(job_id)}")
    for job_id, status in shown.items():
        if status.state in FINAL_STATES and not status.application and job_id not in state.finished:
            found.append(f"{job_id} is shown {status.state.value}, the log knows no end of it")
    return found


def _ordered_nodes(evidence: Evidence, state: State) -> list[str]:
    """A node drains iff that was the last order of its life, by the time of the order, is lost iff telemetry last said so, and isn't there
    iff telemetry last said that it is gone for good."""
    ordered: dict[str, tuple[int, bool]] = {}
    said: dict[str, tuple[int, int, Health | None]] = {}
    for record in evidence.accepted:  # the topic drops the word once the node is back
        for item in record.inputs:
            if item.type == "node.forgotten.v1" and isinstance(event := heard(item), NodeForgotten):
                word = (event.ordered_ms, False)
                ordered[event.node] = max(ordered.get(event.node, word), word)
    for entry in evidence.said["commands"]:
        event = entry.event
        if isinstance(event, DrainNode | UndrainNode):
            word = (event.ordered_ms, isinstance(event, DrainNode))
            ordered[event.node] = max(ordered.get(event.node, word), word)
    for entry in evidence.said["node-states"]:
        event = entry.event
        if isinstance(event, NodeStateChanged | NodeForgotten):
            key = (event.incarnation, event.time_ms)
            if event.node not in said or key >= said[event.node][:2]:
                said[event.node] = (*key, event.health if isinstance(event, NodeStateChanged) else None)
    found = [
        f"{name} is gone for good, and in the grid" for name in state.nodes if said.get(name, (0, 0, 0))[2] is None
    ]
    for name, node in state.nodes.items():
        if node.draining != ordered.get(name, (0, False))[1]:
            found.append(f"{name}: draining is {node.draining}, the last order says otherwise")
        word_of = said[name][2] if name in said else None
        if word_of is not None and node.health is not word_of:
            found.append(f"{name} is {node.health.value}, telemetry said {word_of.value} last")
    return found

"""Drives the pure allocator in tests: events in, one decision each, with everything that must hold checked after every step."""

from __future__ import annotations

import msgspec

from schemas.base import Event
from schemas.codec import encode_payload
from schemas.decisions import Covered, DecisionInput, DecisionMade, PlanImproved
from schemas.placements import NodePlaced
from schemas.records import Now
from schemas.registry import topic_of
from schemas.status import JobStatusChanged
from services.allocator.core.config import Policy
from services.allocator.core.decide import INPUT_TOPICS, Decided, Settings, claim, decide
from services.allocator.core.phases import PUBLIC
from services.allocator.core.project import placements, statuses
from services.allocator.core.reader import read
from services.allocator.core.state import Job, State
from tests import build

POLICY = Policy(iterations=4, step_s=3600, steps=24)
"""A small budget on a coarse grid: these tests are about books, not about good plans."""
SETTINGS = Settings(policy=POLICY, memory_mib={build.POOL: 81_920}, code_version="test", writer="test")


class Driver:
    """One cluster; `decided` is its last decision.

    A second state only reads the log; after every decision it must equal the deciding one byte for byte.
    """

    def __init__(self, settings: Settings = SETTINGS, at_ms: int = build.START_MS) -> None:
        self.settings = settings
        self.state = State(cluster=build.CLUSTER)
        self.reader = State(cluster=build.CLUSTER)
        self.now_ms = at_ms
        self.wall_ms = at_ms
        self.log: list[DecisionMade] = []
        self.decided: Decided
        self._offsets = dict.fromkeys(INPUT_TOPICS, 0)
        self._placements: dict[str, NodePlaced] = {}
        self._statuses: dict[str, JobStatusChanged] = {}
        record = claim(self.state, self._now(), settings)
        assert read(self.state, record, settings.policy.step_ms) is not None
        self._accept(record)

    def pass_ms(self, duration_ms: int) -> Driver:
        """Let domain and wall time pass."""
        self.now_ms += duration_ms
        self.wall_ms += duration_ms
        return self

    def give(self, *events: Event, id: str | None = None) -> Driver:
        """One decision over these events, in canonical order. `id`: of each of them, where a repetition is meant."""
        ordered = sorted(events, key=lambda event: INPUT_TOPICS.index(topic_of(event)))
        inputs = [self._input(event, id=id) for event in ordered]
        covered = [
            Covered(topic=topic, partition=0, next_offset=self._offsets[topic])
            for topic in INPUT_TOPICS
            if any(item.topic == topic for item in inputs)
        ]
        return self._decide(inputs, covered)

    def take(self, answer: PlanImproved) -> Driver:
        """A decision with full mode's answer: an input without a place in a topic."""
        item = self._input(answer, answer.sequence)
        return self._decide([item], [])

    def _decide(self, inputs: list[DecisionInput], covered: list[Covered]) -> Driver:
        decided = self.decided = decide(self.state, inputs, covered, self._now(), self.settings)
        assert decided.violations == []
        self._accept(decided.record)
        for placed in placements(self.state, list(decided.changes.nodes)):
            self._placements[placed.node] = placed
        for status in statuses(self.state, decided.changes):
            self._statuses[status.job_id] = status
        self._check()
        return self

    def job(self, job_id: str) -> Job:
        return self.state.jobs[job_id]

    def status(self, job_id: str) -> JobStatusChanged:
        """The last status projected for a job."""
        return self._statuses[job_id]

    def placement(self, node: str) -> NodePlaced:
        """The last desired state projected for a node."""
        return self._placements[node]

    def _now(self) -> Now:
        return Now(self.now_ms, self.wall_ms)

    def _input(self, event: Event, offset: int = -1, id: str | None = None) -> DecisionInput:
        topic = topic_of(event)
        if offset < 0:
            offset = self._offsets[topic]
            self._offsets[topic] += 1
        return build.decision_input(event, offset, id=id, traceparent=f"00-{offset:032x}-{1:016x}-01")

    def _accept(self, record: DecisionMade) -> None:
        self.log.append(record)
        written = msgspec.json.decode(encode_payload(record), type=DecisionMade)
        if len(self.log) > 1 or self.reader.sequence == 0:
            assert read(self.reader, written, self.settings.policy.step_ms) is not None

    def _check(self) -> None:
        assert msgspec.json.encode(self.reader) == msgspec.json.encode(self.state), (
            "a reader of the log sees another state"
        )
        held: dict[tuple[str, int], str] = {}
        for owner in [*self.state.jobs.values(), *self.state.apps.values()]:
            for part in owner.parts:
                for gpu in part.gpus if part.status in ("placed", "running") else ():
                    name = owner.job_id if isinstance(owner, Job) else owner.app_id
                    assert (part.node, gpu) not in held, f"{name} and {held[part.node, gpu]} share {part.node}/{gpu}"
                    held[part.node, gpu] = name
        for job in self.state.jobs.values():
            assert PUBLIC[job.phase] is job.state
            assert job.parts or job.reason, f"{job.job_id} waits without a reason"

"""Random histories of a small cluster: whatever arrives in whatever order, the books stay right and the log replays."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codec import encode_payload
from schemas.commands import DrainNode, UndrainNode
from schemas.decisions import DecisionMade
from schemas.executions import StopCause
from schemas.jobs import JobRevoked, RestartMode, RestartPolicy
from schemas.nodes import Health
from schemas.status import JobState
from services.allocator.core.decide import replay
from services.allocator.core.reader import read
from services.allocator.core.snapshot import restore, take
from services.allocator.core.state import State
from tests import build
from tests.allocator_driver import SETTINGS, Driver

NODES = ("n00", "n01", "n02")
STEPS = st.tuples(st.sampled_from(["submit", "start", "end", "fail", "cancel", "lose", "return", "drain", "undrain", "time"]),
                  st.integers(0, 7), st.integers(0, 3))  # fmt: skip


@dataclass
class World:
    """What reality did to the jobs: the judge of whether the allocator's books are right."""

    driver: Driver = field(default_factory=Driver)
    submitted: dict[str, int] = field(default_factory=dict)
    incarnations: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NODES, 0))

    def __post_init__(self) -> None:
        self.driver.give(
            *[build.node(name, order=i, gpus=4) for i, name in enumerate(NODES)], build.application("chat")
        )

    def placed(self, which: int) -> list[tuple[str, str, int]]:
        """(job, node, attempt) of one placed part, if there is one."""
        parts = [
            (job.job_id, part.node, job.attempt)
            for job in self.driver.state.jobs.values()
            for part in job.parts
            if part.status in ("placed", "running")
        ]
        return [parts[which % len(parts)]] if parts else []

    def step(self, action: str, which: int, much: int) -> None:
        driver, node = self.driver, NODES[which % 3]
        order = NODES.index(node)
        driver.pass_ms(much * 600_000)
        if action == "submit":
            job_id = f"j{which}"
            self.submitted[job_id] = 1 << much if much < 3 else 4
            restart = RestartPolicy(mode=RestartMode.ON_FAILURE, attempts_max=3)
            driver.give(build.accepted(job_id, self.submitted[job_id], restart=restart))
        elif action == "start":
            driver.give(*[build.started(job, at, driver.now_ms, attempt) for job, at, attempt in self.placed(which)])
        elif action == "end":
            for job, at, attempt in self.placed(which):
                cause = driver.job(job).stop_cause
                event = (
                    build.stopped(job, at, driver.now_ms, StopCause(cause), attempt)
                    if cause
                    else build.completed(job, at, driver.now_ms, attempt)
                )
                driver.give(event, event)
        elif action == "fail":
            driver.give(*[build.failed(job, at, driver.now_ms, attempt) for job, at, attempt in self.placed(which)])
        elif action == "cancel":
            driver.give(JobRevoked(job_id=f"j{which}", cluster="c0", revoked_ms=driver.now_ms))
        elif action == "lose":
            driver.give(self.node(node, order, Health.LOST))
        elif action == "return":
            self.incarnations[node] += 1
            driver.give(self.node(node, order, Health.USABLE))
        elif action == "drain":
            driver.give(DrainNode(node=node, cluster="c0", ordered_ms=driver.now_ms, deadline_s=600.0 * much))
        elif action == "undrain":
            driver.give(UndrainNode(node=node, cluster="c0", ordered_ms=driver.now_ms))
        else:
            driver.give()

    def node(self, name: str, order: int, health: Health):
        return build.node(name, order=order, gpus=4, health=health, incarnation=self.incarnations[name])

    def drain(self) -> None:
        """Everything returns and every job runs to its end."""
        for i, name in enumerate(NODES):
            self.incarnations[name] += 1
            self.driver.give(UndrainNode(node=name, cluster="c0", ordered_ms=self.driver.now_ms))
            self.driver.give(self.node(name, i, Health.USABLE))
        for _ in range(200):
            if not self.driver.state.jobs:
                return
            self.driver.pass_ms(900_000).give()
            for _ in range(12):
                self.step("end", 0, 0)


@settings(max_examples=40, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=25))
def test_no_history_loses_a_job_or_books_a_gpu_twice(history: list[tuple[str, int, int]]) -> None:
    world = World()
    for action, which, much in history:
        world.step(action, which, much)
    world.drain()
    assert not world.driver.state.jobs, "the queue drains once everything is back"
    assert set(world.driver.state.finished) == set(world.submitted)
    for name, finished in world.driver.state.finished.items():
        assert finished.state in (JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED), name


@settings(max_examples=10, deadline=None)
@given(st.lists(STEPS, min_size=5, max_size=15))
def test_every_decision_replays_to_the_same_bytes_and_from_any_snapshot(history: list[tuple[str, int, int]]) -> None:
    world = World()
    for action, which, much in history:
        world.step(action, which, much)
    log = [msgspec.json.decode(encode_payload(record), type=DecisionMade) for record in world.driver.log]
    state = State(cluster=build.CLUSTER)
    step_ms = SETTINGS.policy.step_ms
    for position, record in enumerate(log):
        chunks, manifest = take(state, "a", position)
        before = restore(manifest, {chunk.index: chunk for chunk in chunks})
        assert before is not None
        if record.kind.value == "decision":
            assert encode_payload(replay(before, record, SETTINGS)) == encode_payload(record)
        assert read(state, record, step_ms) is not None
    assert msgspec.json.encode(state) == msgspec.json.encode(world.driver.state)

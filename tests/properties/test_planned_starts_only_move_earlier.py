"""Random histories under the rule of planned starts: a big job's start never moves later without a stated cause that is true."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import msgspec
import pytest

from schemas.codec import encode_payload
from schemas.commands import ChangeRules, DrainNode, ReserveBlock, UndrainNode
from schemas.decisions import DecisionMade, Placed, Promised
from schemas.jobs import JobRevoked
from schemas.nodes import Health
from schemas.rules import Limits, PlannedStarts, QueueRules, Rules
from services.allocator.core.decide import replay
from services.allocator.core.reader import read
from services.allocator.core.state import State
from tests import build
from tests.allocator_driver import SETTINGS, Driver

NODES = ("n00", "n01", "n02", "n03")
HOUR_MS = 3_600_000
CAUSES = {"overrun", "node_withdrawn", "reserved", "higher_priority", "rules", "applications"}


def rules(version: int, **changed) -> ChangeRules:
    document = Rules(version=version, planned_starts=PlannedStarts(nodes_min=1), **changed)
    return ChangeRules(cluster=build.CLUSTER, rules=document, ordered_ms=build.START_MS)


@dataclass
class History:
    """`calm`: nothing happens that could be a cause but jobs of any priority that come and end as expected."""

    seed: int
    calm: bool = False
    driver: Driver = field(default_factory=Driver)
    promised: dict[str, int | None] = field(default_factory=dict)
    moved: list[tuple[str, str]] = field(default_factory=list)
    version: int = 1

    def __post_init__(self) -> None:
        self.dice = Random(self.seed)
        nodes = [build.node(name, order=i, gpus=4) for i, name in enumerate(NODES)]
        self.give(*nodes, build.application("chat", floor=1, peak=6), rules(1))

    def give(self, *events) -> None:
        self.driver.give(*events)
        for effect in self.driver.decided.record.effects:
            if isinstance(effect, Placed):
                self.promised.pop(effect.job_id, None)
            elif isinstance(effect, Promised):
                before_ms = self.promised.get(effect.job_id)
                if before_ms is not None and (effect.start_ms is None or effect.start_ms > before_ms):
                    assert effect.cause in CAUSES, effect
                    self.moved.append((effect.job_id, effect.cause))
                self.promised[effect.job_id] = effect.start_ms
        for job_id, start_ms in self.promised.items():
            job = self.driver.state.jobs.get(job_id)
            if job is not None and start_ms is not None and job.planned_start_p50_ms is not None:
                assert job.planned_start_p50_ms < start_ms + SETTINGS.policy.step_ms, "people are told what is promised"

    def submit(self, number: int) -> None:
        dice, driver = self.dice, self.driver
        size = dice.choice([1, 1, 2, 2, 4, 8, 8, 16])
        job_id, hours = f"j{number}", dice.choice([1, 2, 3, 6])
        sizes = [size] if dice.random() < 0.7 else [size, 2 * size]
        queue = dice.choice(["default", "urgent"])
        self.give(
            build.accepted(job_id, *sizes, at_ms=driver.now_ms, priority=dice.choice([1, 2, 3, 3, 3, 9]), queue=queue),
            build.forecast(job_id, dict.fromkeys(sizes, hours * 3600.0)),
        )

    def begin(self) -> None:
        """What was placed starts; what that lets be placed, too."""
        while waiting := [
            (job.job_id, part.node, job.attempt)
            for job in self.driver.state.jobs.values()
            for part in job.parts
            if part.status == "placed"
        ]:
            for job_id, node, attempt in waiting:
                self.give(build.started(job_id, node, self.driver.now_ms, attempt))

    def run(self) -> None:
        """What is over by its P50 ends, some too late."""
        driver = self.driver
        for job in list(driver.state.jobs.values()):
            over = job.started_ms is not None and driver.now_ms - job.started_ms >= job.placed_p50_s * 1000
            if (job.parts and job.stop_cause) or (over and job.holds_gpus and (self.calm or self.dice.random() < 0.6)):
                self.end(job.job_id)

    def end(self, job_id: str) -> None:
        job = self.driver.state.jobs[job_id]
        parts = [part for part in job.parts if part.status in ("placed", "running")]
        self.give(*[build.completed(job_id, part.node, self.driver.now_ms, job.attempt) for part in parts])

    def disturb(self) -> None:
        dice, driver = self.dice, self.driver
        node = dice.choice(NODES)
        order = NODES.index(node)
        what = dice.choice(["suspect", "back", "drain", "undrain", "reserve", "rules", "demand", "cancel"])
        if what == "suspect":
            self.give(build.node(node, order=order, gpus=4, health=Health.SUSPECT))
        elif what == "back":
            self.give(build.node(node, order=order, gpus=4))
        elif what == "drain":
            self.give(DrainNode(node=node, cluster="c0", ordered_ms=driver.now_ms, deadline_s=20_000.0))
        elif what == "undrain":
            self.give(UndrainNode(node=node, cluster="c0", ordered_ms=driver.now_ms))
        elif what == "reserve":
            from_ms = driver.now_ms + dice.choice([0, 2, 5]) * HOUR_MS
            window = {"from_ms": from_ms, "until_ms": from_ms + 2 * HOUR_MS, "ordered_ms": driver.now_ms}
            self.give(ReserveBlock(reservation_id=f"r{driver.now_ms}", cluster="c0", node=node, **window))
        elif what == "rules":
            self.version += 1
            most = Limits(maximum={build.POOL: dice.choice([8, 16])}, running_max=dice.choice([None, 3]))
            queues = {"urgent": QueueRules(preempts=True, runtime_min_s=0.0), "default": QueueRules(preemptible=True)}
            self.give(rules(self.version, organisation=most, queues=queues if dice.random() < 0.5 else {}))
        elif what == "demand":
            self.give(build.application("chat", floor=dice.choice([1, 4]), peak=dice.choice([4, 6, 12])))
        else:
            self.give(JobRevoked(job_id=f"j{dice.randrange(12)}", cluster="c0", revoked_ms=driver.now_ms))

    def pass_time(self, steps: int) -> None:
        for number in range(steps):
            self.driver.pass_ms(self.dice.choice([1, 7, 20, 60]) * 60_000)
            self.run()
            if self.dice.random() < 0.6:
                self.submit(number)
            elif not self.calm:
                self.disturb()
            else:
                self.give()
            self.begin()


@pytest.mark.parametrize("seed", range(12))
def test_a_planned_start_moves_later_only_for_a_stated_cause(seed: int) -> None:
    history = History(seed)
    history.pass_time(28)


def test_where_nothing_goes_wrong_only_priority_and_late_ends_move_a_start() -> None:
    causes = set()
    for seed in range(6):
        history = History(seed, calm=True)
        history.pass_time(24)
        causes |= {cause for _, cause in history.moved}
    assert causes <= {"higher_priority", "overrun", "applications"}


def test_every_decision_with_promises_replays_to_the_same_bytes() -> None:
    history = History(3)
    history.pass_time(14)
    state = State(cluster=build.CLUSTER)
    for record in [msgspec.json.decode(encode_payload(record), type=DecisionMade) for record in history.driver.log]:
        if record.kind.value == "decision":
            before = msgspec.json.decode(msgspec.json.encode(state), type=State)
            assert encode_payload(replay(before, record, SETTINGS)) == encode_payload(record)
        assert read(state, record, SETTINGS.policy.step_ms) is not None

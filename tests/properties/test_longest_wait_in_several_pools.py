"""The bound of docs/policy.md, "The longest wait", for jobs that accept several pools, played event by event on the allocator's core.

Regular streams of small jobs of the highest priority against large ones; durations are known. A large one waits in one pool once it is
overdue, so its bound is that of the pool it starts in.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import pytest

from schemas.commands import ChangeRules
from schemas.decisions import Placed
from schemas.rules import Aging, Rules
from services.allocator.core.config import Policy
from services.allocator.core.decide import Settings
from tests import build
from tests.allocator_driver import Driver
from tests.mixed_pools import FAST, SLOW, accepted, node_of

OVERDUE_MS = 3_600_000
HOUR_MS = 3_600_000
HOURS, NODE_GPUS = 5, 4
POLICY = Policy(iterations=4, forecast_wait_ms=0, replan_s=1800)
SETTINGS = Settings(policy=POLICY, memory_mib={FAST: 81_920, SLOW: 81_920}, code_version="test", writer="test")


@dataclass(frozen=True)
class Load:
    """`pools`: nodes in each; `every_ms`: between two jobs of the stream, each `run_s` on `size` GPUs; `large`: GPUs of the jobs
    that wait; `launch_ms` from a decision to the start."""

    run_s: int
    every_ms: int
    size: int = 1
    pools: tuple[int, int] = (1, 1)
    large: tuple[int, ...] = (4,)
    launch_ms: int = 40_000


LOADS = {
    "one node each": Load(3500, 451_000),
    "whole steps": Load(3600, 464_000),
    "pairs": Load(2710, 698_000, size=2),
    "a gang and a node": Load(3500, 226_000, pools=(2, 2), large=(8, 4)),
}


class Played:
    """`starts`: decision and pool by job; `ends`: what had its GPUs until when, in which pool."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.driver = Driver(SETTINGS, at_ms=0)
        self.due: list[tuple[int, int, str, str]] = []
        self.run_s: dict[str, int] = {}
        self.at_ms: dict[str, int] = {}
        self.starts: dict[str, tuple[int, str]] = {}

    def play(self) -> Played:
        nodes = [
            node_of(pool, f"{pool}{n}", gpus=NODE_GPUS, order=n)
            for pool, count in zip((FAST, SLOW), self.load.pools, strict=True)
            for n in range(count)
        ]
        self.driver.give(*nodes)
        self.driver.give(
            ChangeRules(
                cluster=build.CLUSTER, rules=Rules(version=1, aging=Aging(overdue_s=OVERDUE_MS / 1000)), ordered_ms=0
            )
        )
        self._started()
        for number, at_ms in enumerate(range(0, HOURS * HOUR_MS, self.load.every_ms)):
            self._later(at_ms, "come", f"h{number:03d}")
        for number, _ in enumerate(self.load.large):
            self._later(HOUR_MS // 2 * (number + 1), "come", f"v{number}")
        while self.due:
            at_ms, _, what, job_id = heapq.heappop(self.due)
            self.driver.pass_ms(at_ms - self.driver.now_ms)
            getattr(self, f"_{what}")(job_id)
            self._started()
        return self

    def _later(self, at_ms: int, what: str, job_id: str) -> None:
        heapq.heappush(self.due, (at_ms, len(self.due) + len(self.at_ms) * 1000, what, job_id))

    def _come(self, job_id: str) -> None:
        large = job_id.startswith("v")
        size = self.load.large[int(job_id[1:])] if large else self.load.size
        self.run_s[job_id], self.at_ms[job_id] = 1800 if large else self.load.run_s, self.driver.now_ms
        event = accepted(job_id, size, speed=1.0, at_ms=self.driver.now_ms, priority=1 if large else 100)
        self.driver.give(event, build.forecast(job_id, {size: float(self.run_s[job_id])}, stretch=1.0))

    def _begin(self, job_id: str) -> None:
        nodes = [part.node for part in self.driver.job(job_id).parts]
        self.driver.give(*(build.started(job_id, node, self.driver.now_ms) for node in nodes))

    def _end(self, job_id: str) -> None:
        nodes = [part.node for part in self.driver.job(job_id).parts]
        self.driver.give(*(build.completed(job_id, node, self.driver.now_ms) for node in nodes))

    def _started(self) -> None:
        for effect in self.driver.decided.record.effects:
            if isinstance(effect, Placed) and effect.job_id not in self.starts:
                self.starts[effect.job_id] = (self.driver.now_ms, effect.pool)
                begun_ms = self.driver.now_ms + self.load.launch_ms
                self._later(begun_ms, "begin", effect.job_id)
                self._later(begun_ms + self.run_s[effect.job_id] * 1000, "end", effect.job_id)

    def bound_ms(self, job_id: str) -> int:
        """Like that of `test_longest_wait.py`, of what is in the same pool; decisions, not starts."""
        overdue_ms = self.at_ms[job_id] + OVERDUE_MS
        left_ms, before_ms = overdue_ms, 0
        for other, (start_ms, pool) in self.starts.items():
            if pool != self.starts[job_id][1]:
                continue
            if start_ms <= overdue_ms:
                left_ms = max(left_ms, start_ms + self.load.launch_ms + self.run_s[other] * 1000)
            elif (self.at_ms[other], other) < (self.at_ms[job_id], job_id):
                before_ms += -(-self.run_s[other] * 1000 // POLICY.step_ms) * POLICY.step_ms + self.load.launch_ms
        return left_ms + before_ms


@pytest.mark.parametrize("name", LOADS)
def test_every_job_starts_within_the_bound_of_the_pool_it_starts_in(name: str) -> None:
    played = Played(LOADS[name]).play()
    assert played.starts.keys() == played.at_ms.keys()
    late = {job_id: start for job_id, start in played.starts.items() if start[0] > played.bound_ms(job_id)}
    assert late == {}

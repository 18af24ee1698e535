"""Judges what becomes of jobs that accept several pools: one start per decision, in one accepted pool, at the speed that pool has.

Owns: a reading of its own of acceptances and nodes, from the log and the placements alone. Refuses: whether the choice was good
(`tests/properties/test_pool_choice.py`). Read next: `world_mixed.py`, docs/policy.md.
"""

from __future__ import annotations

from collections import Counter

from schemas.decisions import DecisionMade, Placed, Waits
from schemas.executions import JobStarted
from schemas.jobs import JobAccepted
from schemas.nodes import NodeStateChanged
from schemas.placements import NodePlaced
from tests.simulation.system.evidence import Evidence, heard


class PoolsWalk:
    """One walk over the accepted log, then one over what nodes were told and did."""

    def __init__(self, evidence: Evidence) -> None:
        self.violations: list[str] = []
        self._evidence = evidence
        self._accepted: dict[str, JobAccepted] = {}
        self._pool_of: dict[str, str] = {}
        self._got: dict[tuple[str, int], str] = {}

    def walk(self) -> PoolsWalk:
        for record in self._evidence.accepted:
            for item in record.inputs:
                event = heard(item)
                if isinstance(event, JobAccepted):
                    self._accepted.setdefault(event.job_id, event)
                elif isinstance(event, NodeStateChanged):
                    self._pool_of.setdefault(event.node, event.pool)
            self._decided(record)
        self._carried_out()
        return self

    def _decided(self, record: DecisionMade) -> None:
        starts = Counter(effect.job_id for effect in record.effects if isinstance(effect, Placed))
        waits = Counter(effect.job_id for effect in record.effects if isinstance(effect, Waits))
        for job_id, count in (starts + waits).items():
            if count > 1:
                self._wrong(record, f"{job_id} is placed or told to wait {count} times")
        for effect in record.effects:
            if isinstance(effect, Placed):
                self._placed(record, effect)
            elif isinstance(effect, Waits):
                accepted = self._accepted[effect.job_id].pools
                if effect.pool is not None and (len(accepted) < 2 or effect.pool not in accepted):
                    self._wrong(record, f"{effect.job_id} waits for {effect.pool}, it accepts {accepted}")

    def _placed(self, record: DecisionMade, effect: Placed) -> None:
        accepted = self._accepted[effect.job_id].pools
        if effect.pool not in accepted:
            self._wrong(record, f"{effect.job_id} starts in {effect.pool}, it accepts {accepted}")
        for part in effect.placed:
            if self._pool_of.get(part.node) != effect.pool:
                self._wrong(record, f"{effect.job_id} starts in {effect.pool} on {part.node}, a node of another pool")
        self._got[effect.job_id, effect.attempt] = effect.pool

    def _carried_out(self) -> None:
        for entry in self._evidence.said["placements"]:
            placed = entry.event
            for one in placed.assignments if isinstance(placed, NodePlaced) else ():
                if not one.application:
                    self._speed(one.job_id, one.attempt, one.speed, f"told to run at {one.speed}")
        for entry in self._evidence.said["executions"]:
            event = entry.event
            if isinstance(event, JobStarted) and (event.job_id, event.attempt) in self._got:
                self._speed(event.job_id, event.attempt, event.speed, f"said to run at {event.speed}")

    def _speed(self, job_id: str, attempt: int, told: float, words: str) -> None:
        pool, accepted = self._got.get((job_id, attempt)), self._accepted.get(job_id)
        if pool is not None and accepted is not None and told != accepted.speeds.get(pool, 1.0):
            self.violations.append(f"{job_id} is {words} in {pool}, its speeds are {accepted.speeds}")

    def _wrong(self, record: DecisionMade, sentence: str) -> None:
        self.violations.append(f"decision {record.sequence}: {sentence}")

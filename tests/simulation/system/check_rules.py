"""Judges decisions by the rules that were in force: no group above a maximum, places taken only as the rules say.

Owns: a reading of its own of the rules, of who holds what and of held blocks, from the log's inputs and effects alone. Refuses: the
allocator's state and code. Read next: `world_rules.py`, docs/policy.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from schemas.commands import ChangeRules
from schemas.decisions import DecisionMade, Placed, Preempted, Scaled
from schemas.executions import (
    CardsShaped,
    JobCompleted,
    JobFailed,
    JobPrepared,
    JobStarted,
    JobStopped,
    NodeReported,
    StopCause,
)
from schemas.jobs import CheckpointMode, JobAccepted, JobRevoked, JobSpec
from schemas.nodes import Health, NodeForgotten, NodeStateChanged
from schemas.rules import Limits, QueueRules, Rules
from tests.simulation.system.evidence import Evidence, Hearing
from tests.simulation.system.world_slots import HALF, HALVES, MACHINE

HELD_S_MAX = 900.0
"""So long a block may be held beyond its victims' own checkpoint waits (docs/policy.md: 15 minutes)."""
START_S_MAX = 900.0
"""Wall seconds after which a start is given up whose executor said nothing (docs/executors.md: 15 minutes)."""
Card = tuple[str, int]


@dataclass
class Attempt:
    """The newest one of a job; `parts` are those that still hold their GPUs, `heard` those whose executor has it in hand, `ran` those
    that were said to run."""

    number: int
    sequence: int
    placed_ms: int
    placed_wall_ms: int
    pool: str
    parts: dict[str, int]
    cards: frozenset[Card]
    heard: set[str] = field(default_factory=set)
    ran: set[str] = field(default_factory=set)
    started_ms: int = 0


@dataclass
class Block:
    """Held for one job."""

    cards: frozenset[Card]
    victims: list[str]
    until_ms: int


class RulesWalk:
    """One walk over the accepted log. `given_up`: attempts of which some executor said nothing for too long."""

    def __init__(self, evidence: Evidence) -> None:
        self.violations: list[str] = []
        self.given_up: set[tuple[str, int]] = set()
        self._evidence = evidence
        self._rules = Rules()
        self._specs: dict[str, JobSpec] = {}
        self._ended: set[str] = set()
        self._attempts: dict[str, Attempt] = {}
        self._incomplete: dict[tuple[str, int], set[str]] = {}
        self._nodes: dict[str, tuple[int, int]] = {}
        self._boots: dict[str, str] = {}
        self._cut = -1
        self._blocks: dict[str, Block] = {}
        self._lost_to: set[tuple[str, str]] = set()
        self._lost_at: dict[str, list[int]] = {}

    def walk(self) -> RulesWalk:
        hearing = Hearing()
        for record in self._evidence.accepted:
            for event in hearing.of(record):
                self._hear(event, record.now_ms)
            self._give_up_starts(record.wall_ms)
            self._blocks = {
                job_id: block
                for job_id, block in self._blocks.items()
                if block.until_ms > record.now_ms and job_id not in self._ended
            }
            self._decided(record)
        last_ms = self._evidence.accepted[-1].now_ms if self._evidence.accepted else 0
        for job_id, block in self._blocks.items():
            if self._evidence.drained and block.until_ms <= last_ms:
                self.violations.append(f"the block held for {job_id} never came to an end")
        return self

    # --- what was heard

    def _hear(self, event: Any, now_ms: int) -> None:
        match event:
            case ChangeRules() if event.rules.version > self._rules.version and _sound(event.rules):
                self._rules = event.rules
            case JobAccepted():
                self._specs.setdefault(event.job_id, event.spec)
            case JobRevoked():
                if not self._holds(event.job_id):
                    self._ended.add(event.job_id)
            case NodeStateChanged():
                self._node(event)
            case NodeForgotten() if (event.incarnation, event.time_ms) >= self._nodes.get(event.node, (0, 0)):
                self._nodes[event.node] = (event.incarnation, event.time_ms)
                for attempt in self._attempts.values():
                    attempt.parts.pop(event.node, None)
                cut = [name for name, block in self._blocks.items() if event.node in {card[0] for card in block.cards}]
                for name in cut:
                    del self._blocks[name]
            case NodeReported():
                self._reported(event)
            case CardsShaped():
                self._shaped(event)
            case JobPrepared() | JobStarted() | JobCompleted() | JobFailed() | JobStopped():
                self._told(event, now_ms)

    def _told(self, event: JobPrepared | JobStarted | JobCompleted | JobFailed | JobStopped, now_ms: int) -> None:
        attempt = self._attempts.get(event.job_id)
        if attempt is None:
            return
        if isinstance(event, JobCompleted):
            left = self._incomplete.get((event.job_id, event.attempt), set())
            left.discard(event.node)
            if not left:  # a gang of which a part was lost is placed again, though the others completed
                self._ended.add(event.job_id)  # or will be: nothing is held for it any more
        if event.attempt != attempt.number or event.node not in attempt.parts:
            return
        attempt.heard.add(event.node)
        if isinstance(event, JobPrepared):
            return
        if isinstance(event, JobStarted):
            moment_ms = event.time_ms if attempt.placed_ms <= event.time_ms <= now_ms else now_ms
            attempt.ran.add(event.node)
            attempt.started_ms = max(attempt.started_ms, moment_ms)
            return
        del attempt.parts[event.node]
        if isinstance(event, JobStopped) and event.cause is StopCause.GANG_BROKEN:
            self._lose_unheard(event.job_id, attempt)

    def _give_up_starts(self, wall_ms: int) -> None:
        for job_id, attempt in self._attempts.items():
            if wall_ms >= attempt.placed_wall_ms + START_S_MAX * 1000:
                self._lose_unheard(job_id, attempt)

    def _lose_unheard(self, job_id: str, attempt: Attempt) -> None:
        for node in [node for node in attempt.parts if node not in attempt.heard]:
            del attempt.parts[node]
            self.given_up.add((job_id, attempt.number))

    def _node(self, event: NodeStateChanged) -> None:
        known = self._nodes.get(event.node)
        if known is None:
            if event.health is not Health.LOST and event.gpus:
                self._nodes[event.node] = (event.incarnation, event.time_ms)
            return
        if (event.incarnation, event.time_ms) < known:
            return
        self._nodes[event.node] = (event.incarnation, event.time_ms)
        if event.health is Health.LOST or event.incarnation > known[0]:
            for attempt in self._attempts.values():
                attempt.parts.pop(event.node, None)

    def _reported(self, event: NodeReported) -> None:
        rebooted = self._boots.get(event.node, event.boot_id) not in ("", event.boot_id)
        there = set() if rebooted else {(held.job_id, held.attempt) for held in event.running}
        for job_id, attempt in self._attempts.items():
            if (job_id, attempt.number) in there:
                attempt.heard.add(event.node)
            ran = event.node in attempt.parts and event.node in attempt.ran
            if ran and (job_id, attempt.number) not in there and event.applied >= attempt.sequence:
                del attempt.parts[event.node]
        self._boots[event.node] = event.boot_id  # an executor may speak before telemetry tells of its node

    def _shaped(self, event: CardsShaped) -> None:
        """What was on slots that are no more holds nothing."""
        if event.revision < self._cut:
            return
        self._cut = event.revision
        for attempt in self._attempts.values():
            per_card = 2 if attempt.pool == HALF else 1
            for node, gpu in attempt.cards:
                if node in (MACHINE, HALVES) and event.pools[gpu // per_card] != attempt.pool:
                    attempt.parts.pop(node, None)

    def _holds(self, job_id: str) -> bool:
        attempt = self._attempts.get(job_id)
        return attempt is not None and bool(attempt.parts)

    # --- what was decided

    def _decided(self, record: DecisionMade) -> None:
        starts = [effect for effect in record.effects if isinstance(effect, Placed)]
        for effect in starts:
            self._blocks.pop(effect.job_id, None)
        for effect in record.effects:
            if isinstance(effect, Preempted):
                self._preempted(effect, record)
        for effect in record.effects:
            if isinstance(effect, Placed):
                self._given(record, effect.job_id, _cards(effect))
                self._incomplete[effect.job_id, effect.attempt] = {part.node for part in effect.placed}
                self._attempts[effect.job_id] = Attempt(
                    number=effect.attempt,
                    sequence=record.sequence,
                    placed_ms=record.now_ms,
                    placed_wall_ms=record.wall_ms,
                    pool=effect.pool,
                    parts={part.node: len(part.gpus) for part in effect.placed},
                    cards=_cards(effect),
                )
            elif isinstance(effect, Scaled):
                self._given(record, effect.app_id, _cards(effect))
        self._limits(record, starts)

    def _limits(self, record: DecisionMade, starts: list[Placed]) -> None:
        """Of every group that a start belongs to: what it holds now, and how many of its jobs hold anything."""
        gpus: Counter[tuple[str, str]] = Counter()
        jobs: Counter[str] = Counter()
        for job_id, attempt in self._attempts.items():
            if attempt.parts:
                for group in dict(self._groups(self._specs[job_id], attempt.pool)):
                    gpus[group, attempt.pool] += sum(attempt.parts.values())
                    jobs[group] += 1
        for effect in starts:
            for group, limits in self._groups(self._specs[effect.job_id], effect.pool):
                most, held = limits.maximum.get(effect.pool), gpus[group, effect.pool]
                if most is not None and held > most:
                    self._wrong(record, f"{effect.job_id} starts: {group} holds {held} GPUs, {most} allowed")
                if limits.running_max is not None and jobs[group] > limits.running_max:
                    count = limits.running_max
                    self._wrong(record, f"{effect.job_id} starts: {group} runs {jobs[group]} jobs, {count} allowed")

    def _groups(self, spec: JobSpec, pool: str) -> Iterator[tuple[str, Limits]]:
        rules = self._rules
        yield "the organisation", rules.organisation
        team = rules.teams.get(spec.team, rules.each_team)
        yield f"team {spec.team}", team
        if not team.borrows:
            yield f"team {spec.team}", Limits(maximum={pool: team.guaranteed.get(pool, 0)})
        yield f"user {spec.team}/{spec.user}", team.users.get(spec.user, team.each_user)
        yield f"queue {spec.queue}", self._queue(spec)

    def _queue(self, spec: JobSpec) -> QueueRules:
        return self._rules.queues.get(spec.queue, QueueRules())

    def _preempted(self, effect: Preempted, record: DecisionMade) -> None:
        mine, who = self._queue(self._specs[effect.job_id]), effect.job_id
        if not mine.preempts or self._holds(who) or who in self._ended:
            self._wrong(record, f"{who} takes a place, but may not or needs none")
        open_places = sum(
            self._holds(victim)
            for other, block in self._blocks.items()
            if self._specs[other].queue == self._specs[who].queue
            for victim in block.victims
        )
        if open_places + len(effect.victims) > mine.victims_max:
            self._wrong(
                record, f"{who} takes {len(effect.victims)} places beside {open_places}: {mine.victims_max} allowed"
            )
        waits_s = [HELD_S_MAX]
        for name in effect.victims:
            spec, attempt = self._specs[name], self._attempts.get(name)
            waits_s.append(HELD_S_MAX + spec.checkpoint.wait_s)
            if not self._queue(spec).preemptible:
                self._wrong(record, f"{name} loses its place to {who}, its queue {spec.queue} is not preemptible")
            if spec.checkpoint.mode is CheckpointMode.NONE:
                self._wrong(record, f"{name} loses its place to {who} and can't save its work")
            if (name, who) in self._lost_to:
                self._wrong(record, f"{name} loses its place to {who} a second time")
            self._lost_to.add((name, who))
            limit = self._queue(spec)
            lost = self._lost_at.setdefault(name, [])
            lately = sum(at_ms > record.now_ms - limit.preempted_window_s * 1000 for at_ms in lost)
            if lately >= limit.preempted_max:
                self._wrong(record, f"{name} loses its place to {who} after {lately} times lately")
            lost.append(record.now_ms)
            if attempt is None or not attempt.parts or not attempt.started_ms:
                self._wrong(record, f"{name} loses its place to {who} and has none")
            elif (record.now_ms - attempt.started_ms) / 1000 < mine.runtime_min_s:
                ran_s = (record.now_ms - attempt.started_ms) / 1000
                self._wrong(record, f"{name} loses its place to {who} after {ran_s:.0f} of {mine.runtime_min_s:.0f} s")
        if effect.until_ms > record.now_ms + max(waits_s) * 1000:
            self._wrong(record, f"a block is held for {who} longer than its victims take to leave")
        self._blocks[who] = Block(_cards(effect), list(effect.victims), effect.until_ms)
        others = [name for name in sorted(self._attempts) if name not in effect.victims and self._holds(name)]
        for name in others:
            attempt = self._attempts[name]
            on_it = {card for card in attempt.cards & self._blocks[who].cards if card[0] in attempt.parts}
            if on_it:
                self._wrong(record, f"the block taken for {who} is also held by {name}, which nobody stops")

    def _given(self, record: DecisionMade, name: str, cards: frozenset[Card]) -> None:
        for job_id, block in self._blocks.items():
            if job_id != name and cards & block.cards:
                self._wrong(record, f"{name} gets {sorted(cards & block.cards)}, held for {job_id}")

    def _wrong(self, record: DecisionMade, sentence: str) -> None:
        self.violations.append(f"decision {record.sequence}: {sentence}")


def _sound(rules: Rules) -> bool:
    """The ways in which the world's documents contradict themselves."""
    if any(queue.preempts and queue.preemptible for queue in rules.queues.values()):
        return False
    teams = [rules.each_team, *rules.teams.values()]
    return all(
        gpus <= team.maximum.get(pool, gpus)
        for team in teams
        for user in (team.each_user, *team.users.values())
        for pool, gpus in user.maximum.items()
    )


def _cards(effect: Placed | Scaled | Preempted) -> frozenset[Card]:
    return frozenset((part.node, gpu) for part in effect.placed for gpu in part.gpus)

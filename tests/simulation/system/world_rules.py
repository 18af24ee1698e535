"""The rules of a seed's cluster: documents with random limits, changed under way, and jobs in teams and queues they speak of.

Owns: a stream of draws of its own, so that a seed without rules is the world it always was. Every document is lifted when the two
hours are over, so that all that waits for a limit drains. Refuses: judging (`check_rules.py`). Read next: `world.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from msgspec.structs import replace

from schemas.commands import ChangeRules
from schemas.jobs import CheckpointMode, CheckpointPolicy, JobSpec
from schemas.messages import message
from schemas.records import Message
from schemas.rules import Aging, Limits, PlannedStarts, QueueRules, Rules, TeamRules

RULES_SHARE = 0.35
"""Of all seeds."""
TEAMS, USERS = ("blue", "red", "green"), ("ann", "bob")
URGENT, NIGHT, DEFAULT = "urgent", "night", "default"
LIFTED = 1_000
"""Version of the empty document at the end."""
MINUTE_MS = 60_000


class Rulebook:
    """What a seed's rules are: `on` False leaves everything as it is."""

    def __init__(self, seed: int, cluster: str, pool: str, gpus: int, partition: int) -> None:
        self._dice = Random(f"{seed}/rules")
        self._planned = PlannedStarts(nodes_min=Random(f"{seed}/planned starts").choice([0, 1, 1, 2]))
        self.on = self._dice.random() < RULES_SHARE
        self._cluster = cluster
        self._pool = pool
        self._gpus = gpus
        self._partition = partition

    def ruled(self, spec: JobSpec) -> JobSpec:
        """The job in one of the queues; those of the night can mostly save, the urgent ones are of higher priority."""
        if not self.on:
            return spec
        dice = self._dice
        queue = dice.choice([DEFAULT, URGENT, NIGHT, NIGHT])
        if queue == URGENT:
            return replace(spec, queue=queue, priority=dice.randint(4, 9))
        if queue == NIGHT and dice.random() < 0.8:
            saves = CheckpointPolicy(mode=CheckpointMode.SIGNAL, wait_s=dice.choice([2.0, 10.0]))
            return replace(spec, queue=queue, priority=dice.randint(1, 3), checkpoint=saves)
        return replace(spec, queue=queue)

    def orders(self, start_ms: int, span_ms: int) -> Iterator[tuple[int, Message]]:
        """One to three documents, some said twice, late or self-contradictory; at the end one without limits."""
        if not self.on:
            return
        dice = self._dice
        at_ms = start_ms + dice.choice([0, dice.randrange(0, 20 * MINUTE_MS)])
        for version in range(1, dice.choice([1, 2, 2, 3]) + 1):
            document = self._document(version)
            due_ms = at_ms
            if dice.random() < 0.15:  # overtaken by the next one
                due_ms += dice.randrange(20 * MINUTE_MS, 60 * MINUTE_MS)
            yield self._said(due_ms, at_ms, document, f"rules-{version}")
            if dice.random() < 0.25:  # the very same command once more
                yield self._said(due_ms + dice.randrange(1, 40 * MINUTE_MS), at_ms, document, f"rules-{version}")
            if dice.random() < 0.25:  # its number again, with other limits: it was used
                other, again_ms = self._document(version), due_ms + dice.randrange(1, 40 * MINUTE_MS)
                yield self._said(again_ms, again_ms, other, f"rules-{version}-again")
            at_ms += dice.randrange(10 * MINUTE_MS, 50 * MINUTE_MS)
        if dice.random() < 0.25:
            wrong_ms = start_ms + dice.randrange(0, span_ms)
            yield self._said(wrong_ms, wrong_ms, self._contradictory(LIFTED - 1), "rules-wrong")
        yield self._said(start_ms + span_ms, start_ms + span_ms, Rules(version=LIFTED), "rules-lifted")

    def _document(self, version: int) -> Rules:
        dice = self._dice
        whole = dice.choice([self._gpus, self._gpus, self._gpus, 12, 8])
        organisation = Limits(maximum={self._pool: whole} if whole < self._gpus else {}, running_max=self._count(0.2))
        named = [team for team in TEAMS if dice.random() < 0.7]
        return Rules(
            version=version,
            organisation=organisation,
            fair_share=dice.choice([0.0, 0.0, 0.5, 1.0]),
            teams={team: self._team(whole, guarantees=True) for team in named},
            each_team=self._team(whole, guarantees=False),
            queues=self._queues(),
            aging=Aging(after_s=600.0, per_hour=2.0, overdue_s=dice.choice([None, None, 1800.0])),
            planned_starts=self._planned,
        )

    def _team(self, whole: int, *, guarantees: bool) -> TeamRules:
        dice = self._dice
        most = dice.choice([None, None, None, None, 2, 4, 8])
        sure = dice.choice([0, 0, 1, 2]) if guarantees else 0  # three teams together stay below every whole
        return TeamRules(
            maximum={} if most is None else {self._pool: min(most, whole)},
            running_max=self._count(0.2),
            guaranteed={self._pool: sure} if sure else {},
            borrows=not sure or dice.random() < 0.8,
            weight=dice.choice([1.0, 2.0]),
            users={"ann": self._user(most or whole)} if dice.random() < 0.3 else {},
            each_user=self._user(most or whole) if dice.random() < 0.3 else Limits(),
        )

    def _user(self, most: int) -> Limits:
        return Limits(maximum={self._pool: self._dice.randint(1, most)}, running_max=self._count(0.3))

    def _queues(self) -> dict[str, QueueRules]:
        dice = self._dice
        return {
            URGENT: QueueRules(
                preempts=dice.random() < 0.95,
                runtime_min_s=dice.choice([0.0, 60.0, 120.0, 300.0]),
                victims_max=dice.randint(1, 4),
                running_max=self._count(0.1),
            ),
            NIGHT: QueueRules(
                preemptible=dice.random() < 0.95,
                running_max=self._count(0.2),
                queued_max=dice.choice([None, None, 2]),
                maximum={self._pool: dice.choice([4, 8])} if dice.random() < 0.2 else {},
            ),
        }

    def _count(self, share: float) -> int | None:
        """Zero now and then: a group that is paused."""
        return self._dice.choice([0, 1, 2, 3, 5, 8]) if self._dice.random() < share else None

    def _contradictory(self, version: int) -> Rules:
        """Refused as a whole, in one of two ways."""
        if self._dice.random() < 0.5:
            return Rules(version=version, queues={NIGHT: QueueRules(preempts=True, preemptible=True, running_max=0)})
        user = Limits(maximum={self._pool: 2}, running_max=0)
        return Rules(version=version, each_team=TeamRules(maximum={self._pool: 1}, each_user=user))

    def _said(self, due_ms: int, ordered_ms: int, rules: Rules, what: str) -> tuple[int, Message]:
        sent = message(
            ChangeRules(cluster=self._cluster, rules=rules, ordered_ms=ordered_ms),
            key=self._cluster,
            id=f"{what}/{ordered_ms}",
            source="/upstream/simulation",
            time_ms=due_ms,
            traceparent=f"00-{self._dice.getrandbits(128) | 1:032x}-{1:016x}-01",
            partition=self._partition,
        )
        return due_ms, sent

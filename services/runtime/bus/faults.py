"""What goes wrong on the memory bus, as data: seeded shares and delays per topic, drawn the same way every time.

Owns: the plan and its dice. Refuses: acting on it (that is `memory.py`). Crashes of members, compaction and retention are
calls on the bus, because a simulation decides when they happen. Read next: `memory.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class TopicFaults:
    """Shares are probabilities per message (duplicates, fetch delay) or per call (unknown); delays are uniform from 0."""

    duplicate_share: float = 0.0
    """The record is stored a second time later, as by an upstream that retries without idempotence."""
    duplicate_delay_s_max: float = 1.0
    send_delay_s_max: float = 0.0
    """Before storing: two writers interleave, and partitions of one call are stored at different moments."""
    fetch_share: float = 1.0
    fetch_delay_s_max: float = 0.0
    """Stored and counted in the end offset, but seen late: order across partitions changes, within a partition it stays."""
    unknown_before_share: float = 0.0
    """The send fails and nothing of it, or only a part, is stored."""
    unknown_after_share: float = 0.0
    """The send fails although everything is stored."""


class Unknown(Enum):
    """How a send fails."""

    BEFORE_STORING = "before"
    AFTER_STORING = "after"


NO_FAULTS = TopicFaults()


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Everything random on one bus. Equal plans on equal calls give equal runs."""

    seed: int = 0
    default: TopicFaults = NO_FAULTS
    by_topic: Mapping[str, TopicFaults] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, topic: str) -> TopicFaults:
        return self.by_topic.get(topic, self.default)


class FaultDice:
    """Draws for one bus from one stream."""

    def __init__(self, plan: FaultPlan) -> None:
        self._plan = plan
        self._random = Random(plan.seed)  # noqa: S311 - faults for tests, not secrets

    def faults(self, topic: str) -> TopicFaults:
        return self._plan.of(topic)

    def duplicate_after_s(self, topic: str) -> float | None:
        faults = self._plan.of(topic)
        if faults.duplicate_share and self._random.random() < faults.duplicate_share:
            return self._random.uniform(0.0, faults.duplicate_delay_s_max)
        return None

    def send_delay_s(self, topic: str) -> float:
        delay_s_max = self._plan.of(topic).send_delay_s_max
        return self._random.uniform(0.0, delay_s_max) if delay_s_max else 0.0

    def fetch_delay_s(self, topic: str) -> float:
        faults = self._plan.of(topic)
        if not faults.fetch_delay_s_max or self._random.random() >= faults.fetch_share:
            return 0.0
        return self._random.uniform(0.0, faults.fetch_delay_s_max)

    def unknown(self, topic: str) -> Unknown | None:
        faults = self._plan.of(topic)
        if not faults.unknown_before_share and not faults.unknown_after_share:
            return None
        drawn = self._random.random()
        if drawn < faults.unknown_before_share:
            return Unknown.BEFORE_STORING
        if drawn < faults.unknown_before_share + faults.unknown_after_share:
            return Unknown.AFTER_STORING
        return None

    def stored_part(self, size: int) -> int:
        """How many of `size` partitions a failed call still reached."""
        return self._random.randrange(size) if size else 0

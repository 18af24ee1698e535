"""What is left of a run for its judges: topics, decoded, and the machines' truth. Nothing else may be asked.

Owns: reading the bus once, and the log's rule of acceptance in words of its own. Refuses: judging. Read next: `checks.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas.base import Event
from schemas.codec import DecodeError, decode_payload, decode_record
from schemas.decisions import DecisionInput, DecisionMade
from schemas.executions import NodeReported
from schemas.records import Record
from schemas.topics import TOPICS
from tests.simulation.system.faults import Weather
from tests.simulation.system.machine import Machine
from tests.simulation.system.machine_cards import TrueCards
from tests.simulation.system.stack import Stack
from tests.simulation.system.world import World

READ = (
    "job-events",
    "jobs",
    "node-states",
    "commands",
    "executions",
    "forecasts",
    "decisions",
    "placements",
    "job-status",
)


@dataclass(frozen=True, slots=True)
class Said:
    """One record that could be read."""

    record: Record
    event: Event
    id: str


@dataclass
class Evidence:
    """`accepted`: the decision log as a reader sees it; `refused`: records that lost a race."""

    world: World
    weather: Weather
    drained: bool
    said: dict[str, list[Said]]
    ends: dict[tuple[str, int], int]
    accepted: list[DecisionMade]
    refused: int
    machines: dict[str, Machine]
    told: list[tuple[int, str, str]]
    ended_by_itself: list[str]
    refused_plans: list[str]
    compacted: bool
    cards: TrueCards | None = None
    dead_letters: list[Event] = field(default_factory=list)
    topics: tuple[str, ...] = tuple(topic.name for topic in TOPICS)


def evidence_of(stack: Stack, weather: Weather, drained: bool) -> Evidence:
    """Read everything once."""
    bus = stack.bus
    said = {topic: _read(bus.records(topic)) for topic in READ}
    accepted, refused = _accepted([entry.event for entry in said["decisions"]])
    return Evidence(
        world=stack.world,
        weather=weather,
        drained=drained,
        said=said,
        ends={part: bus.log(part).end for topic in READ for part in bus.partitions(topic)},
        accepted=accepted,
        refused=refused,
        machines=stack.machines,
        told=stack.told,
        ended_by_itself=[line for process in stack.processes.values() for line in process.ended_by_itself],
        refused_plans=stack.refused_plans,
        compacted="compaction" in weather.kinds,
        cards=stack.cards,
        dead_letters=[entry.event for entry in _read(bus.records("dead-letters"))],
    )


def heard(item: DecisionInput) -> Event:
    """What an input of a decision says."""
    return decode_payload(item.type, item.payload)


class Hearing:
    """What the log's inputs say, read in order: an order, or a report of what runs on a node, that is stored again says nothing new."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()

    def of(self, record: DecisionMade) -> Iterator[Event]:
        """One decision's."""
        for item in record.inputs:
            event, word = heard(item), (item.topic, item.id)
            once = item.topic == "commands" or isinstance(event, NodeReported)
            if not (once and word in self._known):
                yield event
            self._known.add(word)


def _read(records: list[Record]) -> list[Said]:
    found = []
    for record in records:
        try:
            envelope = decode_record(record)
        except DecodeError:
            continue
        found.append(Said(record, envelope.event, envelope.id))
    return found


def _accepted(log: list[Event]) -> tuple[list[DecisionMade], int]:
    """A record counts iff its number is the last one's plus 1 and its parent is the last one's id."""
    found: list[DecisionMade] = []
    number, parent = 0, ""
    for record in log:
        assert isinstance(record, DecisionMade), "nobody else writes to the log"
        if record.sequence == number + 1 and record.parent == parent:
            found.append(record)
            number, parent = record.sequence, record.id
    return found, len(log) - len(found)

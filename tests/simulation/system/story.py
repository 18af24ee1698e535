"""A run told in the order of its time: what was published, decided, placed and reported, what really ran, what went wrong.

Owns: one line per fact, and choosing those that are about what a violation names. Refuses: judging. Read next: `__main__.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from schemas.base import Event
from schemas.decisions import Placed, Preempted, Scaled, StopOrdered, Waits
from schemas.placements import NodePlaced
from schemas.registry import TYPE_OF
from tests.simulation.system.evidence import Evidence, heard
from tests.simulation.system.stack import SPEED
from tests.simulation.system.world import START_MS

LINE_LENGTH_MAX = 220
STORY_TOPICS = ("job-events", "jobs", "commands", "executions", "placements")
NAME = re.compile(r"\b(?:j\d\d|app\d|n\d\d)\b")
Line = tuple[int, int, str]
"""Domain time, place among equals, text."""


def story(evidence: Evidence, violations: list[str], *, whole: bool = False) -> list[str]:
    """The run's lines; unless `whole`, those that name a job, application or node that a violation names, and the weather."""
    names = set(NAME.findall("\n".join(violations)))
    jobs = {name for name in names if not name.startswith("n")}
    wanted = jobs or names
    lines = sorted([*_told(evidence), *_said(evidence), *_decided(evidence), *_ran(evidence)])
    return [
        f"{_clock(time_ms)}  {text[:LINE_LENGTH_MAX]}"
        for time_ms, _, text in lines
        if whole or text.startswith("weather") or not wanted.isdisjoint(NAME.findall(text))
    ]


def _clock(time_ms: int) -> str:
    seconds = (time_ms - START_MS) / 1000
    sign = "-" if seconds < 0 else " "
    return f"{sign}{int(abs(seconds)) // 3600}:{int(abs(seconds)) % 3600 // 60:02}:{abs(seconds) % 60:06.3f}"


def _told(evidence: Evidence) -> Iterator[Line]:
    for time_ms, who, what in evidence.told:
        yield time_ms, 0, f"{who:<12} {what}"


def _said(evidence: Evidence) -> Iterator[Line]:
    """Records by the moment at which the broker stored them."""
    for place, topic in enumerate(STORY_TOPICS):
        for entry in evidence.said[topic]:
            yield _stored_ms(entry.record.timestamp_ms), 10 + place, _sentence(topic, entry.record.offset, entry.event)


def _stored_ms(wall_ms: int) -> int:
    """Domain time of a broker's wall time: both clocks began at the same number."""
    from tests.simulation.system.run import LEAD_MS

    begun_ms = START_MS - LEAD_MS
    return begun_ms + round((wall_ms - begun_ms) * SPEED)


def _sentence(topic: str, offset: int, event: Event) -> str:
    if isinstance(event, NodePlaced):
        wanted = ", ".join(
            f"{each.job_id}/{each.attempt} {each.desired.value} {each.gpus}" for each in event.assignments
        )
        return f"{topic:<12} {event.node} by {event.epoch}/{event.sequence}: {wanted or 'nothing'}"
    facts = msgspec.to_builtins(event)
    facts.pop("spec", None)
    about = " ".join(f"{name}={value}" for name, value in facts.items() if name != "cluster")
    return f"{topic:<12} #{offset} {TYPE_OF[type(event)]}: {about}"


def _decided(evidence: Evidence) -> Iterator[Line]:
    for record in evidence.accepted:
        place = 30
        head = f"decision {record.sequence} of {record.writer}"
        if not record.inputs and not record.effects:
            yield record.now_ms, place, f"{head}: {record.kind.value}"
        for item in record.inputs:
            event = heard(item)
            about = next(
                (value for name in ("job_id", "app_id", "node") if (value := getattr(event, name, None)) is not None),
                "",
            )
            yield record.now_ms, place, f"{head} takes in {item.topic} #{item.offset} {item.type} {about}"
        for effect in record.effects:
            yield record.now_ms, place + 1, f"{head}: {_effect(effect)}"


def _effect(effect: Placed | Scaled | StopOrdered | Preempted | Waits) -> str:
    match effect:
        case Placed():
            where = " ".join(f"{part.node}{part.gpus}" for part in effect.placed)
            return f"places {effect.job_id} attempt {effect.attempt} on {where}"
        case Scaled():
            where = " ".join(f"{part.node}{part.gpus}" for part in effect.placed)
            return f"scales {effect.app_id} to {where or 'nothing'}"
        case StopOrdered():
            return f"stops {effect.job_id} attempt {effect.attempt}: {effect.cause.value}"
        case Preempted():
            where = " ".join(f"{part.node}{part.gpus}" for part in effect.placed)
            return f"takes {where} from {', '.join(effect.victims)} for {effect.job_id}"
        case Waits():
            return f"{effect.job_id} waits: {effect.reason}"


def _ran(evidence: Evidence) -> Iterator[Line]:
    for machine in evidence.machines.values():
        for proc in machine.procs.values():
            name = f"{proc.key[0]} attempt {proc.key[1]} (start {proc.key[2]})"
            yield proc.from_ms, 40, f"MACHINE      {machine.name} begins {name}"
            if proc.until_ms is not None:
                yield proc.until_ms, 41, f"MACHINE      {machine.name} ends {name}: {proc.how}"

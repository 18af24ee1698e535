"""A node that is gone for good, in the middle of everything: ordered while it is cut off or dark, or by force while it works; then
telemetry and allocators die, and the node comes back. The order is no part of the seeds' worlds: it is added to them here. All judges
must be content.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from schemas.commands import DrainNode, ForgetNode, ReserveBlock, UndrainNode
from schemas.executions import JobStopped, StopCause
from schemas.messages import message
from schemas.nodes import NodeForgotten, NodeStateChanged
from schemas.placements import NodePlaced
from tests.simulation.system.evidence import Evidence, heard
from tests.simulation.system.faults import Gust, Weather, weather_of
from tests.simulation.system.run import LEAD_MS, run_world
from tests.simulation.system.stack import SPEED
from tests.simulation.system.world import CLUSTER, SPAN_MS, START_MS, Publication, World, build_world

NODE = "n00"
AWAY_S, SUSPECT_S, BACK_S = 120.0, 45.0, 130.0
"""Wall seconds: when the node is cut off, how long after that it is forgotten (suspect, not lost yet), and for how long it is away."""


def ordered(world: World, *, at_s: float, force: bool, incarnation: int = 0, undrain: bool = False) -> World:
    """The world with the order in it, and with a drain and a reservation of the node's former life; `undrain`: in case it is refused."""
    at_ms = START_MS - LEAD_MS + round(at_s * SPEED * 1000)
    events = (
        DrainNode(node=NODE, cluster=CLUSTER, ordered_ms=at_ms - 400_000, deadline_s=86_400.0),
        ReserveBlock(
            reservation_id="rf",
            cluster=CLUSTER,
            node=NODE,
            from_ms=at_ms + 3_000_000,
            until_ms=at_ms + 6_000_000,
            ordered_ms=at_ms - 400_000,
        ),
        ForgetNode(node=NODE, cluster=CLUSTER, ordered_ms=at_ms, incarnation=incarnation, force=force),
        *([UndrainNode(node=NODE, cluster=CLUSTER, ordered_ms=START_MS + SPAN_MS)] if undrain else []),
    )
    sent = [
        Publication(
            event.ordered_ms,
            message(
                event,
                key=NODE,
                id=f"{NODE}/{number}",
                source="/upstream/test",
                time_ms=event.ordered_ms,
                partition=world.partition,
            ),
        )
        for number, event in enumerate(events)
    ]
    return replace(world, publications=tuple(sorted((*world.publications, *sent), key=lambda entry: entry.due_ms)))


def troubled(weather: Weather, kind: str, at_s: float) -> Weather:
    """The node is away when it is forgotten; soon after, whoever has to remember it dies; then it comes back."""
    away = [Gust(AWAY_S, kind, NODE, BACK_S)] if kind else []
    deaths = [
        Gust(at_s + 0.5, "crash", "telemetry", 3.0),
        Gust(at_s + 1.0, "crash", "allocator-0", 3.0),
        Gust(at_s + 1.0, "crash", "allocator-1", 5.0),
        Gust(at_s + 30.0, "compaction", "node-states"),
        Gust(at_s + 40.0, "crash", "telemetry", 0.0, "3"),
        Gust(at_s + 60.0, "crash", "allocator-0", 0.0, "5"),
    ]
    gusts = tuple(sorted((*weather.gusts, *away, *deaths), key=lambda gust: gust.at_s))
    return replace(weather, gusts=gusts, kinds=(*weather.kinds, "compaction"))


def words(evidence: Evidence) -> list[NodeForgotten | NodeStateChanged]:
    """What the log heard of the node: the topic drops what is older."""
    events = [heard(item) for record in evidence.accepted for item in record.inputs if item.topic == "node-states"]
    return [event for event in events if isinstance(event, NodeForgotten | NodeStateChanged) and event.node == NODE]


@pytest.mark.parametrize("kind", ["cut link", "power cut", ""])
def test_forgotten_in_calm_weather_it_is_told_to_stop_everything_and_comes_back_as_new(kind: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(3):
        at_s = AWAY_S + SUSPECT_S
        world = ordered(build_world(seed), at_s=at_s, force=not kind)
        ran = run_world(world, troubled(weather_of(seed, world, calm=True), kind, at_s), keep=True)
        assert ran.violations == [], f"seed {seed}"
        assert ran.evidence is not None
        said = words(ran.evidence)
        gone = [at for at, event in enumerate(said) if isinstance(event, NodeForgotten)]
        assert len(gone) == 1
        after = [event for event in said[gone[-1] + 1 :] if isinstance(event, NodeStateChanged)]
        assert {event.incarnation for event in after} == {1}, "a new node, once"
        told = [
            entry.event
            for entry in ran.evidence.said["placements"]
            if isinstance(entry.event, NodePlaced) and entry.event.node == NODE
        ]
        seen["told to stop all"] += any(not placed.assignments for placed in told)
        seen["fenced"] += any(
            isinstance(entry.event, JobStopped) and entry.event.node == NODE and entry.event.cause is StopCause.FENCED
            for entry in ran.evidence.said["executions"]
        )
    assert seen["told to stop all"] == 3
    assert seen["fenced"] > 0, "what still ran there was stopped because it is no longer its own"


def test_forgotten_in_any_weather_no_judge_finds_anything() -> None:
    for seed in range(100, 108):
        at_s = AWAY_S + SUSPECT_S
        world = ordered(build_world(seed), at_s=at_s, force=seed % 3 == 0, incarnation=seed % 2, undrain=True)
        kind = ("cut link", "power cut", "")[seed % 3 - 1]
        ran = run_world(world, troubled(weather_of(seed, world), kind, at_s))
        assert ran.violations == [], f"seed {seed}"

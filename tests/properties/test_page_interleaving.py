"""Topics are read side by side: however their records interleave, the page ends up showing the same."""

from __future__ import annotations

import asyncio
from functools import lru_cache

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.decisions import Placed, Waits
from schemas.executions import StopCause
from schemas.records import Record
from schemas.status import JobState, NodeGpus
from services.console.page.board import TOPICS, Board
from services.console.page.rows import snapshot_rows
from tests import build
from tests.page_stage import HOUR_MS, NOW_MS, Stage, waiting_status


async def history() -> Stage:
    """Jobs that wait, run, are stopped and start again, fail to start, end; an application beside them."""
    stage = Stage()
    await stage.publish(build.node("n00", order=0), build.node("n01", order=1))
    await stage.application("chat", "n01", [6, 7], 1.4)
    for name in ("a", "b"):
        await stage.wait(name, 2, at_ms=NOW_MS - 5 * HOUR_MS)
        await stage.decide(Waits(job_id=name, reason="waiting_for_gpus"), at_ms=NOW_MS - 5 * HOUR_MS)
    await stage.place("a", "n00", [0, 1], NOW_MS - 4 * HOUR_MS)
    await stage.publish(build.stopped("a", "n00", NOW_MS - 3 * HOUR_MS, StopCause.DRAIN))
    await stage.place("b", "n00", [0, 1], NOW_MS - 3 * HOUR_MS)
    await stage.publish(build.completed("b", "n00", NOW_MS - HOUR_MS), ended("b", JobState.COMPLETED, NOW_MS - HOUR_MS))
    for name, gpu in (("d", 4), ("e", 5)):  # placed, but no process ever started
        await stage.publish(build.accepted(name, 1, at_ms=NOW_MS - 2 * HOUR_MS))
        effect = Placed(
            job_id=name,
            attempt=1,
            pool=build.POOL,
            gpus=1,
            placed=[NodeGpus(node="n00", gpus=[gpu])],
            p50_s=60,
            p90_s=90,
        )
        await stage.decide(effect, at_ms=NOW_MS - 2 * HOUR_MS)
    await stage.publish(ended("d", JobState.CANCELLED, NOW_MS - HOUR_MS))
    await stage.publish(msgspec.structs.replace(waiting_status("e", "fragmented", NOW_MS - HOUR_MS), sequence=50))
    await stage.wait("c", 8, at_ms=NOW_MS - HOUR_MS, reason="fragmented")
    return stage


def ended(job_id: str, state: JobState, at_ms: int):
    return msgspec.structs.replace(waiting_status(job_id, "", at_ms), state=state, ended_ms=at_ms, sequence=99)


@lru_cache(maxsize=1)
def queues() -> dict[str, list[Record]]:
    stage = asyncio.run(history())
    return {topic: records for topic in TOPICS if (records := stage.bus.records(topic))}


def shown(order: list[str]) -> dict[str, object]:
    """What the page shows after reading topics in that order, each in its own; arrival numbers are the reader's own."""
    board, left = Board(), {topic: list(records) for topic, records in queues().items()}
    for topic in order:
        board.fold(left[topic].pop(0))
    rows = snapshot_rows(board)
    for row in rows["jobs"].values():
        row.pop("order", None)
    for name in rows:
        rows[name] = dict(sorted(rows[name].items()))
    return rows


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_interleaving_of_the_topics_shows_the_same(data: st.DataObject):
    topics = [topic for topic, records in queues().items() for _ in records]
    assert shown(data.draw(st.permutations(topics))) == shown(topics)

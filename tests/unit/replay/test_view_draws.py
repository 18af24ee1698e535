"""The live view: frames hold what happened, fit the terminal, and keep their shape on small ones."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from schemas.decisions import DecisionMade, Placed, RecordKind, Scaled, Waits
from schemas.messages import message
from schemas.records import Record
from schemas.status import NodeGpus
from services.replay.core.day import Day
from services.replay.core.frame import IDLE, Phase, PlannedSpan, frame
from services.replay.core.observation import Observation
from services.replay.core.workload import build_day
from services.replay.shell.bundled import bundled_trace
from services.replay.shell.demo_view import draw, grid_columns


@pytest.fixture(scope="module")
def day() -> Day:
    return build_day(bundled_trace(), "2017-11-09", 1)


@pytest.fixture
def observation(day: Day) -> Observation:
    first, *waiting = day.jobs[:40]
    effects = [
        Scaled(app_id="chat", pool="h100", placed=[NodeGpus(node="n07", gpus=[5, 6, 7])], switched=3),
        Placed(
            job_id=first.job_id,
            attempt=1,
            pool="h100",
            gpus=1,
            placed=[NodeGpus(node="n00", gpus=[0])],
            p50_s=6 * 3600.0,
            p90_s=9 * 3600.0,
        ),
        *(Waits(job_id=job.job_id, reason="fragmented") for job in waiting),
    ]
    made = DecisionMade(
        cluster="c0",
        sequence=1,
        id="d1",
        parent="",
        epoch=0,
        kind=RecordKind.DECISION,
        writer="w",
        now_ms=day.start_ms,
        wall_ms=0,
        effects=effects,
    )
    sent = message(made, key="c0", id="d1", source="/test", time_ms=day.start_ms, partition=0)
    observation = Observation(day)
    observation.fold(Record(sent.topic, 0, 0, sent.key, sent.value, sent.headers, 0))
    return observation


def test_cells_hold_past_expected_and_planned(day: Day, observation: Observation) -> None:
    now_ms = day.start_ms + 3 * 3_600_000
    plan = (PlannedSpan(day.jobs[1].job_id, (8, 9), now_ms + 3_600_000, now_ms + 7_200_000),)
    made = frame(observation, now_ms, 24, plan)
    owner = made.owners.index(day.jobs[0].job_id)
    assert made.cells[0].tolist() == [owner] * 6 + [IDLE] * 18
    assert made.phases[0].tolist()[:6] == [Phase.PAST] * 3 + [Phase.EXPECTED] * 3
    assert made.cells[8, 4] == made.cells[9, 4] == made.owners.index(day.jobs[1].job_id)
    assert made.phases[8, 4] == Phase.PLANNED
    assert made.cells[61:64, :3].tolist() == [[0] * 3] * 3
    assert made.now_column == 3
    assert len(made.queue) == 39
    assert made.apps[0].held == 3


@pytest.mark.parametrize(("width", "height"), [(100, 40), (80, 24), (160, 60), (60, 16)])
def test_fits_the_terminal(day: Day, observation: Observation, width: int, height: int) -> None:
    made = frame(observation, day.start_ms + 3 * 3_600_000, grid_columns(width))
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(draw(made, width, height, 720.0), height=height, end="")
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    words = ("gpugrid", "2017-11-09", "n00", "chat", "▲", "queue: 39 waiting")
    assert all(word in text for word in (words if height >= 24 else words[:-1]))


def test_notice_is_shown(day: Day, observation: Observation) -> None:
    made = frame(observation, day.start_ms, grid_columns(100), notice="allocator restarts; the clock is paused")
    console = Console(width=100, height=40, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(draw(made, 100, 40), height=40)
    assert "allocator restarts; the clock is paused" in console.file.getvalue()  # type: ignore[attr-defined]


def test_before_the_start_and_after_the_end(day: Day, observation: Observation) -> None:
    for now_ms in (day.start_ms - 60_000, day.start_ms, day.end_ms, day.end_ms + 60_000):
        made = frame(observation, now_ms, grid_columns(80))
        assert 0 <= made.progress <= 1
        draw(made, 80, 24)

"""The page's board and hub: blocks of past and present, demand, why here, rows, versions and deltas."""

from __future__ import annotations

import json

import msgspec
import pytest

from schemas.executions import StopCause
from schemas.status import JobState, JobStatusChanged
from services.console.page.answers import explained, job_answer
from services.console.page.blocks import Block
from services.console.page.board import ENDED_MAX, PAST_KEPT_MS, TOPICS, Board
from services.console.page.hub import DELTAS_KEPT, Hub
from services.console.page.rows import snapshot_rows, take_changes
from services.console.page.shadow import fifo_attempts, measured, observed_days
from services.console.read import in_time
from services.replay.core.baselines import FIFO, attempts_of
from tests import build
from tests.page_stage import HOUR_MS, NOW_MS, Stage


async def board_of(stage: Stage) -> Board:
    board = Board()
    for record in in_time([record for topic in TOPICS for record in stage.bus.records(topic)]):
        board.fold(record)
    return board


def open_blocks(board: Board, owner: str) -> list[Block]:
    return [block for block in board.blocks.all.values() if block.owner == owner and block.until_ms is None]


async def two_jobs() -> Stage:
    """`first` ran on n00's GPUs 0 and 1 and left them to `second`, which had waited; `chat` holds two on n01."""
    stage = Stage()
    await stage.publish(build.node("n00", order=0), build.node("n01", order=1))
    await stage.application("chat", "n01", [6, 7], 1.4)
    await stage.place("first", "n00", [0, 1], NOW_MS - 3 * HOUR_MS)
    await stage.publish(build.completed("first", "n00", NOW_MS - HOUR_MS))
    await stage.place("second", "n00", [0, 1], NOW_MS - HOUR_MS)
    return stage


async def test_blocks_open_with_the_decision_and_close_with_the_processes_own_end():
    board = await board_of(await two_jobs())
    blocks = {block.owner: block for block in board.blocks.all.values()}
    assert (blocks["first"].since_ms, blocks["first"].until_ms) == (NOW_MS - 3 * HOUR_MS + 2_000, NOW_MS - HOUR_MS)
    assert blocks["second"].until_ms is None
    assert blocks["second"].started
    assert blocks["chat"].application


async def test_why_here_names_who_left_the_gpus():
    board = await board_of(await two_jobs())
    why = board.blocks.why["second"]
    assert board.blocks.before("second") == [("first", NOW_MS - HOUR_MS)]
    assert (why.sequence, why.gpus) == (3, (("n00", 0), ("n00", 1)))


async def test_an_end_read_before_its_decision_closes_the_block_all_the_same():
    stage = await two_jobs()
    board = Board()
    order = [topic for topic in TOPICS if topic != "decisions"] + ["decisions"]
    for record in (record for topic in order for record in stage.bus.records(topic)):
        board.fold(record)
    blocks = {block.owner: block for block in board.blocks.all.values()}
    assert blocks["first"].until_ms == NOW_MS - HOUR_MS


async def test_what_never_started_is_over_when_it_waits_again():
    stage = await two_jobs()
    board = await board_of(stage)
    await stage.decide(_placed("third"), at_ms=NOW_MS)
    for record in stage.bus.records("decisions")[-1:]:
        board.fold(record)
    assert len(open_blocks(board, "third")) == 1
    board.blocks.status(_queued("third"))
    assert open_blocks(board, "third") == []


async def test_a_status_from_before_the_placing_decision_closes_nothing():
    stage = await two_jobs()
    board = await board_of(stage)
    await stage.decide(_placed("third"), at_ms=NOW_MS)
    board.fold(stage.bus.records("decisions")[-1])
    board.blocks.status(msgspec.structs.replace(_queued("third"), sequence=4))
    assert len(open_blocks(board, "third")) == 1


async def test_a_start_opens_again_what_a_late_status_had_closed():
    stage = await two_jobs()
    board = await board_of(stage)
    await stage.decide(_placed("third"), at_ms=NOW_MS)
    board.fold(stage.bus.records("decisions")[-1])
    board.blocks.status(_queued("third"))
    board.blocks.started(build.started("third", "n00", NOW_MS + 5))
    assert [block.since_ms for block in open_blocks(board, "third")] == [NOW_MS + 5]


async def test_every_record_twice_changes_nothing():
    stage = await two_jobs()
    once, twice = await board_of(stage), Board()
    for record in in_time([record for topic in TOPICS for record in stage.bus.records(topic)]):
        twice.fold(record)
        twice.fold(record)
    assert snapshot_rows(once) == snapshot_rows(twice)
    assert once.decisions == twice.decisions


async def test_demand_has_load_forecast_and_holds():
    board = await board_of(await two_jobs())
    row = snapshot_rows(board)["apps"]["chat"]
    assert len(row["observed"]) == 36
    assert row["held"] == [[build.START_MS, 2]]
    assert row["fan"][0] == [build.START_MS, 1.4, 1.82]


async def test_an_answer_about_a_job_explains_and_lists_attempts():
    board = await board_of(await two_jobs())
    explanation = explained(board, "first", NOW_MS)
    assert explanation is not None
    answer = job_answer(board, explanation, NOW_MS)
    assert answer is not None
    assert answer["attempts"][0]["how"] == "completed"
    assert "environment" not in answer["spec"]
    assert explained(Board(), "nobody", NOW_MS) is None


async def test_what_is_too_old_is_forgotten():
    stage = await two_jobs()
    board = await board_of(stage)
    board.prune(NOW_MS - HOUR_MS + PAST_KEPT_MS + 1)
    assert {block.owner for block in board.blocks.all.values()} == {"second", "chat"}
    assert take_changes(board)["gone"]["blocks"] == ["first/1/n00"]


async def test_only_the_newest_ended_jobs_stay():
    stage = Stage()
    for number in range(ENDED_MAX + 3):
        await stage.publish(
            JobStatusChanged(job_id=f"j{number}", state=JobState.COMPLETED, time_ms=number, ended_ms=number, sequence=1)
        )
    board = await board_of(stage)
    board.prune(NOW_MS)
    assert len(board.world.jobs) == ENDED_MAX
    assert "j0" not in board.world.jobs


async def test_deltas_lead_from_any_kept_version_to_the_snapshot():
    stage = await two_jobs()
    hub = Hub("e")
    hub.board = await board_of(stage)
    hub.advance(NOW_MS)
    begin = json.loads(hub.snapshot(NOW_MS))
    await stage.wait("later", 4, at_ms=NOW_MS)
    await stage.publish(build.stopped("second", "n00", NOW_MS, StopCause.DRAIN))
    for topic in ("jobs", "job-status", "executions"):
        hub.board.fold(stage.bus.records(topic)[-1])
    hub.put("log", {"decisions": 3})
    hub.advance(NOW_MS + 1)
    missed = hub.since("e", begin["version"])
    assert missed is not None
    for delta in map(json.loads, missed):
        for name, rows in delta.get("set", {}).items():
            begin[name].update(rows)
        begin["sections"].update(delta.get("sections", {}))
        begin |= {"version": delta["version"], "now": delta["now"]}
    assert begin == json.loads(hub.snapshot(NOW_MS + 1))


def test_who_is_too_far_behind_or_of_another_life_starts_over():
    hub = Hub("e")
    for number in range(DELTAS_KEPT + 5):
        hub.put("log", number)
        hub.advance(number)
    assert hub.since("e", 1) is None
    assert hub.since("other", hub.version) is None
    assert hub.since("e", hub.version) == []
    assert len(hub.since("e", hub.version - 3) or []) == 3
    assert hub.advance(0) is None


async def test_the_shadow_is_the_same_fifo_as_the_baselines():
    stage = await two_jobs()
    for number in range(40):
        await stage.wait(f"q{number}", 1 << number % 4, at_ms=build.START_MS + number * 300_000)
    days = observed_days(await board_of(stage), NOW_MS)
    assert fifo_attempts(days[0].day) == attempts_of(days[0].day, FIFO)
    result = measured(days)
    assert result is not None
    assert result["gpugrid"]["completed"] == 1
    assert result["jobs"] == 42
    used_gpu_h = sum(result["gpugrid"]["used"]) / result["bins"] * 6
    assert used_gpu_h == pytest.approx(result["gpugrid"]["utilization"] * 16 * 6, rel=0.02)
    assert result["gpugrid"]["value_curve"][-1] == pytest.approx(result["gpugrid"]["value"], rel=0.02)


def test_nothing_is_compared_before_there_is_anything():
    assert observed_days(Board(), NOW_MS) == []
    assert measured([]) is None


def _placed(job_id: str):
    from schemas.decisions import Placed
    from schemas.status import NodeGpus

    return Placed(
        job_id=job_id, attempt=1, pool=build.POOL, gpus=1, placed=[NodeGpus(node="n00", gpus=[5])], p50_s=60, p90_s=90
    )


def _queued(job_id: str) -> JobStatusChanged:
    return JobStatusChanged(job_id=job_id, state=JobState.QUEUED, time_ms=NOW_MS, sequence=9)

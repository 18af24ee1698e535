"""A backtest's figures on a day small enough to work out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from schemas.jobs import ApplicationSpec, JobSpec, Kind
from services.replay.core.baselines import Block, Played
from services.replay.core.blocks import block_of
from services.replay.core.day import HOUR_MS, Day, DayApp, DayJob
from services.replay.core.findings import ALL, WHOLE_NODES, finding, schedulability
from services.replay.core.outcome import Attempt, End, Hold
from services.replay.core.rolling import Overrun, Rolled
from services.replay.core.verdict import verdict

START_MS = 1_500_000_000_000


def job(name: str, size: int, arrival_s: int, run_s: float) -> DayJob:
    spec = JobSpec(
        kind=Kind.TRAINING, team="a", user="b", priority=2, sizes=[size], requested_gpus=size, template="simulated"
    )
    return DayJob(name, START_MS + arrival_s * 1000, spec, {size: run_s})


@pytest.fixture
def day() -> Day:
    jobs = (job("a", 1, 0, 3600), job("b", 8, 600, 1800), job("c", 8, 1200, 36_000))
    spec = ApplicationSpec(team="s", user="u", priority=4, floor_gpus=2, peak_gpus=6, switch_max=4)
    app = DayApp("chat", spec, 1.0, 600, (), (2.0,) * 24)
    return Day("d", 1, START_MS, 4.0, 32, 8, "c0", "p0", jobs, (app,))


def at(hours: float) -> int:
    return START_MS + round(hours * HOUR_MS)


def rolled(day: Day) -> Rolled:
    attempts = [
        Attempt("a", at(0), at(1), 1, End.COMPLETED),
        Attempt("b", at(1.5), at(2), 8, End.COMPLETED),
    ]
    holds = [Hold("chat", at(0), 2), Hold("chat", at(2), 1), Hold("chat", at(3), 2)]
    blocks = [
        Block(block_of(0, 1), at(0), at(1)),
        Block(block_of(8, 8), at(1.5), at(2)),
        Block(block_of(30, 2), at(0), at(4)),
    ]
    overruns = [Overrun("b", at(1.75), 900.0, 1800.0, 8, 1)]
    return Rolled(
        attempts,
        holds,
        blocks,
        {},
        decisions=7,
        overruns=overruns,
        first_promise={"b": (at(1), at(1.5)), "c": (at(2), at(5)), "x": (at(9), at(9))},
    )


def test_waits_completions_and_starvation(day: Day) -> None:
    found = finding(day, "gpugrid", "true", rolled(day))
    assert found.wait_s[ALL].jobs == 3
    assert found.wait_s["1"].p99_s == 0
    assert found.wait_s[WHOLE_NODES].p50_s == 4800  # b from 10 min to 1.5 h; c never: to the end
    assert found.wait_s[WHOLE_NODES].p99_s == found.wait_s["8"].p99_s == 4 * 3600 - 1200
    assert found.wait_s[WHOLE_NODES].open == 1
    assert found.jct_s["1"].p50_s == 3600
    assert found.jct_s["8"].open == 1
    assert found.starved == 2
    assert found.decisions == 7


def test_floors_and_unmet_demand(day: Day) -> None:
    found = finding(day, "gpugrid", "true", rolled(day))
    assert found.below_floor_gpu_hours == pytest.approx(1.0)
    assert found.outcome.unmet_gpu_hours == pytest.approx(1.0)
    assert found.unmet_share == pytest.approx(1 / 8)


def test_schedulability_counts_whole_nodes_not_cards(day: Day) -> None:
    found = schedulability(day, rolled(day).blocks)
    assert len(found.whole_nodes) == 16
    assert (found.free_gpus[0], found.whole_nodes[0]) == (29, 2)
    assert (found.free_gpus[5], found.whole_nodes[5]) == (30, 3)
    assert (found.free_gpus[6], found.whole_nodes[6]) == (22, 2)
    assert found.share == pytest.approx(8 * sum(found.whole_nodes) / sum(found.free_gpus))


def test_overruns_and_promises(day: Day) -> None:
    found = finding(day, "gpugrid", "true", rolled(day))
    assert found.overruns is not None
    assert (found.overruns.jobs, found.overruns.of_started, found.overruns.held_up) == (1, 2, 1)
    assert found.overruns.ran_over_p90 == 2.0
    assert found.overruns.gpu_hours_past_p90 == pytest.approx(2.0)
    assert found.overruns.unmet_gpu_hours == 0.0  # the missing GPU is missing later
    assert found.promises is not None
    assert (found.promises.told, found.promises.by_p50_share, found.promises.by_p90_share) == (2, 0.0, 1.0)
    assert found.promises.late_p50_s == 1800


def test_the_verdict_takes_the_best_baseline_of_the_same_level(day: Day) -> None:
    ours = finding(day, "gpugrid", "true", rolled(day))
    idle = finding(day, "fifo", "", Played([], [Hold("chat", at(0), 2)], [], {}))
    easy = finding(day, "easy_backfill", "true", Played(rolled(day).attempts, [Hold("chat", at(0), 2)], [], {}))
    other_level = changed(easy, level="none")
    found = verdict([idle, easy, other_level, ours])
    (against,) = found.levels
    assert set(against.value_gain) == {"fifo", "easy_backfill"}
    assert against.value_gain["easy_backfill"] < 0  # an hour below the floor costs 7 × 4
    assert against.met == {
        "unmet real-time at most 1 %": False,
        "never below a floor": False,
        "more value than every baseline": False,
        "higher utilization than every baseline": False,
        "whole-node P99 wait no worse than EASY's": True,
        "mean wait at most half of FIFO's": True,  # nobody started at all
    }
    assert verdict([idle]).levels == []
    assert verdict([ours]).levels[0].mean_wait_over_fifo is None


def test_forecasts_are_measured_against_true_durations(day: Day) -> None:
    calm = replace(rolled(day), holds=[Hold("chat", at(0), 2)])
    true = finding(day, "gpugrid", "true", calm)
    forecast = changed(true, level="forecast")
    assert verdict([true, forecast]).value_over_true == {"forecast": 1.0}

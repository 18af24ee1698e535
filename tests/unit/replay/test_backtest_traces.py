"""Which rows become a backtest's jobs, when, and what bad input is answered."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from services.replay.core.day import DayJob
from services.replay.core.occurrences import past
from services.replay.core.span import DAY_MS, build_span
from services.replay.core.trace import Trace
from services.replay.shell.bundled import TraceError
from services.replay.shell.formats import EPOCH_MS, TRACES, default_gpus, default_start, open_trace


@pytest.fixture(scope="module", params=TRACES)
def trace(request: pytest.FixtureRequest) -> tuple[str, Trace]:
    return request.param, open_trace(request.param)


def test_a_span_has_the_load_it_was_asked_for(trace: tuple[str, Trace]) -> None:
    name, rows = trace
    span = build_span(rows, default_start(name, rows), 3, days=2, gpus=default_gpus(name), load=0.7)
    largest = max(job.requested * min(job.run_s[job.requested], 43_200) for job in span.day.jobs)
    assert 0.7 <= span.day.load() <= 0.7 + largest / span.day.capacity_gpu_s
    assert all(span.day.start_ms <= job.arrival_ms < span.day.end_ms for job in span.day.jobs)
    assert list(span.day.jobs) == sorted(span.day.jobs, key=lambda job: job.arrival_ms)
    assert len({job.job_id for job in (*span.day.jobs, *span.past)}) == len(span.day.jobs) + len(span.past)


def test_the_same_seed_gives_the_same_jobs_and_more_load_only_adds(trace: tuple[str, Trace]) -> None:
    name, rows = trace
    start, gpus = default_start(name, rows), default_gpus(name)

    def built(load: float) -> Counter[tuple[int, float, int]]:
        return Counter(map(key, build_span(rows, start, 5, days=1, gpus=gpus, load=load).day.jobs))

    def key(job: DayJob) -> tuple[int, float, int]:
        return job.arrival_ms, job.run_s[job.requested], job.requested

    assert built(0.6) == built(0.6)
    assert built(0.5) <= built(0.6)


def test_later_days_are_folded_onto_the_span_at_their_own_time_of_day() -> None:
    rows = open_trace("openb")
    day = build_span(rows, "120", 2, days=1, gpus=64, load=0.8).day
    times = {row.submit_ms % DAY_MS for row in rows.jobs}
    assert all(job.arrival_ms % DAY_MS in times for job in day.jobs)
    own = sum(day.start_ms <= row.submit_ms < day.end_ms for row in rows.jobs)
    assert own < len(day.jobs)


def test_the_past_ended_before_the_span_and_is_told_in_order() -> None:
    rows = open_trace("lingjun")
    span = build_span(rows, "8", 2, days=1, gpus=64, load=0.5)
    told = past(span.day, span.past)
    assert [time for time, _ in told] == sorted(time for time, _ in told)
    assert all(time <= span.day.start_ms for time, _ in told)
    assert span.past


def test_openb_says_who_and_how_urgent() -> None:
    jobs = build_span(open_trace("openb"), "120", 2, days=1, gpus=64, load=0.6).day.jobs
    by_team = {team: {job.spec.priority for job in jobs if job.spec.team == team} for team in ("ls", "be")}
    assert by_team["ls"] <= {4, 5}
    assert by_team["be"] <= {1, 2}
    assert all(job.spec.user.startswith("c") for job in jobs)


def test_a_file_with_the_originals_columns_is_read(tmp_path: Path) -> None:
    file = tmp_path / "pods.csv.gz"
    header = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
    )
    rows = ["a,1,2,1,500,,LS,Running,10,110,20", "b,1,2,0,0,,BE,Running,10,110,20", "c,1,2,8,1000,,BE,Failed,90000,,"]
    file.write_bytes(gzip.compress("\n".join([header, *rows]).encode()))
    trace = open_trace("openb", file)
    assert [(row.submit_ms - EPOCH_MS, row.gpus, row.run_s) for row in trace.jobs] == [(10_000, 1, 90.0)]
    assert list(trace.days) == ["0"]
    assert default_start("openb", trace) == "0"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("submit_s,num_gpus\n1,2\n", "lacks duration_s"),
        ("submit_s,num_gpus,duration_s\nx,2,3\n", "line 2"),
        ("submit_s,num_gpus,duration_s\n1,0,3\n", "num_gpus 0 must be at least 1"),
        ("submit_s,num_gpus,duration_s\n1,2,-3\n", "makes no sense"),
        ("submit_s,num_gpus,duration_s\n1,2,inf\n", "makes no sense"),
    ],
)
def test_a_bad_file_is_answered_with_what_is_wrong(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(content)
    with pytest.raises(TraceError, match=message):
        open_trace("lingjun", file)


def test_a_trace_that_isnt_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="can't read"):
        open_trace("openb", tmp_path / "none.csv")
    with pytest.raises(TraceError, match="there are philly, openb, lingjun"):
        open_trace("acme")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"start": "99"}, "day '99' is not in trace"),
        ({"days": 6}, "days must be between"),
        ({"gpus": 20}, "gpus must be a multiple"),
        ({"load": 0.0}, "load must be above 0"),
        ({"seed": -1}, "seed must be between"),
        ({"gpus": 4096, "load": 3.0}, "brings a load of"),
    ],
)
def test_a_span_that_cant_be_built(changed: dict[str, object], message: str) -> None:
    wanted = {"start": "10", "seed": 1, "days": 1, "gpus": 64, "load": 0.5} | changed
    start, seed = wanted.pop("start"), wanted.pop("seed")
    with pytest.raises(ValueError, match=message):
        build_span(open_trace("lingjun"), start, seed, **wanted)  # type: ignore[arg-type]

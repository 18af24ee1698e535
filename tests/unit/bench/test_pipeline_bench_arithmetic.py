"""What the pipeline benchmark computes from what it saw: distributions, growth of lag, marks of jobs, the picture."""

from __future__ import annotations

import xml.dom.minidom

import numpy as np

from bench.pipeline.hops import SPANS, marks_of, since_sent_ms, spans_ms
from bench.pipeline.load import arrivals_s, job_message
from bench.pipeline.picture import line_svg
from bench.pipeline.stats import distribution
from bench.pipeline.throughput import Sample, lag_slope
from schemas.decisions import DecisionMade, Placed, RecordKind, Waits
from schemas.messages import message
from schemas.records import Message, Record
from schemas.status import NodeGpus
from tests import build


def record(sent: Message, offset: int, at_ms: int) -> Record:
    return Record(sent.topic, 0, offset, sent.key, sent.value, sent.headers, at_ms)


def decision(sequence: int, parent: str, effect: Placed | Waits, offset: int, at_ms: int) -> Record:
    event = DecisionMade(
        cluster=build.CLUSTER,
        sequence=sequence,
        id=f"d{sequence}",
        parent=parent,
        epoch=1,
        kind=RecordKind.DECISION,
        writer="w",
        now_ms=at_ms,
        wall_ms=at_ms,
        inputs=[],
        covered=[],
        effects=[effect],
        config_digest="c",
        code_version="v",
        traces={},
    )
    return record(
        message(event, key=build.CLUSTER, id=event.id, source="/t", time_ms=at_ms, partition=0), offset, at_ms
    )


def sample(at_s: float, lag: int) -> Sample:
    return Sample(at_s=at_s, published=0, decided=0, lag=lag, decisions=0)


def test_a_distribution_of_nothing_is_nothing_and_of_numbers_their_percentiles() -> None:
    assert distribution([]) is None
    spread = distribution([float(value) for value in range(1, 102)])
    assert spread is not None
    assert (spread.count, spread.p50_ms, spread.p90_ms, spread.max_ms) == (101, 51.0, 91.0, 101.0)


def test_growth_is_judged_after_the_first_third_and_before_the_end_only() -> None:
    level = [sample(second, 500 - 25 * second if second < 20 else 7) for second in range(1, 61)]
    assert abs(lag_slope(level, 60.0)) < 1e-9
    growing = [sample(second, 4 * second) for second in range(1, 90)]
    assert round(lag_slope(growing, 60.0), 6) == 4.0


def test_arrivals_keep_their_rate() -> None:
    assert arrivals_s(3, 2.0, None) == [0.0, 0.5, 1.0]
    drawn = arrivals_s(4_000, 20.0, np.random.default_rng(1))
    assert drawn == sorted(drawn)
    assert 190 < drawn[-1] < 210


def test_marks_follow_a_job_and_ignore_records_that_the_log_refuses() -> None:
    placed = Placed(
        job_id="j", attempt=1, pool="h100", gpus=1, placed=[NodeGpus(node="n00", gpus=[0])], p50_s=1.0, p90_s=1.0
    )
    waits = Waits(job_id="j", reason="awaiting_forecast", holders=[])
    records = [
        record(job_message("j", 1, 0.5), 0, 1_000),
        record(message(build.accepted("j", 1), key="j", id="a", source="/t", time_ms=0, partition=0), 0, 1_004),
        decision(1, "", waits, 0, 1_010),
        decision(1, "", placed, 1, 1_011),
        decision(2, "d1", placed, 2, 1_020),
        record(message(build.started("j", "n00", 0), key="j", id="s", source="/t", time_ms=0, partition=0), 0, 1_030),
    ]
    seen_ns = {(0, 0): 1_012_000_000, (0, 1): 1_013_000_000, (0, 2): 1_022_500_000}
    marks = marks_of(records, seen_ns, build.CLUSTER)
    assert marks["j"].reason == "awaiting_forecast"
    assert spans_ms(list(marks.values()), SPANS["jobs → first decision"]) == [6.0]
    assert spans_ms(list(marks.values()), SPANS["job-events → JobStarted"]) == [30.0]
    assert spans_ms(list(marks.values()), SPANS["jobs → forecasts (forecaster)"]) == []
    sent_ns = {"j": 1_000_000_000, "lost": 0}
    assert since_sent_ms(sent_ns, marks, "named_seen_ns") == [12.0]
    assert since_sent_ms(sent_ns, marks, "placed_seen_ns") == [22.5]


def test_the_picture_is_well_formed_even_of_nothing() -> None:
    for points in ([], [(1.0, 0.0), (2.0, 5.0)]):
        xml.dom.minidom.parseString(line_svg(points, title="lag", x_label="s", y_label="events"))

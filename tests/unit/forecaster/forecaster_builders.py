"""Records and handlers for the forecaster's tests."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from schemas.base import Event
from schemas.codec import decode
from schemas.executions import JobCompleted, JobStarted
from schemas.jobs import ModelFacts
from schemas.messages import message
from schemas.records import Message, Now, Record
from services.forecaster.core.handler import ForecasterHandler, Settings
from tests.build import CLUSTER, START_MS, accepted, catalog

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Constant:
    """A model that always answers the same corrections."""

    version = "constant"
    trust = 1.0

    def __init__(self, p50: float, p90: float) -> None:
        self.answer = (p50, p90)

    def corrections(self, rows: np.ndarray) -> np.ndarray:
        return np.tile(self.answer, (len(rows), 1))


class Stream:
    """Numbers records per topic, as a partition would."""

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}
        self.records: list[Record] = []

    def add(self, event: Event, *, id: str = "", traceparent: str = TRACE) -> Record:
        carried = message(
            event, key="k", id=id or f"e{len(self.records)}", source="test", time_ms=START_MS, traceparent=traceparent
        )
        return self.add_raw(carried)

    def add_raw(self, carried: Message) -> Record:
        offset = self.offsets.get(carried.topic, 0)
        self.offsets[carried.topic] = offset + 1
        record = Record(carried.topic, 0, offset, carried.key, carried.value, carried.headers, 0)
        self.records.append(record)
        return record


def handler(**changed) -> ForecasterHandler:
    return ForecasterHandler(catalog(), Settings(), **changed)


def now(ms: int = START_MS) -> Now:
    return Now(domain_ms=ms, wall_ms=ms)


def events(messages: Iterable[Message]) -> list[Event]:
    return [decode(sent.headers, sent.value).event for sent in messages]


def started(
    job_id: str, at_ms: int, *, attempt: int = 1, node: str = "n00", gpus: int = 1, cluster: str = CLUSTER
) -> JobStarted:
    return JobStarted(
        job_id=job_id,
        attempt=attempt,
        node=node,
        cluster=cluster,
        time_ms=at_ms,
        wall_ms=at_ms,
        gpus=list(range(gpus)),
        sequence=1,
    )


def completed(
    job_id: str, at_ms: int, run_s: float, *, attempt: int = 1, node: str = "n00", cluster: str = CLUSTER
) -> JobCompleted:
    return JobCompleted(job_id=job_id, attempt=attempt, node=node, cluster=cluster, time_ms=at_ms, run_s=run_s)


def ran(stream: Stream, forecaster: ForecasterHandler, count: int, *, first: int = 0, seed: int = 1, **told) -> int:
    """`count` jobs of one team accepted, started and ended; how long they take shows only in their facts. Returns the last end."""
    chance = np.random.default_rng(seed)
    end_ms = START_MS
    for number in range(first, first + count):
        tokens = float(10 ** chance.uniform(6, 9))
        run_s = float(tokens**0.5 * chance.lognormal(0.0, 0.3)) * told.get("slower", 1.0)
        at_ms = START_MS + number * 600_000
        end_ms = at_ms + round(run_s * 1000)
        facts = ModelFacts(dataset_tokens=tokens) if told.get("facts", True) else None
        cluster = told.get("cluster", CLUSTER)
        for event, when_ms in (
            (accepted(f"{cluster}-j{number}", 1, at_ms=at_ms, model=facts, cluster=cluster), at_ms),
            (started(f"{cluster}-j{number}", at_ms, cluster=cluster), at_ms),
            (completed(f"{cluster}-j{number}", end_ms, run_s, cluster=cluster), end_ms),
        ):
            forecaster.handle(stream.add(event), now(when_ms))
    return end_ms

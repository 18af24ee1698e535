"""Records and handlers for the forecaster's tests."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from schemas.base import Event
from schemas.codec import decode
from schemas.executions import JobCompleted, JobStarted
from schemas.messages import message
from schemas.records import Message, Now, Record
from services.forecaster.core.handler import ForecasterHandler, Settings
from tests.build import CLUSTER, START_MS, catalog

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


def started(job_id: str, at_ms: int, *, attempt: int = 1, node: str = "n00", gpus: int = 1) -> JobStarted:
    return JobStarted(
        job_id=job_id,
        attempt=attempt,
        node=node,
        cluster=CLUSTER,
        time_ms=at_ms,
        wall_ms=at_ms,
        gpus=list(range(gpus)),
        sequence=1,
    )


def completed(job_id: str, at_ms: int, run_s: float, *, attempt: int = 1, node: str = "n00") -> JobCompleted:
    return JobCompleted(job_id=job_id, attempt=attempt, node=node, cluster=CLUSTER, time_ms=at_ms, run_s=run_s)

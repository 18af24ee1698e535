"""The forecaster as a real process on a real Kafka: forecasts for jobs, learning from executions, the same after a kill -9."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from deploy.local.broker import EmbeddedBroker
from deploy.local.topics import ensure_topics
from schemas.base import Event
from schemas.codec import Envelope, decode_record
from schemas.demand import DemandObserved
from schemas.forecasts import DemandForecast, DurationForecast
from schemas.messages import message
from services.runtime.bus.kafka import KafkaBus
from services.runtime.health import read_health
from tests.build import CLUSTER, accepted
from tests.unit.forecaster.forecaster_builders import TRACE, completed, started

pytestmark = [pytest.mark.kafka, pytest.mark.end_to_end, pytest.mark.timeout(240)]
ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 90.0
CATALOG = """
default_cluster = "c0"
[clusters.c0]
partition = 0
[clusters.c0.pools.h100]
gpus = 64
node_gpus = 8
gpu_model = "H100"
memory_mib = 81920
"""


class Running:
    """One forecaster process, a producer of its inputs, a reader of its answers."""

    def __init__(self, address: str, folder: Path) -> None:
        self.folder = folder
        bus = KafkaBus(address)
        self.producer = bus.producer("test")
        self.reader = bus.reader("test", [("forecasts", number) for number in range(4)])
        (folder / "catalog.toml").write_text(CATALOG)
        self._environ = {
            **os.environ,
            "GPUGRID_BOOTSTRAP": address,
            "GPUGRID_CATALOG": str(folder / "catalog.toml"),
            "GPUGRID_RUN_DIR": str(folder),
        }
        self.process: subprocess.Popen[bytes] | None = None

    async def spawn(self) -> None:
        self.process = self._started()
        deadline = time.monotonic() + DEADLINE_S
        while (health := read_health(self.folder, "forecaster")) is None or health.pid != self.process.pid:
            assert time.monotonic() < deadline, self.log()
            assert self.process.poll() is None, self.log()
            await asyncio.sleep(0.05)

    def _started(self) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            command = [sys.executable, "-m", "services.forecaster"]
            return subprocess.Popen(command, cwd=ROOT, env=self._environ, stderr=log)

    async def send(self, *events: Event) -> None:
        stamp = time.time_ns()
        messages = [
            message(
                event, key="k", id=f"{stamp}-{number}", source="test", time_ms=now_ms(), traceparent=TRACE, partition=0
            )
            for number, event in enumerate(events)
        ]
        await self.producer.send_all(messages)

    async def answers(self, count: int, kind: type[Event]) -> list[Envelope]:
        """The next `count` forecasts of a kind."""
        found: list[Envelope] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count}: {self.log()}"
            records = await self.reader.poll(max_records=500, timeout_s=0.5)
            found += [read for record in records if isinstance((read := decode_record(record)).event, kind)]
        return found

    def log(self) -> str:
        return (self.folder / "log").read_text()[-6_000:]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
async def running(kafka_factory: Callable[[], EmbeddedBroker], tmp_path: Path) -> AsyncIterator[Running]:
    broker = kafka_factory()
    await ensure_topics(broker.address)
    running = Running(broker.address, tmp_path)
    await running.producer.start()
    await running.reader.start()
    await running.spawn()
    yield running
    if running.process is not None and running.process.poll() is None:
        running.process.kill()
        running.process.wait(10)
    await running.producer.stop()
    await running.reader.stop()


async def test_forecasts_on_a_real_kafka_survive_a_kill(running: Running):
    past = [
        event
        for number in range(30)
        for event in (
            accepted(f"past{number}", 1, at_ms=now_ms()),
            started(f"past{number}", now_ms()),
            completed(f"past{number}", now_ms(), 120.0),
        )
    ]
    await running.send(*past)
    await running.answers(30, DurationForecast)
    await running.send(accepted("before", 1, 2, at_ms=now_ms(), requested_gpus=1))
    before = (await running.answers(1, DurationForecast))[0]
    assert before.traceparent.split("-")[1] == TRACE.split("-")[1]
    assert not before.event.prior
    assert 60 < before.event.sizes[0].p50_s < 240

    assert running.process is not None
    running.process.send_signal(signal.SIGKILL)
    running.process.wait(10)
    await running.spawn()
    await running.send(accepted("after", 1, 2, at_ms=now_ms(), requested_gpus=1))
    while (after := (await running.answers(1, DurationForecast))[-1]).event.job_id != "after":
        assert after.event.job_id in {"before"} | {f"past{number}" for number in range(30)}
    assert after.event.sizes[0].p50_s == pytest.approx(before.event.sizes[0].p50_s, rel=0.1)

    await running.send(
        DemandObserved(app_id="chat", cluster=CLUSTER, time_ms=now_ms(), window_s=600.0, load=40.0, per_gpu=10.0)
    )
    demand = (await running.answers(1, DemandForecast))[0]
    assert demand.event.p50[0] == 4.0

    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(60) == 0, running.log()

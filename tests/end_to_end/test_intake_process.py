"""Intake as a real process on a real Kafka: HTTP and plain records in, answers out, the same answers after a kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from deploy.local.broker import EmbeddedBroker
from deploy.local.topics import ensure_topics
from schemas import generated
from schemas.codec import decode_record
from schemas.records import Message, Record
from services.intake.shell.app import DoorFile, door_path
from services.runtime.bus.kafka import KafkaBus
from services.runtime.bus.port import Consumer
from services.runtime.health import read_health

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
SPEC = {"kind": "training", "team": "research", "user": "ada", "priority": 10, "sizes": [1, 2], "command": ["train"]}


class Running:
    """One intake process, its broker, and readers of what it writes."""

    def __init__(self, address: str, folder: Path) -> None:
        self.bus = KafkaBus(address)
        self._folder = folder
        self._environ = {
            **os.environ,
            "GPUGRID_BOOTSTRAP": address,
            "GPUGRID_CATALOG": str(folder / "catalog.toml"),
            "GPUGRID_RUN_DIR": str(folder),
            "GPUGRID_HTTP_PORT": "0",
        }
        (folder / "catalog.toml").write_text(CATALOG)
        self.readers: dict[str, Consumer] = {}
        self.seen: dict[str, list[Record]] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    async def spawn(self) -> None:
        """Start it and wait until it says that it is ready."""
        self.process = self._started()
        deadline = time.monotonic() + DEADLINE_S
        while not await self._ready():
            assert time.monotonic() < deadline, self.log()
            assert self.process.poll() is None, self.log()
            await asyncio.sleep(0.05)
        door = msgspec.json.decode(door_path(self._folder).read_bytes(), type=DoorFile)
        self.url = f"http://127.0.0.1:{door.port}"

    def _started(self) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", "services.intake"], cwd=ROOT, env=self._environ, stderr=log)

    async def _ready(self) -> bool:
        health = read_health(self._folder, "intake")
        if health is None or self.process is None or health.pid != self.process.pid:
            return False
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(f"http://127.0.0.1:{health.port}/readyz") as response:
                    return response.status == 200
            except aiohttp.ClientError:
                return False

    def log(self) -> str:
        return (self._folder / "log").read_text()[-9000:]

    async def next_of(self, topic: str) -> Record:
        """The next record of a topic that this test hasn't seen."""
        if topic not in self.readers:
            partitions = [(topic, number) for number in range(await self.bus.partition_count(topic))]
            self.readers[topic] = self.bus.reader(f"test-{topic}", partitions)
            await self.readers[topic].start()
        deadline = time.monotonic() + DEADLINE_S
        while not self.seen.get(topic):
            assert time.monotonic() < deadline, f"nothing on {topic}: {self.log()}"
            self.seen[topic] = await self.readers[topic].poll(max_records=100, timeout_s=1.0)
        return self.seen[topic].pop(0)

    async def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        for reader in self.readers.values():
            await reader.stop()


@pytest.fixture
async def running(kafka_factory: Callable[[], EmbeddedBroker], tmp_path: Path) -> AsyncIterator[Running]:
    broker = kafka_factory()
    await ensure_topics(broker.address)
    folder = tmp_path / "run"
    folder.mkdir()
    running = Running(broker.address, folder)
    yield running
    await running.stop()


async def post(running: Running, body: Any) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(f"{running.url}/v1/jobs", json=body) as response:
        return response.status, await response.json()


def plain_record(job_id: str, payload: bytes) -> Message:
    """What a producer in any language sends that knows the header names and the JSON Schema."""
    headers = (
        ("ce_specversion", b"1.0"),
        ("ce_id", f"{job_id}-1".encode()),
        ("ce_source", b"/nightly"),
        ("ce_type", b"job.submitted.v1"),
        ("content-type", b"application/json"),
    )
    return Message("job-events", job_id.encode(), payload, headers)


async def test_jobs_go_in_by_http_and_kafka_and_a_kill_changes_no_answer(running: Running) -> None:
    await running.spawn()
    status, answer = await post(running, {"job_id": "by-http", "spec": SPEC})
    assert status == 202
    first = await running.next_of("jobs")
    assert (first.key, first.partition) == (b"by-http", 0)
    assert (decode_record(first).traceparent[3:35], decode_record(first).event.pools) == (answer["trace_id"], ["h100"])

    producer = running.bus.producer("test")
    await producer.start()
    example = (generated.PACKAGE / "examples" / "job.submitted.v1" / "valid" / "minimal.json").read_bytes()
    job_id = json.loads(example)["job_id"]
    await producer.send(plain_record(job_id, example))
    by_kafka = await running.next_of("jobs")
    assert by_kafka.key == job_id.encode()

    await producer.send(plain_record("bad", example.replace(job_id.encode(), b"bad").replace(b"[\n      1\n", b"[3")))
    assert decode_record(await running.next_of("dead-letters")).event.reason == "size_not_power_of_two"
    assert decode_record(await running.next_of("job-status")).event.job_id == "bad"

    assert running.process is not None
    running.process.send_signal(signal.SIGKILL)
    running.process.wait(10)
    await producer.send(plain_record(job_id, example))
    await producer.send(plain_record("by-http", example.replace(job_id.encode(), b"by-http")))
    await running.spawn()
    repeated = await running.next_of("jobs")
    while repeated.value != by_kafka.value:  # what the kill left uncommitted is answered again, too
        assert repeated.value in (first.value, by_kafka.value)
        repeated = await running.next_of("jobs")
    letter = decode_record(await running.next_of("dead-letters")).event
    while letter.reason == "size_not_power_of_two":
        letter = decode_record(await running.next_of("dead-letters")).event
    assert letter.reason == "conflicting_content"
    await producer.stop()

    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(60) == 0, running.log()


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("GPUGRID_CATALOG", "/nowhere.toml", "GPUGRID_CATALOG /nowhere.toml can't be read"),
        ("GPUGRID_CATALOG", "", "GPUGRID_CATALOG"),
        ("GPUGRID_HTTP_PORT", "99999", "GPUGRID_HTTP_PORT"),
    ],
)
def test_a_wrong_setting_gets_one_sentence(tmp_path: Path, variable: str, value: str, sentence: str) -> None:
    environ = {**os.environ, "GPUGRID_CATALOG": __file__, "GPUGRID_RUN_DIR": str(tmp_path), variable: value}
    done = subprocess.run(
        [sys.executable, "-m", "services.intake"], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 78
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr

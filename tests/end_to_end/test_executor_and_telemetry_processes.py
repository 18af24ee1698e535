"""Executor, telemetry and node agent as real processes on a real Kafka: they find each other through topics only."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.local.broker import EmbeddedBroker
from deploy.local.topics import create_topics
from schemas.base import Event
from schemas.codec import decode_record
from schemas.executions import JobCompleted, JobStarted, NodeReported
from schemas.messages import message
from schemas.nodes import Health, NodeStateChanged
from schemas.placements import NodePlaced
from schemas.topics import BY_NAME
from services.console.health_view import healths
from services.runtime.bus.kafka import KafkaBus
from services.runtime.health import read_health
from tests.unit.executor.executor_rig import assignment, placed

pytestmark = [pytest.mark.kafka]
ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
CATALOG = """
default_cluster = "c0"
[clusters.c0]
partition = 0
[clusters.c0.pools.h100]
gpus = 16
node_gpus = 8
gpu_model = "H100"
memory_mib = 81920
"""


class Stage:
    """Processes on one broker, and a reader of what they publish."""

    def __init__(self, broker: EmbeddedBroker, folder: Path) -> None:
        self.broker = broker
        self.bus = KafkaBus(broker.address)
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "catalog.toml").write_text(CATALOG)
        self.environment = os.environ | {
            "GPUGRID_BOOTSTRAP": broker.address,
            "GPUGRID_CATALOG": str(folder / "catalog.toml"),
            "GPUGRID_RUN_DIR": str(folder / "run"),
            "GPUGRID_NODES": "n00,n01",
        }

    def start(self, module: str, instance_id: str, **environment: str) -> None:
        self.processes[instance_id] = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=ROOT,
            env=self.environment | {"GPUGRID_INSTANCE_ID": instance_id} | environment,
        )

    def executor(self) -> None:
        self.start("services.executor", "executor-0", GPUGRID_DRIVER="simulated")

    def kill(self, instance_id: str, number: signal.Signals = signal.SIGKILL) -> int:
        process = self.processes.pop(instance_id)
        process.send_signal(number)
        return process.wait(PATIENCE_S)

    async def place(self, event: NodePlaced) -> None:
        producer = self.bus.producer("allocator")
        await producer.start()
        identity = f"{event.node}/{event.sequence}"
        await producer.send(message(event, key=event.node, id=identity, source="/t", time_ms=0, partition=0))
        await producer.stop()

    async def until(self, topic: str, enough: Callable[[list[Event]], bool]) -> list[Event]:
        """Everything in a topic once `enough` says so."""
        reader = self.bus.reader("observer", [(topic, part) for part in range(BY_NAME[topic].partitions)])
        await reader.start()
        deadline = time.monotonic() + PATIENCE_S
        found: list[Event] = []
        try:
            while not enough(found):
                assert time.monotonic() < deadline, f"waited too long; {topic} has {found[-5:]}"
                found += [decode_record(record).event for record in await reader.poll(max_records=500, timeout_s=0.2)]
        finally:
            await reader.stop()
        return found

    async def lags(self, instance_id: str, wanted: dict[str, int]) -> None:
        """Wait until a process tells just this lag."""
        deadline = time.monotonic() + PATIENCE_S
        while (told := self.lag_of(instance_id)) != wanted:
            assert time.monotonic() < deadline, f"waited too long for a lag of {wanted}; told is {told}"
            await asyncio.sleep(0.2)

    async def healthy(self, instance_id: str) -> None:
        """Wait until the running process of that name has said where its health is told."""
        deadline = time.monotonic() + PATIENCE_S
        while (health := read_health(self.folder / "run", instance_id)) is None or health.pid != self.processes[
            instance_id
        ].pid:
            assert time.monotonic() < deadline, f"{instance_id} tells {health}"
            await asyncio.sleep(0.05)

    def lag_of(self, instance_id: str) -> dict[str, int]:
        return next((dict(one.lag) for one in healths(self.folder / "run") if one.instance_id == instance_id), {})


@pytest.fixture
def stage(kafka_factory: Callable[[], EmbeddedBroker], tmp_path: Path) -> Iterator[Stage]:
    broker = kafka_factory()
    create_topics(broker.address)
    stage = Stage(broker, tmp_path)
    yield stage
    for process in stage.processes.values():
        process.kill()
        process.wait()


def of(kind: type[Event], events: list[Event]) -> list:
    return [event for event in events if isinstance(event, kind)]


async def test_a_killed_executor_process_goes_on_where_it_was(stage: Stage) -> None:
    stage.executor()
    await stage.until("executions", lambda found: len(of(NodeReported, found)) == 2)
    sent_s = time.monotonic()
    await stage.place(placed(1, assignment("a", 0, 1, run_s=4.0), assignment("b", 2, run_s=3600.0)))
    await stage.until("executions", lambda found: len(of(JobStarted, found)) == 2)
    print(f"placed to started, producer's start included: {time.monotonic() - sent_s:.3f} s")
    stage.kill("executor-0")
    stage.executor()

    # On a busy machine the job may have ended before the kill: the new process must have spoken, too.
    def over(found: list[Event]) -> bool:
        told = [event for event in of(NodeReported, found) if event.node == "n00"]
        return len(of(JobCompleted, found)) >= 1 and len(told) >= 2

    found = await stage.until("executions", over)
    assert len(of(JobStarted, found)) == 2
    assert of(JobCompleted, found)[0].run_s == 4.0
    reports = [event for event in of(NodeReported, found) if event.node == "n00"]
    assert reports[0].boot_id == reports[-1].boot_id
    assert {held.job_id for held in reports[-1].running} >= {"b"}
    await stage.healthy("executor-0")
    assert stage.kill("executor-0", signal.SIGTERM) == 0


async def test_nodes_appear_through_agent_and_telemetry_and_their_agents_death_is_noticed(stage: Stage) -> None:
    stage.start("services.telemetry", "telemetry-0")
    stage.start("services.telemetry.agent", "agent-0", GPUGRID_SOURCE="simulated", GPUGRID_PERIOD_S="1")
    found = await stage.until("node-states", lambda found: len(of(NodeStateChanged, found)) >= 2)
    assert {state.node for state in found} == {"n00", "n01"}
    assert all(len(state.gpus) == 8 and state.health is Health.USABLE for state in found)
    assert stage.kill("agent-0", signal.SIGTERM) == 0
    found = await stage.until("node-states", lambda found: found[-1:] and found[-1].health is Health.SUSPECT)
    assert stage.kill("telemetry-0", signal.SIGTERM) == 0


def test_a_wrong_setting_is_one_sentence(stage: Stage) -> None:
    for module, changed, sentence in (
        ("services.executor", {"GPUGRID_CLUSTERS": "c9"}, "GPUGRID_CLUSTERS is 'c9'"),
        ("services.executor", {"GPUGRID_NODES": ""}, "GPUGRID_NODES"),
        ("services.telemetry", {"GPUGRID_CATALOG": "/no/such"}, "GPUGRID_CATALOG /no/such can't be read"),
        ("services.telemetry.agent", {"GPUGRID_SOURCE": "nvml"}, "GPUGRID_NODES must name one node"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", module], cwd=ROOT, env=stage.environment | changed, capture_output=True, text=True
        )
        assert done.returncode == 78
        assert sentence in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


async def test_a_killed_broker_delays_reports_and_loses_none(stage: Stage) -> None:
    stage.executor()
    await stage.until("executions", lambda found: len(of(NodeReported, found)) == 2)
    await stage.place(placed(1, assignment("a", 0, run_s=2.0), assignment("b", 1, run_s=3600.0)))
    found = await stage.until("executions", lambda found: len(of(JobStarted, found)) == 2)
    end_ms = next(event.time_ms for event in of(JobStarted, found) if event.job_id == "a") + 2000
    stage.broker.kill()
    while time.time() * 1000 < end_ms + 500:
        await asyncio.sleep(0.1)  # the job ends while nobody can be told
    stage.broker.start()
    stage.broker.ready()
    found = await stage.until("executions", lambda found: len(of(JobCompleted, found)) >= 1)
    assert {event.time_ms for event in of(JobCompleted, found)} == {end_ms}
    await stage.place(placed(2, assignment("c", 0, run_s=0.1), assignment("b", 1, run_s=3600.0)))
    found = await stage.until("executions", lambda found: any(event.job_id == "c" for event in of(JobCompleted, found)))
    assert [event.job_id for event in of(JobStarted, found)] == ["a", "b", "c"]
    await stage.lags("executor-0", {"placements": 0})

"""Through the whole stack on a real Kafka: a training job is asked for a checkpoint, killed with -9, started again by its restart policy,
and ends with the weights of a run that nobody disturbed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.local.broker import EmbeddedBroker
from deploy.local.broker_process import broker_process
from deploy.local.service_processes import Surroundings, service_processes
from deploy.local.supervisor import Hooks, Supervisor
from schemas.codec import decode_record
from schemas.executions import FailureCause, JobCompleted, JobFailed, JobStarted
from schemas.records import Record
from services.executor import jobs
from services.executor.shell.drivers.identity import ProcessId
from services.runtime.bus.kafka import KafkaBus
from services.runtime.bus.port import BusError
from services.runtime.hop import read_to_end

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(700)]
ROOT = Path(__file__).parents[2]
TRAIN = Path(jobs.__file__).with_name("train_numpy.py")
STEPS = 1500
CATALOG = """
default_cluster = "c0"
[clusters.c0]
partition = 0
[clusters.c0.pools.h100]
gpus = 2
node_gpus = 2
gpu_model = "H100"
memory_mib = 81920
"""
PATIENCE_S = 150.0
READY_WAIT_S = 420.0
"""The planner's kernels may have to be compiled first."""


@asynccontextmanager
async def stack(run_dir: Path) -> AsyncIterator[str]:
    """Broker and all services, the executor with the process driver on one node; the broker's address."""
    run_dir.mkdir()
    (run_dir / "catalog.toml").write_text(CATALOG)
    broker = EmbeddedBroker(run_dir / "kafka")
    kafka = broker_process(broker)  # first: it chooses the port
    around = Surroundings(
        run_dir=run_dir,
        bootstrap=broker.address,
        catalog=run_dir / "catalog.toml",
        cluster="c0",
        pool="h100",
        nodes=("n00",),
        driver="process",
    )
    supervisor = Supervisor("training", run_dir, [kafka, *service_processes(around)], Hooks())
    supervisor.begin()
    try:
        deadline = time.monotonic() + READY_WAIT_S
        while supervisor.state != "ready":
            supervisor.check()
            assert time.monotonic() < deadline, "the stack never became ready"
            await asyncio.sleep(0.1)
        yield broker.address
    finally:
        await asyncio.to_thread(supervisor.stop)


class Console:
    """Commands as a person runs them."""

    def __init__(self, address: str, run_dir: Path) -> None:
        self._address = address
        self._environment = os.environ | {"GPUGRID_RUN_DIR": str(run_dir)}

    async def run(self, *words: str) -> str:
        return await asyncio.to_thread(self._run, words)

    async def json(self, *words: str) -> Any:
        return json.loads(await self.run(words[0], "--json", *words[1:]))

    def _run(self, words: tuple[str, ...]) -> str:
        command = [sys.executable, "-m", "services.console", "--bootstrap", self._address, *words]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=ROOT, env=self._environment
        )
        assert done.returncode == 0, f"{words}: {done.stdout} {done.stderr}"
        return done.stdout


async def executions(address: str) -> list[Any]:
    bus = KafkaBus(address)
    count = await bus.partition_count("executions")
    reader = bus.reader("judge", [("executions", number) for number in range(count)])
    found: list[Record] = []
    await reader.start()
    try:
        await read_to_end(reader, found.append)
    finally:
        await reader.stop()
    return [decode_record(record).event for record in found]


async def waited_for(address: str, kind: type, job_id: str, attempt: int) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        assert time.monotonic() < deadline, f"{job_id} never was {kind.__name__} in attempt {attempt}"
        try:
            for event in await executions(address):
                if isinstance(event, kind) and (event.job_id, event.attempt) == (job_id, attempt):
                    return event
        except BusError:
            pass
        await asyncio.sleep(0.1)


def submission(folder: Path, job_id: str) -> str:
    return json.dumps(
        {
            "job_id": job_id,
            "kind": "training",
            "priority": 5,
            "sizes": [1],
            "time_limit_s": 3600,
            "command": [
                sys.executable,
                str(TRAIN),
                "--steps",
                str(STEPS),
                "--folder",
                str(folder),
                "--pause-s",
                "0.03",
            ],
            "checkpoint": {"mode": "signal", "wait_s": 60},
            "restart": {"mode": "on_failure", "attempts_max": 3, "backoff_s": 0},
        }
    )


async def test_a_killed_training_job_ends_with_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    async with stack(run_dir) as address:
        console = Console(address, run_dir)
        for name in ("killed", "calm"):
            file = tmp_path / f"{name}.json"
            file.write_text(submission(tmp_path / name, name))
            await console.run("submit", str(file))
        started = await waited_for(address, JobStarted, "killed", 1)
        saved = await console.json("checkpoint", "killed", "--wait", "--timeout", "60")
        assert 0 < saved["fraction"] < 1
        job = ProcessId(started.pid, start_ticks(started.pid))
        assert job.signal_group(signal.SIGKILL)
        failed = await waited_for(address, JobFailed, "killed", 1)
        assert (failed.cause, failed.signal) == (FailureCause.SIGNAL, signal.SIGKILL)
        await waited_for(address, JobCompleted, "killed", 2)
        await waited_for(address, JobCompleted, "calm", 1)
        again = await console.run("logs", "killed", "-n", "100")
        (begun,) = re.findall(r"starts at step (\d+)", again)
        assert int(begun) == round(saved["fraction"] * STEPS) > 0
        assert weights(again) == weights(await console.run("logs", "calm", "-n", "100"))
        history = [row["type"] for row in await console.json("events", "killed", "--topic", "executions")]
        assert [kind for kind in history if kind != "job.progressed.v1"] == [
            "job.started.v1",
            "job.checkpointed.v1",
            "job.failed.v1",
            "job.started.v1",
            "job.completed.v1",
        ]
        assert "job.progressed.v1" in history


def weights(output: str) -> str:
    (found,) = re.findall(r"weights (\w+)", output)
    return found


def start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])

"""A gang of real processes under two executors: they start together, meet at the master's port, and none starts if one can't."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from pathlib import Path

import pytest

from schemas.executions import FailureCause, JobCompleted, JobFailed, JobStarted, JobStopped, StopCause
from schemas.placements import Assignment, Desired
from services.executor.shell.device_facts import DeviceFacts
from services.executor.shell.drivers.environment import Site, first_port
from services.executor.shell.drivers.process import ProcessDriver
from services.runtime.clock import WallClock
from tests.unit.executor.executor_rig import Rig, placed

PATIENCE_S = 60.0
MEET = """
import os, socket, time
port, rank = int(os.environ["MASTER_PORT"]), int(os.environ["NODE_RANK"])
if rank == 0:
    with socket.create_server((os.environ["MASTER_ADDR"], port)) as master:
        other, _ = master.accept()
        with other:
            assert other.recv(10) == b"rank 1"
else:
    until = time.monotonic() + 30
    while True:
        try:
            with socket.create_connection((os.environ["MASTER_ADDR"], port)) as line:
                line.sendall(b"rank 1")
            break
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.02)
assert os.environ["WORLD_SIZE"] == "2" and os.environ["RANK"] == str(rank)
"""


class Pair:
    """Two executors on one bus, each with a node and a folder of its own."""

    def __init__(self, folder: Path, models: tuple[str, str] = ("H100", "H100")) -> None:
        clock = WallClock()
        self.left = Rig(clock, nodes=("n00",))
        self.right = Rig(clock, nodes=("n01",), bus=self.left.bus)
        for rig, model in zip((self.left, self.right), models, strict=True):
            name = rig.nodes[0]
            site = Site(nodes=(name,), hosts={"n00": "127.0.0.1", "n01": "127.0.0.1"})
            devices = DeviceFacts(model=model, driver="560")
            rig.driver = ProcessDriver(clock, folder / name, site, grace_s=0.5, devices=devices)

    async def place(self, sequence: int, **changed) -> None:
        parts = [
            Assignment(
                **{
                    "job_id": "gang",
                    "attempt": 1,
                    "desired": Desired.RUN,
                    "gpus": [0],
                    "nodes": ["n00", "n01"],
                    "node_rank": rank,
                    "world_size": 2,
                    "command": [sys.executable, "-c", MEET],
                }
                | changed
            )
            for rank in (0, 1)
        ]
        await self.left.place(placed(sequence, parts[0]), placed(sequence, parts[1], node="n01"))

    async def until(self, kind: type, count: int) -> list:
        deadline = time.monotonic() + PATIENCE_S
        while len(found := self.left.events(kind)) < count:
            assert time.monotonic() < deadline, f"{kind.__name__}: {self.left.said()}"
            await asyncio.sleep(0.02)
        return found

    async def end(self) -> None:
        for rig in (self.left, self.right):
            if rig.task is not None:
                await rig.crash()


@pytest.fixture
async def pairs():
    made: list[Pair] = []
    yield made
    for pair in made:
        await pair.end()


async def test_the_processes_of_a_gang_meet_even_if_its_usual_port_is_taken(pairs, tmp_path):
    pairs.append(pair := Pair(tmp_path))
    with socket.socket() as taken:
        taken.bind(("", first_port(Assignment(job_id="gang", attempt=1, desired=Desired.RUN, gpus=[0]))))
        taken.listen()
        await pair.left.start()
        await pair.place(1)
        await pair.right.start()
        ended = await pair.until(JobCompleted, 2)
    assert {event.node for event in ended} == {"n00", "n01"}
    first, second = pair.left.events(JobStarted)
    assert abs(first.time_ms - second.time_ms) < 5_000


async def test_another_gpu_model_on_one_node_keeps_the_whole_gang_from_starting(pairs, tmp_path):
    pairs.append(pair := Pair(tmp_path, models=("H100", "A100")))
    await pair.left.start()
    await pair.right.start()
    await pair.place(1)
    (failed,) = await pair.until(JobFailed, 1)
    assert (failed.node, failed.cause) == ("n01", FailureCause.PREFLIGHT)
    assert "n01 has A100, n00 has H100" in failed.detail
    await pair.place(2, desired=Desired.STOP, stop_cause=StopCause.GANG_BROKEN)
    (stopped,) = await pair.until(JobStopped, 1)
    assert (stopped.node, stopped.run_s) == ("n00", 0.0)
    assert pair.left.events(JobStarted) == []


async def test_a_preflight_that_fails_fails_at_once_and_by_its_own_cause(pairs, tmp_path):
    pairs.append(pair := Pair(tmp_path))
    await pair.left.start()
    await pair.place(1, working_directory="/no/such/folder")
    (failed,) = await pair.until(JobFailed, 1)
    assert failed.cause is FailureCause.WORKING_DIRECTORY
    assert pair.left.events(JobStarted) == []

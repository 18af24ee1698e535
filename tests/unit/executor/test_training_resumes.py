"""The bundled training job, killed in the middle and resumed from its checkpoint, ends with the weights of an undisturbed run."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from schemas.executions import FailureCause
from schemas.jobs import CheckpointMode, CheckpointPolicy
from schemas.placements import Assignment, Desired
from services.executor import jobs
from services.executor.core.reports import Progress
from services.executor.shell.drivers.environment import Site
from services.executor.shell.drivers.identity import ProcessId
from services.executor.shell.drivers.port import Answer, Order
from services.executor.shell.drivers.process import ProcessDriver
from services.runtime.clock import WallClock

TRAIN = Path(jobs.__file__).with_name("train_numpy.py")
PATIENCE_S = 60.0
STEPS = 600


@pytest.fixture
def driver(tmp_path: Path) -> ProcessDriver:
    return ProcessDriver(WallClock(), tmp_path / "run", Site(nodes=("n00",)), grace_s=0.5)


def training(folder: Path, *, attempt: int = 1, mode: CheckpointMode = CheckpointMode.SIGNAL, **changed) -> Order:
    command = [sys.executable, str(TRAIN), "--steps", str(STEPS), "--folder", str(folder), "--pause-s", "0.002"]
    fields = {"desired": Desired.RUN, "command": command, "checkpoint": CheckpointPolicy(mode=mode)}
    return Order("n00", Assignment(job_id=f"train-{folder.name}", attempt=attempt, gpus=[0], **(fields | changed)))


async def until(condition) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        await asyncio.sleep(0.01)


def output(driver: ProcessDriver, order: Order) -> str:
    path = driver.folder_of(order) / "output.log"
    return path.read_text() if path.exists() else ""


def weights(driver: ProcessDriver, order: Order) -> str:
    (found,) = re.findall(r"weights (\w+)", output(driver, order))
    return found


async def finished(driver: ProcessDriver, order: Order) -> str:
    run = await driver.start(order)
    exit = await asyncio.wait_for(run.ended(), PATIENCE_S)
    assert exit.cause is None, output(driver, order)
    return weights(driver, order)


@pytest.mark.parametrize("mode", [CheckpointMode.SIGNAL, CheckpointMode.FILE])
async def test_killed_in_the_middle_and_resumed_it_ends_with_the_same_weights(driver, tmp_path, mode):
    undisturbed = asyncio.ensure_future(finished(driver, training(tmp_path / "undisturbed", mode=mode)))
    first = training(tmp_path / "killed", mode=mode)
    run = await driver.start(first)
    ended = asyncio.ensure_future(run.ended())
    await until(lambda: "starts at step 0" in output(driver, first))
    answer = await run.checkpoint(PATIENCE_S)
    assert answer is not None
    assert 0 < answer.fraction < 1
    step = round(answer.fraction * STEPS)
    assert Path(answer.location).name == f"step-{step:08}.npz"
    await until(lambda: isinstance(said := run.unheard(), Progress) and (said.step or 0) > 0)
    assert ProcessId(run.facts.pid, run.facts.pid_ticks).signal_group(signal.SIGKILL)
    assert (await ended).cause is FailureCause.SIGNAL
    resumed = training(
        tmp_path / "killed",
        attempt=2,
        mode=mode,
        resume_fraction=answer.fraction,
        resume_location=answer.location,
    )
    assert await finished(driver, resumed) == await undisturbed
    assert f"starts at step {step}\n" in output(driver, resumed)


async def test_a_stop_saves_first_and_what_was_saved_is_the_last_step_it_did(driver, tmp_path):
    order = training(tmp_path / "stopped")
    run = await driver.start(order)
    ended = asyncio.ensure_future(run.ended())
    await until(lambda: "starts at step 0" in output(driver, order))
    first, second = await run.checkpoint(PATIENCE_S), await run.checkpoint(PATIENCE_S)
    assert isinstance(first, Answer)
    assert isinstance(second, Answer)
    assert second.fraction > first.fraction
    assert Path(second.location).exists()
    await run.stop()
    assert (await ended).signal == signal.SIGTERM

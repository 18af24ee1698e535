"""The page for job authors tells the truth: its example saves on request and goes on from there."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from schemas.jobs import CheckpointMode, CheckpointPolicy
from schemas.placements import Assignment, Desired
from services.executor.shell.drivers.environment import Site, environment_of
from services.executor.shell.drivers.port import Order
from services.executor.shell.drivers.process import ProcessDriver
from services.runtime.clock import WallClock

GUIDE = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text()
PATIENCE_S = 20.0


def example(fraction: float) -> Assignment:
    match = re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert match is not None
    code = match[1].replace("while done", "print('up', flush=True)\nwhile done", 1)
    return Assignment(
        job_id="guide",
        attempt=1 if fraction == 0 else 2,
        desired=Desired.RUN,
        gpus=[0],
        command=[sys.executable, "-c", code],
        checkpoint=CheckpointPolicy(mode=CheckpointMode.SIGNAL),
        resume_fraction=fraction,
    )


async def test_the_example_saves_when_asked_and_resumes(tmp_path: Path):
    driver = ProcessDriver(WallClock(), tmp_path, Site(nodes=("n00",)), grace_s=0.5)
    fraction = 0.0
    for _ in range(2):
        order = Order("n00", example(fraction))
        run = await driver.start(order)
        ended = asyncio.ensure_future(run.ended())
        async with asyncio.timeout(PATIENCE_S):
            while "up" not in (driver.folder_of(order) / "output.log").read_text():
                await asyncio.sleep(0.01)
        answer = await run.checkpoint(PATIENCE_S)
        assert answer is not None
        assert answer.location == "/data/run-7"
        assert fraction < answer.fraction < 1
        fraction = max(answer.fraction, 0.5)
        await run.stop()
        await ended


@pytest.mark.parametrize("name", sorted(environment_of("n", example(0.0), Path("/f"), Site(nodes=("n",)), {})))
def test_every_variable_is_documented(name: str):
    assert name in GUIDE or name == "CUDA_DEVICE_ORDER"

"""A Slurm controller that doesn't answer says nothing about a job, however often it is asked; its first answer counts at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from schemas.executions import FailureCause
from services.executor.core.journal import RunFacts
from services.executor.core.reports import Exit
from services.executor.shell.drivers import slurm as slurm_driver
from services.executor.shell.drivers.port import Order
from services.executor.shell.drivers.run_folder import Ended, write
from services.executor.shell.drivers.slurm import SlurmRun
from services.runtime.virtual import VirtualClock, run_virtual
from tests.build import START_MS
from tests.unit.executor.executor_rig import assignment


class Controller:
    """Answers nothing `silent` times in a row, then `says` for ever; a question takes as long as one that gets no answer."""

    def __init__(self, clock: VirtualClock, silent: int, says: str) -> None:
        self.clock, self.silent, self.says = clock, silent, says
        self.asked = 0

    async def state(self, number: str) -> str:
        self.asked += 1
        if self.asked <= self.silent:
            await self.clock.sleep_wall(slurm_driver.COMMAND_WAIT_S)
            raise slurm_driver.SlurmError("squeue did not answer")
        return self.says


def followed(
    folder: Path, silent: int, says: str, notes_after_s: float | None = None
) -> tuple[Exit | None, int, float]:
    """The end that is seen within two hours, how often the controller was asked, and when the end was seen."""

    async def main(clock: VirtualClock) -> tuple[Exit | None, int, float]:
        controller = Controller(clock, silent, says)
        driver = SimpleNamespace(clock=clock, slurm=controller, folder_of=lambda order: folder, grace_s=1.0)
        talk = SimpleNamespace(close=lambda: None)
        facts = RunFacts(started_ms=clock.now_ms(), name="7")
        run = SlurmRun(cast(Any, driver), Order("n00", assignment("j", 0)), facts, cast(Any, talk))
        began_s, ending = clock.wall_s(), asyncio.ensure_future(run.ended())
        if notes_after_s is not None:
            await clock.sleep_wall(notes_after_s)
            assert not ending.done(), "silence is no end"
            write(folder / "exit.json", msgspec.json.encode(Ended(wall_ms=clock.wall_ms(), code=0)))
        await asyncio.wait((ending,), timeout=7200)
        seen = ending.result() if ending.done() else None
        ending.cancel()
        return seen, controller.asked, clock.wall_s() - began_s

    return run_virtual(main, START_MS)


@pytest.mark.parametrize("silent", [1, 25, 100])
def test_time_outs_in_a_row_end_no_job(tmp_path: Path, silent: int) -> None:
    seen, asked, _ = followed(tmp_path, silent, "RUNNING None")
    assert seen is None
    assert asked > silent + 100, "and it is asked as often as before once it answers"


@pytest.mark.parametrize("silent", [0, 25])
def test_the_first_answer_counts(tmp_path: Path, silent: int) -> None:
    seen, asked, _ = followed(tmp_path, silent, "FAILED NonZeroExitCode")
    assert seen is not None
    assert (seen.cause, asked) == (FailureCause.UNKNOWN, silent + 1)


def test_its_own_note_ends_it_while_the_controller_is_silent(tmp_path: Path) -> None:
    seen, asked, at_s = followed(tmp_path, 10_000, "", notes_after_s=1800.0)
    assert seen is not None
    assert (seen.cause, asked > 25) == (None, True)
    assert at_s <= 1800.0 + slurm_driver.COMMAND_WAIT_S + slurm_driver.ASK_S

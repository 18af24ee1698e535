"""Runs in a control group of their own: where this machine grants one, nothing of a job is left, whatever becomes of its runner."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from schemas.executions import FailureCause
from services.executor.shell.drivers import process
from services.executor.shell.drivers.control_group import group_of
from services.executor.shell.drivers.environment import Site
from services.executor.shell.drivers.process import ProcessDriver
from services.executor.shell.runner import remove_group
from services.runtime.clock import WallClock
from tests.unit.executor.test_process_driver import PATIENCE_S, order, output, python, run_to_end, until


@pytest.fixture
def driver(tmp_path: Path) -> ProcessDriver:
    return ProcessDriver(WallClock(), tmp_path, Site(nodes=("n00",)), grace_s=0.5)


@pytest.fixture
def granted(tmp_path: Path) -> None:
    """Skips where no group can be made: cgroup v1 alone, or no right to."""
    group = group_of(tmp_path / "probe")
    try:
        Path(group or "/proc/none").mkdir()
    except OSError:
        pytest.skip("this machine has no cgroup v2 hierarchy in which a group can be made")
    remove_group(group)
    assert not Path(group).exists()


def group_of_run(driver: ProcessDriver, assignment) -> Path:
    folder = driver.folder_of(order(assignment))
    return Path(msgspec.json.decode((folder / "spec.json").read_bytes())["group"])


@pytest.mark.usefixtures("granted")
async def test_a_job_is_in_its_group_from_its_first_instruction_and_the_group_goes_with_it(driver):
    assignment = python("print(open('/proc/self/cgroup').read())")
    assert (await run_to_end(driver, assignment)).cause is None
    group = group_of_run(driver, assignment)
    assert group.name in output(driver, assignment)
    await until(lambda: not group.exists())


@pytest.mark.usefixtures("granted")
async def test_a_runner_killed_by_force_leaves_nothing_not_even_in_sessions_of_their_own(driver, tmp_path):
    code = (
        "import subprocess, sys, time, pathlib\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "far = subprocess.Popen(sleep, start_new_session=True)\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(f'{{far.pid}} done')\n"
        "time.sleep(600)\n"
    )
    assignment = python(code)
    run = await driver.start(order(assignment))
    await until(lambda: (tmp_path / "pid").exists() and "done" in (tmp_path / "pid").read_text())
    far = int((tmp_path / "pid").read_text().split()[0])
    os.kill(run.facts.runner_pid or 0, signal.SIGKILL)
    assert (await asyncio.wait_for(run.ended(), PATIENCE_S)).cause is FailureCause.UNKNOWN
    assert not group_of_run(driver, assignment).exists()
    await until(lambda: _gone(far))


async def test_where_no_group_can_be_made_jobs_run_without(driver, monkeypatch, tmp_path):
    for group in ("", "/proc/gpugrid-none", str(tmp_path / "no" / "such")):
        monkeypatch.setattr(process, "group_of", lambda folder, group=group: group)
        assignment = python("print('ran')", job_id=f"job-{len(group)}")
        assert (await run_to_end(driver, assignment)).cause is None
        assert output(driver, assignment) == "ran\n"


async def test_a_command_that_is_missing_leaves_no_group(driver):
    assignment = python("pass")
    broken = msgspec.structs.replace(assignment, command=["/no/such/program"])
    with pytest.raises(process.StartRefusedError):
        await driver.start(order(broken))
    group = group_of_run(driver, broken)
    await until(lambda: not group.name or not group.exists())


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True

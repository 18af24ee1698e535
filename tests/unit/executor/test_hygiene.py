"""What goes wrong around a job has its own cause: full disks, forks that fail; logs and folders don't grow for ever; GPUs are looked at."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from schemas.executions import FailureCause
from schemas.placements import Assignment, Desired
from services.executor.shell import runner
from services.executor.shell.device_facts import DeviceFacts, NvmlMemory, device_facts
from services.executor.shell.drivers.environment import PORTS_TRIED_MAX, Site, free_port
from services.executor.shell.drivers.job_log import LogLimits, rotate
from services.executor.shell.drivers.port import Order, StartRefusedError
from services.executor.shell.drivers.process import ProcessDriver
from services.executor.shell.drivers.refusals import spawn_failure
from services.executor.shell.drivers.run_folder import ended_in
from services.executor.shell.run_folders import old_folders, remove
from services.runtime.clock import WallClock

PATIENCE_S = 30.0


def python(code: str, job_id: str = "a") -> Order:
    command = [sys.executable, "-c", code]
    return Order("n00", Assignment(job_id=job_id, attempt=1, desired=Desired.RUN, gpus=[0], command=command))


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 256 KiB; root may mount one, elsewhere the test says loudly that it was skipped."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "gpugrid-test", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_start_on_a_full_disk_fails_as_that(small_disk: Path):
    driver = ProcessDriver(WallClock(), small_disk, Site(nodes=("n00",)))
    fill(small_disk)
    with pytest.raises(StartRefusedError) as refused:
        await driver.start(python("pass"))
    assert refused.value.cause is FailureCause.DISK_FULL
    assert "No space left" in refused.value.detail


async def test_a_job_that_fails_because_its_output_filled_the_disk_fails_as_that(small_disk: Path):
    driver = ProcessDriver(WallClock(), small_disk, Site(nodes=("n00",)))
    code = "import sys\ntry:\n    while True: sys.stdout.write('x' * 4096); sys.stdout.flush()\nexcept OSError: sys.exit(5)"
    run = await driver.start(python(code))
    exit = await asyncio.wait_for(run.ended(), PATIENCE_S)
    assert (exit.cause, exit.exit_code) == (FailureCause.DISK_FULL, 5)


@pytest.mark.parametrize("left_bytes", range(0, 80 * 1024, 4096))
async def test_wherever_the_disk_gets_full_a_job_is_either_refused_and_not_there_or_its_end_is_known(
    small_disk: Path, tmp_path: Path, left_bytes: int
):
    driver = ProcessDriver(WallClock(), small_disk, Site(nodes=("n00",)))
    fill(small_disk)
    os.truncate(small_disk / "filler", max(0, (small_disk / "filler").stat().st_size - left_bytes))
    ran = tmp_path / "ran"
    filling = (
        f"import os\nfile = open({str(small_disk / 'more')!r}, 'wb', buffering=0)\nopen({str(ran)!r}, 'w').close()\n"
    )
    filling += "try:\n    while True: file.write(b'x' * 1024)\nexcept OSError: os._exit(7)"
    refusal = None
    try:
        run = await driver.start(python(filling))
    except StartRefusedError as refused:
        refusal = refused
    if refusal is not None:
        assert refusal.cause is FailureCause.DISK_FULL, refusal.detail
        assert not ran.exists()
        return
    exit = await asyncio.wait_for(run.ended(), PATIENCE_S)
    assert (exit.cause, exit.exit_code) == (FailureCause.DISK_FULL, 7)
    assert ran.exists()


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"x" * 1024)
        except OSError:
            return


def test_a_fork_that_fails_is_noted_as_such():
    """As a user who may have no second process; root is never refused one."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        spec = {"command": ["true"], "environment": {}, "directory": "/", "log": f"{name}/log"}
        (folder / "spec.json").write_text(json.dumps(spec))
        code = (
            "import contextlib, ctypes, errno, json, os, resource, signal, sys, time\n"
            f"source = open({runner.__file__!r}).read()\n"
            "resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)); os.setgid(65534); os.setuid(65534)\n"
            f"sys.argv = ['runner', {name!r}, '1']; exec(compile(source, 'runner', 'exec'))"
        )
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        noted = ended_in(folder)
        assert noted is not None, done.stderr
        assert (noted.stage, noted.errno) == ("fork", errno.EAGAIN)
        refused = spawn_failure(
            noted, Assignment(job_id="a", attempt=1, desired=Desired.RUN, gpus=[0], command=["true"])
        )
        assert refused.cause is FailureCause.SPAWN
        assert "fork" in refused.detail


async def test_a_long_log_is_rotated_while_the_job_writes_on(tmp_path: Path):
    driver = ProcessDriver(
        WallClock(), tmp_path, Site(nodes=("n00",)), grace_s=0.5, log_limits=LogLimits(bytes_max=20_000, kept=3)
    )
    code = "import time\nfor n in range(10**9):\n    print(f'{n:09}', flush=True)\n    time.sleep(0.0001)"
    order = python(code)
    run = await driver.start(order)
    listening = asyncio.ensure_future(run.news())
    ended = asyncio.ensure_future(run.ended())
    folder = driver.folder_of(order)
    deadline = time.monotonic() + PATIENCE_S
    while not (folder / "output.log.2").exists():
        assert time.monotonic() < deadline, "the log was never rotated twice"
        await asyncio.sleep(0.02)
    listening.cancel()
    await run.stop()
    await ended
    assert sorted(path.name for path in folder.glob("output.log*")) == ["output.log", "output.log.1", "output.log.2"]
    numbers = [
        int(line) for name in ("output.log.2", "output.log.1", "output.log") for line in whole_lines(folder / name)
    ]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] - numbers[0] + 1 - len(numbers) < 100, "more than the lines of a moment were lost"


def whole_lines(path: Path) -> list[str]:
    return [line for line in path.read_text().split("\n") if len(line) == 9]


def test_a_rotation_keeps_every_byte_of_a_quiet_log_and_drops_the_oldest(tmp_path: Path):
    log = tmp_path / "output.log"
    for content in ("one", "two", "three", "four"):
        log.write_text(content)
        rotate(log, LogLimits(bytes_max=1, kept=3))
    assert log.read_text() == ""
    assert [(tmp_path / f"output.log.{number}").read_text() for number in (1, 2)] == ["four", "three"]
    assert not (tmp_path / "output.log.3").exists()


def test_a_rotation_without_room_for_its_copy_changes_nothing_and_takes_no_room(small_disk: Path):
    log = small_disk / "output.log"
    log.write_bytes(b"x" * 160 * 1024)
    before = shutil.disk_usage(small_disk).free
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            rotate(log, LogLimits(bytes_max=1, kept=3))
    assert (log.stat().st_size, shutil.disk_usage(small_disk).free) == (160 * 1024, before)
    assert [path.name for path in small_disk.iterdir()] == ["output.log"]


def test_run_folders_go_when_their_attempts_ended_long_ago_and_only_then(tmp_path: Path):
    def folder(name: str, age_s: float, *files: str) -> Path:
        made = tmp_path / name
        made.mkdir(parents=True)
        for file in files:
            (made / file).write_text("{}")
            os.utime(made / file, (1e9 - age_s, 1e9 - age_s))
        os.utime(made, (1e9 - age_s, 1e9 - age_s))
        return made

    old = folder("n00/job/1-1", 500, "spec.json", "exit.json")
    alive = folder("n00/job/2-1", 500, "spec.json")
    folder("n00/job/3-1", 50, "spec.json", "exit.json")
    folder("n00/other/1-1", 500, "notes")
    folder("n00/journal-backup/x-y", 500, "spec.json")
    lonely = folder("n01/gone/1-2", 500, "spec.json", "exit.json", "output.log")
    assert old_folders(tmp_path, [alive], 1e9, 100) == [old, lonely]
    remove([old, lonely])
    assert not lonely.parent.exists()
    assert alive.exists()


def test_a_port_in_use_is_not_given_to_a_gang():
    with socket.socket() as taken:
        first = free_port(20_500)
        assert first is not None
        taken.bind(("", first))
        taken.listen()
        second = free_port(first)
        assert second is not None
        assert first < second < first + PORTS_TRIED_MAX


class NvmlError(Exception):
    pass


class Gpus:
    """Two GPUs behind the calls of NVIDIA's library that are used; `fails`: GPU 1 answers nothing."""

    def __init__(self, *, fails: bool = False, present: bool = True) -> None:
        self.used_mib = {0: 3, 1: 3}
        self.pids: dict[int, list[int]] = {0: [], 1: []}

        def handle(index: int) -> int:
            return failing() if fails and index == 1 else index

        self.nvml = SimpleNamespace(
            NVMLError=NvmlError,
            nvmlMemory_v2=2,
            nvmlInit=lambda: None if present else failing(),
            nvmlShutdown=lambda: None,
            nvmlDeviceGetCount=lambda: 2,
            nvmlSystemGetDriverVersion=lambda: b"560.35",
            nvmlDeviceGetHandleByIndex=handle,
            nvmlDeviceGetUUID=lambda index: f"GPU-{index}",
            nvmlDeviceGetName=lambda index: "NVIDIA H100",
            nvmlDeviceGetComputeRunningProcesses=lambda index: [SimpleNamespace(pid=pid) for pid in self.pids[index]],
            nvmlDeviceGetMemoryInfo=lambda index, version: SimpleNamespace(used=self.used_mib[index] * 1024 * 1024),
        )


def failing() -> int:
    raise NvmlError


def test_memory_in_use_is_named_with_its_holder():
    gpus = Gpus()
    memory = NvmlMemory(gpus.nvml)
    assert memory.indices() == [0, 1]
    assert memory.in_use([0, 1]) == {}
    gpus.used_mib[1], gpus.pids[1] = 5120, [4711, 4712]
    gpus.used_mib[0] = 900
    assert memory.in_use([0, 1]) == {
        0: "900 MiB in use by a process that can't be seen from here",
        1: "5120 MiB in use by pid 4711, 4712",
    }
    assert memory.in_use([]) == {}


def test_a_gpu_that_does_not_answer_and_a_machine_without_nvml_block_nothing():
    assert NvmlMemory(Gpus(fails=True).nvml).in_use([0, 1]) == {}
    absent = Gpus(present=False).nvml
    assert NvmlMemory(absent).in_use([0, 1]) == {}
    assert NvmlMemory(absent).indices() == []
    assert device_facts(Gpus().nvml) == DeviceFacts(("GPU-0", "GPU-1"), "NVIDIA H100", "560.35")
    assert device_facts(Gpus(fails=True).nvml) == device_facts(absent) == DeviceFacts()

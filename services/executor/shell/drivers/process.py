"""Real commands as processes of this machine: own session, own log, GPUs by environment, ended as a whole group.

Owns: the run folder (`<run dir>/<node>/<job>/<attempt>-<spawn>/`) and the conversation with the job: checkpoint request by
signal and file, answer by file, SIGTERM, grace, SIGKILL. Each job runs under `runner.py`, which outlives this process and
writes the exit down. Refuses: jobs without a command. End times are wall times: this driver belongs on a wall clock.
Read next: `runner.py`, `environment.py`, `identity.py`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from schemas.executions import FailureCause
from schemas.placements import Assignment
from services.executor.core.journal import RunFacts
from services.executor.core.reports import Exit
from services.executor.shell.drivers.environment import (
    ANSWER_FILE,
    GPUS_FILE,
    REQUEST_FILE,
    Site,
    environment_of,
    visible_devices,
)
from services.executor.shell.drivers.identity import ProcessId, machine_boot_id, readable
from services.executor.shell.drivers.port import Answer, Order, StartRefusedError
from services.runtime.clock import Clock

GRACE_S = 10.0
"""Between SIGTERM and SIGKILL: long enough to close files and connections; saving work has its own wait before."""
ANSWER_POLL_S = 0.05
"""How late a checkpoint answer may be noticed."""
ADOPT_POLL_S = 0.05
START_WAIT_S = 30.0
"""From launching the runner to the job's first instruction; only a machine that swaps or stalls takes longer than 0.2 s."""
FOLDER_NAME_LENGTH_MAX = 200
RUNNER = Path(__file__).resolve().parent.parent / "runner.py"
_FULL = (errno.ENOSPC, errno.EDQUOT)
T = TypeVar("T")
_ABANDONED = b'{"pid": 0, "ticks": 0}'


class _Claim(Struct):
    pid: int
    ticks: int


class _Job(Struct):
    pid: int
    ticks: int
    wall_ms: int


class _Exit(Struct):
    wall_ms: int
    code: int | None = None
    signal: int | None = None
    errno: int | None = None
    stage: str = ""


class _Answer(Struct):
    fraction: float
    location: str = ""


class ProcessRun:
    """One job's processes, seen through their runner and its folder."""

    def __init__(self, clock: Clock, node: str, folder: Path, site: Site, facts: RunFacts, grace_s: float) -> None:
        self.facts = facts
        self._clock = clock
        self._node = node
        self._folder = folder
        self._site = site
        self._grace_s = grace_s
        self._runner = ProcessId(facts.runner_pid or 0, facts.runner_ticks)
        self._job = ProcessId(facts.pid or 0, facts.pid_ticks)
        self._gone = asyncio.Event()

    async def ended(self) -> Exit:
        await self._runner.gone()
        _reap(self._runner.pid)
        self._gone.set()
        noted = _read(self._folder / "exit.json", _Exit)
        if noted is not None:
            return _exit_of(noted, self._domain_ms(noted.wall_ms))
        self._job.signal_group(signal.SIGKILL)  # its runner was killed: nobody would ever learn of its end
        detail = "the job's runner vanished without noting an exit (killed by force, out of memory, or a restart)"
        return Exit(self._clock.now_ms(), FailureCause.UNKNOWN, detail=detail)

    async def checkpoint(self, wait_s: float) -> Answer | None:
        answer, request = self._folder / ANSWER_FILE, self._folder / REQUEST_FILE
        try:
            answer.unlink(missing_ok=True)
            request.touch()
        except OSError:
            return None  # a full disk: the job could not save its work either
        if not self._job.signal(signal.SIGUSR1):
            return None
        until_s = self._clock.wall_s() + wait_s
        while True:
            ended = self._gone.is_set()  # looked at before the file: an answer given with the last breath counts
            found = _read(answer, _Answer)
            if found is not None and 0 <= found.fraction <= 1:
                request.unlink(missing_ok=True)
                return Answer(found.fraction, found.location)
            if ended or self._clock.wall_s() >= until_s:
                request.unlink(missing_ok=True)
                return None
            await self._clock.sleep_wall(ANSWER_POLL_S)

    async def stop(self) -> None:
        self._job.signal_group(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._gone.wait(), self._grace_s)
        except TimeoutError:
            self.kill()
            await self._gone.wait()

    def kill(self) -> None:
        self._job.signal_group(signal.SIGKILL)

    async def rescale(self, gpus: tuple[int, ...]) -> None:
        """The application reads its file; nobody is signalled, because an unprepared process would die of it."""
        _write(self._folder / GPUS_FILE, visible_devices(gpus, self._site.uuids.get(self._node, ())).encode())

    def _domain_ms(self, wall_ms: int) -> int:
        return domain_ms(self._clock, wall_ms, at_least_ms=self.facts.started_ms)


class ProcessDriver:
    """Starts and finds processes. `run_dir` must survive restarts of this process, and only of this process."""

    def __init__(self, clock: Clock, run_dir: Path, site: Site, *, grace_s: float = GRACE_S) -> None:
        self._clock = clock
        self._run_dir = run_dir.resolve()
        self._site = site
        self._grace_s = grace_s

    def boot_id(self) -> str:
        return machine_boot_id()

    def folder_of(self, order: Order) -> Path:
        """Where everything about one attempt is."""
        name = quote(order.assignment.job_id, safe="")
        if len(name) > FOLDER_NAME_LENGTH_MAX:
            name = sha256(order.assignment.job_id.encode()).hexdigest()
        return self._run_dir / order.node / name / f"{order.assignment.attempt}-{order.spawn}"

    async def start(self, order: Order) -> ProcessRun:
        folder = self.folder_of(order)
        try:
            _preflight(order.assignment)
            self._prepare(order, folder)
            await self._launch(folder)
        except OSError as error:
            cause = FailureCause.DISK_FULL if error.errno in _FULL else FailureCause.SPAWN
            raise StartRefusedError(cause, f"{folder}: {error.strerror or error}") from error
        noted = _read(folder / "exit.json", _Exit)
        if noted is not None and noted.errno is not None:
            raise StartRefusedError(*_spawn_failure(noted, order.assignment))
        run = await self._settled(order, folder)
        if run is None:
            raise StartRefusedError(
                FailureCause.SPAWN, f"the runner didn't get the job to begin; see {folder}/runner.log"
            )
        return run

    async def adopt(self, order: Order, facts: RunFacts | None) -> ProcessRun | None:
        folder = self.folder_of(order)
        if facts is not None:
            return ProcessRun(self._clock, order.node, folder, self._site, facts, self._grace_s)
        if not folder.is_dir():
            return None
        return await self._settled(order, folder)

    async def _settled(self, order: Order, folder: Path) -> ProcessRun | None:
        """Wait until it is certain whether the attempt began; None if it didn't and won't."""
        if _abandon(folder):
            return None
        claim = _read(folder / "claim", _Claim)
        if claim is None or claim.pid == 0:
            return None
        runner = ProcessId(claim.pid, claim.ticks)
        while runner.alive() and not (folder / "job.json").exists() and not (folder / "exit.json").exists():
            await self._clock.sleep_wall(ADOPT_POLL_S)
        found = self._found(order, folder)
        if found is not None:
            return found
        # It may have run: never again under this attempt. Its end, or that it vanished, is learned like any other.
        unseen = RunFacts(started_ms=self._clock.now_ms(), runner_pid=claim.pid, runner_ticks=claim.ticks)
        return ProcessRun(self._clock, order.node, folder, self._site, unseen, self._grace_s)

    def _prepare(self, order: Order, folder: Path) -> None:
        assignment = order.assignment
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / GPUS_FILE, visible_devices(assignment.gpus, self._site.uuids.get(order.node, ())).encode())
        spec = {
            "command": assignment.command,
            "environment": environment_of(order.node, assignment, folder, self._site, os.environ),
            "directory": assignment.working_directory or str(folder),
            "log": str(folder / "output.log"),
        }
        _write(folder / "spec.json", msgspec.json.encode(spec))

    async def _launch(self, folder: Path) -> None:
        """Start the runner and wait until it says that the job began, or failed to."""
        read_fd, write_fd = os.pipe()
        try:
            with (folder / "runner.log").open("ab") as log:
                subprocess.Popen(  # noqa: ASYNC220 - a fork of milliseconds
                    [sys.executable, "-I", "-S", str(RUNNER), str(folder), str(write_fd)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(write_fd,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        try:
            await asyncio.wait_for(readable(read_fd), START_WAIT_S)
        except TimeoutError:
            return  # whoever gets the claim decides
        finally:
            os.close(read_fd)

    def _found(self, order: Order, folder: Path) -> ProcessRun | None:
        claim, job = _read(folder / "claim", _Claim), _read(folder / "job.json", _Job)
        if claim is None or job is None:
            return None
        facts = RunFacts(
            started_ms=domain_ms(self._clock, job.wall_ms),
            pid=job.pid,
            pid_ticks=job.ticks,
            runner_pid=claim.pid,
            runner_ticks=claim.ticks,
        )
        return ProcessRun(self._clock, order.node, folder, self._site, facts, self._grace_s)


def domain_ms(clock: Clock, wall_ms: int, *, at_least_ms: int = 0) -> int:
    """The domain moment of a wall moment of the past, exact on a wall clock."""
    return max(at_least_ms, clock.now_ms() - max(0, clock.wall_ms() - wall_ms))


def _preflight(assignment: Assignment) -> None:
    if not assignment.command:
        hint = (
            "start this node's executor with GPUGRID_DRIVER=simulated"
            if assignment.template == "simulated"
            else "submit it with a command"
        )
        raise StartRefusedError(
            FailureCause.PREFLIGHT, f"template {assignment.template!r} names no command for the process driver: {hint}"
        )
    directory = assignment.working_directory
    if directory is not None and not Path(directory).is_dir():
        raise StartRefusedError(FailureCause.WORKING_DIRECTORY, f"working directory {directory} doesn't exist here")


def _spawn_failure(noted: _Exit, assignment: Assignment) -> tuple[FailureCause, str]:
    number = noted.errno or 0
    if number in _FULL:
        return FailureCause.DISK_FULL, f"disk full while starting ({noted.stage})"
    if noted.stage == "directory":
        return FailureCause.WORKING_DIRECTORY, f"{assignment.working_directory}: {os.strerror(number)}"
    command = (assignment.command or [""])[0]
    return FailureCause.SPAWN, f"{command}: {os.strerror(number)} ({noted.stage})"


def _exit_of(noted: _Exit, time_ms: int) -> Exit:
    if noted.errno is not None:
        return Exit(time_ms, FailureCause.SPAWN, detail=f"{os.strerror(noted.errno)} ({noted.stage})")
    if noted.signal is not None:
        return Exit(time_ms, FailureCause.SIGNAL, signal=noted.signal, detail=f"ended by signal {noted.signal}")
    if noted.code:
        return Exit(time_ms, FailureCause.EXIT_CODE, exit_code=noted.code, detail=f"exit code {noted.code}")
    return Exit(time_ms)


def _abandon(folder: Path) -> bool:
    """Take the attempt away from a runner that has not begun; False if a runner (or an earlier executor) has the claim."""
    fresh = folder / f"claim.{os.getpid()}"
    fresh.write_bytes(_ABANDONED)
    try:
        os.link(fresh, folder / "claim")
    except FileExistsError:
        return False
    finally:
        fresh.unlink()
    return True


def _read(path: Path, struct: type[T]) -> T | None:
    """None if it isn't there or not (yet) whole."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=struct)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(content)
    fresh.replace(path)


def _reap(pid: int) -> None:
    """Take a runner of our own off the process table; an adopted one has another parent."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return

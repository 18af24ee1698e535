"""Real commands as processes of this machine: own session, own log, GPUs by environment, ended as a whole group.

Owns: the life of one run: launching its runner, requests by signal, SIGTERM, grace, SIGKILL. Each job runs under `runner.py`,
which outlives this process and writes the exit down. Refuses: jobs without a command. End times are wall times: this driver
belongs on a wall clock. Read next: `runner.py`, `run_folder.py`, `conversation.py`, `environment.py`, `identity.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from schemas.executions import FailureCause
from schemas.jobs import CheckpointMode
from schemas.placements import Assignment
from services.executor.core.journal import RunFacts
from services.executor.core.reports import Exit, Progress
from services.executor.shell.device_facts import DeviceFacts
from services.executor.shell.drivers import job_log
from services.executor.shell.drivers.control_group import group_of
from services.executor.shell.drivers.conversation import NEWS_POLL_S, Conversation
from services.executor.shell.drivers.environment import (
    Site,
    environment_of,
    first_port,
    free_port,
)
from services.executor.shell.drivers.identity import ProcessId, machine_boot_id, readable
from services.executor.shell.drivers.job_log import LogLimits
from services.executor.shell.drivers.port import Answer, Order, Prepared, StartRefusedError
from services.executor.shell.drivers.readiness import probe
from services.executor.shell.drivers.refusals import exit_of, never_began, preflight, refused, spawn_failure
from services.executor.shell.drivers.run_folder import (
    LOG_FILE,
    Claim,
    abandon,
    began_in,
    ended_in,
    folder_of,
    mark_over,
    read,
    write,
)
from services.executor.shell.runner import EXIT_NOTE, JOB_NOTE, remove_group
from services.runtime.clock import Clock

GRACE_S = 10.0
"""Between SIGTERM and SIGKILL: long enough to close files and connections; saving work has its own wait before."""
ADOPT_POLL_S = 0.05
START_WAIT_S = 30.0
"""From launching the runner to the job's first instruction; only a machine that swaps or stalls takes longer than 0.2 s."""
RUNNER = Path(__file__).resolve().parent.parent / "runner.py"


class _Spec(Struct):
    """What the runner is told (`spec.json`)."""

    command: list[str]
    environment: dict[str, str]
    directory: str
    log: str
    group: str = ""
    """Its control group; "": none."""


class ProcessRun:
    """One job's processes, seen through their runner and its folder."""

    def __init__(self, driver: ProcessDriver, order: Order, facts: RunFacts, talk: Conversation) -> None:
        self.facts = facts
        self._driver = driver
        self._assignment = order.assignment
        self._node = order.node
        self._folder = driver.folder_of(order)
        self._talk = talk
        self._runner = ProcessId(facts.runner_pid or 0, facts.runner_ticks)
        self._job = ProcessId(facts.pid or 0, facts.pid_ticks)
        self._gone = asyncio.Event()

    async def ended(self) -> Exit:
        await self._runner.gone()
        _reap(self._runner.pid)
        self._gone.set()
        self._talk.close()
        noted = ended_in(self._folder)
        if noted is not None:
            clock = self._driver.clock
            return exit_of(noted, domain_ms(clock, noted.wall_ms, at_least_ms=self.facts.started_ms), self._folder)
        self._job.signal_group(signal.SIGKILL)  # its runner was killed: nobody would ever learn of its end
        await asyncio.to_thread(_end_group, self._folder)
        mark_over(self._folder)
        detail = "the job's runner vanished without noting an exit (killed by force, out of memory, or a restart)"
        return Exit(self._driver.clock.now_ms(), FailureCause.UNKNOWN, detail=detail)

    async def checkpoint(self, wait_s: float) -> Answer | None:
        return await self._talk.ask(self._request, wait_s, self._gone)

    async def _request(self) -> bool:
        policy = self._assignment.checkpoint
        if policy.mode is CheckpointMode.FILE:
            return True
        number = signal.Signals[policy.signal.value]
        # Before the job handles it, the signal would end the job: the request's file is there, and this is tried again.
        return self._job.catches(number) and self._job.signal(number)

    def unheard(self) -> Answer | Progress | None:
        return self._talk.unheard()

    async def news(self) -> Answer | Progress:
        log = self._folder / LOG_FILE
        while True:
            said = self._talk.by_itself()
            if said is not None:
                return said
            if job_log.is_long(log, self._driver.log_limits):
                with contextlib.suppress(OSError):  # a full disk: the next round tries again
                    await asyncio.to_thread(job_log.rotate, log, self._driver.log_limits)
            await self._driver.clock.sleep_wall(NEWS_POLL_S)

    async def stop(self) -> None:
        self._job.signal_group(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._gone.wait(), self._driver.grace_s)
        except TimeoutError:
            self.kill()
            await self._gone.wait()

    def kill(self) -> None:
        self._job.signal_group(signal.SIGKILL)

    async def rescale(self, gpus: tuple[int, ...]) -> None:
        self._talk.tell_gpus(self._driver.site.visible(self._node, gpus))

    async def let_go(self, wait_s: float) -> None:
        await self._talk.gpus_acknowledged(wait_s, self._gone)

    async def serves(self) -> bool:
        readiness = self._assignment.readiness
        if readiness is None:
            return True
        spec = read(self._folder / "spec.json", _Spec)
        port = int(spec.environment["GPUGRID_PORT"]) if spec is not None else 0
        return await probe(readiness, self._folder, port)


class ProcessDriver:
    """Starts and finds processes. `run_dir` must survive restarts of this process, and only of this process."""

    def __init__(
        self,
        clock: Clock,
        run_dir: Path,
        site: Site,
        *,
        grace_s: float = GRACE_S,
        log_limits: LogLimits = LogLimits(),
        devices: DeviceFacts = DeviceFacts(),
    ) -> None:
        self.clock = clock
        self.site = site
        self.grace_s = grace_s
        self.log_limits = log_limits
        self._run_dir = run_dir.resolve()
        self._devices = devices

    def boot_id(self) -> str:
        return machine_boot_id()

    def folder_of(self, order: Order) -> Path:
        """Where everything about one attempt is."""
        return folder_of(self._run_dir, order)

    async def prepare(self, order: Order) -> Prepared:
        preflight(order.assignment)
        return Prepared(self._devices.model, self._devices.driver, _port(order.assignment))

    async def start(self, order: Order) -> ProcessRun:
        folder = self.folder_of(order)
        talk = Conversation(folder, self.clock)
        try:
            preflight(order.assignment)
            await self._prepare(order, folder, talk)
            await self._launch(folder)
            noted = ended_in(folder)
            if noted is not None and noted.errno is not None:
                raise spawn_failure(noted, order.assignment)
            run = await self._settled(order, folder, talk)
        except OSError as error:
            talk.close()
            raise refused(error, folder) from error
        except StartRefusedError:
            talk.close()
            raise
        if run is None:
            talk.close()
            raise never_began(folder)
        return run

    async def reap(self, node: str, known: Sequence[Order]) -> list[str]:
        mine = [self.folder_of(order) for order in known]
        reaped = []
        for path in sorted((self._run_dir / node).glob(f"*/*-*/{JOB_NOTE}")):
            began = began_in(path.parent)
            if path.parent in mine or began is None or (path.parent / EXIT_NOTE).exists():
                continue
            ended = ProcessId(began.pid, began.ticks).signal_group(signal.SIGKILL)
            await asyncio.to_thread(_end_group, path.parent)
            mark_over(path.parent)
            if ended:
                reaped.append(f"{path.parent.parent.name}/{path.parent.name} (pid {began.pid})")
        return reaped

    async def adopt(self, order: Order, facts: RunFacts | None) -> ProcessRun | None:
        folder = self.folder_of(order)
        if facts is None and not folder.is_dir():
            return None
        talk = Conversation(folder, self.clock)
        run = ProcessRun(self, order, facts, talk) if facts is not None else await self._settled(order, folder, talk)
        if run is not None:
            await talk.open()
        return run

    async def _settled(self, order: Order, folder: Path, talk: Conversation) -> ProcessRun | None:
        """Wait until it is certain whether the attempt began; None if it didn't and won't."""
        if abandon(folder):
            return None
        claim = read(folder / "claim", Claim)
        if claim is None:
            return None
        runner = ProcessId(claim.pid, claim.ticks)
        while runner.alive() and not (folder / JOB_NOTE).exists() and not (folder / EXIT_NOTE).exists():
            await self.clock.sleep_wall(ADOPT_POLL_S)
        began = began_in(folder)
        if began is None:
            # It may have run: never again under this attempt. Its end, or that it vanished, is learned like any other.
            facts = RunFacts(started_ms=self.clock.now_ms(), runner_pid=claim.pid, runner_ticks=claim.ticks)
            return ProcessRun(self, order, facts, talk)
        facts = RunFacts(
            started_ms=domain_ms(self.clock, began.wall_ms),
            pid=began.pid,
            pid_ticks=began.ticks,
            runner_pid=claim.pid,
            runner_ticks=claim.ticks,
        )
        return ProcessRun(self, order, facts, talk)

    async def _prepare(self, order: Order, folder: Path, talk: Conversation) -> None:
        assignment = order.assignment
        folder.mkdir(parents=True, exist_ok=True)
        talk.tell_gpus(self.site.visible(order.node, assignment.gpus))
        environment = environment_of(
            order.node,
            assignment,
            folder,
            self.site,
            os.environ,
            port=order.port or _port(assignment),
            socket_path=await talk.open(),
        )
        spec = _Spec(
            command=assignment.command or [],
            environment=environment,
            directory=assignment.working_directory or str(folder),
            log=str(folder / LOG_FILE),
            group=group_of(folder),
        )
        write(folder / "spec.json", msgspec.json.encode(spec))

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


def _end_group(folder: Path) -> None:
    spec = read(folder / "spec.json", _Spec)
    if spec is not None:
        remove_group(spec.group)


def domain_ms(clock: Clock, wall_ms: int, *, at_least_ms: int = 0) -> int:
    """The domain moment of a wall moment of the past, exact on a wall clock."""
    return max(at_least_ms, clock.now_ms() - max(0, clock.wall_ms() - wall_ms))


def _port(assignment: Assignment) -> int:
    """A free port of this machine, the attempt's own if it is free. Raises StartRefusedError."""
    first = first_port(assignment)
    port = free_port(first)
    if port is None:
        raise StartRefusedError(FailureCause.PREFLIGHT, f"no port is free here from {first} on")
    return port


def _reap(pid: int) -> None:
    """Take a runner of our own off the process table; an adopted one has another parent."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return

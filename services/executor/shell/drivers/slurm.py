"""Runs as batch jobs of a Slurm cluster: gpugrid says which node and how many GPUs, Slurm which of them and that they are kept apart.

Owns: one batch job per attempt and node (`sbatch`), asking the controller about it, and signals through `scancel`. The batch job is
`runner.py` in the run folder, which has to be on a disk that executor and nodes share: its claim lets an attempt run once, even where
Slurm starts a job again whose first process still lives on a lost node. Refuses: believing silence (a controller that doesn't answer says
nothing about the job), and choosing single GPUs: `gpus` of a placement counts only. Read next: `process.py`, `docs/executors.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import ceil
from pathlib import Path

import msgspec

from schemas.executions import FailureCause
from schemas.jobs import CheckpointMode
from services.executor.core.journal import RunFacts
from services.executor.core.reports import Exit, Progress
from services.executor.shell.drivers.conversation import NEWS_POLL_S, Conversation
from services.executor.shell.drivers.environment import Site, environment_of, first_port
from services.executor.shell.drivers.errands import Errands
from services.executor.shell.drivers.port import Answer, NoLongerWantedError, Order, Prepared, StartRefusedError
from services.executor.shell.drivers.process import GRACE_S, RUNNER, domain_ms
from services.executor.shell.drivers.refusals import exit_of, preflight, refused, spawn_failure
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
from services.executor.shell.runner import JOB_NOTE
from services.runtime.clock import Clock

POLL_S = 0.2
"""How late the runner's files are noticed."""
ASK_S = 2.0
"""Between two questions to the controller about one job."""
COMMAND_WAIT_S = 30.0
"""A Slurm command that takes longer is given up; it is asked again later."""
PENDING_WAIT_S = 120.0
"""A job that Slurm has not begun by then is taken back: something else holds what gpugrid believes to be free."""
LAST_NOTE_WAIT_S = 10.0
"""After Slurm calls a job ended its exit note may still be on its way over the shared disk."""
LIMIT_MARGIN_S = 600.0
"""Slurm's own limit lies that far behind the job's, for its checkpoint and its end."""
INHERITED = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_JOB_GPUS", "SLURMD_NODENAME")
"""What Slurm decides and the job has to see."""
ENDED_STATES = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}
)
GONE = "GONE"
"""The controller has forgotten the job: it ended a while ago."""


class SlurmError(OSError):
    """A Slurm command failed; the message is what it said."""


@dataclass(frozen=True, slots=True)
class Slurm:
    """The commands of one cluster. `environment` names its configuration (SLURM_CONF) where it isn't the machine's."""

    partition: str = ""
    environment: dict[str, str] | None = None

    async def submit(self, script: Path, options: list[str]) -> str:
        """The job's number. Raises SlurmError."""
        partition = [f"--partition={self.partition}"] if self.partition else []
        said = await self._run("sbatch", "--parsable", "--no-requeue", *partition, *options, str(script))
        return said.split(";")[0].strip()

    async def state(self, number: str) -> str:
        """One of Slurm's states, or GONE. Raises SlurmError where the controller doesn't answer."""
        if not number:
            return GONE  # nobody wrote it down, and Slurm knew of none that waits or runs
        try:
            said = await self._run("squeue", "--noheader", "--states=all", f"--jobs={number}", "--format=%T %r")
        except SlurmError as error:
            if "Invalid job id" in str(error):
                return GONE
            raise
        return said.strip() or GONE

    async def named(self, name: str) -> list[str]:
        """Numbers of jobs of that name that wait or run, the oldest first."""
        return sorted((await self._run("squeue", "--noheader", f"--name={name}", "--format=%A")).split(), key=int)

    async def signal(self, number: str, name: str) -> None:
        """To the runner alone, which hands it on."""
        await self._run("scancel", "--batch", f"--signal={name}", number)

    async def cancel(self, number: str) -> None:
        """At once, everything of it."""
        with contextlib.suppress(SlurmError):  # one that waits has nobody to be signalled
            await self._run("scancel", "--full", "--signal=KILL", number)
        await self._run("scancel", number)

    async def _run(self, *command: str) -> str:
        if command[-1] == "":
            raise SlurmError(f"{command[0]}: no number, which to Slurm is every number")
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=self.environment
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), COMMAND_WAIT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise SlurmError(f"{command[0]} did not answer within {COMMAND_WAIT_S:.0f} s") from None
        if process.returncode != 0:
            raise SlurmError(f"{command[0]}: {err.decode(errors='replace').strip()}")
        return out.decode(errors="replace")


class SlurmRun:
    """One batch job, seen through its runner's files, and through the controller where they are silent."""

    def __init__(self, driver: SlurmDriver, order: Order, facts: RunFacts, talk: Conversation) -> None:
        self.facts = facts
        self._driver = driver
        self._policy = order.assignment.checkpoint
        self._folder = driver.folder_of(order)
        self._talk = talk
        self._gone = asyncio.Event()

    async def ended(self) -> Exit:
        clock = self._driver.clock
        ask_s = clock.wall_s() + ASK_S
        while True:
            noted = ended_in(self._folder)
            if noted is not None:
                self._over()
                at_ms = domain_ms(clock, noted.wall_ms, at_least_ms=self.facts.started_ms)
                return exit_of(noted, at_ms, self._folder)
            if clock.wall_s() >= ask_s:
                state = await self._state()
                ask_s = clock.wall_s() + ASK_S
                if state in ENDED_STATES or state == GONE:
                    return await self._without_note(state)
            await clock.sleep_wall(POLL_S)

    async def _without_note(self, state: str) -> Exit:
        """Slurm says that it is over; its own note counts more, if it still comes."""
        clock = self._driver.clock
        until_s = clock.wall_s() + LAST_NOTE_WAIT_S
        while clock.wall_s() < until_s:
            noted = ended_in(self._folder)
            if noted is not None:
                self._over()
                at_ms = domain_ms(clock, noted.wall_ms, at_least_ms=self.facts.started_ms)
                return exit_of(noted, at_ms, self._folder)
            await clock.sleep_wall(POLL_S)
        self._over()
        mark_over(self._folder)
        detail = f"Slurm job {self.facts.name} is {state}, and its runner noted no exit"
        return Exit(clock.now_ms(), FailureCause.UNKNOWN, detail=detail)

    async def _state(self) -> str:
        try:
            return (await self._driver.slurm.state(self.facts.name)).partition(" ")[0]
        except OSError:
            return ""  # silence is not an end

    def _over(self) -> None:
        self._gone.set()
        self._talk.close()

    async def checkpoint(self, wait_s: float) -> Answer | None:
        return await self._talk.ask(self._request, wait_s, self._gone)

    async def _request(self) -> bool:
        if self._policy.mode is CheckpointMode.FILE:
            return True
        return await self._signal(self._policy.signal.value.removeprefix("SIG"))

    async def _signal(self, name: str) -> bool:
        try:
            await self._driver.slurm.signal(self.facts.name, name)
        except OSError:
            return False
        return True

    def unheard(self) -> Answer | Progress | None:
        return self._talk.unheard()

    async def news(self) -> Answer | Progress:
        while (said := self._talk.by_itself()) is None:
            await self._driver.clock.sleep_wall(NEWS_POLL_S)
        return said

    async def stop(self) -> None:
        await self._signal("TERM")
        try:
            await asyncio.wait_for(self._gone.wait(), self._driver.grace_s)
        except TimeoutError:
            while not self._gone.is_set():
                await self._cancel()
                await asyncio.wait((asyncio.ensure_future(self._gone.wait()),), timeout=LAST_NOTE_WAIT_S)

    def kill(self) -> None:
        self._driver.errands.spawn(self._cancel())

    async def _cancel(self) -> None:
        try:
            await self._driver.slurm.cancel(self.facts.name)
        except OSError:
            return  # asked again by whoever waits for the end

    async def rescale(self, gpus: tuple[int, ...]) -> None:
        """The number of GPUs of a batch job is fixed: an application is told what it may use of them."""
        self._talk.tell_gpus(",".join(str(gpu) for gpu in range(len(gpus))))

    async def let_go(self, wait_s: float) -> None:
        await self._talk.gpus_acknowledged(wait_s, self._gone)

    async def serves(self) -> bool:
        """Its node is another machine: it counts as serving once it runs."""
        return True


class SlurmDriver:
    """Submits and finds batch jobs. `run_dir` is shared with the nodes; node ids are Slurm's node names."""

    def __init__(self, clock: Clock, run_dir: Path, site: Site, slurm: Slurm, *, grace_s: float = GRACE_S) -> None:
        self.clock = clock
        self.slurm = slurm
        self.grace_s = grace_s
        self._site = site
        self._run_dir = run_dir.resolve()
        self.errands = Errands()

    def boot_id(self) -> str:
        """Batch jobs survive the machine of the executor."""
        return "slurm"

    def folder_of(self, order: Order) -> Path:
        return folder_of(self._run_dir, order)

    async def prepare(self, order: Order) -> Prepared:
        """What is on the node, Slurm looks after; a port can't be tried from here."""
        preflight(order.assignment)
        return Prepared(port=first_port(order.assignment))

    async def start(self, order: Order) -> SlurmRun:
        folder = self.folder_of(order)
        try:
            preflight(order.assignment)
            self._write(order, folder)
            number = await self._submitted(order, folder)
        except OSError as error:
            raise refused(error, folder) from error
        return await self._begun(order, folder, number)

    async def _submitted(self, order: Order, folder: Path) -> str:
        """The batch job's number; "" if it has begun and the controller does not tell it. Raises StartRefusedError."""
        try:
            return await self.slurm.submit(folder / "batch.sh", self._options(order, folder))
        except SlurmError as error:
            # Slurm may have taken it, and only the answer been lost: with the claim ours, it can't begin any more.
            if not abandon(folder):
                return await self._number(order)
            await self._take_back(order)
            raise StartRefusedError(FailureCause.PREFLIGHT, str(error)) from error

    async def _number(self, order: Order) -> str:
        """Of the attempt's batch job, as it was written down, or as Slurm has it; "": none waits or runs any more."""
        noted = self.folder_of(order) / "slurm-job"
        if noted.exists():
            return noted.read_text()
        while True:
            try:
                return next(iter(await self.slurm.named(_name(order))), "")
            except SlurmError:
                await self.clock.sleep_wall(ASK_S)  # silence is not an end

    async def reap(self, node: str, known: Sequence[Order]) -> list[str]:
        return []

    async def adopt(self, order: Order, facts: RunFacts | None) -> SlurmRun | None:
        folder = self.folder_of(order)
        if facts is not None:
            return SlurmRun(self, order, facts, Conversation(folder, self.clock))
        if not folder.is_dir():
            return None
        if abandon(folder):
            await self._take_back(order)
            return None
        claim = read(folder / "claim", Claim)
        if claim is None:
            await self._take_back(order)
            return None
        # Its runner began or is about to: what became of it is learned like any end.
        number = await self._number(order)
        return SlurmRun(self, order, self._facts(folder, number), Conversation(folder, self.clock))

    async def _begun(self, order: Order, folder: Path, number: str) -> SlurmRun:
        """Wait until the runner has begun. Raises StartRefusedError when it couldn't, or Slurm let it wait for too long."""
        with contextlib.suppress(OSError):  # on a full disk Slurm is asked for it
            write(folder / "slurm-job", number.encode())
        until_s, ask_s = self.clock.wall_s() + PENDING_WAIT_S, self.clock.wall_s() + ASK_S
        state = ""
        while not (folder / JOB_NOTE).exists():
            noted = ended_in(folder)
            if noted is not None:
                raise spawn_failure(noted, order.assignment)
            now_s = self.clock.wall_s()
            if now_s >= ask_s:
                state, ask_s = await self._why(number), now_s + ASK_S
            over = now_s >= until_s or state.partition(" ")[0] in (*ENDED_STATES, GONE)
            if (over or order.unwanted.is_set()) and abandon(folder):
                await self._take_back(order)
                if not over:
                    raise NoLongerWantedError
                detail = (
                    f"Slurm did not begin job {number} ({state or 'no answer'}); waited at most {PENDING_WAIT_S:.0f} s"
                )
                raise StartRefusedError(FailureCause.PREFLIGHT, detail)
            if state.partition(" ")[0] in (*ENDED_STATES, GONE):
                break  # its runner had begun: what became of it is learned like any end
            await self.clock.sleep_wall(POLL_S)
        return SlurmRun(self, order, self._facts(folder, number), Conversation(folder, self.clock))

    async def _why(self, number: str) -> str:
        try:
            return await self.slurm.state(number)
        except OSError as error:
            return str(error)

    async def _take_back(self, order: Order) -> None:
        """Nothing of the attempt may begin any more; its claim is ours, so that a job that is left over ends by itself."""
        try:
            for number in await self.slurm.named(_name(order)):
                await self.slurm.cancel(number)
        except OSError:
            return

    def _facts(self, folder: Path, number: str) -> RunFacts:
        began = began_in(folder)
        started_ms = self.clock.now_ms() if began is None else domain_ms(self.clock, began.wall_ms)
        return RunFacts(started_ms=started_ms, name=number)

    def _options(self, order: Order, folder: Path) -> list[str]:
        assignment = order.assignment
        options = [
            f"--job-name={_name(order)}",
            f"--nodelist={order.node}",
            "--nodes=1",
            "--ntasks=1",
            f"--output={folder / 'runner.log'}",
            f"--comment={assignment.job_id}/{assignment.attempt}",
            "--export=NONE",
        ]
        if assignment.gpus:
            options.append(f"--gres=gpu:{len(assignment.gpus)}")
        if assignment.time_limit_s > 0 and not assignment.application:
            options.append(f"--time={ceil((assignment.time_limit_s + LIMIT_MARGIN_S) / 60)}")
        return options

    def _write(self, order: Order, folder: Path) -> None:
        assignment = order.assignment
        folder.mkdir(parents=True, exist_ok=True)
        inherited = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
        environment = environment_of(order.node, assignment, folder, self._site, inherited, port=order.port)
        for name in INHERITED:
            environment.pop(name, None)
        spec = {
            "command": assignment.command,
            "environment": environment,
            "directory": assignment.working_directory or str(folder),
            "log": str(folder / LOG_FILE),
            "inherit": list(INHERITED),
            "forward": True,
        }
        write(folder / "spec.json", msgspec.json.encode(spec))
        runner = shlex.join([sys.executable, "-I", "-S", str(RUNNER), str(folder), "9"])
        write(folder / "batch.sh", f"#!/bin/sh\nexec 9>/dev/null\nexec {runner}\n".encode())


def _name(order: Order) -> str:
    """Of the batch job: the same for the same attempt, whoever submits it."""
    assignment = order.assignment
    key = f"{order.node}/{assignment.job_id}/{assignment.attempt}/{order.spawn}"
    return f"gpugrid-{sha256(key.encode()).hexdigest()[:16]}"

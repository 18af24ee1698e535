"""Runs that only take time: for replays on a scaled clock and for simulation on a virtual one.

Owns: reading the labels `simulated/run_s` (JSON object, block size → true seconds in the pool it prefers; elsewhere it takes as
long as its `speed` there says) and `simulated/fails_at` (fraction of the whole at which it fails), and ending a run at exactly the
right domain time, also when the executor was dead at that moment. Applications run until they are stopped. Refuses: jobs that
are not simulated. No threads, files or sockets. Read next: `port.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from schemas.executions import FailureCause
from schemas.placements import Assignment
from services.executor.core.journal import RunFacts
from services.executor.core.reports import Exit, Progress
from services.executor.shell.drivers.port import Answer, Order, Prepared, StartRefusedError
from services.runtime.clock import Clock

TEMPLATE = "simulated"
RUN_LABEL = "simulated/run_s"
FAIL_LABEL = "simulated/fails_at"
CHECKPOINT_S = 10.0
"""Domain seconds a simulated checkpoint takes: some gigabytes to a shared disk."""
EXIT_CODE_OF_FAILURE = 1
SIGTERM = 15

_RUN_S = msgspec.json.Decoder(dict[str, float])


@dataclass(frozen=True, slots=True)
class Course:
    """How a run will go: `whole_s` for the whole job at this size, from `resumed` to 1 or to `fails_at`."""

    whole_s: float
    resumed: float
    fails_at: float | None

    @property
    def fails(self) -> bool:
        return self.fails_at is not None and self.resumed < self.fails_at < 1

    @property
    def run_s(self) -> float:
        until = self.fails_at if self.fails and self.fails_at is not None else 1.0
        return self.whole_s * (until - self.resumed)

    def fraction(self, elapsed_s: float) -> float:
        if self.whole_s <= 0:
            return 1.0
        return min(1.0, self.resumed + elapsed_s / self.whole_s)


def course_of(assignment: Assignment) -> Course | None:
    """None for applications. Raises StartRefusedError where a label is missing or makes no sense."""
    if assignment.template != TEMPLATE:
        raise StartRefusedError(
            FailureCause.PREFLIGHT,
            f"the simulated driver runs only jobs with template {TEMPLATE!r}: start this node's executor with "
            "GPUGRID_DRIVER=process for real commands",
        )
    if assignment.application:
        return None
    size = block_size(assignment)
    try:
        by_size = _RUN_S.decode(assignment.labels.get(RUN_LABEL, "{}"))
        fails_at = float(assignment.labels[FAIL_LABEL]) if FAIL_LABEL in assignment.labels else None
    except (msgspec.MsgspecError, ValueError) as error:
        raise StartRefusedError(FailureCause.PREFLIGHT, f"label {RUN_LABEL} or {FAIL_LABEL}: {error}") from None
    whole_s = by_size.get(str(size))
    if whole_s is None or not 0 <= whole_s < float("inf"):
        raise StartRefusedError(
            FailureCause.PREFLIGHT, f"label {RUN_LABEL} names no duration for {size} GPUs: it knows {sorted(by_size)}"
        )
    return Course(whole_s / assignment.speed, assignment.resume_fraction, fails_at)


def block_size(assignment: Assignment) -> int:
    """GPUs of the whole job: `world_size` for a gang over several nodes."""
    return assignment.world_size if len(assignment.nodes) > 1 else len(assignment.gpus)


class SimulatedRun:
    """Ends by itself at `started_ms` + run time, or when stopped."""

    def __init__(self, clock: Clock, course: Course | None, facts: RunFacts, checkpoint_s: float) -> None:
        self.facts = facts
        self._clock = clock
        self._course = course
        self._checkpoint_s = checkpoint_s
        self._stopped: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    async def ended(self) -> Exit:
        if self._course is None:
            return await self._stopped
        end_ms = self._end_ms(self._course)
        timer = asyncio.ensure_future(self._clock.sleep_until(end_ms))
        try:
            await asyncio.wait((timer, self._stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        if self._stopped.done():
            return self._stopped.result()
        if self._course.fails:
            detail = f"label {FAIL_LABEL} asked for it"
            return Exit(end_ms, FailureCause.EXIT_CODE, exit_code=EXIT_CODE_OF_FAILURE, detail=detail)
        return Exit(end_ms)

    async def checkpoint(self, wait_s: float) -> Answer | None:
        requested_ms = self._clock.now_ms()
        written = asyncio.ensure_future(self._clock.sleep_until(requested_ms + round(self._checkpoint_s * 1000)))
        try:
            await asyncio.wait((written, self._stopped), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            written.cancel()
        if not written.done() or written.cancelled() or self._course is None:
            return None
        elapsed_s = (requested_ms - self.facts.started_ms) / 1000
        return Answer(self._course.fraction(elapsed_s), location="simulated")

    async def stop(self) -> None:
        self.kill()

    def kill(self) -> None:
        due_ms = None if self._course is None else self._end_ms(self._course)
        now_ms = self._clock.now_ms()
        if not self._stopped.done() and (due_ms is None or now_ms < due_ms):
            self._stopped.set_result(Exit(now_ms, FailureCause.SIGNAL, signal=SIGTERM))

    async def rescale(self, gpus: tuple[int, ...]) -> None:
        """Time is all a simulated application uses."""

    def unheard(self) -> Answer | Progress | None:
        """It has nothing to say."""
        return None

    async def news(self) -> Answer | Progress:
        return await asyncio.get_running_loop().create_future()

    async def let_go(self, wait_s: float) -> None:
        """Nothing is left on a GPU that it never used."""

    async def serves(self) -> bool:
        return True

    def _end_ms(self, course: Course) -> int:
        return self.facts.started_ms + round(course.run_s * 1000)


class SimulatedDriver:
    """Recomputes surviving runs from their start: as long as the journal survives, so do they."""

    def __init__(self, clock: Clock, *, checkpoint_s: float = CHECKPOINT_S) -> None:
        self._clock = clock
        self._checkpoint_s = checkpoint_s

    def boot_id(self) -> str:
        return "simulated"

    async def prepare(self, order: Order) -> Prepared:
        course_of(order.assignment)
        return Prepared()

    async def start(self, order: Order) -> SimulatedRun:
        course = course_of(order.assignment)
        return SimulatedRun(self._clock, course, RunFacts(started_ms=self._clock.now_ms()), self._checkpoint_s)

    async def reap(self, node: str, known: Sequence[Order]) -> list[str]:
        return []

    async def adopt(self, order: Order, facts: RunFacts | None) -> SimulatedRun | None:
        if facts is None:
            return None
        return SimulatedRun(self._clock, course_of(order.assignment), facts, self._checkpoint_s)

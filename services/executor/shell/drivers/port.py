"""What a driver has to do: start a run, find it again after a crash, talk with it, and end it. Four implementations, one set of rules.

Rules every driver keeps: `start` either returns a living run or raises `StartRefusedError`, never both; `adopt` returns None
only if it is certain that the run never began and never will; `ended` returns once and for all; `stop` returns when
nothing of the run is left. Read next: `simulated.py`, `process.py`, `slurm.py`, `kubernetes.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from schemas.executions import FailureCause
from schemas.placements import Assignment
from services.executor.core.journal import RunFacts
from services.executor.core.reports import Exit, Progress


@dataclass(frozen=True, slots=True)
class Order:
    """One attempt to start on one node. `spawn` counts tries of which it is proven that nothing ran. `port`: its gang's master's.
    `unwanted` is set when the start isn't wanted any more: a driver whose start waits for a queue or an image takes it back then."""

    node: str
    assignment: Assignment
    spawn: int = 1
    port: int | None = None
    unwanted: asyncio.Event = field(default_factory=asyncio.Event, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A node's part of a gang could start: what has to be equal on all its nodes, and a port that is free here."""

    gpu_model: str = ""
    driver: str = ""
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The job saved its work: `fraction` of the whole job is safe at `location`."""

    fraction: float
    location: str


class StartRefusedError(Exception):
    """The run could not be started; nothing of it is alive."""

    def __init__(self, cause: FailureCause, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail


class NoLongerWantedError(StartRefusedError):
    """The start was taken back on request, before anything of it began."""

    def __init__(self) -> None:
        super().__init__(FailureCause.UNKNOWN, "no longer wanted")


class Run(Protocol):
    """A run that was started or adopted."""

    facts: RunFacts

    async def ended(self) -> Exit:
        """Wait for its end. May be awaited by one task only."""
        ...

    async def checkpoint(self, wait_s: float) -> Answer | None:
        """Ask it to save its work; None if no answer came within `wait_s` wall seconds."""
        ...

    async def stop(self) -> None:
        """End it by force; `ended` then returns. Safe to call again, and after its end."""
        ...

    def kill(self) -> None:
        """End it at once, without grace; `ended` then returns. Safe to call while `stop` waits."""
        ...

    def unheard(self) -> Answer | Progress | None:
        """What the job said by itself and nobody took yet: a checkpoint it made on its own, or how far it is."""
        ...

    async def news(self) -> Answer | Progress:
        """Wait for something unheard. May be awaited by one task only."""
        ...

    async def rescale(self, gpus: tuple[int, ...]) -> None:
        """Tell an application which GPUs it holds now."""
        ...

    async def let_go(self, wait_s: float) -> None:
        """Return when an application acknowledged its newest GPUs, has ended, or `wait_s` wall seconds are over."""
        ...

    async def serves(self) -> bool:
        """Whether it answers its declared probe now; True without one."""
        ...


class Driver(Protocol):
    """Starts and adopts runs."""

    def boot_id(self) -> str:
        """Names the time in which runs can survive: it changes when the machine was restarted."""
        ...

    async def prepare(self, order: Order) -> Prepared:
        """Whether a gang's part could start here. Raises StartRefusedError."""
        ...

    async def start(self, order: Order) -> Run:
        """Raises StartRefusedError."""
        ...

    async def reap(self, node: str, known: Sequence[Order]) -> list[str]:
        """End what is alive on the node and belongs to none of the known runs (a lost journal); their names. What another scheduler
        keeps is its own to look after."""
        ...

    async def adopt(self, order: Order, facts: RunFacts | None) -> Run | None:
        """The run that a predecessor started, dead or alive; `facts` None if it died before it could note them."""
        ...

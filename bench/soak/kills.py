"""When which process is killed: seeded moments of the script, counted in jobs that are over, not in seconds.

Owns the plan and its carrying out. The second workers come at SECOND_AT and are killed after that as well. Read next: `run.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from msgspec import Struct

from bench.soak.publish import Progress
from bench.soak.stack import CLUSTERS, OWN, SECOND, SHARED, Soaked, second_name

SECOND_AT = 0.45
FIRST_AT, LAST_AT = 0.08, 0.94
SECOND_FIRST_AT = 0.55
RECOVERED_WAIT_S = 600.0
"""A forecaster reads again all runs that the topics keep: a minute of processor time for half a million records, and others want the
processors, too."""
POLL_S = 0.02
VICTIMS = (*SHARED, *(f"{name}-{cluster}" for cluster in CLUSTERS for name in OWN), "kafka")


@dataclass(frozen=True, slots=True)
class Planned:
    """`at`: share of the script that is over by then."""

    at: float
    name: str


class Kill(Struct, frozen=True, kw_only=True):
    """A kill as it happened. `back_s`: until the process was ready again."""

    name: str
    at_events: int
    at_s: float
    pid: int
    back_s: float


def plan(seed: int, times: int, second_times: int) -> list[Planned]:
    """Every process `times` times, those that join later `second_times`, in order."""
    dice = Random(seed)
    found = [Planned(dice.uniform(FIRST_AT, LAST_AT), name) for name in VICTIMS for _ in range(times)]
    found += [
        Planned(dice.uniform(SECOND_FIRST_AT, LAST_AT), second_name(name))
        for name in SECOND
        for _ in range(second_times)
    ]
    return sorted(found, key=lambda each: (each.at, each.name))


async def carry_out(stack: Soaked, progress: Progress, planned: Sequence[Planned], begun_s: float) -> list[Kill]:
    """Kill as planned and add the second workers; returns what was killed, when all of it is back.

    Nothing is waited for between two kills: what is down at once is down at once.
    """
    second = asyncio.ensure_future(_add_second(stack, progress))
    tasks = [asyncio.ensure_future(_kill(stack, progress, each, second, begun_s)) for each in planned]
    try:
        await second
        return sorted(await asyncio.gather(*tasks), key=lambda kill: (kill.at_s, kill.name))
    finally:
        for task in (second, *tasks):
            task.cancel()


async def _add_second(stack: Soaked, progress: Progress) -> None:
    await _reached(stack, progress, SECOND_AT)
    await asyncio.to_thread(stack.add_second)


async def _kill(
    stack: Soaked, progress: Progress, planned: Planned, second: asyncio.Future[None], begun_s: float
) -> Kill:
    await _reached(stack, progress, planned.at)
    if planned.name not in stack.names:
        await asyncio.shield(second)
    deadline_s = time.monotonic() + RECOVERED_WAIT_S
    # It may be on its way back from an earlier kill; one that never got ready would only test the supervisor's patience.
    await _until(stack, lambda: stack.ready(planned.name), f"{planned.name} was not there to be killed", deadline_s)
    supervisor = stack.supervisor_of(planned.name)
    pid, killed_s = supervisor.pid(planned.name), time.monotonic()
    published = progress.published
    if pid:  # 0 would be our own process group
        os.kill(pid, signal.SIGKILL)
    await _until(
        stack,
        lambda: supervisor.pid(planned.name) not in (0, pid) and stack.ready(planned.name),
        f"{planned.name} never came back",
        killed_s + RECOVERED_WAIT_S,
    )
    return Kill(
        name=planned.name,
        at_events=published,
        at_s=round(killed_s - begun_s, 2),
        pid=pid,
        back_s=round(time.monotonic() - killed_s, 2),
    )


async def _reached(stack: Soaked, progress: Progress, share: float) -> None:
    while progress.done < share:
        stack.check()
        await asyncio.sleep(POLL_S)


async def _until(stack: Soaked, condition: Callable[[], bool], what: str, deadline_s: float) -> None:
    while not condition():
        stack.check()
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} within {RECOVERED_WAIT_S:.0f} s: see the logs in the run folder")
        await asyncio.sleep(POLL_S)

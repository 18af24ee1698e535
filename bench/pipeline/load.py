"""The load: small jobs as any upstream would publish them, at times drawn beforehand. Open loop: nothing waits for an answer.

Owns identities (a run's jobs are told from another's by their prefix) and the pace. Read next: `sight.py`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.jobs import JobSpec, JobSubmitted, Kind
from schemas.messages import message
from schemas.records import Message
from services.replay.core.day import RUN_LABEL
from services.replay.core.schedule import traceparent
from services.runtime.bus.port import Producer

SOURCE = "/upstream/bench"
PRIORITY_MAX = 5


def job_message(job_id: str, number: int, run_s: float) -> Message:
    """A one-GPU job of `run_s` seconds; its arguments alone decide its content, the time of submission is now."""
    now_ms = time.time_ns() // 1_000_000
    spec = JobSpec(
        kind=Kind.BATCH_INFERENCE,
        team=f"team-{number % 7}",
        user=f"user-{number % 31}",
        priority=1 + number % PRIORITY_MAX,
        sizes=[1],
        time_limit_s=max(600.0, run_s * 2),
        template="simulated",
        labels={RUN_LABEL: json.dumps({"1": run_s})},
    )
    event = JobSubmitted(job_id=job_id, submitted_ms=now_ms, spec=spec)
    identity = f"{job_id}/submitted"
    return message(event, key=job_id, id=identity, source=SOURCE, time_ms=now_ms, traceparent=traceparent(identity))


def arrivals_s(count: int, rate: float, draw: np.random.Generator | None) -> list[float]:
    """Seconds after the start at which each job arrives: Poisson if there is a generator, else evenly."""
    if draw is None:
        return [number / rate for number in range(count)]
    return np.cumsum(draw.exponential(1 / rate, count)).tolist()


@dataclass
class Sent:
    """When each identity was handed over (Unix ns), and the worst delay of a hand-over behind its plan."""

    at_ns: dict[str, int]
    late_s_max: float = 0.0


async def publish(
    producer: Producer,
    identities: Sequence[str],
    at_s: Sequence[float],
    make: Callable[[str, int], Message],
    sent: Sent | None = None,
) -> Sent:
    """Hand over one message per identity at its time; return when all are acknowledged. `sent` is filled on the way."""
    found = sent or Sent({})
    begun_s = time.monotonic()
    waiting: list[asyncio.Task] = []
    for number, (identity, due_s) in enumerate(zip(identities, at_s, strict=True)):
        ahead_s = begun_s + due_s - time.monotonic()
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
        else:
            found.late_s_max = max(found.late_s_max, -ahead_s)
        made = make(identity, number)
        found.at_ns[identity] = time.time_ns()
        waiting.append(asyncio.ensure_future(producer.send(made)))
        if ahead_s <= 0:
            await asyncio.sleep(0)  # behind its plan it must still let the sends begin
    await asyncio.gather(*waiting)
    return found

"""Publishes a script as fast as the stack ends its jobs, and sees them end: a closed loop, so that no queue grows with the count.

Owns the pace and the resending: a chunk is acknowledged as a whole before the next begins; after any doubt it is sent again by a new
producer, so every event is there once or more and in order. Read next: `run.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from itertools import islice

import msgspec

from bench.soak.script import FOLLOW_MAX, FOLLOW_MIN, Script, Step, made, number_of
from schemas.records import Message
from schemas.status import FINAL_STATES
from services.runtime.bus.kafka import KafkaBus
from services.runtime.bus.port import BusError, Producer, SendUnknownError

CHUNK = 50
"""Events sent together; less than FOLLOW_MIN."""
OPEN_MAX = 400
"""Jobs published and not ended at any moment, at most: enough for the stack to batch well. Of FOLLOW_MAX events one in twelve
waits for a later one to cancel it, so those never fill it."""
RETRY_S = 0.5
RETRIES_MAX = 240
"""Two minutes without a broker: then the soak has failed."""
POLL_S = 0.5
PACE_S = 0.02

assert CHUNK < FOLLOW_MIN
assert OPEN_MAX > FOLLOW_MAX / 4

_FINAL = frozenset(state.value for state in FINAL_STATES)


class _Status(msgspec.Struct):
    job_id: str
    state: str


_STATUS = msgspec.json.Decoder(_Status)


class Progress:
    """How far a run is. `ended`: numbers of jobs that were shown in a final state."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.published = 0
        self.resent = 0
        self._seen = bytearray()
        self.ended = 0

    @property
    def open(self) -> int:
        """Jobs published and not ended; `jobs` of the script grows with what is drawn."""
        return len(self.script.jobs) - self.ended

    @property
    def done(self) -> float:
        """Share of the script that is over: events published, less the jobs that are still open."""
        return (self.published - self.open) / self.script.count

    @property
    def all_published(self) -> bool:
        return self.published >= self.script.count

    def end(self, number: int) -> None:
        if number >= len(self._seen):
            self._seen.extend(bytes(number + 1024 - len(self._seen)))
        self.ended += not self._seen[number]
        self._seen[number] = 1

    def unfinished(self, most: int = 10) -> list[str]:
        """Some jobs that have not ended."""
        seen = self._seen
        left = (job for job in self.script.jobs if job.number >= len(seen) or not seen[job.number])
        return [f"{job.job_id} ({job.fate.value})" for job in islice(left, most)]


async def publish(bus: KafkaBus, progress: Progress) -> None:
    """The whole script. Raises SendUnknownError if the broker stays away."""
    producer: Producer | None = None
    known: dict[str, Message] = {}
    order: deque[str] = deque()
    steps = progress.script.steps()
    try:
        while True:
            while progress.open >= OPEN_MAX:
                await asyncio.sleep(PACE_S)
            chunk = list(islice(steps, CHUNK))
            if not chunk:
                return
            messages = [_message(progress.script, step, known, order) for step in chunk]
            producer = await _sent(bus, producer, messages, progress)
            progress.published += len(chunk)
    finally:
        if producer is not None:
            await producer.stop()


def _message(script: Script, step: Step, known: dict[str, Message], order: deque[str]) -> Message:
    """Made once and kept as long as it may be repeated."""
    if step.repeats:
        return known[step.id]
    found = made(script.jobs[step.number], step, time.time_ns() // 1_000_000)
    known[step.id] = found
    order.append(step.id)
    while len(order) > 4 * FOLLOW_MAX:
        del known[order.popleft()]
    return found


async def _sent(bus: KafkaBus, producer: Producer | None, messages: list[Message], progress: Progress) -> Producer:
    """The producer to go on with."""
    for _ in range(RETRIES_MAX):
        try:
            if producer is None:
                producer = bus.producer("soak-upstream")
                await producer.start()
            await producer.send_all(messages)
            return producer
        except BusError:
            progress.resent += len(messages)
            if producer is not None:
                with contextlib.suppress(BusError):
                    await producer.stop()
            producer = None
            await asyncio.sleep(RETRY_S)
    raise SendUnknownError(f"no acknowledgement for {RETRIES_MAX * RETRY_S:.0f} s: is the broker running?")


@contextlib.asynccontextmanager
async def following(bus: KafkaBus, progress: Progress, failed: Callable[[], None]) -> AsyncIterator[asyncio.Task[None]]:
    """Within, the ends of jobs are seen as people see them, on `job-status`, whatever happens to the broker."""
    task = asyncio.ensure_future(_follow(bus, progress, failed))
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _follow(bus: KafkaBus, progress: Progress, failed: Callable[[], None]) -> None:
    positions: dict[tuple[str, int], int] = {}
    while True:
        try:
            partitions = [("job-status", number) for number in range(await bus.partition_count("job-status"))]
            reader = bus.reader("soak-follower", partitions)
            await reader.start()
            try:
                for partition, position in positions.items():
                    await reader.seek(partition, position)
                while True:
                    failed()
                    for record in await reader.poll(max_records=2_000, timeout_s=POLL_S):
                        positions[record.topic, record.partition] = record.offset + 1
                        if record.value is None:
                            continue
                        status = _STATUS.decode(record.value)
                        number = number_of(status.job_id)
                        if status.state in _FINAL and number is not None:
                            progress.end(number)
            finally:
                await reader.stop()
        except BusError:
            await asyncio.sleep(RETRY_S)

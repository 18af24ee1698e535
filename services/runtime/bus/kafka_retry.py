"""Starting and stopping aiokafka clients when the broker may be away.

Owns: how long we wait for a broker and how long for a client that hangs. Read next: `kafka.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from aiokafka.errors import KafkaError

from services.runtime.bus.port import BusError

START_S_MAX = 60.0
"""A broker that starts from cold takes 5 s here, half a minute on a busy machine; longer means it isn't coming."""
BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses between attempts; the last one repeats."""
STOP_S_MAX = 5.0
"""A client whose broker is gone may wait for it for ever when it stops."""

ASSIGNMENTS_MAX = 12
ASSIGNMENTS_WINDOW_S = 120.0
"""More assignments than this in that time are not a group that settles: two processes with one instance id throw each other
out for ever, every second or two, and every five to eight on a busy machine. Workers that join and die make half as many."""

log = logging.getLogger(__name__)


class Client(Protocol):
    """What aiokafka's producer, consumer and admin share."""

    async def start(self) -> None: ...


C = TypeVar("C", bound=Client)


class AssignmentPace:
    """Notices a member that is thrown out again and again."""

    def __init__(self, group: str, instance_id: str | None) -> None:
        self._group = group
        self._instance_id = instance_id
        self._times_s: deque[float] = deque(maxlen=ASSIGNMENTS_MAX)

    def assigned(self, now_s: float) -> None:
        """Raises BusError when it happens too often."""
        times = self._times_s
        if len(times) == ASSIGNMENTS_MAX and now_s - times[0] < ASSIGNMENTS_WINDOW_S:
            raise BusError(
                f"group {self._group} has assigned partitions {ASSIGNMENTS_MAX} times in {now_s - times[0]:.0f} s: another "
                f"process uses the instance id {self._instance_id}, or members come and go; ending this one"
            )
        times.append(now_s)


def backoff_s(attempt: int) -> float:
    return BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)]


async def started(make: Callable[[], C], bootstrap: str) -> C:
    """A started client. Retries while the broker can't be reached; raises BusError after START_S_MAX."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + START_S_MAX
    attempt = 0
    while True:
        client = make()
        try:
            await client.start()
        except (KafkaError, OSError) as error:
            await closed(client)
            if loop.time() > until_s:
                raise BusError(
                    f"can't reach Kafka at {bootstrap} ({error!r}): is the broker running, and is the address right?"
                ) from error
            await asyncio.sleep(backoff_s(attempt))
            attempt += 1
        except BaseException:
            await closed(client)
            raise
        else:
            return client


async def closed(client: object) -> None:
    """Flush and stop a client of any kind, in whatever state; gives up after STOP_S_MAX, when the broker is away."""
    stop = getattr(client, "stop", None) or client.close  # type: ignore[attr-defined]
    try:
        async with asyncio.timeout(STOP_S_MAX):
            await stop()
    except (KafkaError, OSError, TimeoutError) as error:
        log.debug("a client did not stop cleanly: %r", error)

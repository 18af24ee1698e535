"""Starting and stopping aiokafka clients when the broker may be away.

Owns: how long we wait for a broker and how long for a client that hangs. Read next: `kafka.py`.
"""

from __future__ import annotations

import asyncio
import logging
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

log = logging.getLogger(__name__)


class Client(Protocol):
    """What aiokafka's producer, consumer and admin share."""

    async def start(self) -> None: ...


C = TypeVar("C", bound=Client)


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

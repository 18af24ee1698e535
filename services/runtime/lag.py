"""Consumer lag of services that read by the bus port themselves; faust's services ask faust (`faust_hop.py`).

Owns: the question (end of the log minus what was read) and its rhythm. Refuses to disturb the reading: it asks beside it, every
LAG_PERIOD_S, and a broker that doesn't answer leaves the last known figures. Read next: `metrics.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

from services.runtime.bus.port import BusError, Consumer, TopicPartition
from services.runtime.clock import Clock
from services.runtime.metrics import LAG_PERIOD_S, Metrics

log = logging.getLogger(__name__)

AskLag = Callable[[], Awaitable[Mapping[TopicPartition, int]]]


async def lag_of(consumer: Consumer, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Records that `consumer` has not read yet. Raises BusError, also for a partition that it no longer has."""
    asked = sorted(partitions)
    if not asked:
        return {}
    ends = await consumer.end_offsets(asked)
    return {part: max(0, ends[part] - await consumer.position(part)) for part in asked}


@contextlib.asynccontextmanager
async def lag_measured(metrics: Metrics, clock: Clock, ask: AskLag) -> AsyncIterator[None]:
    """Keep the lag gauges up to date inside of the block."""
    measuring = asyncio.create_task(_measure(metrics, clock, ask))
    try:
        yield
    finally:
        measuring.cancel()
        await asyncio.wait((measuring,))


async def _measure(metrics: Metrics, clock: Clock, ask: AskLag) -> None:
    while True:
        try:
            metrics.set_lag(await ask())
        except BusError:
            pass  # the reading itself deals with a broker that is away
        except Exception:
            # A client that is closed or replaced in this moment: the next question finds the new one.
            log.warning("the consumer lag is not known at the moment", exc_info=True)
        await clock.sleep_wall(LAG_PERIOD_S)

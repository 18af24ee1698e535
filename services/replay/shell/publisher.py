"""Publishes a day like any upstream would: plain CloudEvents on `job-events` and `demand`, each when its moment has come.

Runs on any bus and clock: Kafka with the scaled clock, the memory bus with the virtual one. Started again it reads what
is already there and goes on behind it; an unknown send is looked up the same way before it is repeated.
Read next: `core/schedule.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from services.replay.core.schedule import Publication
from services.runtime.bus.port import Bus, Producer, SendUnknownError
from services.runtime.clock import Clock
from services.runtime.hop import read_to_end

CLIENT_ID = "replay-publisher"
BATCH_MAX = 500
"""Messages in flight at once: the history of a week goes out in a few calls, a burst of jobs in one."""
RETRY_S = (0.05, 0.2, 0.5, 1.0, 2.0)
"""Wall seconds between tries after an unknown send; the last one repeats, a broker restart takes 2 to 5 s."""
RETRIES_MAX = 60
"""About two minutes without a broker; then the replay is pointless."""

Progress = Callable[[int, int], None]


class Publisher:
    """One upstream. `publish` may be called several times, for the opening and for the day."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._producer: Producer | None = None

    async def publish(
        self,
        publications: Sequence[Publication],
        *,
        wait: bool = True,
        stop: asyncio.Event | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Publish what isn't on the bus yet, in order, each at its due time (`wait=False`: at once). Returns how many.

        Raises SendUnknownError when the bus stays away for longer than RETRIES_MAX tries.
        """
        left = await self._missing(publications)
        published, total = len(publications) - len(left), len(publications)
        sent = 0
        while left and not (stop is not None and stop.is_set()):
            if wait:
                await self._clock.sleep_until(left[0].due_ms)
            now_ms = self._clock.now_ms()
            batch = [entry for entry in left[:BATCH_MAX] if not wait or entry.due_ms <= now_ms]
            await self._send(batch)
            left = left[len(batch) :]
            sent += len(batch)
            if progress is not None:
                progress(published + sent, total)
        return sent

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.stop()
            self._producer = None

    async def _send(self, batch: Sequence[Publication]) -> None:
        for attempt in range(RETRIES_MAX):
            try:
                if self._producer is None:
                    self._producer = self._bus.producer(CLIENT_ID)
                    await self._producer.start()
                await self._producer.send_all([entry.message for entry in batch])
                return
            except SendUnknownError:
                await self.close()
                await self._clock.sleep_wall(RETRY_S[min(attempt, len(RETRY_S) - 1)])
                batch = await self._missing(batch)
        raise SendUnknownError(
            f"{len(batch)} events could not be published in {RETRIES_MAX} tries: is the broker running?"
        )

    async def _missing(self, publications: Sequence[Publication]) -> list[Publication]:
        """Those whose id is not on their topic yet."""
        topics = sorted({entry.message.topic for entry in publications})
        if not topics:
            return []
        counts = [(topic, await self._bus.partition_count(topic)) for topic in topics]
        reader = self._bus.reader(
            f"{CLIENT_ID}-check", [(topic, part) for topic, count in counts for part in range(count)]
        )
        there: set[str | None] = set()
        await reader.start()
        try:
            await read_to_end(reader, lambda record: there.add(record.header("ce_id")))
        finally:
            await reader.stop()
        return [entry for entry in publications if entry.id not in there]

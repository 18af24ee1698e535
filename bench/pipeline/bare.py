"""`python -m bench.pipeline.bare faust|loop FROM TO READY_FILE`: a hop that passes records on and does nothing else.

`faust` is `services.runtime.faust_hop` with an empty handler: what intake and the forecaster cost before they do anything.
`loop` is the bus port's plain read-and-send loop, what the allocator stands on. Configured by GPUGRID_BOOTSTRAP and
GPUGRID_RUN_DIR, as the services are.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from schemas.records import Message, Now, Record
from services.runtime.bus.kafka import KafkaBus
from services.runtime.clock import WallClock
from services.runtime.process import run_service

RECORDS_MAX = 1_000
POLL_S = 0.5
READY_POLL_S = 0.05


class PassOn:
    """A handler without a thought."""

    rebuilt_from: tuple[str, ...] = ()

    def __init__(self, source: str, target: str) -> None:
        self.inputs = (source,)
        self._target = target

    def recover(self, record: Record) -> None:
        """Nothing is remembered."""

    def handle(self, record: Record, now: Now) -> list[Message]:
        return [passed_on(record, self._target)]

    def tick(self, now: Now) -> list[Message]:
        return []


def passed_on(record: Record, target: str) -> Message:
    return Message(target, record.key, record.value, record.headers, record.partition)


async def run_faust(source: str, target: str, ready: Path, stop: asyncio.Event) -> None:
    """One faust hop."""
    from services.runtime.faust_hop import FaustConfig, FaustHop

    name = f"bare-{source}"
    data_dir = Path(os.environ["GPUGRID_RUN_DIR"]) / "faust" / name
    data_dir.mkdir(parents=True, exist_ok=True)
    config = FaustConfig(os.environ["GPUGRID_BOOTSTRAP"], name, name, data_dir)
    hop = FaustHop(PassOn(source, target), config, WallClock())

    async def tell() -> None:
        while not hop.ready:
            await asyncio.sleep(READY_POLL_S)
        ready.touch()

    telling = asyncio.ensure_future(tell())
    try:
        await hop.run(stop)
    finally:
        telling.cancel()


async def run_loop(source: str, target: str, ready: Path, stop: asyncio.Event) -> None:
    """One plain loop: poll, send, wait for the acknowledgement, poll. Positions are not committed, as the allocator's aren't."""
    bus = KafkaBus(os.environ["GPUGRID_BOOTSTRAP"])
    name = f"bare-{source}"
    consumer = bus.group_consumer(name, name, [source], instance_id=name)
    producer = bus.producer(name)
    await producer.start()
    await consumer.start()
    ready.touch()
    while not stop.is_set():
        records = await consumer.poll(max_records=RECORDS_MAX, timeout_s=POLL_S)
        if records:
            await producer.send_all([passed_on(record, target) for record in records])
    await consumer.stop()
    await producer.stop()


def main(arguments: list[str]) -> int:
    """Run one hop until SIGTERM."""
    if len(arguments) != 4 or arguments[0] not in ("faust", "loop"):
        print("usage: python -m bench.pipeline.bare faust|loop FROM TO READY_FILE", file=sys.stderr)
        return 2
    kind, source, target, ready = arguments
    run = run_faust if kind == "faust" else run_loop
    return run_service(
        f"bare-{kind}", lambda stop: run(source, target, Path(ready), stop), instance_id=source, log_level="warning"
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

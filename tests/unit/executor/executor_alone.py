"""An executor process for tests that kill it: process driver, journal in files, memory bus.

`python executor_alone.py FOLDER`: carries out FOLDER/placement.json, appends what it reports to FOLDER/said.jsonl.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec

from schemas.codec import decode_record
from schemas.messages import message
from schemas.placements import NodePlaced
from schemas.topics import TOPICS
from services.executor.shell.drivers.environment import Site
from services.executor.shell.drivers.process import ProcessDriver
from services.executor.shell.journal_store import FileJournal
from services.executor.shell.loop import Executor, Settings
from services.runtime.bus.memory import MemoryBus
from services.runtime.clock import WallClock


async def main(folder: Path) -> None:
    clock = WallClock()
    bus = MemoryBus({topic.name: topic.partitions for topic in TOPICS}, clock=clock)
    placed = msgspec.json.decode((folder / "placement.json").read_bytes(), type=NodePlaced)
    producer = bus.producer("allocator")
    await producer.start()
    identity = f"{placed.node}/{placed.epoch}/{placed.sequence}"
    await producer.send(message(placed, key=placed.node, id=identity, source="/t", time_ms=0, partition=0))
    settings = Settings(
        nodes=("n00",),
        cluster="c0",
        partition=0,
        client_id="executor",
        stop_jobs_on_exit=os.environ.get("STOP_JOBS") == "1",
    )
    executor = Executor(
        settings,
        bus,
        clock,
        ProcessDriver(clock, folder / "run", Site(nodes=("n00",)), grace_s=0.5),
        lambda name: FileJournal(folder / "run" / name / "journal"),
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    running = asyncio.create_task(executor.run(stop))
    reader = bus.reader("observer", bus.partitions("executions"))
    await reader.start()
    with (folder / "said.jsonl").open("ab", buffering=0) as said:
        while not running.done():
            await observe(reader, said, 0.05)
        await observe(reader, said, 0.0)
    await running


async def observe(reader, said, timeout_s: float) -> None:
    for record in await reader.poll(max_records=100, timeout_s=timeout_s):
        envelope = decode_record(record)
        said.write(msgspec.json.encode({"id": envelope.id, "type": envelope.type, "event": envelope.event}) + b"\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))

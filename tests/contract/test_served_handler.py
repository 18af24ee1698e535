"""A handler served as a real process: ready when it is, traced, measured, stopped in order, shared with a second instance."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest

from schemas.records import Message, Record
from services.runtime.bus.kafka import KafkaBus
from services.runtime.health import read_health
from services.runtime.span_spool import read_spans
from services.runtime.traceparent import context_of
from tests.contract.kafka_topics import create_topics

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]
ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0
TRACE = "0af7651916cd43dd8448eb211c80319c"


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + DEADLINE_S
    while not await condition():
        assert loop.time() < until_s, "the condition did not come true in time"
        await asyncio.sleep(0.05)


def serve(kafka: str, run_dir: Path, instance_id: str, topics: list[str]) -> subprocess.Popen[bytes]:
    environ = {
        **os.environ,
        "GPUGRID_BOOTSTRAP": kafka,
        "GPUGRID_RUN_DIR": str(run_dir),
        "GPUGRID_INSTANCE_ID": instance_id,
    }
    command = [sys.executable, "-m", "tests.contract.served_echo", *topics]
    return subprocess.Popen(command, cwd=ROOT, env=environ, stderr=(run_dir / f"{instance_id}.log").open("wb"))


def log_lines(run_dir: Path, instance_id: str) -> list[dict]:
    return [json.loads(line) for line in (run_dir / f"{instance_id}.log").read_text().splitlines()]


async def answer(run_dir: Path, instance_id: str, path: str) -> tuple[int, str]:
    found = read_health(run_dir, instance_id)
    if found is None:
        return 0, ""
    try:
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{found.port}") as session,
            session.get(path) as response,
        ):
            return response.status, await response.text()
    except aiohttp.ClientError:
        return 0, ""


async def test_a_process_becomes_ready_handles_traces_measures_and_stops(kafka: str, tmp_path: Path):
    suffix = uuid4().hex[:8]
    incoming, outgoing = f"in-{suffix}", f"out-{suffix}"
    await create_topics(kafka, {incoming: 2, outgoing: 2})
    instance_id = f"echo-{suffix}"
    process = serve(kafka, tmp_path, instance_id, [incoming, outgoing])

    async def ready() -> bool:
        return (await answer(tmp_path, instance_id, "/readyz"))[0] == 200

    try:
        await until(ready)
        bus = KafkaBus(kafka)
        producer = bus.producer("test")
        await producer.start()
        trace = (("traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode()),)
        await producer.send(Message(incoming, b"job-1", b"{}", trace, 1))
        await producer.stop()
        reader = bus.reader("test", [(outgoing, 0), (outgoing, 1)])
        await reader.start()
        (record,) = await reader.poll(max_records=10, timeout_s=DEADLINE_S)
        await reader.stop()

        async def measured() -> bool:
            return (
                f'gpugrid_events_total{{topic="{incoming}"}} 1.0'
                in (await answer(tmp_path, instance_id, "/metrics"))[1]
            )

        await until(measured)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
    (span,) = read_spans(tmp_path, TRACE)
    context = context_of(record)
    assert context is not None
    assert (context.trace_id, context.span_id) == (TRACE, span.span_id)
    assert (span.service, span.name, span.parent_id) == ("echo", f"process {incoming}", "b7ad6b7169203331")
    assert read_health(tmp_path, instance_id) is None
    assert [
        line["instance_id"] for line in log_lines(tmp_path, instance_id) if line["message"] == "SIGTERM: draining"
    ] == [instance_id]


def test_a_wrong_variable_is_one_sentence(tmp_path: Path):
    environ = {**os.environ, "GPUGRID_HEALTH_PORT": "high"}
    command = [sys.executable, "-m", "tests.contract.served_echo", "in", "out"]
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert done.returncode == 78
    assert done.stderr.startswith("echo: GPUGRID_HEALTH_PORT is 'high', which can't be used: ")
    assert done.stderr.count("\n") == 1


async def test_two_instances_share_and_the_survivor_takes_over_with_the_history(kafka: str, tmp_path: Path):
    suffix = uuid4().hex[:8]
    incoming, outgoing = f"in-{suffix}", f"out-{suffix}"
    await create_topics(kafka, {incoming: 4, outgoing: 4})
    names = [f"echo-{suffix}-{number}" for number in range(2)]
    processes = [serve(kafka, tmp_path, name, [incoming, outgoing]) for name in names]
    bus = KafkaBus(kafka)
    producer = bus.producer("test")
    await producer.start()
    reader = bus.reader("test", [(outgoing, number) for number in range(4)])
    await reader.start()
    seen: list[Record] = []

    async def send(first: int, last: int) -> None:
        await producer.send_all([Message(incoming, b"%d" % n, b"x", (), n % 4) for n in range(first, last)])

    def answered(keys: int) -> Callable[[], Awaitable[bool]]:
        async def condition() -> bool:
            seen.extend(await reader.poll(max_records=500, timeout_s=0.2))
            return len({record.key for record in seen}) >= keys

        return condition

    async def all_ready() -> bool:
        return all([(await answer(tmp_path, name, "/readyz"))[0] == 200 for name in names])

    try:
        await until(all_ready)
        await send(0, 200)
        await until(answered(200))
        processes[0].kill()
        await send(200, 400)
        await until(answered(400))
    finally:
        for process in processes:
            process.kill()
            process.wait()
        await reader.stop()
        await producer.stop()
    given: dict[bytes | None, set[str | None]] = {}
    for record in seen:
        given.setdefault(record.key, set()).add(record.header("number"))
    assert {key for key, found in given.items() if len(found) > 1} == set(), "a repeated event is answered alike"

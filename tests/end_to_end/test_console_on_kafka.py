"""The commands as a person runs them: own processes, a real Kafka, records that a real allocator wrote; quick enough to be used."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from deploy.local.broker import EmbeddedBroker
from deploy.local.topics import create_topics
from schemas.codec import decode_record
from schemas.jobs import JobSubmitted
from schemas.records import Message
from services.console.read import read_topics
from services.runtime.bus.kafka import KafkaBus
from tests import build
from tests.unit.console.console_rig import Rig, contended

CPU_S_MAX = 2.0
"""Processor time of one reading command, Python's start included. Wall time would measure the neighbours of this test."""
CPU_TRIES = 2
"""The quicker one counts: a neighbour on the same core's other half slows the processor, too."""


@pytest.mark.kafka
def test_commands_answer_on_kafka_what_they_answer_in_memory(kafka_factory: Callable[[], EmbeddedBroker]) -> None:
    rig = contended()
    names = [f"job-{number:03d}" for number in range(300)]
    for start in range(0, 300, 100):
        some = names[start : start + 100]
        rig.give(
            *(build.accepted(name, 1, 2) for name in some), *(build.forecast(name, {1: 600, 2: 400}) for name in some)
        )
    broker = kafka_factory()
    create_topics(broker.address)
    asyncio.run(_copy(rig, broker.address))

    for words in (["jobs", "--json"], ["nodes", "--json"], ["decisions", "--json"], ["grid", "--now", "--json"]):
        said, cpu_s = min((_console(broker.address, *words) for _ in range(CPU_TRIES)), key=lambda one: one[1])
        expected = json.loads(rig.run(*words))
        assert _timeless(json.loads(said)) == _timeless(expected), words
        assert cpu_s < CPU_S_MAX, f"{words} took {cpu_s} s of processor time"
    answer = json.loads(_console(broker.address, "why", "small", "--json")[0])
    assert (answer["reason"], answer["cause"], answer["position"]) == ("waiting_for_gpus", "shortage", 1)
    assert json.loads(_console(broker.address, "replay-decision", "--json", "3")[0])["identical"]
    assert "decided" in _console(broker.address, "trace", "big")[0]

    said, _ = _console(broker.address, "submit", "--json", "--id", "new", "--gpus", "2", "--", "python", "train.py")
    (event,) = asyncio.run(_submitted(broker.address))
    assert isinstance(event.event, JobSubmitted)
    assert event.event.job_id == "new"
    assert event.traceparent == json.loads(said)["traceparent"]
    said, _ = _console(broker.address, "drain", "--json", "n01", "--cause", "test")
    assert json.loads(said)["node"] == "n01"
    assert [row["draining"] for row in json.loads(_console(broker.address, "nodes", "--json")[0])] == [False, True]


def _timeless(document: object) -> object:
    """Without what depends on the moment of asking."""
    if isinstance(document, dict):
        return {
            name: _timeless(value)
            for name, value in document.items()
            if name not in ("now_ms", "runs", "planned_starts")
        }
    return [_timeless(one) for one in document] if isinstance(document, list) else document


async def _copy(rig: Rig, address: str) -> None:
    producer = KafkaBus(address).producer("copy")
    await producer.start()
    try:
        for topic in build.topic_partitions():
            records = rig.records(topic)
            for start in range(0, len(records), 500):
                await producer.send_all(
                    [
                        Message(one.topic, one.key, one.value, one.headers, one.partition)
                        for one in records[start : start + 500]
                    ]
                )
    finally:
        await producer.stop()


async def _submitted(address: str) -> list:
    import time

    reading = await read_topics(KafkaBus(address), ["job-events"], wall_s=time.monotonic)
    assert reading.complete
    return [decode_record(record) for record in reading.of("job-events")]


def _console(address: str, *words: str) -> tuple[str, float]:
    """(standard output, processor seconds) of one command, which must succeed."""
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-m", "services.console", "--bootstrap", address, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )
    after = os.times()
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout, after.children_user + after.children_system - before.children_user - before.children_system

"""The embedded broker is a real Kafka: it keeps data over kill -9, says why it cannot start, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from deploy.local.broker import BrokerFailedError, EmbeddedBroker, answers
from deploy.local.ports import is_free

pytestmark = [pytest.mark.kafka]
RECORDS = 200
GONE_WAIT_S = 60.0


async def _write(address: str, topic: str, first: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    if topic not in await admin.list_topics():
        await admin.create_topics([NewTopic(topic, 1, 1)])
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=address, acks="all") as producer:
        for number in range(first, first + RECORDS):
            await producer.send(topic, b"%d" % number)
        await producer.flush()


async def _read(address: str, topic: str) -> list[int]:
    partition = TopicPartition(topic, 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=address, enable_auto_commit=False)
    async with consumer:
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        end = (await consumer.end_offsets([partition]))[partition]
        numbers: list[int] = []
        while len(numbers) < end:
            numbers.append(int((await consumer.getone()).value))
    return numbers


def _wait_gone(pids: list[int]) -> None:
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end while it is looked for
            found.append(psutil.Process(pid))
    _, alive = psutil.wait_procs(found, timeout=GONE_WAIT_S)
    assert alive == []


def _mentioning(marker: str) -> list[list[str]]:
    """Command lines of processes that have to do with a folder."""
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if marker in " ".join(line)]


async def test_acknowledged_records_survive_kill_and_restart_on_the_same_port(
    kafka_factory: Callable[[], EmbeddedBroker],
) -> None:
    broker = kafka_factory()
    address = broker.address
    await _write(address, "kept", 0)
    os.kill(broker.pid, signal.SIGKILL)
    assert broker.process is not None
    assert broker.process.wait(GONE_WAIT_S)  # the pid is gone a moment before the guard has said so
    broker.start()
    broker.ready()
    assert broker.address == address
    await _write(address, "kept", RECORDS)
    broker.kill()
    broker.start()
    broker.ready()
    assert await _read(address, "kept") == list(range(2 * RECORDS))


async def test_topics_are_never_created_by_accident(kafka: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka, request_timeout_ms=1_000) as producer:
        with pytest.raises(Exception, match=r"(?i)topic|timeout|partition"):
            await producer.send_and_wait("nobody-created-this", b"x")


def test_it_listens_on_loopback_only(kafka_factory: Callable[[], EmbeddedBroker]) -> None:
    broker = kafka_factory()
    listening = [c.laddr for c in psutil.Process(broker.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert sorted(address.port for address in listening) == sorted([broker.port, broker.controller_port])
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_two_brokers_run_side_by_side(kafka_factory: Callable[[], EmbeddedBroker]) -> None:
    first, second = kafka_factory(), kafka_factory()
    assert len({first.port, first.controller_port, second.port, second.controller_port}) == 4
    assert answers(first.port)
    assert answers(second.port)


def test_a_taken_port_gets_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker = EmbeddedBroker(tmp_path / "broker", port=taken.getsockname()[1])
        with pytest.raises(BrokerFailedError, match=r"Port \d+ on 127.0.0.1 is in use: stop what listens there"):
            broker.start()


def test_a_second_broker_on_the_same_folder_gets_one_sentence(kafka_factory: Callable[[], EmbeddedBroker]) -> None:
    first = kafka_factory()
    before = (first.data_dir / "server.properties").read_bytes()
    with pytest.raises(BrokerFailedError, match="Another broker runs on"):
        EmbeddedBroker(first.data_dir).start()
    assert (first.data_dir / "server.properties").read_bytes() == before
    assert answers(first.port)
    first.kill()
    with EmbeddedBroker(first.data_dir) as second:
        assert answers(second.port)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_it_dies_with_its_owner(tmp_path: Path, how: signal.Signals) -> None:
    program = (
        "import sys, time; from pathlib import Path; from deploy.local.broker import EmbeddedBroker\n"
        "with EmbeddedBroker(Path(sys.argv[1])) as b:\n"
        "    print(b.port, b.controller_port, b.pid, b.process.guard_pid, flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "b")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as owner:
        assert owner.stdout is not None
        port, controller_port, pid, guard_pid = (int(word) for word in owner.stdout.readline().split())
        owner.send_signal(how)
        owner.wait(GONE_WAIT_S)
    _wait_gone([pid, guard_pid])
    assert is_free(port)
    assert is_free(controller_port)


@pytest.mark.parametrize("delay_s", [0.0, 0.15, 0.4, 0.8])
def test_an_interrupt_while_starting_leaves_no_process(tmp_path: Path, delay_s: float) -> None:
    program = (
        "import sys; from pathlib import Path; from deploy.local.broker import EmbeddedBroker\n"
        "print('go', flush=True)\n"
        "with EmbeddedBroker(Path(sys.argv[1])): print('up', flush=True); input()\n"
    )
    marker = str(tmp_path / "b")
    with subprocess.Popen(
        [sys.executable, "-c", program, marker],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"go\n"
        moment = time.monotonic() + delay_s  # a moment within the start, not a wait for something
        while time.monotonic() < moment and owner.poll() is None:
            owner.poll()
        owner.send_signal(signal.SIGINT)
        owner.wait(GONE_WAIT_S)
    # Interrupted in the middle of starting the guard its owner may not know it yet: the guard ends by itself.
    deadline = time.monotonic() + GONE_WAIT_S
    while (left := _mentioning(marker)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == []

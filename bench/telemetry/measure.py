"""Runs the real telemetry process on a real Kafka under `load.py`'s samples and watches its lag, its processor time and its return.

Owns: the phases. Steady: samples at their pace, the lag must not grow. Kill: kill -9 in the middle of it, until the lag is gone.
Burst: several periods at once, to know how much more it could take; that many times the pace is the headroom. On a machine that does
other things meanwhile the processor time per sample says more: `cpu_headroom` is how often it fits into one core at the pace.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
from msgspec import Struct

from bench.telemetry.load import NODE_GPUS, catalog_toml, placements, publish_burst, publish_evenly
from deploy.local.broker import EmbeddedBroker
from deploy.local.guarded import GuardedProcess
from deploy.local.topics import ensure_topics
from schemas.topics import BY_NAME
from services.runtime.bus.kafka import KafkaBus
from services.runtime.bus.port import Consumer, TopicPartition

GROUP = "gpugrid-telemetry"
TOPIC = "node-telemetry"
CAUGHT_UP_RECORDS = 150
"""About one second's samples: with commits every half second it is never zero."""
START_S_MAX = 120.0
RETURN_S_MAX = 120.0
LOOK_S = 1.0
BURST_PERIODS = 4


class Figures(Struct, frozen=True, kw_only=True):
    """`lag_*_records`: largest lag in the first and second half of the steady phase. `headroom`: burst rate over the pace."""

    nodes: int
    gpus: int
    period_s: float
    pace_samples_per_s: float
    steady_s: float
    samples: int
    lag_first_half_records: int
    lag_second_half_records: int
    lag_at_end_records: int
    core_share: float
    memory_mib: float
    back_after_kill_s: float
    rebuilt_nodes_after_kill: int
    burst_samples: int
    burst_s: float
    burst_samples_per_s: float
    headroom: float
    cpu_ms_per_sample: float
    cpu_headroom: float


async def measure(nodes: int, period_s: float, steady_s: float, say: Callable[[str], None]) -> Figures:
    with (
        tempfile.TemporaryDirectory(prefix="bench-telemetry-") as folder,
        EmbeddedBroker(Path(folder) / "kafka") as broker,
    ):
        await ensure_topics(broker.address)
        return await _phases(Path(folder), broker.address, nodes, period_s, steady_s, say)


async def _phases(
    folder: Path, address: str, nodes: int, period_s: float, steady_s: float, say: Callable[[str], None]
) -> Figures:
    bus = KafkaBus(address)
    producer = bus.producer("bench")
    await producer.start()
    partitions = [(TOPIC, number) for number in range(BY_NAME[TOPIC].partitions)]
    reader = bus.reader("bench-lag", partitions)
    await reader.start()
    process = _start(folder, address, nodes)
    try:
        await producer.send_all(placements(nodes))
        say(f"{nodes} nodes with {nodes * NODE_GPUS} GPUs, each every {period_s:g} s: {nodes / period_s:g} samples/s")
        await publish_burst(producer, nodes, 1, period_s)
        await _until_caught_up(bus, reader, START_S_MAX)
        watched = asyncio.create_task(_watch(bus, reader, process.pid, steady_s))
        samples = await publish_evenly(producer, nodes, period_s, steady_s)
        lags, core_share, memory_mib = await watched
        at_end = await _lag(bus, reader)
        say(f"steady: largest lag {max(lags)} records, {core_share:.0%} of a core, {memory_mib:.0f} MiB")
        process, back_s, known = await _kill(folder, address, nodes, period_s, process, producer, bus, reader)
        say(f"killed and back in {back_s:.1f} s, {known} nodes known again")
        begun_s = time.monotonic()
        before_s = _cpu_s(process.pid)
        burst = await publish_burst(producer, nodes, BURST_PERIODS, period_s)
        await _until_caught_up(bus, reader, RETURN_S_MAX)
        burst_s, burst_cpu_s = time.monotonic() - begun_s, _cpu_s(process.pid) - before_s
    finally:
        process.stop(10.0)
        await reader.stop()
        await producer.stop()
    half = max(1, len(lags) // 2)
    pace = nodes / period_s
    return Figures(
        nodes=nodes,
        gpus=nodes * NODE_GPUS,
        period_s=period_s,
        pace_samples_per_s=pace,
        steady_s=steady_s,
        samples=samples,
        lag_first_half_records=max(lags[:half]),
        lag_second_half_records=max(lags[half:] or lags),
        lag_at_end_records=at_end,
        core_share=round(core_share, 3),
        memory_mib=round(memory_mib, 1),
        back_after_kill_s=round(back_s, 2),
        rebuilt_nodes_after_kill=known,
        burst_samples=burst,
        burst_s=round(burst_s, 2),
        burst_samples_per_s=round(burst / burst_s, 1),
        headroom=round(burst / burst_s / pace, 2),
        cpu_ms_per_sample=round(burst_cpu_s / burst * 1000, 3),
        cpu_headroom=round(burst / burst_cpu_s / pace, 2),
    )


def _start(folder: Path, address: str, nodes: int) -> GuardedProcess:
    catalog = folder / "catalog.toml"
    catalog.write_text(catalog_toml(nodes))
    environment = {
        **os.environ,
        "GPUGRID_BOOTSTRAP": address,
        "GPUGRID_CATALOG": str(catalog),
        "GPUGRID_RUN_DIR": str(folder / "run"),
        "GPUGRID_INSTANCE_ID": "telemetry-0",
        "GPUGRID_HEALTH_PORT": "0",
    }
    argv = [sys.executable, "-m", "services.telemetry"]
    return GuardedProcess(argv, log_path=folder / "telemetry.log", env=environment, cwd=Path(__file__).parents[2])


async def _kill(
    folder: Path,
    address: str,
    nodes: int,
    period_s: float,
    process: GuardedProcess,
    producer: object,
    bus: KafkaBus,
    reader: Consumer,
) -> tuple[GuardedProcess, float, int]:
    """kill -9 while samples go on; back means that the lag is gone."""
    process.signal(signal.SIGKILL)
    process.close()
    begun_s = time.monotonic()
    fresh = _start(folder, address, nodes)
    going_on = asyncio.create_task(publish_evenly(producer, nodes, period_s, 10.0))  # type: ignore[arg-type]
    await asyncio.sleep(LOOK_S)
    arrived = await reader.end_offsets(sorted(reader.assignment()))
    while await _behind(bus, arrived) > 0:  # what came while it was away is handled
        if time.monotonic() - begun_s > RETURN_S_MAX:
            raise TimeoutError("the killed process did not come back")
        await asyncio.sleep(LOOK_S / 10)
    back_s = time.monotonic() - begun_s
    await going_on
    return fresh, back_s, await _known_nodes(folder)


async def _known_nodes(folder: Path) -> int:
    """What the process says of itself on its metrics page."""
    import aiohttp

    from services.runtime.health import read_health

    told = read_health(folder / "run", "telemetry-0")
    if told is None:
        return 0
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{told.port}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return round(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("gpugrid_nodes{")))


async def _watch(bus: KafkaBus, reader: Consumer, pid: int, duration_s: float) -> tuple[list[int], float, float]:
    """(lag every second, share of a core, resident MiB at the end)."""
    before, begun_s = _cpu_s(pid), time.monotonic()
    lags = []
    while time.monotonic() - begun_s < duration_s:
        await asyncio.sleep(LOOK_S)
        lags.append(await _lag(bus, reader))
    share = (_cpu_s(pid) - before) / (time.monotonic() - begun_s)
    return lags, share, psutil.Process(pid).memory_info().rss / 2**20


def _cpu_s(pid: int) -> float:
    return sum(psutil.Process(pid).cpu_times()[:2])


async def _lag(bus: KafkaBus, reader: Consumer) -> int:
    return await _behind(bus, await reader.end_offsets(sorted(reader.assignment())))


async def _behind(bus: KafkaBus, ends: Mapping[TopicPartition, int]) -> int:
    committed = await bus.group_offsets(GROUP, sorted(ends))
    return sum(max(0, end - committed.get(part, 0)) for part, end in ends.items())


async def _until_caught_up(bus: KafkaBus, reader: Consumer, wait_s: float) -> None:
    deadline_s = time.monotonic() + wait_s
    while await _lag(bus, reader) > CAUGHT_UP_RECORDS:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"still {await _lag(bus, reader)} records behind after {wait_s:.0f} s")
        await asyncio.sleep(0.1)

"""The agents of a large cluster in one process: full samples of real shape, spread evenly over the period, and what they hold.

Read next: `measure.py`.
"""

from __future__ import annotations

import asyncio
import time

from schemas.messages import message
from schemas.nodes import GpuProcess, GpuSample, HostSample, NodeSampled, RemappedRows
from schemas.placements import Assignment, Desired, NodePlaced
from schemas.records import Message
from services.runtime.bus.port import Producer

NODE_GPUS = 8
JOB_GPUS = 4
"""Two jobs on each node: as many usage records as a busy cluster writes."""
BATCH_S = 0.1


def node_name(number: int) -> str:
    return f"n{number:04d}"


def catalog_toml(nodes: int) -> str:
    return (
        'default_cluster = "c0"\n[clusters.c0]\npartition = 0\n[clusters.c0.pools.h100]\n'
        f'gpus = {nodes * NODE_GPUS}\nnode_gpus = {NODE_GPUS}\ngpu_model = "H100"\nmemory_mib = 81920\n'
    )


def placements(nodes: int) -> list[Message]:
    """Every GPU is held."""
    placed = []
    for number in range(nodes):
        name = node_name(number)
        assignments = [
            Assignment(
                job_id=f"job-{number}-{first}",
                attempt=1,
                desired=Desired.RUN,
                gpus=list(range(first, first + JOB_GPUS)),
            )
            for first in range(0, NODE_GPUS, JOB_GPUS)
        ]
        event = NodePlaced(
            node=name, cluster="c0", pool="h100", sequence=1, epoch=1, time_ms=0, assignments=assignments
        )
        placed.append(message(event, key=name, id=f"{name}/1", source="/bench", time_ms=0, partition=0))
    return placed


def sample(number: int, wall_ms: int, period_s: float) -> Message:
    """One node's sample, as large as a real one."""
    name = node_name(number)
    gpus = [
        GpuSample(
            index=index,
            uuid=f"GPU-{number:08d}-0000-0000-0000-{index:012d}",
            model="NVIDIA H100 80GB HBM3",
            memory_total_mib=81_559.0,
            memory_used_mib=60_000.5 + index,
            utilization_pct=float(60 + (number + index + wall_ms // 1000) % 40),
            power_w=655.2,
            temperature_c=64.0,
            power_limit_w=700.0,
            energy_j=wall_ms % 10**9 * 0.65,
            sm_clock_mhz=1755.0,
            memory_clock_mhz=2619.0,
            throttles=["sw_power_cap"],
            ecc_corrected=0.0,
            ecc_uncorrected=0.0,
            remapped_rows=RemappedRows(),
            pcie_tx_bytes=1e12,
            pcie_rx_bytes=2e12,
            pcie_replays=0.0,
            nvlink_tx_bytes=3e12,
            nvlink_rx_bytes=3e12,
            nvlink_errors=0.0,
            nvlinks_up=18,
            mig=False,
            processes=[
                GpuProcess(pid=4242 + index, memory_mib=60_000, job_id=f"job-{number}-{index // JOB_GPUS * JOB_GPUS}")
            ],
        )
        for index in range(NODE_GPUS)
    ]
    event = NodeSampled(
        node=name,
        cluster="c0",
        pool="h100",
        time_ms=wall_ms,
        wall_ms=wall_ms,
        source="bench",
        gpus=gpus,
        order=number,
        driver="580.1",
        period_s=period_s,
        host=HostSample(network_bytes_per_s=1e6, disk_bytes_per_s=1e6, cpu_pct=20.0, boot_id="b"),
    )
    return message(event, key=name, id=f"{name}/{wall_ms}", source="/bench", time_ms=wall_ms)


async def publish_evenly(producer: Producer, nodes: int, period_s: float, duration_s: float) -> int:
    """Each node once per period, a few nodes every tenth of a second; returns how many samples went out."""
    begun_s, sent = time.monotonic(), 0
    per_s = nodes / period_s
    while (passed_s := time.monotonic() - begun_s) < duration_s:
        due = int(passed_s * per_s) - sent
        wall_ms = time.time_ns() // 1_000_000
        if due > 0:
            await producer.send_all([sample((sent + extra) % nodes, wall_ms, period_s) for extra in range(due)])
            sent += due
        await asyncio.sleep(BATCH_S)
    return sent


async def publish_burst(producer: Producer, nodes: int, rounds: int, period_s: float) -> int:
    """So many periods' samples at once, as after an outage; their times go on from now."""
    wall_ms = time.time_ns() // 1_000_000
    for number in range(rounds):
        at_ms = wall_ms + round(number * period_s * 1000)
        for first in range(0, nodes, 250):
            some = range(first, min(first + 250, nodes))
            await producer.send_all([sample(each, at_ms, period_s) for each in some])
    return rounds * nodes

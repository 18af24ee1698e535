"""Played readings for machines without GPUs: cards are busy exactly while the node's placement gives them to somebody.

Owns: plausible, repeatable numbers. Refuses: chance (equal placements and minutes give equal readings). Read next: `agent.py`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from schemas.catalog import Pool
from schemas.nodes import GpuProcess, GpuSample
from schemas.placements import Desired, NodePlaced
from services.telemetry.shell.source import NodeReading

JOB_PCT = (82.0, 98.0)
APPLICATION_PCT = (35.0, 75.0)
"""An inference service rarely fills its cards; a training job nearly does."""
MEMORY_SHARE = (0.60, 0.92)
IDLE_POWER_W = 70.0
BUSY_POWER_W = 630.0
MINUTE_MS = 60_000
PID_BASE = 4_194_305
"""One above the most processes Linux can number: a played process is nobody's."""


class SimulatedSource:
    """Cards of `pool` on any number of nodes. Tell it what is placed with `place`; break a card with `errors`."""

    name = "simulated"
    driver = "simulated"

    def __init__(self, pool: Pool, now_ms: Callable[[], int]) -> None:
        self._pool = pool
        self._now_ms = now_ms
        self._busy: dict[str, dict[int, tuple[str, bool]]] = {}
        self.errors: dict[tuple[str, int], str] = {}
        self.slots: dict[str, dict[str, int]] = {}
        """By machine whose cards are shared: its nodes of slots, with slots per card."""

    def place(self, placed: NodePlaced) -> None:
        """Remember which cards are held, and whether by an application."""
        self._busy[placed.node] = {
            gpu: (assignment.job_id, assignment.application)
            for assignment in placed.assignments
            if assignment.desired is Desired.RUN
            for gpu in assignment.gpus
        }

    def _holder(self, node: str, card: int) -> tuple[str, bool] | None:
        """Of the whole card, else of one of its slots."""
        holder = self._busy.get(node, {}).get(card)
        for name, per_card in self.slots.get(node, {}).items():
            held = self._busy.get(name, {})
            holder = holder or next((who for slot, who in sorted(held.items()) if slot // per_card == card), None)
        return holder

    async def read(self, node: str) -> NodeReading:
        return NodeReading([self._read(node, index) for index in range(self._pool.node_gpus)])

    def _read(self, node: str, index: int) -> GpuSample:
        uuid = f"GPU-{node}-{index}"
        error = self.errors.get((node, index))
        if error is not None:
            return GpuSample(index=index, uuid=uuid, error=error)
        holder = self._holder(node, index)
        share = _share(f"{node}/{index}/{self._now_ms() // MINUTE_MS}")
        low, high = (0.0, 0.0) if holder is None else APPLICATION_PCT if holder[1] else JOB_PCT
        utilization = low + (high - low) * share
        memory = 0.0 if holder is None else MEMORY_SHARE[0] + (MEMORY_SHARE[1] - MEMORY_SHARE[0]) * share
        used_mib = round(memory * self._pool.memory_mib, 1)
        return GpuSample(
            index=index,
            uuid=uuid,
            model=self._pool.gpu_model,
            memory_total_mib=float(self._pool.memory_mib),
            memory_used_mib=used_mib,
            processes=[GpuProcess(pid=PID_BASE + index, memory_mib=int(used_mib), job_id=holder[0])] if holder else [],
            utilization_pct=round(utilization, 1),
            power_w=round(IDLE_POWER_W + (BUSY_POWER_W - IDLE_POWER_W) * utilization / 100, 1),
            temperature_c=round(34.0 + 40.0 * utilization / 100, 1),
        )


def _share(name: str) -> float:
    """0 to 1, the same for the same name everywhere."""
    return zlib.crc32(name.encode()) / 0xFFFFFFFF

"""Readings of real NVIDIA cards through NVML.

Owns: isolation. A field that a card doesn't support is missing; a card that fails has an `error`, and the others are still
read; a driver that was reloaded is opened again; a call that hangs doesn't hang the agent. Refuses: judging values (that is
telemetry's core). Read next: `nvml_card.py`, `nvml_events.py`, `agent.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from schemas.nodes import GpuSample, Topology, XidReport
from services.telemetry.shell.host import HostSampler, ProcessJobs
from services.telemetry.shell.nvml_card import CardReader, text
from services.telemetry.shell.nvml_events import XidEvents
from services.telemetry.shell.nvml_topology import read_topology
from services.telemetry.shell.source import NodeReading, SourceError

READ_WAIT_S = 4.0
"""A node's cards are read in milliseconds; below the sampling period, so that a hanging driver is reported in time."""
TOPOLOGY_PERIOD_S = 600.0
"""It only changes with the driver; repeated so that whoever reads the topic later learns it, too."""


class NvmlSource:
    """The cards of this machine. `library`: pynvml, or a stand-in of the same shape."""

    name = "nvml"

    def __init__(self, library: Any = None) -> None:
        if library is None:
            import pynvml

            library = pynvml
        self._library = library
        self._cards = CardReader(library, ProcessJobs().job_of)
        self._host = HostSampler()
        self._known: dict[int, str] = {}
        self._events: XidEvents | None = None
        self._open_now = False
        self._topology_due_s = 0.0
        self._topology: Topology | None = None
        self._reading: asyncio.Task[list[GpuSample]] | None = None
        self.driver = ""
        try:
            self._open()
        except library.NVMLError as error:
            raise SourceError(
                f"NVML can't be opened here ({error}): install NVIDIA's driver, or set GPUGRID_SOURCE=simulated to play "
                "the GPUs"
            ) from error

    async def read(self, node: str) -> NodeReading:
        if self._reading is None:
            self._reading = asyncio.create_task(asyncio.to_thread(self._read))
        done, _ = await asyncio.wait((self._reading,), timeout=READ_WAIT_S)
        if not done:
            return NodeReading(self._failed("NVML does not answer"), self._host.sample())  # it is not called twice
        self._reading = None
        topology, self._topology = self._topology, None
        return NodeReading(done.pop().result(), self._host.sample(), topology)

    # --- everything below runs in a thread, one at a time

    def _open(self) -> None:
        """Old handles and event sets are void after a driver reload: let go of all and start anew."""
        library = self._library
        if self._open_now:
            with contextlib.suppress(library.NVMLError):
                library.nvmlShutdown()
            self._open_now, self._events = False, None
        library.nvmlInit()
        self._open_now = True
        self.driver = text(library.nvmlSystemGetDriverVersion())
        handles = self._handles(library.nvmlDeviceGetCount())
        self._events = XidEvents(library, handles)
        self._topology_due_s = 0.0

    def _read(self) -> list[GpuSample]:
        library = self._library
        try:
            count = self._count()
        except library.NVMLError as error:
            return self._failed(text(error))
        xids = self._events.take() if self._events is not None else {}
        samples = [self._read_gpu(index, xids.get(index, [])) for index in range(count)]
        self._look_at_topology(count)
        gone = [index for index in self._known if index >= count]
        return samples + [GpuSample(index=index, uuid=self._known[index], error="no longer listed") for index in gone]

    def _count(self) -> int:
        """After a driver reload the library has to be opened again."""
        library = self._library
        if not self._open_now:
            self._open()
        try:
            return library.nvmlDeviceGetCount()
        except library.NVMLError:
            self._open()
            return library.nvmlDeviceGetCount()

    def _read_gpu(self, index: int, xids: list[XidReport]) -> GpuSample:
        library = self._library
        try:
            handle = library.nvmlDeviceGetHandleByIndex(index)
            uuid = text(library.nvmlDeviceGetUUID(handle))
            self._known[index] = uuid
            return self._cards.read(index, handle, uuid, xids)
        except library.NVMLError as error:
            uuid = self._known.get(index, f"unknown-{index}")
            return GpuSample(index=index, uuid=uuid, error=text(error), xids=xids)

    def _look_at_topology(self, count: int) -> None:
        now_s = time.monotonic()
        if now_s >= self._topology_due_s:
            self._topology_due_s = now_s + TOPOLOGY_PERIOD_S
            self._topology = read_topology(self._library, self._handles(count))

    def _handles(self, count: int) -> dict[int, Any]:
        """Of the cards that can be reached."""
        handles = {}
        for index in range(count):
            with contextlib.suppress(self._library.NVMLError):
                handles[index] = self._library.nvmlDeviceGetHandleByIndex(index)
        return handles

    def _failed(self, error: str) -> list[GpuSample]:
        return [GpuSample(index=index, uuid=uuid, error=error[:256]) for index, uuid in sorted(self._known.items())]

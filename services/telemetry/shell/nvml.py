"""Readings of real NVIDIA cards through NVML.

Owns: isolation. A field that a card doesn't support is missing; a card that fails has an `error`, and the others are still
read; a driver that was reloaded is opened again; a call that hangs doesn't hang the agent. Refuses: judging values (that is
telemetry's core). Read next: `agent.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from schemas.nodes import GpuProcess, GpuSample
from services.telemetry.shell.source import SourceError

READ_WAIT_S = 4.0
"""A node's cards are read in milliseconds; below the sampling period, so that a hanging driver is reported in time."""
PROCESSES_MAX = 256
"""Per card; more would make a sample of eight cards larger than a record may be."""
MEMORY_MIB_MAX = 16_777_216
MIB = 1024 * 1024


class NvmlSource:
    """The cards of this machine. `library`: pynvml, or a stand-in of the same shape."""

    name = "nvml"

    def __init__(self, library: Any = None) -> None:
        if library is None:
            import pynvml

            library = pynvml
        self._library = library
        self._known: dict[int, str] = {}
        self._reading: asyncio.Task[list[GpuSample]] | None = None
        self.driver = ""
        try:
            self._open()
        except library.NVMLError as error:
            raise SourceError(
                f"NVML can't be opened here ({error}): install NVIDIA's driver, or set GPUGRID_SOURCE=simulated to play "
                "the GPUs"
            ) from error

    async def read(self, node: str) -> list[GpuSample]:
        if self._reading is None:
            self._reading = asyncio.create_task(asyncio.to_thread(self._read))
        done, _ = await asyncio.wait((self._reading,), timeout=READ_WAIT_S)
        if not done:
            return self._failed("NVML does not answer")  # the call goes on; it is not made a second time
        self._reading = None
        return done.pop().result()

    def _open(self) -> None:
        self._library.nvmlInit()
        self.driver = _text(self._library.nvmlSystemGetDriverVersion())

    def _read(self) -> list[GpuSample]:
        library = self._library
        try:
            count = self._count()
        except library.NVMLError as error:
            return self._failed(_text(error))
        samples = [self._read_gpu(index) for index in range(count)]
        gone = [index for index in self._known if index >= count]
        return samples + [GpuSample(index=index, uuid=self._known[index], error="no longer listed") for index in gone]

    def _count(self) -> int:
        """After a driver reload the library has to be opened again."""
        try:
            return self._library.nvmlDeviceGetCount()
        except self._library.NVMLError:
            self._open()
            return self._library.nvmlDeviceGetCount()

    def _read_gpu(self, index: int) -> GpuSample:
        library = self._library
        try:
            handle = library.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(library.nvmlDeviceGetUUID(handle))
            self._known[index] = uuid
            memory = self._field(library.nvmlDeviceGetMemoryInfo, handle)
            rates = self._field(library.nvmlDeviceGetUtilizationRates, handle)
            power_mw = self._field(library.nvmlDeviceGetPowerUsage, handle)
            temperature = self._field(library.nvmlDeviceGetTemperature, handle, library.NVML_TEMPERATURE_GPU)
            name = self._field(library.nvmlDeviceGetName, handle)
            processes = self._field(library.nvmlDeviceGetComputeRunningProcesses, handle)
        except library.NVMLError as error:
            return GpuSample(index=index, uuid=self._known.get(index, f"unknown-{index}"), error=_text(error))
        return GpuSample(
            index=index,
            uuid=uuid,
            model="" if name is None else _text(name),
            memory_total_mib=None if memory is None else memory.total / MIB,
            memory_used_mib=None if memory is None else memory.used / MIB,
            utilization_pct=None if rates is None else float(rates.gpu),
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=None if temperature is None else float(temperature),
            processes=_processes(processes or []),
        )

    def _field(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """None if this card or driver doesn't have it; anything else is the card's failure."""
        library = self._library
        try:
            return call(*arguments)
        except library.NVMLError as error:
            if error.value in (library.NVML_ERROR_NOT_SUPPORTED, library.NVML_ERROR_FUNCTION_NOT_FOUND):
                return None
            raise

    def _failed(self, error: str) -> list[GpuSample]:
        return [GpuSample(index=index, uuid=uuid, error=error[:256]) for index, uuid in sorted(self._known.items())]


def _processes(found: list[Any]) -> list[GpuProcess]:
    """Memory is unknown in some containers and rubbish on some cards; a process is worth telling of anyway."""
    told = []
    for process in found[:PROCESSES_MAX]:
        memory_mib = (process.usedGpuMemory or 0) // MIB
        if process.pid >= 1:
            told.append(GpuProcess(pid=process.pid, memory_mib=memory_mib if memory_mib <= MEMORY_MIB_MAX else 0))
    return told


def _text(value: Any) -> str:
    return (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))[:256]

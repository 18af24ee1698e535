"""What NVIDIA's library says about this machine's GPUs: names that don't shift, model and driver, and who holds their memory.

Owns: reading NVML for the executor. Refuses: failing. A machine without NVIDIA's library simply knows nothing: jobs get indices, and
no GPU is ever put into quarantine. Read next: `drivers/environment.py`, `quarantine.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

MIB = 1024 * 1024
USED_MIB_MAX = 256
"""What a GPU may hold without a process that can be seen: contexts of the driver itself, measured at some 100 MiB."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """`uuids` in index order; empty where there is no NVIDIA driver, or where one of the GPUs doesn't answer."""

    uuids: tuple[str, ...] = ()
    model: str = ""
    driver: str = ""


class GpuMemory(Protocol):
    """Who holds memory on this node's GPUs."""

    def indices(self) -> list[int]:
        """GPUs that can be asked about."""
        ...

    def in_use(self, gpus: Iterable[int]) -> dict[int, str]:
        """Those of `gpus` whose memory is not free, each with a sentence about who holds it."""
        ...


class Unmeasured:
    """A node whose GPUs can't be looked at: simulated, or without NVML."""

    def indices(self) -> list[int]:
        return []

    def in_use(self, gpus: Iterable[int]) -> dict[int, str]:
        return {}


class NvmlMemory:
    """This machine's GPUs through NVML, opened once: opening may take a second where nobody else keeps the driver awake. A GPU that
    doesn't answer counts as free: telemetry reports it as broken."""

    def __init__(self, nvml: Any = None) -> None:
        self._given = nvml
        self._open: Any = None

    def indices(self) -> list[int]:
        nvml = self._library()
        return [] if nvml is None else list(range(_or(0, nvml, lambda: nvml.nvmlDeviceGetCount())))

    def in_use(self, gpus: Iterable[int]) -> dict[int, str]:
        wanted = list(gpus)
        nvml = self._library() if wanted else None
        if nvml is None:
            return {}
        found = {gpu: _or("", nvml, lambda gpu=gpu: _holder(nvml, gpu)) for gpu in wanted}  # type: ignore[misc]
        return {gpu: who for gpu, who in found.items() if who}

    def _library(self) -> Any:
        if self._open is None:
            self._open = _initialised(self._given)
        return self._open


def device_facts(nvml: Any = None) -> DeviceFacts:
    """What this machine has."""
    library = _initialised(nvml)
    if library is None:
        return DeviceFacts()
    try:
        found: DeviceFacts = _or(DeviceFacts(), library, lambda: _facts(library))
        return found
    finally:
        with contextlib.suppress(library.NVMLError):
            library.nvmlShutdown()


def _facts(nvml: Any) -> DeviceFacts:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    return DeviceFacts(
        uuids=tuple(_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles),
        model=_text(nvml.nvmlDeviceGetName(handles[0])) if handles else "",
        driver=_text(nvml.nvmlSystemGetDriverVersion()),
    )


def _holder(nvml: Any, gpu: int) -> str:
    """Empty if the GPU's memory is free."""
    handle = nvml.nvmlDeviceGetHandleByIndex(gpu)
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    memory = nvml.nvmlDeviceGetMemoryInfo(
        handle, version=nvml.nvmlMemory_v2
    )  # without what the driver keeps for itself
    used_mib = memory.used // MIB
    if processes:
        pids = ", ".join(str(process.pid) for process in processes[:4])
        return f"{used_mib} MiB in use by pid {pids}"
    if used_mib > USED_MIB_MAX:
        return f"{used_mib} MiB in use by a process that can't be seen from here"
    return ""


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _or(default: Any, nvml: Any, ask: Any) -> Any:
    try:
        return ask()
    except nvml.NVMLError:
        return default


def _initialised(nvml: Any) -> Any:
    """NVIDIA's library; None where there is none."""
    if nvml is None:
        try:
            import pynvml

            nvml = pynvml
        except ImportError:
            return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml

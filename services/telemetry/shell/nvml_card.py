"""One reading of one NVIDIA card: every field on its own, so that what a card or driver can't tell is missing and nothing else.

Owns: which NVML calls make a sample, older forms of a call where a driver lacks the new one, and which errors mean that the
card itself has failed. Refuses: judging values. PCIe and NVLink traffic come as counters in one call for all of them: the
throughput call measures for 20 ms each time it is made. Read next: `nvml.py`, `nvml_events.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from schemas.nodes import GpuProcess, GpuSample, MigInstance, RemappedRows, XidReport

PROCESSES_MAX = 256
"""Per card; more would make a sample of eight cards larger than a record may be. `processes_total` tells of the rest."""
PROCESS_TRIES_MAX = 3
"""A list that grows between asking for its length and asking for it is asked for again, so often."""
MIG_INSTANCES_MAX = 16
MEMORY_MIB_MAX = 16_777_216
MIB = 1024 * 1024
KIB = 1024
LINKS_MAX = 18
"""NVLinks of one card, the most that any has."""
RECOVERY_ACTION_FIELD = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION of nvml.h; the Python binding doesn't name it."""
RECOVERY_ACTIONS = {
    1: "reset_gpu",
    2: "reboot_node",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "reset_bus",
    7: "reboot_system",
}
THROTTLES = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}
"""nvmlClocksEventReason* that hold clocks below what was asked for; idle clocks and user settings are no throttling."""
DRIVER_GONE = ("NVML_ERROR_UNINITIALIZED", "NVML_ERROR_DRIVER_NOT_LOADED", "NVML_ERROR_LIB_RM_VERSION_MISMATCH")
CARD_GONE = (*DRIVER_GONE, "NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED", "NVML_ERROR_TIMEOUT")
"""Any other error of one field means only that this field can't be told."""
FIELD_OF_VALUE_TYPE = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal"}

JobOf = Callable[[int], str | None]


class CardReader:
    """Reads cards through `library` (pynvml). `job_of` finds the job of a process."""

    def __init__(self, library: Any, job_of: JobOf) -> None:
        self._library = library
        self._job_of = job_of
        self._gone = {getattr(library, name) for name in CARD_GONE}
        names = (
            "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX",
            "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX",
            "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
            "NVML_FI_DEV_PCIE_COUNT_TX_BYTES",
            "NVML_FI_DEV_PCIE_COUNT_RX_BYTES",
            "NVML_FI_DEV_PCIE_REPLAY_COUNTER",
        )
        self._fields = [*(getattr(library, name) for name in names), RECOVERY_ACTION_FIELD]

    def read(self, index: int, handle: Any, uuid: str, xids: list[XidReport]) -> GpuSample:
        """Raises NVMLError if the card itself has failed."""
        library = self._library
        memory = self._memory(handle)
        rates = self._field(library.nvmlDeviceGetUtilizationRates, handle)
        mig = self._field(library.nvmlDeviceGetMigMode, handle)
        name = self._field(library.nvmlDeviceGetName, handle)
        processes, processes_total = self._processes(handle)
        counters = self._counters(handle)
        return GpuSample(
            index=index,
            uuid=uuid,
            model="" if name is None else text(name),
            memory_total_mib=None if memory is None else memory.total / MIB,
            memory_used_mib=None if memory is None else memory.used / MIB,
            utilization_pct=None if rates is None else float(rates.gpu),
            power_w=self._scaled(1000, library.nvmlDeviceGetPowerUsage, handle),
            power_limit_w=self._scaled(1000, library.nvmlDeviceGetEnforcedPowerLimit, handle),
            energy_j=self._scaled(1000, library.nvmlDeviceGetTotalEnergyConsumption, handle),
            temperature_c=self._temperature(handle),
            sm_clock_mhz=self._scaled(1, library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_SM),
            memory_clock_mhz=self._scaled(1, library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_MEM),
            throttles=self._throttles(handle),
            ecc_corrected=self._ecc(handle, library.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ecc_uncorrected=self._ecc(handle, library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            remapped_rows=self._remapped_rows(handle),
            recovery_action=RECOVERY_ACTIONS.get(int(counters[6] or 0), ""),
            nvlink_tx_bytes=_times(counters[0], KIB),
            nvlink_rx_bytes=_times(counters[1], KIB),
            nvlink_errors=counters[2],
            pcie_tx_bytes=counters[3],
            pcie_rx_bytes=counters[4],
            pcie_replays=counters[5],
            nvlinks_up=self._links_up(handle),
            mig=None if mig is None else bool(mig[0]),
            mig_instances=self._mig_instances(handle) if mig is not None and mig[0] else [],
            processes=processes,
            processes_total=processes_total,
            xids=xids,
        )

    def _field(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """None if this card or driver can't tell; raises if the card is gone."""
        try:
            return call(*arguments)
        except self._library.NVMLError as error:
            if error.value in self._gone:
                raise
            return None

    def _scaled(self, divisor: int, call: Callable[..., Any], *arguments: Any) -> float | None:
        value = self._field(call, *arguments)
        return None if value is None else value / divisor

    def _memory(self, handle: Any) -> Any:
        """Without the driver's own reserve where the driver can tell it apart."""
        library = self._library
        found = self._field(library.nvmlDeviceGetMemoryInfo, handle, library.nvmlMemory_v2)
        return found if found is not None else self._field(library.nvmlDeviceGetMemoryInfo, handle)

    def _temperature(self, handle: Any) -> float | None:
        library = self._library
        found = self._field(library.nvmlDeviceGetTemperatureV, handle, library.NVML_TEMPERATURE_GPU)
        if found is None:
            found = self._field(library.nvmlDeviceGetTemperature, handle, library.NVML_TEMPERATURE_GPU)
        return None if found is None else float(found)

    def _throttles(self, handle: Any) -> list[str]:
        library = self._library
        bits = self._field(library.nvmlDeviceGetCurrentClocksEventReasons, handle)
        if bits is None:
            bits = self._field(library.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        return [name for bit, name in THROTTLES.items() if bits is not None and bits & bit]

    def _ecc(self, handle: Any, kind: int) -> float | None:
        return self._scaled(1, self._library.nvmlDeviceGetTotalEccErrors, handle, kind, self._library.NVML_VOLATILE_ECC)

    def _remapped_rows(self, handle: Any) -> RemappedRows | None:
        found = self._field(self._library.nvmlDeviceGetRemappedRows, handle)
        if found is None:
            return None
        correctable, uncorrectable, pending, failed = found
        return RemappedRows(
            correctable=correctable, uncorrectable=uncorrectable, pending=bool(pending), failed=bool(failed)
        )

    def _counters(self, handle: Any) -> list[float | None]:
        values = self._field(self._library.nvmlDeviceGetFieldValues, handle, self._fields)
        if values is None:
            return [None] * len(self._fields)
        told = []
        for value in values:
            member = FIELD_OF_VALUE_TYPE.get(value.valueType)
            known = value.nvmlReturn == self._library.NVML_SUCCESS and member is not None
            told.append(float(getattr(value.value, member)) if known and member else None)
        return told

    def _links_up(self, handle: Any) -> int | None:
        """Links that are up; None where the card has none."""
        up, known = 0, False
        for link in range(LINKS_MAX):
            state = self._field(self._library.nvmlDeviceGetNvLinkState, handle, link)
            if state is None:
                break
            known, up = True, up + (state == self._library.NVML_FEATURE_ENABLED)
        return up if known else None

    def _mig_instances(self, handle: Any) -> list[MigInstance]:
        library = self._library
        most = self._field(library.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
        found = []
        for place in range(min(most, MIG_INSTANCES_MAX)):
            part = self._field(library.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
            uuid = None if part is None else self._field(library.nvmlDeviceGetUUID, part)
            if uuid is None:
                continue  # places of a card need not all be taken
            memory = self._memory(part)
            found.append(
                MigInstance(
                    uuid=text(uuid),
                    gpu_instance=self._field(library.nvmlDeviceGetGpuInstanceId, part) or 0,
                    memory_total_mib=None if memory is None else memory.total / MIB,
                    memory_used_mib=None if memory is None else memory.used / MIB,
                )
            )
        return found

    def _processes(self, handle: Any) -> tuple[list[GpuProcess], int]:
        library = self._library
        for call in (library.nvmlDeviceGetComputeRunningProcesses_v3, library.nvmlDeviceGetComputeRunningProcesses_v2):
            for _ in range(PROCESS_TRIES_MAX):
                try:
                    return self._told(call(handle))
                except library.NVMLError as error:
                    if error.value in self._gone:
                        raise
                    if error.value != library.NVML_ERROR_INSUFFICIENT_SIZE:
                        break
        return [], 0

    def _told(self, found: list[Any]) -> tuple[list[GpuProcess], int]:
        """Memory is unknown in some containers and rubbish on some cards; a process is worth telling of anyway."""
        real = [process for process in found if process.pid >= 1]
        told = []
        for process in real[:PROCESSES_MAX]:
            memory_mib = (process.usedGpuMemory or 0) // MIB
            told.append(
                GpuProcess(
                    pid=process.pid,
                    memory_mib=memory_mib if memory_mib <= MEMORY_MIB_MAX else 0,
                    job_id=self._job_of(process.pid),
                )
            )
        return told, len(real) if len(real) > PROCESSES_MAX else 0


def text(value: Any) -> str:
    """Older bindings return bytes."""
    return (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))[:256]


def _times(value: float | None, factor: int) -> float | None:
    return None if value is None else value * factor

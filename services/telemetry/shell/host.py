"""What a node's processor, network and disks do: rates since the last sample. And which job a process belongs to.

Owns: reading the machine through psutil and /proc. Loopback traffic is no network traffic; partitions are not counted beside
their disks. Refuses: guessing a process's job by anything but the name that the executor gave it. Read next: `nvml.py`.
"""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from schemas.nodes import HostSample

JOB_VARIABLE = b"GPUGRID_JOB_ID="
PROCESSES_REMEMBERED_MAX = 4_096
"""A process's job never changes, so it is looked up once; forgetting all when full costs one more look."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class HostSampler:
    """Call `sample` once per period; the first has no rates."""

    def __init__(self) -> None:
        self._boot_id = BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
        self._last: tuple[float, float, float] | None = None
        psutil.cpu_percent()  # the first call only sets its starting point

    def sample(self) -> HostSample:
        now_s, network, disk = time.monotonic(), _network_bytes(), _disk_bytes()
        last, self._last = self._last, (now_s, network, disk)
        if last is None or now_s <= last[0]:
            return HostSample(boot_id=self._boot_id)
        passed_s = now_s - last[0]
        return HostSample(
            network_bytes_per_s=max(0.0, network - last[1]) / passed_s,
            disk_bytes_per_s=max(0.0, disk - last[2]) / passed_s,
            cpu_pct=psutil.cpu_percent(),
            boot_id=self._boot_id,
        )


class ProcessJobs:
    """Which job a process works for: the executor's `GPUGRID_JOB_ID` in its environment, inherited by its children."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: dict[tuple[int, str], str | None] = {}

    def job_of(self, pid: int) -> str | None:
        """None if it has none, is gone, or may not be looked at."""
        try:
            started = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
        except (OSError, IndexError):
            return None
        key = (pid, started)
        if key not in self._known:
            if len(self._known) >= PROCESSES_REMEMBERED_MAX:
                self._known.clear()
            self._known[key] = self._read(pid)
        return self._known[key]

    def _read(self, pid: int) -> str | None:
        try:
            environment = (self._proc / str(pid) / "environ").read_bytes()
        except OSError:
            return None
        for entry in environment.split(b"\0"):
            if entry.startswith(JOB_VARIABLE):
                return entry[len(JOB_VARIABLE) :].decode("ascii", "replace") or None
        return None


def _network_bytes() -> float:
    counters = psutil.net_io_counters(pernic=True)
    return float(sum(each.bytes_recv + each.bytes_sent for name, each in counters.items() if name != "lo"))


def _disk_bytes() -> float:
    found = psutil.disk_io_counters(perdisk=False)
    return 0.0 if found is None else float(found.read_bytes + found.write_bytes)

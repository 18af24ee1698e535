"""The replay's clock: domain time as a straight line over the machine's monotonic time, shared through a small file.

Owns: the file's layout, `ScaledClock` (readers, any number of processes) and `ClockControl` (create, pause, resume, change
speed). A change is written into the older of two slots and takes effect a moment later, so that every process bends its
line at the same instant, and a writer that dies halfway leaves the previous line in force. Refuses: setting the time back.
Read next: `clock.py`.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

PAUSED_POLL_S = 0.005
"""How late a sleeper may notice that a paused clock goes on."""
RUNNING_POLL_S_MAX = 0.050
"""How late a sleeper may notice that the clock got faster; at constant speed it wakes exactly when due."""
CHANGE_AHEAD_NS = 2_000_000
"""A change takes effect 2 ms after it is written: long enough that every process sees it in time, short for people."""
READ_ATTEMPTS_MAX = 1_000
"""Both slots unreadable can only last for one write (microseconds); more means the file is not a clock."""

_MAGIC = b"GGCLOCK1"
_SLOT = struct.Struct("<QqqdQI4x")  # number, anchor_domain_us, anchor_monotonic_ns, speed, paused, crc
_HEADER_BYTES = 16
_FILE_BYTES = _HEADER_BYTES + 2 * _SLOT.size


@dataclass(frozen=True, slots=True)
class Line:
    """Domain time from `anchor_monotonic_ns` on. Lines are numbered; the higher number in force counts."""

    number: int
    anchor_domain_us: int
    anchor_monotonic_ns: int
    speed: float
    paused: bool

    def domain_us(self, monotonic_ns: int) -> int:
        if self.paused or monotonic_ns <= self.anchor_monotonic_ns:
            return self.anchor_domain_us
        return self.anchor_domain_us + int((monotonic_ns - self.anchor_monotonic_ns) * self.speed / 1000)

    def packed(self) -> bytes:
        fields = (self.number, self.anchor_domain_us, self.anchor_monotonic_ns, self.speed, int(self.paused))
        return _SLOT.pack(*fields, zlib.crc32(repr(fields).encode()))


def _unpacked(data: bytes) -> Line | None:
    number, domain_us, monotonic_ns, speed, paused, crc = _SLOT.unpack(data)
    if zlib.crc32(repr((number, domain_us, monotonic_ns, speed, paused)).encode()) != crc:
        return None
    return Line(number, domain_us, monotonic_ns, speed, bool(paused))


class ClockFileError(Exception):
    """The clock file is missing or isn't one."""


class ScaledClock:
    """Reads the shared line. Costs about 2 µs: the two slots are parsed only when their bytes have changed."""

    def __init__(self, path: str | Path) -> None:
        self._map = _mapped(Path(path), writable=False)
        self._raw = b""
        self._lines: tuple[Line, ...] = ()
        self._latest_us = 0
        self._latest_wall_ms = 0

    def now_ms(self) -> int:
        monotonic_ns = time.monotonic_ns()
        # The maximum guards against a writer that was held up for longer than CHANGE_AHEAD_NS.
        self._latest_us = max(self._latest_us, self._line(monotonic_ns).domain_us(monotonic_ns))
        return self._latest_us // 1000

    def wall_ms(self) -> int:
        self._latest_wall_ms = max(self._latest_wall_ms, time.time_ns() // 1_000_000)
        return self._latest_wall_ms

    def wall_s(self) -> float:
        return time.monotonic()

    def steady_ms(self) -> int:
        return self.now_ms()  # drawn over the monotonic clock anyway

    @property
    def speed(self) -> float:
        """Domain seconds per wall second now; 0 while paused."""
        line = self._line(time.monotonic_ns())
        return 0.0 if line.paused else line.speed

    async def sleep_wall(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)

    async def sleep_until(self, domain_ms: int) -> None:
        while (left_ms := domain_ms - self.now_ms()) > 0:
            speed = self.speed
            wait_s = PAUSED_POLL_S if speed == 0 else min(left_ms / 1000 / speed, RUNNING_POLL_S_MAX)
            await asyncio.sleep(wait_s)

    def close(self) -> None:
        self._map.close()

    def _line(self, monotonic_ns: int) -> Line:
        raw = self._map[_HEADER_BYTES:_FILE_BYTES]
        if raw != self._raw:
            self._lines = _lines_newest_first(self._map)
            self._raw = raw
        for line in self._lines:
            if line.anchor_monotonic_ns <= monotonic_ns:
                return line
        return self._lines[-1]


class ClockControl:
    """Creates the shared clock and bends its line. Several controls may act at once: the file is locked while one writes."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._map = _mapped(self._path, writable=True)

    @classmethod
    def create(cls, path: str | Path, *, start_ms: int, speed: float, paused: bool = False) -> ClockControl:
        """Write a new clock file (replacing an old one in one step) whose domain time starts at `start_ms` now."""
        _check_speed(speed)
        line = Line(1, start_ms * 1000, time.monotonic_ns(), speed, paused)
        content = _MAGIC.ljust(_HEADER_BYTES, b"\0") + line.packed() + line.packed()
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f"{target.name}.{os.getpid()}.new")
        fresh.write_bytes(content)
        fresh.replace(target)
        return cls(target)

    def pause(self) -> None:
        """Stop domain time; returns once every process sees it stopped."""
        self._bend(paused=True)

    def resume(self) -> None:
        self._bend(paused=False)

    def set_speed(self, speed: float) -> None:
        _check_speed(speed)
        self._bend(speed=speed)

    def line(self) -> Line:
        """The newest line, in force or about to be."""
        return _lines_newest_first(self._map)[0]

    def close(self) -> None:
        self._map.close()

    def _bend(self, *, speed: float | None = None, paused: bool | None = None) -> None:
        with _locked(self._path):
            newest = self.line()
            # The slot about to be overwritten must be out of force: wait until the newest line is in force.
            _wait_until(newest.anchor_monotonic_ns)
            at_ns = time.monotonic_ns() + CHANGE_AHEAD_NS
            bent = replace(
                newest,
                number=newest.number + 1,
                anchor_domain_us=newest.domain_us(at_ns),
                anchor_monotonic_ns=at_ns,
                speed=newest.speed if speed is None else speed,
                paused=newest.paused if paused is None else paused,
            )
            start = _HEADER_BYTES + (bent.number % 2) * _SLOT.size
            self._map[start : start + _SLOT.size] = bent.packed()
        _wait_until(at_ns)


def _check_speed(speed: float) -> None:
    if not 0 < speed <= 1e6:
        raise ValueError(f"speed must be above 0 and at most 1,000,000 domain seconds per second, not {speed}")


def _wait_until(monotonic_ns: int) -> None:
    while (left_ns := monotonic_ns - time.monotonic_ns()) > 0:
        time.sleep(left_ns / 1e9)


def _lines_newest_first(mapped: mmap.mmap) -> tuple[Line, ...]:
    for _ in range(READ_ATTEMPTS_MAX):
        raw = mapped[_HEADER_BYTES:_FILE_BYTES]
        slots = (_unpacked(raw[: _SLOT.size]), _unpacked(raw[_SLOT.size :]))
        lines = sorted((line for line in slots if line is not None), key=lambda line: -line.number)
        if lines:
            return tuple(lines)
    raise ClockFileError("the clock file holds no readable line: create it again")


def _mapped(path: Path, *, writable: bool) -> mmap.mmap:
    try:
        with path.open("r+b" if writable else "rb") as file:
            content = mmap.mmap(file.fileno(), _FILE_BYTES, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ClockFileError(f"can't open the clock file {path}: {error}") from error
    if content[: len(_MAGIC)] != _MAGIC:
        content.close()
        raise ClockFileError(f"{path} is not a clock file")
    return content


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

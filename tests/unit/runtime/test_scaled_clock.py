"""The shared clock: exact lines, changes that every process sees at one instant, nothing ever backwards, torn writes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from services.runtime.scaled_clock import CHANGE_AHEAD_NS, ClockControl, ClockFileError, Line, ScaledClock

START_MS = 1_800_000_000_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run" / "clock"


def test_a_line_is_exact():
    line = Line(number=1, anchor_domain_us=1_000_000, anchor_monotonic_ns=5_000, speed=720.0, paused=False)
    assert line.domain_us(5_000) == 1_000_000
    assert line.domain_us(5_000 + 1_000_000_000) == 1_000_000 + 720_000_000
    assert line.domain_us(4_000) == 1_000_000
    assert Line(1, 7, 0, 720.0, True).domain_us(10**12) == 7


def test_time_runs_at_its_speed(file: Path):
    ClockControl.create(file, start_ms=START_MS, speed=1000.0)
    clock = ScaledClock(file)
    before_s, before_ms = time.monotonic(), clock.now_ms()
    asyncio.run(clock.sleep_until(before_ms + 50_000))
    took_s = time.monotonic() - before_s
    assert clock.now_ms() >= before_ms + 50_000
    assert took_s >= 0.0499


def test_pause_stops_and_resume_continues_from_there(file: Path):
    control = ClockControl.create(file, start_ms=START_MS, speed=10_000.0)
    clock = ScaledClock(file)
    control.pause()
    stopped_ms = clock.now_ms()
    assert clock.speed == 0
    assert control.line().anchor_domain_us // 1000 == stopped_ms
    control.resume()
    anchor = control.line()
    assert anchor.anchor_domain_us // 1000 == stopped_ms, "no domain time passed while paused"
    asyncio.run(clock.sleep_until(stopped_ms + 1000))
    assert clock.speed == 10_000.0


def test_a_sleeper_follows_a_pause(file: Path):
    control = ClockControl.create(file, start_ms=START_MS, speed=1000.0, paused=True)
    clock = ScaledClock(file)

    async def main() -> bool:
        sleeper = asyncio.create_task(clock.sleep_until(START_MS + 100))
        done, _ = await asyncio.wait({sleeper}, timeout=0.05)
        woke_early = bool(done)
        control.resume()
        await asyncio.wait_for(sleeper, 10)
        return woke_early

    assert asyncio.run(main()) is False
    assert clock.now_ms() >= START_MS + 100


def test_changes_take_effect_at_one_announced_instant(file: Path):
    control = ClockControl.create(file, start_ms=START_MS, speed=100.0)
    before = control.line()
    control.set_speed(1.0)
    after = control.line()
    assert after.number == before.number + 1
    assert after.anchor_domain_us == before.domain_us(after.anchor_monotonic_ns), "the lines meet"
    assert after.anchor_monotonic_ns - before.anchor_monotonic_ns >= CHANGE_AHEAD_NS


def test_time_never_runs_backwards_while_others_change_it(file: Path):
    ClockControl.create(file, start_ms=START_MS, speed=5000.0)
    writer = (
        "import sys; from services.runtime.scaled_clock import ClockControl\n"
        "control = ClockControl(sys.argv[1])\n"
        "for turn in range(60):\n"
        "    control.set_speed([1.0, 9000.0, 30.0][turn % 3])\n"
        "    control.pause()\n"
        "    control.resume()\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", writer, str(file)]) for _ in range(2)]
    clocks = [ScaledClock(file) for _ in range(2)]
    previous_ms = [0, 0]
    while any(process.poll() is None for process in writers):
        for index, clock in enumerate(clocks):
            now_ms = clock.now_ms()
            assert now_ms >= previous_ms[index]
            previous_ms[index] = now_ms
    assert [process.returncode for process in writers] == [0, 0]
    assert ClockControl(file).line().number == 1 + 2 * 60 * 3, "no change was lost"


@pytest.mark.parametrize("torn_bytes", [1, 9, 20, 40])
def test_a_writer_that_dies_halfway_leaves_the_previous_line_in_force(file: Path, torn_bytes: int):
    control = ClockControl.create(file, start_ms=START_MS, speed=10.0)
    control.set_speed(20.0)  # number 2 lives in the first slot; number 3 would go to the second
    content = bytearray(file.read_bytes())
    second = 16 + (len(content) - 16) // 2
    half_written = Line(3, 99, 99, 99.0, False).packed()[:torn_bytes]
    content[second : second + torn_bytes] = half_written
    file.write_bytes(content)
    assert ScaledClock(file).speed == 20.0
    ClockControl(file).set_speed(30.0)
    assert ScaledClock(file).speed == 30.0


def test_wrong_files_and_speeds_are_refused_in_words(file: Path, tmp_path: Path):
    with pytest.raises(ClockFileError, match="can't open the clock file"):
        ScaledClock(tmp_path / "missing")
    (tmp_path / "other").write_bytes(b"x" * 200)
    with pytest.raises(ClockFileError, match="is not a clock file"):
        ScaledClock(tmp_path / "other")
    with pytest.raises(ValueError, match="speed must be above 0"):
        ClockControl.create(file, start_ms=START_MS, speed=0)


def test_a_new_clock_replaces_an_old_one_whole(file: Path):
    ClockControl.create(file, start_ms=START_MS, speed=10.0)
    ClockControl.create(file, start_ms=START_MS + 5, speed=10.0, paused=True)
    assert ScaledClock(file).now_ms() == START_MS + 5
    assert [entry.name for entry in file.parent.iterdir()] == ["clock"]

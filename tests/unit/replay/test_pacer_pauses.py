"""The replay's clock runs only during the day, and only while the stack is whole."""

from __future__ import annotations

from pathlib import Path

from services.replay.shell.live import Pacer
from services.runtime.scaled_clock import ClockControl, ScaledClock


def test_runs_between_begin_and_end_while_nothing_is_down(tmp_path: Path) -> None:
    control = ClockControl.create(tmp_path / "clock", start_ms=1_000_000, speed=100.0, paused=True)
    clock = ScaledClock(tmp_path / "clock")
    pacer = Pacer(control)

    pacer.disturbed("kafka", "killed by SIGKILL.")
    pacer.recovered()
    assert clock.speed == 0, "a recovery before the day doesn't start it"
    pacer.begin()
    assert clock.speed == 100
    pacer.disturbed("allocator", "killed by SIGKILL.")
    assert clock.speed == 0
    assert pacer.trouble == "allocator restarts (killed by SIGKILL); the clock is paused"
    pacer.recovered()
    assert clock.speed == 100
    assert pacer.trouble == ""
    pacer.end()
    assert clock.speed == 0
    clock.close()
    control.close()

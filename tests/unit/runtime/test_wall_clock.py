"""The wall clock: real milliseconds, never backwards, wakes no earlier than asked."""

from __future__ import annotations

import asyncio
import time

import pytest

from services.runtime.clock import WallClock


def test_reads_the_system_and_never_runs_backwards(monkeypatch: pytest.MonkeyPatch):
    clock = WallClock()
    now_ms = clock.now_ms()
    assert abs(now_ms - time.time() * 1000) < 1000
    monkeypatch.setattr(time, "time_ns", lambda: (now_ms - 60_000) * 1_000_000)
    assert clock.now_ms() >= now_ms
    assert clock.wall_ms() >= now_ms


def test_sleeps_until_a_moment():
    clock = WallClock()
    until_ms = clock.now_ms() + 20
    asyncio.run(clock.sleep_until(until_ms))
    assert clock.now_ms() >= until_ms
    asyncio.run(clock.sleep_wall(0))

"""Times of a node's states only grow, whatever clock the telemetry has that says them: readers take the newest."""

from __future__ import annotations

import pytest

from schemas.records import Record
from services.telemetry.core.handler import TelemetryHandler
from tests.build import catalog
from tests.unit.telemetry.telemetry_rig import Fed


@pytest.mark.parametrize("behind_s", [0, 90, 3_600])
def test_a_successor_with_a_slow_clock_says_later_times(behind_s: int):
    first = Fed()
    first.pass_s(100, sampling=("n00",))
    successor = Fed(TelemetryHandler(catalog(gpus=64)))
    for offset, sent in enumerate(first.out):
        successor.handler.recover(
            Record(sent.topic, sent.partition or 0, offset, sent.key, sent.value, sent.headers, first.wall_ms)
        )
    successor.wall_ms = first.wall_ms - behind_s * 1000
    successor.pass_s(200, sampling=("n00",))
    times = [state.time_ms for state in (*first.lines, *successor.lines)]
    assert len(successor.lines) >= 2
    assert times == sorted(set(times))

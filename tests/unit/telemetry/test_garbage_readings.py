"""Rubbish from cards and drivers: rejected, counted, the last good value kept and marked stale."""

from __future__ import annotations

import json

import pytest

from schemas.codec import decode
from schemas.deadletters import DeadLetter
from schemas.nodes import FindingCode
from tests.unit.telemetry.telemetry_rig import TOTAL_MIB, Fed, gpu, sampled

GARBAGE = [
    ("utilization_pct", 4294967295),
    ("utilization_pct", 808334905),
    ("utilization_pct", 140737488355328.0),
    ("utilization_pct", 9223372036854775794),
    ("utilization_pct", -1),
    ("utilization_pct", 100.5),
    ("memory_used_mib", -5.0),
    ("memory_used_mib", TOTAL_MIB * 1.5),
    ("memory_used_mib", 9223372036854775794),
    ("memory_total_mib", -1.0),
    ("memory_total_mib", 1e18),
    ("power_w", 4294967.295),
    ("temperature_c", -273.0),
    ("temperature_c", 4294967295),
]


@pytest.mark.parametrize(("name", "value"), GARBAGE)
def test_a_value_out_of_bounds_changes_nothing_but_is_counted_and_marked(name, value):
    fed = Fed()
    fed.sample("n00", gpu(0, utilization_pct=40.0), gpu(1))
    fed.wall_ms += 5000
    fed.sample("n00", gpu(0, **({"utilization_pct": 40.0} | {name: value})), gpu(1))
    last = fed.lines[-1]
    assert fed.handler.rejected == {name: 1}
    assert (last.gpus[0].stale, last.gpus[1].stale) == (True, False)
    assert (last.gpus[0].utilization_pct, last.gpus[0].memory_total_mib, last.gpus[0].memory_used_mib) == (
        40.0,
        81_920,
        1024,
    )
    assert [(found.code, found.gpu, found.detail) for found in last.findings] == [
        (FindingCode.REJECTED_SAMPLE, 0, name)
    ]
    assert fed.health() == "usable"
    fed.wall_ms += 5000
    fed.sample("n00", gpu(0), gpu(1))
    assert fed.lines[-1].gpus[0].stale is False
    assert fed.lines[-1].findings == []


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("utilization_pct", '"N/A"'),
        ("utilization_pct", "NaN"),
        ("utilization_pct", "1e999"),
        ("memory_used_mib", "[]"),
        ("index", "-1"),
        ("index", "5000"),
    ],
)
def test_what_can_not_be_decoded_is_a_dead_letter_and_the_node_stays_alive_with_stale_values(field, text):
    fed = Fed()
    fed.sample("n00", gpu(0))
    good = fed.record(sampled(wall_ms=fed.wall_ms + 5000))
    payload = json.loads(good.value)
    payload["gpus"][0][field] = "@"
    fed.wall_ms += 5000
    sent = fed.feed(fed.raw("n00", json.dumps(payload).replace('"@"', text).encode(), good.headers))
    events = [decode(each.headers, each.value).event for each in sent]
    assert next(event.reason for event in events if isinstance(event, DeadLetter)) in (
        "invalid_field",
        "malformed_json",
    )
    last = fed.lines[-1]
    assert last.gpus[0].stale
    assert last.gpus[0].utilization_pct == 50.0
    assert sum(fed.handler.rejected.values()) == 1
    for _ in range(20):
        fed.wall_ms += 4000
        fed.feed(fed.raw("n00", b"{", good.headers))
        fed.out.extend(fed.handler.tick(fed.now))
    assert fed.health() == "usable"


def test_a_missing_field_is_no_rubbish():
    fed = Fed()
    fed.sample("n00", gpu(0, utilization_pct=None, memory_used_mib=None))
    assert fed.handler.rejected == {}
    assert fed.lines[-1].gpus[0].stale is False


def test_time_running_backwards_is_rejected_until_it_is_clear_that_the_clock_was_set():
    fed = Fed()
    fed.wall_ms += 60_000
    fed.sample("n00", gpu(0, utilization_pct=10.0))
    for step in range(3):
        fed.wall_ms += 5000
        fed.sample("n00", gpu(0, utilization_pct=90.0), wall_ms=fed.wall_ms - 3_600_000 + step)
    assert fed.handler.rejected == {"time_backwards": 3}
    assert fed.health() == "usable"
    fed.wall_ms += 60_000
    fed.sample("n00", gpu(0, utilization_pct=90.0), wall_ms=fed.wall_ms - 3_600_000)
    assert fed.handler.rejected == {"time_backwards": 3}
    assert fed.lines[-1].gpus[0].utilization_pct == 90.0


@pytest.mark.parametrize(
    ("changed", "reason"), [({"cluster": "c9"}, "unknown_cluster"), ({"pool": "tpu"}, "unknown_pool")]
)
def test_samples_for_nobody_are_dead_letters(changed, reason):
    fed = Fed()
    (letter,) = fed.sample("n00", **changed)
    assert decode(letter.headers, letter.value).event.reason == reason
    assert fed.health() == "unknown"


def test_a_gpu_listed_twice_counts_once():
    fed = Fed()
    fed.sample("n00", gpu(0, utilization_pct=10.0), gpu(0, utilization_pct=90.0))
    assert fed.handler.rejected == {"index": 1}
    assert [each.utilization_pct for each in fed.lines[-1].gpus] == [10.0]

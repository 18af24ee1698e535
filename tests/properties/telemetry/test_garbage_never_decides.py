"""Whatever rubbish a card's fields carry, nobody's health, findings, windows or sums change by it, and each piece is counted."""

from __future__ import annotations

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codec import decode
from schemas.nodes import FindingCode, Health, HostSample
from schemas.usage import JobUsage, NodeUsage
from services.telemetry.core.readings import BOUNDS, believed
from tests.unit.telemetry.telemetry_rig import Fed, gpu, sampled
from tests.unit.telemetry.test_usage_findings import place

RUBBISH = (4294967295.0, 140737488355328.0, 9.223372036854776e18, -1.0, -4294967295.0, 1e300)
UNIX_FIELDS = ("utilization_pct", "memory_used_mib", "power_w", "temperature_c", "ecc_uncorrected", "sm_clock_mhz")
NOT_FOR = {("ecc_uncorrected", 808334905.0)}
GOOD = {"utilization_pct": 60.0, "memory_used_mib": 9000.0, "power_w": 300.0, "ecc_uncorrected": 0.0, "energy_j": 5e5}
SPOILT = st.dictionaries(
    st.sampled_from(UNIX_FIELDS), st.sampled_from([*RUBBISH, 808334905.0]), min_size=1, max_size=4
).filter(lambda changed: "temperature_c" not in changed or not -50 <= changed["temperature_c"] <= 200)


def run(spoils: list[dict[str, float] | None]) -> Fed:
    fed = Fed()
    place(fed, 1, "a")
    for number, spoilt in enumerate(spoils):
        fed.wall_ms += 5000
        fields = GOOD | {"energy_j": 5e5 + 3000.0 * number} | (spoilt or {})
        fed.sample("n00", gpu(0, **fields), gpu(1, **GOOD))
    return fed


@settings(max_examples=120, deadline=None)
@given(st.lists(st.one_of(st.none(), SPOILT), min_size=3, max_size=40))
def test_rubbish_changes_nothing_but_the_counts(spoils) -> None:
    fed = run([None, *spoils, None])
    assert {line.health for line in fed.lines} == {Health.USABLE}
    assert {found.code for line in fed.lines for found in line.findings} <= {FindingCode.REJECTED_SAMPLE}
    assert {each.utilization_pct for line in fed.lines for each in line.gpus} == {60.0}
    assert {each.memory_used_mib for line in fed.lines for each in line.gpus} == {9000}
    assert sum(fed.handler.rejected.values()) == sum(len(spoilt or {}) for spoilt in spoils)
    job = fed.handler.keeper.usage.jobs["a"]
    assert job.idle_us == 0
    assert job.held_us == 5_000_000 * (len(spoils) + 2)
    assert job.busy_us == round(0.6 * (job.held_us - job.unseen_us))
    for each in fed.out:
        if each.topic == "usage" and each.value:
            event = decode(each.headers, each.value).event
            windows = [event.windows] if isinstance(event, JobUsage) else [one.windows for one in event.gpus]
            assert isinstance(event, JobUsage | NodeUsage)
            assert {told.minute_pct for told in windows} <= {60.0, None}
            assert {told.day_pct for told in windows} <= {60.0, None}


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*BOUNDS, "utilization_pct", "memory_used_mib", "memory_total_mib"]), st.floats())
)
def test_what_is_believed_is_finite_and_within_bounds(fields) -> None:
    reading = believed(gpu(0, **({"memory_total_mib": 81_920.0, "memory_used_mib": 1.0} | fields)))
    for value in (reading.utilization_pct, reading.memory_total_mib, reading.memory_used_mib, reading.power_w):
        assert value is None or (math.isfinite(value) and value >= 0)
    assert reading.utilization_pct is None or reading.utilization_pct <= 100
    for name, (low, high) in BOUNDS.items():
        value = fields.get(name)
        assert (name in reading.rejected) == (value is not None and not (math.isfinite(value) and low <= value <= high))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(['"N/A"', "NaN", "null", "[]", "{}", "1e999", "-1e999", '"4294967295"', "true"]), st.data())
def test_what_is_no_number_is_refused_with_the_sample_and_the_node_stays(text, data) -> None:
    fed = run([None, None, None])
    name = data.draw(st.sampled_from([*BOUNDS, "utilization_pct"]))
    fed.wall_ms += 5000
    good = fed.record(sampled("n00", gpu(0, **GOOD), wall_ms=fed.wall_ms, host=HostSample(boot_id="x")))
    payload = json.loads(good.value)
    payload["gpus"][0][name] = "@"
    fed.feed(fed.raw("n00", json.dumps(payload).replace('"@"', text).encode(), good.headers))
    assert fed.health() == ("degraded" if text == "null" else "usable"), (
        "null is a missing field; GPU 1 is missing there"
    )
    assert all(each.utilization_pct == 60.0 for line in fed.lines for each in line.gpus)

"""Health of cards and nodes: errors at once, recovery after patience, publishing only what matters, one-minute means."""

from __future__ import annotations

import pytest

from schemas.nodes import FindingCode, Health
from tests.unit.telemetry.telemetry_rig import Fed, gpu


def test_a_new_node_is_published_at_once_with_its_inventory():
    fed = Fed()
    found = fed.sample("n03", gpu(1), gpu(0), order=3, rack="r1", driver="580")
    (sent,) = [each for each in found if each.topic == "node-states"]
    assert (sent.topic, sent.key, sent.partition) == ("node-states", b"n03", 0)
    (line,) = fed.lines
    assert (line.health, line.order, line.rack, line.driver, line.gpu_model) == (Health.USABLE, 3, "r1", "580", "H100")
    assert [(each.index, each.uuid, each.memory_total_mib) for each in line.gpus] == [
        (0, "GPU-0", 81_920),
        (1, "GPU-1", 81_920),
    ]


def test_only_what_others_act_on_is_published_at_once_and_means_once_a_minute():
    fed = Fed()
    fed.pass_s(300, sampling=("n00",))
    assert len(fed.lines) == 5
    fed.sample("n00", gpu(0, uuid="GPU-new"), gpu(1))
    assert len(fed.lines) == 6


@pytest.mark.parametrize("error", ["GPU is lost", ""])
def test_a_gpu_with_an_error_degrades_its_node_at_once_and_is_healthy_after_three_good_samples(error):
    fed = Fed()
    fed.sample("n00", gpu(0), gpu(1))
    fed.wall_ms += 5000
    fed.sample("n00", gpu(0, error=error), gpu(1))
    line = fed.lines[-1]
    assert line.health is Health.DEGRADED
    assert [each.healthy for each in line.gpus] == [False, True]
    (finding,) = line.findings
    assert (finding.code, finding.gpu, finding.detail) == (FindingCode.GPU_ERROR, 0, error or "unnamed error")
    for wanted in ("degraded", "degraded", "usable"):
        fed.wall_ms += 5000
        fed.sample("n00", gpu(0), gpu(1))
        assert fed.health() == wanted
    assert fed.lines[-1].findings == []


def test_an_error_that_comes_and_goes_keeps_the_gpu_unhealthy():
    fed = Fed()
    for number in range(20):
        fed.wall_ms += 5000
        fed.sample("n00", gpu(0, error="Xid 79" if number % 2 else None), gpu(1))
    assert fed.health() == "degraded"
    assert len(fed.lines) <= 4


def test_a_gpu_missing_from_the_sample_stays_in_the_inventory_as_unhealthy():
    fed = Fed()
    fed.sample("n00", gpu(0), gpu(1))
    fed.wall_ms += 5000
    fed.sample("n00", gpu(1))
    line = fed.lines[-1]
    assert [(each.index, each.healthy) for each in line.gpus] == [(0, False), (1, True)]
    assert line.findings[0].detail == "missing from the sample"


def test_utilization_and_memory_are_means_of_the_last_minute():
    fed = Fed()
    for number in range(36):
        fed.sample("n00", gpu(0, utilization_pct=100.0 if number % 2 else 0.0, memory_used_mib=1000.0 + number))
        fed.wall_ms += 5000
    last = fed.lines[-1].gpus[0]
    assert last.utilization_pct == 50.0
    assert 1000 < last.memory_used_mib < 1036


def test_equal_input_gives_equal_bytes():
    def run():
        fed = Fed()
        fed.pass_s(100, sampling=("n00", "n01"))
        fed.pass_s(100, sampling=("n01",))
        return fed.out

    assert run() == run()

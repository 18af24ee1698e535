"""Idle while held, held by nobody's process, orphans, throttling, slow jobs, starved jobs: each after its time, never from rubbish."""

from __future__ import annotations

import pytest

from schemas.executions import JobProgressed
from schemas.jobs import ModelFacts
from schemas.messages import message
from schemas.nodes import FindingCode, GpuProcess, HostSample
from schemas.placements import Assignment, Desired, NodePlaced
from schemas.records import Record
from tests.build import accepted
from tests.unit.telemetry.telemetry_rig import Fed, gpu

MINE = GpuProcess(pid=7, memory_mib=40_000, job_id="a")


def tell(fed: Fed, topic: str, key: str, event) -> None:
    sent = message(event, key=key, id=f"{key}/{fed.wall_ms}", source="/t", time_ms=0)
    fed.out.extend(fed.feed(Record(topic, 0, fed.wall_ms, sent.key, sent.value, sent.headers, fed.wall_ms)) and [])


def place(fed: Fed, sequence: int, *jobs: str, application: bool = False, desired: Desired = Desired.RUN) -> None:
    """Job i of `jobs` holds GPU i of n00."""
    assignments = [
        Assignment(job_id=job, attempt=1, desired=desired, gpus=[index], application=application)
        for index, job in enumerate(jobs)
    ]
    placed = NodePlaced(
        node="n00", cluster="c0", pool="h100", sequence=sequence, epoch=1, time_ms=0, assignments=assignments
    )
    tell(fed, "placements", "n00", placed)


def run(fed: Fed, duration_s: float, host: HostSample | None = None, **changed) -> None:
    for _ in range(round(duration_s / 5)):
        fed.wall_ms += 5000
        fields = {"processes": [MINE], "memory_used_mib": 40_000.0} | changed
        fed.sample("n00", gpu(0, **fields), gpu(1), **({"host": host} if host else {}))


def codes(fed: Fed, index: int = 0) -> list[FindingCode]:
    return [found.code for found in fed.lines[-1].findings if found.gpu == index]


def test_a_job_that_worked_for_hours_and_hangs_is_idle_after_ten_minutes() -> None:
    fed = Fed()
    place(fed, 1, "a")
    run(fed, 7200, utilization_pct=99.0)
    run(fed, 590, utilization_pct=1.0)
    assert codes(fed) == []
    run(fed, 15, utilization_pct=1.0)
    (found,) = fed.lines[-1].findings
    assert (found.code, found.job_id) == (FindingCode.IDLE_HELD, "a")
    states = len(fed.lines)
    run(fed, 50, utilization_pct=1.0)
    assert len(fed.lines) == states, "told once"
    run(fed, 5, utilization_pct=50.0)
    assert codes(fed) == []


@pytest.mark.parametrize("rubbish", [4294967295.0, 808334905.0, 140737488355328.0, 9.223372036854776e18, -1.0])
def test_rubbish_makes_nobody_idle_and_clears_nobody(rubbish: float) -> None:
    fed = Fed()
    place(fed, 1, "a")
    run(fed, 3600, utilization_pct=rubbish)
    assert codes(fed) == [FindingCode.REJECTED_SAMPLE]
    run(fed, 620, utilization_pct=0.0)
    assert codes(fed) == [FindingCode.IDLE_HELD]
    run(fed, 60, utilization_pct=rubbish)
    assert FindingCode.IDLE_HELD in codes(fed)


def test_a_card_that_can_not_tell_its_utilization_is_never_idle() -> None:
    fed = Fed()
    place(fed, 1, "a")
    run(fed, 3600, utilization_pct=None)
    assert codes(fed) == []


def test_an_application_waits_for_requests_and_is_not_idle() -> None:
    fed = Fed()
    place(fed, 1, "chat", application=True)
    run(fed, 3600, utilization_pct=0.0)
    assert codes(fed) == []


def test_the_next_job_on_the_gpu_starts_with_a_clean_record() -> None:
    fed = Fed()
    place(fed, 1, "a")
    run(fed, 500, utilization_pct=0.0)
    place(fed, 2, "b")
    run(fed, 500, utilization_pct=0.0)
    assert codes(fed) == []


def test_a_gpu_that_is_held_and_used_by_no_process_is_told() -> None:
    fed = Fed()
    place(fed, 1, "a")
    run(fed, 130, processes=[], memory_used_mib=4.0, utilization_pct=0.0)
    assert codes(fed) == [FindingCode.HELD_NO_PROCESS]
    run(fed, 5)
    assert codes(fed) == []


def test_a_process_on_a_gpu_that_is_nobodys_keeps_the_next_job_away_until_it_is_gone() -> None:
    fed = Fed()
    place(fed, 1, "a")
    run(fed, 100)
    place(fed, 2)
    run(fed, 55)
    assert codes(fed) == []
    run(fed, 10)
    assert codes(fed) == [FindingCode.ORPHAN_PROCESS]
    assert [each.healthy for each in fed.lines[-1].gpus] == [False, True]
    run(fed, 20, processes=[], memory_used_mib=4.0)
    assert codes(fed) == []
    assert fed.lines[-1].gpus[0].healthy


def test_a_job_that_is_told_to_stop_and_saves_its_work_is_no_orphan() -> None:
    fed = Fed()
    place(fed, 1, "a")
    run(fed, 100)
    place(fed, 2, "a", desired=Desired.STOP)
    run(fed, 600)
    assert codes(fed) == []


def test_a_monitoring_tools_small_context_is_no_orphan() -> None:
    fed = Fed()
    run(fed, 600, processes=[GpuProcess(pid=9, memory_mib=300)], memory_used_mib=300.0)
    assert codes(fed) == []


def test_throttling_counts_when_it_lasts_and_a_power_cap_at_full_load_does_not() -> None:
    fed = Fed()
    place(fed, 1, "a")
    run(fed, 300, throttles=["sw_power_cap"])
    assert codes(fed) == []
    run(fed, 65, throttles=["sw_power_cap", "hw_thermal_slowdown"])
    assert codes(fed) == [FindingCode.THROTTLED]
    run(fed, 5)
    assert codes(fed) == []


def test_little_work_under_much_traffic_is_starvation() -> None:
    fed = Fed()
    place(fed, 1, "a")
    reading = HostSample(disk_bytes_per_s=900e6, network_bytes_per_s=0.0)
    run(fed, 400, host=HostSample(disk_bytes_per_s=1e3), utilization_pct=20.0)
    assert codes(fed) == []
    run(fed, 310, host=reading, utilization_pct=20.0)
    assert codes(fed) == [FindingCode.DATA_STARVED]
    run(fed, 5, host=reading, utilization_pct=90.0)
    assert codes(fed) == []


@pytest.mark.parametrize("rubbish", [1e18, -5.0])
def test_absurd_traffic_is_counted_and_starves_nobody(rubbish: float) -> None:
    fed = Fed()
    place(fed, 1, "a")
    run(fed, 400, host=HostSample(disk_bytes_per_s=rubbish), utilization_pct=20.0)
    assert codes(fed) == []
    assert fed.handler.rejected == {"host_traffic": 80}


def progress(fed: Fed, job: str, rate: float | None) -> None:
    event = JobProgressed(job_id=job, attempt=1, node="n00", cluster="c0", time_ms=0, samples_per_s=rate)
    tell(fed, "executions", job, event)


def named(fed: Fed, job: str, model: str) -> None:
    tell(fed, "jobs", job, accepted(job, 1, model=ModelFacts(base_model=model)))


def test_a_job_far_below_what_others_of_its_model_do_is_slow() -> None:
    fed = Fed()
    place(fed, 1, "a", "b", "c")
    for job in ("a", "b", "c"):
        named(fed, job, "llama-8b")
    for _ in range(5):
        progress(fed, "b", 100.0)
        progress(fed, "c", 110.0)
        progress(fed, "a", 65.0)
    run(fed, 5)
    assert codes(fed) == [], "above 60 %"
    for _ in range(9):
        progress(fed, "a", 50.0)
    run(fed, 5)
    (found,) = fed.lines[-1].findings
    assert (found.code, found.job_id, found.gpu) == (FindingCode.SLOW_JOB, "a", 0)


def test_a_job_of_no_known_model_is_measured_by_its_own_beginning() -> None:
    fed = Fed()
    place(fed, 1, "a")
    for _ in range(9):
        progress(fed, "a", 100.0)
    for _ in range(9):
        progress(fed, "a", 40.0)
    run(fed, 5)
    assert codes(fed) == [FindingCode.SLOW_JOB]


def test_other_models_and_reports_without_a_rate_say_nothing() -> None:
    fed = Fed()
    place(fed, 1, "a", "b", "c")
    named(fed, "a", "llama-70b")
    for job in ("b", "c"):
        named(fed, job, "llama-8b")
    for _ in range(9):
        progress(fed, "b", 100.0)
        progress(fed, "c", 100.0)
        progress(fed, "a", 9.0)
        progress(fed, "a", None)
        progress(fed, "a", 0.0)
    run(fed, 5)
    assert codes(fed) == []

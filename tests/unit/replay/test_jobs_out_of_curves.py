"""The smallest flow of jobs behind curves of running and waiting GPUs, by hand."""

from __future__ import annotations

from random import Random

from services.replay.core.flows import FlowJob, Sample, jobs_of


def curve(*rows: tuple[int, int, int, int]) -> list[Sample]:
    return [Sample(300 * place, *row) for place, row in enumerate(rows)]


def test_a_rise_is_a_job_and_its_fall_is_the_end() -> None:
    assert jobs_of(curve((0, 0, 0, 0), (8, 0, 1, 0), (8, 0, 1, 0), (0, 0, 0, 0))) == [FlowJob(300, 8, 600)]


def test_a_job_that_waited_was_submitted_when_the_queue_grew() -> None:
    found = jobs_of(curve((4, 0, 1, 0), (4, 2, 1, 1), (4, 2, 1, 1), (2, 0, 1, 0), (0, 0, 0, 0)))
    assert found == [FlowJob(300, 2, 300)], "two of four ended at 900 and two began, from the queue"


def test_what_ran_before_ends_first() -> None:
    assert jobs_of(curve((8, 0, 1, 0), (12, 0, 2, 0), (4, 0, 1, 0), (0, 0, 0, 0))) == [FlowJob(300, 4, 600)]


def test_a_rise_by_several_jobs_is_split_as_evenly_as_possible() -> None:
    found = jobs_of(curve((0, 0, 0, 0), (7, 0, 3, 0), (0, 0, 0, 0)))
    assert [job.gpus for job in found] == [3, 2, 2]


def test_a_job_that_never_starts_is_left_out_and_one_that_runs_on_ends_with_the_curve() -> None:
    assert jobs_of(curve((0, 0, 0, 0), (1, 5, 1, 1), (1, 5, 1, 1))) == [FlowJob(300, 3, 300)]
    assert jobs_of([]) == []


def test_the_flow_runs_as_many_gpus_as_the_curve_says() -> None:
    """Started GPU-time equals the area under the running curve, less what ran at the first sample."""
    for seed in range(20):
        dice = Random(seed)
        rows = [(0, 0, 0, 0)]
        for _ in range(40):
            running, pending = dice.randrange(20), dice.choice([0, 0, dice.randrange(8)])
            rows.append((running, pending, min(running, dice.randrange(1, 6)), min(pending, 2)))
        rows += [(0, 0, 0, 0)]
        samples = curve(*rows)
        area = sum(after.running_gpus for after in samples[:-1]) * 300
        found = jobs_of(samples)
        assert all(job.gpus >= 1 and job.run_s >= 0 for job in found)
        assert sum(job.gpus * job.run_s for job in found) >= area, "a job holds its GPUs until the last of them ends"

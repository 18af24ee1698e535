"""The forecaster's benchmarks measure what they say: generated history is the same everywhere, request logs become batches, facts help."""

from __future__ import annotations

import gzip
from pathlib import Path

from bench.forecaster.accuracy import _all_methods, _scores, request_batches
from bench.forecaster.generated import generated_jobs
from schemas.jobs import Kind

HEADER = "gmt_create,predict_status,exec_time_seconds,groupId,num_images_per_prompt,num_inference_steps,checkpoint_model_version_id"


def test_generated_history_is_the_same_everywhere_and_hides_what_submitters_hide():
    jobs = generated_jobs(400)
    assert jobs == generated_jobs(400)
    assert jobs != generated_jobs(400, seed=2)
    assert [job.at_s for job in jobs] == sorted(job.at_s for job in jobs)
    silent = [job for job in jobs if job.spec.model is None]
    assert 0.25 < len(silent) / len(jobs) < 0.75
    assert all(job.spec.model is None for job in jobs if job.spec.kind is Kind.DEBUG)
    assert all(5.0 <= job.run_s <= 400_000.0 for job in jobs)


def test_requests_of_a_group_within_an_hour_are_a_batch(tmp_path: Path):
    path = tmp_path / "requests.csv.gz"
    rows = [
        "2024-11-15 16:57:50,SUCCEED,32.0,G1,2.0,30.0,M1",
        "2024-11-15 16:58:50,SUCCEED,30.0,G1,1.0,30.0,M1",
        "2024-11-15 16:58:50,FAILED,,G1,1.0,30.0,M1",
        "2024-11-15 17:58:50,SUCCEED,10.0,G1,1.0,30.0,M1",
        "2024-11-15 17:58:51,SUCCEED,20.0,G2,4.0,20.0,M2",
    ]
    path.write_bytes(gzip.compress("\n".join([HEADER, *rows, ""]).encode()))
    batches = request_batches(path)
    told = sorted((job.spec.user, job.run_s, job.spec.model.dataset_items) for job in batches if job.spec.model)
    assert told == [("G1", 10.0, 1.0), ("G1", 62.0, 3.0), ("G2", 20.0, 4.0)]


def test_facts_help_where_history_knows_little():
    history = generated_jobs(250)
    said, _ = _all_methods(history, lambda sentence: None, retraining=False)
    assert set(said["forecaster"]) == {job.job_id for job in history}
    scores = _scores(history, said, {"with facts": lambda job: job.spec.model is not None})["with facts"]
    assert scores["forecaster"]["pinball"] < 0.6 * scores["forecaster, facts withheld"]["pinball"]
    assert scores["forecaster"]["factor"] < 2.5

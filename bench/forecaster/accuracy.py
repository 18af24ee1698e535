"""How right forecasts are for jobs with facts: rolling origin through the forecaster's own handler, event by event.

At each submission only what had ended by then is known. Measured on *generated* history (`generated.py`), because no public trace tells
of models; for batch inference on a real request log (image generation: volume and time per item), if one is named; and what retraining
brings on a piece of the bundled real trace. Compared: the whole forecaster, the same without retraining, the same with facts
withheld, the cost model alone, and plain history per team and size.
"""

from __future__ import annotations

import csv
import gzip
from bisect import insort
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from heapq import heappop, heappush
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from bench.forecaster.generated import GeneratedJob, generated_jobs
from schemas.base import Event
from schemas.catalog import Catalog, Cluster, Pool
from schemas.codec import decode
from schemas.executions import JobCompleted, JobStarted
from schemas.forecasts import DurationForecast
from schemas.jobs import JobAccepted, JobSpec, Kind, ModelFacts
from schemas.messages import message
from schemas.records import Now, Record
from services.forecaster.core.cards import card_of
from services.forecaster.core.handler import ForecasterHandler, Settings
from services.forecaster.core.kind_models import expected
from services.forecaster.core.rolling import Score, quantile_of
from services.forecaster.shell.fitting import fitted
from services.forecaster.shell.model import model_of
from services.forecaster.shell.training import PHILLY, read_runs

START_MS = 1_767_225_600_000
SCORED_FROM = 0.3
Z90 = 1.2815515655446004
HISTORY_RUNS_MIN = 5
PHILLY_RUNS = 6_000
POOL = Pool(gpus=4_096, node_gpus=8, gpu_model="H100", memory_mib=81_920)
CATALOG = Catalog(clusters={"c0": Cluster(partition=0, pools={"h100": POOL})}, default_cluster="c0")
Said = dict[str, tuple[float, float]]
"""log P50 and log P90 by job."""
Tell = Callable[[str], None]


class AccuracyResult(Struct, frozen=True, kw_only=True):
    """`generated`, `requests`, `philly`: scores by group of jobs and method. Natural log seconds, pinball = P50 + P90."""

    jobs: int
    seed: int
    generated: dict[str, dict[str, dict[str, float]]]
    trainings: dict[str, int]
    requests: dict[str, dict[str, dict[str, float]]]
    philly: dict[str, dict[str, dict[str, float]]]
    philly_trainings: dict[str, int]


def measure_accuracy(jobs: int, seed: int, requests: Path | None, tell: Tell) -> AccuracyResult:
    tell(f"{jobs:,} generated jobs, {SCORED_FROM:.0%} to warm up")
    history = generated_jobs(jobs, seed)
    said, trainings = _all_methods(history, tell)
    groups = {
        "all": lambda job: True,
        "with facts": lambda job: job.spec.model is not None,
        "without facts": lambda job: job.spec.model is None,
        **{f"{kind.value}, with facts": _of(kind) for kind in Kind if kind is not Kind.DEBUG},
        "debug": lambda job: job.spec.kind is Kind.DEBUG,
        "first of its kind, with facts": _first(history),
    }
    logged: dict[str, dict[str, dict[str, float]]] = {}
    if requests is not None:
        tell("batch inference from the request log")
        batches = request_batches(requests)
        found, _ = _all_methods(batches, tell, retraining=False)
        logged = _scores(batches, found, {"all": lambda job: True, "first of its kind, with facts": _first(batches)})
    tell(f"{PHILLY_RUNS:,} runs of the bundled trace, which tell nothing of models")
    runs = philly_runs()
    real, real_trainings = _all_methods(runs, tell, withheld=False)
    return AccuracyResult(
        jobs=jobs,
        seed=seed,
        generated=_scores(history, said, groups),
        trainings=trainings,
        requests=logged,
        philly=_scores(runs, real, {"all": lambda job: True}),
        philly_trainings=real_trainings,
    )


def _of(kind: Kind) -> Callable[[GeneratedJob], bool]:
    return lambda job: job.spec.kind is kind and job.spec.model is not None


def _first(history: list[GeneratedJob]) -> Callable[[GeneratedJob], bool]:
    """Jobs of a team, user, thing and size never seen before: cold starts."""
    seen: set[tuple[str, str, str | None, int | None]] = set()
    first: set[str] = set()
    for job in history:
        key = (job.spec.team, job.spec.user, job.spec.template, job.spec.requested_gpus)
        if key not in seen and job.spec.model is not None:
            first.add(job.job_id)
        seen.add(key)
    return lambda job: job.job_id in first


def _all_methods(
    history: list[GeneratedJob], tell: Tell, *, retraining: bool = True, withheld: bool = True
) -> tuple[dict[str, Said], dict[str, int]]:
    said: dict[str, Said] = {}
    trainings: dict[str, int] = {}
    if retraining:
        tell("the forecaster, retraining daily")
        said["forecaster, retrained"], trainings = _forecaster(history, retraining=True)
    tell("the forecaster")
    said["forecaster"], _ = _forecaster(history)
    if withheld:
        tell("with facts withheld")
        silent = [
            GeneratedJob(job.job_id, job.at_s, msgspec.structs.replace(job.spec, model=None), job.run_s)
            for job in history
        ]
        said["forecaster, facts withheld"], _ = _forecaster(silent)
    said["cost model alone"] = _cost_model(history)
    said["plain history of team and size"] = _plain(history)
    return said, trainings


def _moments(history: list[GeneratedJob]) -> Iterator[tuple[float, str, GeneratedJob]]:
    """Submissions and ends in time order; everything starts at once."""
    ends: list[tuple[float, int]] = []
    for number, job in enumerate(history):
        while ends and ends[0][0] <= job.at_s:
            end_s, ended = heappop(ends)
            yield end_s, "end", history[ended]
        yield job.at_s, "submit", job
        heappush(ends, (job.at_s + job.run_s, number))
    while ends:
        end_s, ended = heappop(ends)
        yield end_s, "end", history[ended]


def _forecaster(history: list[GeneratedJob], *, retraining: bool = False) -> tuple[Said, dict[str, int]]:
    forecaster = ForecasterHandler(CATALOG, Settings(), load=model_of if retraining else None)
    said: Said = {}
    offsets = {"jobs": 0, "executions": 0}

    def send(event: Event, at_ms: int) -> list[DurationForecast]:
        carried = message(event, key="k", id=f"{at_ms}", source="bench", time_ms=at_ms)
        record = Record(carried.topic, 0, offsets[carried.topic], carried.key, carried.value, carried.headers, 0)
        offsets[carried.topic] += 1
        answers = (decode(one.headers, one.value).event for one in forecaster.handle(record, Now(at_ms, at_ms)))
        return [answer for answer in answers if isinstance(answer, DurationForecast)]

    for at_s, what, job in _moments(history):
        at_ms = START_MS + round(at_s * 1000)
        if what == "end":
            send(
                JobCompleted(job_id=job.job_id, attempt=1, node="n0", cluster="c0", time_ms=at_ms, run_s=job.run_s),
                at_ms,
            )
            continue
        for order in list(forecaster.orders(Now(at_ms, at_ms))):
            forecaster.fitted(fitted(order))
            forecaster.tick(Now(at_ms, at_ms))
        accepted = JobAccepted(
            job_id=job.job_id, cluster="c0", pools=["h100"], submitted_ms=at_ms, accepted_ms=at_ms, digest="",
            spec=job.spec,
        )  # fmt: skip
        size = next(one for one in send(accepted, at_ms) if one.job_id == job.job_id).sizes[0]
        said[job.job_id] = (float(np.log(size.p50_s)), float(np.log(size.p90_s)))
        started = JobStarted(
            job_id=job.job_id, attempt=1, node="n0", cluster="c0", time_ms=at_ms, wall_ms=at_ms,
            gpus=list(range(job.spec.requested_gpus or 1)), sequence=1,
        )  # fmt: skip
        send(started, at_ms)
    counts = {name: count for name, count in forecaster.counts.items() if name.startswith(("model", "training"))}
    return said, counts


def _cost_model(history: list[GeneratedJob]) -> Said:
    card = card_of(POOL.gpu_model)
    said: Said = {}
    for job in history:
        found = expected(job.spec, job.spec.requested_gpus or 1, card)
        if found is not None:
            said[job.job_id] = (found.log_s, found.log_s + Z90 * found.spread)
    return said


def _plain(history: list[GeneratedJob]) -> Said:
    """All ended runs of the same team and size; of everything below five."""
    by_key: dict[tuple[str, int | None], list[float]] = {}
    everything: list[float] = []
    said: Said = {}
    for _, what, job in _moments(history):
        key = (job.spec.team, job.spec.requested_gpus)
        if what == "end":
            insort(by_key.setdefault(key, []), float(np.log(job.run_s)))
            insort(everything, float(np.log(job.run_s)))
            continue
        own = by_key.get(key, [])
        sample = own if len(own) >= HISTORY_RUNS_MIN else everything
        said[job.job_id] = (quantile_of(sample, 0.5), quantile_of(sample, 0.9)) if sample else (7.0, 9.9)
    return said


def _scores(
    history: list[GeneratedJob], said: dict[str, Said], groups: dict[str, Callable[[GeneratedJob], bool]]
) -> dict[str, dict[str, dict[str, float]]]:
    scored = history[round(SCORED_FROM * len(history)) :]
    result: dict[str, dict[str, dict[str, float]]] = {}
    for group, belongs in groups.items():
        for method, forecasts in said.items():
            rows = [job for job in scored if belongs(job) and job.job_id in forecasts]
            chosen = [job for job in scored if belongs(job)]
            if not rows or len(rows) < len(chosen):
                continue  # the cost model has no answer for some: not comparable
            actual = np.log([job.run_s for job in rows])
            score = Score.of(actual, *(np.array([forecasts[job.job_id][column] for job in rows]) for column in (0, 1)))
            result.setdefault(group, {})[method] = {
                "runs": score.runs, "factor": score.factor, "p90_covers": score.coverage, "pinball": score.pinball,
            }  # fmt: skip
    return result


def philly_runs() -> list[GeneratedJob]:
    """The last runs of the bundled extract, as jobs of a team on a block, started when they were submitted."""
    runs = read_runs(PHILLY)
    jobs = []
    for row in range(len(runs) - PHILLY_RUNS, len(runs)):
        team, gpus = runs.team[row], int(runs.gpus[row])
        spec = JobSpec(
            kind=Kind.TRAINING, team=f"t-{team}", user="unknown", priority=3, sizes=[gpus], requested_gpus=gpus,
            template="unknown",
        )  # fmt: skip
        run_s = float(runs.duration_s[row])
        jobs.append(GeneratedJob(f"p{row}", float(runs.submit_s[row] - runs.submit_s[0]), spec, run_s))
    return jobs


def request_batches(path: Path) -> list[GeneratedJob]:
    """Batches of image requests as jobs: requests of one group within an hour, run one after the other.

    Columns of GenTD26's request log. `dataset_items` counts images; what an image takes depends on model and steps, which only
    the job's name tells.
    """
    batches: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["predict_status"] != "SUCCEED" or not row["exec_time_seconds"]:
                continue
            second = datetime.fromisoformat(row["gmt_create"]).replace(tzinfo=UTC).timestamp()
            name = f"{row['checkpoint_model_version_id']}-{float(row['num_inference_steps'] or 0):.0f}"
            place = batches.setdefault((row["groupId"], name, int(second // 3_600)), [])
            place.append((float(row["num_images_per_prompt"] or 1), float(row["exec_time_seconds"])))
    first_hour = min(hour for _, _, hour in batches)
    jobs = []
    for (group, name, hour), requests in batches.items():
        facts = ModelFacts(base_model=name, dataset_items=sum(images for images, _ in requests))
        spec = JobSpec(
            kind=Kind.BATCH_INFERENCE, team="images", user=group, priority=3, sizes=[1], requested_gpus=1,
            template=name, model=facts,
        )  # fmt: skip
        run_s = max(1.0, sum(took for _, took in requests))
        jobs.append(GeneratedJob(f"r{len(jobs)}", (hour - first_hour + 1) * 3_600.0, spec, run_s))
    return sorted(jobs, key=lambda job: job.at_s)

"""Generator of planning problems: many draws of the seven families, as `scenario.v1` documents.

Shapes follow the descriptions of the published benchmark (pool, number of jobs, kinds, curves); a draw is kept when
FIFO's utilization is near the published baseline and priority backfill doesn't beat FIFO's value by more than 60 %,
so that FIFO is no straw man. Same family and seed, same document. Seeds below `HELD_OUT_FROM` are for tuning, seeds
from it on are held out: look at them only to report.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from services.allocator.core.baselines import plan_backfill, plan_fifo
from services.allocator.core.scenario import BatchJob, RealtimeApp, Scenario, problem_of
from services.allocator.core.value import utilization, value_of

HELD_OUT_FROM = 1000
DRAWS_TRIED_MAX = 20_000  # a family whose filter passes less than one in 20,000 is described wrongly
UTILIZATION_TOLERANCE = 0.015
BACKFILL_GAIN_MAX = 1.6
STEPS = 24
PRIORITIES = (1, 1, 2, 2, 3, 3, 5, 5, 8, 10)
DURATIONS = {"quantization": (1, 3), "batch_inference": (2, 6), "training": (3, 15)}


@dataclass(frozen=True, slots=True)
class Family:
    """What the draws of a family have in common."""

    gpus: int
    jobs: int
    kinds: tuple[tuple[str, int], ...]  # kind, weight
    peaks: tuple[tuple[int, int], ...]  # per application: base, peak
    fifo_utilization: float
    switch_max: int = 2
    sizes: tuple[int, ...] = (1, 2, 2, 4)
    priorities: tuple[int, ...] = PRIORITIES


FAMILIES: dict[str, Family] = {
    "training_heavy": Family(8, 10, (("training", 6), ("batch_inference", 3), ("quantization", 1)), ((1, 5),), 0.536),
    "mixed_control": Family(
        8, 14, (("training", 4), ("batch_inference", 7), ("quantization", 3)), ((1, 3), (1, 2)), 0.516
    ),
    "inference_heavy": Family(
        16, 16, (("training", 2), ("batch_inference", 9), ("quantization", 5)), ((1, 4), (1, 3), (1, 3)), 0.63
    ),
    "priority_inversion": Family(
        8, 14, (("training", 5), ("batch_inference", 5), ("quantization", 4)), ((1, 3),), 0.703
    ),
    "batch_burst": Family(16, 30, (("training", 6), ("batch_inference", 15), ("quantization", 9)), ((1, 2),), 0.849),
    "scale_64": Family(
        64,
        30,
        (("training", 9), ("batch_inference", 12), ("quantization", 9)),
        ((3, 14), (3, 12), (2, 12)),
        0.449,
        switch_max=4,
        sizes=(1, 1, 2, 2, 2, 4, 4, 8, 16),
    ),
    "uniform_priority": Family(
        8, 16, (("training", 8), ("batch_inference", 6), ("quantization", 2)), ((1, 2),), 0.768, priorities=(5,)
    ),
}


def draw(name: str, seed: int) -> Scenario:
    """The draw of a family for a seed."""
    family = FAMILIES[name]
    rng = random.Random(f"{name}/{seed}")
    for _ in range(DRAWS_TRIED_MAX):
        scenario = _candidate(name, family, rng)
        problem = problem_of(scenario)
        fifo = plan_fifo(problem)
        if abs(utilization(problem, fifo) - family.fifo_utilization) > UTILIZATION_TOLERANCE:
            continue
        if value_of(problem, plan_backfill(problem)) <= BACKFILL_GAIN_MAX * value_of(problem, fifo):
            return scenario
    raise RuntimeError(f"no draw of {name} passed the filter in {DRAWS_TRIED_MAX} tries")


def _candidate(name: str, family: Family, rng: random.Random) -> Scenario:
    kinds = [kind for kind, weight in family.kinds for _ in range(weight)]
    jobs = [_job(index, rng.choice(kinds), family, rng) for index in range(family.jobs)]
    if name == "priority_inversion":
        jobs = _invert(jobs)
    return Scenario(
        format="scenario.v1",
        name=name,
        horizon_steps=STEPS,
        gpus=family.gpus,
        node_gpus=8,
        realtime_switch_max=family.switch_max,
        realtime=[
            RealtimeApp(id=f"rt{i}", priority=rng.choice((3, 5, 8)), demand=_curve(base, peak, family.switch_max, rng))
            for i, (base, peak) in enumerate(family.peaks)
        ],
        batch=jobs,
    )


def _job(index: int, kind: str, family: Family, rng: random.Random) -> BatchJob:
    """A requested size with its duration, half the size (a little more than twice as long), and sometimes double."""
    sizes = family.sizes if kind == "training" else tuple(s for s in family.sizes if s <= (2 if kind[0] == "q" else 4))
    size = rng.choice(sizes)
    steps = rng.randint(*DURATIONS[kind])
    durations = {size: steps}
    if size > 1:
        durations[size // 2] = 2 * steps + 1
    if size in (1, 2, 8) and (kind != "quantization" or size == 1):
        durations[2 * size] = steps // 2 + 1
    return BatchJob(
        id=f"j{index:02d}",
        kind=kind,
        arrival=index,
        priority=rng.choice(family.priorities),
        requested_gpus=size,
        duration_steps={str(s): durations[s] for s in sorted(durations)},
    )


def _invert(jobs: list[BatchJob]) -> list[BatchJob]:
    """Half of the high priorities arrive last: swap priorities so that the first third holds the lowest."""
    first = len(jobs) // 3
    ordered = sorted(job.priority for job in jobs)
    low, rest = ordered[:first], [job.priority for job in jobs[first:]]
    keep = sorted(rest + [job.priority for job in jobs[:first]])[first:]
    ranks = sorted(range(len(rest)), key=lambda i: rest[i])
    spread = [0.0] * len(rest)
    for rank, i in enumerate(ranks):
        spread[i] = keep[rank]
    priorities = low + spread
    return [
        BatchJob(
            id=job.id,
            kind=job.kind,
            arrival=job.arrival,
            priority=priorities[i],
            requested_gpus=job.requested_gpus,
            duration_steps=job.duration_steps,
        )
        for i, job in enumerate(jobs)
    ]


def _curve(base: int, peak: int, change_max: int, rng: random.Random) -> list[int]:
    """A daily curve: `base` outside a hump of a drawn place and width, rounded to whole GPUs.

    It never changes by more than the switch cap: demand nobody may follow would only measure the penalty.
    """
    middle, half = rng.uniform(3, STEPS - 4), rng.uniform(3.0, 7.0)
    curve = []
    for step in range(STEPS):
        away = min(abs(step - middle), STEPS - abs(step - middle)) / half
        curve.append(base + round((peak - base) * max(0.0, 1 - away * away)))
    if max(curve) < peak:
        curve[round(middle) % STEPS] = peak
    for step in range(1, STEPS):
        curve[step] = max(curve[step], curve[step - 1] - change_max)
    for step in range(STEPS - 2, -1, -1):
        curve[step] = max(curve[step], curve[step + 1] - change_max)
    return curve

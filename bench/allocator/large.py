"""Large pools for decision times: many sizes, several applications, forecasts with P90 above P50."""

from __future__ import annotations

import random

from services.allocator.core.problem import Application, Option, Problem, QueuedJob, build_problem

SIZES = (1, 1, 2, 2, 4, 4, 8, 8, 16, 32)


def large_problem(gpus: int, jobs: int, steps: int, seed: int) -> Problem:
    """`gpus` in nodes of 8 with `jobs` queued; durations scale with the number of steps, so that 96 steps are one day too."""
    rng = random.Random(f"large/{gpus}/{jobs}/{seed}")
    queued = []
    for index in range(jobs):
        size, hours = rng.choice(SIZES), rng.randint(1, 12)
        duration = max(1, hours * steps // 24)
        options = {size: duration}
        if size > 1:
            options[size // 2] = 2 * duration + 1
        if size < 8:
            options[size * 2] = duration // 2 + 1
        queued.append(
            QueuedJob(
                id=f"j{index:05d}",
                priority=rng.choice((1, 2, 3, 5, 8, 10)) * 1000,
                options=tuple(Option(gpus_, length, length + length // 3) for gpus_, length in sorted(options.items())),
                requested_gpus=size,
                arrival=index,
            )
        )
    applications = []
    peak = max(2, min(40, gpus // 10))
    for index in range(max(1, min(40, gpus // 256 + 2))):
        middle = rng.uniform(0, steps)
        demand = tuple(2 + round(peak * max(0.0, 1 - ((t - middle) / (steps / 4)) ** 2)) for t in range(steps))
        applications.append(Application(f"a{index}", 5000, demand, switch_max=max(4, peak // 4)))
    return build_problem(steps=steps, node_sizes=[8] * (gpus // 8), queued=queued, applications=applications)

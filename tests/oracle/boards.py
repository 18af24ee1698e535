"""Random planning problems for properties: every feature at once, every degenerate shape now and then."""

from __future__ import annotations

import random
from dataclasses import replace

from services.allocator.core.caps import Cap
from services.allocator.core.problem import (
    Application,
    Option,
    Problem,
    QueuedJob,
    Reservation,
    RunningBlock,
    build_problem,
)
from services.allocator.core.reasons import Reason

STEPS = (1, 5, 24, 24, 63, 64, 65, 90, 96)
NODE_SIZES = (8, 8, 4, 6, 1, 2, 16)


def random_board(seed: int, steps: int | None = None, node_sizes: tuple[int, ...] | None = None) -> Problem:
    """A legal, small, nasty problem; the same for the same seed."""
    rng = random.Random(seed)
    caps, chance = _caps(seed)
    near = random.Random(f"near {seed}")
    kinds = near.choice(((-1,), (-1,), (-1, 0, 1)))
    steps = steps or rng.choice(STEPS)
    nodes = node_sizes or tuple(rng.choice(NODE_SIZES) for _ in range(rng.randint(0, 6)))
    free = set(range(sum(nodes)))
    running = _running(rng, sum(nodes), steps, free)
    applications = _applications(rng, steps, free)
    return build_problem(
        steps=steps,
        node_sizes=nodes,
        gpu_state=[rng.choice((1, 2)) if rng.random() < 0.1 else 0 for _ in range(sum(nodes))],
        queued=[
            replace(_job(rng, i, steps), caps=_some(chance, caps), data=near.choice(kinds))
            for i in range(rng.randint(0, 20))
        ],
        running=[replace(block, caps=_some(chance, caps)) for block in running],
        applications=applications,
        reservations=_reservations(rng, sum(nodes), steps),
        caps=caps,
        domains=_domains(near, nodes),
        lacking=[[near.choice((0, 0, 1, 7)) for _ in range(sum(nodes))] for _ in range(max(kinds) + 1)],
    )


def _domains(near: random.Random, nodes: tuple[int, ...]) -> list[int]:
    """On two boards of five: racks, and some NVLink domains inside nodes."""
    if near.random() < 0.6:
        return []
    numbers, number = [], 0
    for size in nodes:
        number += near.choice((1, 1, 100))
        half = near.choice((size, max(1, size // 2)))
        numbers += [number] * half + [number + 1] * (size - half)
        number = numbers[-1]
    return numbers


def _caps(seed: int) -> tuple[list[Cap], random.Random]:
    """Caps on two boards of five, and the chance that deals them out; apart from the board's own, which stays as it is."""
    chance = random.Random(f"caps {seed}")
    count = chance.randint(1, 4) if chance.random() < 0.4 else 0
    return [Cap(f"team{index}", chance.choice((0, 1, 2, 3, 4, 6, 9, 16))) for index in range(count)], chance


def _some(chance: random.Random, caps: list[Cap]) -> tuple[int, ...]:
    return tuple(sorted(chance.sample(range(len(caps)), chance.randint(0, min(3, len(caps))))))


def _running(rng: random.Random, gpus: int, steps: int, free: set[int]) -> list[RunningBlock]:
    rows = []
    for index in range(rng.randint(0, 4) if gpus else 0):
        size, first = rng.choice((1, 2, 4)), rng.randrange(gpus)
        block = range(first, first + size)
        if all(gpu in free for gpu in block):
            free.difference_update(block)
            left = rng.randint(0, steps + 3)
            rows.append(RunningBlock(f"r{index}", rng.randint(0, 9000), first, size, left, left + rng.randint(0, 5)))
    return rows


def _applications(rng: random.Random, steps: int, free: set[int]) -> list[Application]:
    rows = []
    for index in range(rng.randint(0, 3)):
        held = None
        if rng.random() < 0.6:
            held = tuple(rng.sample(sorted(free), min(len(free), rng.randint(0, 4))))
            free.difference_update(held)
        demand, level = [], rng.randint(0, 5)
        for _ in range(steps):
            level = max(0, level + rng.choice((-2, -1, 0, 0, 0, 1, 3)))
            demand.append(level)
        cap, left = rng.choice((0, 1, 2, 4)), rng.choice((-1, -1, 0, 1))
        rows.append(
            Application(f"a{index}", rng.randint(0, 8000), tuple(demand), rng.choice((0, 0, 2)), held, cap, left)
        )
    return rows


def _reservations(rng: random.Random, gpus: int, steps: int) -> list[Reservation]:
    rows = []
    for index in range(rng.randint(0, 2) if gpus else 0):
        first, start = rng.randrange(gpus), rng.randrange(steps)
        rows.append(Reservation(f"v{index}", first, rng.randint(1, gpus - first), start, start + rng.randint(0, 10)))
    return rows


def _job(rng: random.Random, index: int, steps: int) -> QueuedJob:
    options = []
    for size in rng.sample((1, 2, 4, 8, 16, 32), rng.randint(1, 3)):
        duration = rng.randint(0, steps + 5)
        options.append(Option(size, duration, duration + rng.randint(0, 4)))
    return QueuedJob(
        id=f"q{index}",
        priority=rng.randint(0, 9000),
        options=tuple(options),
        earliest_step=rng.choice((0, 0, 0, 3, steps)),
        arrival=index,
        refusal=Reason.QUOTA_EXCEEDED if rng.random() < 0.05 else Reason.NONE,
    )


def tiny_board(seed: int, more_nodes: tuple[int, ...] = (), jobs_max: int = 3) -> Problem:
    """A board small enough for `brute_force`: at most 4 GPUs, 4 steps, 3 jobs, 1 application.

    The same board with `more_nodes` behind the others, or with its first `jobs_max` jobs only.
    """
    rng = random.Random(seed)
    caps, chance = _caps(seed)
    steps, nodes = rng.randint(1, 4), rng.choice(((2,), (3,), (1, 1), (2, 1), (2, 2), (4,)))
    jobs = [
        QueuedJob(
            id=f"q{index}",
            priority=rng.randint(1, 9) * 1000,
            options=tuple(Option(size, rng.randint(1, 4)) for size in sorted(rng.sample((1, 2, 4), rng.randint(1, 2)))),
            arrival=index,
            caps=_some(chance, caps),
        )
        for index in range(rng.randint(1, 3))
    ]
    applications = []
    if rng.random() < 0.6:
        demand = tuple(rng.randint(0, 2) for _ in range(steps))
        held = (rng.randrange(sum(nodes)),) if rng.random() < 0.5 else None
        applications.append(
            Application("a", rng.randint(1, 5) * 1000, demand, held=held, switch_max=rng.choice((1, 2)))
        )
    return build_problem(
        steps=steps, node_sizes=nodes + more_nodes, queued=jobs[:jobs_max], applications=applications, caps=caps
    )

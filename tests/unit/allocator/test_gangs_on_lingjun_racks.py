"""Lingjun's racks and jobs: gangs that know the racks touch fewer of them, and none starts later for it."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

from services.allocator.core.heuristic import plan_fast
from services.allocator.core.plan import Plan
from services.allocator.core.problem import Option, QueuedJob, RunningBlock, build_problem

ROOT = Path(__file__).parents[3]
RACKS = 10
GANGS = 120
STEP_S, STEPS = 900, 64


def racks() -> list[int]:
    """Hosts of 8 GPUs per rack."""
    with (ROOT / "tests/data/lingjun/racks.csv").open() as file:
        return [int(row["hosts"]) for row in csv.DictReader(file)][:RACKS]


def gangs() -> list[tuple[int, int, int]]:
    """(submitted, size, duration) in steps; sizes rounded down to a power of two, those of several nodes only."""
    with gzip.open(ROOT / "services/replay/data/lingjun_jobs.csv.gz", "rt") as file:
        rows = [(int(row["submit_s"]), int(row["num_gpus"]), int(row["duration_s"])) for row in csv.DictReader(file)]
    several = [(at, 1 << (gpus.bit_length() - 1), run) for at, gpus, run in rows if 16 <= gpus < 512]
    return [(at // STEP_S, size, max(1, -(-run // STEP_S))) for at, size, run in several[:GANGS]]


def test_gangs_touch_fewer_racks_and_start_as_early() -> None:
    hosts = [rack for rack, count in enumerate(racks()) for _ in range(count)]
    domains = [rack * 10_000 + host for host, rack in enumerate(hosts) for _ in range(8)]
    running: list[tuple[int, int, int]] = []  # first, size, end step
    told, untold, fewest = 0, 0, 0  # racks touched; `fewest`: no gang fits in fewer, however free they were

    def touched(plan: Plan, size: int) -> int:
        first = int(plan.first_gpu[0])
        return hosts[(first + size - 1) // 8] - hosts[first // 8] + 1

    for now, size, steps in gangs():
        running = [block for block in running if block[2] > now]
        board = {
            "steps": STEPS,
            "node_sizes": [8] * len(hosts),
            "queued": [QueuedJob("gang", 1000, (Option(size, min(steps, STEPS)),))],
            "running": [
                RunningBlock(f"r{at}", 1000, first, gpus, end - now) for at, (first, gpus, end) in enumerate(running)
            ],
        }
        blind, seeing = plan_fast(build_problem(**board), 0), plan_fast(build_problem(**board, domains=domains), 0)
        assert int(seeing.start[0]) == int(blind.start[0])
        assert seeing.value == blind.value
        if seeing.start[0] < 0:
            continue
        assert touched(seeing, size) <= touched(blind, size)
        told, untold = told + touched(seeing, size), untold + touched(blind, size)
        fewest += -(-size // (8 * max(racks())))
        if seeing.start[0] == 0:
            running.append((int(seeing.first_gpu[0]), size, now + steps))
    assert (untold, told) == (171, 149), "as docs/policy.md says"
    assert told == fewest, "every gang lies in as few racks as could hold it"

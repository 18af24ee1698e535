"""Random pools: a proposal carried out leaves every block free that it promised, moves only what may move, and collides with nobody."""

from __future__ import annotations

from random import Random

import pytest

from schemas.jobs import CheckpointMode, CheckpointPolicy
from schemas.records import Now
from services.allocator.core.fragmentation import block_counts, free_fragments, gap_share
from services.allocator.core.free_runs import longest_run
from services.allocator.core.heuristic import plan_fast
from services.allocator.core.layout import layout_of
from services.allocator.core.migrations import Migration, migrations_in
from services.allocator.core.pose import pose
from services.allocator.core.problem import Option, QueuedJob, RunningBlock, build_problem
from tests import build
from tests.allocator_driver import POLICY, Driver

SIZES = (4, 8, 8, 8)
MODES = (CheckpointMode.NONE, CheckpointMode.SIGNAL, CheckpointMode.SIGNAL, CheckpointMode.FILE)


def crowded(seed: int) -> Driver:
    """Four nodes on which jobs of all sizes came and went; most of them can save their work."""
    dice, driver = Random(seed), Driver()
    driver.give(*[build.node(f"n{at}", order=at, gpus=size) for at, size in enumerate(SIZES)])
    for number in range(18):
        size, saves = dice.choice([1, 1, 1, 2, 4]), CheckpointPolicy(mode=dice.choice(MODES))
        job_id = f"j{number}"
        driver.give(build.accepted(job_id, size, checkpoint=saves), build.forecast(job_id, {size: 36_000}))
    for job in list(driver.state.jobs.values()):
        for part in job.parts:
            driver.give(build.started(job.job_id, part.node, driver.now_ms))
    for job in [job for job in list(driver.state.jobs.values()) if job.parts and dice.random() < 0.6]:
        driver.give(build.completed(job.job_id, job.parts[0].node, driver.now_ms))
    return driver


def free_gpus(driver: Driver) -> dict[tuple[str, int], bool]:
    free = {(node.node, gpu): True for node in driver.state.nodes.values() for gpu in range(node.size)}
    for job in driver.state.jobs.values():
        for part in job.parts:
            free |= {(part.node, gpu): False for gpu in part.gpus}
    return free


def counts_of(driver: Driver, free: dict[tuple[str, int], bool]) -> list[int]:
    nodes = layout_of(driver.state, build.POOL).nodes
    return block_counts([[free[node.node, gpu] for gpu in range(node.size)] for node in nodes])


def carried_out(driver: Driver, proposal: Migration) -> dict[tuple[str, int], bool]:
    free = free_gpus(driver)
    for move in proposal.moves:
        job = driver.job(move.job_id)
        assert job.spec.checkpoint.mode is not CheckpointMode.NONE
        assert sum(len(part.gpus) for part in move.takes) == job.gpus
        free |= {(part.node, gpu): True for part in move.leaves for gpu in part.gpus}
    for move in proposal.moves:
        for part in move.takes:
            for gpu in part.gpus:
                assert free[part.node, gpu], "two on one GPU"
                free[part.node, gpu] = False
    return free


@pytest.mark.parametrize("seed", range(12))
def test_what_a_proposal_frees_is_free_once_it_is_carried_out(seed: int) -> None:
    driver = crowded(seed)
    posed = pose(driver.state, build.POOL, 0, POLICY, Now(driver.now_ms, driver.wall_ms), frozenset())
    before = counts_of(driver, free_gpus(driver))
    for proposal in migrations_in(driver.state, posed, driver.now_ms):
        after = counts_of(driver, carried_out(driver, proposal))
        gained = {1 << k: more - now for k, (now, more) in enumerate(zip(before, after, strict=True)) if more > now}
        assert proposal.frees == gained
        assert proposal.cost_s == pytest.approx(sum(move.cost_s for move in proposal.moves))


@pytest.mark.parametrize("seed", range(20))
def test_block_counts_agree_with_laying_blocks_one_after_the_other(seed: int) -> None:
    dice = Random(seed)
    nodes = [[dice.random() < 0.6 for _ in range(dice.choice([2, 4, 8]))] for _ in range(4)]
    counts = block_counts(nodes)
    for k in range(4):
        laid = 0
        for node in nodes:
            gpu = 0
            while gpu + (1 << k) <= len(node):
                fits = all(node[gpu : gpu + (1 << k)])
                laid += fits
                gpu += (1 << k) if fits else 1
        assert counts[k] >= laid
        if (1 << k) <= 2:
            assert counts[k] == laid


def test_fragments_are_free_gpus_that_the_usual_jobs_cannot_use() -> None:
    halves = [[True, False] * 4, [True] * 8]
    assert free_fragments(halves, {1: 5}) == 0
    assert free_fragments(halves, {2: 1}) == 4
    assert free_fragments(halves, {8: 1, 2: 1}) == 4
    assert free_fragments(halves, {16: 1}) == 12
    assert free_fragments(halves, {}) == 0


def test_gaps_that_no_waiting_job_fits_count_as_window_fragmentation() -> None:
    board = {"steps": 8, "node_sizes": [2], "running": [RunningBlock("r", 1000, 0, 1, 6)]}
    short = build_problem(**board, queued=[QueuedJob("q", 1000, (Option(2, 2),))])
    assert gap_share(short, plan_fast(short, 0)) == 0  # six idle steps on one GPU: other work of two steps fits
    long = build_problem(**board, queued=[QueuedJob("q", 1000, (Option(1, 7),)), QueuedJob("p", 1000, (Option(2, 9),))])
    assert gap_share(long, plan_fast(long, 0)) == 1.0  # one step behind q, two behind r


def test_the_longest_run_is_of_neighbours() -> None:
    assert [longest_run(gpus) for gpus in ([], [3], [0, 1, 3, 4, 5, 7], (6, 7, 0))] == [0, 1, 3, 2]

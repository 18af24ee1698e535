"""The state of the grid as gauges: queue and ages, free blocks and how they are broken up, unmet real-time demand, value per hour.

Owns: names and labels (docs/metrics.md) and walking over the state at most every GRID_PERIOD_S, because ten thousand GPUs and
jobs take some milliseconds. Refuses: job ids as labels. Read next: `observe.py`.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Gauge

from schemas.status import JobState
from services.allocator.core.config import Policy
from services.allocator.core.fragmentation import block_counts, free_fragments, gap_share
from services.allocator.core.free_runs import longest_run
from services.allocator.core.layout import Layout, layout_of, pools_of
from services.allocator.core.plan import Plan
from services.allocator.core.pose import Posed, demand_steps
from services.allocator.core.state import PARTS_ALIVE, Node, State

GRID_PERIOD_S = 5.0
SIZE_CLASSES = ("1", "2-4", "8", ">8")


def size_class(gpus: int) -> str:
    """One GPU, part of a node, a whole node, several nodes."""
    return "1" if gpus <= 1 else "2-4" if gpus <= 4 else "8" if gpus <= 8 else ">8"


class GridMetrics:
    """`update` after a decision; the gauges stay as they were in between."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._due_s = 0.0

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, ["cluster", *labels], registry=registry)

        self._queue = gauge("gpugrid_queue_jobs", "Jobs that wait, by the smallest size they can use.", "size_class")
        self._oldest = gauge(
            "gpugrid_queue_oldest_seconds", "Age of the oldest waiting job, domain time.", "size_class"
        )
        self._running = gauge("gpugrid_running_jobs", "Jobs that hold GPUs.", "size_class")
        self._free = gauge("gpugrid_free_gpus", "GPUs that could be handed out now.", "pool")
        self._usable = gauge("gpugrid_usable_gpus", "GPUs that are healthy, heard and not drained.", "pool")
        self._whole = gauge("gpugrid_schedulability_nodes", "Whole nodes that could be handed out now.", "pool")
        self._largest = gauge("gpugrid_largest_block_gpus", "Largest block that could be handed out now.", "pool")
        self._broken = gauge(
            "gpugrid_fragmented_gpus",
            "Free GPUs that a larger block can't use: on partly held nodes, beside their node's longest run, "
            "on whole nodes without a free neighbour, and what a job of the usual sizes can't use on average.",
            "pool",
            "form",
        )
        self._gaps = gauge(
            "gpugrid_window_gap_ratio", "Of the plan's idle GPU time, in gaps shorter than any waiting job.", "pool"
        )
        self._wanted = gauge("gpugrid_realtime_wanted_gpus", "GPUs that applications ask for now.", "pool")
        self._unmet = gauge("gpugrid_realtime_unmet_gpus", "GPUs that applications ask for and don't have.", "pool")
        self._value = gauge(
            "gpugrid_value_per_hour", "Priority-weighted GPU-hours earned per hour at present.", "source"
        )
        self._overdue = gauge(
            "gpugrid_running_beyond_p90_jobs", "Running jobs that already took longer than the P90 of their forecast."
        )

    def update(self, state: State, policy: Policy, planned: Sequence[tuple[Posed, Plan]] = ()) -> None:
        """`planned`: problem and plan per pool of the newest decision, if it made any."""
        if time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + GRID_PERIOD_S
        self._jobs(state)
        self._applications(state, policy)
        held = _held(state)
        for pool in pools_of(state):
            layout = layout_of(state, pool)
            self._shape(state.cluster, pool, layout.nodes, held)
            rows = _rows(layout, held)
            blocks = block_counts(rows)[: (layout.block_max or layout.gpus).bit_length()]
            largest = max((1 << k for k, count in enumerate(blocks) if count), default=0)
            self._largest.labels(state.cluster, pool).set(largest)
            self._broken.labels(state.cluster, pool, "usual_jobs").set(free_fragments(rows, _sizes(state, pool)))
        for posed, plan in planned:
            self._gaps.labels(state.cluster, posed.pool).set(gap_share(posed.problem, plan))

    def _jobs(self, state: State) -> None:
        waiting: Counter[str] = Counter()
        running: Counter[str] = Counter()
        oldest: dict[str, int] = {}
        value = 0
        overdue = 0
        for job in state.jobs.values():
            if job.state is JobState.QUEUED:
                label = size_class(min(job.spec.sizes))
                waiting[label] += 1
                oldest[label] = min(oldest.get(label, job.submitted_ms), job.submitted_ms)
            elif job.holds_gpus:
                running[size_class(job.gpus)] += 1
                value += job.spec.priority * job.gpus
                ran_s = (state.now_ms - job.started_ms) / 1000 if job.started_ms is not None else 0.0
                overdue += 0 < job.placed_p90_s < ran_s
        for label in SIZE_CLASSES:
            self._queue.labels(state.cluster, label).set(waiting[label])
            self._running.labels(state.cluster, label).set(running[label])
            age_ms = state.now_ms - oldest[label] if label in oldest else 0
            self._oldest.labels(state.cluster, label).set(max(0, age_ms) / 1000)
        self._value.labels(state.cluster, "jobs").set(value)
        self._overdue.labels(state.cluster).set(overdue)

    def _applications(self, state: State, policy: Policy) -> None:
        wanted: Counter[str] = Counter()
        unmet: Counter[str] = Counter()
        value = 0
        for app in state.apps.values():
            asks = demand_steps(app, policy, state.now_ms)[0]
            has = sum(len(part.gpus) for part in app.parts)
            wanted[app.pool] += asks
            unmet[app.pool] += max(0, asks - has)
            value += app.spec.priority * min(asks, has)
        for pool in wanted:
            self._wanted.labels(state.cluster, pool).set(wanted[pool])
            self._unmet.labels(state.cluster, pool).set(unmet[pool])
        self._value.labels(state.cluster, "applications").set(value)

    def _shape(self, cluster: str, pool: str, nodes: Sequence[Node], held: dict[str, set[int]]) -> None:
        free = [_free(node, held.get(node.node, set())) for node in nodes]
        whole = [len(gpus) == node.size > 0 for node, gpus in zip(nodes, free, strict=True)]
        runs = [longest_run(gpus) for gpus in free]
        partly = [index for index in range(len(nodes)) if free[index] and not whole[index]]
        lonely = sum(
            len(free[index])
            for index in range(len(nodes))
            if whole[index] and not any(whole[near] for near in (index - 1, index + 1) if 0 <= near < len(nodes))
        )
        self._free.labels(cluster, pool).set(sum(map(len, free)))
        self._usable.labels(cluster, pool).set(sum(_usable(node) for node in nodes))
        self._whole.labels(cluster, pool).set(sum(whole))
        self._broken.labels(cluster, pool, "partly_held_nodes").set(sum(len(free[index]) for index in partly))
        self._broken.labels(cluster, pool, "split_runs").set(sum(len(free[index]) - runs[index] for index in partly))
        self._broken.labels(cluster, pool, "lonely_nodes").set(lonely)


def _sizes(state: State, pool: str) -> Counter[int]:
    """Jobs of the pool by size: what runs, and the smallest size of what waits."""
    sizes: Counter[int] = Counter()
    for job in state.jobs.values():
        if job.holds_gpus and job.pool == pool:
            sizes[job.gpus] += 1
        elif not job.parts and pool in job.pools:
            sizes[min(job.spec.sizes)] += 1
    return sizes


def _rows(layout: Layout, held: dict[str, set[int]]) -> list[list[bool]]:
    """Per GPU in grid order whether it is free, node by node; card by card where the pool is made of slots."""
    flat: list[bool] = []
    for node in layout.nodes:
        free = set(_free(node, held.get(node.node, set())))
        flat += [gpu in free for gpu in range(node.size)]
    rows, at = [], 0
    for size in layout.planned_sizes:
        rows.append(flat[at : at + size])
        at += size
    return rows


def _held(state: State) -> dict[str, set[int]]:
    held: dict[str, set[int]] = defaultdict(set)
    for job in state.jobs.values():
        for part in job.parts:
            if part.status in PARTS_ALIVE:
                held[part.node].update(part.gpus)
    for app in state.apps.values():
        for part in app.parts:
            held[part.node].update(part.gpus)
    return held


def _usable(node: Node) -> int:
    closed = {*node.quarantined, *node.absent}
    return sum(node.healthy[gpu] and gpu not in closed for gpu in range(node.size)) if node.takes_new else 0


def _free(node: Node, held: set[int]) -> list[int]:
    if not node.takes_new:
        return []
    closed = {*node.quarantined, *node.absent}
    return [gpu for gpu in range(node.size) if node.healthy[gpu] and gpu not in held and gpu not in closed]

"""What nearness makes of a waiting job, where it matters: racks and NVLink domains of the blocks it could have, nodes that keep its data.

Owns: the codes and sentences. Blocks and data are counted as the planner counts them (`topology`, `layout`, `near`), from the allocator's
state as it is now; nothing is planned for it. Nearness keeps nobody waiting: it only chooses among places that start equally early, so
these are remarks beside the reason. Says nothing where all places are alike. The rule: docs/policy.md, "Which of equally good places".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.allocator.core.index import index_of
from services.allocator.core.layout import Layout, layout_of
from services.allocator.core.near import lacking_mib
from services.allocator.core.state import PARTS_ALIVE, Job, State
from services.allocator.core.topology import size_class, topology_of
from services.console.durations import duration_text

NODES_NAMED_MAX = 4
"""More names don't help a person."""
GIB_MIB = 1024


@dataclass(frozen=True, slots=True)
class NearPart:
    """`code`: within_racks, spread_over_racks, within_domains, spread_over_domains, data_kept or data_elsewhere."""

    code: str
    sentence: str


def near_parts(state: State, job: Job, pool: str, now_ms: int) -> list[NearPart]:
    """Of a waiting job, in the pool in whose line it stands."""
    layout = layout_of(state, pool)
    return [*_blocks(state, job, layout, pool, now_ms), *_data(state, job, layout, pool)]


def _blocks(state: State, job: Job, layout: Layout, pool: str, now_ms: int) -> list[NearPart]:
    """Of the smallest size that it offers and the pool can form."""
    topology = topology_of(tuple(layout.planned_sizes)) if layout.gpus else None
    for size in sorted(job.spec.sizes):
        level = size_class(size)
        if topology is None or not 0 <= level < topology.classes:
            continue
        firsts = topology.blocks(level).tolist()
        if not firsts:
            continue
        whole_nodes = all(node.size < size for node in layout.nodes)
        units = _racks(layout) if whole_nodes else _links(layout)
        spans = {first: len(set(units[first : first + size])) for first in firsts}
        if len(set(spans.values())) < 2:
            return []
        unit, least = ("rack", "racks") if whole_nodes else ("NVLink domain", "domains"), min(spans.values())
        open_now = _open_now(state, layout, now_ms)
        free = [spans[first] for first in firsts if all(open_now[first : first + size])]
        if not free:
            near = sum(span == least for span in spans.values())
            there = "1 such block" if near == 1 else f"{near} such blocks"
            text = (
                f"It waits for {size} GPUs within {_count(least, unit[0])}: {pool} has {there}, none is free now;"
                f" one over more {unit[0]}s is taken only if it comes free earlier."
            )
            return [NearPart(f"within_{unit[1]}", text)]
        if min(free) > least:
            text = (
                f"Now it would be spread over {_count(min(free), unit[0])}: no block of {size} GPUs within"
                f" {_count(least, unit[0])} is free."
            )
            return [NearPart(f"spread_over_{unit[1]}", text)]
        return []
    return []


def _data(state: State, job: Job, layout: Layout, pool: str) -> list[NearPart]:
    datasets = job.spec.datasets
    if not datasets or not layout.nodes:
        return []
    lacks = {node.node: lacking_mib(node, datasets) for node in layout.nodes}
    names = {dataset.name for dataset in datasets}
    keep = [node.node for node in layout.nodes if names <= set(node.datasets)]
    if len(keep) == len(layout.nodes):
        return []
    found = []
    if keep:
        verb = "keeps" if len(keep) == 1 else "keep"
        text = f"{_named(keep)} {verb} all of its data: of places that start equally early it gets one there."
        found.append(NearPart("data_kept", text))
    rest = sorted({lacks[node.node] for node in layout.nodes if node.node not in keep})
    if rest[-1] <= 0:
        return found
    rate = state.rules.staging_mib_per_s
    brings = " to ".join(dict.fromkeys(f"{mib / GIB_MIB:.3g} GiB" for mib in (rest[0], rest[-1])))
    takes = " to ".join(dict.fromkeys(duration_text(mib / rate) for mib in (rest[0], rest[-1])))
    where = "Elsewhere" if keep else f"No node of {pool} keeps all of its data:"
    found.append(
        NearPart("data_elsewhere", f"{where} {brings} have to be brought first, about {takes} of its expected time.")
    )
    return found


def _racks(layout: Layout) -> list[str]:
    return [node.rack for node in layout.nodes for _ in range(node.size)]


def _links(layout: Layout) -> list[tuple[str, int]]:
    """Per GPU its node and its NVLink domain there."""
    found: list[tuple[str, int]] = []
    for node in layout.nodes:
        links = node.links if len(node.links) == node.size else [0] * node.size
        found += [(node.node, link) for link in links]
    return found


def _open_now(state: State, layout: Layout, now_ms: int) -> list[bool]:
    """Per GPU of the pool whether something new could start on it at this moment."""
    by_jobs = (part for job in index_of(state).holders() for part in job.parts)
    by_apps = (part for app in state.apps.values() for part in app.parts)
    held = {
        (part.node, gpu)
        for parts in (by_jobs, by_apps)
        for part in parts
        if part.status in PARTS_ALIVE
        for gpu in part.gpus
    }
    for one in state.reservations.values():
        if one.from_ms <= now_ms < one.until_ms and one.node in layout.first:
            size = state.nodes[one.node].size
            held |= {(one.node, gpu) for gpu in one.gpus or range(size)}
    return [
        node.takes_new
        and node.healthy[gpu]
        and gpu not in (*node.quarantined, *node.absent)
        and (node.node, gpu) not in held
        for node in layout.nodes
        for gpu in range(node.size)
    ]


def _count(number: int, unit: str) -> str:
    return f"one {unit}" if number == 1 else f"{number} {unit}s"


def _named(nodes: Sequence[str]) -> str:
    more = len(nodes) - NODES_NAMED_MAX
    names = [*nodes[:NODES_NAMED_MAX], *([f"{more} more"] if more > 0 else [])]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]

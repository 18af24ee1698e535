"""Which of equally early places is nearer: the fewest NVLink domains and racks, then the most of the job's data on its nodes. Pure.

Never against value: a place that starts later, or is worth less, is not looked at. Where nodes tell nothing of either, all places
are equally near and plans are what they were. Read next: `kernels/near.py`, `layout.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.jobs import Dataset
from schemas.status import NodeGpus
from services.allocator.core.state import Job, Node, State

GIB_MIB = 1024
LACKING_GIB_MAX = (1 << 14) - 1
"""More data than this on one GPU's account makes no difference; sums over a pool stay below 2**30."""
DATA_ROWS_MAX = 64
"""Different sets of data names per pool and decision, in queue order; jobs with others are placed without regard to their data."""


def domain_numbers(nodes: Sequence[Node]) -> list[int]:
    """Per GPU of the pool, in grid order, a number that never falls: one more at each border of nodes and of NVLink domains inside them,
    a whole pool more at each border of racks. Empty if all are in one rack and no node has several domains.
    """
    if len({node.rack for node in nodes}) < 2 and not any(node.links for node in nodes):
        return []
    step = 1 + sum(node.size for node in nodes)
    numbers: list[int] = []
    rack = number = 0
    for at, node in enumerate(nodes):
        if at:
            number += 1
            rack += node.rack != nodes[at - 1].rack
        links = node.links if len(node.links) == node.size else [0] * node.size
        numbers += [rack * step + number + link for link in links]
        number += links[-1]
    return numbers


def links_of(domains: Sequence[Sequence[int]], size: int) -> list[int]:
    """Per GPU of a node the number of its NVLink domain; empty if there is one, or if they don't lie side by side."""
    owner = {gpu: min(domain) for domain in domains for gpu in domain}
    firsts = [owner.get(gpu, gpu) for gpu in range(size)]
    if not domains or len(set(firsts)) < 2 or firsts != sorted(firsts):
        return []
    order = {first: number for number, first in enumerate(dict.fromkeys(firsts))}
    return [order[first] for first in firsts]


def lacking_mib(node: Node, datasets: Sequence[Dataset]) -> int:
    """What has to be brought to the node before a job with these can run on it."""
    kept = set(node.datasets)
    return sum(dataset.size_mib for dataset in datasets if dataset.name not in kept)


def lacking_of(nodes: Sequence[Node], datasets: Sequence[Dataset]) -> list[int]:
    """Per GPU of the pool what its node lacks, in GiB; at least 1 where a name is missing, whatever its size."""
    found: list[int] = []
    for node in nodes:
        names = sum(dataset.name not in node.datasets for dataset in datasets)
        gib = -(-lacking_mib(node, datasets) // GIB_MIB)
        found += [min(LACKING_GIB_MAX, max(gib, names))] * node.size
    return found


def data_rows(nodes: Sequence[Node], queued: Sequence[Job]) -> tuple[dict[str, int], list[list[int]]]:
    """(row by job id, rows): what each GPU's node lacks, one row for all jobs that name the same data."""
    row_of: dict[str, int] = {}
    rows: list[list[int]] = []
    known: dict[tuple[tuple[str, int], ...], int] = {}
    for job in queued:
        if not job.spec.datasets:
            continue
        kind = tuple((dataset.name, dataset.size_mib) for dataset in job.spec.datasets)
        if kind not in known and len(rows) < DATA_ROWS_MAX:
            known[kind] = len(rows)
            rows.append(lacking_of(nodes, job.spec.datasets))
        if kind in known:
            row_of[job.job_id] = known[kind]
    return row_of, rows


def staging_s(state: State, job: Job, placed: Sequence[NodeGpus]) -> float:
    """Until the slowest node of a block has what it lacks; nodes bring their data side by side."""
    lacks = [lacking_mib(state.nodes[part.node], job.spec.datasets) for part in placed if part.node in state.nodes]
    return max(lacks, default=0) / state.rules.staging_mib_per_s

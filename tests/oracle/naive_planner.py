"""The first legal grid of fast mode, read as plain Python: integers as bit sets, loops over everything.

Slow and obvious on purpose. The kernels must place every job and every segment exactly where this does, and the
benchmark uses it as the pure-Python reading of the same heuristic.
"""

from __future__ import annotations

from itertools import pairwise

from services.allocator.core.fragmentation import block_counts
from services.allocator.core.heuristic import FINISH_SHARE
from services.allocator.core.kernels.settle import SETTLED_MAX
from services.allocator.core.problem import Problem

Segment = tuple[int, int, int, int]
Place = tuple[int, int, int]


def naive_plan(problem: Problem) -> tuple[list[Place], list[Segment]]:
    """(start, first GPU, option) per job, -1 thrice where it has no place; segments (app, GPU, start, end)."""
    window = (1 << problem.steps) - 1
    closed = [window if state else 0 for state in problem.gpu_state.tolist()]
    for first, size, start, end in problem.reservations.tolist():
        for gpu in range(first, first + size):
            closed[gpu] |= _bits(start, end)
    segments = _layout(problem, closed)
    guard = list(closed)
    for _, gpu, start, end in segments:
        guard[gpu] |= _bits(start, end)
    batch = [0] * problem.gpus
    for first, size, steps, *_ in problem.running_table.tolist():
        for gpu in range(first, first + size):
            batch[gpu] |= _bits(0, min(steps, problem.steps))
    return _build(problem, guard, batch), segments


def _bits(start: int, end: int) -> int:
    return (1 << end) - (1 << start) if end > start else 0


def _held_until(problem: Problem) -> list[int]:
    until = [0 if state == 2 else problem.steps for state in problem.gpu_state.tolist()]
    for first, size, start, end in problem.reservations.tolist():
        if start < end:
            for gpu in range(first, first + size):
                until[gpu] = min(until[gpu], start)
    for first, size, *_ in problem.running_table.tolist():
        for gpu in range(first, first + size):
            until[gpu] = 0
    return until


def _layout(problem: Problem, closed: list[int]) -> list[Segment]:
    """Segments: held GPUs to the longest, then longest first on the topmost free GPU; else earliest first."""
    if problem.apps == 0:
        return []
    until, held_app = _held_until(problem), problem.held_app.tolist()
    taken = list(closed)
    for first, size, _, hold, *_ in problem.running_table.tolist():
        for gpu in range(first, first + size):
            taken[gpu] |= _bits(0, min(hold, problem.steps))
    available = [
        sum((step < until[gpu] and held_app[gpu] >= 0) or not taken[gpu] >> step & 1 for gpu in range(problem.gpus))
        for step in range(problem.steps)
    ]
    held = [
        [gpu for gpu in range(problem.gpus - 1, -1, -1) if held_app[gpu] == app and until[gpu] > 0]
        for app in range(problem.apps)
    ]
    counts = _counts(problem, available, [len(cards) for cards in held])
    rows = [list(row) for app in range(problem.apps) for row in _split(app, counts[app])]
    rows += _keep_held(problem, rows, until, counts, held)
    for _, gpu, start, end in rows:
        if gpu >= 0:
            taken[gpu] |= _bits(start, end)
    best, missing = _place_segments(problem, rows, taken, lambda row: (row[2] - row[3], row[2]))
    if missing:
        other, fewer = _place_segments(problem, rows, taken, lambda row: (row[2], row[2] - row[3]))
        if fewer < missing:
            best = other
    return [(a, g, s, e) for a, g, s, e in best if g >= 0]


def _counts(problem: Problem, available: list[int], held: list[int]) -> list[list[int]]:
    order = sorted(range(problem.apps), key=lambda app: -problem.app_priority[app])
    left, demand = list(available), problem.app_demand.tolist()
    counts: list[list[int]] = [[] for _ in range(problem.apps)]
    for app in order:
        floor = int(problem.app_floor[app])
        counts[app] = [min(floor, want, max(0, rest)) for want, rest in zip(demand[app], left, strict=True)]
        left = [rest - got for rest, got in zip(left, counts[app], strict=True)]
    for app in order:
        left = [rest + got for rest, got in zip(left, counts[app], strict=True)]
        limit = [min(want, max(0, rest)) for want, rest in zip(demand[app], left, strict=True)]
        cap, first = int(problem.app_switch_max[app]), int(problem.app_switch_left[app])
        reach = [held[app] + first + cap * step for step in range(problem.steps)]
        counts[app] = [
            min(reach[t], *(limit[u] + cap * abs(t - u) for u in range(problem.steps))) for t in range(problem.steps)
        ]
        for step in range(problem.steps):
            counts[app][step] = max(counts[app][step], held[app] - first - cap * step)
        left = [rest - got for rest, got in zip(left, counts[app], strict=True)]
    return counts


def _split(app: int, counts: list[int]) -> list[tuple[int, int, int, int]]:
    """Last in, first out; rows in the order in which they open."""
    rows: list[list[int]] = []
    open_rows: list[int] = []
    for step, want in enumerate([*counts, 0]):
        while len(open_rows) < want:
            open_rows.append(len(rows))
            rows.append([app, -1, step, len(counts)])
        while len(open_rows) > want:
            rows[open_rows.pop()][3] = step
    return [(row[0], row[1], row[2], row[3]) for row in rows]


def _keep_held(
    problem: Problem, rows: list[list[int]], until: list[int], counts: list[list[int]], held: list[list[int]]
) -> list[list[int]]:
    extra: list[list[int]] = []
    for app in range(problem.apps):
        cards = sorted(held[app], key=lambda gpu: (-until[gpu], -gpu))
        gained: dict[int, int] = {}
        for row, gpu in zip([r for r in rows if r[0] == app and r[2] == 0], cards, strict=False):
            row[1] = gpu
            step = until[gpu]
            if step >= row[3]:
                continue
            change = abs(counts[app][step] - counts[app][step - 1]) + gained.get(step, 0)
            if change + 1 <= problem.app_switch_max[app]:
                gained[step] = gained.get(step, 0) + 1
                extra.append([app, -1, step, row[3]])
            row[3] = step
    return extra


def _place_segments(problem: Problem, rows: list[list[int]], taken: list[int], key) -> tuple[list[list[int]], int]:
    taken, placed, missing = list(taken), [list(row) for row in rows], 0
    for row in sorted(placed, key=key):
        if row[1] >= 0:
            continue
        cells = _bits(row[2], row[3])
        fitting = [gpu for gpu in range(problem.gpus) if not taken[gpu] & cells]
        if not fitting:
            missing += row[3] - row[2]
            continue
        row[1] = fitting[-1]
        taken[row[1]] |= cells
    return placed, missing


def _build(problem: Problem, guard: list[int], batch: list[int]) -> list[Place]:
    """Jobs by value density, then size, then arrival; each at its best option and earliest, tightest block."""
    options, pointers, jobs = problem.option_table.tolist(), problem.option_ptr.tolist(), problem.job_table.tolist()
    rows = [[r for r in range(pointers[j], pointers[j + 1]) if options[r][1] >= 0] for j in range(problem.jobs)]
    best = [max((options[r][4] for r in rows[j]), default=0) for j in range(problem.jobs)]
    size = [max((options[r][0] for r in rows[j]), default=0) for j in range(problem.jobs)]
    order = [j for j in range(problem.jobs) if best[j] > 0 and jobs[j][1] == 0]
    order.sort(key=lambda j: (-best[j], -size[j], jobs[j][2]))
    margin = _margin(problem, guard, batch, order, rows, best, options)
    weight_sum = problem.weight_sum.tolist()
    bonus = 0
    if options:
        density = sum(row[4] // len(options) for row in options)
        bonus = density * (weight_sum[problem.steps] // problem.steps) // 100 * FINISH_SHARE
    places = [(-1, -1, -1)] * problem.jobs
    usage = problem.cap_used.tolist()
    for job in order:
        caps = [cap for cap in problem.job_caps[job].tolist() if cap >= 0]
        found = None
        for row in rows[job]:
            gpus, _, steps, hold, density, earliest, data = options[row]
            full = sum(
                1 << step
                for step in range(problem.steps)
                if any(usage[cap][step] + gpus > problem.cap_gpus[cap] for cap in caps)
            )
            spot = _earliest(problem, guard, batch, gpus, steps, hold, earliest, full, data)
            if spot is None:
                continue
            start, first = spot
            weight = (weight_sum[min(start + steps, problem.steps)] - weight_sum[start]) * gpus
            gain = density * weight
            if gain > 0 and start + steps <= problem.steps:
                gain += bonus
            if found is None or gain - margin * weight > found[0]:
                found = (gain - margin * weight, start, first, row, gain)
        if found is not None and found[4] > 0:
            places[job] = found[1:4]
            for gpu in range(found[2], found[2] + options[found[3]][0]):
                batch[gpu] |= _bits(found[1], min(found[1] + options[found[3]][2], problem.steps))
            for cap in caps:
                for step in range(found[1], min(found[1] + options[found[3]][2], problem.steps)):
                    usage[cap][step] += options[found[3]][0]
    return _settled(problem, guard, batch, places, order)


def _margin(problem, guard, batch, order, rows, best, options) -> int:
    free = sum(problem.steps - (guard[gpu] | batch[gpu]).bit_count() for gpu in range(problem.gpus))
    for job in order:
        row = next(r for r in rows[job] if options[r][4] == best[job])
        free -= options[row][0] * min(options[row][2], problem.steps)
        if free < 0:
            return int(best[job])
    return 0


def _earliest(problem, guard, batch, gpus, steps, hold, earliest, full, data):
    """Earliest start that meets no `full` step; among equal ones the nearest, then the least idle time around it, then the lowest GPU."""
    k = gpus.bit_length() - 1
    blocks = problem.topology.block_first[problem.topology.block_ptr[k] : problem.topology.block_ptr[k + 1]].tolist()
    found = None
    for first in blocks:
        busy = held = 0
        for gpu in range(first, first + gpus):
            busy |= batch[gpu] | guard[gpu] | full
            held |= guard[gpu]
        start = earliest
        while start < problem.steps and (busy & _bits(start, start + steps) or held & _bits(start, start + hold)):
            start += 1
        if start >= problem.steps or (found is not None and start > found[0]):
            continue
        idle, end = 0, min(start + steps, problem.steps)
        for gpu in range(first, first + gpus):
            cells = batch[gpu] | guard[gpu]
            idle += _idle_around(problem, cells, start, end)
        spans, lacks = _farness(problem, first, gpus, data)
        if found is None or (start, spans, lacks, idle) < found[:4]:
            found = (start, spans, lacks, idle, first)
    return None if found is None else (found[0], found[4])


def _idle_around(problem: Problem, cells: int, start: int, end: int) -> int:
    """Free steps of one GPU directly before `start` and from `end` on."""
    before, after = start - (cells & _bits(0, start)).bit_length(), cells >> end
    return before + (min((after & -after).bit_length() - 1, problem.steps - end) if after else problem.steps - end)


def _farness(problem: Problem, first: int, gpus: int, data: int) -> tuple[int, int]:
    """Domains beyond the first that a block spans, and what its nodes lack of the job's data."""
    last = first + gpus - 1
    spans = int(problem.domains[last] - problem.domains[first]) if len(problem.domains) else 0
    lacks = int(problem.lacking[data, last] - (problem.lacking[data, first - 1] if first else 0)) if data >= 0 else 0
    return spans, lacks


def _settled(
    problem: Problem, guard: list[int], batch: list[int], places: list[Place], order: list[int]
) -> list[Place]:
    """Those that start now, the largest first, each where it takes least of what is free as long as it runs, if that is as near and has
    as little idle time around it."""
    options, topology = problem.option_table.tolist(), problem.topology
    starting = sorted((job for job in order if places[job][0] == 0), key=lambda job: -options[places[job][2]][0])
    for job in starting[:SETTLED_MAX]:
        _, now, row = places[job]
        gpus, k, steps, hold, _, _, data = options[row]
        runs, holds = _bits(0, min(steps, problem.steps)), _bits(0, min(hold, problem.steps))
        for gpu in range(now, now + gpus):
            batch[gpu] &= ~runs
        free = [not (guard[gpu] | batch[gpu]) & runs for gpu in range(problem.gpus)]
        found = []
        for first in topology.block_first[topology.block_ptr[k] : topology.block_ptr[k + 1]].tolist():
            block = range(first, first + gpus)
            if any(not free[gpu] or guard[gpu] & holds for gpu in block):
                continue
            cells = [guard[gpu] | batch[gpu] for gpu in block]
            idle = sum(_idle_around(problem, mine, 0, min(steps, problem.steps)) for mine in cells)
            far = _farness(problem, first, gpus, data)
            found.append((far, idle, _taken(problem, free, block), first != now, first))
        best = min(found)[-1]
        places[job] = (0, best, row)
        for gpu in range(best, best + gpus):
            batch[gpu] |= runs
    return places


def _taken(problem: Problem, free: list[bool], block: range) -> tuple[int, int]:
    """Blocks of the sizes in demand that a place takes away, and the GPUs in them."""
    after = [is_free and gpu not in block for gpu, is_free in enumerate(free)]
    lost = [had - has for had, has in zip(_blocks_in(problem, free), _blocks_in(problem, after), strict=True)]
    weighted = [times * count for times, count in zip(_size_demand(problem), lost, strict=True)]
    return sum(weighted), sum(count << k for k, count in enumerate(weighted))


def _size_demand(problem: Problem) -> list[int]:
    """Waiting jobs by each size they offer, running ones by theirs, and one of each size that fits inside a node."""
    found = [int(1 << k <= max(problem.topology.node_sizes)) for k in range(problem.topology.classes)]
    for job in range(problem.jobs):
        for row in range(problem.option_ptr[job], problem.option_ptr[job + 1]):
            if problem.job_refusal[job] == 0 and problem.option_class[row] >= 0:
                found[problem.option_class[row]] += 1
    for gpus in problem.running_gpus.tolist():
        found[gpus.bit_length() - 1] += 1
    return found


def _blocks_in(problem: Problem, free: list[bool]) -> list[int]:
    borders = problem.topology.node_first.tolist()
    return block_counts([free[begin:end] for begin, end in pairwise(borders)])

"""The optimum of tiny boards by trying everything: all places of all jobs, all card sets of one application."""

from __future__ import annotations

from itertools import combinations

from services.allocator.core.problem import Problem


def brute_force(problem: Problem) -> int:
    """The best fixed-point value any legal plan of the board can have."""
    usage = [[0] * problem.steps for _ in problem.cap_ids]
    return _place(problem, 0, [set() for _ in range(problem.steps)], 0, usage)


def _place(problem: Problem, job: int, used: list[set[int]], gain: int, usage: list[list[int]]) -> int:
    if job == problem.jobs:
        return gain - _least_penalty(problem, used)
    best = _place(problem, job + 1, used, gain, usage)
    for row in range(int(problem.option_ptr[job]), int(problem.option_ptr[job + 1])):
        size, duration = int(problem.option_gpus[row]), int(problem.option_steps[row])
        for start in range(int(problem.job_earliest[job]), problem.steps):
            steps = range(start, min(start + duration, problem.steps))
            weight = sum(int(problem.weight[step]) for step in steps)
            for first in range(problem.gpus - size + 1):
                cells = set(range(first, first + size))
                if not _legal(problem, first, size) or any(cells & used[step] for step in steps):
                    continue
                if not _within_caps(problem, job, size, steps, usage):
                    continue
                _count(problem, job, size, steps, usage)
                for step in steps:
                    used[step] |= cells
                more = int(problem.option_density[row]) * size * weight
                best = max(best, _place(problem, job + 1, used, gain + more, usage))
                _count(problem, job, -size, steps, usage)
                for step in steps:
                    used[step] -= cells
    return best


def _within_caps(problem: Problem, job: int, size: int, steps: range, usage: list[list[int]]) -> bool:
    caps = [cap for cap in problem.job_caps[job].tolist() if cap >= 0]
    return all(usage[cap][step] + size <= problem.cap_gpus[cap] for cap in caps for step in steps)


def _count(problem: Problem, job: int, size: int, steps: range, usage: list[list[int]]) -> None:
    for cap in problem.job_caps[job].tolist():
        for step in steps if cap >= 0 else ():
            usage[cap][step] += size


def _legal(problem: Problem, first: int, size: int) -> bool:
    """A block inside one node, or made of whole nodes."""
    nodes, at = [], 0
    for node_size in problem.topology.node_sizes:
        nodes.append(set(range(at, at + node_size)))
        at += node_size
    block = set(range(first, first + size))
    touched = [node for node in nodes if node & block]
    return len(touched) == 1 or all(node <= block for node in touched)


def _least_penalty(problem: Problem, used: list[set[int]]) -> int:
    """The least penalty of the (single) application around the jobs' cells: dynamic programming over its card sets."""
    if problem.apps == 0:
        return 0
    gpus = range(problem.gpus)
    held = frozenset(gpu for gpu in gpus if problem.held_app[gpu] == 0)
    costs = {held: 0}
    for step in range(problem.steps):
        cap = int(problem.app_switch_left[0] if step == 0 else problem.app_switch_max[0])
        demand = int(problem.app_demand[0, step])
        limit = max(demand, len(held) - int(problem.app_switch_left[0]) - step * int(problem.app_switch_max[0]))
        sets = [frozenset(c) for n in range(limit + 1) for c in combinations(gpus, n) if not set(c) & used[step]]
        after: dict[frozenset[int], int] = {}
        for cards in sets:
            reach = [cost for before, cost in costs.items() if len(before ^ cards) <= cap]
            if reach:
                after[cards] = min(reach) + int(problem.app_penalty[0]) * max(0, demand - len(cards))
        costs = after
    return min(costs.values()) if costs else 1 << 62

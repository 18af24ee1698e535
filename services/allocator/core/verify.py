"""Is a plan legal? An independent check, cheap enough to run on every decision in production.

Shares no code with the planner: it paints plain cell matrices and compares them with the facts. It returns what it
found; what to do about it is the caller's business. `verify_plan` checks a whole plan, `verify_commitment` only what
a decision carries out now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.allocator.core.plan import Plan
from services.allocator.core.problem import Problem

VIOLATIONS_MAX = 20  # enough to diagnose; a broken plan can have millions
NOBODY = -1


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: `rule` is a stable word, `detail` names jobs, GPUs and steps."""

    rule: str
    detail: str


@dataclass(frozen=True, slots=True)
class Start:
    """A job that a decision starts now on this block."""

    job: int  # index into the problem's queued jobs
    first_gpu: int
    gpus: int


def verify_plan(problem: Problem, plan: Plan) -> list[Violation]:
    """All broken rules of the plan, at most VIOLATIONS_MAX; empty for a legal plan."""
    found: list[Violation] = []
    shapes_ok = _check_rows(problem, plan, found)
    if shapes_ok:
        _check_jobs(problem, plan, found)
        owner = _owners(problem, plan, found)
        _check_cells(problem, plan, owner, found)
        _check_caps(problem, plan, found)
        _check_promises(problem, plan, owner, found)
        _check_counts(problem, owner, found)
        _check_switches(problem, owner, found)
    return found[:VIOLATIONS_MAX]


def _check_rows(problem: Problem, plan: Plan, found: list[Violation]) -> bool:
    """Array shapes and index ranges, so that the other checks can't trip over them."""
    jobs, before = problem.jobs, len(found)
    if not len(plan.start) == len(plan.first_gpu) == len(plan.option) == jobs:
        found.append(Violation("shape", f"plan arrays don't have one entry for each of {jobs} jobs"))
        return False
    for job in np.flatnonzero(plan.start >= 0).tolist():
        low, high = int(problem.option_ptr[job]), int(problem.option_ptr[job + 1])
        option, first = int(plan.option[job]), int(plan.first_gpu[job])
        if not low <= option < high:
            found.append(Violation("size_not_offered", f"job {problem.job_ids[job]} uses an option it doesn't offer"))
        elif first < 0 or first + int(problem.option_gpus[option]) > problem.gpus:
            found.append(Violation("outside_pool", f"job {problem.job_ids[job]} at GPU {first} leaves the pool"))
    for app, gpu, start, end in plan.segments.tolist():
        if not (0 <= app < problem.apps and 0 <= gpu < problem.gpus and 0 <= start < end <= problem.steps):
            found.append(Violation("outside_pool", f"segment {(app, gpu, start, end)} leaves pool or window"))
    return len(found) == before


def _check_jobs(problem: Problem, plan: Plan, found: list[Violation]) -> None:
    """Starts inside the window and not before the earliest step, refused jobs out, blocks of legal shape."""
    for job in np.flatnonzero(plan.start >= 0).tolist():
        name, start = problem.job_ids[job], int(plan.start[job])
        if problem.job_refusal[job] != 0:
            found.append(Violation("refused_job", f"job {name} is refused but placed"))
        if start < problem.job_earliest[job] or start >= problem.steps:
            found.append(Violation("start_step", f"job {name} starts at step {start}"))
        size = int(problem.option_gpus[plan.option[job]])
        reason = _bad_block(problem, int(plan.first_gpu[job]), size)
        if reason:
            found.append(Violation("block_shape", f"job {name}: {reason}"))


def _bad_block(problem: Problem, first: int, size: int) -> str:
    """Why `size` GPUs from `first` are no legal block, or an empty string."""
    if size < 1 or bin(size).count("1") != 1:
        return f"{size} is not a power of two"
    nodes = problem.topology.gpu_node
    left, right = int(nodes[first]), int(nodes[first + size - 1])
    if left == right:
        return ""
    starts_node = first == 0 or nodes[first - 1] != left
    ends_node = first + size == problem.gpus or nodes[first + size] != right
    return "" if starts_node and ends_node else f"GPUs {first}..{first + size - 1} straddle nodes {left}..{right}"


def _owners(problem: Problem, plan: Plan, found: list[Violation]) -> NDArray[np.int32]:
    """Application per (step + 1, GPU), row 0 = what was held at step -1; two applications on one cell are reported."""
    owner = np.full((problem.steps + 1, problem.gpus), NOBODY, np.int32)
    owner[0] = problem.held_app
    for app, gpu, start, end in plan.segments.tolist():
        column = owner[start + 1 : end + 1, gpu]
        if (column != NOBODY).any():
            found.append(Violation("two_on_one_gpu", f"two applications on GPU {gpu} in steps {start}..{end - 1}"))
        column[:] = app
    return owner


def _paint(shape: tuple[int, int], rows: NDArray[np.int64]) -> NDArray[np.int32]:
    """How many of the (first GPU, size, start, end) rectangles cover each (step, GPU) cell."""
    steps, gpus = shape
    corner = np.zeros((steps + 1, gpus + 1), np.int32)
    if len(rows):
        first, last = rows[:, 0], rows[:, 0] + rows[:, 1]
        start, end = np.clip(rows[:, 2], 0, steps), np.clip(rows[:, 3], 0, steps)
        np.add.at(corner, (start, first), 1)
        np.add.at(corner, (end, last), 1)
        np.subtract.at(corner, (start, last), 1)
        np.subtract.at(corner, (end, first), 1)
    return corner.cumsum(axis=0).cumsum(axis=1)[:steps, :gpus]


def _job_rows(problem: Problem, plan: Plan, hold: bool) -> NDArray[np.int64]:
    """Rectangles of planned jobs: expected duration, or the time promised to others if `hold`."""
    placed = np.flatnonzero(plan.start >= 0)
    chosen, start = plan.option[placed], plan.start[placed]
    length = (problem.option_hold if hold else problem.option_steps)[chosen]
    return np.stack([plan.first_gpu[placed], problem.option_gpus[chosen], start, start + length], axis=1)


def _running_rows(problem: Problem, hold: bool) -> NDArray[np.int64]:
    length = problem.running_hold if hold else problem.running_steps
    return np.stack([problem.running_first, problem.running_gpus, np.zeros_like(length), length], axis=1)


def _report_cells(bad: NDArray[np.bool_], rule: str, what: str, found: list[Violation]) -> None:
    if bad.any():
        step, gpu = (int(i) for i in np.argwhere(bad)[0])
        found.append(Violation(rule, f"{what} on GPU {gpu} in step {step} ({int(bad.sum())} cells)"))


def _check_cells(problem: Problem, plan: Plan, owner: NDArray[np.int32], found: list[Violation]) -> None:
    """At most one job or application on a GPU in a step; running jobs keep theirs."""
    shape = (problem.steps, problem.gpus)
    rows = np.concatenate((_running_rows(problem, False), _job_rows(problem, plan, False)))
    batch = _paint(shape, rows)
    _report_cells(batch + (owner[1:] != NOBODY) > 1, "two_on_one_gpu", "more than one job or application", found)


def _check_promises(problem: Problem, plan: Plan, owner: NDArray[np.int32], found: list[Violation]) -> None:
    """Nothing new on GPUs that aren't usable or reserved, and holds end before applications need the GPU."""
    shape = (problem.steps, problem.gpus)
    planned_hold = _paint(shape, _job_rows(problem, plan, True)) > 0
    running_hold = _paint(shape, _running_rows(problem, True)) > 0
    reserved = _paint(shape, problem.reservations) > 0
    closed = reserved | (problem.gpu_state != 0)[None, :]
    _report_cells(planned_hold & closed, "closed_gpu", "a planned job meets a reserved or unusable GPU", found)
    used = owner[1:] != NOBODY
    kept = np.logical_and.accumulate(owner[1:] == owner[0][None, :], axis=0) & used
    forbidden = reserved | (problem.gpu_state == 2)[None, :] | ((problem.gpu_state == 1)[None, :] & ~kept)
    _report_cells(used & forbidden, "closed_gpu", "an application meets a reserved or unusable GPU", found)
    _report_cells(used & planned_hold, "promise", "a planned job may still hold what an application needs", found)
    _report_cells(used & running_hold, "promise", "a running job may still hold what an application needs", found)


def _check_caps(problem: Problem, plan: Plan, found: list[Violation]) -> None:
    """No start takes a cap's jobs above it; running jobs may be above it already (a cap was lowered)."""
    for cap, name in enumerate(problem.cap_ids):
        used, planned = np.zeros(problem.steps, np.int64), np.zeros(problem.steps, np.int64)
        for row in np.flatnonzero((problem.running_caps == cap).any(axis=1)).tolist():
            used[: problem.running_steps[row]] += problem.running_gpus[row]
        for job in np.flatnonzero((problem.job_caps == cap).any(axis=1) & (plan.start >= 0)).tolist():
            option, start = int(plan.option[job]), int(plan.start[job])
            planned[start : start + int(problem.option_steps[option])] += problem.option_gpus[option]
        over = np.flatnonzero((planned > 0) & (used + planned > problem.cap_gpus[cap]))
        if len(over):
            at = int(over[0])
            found.append(
                Violation("cap", f"{name} uses {used[at] + planned[at]} of {problem.cap_gpus[cap]} GPUs in step {at}")
            )


def _check_counts(problem: Problem, owner: NDArray[np.int32], found: list[Violation]) -> None:
    """No application gets more than its demand, except what it held and the cap doesn't let it give back yet."""
    for app, name in enumerate(problem.app_ids):
        held = int((owner[0] == app).sum())
        counts = (owner[1:] == app).sum(axis=1)
        forced = held - problem.app_switch_left[app] - problem.app_switch_max[app] * np.arange(problem.steps)
        over = np.flatnonzero(counts > np.maximum(problem.app_demand[app], forced))
        if len(over):
            found.append(Violation("over_demand", f"application {name} exceeds its demand in step {int(over[0])}"))


def _check_switches(problem: Problem, owner: NDArray[np.int32], found: list[Violation]) -> None:
    """GPUs gained plus lost between consecutive steps stay under the cap; losses nobody could avoid don't count."""
    before, after = owner[:-1], owner[1:]
    step, gpu = np.nonzero(before != after)
    lost, gained = before[step, gpu], after[step, gpu]
    shape = (problem.steps, problem.gpus)
    blocked = (_paint(shape, problem.reservations) > 0) | (problem.gpu_state == 2)[None, :]
    blocked |= _paint(shape, _running_rows(problem, True)) > 0
    counts = np.zeros((problem.apps, problem.steps), np.int64)
    chosen_loss = (lost != NOBODY) & ~blocked[step, gpu]
    np.add.at(counts, (lost[chosen_loss], step[chosen_loss]), 1)
    gains = gained != NOBODY
    np.add.at(counts, (gained[gains], step[gains]), 1)
    caps = np.repeat(problem.app_switch_max[:, None], problem.steps, axis=1)
    caps[:, 0] = problem.app_switch_left
    for app, at in np.argwhere(counts > caps).tolist():
        found.append(
            Violation("switch_cap", f"application {problem.app_ids[app]} switches {counts[app, at]} GPUs in step {at}")
        )


def verify_commitment(
    problem: Problem, starts: Sequence[Start], app_gpus: Mapping[int, Sequence[int]]
) -> list[Violation]:
    """Check what a decision carries out now against the facts of the problem: starts, and GPUs per application.

    Applications not in `app_gpus` keep what they hold.
    """
    found: list[Violation] = []
    user: dict[int, str] = {}

    def occupy(gpu: int, name: str) -> None:
        if gpu in user:
            found.append(Violation("two_on_one_gpu", f"GPU {gpu} goes to {user[gpu]} and {name}"))
        user[gpu] = name

    for name, first, size in zip(problem.running_ids, problem.running_first, problem.running_gpus, strict=True):
        for gpu in range(int(first), int(first + size)):
            occupy(gpu, f"running {name}")
    for start in starts:
        name = problem.job_ids[start.job]
        offered = problem.option_gpus[problem.option_ptr[start.job] : problem.option_ptr[start.job + 1]]
        if start.gpus not in offered:
            found.append(Violation("size_not_offered", f"job {name} doesn't offer {start.gpus} GPUs"))
        if start.first_gpu < 0 or start.first_gpu + start.gpus > problem.gpus:
            found.append(Violation("outside_pool", f"job {name} leaves the pool"))
            continue
        if problem.job_refusal[start.job] != 0 or problem.job_earliest[start.job] > 0:
            found.append(Violation("start_step", f"job {name} may not start now"))
        reason = _bad_block(problem, start.first_gpu, start.gpus)
        if reason:
            found.append(Violation("block_shape", f"job {name}: {reason}"))
        for gpu in range(start.first_gpu, start.first_gpu + start.gpus):
            occupy(gpu, f"job {name}")
            if problem.gpu_state[gpu] != 0 or _reserved_now(problem, gpu):
                found.append(Violation("closed_gpu", f"job {name} meets closed GPU {gpu}"))
    for app, gpus in app_gpus.items():
        _check_app_now(problem, app, gpus, found)
        for gpu in gpus:
            if 0 <= gpu < problem.gpus:
                occupy(gpu, f"application {problem.app_ids[app]}")
    for gpu in np.flatnonzero(problem.held_app >= 0).tolist():
        app = int(problem.held_app[gpu])
        if app not in app_gpus and problem.gpu_state[gpu] != 2:
            occupy(gpu, f"application {problem.app_ids[app]}")
    return found[:VIOLATIONS_MAX]


def _reserved_now(problem: Problem, gpu: int) -> bool:
    return any(
        first <= gpu < first + size and start <= 0 < end for first, size, start, end in problem.reservations.tolist()
    )


def _check_app_now(problem: Problem, app: int, gpus: Sequence[int], found: list[Violation]) -> None:
    """One application's change at this step: demand, cap, and no new GPU that is closed."""
    name = problem.app_ids[app]
    held = set(np.flatnonzero(problem.held_app == app).tolist())
    wanted = set(gpus)
    if any(not 0 <= gpu < problem.gpus for gpu in gpus):
        found.append(Violation("outside_pool", f"application {name} leaves the pool"))
        return
    ran = {
        g for f, n in zip(problem.running_first, problem.running_gpus, strict=True) for g in range(int(f), int(f + n))
    }
    forced = {gpu for gpu in held if problem.gpu_state[gpu] == 2 or gpu in ran or _reserved_now(problem, gpu)}
    switches = len(wanted - held) + len(held - wanted - forced)
    if switches > problem.app_switch_left[app]:
        found.append(Violation("switch_cap", f"application {name} switches {switches} GPUs"))
    if len(wanted) > max(int(problem.app_demand[app, 0]), len(held) - int(problem.app_switch_left[app])):
        found.append(Violation("over_demand", f"application {name} gets {len(wanted)} GPUs"))
    for gpu in sorted(wanted):
        state = problem.gpu_state[gpu]
        if state == 2 or (state == 1 and gpu not in held) or _reserved_now(problem, gpu):
            found.append(Violation("closed_gpu", f"application {name} meets closed GPU {gpu}"))

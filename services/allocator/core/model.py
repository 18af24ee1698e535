"""The formal model as data: integer variables, linear rows, an objective in int64. No solver in here.

Two models of one problem. `counts_model` forgets which card is which: every legal plan is a solution of it, so its
optimum bounds every plan from above, and the bound is close. `cards_model` (see `model_cards.py`) is the problem itself:
a solution of it is a legal plan. Formulas: docs/model.md. Read `model_cells.py` for what is open when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.allocator.core.model_cells import OpenCells, class_capacity, class_weights, open_cells
from services.allocator.core.problem import Problem
from services.allocator.core.value import running_gain

OBJECTIVE_BITS = 46  # a solver's floating point keeps 53; the rest is for its own sums
UNLIMITED = 1 << 40  # a row side that doesn't bind

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Row:
    """low <= sum of coefficient × variable <= high."""

    variables: Ints
    coefficients: Ints
    low: int
    high: int


@dataclass(slots=True)
class IntegerModel:
    """Variables 0..n-1 with bounds and objective coefficients, and rows. To be maximised.

    One objective unit is 2**shift of the problem's fixed point, gains rounded up and penalties down: `bound_of` of a
    solver's bound never lies below the value of a legal plan.
    """

    shift: int
    constant: int  # fixed point: what running jobs earn less what serving nobody costs
    upper: list[int] = field(default_factory=list)  # every variable's lower bound is 0
    gain: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    exclusive: list[Ints] = field(default_factory=list)  # at most one of these 0/1 variables is 1

    def add(self, upper: int, gain: int = 0) -> int:
        """A new variable; `gain` in the problem's fixed point."""
        self.upper.append(upper)
        self.gain.append(-(-gain >> self.shift))
        return len(self.upper) - 1

    def row(self, variables: Sequence[int] | Ints, coefficients: Sequence[int] | Ints, low: int, high: int) -> None:
        if len(variables):
            self.rows.append(Row(np.asarray(variables, np.int64), np.asarray(coefficients, np.int64), low, high))

    def at_most_one(self, variables: Ints) -> None:
        if len(variables) > 1:
            self.exclusive.append(variables)

    def bound_of(self, objective: int) -> int:
        """A bound in objective units as a bound in the problem's fixed point."""
        return (objective << self.shift) + self.constant


@dataclass(frozen=True, slots=True)
class Candidates:
    """Ways to run queued jobs: parallel arrays of job, option row, start step and gain, grouped by job."""

    job: Ints
    option: Ints
    start: Ints
    gain: Ints


@dataclass(frozen=True, slots=True)
class AppVariables:
    """Variables per application and step: demand that is met, and GPUs above demand that the cap doesn't let go yet."""

    met: Ints
    excess: Ints


@dataclass(frozen=True, slots=True)
class CountsModel:
    """The relaxation: candidate i is variable i."""

    model: IntegerModel
    candidates: Candidates
    apps: AppVariables


def empty_model(problem: Problem) -> IntegerModel:
    """A model of this problem without variables."""
    most = problem.gpus * int(problem.weight.sum()) * int(problem.option_density.max(initial=0))
    most += int(problem.app_penalty @ problem.app_demand.sum(axis=1)) if problem.apps else 0
    constant = running_gain(problem)
    if problem.apps:
        constant -= int(problem.app_penalty @ problem.app_demand.sum(axis=1))
    return IntegerModel(shift=max(0, most.bit_length() - OBJECTIVE_BITS), constant=constant)


def candidates_of(problem: Problem, kept: Bools | None = None) -> Candidates:
    """Every (job, option, start) inside the window that earns something; `kept` masks that full list."""
    jobs, options, starts = [], [], []
    for job in range(problem.jobs):
        if problem.job_refusal[job] != 0:
            continue
        steps = np.arange(int(problem.job_earliest[job]), problem.steps, dtype=np.int64)
        for row in range(int(problem.option_ptr[job]), int(problem.option_ptr[job + 1])):
            if problem.option_class[row] >= 0 and problem.option_density[row] > 0:
                jobs.append(np.full(len(steps), job, np.int64))
                options.append(np.full(len(steps), row, np.int64))
                starts.append(steps)
    chosen, option, start = (_joined(parts) for parts in (jobs, options, starts))
    if kept is not None:
        chosen, option, start = chosen[kept], option[kept], start[kept]
    ends = np.minimum(start + problem.option_steps[option], problem.steps)
    weights = problem.weight_sum[ends] - problem.weight_sum[start]
    return Candidates(chosen, option, start, problem.option_density[option] * problem.option_gpus[option] * weights)


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def counts_model(problem: Problem, floors: Ints) -> CountsModel:
    """The relaxation. `floors`: GPUs per application and step that no plan may go below."""
    model, cells, candidates = empty_model(problem), open_cells(problem), candidates_of(problem)
    for gain in candidates.gain.tolist():
        model.add(1, gain)
    one_way_per_job(model, candidates.job)
    apps = app_variables(problem, model, floors)
    _switch_rows(problem, model, apps, cells)
    ends = candidates.start + problem.option_steps[candidates.option]
    sizes = problem.option_gpus[candidates.option]
    by_class = [class_weights(problem, level)[candidates.option] for level in range(problem.topology.classes)]
    for step in range(problem.steps):
        running = np.flatnonzero((candidates.start <= step) & (step < ends))
        batch_open, app_open = cells.batch[step], cells.app[step]
        users = np.concatenate((apps.met[:, step], apps.excess[:, step])) if problem.apps else np.zeros(0, np.int64)
        both = np.concatenate((running, users))
        weights = np.concatenate((sizes[running], np.ones(len(users), np.int64)))
        model.row(both, weights, 0, int((batch_open | app_open).sum()))
        model.row(users, np.ones(len(users), np.int64), 0, int(app_open.sum()))
        free = int(batch_open.sum())
        for level, weight in enumerate(by_class):
            capacity = class_capacity(problem, batch_open, level)
            if level == 0 or capacity << level < free:
                counted = running[weight[running] > 0]
                model.row(counted, weight[counted], 0, capacity)
    cap_rows(problem, model, candidates.job, candidates.option, candidates.start)
    return CountsModel(model, candidates, apps)


def cap_rows(problem: Problem, model: IntegerModel, job: Ints, option: Ints, start: Ints) -> None:
    """GPUs of each cap's queued jobs stay under what its running jobs leave, in every step; entry i is variable i."""
    ends, sizes = start + problem.option_steps[option], problem.option_gpus[option]
    for cap, gpus in enumerate(problem.cap_gpus.tolist()):
        mine = (problem.job_caps[job] == cap).any(axis=1)
        for step in range(problem.steps):
            running = np.flatnonzero(mine & (start <= step) & (step < ends))
            model.row(running, sizes[running], 0, max(0, gpus - int(problem.cap_used[cap, step])))


def one_way_per_job(model: IntegerModel, job: Ints) -> None:
    """A job runs in at most one way; `job` per variable, grouped."""
    borders = np.flatnonzero(np.diff(job)) + 1
    for group in np.split(np.arange(len(job)), borders):
        model.at_most_one(group)


def app_variables(problem: Problem, model: IntegerModel, floors: Ints) -> AppVariables:
    """Met demand earns its penalty back; excess exists only where the cap forbids to give back faster."""
    met = np.zeros((problem.apps, problem.steps), np.int64)
    excess = np.zeros((problem.apps, problem.steps), np.int64)
    for app in range(problem.apps):
        held = int((problem.held_app == app).sum())
        for step in range(problem.steps):
            demand = int(problem.app_demand[app, step])
            forced = held - int(problem.app_switch_left[app]) - step * int(problem.app_switch_max[app])
            met[app, step] = model.add(min(demand, problem.gpus), int(problem.app_penalty[app]))
            excess[app, step] = model.add(max(0, forced - demand))
            model.row(
                [int(met[app, step]), int(excess[app, step])], [1, 1], int(floors[app, step]), max(demand, forced)
            )
    return AppVariables(met, excess)


def _switch_rows(problem: Problem, model: IntegerModel, apps: AppVariables, cells: OpenCells) -> None:
    """Counts change at most by the cap; GPUs that close under an application don't count as given back."""
    for app in range(problem.apps):
        mine = problem.held_app == app
        for step in range(problem.steps):
            now = [int(apps.met[app, step]), int(apps.excess[app, step])]
            if step == 0:
                left, held = int(problem.app_switch_left[app]), int(mine.sum())
                lost = int((mine & cells.blocked[0]).sum())
                model.row(now, [1, 1], held - left - lost, held + left)
                continue
            cap = int(problem.app_switch_max[app])
            closing = int((cells.blocked[step] & ~cells.blocked[step - 1]).sum())
            before = [int(apps.met[app, step - 1]), int(apps.excess[app, step - 1])]
            model.row([*now, *before], [1, 1, -1, -1], -cap - closing, cap)

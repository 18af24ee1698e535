"""An `IntegerModel` handed to OR-tools CP-SAT: translation, limits, and what came back. Knows nothing of grids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from services.allocator.core.model import UNLIMITED, IntegerModel

WALL_S_PER_DETERMINISTIC_S = 60.0  # only a net: the deterministic limit ends the run long before


@dataclass(frozen=True, slots=True)
class Limit:
    """Seconds of wall time, or of the solver's own deterministic time (about as long, the same everywhere)."""

    seconds: float
    deterministic: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """`values` None: no solution found. `bound`: proven, in objective units, None if the limit came before any."""

    values: NDArray[np.int64] | None
    bound: int | None
    optimal: bool
    infeasible: bool
    deterministic_s: float


def solve(model: IntegerModel, limit: Limit, workers: int, hint: Sequence[int] | None = None) -> Outcome:
    """Maximise within the limit."""
    program, variables = _translated(model)
    if hint is not None:
        for variable, value in zip(variables, hint, strict=True):
            program.add_hint(variable, value)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 0
    solver.parameters.cp_model_probing_level = 0  # probing and symmetry cost more than a neighbourhood's whole search
    solver.parameters.symmetry_level = 0
    if limit.deterministic:
        solver.parameters.interleave_search = workers > 1  # workers take turns at fixed points
        solver.parameters.max_deterministic_time = limit.seconds
        solver.parameters.max_time_in_seconds = WALL_S_PER_DETERMINISTIC_S * limit.seconds
    else:
        solver.parameters.max_time_in_seconds = limit.seconds
    status = solver.solve(program)
    solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    values = np.array([solver.value(v) for v in variables], dtype=np.int64) if solved else None
    # stopped before it knew anything, the solver reports 0 as its bound: only one at or above its own solution counts
    known = solved and solver.best_objective_bound >= solver.objective_value
    bound = int(np.floor(solver.best_objective_bound + 0.5)) if known else None
    return Outcome(
        values,
        bound,
        status == cp_model.OPTIMAL,
        status == cp_model.INFEASIBLE,
        solver.response_proto.deterministic_time,
    )


def _translated(model: IntegerModel) -> tuple[cp_model.CpModel, list[cp_model.IntVar]]:
    program = cp_model.CpModel()
    variables = [program.new_bool_var("") if upper == 1 else program.new_int_var(0, upper, "") for upper in model.upper]
    for exclusive in model.exclusive:
        program.add_at_most_one([variables[i] for i in exclusive.tolist()])
    for row in model.rows:
        total = cp_model.LinearExpr.weighted_sum(
            [variables[i] for i in row.variables.tolist()], row.coefficients.tolist()
        )
        low = row.low if row.low > -UNLIMITED else cp_model.INT32_MIN
        high = row.high if row.high < UNLIMITED else cp_model.INT32_MAX
        program.add_linear_constraint(total, low, high)
    program.maximize(cp_model.LinearExpr.weighted_sum(variables, model.gain))
    return program, variables

"""Prices of a model's rows from its linear relaxation (OR-tools GLOP). Only a suggestion: see core `model_bound`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from ortools.linear_solver import pywraplp

from services.allocator.core.model import UNLIMITED, IntegerModel


def row_prices(model: IntegerModel, seconds: float) -> NDArray[np.float64] | None:
    """Dual values per row of `model.rows`; None where the relaxation isn't solved in time."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    if solver is None:
        return None
    solver.SetTimeLimit(max(1, int(seconds * 1000)))
    variables = [solver.NumVar(0.0, float(upper), "") for upper in model.upper]
    objective = solver.Objective()
    for variable, gain in zip(variables, model.gain, strict=True):
        objective.SetCoefficient(variable, float(gain))
    objective.SetMaximization()
    rows = []
    for row in model.rows:
        low = -solver.infinity() if row.low <= -UNLIMITED else float(row.low)
        high = solver.infinity() if row.high >= UNLIMITED else float(row.high)
        made = solver.Constraint(low, high)
        for index, coefficient in zip(row.variables.tolist(), row.coefficients.tolist(), strict=True):
            made.SetCoefficient(variables[index], float(coefficient))
        rows.append(made)
    for group in model.exclusive:
        made = solver.Constraint(-solver.infinity(), 1.0)
        for index in group.tolist():
            made.SetCoefficient(variables[index], 1.0)
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return None
    return np.array([made.dual_value() for made in rows], dtype=np.float64)

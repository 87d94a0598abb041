"""CP-SAT (through ortools) on a linear model scaled to whole numbers.

Coefficients are read as short decimals (0.1 as one tenth), and each row is multiplied by its least common
denominator. A continuous variable becomes a multiple of 1/`grid`. The grid is *exact* (some optimum lies on
it) if every row has at most one continuous variable, or two with opposite coefficients. With the other
variables fixed, such rows form a network matrix. Network matrices are totally unimodular, so that vertices
are integral if the right-hand sides are (Nemhauser and Wolsey, *Integer and Combinatorial Optimization*,
III.1.2). Rows such as ``finish >= start + 3 - 100 * (1 - choice)`` are of this kind.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from taccl._internal.arrays import distinct
from taccl.solvers.child import Control
from taccl.solvers.model import RELATIVE_GAP, LinearModel

_COARSE_GRID = 10**4
_MAX_GRID = 10**6
_MAX_DENOMINATOR = 10**9
_MAX_SUM = 2**62
_SLACK = Fraction(1, 10**9)  # relative slack of rows, so that 0.1 + 0.2 <= 0.3 holds

LIBRARIES = ("ortools.sat.python.cp_model",)

_INT64 = 2**63 - 1
_STOPPED = "CP-SAT stopped: time limit reached or interrupted"


class NotScalableError(ValueError):
    """Raised if a model does not fit 64-bit integers."""


@dataclass(frozen=True, slots=True)
class WholeModel:
    """Integer program that minimises ``cost @ y``; variable v of the linear model is ``y[v] / step[v]``.

    - `cost`: Objective times `cost_scale`.
    - `rows`: List of (variables, coefficients, lower, upper); None for an infinite bound.
    - `step`: 1 for integer variables, `grid` for continuous ones.
    - `exact`: True if an optimum of the linear model lies on the grid.
    """

    cost: list[int]
    cost_scale: int
    lower: list[int]
    upper: list[int]
    rows: list[tuple[list[int], list[int], int | None, int | None]]
    step: list[int]
    grid: int
    exact: bool


def to_whole_numbers(model: LinearModel) -> WholeModel:
    """Scale a linear model to whole numbers.

    Raises `NotScalableError` if a number has too many digits, or the sum of a row may exceed 2**62.
    """
    grid, exact = _grid(model)
    step = np.where(model.integer, 1, grid).tolist()
    bounds = zip(model.lower.tolist(), model.upper.tolist(), step, strict=True)
    reach = [(_held(lower, unit, -1), _held(upper, unit, 1)) for lower, upper, unit in bounds]
    largest = [max(map(abs, ends)) for ends in reach]

    def whole(factors: list[float], variables: Iterable[int], what: str) -> tuple[list[int], int]:
        """(coefficients of the scaled variables, times their common denominator; that denominator)."""
        exact_factors = [_fraction(f) / step[v] for f, v in zip(factors, variables, strict=True)]
        scale = math.lcm(*(factor.denominator for factor in exact_factors))
        found = [int(factor * scale) for factor in exact_factors]
        if sum(abs(f) * largest[v] for f, v in zip(found, variables, strict=True)) > _MAX_SUM:
            raise NotScalableError(f"{what} exceeds 64-bit whole numbers")
        return found, scale

    rows = []
    sides = zip(model.row_lower.tolist(), model.row_upper.tolist(), strict=True)
    for row, (lower, upper) in enumerate(sides):
        at = slice(model.row_start[row], model.row_start[row + 1])
        variables, tag = model.column[at].tolist(), model.tag_names[model.row_tag[row]]
        factors, scale = whole(model.coefficient[at].tolist(), variables, f"row {row} ({tag})")
        rows.append((variables, factors, _row_bound(lower, scale, -1), _row_bound(upper, scale, 1)))
    costs, cost_scale = whole(model.cost.tolist(), range(model.num_variables), "the objective")
    return WholeModel(
        cost=costs,
        cost_scale=cost_scale,
        lower=[lower for lower, _ in reach],
        upper=[upper for _, upper in reach],
        rows=rows,
        step=step,
        grid=grid,
        exact=exact,
    )


def _held(bound: float, unit: int, side: int) -> int:
    """Convert a variable's bound to whole steps of 1 / `unit`, rounded into the feasible range.

    - `side`: 1 for an upper bound, which is rounded down; -1 for a lower bound, which is rounded up.
    """
    return side * math.floor(side * bound * unit + float(_SLACK) * max(1.0, abs(bound * unit)))


@functools.cache
def _fraction(value: float) -> Fraction:
    decimal = Fraction(repr(value))
    if decimal.denominator <= _MAX_DENOMINATOR:
        return decimal
    simple = Fraction(value).limit_denominator(_MAX_GRID)  # e.g. one third as a float
    if float(simple) == value:
        return simple
    raise NotScalableError(f"the number {value!r} has too many digits for whole-number scaling")


def _row_bound(bound: float, scale: int, side: int) -> int | None:
    if math.isinf(bound):
        return None
    scaled = Fraction(repr(bound)) * scale
    slack = _SLACK * max(Fraction(scale), abs(scaled))
    return side * math.floor(side * scaled + slack)


def _grid(model: LinearModel) -> tuple[int, bool]:
    """Grid steps per unit for continuous variables, and True if some optimum lies on the grid."""
    continuous = ~model.integer
    if not continuous.any():
        return 1, True
    try:
        bounds = np.concatenate((model.lower[continuous], model.upper[continuous]))
        denominators = {_fraction(bound).denominator for bound in distinct(bounds).tolist()}
        is_continuous, column = continuous.tolist(), model.column.tolist()
        coefficient, start = model.coefficient.tolist(), model.row_start.tolist()
        for index in distinct(model.row_of_nonzero[continuous[model.column]]).tolist():
            nonzeros = range(start[index], start[index + 1])
            own = [coefficient[at] for at in nonzeros if is_continuous[column[at]]]
            if len(own) > 2 or (len(own) == 2 and own[0] != -own[1]):
                return _COARSE_GRID, False
            unit = abs(_fraction(own[0]))
            others = [coefficient[at] for at in nonzeros if not is_continuous[column[at]]]
            sides = [side for side in (model.row_lower[index], model.row_upper[index]) if math.isfinite(side)]
            denominators.update((_fraction(float(value)) / unit).denominator for value in (*others, *sides))
    except NotScalableError:
        return _COARSE_GRID, False
    grid = math.lcm(*denominators) if denominators else 1
    return (grid, True) if grid <= _MAX_GRID else (_COARSE_GRID, False)


def availability(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """``{"solvers": [...]}`` with version and licence."""
    import ortools

    return {"solvers": [{"name": "cpsat", "version": ortools.__version__, "licence": "Apache-2.0"}]}


def run(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """Solve ``payload["model"]``; return a dict with `status`, `values`, `bound`, `message` and `nodes`."""
    import ortools
    from ortools.sat.python import cp_model

    control.version = ortools.__version__
    try:
        whole = to_whole_numbers(LinearModel.from_message(payload["model"]))
    except NotScalableError as error:
        return {"status": "unavailable", "message": f"CP-SAT needs whole numbers: {error}"}
    model, variables = _build(cp_model, whole)
    for index in () if payload["hint"] is None else np.flatnonzero(np.isfinite(payload["hint"])).tolist():
        value = round(float(payload["hint"][index]) * whole.step[index])
        model.add_hint(variables[index], min(max(value, whole.lower[index]), whole.upper[index]))

    def values_in(value: Any) -> np.ndarray:
        return np.array([value(variable) for variable in variables], dtype=np.float64)

    class Listener(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            bound = self.best_objective_bound / whole.cost_scale if whole.exact else None
            objective = self.objective_value / whole.cost_scale
            control.tell(objective, bound, values_in(self.value) / np.array(whole.step))

    def listen(bound: float) -> None:
        if whole.exact:
            control.tell(None, bound / whole.cost_scale)

    solver = new_solver(payload, control)
    solver.parameters.relative_gap_limit = RELATIVE_GAP
    solver.best_bound_callback = listen
    with control.stopping(solver.stop_search):
        status = solver.solve(model, Listener())
    steps = values_in(solver.value) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None
    answer = _read(solver.status_name(status), whole, steps)
    answer["nodes"] = int(solver.num_branches)
    if steps is not None and whole.exact:
        answer["bound"] = solver.best_objective_bound / whole.cost_scale
    return answer


def new_solver(payload: dict[str, Any], control: Control) -> Any:
    """CP-SAT solver with the time limit, threads, seed and log of a task."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = payload["threads"]
    # Search strategies take turns by counted work, which makes runs repeatable.
    # If threads ran independently, timing would decide when they share solutions, so runs could differ.
    # A single thread would run only one strategy, which finds worse solutions (ortools 9.15).
    solver.parameters.interleave_search = payload.get("in_turns", True)
    solver.parameters.random_seed = payload["seed"] % 2**31
    solver.parameters.max_time_in_seconds = control.time_left_s()
    solver.parameters.log_search_progress = payload["log"]
    return solver


def _build(cp_model: Any, whole: WholeModel) -> tuple[Any, list[Any]]:
    model = cp_model.CpModel()
    variables = [
        model.new_int_var(lower, upper, "")
        if lower <= upper
        else model.new_int_var_from_domain(cp_model.Domain(), "")
        for lower, upper in zip(whole.lower, whole.upper, strict=True)
    ]
    for columns, factors, lower, upper in whole.rows:
        total = cp_model.LinearExpr.weighted_sum([variables[column] for column in columns], factors)
        domain = cp_model.Domain(-_INT64 if lower is None else lower, _INT64 if upper is None else upper)
        model.add_linear_expression_in_domain(total, domain)
    if any(whole.cost):
        model.minimize(cp_model.LinearExpr.weighted_sum(variables, whole.cost))
    return model, variables


def _read(status: str, whole: WholeModel, steps: np.ndarray | None) -> dict[str, Any]:
    """Answer for the linear model; an inexact grid proves neither optimality nor infeasibility."""
    kind = "an exact" if whole.exact else "a rounded"
    grid = f"{kind} grid of 1/{whole.grid} for continuous variables"
    region = grid if whole.grid > 1 or not whole.exact else ""
    if status == "MODEL_INVALID":
        message = "CP-SAT refused the model as too large for 64-bit whole numbers"
        return {"status": "unavailable", "message": message}
    if status == "INFEASIBLE" and whole.exact:
        return {"status": "infeasible"}
    if steps is None:
        stopped = f"CP-SAT: no point on {region}" if status == "INFEASIBLE" else _STOPPED
        return {"status": "no-solution", "message": stopped}
    proven = status == "OPTIMAL" and whole.exact
    said = [] if status == "OPTIMAL" else [_STOPPED]
    if region:
        said.append(f"{'solved' if proven else 'searched'} on {region}")
    return {
        "status": "optimal" if proven else "feasible",
        "values": steps / np.array(whole.step),
        "message": "; ".join(said),
    }

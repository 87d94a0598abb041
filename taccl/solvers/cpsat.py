"""CP-SAT, through ortools, on a linear model scaled to whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from taccl.solvers.child import Control
from taccl.solvers.model import RELATIVE_GAP, LinearModel
from taccl.solvers.scaling import NotScalableError, WholeModel, to_whole_numbers

LIBRARIES = ("ortools.sat.python.cp_model",)

_INT64 = 2**63 - 1
_STOPPED = "CP-SAT stopped: time limit reached or interrupted"


def availability(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """``{"solvers": [...]}`` with the version and licence."""
    import ortools

    return {"solvers": [{"name": "cpsat", "version": ortools.__version__, "licence": "Apache-2.0"}]}


def run(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """Solve ``payload["model"]``; a dict with `status`, `values`, `bound` and `message`."""
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
    if steps is not None and whole.exact:
        answer["bound"] = solver.best_objective_bound / whole.cost_scale
    return answer


def new_solver(payload: dict[str, Any], control: Control) -> Any:
    """A CP-SAT solver with the limits, seed and log of a task."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = payload["threads"]
    # Strategies take turns of counted work unless a task wants none. Free threads share solutions as the
    # clock has it, so that a second run may return another schedule; one thread has one strategy, and finds
    # less (ortools 9.15).
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
    """The answer for the linear model from that for the scaled one: no more than its grid allows."""
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

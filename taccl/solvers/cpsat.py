"""CP-SAT, through ortools, on a linear model scaled to whole numbers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.solvers.model import LinearModel
from taccl.solvers.scaling import HORIZON, NotScalableError, WholeModel, to_whole_numbers

if TYPE_CHECKING:
    from taccl.solvers.child import Control

__all__ = ["LIBRARIES", "availability", "run"]

#: Loaded before a memory limit is set; see `taccl.solvers.child`.
LIBRARIES = ("ortools.sat.python.cp_model",)

_STOP_TICK_S = 0.05
_INT64 = 2**63 - 1


def availability(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """``{"solvers": [...]}`` with the version and licence, or why CP-SAT cannot run."""
    try:
        import ortools
        from ortools.sat.python import cp_model  # noqa: F401
    except Exception as error:
        return {"solvers": [{"name": "cpsat", "why_not": f"ortools does not load: {error}"}]}
    return {"solvers": [{"name": "cpsat", "version": ortools.__version__, "licence": "Apache-2.0"}]}


def run(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """Solve ``payload["model"]``; a dict with `status`, `values`, `bound`, `message` and `version`."""
    try:
        import ortools
        from ortools.sat.python import cp_model
    except Exception as error:
        return {"status": "unavailable", "message": f"ortools does not load: {error}"}
    version = ortools.__version__
    try:
        whole = to_whole_numbers(LinearModel.from_message(payload["model"]))
    except NotScalableError as error:
        return {
            "status": "unavailable",
            "version": version,
            "message": f"CP-SAT needs whole numbers: {error}",
        }
    model, variables = _build(cp_model, whole)
    if payload["hint"] is not None:
        _add_hint(model, variables, whole, payload["hint"])
    solver = cp_model.CpSolver()
    _set_options(solver, payload, control)

    solver.best_bound_callback = _bound_listener(control, whole)
    finished = threading.Event()
    watcher = threading.Thread(target=_pass_stop_on, args=(control, solver, finished), daemon=True)
    watcher.start()
    try:
        status = solver.solve(model, _solution_listener(cp_model, control, variables, whole, version))
    finally:
        finished.set()
        watcher.join()
    return {"version": version, **_read(cp_model, solver, status, variables, whole)}


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


def _add_hint(model: Any, variables: list[Any], whole: WholeModel, hint: np.ndarray) -> None:
    for index in np.flatnonzero(np.isfinite(hint)).tolist():
        value = round(float(hint[index]) * whole.step[index])
        model.add_hint(variables[index], min(max(value, whole.lower[index]), whole.upper[index]))


def _set_options(solver: Any, payload: dict[str, Any], control: Control) -> None:
    solver.parameters.num_workers = payload["threads"]
    solver.parameters.random_seed = payload["seed"] % 2**31
    solver.parameters.relative_gap_limit = payload["relative_gap"]
    solver.parameters.max_time_in_seconds = control.time_left_s()
    solver.parameters.log_search_progress = payload["log"]


def _pass_stop_on(control: Control, solver: Any, finished: threading.Event) -> None:
    while not finished.wait(_STOP_TICK_S):
        if control.stop_requested():
            solver.stop_search()


def _bound_listener(control: Control, whole: WholeModel) -> Any:
    def listen(bound: float) -> None:
        if whole.exact:
            news = {"seconds": control.seconds(), "objective": None, "bound": bound / whole.cost_scale}
            control.progress(news)

    return listen


def _solution_listener(
    cp_model: Any, control: Control, variables: list[Any], whole: WholeModel, version: str
) -> Any:
    class Listener(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            values = np.array([self.value(variable) for variable in variables], dtype=np.float64)
            control.progress(
                {
                    "seconds": control.seconds(),
                    "objective": self.objective_value / whole.cost_scale,
                    "bound": self.best_objective_bound / whole.cost_scale if whole.exact else None,
                    "values": values / np.array(whole.step),
                    "version": version,
                }
            )

    return Listener()


def _read(cp_model: Any, solver: Any, status: Any, variables: list[Any], whole: WholeModel) -> dict[str, Any]:
    has_open = bool(whole.open_lower.any() or whole.open_upper.any())
    if status == cp_model.MODEL_INVALID:
        return {
            "status": "unavailable",
            "message": "CP-SAT refused the model as too large for 64-bit whole numbers",
        }
    if status == cp_model.INFEASIBLE:
        if whole.exact and not has_open:
            return {"status": "infeasible"}
        return {
            "status": "no-solution",
            "message": f"CP-SAT: no point on {_region(whole, has_open=has_open)}",
        }
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return {"status": "no-solution", "message": "CP-SAT stopped: time limit reached or interrupted"}

    steps = np.array([solver.value(variable) for variable in variables], dtype=np.float64)
    at_horizon = (whole.open_upper & (steps >= whole.upper)) | (whole.open_lower & (steps <= whole.lower))
    if status == cp_model.OPTIMAL and at_horizon.any():
        message = f"variable {np.flatnonzero(at_horizon)[0]} reached {HORIZON}; CP-SAT needs finite bounds"
        return {"status": "unavailable", "message": message}
    proven = status == cp_model.OPTIMAL and whole.exact
    message = "" if status == cp_model.OPTIMAL else "CP-SAT stopped: time limit reached or interrupted"
    if whole.grid > 1 or has_open:
        word = "solved" if proven else "searched"
        message = f"{message}; " * bool(message) + f"{word} on {_region(whole, has_open=has_open)}"
    return {
        "status": "optimal" if proven else "feasible",
        "values": steps / np.array(whole.step),
        "bound": solver.best_objective_bound / whole.cost_scale if whole.exact else None,
        "message": message,
    }


def _region(whole: WholeModel, *, has_open: bool) -> str:
    kind = "an exact" if whole.exact else "a rounded"
    parts = (
        [f"{kind} grid of 1/{whole.grid} for continuous variables"]
        if whole.grid > 1 or not whole.exact
        else []
    )
    if has_open:
        parts.append(f"unbounded variables held within {HORIZON}")
    return " and ".join(parts) if parts else "whole numbers"

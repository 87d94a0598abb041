"""SCIP, as it comes with ortools, through MathOpt; runs inside the worker that also runs CP-SAT.

It always uses one thread. It tells about solutions in its log only, without their values.
"""

from __future__ import annotations

import datetime
import math
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.solvers.model import LinearModel

if TYPE_CHECKING:
    from taccl.solvers.child import Control

__all__ = ["LIBRARIES", "availability", "run"]

#: Loaded before a memory limit is set; see `taccl.solvers.child`.
LIBRARIES = (
    "ortools.math_opt.python.mathopt",
    "ortools.util.python.solve_interrupter",
    "ortools.linear_solver.pywraplp",
)

_STOP_TICK_S = 0.05
_NO_MEMORY = "SCIP error code -1 "  # SCIP_NOMEMORY
_LOG_PRECISION = 1e-6  # the log shows seven digits; a bound read from it is loosened by this much


def availability(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """``{"solvers": [...]}`` with the version and licence, or why SCIP cannot run."""
    try:
        import ortools
        from ortools.math_opt.python import mathopt  # noqa: F401
    except Exception as error:
        return {"solvers": [{"name": "scip", "why_not": f"ortools does not load: {error}"}]}
    return {"solvers": [{"name": "scip", "version": f"{_scip_version()} (ortools {ortools.__version__})",
                         "licence": "Apache-2.0"}]}  # fmt: skip


def run(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """Solve ``payload["model"]``; a dict with `status`, `values`, `bound`, `message` and `version`."""
    try:
        from ortools.math_opt.python import mathopt
        from ortools.util.python import solve_interrupter
    except Exception as error:
        return {"status": "unavailable", "message": f"ortools does not load: {error}"}
    linear = LinearModel.from_message(payload["model"])
    model = mathopt.Model.from_model_proto(_model_proto(linear))
    variables = list(model.variables())
    parameters = mathopt.SolveParameters(
        time_limit=datetime.timedelta(seconds=control.time_left_s()),
        random_seed=payload["seed"] % 2**31,
        relative_gap_tolerance=payload["relative_gap"],
        absolute_gap_tolerance=0.0,
    )
    model_parameters = mathopt.ModelSolveParameters()
    if payload["hint"] is not None:
        known = np.flatnonzero(np.isfinite(payload["hint"])).tolist()
        values = {variables[index]: float(payload["hint"][index]) for index in known}
        model_parameters.solution_hints.append(mathopt.SolutionHint(variable_values=values))

    interrupter = solve_interrupter.SolveInterrupter()
    finished = threading.Event()
    watcher = threading.Thread(target=_pass_stop_on, args=(control, interrupter, finished), daemon=True)
    watcher.start()
    try:
        result = mathopt.solve(
            model,
            mathopt.SolverType.GSCIP,
            params=parameters,
            model_params=model_parameters,
            msg_cb=_log_reader(control, log=payload["log"]),
            interrupter=interrupter,
        )
    except Exception as error:
        # ortools 9.15 fails (with an AttributeError) to make an exception of SCIP's status.
        if _NO_MEMORY in f"{error} {error.__context__}":
            raise MemoryError("SCIP ran out of memory") from error
        raise
    finally:
        finished.set()
        watcher.join()
    return {"version": _scip_version(), **_read(mathopt, result, variables)}


def _scip_version() -> str:
    from ortools.linear_solver import pywraplp

    words = (
        pywraplp.Solver.CreateSolver("SCIP").SolverVersion().split()
    )  # "SCIP 10.0.0 [LP solver: SoPlex 8.0.0]"
    return str(words[1])


def _model_proto(model: LinearModel) -> Any:
    from ortools.math_opt import model_pb2

    proto = model_pb2.ModelProto()
    ids = range(model.num_variables)
    proto.variables.ids.extend(ids)
    proto.variables.lower_bounds.extend(model.lower.tolist())
    proto.variables.upper_bounds.extend(model.upper.tolist())
    proto.variables.integers.extend(model.integer.tolist())
    costly = np.flatnonzero(model.cost)
    proto.objective.linear_coefficients.ids.extend(costly.tolist())
    proto.objective.linear_coefficients.values.extend(model.cost[costly].tolist())
    proto.linear_constraints.ids.extend(range(model.num_rows))
    proto.linear_constraints.lower_bounds.extend(model.row_lower.tolist())
    proto.linear_constraints.upper_bounds.extend(model.row_upper.tolist())
    row = np.repeat(np.arange(model.num_rows), np.diff(model.row_start))
    order = np.lexsort((model.column, row))  # the format wants rows, then columns, in rising order
    proto.linear_constraint_matrix.row_ids.extend(row[order].tolist())
    proto.linear_constraint_matrix.column_ids.extend(model.column[order].tolist())
    proto.linear_constraint_matrix.coefficients.extend(model.coefficient[order].tolist())
    return proto


def _pass_stop_on(control: Control, interrupter: Any, finished: threading.Event) -> None:
    while not finished.wait(_STOP_TICK_S):
        if control.stop_requested():
            interrupter.interrupt()
            return


def _log_reader(control: Control, *, log: bool) -> Any:
    """A callback that turns the lines of SCIP's log that show new bounds into progress."""
    last: tuple[float | None, float | None] = (None, None)

    def read(lines: list[str]) -> None:
        nonlocal last
        for line in lines:
            if log:
                os.write(2, f"{line}\n".encode())
            cells = line.split("|")
            if len(cells) < 10:
                continue
            bound, objective = _number(cells[-4]), _number(cells[-3])
            if bound is not None:
                bound -= _LOG_PRECISION * abs(bound)
            if (objective, bound) != last and (objective, bound) != (None, None):
                last = (objective, bound)
                control.progress({"seconds": control.seconds(), "objective": objective, "bound": bound})

    return read


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _read(mathopt: Any, result: Any, variables: list[Any]) -> dict[str, Any]:
    reasons = mathopt.TerminationReason
    reason = result.termination.reason
    if reason == reasons.INFEASIBLE:
        return {"status": "infeasible"}
    if reason == reasons.UNBOUNDED:
        return {"status": "unbounded"}
    if reason == reasons.INFEASIBLE_OR_UNBOUNDED:
        return {"status": "infeasible-or-unbounded"}
    values = None
    if result.has_primal_feasible_solution():
        values = np.array(result.variable_values(variables), dtype=np.float64)
    bound = result.dual_bound()
    answer = {"values": values, "bound": bound if math.isfinite(bound) else None}
    if reason == reasons.OPTIMAL:
        return {"status": "optimal", **answer}
    limit = result.termination.limit
    if limit == mathopt.Limit.MEMORY:
        return {"status": "out-of-memory", "message": "SCIP ran out of memory", **answer}
    if reason in (reasons.FEASIBLE, reasons.NO_SOLUTION_FOUND):
        word = limit.name.lower() if limit is not None else "an unnamed limit"
        status = "no-solution" if values is None else "feasible"
        return {"status": status, "message": f"SCIP stopped: {word}", **answer}
    return {"status": "crashed", "message": f"SCIP ended with {reason.name}: {result.termination.detail}"}

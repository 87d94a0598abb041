"""SCIP as bundled with ortools, through MathOpt, in the worker that also runs CP-SAT.

It uses one thread. It reports new solutions only in its log, without their values.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

import numpy as np

from taccl.solvers.child import Control
from taccl.solvers.model import RELATIVE_GAP, LinearModel

LIBRARIES = (
    "ortools.math_opt.python.mathopt",
    "ortools.util.python.solve_interrupter",
    "ortools.linear_solver.pywraplp",
)

#: {name of a `TerminationReason`: status}; any other counts as a crash.
_STATUSES = {
    "OPTIMAL": "optimal",
    "INFEASIBLE": "infeasible",
    "INFEASIBLE_OR_UNBOUNDED": "infeasible",  # infeasible, as all variables are bounded
    "FEASIBLE": "feasible",
    "NO_SOLUTION_FOUND": "feasible",
}
_NO_MEMORY = "SCIP error code -1 "  # SCIP_NOMEMORY
_LOG_PRECISION = 1e-6  # relative loosening of bounds from the log, which shows seven digits


def availability(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """``{"solvers": [...]}`` with version and licence."""
    import ortools

    version = f"{_scip_version()} (ortools {ortools.__version__})"
    return {"solvers": [{"name": "scip", "version": version, "licence": "Apache-2.0"}]}


def run(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """Solve ``payload["model"]``; return a dict with `status`, `values`, `bound`, `message` and `nodes`."""
    from ortools.math_opt.python import mathopt
    from ortools.util.python import solve_interrupter

    control.version = _scip_version()
    model = mathopt.Model.from_model_proto(_model_proto(LinearModel.from_message(payload["model"])))
    variables = list(model.variables())
    parameters = mathopt.SolveParameters(
        time_limit=datetime.timedelta(seconds=control.time_left_s()),
        random_seed=payload["seed"] % 2**31,
        relative_gap_tolerance=RELATIVE_GAP,
        absolute_gap_tolerance=0.0,
    )
    model_parameters = mathopt.ModelSolveParameters()
    if payload["hint"] is not None:
        known = np.flatnonzero(np.isfinite(payload["hint"])).tolist()
        values = {variables[index]: float(payload["hint"][index]) for index in known}
        model_parameters.solution_hints.append(mathopt.SolutionHint(variable_values=values))
    interrupter = solve_interrupter.SolveInterrupter()
    try:
        with control.stopping(interrupter.interrupt):
            result = mathopt.solve(
                model,
                mathopt.SolverType.GSCIP,
                params=parameters,
                model_params=model_parameters,
                msg_cb=_log_reader(control, log=payload["log"]),
                interrupter=interrupter,
            )
    except Exception as error:
        # ortools 9.15 fails with an AttributeError while it makes an exception of SCIP's status.
        if _NO_MEMORY in f"{error} {error.__context__}":
            raise MemoryError("SCIP ran out of memory") from error
        raise
    return _read(mathopt, result, variables)


def _scip_version() -> str:
    from ortools.linear_solver import pywraplp

    said = pywraplp.Solver.CreateSolver("SCIP").SolverVersion()  # "SCIP 10.0.0 [LP solver: SoPlex 8.0.0]"
    return str(said.split()[1])


def _model_proto(model: LinearModel) -> Any:
    from ortools.math_opt import model_pb2

    proto = model_pb2.ModelProto()
    proto.variables.ids.extend(range(model.num_variables))
    proto.variables.lower_bounds.extend(model.lower.tolist())
    proto.variables.upper_bounds.extend(model.upper.tolist())
    proto.variables.integers.extend(model.integer.tolist())
    costly = np.flatnonzero(model.cost)
    proto.objective.linear_coefficients.ids.extend(costly.tolist())
    proto.objective.linear_coefficients.values.extend(model.cost[costly].tolist())
    proto.linear_constraints.ids.extend(range(model.num_rows))
    proto.linear_constraints.lower_bounds.extend(model.row_lower.tolist())
    proto.linear_constraints.upper_bounds.extend(model.row_upper.tolist())
    row = model.row_of_nonzero
    order = np.lexsort((model.column, row))  # the format requires ascending rows, then columns
    proto.linear_constraint_matrix.row_ids.extend(row[order].tolist())
    proto.linear_constraint_matrix.column_ids.extend(model.column[order].tolist())
    proto.linear_constraint_matrix.coefficients.extend(model.coefficient[order].tolist())
    return proto


def _log_reader(control: Control, *, log: bool) -> Any:
    """Callback that reports the bounds and objectives in SCIP's log as progress."""
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
                control.tell(objective, bound)

    return read


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _read(mathopt: Any, result: Any, variables: list[Any]) -> dict[str, Any]:
    ended = result.termination
    status, message = _STATUSES.get(ended.reason.name, "crashed"), ""
    if ended.limit == mathopt.Limit.MEMORY:
        status, message = "out-of-memory", "SCIP ran out of memory"
    elif status == "feasible":
        word = ended.limit.name.lower() if ended.limit is not None else "an unnamed limit"
        message = f"SCIP stopped: {word}"
    elif status == "crashed":
        message = f"SCIP ended with {ended.reason.name}: {ended.detail}"
    values = None
    if result.has_primal_feasible_solution():
        values = np.array(result.variable_values(variables), dtype=np.float64)
    nodes = int(result.solve_stats.node_count)
    return {
        "status": status, "values": values, "bound": result.dual_bound(), "message": message, "nodes": nodes
    }  # fmt: skip

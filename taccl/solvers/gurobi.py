"""Gurobi (through gurobipy) under the licence that it finds; the bundled licence limits the model size."""

from __future__ import annotations

from typing import Any

import numpy as np

from taccl.solvers.child import Control
from taccl.solvers.model import RELATIVE_GAP, LinearModel

LIBRARIES = ("gurobipy", "scipy.sparse")

_OUT_OF_MEMORY = 10001
_NO_LICENCE = 10009
_TOO_LARGE = 10010  # code of the error that optimize() raises for a model too large for the licence
_LIMITED = 2000  # maximum number of variables, and of rows, under the bundled licence
_NO_EXPIRATION = 99999999

#: {name of a Gurobi status: (status, message)}; any other status without a point counts as a crash.
_STATUSES = {
    "OPTIMAL": ("optimal", ""),
    "INFEASIBLE": ("infeasible", ""),
    "INF_OR_UNBD": ("infeasible", ""),  # infeasible, as all variables are bounded
    "TIME_LIMIT": ("feasible", "Gurobi stopped: time limit reached"),
    "INTERRUPTED": ("feasible", "Gurobi stopped: interrupted by user"),
}


def availability(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """``{"solvers": [...]}`` with version, licence and its last day, or the reason that Gurobi cannot run."""
    import gurobipy

    info: dict[str, Any] = {"name": "gurobi", "version": _version()}
    try:
        with _environment(log=False) as environment, gurobipy.Model(env=environment) as probe:
            expiration = int(probe.LicenseExpiration)
            if expiration != _NO_EXPIRATION:
                text = f"{expiration:08d}"
                info["licence_ends"] = f"{text[:4]}-{text[4:6]}-{text[6:]}"
            probe.addMVar(_LIMITED + 1)
            info["licence"] = "commercial or academic"
            try:
                probe.optimize()
            except gurobipy.GurobiError as error:
                if error.errno != _TOO_LARGE:
                    raise
                info["licence"] = f"size-limited: {_LIMITED} variables, {_LIMITED} rows"
    except gurobipy.GurobiError as error:
        info["why_not"] = str(error)
    return {"solvers": [info]}


def run(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """Solve ``payload["model"]``; return a dict with `status`, `values`, `bound`, `message` and `nodes`."""
    import gurobipy

    model = LinearModel.from_message(payload["model"])
    control.version = _version()
    try:
        with _environment(log=payload["log"]) as environment, gurobipy.Model(env=environment) as gurobi:
            variables = _build(gurobi, model)
            gurobi.setParam("Threads", payload["threads"])
            gurobi.setParam("Seed", payload["seed"] % 2_000_000_000)
            gurobi.setParam("MIPGap", RELATIVE_GAP)
            gurobi.setParam("MIPGapAbs", 0.0)
            gurobi.setParam("TimeLimit", control.time_left_s())
            if payload["hint"] is not None:
                hint = payload["hint"]
                variables.Start = np.where(np.isfinite(hint), hint, gurobipy.GRB.UNDEFINED)
            gurobi.optimize(_listener(variables, control))
            return _read(gurobi, variables)
    except gurobipy.GurobiError as error:
        return _read_error(error, model)


def _version() -> str:
    import gurobipy

    return ".".join(str(part) for part in gurobipy.gurobi.version())


def _environment(*, log: bool) -> Any:
    import gurobipy

    environment = gurobipy.Env(empty=True)
    environment.setParam("OutputFlag", int(log))
    environment.start()
    return environment


def _build(gurobi: Any, model: LinearModel) -> Any:
    """Add a linear model to a Gurobi model; return the variables.

    A row with two different bounds becomes two rows, as Gurobi's ranged rows (addRange) add a variable.
    """
    from gurobipy import GRB
    from scipy.sparse import csr_matrix

    kinds = np.where(model.integer, GRB.INTEGER, GRB.CONTINUOUS).astype(object)
    variables = gurobi.addMVar(
        model.num_variables, lb=model.lower, ub=model.upper, obj=model.cost, vtype=kinds
    )
    matrix = csr_matrix(
        (model.coefficient, model.column, model.row_start), (model.num_rows, model.num_variables)
    )
    equal = model.row_lower == model.row_upper
    for rows, sense, bounds in (
        (equal, "=", model.row_lower),
        (~equal & np.isfinite(model.row_lower), ">", model.row_lower),
        (~equal & np.isfinite(model.row_upper), "<", model.row_upper),
    ):
        if rows.any():
            gurobi.addMConstr(matrix[rows], variables, sense, bounds[rows])
    return variables


def _listener(variables: Any, control: Control) -> Any:
    """Callback that reports solutions and bounds, and ends the search on a stop request."""
    from gurobipy import GRB

    codes = GRB.Callback

    def listen(gurobi: Any, where: int) -> None:
        if control.stop_requested():
            gurobi.terminate()
        if where == codes.MIPSOL:
            values = np.asarray(gurobi.cbGetSolution(variables), dtype=np.float64)
            control.tell(gurobi.cbGet(codes.MIPSOL_OBJ), gurobi.cbGet(codes.MIPSOL_OBJBND), values)
        elif where == codes.MIP:
            control.tell_now_and_then(gurobi.cbGet(codes.MIP_OBJBST), gurobi.cbGet(codes.MIP_OBJBND))

    return listen


def _read(gurobi: Any, variables: Any) -> dict[str, Any]:
    from gurobipy import GRB

    code = gurobi.Status
    values = np.asarray(variables.X, dtype=np.float64) if gurobi.SolCount else None
    unknown = f"Gurobi ended with status code {code}"
    status, message = {getattr(GRB, name): answer for name, answer in _STATUSES.items()}.get(
        code, ("crashed", f"{unknown} and no solution") if values is None else ("feasible", unknown)
    )
    bound = gurobi.ObjBound if gurobi.IsMIP or status == "optimal" else None
    nodes = int(gurobi.NodeCount) if gurobi.IsMIP else 0
    return {"status": status, "values": values, "bound": bound, "message": message, "nodes": nodes}


def _read_error(error: Any, model: LinearModel) -> dict[str, Any]:
    status, message = {
        _TOO_LARGE: (
            "unlicensed",
            f"Gurobi's size-limited licence admits {_LIMITED} variables and {_LIMITED} rows; the model has "
            f"{model.num_variables} variables and {model.num_rows} rows",
        ),
        _NO_LICENCE: ("unlicensed", f"Gurobi found no valid licence: {error}"),
        _OUT_OF_MEMORY: ("out-of-memory", "Gurobi ran out of memory"),
    }.get(error.errno, ("crashed", f"Gurobi failed with error {error.errno}: {error}"))
    return {"status": status, "message": message}

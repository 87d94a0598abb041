"""Gurobi, through gurobipy, under whatever licence it finds; the bundled one is limited in size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.solvers.model import LinearModel

if TYPE_CHECKING:
    from taccl.solvers.child import Control

__all__ = ["LIBRARIES", "availability", "run"]

#: Loaded before a memory limit is set; see `taccl.solvers.child`.
LIBRARIES = ("gurobipy", "scipy.sparse")

_OUT_OF_MEMORY = 10001
_NO_LICENCE = 10009
_TOO_LARGE = 10010  # raised by optimize(), not by building the model
_LIMITED = 2000  # variables, and rows, under the bundled licence
_NO_EXPIRATION = 99999999
_BOUND_NEWS_S = 0.5


def availability(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """``{"solvers": [...]}`` with the version, the licence and its last day, or why Gurobi cannot run."""
    info: dict[str, Any] = {"name": "gurobi"}
    try:
        import gurobipy
    except Exception as error:
        return {"solvers": [{**info, "why_not": f"gurobipy does not load: {error}"}]}
    info["version"] = _version(gurobipy)
    try:
        with _environment(gurobipy, log=False) as environment, gurobipy.Model(env=environment) as probe:
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
    """Solve ``payload["model"]``; a dict with `status`, `values`, `bound`, `message` and `version`."""
    try:
        import gurobipy
    except Exception as error:
        return {"status": "unavailable", "message": f"gurobipy does not load: {error}"}
    model = LinearModel.from_message(payload["model"])
    version = _version(gurobipy)
    try:
        with (
            _environment(gurobipy, log=payload["log"]) as environment,
            gurobipy.Model(env=environment) as gurobi,
        ):
            variables = _build(gurobipy, gurobi, model)
            _set_options(gurobi, payload, control)
            if payload["hint"] is not None:
                hint = payload["hint"]
                variables.Start = np.where(np.isfinite(hint), hint, gurobipy.GRB.UNDEFINED)
            gurobi.optimize(_listener(gurobipy, variables, control, version))
            result = _read(gurobipy, gurobi, variables)
    except gurobipy.GurobiError as error:
        result = _read_error(error, model)
    return {"version": version, **result}


def _version(gurobipy: Any) -> str:
    return ".".join(str(part) for part in gurobipy.gurobi.version())


def _environment(gurobipy: Any, *, log: bool) -> Any:
    environment = gurobipy.Env(empty=True)
    environment.setParam("OutputFlag", int(log))
    environment.start()
    return environment


def _build(gurobipy: Any, gurobi: Any, model: LinearModel) -> Any:
    """The variables of a Gurobi model that now holds `model`.

    Gurobi has no ranged rows (its addRange adds a variable): a row with two unlike bounds becomes two rows.
    """
    from scipy.sparse import csr_matrix

    kinds = np.where(model.integer, gurobipy.GRB.INTEGER, gurobipy.GRB.CONTINUOUS)
    variables = gurobi.addMVar(
        model.num_variables, lb=model.lower, ub=model.upper, obj=model.cost, vtype=kinds.astype(object)
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


def _set_options(gurobi: Any, payload: dict[str, Any], control: Control) -> None:
    gurobi.setParam("Threads", payload["threads"])
    gurobi.setParam("Seed", payload["seed"] % 2_000_000_000)
    gurobi.setParam("MIPGap", payload["relative_gap"])
    gurobi.setParam("MIPGapAbs", 0.0)
    gurobi.setParam("TimeLimit", control.time_left_s())


def _listener(gurobipy: Any, variables: Any, control: Control, version: str) -> Any:
    """A callback that reports solutions and bounds, and stops the search on request."""
    codes = gurobipy.GRB.Callback
    last_news_s = 0.0

    def finite(value: float) -> float | None:
        return value if abs(value) < gurobipy.GRB.INFINITY else None

    def listen(gurobi: Any, where: int) -> None:
        nonlocal last_news_s
        if control.stop_requested():
            gurobi.terminate()
        if where == codes.MIPSOL:
            control.progress(
                {
                    "seconds": control.seconds(),
                    "objective": gurobi.cbGet(codes.MIPSOL_OBJ),
                    "bound": finite(gurobi.cbGet(codes.MIPSOL_OBJBND)),
                    "values": np.asarray(gurobi.cbGetSolution(variables), dtype=np.float64),
                    "version": version,
                }
            )
        elif where == codes.MIP and control.seconds() - last_news_s >= _BOUND_NEWS_S:
            last_news_s = control.seconds()
            control.progress(
                {
                    "seconds": control.seconds(),
                    "objective": finite(gurobi.cbGet(codes.MIP_OBJBST)),
                    "bound": finite(gurobi.cbGet(codes.MIP_OBJBND)),
                }
            )

    return listen


def _read(gurobipy: Any, gurobi: Any, variables: Any) -> dict[str, Any]:
    codes = gurobipy.GRB
    values = np.asarray(variables.X, dtype=np.float64) if gurobi.SolCount else None
    if gurobi.Status == codes.INFEASIBLE:
        return {"status": "infeasible"}
    if gurobi.Status == codes.UNBOUNDED:
        return {"status": "unbounded"}
    if gurobi.Status == codes.INF_OR_UNBD:
        return {"status": "infeasible-or-unbounded"}
    bound = gurobi.ObjBound if gurobi.IsMIP or gurobi.Status == codes.OPTIMAL else None
    if gurobi.Status == codes.OPTIMAL:
        return {"status": "optimal", "values": values, "bound": bound}
    limits = {codes.TIME_LIMIT: "time limit reached", codes.INTERRUPTED: "interrupted by user"}
    reason = limits.get(gurobi.Status)
    if reason is None and values is None:
        return {
            "status": "crashed",
            "message": f"Gurobi ended with status code {gurobi.Status} and no solution",
        }
    return {
        "status": "no-solution" if values is None else "feasible",
        "values": values,
        "bound": bound,
        "message": f"Gurobi stopped: {reason or f'status code {gurobi.Status}'}",
    }


def _read_error(error: Any, model: LinearModel) -> dict[str, Any]:
    if error.errno == _TOO_LARGE:
        return {
            "status": "unlicensed",
            "message": f"Gurobi's size-limited licence admits {_LIMITED} variables and {_LIMITED} rows; "
            f"the model has {model.num_variables} variables and {model.num_rows} rows",
        }
    if error.errno == _NO_LICENCE:
        return {"status": "unlicensed", "message": f"Gurobi found no valid licence: {error}"}
    if error.errno == _OUT_OF_MEMORY:
        return {"status": "out-of-memory", "message": "Gurobi ran out of memory"}
    return {"status": "crashed", "message": f"Gurobi failed with error {error.errno}: {error}"}

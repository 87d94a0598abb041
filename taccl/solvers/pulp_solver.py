"""Any solver that PuLP finds on this machine, by the name ``pulp:NAME``."""

from __future__ import annotations

import contextlib
import inspect
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from taccl._internal.address_space import means_out_of_memory
from taccl.solvers.child import Control
from taccl.solvers.model import RELATIVE_GAP, LinearModel

LIBRARIES = ("pulp",)

_PREFIX = "pulp:"


def availability(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """``{"solvers": [...]}`` with the solvers that PuLP finds installed."""
    import pulp

    with _scratch_folder():
        names = sorted(pulp.listSolvers(onlyAvailable=True))
    version = f"PuLP {pulp.__version__}"
    return {"solvers": [{"name": f"{_PREFIX}{name}", "version": version} for name in names]}


def known(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """``{"solvers": [...]}`` with every solver that PuLP supports, installed or not."""
    import pulp

    return {"solvers": [{"name": f"{_PREFIX}{name}"} for name in sorted(pulp.listSolvers())]}


def run(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """Solve ``payload["model"]``; return a dict with `status`, `values`, `bound` and `message`."""
    import pulp

    name = payload["solver"].removeprefix(_PREFIX)
    name = {each.lower(): each for each in pulp.listSolvers()}[name.lower()]  # as PuLP spells it
    control.version = f"PuLP {pulp.__version__}"
    model = LinearModel.from_message(payload["model"])
    with _scratch_folder():
        problem, variables = _build(pulp, model)
        if payload["hint"] is not None:
            for index in np.flatnonzero(np.isfinite(payload["hint"])).tolist():
                variables[index].setInitialValue(float(payload["hint"][index]), check=False)
        options = _options(type(pulp.getSolver(name)), payload, control)
        solver = pulp.getSolver(name, **options)
        if not solver.available():
            return {"status": "unavailable", "message": f"PuLP finds no {name} on this machine"}
        if name == "HiGHS":  # HiGHS fails if the process used another number of threads before
            import highspy

            highspy.Highs.resetGlobalScheduler(True)
        try:
            problem.solve(solver)
        except Exception as error:  # each library behind PuLP has its own exceptions
            if means_out_of_memory(error, bounded=True):
                raise
            status = "unlicensed" if "licen" in str(error).lower() else "crashed"
            return {"status": status, "message": f"{name}: {error}"}
    result = _read(pulp, name, problem, variables)
    if result["status"] == "optimal" and "gapRel" in options:  # PuLP does not return the bound
        objective = model.objective(result["values"])
        result["bound"] = objective - RELATIVE_GAP * abs(objective)
    return result


@contextlib.contextmanager
def _scratch_folder() -> Iterator[None]:
    """Work in a temporary folder, as some of PuLP's solvers leave logs in the current one."""
    with tempfile.TemporaryDirectory(prefix="pulp-") as folder, contextlib.chdir(folder):
        yield


def _build(pulp: Any, model: LinearModel) -> tuple[Any, list[Any]]:
    problem = pulp.LpProblem("model", pulp.LpMinimize)
    categories = (pulp.LpContinuous, pulp.LpInteger)
    bounds = zip(model.lower.tolist(), model.upper.tolist(), model.integer.tolist(), strict=True)
    variables = [
        pulp.LpVariable(f"x{index}", lower, upper, categories[integer])
        for index, (lower, upper, integer) in enumerate(bounds)
    ]
    problem.addVariables(variables)
    problem.setObjective(pulp.LpAffineExpression(list(zip(variables, model.cost.tolist(), strict=True))))
    column, coefficient, start = model.column.tolist(), model.coefficient.tolist(), model.row_start.tolist()
    sides = zip(model.row_lower.tolist(), model.row_upper.tolist(), strict=True)
    for row, (lower, upper) in enumerate(sides):
        terms = [(variables[column[at]], coefficient[at]) for at in range(start[row], start[row + 1])]
        if lower == upper:
            kinds = [("eq", pulp.LpConstraintEQ, lower)]
        else:
            kinds = [("ge", pulp.LpConstraintGE, lower), ("le", pulp.LpConstraintLE, upper)]
        for kind, sense, side in kinds:
            if np.isfinite(side):
                expression = pulp.LpAffineExpression(terms)
                problem.addConstraint(pulp.LpConstraint(expression, sense, f"r{row}_{kind}", side))
    return problem, variables


def _options(solver_class: Any, payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """Options of the task that the solver's constructor accepts."""
    offered = {
        "msg": payload["log"],
        "timeLimit": control.time_left_s(),
        # None for one thread: if told 1, CBC 2.10.3 runs its threaded search, which can idle for 10 s.
        "threads": payload["threads"] if payload["threads"] > 1 else None,
        "gapRel": RELATIVE_GAP,
        "warmStart": payload["hint"] is not None,
        "keepFiles": False,
    }
    taken = inspect.signature(solver_class.__init__).parameters
    return {name: value for name, value in offered.items() if name in taken}


def _read(pulp: Any, name: str, problem: Any, variables: list[Any]) -> dict[str, Any]:
    """Result from PuLP's `sol_status`, as its `status` is Optimal even if a time limit ended the search."""
    found = problem.sol_status
    if found in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        values = np.array([variable.varValue or 0.0 for variable in variables], dtype=np.float64)
        if found == pulp.LpSolutionOptimal:
            return {"status": "optimal", "values": values}
        return {"status": "feasible", "values": values, "message": f"{name} stopped at a limit"}
    # Several of PuLP's readers do not tell infeasible from unbounded; no model here is unbounded.
    refuted = (pulp.LpSolutionInfeasible, pulp.LpSolutionUnbounded)
    if found in refuted or problem.status == pulp.LpStatusInfeasible:
        return {"status": "infeasible"}
    return {"status": "no-solution", "message": f"{name} stopped: {pulp.LpStatus[problem.status].lower()}"}

"""HiGHS (through highspy): models in a worker process, and small linear programs in this process.

For linear programs, SciPy's `linprog` would suffice, but importing ``scipy.optimize`` takes 0.12 s of CPU
more than highspy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taccl._internal.arrays import Floats
from taccl.solvers.child import Control
from taccl.solvers.model import RELATIVE_GAP, LinearModel

LIBRARIES = ("highspy",)

#: {name of a `HighsModelStatus`: status}; any other counts as a crash.
_STATUSES = {
    "kOptimal": "optimal",
    "kModelEmpty": "optimal",
    "kInfeasible": "infeasible",
    "kUnboundedOrInfeasible": "infeasible",  # infeasible, as all variables are bounded
    "kMemoryLimit": "out-of-memory",
    "kTimeLimit": "feasible",
    "kInterrupt": "feasible",
    "kHighsInterrupt": "feasible",
    "kIterationLimit": "feasible",
    "kSolutionLimit": "feasible",
}


def availability(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """``{"solvers": [...]}`` with version and licence."""
    import highspy

    return {"solvers": [{"name": "highs", "version": highspy.Highs().version(), "licence": "MIT"}]}


def run(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """Solve ``payload["model"]``; return a dict with `status`, `values`, `bound`, `message` and `nodes`."""
    model = LinearModel.from_message(payload["model"])
    highs = highs_with(model)
    control.version = highs.version()
    # Without this check, HiGHS would report a model that it did not accept as empty.
    if highs.getNumCol() < model.num_variables:
        largest = np.abs(model.coefficient).max(initial=0)
        said = f"HiGHS refuses the model, whose coefficients go up to {largest:.3g}"
        return {"status": "crashed", "values": None, "bound": None, "message": said, "nodes": 0}
    highs.resetGlobalScheduler(True)  # otherwise the process keeps its first number of threads
    highs.setOptionValue("output_flag", payload["log"])
    highs.setOptionValue("threads", payload["threads"])
    highs.setOptionValue("random_seed", payload["seed"] % 2**31)
    highs.setOptionValue("mip_rel_gap", RELATIVE_GAP)
    highs.setOptionValue("time_limit", control.time_left_s())
    if payload["hint"] is not None:
        known = np.flatnonzero(np.isfinite(payload["hint"])).astype(np.int32)
        highs.setSolution(len(known), known, payload["hint"][known])
    _listen(highs, control)
    return _read(highs, highs.run(), is_mip=bool(model.integer.any()))


def highs_with(model: LinearModel) -> Any:
    """Silent HiGHS instance with the model."""
    import highspy

    lp = highspy.HighsLp()
    lp.num_col_ = model.num_variables
    lp.num_row_ = model.num_rows
    lp.col_cost_ = model.cost
    lp.col_lower_ = model.lower
    lp.col_upper_ = model.upper
    lp.row_lower_ = model.row_lower
    lp.row_upper_ = model.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = model.row_start.astype(np.int32)
    lp.a_matrix_.index_ = model.column.astype(np.int32)
    lp.a_matrix_.value_ = model.coefficient
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    if model.integer.any():
        lp.integrality_ = [kinds[integer] for integer in model.integer.tolist()]
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.passModel(lp)
    return highs


def _listen(highs: Any, control: Control) -> None:
    """Report each better solution at once, and the bound at intervals; pass on stop requests."""

    def report_solution(event: Any) -> None:
        out = event.data_out
        values = np.array(out.mip_solution, dtype=np.float64)
        control.tell(out.objective_function_value, out.mip_dual_bound, values)

    def check(event: Any) -> None:
        if control.stop_requested():
            event.interrupt()

    def report_bound(event: Any) -> None:
        control.tell_now_and_then(event.data_out.mip_primal_bound, event.data_out.mip_dual_bound)

    highs.cbMipImprovingSolution += report_solution
    highs.cbMipInterrupt += check
    highs.cbMipInterrupt += report_bound
    highs.cbSimplexInterrupt += check


def _read(highs: Any, run_status: Any, *, is_mip: bool) -> dict[str, Any]:
    import highspy

    info, name = highs.getInfo(), highs.getModelStatus().name
    status, said = _STATUSES.get(name, "crashed"), highs.modelStatusToString(highs.getModelStatus())
    values = None
    if info.primal_solution_status == int(highspy.SolutionStatus.kSolutionStatusFeasible):
        values = np.array(highs.getSolution().col_value, dtype=np.float64)
    elif status == "optimal":
        values = np.zeros(highs.getNumCol())
    messages = {
        "feasible": f"HiGHS stopped: {said.lower()}",
        "out-of-memory": "HiGHS ran out of memory",
        "crashed": f"HiGHS ended with status {said!r} ({run_status})",
    }
    bound = info.objective_function_value if status == "optimal" else None
    return {
        "status": status,
        "values": values,
        "bound": info.mip_dual_bound if is_mip else bound,
        "message": messages.get(status, ""),
        "nodes": int(info.mip_node_count) if is_mip else 0,
    }


class Solution(NamedTuple):
    """Optimal solution of a linear program with M rows and N columns.

    - `values`, (N,): Value of each column.
    - `duals`, (M,): Dual price of each row: change of the objective per unit of its bound.
    """

    values: Floats
    duals: Floats
    objective: float


def minimise(
    cost: ArrayLike,
    entries: tuple[ArrayLike, ArrayLike, ArrayLike],
    bounds: Sequence[ArrayLike],
    *,
    method: str = "choose",
    limit_s: float = math.inf,
) -> Solution | None:
    """Minimise ``cost @ x`` over ``x >= 0`` subject to rows; None if no optimum is found in time.

    - `cost`: (N,) objective coefficients.
    - `entries`: (row, column, value) of the nonzeros, each (Z,); entries at one position are added.
    - `bounds`: Upper bounds of the first rows (inequalities), then right-hand sides of the others
      (equations).
    - `method`: ``"simplex"``, ``"ipm"``, or ``"choose"``.
    - `limit_s`: Time limit in seconds.
    """
    return GrowingProgram(cost, entries, bounds, method=method).solved(limit_s)


class GrowingProgram:
    """Linear program of `minimise` that may grow; each solution starts from the last one.

    Parameters are those of `minimise`.
    """

    def __init__(
        self,
        cost: ArrayLike,
        entries: tuple[ArrayLike, ArrayLike, ArrayLike],
        bounds: Sequence[ArrayLike],
        *,
        method: str = "choose",
    ) -> None:
        import highspy

        upper = np.concatenate([np.asarray(each, dtype=np.float64) for each in bounds])
        lower = upper.copy()
        lower[: np.size(bounds[0])] = -highspy.kHighsInf
        objective = np.ascontiguousarray(cost, dtype=np.float64)
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = len(objective), len(upper)
        program.col_cost_, program.col_lower_ = objective, np.zeros(len(objective))
        program.col_upper_ = np.full(len(objective), highspy.kHighsInf)
        program.row_lower_, program.row_upper_ = lower, upper
        matrix = program.a_matrix_
        matrix.format_ = highspy.MatrixFormat.kColwise
        matrix.start_, matrix.index_, matrix.value_ = _by_column(entries, len(upper), len(objective))
        self._solver: Any = highspy.Highs.__base__()  # highspy's subclass prints a banner to stdout
        # Presolve for interior point only: on 361 rows it takes 4 s (HiGHS 1.16), the simplex method 0.01 s.
        presolve = "on" if method == "ipm" else "off"
        for name, value in {"output_flag": False, "solver": method, "presolve": presolve}.items():
            self._solver.setOptionValue(name, value)
        self._solver.passModel(program)

    def add_rows(self, entries: tuple[ArrayLike, ArrayLike, ArrayLike], upper: ArrayLike) -> None:
        """Add inequalities after all other rows; in `entries`, they are numbered from 0."""
        import highspy

        row, column, value = entries
        most = np.ascontiguousarray(upper, dtype=np.float64)
        start, index, values = _by_column((column, row, value), self._solver.getNumCol(), len(most))
        least = np.full(len(most), -highspy.kHighsInf)
        self._solver.addRows(len(most), least, most, len(values), start[:-1], index, values)

    def set_bounds(self, lower: ArrayLike, upper: ArrayLike) -> None:
        """Set the least and the largest value of the first columns."""
        low, high = (np.ascontiguousarray(each, dtype=np.float64) for each in (lower, upper))
        self._solver.changeColsBounds(len(low), np.arange(len(low), dtype=np.int32), low, high)

    def solved(self, limit_s: float = math.inf) -> Solution | None:
        """Optimal solution; None if there is none, or none is found in time.

        - `limit_s`: Time limit in seconds.
        """
        import highspy

        solver = self._solver
        solver.setOptionValue("time_limit", solver.getRunTime() + limit_s)
        solver.run()
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        found = solver.getSolution()
        values, duals = np.array(found.col_value), np.array(found.row_dual)
        return Solution(values, duals, float(solver.getInfo().objective_function_value))


def _by_column(
    entries: tuple[ArrayLike, ArrayLike, ArrayLike], num_rows: int, num_columns: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
    """Compressed columns of a matrix: start of each column, row indices, and values."""
    row, column, value = (np.asarray(each) for each in entries)
    place, where = np.unique(column.astype(np.int64) * num_rows + row, return_inverse=True)
    start = np.searchsorted(place, np.arange(num_columns + 1) * num_rows)
    summed: Floats = np.bincount(where, value.astype(np.float64), len(place)).astype(np.float64)
    return start.astype(np.int32), (place % max(num_rows, 1)).astype(np.int32), summed

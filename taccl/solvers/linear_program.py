"""Small linear programs, solved in this process by HiGHS.

SciPy's `linprog` would do, but the import of ``scipy.optimize`` takes 0.12 s of CPU more than highspy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


class Solution(NamedTuple):
    """Optimal solution of a linear program with M rows and N columns.

    - `values`, (N,): One per column.
    - `duals`, (M,): Change of the objective per unit of each row's bound.
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
    """Minimise ``cost @ x`` for ``x >= 0`` and rows with bounds; None unless that is solved in time.

    - `entries`: (row, column, value) of the matrix, each (Z,); values of one place are added.
    - `bounds`: (M,) upper bounds of the first rows, and of the rest, which are equations, the right-hand
      sides.
    - `method`: ``"simplex"``, ``"ipm"``, or ``"choose"``.
    """
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
    solver: Any = highspy.Highs.__base__()  # its own class prints a banner to stdout
    # HiGHS 1.16 presolves 361 rows of cut counting for 4 s; without it the simplex method takes 0.01 s.
    presolve = "on" if method == "ipm" else "off"
    settings = {"output_flag": False, "solver": method, "time_limit": limit_s, "presolve": presolve}
    for name, value in settings.items():
        solver.setOptionValue(name, value)
    solver.passModel(program)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    found = solver.getSolution()
    values, duals = np.array(found.col_value), np.array(found.row_dual)
    return Solution(values, duals, float(solver.getInfo().objective_function_value))


def _by_column(
    entries: tuple[ArrayLike, ArrayLike, ArrayLike], num_rows: int, num_columns: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
    """Starts of columns, rows, and values of a matrix."""
    row, column, value = (np.asarray(each) for each in entries)
    place, where = np.unique(column.astype(np.int64) * num_rows + row, return_inverse=True)
    start = np.searchsorted(place, np.arange(num_columns + 1) * num_rows)
    summed: Floats = np.bincount(where, value.astype(np.float64), len(place)).astype(np.float64)
    return start.astype(np.int32), (place % max(num_rows, 1)).astype(np.int32), summed

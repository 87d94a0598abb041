"""Mixed-integer linear models: a builder, and the arrays that every solver reads.

A model minimises ``cost @ x`` subject to ``row_lower <= A x <= row_upper`` and ``lower <= x <= upper``, with
some variables integer. Each row has a tag, a short text that says where it comes from, for reports and
explanations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

RELATIVE_GAP = 1e-6
"""Solvers stop once (objective - bound) / objective is no larger than this."""


@dataclass(frozen=True, slots=True, eq=False)
class LinearModel:
    """A mixed-integer linear model as read-only arrays, with V variables, N rows and Z nonzeros.

    - `cost`, (V,) float64: Objective coefficients, to be minimised.
    - `lower`, `upper`, (V,) float64: Bounds of the variables, all finite.
    - `integer`, (V,) bool: True for integer variables.
    - `row_start`, (N + 1,) int64: Row n has the nonzeros ``row_start[n]:row_start[n + 1]``.
    - `column`, (Z,) int64; `coefficient`, (Z,) float64: Variable and coefficient of each nonzero; each
      variable occurs at most once in a row.
    - `row_lower`, `row_upper`, (N,) float64: Bounds on each row's sum, or -inf and inf.
    - `row_tag`, (N,) int64: Index in `tag_names` of the row's tag.
    """

    cost: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    integer: np.ndarray
    row_start: np.ndarray
    column: np.ndarray
    coefficient: np.ndarray
    row_lower: np.ndarray
    row_upper: np.ndarray
    row_tag: np.ndarray
    tag_names: tuple[str, ...]

    @property
    def num_variables(self) -> int:
        """Number of variables."""
        return len(self.cost)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.row_lower)

    @property
    def num_nonzeros(self) -> int:
        """Number of nonzero coefficients."""
        return len(self.column)

    def objective(self, values: np.ndarray) -> float:
        """Objective value of a point."""
        return float(self.cost @ values)

    @property
    def row_of_nonzero(self) -> np.ndarray:
        """(Z,) int64, row of each nonzero."""
        return np.repeat(np.arange(self.num_rows), np.diff(self.row_start))

    def violations(self, values: np.ndarray, tolerance: float = 1e-6) -> list[str]:
        """Violated constraints of a point, one sentence each; empty if it is feasible.

        - `values`: (V,) float64.
        - `tolerance`: Absolute for bounds and integrality; for rows, relative to the larger of 1 and the
          row's bound.
        """
        if values.shape != (self.num_variables,):
            return [f"a point has shape {values.shape}; expected ({self.num_variables},)"]
        if not np.all(np.isfinite(values)):
            return [f"variable {np.flatnonzero(~np.isfinite(values))[0]} is not a finite number"]
        broken = [
            f"variable {index} is {values[index]:.9g}; "
            f"expected {self.lower[index]:g} to {self.upper[index]:g}"
            for index in np.flatnonzero((values < self.lower - tolerance) | (values > self.upper + tolerance))
        ]
        fraction = np.where(self.integer, np.abs(values - np.round(values)), 0.0)
        broken += [
            f"variable {index} is {values[index]:.9g}; expected a whole number"
            for index in np.flatnonzero(fraction > tolerance)
        ]
        weights = self.coefficient * values[self.column]
        sums = np.bincount(self.row_of_nonzero, weights=weights, minlength=self.num_rows)
        short = sums < self.row_lower - tolerance * np.maximum(1.0, np.abs(self.row_lower))
        over = sums > self.row_upper + tolerance * np.maximum(1.0, np.abs(self.row_upper))
        broken += [
            f"row {row} ({self.tag_names[self.row_tag[row]]}) sums to {sums[row]:.9g}; "
            f"expected {self.row_lower[row]:g} to {self.row_upper[row]:g}"
            for row in np.flatnonzero(short | over)
        ]
        return broken

    def to_message(self) -> dict[str, Any]:
        """The model as a dict of arrays and texts, to send to a worker."""
        message = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**message, "tag_names": list(self.tag_names)}

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> LinearModel:
        """Model from the result of `to_message`."""
        arrays = {name: message[name] for name in message if name != "tag_names"}
        for array in arrays.values():
            array.flags.writeable = False
        return cls(**arrays, tag_names=tuple(message["tag_names"]))


class MilpModel:
    """Builder of a linear model, to be minimised.

    - `tags`: {tag: number}, in order of first use.
    """

    def __init__(self) -> None:
        self._variables: list[tuple[float, float, bool, float]] = []
        self._rows: list[tuple[float, float, int]] = []
        self._row_start: list[int] = [0]
        self._column: list[int] = []
        self._coefficient: list[float] = []
        self.tags: dict[str, int] = {}

    def add_variable(self, lower: float, upper: float, *, integer: bool = False, cost: float = 0.0) -> int:
        """Add a variable and return its index. Raises `ValueError` if a bound or the cost is not finite."""
        if not (math.isfinite(lower) and math.isfinite(upper) and math.isfinite(cost)):
            raise ValueError(f"a variable has bounds {lower} to {upper} and cost {cost}; expected numbers")
        self._variables.append((lower, upper, integer, cost))
        return len(self._variables) - 1

    def add_row(
        self,
        terms: Iterable[tuple[float, int]],
        lower: float = -math.inf,
        upper: float = math.inf,
        *,
        tag: str,
    ) -> None:
        """Add a row ``lower <= sum(factor * variable) <= upper``.

        - `terms`: (factor, variable) pairs; factors of a repeated variable are added, and zeros dropped.
        - `tag`: Text that says where the row comes from.
        """
        sums: dict[int, float] = {}
        for factor, variable in terms:
            sums[variable] = sums.get(variable, 0.0) + factor
        for variable, factor in sums.items():
            if factor != 0.0:
                self._column.append(variable)
                self._coefficient.append(factor)
        self._row_start.append(len(self._column))
        self._rows.append((lower, upper, self.tags.setdefault(tag, len(self.tags))))

    @property
    def variables(self) -> list[tuple[float, float, bool, float]]:
        """(lower, upper, integer, cost) of each variable so far."""
        return self._variables

    @property
    def num_variables(self) -> int:
        """Number of variables so far."""
        return len(self._variables)

    def arrays(self) -> LinearModel:
        """The model so far, as read-only arrays."""
        lower, upper, integer, cost = np.array(self._variables, float).reshape(-1, 4).T.copy()
        row_lower, row_upper, row_tag = np.array(self._rows, float).reshape(-1, 3).T.copy()
        message = {
            "cost": cost,
            "lower": lower,
            "upper": upper,
            "integer": integer.astype(bool),
            "row_start": np.array(self._row_start, np.int64),
            "column": np.array(self._column, np.int64),
            "coefficient": np.array(self._coefficient, float),
            "row_lower": row_lower,
            "row_upper": row_upper,
            "row_tag": row_tag.astype(np.int64),
            "tag_names": self.tags,
        }
        return LinearModel.from_message(message)

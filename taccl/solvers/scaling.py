"""A linear model as whole numbers, for solvers that know nothing else.

Coefficients are read as the fractions that a person would write (0.1 is one tenth) and each row is
multiplied by the least common denominator. A continuous variable is put on a grid, a multiple of 1/`grid`.
The grid is *exact*, some optimum lies on it, if every row has at most one continuous variable, or two with
opposite factors: once the other variables are fixed, such rows make a network matrix, which is totally
unimodular, so that a vertex has whole coordinates when the right-hand sides are whole (Nemhauser and
Wolsey, *Integer and Combinatorial Optimization*, III.1.2). Rows such as ``finish >= start + 3 - 100 * (1 -
choice)`` are of that kind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from taccl.solvers.model import LinearModel

__all__ = ["NotScalableError", "WholeModel", "to_whole_numbers"]

HORIZON = 10**7  # stands in for an infinite bound
_COARSE_GRID = 10**4
_MAX_GRID = 10**6
_MAX_DENOMINATOR = 10**9
_MAX_SUM = 2**62
_SLACK = Fraction(1, 10**9)  # relative, so that 0.1 + 0.2 <= 0.3 holds


class NotScalableError(ValueError):
    """The model does not fit 64-bit whole numbers."""


@dataclass(frozen=True, slots=True)
class WholeModel:
    """Minimise ``cost @ y`` over whole y; variable v of the linear model is ``y[v] / step[v]``.

    Attributes
    ----------
    cost : list of int
        Objective times `cost_scale`.
    lower, upper : list of int
    open_lower, open_upper : (V,) bool
        Where `HORIZON` stands in for an infinite bound.
    rows : list of (variables, factors, lower, upper)
        Bounds are None where infinite.
    step : list of int
        1 for whole variables, `grid` for continuous ones.
    exact : bool
        Whether an optimum of the linear model lies on the grid.
    """

    cost: list[int]
    cost_scale: int
    lower: list[int]
    upper: list[int]
    open_lower: np.ndarray
    open_upper: np.ndarray
    rows: list[tuple[list[int], list[int], int | None, int | None]]
    step: list[int]
    grid: int
    exact: bool


def to_whole_numbers(model: LinearModel) -> WholeModel:
    """The model in whole numbers.

    Raises
    ------
    NotScalableError
        If a number has too many digits, or a row's sum could pass 2**62.
    """
    grid, exact = _grid(model)
    step = np.where(model.integer, 1, grid).tolist()
    open_lower, open_upper = np.isneginf(model.lower), np.isposinf(model.upper)
    slack = _SLACK.numerator / _SLACK.denominator
    lower = [
        -HORIZON * unit
        if math.isinf(bound)
        else math.ceil(bound * unit - slack * max(1.0, abs(bound * unit)))
        for bound, unit in zip(model.lower.tolist(), step, strict=True)
    ]
    upper = [
        HORIZON * unit
        if math.isinf(bound)
        else math.floor(bound * unit + slack * max(1.0, abs(bound * unit)))
        for bound, unit in zip(model.upper.tolist(), step, strict=True)
    ]
    largest = [max(abs(low), abs(high)) for low, high in zip(lower, upper, strict=True)]

    read = _Reader()
    column, coefficient, start = model.column.tolist(), model.coefficient.tolist(), model.row_start.tolist()
    bounds = zip(model.row_lower.tolist(), model.row_upper.tolist(), strict=True)
    rows = []
    for row, (row_lower, row_upper) in enumerate(bounds):
        variables = column[start[row] : start[row + 1]]
        exact_factors = [
            read(factor) / step[variable]
            for factor, variable in zip(coefficient[start[row] : start[row + 1]], variables, strict=True)
        ]
        factors, scale = _whole(exact_factors)
        if (
            sum(abs(factor) * largest[variable] for factor, variable in zip(factors, variables, strict=True))
            > _MAX_SUM
        ):
            raise NotScalableError(
                f"row {row} ({model.tag_names[model.row_tag[row]]}) passes 64 bits in whole numbers"
            )
        rows.append((variables, factors, _row_bound(row_lower, scale, -1), _row_bound(row_upper, scale, 1)))

    exact_costs = [read(cost) / unit for cost, unit in zip(model.cost.tolist(), step, strict=True)]
    costs, cost_scale = _whole(exact_costs)
    if sum(abs(cost) * bound for cost, bound in zip(costs, largest, strict=True)) > _MAX_SUM:
        raise NotScalableError("the objective passes 64 bits in whole numbers")
    return WholeModel(costs, cost_scale, lower, upper, open_lower, open_upper, rows, step, grid, exact)


class _Reader:
    """Floats to the fractions that a person means, remembering those seen."""

    def __init__(self) -> None:
        self._seen: dict[float, Fraction] = {}

    def __call__(self, value: float) -> Fraction:
        found = self._seen.get(value)
        if found is None:
            found = self._seen[value] = _fraction(value)
        return found


def _fraction(value: float) -> Fraction:
    decimal = Fraction(repr(value))
    if decimal.denominator <= _MAX_DENOMINATOR:
        return decimal
    simple = Fraction(value).limit_denominator(_MAX_GRID)  # one third, as a float
    if float(simple) == value:
        return simple
    raise NotScalableError(f"the number {value!r} has too many digits for whole-number scaling")


def _whole(values: list[Fraction]) -> tuple[list[int], int]:
    scale = math.lcm(*(value.denominator for value in values)) if values else 1
    return [value.numerator * (scale // value.denominator) for value in values], scale


def _row_bound(bound: float, scale: int, side: int) -> int | None:
    if math.isinf(bound):
        return None
    scaled = Fraction(repr(bound)) * scale
    slack = _SLACK * max(Fraction(scale), abs(scaled))
    return math.floor(scaled + slack) if side > 0 else math.ceil(scaled - slack)


def _grid(model: LinearModel) -> tuple[int, bool]:
    """Steps per unit for continuous variables, and whether that grid is exact."""
    continuous = ~model.integer
    if not continuous.any():
        return 1, True
    read = _Reader()
    try:
        bounds = np.concatenate((model.lower[continuous], model.upper[continuous]))
        denominators = {read(bound).denominator for bound in np.unique(bounds[np.isfinite(bounds)]).tolist()}
        is_continuous, column = continuous.tolist(), model.column.tolist()
        coefficient, start = model.coefficient.tolist(), model.row_start.tolist()
        row = np.repeat(np.arange(model.num_rows), np.diff(model.row_start))
        for index in np.unique(row[continuous[model.column]]).tolist():
            nonzeros = range(start[index], start[index + 1])
            own = [coefficient[at] for at in nonzeros if is_continuous[column[at]]]
            if len(own) > 2 or (len(own) == 2 and own[0] != -own[1]):
                return _COARSE_GRID, False
            unit = abs(read(own[0]))
            others = [coefficient[at] for at in nonzeros if not is_continuous[column[at]]]
            sides = [side for side in (model.row_lower[index], model.row_upper[index]) if math.isfinite(side)]
            denominators.update((read(float(value)) / unit).denominator for value in (*others, *sides))
    except NotScalableError:
        return _COARSE_GRID, False
    grid = math.lcm(*denominators) if denominators else 1
    return (grid, True) if grid <= _MAX_GRID else (_COARSE_GRID, False)

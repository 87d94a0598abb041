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

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from taccl.solvers.model import LinearModel

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

    - `cost`: Objective times `cost_scale`.
    - `rows` (list of (variables, factors, lower, upper)): Bounds are None where infinite.
    - `step`: 1 for whole variables, `grid` for continuous ones.
    - `exact`: Whether an optimum of the linear model lies on the grid.
    """

    cost: list[int]
    cost_scale: int
    lower: list[int]
    upper: list[int]
    rows: list[tuple[list[int], list[int], int | None, int | None]]
    step: list[int]
    grid: int
    exact: bool


def to_whole_numbers(model: LinearModel) -> WholeModel:
    """The model in whole numbers.

    Raises `NotScalableError` if a number has too many digits, or a row's sum could pass 2**62.
    """
    grid, exact = _grid(model)
    step = np.where(model.integer, 1, grid).tolist()
    bounds = zip(model.lower.tolist(), model.upper.tolist(), step, strict=True)
    reach = [(_held(lower, unit, -1), _held(upper, unit, 1)) for lower, upper, unit in bounds]
    largest = [max(map(abs, ends)) for ends in reach]

    def whole(factors: list[float], variables: Iterable[int], what: str) -> tuple[list[int], int]:
        """Factors of whole variables, times a common denominator."""
        exact_factors = [_fraction(f) / step[v] for f, v in zip(factors, variables, strict=True)]
        scale = math.lcm(*(factor.denominator for factor in exact_factors))
        found = [int(factor * scale) for factor in exact_factors]
        if sum(abs(f) * largest[v] for f, v in zip(found, variables, strict=True)) > _MAX_SUM:
            raise NotScalableError(f"{what} passes 64 bits in whole numbers")
        return found, scale

    rows = []
    sides = zip(model.row_lower.tolist(), model.row_upper.tolist(), strict=True)
    for row, (lower, upper) in enumerate(sides):
        at = slice(model.row_start[row], model.row_start[row + 1])
        variables, tag = model.column[at].tolist(), model.tag_names[model.row_tag[row]]
        factors, scale = whole(model.coefficient[at].tolist(), variables, f"row {row} ({tag})")
        rows.append((variables, factors, _row_bound(lower, scale, -1), _row_bound(upper, scale, 1)))
    costs, cost_scale = whole(model.cost.tolist(), range(model.num_variables), "the objective")
    return WholeModel(
        cost=costs,
        cost_scale=cost_scale,
        lower=[lower for lower, _ in reach],
        upper=[upper for _, upper in reach],
        rows=rows,
        step=step,
        grid=grid,
        exact=exact,
    )


def _held(bound: float, unit: int, side: int) -> int:
    """A variable's bound in whole steps: the last inside it, or nearly so."""
    return side * math.floor(side * bound * unit + float(_SLACK) * max(1.0, abs(bound * unit)))


@functools.cache
def _fraction(value: float) -> Fraction:
    decimal = Fraction(repr(value))
    if decimal.denominator <= _MAX_DENOMINATOR:
        return decimal
    simple = Fraction(value).limit_denominator(_MAX_GRID)  # one third, as a float
    if float(simple) == value:
        return simple
    raise NotScalableError(f"the number {value!r} has too many digits for whole-number scaling")


def _row_bound(bound: float, scale: int, side: int) -> int | None:
    if math.isinf(bound):
        return None
    scaled = Fraction(repr(bound)) * scale
    slack = _SLACK * max(Fraction(scale), abs(scaled))
    return side * math.floor(side * scaled + slack)


def _grid(model: LinearModel) -> tuple[int, bool]:
    """Steps per unit for continuous variables, and whether that grid is exact."""
    continuous = ~model.integer
    if not continuous.any():
        return 1, True
    try:
        bounds = np.concatenate((model.lower[continuous], model.upper[continuous]))
        denominators = {_fraction(bound).denominator for bound in np.unique(bounds).tolist()}
        is_continuous, column = continuous.tolist(), model.column.tolist()
        coefficient, start = model.coefficient.tolist(), model.row_start.tolist()
        for index in np.unique(model.row_of_nonzero[continuous[model.column]]).tolist():
            nonzeros = range(start[index], start[index + 1])
            own = [coefficient[at] for at in nonzeros if is_continuous[column[at]]]
            if len(own) > 2 or (len(own) == 2 and own[0] != -own[1]):
                return _COARSE_GRID, False
            unit = abs(_fraction(own[0]))
            others = [coefficient[at] for at in nonzeros if not is_continuous[column[at]]]
            sides = [side for side in (model.row_lower[index], model.row_upper[index]) if math.isfinite(side)]
            denominators.update((_fraction(float(value)) / unit).denominator for value in (*others, *sides))
    except NotScalableError:
        return _COARSE_GRID, False
    grid = math.lcm(*denominators) if denominators else 1
    return (grid, True) if grid <= _MAX_GRID else (_COARSE_GRID, False)

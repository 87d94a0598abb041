"""Lower bound for algorithms that send data along one dimension after another: load of the busiest dimension.

A chunk passes all dimensions in some order, and loads each in proportion to its size at that point. A
reduction divides the chunk by the size of every dimension already passed. Chunks may take different orders.
A linear program with a column for each order finds the split of the data that minimises the maximum load. Its
dual assigns prices to dimensions, with sum 1; no mix of orders costs less than the cheapest order. An
exchange argument shows that the cheapest order sorts dimensions by price over bandwidth, ascending. Columns
are therefore generated on demand, and a certificate is checked by sorting.

The bound counts bandwidth only, for data that may be cut arbitrarily. It does not hold for other algorithms;
`taccl.lower_bound` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from taccl._internal.units import BYTES_PER_MB, format_us
from taccl.analysis.certificates.certificate import is_exact
from taccl.errors import CollectiveError, TopologyError
from taccl.problem.problem import Problem
from taccl.solvers.highs import minimise
from taccl.topology.products import Dimensions
from taccl.topology.recognise import dimensions

#: Number of times that the data passes all dimensions.
_PASSES = {"allgather": 1, "reduce-scatter": 1, "alltoall": 1, "allreduce": 2}
_TOLERANCE = 1e-9
#: Largest denominator of rounded prices; the bound that they prove is still exact.
_FINEST_PRICE = 10**6


@dataclass(frozen=True)
class DimensionBound:
    """Lower bound, by bandwidth only, on the finish of algorithms that pass one dimension after another.

    - `size_bytes`: Size as nccl-tests counts it.
    - `prices`: Dual price of each dimension's busy time; the prices sum to 1.
    - `bound`: The bound in microseconds, exact.
    - `fixed`: Microseconds if all data passes the dimensions in their declared order.
    """

    dims: Dimensions
    collective: str
    size_bytes: int
    prices: tuple[Fraction, ...]
    bound: Fraction
    fixed: Fraction

    @property
    def bound_us(self) -> float:
        """The bound in microseconds."""
        return float(self.bound)

    @property
    def gain(self) -> float:
        """Ratio of the time in the declared order of dimensions to the bound; both ignore latency."""
        return float(self.fixed / self.bound)

    @property
    def limits(self) -> str:
        """One sentence that names the limiting dimensions and the gain from balancing."""
        busy = [f"dimension {k + 1} ({each})" for k, each in enumerate(self.dims) if self.prices[k]]
        free = [f"dimension {k + 1}" for k, price in enumerate(self.prices) if not price]
        said = f"{' and '.join(busy)} {'are' if len(busy) > 1 else 'is'} busy all the time"
        if free:
            said += f", {' and '.join(free)} {'have' if len(free) > 1 else 'has'} time to spare"
        if self.gain < 1 + _TOLERANCE:
            return f"{said}; balancing gains nothing over a fixed order"
        return f"{said}; their own order for all data takes {self.gain:.3g} times as long"

    @property
    def text(self) -> str:
        """The bound as text for a table: value, scope and limit."""
        return f"at least {format_us(self.bound)} by any such algorithm, bandwidth only; {self.limits}"

    def check(self) -> bool:
        """True if the prices prove the bound: under them, the cheapest order costs at least the bound."""
        if not (is_exact(self.prices, tuple[Fraction, ...]) and is_exact(self.bound, Fraction)):
            return False
        if len(self.prices) != len(self.dims) or min(self.prices) < 0 or sum(self.prices) != 1:
            return False
        return self.bound <= _priced(self.dims, self.collective, self.prices) * self.size_mb

    @property
    def size_mb(self) -> Fraction:
        """The size in 10**6 bytes, exact."""
        return Fraction(self.size_bytes, BYTES_PER_MB)

    def to_dict(self) -> dict[str, Any]:
        """The bound as plain values."""
        return {
            "dimension_bound_us": self.bound_us,
            "dimension_limits": self.limits,
            "fixed_order_us": float(self.fixed),
            "dimension_prices": [float(price) for price in self.prices],
        }

    def __repr__(self) -> str:
        what = f"{self.collective} on {self.dims.host.name}"
        return f"DimensionBound({what}: {self.text})"


def _loads(dims: Dimensions, collective: str, order: Sequence[int]) -> list[Fraction]:
    """Microseconds for which each dimension is busy if 10**6 bytes pass all dimensions in the given order."""
    if collective not in _PASSES:
        known = ", ".join(_PASSES)
        raise CollectiveError(f"found {collective}; expected one of {known}", where="dimensions")
    loads = dims.loads_us_per_mb(order, exchange=collective == "alltoall")
    return [_PASSES[collective] * load for load in loads]


def balance(dims: Dimensions, collective: str) -> tuple[dict[tuple[int, ...], float], tuple[Fraction, ...]]:
    """Split data among orders of dimensions to minimise the maximum load: ({order: share}, dual prices)."""
    count = len(dims)
    columns = [(*range(first, count), *range(first)) for first in range(count)]
    while True:
        loads = np.array([_loads(dims, collective, order) for order in columns], float)
        unit = loads.max()
        shares = np.append(np.ones(len(columns)), 0.0)
        matrix = np.vstack((np.column_stack((loads.T / unit, -np.ones(count))), shares))
        entries = (*np.nonzero(matrix), matrix[matrix != 0])
        cost = np.append(np.zeros(len(columns)), 1.0)
        found = minimise(cost, entries, (np.zeros(count), [1.0]), method="simplex")
        assert found is not None
        marginals = [max(0.0, -each) for each in found.duals[:count].tolist()]
        rounded = [Fraction(round(each * _FINEST_PRICE), _FINEST_PRICE) for each in marginals]
        prices = tuple(each / sum(rounded) for each in rounded)
        cheapest = _cheapest(dims, prices)
        if cheapest in columns:
            parts = zip(columns, found.values.tolist(), strict=False)
            return {order: share for order, share in parts if share > _TOLERANCE}, prices
        columns.append(cheapest)


def bound_along(problem: Problem) -> DimensionBound | None:
    """Bandwidth bound of a problem along the dimensions of its topology; None if it does not apply.

    It applies if the topology has several dimensions, and the collective is in `_PASSES`, has no groups, and
    has a known size.
    """
    collective = problem.collective
    if collective.name not in _PASSES or not problem.size_bytes or collective.groups:
        return None
    try:
        dims = dimensions(problem.topology)
    except TopologyError:
        return None
    return dimension_bound(dims, collective.name, problem.size_bytes) if len(dims) > 1 else None


def dimension_bound(dims: Dimensions, collective: str, size_bytes: int) -> DimensionBound:
    """Lower bound on a collective's finish by any algorithm that passes one dimension after another."""
    _, prices = balance(dims, collective)
    size_mb = Fraction(size_bytes, BYTES_PER_MB)
    fixed = max(_loads(dims, collective, range(len(dims))))
    bound = _priced(dims, collective, prices) * size_mb
    return DimensionBound(dims, collective, size_bytes, prices, bound, fixed * size_mb)


def _cheapest(dims: Dimensions, prices: Sequence[Fraction]) -> tuple[int, ...]:
    """Cheapest order in which a chunk can pass the dimensions, under the given prices."""
    return tuple(sorted(range(len(dims)), key=lambda k: (prices[k] / dims.dims[k].bandwidth_gb_per_s, k)))


def _priced(dims: Dimensions, collective: str, prices: Sequence[Fraction]) -> Fraction:
    """Cost in us of 1 MB under the prices, in its cheapest order of dimensions."""
    loads = _loads(dims, collective, _cheapest(dims, prices))
    return sum((load * price for load, price in zip(loads, prices, strict=True)), Fraction(0))

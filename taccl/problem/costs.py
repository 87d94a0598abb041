"""Exact times of sends as integer ticks, on a grid as fine as the topology's fractions require."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import itemgetter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import Flags, Floats, Ints, distinct, lexsort, ranges
from taccl._internal.caching import ALIKE, REVERSED_FROM, cached
from taccl._internal.units import BYTES_PER_MB, format_size
from taccl.errors import NumericsWarning, TopologyError, warn
from taccl.topology.links import columns_of
from taccl.topology.topology import Topology

T = TypeVar("T", bound=np.generic)
#: `MAX_TICKS_PER_US`: max ticks per microsecond (femtoseconds), for exact and for rounded costs.
#: `ROUNDED_TICKS_PER_US`: max ticks (picoseconds) for rounded costs if times are too long for femtoseconds.
MAX_TICKS_PER_US, ROUNDED_TICKS_PER_US = 10**9, 10**6
#: {ticks per microsecond: name of a tick}.
_NAMES = {MAX_TICKS_PER_US: "femtosecond", ROUNDED_TICKS_PER_US: "picosecond"}
_MAX_FINISH_TICKS = 2**62


@dataclass(frozen=True)
class Costs:
    """Costs as integer ticks, exact or rounded up (see `exact_costs`).

    A send of u units over link e takes ``link_alpha[e] + u * link_beta[e]`` ticks; chunk c has
    ``chunk_units[c]`` units. Holds are indexed as `Topology.holds`. All arrays are int64.
    """

    ticks_per_us: int
    link_alpha: Ints
    link_beta: Ints
    hold_alpha: Ints
    hold_beta: Ints
    chunk_units: Ints

    def __repr__(self) -> str:
        numbers = f"{len(self.link_alpha)} links, {len(self.chunk_units)} chunks"
        return f"Costs({numbers}, {self.ticks_per_us} ticks per us)"

    def duration(self, link: int, units: int) -> int:
        """Duration in ticks of a send of `units` over `link`."""
        return int(self.link_alpha[link]) + units * int(self.link_beta[link])

    def us(self, ticks: int) -> Fraction:
        """Ticks as exact microseconds."""
        return Fraction(int(ticks), self.ticks_per_us)


@dataclass(frozen=True, slots=True)
class HoldColumns:
    """Holds of a topology (resources that a send over a link occupies) as arrays, with an index by link.

    - `link`, `resource`: (num_holds,) int64, link and resource of each hold.
    - `receives`, (num_holds,) bool: True if the hold ends with the send (receiving side), False if it begins
      with the send.
    """

    link: Ints
    resource: Ints
    receives: Flags
    _by_link: Ints
    _first: Ints

    def of_sends(self, link: Ints) -> tuple[Ints, Ints]:
        """Two arrays, index of the send and index of the hold, for all holds of sends over given links."""
        send, row = ranges(self._first[link], self._first[link + 1])
        return send, self._by_link[row]


@cached
def hold_columns(topology: Topology) -> HoldColumns:
    """Holds of a topology as columns; cached with the topology."""
    if (other := topology.cache.get(REVERSED_FROM)) is not None:
        same = hold_columns(other)
        return replace(same, receives=_frozen(~same.receives))
    if (other := topology.cache.get(ALIKE)) is not None:
        return hold_columns(other)
    links, resources, sides = columns_of(topology.holds, 0, 1, 4)
    link, count = _read_only(list(links)), len(topology.holds)
    receives = _frozen(np.fromiter(map("receive".__eq__, sides), bool, count))
    first = np.concatenate(([0], np.cumsum(np.bincount(link, minlength=len(topology.links)))))
    resource = _read_only(list(resources))
    return HoldColumns(link, resource, receives, lexsort((link,)), first)


@cached
def link_costs_us(topology: Topology) -> tuple[Floats, Floats]:
    """Latency in us, and time in us per MB, of every link, as floating-point numbers; cached."""
    alpha_us, us_per_mb, *_ = map(_floats, cost_columns(topology))
    return alpha_us, us_per_mb


@cached
def hold_costs_us(topology: Topology) -> tuple[Floats, Floats]:
    """Latency in us, and time in us per MB, of every hold, as floating-point numbers; cached."""
    *_, alpha_us, us_per_mb = map(_floats, cost_columns(topology))
    return alpha_us, us_per_mb


def _floats(column: tuple[list[Fraction], Ints]) -> Floats:
    """Values of a column of `cost_columns` as floating-point numbers."""
    values, index = column
    return _frozen(np.array([float(value) for value in values])[index])


@cached
def link_ends(topology: Topology) -> tuple[Ints, Ints]:
    """Arrays with the first source and the first destination of every link; cached with the topology."""
    if (other := topology.cache.get(REVERSED_FROM)) is not None:
        src, dst = link_ends(other)
        return dst, src
    if (other := topology.cache.get(ALIKE)) is not None:
        return link_ends(other)
    src, dst = (_read_only(list(map(itemgetter(0), ends))) for ends in columns_of(topology.links, 0, 1))
    return src, dst


@cached
def ranks_differ(topology: Topology) -> bool:
    """True if costs of links differ from rank to rank, or between the two directions of a pair of ranks."""
    (src, dst), (alphas, betas, *_) = link_ends(topology), cost_columns(topology)
    kinds, cost = np.unique(alphas[1] * len(betas[0]) + betas[1], return_inverse=True)
    if len(distinct(src * len(kinds) + cost)) < topology.num_ranks * len(kinds):
        return True
    order, back = lexsort((cost, dst, src)), lexsort((cost, src, dst))
    columns = (src, dst), (dst, src), (cost, cost)
    return any((there[order] != again[back]).any() for there, again in columns)


@cached
def wide_links(topology: Topology) -> tuple[int, ...]:
    """Indices of links with several sources or destinations (reduction, multicast); cached per topology."""
    if (other := topology.cache.get(REVERSED_FROM)) is not None:
        return wide_links(other)
    if (other := topology.cache.get(ALIKE)) is not None:
        return wide_links(other)
    num_ends = [np.fromiter(map(len, ranks), np.int64) for ranks in columns_of(topology.links, 0, 1)]
    return tuple(np.flatnonzero(np.add(*num_ends) > 2).tolist())


def read_columns(topology: Topology) -> None:
    """Compute a topology's cached columns before any time limit starts; slow for very many links."""
    link_ends(topology), wide_links(topology), hold_columns(topology), cost_columns(topology)


@cached
def cost_columns(topology: Topology) -> list[tuple[list[Fraction], Ints]]:
    """Distinct alphas and betas of a topology's links and holds, and the index of the value of each.

    There are four pairs (distinct values, index of the value of each link or hold): alpha and beta of links,
    then alpha and beta of holds.
    """
    if (other := topology.cache.get(REVERSED_FROM)) is not None:
        return cost_columns(other)
    columns = []
    for things in (topology.links, topology.holds):
        for found in map(list, columns_of(things, 2, 3)):
            which = list(map(id, found))
            values = dict(zip(which, found, strict=True))  # keyed by object identity, as many are shared
            number: dict[tuple[int, int], int] = {}
            place = {key: number.setdefault(v.as_integer_ratio(), len(number)) for key, v in values.items()}
            index = np.fromiter(map(place.__getitem__, which), np.int64, len(which))
            columns.append(([Fraction(*ratio) for ratio in number], index))
    return columns


def exact_costs(topology: Topology, chunk_bytes: Sequence[int]) -> Costs:
    """Costs of a topology in integer ticks, and sizes of chunks in integer units.

    Costs are rounded up if they need more than a tick per femtosecond, or if times need more than 64 bits. A
    tick is then a femtosecond, or a picosecond if times are too long. A `NumericsWarning` says so. Times and
    bounds are then those of the rounded costs. `TopologyError` is raised if times need more than 64 bits even
    so.
    """
    unit_bytes = math.gcd(*set(chunk_bytes)) if chunk_bytes else 1
    scale = Fraction(unit_bytes, BYTES_PER_MB)
    columns, by = cost_columns(topology), (Fraction(1), scale) * 2
    us = [[value * each for value in values] for (values, _), each in zip(columns, by, strict=True)]
    ticks_per_us = math.lcm(*{value.denominator for values in us for value in values})
    units_of = {size: size // unit_bytes for size in set(chunk_bytes)}
    units = [units_of[size] for size in chunk_bytes]

    def on_grid(per_us: int) -> tuple[list[list[int]], int]:
        """(costs at `per_us` ticks per microsecond, rounded up; ticks of all chunks one after another)."""
        ticks = [[math.ceil(exact * per_us) for exact in values] for values in us]
        dearest_alpha, dearest_beta = (max(values, default=0) for values in ticks[:2])
        # All chunks one after another over a path of the slowest links.
        return ticks, (dearest_alpha * len(units) + dearest_beta * sum(units)) * topology.num_ranks

    ticks, longest = on_grid(ticks_per_us)
    exact_per_us = ticks_per_us
    for per_us in (MAX_TICKS_PER_US, ROUNDED_TICKS_PER_US):
        if per_us < ticks_per_us and (ticks_per_us > MAX_TICKS_PER_US or longest > _MAX_FINISH_TICKS):
            ticks_per_us = per_us
            ticks, longest = on_grid(per_us)
    if ticks_per_us < exact_per_us:
        pairs = (each for exact, rounded in zip(us, ticks, strict=True) for each in zip(exact, rounded))
        _warn_of_rounding(topology, ticks_per_us, max(Fraction(t) / ticks_per_us / v for v, t in pairs if v))
    if longest > _MAX_FINISH_TICKS:
        raise TopologyError(
            f"found costs and chunks of {format_size(max(chunk_bytes))} that need more than 64 bits "
            f"at {ticks_per_us} ticks per microsecond; give smaller costs or chunks",
            where=topology.name,
        )
    link_alpha, link_beta, hold_alpha, hold_beta = (
        _read_only(np.array(values, np.int64)[index])
        for (_, index), values in zip(columns, ticks, strict=True)
    )
    return Costs(ticks_per_us, link_alpha, link_beta, hold_alpha, hold_beta, _read_only(units))


def _warn_of_rounding(topology: Topology, ticks_per_us: int, most: Fraction) -> None:
    """Warn that costs are not exact, once per topology; `most` is the largest ratio to an exact cost."""
    if "rounding is told" in topology.cache:
        return
    topology.cache["rounding is told"] = True
    text = (
        f"{topology.name}: each cost is rounded up to a {_NAMES[ticks_per_us]}, by at most "
        f"{float(100 * (most - 1)):.2g} %, as ticks of 64 bits cannot hold all costs exactly; times and "
        "bounds are for the rounded costs"
    )
    warn(text, NumericsWarning)


def _read_only(values: Sequence[int] | Ints) -> Ints:
    return _frozen(np.array(values, dtype=np.int64))


def _frozen(array: NDArray[T]) -> NDArray[T]:
    array.setflags(write=False)
    return array

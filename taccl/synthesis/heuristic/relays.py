"""Which ranks carry a chunk on its way to ranks that want it, when they do not want it themselves.

Those on its route (`taccl.synthesis.heuristic.router`) do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from taccl.synthesis.heuristic.fabric import Demand, pack_bits
from taccl.synthesis.heuristic.limits import Limits
from taccl.synthesis.heuristic.queues import travel_ticks
from taccl.synthesis.heuristic.router import find_paths, find_trees, search_steps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.synthesis.heuristic.fabric import Fabric
    from taccl.synthesis.heuristic.router import Routes

__all__ = ["with_relays"]


def with_relays(fabric: Fabric, demand: Demand, limits: Limits = Limits()) -> Demand:
    """The demand with its routes, or with relays among the ranks that receive a chunk, farthest first.

    Raises
    ------
    CollectiveError
        If a chunk cannot reach a rank that wants it.
    NoSolutionError
        If it was stopped before every chunk had its routes, or relays.
    """
    if demand.target is not None:
        return replace(demand, routes=find_paths(fabric, demand, limits))
    if demand.wanted is None:
        return demand
    parameters = limits.parameters.router
    steps = search_steps(fabric, demand) * len(parameters.tree_exponents)
    if steps <= parameters.kept_steps:
        routes = find_trees(fabric, demand, limits)
        return replace(_relayed(fabric, demand, routes, np.arange(demand.num_chunks)), routes=routes)
    shared, net = _shared(demand, max(1, demand.num_chunks // parameters.most_searches))
    routes = find_trees(fabric, shared, limits, most_steps=parameters.kept_steps)
    return _relayed(fabric, demand, routes, net)


def _shared(demand: Demand, at_once: int) -> tuple[Demand, NDArray[np.int64]]:
    """Up to so many neighbouring chunks that start and end alike as one, and the one that each is part of."""
    assert demand.wanted is not None, "not all ranks want all chunks"
    starts = [each.tobytes() for each in np.split(demand.origin, demand.origin_of[1:-1])]
    first, size = [0], 0
    for c in range(1, demand.num_chunks):
        before = c - 1
        size += 1
        is_alike = starts[c] == starts[before] and (_column(demand, c) == _column(demand, before)).all()
        if size == at_once or not is_alike:
            first.append(c)
            size = 0
    begin = np.array(first)
    counts = np.diff(demand.origin_of)[begin]
    rows = np.repeat(demand.origin_of[begin] - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    shared = Demand(
        np.add.reduceat(demand.units, begin),
        np.concatenate(([0], np.cumsum(counts))),
        demand.origin[rows],
        pack_bits(np.stack([_column(demand, c) for c in first], axis=1)),
    )
    return shared, np.searchsorted(begin, np.arange(demand.num_chunks), side="right") - 1


def _column(demand: Demand, c: int) -> NDArray[np.bool_]:
    """Which ranks want a chunk."""
    assert demand.wanted is not None, "not all ranks want all chunks"
    wants: NDArray[np.bool_] = (demand.wanted[:, c >> 3] >> (c & 7) & 1).astype(bool)
    return wants


def _relayed(fabric: Fabric, demand: Demand, routes: Routes, net: NDArray[np.int64]) -> Demand:
    """The demand of all ranks on the routes, and how long each chunk travels on that of its net."""
    assert demand.wanted is not None, "not all ranks want all chunks"
    hops = np.diff(routes.hop_of)[net]
    chunk = np.repeat(np.arange(demand.num_chunks), hops)
    row = np.repeat(routes.hop_of[net] - (np.cumsum(hops) - hops), hops) + np.arange(len(chunk))
    wanted = demand.wanted.copy()
    bit = (1 << (chunk & 7)).astype(np.uint8)
    np.bitwise_or.at(wanted, (fabric.dst[routes.slot[row]], chunk >> 3), bit)
    longest = np.zeros(len(routes.hop_of) - 1, np.int64)
    units = demand.units[np.searchsorted(net, np.arange(len(longest)))]
    np.maximum.at(longest, routes.chunk, travel_ticks(fabric, units, routes))
    return replace(demand, wanted=wanted, needed=demand.wanted, reach=longest[net])

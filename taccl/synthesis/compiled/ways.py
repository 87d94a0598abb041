"""Ways of chunks that each go to one rank, such that they load a fabric evenly.

The finish of such a collective is hardly ever limited by how long its ways are, but by the link or resource
that most of them pass. See `taccl.synthesis.compiled.ways_kernel` for the search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from taccl.errors import CollectiveError, NoSolutionError
from taccl.synthesis.compiled.events import stopping
from taccl.synthesis.compiled.ways_kernel import (
    STOPPED,
    Search,
    Traffic,
    choose_ways,
    find_trees,
    list_hops,
    peak_load,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.synthesis.compiled.fabric import Demand, Fabric

__all__ = ["Ways", "find_ways", "tree_bytes"]

#: For every tree that is added, the powers (of 2) of the load that prices rise by: in the search for it, and
#: in the choices that follow. Flat at first, so that ways differ, and steep in the end.
_STEPS = ((0, (1,)), (2, (3,)), (3, (4,)), (4, (5,)), (4, (5, 6)), (4, (5, 6)), (5, (6,)), (5, (6,)))
_WEIGHT = 4.0
#: No further tree after so many that did not help.
_PATIENCE = 2


@dataclass(frozen=True, slots=True)
class Ways:
    """The way of every chunk, slot after slot, and the load that they make.

    Parameters
    ----------
    hop_of : (num_chunks + 1,) int64
    slot : (num_hops,) int32
        The slots of chunk c are ``slot[hop_of[c]:hop_of[c + 1]]``.
    peak_ticks : int
        How long the busiest link or resource is taken: nothing along these ways finishes sooner.
    may_relay : (num_ranks,) bool, optional
        Ranks that they may pass; None for all.
    urgent : (num_hops,) bool, optional
        Hops that go before all others over their link; None for none.
    """

    hop_of: NDArray[np.int64]
    slot: NDArray[np.int32]
    peak_ticks: int
    may_relay: NDArray[np.bool_] | None = None
    urgent: NDArray[np.bool_] | None = None


def find_ways(
    fabric: Fabric,
    demand: Demand,
    *,
    seed: int = 0,
    may_relay: NDArray[np.bool_] | None = None,
    seconds: float | None = None,
) -> Ways:
    """Ways that load the fabric evenly.

    Parameters
    ----------
    demand : Demand
        With a target for every chunk.
    may_relay : (num_ranks,) bool, optional
        Ranks that may carry chunks that neither start nor end there; by default all.
    seconds : float, optional
        When to stop, and take the best so far.

    Raises
    ------
    CollectiveError
        If a chunk cannot reach its target.
    NoSolutionError
        If it was stopped before every chunk had a way.
    """
    traffic = _traffic(fabric, demand, may_relay)
    search = _search(fabric, demand, len(traffic.size))
    rng = np.random.default_rng(seed)
    signal = np.zeros(1, np.int64)
    with stopping(signal, seconds):
        best, peak = _choose(fabric, demand, traffic, search, rng, signal)
    hop_of = np.zeros(demand.num_chunks + 1, np.int64)
    list_hops(fabric, traffic, search.way, best, hop_of, np.zeros(0, np.int32))
    np.cumsum(hop_of, out=hop_of)
    slot = np.empty(int(hop_of[-1]), np.int32)
    list_hops(fabric, traffic, search.way, best, hop_of, slot)
    return Ways(hop_of, slot, round(peak), may_relay)


def _choose(
    fabric: Fabric,
    demand: Demand,
    traffic: Traffic,
    search: Search,
    rng: np.random.Generator,
    signal: NDArray[np.int64],
) -> tuple[NDArray[np.int32], float]:
    """The tree that each chunk follows, and how long that takes the busiest resource."""
    best, peak, idle = search.tree, 0.0, 0
    for k, (steepness, choices) in enumerate(_STEPS):
        find_trees(fabric, traffic, search, k, steepness, _WEIGHT if k else 0.0, peak, signal)
        for power in choices:
            order = np.lexsort((rng.random(demand.num_chunks), -demand.units))
            lost = choose_ways(fabric, traffic, search, order, k + 1, power, _WEIGHT, peak, signal)
            if lost >= 0:
                raise CollectiveError(
                    f"chunk {lost} cannot reach a rank that wants it over the links and relays that may be "
                    "used; add links, or ranks that relay",
                    where="destinations",
                )
            if k == 0 and lost == STOPPED:
                raise NoSolutionError("stopped before every chunk had a way; give more time")
        idle += 1
        now = peak_load(search)
        if k == 0 or now < peak:
            best, peak, idle = search.tree.copy(), now, 0
        if idle >= _PATIENCE or signal[0]:
            break
    return best, peak


def tree_bytes(fabric: Fabric, demand: Demand) -> int:
    """Bytes that the trees of a search take."""
    num_groups = min(demand.num_chunks, len(np.unique(demand.origin)))
    return 4 * len(_STEPS) * num_groups * fabric.num_ranks


def _traffic(fabric: Fabric, demand: Demand, may_relay: NDArray[np.bool_] | None) -> Traffic:
    """Chunks in groups that start at the same ranks."""
    assert demand.target is not None, "the caller has chunks with one target each"
    counts = np.diff(demand.origin_of)
    if (counts == 1).all():
        origins, group = np.unique(demand.origin, return_inverse=True)
        origin_of = np.arange(len(origins) + 1)
    else:
        parts = [tuple(part.tolist()) for part in np.split(demand.origin, demand.origin_of[1:-1])]
        names = {name: number for number, name in enumerate(dict.fromkeys(parts))}
        group = np.array([names[part] for part in parts])
        origins = np.array([rank for name in names for rank in name])
        origin_of = np.concatenate(([0], np.cumsum([len(name) for name in names])))
    total = np.bincount(group, weights=demand.units)
    size = np.maximum(1, total // np.bincount(group)).astype(np.int64)
    allowed = np.ones(fabric.num_ranks, bool) if may_relay is None else np.asarray(may_relay, bool)
    return Traffic(
        np.array(demand.units, dtype=np.int64),
        demand.target,
        group.astype(np.int32),
        size,
        origin_of.astype(np.int64),
        origins.astype(np.int32),
        allowed,
    )


def _search(fabric: Fabric, demand: Demand, num_groups: int) -> Search:
    room = fabric.num_slots + fabric.num_ranks
    return Search(
        way=np.full((len(_STEPS), num_groups, fabric.num_ranks), -1, np.int32),
        tree=np.full(demand.num_chunks, -1, np.int32),
        load=np.zeros(fabric.num_slots),
        resource_load=np.zeros(fabric.num_resources),
        resource_price=np.zeros(fabric.num_resources),
        cost=np.zeros(fabric.num_ranks),
        is_done=np.zeros(fabric.num_ranks, bool),
        heap_cost=np.empty(room),
        heap_rank=np.empty(room, np.int64),
    )

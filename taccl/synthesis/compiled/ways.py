"""Ways of chunks that each go to one rank, such that they load a fabric evenly.

The finish of such a collective is hardly ever limited by how long its ways are, but by the link or resource
that most of them pass. See `taccl.synthesis.compiled.ways_kernel` for the search.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from taccl.errors import CollectiveError, NoSolutionError
from taccl.synthesis.compiled.events import is_stopped, part, stopping, time_left_s
from taccl.synthesis.compiled.ways_kernel import (
    STOPPED,
    Search,
    Traffic,
    choose_ways,
    find_tree,
    find_trees,
    list_hops,
    peak_load,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from taccl.synthesis.compiled.fabric import Demand, Fabric

__all__ = ["Ways", "find_ways", "sending_ns", "tree_bytes"]

#: For every tree that is added, the powers (of 2) of the load that prices rise by: in the search for it, and
#: in the choices that follow. Flat at first, so that ways differ, and steep in the end.
_STEPS = ((0, (1,)), (2, (3,)), (3, (4,)), (4, (5,)), (4, (5, 6)), (4, (5, 6)), (5, (6,)), (5, (6,)))
_WEIGHT = 4.0
#: No further tree after so many that did not help.
_PATIENCE = 2
#: Nanoseconds, about: to look at a link in the search for a tree, and for a hop, a tree and a resource in a
#: choice; and to send a hop, which is done once there are ways.
_LINK_NS, _CHOICE_NS, _QUEUE_NS = 25, 35, 1000
#: No pass is begun that leaves less than so many times the time for sending that it would take.
_MARGIN = 1.3
#: From how many groups of chunks, and how many chunks of them, it is sampled how many hops there will be.
_SAMPLED, _SAMPLED_CHUNKS = 8, 500


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
        If it was stopped before every chunk had a way, or all work was.
    """
    traffic = _traffic(fabric, demand, may_relay)
    search = _search(fabric, demand, len(traffic.size))
    rng = np.random.default_rng(seed)
    signal = np.zeros(2, np.int64)
    with stopping(signal, seconds):
        best, peak = _choose(fabric, demand, traffic, search, rng, signal)
    if is_stopped():
        raise NoSolutionError("stopped before anything was sent along the ways; give more time")
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
    passes = _Passes(fabric, traffic, search, signal)
    for k, (steepness, choices) in enumerate(_STEPS):
        if k and not passes.has_time(k):
            break
        with passes.trees(k):
            find_trees(fabric, traffic, search, k, steepness, _WEIGHT if k else 0.0, peak, signal)
        for i, power in enumerate(choices):
            order = np.lexsort((rng.random(demand.num_chunks), -demand.units))
            with passes.choice(k, i):
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


class _Passes:
    """How long each pass takes beside the others and beside the sending that follows."""

    def __init__(self, fabric: Fabric, traffic: Traffic, search: Search, signal: NDArray[np.int64]) -> None:
        self._signal = signal
        self._num_groups, self._num_chunks = len(traffic.size), len(traffic.units)
        num_hops = _sampled_hops(fabric, traffic, search)
        self._tree = _LINK_NS * self._num_groups * fabric.num_slots
        self._hop = _CHOICE_NS * num_hops * (1 + len(fabric.hold_resource) / max(1, fabric.num_slots))
        steps = [
            each
            for k, (_, choices) in enumerate(_STEPS)
            for each in (self._tree, *(self._hop * (k + 2) for _ in choices))
        ]
        self._sending = sending_ns(fabric, num_hops)
        self._left = sum(steps) + self._sending
        self._began, self._ended = time.monotonic(), 0.0

    def has_time(self, k: int) -> bool:
        """Whether there is the time for pass k and for sending after it, going by the passes so far."""
        steps = self._tree + self._hop * (k + 2) * len(_STEPS[k][1]) + self._sending
        took_s = (time.monotonic() - self._began) * steps / self._ended
        return _MARGIN * took_s <= time_left_s()

    def trees(self, k: int) -> AbstractContextManager[None]:
        """While pass k searches for its trees."""
        return self._part(f"balancing routes, pass {k + 1} of {len(_STEPS)}", self._tree, self._num_groups)

    def choice(self, k: int, i: int) -> AbstractContextManager[None]:
        """While chunks choose among the trees of pass k, for the i-th time."""
        again = f", choice {i + 1} of {len(_STEPS[k][1])}" if i else ""
        name = f"balancing routes, pass {k + 1} of {len(_STEPS)}{again}"
        return self._part(name, self._hop * (k + 2), self._num_chunks)

    def _part(self, name: str, steps: float, count: int) -> AbstractContextManager[None]:
        signal = self._signal
        signal[1] = 0
        self._left -= steps
        self._ended += steps
        return part(name, done=lambda: float(signal[1]) / count, steps=steps, ahead=self._left)


def sending_ns(fabric: Fabric, num_hops: float) -> float:
    """Nanoseconds that it takes to send along so many hops, about."""
    return _QUEUE_NS * num_hops * (1 + len(fabric.hold_resource) / max(1, fabric.num_slots))


def _sampled_hops(fabric: Fabric, traffic: Traffic, search: Search) -> float:
    """How many hops all chunks have on their shortest ways, by those of some."""
    num_groups, num_chunks = len(traffic.size), len(traffic.units)
    groups = np.arange(0, num_groups, max(1, num_groups // _SAMPLED))
    for g in groups.tolist():
        find_tree(fabric, traffic, search, 0, g, 0, 0.0, 0.0)
    chunks = np.flatnonzero(np.isin(traffic.group, groups))
    chunks = chunks[:: max(1, len(chunks) // _SAMPLED_CHUNKS)]
    count = 0
    for c in chunks.tolist():
        way, rank = search.way[0, traffic.group[c]], traffic.target[c]
        while way[rank] >= 0:
            count += 1
            rank = fabric.src[way[rank]]
    return count / max(1, len(chunks)) * num_chunks


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

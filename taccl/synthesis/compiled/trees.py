"""Trees of chunks that each go to several ranks, such that they load a fabric evenly.

What limits such a collective is often a resource that most chunks pass, such as the NICs of a node. See
`taccl.synthesis.compiled.trees_kernel` for the search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taccl.errors import CollectiveError, NoSolutionError
from taccl.synthesis.compiled.events import stopping
from taccl.synthesis.compiled.trees_kernel import Growth, Wants, grow_trees, list_branches
from taccl.synthesis.compiled.ways import Ways

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.synthesis.compiled.fabric import Demand, Fabric

__all__ = ["Grove", "find_trees", "search_steps"]

#: By which power of the load prices rise, pass after pass. Low at first, so that trees spread out; steep in
#: the end, when only what is loaded most is to be led round.
_STEEPNESS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 32.0, 64.0)
_WEIGHT = 8.0
_PATIENCE = 0.25


def find_trees(
    fabric: Fabric,
    demand: Demand,
    *,
    seed: int = 0,
    may_relay: NDArray[np.bool_] | None = None,
    patience: float = _PATIENCE,
    in_turn: bool = False,
    seconds: float | None = None,
) -> Ways:
    """Trees that load the fabric evenly.

    Parameters
    ----------
    may_relay : (num_ranks,) bool, optional
        Ranks that may carry what they do not want; by default all.
    patience : float
        What a tick costs for which a rank has to wait for a chunk.
    in_turn : bool
        Whether it counts that a rank sends one copy after another.
    seconds : float, optional
        When to stop, and take the best so far.

    Raises
    ------
    CollectiveError
        If a chunk cannot reach a rank that wants it.
    NoSolutionError
        If it was stopped before every chunk had a tree.
    """
    grove = Grove(fabric, demand, may_relay)
    rng = np.random.default_rng(seed)
    best, least, peak = grove.growth.way, np.inf, 0.0
    with stopping(grove.signal, seconds):
        for steepness in _STEEPNESS:
            order = rng.permutation(demand.num_chunks)
            peak = grove.grow(order, steepness, patience, peak, in_turn=in_turn)
            if peak < least:
                best, least = grove.growth.way.copy(), peak
            if grove.signal[0]:
                break
    if not np.isfinite(least):
        raise NoSolutionError("stopped before every chunk had a tree; give more time")
    return grove.ways(best, least)


class Grove:
    """The trees of all chunks, which can be grown anew.

    Parameters
    ----------
    fabric, demand, may_relay
        As in `find_trees`.

    Attributes
    ----------
    signal : (1,) int64
        Growing stops once this is 1.
    """

    def __init__(self, fabric: Fabric, demand: Demand, may_relay: NDArray[np.bool_] | None = None) -> None:
        self.fabric, self.may_relay = fabric, may_relay
        self.wants = _wants(fabric, demand, may_relay)
        num_ranks, room = fabric.num_ranks, fabric.num_slots + 4 * fabric.num_ranks
        self.growth = Growth(
            way=np.full((demand.num_chunks, num_ranks), -1, np.int32),
            load=np.zeros(fabric.num_slots),
            resource_load=np.zeros(fabric.num_resources),
            price=np.zeros(fabric.num_slots),
            resource_price=np.zeros(fabric.num_resources),
            cost=np.zeros(num_ranks),
            depth=np.zeros(num_ranks),
            came=np.zeros(num_ranks, np.int32),
            busy_until=np.zeros(fabric.num_resources),
            path=np.zeros(num_ranks, np.int64),
            before=np.zeros(num_ranks, np.int64),
            is_wanted=np.zeros(num_ranks, bool),
            is_in_tree=np.zeros(num_ranks, bool),
            heap_cost=np.empty(room),
            heap_rank=np.empty(room, np.int64),
        )
        self._alike = np.ones(fabric.num_slots)
        self.signal = np.zeros(1, np.int64)

    def grow(
        self,
        order: NDArray[np.int64],
        steepness: float,
        patience: float,
        peak: float,
        *,
        in_turn: bool = False,
        dearness: NDArray[np.float64] | None = None,
    ) -> float:
        """Grow some chunks' trees anew, one after another; see `grow_trees`. Infinite if it was stopped.

        Raises
        ------
        CollectiveError
            If a chunk cannot reach a rank that wants it.
        """
        lost = np.full(1, -1, np.int64)
        dear = self._alike if dearness is None else dearness
        peak = grow_trees(
            self.fabric, self.wants, self.growth, order, steepness, _WEIGHT, patience, in_turn, peak, dear,
            lost, self.signal,
        )  # fmt: skip
        if lost[0] >= 0:
            raise CollectiveError(
                f"chunk {lost[0]} cannot reach a rank that wants it over the links and relays that may be "
                "used; add links, or ranks that relay",
                where="destinations",
            )
        return peak

    def plant(self, ways: Ways) -> None:
        """Take over trees, and the load they make."""
        chunk = np.repeat(np.arange(len(self.wants.units)), np.diff(ways.hop_of))
        self.growth.way[:] = -1
        self.growth.way[chunk, self.fabric.dst[ways.slot]] = ways.slot
        self.growth.load[:], self.growth.resource_load[:] = _loads(self.fabric, self.wants, chunk, ways.slot)

    def ways(self, way: NDArray[np.int32], peak: float) -> Ways:
        """Trees hop after hop, and how long they take the busiest resource."""
        num_ranks = self.fabric.num_ranks
        hop_of = np.concatenate(([0], np.cumsum((way >= 0).sum(axis=1)))).astype(np.int64)
        slot = np.empty(int(hop_of[-1]), np.int32)
        queue, first, following = np.empty((3, num_ranks), np.int64)
        list_branches(self.fabric, self.wants, way, queue, first, following, hop_of, slot)
        return Ways(hop_of, slot, round(peak), self.may_relay)


def search_steps(fabric: Fabric, demand: Demand) -> int:
    """How many links a pass of the search for trees looks at, about."""
    return demand.num_chunks * fabric.num_slots


def _wants(fabric: Fabric, demand: Demand, may_relay: NDArray[np.bool_] | None) -> Wants:
    num_ranks, num_chunks = fabric.num_ranks, demand.num_chunks
    if demand.wanted is None:
        wanted = np.ones((num_chunks, num_ranks), bool)
    else:
        bits = demand.wanted if demand.needed is None else demand.needed
        wanted = np.unpackbits(bits, axis=1, count=num_chunks, bitorder="little").T.astype(bool)
    wanted[np.repeat(np.arange(num_chunks), np.diff(demand.origin_of)), demand.origin] = False
    chunk, target = np.nonzero(wanted)
    return Wants(
        np.array(demand.units, dtype=np.int64),
        demand.origin_of.astype(np.int64),
        demand.origin,
        np.concatenate(([0], np.cumsum(np.bincount(chunk, minlength=num_chunks)))).astype(np.int64),
        target.astype(np.int32),
        np.ones(num_ranks, bool) if may_relay is None else np.asarray(may_relay, bool),
    )


def _loads(
    fabric: Fabric, wants: Wants, chunk: NDArray[np.int64], slot: NDArray[np.int32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ticks for which sends take every link, and every resource."""
    units = wants.units[chunk]
    own = fabric.own_alpha[slot] + units * fabric.own_beta[slot]
    load: NDArray[np.float64] = np.bincount(slot, weights=own, minlength=fabric.num_slots).astype(float)
    each = np.diff(fabric.hold_of)[slot]
    send = np.repeat(np.arange(len(slot)), each)
    hold = fabric.hold_of[slot][send] + np.arange(len(send)) - (np.cumsum(each) - each)[send]
    held = fabric.hold_alpha[hold] + units[send] * fabric.hold_beta[hold]
    on_resource: NDArray[np.float64]
    on_resource = np.bincount(
        fabric.hold_resource[hold], weights=held, minlength=fabric.num_resources
    ).astype(float)
    return load, on_resource

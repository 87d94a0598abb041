"""Which ranks carry a chunk on its way to ranks that want it, when they do not want it themselves.

Where every chunk goes to one rank, its whole way is chosen (`taccl.synthesis.compiled.ways`), and else a tree
(`taccl.synthesis.compiled.trees`), the ranks of which relay. For very many chunks that would take long: then,
chunk by chunk, shortest ways from where it starts to where it is wanted are found, on costs that rise with
the load that earlier chunks put on a link and on the resources it shares.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from taccl.errors import CollectiveError, NoSolutionError
from taccl.synthesis.compiled.events import part, stopping
from taccl.synthesis.compiled.relay_kernel import add_ways
from taccl.synthesis.compiled.sending import travel_ticks
from taccl.synthesis.compiled.trees import find_trees, search_steps
from taccl.synthesis.compiled.ways import find_ways

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.synthesis.compiled.fabric import Demand, Fabric
    from taccl.synthesis.compiled.ways import Ways

__all__ = ["with_relays"]

_MOST_SEARCHES = 4096
#: Trees are looked for up to so many steps of a pass; these take seconds.
_MOST_STEPS = 60_000_000


def with_relays(fabric: Fabric, demand: Demand, *, may_relay: NDArray[np.bool_] | None = None) -> Demand:
    """The demand with its ways, or with relays among the ranks that receive a chunk, farthest first.

    Parameters
    ----------
    may_relay : (num_ranks,) bool, optional
        Ranks that may carry what they do not want; by default all.

    Raises
    ------
    CollectiveError
        If a chunk cannot reach a rank that wants it.
    NoSolutionError
        If it was stopped before every chunk had its ways, or relays.
    """
    if demand.target is not None:
        return replace(demand, ways=find_ways(fabric, demand, may_relay=may_relay))
    if demand.wanted is None:
        return demand
    if search_steps(fabric, demand) <= _MOST_STEPS:
        return _along_trees(fabric, demand, find_trees(fabric, demand, may_relay=may_relay))
    num_ranks, num_chunks = fabric.num_ranks, demand.num_chunks
    wanted = demand.wanted.copy()
    allowed = np.ones(num_ranks, bool) if may_relay is None else np.asarray(may_relay, bool)
    reach = np.zeros(num_chunks, np.int64)
    signal = np.zeros(2, np.int64)
    done = partial(_done, signal, num_chunks)
    with part("choosing relays", done=done, ahead=1.0), stopping(signal, None):
        lost = add_ways(
            fabric,
            demand.units,
            demand.origin_of,
            demand.origin,
            wanted,
            allowed,
            # Chunks that share a search share its relays, so all ranks must do.
            max(1, num_chunks // _MOST_SEARCHES) if allowed.all() else 1,
            np.zeros(fabric.num_slots),
            np.zeros(fabric.num_resources),
            np.zeros(num_ranks, np.int64),
            np.zeros(num_ranks, np.int64),
            np.zeros(num_ranks, bool),
            np.zeros(num_ranks, bool),
            np.empty(fabric.num_slots + num_ranks, np.int64),
            np.empty(fabric.num_slots + num_ranks, np.int64),
            reach,
            signal,
        )
    if signal[0]:
        raise NoSolutionError("stopped before every chunk had its relays; give more time")
    if lost >= 0:
        raise CollectiveError(
            f"chunk {lost} cannot reach a rank that wants it over the links and relays that may be used; add "
            "links, or ranks that relay",
            where="destinations",
        )
    return replace(demand, wanted=wanted, needed=demand.wanted, reach=reach)


def _done(signal: NDArray[np.int64], num_chunks: int) -> float:
    """The part of the chunks that have their relays."""
    return float(signal[1]) / num_chunks


def _along_trees(fabric: Fabric, demand: Demand, trees: Ways) -> Demand:
    """The demand of all ranks on the trees, and how long each chunk travels."""
    assert demand.wanted is not None, "not all ranks want all chunks"
    chunk = np.repeat(np.arange(demand.num_chunks), np.diff(trees.hop_of))
    wanted = demand.wanted.copy()
    bit = (1 << (chunk & 7)).astype(np.uint8)
    np.bitwise_or.at(wanted, (fabric.dst[trees.slot], chunk >> 3), bit)
    reach = np.zeros(demand.num_chunks, np.int64)
    np.maximum.at(reach, chunk, travel_ticks(fabric, demand, trees))
    return replace(demand, wanted=wanted, needed=demand.wanted, reach=reach, ways=trees)

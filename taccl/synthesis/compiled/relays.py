"""Which ranks carry a chunk on its way to ranks that want it, when they do not want it themselves.

Where every chunk goes to one rank, its whole way is chosen (`taccl.synthesis.compiled.ways`). Else, chunk by
chunk, shortest ways from where it starts to where it is wanted are found, on costs that rise with the load
that earlier chunks put on a link and on the resources it shares. Of those only ranks are kept: the kernel
chooses links.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from taccl.errors import CollectiveError
from taccl.synthesis.compiled.relay_kernel import add_ways
from taccl.synthesis.compiled.ways import find_ways

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.synthesis.compiled.fabric import Demand, Fabric

__all__ = ["with_relays"]

_MOST_SEARCHES = 4096


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
    """
    if demand.target is not None:
        return replace(demand, ways=find_ways(fabric, demand, may_relay=may_relay))
    if demand.wanted is None:
        return demand
    num_ranks, num_chunks = fabric.num_ranks, demand.num_chunks
    wanted = demand.wanted.copy()
    allowed = np.ones(num_ranks, bool) if may_relay is None else np.asarray(may_relay, bool)
    reach = np.zeros(num_chunks, np.int64)
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
    )
    if lost >= 0:
        raise CollectiveError(
            f"chunk {lost} cannot reach a rank that wants it over the links and relays that may be used; add "
            "links, or ranks that relay",
            where="destinations",
        )
    return replace(demand, wanted=wanted, needed=demand.wanted, reach=reach)

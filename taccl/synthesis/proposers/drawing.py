"""Spread copies of chunks to all ranks by random draws: for links of many speeds, and for very many sends.

If link speeds have no structure, a link sends any useful chunk, drawn at random.

Very many sends are grouped. Ranks form clusters of neighbours, which first gather the chunks of their own
ranks. Then all chunks of a cluster travel together as a *convoy*, one after the other over each link. Thus
the kernel makes one decision per convoy, and its bit masks have one bit per convoy instead of one per chunk.
A convoy waits at each rank until it is complete. This delay is a small part of the finish if clusters have
far fewer ranks than the square root of the number of all ranks.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl.schedule.spill import room_for
from taccl.synthesis.kernels.drawing_kernel import DrawingState, places_of_bits, spread_by_draws
from taccl.synthesis.kernels.events import STOPPED, Timeline, run_events
from taccl.synthesis.kernels.fabric import Bools, Demand, Fabric, Ints, starts
from taccl.synthesis.kernels.limits import Limits, Sends

#: `_FEW_SENDS`: max number of sends for which chunks travel alone.
#: `_CONVOY_SHARE`: chunks per convoy (chunks that travel together), over the fourth root of the sends.
#: At 100 million sends, convoys of 8 chunks delay the finish by about 1 % on meshes.
_FEW_SENDS, _CONVOY_SHARE = 25_000_000, 0.0801
#: Number of convoy sends per block; each block is expanded to sends of single chunks, and sorted.
_BLOCK = 1 << 18


def spread_drawn(fabric: Fabric, demand: Demand, limit: int, limits: Limits) -> Sends:
    """Spread copies by random draws, in one run of the kernel; the finish is negative if the run fails.

    - `limit`: Latest finish of interest.
    """
    size = _convoy_size(fabric, demand)
    return (
        _draw(fabric, demand, limit, limits) if size < 2 else _in_convoys(fabric, demand, size, limit, limits)
    )


def _draw(
    fabric: Fabric, demand: Demand, limit: int, limits: Limits, doing: str = "spreading chunks"
) -> Sends:
    def begin() -> tuple[int, Callable[[Timeline, int], int]]:
        state = _make_state(fabric, demand, limits.seed)
        return int(state.missing.sum()), partial(spread_by_draws, fabric, state)

    return run_events(begin, fabric, limits, limit, doing=doing, chunk_type=demand.chunk_type)


def _make_state(fabric: Fabric, demand: Demand, seed: int) -> DrawingState:
    """Initial state of the kernel: each chunk is at its origins, and nothing has been sent."""
    num_ranks, num_chunks, num_slots = fabric.num_ranks, demand.num_chunks, fabric.num_slots
    chunk = np.repeat(np.arange(num_chunks), np.diff(demand.origin_of))
    width = -(-num_chunks // 64) * 8
    has = np.zeros((num_ranks, width), np.uint8)
    np.bitwise_or.at(has, (demand.origin, chunk >> 3), (1 << (chunk & 7)).astype(np.uint8))
    claimed = np.full((num_ranks, width), 0xFF, np.uint8)
    everything = np.packbits(np.ones(num_chunks, bool), bitorder="little")
    claimed[:, : len(everything)] = ~(everything if demand.wanted is None else demand.wanted)
    claimed |= has
    words = claimed.view(np.uint64)
    return DrawingState(
        units=demand.units,
        has=has.view(np.uint64),
        claimed=words,
        missing=64 * words.shape[1] - np.bitwise_count(words).sum(axis=1, dtype=np.int64),
        holders=np.diff(demand.origin_of).astype(np.int32),
        asked=np.zeros(num_slots, np.int64),
        is_asked=np.zeros(num_slots, bool),
        place_of_bit=places_of_bits(),
        drawn=np.array([seed], np.int64),
    )


def _convoy_size(fabric: Fabric, demand: Demand) -> int:
    """Number of chunks that travel together as a convoy; 1 if chunks travel alone.

    Convoys require that links share no resources, that chunks have equal sizes, and that each chunk goes from
    one rank to all ranks.
    """
    is_plain = fabric.num_resources == 0 and demand.wanted is None and len(np.unique(demand.units)) == 1
    if not is_plain or (np.diff(demand.origin_of) != 1).any():
        return 1
    num_sends = fabric.num_ranks * demand.num_chunks
    return 1 if num_sends < _FEW_SENDS else math.floor(_CONVOY_SHARE * num_sends**0.25)


@dataclass(frozen=True, slots=True)
class _Convoys:
    """Clusters of ranks, and the chunks of each: cluster k has `chunk[first[k]:first[k + 1]]`."""

    cluster_of: Ints  # cluster of each rank
    first: Ints
    chunk: Ints

    @property
    def sizes(self) -> Ints:
        """Number of chunks of each cluster."""
        return np.diff(self.first)


def _in_convoys(fabric: Fabric, demand: Demand, size: int, limit: int, limits: Limits) -> Sends:
    """Sends of one kernel run in which about `size` chunks of a cluster travel together, as a convoy."""
    per_rank = max(1, demand.num_chunks // fabric.num_ranks)
    cluster_of = clusters(fabric, -(-size // per_rank))
    of_chunk = cluster_of[demand.origin]
    num_clusters = int(cluster_of.max()) + 1
    convoys = _Convoys(cluster_of, starts(of_chunk, num_clusters), np.argsort(of_chunk, kind="stable"))
    gathered = _gather(fabric, demand, convoys, limit, limits)
    if gathered.finish_ticks < 0:
        return gathered
    units = int(demand.units[0])
    own = fabric.own_alpha + units * fabric.own_beta
    took = fabric.alpha + units * fabric.beta
    # Model a convoy as one message: it occupies a link for all its chunks, and arrives with the last one.
    nothing = np.zeros_like(own)
    slower = fabric._replace(alpha=took - own, beta=own, own_alpha=nothing, own_beta=own)
    origin = np.argsort(cluster_of, kind="stable").astype(np.int32)
    bundles = Demand(convoys.sizes, starts(cluster_of, num_clusters), origin)
    own_of_link = np.zeros(int(fabric.link.max()) + 1, np.int64)
    own_of_link[fabric.link] = np.maximum(own, took)
    free = gathered.start.astype(np.int64) + own_of_link[gathered.link]
    begin = int(free.max(initial=0))
    found = _draw(slower, bundles, limit - begin, limits)
    if found.finish_ticks < 0:
        return found
    own_of_link[fabric.link] = own
    return _listed(demand, convoys, own_of_link, gathered, found, begin, limits)


def _gather(fabric: Fabric, demand: Demand, convoys: _Convoys, limit: int, limits: Limits) -> Sends:
    """Sends over links inside each cluster, by which all its ranks gather the chunks of the cluster."""
    cluster_of = convoys.cluster_of
    some = cluster_of[fabric.src] == cluster_of[fabric.dst]
    wanted = np.zeros((len(convoys.sizes), demand.num_chunks), bool)
    wanted[cluster_of[demand.origin], np.arange(demand.num_chunks)] = True
    rows = np.packbits(wanted, axis=1, bitorder="little")[cluster_of]
    inside = replace(demand, wanted=rows)
    return _draw(_within(fabric, some), inside, limit, limits, doing="gathering chunks in clusters")


def _within(fabric: Fabric, some: Bools) -> Fabric:
    """The fabric restricted to the slots (links) marked in `some`; its links must not share resources."""
    src, dst = fabric.src[some], fabric.dst[some]
    names = ("link", "speed", "alpha", "beta", "own_alpha", "own_beta")
    return fabric._replace(
        src=src,
        dst=dst,
        into=starts(dst, fabric.num_ranks),
        out_of=starts(src, fabric.num_ranks),
        out_slot=np.argsort(src, kind="stable"),
        hold_of=np.zeros(len(src) + 1, np.int64),
        wake_of=np.zeros(len(src) + 1, np.int64),
        **{name: getattr(fabric, name)[some] for name in names},
    )


def clusters(fabric: Fabric, size: int) -> Ints:
    """Divide ranks into clusters of about `size` ranks that links in both directions join.

    Returns the cluster of each rank, (num_ranks,). A cluster grows by the rank with the most neighbours
    inside. A cluster that ends with less than half of `size` ranks joins the smallest adjacent cluster.
    """
    num_ranks = fabric.num_ranks
    forward = fabric.src * num_ranks + fabric.dst
    both = np.unique(forward[np.isin(forward, fabric.dst * num_ranks + fabric.src)])
    first, beside = starts(both // num_ranks, num_ranks).tolist(), (both % num_ranks).tolist()
    cluster, members = [-1] * num_ranks, list[list[int]]()
    for seed in range(num_ranks):
        if cluster[seed] >= 0:
            continue
        grown: list[int] = []
        inside = {seed: 0}  # {rank next to the cluster: its number of neighbours in the cluster}
        heap = [(0, seed)]
        while heap and len(grown) < size:
            count, rank = heapq.heappop(heap)
            if cluster[rank] >= 0 or -count != inside[rank]:
                continue
            cluster[rank] = len(members)
            grown.append(rank)
            for other in beside[first[rank] : first[rank + 1]]:
                if cluster[other] < 0:
                    inside[other] = inside.get(other, 0) + 1
                    heapq.heappush(heap, (-inside[other], other))
        around = {cluster[other] for rank in grown for other in beside[first[rank] : first[rank + 1]]} - {
            -1,
            len(members),
        }
        if 2 * len(grown) < size and around:
            joined = min(around, key=lambda each: (len(members[each]), each))
            for rank in grown:
                cluster[rank] = joined
            members[joined] += grown
        else:
            members.append(grown)
    return np.array(cluster, np.int64)


def _listed(
    demand: Demand,
    convoys: _Convoys,
    own_of_link: Ints,
    gathered: Sends,
    found: Sends,
    begin: int,
    limits: Limits,
) -> Sends:
    """All sends of single chunks in order of start: first those inside clusters, then those of convoys.

    - `own_of_link`: Ticks for which a chunk occupies a link.
    - `found`: Sends of convoys, whose starts are `begin` ticks later in the result.
    """
    sizes = convoys.sizes
    num_sends = len(gathered.chunk) + sum(
        int(sizes[found.chunk[i : i + _BLOCK]].sum()) for i in range(0, len(found.chunk), _BLOCK)
    )
    finish = begin + found.finish_ticks
    start_type = np.int32 if finish <= np.iinfo(np.int32).max else np.int64
    types = (demand.chunk_type, np.int32, start_type)
    chunk, link, start = columns = [room_for(num_sends, dtype, limits.spill_dir) for dtype in types]
    row = 0
    for rows in _in_blocks(convoys, own_of_link, gathered, found, begin):
        for column, values in zip(columns, rows, strict=True):
            column[row : row + len(values)] = values
        row += len(rows[0])
        if limits.deadline.has_passed:
            return Sends(chunk, link, start, STOPPED)
    return Sends(chunk, link, start, finish)


def _in_blocks(
    convoys: _Convoys, own_of_link: Ints, gathered: Sends, found: Sends, begin: int
) -> Iterator[tuple[NDArray[Any], ...]]:
    """Yield blocks of sends in order of start, each as arrays (chunk, link, start); see `_listed`."""
    yield gathered.chunk, gathered.link, gathered.start
    sizes, late = convoys.sizes, tuple(np.zeros(0, np.int64) for _ in range(3))
    for i in range(0, len(found.chunk), _BLOCK):
        cluster, link = (each[i : i + _BLOCK].astype(np.int64) for each in (found.chunk, found.link))
        start = found.start[i : i + _BLOCK].astype(np.int64) + begin
        size = sizes[cluster]
        place = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
        rows = (
            convoys.chunk[np.repeat(convoys.first[cluster], size) + place],
            np.repeat(link, size),
            np.repeat(start, size) + place * np.repeat(own_of_link[link], size),
        )
        chunk, link, start = (np.concatenate(pair) for pair in zip(late, rows, strict=True))
        since = start - start.min()
        if since.max() < 1 << 16:  # 16-bit keys are sorted in linear time
            since = since.astype(np.uint16)
        order = np.argsort(since, kind="stable")
        start = start[order]
        end = len(start)
        if i + _BLOCK < len(found.chunk):
            end = int(np.searchsorted(start, int(found.start[i + _BLOCK]) + begin))
        chunk, link = chunk[order], link[order]
        late = chunk[end:], link[end:], start[end:]
        yield chunk[:end], link[:end], start[:end]

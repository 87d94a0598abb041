"""Arrays of a topology for compiled kernels, without Python objects for links or chunks.

Links are sorted into *slots*: by destination, then by speed class (fastest first), then by the distance from
the destination's number to the source's. So the links of a destination are adjacent in memory, and
destinations that step through their links in parallel ask different sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import ranges
from taccl._internal.graph_algorithms import strong_components
from taccl.errors import CollectiveError, TopologyError
from taccl.problem.costs import hold_columns, link_ends, wide_links

if TYPE_CHECKING:
    from taccl.problem.collective import Collective
    from taccl.problem.problem import Costs, Problem
    from taccl.topology.topology import Topology


#: Max ratio of the slowest to the fastest send within a speed class of links; the last class has no limit.
_CLASS_RATIO = 1.3
_MAX_CLASSES = 4

Ints: TypeAlias = NDArray[np.int64]
Int32s: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Bytes: TypeAlias = NDArray[np.uint8]


class Fabric(NamedTuple):
    """Arrays of links by slot, of the resources that links share, and of rates at which ranks receive.

    A send of u units over a slot takes ``alpha + u * beta`` ticks. The slot is free again after ``own_alpha +
    u * own_beta``. This time covers resources that no other link uses, if holds begin at a fixed time. All
    other holds (occupations of resources) are rows of the `hold_` arrays.
    """

    num_ranks: int
    link: Int32s  # index in the topology of each slot's link; hyperedges are left out
    src: Ints
    dst: Ints
    speed: Ints  # speed class of each slot, 0 for the fastest
    alpha: Ints
    beta: Ints
    own_alpha: Ints
    own_beta: Ints
    into: Ints  # the slots into rank r are `into[r]:into[r + 1]`
    out_of: Ints  # the slots out of rank r are `out_slot[out_of[r]:out_of[r + 1]]`
    out_slot: Ints
    hold_of: Ints  # the holds of slot e are rows `hold_of[e]:hold_of[e + 1]` of the next five
    hold_resource: Ints
    hold_alpha: Ints
    hold_beta: Ints
    hold_receives: Bools
    hold_lead: Ints  # ticks from a send's start to its use of the resource; the maximum over chunk sizes
    num_resources: int  # number of resources in the `hold_` rows
    wake_of: Ints  # rows `wake_of[e]:wake_of[e + 1]` of the next two: groups to examine after holds of slot e
    wake_group: Ints
    wake_hold: Ints
    group_of: Ints  # groups: slots that hold the same resource with the same lead
    group_slot: Ints
    group_lead: Ints
    component: Ints  # by class and rank: component of the rank over links faster than the class
    fast_rate: Floats  # by class and rank: median-sized chunks per tick into the rank over faster links
    fast_lag: Ints  # by class and rank: least ticks from a faster link's release to its send's arrival

    @property
    def num_slots(self) -> int:
        return len(self.link)


def chunk_type_of(num_chunks: int) -> type[np.integer[Any]]:
    """Narrowest integer type for chunk numbers."""
    return np.uint16 if num_chunks <= 1 << 16 else np.int32


@dataclass(frozen=True, slots=True)
class Demand:
    """Chunks, their origins, and the ranks that may receive them.

    Sets of chunks are bit masks: bit ``c & 7`` of byte ``c >> 3`` in a rank's row is set if it contains chunk
    c.
    """

    units: Ints  # size of each chunk, in the units of `Costs`
    origin_of: Ints  # chunk c starts at ranks `origin[origin_of[c]:origin_of[c + 1]]`
    origin: Int32s
    wanted: Bytes | None = None  # bits by rank: chunks that the rank receives; None: all ranks receive all
    needed: Bytes | None = None  # `wanted` without chunks that a rank only relays
    reach: Ints | None = None  # ticks that each chunk has to travel; ranks send the farthest first
    target: Int32s | None = None  # destination of each chunk if all have exactly one; then `wanted` is None

    @property
    def num_chunks(self) -> int:
        return len(self.units)

    @property
    def chunk_type(self) -> type[np.integer[Any]]:
        """Narrowest integer type for chunk numbers."""
        return chunk_type_of(self.num_chunks)


def problem_arrays(problem: Problem) -> tuple[Fabric, Demand]:
    """Arrays of a problem, without links that its sketch forbids."""
    return make_fabric(problem), make_demand(problem.collective, problem.costs)


def make_fabric(problem: Problem) -> Fabric:
    """Arrays of a topology, without hyperedges and forbidden links.

    Raises `TopologyError` if no link is left.
    """
    topology, costs, num_links = problem.topology, problem.costs, len(problem.topology.links)
    # Speed classes are determined for a chunk of median size.
    units = int(np.median(costs.chunk_units)) if len(costs.chunk_units) else 1
    srcs, dsts = link_ends(topology)
    usable = np.zeros(num_links, bool)
    usable[np.array(problem.links_allowed, np.int64)] = True
    usable[list(wide_links(topology))] = False
    kept = np.flatnonzero(usable)
    if not len(kept):
        raise TopologyError("found no link from one rank to one rank; expected at least one", where="links")
    duration = costs.link_alpha + units * costs.link_beta
    speed = np.zeros(num_links, np.int64)
    everything = _holds(topology, costs, usable)
    speed[kept] = _speed_classes(_crowded(everything, srcs, dsts, duration, units)[kept])
    ahead = (srcs - dsts) % topology.num_ranks
    link = kept[np.lexsort((kept, ahead[kept], speed[kept], dsts[kept]))].astype(np.int32)
    src, dst, speed = srcs[link], dsts[link], speed[link]
    holds = _by_slot(everything, link)
    component = components(src, dst, speed, topology.num_ranks)
    lag = costs.link_alpha[link] + units * costs.link_beta[link] - holds.own_alpha - units * holds.own_beta
    fast_rate, fast_lag = _fast_rates(holds, src, dst, speed, units, component, lag)
    return Fabric(
        num_ranks=topology.num_ranks,
        link=link,
        src=src,
        dst=dst,
        speed=speed,
        alpha=costs.link_alpha[link],
        beta=costs.link_beta[link],
        own_alpha=holds.own_alpha,
        own_beta=holds.own_beta,
        into=starts(dst, topology.num_ranks),
        out_of=starts(src, topology.num_ranks),
        out_slot=np.argsort(src, kind="stable"),
        hold_of=starts(holds.slot, len(link)),
        hold_resource=holds.resource,
        hold_alpha=holds.alpha,
        hold_beta=holds.beta,
        hold_receives=holds.receives,
        num_resources=holds.num_resources,
        component=component,
        fast_rate=fast_rate,
        fast_lag=fast_lag,
        **_wakes(holds, costs.link_alpha[link], costs.link_beta[link], costs.chunk_units),
    )


def are_alike(one: Fabric, other: Fabric) -> bool:
    """True if two fabrics differ only in the numbers of their links and resources.

    Slots are compared in order; the resources of a slot may be listed in another order.
    """
    if (one.num_ranks, one.num_slots, one.num_resources) != (
        other.num_ranks,
        other.num_slots,
        other.num_resources,
    ):
        return False
    columns = "src", "dst", "speed", "alpha", "beta", "own_alpha", "own_beta", "hold_of"
    if not all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns):
        return False
    slot, held = np.repeat(np.arange(one.num_slots), np.diff(one.hold_of)), []
    for each in (one, other):
        keys = each.hold_beta, each.hold_alpha, each.hold_receives
        order = np.lexsort((*keys, slot))
        held.append([column[order] for column in (*keys, each.hold_resource)])
    if not all(map(np.array_equal, held[0][:-1], held[1][:-1])):
        return False
    pairs = np.unique(held[0][-1] * max(1, one.num_resources) + held[1][-1])
    return len(pairs) == len(np.unique(held[0][-1])) == len(np.unique(held[1][-1]))


def most_merged(problem: Problem, least_share: float) -> Ints:
    """(num_links,) max chunks of a send over each link; 1 where merging saves too little.

    - `least_share`: Merging pays if latency exceeds this share of a chunk's time on a resource.
    """
    costs, columns = problem.costs, hold_columns(problem.topology)
    units = int(np.median(costs.chunk_units)) if len(costs.chunk_units) else 1
    length = costs.hold_alpha + units * costs.hold_beta
    pays = columns.link[costs.hold_alpha > least_share * length]
    most = np.ones(len(problem.topology.links), np.int64)
    most[np.intersect1d(pays, np.array(sorted(problem.clauses.merging), np.int64))] = (
        problem.clauses.max_merge
    )
    return most


def sharing_latency(fabric: Fabric, most_merged: Ints) -> Fabric:
    """Fabric in which each chunk is charged only its share of the latency of a full merged send."""
    slot = np.repeat(np.arange(fabric.num_slots), np.diff(fabric.hold_of))
    own, hold = -(-fabric.own_alpha // most_merged), -(-fabric.hold_alpha // most_merged[slot])
    return fabric._replace(own_alpha=own, hold_alpha=hold)


def make_demand(collective: Collective, costs: Costs) -> Demand:
    """Arrays of the chunks of a collective without reductions.

    Raises `CollectiveError` if the collective combines, or derives chunks from others.
    """
    if collective.combining or collective.derivations:
        raise CollectiveError(
            "found a reducing collective; give its phases, which copy chunks", where=collective.name
        )
    origins = [chunk.origins for chunk in collective.chunks]
    destinations = [chunk.destinations for chunk in collective.chunks]
    num_chunks, num_ranks = collective.num_chunks, collective.num_ranks
    counts, arrivals = (np.fromiter(map(len, ends), np.int64, num_chunks) for ends in (origins, destinations))
    origin = np.fromiter(chain.from_iterable(origins), np.int32, int(counts.sum()))
    origin_of = np.concatenate(([0], np.cumsum(counts)))
    units = np.array(costs.chunk_units)  # a copy, as kernels only accept writable arrays
    if num_chunks and (arrivals == 1).all():
        target = np.fromiter(chain.from_iterable(destinations), np.int32, num_chunks)
        return Demand(units, origin_of, origin, target=target)
    wanted: Bytes | None = None
    if not (arrivals == num_ranks).all():
        ends = collective.destination_sets
        wanted = np.packbits(ends.flags(num_ranks).T[:, ends.of_chunk], axis=1, bitorder="little")
    return Demand(units, origin_of, origin, wanted)


@dataclass(frozen=True, slots=True)
class _Holds:
    """Rows of holds (occupations) of shared resources, and min time between sends of each link (`own_`)."""

    own_alpha: Ints
    own_beta: Ints
    slot: Ints
    resource: Ints
    alpha: Ints
    beta: Ints
    receives: Bools
    num_resources: int


def _holds(topology: Topology, costs: Costs, usable: Bools) -> _Holds:
    """Holds of resources by usable links, which are given by their index, not yet by slot."""
    columns, num_links = hold_columns(topology), len(usable)
    some = usable[columns.link]
    link, resource, receives = columns.link[some], columns.resource[some], columns.receives[some]
    alpha, beta = costs.hold_alpha[some], costs.hold_beta[some]
    # A hold that is as long as the send begins with it, too.
    receives = receives & ((alpha != costs.link_alpha[link]) | (beta != costs.link_beta[link]))
    # The hold of a resource that no other link uses may begin at any fixed time after the start of a send.
    is_fixed = ~receives | (beta == costs.link_beta[link])
    private = (np.bincount(resource, minlength=1)[resource] == 1) & is_fixed
    # Consecutive sends on a link start at least its longest hold apart.
    own_alpha, own_beta = np.zeros(num_links, np.int64), np.zeros(num_links, np.int64)
    np.maximum.at(own_alpha, link, alpha)
    np.maximum.at(own_beta, link, beta)
    own_beta[(own_alpha == 0) & (own_beta == 0)] = 1
    kept = np.flatnonzero(~private)
    shared = np.bincount(resource[kept], minlength=1) > 0
    number = (np.cumsum(shared) - 1)[resource[kept]]
    return _Holds(
        own_alpha, own_beta, link[kept], number, alpha[kept], beta[kept], receives[kept], int(shared.sum())
    )


def _by_slot(holds: _Holds, link: Int32s) -> _Holds:
    """The given holds, with links renumbered to slots."""
    slot_of_link = np.full(len(holds.own_alpha), -1)
    slot_of_link[link] = np.arange(len(link))
    order = np.argsort(slot_of_link[holds.slot], kind="stable")
    return _Holds(
        holds.own_alpha[link], holds.own_beta[link], slot_of_link[holds.slot[order]], holds.resource[order],
        holds.alpha[order], holds.beta[order], holds.receives[order], holds.num_resources,
    )  # fmt: skip


def _wakes(holds: _Holds, alpha: Ints, beta: Ints, units: Ints) -> dict[str, Ints]:
    """Fields of `Fabric` that say which links to examine when a resource is released.

    A send reaches a resource some ticks after it starts (the lead), so the link is examined that much before
    the release. If a lead depends on the chunk size, the shortest one counts, because an examination that
    comes too early would find the resource occupied.
    """
    lead_alpha, lead_beta = alpha[holds.slot] - holds.alpha, beta[holds.slot] - holds.beta
    fewest, most = int(units.min(initial=1)), int(units.max(initial=1))
    of_fewest, of_most = (
        np.where(holds.receives, np.maximum(lead_alpha + size * lead_beta, 0), 0) for size in (fewest, most)
    )
    lead = np.minimum(of_fewest, of_most)
    leads, number = np.unique(lead, return_inverse=True)  # one combined key sorts much faster than two
    keys, group = np.unique(holds.resource * max(1, len(leads)) + number, return_inverse=True)
    resource, number = np.divmod(keys, max(1, len(leads)))
    groups_of_resource = starts(resource, holds.num_resources)
    hold, wake_group = ranges(groups_of_resource[holds.resource], groups_of_resource[holds.resource + 1])
    return dict(
        hold_lead=np.maximum(of_fewest, of_most),
        wake_of=starts(holds.slot[hold], len(alpha)),
        wake_group=wake_group,
        wake_hold=hold,
        group_of=starts(group, len(keys)),
        group_slot=holds.slot[np.argsort(group, kind="stable")],
        group_lead=leads[number],
    )


def starts(sorted_or_not: Ints | Int32s, count: int) -> Ints:
    """(count + 1,) row offsets as in CSR: once sorted, number n has the rows ``result[n]:result[n + 1]``."""
    return np.concatenate(([0], np.cumsum(np.bincount(sorted_or_not, minlength=count)))).astype(np.int64)


def _crowded(holds: _Holds, src: Ints, dst: Ints, duration: Ints, units: int) -> Ints:
    """Ticks of a send over each slot if all ranks send concurrently, and share resources.

    - `src`, `dst`, `duration`: Ranks and ticks by slot of `holds`, like the result.
    """
    slowest = duration.copy()
    if len(holds.slot):
        # A resource's slowdown is its number of senders or receivers, whichever is less: 1 for a rank's port.
        crowd = np.full(holds.num_resources, np.iinfo(np.int64).max)
        for end in (src, dst):
            count = int(end.max()) + 1
            pairs = np.sort(holds.resource * count + end[holds.slot])  # faster than `unique`, which hashes
            resource = pairs[np.diff(pairs, prepend=-1) > 0] // count
            crowd = np.minimum(crowd, np.bincount(resource, minlength=holds.num_resources))
        length = (holds.alpha + units * holds.beta) * crowd[holds.resource]
        np.maximum.at(slowest, holds.slot, length)
    return slowest


def _speed_classes(duration: Ints) -> Ints:
    """Speed class of each duration, 0 for the shortest; the last class includes all longer durations."""
    values = np.unique(duration)
    classes = np.zeros(len(values), np.int64)
    shortest, number = values[0], 0
    for i, value in enumerate(values):
        if value > _CLASS_RATIO * shortest and number < _MAX_CLASSES - 1:
            shortest, number = value, number + 1
        classes[i] = number
    return classes[np.searchsorted(values, duration)]


def components(src: Ints, dst: Ints, speed: Ints, num_ranks: int) -> Ints:
    """(num_classes, num_ranks) strong component of each rank over the links that are faster than a class."""
    component = np.tile(np.arange(num_ranks, dtype=np.int64), (int(speed.max(initial=0)) + 1, 1))
    for k in range(1, len(component)):
        fast = speed < k
        component[k] = strong_components(num_ranks, src[fast], dst[fast])
    return component


def _fast_rates(
    holds: _Holds, src: Ints, dst: Ints, speed: Ints, units: int, component: Ints, lag: Ints
) -> tuple[Floats, Ints]:
    """For each speed class and rank: chunks per tick over links faster than the class, and their least `lag`.

    Only links from the rank's own component (`components`) count. A link counts at its own rate, or at its
    share of the busiest resource that it uses.

    - `lag`: Ticks from a slot's release to the arrival of its send.
    """
    rates, lags = np.zeros(component.shape), np.full(component.shape, np.iinfo(np.int64).max // 2)
    alone = 1.0 / np.maximum(holds.own_alpha + units * holds.own_beta, 1)
    for k in range(1, len(component)):
        fast = (speed < k) & (component[k][src] == component[k][dst])
        rows = np.flatnonzero(fast[holds.slot] & holds.receives)
        length = np.maximum(holds.alpha[rows] + units * holds.beta[rows], 1)
        demanded = np.bincount(
            holds.resource[rows], weights=length * alone[holds.slot[rows]], minlength=holds.num_resources
        )
        crowd = np.ones(len(src))
        np.maximum.at(crowd, holds.slot[rows], demanded[holds.resource[rows]])
        rates[k] = np.bincount(dst[fast], weights=(alone / crowd)[fast], minlength=component.shape[1])
        np.minimum.at(lags[k], dst[fast], lag[fast])
    return rates, lags

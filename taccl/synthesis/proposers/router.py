"""Routes of chunks that load a fabric evenly: trees, or paths for chunks with one destination.

The finish is rarely limited by the length of routes, but by the link or resource that most of them use. The
search is `taccl.synthesis.kernels.router_kernel`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taccl._internal.arrays import ranges
from taccl._internal.deadline import OutOfTime, busy_factor
from taccl.errors import CollectiveError
from taccl.synthesis.kernels.fabric import Bools, Demand, Fabric, Floats, Int32s, Ints, starts
from taccl.synthesis.kernels.limits import Limits, counting
from taccl.synthesis.kernels.router_kernel import (
    LOST,
    STOP,
    CongestionPrices,
    Nets,
    Paths,
    RoutingState,
    choose,
    list_paths,
    list_trees,
    route,
)

#: Exponents in the congestion prices of trees, pass by pass (the price grows with load ** 2 ** exponent).
#: Exponents are low at first, so that trees spread out, and high at last, when only the largest loads matter.
TREE_EXPONENTS = (0, 1, 2, 3, 4, 5, 5, 6)
#: Price per tick on the most loaded resource, added to the duration of a send in the search for trees.
_TREE_WEIGHT = 8.0
#: Congestion price of the most loaded resource in the choice of paths, in place of `_TREE_WEIGHT`.
_PATH_WEIGHT = 4.0
#: Cost, in the search for trees, of each tick until a chunk reaches a rank.
_WAITING = 0.25
#: Max links visited by all passes over all trees (several seconds).
_MOST_STEPS = 1_000_000_000
#: Max links visited in the search for routes through relays, over all passes; at least one pass is made.
KEPT_STEPS = 480_000_000
#: Exponents of congestion prices, tree by tree: low at first, so that trees differ, and high at the end.
_PATH_EXPONENTS = (0, 2, 3, 4, 4, 4, 5, 5)
#: After each tree, paths are chosen from all trees so far, once for each of these exponents of prices.
_PATH_CHOICES = ((1,), (3,), (4,), (5,), (5, 6), (5, 6), (6,), (6,))
_PATIENCE = 2  # consecutive trees without a lower peak after which no further tree is searched
#: First passes of rerouting, which even out the load, with prices as in the search for trees.
#: For each: (exponent, price per tick on the most loaded resource, share of the peak that is overload).
_EVENING = tuple((exponent, _TREE_WEIGHT, 0.8) for exponent in (3, 4, 5, 5, 6, 6))
#: The last passes of rerouting, as in `_EVENING`: prices are so high that any detour is better than the peak.
_LOWERING_PEAKS = ((7, 1000.0, 0.97),) * 12
#: Number of consecutive `_LOWERING_PEAKS` passes without a lower peak, after which rerouting ends.
_REROUTING_PATIENCE = 4
#: `_MOST_OWN_STEPS`: max links visited in a pass that searches a path for each chunk alone.
#: `_OWN_LINK_NS`: estimated nanoseconds per link visited.
#: `_REROUTED_LINK_NS`: nanoseconds per link when chunks are rerouted, as loads of resources are compared.
_MOST_OWN_STEPS, _OWN_LINK_NS, _REROUTED_LINK_NS = 20_000_000, 4, 16
#: Max number of chunks times number of ranks for which chunks are rerouted one by one.
MOST_REROUTED = 20_000_000
#: CPU seconds after which no further tree is searched if time is short.
_LEAST_PASSES_S = 0.08
#: Estimated nanoseconds to visit a link in the search for a tree.
_LINK_NS = 25
#: Estimated nanoseconds to choose paths, for each resource of each hop.
_CHOICE_NS = 35
#: Estimated nanoseconds to schedule a hop.
_QUEUE_NS = 600
#: A pass begins if the time left is at least this multiple of its estimated time, with scheduling after it.
_MARGIN = 1.3


@dataclass(frozen=True, slots=True)
class Routes:
    """Routes of all chunks, as consecutive slots (links), and the peak load that they cause."""

    hop_of: Ints  # the slots of chunk c are `slot[hop_of[c]:hop_of[c + 1]]`
    slot: Int32s
    peak_ticks: int  # ticks that the busiest link or resource is occupied: a lower bound on the finish
    urgent: Bools | None = None  # hops with priority over all others on their link; None for none

    @property
    def chunk(self) -> Ints:
        """(num_hops,) chunk of each hop."""
        return np.repeat(np.arange(len(self.hop_of) - 1), np.diff(self.hop_of))


def find_trees(
    fabric: Fabric,
    demand: Demand,
    limits: Limits = Limits(),
    *,
    masks: Sequence[tuple[Fabric, Ints]] | None = None,
    waiting: float | None = None,
    most_steps: int | None = None,
) -> Routes:
    """Trees that load the fabric evenly; once the time for runs is over, the best of the passes so far.

    - `masks` (sequence of (Fabric, (num_chunks,) int64)): Fabrics of allowed links, each with the chunks that
      may use it. None: all chunks may use all links.
    - `waiting`: See `taccl.synthesis.kernels.router_kernel.CongestionPrices`; None for the default.
    - `most_steps`: Max links visited by all passes; there is always one pass.

    Raises `CollectiveError` if a chunk cannot reach a rank that wants it; `OutOfTime` if it was stopped
    before every chunk had a tree.
    """
    deadline, until = limits.deadline, limits.until or limits.deadline
    nets, signal = _nets(fabric, demand), np.array([0, 0, -1])
    state = _routing(fabric, np.full((demand.num_chunks, fabric.num_ranks), -1, np.int32))
    cost = float(_WAITING if waiting is None else waiting)
    classes = masks or [(fabric, np.arange(demand.num_chunks))]
    rng = np.random.default_rng(limits.seed)
    best, least, peak = state.way, np.inf, 0.0
    num_passes = (most_steps or _MOST_STEPS) // max(1, search_steps(fabric, demand))
    passes = TREE_EXPONENTS[: max(1, num_passes)]
    with deadline.stopping(signal):
        for i, exponent in enumerate(passes):
            left = demand.num_chunks
            with deadline.scope(f"balancing trees, pass {i + 1} of {len(passes)}", ahead=len(passes) - i - 1):
                for k in rng.permutation(len(classes)) if len(classes) > 1 else (0,):
                    some, chunks = classes[k]
                    left -= len(chunks)
                    order = rng.permutation(chunks)
                    order = order[nets.target_of[order] < nets.target_of[order + 1]]
                    prices = CongestionPrices(exponent, _TREE_WEIGHT, cost, peak)
                    with counting(deadline, signal, "", len(chunks), len(chunks), left):
                        is_done = route(some, nets, state, prices, order, signal)
                    _raise_if_lost(signal)
                    peak = _peak(state) if is_done else np.inf
            if peak < least:
                best, least = state.way if i + 1 == len(passes) else state.way.copy(), peak
            if signal[STOP] or until.has_passed:
                break
    if not np.isfinite(least):
        raise OutOfTime("stopped before every chunk had a tree; give more time")
    hop_of = _starts_of_hops(best)
    slot = np.empty(int(hop_of[-1]), np.int32)
    list_trees(fabric, nets, best, hop_of, slot)
    return Routes(hop_of, slot, round(least))


def find_paths(
    fabric: Fabric,
    demand: Demand,
    limits: Limits = Limits(),
    *,
    masks: Sequence[tuple[Fabric, Ints]] | None = None,
) -> Routes:
    """Paths of chunks with one destination each, chosen among trees that chunks of the same origins share.

    - `demand`: A demand in which every chunk has a target.
    - `masks`: As for `find_trees`; chunks share trees if they may also use the same links.

    Raises `CollectiveError` if a chunk cannot reach its target; `OutOfTime` if it was stopped before every
    chunk had a path.
    """
    groups, paths, classes = _groups(fabric, demand, len(_PATH_EXPONENTS), masks)
    state, signal = _routing(fabric, paths.way[0]), np.array([0, 0, -1])
    deadline, rng = limits.deadline, np.random.default_rng(limits.seed)
    until = limits.until or deadline
    passes = tuple(zip(_PATH_EXPONENTS, _PATH_CHOICES, strict=True))
    best, peak, idle = paths.tree, 0.0, 0
    every = np.arange(len(groups.units))
    # `num_hops` is an estimate until paths are chosen.
    num_passes, num_hops = len(passes), 2.0 * len(paths.units)
    tree_ns = _LINK_NS * len(every) * fabric.num_slots
    # Calls without work load the kernels, so that the passes are timed without that.
    flat = CongestionPrices(0, 0.0, 0.0, 0.0)
    route(fabric, groups, state, flat, every[:0], signal)
    choose(fabric, groups, state, paths._replace(way=paths.way[:1]), flat, every[:0], signal)
    began = time.monotonic()
    with deadline.stopping(signal):
        for k, (exponent, choices) in enumerate(passes):
            hop_ns = _CHOICE_NS * num_hops * _rows_per_hop(fabric)
            sending = sending_ns(fabric, num_hops)
            took_ns = [tree_ns + hop_ns * (i + 2) * len(each) for i, (_, each) in enumerate(passes)]
            # Earlier passes give an estimate of the time for this pass and for scheduling after it.
            spent_s = time.monotonic() - began
            left_s = min(deadline.left_s, until.left_s)
            is_brief = spent_s < busy_factor() * _LEAST_PASSES_S
            if k and not is_brief and _MARGIN * spent_s * (took_ns[k] + sending) > left_s * sum(took_ns[:k]):
                break
            name = f"balancing routes, pass {k + 1} of {num_passes}"
            ahead = sum(took_ns[k + 1 :]) + sending
            weight = _PATH_WEIGHT if k else 0.0
            with counting(deadline, signal, name, len(every), tree_ns, ahead + took_ns[k] - tree_ns):
                prices = CongestionPrices(exponent, weight, 0.0, peak)
                for some, alike in classes:
                    route(some, groups, state._replace(way=paths.way[k]), prices, alike, signal)
            for i, power in enumerate(choices):
                if i and until.has_passed:
                    break
                order = np.lexsort((rng.random(len(paths.units)), -paths.units))
                again = f"{name}, choice {i + 1} of {len(choices)}" if i else name
                step = hop_ns * (k + 2)
                behind = ahead + step * (len(choices) - i - 1)
                with counting(deadline, signal, again, len(order), step, behind):
                    prices = CongestionPrices(power, _PATH_WEIGHT, 0.0, peak)
                    found = paths._replace(way=paths.way[: k + 1])
                    chosen = choose(fabric, groups, state, found, prices, order, signal)
                _raise_if_lost(signal)
                if k == 0 and not chosen:
                    raise OutOfTime("stopped before every chunk had a path; give more time")
            if k == 0:
                num_hops = float(_hops_of(fabric, paths)[-1])
            idle += 1
            now = _peak(state)
            if k == 0 or now < peak:
                best, peak, idle = paths.tree.copy(), now, 0
            if idle >= _PATIENCE or signal[STOP]:
                break
    paths = paths._replace(tree=best)
    hop_of = _hops_of(fabric, paths)
    slot = np.empty(int(hop_of[-1]), np.int32)
    list_paths(fabric, paths, hop_of, slot)
    return Routes(hop_of, slot, round(peak))


def find_own_paths(fabric: Fabric, demand: Demand, limits: Limits = Limits()) -> Routes | None:
    """Routes in which each chunk's path is searched separately; None if chunks are many or time is short.

    This helps if few chunks load a part of the fabric: trees shared by chunks offer too few paths around it.
    """
    steps = search_steps(fabric, demand)
    takes_s = len(TREE_EXPONENTS) * own_paths_s(fabric, demand)
    if steps > _MOST_OWN_STEPS or _MARGIN * takes_s > limits.deadline.left_s:
        return None
    try:
        return find_trees(fabric, demand, limits)
    except OutOfTime:
        return None


def reroute(fabric: Fabric, demand: Demand, routes: Routes, limits: Limits = Limits()) -> Routes:
    """Reroute chunks on overloaded resources one by one; return the given routes if none are better.

    It helps if few of many chunks are large, as in skewed exchanges: shared trees offer too few paths for the
    large chunks. It must leave the time to order the sends.
    """
    is_good = routes.peak_ticks <= limits.target_ticks
    passes = _EVENING + _LOWERING_PEAKS
    most_steps = min(2 * _MOST_OWN_STEPS, len(passes) * search_steps(fabric, demand))
    takes_s = most_steps * _REROUTED_LINK_NS / 10**9
    order_s = sending_ns(fabric, len(routes.slot)) / 10**9
    left_s = (limits.until or limits.deadline).left_s / busy_factor()
    is_late = left_s < _MARGIN * takes_s + order_s or limits.order_s < takes_s + order_s
    if is_good or is_late or demand.num_chunks * fabric.num_ranks > MOST_REROUTED:
        return routes
    nets, signal = _nets(fabric, demand), np.array([0, 0, -1])
    way = np.full((demand.num_chunks, fabric.num_ranks), -1, np.int32)
    way[routes.chunk, fabric.dst[routes.slot]] = routes.slot
    state, rng = _routing(fabric, way), np.random.default_rng(limits.seed)
    _, resource, ticks = holds_of(fabric, demand.units, routes)
    load = np.bincount(resource, ticks, minlength=fabric.num_resources + fabric.num_slots)
    state.resource_load[:], state.load[:] = np.split(load, [fabric.num_resources])
    best, peak, idle, left = way.copy(), _peak(state), 0, 2 * _MOST_OWN_STEPS // fabric.num_slots
    with limits.deadline.stopping(signal):
        for exponent, weight, share in passes:
            load = np.append(state.resource_load, state.load)
            now = Routes(_starts_of_hops(way), way[way >= 0], 0)
            hop, resource, _ = holds_of(fabric, demand.units, now)
            chunks = np.unique(now.chunk[hop[load[resource] > share * _peak(state)]])
            order = rng.permutation(chunks)[:left]
            prices = CongestionPrices(exponent, weight, _WAITING, peak)
            if not route(fabric, nets, state, prices, order, signal):
                break
            left, idle = left - len(order), idle + (weight > _TREE_WEIGHT)
            if _peak(state) < peak:
                best, peak, idle = way.copy(), _peak(state), 0
            if idle == _REROUTING_PATIENCE or left <= 0 or peak <= limits.target_ticks:
                break
    hop_of = _starts_of_hops(best)
    slot = np.empty(int(hop_of[-1]), np.int32)
    list_trees(fabric, nets, best, hop_of, slot)
    return Routes(hop_of, slot, round(peak))


def search_steps(fabric: Fabric, demand: Demand) -> int:
    """Approximate number of links that a pass of the search for trees visits."""
    return demand.num_chunks * fabric.num_slots


def own_paths_s(fabric: Fabric, demand: Demand) -> float:
    """Estimated CPU seconds of a pass that searches a path for each chunk alone."""
    return search_steps(fabric, demand) * _OWN_LINK_NS / 10**9


def sending_ns(fabric: Fabric, num_hops: float) -> float:
    """Estimated nanoseconds to schedule `num_hops` hops."""
    return _QUEUE_NS * num_hops * _rows_per_hop(fabric)


def holds_of(fabric: Fabric, units: Ints, routes: Routes) -> tuple[Ints, Ints, Floats]:
    """(hop, resource, ticks) columns, with a row for each time that a hop occupies a resource.

    Links that are occupied exclusively count as further resources, numbered after the others.
    """
    slot, size = routes.slot, units[routes.chunk]
    hop, hold = ranges(fabric.hold_of[slot], fabric.hold_of[slot + 1])
    ticks = fabric.hold_alpha[hold] + size[hop] * fabric.hold_beta[hold]
    alone = fabric.own_alpha[slot] + size * fabric.own_beta[slot]
    own = np.nonzero(alone)[0]
    resource: Ints = np.append(fabric.hold_resource[hold], fabric.num_resources + slot[own].astype(np.int64))
    return np.append(hop, own), resource, np.append(ticks, alone[own]).astype(np.float64)


def _starts_of_hops(way: Int32s) -> Ints:
    """(num_chunks + 1,) first hop of each chunk, then the number of all hops.

    - `way`, (num_chunks, num_ranks): Slot over which each chunk reaches each rank; -1 for none.
    """
    return np.concatenate(([0], np.cumsum((way >= 0).sum(axis=1)))).astype(np.int64)


def _hops_of(fabric: Fabric, paths: Paths) -> Ints:
    """(num_chunks + 1,) first hop of each chunk, then the number of all hops."""
    hop_of = np.zeros(len(paths.units) + 1, np.int64)
    list_paths(fabric, paths, hop_of, np.zeros(0, np.int32))
    return np.cumsum(hop_of)


def _rows_per_hop(fabric: Fabric) -> float:
    """Mean number of resources that a hop occupies, its link included."""
    return 1 + len(fabric.hold_resource) / max(1, fabric.num_slots)


def _peak(state: RoutingState) -> float:
    """Ticks that the busiest link or resource is occupied."""
    return float(max(state.load.max(initial=0.0), state.resource_load.max(initial=0.0)))


def _raise_if_lost(signal: Ints) -> None:
    if signal[LOST] >= 0:
        raise CollectiveError(
            f"chunk {signal[LOST]} cannot reach a rank that wants it over the links and relays that may be "
            "used; add links, or ranks that relay",
            where="destinations",
        )


def _nets(fabric: Fabric, demand: Demand) -> Nets:
    """Nets to route: one for each chunk, from its origins to its targets."""
    num_ranks, num_chunks = fabric.num_ranks, demand.num_chunks
    wants = np.ones((num_chunks, num_ranks), bool)
    if demand.target is not None:
        wants[:] = demand.target[:, None] == np.arange(num_ranks)
    elif demand.wanted is not None:
        bits = demand.wanted if demand.needed is None else demand.needed
        wants[:] = np.unpackbits(bits, axis=1, count=num_chunks, bitorder="little").T
    wants[np.repeat(np.arange(num_chunks), np.diff(demand.origin_of)), demand.origin] = False
    chunk, target = np.nonzero(wants)
    origin = demand.origin.astype(np.int64)
    return Nets(demand.units, demand.origin_of, origin, starts(chunk, num_chunks), target.astype(np.int32))


def _groups(
    fabric: Fabric, demand: Demand, num_trees: int, masks: Sequence[tuple[Fabric, Ints]] | None
) -> tuple[Nets, Paths, list[tuple[Fabric, Ints]]]:
    """A net for each group of chunks with equal origins and links, and `Paths` of the chunks, filled later.

    A net leads from the origins to all ranks, and has the mean size of its chunks. Later, each group gets
    `num_trees` trees, and each chunk follows one of them to its target. The last result lists, for each
    fabric of allowed links, its groups.
    """
    assert demand.target is not None, "the caller has chunks with one target each"
    num_classes = 1 if masks is None else len(masks)
    class_of = np.zeros(demand.num_chunks, np.int64)
    for number, (_, chunks) in enumerate(masks or ()):
        class_of[chunks] = number
    if (np.diff(demand.origin_of) == 1).all():
        names, start_of = np.unique(demand.origin, return_inverse=True)
        begins = [(rank,) for rank in names.tolist()]
    else:
        begin = [tuple(each.tolist()) for each in np.split(demand.origin, demand.origin_of[1:-1])]
        number_of = {name: number for number, name in enumerate(dict.fromkeys(begin))}
        start_of, begins = np.array([number_of[name] for name in begin]), list(number_of)
    keys, group = np.unique(start_of * num_classes + class_of, return_inverse=True)
    origins = [begins[key // num_classes] for key in keys.tolist()]
    origin = np.array([rank for ranks in origins for rank in ranks], np.int64)
    origin_of = np.concatenate(([0], np.cumsum([len(ranks) for ranks in origins]))).astype(np.int64)
    total, num_groups = np.bincount(group, weights=demand.units), len(origin_of) - 1
    groups = Nets(
        np.maximum(1, total // np.bincount(group)).astype(np.int64),
        origin_of,
        origin,
        np.zeros(num_groups + 1, np.int64),
        np.zeros(0, np.int32),
    )
    paths = Paths(
        demand.units,
        demand.target,
        group.astype(np.int32),
        np.full((num_trees, num_groups, fabric.num_ranks), -1, np.int32),
        np.full(demand.num_chunks, -1, np.int32),
    )
    fabrics = [fabric] if masks is None else [some for some, _ in masks]
    of_class = [np.flatnonzero(keys % num_classes == number) for number in range(num_classes)]
    return groups, paths, list(zip(fabrics, of_class, strict=True))


def _routing(fabric: Fabric, way: Int32s) -> RoutingState:
    """Initial state of the search for routes: no load on links and resources, and empty work arrays."""
    num_ranks, room = fabric.num_ranks, fabric.num_slots + 4 * fabric.num_ranks
    return RoutingState(
        way=way,
        load=np.zeros(fabric.num_slots),
        resource_load=np.zeros(fabric.num_resources),
        price=np.zeros(fabric.num_slots),
        resource_price=np.zeros(fabric.num_resources),
        cost=np.zeros(num_ranks),
        depth=np.zeros(num_ranks),
        came=np.zeros(num_ranks, np.int64),
        path=np.zeros(num_ranks, np.int64),
        is_wanted=np.zeros(num_ranks, bool),
        is_in_tree=np.zeros(num_ranks, bool),
        heap_cost=np.empty(room),
        heap_rank=np.empty(room, np.int64),
    )

"""Schedules along routes that are chosen beforehand to load the fabric evenly.

`taccl.synthesis.proposers.router` finds the routes. `taccl.synthesis.kernels.queue_kernel` orders the sends
along them, and fills columns in order of start, in memory or in files. With few sends, several seeds are
tried.

Two static rules of priority complement each other: latest starts of a relaxed backward schedule, and an even
distribution of chunks over the busy time of the most loaded resource of their path. Both feed a bottleneck
from the beginning, which rules by travel time alone do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl._internal.deadline import OutOfTime, busy_factor
from taccl.schedule.spill import room_for
from taccl.synthesis.kernels.events import run_events
from taccl.synthesis.kernels.fabric import Demand, Fabric, Floats, Ints, chunk_type_of, starts
from taccl.synthesis.kernels.limits import Limits, Sends, best_of, counting
from taccl.synthesis.kernels.queue_kernel import Hops, Queues, join_hops, send_along, send_in_order
from taccl.synthesis.proposers.router import (
    Routes,
    find_own_paths,
    find_paths,
    find_trees,
    holds_of,
    reroute,
    search_steps,
    sending_ns,
)

#: Max sends over all runs; there are at least two runs along paths, or one along trees.
_TOTAL_SENDS = 200_000
#: If time is short, a simple order suffices if its finish is at most this multiple of the peak load.
#: The peak load is a lower bound for all orders of sends along the same routes.
#: `_LATE_S`: otherwise, a run of the kernel may end this number of seconds after the time for runs.
_CLOSE, _LATE_S = 1.02, 0.25
#: Max runs of the kernel along paths, each with another rule or other paths.
_MOST_RUNS = 40
#: Max runs of the kernel along trees, each with another order or other trees.
_MOST_TREE_RUNS = 100
#: Priority rules that are tried in turn along the same paths.
PATH_RULES = ("in step", "latest start", "spread", "travel time", "in pairs")
#: Number of orders of sends, with ties broken by different seeds, tried along the same trees.
_TREE_ORDERS = 2
#: Cost, in the search for trees, of each tick until a chunk reaches a rank; one value per search, in turn.
_WAITING = (0.25, 4.0, 1.0, 16.0)
MANY_STEPS = 30_000_000  # max links visited in searches for trees over all runs (about 1 s)
_ORDER_NS = 70  # estimated nanoseconds to order a hop
#: Rounds of the backward schedule; with more, the due dates of different resources contradict each other.
_ROUNDS = 2
VERIFY_US_PER_TRANSFER = 0.2  # estimated CPU microseconds to verify a transfer of a copied chunk


def send_queued(fabric: Fabric, demand: Demand, limits: Limits = Limits()) -> Sends:
    """Best schedule of several priority rules, seeds and paths, for chunks with one destination each.

    The default number of runs grows as the number of sends falls.

    - `demand`: A demand in which every chunk has a target.

    Raises `CollectiveError` if a chunk cannot reach its target; `OutOfTime` if it was stopped before there
    was a schedule.
    """
    find = partial(find_paths, fabric, demand)
    routes = find(limits)
    own = find_own_paths(fabric, demand, limits)
    if own is not None and own.peak_ticks < routes.peak_ticks:
        find, routes = partial(find_trees, fabric, demand), own
    order_s = sending_ns(fabric, len(routes.slot)) / 10**9
    if order_s > limits.order_s:
        return send_at_once(fabric, demand, routes, limits)
    routes = reroute(fabric, demand, routes, limits)
    simple, suffices = _simple_if_late(fabric, demand, routes, limits)
    if simple is not None and suffices:
        return simple
    verifying_s = busy_factor() * len(routes.slot) * VERIFY_US_PER_TRANSFER / 10**6
    most = min(_MOST_RUNS, _TOTAL_SENDS // max(1, len(routes.slot)))
    best = _send_best(
        fabric, demand, routes, find, replace(limits, deadline=limits.deadline.later(-verifying_s)),
        orders=len(PATH_RULES), num_runs=limits.num_runs or max(2, most),
    )  # fmt: skip
    return best or simple or send_at_once(fabric, demand, routes, limits)


def _simple_if_late(
    fabric: Fabric, demand: Demand, routes: Routes, limits: Limits
) -> tuple[Sends | None, bool]:
    """(schedule of a single pass, True if it suffices); no schedule if time is left for a run of the kernel.

    It suffices if it finishes near the peak load, or if a run would end too late.
    """
    takes_s = busy_factor() * sending_ns(fabric, len(routes.slot)) / 10**9
    left_s = (limits.until or limits.deadline).left_s
    if left_s >= takes_s:
        return None, False
    simple = send_at_once(fabric, demand, routes, limits)
    return simple, simple.finish_ticks <= _CLOSE * routes.peak_ticks or left_s + _LATE_S < takes_s


def send_at_once(fabric: Fabric, demand: Demand, routes: Routes, limits: Limits = Limits()) -> Sends:
    """Single-pass scheduling: longest remaining path first, ties in pairwise-exchange order.

    Each hop has its earliest start in this order.
    """
    steps = _steps(fabric, demand, routes)
    hops = make_hops(fabric, demand.units, routes, limits.seed, steps=steps)
    return send_ordered(fabric, hops, np.argsort(hops.key, kind="stable"), demand.chunk_type, limits)


def send_ordered(
    fabric: Fabric, hops: Hops, order: Ints, chunk_type: type[np.integer[Any]], limits: Limits = Limits()
) -> Sends:
    """Schedule the hops in the given order, each at its earliest start.

    - `order`: Hops, each after those that it waits for.
    """
    start = np.zeros(len(hops.slot), np.int64)
    finish = int(send_in_order(fabric, hops, order, start))
    order = np.argsort(start, kind="stable")

    def column(values: NDArray[Any], dtype: type[np.integer[Any]]) -> NDArray[Any]:
        room = room_for(len(order), dtype, limits.spill_dir)
        room[:] = values[order]
        return room

    start_type = np.int32 if finish <= np.iinfo(np.int32).max else np.int64
    link = column(fabric.link[hops.slot], np.int32)
    return Sends(column(hops.chunk, chunk_type), link, column(start, start_type), finish)


def send_together(
    fabric: Fabric, units: Ints, routes: Routes, first: Ints, most_merged: Ints, limits: Limits = Limits()
) -> Sends | None:
    """Schedule chunks along given routes, and merge those that wait for the same link; None if stopped.

    Merged chunks are rows of the same link and start.

    - `first`, (num_hops,) int64: Priority of hops that wait for the same link, the smallest first.
    - `most_merged`, (num_slots,) int64: Max chunks per send.
    """
    hops = make_hops(fabric, units, routes, limits.seed)
    is_urgent = np.zeros(len(first), bool) if routes.urgent is None else routes.urgent
    key = first.astype(np.float64) - (1.0 + first.max(initial=0)) * is_urgent
    hops = hops._replace(key=key, is_urgent=is_urgent, most_merged=most_merged)
    found = run_events(
        lambda: (len(first), partial(send_along, fabric, hops, _make_queues(fabric, hops))),
        fabric, limits, 2**62, doing="merging sends", chunk_type=np.int32,
    )  # fmt: skip
    return found if found.finish_ticks >= 0 else None


def send_at_earliest(fabric: Fabric, hops: Hops, found: Sends) -> Sends:
    """Re-time the sends of a schedule: earliest starts, in the given order on each link and resource."""
    start = starts_of(fabric, hops, found)
    return send_ordered(fabric, hops, np.argsort(start, kind="stable"), found.chunk.dtype.type)


def starts_of(fabric: Fabric, hops: Hops, found: Sends) -> Ints:
    """(num_hops,) start of each hop in a schedule, in ticks."""
    by_hop = np.lexsort((hops.slot, hops.chunk))
    start: Ints = np.empty(len(by_hop), np.int64)
    start[by_hop] = found.start[np.lexsort((slots_of(fabric, found), found.chunk))]
    return start


def routes_of(fabric: Fabric, num_chunks: int, found: Sends) -> tuple[Routes, Ints]:
    """Routes of the chunks in a schedule, and the start of each hop in ticks, of shape (num_hops,)."""
    slot, chunk = slots_of(fabric, found).astype(np.int32), found.chunk.astype(np.int64)
    came = np.full(num_chunks * fabric.num_ranks, -1)
    came[chunk * fabric.num_ranks + fabric.dst[slot]] = np.arange(len(chunk))
    # A hop follows the hop that brings its chunk; hops of one chunk from the same rank are adjacent.
    order = np.lexsort((came[chunk * fabric.num_ranks + fabric.src[slot]], chunk))
    routes = Routes(starts(chunk, num_chunks), slot[order], 0)
    return routes, found.start[order].astype(np.int64)


def send_along_trees(
    fabric: Fabric,
    demand: Demand,
    limits: Limits,
    routes: Routes,
    find: Callable[..., Routes],
    *,
    limit_ticks: int = 2**62,
) -> Sends | None:
    """Best of several schedules along trees, each with other trees or another order of sends.

    The fewer sends and links there are, the more schedules are tried.

    - `routes`: The first trees to try.
    - `find`: Function from limits and `waiting` to further trees; see `find_trees`.
    - `limit_ticks`: Latest finish that counts.

    None if no schedule finishes by then, or it was stopped. If time is short, the first trees get a schedule
    in a single pass.
    """
    simple, suffices = _simple_if_late(fabric, demand, routes, limits)
    if simple is not None and simple.finish_ticks > limit_ticks:
        simple = None
    if suffices:
        return simple
    first = limits.seed
    runs = min(
        _MOST_TREE_RUNS,
        _TOTAL_SENDS // max(1, len(routes.slot)),
        _TREE_ORDERS * max(1, MANY_STEPS // max(1, search_steps(fabric, demand))),
    )

    def find_more(limits: Limits) -> Routes:
        again = (limits.seed - first) // _TREE_ORDERS
        return find(limits, waiting=_WAITING[again % len(_WAITING)])

    best = _send_best(
        fabric, demand, routes, find_more, limits, orders=_TREE_ORDERS,
        num_runs=limits.num_runs or max(1, runs), limit_ticks=limit_ticks,
    )  # fmt: skip
    return best or simple


def _send_best(
    fabric: Fabric,
    demand: Demand,
    routes: Routes,
    find: Callable[[Limits], Routes],
    limits: Limits,
    *,
    orders: int,
    num_runs: int,
    limit_ticks: int = 2**62,
) -> Sends | None:
    """Best schedule of several sets of routes and several orders along each; None if none meets the limit.

    - `routes`: The first set of routes to try.
    - `find`: Function from limits to a further set of routes.
    - `orders`: Number of orders tried along the same routes.
    """

    def attempt(run: int, limit: int, limits: Limits) -> Sends | None:
        nonlocal routes
        if run and run % orders == 0:
            try:
                routes = find(limits)
            except OutOfTime:  # no further routes in time
                return None
        if routes.peak_ticks > limit:
            return None
        rule = "travel time" if demand.target is None else PATH_RULES[run % orders]
        return send_once(fabric, demand, routes, limit, limits, rule=rule)

    steps = sending_ns(fabric, len(routes.slot))
    return best_of(attempt, limits, num_runs, steps=steps, limit_ticks=limit_ticks)


def travel_ticks(fabric: Fabric, units: Ints, routes: Routes) -> Ints:
    """(num_hops,) least ticks from each hop's start until all ranks that it leads to have the chunk."""
    hops = make_hops(fabric, units, routes)
    ticks: Ints = np.ceil(-hops.key).astype(np.int64)
    return ticks


def send_once(
    fabric: Fabric,
    demand: Demand,
    routes: Routes,
    limit: int,
    limits: Limits,
    *,
    rule: str,
) -> Sends | None:
    """One run of the kernel by a rule of `PATH_RULES`; None if it exceeds the limit, or is stopped."""
    latest = {"latest start": latest_starts, "spread": spread_starts}.get(rule)
    num_hops, deadline = len(routes.slot), limits.deadline
    sending, ordering = sending_ns(fabric, num_hops), _ORDER_NS * num_hops
    signal = np.zeros(2, np.int64)
    under_way = counting(deadline, signal, "ordering sends", demand.num_chunks, ordering, sending)
    with under_way, deadline.stopping(signal):
        steps = _steps(fabric, demand, routes, rule) if rule in ("in step", "in pairs") else None
        hops = make_hops(fabric, demand.units, routes, limits.seed, signal, steps)
        if latest is not None and not signal[0]:
            jitter = np.random.default_rng(limits.seed).random(num_hops)
            hops = hops._replace(key=latest(fabric, demand.units, routes, jitter))
    if signal[0]:
        return None
    if routes.urgent is not None and latest is not None:
        # These keys ignore the priority.
        hops.key[routes.urgent] -= 1.0 + np.ptp(hops.key)
    return run_hops(fabric, hops, limits, limit, chunk_type=demand.chunk_type, least_ticks=routes.peak_ticks)


def run_hops(
    fabric: Fabric,
    hops: Hops,
    limits: Limits,
    limit: int,
    *,
    chunk_type: type[np.integer[Any]] | None = None,
    least_ticks: int = 0,
    begins: Ints | None = None,
) -> Sends | None:
    """One run of the kernel by the keys of `hops`; None if it exceeds the limit, or is stopped.

    - `chunk_type`: Integer type for chunk numbers; None for the narrowest.
    - `least_ticks`: Lower bound on the finish.
    - `begins`, (num_slots,): Earliest starts on each link, in ticks.
    """
    num_hops = len(hops.slot)
    found = run_events(
        lambda: (num_hops, partial(send_along, fabric, hops, _make_queues(fabric, hops))),
        fabric, limits, limit, steps=sending_ns(fabric, num_hops), doing="queueing sends",
        chunk_type=chunk_type or chunk_type_of(len(hops.units)), least_ticks=least_ticks, begins=begins,
    )  # fmt: skip
    return found if found.finish_ticks >= 0 else None


def slots_of(fabric: Fabric, found: Sends) -> Ints:
    """(num_sends,) slot of each send's link: its index in the fabric's arrays."""
    slot_of_link = np.zeros(int(fabric.link.max()) + 1, np.int64)
    slot_of_link[fabric.link] = np.arange(fabric.num_slots)
    return slot_of_link[found.link]


def make_hops(
    fabric: Fabric,
    units: Ints,
    routes: Routes,
    seed: int = 0,
    signal: Ints | None = None,
    steps: Ints | None = None,
) -> Hops:
    """Hops with priority keys: the longest route ahead first; ties are broken at random, or by `steps`.

    - `steps`, (num_hops,): Order of hops with equal routes ahead, from 0 to the number of ranks.

    The result is invalid if `signal` stopped it.
    """
    signal = np.zeros(2, np.int64) if signal is None else signal
    chunk = np.repeat(np.arange(len(units), dtype=np.int32), np.diff(routes.hop_of))
    count = len(chunk)
    took = fabric.beta[routes.slot]  # the arrays are large, so they are computed in place
    took *= units[chunk]
    took += fabric.alpha[routes.slot]
    key = np.random.default_rng(seed).random(count) if steps is None else steps.astype(np.float64)
    key *= 0.3 * int(took.min(initial=1)) / (1 if steps is None else fabric.num_ranks)
    waits_for, next_of, next_end = (np.zeros(count, np.int32) for _ in range(3))
    is_urgent = np.zeros(0, bool) if routes.urgent is None else routes.urgent
    alone = np.ones(fabric.num_slots, np.int64)
    hops = Hops(units, routes.slot, chunk, waits_for, next_of, next_end, key, is_urgent, alone)
    join_hops(fabric, routes.hop_of, hops, np.empty(fabric.num_ranks, np.int64), took, signal)
    key -= took
    if routes.urgent is not None:
        key[routes.urgent] -= 2.0 * took.max(initial=1)
    return hops


def _make_queues(fabric: Fabric, hops: Hops) -> Queues:
    num_slots, num_hops = fabric.num_slots, len(hops.slot)
    port_resource, port_of = _ports(fabric)
    num_ports = len(port_resource)
    return Queues(
        waiting=hops.waits_for.copy(),
        queue_of=starts(hops.slot, num_slots)[:-1],
        queue_size=np.zeros(num_slots, np.int64),
        queue_key=np.empty(num_hops),
        queue_hop=np.empty(num_hops, np.int32),
        resource_left=np.zeros(fabric.num_resources, np.int64),
        not_before=np.zeros(num_slots, np.int64),
        port_of=port_of,
        port_resource=port_resource,
        offer_of=starts(port_of, num_ports)[:-1],
        offer_size=np.zeros(num_ports, np.int64),
        offer_key=np.empty(num_slots),
        offer=np.empty(num_slots, np.int64),
        asked_at=np.full(num_slots, -1),
        asking=np.empty(num_ports, np.int64),
        asking_key=np.empty(num_ports),
        turn=np.zeros(1, np.int64),
        together=np.empty(int(hops.most_merged.max(initial=1)), np.int64),
    )


def _ports(fabric: Fabric) -> tuple[Ints, Ints]:
    """(resource of each port, port of each slot): slots of a port hold its resource when their send starts.

    A slot without such a resource is a port of its own, with resource -1.
    """
    slot = np.repeat(np.arange(fabric.num_slots), np.diff(fabric.hold_of))
    at_start = np.flatnonzero(~fabric.hold_receives)[::-1]
    port = -1 - np.arange(fabric.num_slots)
    port[slot[at_start]] = fabric.hold_resource[at_start]  # the first one
    numbers, port_of = np.unique(port, return_inverse=True)
    return np.maximum(numbers, -1), port_of


def _steps(fabric: Fabric, demand: Demand, routes: Routes, rule: str = "in step") -> Ints:
    """(num_hops,) step of a pairwise exchange in which the chunk of each hop is sent.

    In step s, every rank sends to the rank s after it; by the rule "in pairs", ranks whose numbers differ in
    the bits of s send to each other. No two ranks send to the same one in a step. Chunks with several
    destinations have the steps of their hops.
    """
    ends: tuple[NDArray[Any], NDArray[Any]]
    if demand.target is None:
        ends = fabric.src[routes.slot], fabric.dst[routes.slot]
    else:
        ends = demand.origin[demand.origin_of[:-1]][routes.chunk], demand.target[routes.chunk]
    src, dst = (end.astype(np.int64) for end in ends)
    steps: Ints = dst ^ src if rule == "in pairs" else (dst - src) % fabric.num_ranks
    return steps


def latest_starts(fabric: Fabric, units: Ints, routes: Routes, jitter: Floats) -> Floats:
    """(num_hops,) latest start of each hop in ticks, if the busiest resource is never idle.

    Each resource in turn is scheduled backward from the peak load by due dates, as if the others were free (a
    relaxed Schrage schedule, reversed). The due date of a hop is the latest start of the next hop of its
    path.

    - `jitter`, (num_hops,): Ticks that break ties.
    """
    hop, resource, ticks = holds_of(fabric, units, routes)
    chunk, peak = routes.chunk, float(routes.peak_ticks)
    took = fabric.alpha[routes.slot] + units[chunk] * fabric.beta[routes.slot]
    goes_on = np.append(chunk[1:] == chunk[:-1], False)
    start = np.full(len(chunk), peak) - took
    for turn in range(_ROUNDS + 1):
        for _ in range(int(np.diff(routes.hop_of).max(initial=1)) - 1):
            start[:-1] = np.where(goes_on[:-1], np.minimum(start[:-1], start[1:] - took[:-1]), start[:-1])
        if turn == _ROUNDS:
            break
        order = np.lexsort(((start + took + jitter)[hop], resource))
        on, held = hop[order], ticks[order]
        ends = np.cumsum(held)
        # An occupation can be delayed by the least slack among itself and all later ones of its resource.
        slack = start[on] + held - ends
        place = np.cumsum(np.append(0, np.diff(resource[order]) != 0))
        offset = place * (np.ptp(slack) + 1.0)
        least = np.minimum.accumulate((slack + offset)[::-1])[::-1] - offset
        np.minimum.at(start, on, least + ends - held)
    return start + jitter


def spread_starts(fabric: Fabric, units: Ints, routes: Routes, jitter: Floats) -> Floats:
    """(num_hops,) ticks at which the chunk of each hop would start on the most loaded resource of its path.

    The chunks of a resource are in random order, spread evenly over its busy time up to the peak.
    """
    hop, resource, ticks = holds_of(fabric, units, routes)
    load, chunk = np.bincount(resource, ticks), routes.chunk[hop]
    order = np.lexsort((load[resource], chunk))
    # For each chunk with hops, its occupation of the most loaded resource of its path.
    critical = order[np.append(chunk[order][1:] != chunk[order][:-1], True)]
    on, held = resource[critical], ticks[critical]
    order = np.lexsort((jitter[hop[critical]], on))
    ends = np.cumsum(held[order])
    is_first = np.append(True, np.diff(on[order]) != 0)
    done = ends - held[order] - np.maximum.accumulate(np.where(is_first, ends - held[order], 0))
    whole = load[on[order]]
    start = np.zeros(len(units))
    part = done / np.bincount(on, held)[on[order]]
    start[chunk[critical][order]] = routes.peak_ticks - whole + part * whole
    found: Floats = start[routes.chunk]
    return found

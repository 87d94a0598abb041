"""Open spreading: joint routing and scheduling of broadcast-like problems, in seconds for thousands of ranks.

`spread` runs the compiled kernel under several rules, and keeps the best schedule. Its result is columns with
one row per send, without Python objects for sends.

`spread_masked` obeys clauses of a sketch on single chunks. Chunks with the same allowed links share a fabric
of these links, on which their trees grow; all trees are charged for the total load on links and resources.
Then the sends along the trees are ordered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import lexsort, numbered
from taccl._internal.deadline import OutOfTime, busy_factor
from taccl.errors import CollectiveError
from taccl.problem.problem import Problem
from taccl.synthesis.kernels.events import STUCK, Timeline, run_events
from taccl.synthesis.kernels.fabric import Bytes, Demand, Fabric
from taccl.synthesis.kernels.limits import Limits, Sends, best_of
from taccl.synthesis.kernels.spreading_kernel import SpreadingState, mark_needed, spread_chunks
from taccl.synthesis.proposers.drawing import spread_drawn
from taccl.synthesis.proposers.queues import MANY_STEPS, send_along_trees, send_queued, travel_ticks
from taccl.synthesis.proposers.router import (
    KEPT_STEPS,
    TREE_EXPONENTS,
    Routes,
    find_paths,
    find_trees,
    own_paths_s,
    search_steps,
)

#: `_SPREADING_RUNS`: min runs of open spreading.
#: `_QUICK_RUNS`: min runs if some rule sends the rarest chunks first.
_SPREADING_RUNS, _QUICK_RUNS = 4, 6
#: Values of `Rule.theta` to try if chunks go in order of arrival.
_BEHIND = (1.0, 2.0, 0.5, 0.0)


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule by which the kernel chooses links and chunks."""

    #: Order in which links into a rank choose chunks: "in-turn", or "fewest-first" (by chunks to offer).
    #: With "drawn", another kernel lets every link draw chunks at random.
    order: str = "fewest-first"
    #: A slow link usually sends only chunks that no rank of the receiver's fast component has.
    #: It may repeat a chunk if the receiver lags by more than fast links carry in `theta` slow sends.
    theta: float = 1.0
    rarest: bool = False  # True: a link sends the rarest of its source's chunks; False: the first to arrive


#: Rules for fabrics of fast components joined by slow links.
#: With a smaller `theta`, a slow link sooner carries chunks that the receiver's component already has.
_EAGER = (Rule("in-turn", 0.7), Rule("in-turn", 0.5, rarest=True))


def default_rules(fabric: Fabric, demand: Demand) -> tuple[Rule, ...]:
    """Rules worth trying on a fabric, best guess first.

    Links send the rarest chunks first if searching for these is quick. If it is not, and links have many
    speeds without structure, the first rule draws chunks at random.
    """
    rarest, tiered = fabric.num_ranks * demand.num_chunks**2 <= MANY_STEPS, len(fabric.component) > 1
    thetas = _BEHIND if tiered and not rarest else _BEHIND[:1]
    orders = ("in-turn", "fewest-first") if fabric.num_resources else ("fewest-first", "in-turn")
    ordered = tuple(Rule(order, theta, rarest) for theta in thetas for order in orders)
    if rarest:
        return (*ordered, *_EAGER) if tiered else ordered
    return ordered if has_tiers(fabric) else (Rule("drawn"), *ordered)


def has_tiers(fabric: Fabric) -> bool:
    """True if links form tiers: for each speed class, the faster links join every rank to some others.

    True also if all links are equally fast.
    """
    return all(np.bincount(each, minlength=1).min() > 1 for each in fabric.component[1:])


def spread(
    fabric: Fabric, demand: Demand, limits: Limits = Limits(), *, rules: Sequence[Rule] | None = None
) -> Sends:
    """Best schedule, over several rules, that brings every chunk once to each rank that wants it.

    - `rules`: Rules to try in order, then again with other seeds; None for `default_rules`.

    Raises `CollectiveError` if a chunk cannot reach a rank that wants it; `OutOfTime` if it was stopped
    before there was a schedule.
    """
    if demand.target is not None:
        return send_queued(fabric, demand, limits)
    routes = None
    if demand.wanted is not None:
        demand, routes = _with_relays(fabric, demand, limits)
    tried = tuple(rules or default_rules(fabric, demand))

    def attempt(run: int, limit: int, this: Limits) -> Sends | None:
        again, number = divmod(run, len(tried))
        return _run(fabric, demand, tried[number], limit, replace(this, seed=limits.seed + again))

    least_runs = _QUICK_RUNS if any(rule.rarest for rule in tried) else _SPREADING_RUNS
    best = best_of(attempt, limits, limits.num_runs or max(least_runs, len(tried)))
    if best is None:
        raise OutOfTime("stopped before any rule had a schedule; give more time")
    is_over = (limits.until or limits.deadline).has_passed
    is_done = best.finish_ticks <= limits.target_ticks or limits.num_runs is not None or is_over
    if routes is None or is_done:
        return best
    find, limit = partial(find_trees, fabric, demand), best.finish_ticks - 1
    with limits.deadline.scope("along trees"):
        return send_along_trees(fabric, demand, limits, routes, find, limit_ticks=limit) or best


def _with_relays(fabric: Fabric, demand: Demand, limits: Limits) -> tuple[Demand, Routes | None]:
    """(demand in which ranks that relay a chunk also receive it, routes of the chunks or None).

    The routes are not kept if their search had too few passes, for lack of time.
    """
    assert demand.wanted is not None, "not all ranks want all chunks"
    routes = find_trees(fabric, demand, limits, most_steps=KEPT_STEPS)
    wanted = demand.wanted.copy()
    bit = (1 << (routes.chunk & 7)).astype(np.uint8)
    np.bitwise_or.at(wanted, (fabric.dst[routes.slot], routes.chunk >> 3), bit)
    longest = np.zeros(demand.num_chunks, np.int64)
    np.maximum.at(longest, routes.chunk, travel_ticks(fabric, demand.units, routes))
    steps = search_steps(fabric, demand) * len(TREE_EXPONENTS)
    relayed = replace(demand, wanted=wanted, needed=demand.wanted, reach=longest)
    return relayed, routes if steps <= KEPT_STEPS else None


def _run(fabric: Fabric, demand: Demand, rule: Rule, limit: int, limits: Limits) -> Sends | None:
    """One run of the kernel; None if it exceeds the limit or is stopped."""
    state: SpreadingState | None = None

    def begin() -> tuple[int, Callable[[Timeline, int], int]]:
        nonlocal state
        state = _make_state(fabric, demand, rule, limits.seed)
        kernel = partial(spread_chunks, fabric, state, rule.order == "in-turn", rule.theta)
        return int(state.missing.sum()), kernel

    if rule.order == "drawn":
        found = spread_drawn(fabric, demand, limit, limits)
    else:
        kind = demand.chunk_type
        found = run_events(begin, fabric, limits, limit, doing="spreading chunks", chunk_type=kind)
    if found.finish_ticks == STUCK:
        raise CollectiveError(
            f"{'some' if state is None else state.missing.sum()} chunks cannot reach ranks that want them "
            "over the links that may be used; add links, or ranks that relay",
            where="destinations",
        )
    if found.finish_ticks < 0:
        return None
    return found if demand.needed is None else _pruned(fabric, demand, demand.needed, found)


def _pruned(fabric: Fabric, demand: Demand, needed: Bytes, found: Sends) -> Sends:
    """Sends that lead to some rank that needs the chunk; all others are left out."""
    slot_of_link = np.zeros(int(fabric.link.max()) + 1, np.int32)
    slot_of_link[fabric.link] = np.arange(fabric.num_slots, dtype=np.int32)
    slot = slot_of_link[found.link]
    keep = np.zeros(len(slot), bool)
    mark_needed(found.chunk, fabric.src[slot], fabric.dst[slot], needed.copy(), keep)
    chunk, start, slot = found.chunk[keep], found.start[keep], slot[keep]
    end = start + fabric.alpha[slot] + demand.units[chunk] * fabric.beta[slot]
    return Sends(chunk, found.link[keep], start, int(end.max(initial=0)))


def _make_state(fabric: Fabric, demand: Demand, rule: Rule, seed: int) -> SpreadingState:
    """Initial state of the kernel: each chunk is at its origins, and nothing has been sent."""
    num_ranks, num_chunks, num_slots = fabric.num_ranks, demand.num_chunks, fabric.num_slots
    chunk = np.repeat(np.arange(num_chunks), np.diff(demand.origin_of))
    byte, bit = chunk >> 3, (1 << (chunk & 7)).astype(np.uint8)
    everything = np.packbits(np.ones(num_chunks, bool), bitorder="little")
    claimed = ~(np.tile(everything, (num_ranks, 1)) if demand.wanted is None else demand.wanted)
    np.bitwise_or.at(claimed, (demand.origin, byte), bit)
    missing = 8 * claimed.shape[1] - np.bitwise_count(claimed).sum(axis=1, dtype=np.int64)
    filled = np.bincount(demand.origin, minlength=num_ranks)
    log_of = np.concatenate(([0], np.cumsum(filled + missing)))
    log = np.empty(int(log_of[-1]), demand.chunk_type)
    far = np.zeros(num_chunks, np.int64) if demand.reach is None else -demand.reach
    by_rank = np.lexsort((chunk, far[chunk], demand.origin))
    first = np.repeat(log_of[:-1] - (np.cumsum(filled) - filled), filled)
    log[first + np.arange(len(by_rank))] = chunk[by_rank]
    component, num_classes = fabric.component, len(fabric.component)
    num_components = int(component[1:].max(initial=-1)) + 1
    held = np.zeros((num_classes if num_components else 0, num_components, claimed.shape[1]), np.uint8)
    for k in range(1, num_classes):
        np.bitwise_or.at(held[k], (component[k][demand.origin], byte), bit)
    copies = np.zeros((int(component[-1].max()) + 1 if rule.rarest else 0, num_chunks), np.int64)
    if rule.rarest:
        np.add.at(copies, (component[-1][demand.origin], chunk), 1)
    # Links into a rank are examined in turn, beginning with a random one, or with the first if the seed is 0.
    turn = np.random.default_rng(seed).integers(1 << 23 if seed else 1, size=num_slots)
    return SpreadingState(
        units=demand.units,
        log_of=log_of,
        log=log,
        log_end=log_of[:-1] + filled,
        claimed=claimed,
        missing=missing,
        held=held,
        num_held=np.bitwise_count(held).sum(axis=2, dtype=np.int64),
        copies=copies,
        holders=(copies > 0).sum(axis=0),
        place=log_of[fabric.src],
        fresh_place=log_of[fabric.src],
        armed=np.ones(num_slots, bool),
        turn=turn,
        queue=np.zeros(num_slots, np.int64),
        active=np.arange(num_ranks),
        is_active=np.ones(num_ranks, bool),
    )


def has_chunk_masks(problem: Problem) -> bool:
    """True if clauses of the sketch restrict the links, or the order, of single chunks."""
    return bool(problem.clauses.said("chunk", "group", "path", "order"))


def spread_masked(problem: Problem, fabric: Fabric, demand: Demand, limits: Limits = Limits()) -> Sends:
    """Best of several schedules along trees, each over the links that its chunk may use.

    - `problem`: A broadcast-like problem; `fabric` and `demand` are its arrays.

    If time is short, chunks with one destination choose among paths that they share, instead of a search for
    each of them.

    Raises `CollectiveError` if a chunk cannot reach a rank that wants it over its allowed links; `OutOfTime`
    if it was stopped before there was a schedule.
    """
    masks = _masks(problem, fabric)

    def find(limits: Limits, *, waiting: float | None = None, shares: bool = False) -> Routes:
        if shares:
            routes = find_paths(fabric, demand, limits, masks=masks)
        else:
            routes = find_trees(fabric, demand, limits, masks=masks, waiting=waiting)
        return replace(routes, urgent=urgent_hops(problem, fabric, demand, routes))

    until = limits.until or limits.deadline
    is_late = demand.target is not None and busy_factor() * own_paths_s(fabric, demand) > until.left_s
    with limits.deadline.scope("", ahead=1.0):
        routes = find(limits, shares=is_late)
    with limits.deadline.scope(""):
        best = send_along_trees(fabric, demand, limits, routes, find)
    if best is None:
        raise OutOfTime("stopped before there was a schedule along the trees; give more time")
    return best


def _masks(problem: Problem, fabric: Fabric) -> list[tuple[Fabric, NDArray[np.int64]]]:
    """(fabric of allowed links, its chunks) for each set of chunks with the same allowed links."""
    starts, most = problem.collective.origin_sets, problem.clauses.path_limit
    number, masks = problem.open_link_sets()
    code = number if most is None else number * len(starts.sets) + starts.of_chunk
    of_chunk = numbered(code)[2]
    by_class, num_alike = lexsort((of_chunk,)), np.bincount(of_chunk)
    classes = []
    for alike in sorted(np.split(by_class, np.cumsum(num_alike)[:-1]), key=lambda alike: int(alike[0])):
        chunk = int(alike[0])
        is_open = masks[number[chunk]][fabric.link]
        if most is not None:
            origins = starts.sets[starts.of_chunk[chunk]]
            is_open = is_open & _on_fewest_links(fabric, is_open, origins, most)
        taken = is_open[fabric.out_slot]
        out_of = np.append(0, np.cumsum(taken))[fabric.out_of]
        classes.append((fabric._replace(out_of=out_of, out_slot=fabric.out_slot[taken]), alike))
    return classes


def _on_fewest_links(
    fabric: Fabric, is_open: NDArray[np.bool_], origins: Sequence[int], most: int
) -> NDArray[np.bool_]:
    """True for slots on paths with the fewest links from the origins, so that trees have minimum depth.

    - `most`: Max links of a path.
    """
    hops = np.full(fabric.num_ranks, most + 1)
    hops[list(origins)] = 0
    for passed in range(most):
        ahead = is_open & (hops[fabric.src] == passed)
        np.minimum.at(hops, fabric.dst[ahead], passed + 1)
    found: NDArray[np.bool_] = hops[fabric.dst] == hops[fabric.src] + 1
    return found & (hops[fabric.dst] <= most)


def urgent_hops(problem: Problem, fabric: Fabric, demand: Demand, routes: Routes) -> NDArray[np.bool_] | None:
    """True for hops whose chunk starts at the sender of a link on which such chunks go first.

    None if the problem has no link with this local-first priority.
    """
    if not problem.own_first:
        return None
    first = np.isin(fabric.link[routes.slot], sorted(problem.own_first))
    chunk = np.repeat(np.arange(demand.num_chunks), np.diff(demand.origin_of))
    is_own: NDArray[np.bool_] = np.isin(
        routes.chunk * fabric.num_ranks + fabric.src[routes.slot], chunk * fabric.num_ranks + demand.origin
    )
    return first & is_own

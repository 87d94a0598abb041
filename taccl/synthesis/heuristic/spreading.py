"""Open spreading, of routes and times at once: chunks over a fabric in seconds, for thousands of ranks.

`spread` runs the compiled kernel under several rules, and keeps the best. Its answer is columns, one row for
every send and no Python object for any.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from taccl.deadline import OutOfTime
from taccl.errors import CollectiveError
from taccl.schedule.spill import room_for
from taccl.synthesis.heuristic.events import ticks_in_words
from taccl.synthesis.heuristic.limits import Limits, Sends, best_of
from taccl.synthesis.heuristic.queues import send_along_trees, send_queued, travel_ticks
from taccl.synthesis.heuristic.router import find_trees, search_steps
from taccl.synthesis.heuristic.spreading_kernel import (
    FEWEST_FIRST,
    HEAP_FULL,
    IN_TURN,
    NUM_SENDS,
    OVER_LIMIT,
    SIGNAL,
    STUCK,
    State,
    mark_needed,
    spread_chunks,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from taccl.synthesis.heuristic.fabric import Demand, Fabric
    from taccl.synthesis.heuristic.router import Routes

_ORDERS = {"fewest-first": FEWEST_FIRST, "in-turn": IN_TURN}


@dataclass(frozen=True, slots=True)
class Rule:
    """How the kernel chooses.

    - `order`: Which link into a rank chooses first: that with the fewest chunks to offer, or each in its
      turn.
    - `theta`: How many slow sends' time a rank must be behind its fast component before a slow link repeats
      for it what the component has already.
    - `rarest`: Whether a link brings the rarest of its source's chunks, or the first that came there.
    """

    order: str = "fewest-first"
    theta: float = 1.0
    rarest: bool = False


def default_rules(fabric: Fabric, demand: Demand, limits: Limits = Limits()) -> tuple[Rule, ...]:
    """The rules worth trying on a fabric, best guess first; rarest chunks where looking for them is quick."""
    orders = ("in-turn", "fewest-first") if fabric.num_resources else ("fewest-first", "in-turn")
    parameters = limits.parameters.queues
    rarest = fabric.num_ranks * demand.num_chunks**2 <= parameters.many_steps
    thetas = parameters.behind[: 1 if rarest or fabric.num_classes == 1 else None]
    return tuple(Rule(order, theta, rarest) for theta in thetas for order in orders)


def spread(
    fabric: Fabric, demand: Demand, limits: Limits = Limits(), *, rules: Sequence[Rule] | None = None
) -> Sends:
    """Sends that bring every chunk to all that want it, each rank once; by default each rule once at least.

    - `rules`: Tried in order, then again with other seeds; by default `default_rules`.

    Raises `CollectiveError` if a chunk cannot reach a rank that wants it. `OutOfTime` if it was stopped
    before there was a schedule.
    """
    if demand.target is not None:
        return send_queued(fabric, demand, limits)
    routes = None
    if demand.wanted is not None:
        demand, routes = _with_relays(fabric, demand, limits)
    tried = tuple(rules or default_rules(fabric, demand, limits))

    def attempt(run: int, limit: int, this: Limits) -> Sends | None:
        again, number = divmod(run, len(tried))
        return _run(fabric, demand, tried[number], limit, replace(this, seed=limits.seed + again))

    best = best_of(
        attempt, limits, limits.num_runs or max(limits.parameters.queues.spreading_runs, len(tried))
    )
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
    """The demand with all ranks on its routes among those that receive a chunk; and these routes.

    Where the search for them took long, it was one of few passes: then they are not kept.
    """
    assert demand.wanted is not None, "not all ranks want all chunks"
    parameters = limits.parameters.router
    routes = find_trees(fabric, demand, limits, most_steps=parameters.kept_steps)
    wanted = demand.wanted.copy()
    bit = (1 << (routes.chunk & 7)).astype(np.uint8)
    np.bitwise_or.at(wanted, (fabric.dst[routes.slot], routes.chunk >> 3), bit)
    longest = np.zeros(demand.num_chunks, np.int64)
    np.maximum.at(longest, routes.chunk, travel_ticks(fabric, demand.units, routes))
    steps = search_steps(fabric, demand) * len(parameters.tree_exponents)
    relayed = replace(demand, wanted=wanted, needed=demand.wanted, reach=longest)
    return relayed, routes if steps <= parameters.kept_steps else None


def _run(fabric: Fabric, demand: Demand, rule: Rule, limit: int, limits: Limits) -> Sends | None:
    """One run of the kernel; None if it passes the limit, takes longer, or is stopped."""
    start_type: type[np.int32] | type[np.int64] = np.int32
    heap_room = 8 * fabric.num_slots + 4 * len(fabric.wake_hold) + 1024
    units = np.array(demand.units, dtype=np.int64)
    while True:
        state, start = _make_state(fabric, demand, rule, limits, heap_room, start_type=start_type)
        scalar, num_sends = state.scalar, max(1, len(state.sent_chunk))
        most = int(np.iinfo(start_type).max)
        with (
            limits.deadline.scope(
                "spreading chunks", done=lambda: float(state.scalar[NUM_SENDS]) / num_sends
            ),
            limits.deadline.stopping(scalar[SIGNAL:]),
        ):
            finish = int(
                spread_chunks(fabric, state, units, _ORDERS[rule.order], rule.theta, min(limit, most))
            )
        if finish == OVER_LIMIT and limit > most:
            start_type = np.int64
        elif finish == HEAP_FULL:
            heap_room *= 4
        else:
            break
    if finish == STUCK:
        raise CollectiveError(
            f"{int(state.missing.sum())} chunks cannot reach ranks that want them over the links that may be "
            "used; add links, or ranks that relay",
            where="destinations",
        )
    if finish < 0:
        return None
    columns = (state.sent_chunk, state.sent_link, start)
    if demand.needed is not None:
        columns, finish = _pruned(fabric, demand, *columns)
    return Sends(*columns, finish)


def _pruned(
    fabric: Fabric, demand: Demand, chunk: NDArray[Any], link: NDArray[np.int32], start: NDArray[Any]
) -> tuple[tuple[NDArray[Any], NDArray[np.int32], NDArray[Any]], int]:
    """The sends that lead to ranks that need the chunk, and the last arrival."""
    assert demand.needed is not None
    slot_of_link = np.zeros(fabric.num_links, np.int32)
    slot_of_link[fabric.link] = np.arange(fabric.num_slots, dtype=np.int32)
    slot = slot_of_link[link]
    keep = np.zeros(len(chunk), bool)
    mark_needed(chunk, fabric.src[slot], fabric.dst[slot], demand.needed.copy(), keep)
    chunk, link, start, slot = chunk[keep], link[keep], start[keep], slot[keep]
    end = start + fabric.alpha[slot] + demand.units[chunk] * fabric.beta[slot]
    return (chunk, link, start), int(end.max(initial=0))


def _make_state(
    fabric: Fabric,
    demand: Demand,
    rule: Rule,
    limits: Limits,
    heap_room: int,
    *,
    start_type: type[np.int32] | type[np.int64],
) -> tuple[State, NDArray[Any]]:
    """The state before anything is sent, and the column of starts that it fills."""
    num_ranks, num_chunks, num_slots = fabric.num_ranks, demand.num_chunks, fabric.num_slots
    width = -(-num_chunks // 8)
    chunk_of_origin = np.repeat(np.arange(num_chunks), np.diff(demand.origin_of))
    byte, bit = chunk_of_origin >> 3, (1 << (chunk_of_origin & 7)).astype(np.uint8)
    if demand.wanted is None:
        claimed = np.zeros((num_ranks, width), np.uint8)
        np.bitwise_or.at(claimed, (demand.origin, byte), bit)
        missing = num_chunks - np.bincount(demand.origin, minlength=num_ranks)
    else:
        claimed = ~demand.wanted
        np.bitwise_or.at(claimed, (demand.origin, byte), bit)
        missing = 8 * width - np.bitwise_count(claimed).sum(axis=1, dtype=np.int64)
    filled = np.bincount(demand.origin, minlength=num_ranks)
    log_of = np.concatenate(([0], np.cumsum(filled + missing)))
    small = np.uint16 if num_chunks <= 1 << 16 else np.int32
    log = np.empty(int(log_of[-1]), small)
    far = np.zeros(num_chunks, np.int64) if demand.reach is None else -demand.reach
    by_rank = np.lexsort((chunk_of_origin, far[chunk_of_origin], demand.origin))
    first = np.repeat(log_of[:-1] - (np.cumsum(filled) - filled), filled)
    log[first + np.arange(len(by_rank))] = chunk_of_origin[by_rank]
    held, num_held = _held(fabric, demand, chunk_of_origin)
    at = fabric.component[-1]
    copies = np.zeros((int(at.max()) + 1 if rule.rarest else 0, num_chunks), np.int64)
    if rule.rarest:
        np.add.at(copies, (at[demand.origin], chunk_of_origin), 1)
    num_sends = int(missing.sum())
    start = room_for(num_sends, start_type, limits.spill_dir)
    state = State(
        log_of=log_of,
        log=log,
        log_end=log_of[:-1] + filled,
        claimed=claimed,
        missing=missing,
        held=held,
        num_held=num_held,
        copies=copies,
        holders=(copies > 0).sum(axis=0),
        resource_free=np.zeros(fabric.num_resources, np.int64),
        link_free=np.zeros(num_slots, np.int64),
        place=np.zeros(num_slots, np.int64),
        fresh_place=np.zeros(num_slots, np.int64),
        armed=np.zeros(num_slots, bool),
        # Turns begin anywhere, unless the seed is 0.
        turn=np.random.default_rng(limits.seed).integers(1 << 23, size=num_slots)
        if limits.seed
        else np.zeros(num_slots, int),
        queue=np.zeros(num_slots, np.int64),
        active=np.zeros(num_ranks, np.int64),
        is_active=np.zeros(num_ranks, bool),
        event_time=np.empty(heap_room, np.int64),
        event_what=np.empty(heap_room, np.int64),
        sent_chunk=room_for(num_sends, small, limits.spill_dir),
        sent_link=room_for(num_sends, np.int32, limits.spill_dir),
        sent_start=ticks_in_words(start),
        scalar=np.zeros(5, np.int64),
    )
    return state, start


def _held(
    fabric: Fabric, demand: Demand, chunk_of_origin: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Bits of the chunks that some rank of a component has, by class and component; and their number."""
    width = -(-demand.num_chunks // 8)
    if fabric.num_classes == 1:
        return np.zeros((0, 0, width), np.uint8), np.zeros((0, 0), np.int64)
    num_components = int(fabric.component[1:].max()) + 1
    held = np.zeros((fabric.num_classes, num_components, width), np.uint8)
    bit = (1 << (chunk_of_origin & 7)).astype(np.uint8)
    for k in range(1, fabric.num_classes):
        np.bitwise_or.at(held[k], (fabric.component[k][demand.origin], chunk_of_origin >> 3), bit)
    return held, np.bitwise_count(held).sum(axis=2, dtype=np.int64)

"""The compiled search for rounds: every crossing gets a link and a round, no resource twice in one round.

Ruin and recreate: the crossings of some chunks are taken out and put back in another order, each over the
cheapest link, a sum as late and a copy as early as may be from the round in which the sum is complete. What
is no worse stays, and sometimes what is a little worse. What is cheap: to leave a node by the rank where the
chunk came in, and not to use the first and the last round, in which few can be on time.
Source: Schrimpf et al., "Record breaking optimization results using the ruin and recreate principle", Journal
of Computational Physics 159 (2000).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.kernels import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.synthesis.crossing.crossings import Crossings

__all__ = [
    "MOST_ROUNDS", "Plan", "chance", "copy_plan", "draw", "enter_rounds", "find_rounds", "make_plan",
    "replace_chunk", "seed_random", "take_out",
]  # fmt: skip

MOST_ROUNDS = 62
#: What a chunk costs for which there is no room, a send inside a node between two crossings, and a crossing
#: in the first or the last round.
_NO_ROOM, _HOP, _EDGE = 1000.0, 2.0, 0.5
#: What it costs in the search that a chunk leaves the node where it starts once more: all other nodes can
#: send it too, and those NICs have the most to do.
_AGAIN = 2.0
#: How much chance counts, and how much worse may stay.
_NOISE, _WARMTH = 1.5, 0.5
#: How many chunks are taken out at once at most, and how often each is tried.
_MOST_OUT, _TRIES = 4, 6


class Plan(NamedTuple):
    """Which link every crossing takes, and when.

    Parameters
    ----------
    link : (num_crossings,) int64
        By index of `Crossings`; -1 of what does not cross.
    round : (num_crossings,) int64
    root : (num_chunks,) int64
        The node where a sum is complete first, or where a chunk starts.
    start : (num_crossings,) int64
        Ticks.
    free : (num_resources,) int64
        Bit r says that nothing takes a resource in round r.
    cost : (num_chunks,) float64
    is_reached : (num_nodes,) bool
        Room, as the next two.
    ready, place : (num_nodes,) int64
    random : (1,) int64
        The state of a random generator.
    """

    link: NDArray[np.int64]
    round: NDArray[np.int64]
    root: NDArray[np.int64]
    start: NDArray[np.int64]
    free: NDArray[np.int64]
    cost: NDArray[np.float64]
    is_reached: NDArray[np.bool_]
    ready: NDArray[np.int64]
    place: NDArray[np.int64]
    random: NDArray[np.int64]


def make_plan(x: Crossings, root: NDArray[np.int64]) -> Plan:
    """Nothing crosses yet."""
    count = 2 * x.num_chunks * x.num_nodes
    return Plan(
        np.full(count, -1, np.int64),
        np.full(count, -1, np.int64),
        root.astype(np.int64),
        np.zeros(count, np.int64),
        np.full(x.num_resources, -1, np.int64),
        np.full(x.num_chunks, _NO_ROOM),
        np.zeros(x.num_nodes, bool),
        np.zeros(x.num_nodes, np.int64),
        np.zeros(x.num_nodes, np.int64),
        np.zeros(1, np.int64),
    )


def enter_rounds(
    x: Crossings, root: NDArray[np.int64], num_rounds: int, *, turns: int, seed: int
) -> Plan | None:
    """A place for every crossing in so many rounds, if one is found in so many turns."""
    plan, kept, best = make_plan(x, root), make_plan(x, root), make_plan(x, root)
    picked = np.zeros(x.num_chunks + _MOST_OUT, np.int64)
    cost = find_rounds(x, plan, kept, best, picked, num_rounds, turns, seed)
    return best if cost < _NO_ROOM else None


# In all below: c chunk, n node, e crossing link, i crossing, q resource.


@compiled
def find_rounds(
    x: Crossings,
    plan: Plan,
    kept: Plan,
    best: Plan,
    picked: NDArray[np.int64],
    num_rounds: int,
    turns: int,
    seed: int,
) -> float:
    """Search for so many turns; what the best plan costs.

    Parameters
    ----------
    plan, kept, best : Plan
        Three that are alike; `best` is the answer.
    picked : (num_chunks + _MOST_OUT,) int64
        Room.
    """
    seed_random(plan, seed)
    now = least = _NO_ROOM * x.num_chunks + 1.0
    for turn in range(turns):
        if turn == 0:
            count = x.num_chunks
            for c in range(count):
                picked[c] = c
            for c in range(count - 1, 0, -1):
                other = draw(plan, c + 1)
                picked[c], picked[other] = picked[other], picked[c]
        else:
            count = 1 + draw(plan, _MOST_OUT)
            worst = -1.0
            for c in range(x.num_chunks):
                weight = plan.cost[c] * chance(plan) + 0.1 * chance(plan)
                if weight > worst:
                    worst, picked[0] = weight, c
            for k in range(1, count):
                picked[k] = draw(plan, x.num_chunks)
        for k in range(count):
            take_out(x, plan, picked[k])
        for k in range(count):
            c = picked[k]
            is_second = False
            for other in range(k):
                is_second |= picked[other] == c
            if not is_second:
                cost = replace_chunk(x, plan, c, num_rounds, _TRIES)
                plan.cost[c] = _NO_ROOM if cost < 0 else cost
        cost = 0.0
        for c in range(x.num_chunks):
            cost += plan.cost[c]
        if cost <= now - _WARMTH * math.log(chance(plan) + 1e-12):
            now = cost
            copy_plan(plan, kept)
            if now < least:
                least = now
                copy_plan(plan, best)
        else:
            copy_plan(kept, plan)
    return least


@compiled
def seed_random(plan: Plan, seed: int) -> None:
    """Begin a row of random numbers; each seed begins another."""
    plan.random[0] = seed
    for _ in range(4):
        chance(plan)


@compiled
def chance(plan: Plan) -> float:
    """A random number of at least 0 and below 1, by a congruential generator (Knuth's MMIX)."""
    plan.random[0] = plan.random[0] * 6364136223846793005 + 1442695040888963407
    return float((plan.random[0] >> 11) & ((1 << 53) - 1)) / float(1 << 53)


@compiled
def draw(plan: Plan, count: int) -> int:
    """A random number of at least 0 and below `count`."""
    return int(chance(plan) * count)


@compiled
def copy_plan(plan: Plan, other: Plan) -> None:
    """Make the other plan like the first."""
    for i in range(len(plan.link)):
        other.link[i], other.round[i], other.start[i] = plan.link[i], plan.round[i], plan.start[i]
    for c in range(len(plan.root)):
        other.root[c], other.cost[c] = plan.root[c], plan.cost[c]
    for q in range(len(plan.free)):
        other.free[q] = plan.free[q]


@compiled
def take_out(x: Crossings, plan: Plan, c: int) -> None:
    """Take out the crossings of a chunk."""
    for t in range(2):
        for n in range(x.num_nodes):
            i = (t * x.num_chunks + c) * x.num_nodes + n
            e = plan.link[i]
            if e >= 0:
                for h in range(x.hold_of[e], x.hold_of[e + 1]):
                    plan.free[x.hold_resource[h]] |= 1 << plan.round[i]
                plan.link[i] = plan.round[i] = -1


@compiled
def replace_chunk(x: Crossings, plan: Plan, c: int, num_rounds: int, tries: int) -> float:
    """Put the crossings of a chunk in; what they cost, -1 if there was no room in any try."""
    for _ in range(tries):
        root, middle = plan.root[c], 0
        if x.origin[c] < 0:
            middle = 1 + draw(plan, max(1, num_rounds - 1))
            if x.num_nodes > 1 and x.needs[c].all() and chance(plan) < 0.7:
                root = draw(plan, x.num_nodes)
        cost = _put_in(x, plan, c, root, middle, num_rounds)
        if cost >= 0.0:
            plan.root[c] = root
            return cost
        take_out(x, plan, c)
    return -1.0


@compiled
def _put_in(x: Crossings, plan: Plan, c: int, root: int, middle: int, num_rounds: int) -> float:
    """Put in a chunk's crossings, sums before the middle and copies from it; their cost, -1 without room."""
    total = 0.0
    meets, latest, has_left = -1, -1, False
    for t in range(2):
        left = 0
        for n in range(x.num_nodes):
            plan.is_reached[n] = False
            plan.place[n] = -1
            left += n != root and (x.needs[c, n] if t else x.brings[c, n])
        plan.is_reached[root] = True
        plan.ready[root] = middle
        plan.place[root] = meets
        while left:
            best, best_e, best_n, best_p, best_r = 1e300, -1, -1, -1, -1
            for p in range(x.num_nodes):
                if not plan.is_reached[p]:
                    continue
                for n in range(x.num_nodes):
                    if plan.is_reached[n] or not (x.needs[c, n] if t else x.brings[c, n]):
                        continue
                    pair = p * x.num_nodes + n if t else n * x.num_nodes + p
                    for k in range(x.between_of[pair], x.between_of[pair + 1]):
                        e = x.between[k]
                        r = _round_for(x, plan, e, t, plan.ready[p], num_rounds)
                        if r < 0:
                            continue
                        cost = (r - middle if t else middle - 1 - r) + _NOISE * chance(plan)
                        here = x.src[e] if t else x.dst[e]
                        if plan.place[p] >= 0 and plan.place[p] != here:
                            cost += _HOP
                        if r == 0 or r == num_rounds - 1:
                            cost += _EDGE
                        if p == root and has_left and x.origin[c] >= 0:
                            cost += _AGAIN
                        if cost < best:
                            best, best_e, best_n, best_p, best_r = cost, e, n, p, r
            if best_e < 0:
                return -1.0
            i = (t * x.num_chunks + c) * x.num_nodes + best_n
            plan.link[i], plan.round[i] = best_e, best_r
            for h in range(x.hold_of[best_e], x.hold_of[best_e + 1]):
                plan.free[x.hold_resource[h]] &= ~(1 << best_r)
            here, there = x.src[best_e], x.dst[best_e]
            if not t:
                here, there = there, here
                if best_p == root and best_r > latest:
                    meets, latest = here, best_r
            if plan.place[best_p] < 0:
                plan.place[best_p] = here
            elif plan.place[best_p] != here:
                total += _HOP
            if best_r == 0 or best_r == num_rounds - 1:
                total += _EDGE
            has_left |= best_p == root
            plan.is_reached[best_n] = True
            plan.ready[best_n] = best_r + 1 if t else best_r
            plan.place[best_n] = there
            left -= 1
    return total


@compiled
def _round_for(x: Crossings, plan: Plan, e: int, t: int, ready: int, num_rounds: int) -> int:
    """The first round from `ready` (t = 1), or the last before it, in which a link is free; -1 for none."""
    free = -1
    for h in range(x.hold_of[e], x.hold_of[e + 1]):
        free &= plan.free[x.hold_resource[h]]
    if t:
        for r in range(ready, num_rounds):
            if (free >> r) & 1:
                return r
    else:
        for r in range(ready - 1, -1, -1):
            if (free >> r) & 1:
                return r
    return -1

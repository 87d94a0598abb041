"""State of ruin and recreate: a problem as trees of arcs, its routes and sends, and work arrays.

Time runs forwards for chunks that spread and backwards for contributions that come together, so that both
grow from their roots: a tree of either kind is a tree of *arcs*, and the time at which one reaches a rank
counts from its root.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl._internal.kernels import inner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.synthesis.kernels.fabric import Bools, Floats, Ints

NONE = -1
NEVER = 1 << 60  # ticks that no send reaches
FAR = 1e300  # a cost above all others


class Arcs(NamedTuple):
    """Links as trees see them: arc ``kind * num_links + link``, kind 0 for spreading and 1 for reducing."""

    num_ranks: int
    num_links: int
    alpha: Ints  # a send of u units over a link takes `alpha + u * beta` ticks
    beta: Ints
    may_merge: Bools  # links whose sends may carry several chunks
    most_merged: int
    hold_of: Ints  # the holds of link e are rows `hold_of[e]:hold_of[e + 1]` of the next four
    resource: Ints
    hold_alpha: Ints
    hold_beta: Ints
    receives: Bools
    tail: Ints  # the rank that a tree goes on from over an arc; -1 where trees of its kind cannot use it
    head_of: Ints  # the ranks that arc a reaches so are `head[head_of[a]:head_of[a + 1]]`
    head: Ints
    out_of: Ints  # arcs of kind k from rank r are `out[out_of[k * num_ranks + r]:...]`
    out: Ints
    in_of: Ints  # and those to it `into[in_of[k * num_ranks + r]:...]`
    into: Ints


class Trees(NamedTuple):
    """Targets of every tree, and its links."""

    units: Ints
    kind: Ints
    partner: Ints  # the other tree of a chunk that is reduced and then spreads; -1 for none
    is_origin: Bools  # by tree and rank
    is_target: Bools
    open_class: Ints
    is_open: Bools  # by class and link: whether its trees may use it
    is_free: Bools  # whether routes may change
    may_reroot: bool  # whether sums may be complete first at any rank that contributes


class Calendar(NamedTuple):
    """When every resource is held, in order of time."""

    row_of: Ints  # resource q has the rows `row_of[q]:row_of[q] + size[q]`
    size: Ints
    begin: Ints
    end: Ints
    send: Ints


class SearchState(NamedTuple):
    """Routes and sends: of the incumbent, of what the search goes on from, and of what it makes of that."""

    root: Ints  # where trees with a partner grow from; -1 for others
    way: Ints  # by tree and rank: the link by which the tree reaches the rank; -1 for none
    send: Ints  # the send over that link
    link: Ints  # of each send
    kind: Ints
    carries: Ints  # how many chunks; 0 where the number is not in use
    units: Ints
    start: Ints
    end: Ints
    member: Ints  # by send and place: the trees whose chunks it carries
    order: Ints  # sends in use, in order of time
    spare: Ints  # numbers not in use
    size: Ints  # how many there are of either, the finish in ticks, from which number on none has been in use
    load: Ints  # ticks for which sends hold each resource
    calendar: Calendar  # of the same sends


class Room(NamedTuple):
    """Room for working."""

    ready: Ints  # by tree and rank: when the chunk is there
    when: Ints  # when the tree that grows reaches a rank, counted from its root
    cost: Floats  # what this costs in all
    paid: Floats  # and what of it is not time
    came: Ints  # the arc that a rank is reached by
    is_in: Bools  # whether the tree reaches it already
    path: Ints
    heap_cost: Floats
    heap_rank: Ints
    price: Floats  # of a tick, by resource
    key: Ints
    sorted: Ints
    following: Ints  # sends on arcs that may merge: the next one, by send
    first: Ints  # and the first, by arc
    ruined: Ints  # trees that have lost routes
    is_ruined: Bools
    queue: Ints
    chain: Ints
    reach: Ints  # when an arc's heads are reached, the send that is joined for it, whether all must be timed
    random: NDArray[np.uint64]  # the state of random choices, and what they are mixed with in a turn


class Work(NamedTuple):
    """A problem, and what its search works with."""

    arcs: Arcs
    trees: Trees
    room: Room


class Rules(NamedTuple):
    """Rules of the search; see `RuinParameters`."""

    target_ticks: int  # a finish that is good enough
    turns: int  # at most
    passes: int
    every: int
    threshold: float  # from the best, three times as much; it falls to nothing in the last turn
    most_ruined: int
    lateness: float
    economy: float
    sharpness: int


# In all below: t tree, r rank, e link, a arc, k kind, m send, h hold, q resource.


@inner
def draw(room: Room, below: int) -> int:
    """A random whole number from 0 on (xorshift)."""
    x = room.random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    room.random[0] = x
    return int((x * np.uint64(2685821657736338717) >> np.uint64(33)) % np.uint64(below))


@inner
def mark(room: Room, t: int) -> None:
    """Have a tree recreated."""
    if not room.is_ruined[t]:
        room.is_ruined[t] = True
        room.ruined[room.queue[0]] = t
        room.queue[0] += 1


@inner
def reaches(w: Work, now: SearchState, t: int, r: int, d: int) -> bool:
    """True if a tree goes directly from rank r to rank d."""
    e = now.way[t, d]
    return bool(e >= 0 and w.arcs.tail[w.trees.kind[t] * w.arcs.num_links + e] == r)

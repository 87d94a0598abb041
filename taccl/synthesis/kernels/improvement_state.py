"""State of ruin and recreate: a problem as trees of arcs, its routes and sends, and work arrays.

Trees of broadcasts grow forwards in time, trees of reductions backwards, so that both grow from their roots.
Both are trees of *arcs*: directed links as a tree of a kind traverses them. Times at which a tree reaches
ranks count from its root.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from taccl._internal.draws import draw_below
from taccl._internal.kernels import inner

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from taccl.synthesis.kernels.fabric import Bools, Floats, Ints

NONE = -1
NEVER = 1 << 60  # ticks that no send reaches
FAR = 1e300  # a cost above all others


class Arcs(NamedTuple):
    """Links as arcs of trees: link e is arc ``kind * num_links + e``; kind 0 is broadcast, 1 reduction."""

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
    tail: Ints  # rank from which a tree traverses the arc; -1 if trees of its kind cannot use it
    head_of: Ints  # the ranks that arc a reaches are `head[head_of[a]:head_of[a + 1]]`
    head: Ints
    out_of: Ints  # arcs of kind k that leave rank r are `out[out_of[k * num_ranks + r]:...]`
    out: Ints
    in_of: Ints  # arcs of kind k that enter r are `into[in_of[k * num_ranks + r]:...]`
    into: Ints


class Trees(NamedTuple):
    """Chunk size, kind, targets and allowed links of each tree."""

    units: Ints
    kind: Ints
    partner: Ints  # the other tree of a chunk that is reduced and then broadcast; -1 for none
    update: Ints  # ticks from the reduction of a sum to its broadcast, for a server's update
    is_origin: Bools  # by tree and rank: True if the tree's chunk starts at the rank
    is_target: Bools
    open_class: Ints
    is_open: Bools  # by class and link: True if trees of the class may use it
    is_free: Bools  # True if the tree's routes may change
    may_reroot: bool  # True if a sum may be completed at any rank that contributes


class Calendar(NamedTuple):
    """Occupations of every resource, in order of time."""

    row_of: Ints  # resource q has the rows `row_of[q]:row_of[q] + size[q]`
    size: Ints
    begin: Ints
    end: Ints
    send: Ints


class SearchState(NamedTuple):
    """Routes and sends of a schedule: the incumbent, the current schedule, or the candidate."""

    root: Ints  # root of each tree with a partner; -1 for others
    way: Ints  # by tree and rank: the link by which the tree reaches the rank; -1 for none
    send: Ints  # by tree and rank: the send by which the tree reaches the rank
    link: Ints  # link of each send
    kind: Ints
    carries: Ints  # number of chunks in each send; 0 for unused send numbers
    units: Ints
    start: Ints
    end: Ints
    member: Ints  # by send and position in it: tree whose chunk the send carries
    order: Ints  # used sends, in order of time
    spare: Ints  # unused send numbers
    size: Ints  # number of used sends, number of unused ones, finish in ticks, 1 + highest used number
    load: Ints  # ticks of use of each resource
    calendar: Calendar  # occupations of resources by the sends in `order`


class Room(NamedTuple):
    """Work arrays of the search, mostly for the tree that is being completed."""

    ready: Ints  # by tree and rank: when the chunk arrives
    when: Ints  # time at which the growing tree reaches each rank, counted from the root
    cost: Floats  # cost of reaching each rank: time and prices
    paid: Floats  # part of `cost` that consists of prices
    came: Ints  # arc by which each rank is reached
    is_in: Bools  # True for ranks that the tree reaches already
    path: Ints
    heap_cost: Floats
    heap_rank: Ints
    price: Floats  # price of a tick of each resource
    key: Ints
    sorted: Ints
    following: Ints  # by send: the next send in the list of its arc, whose sends may merge
    first: Ints  # by arc: the first send in the arc's list
    ruined: Ints  # trees that lack routes
    is_ruined: Bools
    queue: Ints
    chain: Ints
    reach: Ints  # when an arc's heads are reached; send to join (-1: none); 1 if all must be re-timed
    random: NDArray[np.uint64]  # state of the random generator, and a hash constant for the current turn


class Work(NamedTuple):
    """A problem as arrays, and the work arrays of its search."""

    arcs: Arcs
    trees: Trees
    room: Room


class Rules(NamedTuple):
    """Constants of the search; see `RuinParameters` and `taccl.synthesis.improve.improvement`."""

    target_ticks: int  # finish at which the search ends
    turns: int  # max number of turns (iterations)
    passes: int
    every: int
    #: Accepted relative increase of the objective value over the current one, which falls to 0 during a run.
    #: Over the best value, three times as much is accepted.
    threshold: float
    most_ruined: int
    lateness: float
    economy: float
    sharpness: int


# Index names below: t tree, r rank, e link, a arc, k kind, m send, h hold, q resource.


@inner
def draw(room: Room, below: int) -> int:
    """Random whole number from 0 to `below` - 1."""
    return draw_below(room.random, below)


@inner
def mark(room: Room, t: int) -> None:
    """Add a tree to the list of ruined trees, which are completed later, unless it is listed already."""
    if not room.is_ruined[t]:
        room.is_ruined[t] = True
        room.ruined[room.queue[0]] = t
        room.queue[0] += 1


@inner
def reaches(w: Work, now: SearchState, t: int, r: int, d: int) -> bool:
    """True if a tree has an arc from rank r to rank d."""
    e = now.way[t, d]
    return bool(e >= 0 and w.arcs.tail[w.trees.kind[t] * w.arcs.num_links + e] == r)

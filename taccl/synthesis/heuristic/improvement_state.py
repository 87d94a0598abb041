"""What ruin and recreate works on: a problem as trees of arcs, its routes and sends, and room for working.

Time runs forwards for chunks that spread and backwards for contributions that come together, so that both
grow from their roots: a tree of either kind is a tree of *arcs*, and the time at which one reaches a rank
counts from its root.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.kernels import inner

NONE = -1
NEVER = 1 << 60
FAR = 1e300


class Arcs(NamedTuple):
    """Links as trees see them: arc ``kind * num_links + link``, of kind 0 for spreading and 1 for reducing.

    - `alpha`, `beta`, (num_links,) int64: A send of u units takes ``alpha + u * beta`` ticks.
    - `may_merge`, (num_links,) bool: Whether a send may carry several chunks.
    - `hold_of`, `resource`, `hold_alpha`, `hold_beta`, `receives`: Holds of link e are rows
      ``hold_of[e]:hold_of[e + 1]``.
    - `tail`, (2 * num_links,) int64: The rank that a tree goes on from over an arc; -1 where trees of its
      kind cannot use it.
    - `head_of`, `head`, (2 * num_links + 1,) int64, int64: The ranks that it reaches so.
    - `out_of`, `out`, (2 * num_ranks + 1,) int64, int64: Arcs of kind k from rank r are ``out[out_of[k *
      num_ranks + r]:...]``.
    """

    num_ranks: int
    num_links: int
    alpha: NDArray[np.int64]
    beta: NDArray[np.int64]
    may_merge: NDArray[np.bool_]
    most_merged: int
    hold_of: NDArray[np.int64]
    resource: NDArray[np.int64]
    hold_alpha: NDArray[np.int64]
    hold_beta: NDArray[np.int64]
    receives: NDArray[np.bool_]
    tail: NDArray[np.int64]
    head_of: NDArray[np.int64]
    head: NDArray[np.int64]
    out_of: NDArray[np.int64]
    out: NDArray[np.int64]
    in_of: NDArray[np.int64]
    into: NDArray[np.int64]


class Trees(NamedTuple):
    """What every tree has to reach, and over which links.

    - `units`, `kind`, `partner`, (num_trees,) int64: The partner is the other tree of a chunk that is
      reduced and then spreads; -1 for none.
    - `is_origin`, `is_target`: (num_trees, num_ranks) bool.
    - `open_class`: (num_trees,) int64.
    - `is_open`, (num_classes, num_links) bool: Links that trees of a class may use.
    - `is_free`, (num_trees,) bool: Whether routes may change.
    - `may_reroot`: Whether sums may be complete first at any rank that contributes.
    """

    units: NDArray[np.int64]
    kind: NDArray[np.int64]
    partner: NDArray[np.int64]
    is_origin: NDArray[np.bool_]
    is_target: NDArray[np.bool_]
    open_class: NDArray[np.int64]
    is_open: NDArray[np.bool_]
    is_free: NDArray[np.bool_]
    may_reroot: bool


class Calendar(NamedTuple):
    """When every resource is held: rows ``row_of[q]`` on, `size[q]` of them, in order of time."""

    row_of: NDArray[np.int64]
    size: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    send: NDArray[np.int64]


class State(NamedTuple):
    """Routes and sends.

    - `root`, (num_trees,) int64: Where trees with a partner grow from; -1 for others.
    - `way`, (num_trees, num_ranks) int64: The link by which a tree reaches a rank; -1 for none.
    - `send`, (num_trees, num_ranks) int64: The send over that link.
    - `link`, `kind`, `carries`, (num_sends,) int64: Of each send; it carries so many chunks, 0 where the
      number is not in use.
    - `units`, `start`, `end`: (num_sends,) int64.
    - `member`, (num_sends, most_merged) int64: The trees whose chunks it carries.
    - `order`, (num_sends,) int64: Sends in use, in order of time.
    - `spare`, (num_sends,) int64: Numbers not in use.
    - `size`, (4,) int64: How many there are of either, the finish in ticks, and from which number on none
      has been in use.
    - `load`, (num_resources,) int64: Ticks for which sends hold each resource.
    - `calendar`: The same sends.
    """

    root: NDArray[np.int64]
    way: NDArray[np.int64]
    send: NDArray[np.int64]
    link: NDArray[np.int64]
    kind: NDArray[np.int64]
    carries: NDArray[np.int64]
    units: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    member: NDArray[np.int64]
    order: NDArray[np.int64]
    spare: NDArray[np.int64]
    size: NDArray[np.int64]
    load: NDArray[np.int64]
    calendar: Calendar


class Room(NamedTuple):
    """Room for working.

    - `ready`, (num_trees, num_ranks) int64: When a chunk is there.
    - `when`, (num_ranks,) int64: When the tree that grows reaches a rank, counted from its root.
    - `cost`, `paid`, (num_ranks,) float64: What this costs in all, and what of it is not time.
    - `came`, (num_ranks,) int64: The arc that it is reached by.
    - `is_in`, (num_ranks,) bool: Whether the tree reaches it already.
    - `path`: (num_ranks,) int64.
    - `price`, (num_resources,) float64: Of a tick.
    - `key`, `sorted`: (num_sends,) int64, int64.
    - `following`, `first` ((num_sends,), (num_arcs,) int64): Sends on arcs that may merge.
    - `ruined`, (num_trees,) int64: Trees that have lost routes.
    - `is_ruined`: (num_trees,) bool.
    - `queue`: (num_ranks,) int64.
    - `chain`: (num_sends,) int64.
    - `reach`, (3,) int64: When an arc's heads are reached, the send that is joined for it, and whether all
      must be timed again.
    - `random`, (2,) uint64: The state of random choices, and what they are mixed with in a turn.
    """

    ready: NDArray[np.int64]
    when: NDArray[np.int64]
    cost: NDArray[np.float64]
    paid: NDArray[np.float64]
    came: NDArray[np.int64]
    is_in: NDArray[np.bool_]
    path: NDArray[np.int64]
    heap_cost: NDArray[np.float64]
    heap_rank: NDArray[np.int64]
    price: NDArray[np.float64]
    key: NDArray[np.int64]
    sorted: NDArray[np.int64]
    following: NDArray[np.int64]
    first: NDArray[np.int64]
    ruined: NDArray[np.int64]
    is_ruined: NDArray[np.bool_]
    queue: NDArray[np.int64]
    chain: NDArray[np.int64]
    reach: NDArray[np.int64]
    random: NDArray[np.uint64]


class Work(NamedTuple):
    """A problem, and what its search works with."""

    arcs: Arcs
    trees: Trees
    room: Room


class Rules(NamedTuple):
    """How to search.

    - `target_ticks`: A finish that is good enough.
    - `turns`: At most.
    - `passes`, `every`: How often all is timed backwards and forwards again; in one of so many turns.
    - `threshold`: How much worse than the present one, relatively, a schedule may be to go on from, and three
      times so much than the best: in the first turn, and ever less down to nothing in the last.
    - `most_ruined`: Sends that a turn takes out, about, at most.
    - `lateness`, `economy`: How much it counts how late sends end, and how busy resources are, both as parts
      of the finish.
    - `sharpness`: So often the part of the finish at which a send ends is squared.
    """

    target_ticks: int
    turns: int
    passes: int
    every: int
    threshold: float
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
def reaches(w: Work, now: State, t: int, r: int, d: int) -> bool:
    """Whether a tree goes straight from rank r to rank d."""
    e = now.way[t, d]
    return bool(e >= 0 and w.arcs.tail[w.trees.kind[t] * w.arcs.num_links + e] == r)

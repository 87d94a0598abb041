"""Copies of the data of a few ranks to many nodes over all NICs, along trees or stars of nodes."""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl._internal.arrays import lexsort
from taccl.baselines.chunking import held_at_start, may_merge, merging, starts_of
from taccl.baselines.moves import Moves, routed
from taccl.baselines.routes import ShortestRoutes
from taccl.baselines.tree import two_trees
from taccl.problem.costs import hold_columns
from taccl.schedule.combine import reduce_phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taccl.baselines.moves import Ints, Sends
    from taccl.problem.problem import Problem

    #: (rows of chunks, turn, sending place, receiving place) of nodes; place 0 is the first node.
    Hop = tuple[Ints, Ints, int | Ints, int | Ints]

#: Graphs of nodes for `by_rails`.
SHAPES = ("trees", "stars", "helped stars")
#: Max transfers of a schedule by `by_rails` in finer chunks (0.4 s to build and verify).
MOST_RAILED = 100_000
#: Max chunks times ranks to try more groups than the best ones (0.1 s).
_FEW = 4_000
#: Factor of the estimates of trees (our choice).
_LATE_TREES = 1.05
#: Numbers of turns whose chunks may share messages inside nodes.
_GROUPS = (1, 2, 4, 8)


def by_rails(problem: Problem, *, over: str, group: int = 1) -> Sends:
    """Sends in which a rank's chunks first go to all ranks of its node in turn, then between nodes.

    A chunk passes from node to node at the same local rank, which sends it to its whole node. So a broadcast
    uses all NICs of each node.

    - `over`: ``"trees"`` (`_over_trees`), ``"stars"`` (`_over_stars`), or ``"helped stars"``, in which the
      first node also sends copies that hubs would send late.
    - `group`: Number of turns whose chunks go from rank to rank inside a node together, as one message if
      links merge.
    """
    topology, (holder, chunk, number) = problem.topology, held_at_start(problem)
    nodes = np.array(topology.ranks_of_node)
    num_nodes, size = nodes.shape
    first, own = np.array(topology.node_of_rank)[holder], np.array(topology.local_rank)[holder]
    turn, rail = np.divmod(number, size)
    place = (rail - own) % size
    clock = _Clock.of(problem, nodes, parts=1, group=group)
    # A turn has one step per rank of a node. In a step, a rank receives from one rank of its node, and sends
    # to one. Chunks that cross from their holder are spread by another rank: the holder has most to send. It
    # sends them last, one per step, as no other node waits for that.
    others, alone = max(1, size - 1), (place == 0) & (size > 1)
    stride = 1 + others % 2  # has no factor in common with `others`
    spreads = np.where(alone, own + 1 + turn % others, rail) % size
    held = -(-np.bincount(holder)[holder] // size)
    begin = np.where(alone, held * size + turn + turn // others, _grouped(turn, group) * size + place * group)
    sends, gap = [(begin, chunk, holder, nodes[first, spreads])], np.where(alone, 1, group)
    ends = begin + (clock.inside + np.where(alone, 0, group - 1)) * size - np.where(alone, 0, place * group)
    for k in range(1, size):
        dst = np.where(alone, own + 1 + (turn + stride * k) % others, rail + k) % size
        sends.append((ends + k * gap, chunk, nodes[first, spreads], nodes[first, dst]))
    for which, leaves, above, below in _hops(over, turn, held, num_nodes, clock.across):
        src, dst = ((first[which] + place) % num_nodes for place in (above, below))
        local, step = rail[which], leaves + group - 1 + clock.inside
        sends.append((step * size, chunk[which], nodes[src, local], nodes[dst, local]))
        ends = (_grouped(step + clock.across, group) + group - 1) * size
        for k in range(1, size):
            there = nodes[dst, (local + k) % size]
            sends.append((ends + k * group, chunk[which], nodes[dst, local], there))
    step, chunk, src, dst = np.concatenate([np.stack(np.broadcast_arrays(*each)) for each in sends], axis=1)
    order = lexsort((dst, src, step))  # stable, so that chunks of a message are consecutive
    return routed(problem, Moves.of([(step[order], chunk[order], src[order], dst[order], False)]))


def best_cut(problem: Problem, *, most_transfers: int) -> int:
    """Number of parts per chunk for `by_rails`: the least one whose estimate is within 1 % of the best.

    Numbers that fill whole turns are tried, too: in the last turn of others, some ranks of a node are idle.
    """
    transfers = problem.collective.num_chunks * (problem.topology.num_ranks - 1)
    most = min(most_transfers // transfers, *problem.chunk_bytes)
    powers = [1 << k for k in range(max(1, most.bit_length()))]
    size, held = len(problem.topology.ranks_of_node[0]), int(np.bincount(held_at_start(problem)[0]).max())
    turns = [each * size // held for each in (*powers, *(3 * each for each in powers))]
    choices = sorted({*powers, *(3 * each for each in powers), *turns} & set(range(1, max(1, most) + 1)))
    estimates = {parts: min(_estimates(problem, parts).values()) for parts in choices}
    least = min(estimates.values())
    return min(parts for parts, estimate in estimates.items() if 0.99 * estimate <= least)


def estimated_us(problem: Problem) -> float:
    """Estimated finish in us of the best form of `by_rails`, in as many parts as allowed (about 2 % late).

    Infinity unless nodes have the same size, and some ranks, but not all, copy chunks to all ranks (or all
    ranks reduce to some). Also infinity if sums are made from one another, as in a scan.
    """
    topology = problem.topology
    if problem.collective.derivations:
        return math.inf
    copies = reduce_phase(problem) if problem.collective.sums_up else problem
    num_holders, wanted = len(set(starts_of(copies).tolist())), copies.collective.destination_sets.sets
    is_even = len({len(ranks) for ranks in topology.ranks_of_node}) == 1 and topology.num_nodes > 1
    reach_all = all(len(ranks) >= topology.num_ranks - 1 for ranks in wanted)
    if not (is_even and reach_all and 0 < num_holders < topology.num_ranks):
        return math.inf
    copies = merging(copies) if may_merge(problem) else copies
    parts = best_cut(copies, most_transfers=MOST_RAILED) if problem.chunks_open else 1
    return min(_estimates(copies, parts).values()) / float(problem.costs.ticks_per_us)


def likely_forms(problem: Problem) -> dict[tuple[str, int], float]:
    """{(shape, group): estimated finish in ticks} of forms of `by_rails` to try, the best first.

    These are the shapes within 10 % of the best estimate. Trees come last and are estimated later, as
    estimates leave out that the copies of a node wait for one another (up to 40 %).

    Each shape has its groups within 3 % of the best one, or 40 % if there are few chunks: estimates are less
    exact for these, and where ranks share NICs.
    """
    estimates, num_chunks = _estimates(problem, 1), problem.collective.num_chunks
    times = 1.4 if num_chunks * problem.topology.num_ranks <= _FEW else 1.03
    least, found = min(estimates.values()), []
    shapes = SHAPES if problem.topology.num_nodes > 2 else SHAPES[:1]  # two nodes have the same hops in all
    for shape in shapes:
        each = {group: estimates[shape, group] for group in _groups(problem)}
        best = min(each.values())
        if 0.9 * best <= least:
            found += [(shape, group) for group, estimate in each.items() if estimate <= times * best]
    found.sort(key=lambda form: (form[0] == "trees", estimates[form]))
    return {form: estimates[form] * (_LATE_TREES if form[0] == "trees" else 1) for form in found}


def _estimates(problem: Problem, parts: int) -> dict[tuple[str, int], float]:
    """{(shape, group): estimated finish of `by_rails` in ticks}, if all chunks go to all ranks.

    - `parts`: Number of parts into which chunks are cut.
    """
    nodes = np.array(problem.topology.ranks_of_node)
    num_nodes, size = nodes.shape
    most_held = int(np.bincount(held_at_start(problem)[0]).max())
    num_turns, found = -(-most_held * parts // size), {}
    for group in _groups(problem):
        clock = _Clock.of(problem, nodes, parts=parts, group=group)
        for shape in SHAPES:
            last = _last_turn(shape, num_turns, num_nodes, clock.across)
            turns = last + clock.across + 2 * clock.inside + 3 * (group - 1) + 1
            found[shape, group] = turns * clock.ticks
    return found


@lru_cache(maxsize=2_000)
def _last_turn(shape: str, num_turns: int, num_nodes: int, across: int) -> int:
    """Last turn in which a chunk leaves a node, if each NIC of the first node has a chunk for each turn.

    - `across`: Turns after which a message between nodes has arrived.
    """
    turn = np.arange(num_turns)
    hops = _hops(shape, turn, np.full_like(turn, num_turns), num_nodes, across)
    return max(int(np.max(leaves)) for _, leaves, _, _ in hops if np.size(leaves))


def _groups(problem: Problem) -> tuple[int, ...]:
    """Numbers of turns to group: only 1 if no links merge."""
    return _GROUPS if problem.clauses.merging else _GROUPS[:1]


def _grouped(turn: Ints, group: int) -> Ints:
    """First turn of the group of each turn."""
    return turn // group * group


def _hops(over: str, turn: Ints, held: Ints, num_nodes: int, across: int) -> Iterator[Hop]:
    """Hops between nodes over one of `SHAPES`.

    - `turn`, `held`: Turn of each chunk, and number of turns of its holder.
    - `across`: Turns after which a message between nodes has arrived.
    """
    if over == "trees":
        return _over_trees(turn, num_nodes, across)
    plans = {each: _plan(each, num_nodes, across, over == "helped stars") for each in set(held.tolist())}
    plan = [plans[each][place] for each, place in zip(held.tolist(), turn.tolist(), strict=True)]
    begin, copies = np.array(plan, np.int64).reshape(-1, 2).T
    return _over_stars(turn, begin, copies, num_nodes, across)


def _over_trees(turn: Ints, num_nodes: int, across: int) -> Iterator[Hop]:
    """Hops down two binary trees of nodes, each for half of the chunks."""
    for half, edges in enumerate(two_trees(range(num_nodes))):
        which = np.flatnonzero(turn % 2 == half)
        for depth, above, below in edges:
            yield which, turn[which] + depth * (1 + across), above, below


def _over_stars(turn: Ints, begin: Ints, copies: Ints, num_nodes: int, across: int) -> Iterator[Hop]:
    """Hops to another node, the hub of a chunk, and from there to all others.

    Hubs take turns, so chunks cross only twice, and all NICs send equally many bytes.

    - `begin`, `copies`: Turn in which the first node starts to send a chunk, and to how many nodes.
    """
    hubs = num_nodes - 1
    hub, arrives, every = begin % hubs, begin + across, np.arange(len(turn))
    yield every, begin, 0, 1 + hub
    # In turn t, the first node sends to hub t, and hub h sends to hub 2 h - t (modulo the number of hubs). If
    # that number is odd, no hub receives from two nodes in a turn. A hub pauses when it would send to itself.
    # Hubs of chunks of which the first node sends several copies have fewer sends, and never pause.
    in_turn = copies == 1
    pause = (hub - arrives) % hubs
    for number in range(1, hubs):
        slot = number - 1 + (in_turn & (pause < number))
        to = np.where(in_turn, 2 * hub - arrives - slot, hub - number) % hubs
        helped = number > hubs - copies
        leaves = np.where(helped, begin + hubs - number, arrives + slot)
        yield every, leaves, np.where(helped, 0, 1 + hub), 1 + to


def _plan(num_chunks: int, num_nodes: int, across: int, helps: bool) -> list[tuple[int, int]]:
    """(turn in which the first node starts to send, number of copies that it sends), for each chunk of a NIC.

    - `helps`: True if the first node sends as many copies as let hubs end at the earliest time.
    """

    def plan(latest: int) -> list[tuple[int, int]]:
        """Plan in which the first node sends a single copy of each chunk that it starts by turn `latest`."""
        found, begin = [], 0
        for _ in range(num_chunks):
            found.append((begin, min(num_nodes - 1, 1 + max(0, begin - latest))))
            begin += found[-1][1]
        return found

    def first_ends_in_time(latest: int) -> bool:
        """True if the first node, whose copies cross once, ends no later than hubs."""
        return sum(plan(latest)[-1]) <= latest + num_nodes - 1 + across

    choices = range(-num_nodes, num_chunks)
    return plan(choices[bisect_left(choices, True, key=first_ends_in_time)] if helps else num_chunks)


class _Clock(NamedTuple):
    """Turns of `by_rails`: steps in which a rank sends a chunk to each rank of its node, or to another node.

    A turn lasts as long as the slower of these two.

    - `ticks`: Ticks per turn.
    - `inside`, `across`: Turns until a message in a node, or one between nodes, may be passed on.
    """

    ticks: float
    inside: int
    across: int

    @classmethod
    def of(cls, problem: Problem, nodes: Ints, *, parts: int, group: int) -> _Clock:
        """Turns if chunks are cut into `parts`, and those of `group` turns share a message inside nodes."""
        routes, costs, holds = ShortestRoutes.of(problem), problem.costs, hold_columns(problem.topology)
        units = costs.chunk_units.max(initial=0) / parts
        taken, held = [], []
        pairs_inside = [(nodes[0, 0], dst) for dst in nodes[0, 1:]]
        for pairs, number in ((pairs_inside, group), (zip(*nodes[:2], strict=True), 1)):
            hops = [routes.hop(int(src), int(dst)) for src, dst in pairs]
            links = np.array([link for hop in hops for link in hop], np.int64)
            send, hold = holds.of_sends(links)
            each = costs.hold_alpha[hold] / number + units * costs.hold_beta[hold]
            held.append(float(np.bincount(holds.resource[hold], each).max(initial=0)))
            all_us = costs.link_alpha[links] + number * units * costs.link_beta[links]
            taken.append(float(all_us.max(initial=0)))
        ticks = max(held) or 1.0
        inside, across = (int(-(-each // ticks)) for each in taken)
        return cls(ticks, inside + 1, across)

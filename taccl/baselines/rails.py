"""Copies of the data of a few ranks to many nodes over all NICs, along trees or stars of nodes."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from taccl.baselines.moves import Moves, routed
from taccl.baselines.routes import ShortestRoutes
from taccl.baselines.spread import held_at_start
from taccl.baselines.tree import two_trees
from taccl.problem.costs import hold_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taccl.baselines.moves import Ints, Row, Sends
    from taccl.problem.problem import Problem

    #: (rows of chunks, turn, sending place, receiving place) of nodes; place 0 is the first node.
    Hop = tuple[Ints, Ints, int | Ints, int | Ints]

#: Graphs of nodes for `by_rails`.
SHAPES = ("trees", "stars", "helped stars")


def by_rails(problem: Problem, *, over: str) -> Sends:
    """Sends in which a rank's chunks first go to all ranks of its node in turn, then between nodes.

    A chunk passes from node to node at the same local rank, which sends it to its whole node. So a broadcast
    uses all NICs of each node.

    - `over`: ``"trees"`` (`_over_trees`), ``"stars"`` (`_over_stars`), or ``"helped stars"``, in which the
      first node also sends copies that hubs would send late.
    """
    topology, (holder, chunk, number) = problem.topology, held_at_start(problem)
    nodes = np.array(topology.ranks_of_node)
    num_nodes, size = nodes.shape
    first, own = np.array(topology.node_of_rank)[holder], np.array(topology.local_rank)[holder]
    turn, rail = np.divmod(number, size)
    place = (rail - own) % size
    inside, across, _ = _latencies(problem, nodes, parts=1)
    # A turn has one step per rank of a node. In a step, a rank receives from one rank of its node, and sends
    # to one. Chunks that cross from their holder are spread by another rank: the holder has most to send.
    others, alone = max(1, size - 1), place == 0
    stride = 1 + others % 2  # has no factor in common with `others`
    spreads = np.where(alone & (size > 1), own + 1 + turn % others, rail) % size
    moves: list[Row] = [(turn * size + place, chunk, holder, nodes[first, spreads], False)]
    for k in range(1, size):
        dst = np.where(alone, own + 1 + (turn + stride * k) % others, rail + k) % size
        step = np.where(alone, (turn + inside + k) * size, (turn + inside) * size + k)
        moves.append((step, chunk, nodes[first, spreads], nodes[first, dst], False))
    held = -(-np.bincount(holder)[holder] // size)
    for which, leaves, above, below in _hops(over, turn, held, num_nodes, across):
        src, dst = ((first[which] + place) % num_nodes for place in (above, below))
        local, step = rail[which], (leaves + inside) * size
        moves.append((step, chunk[which], nodes[src, local], nodes[dst, local], False))
        for k in range(1, size):
            there = nodes[dst, (local + k) % size]
            moves.append((step + across * size + k, chunk[which], nodes[dst, local], there, False))
    return routed(problem, Moves.of(moves))


def best_cut(problem: Problem, *, most_transfers: int) -> tuple[int, list[str]]:
    """Number of parts per chunk for `by_rails`, and the shapes to try, by estimates.

    An estimate is the time by which the last chunk has crossed and spread, if all chunks go to all ranks. The
    number of parts is the least one within 1 % of the best. Shapes within 10 % are tried.
    """
    nodes = np.array(problem.topology.ranks_of_node)
    num_nodes, size = nodes.shape
    most_held = int(np.bincount(held_at_start(problem)[0]).max())
    estimates: dict[tuple[int, str], float] = {}
    transfers = problem.collective.num_chunks * (problem.topology.num_ranks - 1)
    most = min(most_transfers // transfers, *problem.chunk_bytes)
    for parts in (1 << k for k in range(max(1, most.bit_length()))):
        inside, across, ticks = _latencies(problem, nodes, parts=parts)
        turn = np.arange(-(-most_held * parts // size))
        for shape in SHAPES:
            hops = _hops(shape, turn, np.full_like(turn, len(turn)), num_nodes, across)
            last = max(int(np.max(leaves)) for _, leaves, _, _ in hops if np.size(leaves))
            estimates[parts, shape] = (last + inside + across + 1) * ticks
    least = min(estimates.values())
    best = min(parts for (parts, _), estimate in estimates.items() if 0.99 * estimate <= least)
    shapes = SHAPES if num_nodes > 2 else SHAPES[:1]  # two nodes have the same hops in all shapes
    return best, [shape for shape in shapes if 0.9 * estimates[best, shape] <= least]


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
    hub, every = turn % hubs, np.arange(len(turn))
    yield every, begin, 0, 1 + hub
    # A hub sends to the other ones in an order in which they receive from one hub at a time, if possible.
    for k in range(1, hubs):
        helped = k > hubs - copies
        leaves = np.where(helped, begin + hubs - k, begin + across + k)
        yield every, leaves, np.where(helped, 0, 1 + hub), 1 + (hub - k) % hubs


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


def _latencies(problem: Problem, nodes: Ints, *, parts: int) -> tuple[int, int, float]:
    """(turns until a message in a node may be passed on, turns for one between nodes, ticks per turn).

    Turns are steps of `by_rails`. In a turn, a rank sends a chunk to each rank of its node, or each rank
    sends a chunk to another node. A turn lasts as long as the slower of these two.

    - `parts`: Number of parts into which chunks are cut.
    """
    routes, costs, holds = ShortestRoutes.of(problem), problem.costs, hold_columns(problem.topology)
    units = costs.chunk_units.max(initial=0) / parts
    taken, held = [], []
    for pairs in ([(nodes[0, 0], dst) for dst in nodes[0, 1:]], zip(*nodes[:2], strict=True)):
        links = np.array([link for src, dst in pairs for link in routes.hop(int(src), int(dst))], np.int64)
        send, hold = holds.of_sends(links)
        each = costs.hold_alpha[hold] + units * costs.hold_beta[hold]
        held.append(float(np.bincount(holds.resource[hold], each).max(initial=0)))
        taken.append(float((costs.link_alpha[links] + units * costs.link_beta[links]).max(initial=0)))
    ticks = max(held) or 1.0
    inside, across = (int(-(-each // ticks)) for each in taken)
    return inside + 1, across, ticks

"""Algorithms of stock libraries as messages between ranks in rank order, independent of the hosts.

A library runs a fixed algorithm over ranks 0, 1, 2, ...; placement chooses the host of each rank. An
algorithm is therefore a table of transfers: chunk, source rank, destination rank, and step. Transfers of one
message travel together. A schedule of this package gives the same table, with times instead of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from taccl._internal.arguments import known_name
from taccl._internal.arrays import Flags, Ints, ranges
from taccl._internal.names import matching
from taccl.baselines.moves import Moves, Row
from taccl.baselines.recursive import swaps
from taccl.baselines.ring import around
from taccl.baselines.tree import two_trees
from taccl.errors import InputError
from taccl.problem import collectives
from taccl.problem.collective import Collective
from taccl.schedule.schedule import Schedule

#: A collective, and the moves (rows of `Moves`) that implement it.
Made = tuple[Collective, Iterable[Row]]


#: Maximum number of pieces into which each tree of a double tree cuts its half of the data; our choice.
MOST_PIECES = 256
_POWER = "found {} ranks; {} needs a power of two"


@dataclass(frozen=True, eq=False)
class Algorithm:
    """Messages between ranks as a table of transfers, in the order in which resources serve them.

    - `chunk`, `src`, `dst` (num_transfers,): The chunk, and the ranks that send and receive it.
    - `reduces` (num_transfers,) bool: True if the destination adds the chunk to its own.
    - `message` (num_transfers,): Number of the message that carries the transfer, ascending.
    - `begins`, `ends` (num_transfers,): Steps of each transfer, or ticks if the table is that of a schedule.
      A rank forwards a chunk after all arrivals of the chunk that end by the step in which it sends.
    - `carries`: Contributing ranks of each transfer, if partial sums are kept apart; None otherwise.
    - `weights`: Relative sizes of the chunks of a schedule; empty if all chunks have one size.
    - `in_steps`: True if a rank sends in a step only after all its sends and receives of the step before.
    """

    name: str
    collective: Collective
    chunk: Ints
    src: Ints
    dst: Ints
    reduces: Flags
    message: Ints
    begins: Ints
    ends: Ints
    carries: list[tuple[int, ...]] | None = None
    weights: tuple[int, ...] = ()
    in_steps: bool = False

    def waits(self) -> tuple[Ints, Ints]:
        """Pairs of (message, earlier message that it waits for), as two columns sorted by message."""
        count = self.collective.num_chunks
        place = (self.src * count + self.chunk, self.dst * count + self.chunk)
        ends, message = self.ends, self.message
        if self.in_steps:  # wait for all sends and receives of a rank in the step before
            steps = int(self.ends.max()) + 1
            place = (
                self.src * steps + self.begins,
                np.concatenate((self.src, self.dst)) * steps + np.tile(self.ends, 2),
            )
            ends, message = np.tile(ends, 2), np.tile(message, 2)
        there, here = place
        # Sort arrivals by rank and chunk; for each transfer, find those that have ended when it begins.
        # Each rank gets a chunk only a few times, so a search of all arrivals would take longer.
        order = np.lexsort((ends, here))
        starts = np.cumsum(np.bincount(here + 1, minlength=int(max(there.max(), here.max())) + 2))
        first, last, ended = starts[there], starts[there + 1], np.append(ends[order], 0)
        until = first.copy()
        for bit in reversed(range(int((last - first).max()).bit_length())):
            further = until + (1 << bit)
            until = np.where(
                (further <= last) & (ended[further.clip(max=last) - 1] <= self.begins), further, until
            )
        waiting, row = ranges(first, until)
        arrival = order[row]
        if self.carries is not None:
            within = [
                set(self.carries[a]) <= set(self.carries[w])
                for a, w in zip(arrival.tolist(), waiting.tolist(), strict=True)
            ]
            waiting, arrival = waiting[within], arrival[within]
        num_messages = int(self.message.max(initial=-1)) + 1
        pairs = self.message[waiting] * num_messages + message[arrival]
        pairs.sort()  # faster than np.unique, which hashes, if most pairs differ
        is_first = np.ones(len(pairs), dtype=bool)
        is_first[1:] = pairs[1:] != pairs[:-1]
        pairs = pairs[is_first]
        return pairs // max(1, num_messages), pairs % max(1, num_messages)


def stock(name: str, collective: str, num_ranks: int, *, group: int | None = None) -> Algorithm:
    """Algorithm of a stock library for a collective, in rank order.

    - `name`: One of `ALGORITHMS`. A number after a colon gives the rings (``"rings:4"``), the ranks per group
      (``"hierarchical:8"``) or the pieces per tree (``"double-tree:8"``, default 1).
    - `group`: Ranks per group if the name gives none.

    Raises `InputError` if the algorithm is unknown, or does not support the collective or the number of
    ranks.
    """
    word, _, number = name.partition(":")
    known = known_name(word, ALGORITHMS, "algorithm")
    make, does, takes = ALGORITHMS[known]
    kind = matching(collective, collectives.COLLECTIVES) or collective
    if kind not in does:
        raise InputError(f"found {collective!r}; {known} is for {', '.join(does)} only", where="collective")
    if num_ranks < 2:
        raise InputError(f"found {num_ranks} ranks; expected two or more to renumber", where="topology")
    most = MOST_PIECES if known == "double-tree" else num_ranks
    if number and not (takes and number.isascii() and number.isdigit() and 0 < int(number) <= most):
        said = f"expected a number from 1 to {most}" if takes else f"{known} takes no number"
        raise InputError(f"found {name!r}; {said}", where="algorithm")
    whole, moves = make(kind, num_ranks, int(number or (group or 0 if known == "hierarchical" else takes)))
    found = _of_moves(name if number else known, whole, moves)
    if known == "doubling":  # in step `bit`, a rank sends the sum over its block of 2 ** bit ranks
        blocks = zip(found.src.tolist(), found.begins.tolist(), strict=True)
        carries = [tuple(range(src >> bit << bit, (src >> bit) + 1 << bit)) for src, bit in blocks]
        return replace(found, carries=carries)
    return replace(found, in_steps=known == "pairwise")


def of_schedule(schedule: Schedule) -> Algorithm:
    """Convert a schedule of this package to an algorithm: its sends become messages, in order of start.

    Raises `InputError` if a link has several sources or destinations (multicast or reduction in a switch).
    Raises it also if chunks derive from one another. Neither can be moved to other hosts.
    """
    problem = schedule.problem
    used = [problem.topology.links[e] for e in schedule.link.tolist()]
    shared = next((link for link in used if len(link.srcs) + len(link.dsts) > 2), None)
    if shared is not None or problem.collective.derivations:
        said = f"a send over {shared}, a multicast or reduction in a switch; expected one rank at each end"
        if shared is None:
            said = f"{problem.collective.name}, which derives chunks from others and cannot be renumbered"
        raise InputError(f"found {said}", where="algorithm")
    _, message = np.unique(schedule.group, return_inverse=True)
    return Algorithm(
        "schedule", problem.collective, schedule.chunk.astype(np.int64),
        np.array([link.src for link in used], dtype=np.int64),
        np.array([link.dst for link in used], dtype=np.int64),
        schedule.reduce, message.astype(np.int64), schedule.start, schedule.end,
        carries=schedule.contributions, weights=problem.chunk_bytes,
    )  # fmt: skip


def _of_moves(name: str, collective: Collective, rows: Iterable[Row]) -> Algorithm:
    """Build an algorithm from moves; moves with equal step, ranks and `adds` form one message."""
    moves, number = Moves.of(rows), collective.num_ranks
    ends = (moves.step * number + moves.src) * number + moves.dst
    _, message = np.unique(2 * ends + moves.adds, return_inverse=True)
    return Algorithm(name, collective, *moves[1:5], message, moves.step, moves.step + 1)


def _sums(num_ranks: int, num_chunks: int) -> Collective:
    """Allreduce of `num_chunks` chunks over all ranks, as a custom collective."""
    whole = {chunk: range(num_ranks) for chunk in range(num_chunks)}
    return collectives.custom(
        num_ranks, precondition=whole, postcondition=whole, combining=True, name="allreduce"
    )


def _rounds(rings: Ints, chunk: Ints, kind: str, first: int = 0) -> Iterator[Row]:
    """Moves of a collective around rings; an allreduce is a reduce-scatter, then an allgather.

    - `rings`, (..., size): Ranks of each ring in order.
    - `chunk`, (..., size, num_chunks): Chunks that each position of a ring owns.
    """
    size = rings.shape[-1]
    for adds in {"reduce-scatter": (True,), "allgather": (False,), "allreduce": (True, False)}[kind]:
        yield from around(rings, chunk, np.arange(size)[:, None], first=first, adds=adds)
        first += size - 1


def _rings(kind: str, num_ranks: int, number: int) -> Made:
    """Several rings over all ranks; odd-numbered rings run in the reverse direction."""
    ranks = np.arange(num_ranks)
    rings = np.stack([ranks if ring % 2 == 0 else (-ranks) % num_ranks for ring in range(number)])
    chunk = rings[..., None] * number + np.arange(number)[:, None, None]
    return collectives.make(kind, num_ranks, chunks_per_rank=number), _rounds(rings, chunk, kind)


def _halving_doubling(kind: str, num_ranks: int, _: int) -> Made:
    """Recursive halving and doubling; partners differ in one bit of their rank.

    Halving (the reduce phase) starts with the lowest bit, and doubling (the gather phase) ends with it.

    If the number of ranks is not a power of two, an allreduce has two further steps: each surplus rank first
    sends its data to a neighbour, and receives the sum from it at the end.
    """
    core = 1 << (num_ranks.bit_length() - 1)
    extra, part = num_ranks - core, np.arange(core)
    if extra and kind != "allreduce":
        raise InputError(_POWER.format(num_ranks, f"halving-doubling of {kind}"), where="algorithm")
    #: Rank at each position of the power-of-two core: odd ranks among the first 2 * extra, then the rest.
    rank = np.concatenate((np.arange(1, 2 * extra, 2), np.arange(2 * extra, num_ranks)))
    even = np.arange(0, 2 * extra, 2)[:, None]
    steps = [[(part ^ (1 << bit)).tolist()] for bit in reversed(range(core.bit_length() - 1))]
    gather = Moves.of(swaps(part, part, steps))
    rows: list[Row] = [(0, part, even, even + 1, True)]
    phases = {"reduce-scatter": [gather.reversed()], "allgather": [gather]}
    for step, moves in enumerate(phases.get(kind, [gather.reversed(), gather])):
        first = 1 + step * len(steps)
        rows.append((first + moves.step, moves.chunk, rank[moves.src], rank[moves.dst], moves.adds))
    rows.append((1 + 2 * len(steps), part, even + 1, even, False))
    return _sums(num_ranks, core) if extra else collectives.make(kind, num_ranks), rows


def _doubling(kind: str, num_ranks: int, _: int) -> Made:
    """Recursive doubling: partners exchange their partial sums in each step, the nearest partner first."""
    if num_ranks & (num_ranks - 1):
        raise InputError(_POWER.format(num_ranks, "doubling"), where="algorithm")
    ranks = np.arange(num_ranks)
    rows = [(bit, 0, ranks, ranks ^ (1 << bit), True) for bit in range(num_ranks.bit_length() - 1)]
    return _sums(num_ranks, 1), rows


def _double_tree(kind: str, num_ranks: int, pieces: int) -> Made:
    """Pipelined double binary tree: odd chunks use one tree, even chunks the other.

    Tree edges have two colours. In each step, messages over edges of the first colour go first. A rank has at
    most one edge of each colour in either direction, so that its port never waits for two messages in turn.
    """
    trees = [np.array(edges).T for edges in two_trees(range(num_ranks))]
    deepest = max(int(depth.max()) for depth, _, _ in trees)
    number = np.arange(pieces)[:, None]
    rows: list[Row] = []
    for which, (depth, above, below) in enumerate(trees):
        colour = np.ones_like(above)
        colour[np.unique(above, return_index=True)[1]] = 0
        chunk, up, down = 2 * number + which, number + deepest - depth, number + deepest + 1 + depth
        rows.append((8 * up + 4 * colour + which, chunk, below, above, True))
        rows.append((8 * down + 4 * colour + 2 + which, chunk, above, below, False))
    return _sums(num_ranks, 2 * pieces), rows


def _pairwise(kind: str, num_ranks: int, _: int) -> Made:
    """Pairwise exchange: in step s, rank r sends to rank r + s (modulo the number of ranks)."""
    ranks = np.arange(num_ranks)
    ends = ((shift, (ranks + shift) % num_ranks) for shift in range(1, num_ranks))
    rows = [(shift, ranks * num_ranks + dst, ranks, dst, False) for shift, dst in ends]
    return collectives.make(kind, num_ranks), rows


def _hierarchical(kind: str, num_ranks: int, group: int) -> Made:
    """Reduce-scatter in groups of consecutive ranks, allreduce between groups, allgather in groups."""
    divisors = [size for size in range(2, num_ranks) if num_ranks % size == 0]
    if not group and divisors:
        group = min(divisors, key=lambda size: (abs(size * size - num_ranks), size))
    if group not in divisors:
        found = f"groups of {group}" if group else "no division into groups"
        raise InputError(f"found {found} for {num_ranks} ranks; expected equal groups", where="algorithm")
    inside = np.arange(num_ranks).reshape(-1, group)
    near, far = group - 1, 2 * (len(inside) - 1)
    rows = [
        *_rounds(inside, inside.T, "reduce-scatter"),
        *_rounds(inside.T, inside.T[..., None], "allreduce", near),
        *_rounds(inside, inside.T, "allgather", near + far),
    ]
    return collectives.make(kind, num_ranks), rows


_SUMS = ("allreduce", "allgather", "reduce-scatter")
#: {algorithm: (function, collectives, default of the number after the colon; 0 if the name takes none)}.
ALGORITHMS: dict[str, tuple[Callable[..., Made], Sequence[str], int]] = {
    "ring": (lambda kind, num_ranks, _: _rings(kind, num_ranks, 1), _SUMS, 0),
    "rings": (_rings, _SUMS, 2),
    "double-tree": (_double_tree, ("allreduce",), 1),
    "halving-doubling": (_halving_doubling, _SUMS, 0),
    "doubling": (_doubling, ("allreduce",), 0),
    "pairwise": (_pairwise, ("alltoall",), 0),
    "hierarchical": (_hierarchical, ("allreduce",), 1),
}

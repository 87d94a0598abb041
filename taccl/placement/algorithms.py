"""Stock algorithms as messages between ranks in rank order, whatever the ranks run on.

A library runs a fixed algorithm over ranks 0, 1, 2, ...; which hosts these are is what placement chooses. So
an algorithm is columns of transfers, each a chunk from rank to rank, and the step in which it goes; those of
one message travel together. A schedule of ours gives the same columns, with times for steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl import collectives
from taccl.arguments import known_name
from taccl.baselines.tree import two_trees
from taccl.errors import InputError
from taccl.names import matching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from taccl.collective import Collective
    from taccl.schedule.schedule import Schedule

#: Most pieces into which each of the two trees cuts its half of the data; our choice.
MOST_PIECES = 256
_POWER = "found {} ranks; {} needs a power of two"


@dataclass(frozen=True, eq=False)
class Algorithm:
    """Messages between ranks, by transfer, in the order in which they take their resources.

    - `size_chunks`: Chunks in the larger of one rank's input and output buffer.
    - `chunk`, `src`, `dst`, `message` (num_transfers,): Messages are numbered in order.
    - `reduces` (num_transfers,) bool: True if it is added to the content of the destination.
    - `begins`, `ends` (num_transfers,): Steps or times; a chunk moves on after all of its arrivals that end
      earlier.
    - `carries`: The contributions in each transfer, of a schedule that keeps contributions unreduced.
    - `weights`: The sizes of a schedule's chunks, in proportion.
    - `in_steps`: True if a rank sends in a step only after all its sends and receives of the step before.
    """

    name: str
    collective: Collective
    chunk: NDArray[np.int64]
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    reduces: NDArray[np.bool_]
    message: NDArray[np.int64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    carries: list[tuple[int, ...]] | None = None
    weights: tuple[int, ...] = ()
    in_steps: bool = False

    def waits(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(message, earlier message that it waits for) of every wait, by message."""
        count = self.collective.num_chunks
        place = (self.src * count + self.chunk, self.dst * count + self.chunk)
        ends, message = self.ends, self.message
        if self.in_steps:  # whatever a rank has sent or received in the step before
            steps = int(self.ends.max()) + 1
            place = (
                self.src * steps + self.begins,
                np.concatenate((self.src, self.dst)) * steps + np.tile(self.ends, 2),
            )
            ends, message = np.tile(ends, 2), np.tile(message, 2)
        there, here = place
        # Arrivals by place and chunk, and of each the ones that have ended when a transfer begins.
        order = np.lexsort((ends, here))
        span = int(ends.max(initial=0)) + 2
        keys = here[order] * span + ends[order]
        first = np.searchsorted(keys, there * span)
        number = np.searchsorted(keys, there * span + self.begins, side="right") - first
        waiting = np.repeat(np.arange(len(first)), number)
        arrival = order[np.arange(len(waiting)) - np.repeat(np.cumsum(number) - number - first, number)]
        if self.carries is not None:
            within = [
                set(self.carries[a]) <= set(self.carries[w])
                for a, w in zip(arrival.tolist(), waiting.tolist(), strict=True)
            ]
            waiting, arrival = waiting[within], arrival[within]
        num_messages = int(self.message.max(initial=-1)) + 1
        pairs = np.unique(self.message[waiting] * num_messages + message[arrival])
        return pairs // max(1, num_messages), pairs % max(1, num_messages)


#: Step, chunk, source, destination, whether it is added up; arrays, or one number for all of them.
_Moves = tuple[int, Any, Any, Any, bool]


def stock(name: str, collective: str, num_ranks: int, *, group: int | None = None) -> Algorithm:
    """The algorithm of a library for a collective, in rank order.

    - `name`: One of `ALGORITHMS`; ``"rings:4"`` gives the number of rings, ``"hierarchical:8"`` the ranks per
      group, ``"double-tree:8"`` the pieces per tree (default 1).
    - `group`: Ranks per group if the name gives none.

    Raises `InputError` if there is no such algorithm, or if it does not support the collective or the number
    of ranks.
    """
    word, _, number = name.partition(":")
    known = known_name(word, ALGORITHMS, "algorithm")
    make, does, takes = ALGORITHMS[known]
    kind = matching(collective, collectives.COLLECTIVES) or collective
    if kind not in does:
        raise InputError(f"found {collective}; {known} does {' and '.join(does)}", where="collective")
    if num_ranks < 2:
        raise InputError(f"found {num_ranks} ranks; expected two or more to number anew", where="topology")
    most = MOST_PIECES if known == "double-tree" else num_ranks
    if number and not (takes and number.isascii() and number.isdigit() and 0 < int(number) <= most):
        said = f"expected a number from 1 to {most}" if takes else f"{known} takes no number"
        raise InputError(f"found {name!r}; {said}", where="algorithm")
    whole, moves = make(kind, num_ranks, int(number or (group or 0 if known == "hierarchical" else takes)))
    found = _of_moves(name if number else known, whole, moves)
    if known == "doubling":  # what arrives is kept apart until it is sent on
        blocks = zip(found.src.tolist(), found.begins.tolist(), strict=True)
        carries = [tuple(range(src >> bit << bit, (src >> bit) + 1 << bit)) for src, bit in blocks]
        return replace(found, carries=carries)
    return replace(found, in_steps=known == "pairwise")


def of_schedule(schedule: Schedule) -> Algorithm:
    """A schedule of ours as an algorithm: its sends in order of their starts, over whatever links there are.

    Raises `InputError` if a link has several sources or destinations, which no other host need have.
    """
    problem = schedule.problem
    used = [problem.topology.links[e] for e in schedule.link.tolist()]
    shared = next((link for link in used if len(link.srcs) + len(link.dsts) > 2), None)
    if shared is not None or problem.collective.derivations:
        said = f"a send over {shared}, which a switch copies or adds up; expected one rank at each end"
        if shared is None:
            said = f"{problem.collective.name}, whose chunks derive from one another; it cannot be renumbered"
        raise InputError(f"found {said}", where="algorithm")
    _, message = np.unique(schedule.group, return_inverse=True)
    return Algorithm(
        "schedule", problem.collective, schedule.chunk.astype(np.int64),
        np.array([link.src for link in used], dtype=np.int64),
        np.array([link.dst for link in used], dtype=np.int64),
        schedule.reduce, message.astype(np.int64), schedule.start, schedule.end,
        carries=schedule.contributions, weights=problem.chunk_bytes,
    )  # fmt: skip


def _of_moves(name: str, collective: Collective, moves: Iterator[_Moves]) -> Algorithm:
    """Moves as columns; what goes between two ranks in one step, to be added up or kept, is a message."""
    parts: list[NDArray[np.int64]] = []
    for step, chunks, srcs, dsts, reduces in moves:
        places = [np.asarray(each, dtype=np.int64).ravel() for each in (chunks, srcs, dsts)]
        parts.append(np.stack(np.broadcast_arrays(*places, np.int64(step), np.int64(reduces))))
    chunk, src, dst, steps, added = np.concatenate(parts, axis=1)
    number = collective.num_ranks
    ends = (steps * number + src) * number + dst
    _, message = np.unique(2 * ends + added, return_inverse=True)
    return Algorithm(name, collective, chunk, src, dst, added.astype(bool), message, steps, steps + 1)


def _round(ring: NDArray[np.int64], chunks: NDArray[np.int64], kind: str, first: int = 0) -> Iterator[_Moves]:
    """Chunks round rings: ``ring[..., p]`` is the rank at place p, and gathers ``chunks[..., p, :]``."""
    size = ring.shape[-1]
    place = np.arange(size)
    after = ring[..., (place + 1) % size, None]
    halves = {"reduce-scatter": (1,), "allgather": (0,), "allreduce": (1, 0)}[kind]
    for half, lag in enumerate(halves):
        for step in range(size - 1):
            moved = chunks[..., (place - lag - step) % size, :]
            chunk, src, dst = np.broadcast_arrays(moved, ring[..., None], after)
            yield first + half * (size - 1) + step, chunk, src, dst, bool(lag)


def _sums(num_ranks: int, num_chunks: int) -> Collective:
    """An allreduce of `num_chunks` chunks."""
    whole = {chunk: range(num_ranks) for chunk in range(num_chunks)}
    return collectives.custom(
        num_ranks, precondition=whole, postcondition=whole, combining=True, name="allreduce"
    )


def _rings(kind: str, num_ranks: int, number: int) -> tuple[Collective, Iterator[_Moves]]:
    """Every other ring goes the other way round."""
    ranks = np.arange(num_ranks)
    ways = np.stack([ranks if way % 2 == 0 else (-ranks) % num_ranks for way in range(number)])
    chunks = ways[..., None] * number + np.arange(number)[:, None, None]
    return collectives.make(kind, num_ranks, chunks_per_rank=number), _round(ways, chunks, kind)


def _halving_doubling(kind: str, num_ranks: int, _: int) -> tuple[Collective, Iterator[_Moves]]:
    """Partners differ in one bit, the lowest first, with half of the data; see `stock`.

    An allreduce among a number of ranks that is no power of two folds the ranks beyond it: they hand their
    data to a neighbour first, and get the sum at the end.
    """
    core = 1 << (num_ranks.bit_length() - 1)
    extra = num_ranks - core
    if extra and kind != "allreduce":
        raise InputError(_POWER.format(num_ranks, f"halving-doubling of {kind}"), where="algorithm")
    #: The rank that plays each part: of the first 2 * extra ranks the odd ones.
    rank = np.concatenate((np.arange(1, 2 * extra, 2), np.arange(2 * extra, num_ranks)))
    whole = _sums(num_ranks, core) if extra else collectives.make(kind, num_ranks)

    def moves() -> Iterator[_Moves]:
        part, chunk = np.arange(core)[:, None], np.arange(core)[None, :]
        bits = core.bit_length() - 1
        even = np.arange(0, 2 * extra, 2)[:, None]
        every, with_all = np.broadcast_arrays(chunk, even)
        yield 0, every, with_all, with_all + 1, True
        halving = range(bits) if kind != "allgather" else ()
        for step, bit in enumerate(halving, 1):
            low, high = (1 << bit) - 1, 1 << bit
            goes = ((part ^ chunk) & low == 0) & ((part ^ chunk) & high != 0)
            who, what = np.nonzero(goes)
            yield step, what, rank[who], rank[who ^ high], True
        doubling = range(bits)[::-1] if kind != "reduce-scatter" else ()
        for step, bit in enumerate(doubling, bits + 1):
            who, what = np.nonzero((part ^ chunk) & ((2 << bit) - 1) == 0)
            yield step, what, rank[who], rank[who ^ (1 << bit)], False
        yield 2 * bits + 1, every, with_all + 1, with_all, False

    return whole, moves()


def _doubling(kind: str, num_ranks: int, _: int) -> tuple[Collective, Iterator[_Moves]]:
    """Partners, near ones first, exchange all of what they have summed so far."""
    if num_ranks & (num_ranks - 1):
        raise InputError(_POWER.format(num_ranks, "doubling"), where="algorithm")
    ranks = np.arange(num_ranks)
    moves = ((bit, 0, ranks, ranks ^ (1 << bit), True) for bit in range(num_ranks.bit_length() - 1))
    return _sums(num_ranks, 1), moves


def _double_tree(kind: str, num_ranks: int, pieces: int) -> tuple[Collective, Iterator[_Moves]]:
    """Odd pieces use one tree, even pieces the other; sums go up while earlier sums come down.

    In each step, messages over the edges of one colour precede those of the next: of one colour a rank sends
    and receives one message each way at most, so that no port waits for two others in turn.
    """
    trees = [np.array(edges) for edges in two_trees(range(num_ranks))]
    deepest = max(int(tree[:, 0].max()) for tree in trees)

    def moves() -> Iterator[_Moves]:
        for step in range(pieces + 2 * deepest + 1):
            for which, tree in enumerate(trees):
                depth, above, below = tree.T
                _, first = np.unique(above, return_index=True)
                colour = np.ones(len(above), dtype=np.int64)
                colour[first] = 0
                for number, src, dst, reduces in (
                    (step - (deepest - depth), below, above, True),
                    (step - deepest - 1 - depth, above, below, False),
                ):
                    for side in (0, 1):
                        goes = (number >= 0) & (number < pieces) & (colour == side)
                        place = 8 * step + 4 * side + 2 * (not reduces) + which
                        yield place, 2 * number[goes] + which, src[goes], dst[goes], reduces

    return _sums(num_ranks, 2 * pieces), moves()


def _pairwise(kind: str, num_ranks: int, _: int) -> tuple[Collective, Iterator[_Moves]]:
    ranks = np.arange(num_ranks)
    shifts = ((shift, (ranks + shift) % num_ranks) for shift in range(1, num_ranks))
    moves = ((shift, ranks * num_ranks + dst, ranks, dst, False) for shift, dst in shifts)
    return collectives.make(kind, num_ranks), moves


def _hierarchical(kind: str, num_ranks: int, group: int) -> tuple[Collective, Iterator[_Moves]]:
    """Sums inside groups of consecutive ranks, between ranks of one place in their groups, and back."""
    divisors = [size for size in range(2, num_ranks) if num_ranks % size == 0]
    if not group and divisors:
        group = min(divisors, key=lambda size: (abs(size * size - num_ranks), size))
    if group not in divisors:
        found = f"groups of {group}" if group else "no way to cut them into groups"
        raise InputError(f"found {found} for {num_ranks} ranks; expected equal groups", where="algorithm")
    inside = np.arange(num_ranks).reshape(-1, group)
    num_groups = len(inside)

    def moves() -> Iterator[_Moves]:
        of_place = np.broadcast_to(inside.T, (num_groups, group, num_groups))  # what each place gathers
        yield from _round(inside, of_place, "reduce-scatter")
        yield from _round(inside.T, inside.T[..., None], "allreduce", group - 1)
        yield from _round(inside, of_place, "allgather", group - 1 + 2 * (num_groups - 1))

    return collectives.make(kind, num_ranks), moves()


_SUMS = ("allreduce", "allgather", "reduce-scatter")
#: {algorithm: (maker, collectives, default of the number in its name, or 0 if it takes none)}.
ALGORITHMS: dict[str, tuple[Callable[..., tuple[Collective, Iterator[_Moves]]], Sequence[str], int]] = {
    "ring": (lambda kind, num_ranks, _: _rings(kind, num_ranks, 1), _SUMS, 0),
    "rings": (_rings, _SUMS, 2),
    "double-tree": (_double_tree, ("allreduce",), 1),
    "halving-doubling": (_halving_doubling, _SUMS, 0),
    "doubling": (_doubling, ("allreduce",), 0),
    "pairwise": (_pairwise, ("alltoall",), 0),
    "hierarchical": (_hierarchical, ("allreduce",), 1),
}

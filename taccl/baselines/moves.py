"""Moves: the messages of an algorithm as columns, and their sends over the links of a topology.

A baseline lists its moves step by step: rank `src` sends a chunk to rank `dst`, which adds it up or keeps it.
Moves name ranks only. `routed` converts them to sends over links, each over the direct link or a shortest
path of relays. `Sends.schedule` then computes exact times.

A reduction is a broadcast whose moves are reversed, so a baseline lists only its broadcast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taccl._internal.arrays import distinct, first_rows, lexsort
from taccl._internal.caching import cached
from taccl._internal.graph_algorithms import shortest_paths
from taccl.baselines.routes import ShortestRoutes
from taccl.errors import CollectiveError
from taccl.problem.chunks import RankSets
from taccl.problem.costs import hold_columns, link_ends
from taccl.problem.problem import Problem
from taccl.schedule.contributions import Carried
from taccl.schedule.schedule import Schedule
from taccl.schedule.timing import exact_times

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
#: (step, chunk, source, destination, True if the chunk is added up); arrays that broadcast together.
Row = tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike, ArrayLike]


#: Max transfers of a baseline (about 10 s); half as many for combining collectives.
_MOST_TRANSFERS = 2_000_000
#: Min number of chunk arrivals from which `least_transfers` also counts relays.
_FEW_TRANSFERS = 10_000


class Moves(NamedTuple):
    """Messages between ranks, with one chunk per row, in the order in which they use resources.

    - `step`, `chunk`, `src`, `dst`: (num_moves,) int64.
    - `adds`, (num_moves,) bool: True if the destination adds the chunk to its own.
    - `message`, (num_moves,) int64: Number of the message; its chunks travel together where a link merges.
    """

    step: Ints
    chunk: Ints
    src: Ints
    dst: Ints
    adds: Flags
    message: Ints

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Moves:
        """Moves of the given rows, sorted by step; moves of one step keep their order.

        Within a row, all chunks between the same two ranks in one step form a message.
        """
        parts = [np.zeros((6, 0), np.int64)]
        for number, row in enumerate(rows):
            columns = np.broadcast_arrays(*(np.asarray(each, np.int64) for each in (*row, number)))
            parts.append(np.stack(columns).reshape(6, -1))
        found = np.concatenate(parts, axis=1)
        step, _, src, dst, _, part = found
        changes = np.zeros(len(step), bool)
        for column in (step, src, dst, part):
            changes[1:] |= column[1:] != column[:-1]
        found[5] = np.cumsum(changes)
        step, chunk, src, dst, adds, message = found[:, lexsort((step,))]
        return cls(step, chunk, src, dst, adds.astype(bool), message)

    def reversed(self) -> Moves:
        """Moves in reversed time: source and destination swap, and copies become additions."""
        step = self.step.max(initial=0) - self.step[::-1]
        chunk, src, dst, message = (column[::-1] for column in (self.chunk, self.src, self.dst, self.message))
        return Moves(step, chunk, dst, src, ~self.adds[::-1], message)


class Sends(NamedTuple):
    """Transfers over links, in the order in which they use resources.

    - `chunk`, `link`: (num_transfers,) int64.
    - `group`, (num_transfers,) int64: Number of each transfer's send, ascending.
    - `adds`, (num_transfers,) bool: True if the destination adds the chunk to its own.
    - `carries`: Ranks whose contributions each transfer carries. None: transfers name no contributions.
    """

    chunk: Ints
    link: Ints
    group: Ints
    adds: Flags
    carries: Sequence[tuple[int, ...]] | None = None

    @classmethod
    def of(cls, schedule: Schedule) -> Sends:
        """Sends of a schedule, in order of start."""
        order = lexsort((schedule.group, schedule.start))
        chunk, link, group = (
            column[order].astype(np.int64) for column in (schedule.chunk, schedule.link, schedule.group)
        )
        return cls(chunk, link, np.cumsum(np.diff(group, prepend=-1) != 0) - 1, schedule.reduce[order])

    def reversed(self) -> Sends:
        """Sends in reversed time, over the same links of the reversed topology."""
        group = self.group[-1:] - self.group
        return Sends(self.chunk[::-1], self.link[::-1], group[::-1], ~self.adds[::-1])

    def then(self, later: Sends) -> Sends:
        """Concatenation of these sends and `later` sends, which follow on every resource."""
        group = later.group + 1 + self.group.max(initial=-1)
        return Sends(
            np.concatenate((self.chunk, later.chunk)),
            np.concatenate((self.link, later.link)),
            np.concatenate((self.group, group)),
            np.concatenate((self.adds, later.adds)),
        )

    def busy_ticks(self, problem: Problem) -> int:
        """Lower bound in ticks on the finish of these sends in any order: the maximum over resources.

        The bound of a resource is the sum of three times: all its holds; the least time from a send's start
        to its hold; the least time from a hold's end to its send's end.
        """
        costs, holds = problem.costs, hold_columns(problem.topology)
        first = np.flatnonzero(np.diff(self.group, prepend=-1))
        if not len(first):
            return 0
        units, link = np.add.reduceat(costs.chunk_units[self.chunk], first), self.link[first]
        send, hold = holds.of_sends(link)
        resource, receives = holds.resource[hold], holds.receives[hold]
        held = costs.hold_alpha[hold] + units[send] * costs.hold_beta[hold]
        duration = (costs.link_alpha[link] + units * costs.link_beta[link])[send]
        begin, until = np.where(receives, duration - held, 0), np.where(receives, duration, held)
        # If a link holds a resource at both ends, the resource is also busy in between.
        order = lexsort((send, resource))
        new = np.flatnonzero(np.diff(resource[order], prepend=-1) | np.diff(send[order], prepend=-1))
        begin, until = np.minimum.reduceat(begin[order], new), np.maximum.reduceat(until[order], new)
        rest = duration[order][new] - until
        each = np.flatnonzero(np.diff(resource[order][new], prepend=-1))
        busy = np.add.reduceat(until - begin, each)
        return int((busy + np.minimum.reduceat(begin, each) + np.minimum.reduceat(rest, each)).max())

    def schedule(self, problem: Problem, *, producer: str) -> Schedule:
        """Schedule of the sends; each starts as soon as its data and its resources permit."""
        named = self.carries is not None
        check_number(problem, len(self.chunk))
        return exact_times(
            problem, chunk=self.chunk, link=self.link, sequence=self.group, group=self.group,
            reduce=None if named else self.adds, contributions=self.carries, producer=producer,
        )  # fmt: skip


@cached
def is_destination(problem: Problem) -> Flags:
    """(num_sets, num_ranks) array: True for the destinations in each set of them."""
    return problem.collective.destination_sets.flags(problem.topology.num_ranks)


def to_destinations(problem: Problem, row: Row) -> Row:
    """Moves of a row to destinations of their chunks; for moves on which no others depend."""
    step, chunk, src, dst, adds = np.broadcast_arrays(*row)
    kept = is_destination(problem)[problem.collective.destination_sets.of_chunk[chunk], dst]
    return step[kept], chunk[kept], src[kept], dst[kept], adds[kept]


def routed(
    problem: Problem, moves: Moves, *, sums: Sequence[tuple[int, ...]] = (), carries: Ints | None = None
) -> Sends:
    """Convert moves to sends over the direct link, or without one, hop by hop over a shortest path.

    All first hops of a step's moves come before all second hops, and so on. See `sends_over`.

    - `sums`, `carries`, (num_moves,) array: Distinct sets of ranks, and the index of the set whose
      contributions each move carries.
    """
    check_least(problem)
    row, hop, link = ShortestRoutes.of(problem).hops(moves.src, moves.dst)
    check_number(problem, len(row) if len(sums) else 0)
    order = lexsort((row, hop, moves.step[row]))
    row, hop, link = row[order], hop[order], link[order]
    message = moves.message[row] * (1 + hop.max(initial=0)) + hop
    return sends_over(
        problem, moves.chunk[row], link, message, sums=sums, carries=None if carries is None else carries[row]
    )


def sends_over(
    problem: Problem,
    chunk: Ints,
    link: Ints,
    message: Ints,
    *,
    sums: Sequence[tuple[int, ...]] = (),
    carries: Ints | None = None,
) -> Sends:
    """Sends for a sequence of transfers, without redundant transfers.

    A transfer is redundant if the rank already has the data, or no destination depends on it. The transfers
    of a message travel together where the link merges.

    - `chunk`, `link`, `message`: (num_transfers,) columns; the rows of a message are consecutive.
    - `sums`, `carries`: As in `routed`.
    """
    n, clauses = problem.topology.num_ranks, problem.clauses
    src, dst = (ends[link] for ends in link_ends(problem.topology))
    place = chunk * n + dst
    if carries is not None:
        place += carries * n * problem.collective.num_chunks
    _, first = first_rows(place)
    kept = np.zeros(len(place), bool)
    kept[first] = True
    if carries is None:
        starts = problem.collective.origin_sets
        kept &= ~starts.flags(n)[starts.of_chunk[chunk], dst]
        rows = np.flatnonzero(kept)
        kept[rows] = _needed(problem, chunk[rows], src[rows], dst[rows])
    rows = np.flatnonzero(kept)
    chunk, link, message = chunk[rows], link[rows], message[rows]
    begins = np.flatnonzero(np.diff(message, prepend=-1))
    position = np.arange(len(rows)) - np.repeat(begins, np.diff(np.append(begins, len(rows))))
    most = np.ones(len(problem.topology.links), np.int64)
    most[list(clauses.merging)] = clauses.max_merge
    group = np.cumsum(position % most[link] == 0) - 1
    named = None if carries is None else Carried(sums, carries[rows])
    return Sends(chunk, link, group, np.zeros(len(rows), bool), named)


def _needed(problem: Problem, chunk: Ints, src: Ints, dst: Ints) -> Flags:
    """True if a destination depends on the transfer, (num_transfers,); no rank may get a chunk twice."""
    n, ends = problem.topology.num_ranks, problem.collective.destination_sets
    needed = is_destination(problem)[ends.of_chunk[chunk], dst]
    here = chunk * n + dst
    order = np.argsort(here)
    found = np.searchsorted(here[order], chunk * n + src)
    before = np.append(order, -1)[found]
    before[(before < 0) | (here[before] != chunk * n + src)] = -1
    assert (before < np.arange(len(chunk))).all(), "a chunk is sent by a rank that has it"
    frontier = needed
    while not needed.all() and len(feeding := before[frontier][before[frontier] >= 0]):
        frontier = np.zeros_like(needed)
        frontier[feeding] = ~needed[feeding]
        needed = needed | frontier
    return needed


def check_number(problem: Problem, num_transfers: int) -> None:
    """Raise `CollectiveError` if a baseline has too many transfers."""
    most = _MOST_TRANSFERS // (2 if problem.collective.combining else 1)
    if num_transfers > most:
        raise CollectiveError(
            f"{problem.title} needs at least {num_transfers} transfers; expected at most {most}: use fewer "
            "ranks, another baseline (ring), or synthesize it",
            where="baseline",
        )


def check_least(problem: Problem) -> None:
    """Raise `CollectiveError` if every schedule of the problem has too many transfers for a baseline.

    Until some rank has a sum, all origins but one send their contributions; then all destinations but one
    receive the sum.
    """
    collective = problem.collective
    starting, ending = collective.origin_sets.sizes, collective.destination_sets.sizes
    of_sums = (starting + ending - 2)[(starting > 1) & (ending > 0)].sum() if collective.combining else 0
    check_number(problem, max(int(of_sums), least_transfers(problem)))


@cached
def least_transfers(problem: Problem) -> int:
    """Min number of transfers of any schedule: one per arrival, plus relays of point-to-point chunks.

    Relays of small problems are not counted.
    """
    n, collective = problem.topology.num_ranks, problem.collective
    starts, ends = collective.origin_sets, collective.destination_sets
    code = starts.of_chunk.astype(np.int64) * len(ends.sets) + ends.of_chunk
    alike, count = np.unique(code, return_counts=True)
    start, end = np.divmod(alike, len(ends.sets) or 1)
    is_lone = (_sizes(starts)[start] == 1) & (_sizes(ends)[end] == 1)
    others = zip(start[~is_lone].tolist(), end[~is_lone].tolist(), count[~is_lone].tolist(), strict=True)
    arrivals: int = sum(len({*ends.sets[j]} - {*starts.sets[i]}) * num for i, j, num in others)
    src, dst, count = _firsts(starts)[start[is_lone]], _firsts(ends)[end[is_lone]], count[is_lone]
    arrivals += int(count[src != dst].sum())
    if arrivals < _FEW_TRANSFERS or not len(src):
        return arrivals
    from_each = np.arange(n) if len(src) > n else distinct(src)
    tail, head, _ = ShortestRoutes.of(problem).arcs
    hops = shortest_paths(n, tail, head, 1, from_each)
    hops = hops[np.searchsorted(from_each, src), dst]
    beyond = np.where(np.isfinite(hops), hops, 1) - 1  # `routed` refuses pairs without a route
    return arrivals + int((np.maximum(beyond, 0) * count).sum())


def _sizes(sets: RankSets) -> Ints:
    """Number of ranks of each set, (num_sets,)."""
    return np.array([len(ranks) for ranks in sets.sets], np.int64)


def _firsts(sets: RankSets) -> Ints:
    """First rank of each set, (num_sets,); -1 for an empty set."""
    return np.array([next(iter(ranks), -1) for ranks in sets.sets], np.int64)

"""All collectives of a step as one synthesis problem, with a process group for each piece of each tile.

On a product of dimensions, collectives are cut into more pieces than elsewhere, each with its own order of
dimensions: some pieces cross one dimension while others cross the next. A group of ranks, such as
data-parallel ranks, balances loads over its own dimensions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import Ints
from taccl._internal.caching import cached
from taccl.errors import InputError
from taccl.problem import collectives
from taccl.problem.chunks import Chunk
from taccl.problem.clauses import Clauses
from taccl.problem.collective import Collective
from taccl.problem.making import make_problem
from taccl.problem.problem import Problem
from taccl.schedule.combine import naming_contributions
from taccl.schedule.schedule import Schedule, make_schedule
from taccl.synthesis.parameters import DEFAULTS
from taccl.topology.topology import Topology
from taccl.workload.meaning import groups_of
from taccl.workload.workload import Workload

#: `_PIECES`: (min bytes per chunk, max pieces per tile) of a collective outside overlaps; our choice.
#: `_TILE_PIECES`: (min bytes per chunk, max pieces per tile) of a collective in an overlap; our choice.
_PIECES, _TILE_PIECES = (1 << 20, 8), (1 << 18, 4)
#: Max chunks of a step with several pieces per tile; our choice, as a chunk needs sends from every rank.
MOST_CHUNKS = 8_192
#: Phases of an allreduce.
_PHASES = ("reduce_scatter", "allgather")
#: `_SEARCH_S`: time limit in s to synthesize one collective of a step.
#: `_PARAMETERS`: search parameters that exclude schedules balanced over dimensions, which are slow to build.
_SEARCH_S = 20.0
_PARAMETERS = replace(DEFAULTS, portfolio=replace(DEFAULTS.portfolio, balanced_transfers=0))


@dataclass(frozen=True, slots=True)
class CollectivePart:
    """A piece of a tile of a collective, and its chunks in the step's problem.

    A tile with large chunks is cut into several `pieces`, which are sent one after another. The chunks of
    this piece have numbers `first` to `first + count - 1`, ordered by group, and `chunk_bytes` bytes each.
    """

    operation: str
    tile: int
    piece: int
    pieces: int
    first: int
    count: int
    chunk_bytes: int
    groups: tuple[tuple[int, ...], ...]

    def place(self, chunk: int) -> tuple[tuple[int, ...], int]:
        """Ranks of a chunk's group, and the chunk's number within the group."""
        group, number = divmod(chunk - self.first, self.count // len(self.groups))
        return self.groups[group], number

    @property
    def chunks(self) -> range:
        """Numbers of the piece's chunks in the step's problem."""
        return range(self.first, self.first + self.count)


def parts_of(workload: Workload) -> tuple[CollectivePart, ...]:
    """Cut all collectives of a step into parts (pieces of tiles), in the order of `Workload.tiles`."""
    parts: list[CollectivePart] = []
    first, asked = 0, dict(workload.pieces)
    groups = {each.name: groups_of(workload, each) for each in workload.operations if each.is_collective}
    counts = {
        name: collective_of(workload.operation[name].kind, workload.operation[name].shift, some).num_chunks
        for name, some in groups.items()
    }
    sent = [(name, tile) for name, tile in workload.tiles if name in counts]
    room = MOST_CHUNKS // max(1, sum(counts[name] for name, _ in sent))
    for name, tile in sent:
        count, cut = counts[name], workload.tiling(name)
        size = len(groups[name][0])
        is_alltoall = workload.operation[name].kind == "alltoall"
        share = size**2 if is_alltoall else count // len(groups[name])
        num_bytes = workload.tensors[name].num_bytes // _slices_outside(workload, name)
        least_bytes, most = _TILE_PIECES if cut.overlap else _PIECES
        fitting = max(1, min(most, room, num_bytes // (cut.tiles * share * least_bytes)))
        pieces = asked.get(name, fitting)
        chunk_bytes = max(1, -(-num_bytes // (cut.tiles * pieces * share)))
        for piece in range(pieces):
            part = CollectivePart(name, tile, piece, pieces, first, count, chunk_bytes, groups[name])
            parts.append(part)
            first += count
    return tuple(parts)


def _slices_outside(workload: Workload, name: str) -> int:
    """Number of different slices of a collective's result among its groups; 1 if all groups have the same."""
    grid, tensor = workload.grid, workload.tensors[name]
    over = grid.dims_of(workload.operation[name].group, where=name)
    outside = [dim for dim in grid.names if dim not in over and tensor.along(dim).startswith("sliced")]
    return grid.size(outside) if outside else 1


def parts_by_chunk(workload: Workload) -> list[CollectivePart]:
    """For each chunk of the step's problem, the part of a collective to which it belongs."""
    return [part for part in parts_of(workload) for _ in part.chunks]


def in_balanced_pieces(workload: Workload, topology: Topology) -> Workload | None:
    """Cut collectives of a step into pieces to balance network dimensions; None if no collective gains.

    The numbers of pieces are set in `Workload.pieces`.
    """
    parts = parts_of(workload)
    room, tiles = MOST_CHUNKS - sum(part.count for part in parts), Counter[str]()
    whole = {(part.operation, part.tile): part for part in parts}
    for name, _ in whole:
        tiles[name] += 1
    pieces: dict[str, int] = {}
    for (name, _), part in whole.items():
        operation = workload.operation[name]
        if name in pieces or operation.kind not in KINDS or dict(workload.pieces).get(name):
            continue
        collective = collective_of(operation.kind, operation.shift, part.groups)
        number = number_of_pieces(topology, collective, part.chunk_bytes * part.pieces)
        more = (number - part.pieces) * part.count * tiles[name]
        if number > 1 and more <= room:
            pieces[name] = number
            room -= more
    return replace(workload, pieces=(*workload.pieces, *pieces.items())) if pieces else None


def in_best_pieces(workload: Workload, topology: Topology) -> Workload | None:
    """Cut the only collective of a step as its best baseline cuts it; None if it gains no pieces.

    The number of pieces is set in `Workload.pieces`. A collective in several tiles is not cut.
    """
    parts = parts_of(workload)
    if not _is_alone(parts):
        return None
    part, operation = parts[0], workload.operation[parts[0].operation]
    collective = collective_of(operation.kind, operation.shift, part.groups)
    if operation.kind == "send" or collective.is_met or dict(workload.pieces).get(operation.name):
        return None
    found = _best(topology, collective, part.chunk_bytes * part.pieces)
    if found is None or not part.count < found.problem.collective.num_chunks <= MOST_CHUNKS:
        return None
    pieces = found.problem.collective.num_chunks // part.count
    return replace(workload, pieces=(*workload.pieces, (operation.name, pieces)))


def _is_alone(parts: Sequence[CollectivePart]) -> bool:
    """True if all parts are pieces of one tile."""
    return len({(part.operation, part.tile) for part in parts}) == 1


def problem_of(
    workload: Workload, topology: Topology, parts: Sequence[CollectivePart], *, sums: Collection[str] = (),
    clauses: Clauses | None = None,
) -> Problem:  # fmt: skip
    """Joint synthesis problem of some parts; parts of operations in `sums` become allreduces.

    - `clauses`: Clauses of the problem; by default those of `make_problem`, which depend on all its parts.
      If they are pieces of one tile, and the workload sets their number, one send may carry any of them.
    """
    every = []
    for part in parts:
        operation = workload.operation[part.operation]
        kind = "allreduce" if part.operation in sums else operation.kind
        every.append(collective_of(kind, operation.shift, part.groups))
    sizes = [part.chunk_bytes for part in parts for _ in part.chunks]
    nothing = collectives.custom(workload.num_ranks, precondition={}, postcondition={}, name="nothing")
    collective = collectives.together(every) if every else nothing
    problem = make_problem(topology, collective, chunk_bytes=sizes, clauses=clauses)
    if clauses is None and workload.pieces and _is_alone(parts):
        from taccl.baselines.chunking import merging  # imported late, as below

        return merging(problem)
    return problem


def made_by_baselines(workload: Workload, topology: Topology) -> list[frozenset[str]]:
    """Sets of collectives to try by their best baselines, without empty and equal ones.

    1. Allreduces that end earlier by a baseline than as a reduce-scatter and an allgather, each alone.
    2. These, and collectives in several parts that load their busiest resource less by a baseline: parts
       follow one another, so that this resource limits their rate.
    """
    parts, sooner, lighter = parts_of(workload), set[str](), set[str]()
    merging = tuple(problem_of(workload, topology, parts).clauses.values("merge").items())
    repeated = {part.operation for part in parts if part.tile or part.piece} - {*dict(workload.pieces)}
    for part in parts:
        name, operation = part.operation, workload.operation[part.operation]
        kind, is_sum = operation.kind, operation.kind == "allreduce"
        if part.tile or part.piece or not (is_sum or name in repeated):
            continue
        ways = (("synthesized", _PHASES if is_sum else (kind,)), ("best", (kind,)))
        with suppress(InputError):  # InputError: no baseline supports it
            own, best = (
                [
                    _alone(
                        topology,
                        (each, operation.shift, algorithm, merging, part.groups),
                        rounded(part.chunk_bytes),
                    )
                    for each in kinds
                ]
                for algorithm, kinds in ways
            )
            if is_sum and best[0].finish < sum(each.finish for each in own):
                sooner.add(name)
            if name in repeated and _busiest_us(best) < _busiest_us(own) * (1 - 1e-9):
                lighter.add(name)
    tried = (frozenset(sooner), frozenset(sooner | lighter))
    return [each for each in dict.fromkeys(tried) if each]


def _busiest_us(sent: Sequence[Schedule]) -> float:
    """Longest time in us for which the bytes of several schedules on one topology hold a resource."""
    from taccl.baselines.chunking import busy_by_bytes_us  # imported late, as below

    busy_us = [busy_by_bytes_us(each.problem, each.chunk, each.link) for each in sent]
    return float(np.sum(busy_us, axis=0).max(initial=0))


def rounded(chunk_bytes: int) -> int:
    """Bytes per chunk for which a schedule is chosen: a power of 4.

    Similar sizes share a schedule, as the best one changes little within a factor of 4 in size.
    """
    return int(4 ** (((chunk_bytes - 1).bit_length() + 1) // 2))


def sends_of(
    workload: Workload,
    topology: Topology,
    algorithm: str,
    *,
    whole: Collection[str] = (),
    in_place: bool = False,
    best_pieces: bool = False,
) -> Schedule:
    """Sends of all collectives of a step, in an order in which the parts could run one after another.

    The ticks of the schedule are positions in that order, not times.

    - `workload`, `topology`: Both with the same number of ranks.
    - `algorithm`: ``"synthesized"``, the name of a baseline, or ``"stock"``: pairwise exchange for an
      alltoall and for several groups, rings otherwise.
    - `whole`: Collectives to make by the fastest baseline. With ``"synthesized"``, other allreduces are made
      as a reduce-scatter followed by an allgather.
    - `in_place`: True to use other algorithms in place of schedules that name contributions.
    - `best_pieces`: True if the pieces are those of `in_best_pieces`.
    """
    parts = parts_of(workload)
    problem = problem_of(workload, topology, parts)
    sent: list[_Sends] = []
    groups = 0
    merging = tuple(problem.clauses.values("merge").items())
    pieces = dict(workload.pieces) if algorithm == "synthesized" else {}
    sent_along: set[tuple[str, int]] = set()
    for part in parts:
        operation = workload.operation[part.operation]
        if part.operation in pieces and not part.piece:
            firsts = [
                each.first for each in parts if (each.operation, each.tile) == (part.operation, part.tile)
            ]
            collective = collective_of(operation.kind, operation.shift, part.groups)
            along_pieces = _sends_of_best if best_pieces else sends_along
            along = along_pieces(topology, collective, part.chunk_bytes, firsts)
            if along is not None:
                sent_along.add((part.operation, part.tile))
                sent.append(along._replace(group=along.group + groups))
                groups += len(along.group)
        if (part.operation, part.tile) in sent_along:
            continue
        is_whole = part.operation in whole
        is_sum = operation.kind == "allreduce" and algorithm == "synthesized" and not is_whole
        for kind in _PHASES if is_sum else (operation.kind,):
            of = (kind, operation.shift, "best" if is_whole else algorithm, merging, part.groups)
            chunk_bytes = rounded(part.chunk_bytes)
            found = _alone(topology, of, chunk_bytes)
            if in_place and found.carries is not None:
                found = _in_place(topology, of, chunk_bytes)
            every, first = np.arange(len(found.chunk)), np.int64(part.first)
            sent.append(_Sends(found, every, found.chunk + first, found.group + np.int64(groups)))
            groups += found.num_sends
    nothing = (np.zeros(0, dtype=np.int64),) * 4
    columns = zip(nothing, *(each.columns for each in sent), strict=True)
    chunk, link, group, reduce = map(np.concatenate, columns)
    names_sums = any(each.found.carries is not None for each in sent)
    if names_sums and any(len(topology.links[e].srcs) > 1 for e in set(link.tolist())):
        # A link that adds up in a switch sends all that its sources hold, so it names no contributions.
        return sends_of(workload, topology, algorithm, in_place=True)
    return make_schedule(
        problem, chunk=chunk, link=link, start=group, end=group + 1, group=group,
        reduce=None if names_sums else reduce.astype(bool),
        contributions=[*chain(*(each.carried(problem) for each in sent))] if names_sums else None,
    )  # fmt: skip


class _Sends(NamedTuple):
    """Sends of a part, or of several parts, of a collective.

    - `found`: Schedule of the collective alone.
    - `rows`: Transfers of `found`, in the order in which they are sent.
    - `chunk`, `group`, (num_rows,): Their chunks and groups in the schedule of all parts.
    """

    found: Schedule
    rows: Ints
    chunk: Ints
    group: Ints

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """Columns chunk, link, group and reduce of the sends."""
        return self.chunk, self.found.link[self.rows], self.group, self.found.reduce[self.rows]

    def carried(self, problem: Problem) -> list[Collection[int]]:
        """Ranks whose contributions each send carries, in the problem of all parts."""
        found, chunks = self.found, problem.collective.chunks
        if not found.problem.collective.combining:  # each copy is a whole sum, or the data of one rank
            return [chunks[chunk].origins for chunk in self.chunk.tolist()]
        named = found if found.carries is not None else naming_contributions(found, found.problem)
        every = named.contributions or []
        return [every[row] for row in self.rows.tolist()]


def collective_of(kind: str, shift: int, groups: Sequence[tuple[int, ...]]) -> Collective:
    """Collective over all groups; without process groups if there is a single group of all ranks in order."""
    size, num_ranks = len(groups[0]), sum(map(len, groups))
    if kind == "send":
        starts = {place: [place] for place in range(size)}
        ends = {place: [(place + shift) % size] for place in range(size)}
        one = collectives.custom(size, precondition=starts, postcondition=ends, name="send")
    else:
        one = collectives.make(kind, size)
    if len(groups) == 1:
        return one
    return collectives.together([one.among(members, num_ranks=num_ranks) for members in groups])


#: Key of a collective's schedule: (kind, shift, algorithm, merging clauses as (field, value) pairs, groups).
_Sent = tuple[str, int, str, tuple[tuple[str, Any], ...], tuple[tuple[int, ...], ...]]


@cached
def _alone(topology: Topology, sent: _Sent, chunk_bytes: int) -> Schedule:
    """Schedule of one collective alone, for chunks of `chunk_bytes` bytes."""
    kind, shift, algorithm, merging, groups = sent
    collective = collective_of(kind, shift, groups)
    clauses = Clauses(**dict(merging))
    problem = make_problem(topology, collective, chunk_bytes=chunk_bytes, clauses=clauses)
    if problem.collective.is_met:
        return make_schedule(problem, chunk=[], link=[], start=[], end=[])
    if algorithm != "synthesized" and kind != "send":
        stock = "pairwise" if kind == "alltoall" or len(groups) > 1 else "ring"
        name = stock if algorithm == "stock" else algorithm
        from taccl.baselines import baseline, best  # imported late, as below

        if name == "best":
            return best(problem, cut=False, time_limit_s=_SEARCH_S)
        return baseline(name, problem, cut=False)
    from taccl.synthesis.synthesize import synthesize  # imported late: ranks that run a step do not need it

    return synthesize(problem, backend="greedy", time_limit_s=_SEARCH_S, parameters=_PARAMETERS).schedule


def _in_place(topology: Topology, sent: _Sent, chunk_bytes: int) -> Schedule:
    """Schedule of one collective without named contributions: with sums in switches, or ``"stock"``."""
    kind, shift, _, merging, groups = sent
    with suppress(InputError):
        return _alone(topology, (kind, shift, "in-network", merging, groups), chunk_bytes)
    return _alone(topology, (kind, shift, "stock", merging, groups), chunk_bytes)


#: Collectives whose load on each dimension depends on the order of dimensions.
KINDS = ("allreduce", "reduce_scatter", "allgather")
#: Maximum number of transfers for which a collective is balanced.
_MOST_TRANSFERS = 500_000


@cached
def number_of_pieces(topology: Topology, collective: Collective, chunk_bytes: int) -> int:
    """Number of pieces into which to cut a collective for the earliest finish; 1 if it cannot be balanced.

    - `collective`: Collective of all ranks or of several groups, with one chunk per rank.
    - `chunk_bytes`: Size of a chunk of the collective before it is cut.
    """
    from taccl.synthesis.proposers.balanced import (
        collectives_of,
        cut_balanced,
    )  # imported late: ranks that run a step do not need these

    problem = replace(make_problem(topology, collective, chunk_bytes=chunk_bytes), chunks_open=True)
    try:
        if max(len(dims) for *_, dims in collectives_of(problem)) < 2:
            return 1
        cut = cut_balanced(problem, policy="lp", most_transfers=_MOST_TRANSFERS)
        return cut.collective.num_chunks // collective.num_chunks
    except InputError:
        return 1


def sends_along(
    topology: Topology, collective: Collective, chunk_bytes: int, firsts: Sequence[int]
) -> _Sends | None:
    """Sends of all pieces of a collective, ordered by start; None if balancing does not apply.

    - `chunk_bytes`: Size of the chunks of a piece.
    - `firsts`: For each piece, number that its first chunk has in the step.
    """
    found = _balanced(topology, collective, chunk_bytes, len(firsts))
    if found is None:
        return None
    number_of = {_ends(chunk): number for number, chunk in enumerate(collective.chunks)}
    piece, chunks = Counter[int](), []
    for chunk in found.problem.collective.chunks:
        number = number_of[_ends(chunk)]
        chunks.append(firsts[piece[number]] + number)
        piece[number] += 1
    order = np.argsort(found.start, kind="stable")
    return _Sends(found, order, np.array(chunks, np.int64)[found.chunk[order]], np.arange(len(order)))


def _sends_of_best(
    topology: Topology, collective: Collective, chunk_bytes: int, firsts: Sequence[int]
) -> _Sends | None:
    """Sends of the best baseline's pieces, ordered by start; None if it has other pieces.

    The parameters are those of `sends_along`.
    """
    pieces = len(firsts)
    found = _best(topology, collective, chunk_bytes * pieces)
    if found is None or found.problem.collective.chunks != collective.split(pieces).chunks:
        return None
    rows = np.argsort(found.start, kind="stable")
    _, first, same = np.unique(found.group[rows], return_index=True, return_inverse=True)
    number, piece = np.divmod(found.chunk[rows], pieces)
    # Groups are numbered by their first transfers.
    return _Sends(found, rows, np.array(firsts, np.int64)[piece] + number, first.argsort().argsort()[same])


@cached
def _best(topology: Topology, collective: Collective, chunk_bytes: int) -> Schedule | None:
    """Fastest baseline with any number of pieces per chunk of `chunk_bytes` bytes; None if none applies."""
    from taccl.baselines import best  # imported late, as above

    problem = replace(make_problem(topology, collective, chunk_bytes=chunk_bytes), chunks_open=True)
    with suppress(InputError):
        return best(problem, time_limit_s=_SEARCH_S)
    return None


def _ends(chunk: Chunk) -> tuple[object, ...]:
    return chunk.origins, chunk.destinations, chunk.root


@cached
def _balanced(topology: Topology, collective: Collective, chunk_bytes: int, pieces: int) -> Schedule | None:
    from taccl.baselines.chunking import cut_chunks  # imported late, as above
    from taccl.synthesis.proposers.balanced import balanced_schedule

    problem = make_problem(topology, collective, chunk_bytes=chunk_bytes * pieces)
    try:
        whole = cut_chunks(problem, pieces) if pieces > 1 else problem
        return balanced_schedule(whole, most_transfers=_MOST_TRANSFERS)
    except InputError:
        return None

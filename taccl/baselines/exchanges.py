"""Chunks from one rank to one rank on tori and meshes: merged messages along one dimension after another."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.arrays import distinct, lexsort
from taccl.baselines.chunking import starts_of
from taccl.baselines.forms import Form
from taccl.baselines.moves import Moves, routed

if TYPE_CHECKING:
    from taccl.baselines.moves import Ints, Row, Sends
    from taccl.problem.problem import Problem
    from taccl.topology.products import Dimensions

#: Number of chunks above which only one form is built, in merged messages (about 0.5 s of CPU each).
MANY_CHUNKS = 20_000


def exchanges(problem: Problem, dims: Dimensions) -> list[Form]:
    """Forms of sends of chunks from one rank to one rank.

    There are several if all chunks start or end at one rank, and along lines: there, chunks that go farther
    have to leave first. With many chunks, only the form with the earliest estimate is built.
    """
    collective = problem.collective
    ends = np.array([ranks[0] for ranks in collective.destination_sets.sets], np.int64)
    src, dst = starts_of(problem), ends[collective.destination_sets.of_chunk]
    gathers, scatters = (len(distinct(each)) == 1 for each in (dst, src))
    longest = max((each.size for each in dims if each.kind == "line"), default=2)
    numbers = list(range(1 + len(dims) if gathers or scatters or longest > 2 else 1))
    if not (gathers or scatters):
        numbers = sorted(numbers, key=lambda number: _estimate(problem, len(dims), longest, number))
        numbers = numbers[: 1 if collective.num_chunks > MANY_CHUNKS else None]
    return [Form("bucket", partial(_sends, problem, dims, src, dst, gathers, number)) for number in numbers]


def _estimate(problem: Problem, num_dims: int, longest: int, number: int) -> float:
    """Approximate finish of an alltoall along lines, in ticks (fitted to meshes of 16 to 256 ranks).

    - `longest`: Ranks in the longest line.
    - `number`: Number of passes with messages by distance, as in `_along_all`.
    """
    costs, share = problem.costs, number / num_dims
    busy = costs.link_beta.max(initial=0) * costs.chunk_units.sum() * longest / 4 / problem.topology.num_ranks
    steps = num_dims * ((1 - share) * longest + share * 0.22 * longest**2)
    return float(costs.link_alpha.max(initial=0) * steps + (1.75 - 0.75 * share) * busy)


def _sends(problem: Problem, dims: Dimensions, src: Ints, dst: Ints, gathers: bool, number: int) -> Sends:
    """Sends of the moves of `_along_all`; those to one rank are moves from it in reversed time."""
    if not gathers:
        return routed(problem, _along_all(dims, src, dst, number))
    moves = _along_all(dims, dst, src, number).reversed()
    return routed(problem, moves._replace(adds=np.zeros(len(moves.chunk), bool)))


def _along_all(dims: Dimensions, src: Ints, dst: Ints, number: int) -> Moves:
    """Moves of chunks along one dimension after another, the shorter way round each ring.

    The distance to the destination decides with which dimension a chunk starts, and the way at ties.

    - `src`, `dst`: Source and destination of each chunk.
    - `number`: Number of passes in which chunks that go farther are messages of their own, and leave first.
      In later passes, all chunks of a link and a step are one message.
    """
    begin, sizes = dims.digits(src), np.array(dims.sizes)[:, None]
    offset = dims.digits(dst) - begin
    rings = np.array([each.kind == "ring" for each in dims])[:, None]
    offset = np.where(rings, offset % sizes, offset)
    total = np.abs(offset).sum(axis=0)
    is_half, is_down = 2 * offset == sizes, (total - np.abs(offset)) // len(dims) % 2 == 1
    back = rings & ((2 * offset > sizes) | (is_half & is_down))
    offset = np.where(back, offset - sizes, offset)
    part_of = min(total % len(dims), _level_parts(np.abs(offset)), key=partial(_busiest, np.abs(offset)))
    longest = int(np.abs(offset).max(initial=0))
    moves: list[Row] = []
    for part in range(len(dims)):
        here, first = np.flatnonzero(part_of == part), 0
        at = src[here]
        for turn, k in enumerate((*range(part, len(dims)), *range(part))):
            size, stride = dims.sizes[k], dims.strides[k]
            digit, reach, way = begin[k, here], np.abs(offset[k, here]), np.sign(offset[k, here])
            most = int(reach.max(initial=0))
            for far in range(1, most + 1) if turn < number else [0]:
                for step in range(far or most):
                    goes = np.flatnonzero(reach == far if far else step < reach)
                    one, two = (
                        at[goes] + ((digit[goes] + way[goes] * s) % size - digit[goes]) * stride
                        for s in (step, step + 1)
                    )
                    order = lexsort((two, one))
                    waits = most - far if far else 0
                    moves.append((first + waits + step, here[goes[order]], one[order], two[order], False))
            first += longest
            at = at + ((digit + offset[k, here]) % size - digit) * stride
    return Moves.of(moves)


def _turns(num_dims: int) -> Ints:
    """Pass in which chunks that start with a dimension take another one, (start, dimension) array."""
    return (np.arange(num_dims) - np.arange(num_dims)[:, None]) % num_dims


def _busiest(hops: Ints, part_of: Ints) -> int:
    """Hops along the busiest dimension of each pass, summed over the passes.

    - `hops`: Hops of each chunk along each dimension, (num_dimensions, num_chunks).
    - `part_of`: Dimension with which each chunk starts, (num_chunks,).
    """
    load = np.zeros((len(hops), len(hops)), np.int64)
    for part, turns in enumerate(_turns(len(hops))):
        load[turns, range(len(hops))] += hops[:, part_of == part].sum(axis=1)
    return int(load.max(axis=1).sum())


def _level_parts(hops: Ints) -> Ints:
    """Dimension with which each chunk starts, such that each pass loads all dimensions about equally.

    Dimensions follow in cyclic order. Chunks with the same hops are alike, as on a torus, which looks the
    same from every rank.

    - `hops`: As in `_busiest`.
    """
    alike, which, counts = np.unique(hops, axis=1, return_inverse=True, return_counts=True)
    turns, every = _turns(len(hops)), range(len(hops))
    load, parts = np.zeros(turns.shape), np.zeros(len(counts), np.int64)
    for each in np.argsort(-alike.sum(axis=0) * counts, kind="stable"):
        added = alike[:, each] * counts[each]
        parts[each] = np.argmin(
            [((load[turn, every] + added) ** 2 - load[turn, every] ** 2).sum() for turn in turns]
        )
        load[turns[parts[each]], every] += added
    return parts[which.reshape(-1)]

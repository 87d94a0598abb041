"""Recursive doubling, swing and bine trees: in each step, ranks exchange all they hold with one partner.

Recursive halving is doubling in reversed time. In step s of recursive doubling, the partner is ``2**s`` ranks
away. In swing and bine trees it is ``1 - 2 + 4 - ... (-2)**s`` after an even rank, or before an odd rank.
These distances are a third shorter, and alternate between both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import gcd
from operator import itemgetter

import numpy as np

from taccl._internal.arguments import checked
from taccl._internal.arrays import lexsort
from taccl.baselines.chunking import (
    MOST_CUT,
    MOST_MERGED,
    cut_while_it_pays,
    held_at_start,
    or_whole_sums,
    require_no_derivations,
    run,
    sums_everywhere,
)
from taccl.baselines.forms import fastest_form
from taccl.baselines.moves import Flags, Ints, Moves, Row, Sends, is_destination, routed
from taccl.errors import CollectiveError
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.topology.recognise import grid_of
from taccl.topology.topology import Topology

#: Max chunks times ranks for which all chunks spread to all ranks, wanted there or not (5 us of CPU each).
MOST_SPREAD = 300_000
#: For every turn of a step, the partner of each rank; a rank has one partner in a turn.
Turns = list[list[int]]
#: For every step, its turns, in each of which a rank has one partner.
Partners = list[Turns]
#: Function (place, step, number of places on a ring) -> place of the partner.
Partner = Callable[[int, int, int], int]
#: Function (step, chunks, ranks, keeps) -> True for each chunk that its rank may keep or receive in a step.
#: `keeps`: True for chunks to keep after the step, False for chunks to receive. `ranks`: one rank per chunk.
Bound = Callable[[int, "Ints", "Ints", bool], "Flags"]


@checked
def recursive(problem: Problem, *, cut: bool = True) -> Schedule:
    """Recursive doubling or halving: log2(num_ranks) steps, each rank with one partner in each.

    Partners differ in one bit of their rank, near or far ones first. An allreduce is halving and doubling, or
    doubling alone, in which partners exchange their whole partial sums. The fastest form is returned, and its
    `producer` names it. Only the merging clauses of the sketch apply.

    A broadcast becomes a binomial tree, an alltoall a hypercube exchange.

    On a torus or a mesh of D dimensions, steps alternate between dimensions; each of D parts of the chunks
    starts with a different one. Partners are d hops away: 1, 2, 4, ... along each dimension. With merged
    sends, step s = 0, 1, ... of an allreduce of n bytes takes d (alpha + n beta / (D 2**(s + 1))). Its time
    is the sum over the steps of both phases.

    Parameters
    ----------
    problem, cut
        As in `ring`.

    Raises
    ------
    CollectiveError
        If the number of ranks is not a power of two, or the collective is a scan.
    TopologyError
        If no links lead from one rank to another.

    References
    ----------
    R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH",
    International Journal of High Performance Computing Applications 19 (2005).
    """
    _require_power_of_two(problem, baseline="recursive")
    return _in_both_orders(problem, lambda place, step, _: place ^ (1 << step), name="recursive", cut=cut)


@checked
def swing(problem: Problem, *, cut: bool = True) -> Schedule:
    """Schedule in which ranks exchange with log2(num_ranks) partners on alternate sides (Swing).

    Half of the chunks start with partners on one side, the others with partners on the other side. So both
    directions of a ring are used. On a torus or a mesh, steps alternate between dimensions, and two parts of
    the chunks start with each dimension. Elsewhere, nodes of equal size are the rows of a grid. Chunks spread
    to far partners first, and sums come from near partners first, because near partners exchange the most. An
    allreduce may instead exchange its partial sums unscattered; the faster form is returned. Only the merging
    clauses of the sketch apply.

    On a torus of D dimensions, partners are d hops away: 1, 1, 3, 5, 11, ... along each dimension. With
    merged sends, step s = 0, 1, ... of an allreduce of n bytes takes at most
    d (alpha + n beta / (2 D 2**(s + 1))). Its time is the sum over the steps of both phases. If whole sums
    are exchanged, a step takes d (alpha + n beta / (2 D)), and there is only one phase.

    Parameters
    ----------
    problem, cut
        As in `ring`; chunks are cut so that no part is empty.

    Raises
    ------
    CollectiveError, TopologyError
        As in `recursive`.

    References
    ----------
    D. De Sensi, T. Bonato, D. Saam and T. Hoefler, "Swing: short-cutting rings for higher bandwidth
    allreduce", NSDI 2024, arXiv:2401.09356.
    """
    _require_power_of_two(problem, baseline="swing")
    parts = _parts(_grid(problem.topology), *_SIDES)

    def swing_schedule(problem: Problem) -> Schedule:
        return fastest_form(problem, _exchanges(problem, {"swing": [steps[::-1] for steps in parts]}))

    found = cut_while_it_pays(problem, swing_schedule, name="swing", cut=cut, parts=len(parts), merges=True)
    return _or_doubling(found, problem, {"swing doubling": parts}, cut=cut)


@checked
def bine(problem: Problem, *, cut: bool = True) -> Schedule:
    """Schedule along bine trees: binomial trees with short edges, from negabinary numbers.

    The trees of all roots together are exchanges with the partners of `swing`, near or far ones first. On a
    torus or a mesh, parts of the chunks and the time are as in `swing`. An allreduce may also exchange whole
    partial sums, as in `recursive`. The fastest form is returned, and its `producer` names it. Only the
    merging clauses of the sketch apply.

    Parameters
    ----------
    problem, cut
        As in `ring`.

    Raises
    ------
    CollectiveError, TopologyError
        As in `recursive`.

    References
    ----------
    D. De Sensi et al., "Bine trees: enhancing collective operations by optimizing communication locality",
    SC 2025, arXiv:2508.17311.
    """
    _require_power_of_two(problem, baseline="bine")
    return _in_both_orders(problem, *_SIDES, name="bine", cut=cut)


def exchange(
    problem: Problem, parts: Sequence[Partners], *, by_rank: bool = False, bound: Bound | None = None
) -> Sends:
    """Sends in which partners exchange all they hold; each part of the chunks has its own steps.

    - `parts`: Partners of each part, step by step.
    - `by_rank`: True if the part of a chunk depends on its rank, too, not only on its index among the chunks
      of this rank. Parts are then about equal among neighbours, even with one chunk per rank.
    - `bound`: As in `swaps`.
    """
    return run(problem, partial(_spread, parts=parts, by_rank=by_rank, bound=bound))


def _exchanges(problem: Problem, forms: Mapping[str, Sequence[Partners]]) -> Iterator[tuple[str, Sends]]:
    """Yield (name, sends) of exchanges, in two forms if equal parts of each rank's chunks do not suffice.

    - `forms`: {name: partners of each part of the chunks}.
    """
    differ = not is_destination(problem).all()
    for name, parts in forms.items():
        yield name, exchange(problem, parts)
        if differ or problem.collective.num_chunks % (problem.topology.num_ranks * len(parts)):
            yield name, exchange(problem, parts, by_rank=True)


def doubling(problem: Problem, parts: Sequence[Partners]) -> Sends:
    """Sends of an allreduce in which partners exchange all of their partial sums."""
    ranks = np.arange(problem.topology.num_ranks)
    number = np.arange(problem.collective.num_chunks)  # roots do not matter, as every rank sums every chunk
    carries: list[tuple[int, Ints]] = [(0, np.zeros(0, np.int64))]
    sums: dict[tuple[int, ...], int] = {}
    moves: list[Row] = []
    for part, steps in enumerate(parts):
        chunks = np.flatnonzero(number % len(parts) == part)
        summed: list[tuple[int, ...]] = [(rank,) for rank in ranks.tolist()]
        for step, turns in enumerate(steps):
            held = np.array([sums.setdefault(each, len(sums)) for each in summed])
            for partners in turns:
                moves.append((step, chunks, ranks[:, None], np.array(partners)[:, None], True))
                carries.append((step, np.repeat(held, len(chunks))))
            summed = after_exchange(summed, turns)
    carries.sort(key=itemgetter(0))  # same order as `Moves.of`
    named = np.concatenate([held for _, held in carries])
    return routed(problem, Moves.of(moves), sums=list(sums), carries=named)


def after_exchange(summed: Sequence[tuple[int, ...]], turns: Turns) -> list[tuple[int, ...]]:
    """Ranks whose contributions each rank has added up after the exchanges of one step."""
    return [
        tuple(sorted((*ranks, *(more for turn in turns for more in summed[turn[rank]]))))
        for rank, ranks in enumerate(summed)
    ]


def swing_partner(place: int, step: int, size: int, *, mirrored: bool = False) -> int:
    """Index of the partner with which index `place` of a ring exchanges; `mirrored` swaps even and odd."""
    distance: int = sum((-2) ** i for i in range(step + 1))
    return (place + (distance if place % 2 == mirrored else -distance)) % size


#: Two partner functions: an even place's first partner is the next place on the ring, or the previous one.
_SIDES: tuple[Partner, ...] = (swing_partner, partial(swing_partner, mirrored=True))


def _require_power_of_two(problem: Problem, *, baseline: str) -> None:
    """Raise `CollectiveError` for a number of ranks that is no power of two, or derived chunks (scan)."""
    require_no_derivations(problem, baseline=baseline)
    num_ranks = problem.topology.num_ranks
    if num_ranks & (num_ranks - 1):
        raise CollectiveError(
            f"{baseline} needs a power of two, but found {num_ranks} ranks; use ring or hierarchical",
            where="baseline",
        )


def _in_both_orders(problem: Problem, *partners: Partner, name: str, cut: bool) -> Schedule:
    """Fastest schedule of exchanges in two orders: near partners first, or far partners first.

    For an allreduce, exchanges of whole partial sums are tried in both orders, too.
    """
    dims, size = grid_of(problem.topology), problem.topology.num_ranks
    if dims is None:
        parts = _parts(np.arange(size)[None], partners[0])
    else:
        parts = _parts(np.arange(size).reshape(dims.sizes[::-1]), *partners)

    orders = {"near partners first": parts, "far partners first": [steps[::-1] for steps in parts]}
    forms = {f"{name} ({text})": each for text, each in orders.items()}

    def made(problem: Problem) -> Schedule:
        return fastest_form(problem, _exchanges(problem, forms))

    most = MOST_CUT if sums_everywhere(problem) else MOST_MERGED
    found = cut_while_it_pays(
        problem, made, name=name, cut=cut, parts=max(2, len(parts)), merges=True, most_merged=most
    )
    whole = {f"{name} doubling ({text})": each for text, each in orders.items()}
    return _or_doubling(found, problem, whole, cut=cut)


def _or_doubling(
    found: Schedule, problem: Problem, forms: Mapping[str, Sequence[Partners]], *, cut: bool
) -> Schedule:
    """The faster of `found` and a schedule in which partners exchange partial sums unscattered.

    - `forms`: {name: partners of each part of the chunks}.
    """
    for name, parts in forms.items():
        # Parts are formed from the chunks of all roots together, so they are equal even with few per root.
        fewest = len(parts) // gcd(len(parts), problem.topology.num_ranks)
        sends = partial(doubling, parts=parts)
        found = or_whole_sums(found, problem, sends, name=name, fewest=fewest, cut=cut)
    return found


def _spread(problem: Problem, *, parts: Sequence[Partners], by_rank: bool, bound: Bound | None) -> Sends:
    holder, chunk, place = held_at_start(problem)
    part_of = (_weighted_bits(holder) + _weighted_bits(place) if by_rank else place) % len(parts)
    moves: list[Row] = []
    for part, steps in enumerate(parts):
        here = part_of == part
        moves += swaps(holder[here], chunk[here], steps, bound or _bound(problem, steps))
    return routed(problem, Moves.of(moves))


def _bound(problem: Problem, steps: Partners) -> Bound | None:
    """Rule that chunks go to, and stay at, ranks from which later steps reach a destination.

    None if every rank wants every chunk, and for few chunks. Then all chunks spread to all ranks, and
    needless moves are removed later, which is slow. But chunks that pass a destination may arrive earlier.
    """
    ends = is_destination(problem)
    if ends.all() or problem.collective.num_chunks * ends.shape[1] <= MOST_SPREAD:
        return None
    reached = np.eye(ends.shape[1], dtype=np.float32)  # from each rank (row), by the later steps
    leads: list[Flags] = []
    for turns in reversed(steps):
        leads.append(ends.astype(np.float32) @ reached.T > 0)
        reached = np.maximum.reduce([reached, *(reached[partners] for partners in turns)])
    of_chunk = problem.collective.destination_sets.of_chunk

    def leads_on(step: int, chunks: Ints, ranks: Ints, _keeps: bool) -> Flags:
        return leads[-1 - step][of_chunk[chunks], ranks]

    return leads_on


def _weighted_bits(number: Ints) -> Ints:
    """Sum of the positions of a number's bits that are 1, from 1 on.

    Modulo the number of parts, this divides the ranks of any group with some equal bits about equally.
    """
    bits = number[:, None] >> np.arange(1 + int(number.max(initial=0)).bit_length()) & 1
    found: Ints = bits @ np.arange(1, 1 + bits.shape[1])
    return found


def swaps(
    holder: Ints, chunk: Ints, steps: Partners, bound: Bound | None = None
) -> Iterator[tuple[int, Ints, Ints, Ints, bool]]:
    """Yield moves of exchanges: in each step every rank sends all chunks that it holds, oldest first.

    - `holder`, `chunk`, (num_held,): Chunks at the start, and their ranks in ascending order.
    - `bound`: Restricts the chunks that are sent and kept; by default all are.
    """
    for step, turns in enumerate(steps):
        held = [(holder, chunk)]
        for partners in turns:
            there = np.array(partners)[holder]
            goes = np.full(len(chunk), True) if bound is None else bound(step, chunk, there, False)
            yield step, chunk[goes], holder[goes], there[goes], False
            held.append((there[goes], chunk[goes]))
        if bound is not None:
            keeps = bound(step, chunk, holder, True)
            held[0] = holder[keeps], chunk[keeps]
        holder, chunk = (np.concatenate(each) for each in zip(*held, strict=True))
        order = lexsort((holder,))
        holder, chunk = holder[order], chunk[order]


def _grid(topology: Topology) -> Ints:
    """Ranks as an array: one axis per dimension of a torus or mesh; else (node, local rank) or one row."""
    nodes, dims = topology.ranks_of_node, grid_of(topology)
    if dims is not None:
        return np.arange(topology.num_ranks).reshape(dims.sizes[::-1])
    is_even = len({len(ranks) for ranks in nodes}) == 1
    return np.array(nodes if is_even else [range(topology.num_ranks)])


def _parts(grid: Ints, *partners: Partner) -> list[Partners]:
    """Partners of each part of the chunks: one part for each first dimension and each partner function.

    Steps alternate among the dimensions in cyclic order, from the part's first dimension on.
    """
    axes = [axis for axis in reversed(range(grid.ndim)) if grid.shape[axis] > 1] or [0]
    parts: list[Partners] = []
    for first in range(len(axes)):
        by_turns = [*axes[first:], *axes[:first]]
        steps = sorted(
            (step, turn)
            for turn, axis in enumerate(by_turns)
            for step in range(grid.shape[axis].bit_length() - 1)
        )
        for partner in partners:
            parts.append([])
            for step, turn in steps:
                size = grid.shape[by_turns[turn]]
                places = [partner(place, step, size) for place in range(size)]
                there = np.empty(grid.size, np.int64)
                there[grid] = grid.take(places, axis=by_turns[turn])
                parts[-1].append([there.tolist()])
    return parts

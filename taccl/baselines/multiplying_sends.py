"""Sends of a plan of recursive multiplying, step by step."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.arrays import lexsort
from taccl.baselines.chunking import held_at_start, run
from taccl.baselines.moves import Moves, routed
from taccl.baselines.multiplying_batches import places_of
from taccl.baselines.multiplying_plans import BY_NODE, Digit
from taccl.baselines.recursive import after_exchange, exchange, swaps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.baselines.moves import Flags, Ints, Row, Sends
    from taccl.baselines.multiplying_plans import StepPlan
    from taccl.baselines.multiplying_times import Grid, StepTimes
    from taccl.problem.problem import Problem


def sends_of(times: StepTimes, plan: StepPlan, pieces: int) -> Sends:
    """Sends of all steps of a plan; messages of sums are cut into pieces, and all first pieces go first."""
    digits = plan.parts[0].scattered[::-1]
    if plan.how == BY_NODE:
        return run(times.problem, partial(_node_by_node, times=times, plan=plan))
    if times.sums and times.grid.straight not in digits:
        return _summed(times, plan, pieces)
    turns = [times.grid.turns(digit) for digit in digits]
    bound = partial(_is_bound, times, digits) if times.to_one and not times.sums else None
    return exchange(times.problem, [turns], bound=bound)


class _Summed:
    """Contributions that each rank has added up, as sorted tuples of ranks; parts with equal steps share one.

    - `of_rank`: These tuples, by rank.
    """

    def __init__(self, of_rank: Sequence[tuple[int, ...]]) -> None:
        self.of_rank = of_rank
        self._after: dict[Digit, _Summed] = {}
        self._numbers: Ints | None = None

    def after(self, grid: Grid, digit: Digit) -> _Summed:
        """The contributions after a step in which each rank adds up those of its group."""
        if digit not in self._after:
            self._after[digit] = _Summed(after_exchange(self.of_rank, grid.turns(digit)))
        return self._after[digit]

    def numbers(self, sums: dict[tuple[int, ...], int]) -> Ints:
        """Number of each rank's sum in `sums`, to which new ones are added, (num_ranks,)."""
        if self._numbers is None:
            self._numbers = np.array([sums.setdefault(each, len(sums)) for each in self.of_rank])
        return self._numbers


def _summed(times: StepTimes, plan: StepPlan, pieces: int) -> Sends:
    """Sends of sums that name their contributions: in a step, each rank adds up the sums of its group."""
    grid, num_parts, part_of = times.grid, len(plan.parts), times.part_of_chunks(plan)
    own = _Summed(tuple((rank,) for rank in range(len(grid.place))))
    summed = [own] * num_parts
    done: list[tuple[Digit, ...]] = [()] * num_parts
    sums: dict[tuple[int, ...], int] = {}
    moves: list[Row] = []
    carries = [np.zeros(0, np.int64)]
    alone = summed  # the sums before the last step inside nodes, of which own chunks come later
    for step, (verb, digit, parts) in enumerate(times.timeline(plan)[1]):
        for part in parts if verb == "scatter" and digit.own <= 0 else ():
            done[part] = (*done[part], digit)
        if digit.pieces > 1 or digit.own:  # such a part takes its steps alone
            holder, chunk, piece_of = _in_pieces(times, plan, parts[0], verb, digit)
        else:
            holder, chunk = _holders(times, plan, {part: done[part] for part in parts})
            piece_of = (np.arange(len(holder)) - np.searchsorted(holder, holder)) % pieces
        named = alone if digit.own > 0 and verb == "scatter" else summed
        number = np.stack([some.numbers(sums) for some in named])
        for piece in range(max(pieces, digit.pieces)):
            at, some = holder[piece_of == piece], chunk[piece_of == piece]
            for turn in grid.turns(digit):
                # When sums are scattered, a rank sends the chunks that its partner keeps.
                src = np.argsort(turn)[at] if verb == "scatter" else at
                order = lexsort((src,))
                src, sent = src[order], some[order]
                moves.append((step, sent, src, np.array(turn)[src], True))
                carries.append(number[part_of[sent], src])
        for part in parts if digit.own <= 0 else ():
            if verb == "gather":
                done[part] = done[part][:-1]
            else:
                alone = [*alone[:part], summed[part], *alone[part + 1 :]] if digit.own else alone
                summed[part] = summed[part].after(grid, digit)
    return routed(times.problem, Moves.of(moves), sums=list(sums), carries=np.concatenate(carries))


def _holders(times: StepTimes, plan: StepPlan, done: dict[int, tuple[Digit, ...]]) -> tuple[Ints, Ints]:
    """Columns (rank, chunk) of all pairs in which the rank makes the chunk's sum, in ascending order of rank.

    - `done`: {part of the chunks: digits along which they are scattered}; other parts are left out.
    """
    rows = []
    for part, digits in done.items():
        chunks, number = times.dealt(part, plan), times.grid.numbers(digits)
        value = np.arange(len(chunks)) % math.prod(digit.base for digit in digits)
        if times.to_one:
            value = number[_targets(times.problem)[chunks]]
        holder, place = np.nonzero(number[:, None] == value)
        rows.append((holder, chunks[place]))
    holder, chunk = (np.concatenate(each) for each in zip(*rows, strict=True))
    order = lexsort((holder,))
    return holder[order], chunk[order]


def _in_pieces(
    times: StepTimes, plan: StepPlan, part: int, verb: str, digit: Digit
) -> tuple[Ints, Ints, Ints]:
    """Columns (rank, chunk, piece of its message) of what a step moves, for a digit with pieces or `own`.

    Ranks and chunks are as in `_holders`. Pieces follow the turns of the part's step between nodes.
    """
    scattered = plan.parts[part].scattered
    across = 1 + next(k for k, each in enumerate(scattered) if each.pieces > 1 or each.own)
    holder, chunk = _holders(times, plan, {part: scattered[:across]})
    base = scattered[across].base
    there = (chunk - times.dealt(part, plan)[0]) // math.prod(each.base for each in scattered[:across]) % base
    here = times.grid.numbers(scattered[across : across + 1])[holder]
    turn = (there - here if verb == "scatter" else here - there) % base
    if digit.own:
        kept = (turn == 0) == (digit.own > 0)
        holder, chunk, turn = holder[kept], chunk[kept], turn[kept]
    first = int(
        digit.own < 0 or (verb == "scatter" and not digit.own)
    )  # the rank itself is last if scattered
    found: Ints = (turn - first) % base * digit.pieces // (base - (digit.own < 0))
    return holder, chunk, found


def _targets(problem: Problem) -> Ints:
    """First destination of each chunk, (num_chunks,)."""
    ends = problem.collective.destination_sets
    return np.array([ranks[0] for ranks in ends.sets])[ends.of_chunk]


def _is_bound(
    times: StepTimes, digits: Sequence[Digit], step: int, chunk: Ints, rank: Ints, keeps: bool
) -> Flags:
    """True if a chunk's destination agrees with the rank in the digits of all steps so far, (num_chunks,).

    If the first step sends directly to all ranks of other nodes, a rank receives only chunks of which it is
    the destination. After that step it still holds its own chunks whose destinations are in its node.

    - `rank`: Receiver of each chunk, or its holder if `keeps`.
    - `keeps`: True to select the chunks that their holders keep after the step, rather than those to send.
    """
    done, (num_nodes, size) = digits[: step + 1], times.grid.ranks.shape
    if not done[0].weight:
        done = (Digit(True, num_nodes, 1), *done[1:])
        if not (step or keeps):
            done = (*done, Digit(False, size, 1))
    number = times.grid.numbers(done)
    same: Flags = number[_targets(times.problem)[chunk]] == number[rank]
    return same


def _node_by_node(problem: Problem, *, times: StepTimes, plan: StepPlan) -> Sends:
    """Sends in which chunks from other nodes are gathered in the receiving node, but not sent on from it.

    The gather of one node's chunks overlaps with the crossing of the next node's.
    """
    holder, chunk, place = held_at_start(problem)
    num_each = -(-len(chunk) // len(times.grid.place))
    place = place * num_each // np.bincount(holder)[holder]  # ranks may hold different numbers of chunks
    moves: list[Row] = []
    every = [*enumerate(times.timeline(plan)[1])]
    for number, (part, places) in enumerate(zip(plan.parts, places_of(plan, num_each), strict=True)):
        steps = [(step, each) for step, each in every if number in each.parts]
        goes = np.isin(place, places.get(0, ()))
        held = [(holder[goes], chunk[goes])]
        for digit in part.summed:
            step, _ = steps.pop(0)
            for turn, partners in zip(digit.turns, times.grid.turns(digit), strict=True):
                goes = np.isin(place, places[turn])
                there = np.array(partners)[holder[goes]]
                moves.append((step, chunk[goes], holder[goes], there, False))
                held.append((there, chunk[goes]))
        ranks, chunks = (np.concatenate(each) for each in zip(*held, strict=True))
        order = lexsort((ranks,))
        turns = [times.grid.turns(each.digit) for _, each in steps]
        for index, sent, src, dst, adds in swaps(ranks[order], chunks[order], turns):
            moves.append((steps[index][0], sent, src, dst, adds))
    return routed(problem, Moves.of(moves))

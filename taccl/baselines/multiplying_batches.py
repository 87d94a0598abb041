"""Batches of crossings: plans *node by node* in which ranks forward chunks of several nodes in one message.

A rank receives the chunks of the other nodes one node after another, and forwards them inside its node. If
they wait for a port, those of several nodes form a *batch*, which pays its latency once. Small batches come
first, so that ports are used early. The chunks of a node may also cross in several parts. Some parts are
gathered before they cross: they use links between nodes while ports inside nodes are the bottleneck.

Local search over the batches, their order and their steps inside nodes minimises the estimated finish, as
for mixed plans (`taccl.baselines.multiplying_mix_times`). If time is left, it restarts from random changes of
the best plan: "Iterated local search" (Lourenço, Martin and Stützle, 2003).
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import islice, pairwise, product
from operator import itemgetter
from random import Random
from typing import TYPE_CHECKING

from taccl._internal.deadline import NEVER
from taccl.baselines.multiplying_mix_times import MOST_RESOURCES, MixTimes
from taccl.baselines.multiplying_plans import BY_NODE, StepPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taccl._internal.deadline import Deadline
    from taccl.baselines.multiplying_mix_times import Mix, TimedPart
    from taccl.baselines.multiplying_plans import Digit
    from taccl.baselines.multiplying_times import StepTimes

#: Max number of nodes for which batches are searched; the time of the search grows with it.
_MOST_NODES = 16
#: `_STARTS`: number of plans from which local search starts, the best by estimate.
#: `_PATIENCE`: number of successive moves without gain after which a search ends.
#: `_CHANGES`, `_CHANGED_PATIENCE`: random changes before a further search, and its patience.
#: `_MOST_MOVES`: max moves of all further searches, of up to 0.15 ms of CPU each; they gain up to 1 %.
_STARTS, _PATIENCE = 3, 600
_CHANGES, _CHANGED_PATIENCE, _MOST_MOVES = 3, 300, 20_000
#: Numbers of pieces into which the search cuts the chunks of a rank at its start.
_PIECES = (1, 2, 4, 8)


def in_batches(
    times: StepTimes, plans: Sequence[StepPlan], start: StepPlan | None = None, *, until: Deadline = NEVER
) -> list[StepPlan]:
    """[plan in batches with the least estimated finish], searched from plans node by node.

    Empty if there are none of these, one rank per node, too many nodes, or too many resources of different
    loads.

    - `start`: Plan node by node that a further search improves; default: a new search.
    - `until`: Deadline after which the search ends.
    """
    num_nodes, num_local = times.grid.ranks.shape
    size = -(-times.problem.collective.num_chunks // times.grid.ranks.size)
    plans = [plan for plan in plans if plan.how == BY_NODE]
    if not plans or num_local < 2 or num_nodes > _MOST_NODES:
        return []
    mixes = MixTimes(times, [part for plan in plans for part in plan.parts], spreads=True)
    if len(mixes.resources) > MOST_RESOURCES:
        return []
    # A further search draws other random numbers than the first one.
    search = _Search(mixes, [plan.parts[0].scattered for plan in plans], seed=int(start is not None))
    if start is not None:
        sizes = start.sizes or (size,) * len(start.parts)
        mix = [mixes.timed(*each) for each in zip(start.parts, sizes, strict=True)]
        return [_plan_of(search.iterated(mix, until))]
    starts = [list(mix) for mix in dict.fromkeys(mix for plan in plans for mix in _starts(mixes, plan, size))]
    starts.sort(key=mixes.finish)
    every = (search.improved(mix, _PATIENCE, until) for mix in starts[:_STARTS])
    ticks, mix = min(every, key=itemgetter(0))
    return [] if ticks == math.inf else [_plan_of(mix)]


def _plan_of(mix: Mix) -> StepPlan:
    return StepPlan(tuple(each.part for each in mix), BY_NODE, tuple(each.size for each in mix))


def _starts(mixes: MixTimes, plan: StepPlan, size: int) -> Iterator[tuple[TimedPart, ...]]:
    """Yield plans from which search may start: batches of one node or all others, and of equal pieces.

    - `size`: Number of chunks of each rank.
    """
    *crossings, own = plan.parts
    (first,) = crossings[0].summed
    together = crossings[0]._replace(summed=(first._replace(turns=tuple(range(1, first.base))),))
    for some, pieces in product((crossings, [together]), _PIECES):
        sizes = [b - a for a, b in pairwise(size * k // pieces for k in range(pieces + 1)) if b > a]
        yield *(mixes.timed(part, each) for each in sizes for part in some), mixes.timed(own, size)


def places_of(plan: StepPlan, num_each: int) -> list[dict[int, list[int]]]:
    """{turn: indices of the chunks of each rank that cross in it} of each part of a plan node by node.

    Turn 0 stands for the gather of a rank's own chunks in its node.

    - `num_each`: Number of chunks of each rank.
    """
    sizes, begin = plan.sizes or (num_each,) * len(plan.parts), 0
    found: list[dict[int, list[int]]] = []
    direct: dict[int, set[int]] = defaultdict(set)
    for part, size in zip(plan.parts, sizes, strict=True):
        found.append({})
        if not part.summed:
            found[-1][0] = [*range(begin, begin + size)]
            begin += size
        for turn in (turn for digit in part.after for turn in digit.turns):
            direct[turn].update(found[-1][0])
    left = {turn: iter([k for k in range(num_each) if k not in direct[turn]]) for turn in _turns_of(plan)}
    for places, part, size in zip(found, plan.parts, sizes, strict=True):
        places |= {turn: [*islice(left[turn], size)] for digit in part.summed for turn in digit.turns}
    return found


def _turns_of(plan: StepPlan) -> set[int]:
    return {turn for part in plan.parts for digit in part.summed for turn in digit.turns}


class _Search:
    """Local search over plans in batches.

    - `inside`: Digits of the steps inside nodes that a batch may take.
    - `seed`: Seed of the random numbers.
    - `moves`: Number of moves so far.
    """

    def __init__(self, mixes: MixTimes, inside: Sequence[tuple[Digit, ...]], *, seed: int) -> None:
        self._mixes, self._inside, self._random, self.moves = mixes, inside, Random(seed), 0

    def iterated(self, mix: Mix, until: Deadline) -> Mix:
        """Improve a plan after random changes, until a deadline or `_MOST_MOVES` moves."""
        ticks = self._mixes.finish(mix)
        while self.moves < _MOST_MOVES and not until.has_passed:
            changed = mix
            for _ in range(_CHANGES):
                changed = self._changed(changed)
            found_ticks, found = self.improved(changed, _CHANGED_PATIENCE, until)
            if found_ticks <= ticks:
                ticks, mix = found_ticks, found
        return mix

    def improved(self, mix: Mix, patience: int, until: Deadline) -> tuple[float, Mix]:
        """Improve a plan until `patience` moves gain nothing, or a deadline; return (ticks, plan)."""
        ticks, stalled = self._mixes.finish(mix), 0
        while stalled < patience and not until.has_passed:
            self.moves += 1
            found = self._changed(mix)
            found_ticks = self._mixes.finish(found, ticks)
            stalled = 0 if found_ticks < ticks else stalled + 1
            if found_ticks <= ticks:
                mix, ticks = found, found_ticks
        return ticks, mix

    def _changed(self, mix: Mix) -> Mix:
        """Random neighbour: a batch takes other steps or another place, is cut, or is joined with another."""
        random, found = self._random, list(mix)
        here, there = (random.randrange(len(mix)) for _ in range(2))
        kind = random.random()
        if kind < 0.15:
            part = mix[here].part._replace(scattered=random.choice(self._inside))
            found[here] = self._mixes.timed(part, mix[here].size)
        elif kind < 0.35:
            found.insert(there, found.pop(here))
        elif kind < 0.55:
            found[here : here + 1] = self._cut(mix[here])
        elif kind < 0.65:
            found = self._other_order(mix, here, there)
        elif here != there and (joined := self._joined(mix[here], mix[there])) is not None:
            del found[there]
            here -= there < here
            found[here : here + 1] = self._cut(joined) if random.random() < 0.5 else [joined]
        return found

    def _other_order(self, mix: Mix, here: int, there: int) -> Mix:
        """Let some chunks of batch `here` cross after the gather of own chunks `there`, or undo this.

        Own chunks are gathered anyway, so the batch saves its steps inside the nodes that it enters.
        """
        timed, batch, own = self._mixes.timed, mix[here], mix[there]
        found: list[TimedPart | None] = list(mix)
        if batch.part.after:
            crossing = batch.part._replace(summed=batch.part.after, after=())
            found[here] = timed(batch.part._replace(after=()), batch.size)
            found.insert(there, timed(crossing, batch.size))
        elif batch.part.summed and not (own.part.summed or own.part.after):
            size = self._random.randint(1, min(batch.size, own.size))
            for place, each in ((here, batch), (there, own)):
                found[place] = timed(each.part, each.size - size) if each.size > size else None
            found.insert(min(here, there), timed(own.part._replace(after=batch.part.summed), size))
        return [each for each in found if each is not None]

    def _cut(self, batch: TimedPart) -> Mix:
        """Two batches at a random cut between nodes or between chunks; the given one if it has no cut."""
        (part, size), timed = (batch.part, batch.size), self._mixes.timed
        turns = part.summed[0].turns if part.summed else ()
        cut = self._random.randrange(1, size) if part.summed and size > 1 else 0
        if len(turns) > 1 and (not cut or self._random.random() < 0.5):
            first = self._random.randrange(1, len(turns))
            digits = (part.summed[0]._replace(turns=some) for some in (turns[:first], turns[first:]))
            return [timed(part._replace(summed=(each,)), size) for each in digits]
        return [timed(part, cut), timed(part, size - cut)] if cut else [batch]

    def _joined(self, first: TimedPart, second: TimedPart) -> TimedPart | None:
        """Merge two batches of the same nodes, or of disjoint nodes with equally many chunks; else None."""
        if (first.part.summed, first.part.after) == (second.part.summed, second.part.after):
            return self._mixes.timed(first.part, first.size + second.size)
        if not (first.part.summed and second.part.summed):
            return None
        (one,), (two,) = first.part.summed, second.part.summed
        if first.size != second.size or {*one.turns} & {*two.turns}:
            return None
        digit = one._replace(turns=tuple(sorted((*one.turns, *two.turns))))
        return self._mixes.timed(first.part._replace(summed=(digit,)), first.size)

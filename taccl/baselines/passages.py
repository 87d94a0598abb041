"""Chunks along the dimensions of a network, each in an order of its own: what is busy when.

A chunk is scattered over the ranks of one dimension after another, being summed, or gathered along them in
the opposite order; in an alltoall it is exchanged along each. Chunks along one dimension together are a
passage, in which all ranks do the same. Passages are put on their dimensions by a list scheduler. Gathering
is a reduction turned round in time, so that only one of the two is planned.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.baselines.forms import best_form
from taccl.errors import CollectiveError
from taccl.schedule.implicit import IMPLICIT_COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.baselines.forms import Pace, Timed
    from taccl.topology.products import Dimensions

__all__ = ["NUM_CHUNKS", "Passage", "Plan", "plan_along"]

#: Into how many parts a rank's data is cut where nobody says: our choice.
NUM_CHUNKS = 64
#: So many chunks may go along a dimension together, where few pieces leave a ring idle; each is tried.
_TOGETHER = (1, 4, 16)
#: No more go together once these would save less than this part.
_SAVES = 0.02
#: A plan this near to the busiest dimension is not improved; others for so many passages put.
_NEAR, _WORK = 1.01, 100_000


class Passage(NamedTuple):
    """Chunks of one order along one of its dimensions, as they are reduced or exchanged; begin in ticks."""

    chunks: tuple[int, ...]
    order: tuple[int, ...]
    place: int
    timed: Timed
    begin: int = 0

    @property
    def dimension(self) -> int:
        """The dimension along which the chunks go."""
        return self.order[self.place]


@dataclass(frozen=True, eq=False)
class Plan:
    """When chunks pass along each dimension.

    Parameters
    ----------
    passages : tuple of Passage
        Of an allgather, those of the reduction that it is, turned round.
    half_ticks : int
        When the last of them ends.
    """

    dims: Dimensions
    collective: str
    paces: tuple[Pace, ...]
    num_chunks: int
    passages: tuple[Passage, ...]
    half_ticks: int

    @property
    def finish_ticks(self) -> int:
        """When the last piece arrives: a sum over all ranks is a reduction, and the same turned round."""
        return self.half_ticks * (2 if self.collective == "allreduce" else 1)


def plan_along(
    dims: Dimensions, collective: str, orders: Sequence[Sequence[int]], paces: Sequence[Pace]
) -> Plan:
    """Passages of chunks along dimensions: each as early as its chunks and its dimension let it.

    Where a dimension is free, the earliest chunk in some sequence goes first, which is improved where the
    busiest dimension is often idle.

    Parameters
    ----------
    collective : str
        One of `IMPLICIT_COLLECTIVES`.
    orders : sequence of sequence of int
        Of every chunk the dimensions, in the order in which a reduction takes them, or an alltoall.
    paces : sequence of Pace
        Of every dimension.
    """
    if collective not in IMPLICIT_COLLECTIVES:
        raise CollectiveError(
            f"found {collective}; expected one of {', '.join(IMPLICIT_COLLECTIVES)}", where="dimensions"
        )
    exchange = collective == "alltoall"
    if exchange and not dims.is_regular:
        raise CollectiveError(
            "found a line, along which an alltoall has no fixed steps; expected rings, switches and fully "
            "connected groups: synthesize it",
            where=dims.host.name,
        )
    forms = _Forms(dims, tuple(paces), exchange, {})
    known = [tuple(order) for order in orders]
    half, begins, jobs = min((_first(forms, known, most) for most in _TOGETHER), key=lambda each: each[0])
    if half > _NEAR * jobs.busiest:
        half, begins = _improve(jobs, len(known), half, begins)
    passages = zip(jobs.passages, begins, strict=True)
    put = tuple(each._replace(begin=begin) for each, begin in passages)
    return Plan(dims, collective, tuple(paces), len(orders), put, half)


@dataclass(frozen=True, slots=True)
class _Forms:
    """How the ranks of a dimension do their part of a passage, by what they pass on."""

    dims: Dimensions
    paces: tuple[Pace, ...]
    exchange: bool
    known: dict[tuple[int, int], Timed]

    def pieces(self, order: tuple[int, ...], place: int) -> int:
        """As many go alike as there are ranks along the dimensions done before, or all others."""
        sizes = self.dims.sizes
        if self.exchange:
            return self.dims.num_ranks // sizes[order[place]]
        return prod(sizes[k] for k in order[place + 1 :])

    def timed(self, dimension: int, num_pieces: int) -> Timed:
        """The best form for so many pieces."""
        if (dimension, num_pieces) not in self.known:
            self.known[dimension, num_pieces] = best_form(
                self.dims.dims[dimension], num_pieces, self.paces[dimension], exchange=self.exchange
            )
        return self.known[dimension, num_pieces]

    def together(self, dimension: int, pieces: int, least: int, most: int) -> int:
        """How many chunks go together: more, for as long as a dimension is idle without."""
        if not self.timed(dimension, pieces).form.waits:
            return least
        goal = (1 + _SAVES) * self.timed(dimension, pieces * most).busy / most
        while least < most and self.timed(dimension, pieces * least).busy > goal * least:
            least *= 2
        return least


class _Jobs(NamedTuple):
    """Passages, the dimension of each, for how long that is busy, and the passage that comes after each."""

    passages: list[Passage]
    dimension: list[int]
    busy: list[int]
    span: list[int]
    after: list[int]  # -1 of the last of its chunks
    waits: list[int]  # for so many passages before

    @property
    def busiest(self) -> int:
        """How long the busiest dimension is busy altogether."""
        return int(np.bincount(self.dimension, weights=self.busy).max())


def _first(forms: _Forms, orders: Sequence[tuple[int, ...]], most: int) -> tuple[int, list[int], _Jobs]:
    """When all have ended, when each begins, and the passages, at most so many chunks together.

    Those of earlier chunks go first, or those with the most still to do; whichever ends sooner.
    """
    jobs = _join(forms, orders, most)
    left = list(jobs.span)
    for number in sorted(range(len(left)), key=lambda n: -jobs.passages[n].place):
        if jobs.after[number] >= 0:
            left[number] += left[jobs.after[number]]
    rules = [each.chunks[0] for each in jobs.passages], [-each for each in left]
    half, begins = min((_put(jobs, urgency) for urgency in rules), key=lambda each: each[0])
    return half, begins, jobs


def _join(forms: _Forms, orders: Sequence[tuple[int, ...]], most: int) -> _Jobs:
    """Passages of the chunks of every order, at most so many together."""
    chunks_of: dict[tuple[int, ...], list[int]] = {}
    for chunk, order in enumerate(orders):
        chunks_of.setdefault(order, []).append(chunk)
    jobs = _Jobs([], [], [], [], [], [])
    for order, chunks in chunks_of.items():
        before: dict[int, int] = {}
        together = 1
        for place, dimension in enumerate(order):
            pieces = forms.pieces(order, place)
            together = forms.together(dimension, pieces, together, most)
            for first in range(0, len(chunks), together):
                some = tuple(chunks[first : first + together])
                number = len(jobs.passages)
                earlier = {before[chunk] for chunk in some if place}
                for each in earlier:
                    jobs.after[each] = number
                before |= dict.fromkeys(some, number)
                timed = forms.timed(dimension, pieces * len(some))
                row = (
                    Passage(some, order, place, timed),
                    dimension,
                    timed.busy,
                    timed.span,
                    -1,
                    len(earlier),
                )
                for column, value in zip(jobs, row, strict=True):
                    column.append(value)  # type: ignore[attr-defined]
    return jobs


def _put(jobs: _Jobs, urgency: Sequence[int]) -> tuple[int, list[int]]:
    """When all passages have ended, and when each begins; the most urgent, whose number is least, first."""
    waits, ready = list(jobs.waits), [0] * len(urgency)
    begins, end = [0] * len(urgency), 0
    queues: list[list[tuple[int, int]]] = [[] for _ in range(max(jobs.dimension) + 1)]
    free = [0] * len(queues)
    # A passage is ready (its number), or a dimension is free (-1 and its number).
    events = [(0, number, jobs.dimension[number]) for number, count in enumerate(waits) if not count]
    while events:
        now, touched = events[0][0], set()
        while events and events[0][0] == now:
            _, number, dimension = heapq.heappop(events)
            touched.add(dimension)
            if number >= 0:
                heapq.heappush(queues[dimension], (urgency[number], number))
        for dimension in touched:
            if free[dimension] > now or not queues[dimension]:
                continue
            _, number = heapq.heappop(queues[dimension])
            begins[number], free[dimension] = now, now + jobs.busy[number]
            heapq.heappush(events, (free[dimension], -1, dimension))
            done, after = now + jobs.span[number], jobs.after[number]
            end = max(end, done)
            if after >= 0:
                ready[after] = max(ready[after], done)
                waits[after] -= 1
                if not waits[after]:
                    heapq.heappush(events, (ready[after], after, jobs.dimension[after]))
    return end, begins


def _improve(jobs: _Jobs, num_chunks: int, half: int, begins: list[int]) -> tuple[int, list[int]]:
    """The same with chunks in another sequence, of which one or two are put elsewhere while that helps."""
    rng, best = random.Random(0), (half, begins)
    sequence, known = list(range(num_chunks)), None
    for _ in range(_WORK // len(jobs.passages)):
        tried = list(sequence)
        for _ in range(rng.choice((1, 2))):
            tried.insert(rng.randrange(num_chunks), tried.pop(rng.randrange(num_chunks)))
        turn = {chunk: number for number, chunk in enumerate(tried)}
        found = _put(jobs, [turn[each.chunks[0]] for each in jobs.passages])
        if known is None or found[0] <= known:
            sequence, known = tried, found[0]
        best = min(best, found, key=lambda each: each[0])
        if best[0] <= _NEAR * jobs.busiest:
            break
    return best

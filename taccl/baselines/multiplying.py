"""Recursive multiplying: sums in steps, in each of which groups of several ranks exchange what they have.

The place of a rank in its node, and its node, are numbers in digits of mixed bases. In a step, ranks that
differ in one digit exchange. Along some digits sums are scattered first: each rank of a group gets what the
others have of its part of the chunks. Along the other digits each gets all that the others have summed, and
adds it up itself. At last sums are gathered along the first digits, in the opposite order.

With base 2, scattering alone is recursive halving and doubling, adding up alone is recursive doubling.
"""

from __future__ import annotations

import heapq
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taccl.arguments import checked
from taccl.baselines.cut import cut_while_it_pays
from taccl.baselines.one_shot import NamedSteps
from taccl.baselines.routes import Routes
from taccl.baselines.spread import fastest
from taccl.costs import hold_columns
from taccl.errors import CollectiveError
from taccl.memo import kept

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule

#: So many plans, the best by what they are about to take, are made schedules, with messages in so many parts,
#: as what comes first goes on while the rest is under way. No more transfers than this are made for all but
#: the first of them.
_MOST_PLANS, _PARTS, _MOST_TRANSFERS = 3, (1, 2, 4), 100_000


class Digit(NamedTuple):
    """A digit of the node's number (`across`), or of the place in it; a step of it adds its weight."""

    across: bool
    base: int
    weight: int

    def __str__(self) -> str:
        return f"{self.base} nodes" if self.across else str(self.base)


class Plan(NamedTuple):
    """Digits along which sums are scattered, and those along which all is exchanged, in order."""

    scattered: tuple[Digit, ...]
    summed: tuple[Digit, ...]

    def __str__(self) -> str:
        named = (("scatter", self.scattered), ("sum", self.summed))
        return ", ".join(f"{name} {' x '.join(map(str, some))}" for name, some in named if some)


@checked
def multiplying(problem: Problem, *, cut: bool = True) -> Schedule:
    """A schedule in which sums are made in steps, each among as many ranks as make it the fastest.

    On nodes of one size no group is of several nodes and several local ranks at once. Of all bases of the
    digits, and of what is scattered and what each rank adds up itself, those that finish first are returned,
    and its `producer` names them. The sketch is left aside, but for merging.

    Parameters
    ----------
    problem : Problem
        Sums of what all ranks have, that all of them want, or one each.
    cut : bool
        Whether chunks may be cut, so that more of them follow one another.

    Raises
    ------
    CollectiveError
        If the collective makes no such sums, or there would be too many transfers.
    TopologyError
        If no links lead from one rank to another.

    References
    ----------
    M. Ruefenacht, M. Bull and S. Booth, "Generalisation of recursive doubling for AllReduce: now with
    simulation", Parallel Computing 69 (2017).
    """
    num_ranks, collective = problem.topology.num_ranks, problem.collective
    wants = [num_ranks if len(c.destinations) > 1 else 1 for c in collective.chunks]
    if not collective.sums_up or any(
        len(chunk.origins) != num_ranks or len(chunk.destinations) != count
        for chunk, count in zip(collective.chunks, wants, strict=True)
    ):
        raise CollectiveError(
            f"multiplying is for sums of what all ranks have, that all of them want or one, and found "
            f"{collective.name}; use recursive",
            where="baseline",
        )
    return cut_while_it_pays(problem, _fastest_plan, cut=cut)


def _fastest_plan(problem: Problem) -> Schedule:
    steps = _Steps(problem)
    plans = heapq.nsmallest(_MOST_PLANS, dict.fromkeys(steps.plans()), key=steps.ticks)
    found: list[Schedule] = []
    for parts, plan in product(_PARTS, plans):
        made = sum(each.num_transfers for each in found)
        if not found or made + found[0].num_transfers <= _MOST_TRANSFERS:
            found.append(steps.schedule(plan, parts))
    return fastest(found)


class _Steps:
    """A problem's ranks on a grid of nodes and places in them, and steps along its digits."""

    def __init__(self, problem: Problem) -> None:
        topology = problem.topology
        self.problem, self.routes = problem, Routes(problem)
        self.memo: dict[Any, Any] = {}
        nodes = topology.ranks_of_node
        is_even = len({len(ranks) for ranks in nodes}) == 1
        self.grid = np.array(nodes if is_even else [range(topology.num_ranks)])
        #: Where each rank is on the grid.
        self.place = np.empty((topology.num_ranks, 2), np.int64)
        for at in np.ndindex(self.grid.shape):
            self.place[self.grid[at]] = at
        self.spreads = any(len(chunk.destinations) > 1 for chunk in problem.collective.chunks)

    def plans(self) -> Iterator[Plan]:
        """Bases of all digits, and what is scattered: in a node, and between nodes what is left of that."""
        across, within = (list(_bases(size)) for size in self.grid.shape)
        for inner in within:
            local = tuple(_digits(inner, across=False))
            for outer in across:
                far = tuple(_digits(outer, across=True))
                if not self.spreads:
                    yield Plan((*local, *far), ())
                    yield Plan((*far, *local), ())
                    continue
                for i in range(len(local) + 1):
                    for j in range(len(far) + 1):
                        yield Plan((*local[:i], *far[:j]), (*local[i:], *far[j:]))
                        if far[j:] and local[i:]:
                            yield Plan((*local[:i], *far[:j]), (*far[j:], *local[i:]))

    def ticks(self, plan: Plan) -> float:
        """About what a plan takes, step by step."""
        count, ticks = float(self.problem.collective.num_chunks), 0.0
        for digit in plan.scattered:
            count /= digit.base
            ticks += (1 + self.spreads) * self._step_ticks(digit, max(1, round(count)))
        return ticks + sum(self._step_ticks(digit, max(1, round(count))) for digit in plan.summed)

    @kept
    def _step_ticks(self, digit: Digit, num_chunks: int) -> float:
        """About what it takes to exchange messages of so many chunks along a digit: the busiest resource."""
        problem, costs = self.problem, self.problem.costs
        holds, clauses = hold_columns(problem.topology), problem.clauses
        units = int(costs.chunk_units.max())
        most = np.ones(len(problem.topology.links))
        most[sorted(clauses.merging)] = clauses.max_merge
        sends = np.ceil(num_chunks / most)
        each = num_chunks / sends * units  # units of a send
        took = costs.link_alpha + each * costs.link_beta
        held = costs.hold_alpha + each[holds.link] * costs.hold_beta
        ticks = 0.0
        for links in self._hops(digit):
            used = sends * np.bincount(links, minlength=len(sends))
            busy = np.bincount(holds.resource, used[holds.link] * held)
            rest = np.zeros_like(busy)
            np.maximum.at(rest, holds.resource, (used[holds.link] > 0) * (took[holds.link] - held))
            ticks += float((busy + rest).max())
        return ticks

    @kept
    def _hops(self, digit: Digit) -> list[list[int]]:
        """The first links of all routes along a digit, the second ones, and so on."""
        routes = [self.routes.route(src, dst) for pairs in self.pairs(digit) for src, dst in pairs]
        return [[route[i] for route in routes if i < len(route)] for i in range(max(map(len, routes)))]

    @kept
    def pairs(self, digit: Digit) -> list[list[tuple[int, int]]]:
        """(source, destination) of all that differ in a digit, in turns in which each is either once."""
        axis = 0 if digit.across else 1
        value = self.place[:, axis] // digit.weight % digit.base
        turns = []
        for shift in range(1, digit.base):
            there = self.place.copy()
            there[:, axis] += ((value + shift) % digit.base - value) * digit.weight
            turns.append(list(enumerate(self.grid[tuple(there.T)].tolist())))
        return turns

    @kept
    def numbers(self, digits: tuple[Digit, ...]) -> list[int]:
        """Of every rank, what its place reads in some digits, the lowest first."""
        number, weight = np.zeros(len(self.place), np.int64), 1
        for digit in digits:
            number += weight * (self.place[:, 1 - digit.across] // digit.weight % digit.base)
            weight *= digit.base
        found: list[int] = number.tolist()
        return found

    @kept
    def chunks_of(self, digits: tuple[Digit, ...]) -> dict[int, list[int]]:
        """The chunks that ranks sum which read alike in some digits: of one destination, or dealt out."""
        number, parts = self.numbers(digits), prod(digit.base for digit in digits)
        chunks: dict[int, list[int]] = {part: [] for part in range(parts)}
        for c, chunk in enumerate(self.problem.collective.chunks):
            chunks[c % parts if self.spreads else number[chunk.destinations[0]]].append(c)
        return chunks

    def schedule(self, plan: Plan, parts: int) -> Schedule:
        """All steps of a plan, each message in so many parts, all first parts first."""
        named = NamedSteps(self.problem)
        summed: list[tuple[int, ...]] = [(rank,) for rank in range(len(self.place))]
        done: tuple[Digit, ...] = ()

        def step(digit: Digit, kept: tuple[Digit, ...], *, to_their: bool) -> None:
            number, chunks = self.numbers(kept), self.chunks_of(kept)
            named.step(
                (chunks[number[dst if to_their else src]][part::parts], src, dst, summed[src])
                for part in range(parts)
                for pairs in self.pairs(digit)
                for src, dst in pairs
            )

        def add(digit: Digit) -> list[tuple[int, ...]]:
            more = [list(ranks) for ranks in summed]
            for pairs in self.pairs(digit):
                for src, dst in pairs:
                    more[dst] += summed[src]
            return [tuple(ranks) for ranks in more]

        for digit in plan.scattered:
            done = (*done, digit)
            step(digit, done, to_their=True)
            summed = add(digit)
        for digit in plan.summed:
            step(digit, done, to_their=False)
            summed = add(digit)
        while done and self.spreads:
            step(done[-1], done, to_their=False)
            done = done[:-1]
        return named.schedule(producer=f"multiplying ({plan})")


def _bases(number: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product, in every order."""
    if number == 1:
        yield ()
    for base in range(2, number + 1):
        if number % base == 0:
            for rest in _bases(number // base):
                yield (base, *rest)


def _digits(bases: Sequence[int], *, across: bool) -> Iterator[Digit]:
    """Digits of such bases, the lowest first."""
    weight = 1
    for base in bases:
        yield Digit(across, base, weight)
        weight *= base

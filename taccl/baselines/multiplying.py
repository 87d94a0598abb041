"""Recursive multiplying: steps in each of which groups of several ranks exchange what they have.

The place of a rank in its node, and its node, are numbers in digits of mixed bases. In a step, ranks that
differ in one digit exchange all they hold: with base 2, recursive doubling. Or they exchange along the digits
of places alone what starts in their node, while each sends its own straight to all ranks of other nodes.

Of sums, what goes to all is scattered along some digits first: each rank of a group gets what the others have
of its part of the chunks. Along the other digits each gets all that the others have summed, and adds it up
itself. At last sums are gathered along the first digits, in the opposite order. With base 2, scattering alone
is recursive halving and doubling, adding up alone is recursive doubling.
"""

from __future__ import annotations

import heapq
import math
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taccl.arguments import checked
from taccl.baselines.cut import cut_while_it_pays
from taccl.baselines.recursive import exchange
from taccl.baselines.routes import Routes
from taccl.baselines.spread import Steps, after_exchange, fastest, require_no_derivations
from taccl.costs import hold_columns
from taccl.errors import CollectiveError
from taccl.memo import kept
from taccl.schedule.listing import listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule

#: So many plans, the best by what they are about to take, are made schedules: the first with messages in so
#: many parts, as what comes first goes on while the rest is under way, the others with what was best of that.
#: No more transfers than this are made for all but the first of them.
_MOST_PLANS, _PARTS, _MOST_TRANSFERS = 3, (1, 64, 4), 40_000
#: A step of more sends, whatever they carry, is left out: each takes its time.
_MOST_SENDS = 50_000


class Digit(NamedTuple):
    """A digit of the node's number (`across`), or of the place in it; a step of it adds its weight.

    Of weight 0 it is every rank of another node, and this one.
    """

    across: bool
    base: int
    weight: int

    def __str__(self) -> str:
        if not self.weight:
            return f"straight to {self.base - 1}"
        return f"{self.base} nodes" if self.across else str(self.base)


class Plan(NamedTuple):
    """Digits along which sums are scattered, or added up, in order; and what spreads gathered, last first."""

    scattered: tuple[Digit, ...]
    summed: tuple[Digit, ...]

    def named(self, first: str) -> str:
        """The bases, for a person."""
        named = ((first, self.scattered), ("sum", self.summed))
        return ", ".join(f"{name} {' x '.join(map(str, some))}" for name, some in named if some)


@checked
def multiplying(problem: Problem, *, cut: bool = True) -> Schedule:
    """A schedule in steps, each among as many ranks as make it the fastest, on any number of ranks.

    On nodes of one size no group is of several nodes and several local ranks at once. Of all bases of the
    digits, and of sums of what is scattered and what each rank adds up itself, those that finish first are
    returned, and its `producer` names them. The sketch is left aside, but for merging.

    Parameters
    ----------
    problem : Problem
        Of sums: of what all ranks have, that all of them want, or one each.
    cut : bool
        Whether chunks may be cut, so that more of them follow one another.

    Raises
    ------
    CollectiveError
        If sums are others, chunks derive from one another, or there would be too many transfers.
    TopologyError
        If no links lead from one rank to another.

    References
    ----------
    M. Ruefenacht, M. Bull and S. Booth, "Generalisation of recursive doubling for AllReduce: now with
    simulation", Parallel Computing 69 (2017).
    """
    require_no_derivations(problem, baseline="multiplying")
    num_ranks, collective = problem.topology.num_ranks, problem.collective
    if collective.combining and any(
        len(chunk.origins) != num_ranks or len(chunk.destinations) not in (1, num_ranks)
        for chunk in collective.chunks
    ):
        raise CollectiveError(
            f"multiplying adds up what all ranks have, for all of them or for one, and found "
            f"{collective.name}; use recursive, or synthesize it",
            where="baseline",
        )
    return cut_while_it_pays(problem, _fastest_plan, cut=cut)


def _fastest_plan(problem: Problem) -> Schedule:
    steps = _Steps(problem)
    plans = heapq.nsmallest(_MOST_PLANS, dict.fromkeys(steps.plans()), key=steps.ticks)
    if not plans or steps.ticks(plans[0]) == math.inf:
        raise CollectiveError(
            f"multiplying takes more than {_MOST_SENDS} sends in a step of {problem.title}; use ring or "
            "hierarchical",
            where="baseline",
        )
    best, best_parts, made = None, 1, 0
    for number, plan in enumerate(plans):
        for parts in (best_parts,) if number else _PARTS[: 1 if steps.most_parts == 1 else None]:
            if best is None or made + best.num_transfers <= _MOST_TRANSFERS:
                found = steps.schedule(plan, parts)
                made += found.num_transfers
                if best is None or found.finish_ticks < best.finish_ticks:
                    best, best_plan, best_parts = found, plan, parts
    assert best is not None, "there is a plan"
    with suppress(ValueError):  # ranks that exchange sums may wait for each other
        best = fastest((best, listed(best, longest_first=True)))
    # What comes together along trees, and spreads from their roots, needs no names.
    is_tree = best.carries is not None and not best_plan.summed and steps.is_direct(best_plan)
    return replace(best, carries=None, sums=()) if is_tree else best


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
        ends, self.sums = problem.collective.destination_sets.sets, problem.collective.combining
        self.to_one = all(len(ranks) == 1 for ranks in ends)
        self.straight = Digit(True, self.grid[1:].size + 1, 0)
        self.most_parts = problem.collective.num_chunks if self.sums else 1

    def plans(self) -> Iterator[Plan]:
        """Bases of all digits, and what is scattered: in a node, and between nodes what is left of that."""
        most = 1 + _MOST_SENDS // len(self.place)
        across, within = (list(_bases(size, most)) for size in self.grid.shape)
        for inner in within:
            local = tuple(_digits(inner, across=False))
            for outer in across:
                far = tuple(_digits(outer, across=True))
                if self.to_one or not self.sums:
                    yield Plan((*local, *far), ())
                    yield Plan((*far, *local), ())
                    if far:
                        yield Plan((*local, self.straight), ())
                    continue
                for i in range(len(local) + 1):
                    for j in range(len(far) + 1):
                        yield Plan((*local[:i], *far[:j]), (*local[i:], *far[j:]))
                        if far[j:] and local[i:]:
                            yield Plan((*local[:i], *far[:j]), (*far[j:], *local[i:]))

    def ticks(self, plan: Plan) -> float:
        """About what a plan takes, step by step."""
        count, ticks = float(self.problem.collective.num_chunks), 0.0
        if self.straight in plan.scattered:  # beside what goes on in the nodes
            local = Plan(plan.scattered[:-1], ())
            share = max(1, round(count / len(self.place) ** (1 if self.sums or not self.to_one else 2)))
            return max(self.ticks(local) / len(self.grid), self._step_ticks(self.straight, share))
        if self.to_one and not self.sums:  # a rank always holds as many chunks, and passes on its partners'
            count /= len(self.place)
            return sum(self._step_ticks(each, max(1, round(count / each.base))) for each in plan.scattered)
        times = 2 if self.sums and not self.to_one else 1
        for digit in plan.scattered:
            count /= digit.base
            ticks += times * self._step_ticks(digit, max(1, round(count)))
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
        ticks = 0.0 if self._hops(digit) else math.inf
        for links in self._hops(digit):
            used = sends * np.bincount(links, minlength=len(sends))
            busy = np.bincount(holds.resource, used[holds.link] * held)
            rest = np.zeros_like(busy)
            np.maximum.at(rest, holds.resource, (used[holds.link] > 0) * (took[holds.link] - held))
            ticks += float((busy + rest).max())
        return ticks

    @kept
    def _hops(self, digit: Digit) -> list[list[int]]:
        """The first links of all routes along a digit, the second ones, and so on; none for too many."""
        routes, count = [], 0
        for src, dst in (ends for turn in self.turns(digit) for ends in enumerate(turn)):
            routes.append(self.routes.route(src, dst))
            count += len(routes[-1])
            if count > _MOST_SENDS:
                return []
        return [[route[i] for route in routes if i < len(route)] for i in range(max(map(len, routes)))]

    def is_direct(self, plan: Plan) -> bool:
        """Whether no message is relayed."""
        return all(len(self._hops(digit)) == 1 for digit in plan.scattered)

    @kept
    def turns(self, digit: Digit) -> list[list[int]]:
        """The other ranks that differ in a digit: of every rank the next, the one after it, and so on."""
        if not digit.weight:
            (node, at), (num_nodes, num) = self.place.T, self.grid.shape
            return [
                self.grid[(node + shift) % num_nodes, (at + further) % num].tolist()
                for further in range(num)
                for shift in range(1, num_nodes)
            ]
        axis = 0 if digit.across else 1
        value = self.place[:, axis] // digit.weight % digit.base
        turns = []
        for shift in range(1, digit.base):
            there = self.place.copy()
            there[:, axis] += ((value + shift) % digit.base - value) * digit.weight
            turns.append(self.grid[tuple(there.T)].tolist())
        return turns

    def _bound_for(
        self, digits: tuple[Digit, ...], step: int, rank: int, keeps: bool
    ) -> frozenset[int] | None:
        """The chunks whose destination reads like a rank in the digits of all steps so far; None for all.

        Straight only what is for the rank itself goes; it keeps what is for its node.
        """
        if self.sums or not self.to_one:
            return None
        done = digits[: step + 1]
        if not done[0].weight:
            done = (Digit(True, len(self.grid), 1), *done[1:])
            if not (step or keeps):
                done = (*done, Digit(False, self.grid.shape[1], 1))
        return self._reading_alike(done)[self.numbers(done)[rank]]

    @kept
    def _reading_alike(self, digits: tuple[Digit, ...]) -> dict[int, frozenset[int]]:
        return {part: frozenset(chunks) for part, chunks in self.chunks_of(digits).items()}

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
        number, parts = self.numbers(digits), math.prod(digit.base for digit in digits)
        chunks: dict[int, list[int]] = {part: [] for part in range(parts)}
        for c, chunk in enumerate(self.problem.collective.chunks):
            chunks[number[chunk.destinations[0]] if self.to_one else c % parts].append(c)
        return chunks

    def schedule(self, plan: Plan, parts: int) -> Schedule:
        """All steps of a plan; of sums each message in so many parts, all first parts first."""
        if not self.sums or self.straight in plan.scattered:
            digits = plan.scattered[::-1]
            first = "scatter" if self.sums else "gather"
            return exchange(
                self.problem,
                [[self.turns(digit) for digit in digits]],
                producer=f"multiplying ({plan.named(first)})",
                bound_for=partial(self._bound_for, digits),
            )
        named = Steps(self.problem)
        summed: list[tuple[int, ...]] = [(rank,) for rank in range(len(self.place))]
        done: tuple[Digit, ...] = ()

        def step(digit: Digit, *, of_destination: bool = False) -> None:
            number, chunks = self.numbers(done), self.chunks_of(done)
            named.step(
                (
                    (chunks[number[dst if of_destination else src]][part::parts], src, dst)
                    for part in range(parts)
                    for turn in self.turns(digit)
                    for src, dst in enumerate(turn)
                ),
                summed,
            )

        for digit in plan.scattered:
            done = (*done, digit)
            step(digit, of_destination=True)
            summed = after_exchange(summed, self.turns(digit))
        for digit in plan.summed:
            step(digit)
            summed = after_exchange(summed, self.turns(digit))
        while done and not self.to_one:
            step(done[-1])
            done = done[:-1]
        return named.schedule(producer=f"multiplying ({plan.named('scatter')})")


def _bases(number: int, most: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of no larger numbers than `most`, in every order."""
    if number == 1:
        yield ()
    for base in range(2, min(number, most) + 1):
        if number % base == 0:
            for rest in _bases(number // base, most):
                yield (base, *rest)


def _digits(bases: Sequence[int], *, across: bool) -> Iterator[Digit]:
    """Digits of such bases, the lowest first."""
    weight = 1
    for base in bases:
        yield Digit(across, base, weight)
        weight *= base

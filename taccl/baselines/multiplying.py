"""Recursive multiplying: steps in each of which groups of several ranks exchange what they have.

The place of a rank in its node, and its node, are numbers in digits of mixed bases. In a step, ranks that
differ in one digit exchange all they hold: with base 2, recursive doubling. Or they exchange along the digits
of places alone what starts in their node, while each sends its own straight to all ranks of other nodes.

Of sums, what goes to all is scattered along some digits first: each rank of a group gets what the others have
of its part of the chunks. Along the other digits each gets all that the others have summed, and adds it up
itself. At last sums are gathered along the first digits, in the opposite order. With base 2, scattering alone
is recursive halving and doubling, adding up alone is recursive doubling. What is added up between nodes may
cross after all steps in nodes, before them, or *in turns*: a part of the chunks after none of these steps,
one after the first, and so on, so that links between nodes work meanwhile.
"""

# near, far: within nodes, and between them

from __future__ import annotations

import heapq
import math
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taccl.arguments import checked
from taccl.baselines.recursive import exchange
from taccl.baselines.routes import Routes
from taccl.baselines.spread import Steps, after_exchange, cut_while_it_pays, fastest, require_no_derivations
from taccl.costs import hold_columns
from taccl.errors import CollectiveError
from taccl.memo import kept
from taccl.schedule.listing import listed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule

#: So many plans, the best by what they are about to take, are made schedules: the first with messages in so
#: many pieces, as what comes first goes on while the rest is under way, the others in as many as were best.
#: No more transfers than this are made for all but the first of them.
_MOST_PLANS, _PIECES, _MOST_TRANSFERS = 3, (1, 64, 4), 40_000
#: A step of more sends, whatever they carry, is left out: each takes its time.
_MOST_SENDS = 50_000


class Digit(NamedTuple):
    """A digit of the node's number (`across`), or of the place in it; a step of it adds its weight.

    Of weight 0 it is every rank of another node, and this one. From one node to the next the place moves on
    by `shift`, so that what crosses at several times goes over several links.
    """

    across: bool
    base: int
    weight: int
    shift: int = 0

    def __str__(self) -> str:
        if not self.weight:
            return f"straight to {self.base - 1}"
        return f"{self.base} nodes" if self.across else str(self.base)


class Plan(NamedTuple):
    """Digits along which sums are scattered, then added up; and what spreads gathered, last first.

    - `near`, `far`: What is added up along, within nodes and between them.
    - `crossings`: Of each part of the chunks, after how many of the steps along `near` it goes along `far`.
    """

    scattered: tuple[Digit, ...]
    near: tuple[Digit, ...] = ()
    far: tuple[Digit, ...] = ()
    crossings: tuple[int, ...] = (0,)

    def named(self, first: str) -> str:
        """The bases, for a person."""
        summed = (*self.far, *self.near) if self.crossings == (0,) else (*self.near, *self.far)
        named = ((first, self.scattered), ("sum", summed))
        told = ", ".join(f"{name} {' x '.join(map(str, some))}" for name, some in named if some)
        return told + ", in turns" * (len(self.crossings) > 1)

    def sums(self) -> Iterator[tuple[Digit, list[int]]]:
        """The steps in which ranks add up: along which digit, and which parts of the chunks."""
        parts = list(enumerate(self.crossings))
        for step in range(len(self.near) + 1):
            if step:
                yield self.near[step - 1], [part for part, after in parts if after >= step]
            for part in (part for part, after in parts if after == step):
                for digit in self.far:
                    yield digit._replace(shift=digit.shift * part), [part]
        for step, digit in enumerate(self.near, 1):
            yield digit, [part for part, after in parts if after < step]


@checked
def multiplying(problem: Problem, *, cut: bool = True) -> Schedule:
    """A schedule in steps, each among as many ranks as make it the fastest, on any number of ranks.

    On nodes of one size no group is of several nodes and several local ranks at once. Of all bases of the
    digits, and of sums of what is scattered and what each rank adds up itself, those that finish first are
    returned, and its `producer` names them; *in turns* where parts of the chunks cross between nodes at
    different steps. The sketch is left aside, but for merging.

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
    best, best_pieces, made = None, 1, 0
    for number, plan in enumerate(plans):
        found = None
        for pieces in (best_pieces,) if number else _PIECES[: 1 if steps.most_pieces == 1 else None]:
            if found is None or made + found.num_transfers <= _MOST_TRANSFERS:
                each = steps.schedule(plan, pieces)
                made += each.num_transfers
                if found is None or each.finish_ticks < found.finish_ticks:
                    found, best_pieces = each, pieces
        assert found is not None, "it is made in some number of pieces"
        with suppress(ValueError):  # ranks that exchange sums may wait for each other
            found = fastest((found, listed(found, longest_first=True)))
        if best is None or found.finish_ticks < best.finish_ticks:
            best, best_plan = found, plan
        if made + best.num_transfers > _MOST_TRANSFERS:
            break
    assert best is not None, "there is a plan"
    # What comes together along trees, and spreads from their roots, needs no names.
    only_scatters = not (best_plan.near or best_plan.far)
    is_tree = best.carries is not None and only_scatters and steps.is_direct(best_plan)
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
        self.most_pieces = problem.collective.num_chunks if self.sums else 1

    def plans(self) -> Iterator[Plan]:
        """Bases of all digits, and what is scattered: in a node, and between nodes what is left of that."""
        most = 1 + _MOST_SENDS // len(self.place)
        across, within = (list(_bases(size, most)) for size in self.grid.shape)
        for inner in within:
            local = tuple(_digits(inner, across=False))
            for outer in across:
                far = tuple(_digits(outer, across=True))
                if self.to_one or not self.sums:
                    yield Plan((*local, *far))
                    yield Plan((*far, *local))
                    if far:
                        yield Plan((*local, self.straight))
                    continue
                for i in range(len(local) + 1):
                    for j in range(len(far) + 1):
                        last, shift = len(local[i:]), math.prod(digit.base for digit in local[:i])
                        plan = Plan((*local[:i], *far[:j]), local[i:], far[j:], (last,))
                        yield plan
                        if plan.near and plan.far:
                            yield plan._replace(crossings=(0,))
                            plan = plan._replace(crossings=tuple(range(last + 1)))
                            yield plan._replace(far=tuple(digit._replace(shift=shift) for digit in plan.far))
                            yield plan

    def ticks(self, plan: Plan) -> float:
        """About what a plan takes, step by step."""
        count, ticks = float(self.problem.collective.num_chunks), 0.0
        if self.straight in plan.scattered:  # beside what goes on in the nodes
            local = Plan(plan.scattered[:-1])
            share = count / len(self.place) ** (1 if self.sums or not self.to_one else 2)
            return max(self.ticks(local) / len(self.grid), self._step_ticks(share, self.straight))
        if self.to_one and not self.sums:  # a rank always holds as many chunks, and passes on its partners'
            count /= len(self.place)
            return sum(self._step_ticks(count / each.base, each) for each in plan.scattered)
        times = 2 if self.sums and not self.to_one else 1
        for digit in plan.scattered:
            count /= digit.base
            ticks += times * self._step_ticks(count, digit)
        took = [0.0] * len(plan.crossings)
        for digit, some in plan.sums():
            step = self._step_ticks(count * len(some) / len(took), digit)
            for part in some:
                took[part] += step
        parts = range(len(took))
        crossing = [[digit._replace(shift=digit.shift * part) for part in parts] for digit in plan.far]
        together = sum(self._step_ticks(count / len(took), *digits) for digits in crossing)
        return ticks + max(*took, together)

    @kept
    def _step_ticks(self, count: float, *digits: Digit) -> float:
        """About what it takes to exchange messages of so many chunks along digits: the busiest resource."""
        problem, costs = self.problem, self.problem.costs
        holds, clauses = hold_columns(problem.topology), problem.clauses
        units = int(costs.chunk_units.max())
        most = np.ones(len(problem.topology.links))
        most[sorted(clauses.merging)] = clauses.max_merge
        num_chunks = max(1, round(count))
        sends = np.ceil(num_chunks / most)
        each = num_chunks / sends * units  # units of a send
        took = costs.link_alpha + each * costs.link_beta
        held = costs.hold_alpha + each[holds.link] * costs.hold_beta
        ways = [self._hops(digit) for digit in digits]
        ticks = 0.0 if all(ways) else math.inf
        for hops in zip_longest(*ways, fillvalue=()):
            links = np.array([*chain(*hops)], dtype=np.int64)
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
            there[:, 1] += (there[:, 0] - self.place[:, 0]) * digit.shift
            there[:, 1] %= self.grid.shape[1]
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

    def schedule(self, plan: Plan, pieces: int) -> Schedule:
        """All steps of a plan; of sums each message in so many pieces, all first ones first."""
        if not self.sums or self.straight in plan.scattered:
            digits = plan.scattered[::-1]
            first = "scatter" if self.sums else "gather"
            return exchange(
                self.problem,
                [[self.turns(digit) for digit in digits]],
                producer=f"multiplying ({plan.named(first)})",
                bound_for=partial(self._bound_for, digits),
            )
        steps = Steps(self.problem)
        num_parts, part_of = len(plan.crossings), [0] * self.problem.collective.num_chunks
        for chunks in self.chunks_of(plan.scattered).values():
            for i, c in enumerate(chunks):
                part_of[c] = i % num_parts
        summed: list[list[tuple[int, ...]]] = [[(rank,) for rank in range(len(self.place))]] * num_parts
        done: tuple[Digit, ...] = ()

        def step(digit: Digit, some: Collection[int] = range(num_parts), *, adds: bool = True) -> None:
            number, chunks = self.numbers(done), self.chunks_of(done)
            mine = {key: [c for c in each if part_of[c] in some] for key, each in chunks.items()}
            scatters = digit in done and adds
            steps.step(
                (
                    (mine[number[dst if scatters else src]][piece::pieces], src, dst)
                    for piece in range(pieces)
                    for turn in self.turns(digit)
                    for src, dst in enumerate(turn)
                ),
                lambda rank, c: summed[part_of[c]][rank],
            )
            for part in some if adds else ():
                summed[part] = after_exchange(summed[part], self.turns(digit))

        for digit in plan.scattered:
            done = (*done, digit)
            step(digit)
        for digit, some in plan.sums():
            step(digit, some)
        while done and not self.to_one:
            step(done[-1], adds=False)
            done = done[:-1]
        return steps.schedule(producer=f"multiplying ({plan.named('scatter')})")


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

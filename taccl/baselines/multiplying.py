"""Recursive multiplying: steps in each of which groups of several ranks exchange what they have."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.arguments import checked
from taccl.baselines.moves import Moves, routed
from taccl.baselines.multiplying_plans import (
    BEHIND,
    BY_NODE,
    Digit,
    PlanPart,
    PlanStep,
    StepPlan,
    all_plans,
    straight_digit,
)
from taccl.baselines.recursive import after_exchange, exchange
from taccl.baselines.routes import ShortestRoutes
from taccl.baselines.spread import cut_while_it_pays, fastest, require_no_derivations, run, starts_of
from taccl.caching import cached
from taccl.costs import hold_columns
from taccl.errors import CollectiveError
from taccl.schedule.listing import listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from taccl.baselines.moves import Flags, Ints, Row, Sends
    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule

    Floats = NDArray[np.float64]

#: So many plans, the best by what they are about to take, and so many of those whose parts differ in each way
#: are made schedules, until there are so many transfers; none that is about to take so much longer.
_MOST_PLANS, _MOST_ALIKE, _MOST_TRANSFERS, _LATE = 3, 3, 24_000, 1.2
#: Into how many pieces messages are cut, as what comes first goes on while the rest is under way.
_PIECES = (1, 4)
#: A step of more sends, whatever they carry, is left out: each takes its time.
_MOST_SENDS = 50_000


@checked
def multiplying(problem: Problem, *, cut: bool = True) -> Schedule:
    """A schedule in steps, each among as many ranks as make it the fastest, on any number of ranks.

    On nodes of one size no group is of several nodes and several local ranks at once. Of all bases of the
    digits, of what is scattered and what each rank adds up itself, and of ways for parts of the chunks, those
    that are about to take the least are tried; the schedule that finishes first is returned, and its
    `producer` names them. The sketch is left aside, but for merging.

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
    return cut_while_it_pays(problem, _fastest_plan, name="multiplying", cut=cut)


def _fastest_plan(problem: Problem) -> Schedule:
    steps = _Steps(problem)
    ranked = sorted(dict.fromkeys(steps.plans()), key=steps.ticks)
    if not ranked or steps.ticks(ranked[0]) == math.inf:
        raise CollectiveError(
            f"multiplying takes more than {_MOST_SENDS} sends in a step of {problem.title}; use ring or "
            "hierarchical",
            where="baseline",
        )
    seen: Counter[str] = Counter()
    best, made = None, 0
    for number, plan in enumerate(ranked):
        seen[plan.how] += 1
        if number >= _MOST_PLANS and seen[plan.how] > _MOST_ALIKE:
            continue
        known: set[bytes] = set()
        for pieces in _PIECES[: steps.most_pieces]:
            is_late = best is not None and steps.ticks(plan) > _LATE * best.finish_ticks
            if best is not None and (is_late or made + best.num_transfers > _MOST_TRANSFERS):
                break
            sends = steps.sends(plan, pieces)
            made += len(sends.chunk)
            least, order = sends.busy_ticks(problem), np.stack(sends[:3]).tobytes()
            if order in known or (best is not None and least >= best.finish_ticks):
                continue
            known.add(order)
            found = sends.schedule(problem, producer=steps.producer(plan))
            with suppress(ValueError):  # ranks that exchange sums may wait for each other
                if found.finish_ticks > least:
                    found = fastest((found, listed(found, longest_first=True)))
            if best is None or found.finish_ticks < best.finish_ticks:
                best, best_plan = found, plan
    assert best is not None, "there is a plan"
    # What comes together along trees, and spreads from their roots, needs no names.
    only_scatters = not any(part.summed for part in best_plan.parts)
    is_tree = best.carries is not None and only_scatters and steps.is_direct(best_plan)
    return replace(best, carries=None, sums=()) if is_tree else best


class _Steps:
    """A problem's ranks on a grid of nodes and places in them, and steps along its digits."""

    def __init__(self, problem: Problem) -> None:
        topology = problem.topology
        self.problem, self.routes = problem, ShortestRoutes.of(problem)
        self.cache: dict[Any, Any] = {}
        nodes = topology.ranks_of_node
        is_even = len({len(ranks) for ranks in nodes}) == 1
        self.grid = np.array(nodes if is_even else [range(topology.num_ranks)])
        #: Where each rank is on the grid.
        self.place = np.empty((topology.num_ranks, 2), np.int64)
        for at in np.ndindex(self.grid.shape):
            self.place[self.grid[at]] = at
        ends, self.sums = problem.collective.destination_sets.sets, problem.collective.combining
        self.to_one = all(len(ranks) == 1 for ranks in ends)
        self.straight = straight_digit(*self.grid.shape)
        self.most_pieces = problem.collective.num_chunks if self.sums else 1

    def producer(self, plan: StepPlan) -> str:
        """The name of a plan's schedule."""
        return f"multiplying ({str(plan).replace('scatter', 'scatter' if self.sums else 'gather')})"

    def plans(self) -> Iterator[StepPlan]:
        """All plans whose steps are of no more sends than may be."""
        most = 1 + _MOST_SENDS // len(self.place)
        num_nodes, num_local = self.grid.shape
        return all_plans(num_nodes, num_local, sums=self.sums, to_one=self.to_one, most=most)

    def ticks(self, plan: StepPlan) -> float:
        """About what a plan takes, step by step."""
        digits, count = plan.parts[0].scattered, float(self.problem.collective.num_chunks)
        if self.straight in digits:  # beside what goes on in the nodes
            local = StepPlan((PlanPart(digits[:-1]),))
            share = count / len(self.place) ** (1 if self.sums or not self.to_one else 2)
            return max(self.ticks(local) / len(self.grid), self._step(share, self.straight)[0])
        if self.to_one and not self.sums:  # a rank always holds as many chunks, and passes on its partners'
            count /= len(self.place)
            return sum(self._step(count / each.base, each)[0] for each in digits)
        return self._timeline(plan)[0]

    @cached
    def _timeline(self, plan: StepPlan) -> tuple[float, list[PlanStep]]:
        """About what a plan takes, and its steps in the order in which they can start, each of some parts."""
        spreads, by_node = not self.sums or plan.how == BY_NODE, plan.how == BY_NODE
        left = [self._steps_of(part, spreads) for part in plan.parts]
        num_chunks = self.problem.collective.num_chunks
        counts = [len(self._dealt(k, len(left), plan.block)) for k in range(len(left))]
        for k, part in enumerate(plan.parts if spreads else ()):
            held_by = len(self.place) if by_node else math.prod(digit.base for digit in part.scattered)
            counts[k] = -(-num_chunks // held_by)
        ready, free = [0.0] * len(left), np.zeros(len(self.problem.topology.resources))

        def takes(head: tuple[str, Digit], some: Sequence[int]) -> tuple[float, Floats]:
            verb, digit = head
            share = sum(-(-counts[k] // digit.base) if verb == "scatter" else counts[k] for k in some)
            return self._step(share, digit, verb != "scatter")

        order = []
        while any(left):
            starts = []
            for k in (k for k, steps in enumerate(left) if steps):
                ticks, busy = takes(left[k][0], [k])
                if ticks == math.inf:
                    return ticks, []
                starts.append((max(ready[k], float(free[busy > 0].max(initial=0))), k))
            since, first = min(starts)
            head, some = left[first][0], [first]
            alike = [
                k
                for _, k in starts
                if left[k][0] == head and k != first and plan.how not in (BEHIND, BY_NODE)
            ]
            for k in sorted(alike, key=ready.__getitem__):  # waited for, where together they end no later
                then, alone = max(since, ready[k]), since + float(takes(head, some)[1].max())
                if then + takes(head, [*some, k])[0] <= max(alone, ready[k]) + takes(head, [k])[0]:
                    since, some = then, [*some, k]
            ticks, busy = takes(head, some)
            free[busy > 0] = since + busy[busy > 0]
            for k in some:
                del left[k][0]
                ready[k] = since + ticks
                if head[0] != "sum":
                    base = head[1].base
                    counts[k] = -(-counts[k] // base) if head[0] == "scatter" else counts[k] * base
            order.append(PlanStep(*head, tuple(some)))
        return max(ready), order

    def _steps_of(self, part: PlanPart, spreads: bool) -> list[tuple[str, Digit]]:
        """What is done along which digit, in order; of what only spreads nothing is scattered."""
        scattered = () if spreads else part.scattered
        gathered = part.scattered[::-1] if spreads or not self.to_one else ()
        verbs = ("scatter", scattered), ("sum", part.summed), ("gather", gathered)
        return [(verb, digit) for verb, digits in verbs for digit in digits]

    def _step(self, count: float, digit: Digit, is_same: bool = False) -> tuple[float, Floats]:
        """Estimated ticks of an exchange of messages of `count` chunks, and ticks that each resource is held.

        - `is_same`: True if a rank sends the same to all, which crosses no link twice.
        """
        return self._exchange(max(1, round(count)), digit, is_same)

    @cached
    def _exchange(self, num_chunks: int, digit: Digit, is_same: bool) -> tuple[float, Floats]:
        total = np.zeros(len(self.problem.topology.resources))
        ticks = 0.0 if self._hops(digit, is_same) else math.inf
        sends = np.ceil(num_chunks / np.array([1, self.problem.clauses.max_merge]))
        for alpha, beta, resource, merges, rest_alpha, rest_beta in self._loads(digit, is_same):
            busy: Floats = sends @ alpha + num_chunks * beta
            rest = np.zeros_like(busy)
            np.maximum.at(rest, resource, rest_alpha + num_chunks / sends[merges] * rest_beta)
            ticks += float((busy + rest).max())
            total += busy
        return ticks, total

    @cached
    def _loads(self, digit: Digit, is_same: bool) -> list[tuple[NDArray[Any], ...]]:
        """For each hop, ticks that its sends hold each resource, and by which they take longer than that.

        - `alpha`, (2, num_resources): Ticks per send over links that do not merge, and over those that do.
        - `beta`, (num_resources,): Ticks per chunk.
        - `resource`, `merges`, `rest_alpha`, `rest_beta`, (num_kinds,): Distinct rests of sends, in ticks per
          send and per chunk.
        """
        topology, costs = self.problem.topology, self.problem.costs
        holds, units = hold_columns(topology), int(costs.chunk_units.max())
        merging = np.zeros(len(topology.links), np.int64)
        merging[list(self.problem.clauses.merging)] = 1
        count, found = len(topology.resources), []
        for links in self._hops(digit, is_same):
            used = np.bincount(links, minlength=len(topology.links))
            row = np.flatnonzero(used[holds.link])
            link, resource = holds.link[row], holds.resource[row]
            alpha = np.zeros((2, count))
            np.add.at(alpha, (merging[link], resource), used[link] * costs.hold_alpha[row])
            beta = np.bincount(resource, used[link] * units * costs.hold_beta[row], count)
            rest_alpha = costs.link_alpha[link] - costs.hold_alpha[row]
            rest_beta = units * (costs.link_beta[link] - costs.hold_beta[row])
            kinds = np.unique(np.stack((resource, merging[link], rest_alpha, rest_beta)), axis=1)
            found.append((alpha, beta, *kinds[:, (kinds[2] > 0) | (kinds[3] > 0)]))
        return found

    @cached
    def _hops(self, digit: Digit, is_same: bool = False) -> list[Ints]:
        """Links of the first hops of all routes along a digit, of the second ones, and so on.

        The list is empty if there are too many.

        - `is_same`: True if what a rank sends crosses each link once.
        """
        turns = np.array(self.turns(digit))
        src, dst = (each.ravel() for each in np.broadcast_arrays(np.arange(turns.shape[1]), turns))
        message, hop, link = self.routes.hops(src, dst)
        if len(link) > _MOST_SENDS:
            return []
        if is_same:
            _, first = np.unique(src[message] * len(self.problem.topology.links) + link, return_index=True)
            first.sort()
            hop, link = hop[first], link[first]
        return [link[hop == each] for each in range(int(hop.max()) + 1)]

    def is_direct(self, plan: StepPlan) -> bool:
        """True if no message is relayed."""
        return all(len(self._hops(digit)) == 1 for part in plan.parts for digit in part.scattered)

    @cached
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
        for shift in (digit.turn,) if digit.turn else range(1, digit.base):
            there = self.place.copy()
            there[:, axis] += ((value + shift) % digit.base - value) * digit.weight
            there[:, 1] += (there[:, 0] - self.place[:, 0]) * digit.shift
            there[:, 1] %= self.grid.shape[1]
            turns.append(self.grid[tuple(there.T)].tolist())
        return turns

    def _bound(self, digits: tuple[Digit, ...], step: int, chunk: Ints, rank: Ints, keeps: bool) -> Flags:
        """True for each chunk whose destination has the rank's digits of all steps so far.

        Straight, only what is for the rank itself goes; the rank keeps what is for its node.
        """
        done = digits[: step + 1]
        if not done[0].weight:
            done = (Digit(True, len(self.grid), 1), *done[1:])
            if not (step or keeps):
                done = (*done, Digit(False, self.grid.shape[1], 1))
        number, ends = np.array(self.numbers(done)), self.problem.collective.destination_sets
        target = np.array([ranks[0] for ranks in ends.sets])[ends.of_chunk]
        same: Flags = number[target[chunk]] == number[rank]
        return same

    @cached
    def numbers(self, digits: tuple[Digit, ...]) -> list[int]:
        """Of every rank, what its place reads in some digits, the lowest first."""
        number, weight = np.zeros(len(self.place), np.int64), 1
        for digit in digits:
            number += weight * (self.place[:, 1 - digit.across] // digit.weight % digit.base)
            weight *= digit.base
        found: list[int] = number.tolist()
        return found

    @cached
    def _dealt(self, part: int, num_parts: int, block: int) -> list[int]:
        """The chunks of a part."""
        return [c for c in range(self.problem.collective.num_chunks) if c // block % num_parts == part]

    @cached
    def chunks_of(
        self, digits: tuple[Digit, ...], part: int = 0, num_parts: int = 1, block: int = 1
    ) -> dict[int, list[int]]:
        """The chunks of a part that ranks alike in some digits sum: of one destination, or dealt out."""
        number, bases = self.numbers(digits), math.prod(digit.base for digit in digits)
        chunks: dict[int, list[int]] = {value: [] for value in range(bases)}
        for i, c in enumerate(self._dealt(part, num_parts, block)):
            (target, *_) = self.problem.collective.chunks[c].destinations
            chunks[number[target] if self.to_one else i % bases].append(c)
        return chunks

    def sends(self, plan: StepPlan, pieces: int) -> Sends:
        """Sends of all steps of a plan; messages of sums are cut into pieces, the first of each go first."""
        digits = plan.parts[0].scattered[::-1]
        if plan.how == BY_NODE:
            return run(self.problem, partial(self._node_by_node, plan))
        if not self.sums or self.straight in digits:
            turns = [self.turns(digit) for digit in digits]
            by_digits = self.to_one and not self.sums
            return exchange(self.problem, [turns], bound=partial(self._bound, digits) if by_digits else None)
        ranks, num_parts = np.arange(len(self.place)), len(plan.parts)
        summed: list[list[tuple[int, ...]]] = [[(rank,) for rank in ranks.tolist()]] * num_parts
        done: list[tuple[Digit, ...]] = [()] * num_parts
        sums: dict[tuple[int, ...], int] = {}
        moves: list[Row] = []
        carries = [np.zeros(0, np.int64)]
        for step, (verb, digit, parts) in enumerate(self._timeline(plan)[1]):
            for part in parts if verb == "scatter" else ():
                done[part] = (*done[part], digit)
            holder, chunk = self._holders(plan, parts, done)
            number = np.array([[sums.setdefault(each, len(sums)) for each in some] for some in summed])
            position = np.arange(len(holder)) - np.searchsorted(holder, holder)
            for piece in range(pieces):
                at, some = holder[position % pieces == piece], chunk[position % pieces == piece]
                for turn in self.turns(digit):
                    # A rank that scatters sends what its partner keeps.
                    src = np.argsort(turn)[at] if verb == "scatter" else at
                    order = np.argsort(src, kind="stable")
                    src, sent = src[order], some[order]
                    moves.append((step, sent, src, np.array(turn)[src], True))
                    carries.append(number[sent // plan.block % num_parts, src])
            for part in parts:
                if verb == "gather":
                    done[part] = done[part][:-1]
                else:
                    summed[part] = after_exchange(summed[part], self.turns(digit))
        return routed(self.problem, Moves.of(moves), sums=list(sums), carries=np.concatenate(carries))

    def _holders(
        self, plan: StepPlan, parts: Sequence[int], done: Sequence[tuple[Digit, ...]]
    ) -> tuple[Ints, Ints]:
        """Ranks, rising, and the chunks of some parts that each sums once the parts are scattered."""
        rows = []
        for part in parts:
            some = self.chunks_of(done[part], part, len(plan.parts), plan.block)
            numbers = enumerate(self.numbers(done[part]))
            rows += [(rank, chunk) for rank, number in numbers for chunk in some[number]]
        holder, chunk = np.array(rows, np.int64).reshape(-1, 2).T
        order = np.argsort(holder, kind="stable")
        return holder[order], chunk[order]

    def _node_by_node(self, plan: StepPlan, problem: Problem) -> Sends:
        """Gather data of a node there while it crosses, and elsewhere while more crosses."""
        starts = starts_of(problem)
        chunks = np.argsort(starts, kind="stable")
        held = [(starts[chunks], chunks)] * len(plan.parts)
        moves: list[Row] = []
        for step, (verb, digit, (part,)) in enumerate(self._timeline(plan)[1]):
            holder, chunk = held[part]
            rows = [(np.array(turn)[holder], chunk) for turn in self.turns(digit)]
            moves += [(step, chunk, holder, there, False) for there, _ in rows]
            # What crosses between nodes is not held longer: it is gathered there at once.
            rows = rows if verb == "sum" else [(holder, chunk), *rows]
            there, chunk = (np.concatenate(each) for each in zip(*rows, strict=True))
            order = np.argsort(there, kind="stable")
            held[part] = there[order], chunk[order]
        return routed(problem, Moves.of(moves))

"""Stage 3, contiguity: given the order on every resource, which consecutive sends of a link merge.

A MILP of linear size: sends keep their order, and a binary per send of a merging link says whether it
starts a batch. Merging saves alpha, but makes a batch's first chunks wait for its last. Every block of rows
carries a tag (`TAGS`), and the rows are exact: the optimum is that of all ways to merge. Source: Shah et al.,
"TACCL", NSDI 2023, section 5.3; the rows here are those of a cumulative completion time, so that no product
of binaries is needed.
"""

# S start, C completion so far, H end of a hold so far, R units to go, F arrival, u starts a batch, in us

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taccl.solvers.model import MilpModel
from taccl.synthesis.greedy import ListSchedule, send_of
from taccl.synthesis.paper.routing import needed_moves

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from taccl.synthesis.paper.orbits import Held, Orbits

__all__ = ["TAGS", "ContiguityModel", "build_contiguity", "merged"]

#: Every block of rows of the contiguity model.
TAGS = (
    "contiguity.availability",
    "contiguity.finish",
    "contiguity.completion",
    "contiguity.batch",
    "contiguity.resource",
    "contiguity.max-merge",
)


@dataclass(frozen=True, slots=True)
class ContiguityModel:
    """The MILP, and which variable is what.

    Parameters
    ----------
    start, arrival : dict of move to variable
    begins : dict of move to variable
        u, for moves on merging links.
    order : tuple of move
        The moves by start.
    """

    model: MilpModel
    start: dict[int, int]
    arrival: dict[int, int]
    begins: dict[int, int]
    order: tuple[int, ...]


def build_contiguity(orbits: Orbits, schedule: ListSchedule) -> ContiguityModel:
    """The contiguity MILP of an ordering.

    Parameters
    ----------
    schedule : ListSchedule
        Its order is kept: of moves on each resource, and of chunks in each of its merged sends. Moves that
        lead to no destination are left out.
    """
    needed = needed_moves(orbits, schedule)
    upper = schedule.finish_ticks / orbits.problem.costs.ticks_per_us
    model = MilpModel()
    finish = model.add_variable(0, upper, cost=1.0)
    order = tuple(m for send in schedule.sends for m in send.moves if m in needed)
    start = {m: model.add_variable(0, upper) for m in order}
    arrival = {m: model.add_variable(0, upper) for m in order}
    merging = [m for m in order if orbits.merging[orbits.moves[m].link_orbit]]
    begins = {m: model.add_variable(0, 1, integer=True) for m in merging}
    contiguity = ContiguityModel(model, start, arrival, begins, order)
    _availability(orbits, contiguity)
    for m in order:
        model.add_row([(1.0, finish), (-1.0, arrival[m])], 0, tag="contiguity.finish")
    rows: dict[int, list[int]] = defaultdict(list)
    for m in order:
        rows[orbits.moves[m].link_orbit].append(m)
    lanes = {link: _Lane(orbits, contiguity, upper, link, row) for link, row in sorted(rows.items())}
    for lane in lanes.values():
        _own_first(lane)
        if lane.merges:
            _batches(lane)
    _resources(lanes, schedule)
    return contiguity


def _availability(orbits: Orbits, contiguity: ContiguityModel) -> None:
    """A chunk is sent on after it arrived."""
    entered: dict[int, int] = {}
    for m in contiguity.order:
        for p in orbits.moves[m].dsts:
            entered.setdefault(p, m)
    for m in contiguity.order:
        for p in orbits.moves[m].srcs:
            if not orbits.places[p].is_origin:
                row = [(1.0, contiguity.start[m]), (-1.0, contiguity.arrival[entered[p]])]
                contiguity.model.add_row(row, 0, tag="contiguity.availability")


class _Lane:
    """The moves of one link in order, when each is over, and when its holds begin and end."""

    def __init__(
        self, orbits: Orbits, contiguity: ContiguityModel, upper: float, link: int, row: list[int]
    ) -> None:
        costs, rep = orbits.problem.costs, orbits.link_rep[link]
        self.orbits, self.contiguity, self.upper, self.row = orbits, contiguity, upper, row
        self.merges = orbits.merging[link]
        self.own_first = rep in orbits.problem.clauses.own_first
        self.alpha = int(costs.link_alpha[rep]) / costs.ticks_per_us
        self.beta = int(costs.link_beta[rep]) / costs.ticks_per_us
        self.units = {m: orbits.moves[m].units for m in row}
        self.holds = orbits.holds[link]
        # The least time from the end of a batch to that of the next, had it no units.
        even = [alpha for alpha, beta in map(self.costs, self.holds) if beta == self.beta]
        gap = max(even, default=-upper)
        self.done = self._cumulative(self.alpha, self.beta, gap, tag="contiguity.completion")
        for m in row:
            arrives = [(1.0, contiguity.arrival[m]), (-1.0, self.done[m])]
            contiguity.model.add_row(arrives, 0, tag="contiguity.completion")
        uneven = [held for held in self.holds if self.merges and self.costs(held)[1] != self.beta]
        self.released = {
            held: self._cumulative(*self.costs(held), self.costs(held)[0], tag="contiguity.resource")
            for held in uneven
            if not held.receives
        }
        self.rest = self._rest() if any(held.receives for held in uneven) else {}

    def costs(self, held: Held) -> tuple[float, float]:
        """Alpha and beta of a hold, in us."""
        per_us = self.orbits.problem.costs.ticks_per_us
        return held.alpha / per_us, held.beta / per_us

    def _cumulative(self, alpha: float, beta: float, gap: float, *, tag: str) -> dict[int, int]:
        """Per move, alpha and beta times the units so far after the start of its batch."""
        model, start, begins = self.contiguity.model, self.contiguity.start, self.contiguity.begins
        so_far = {m: model.add_variable(0, self.upper) for m in self.row}
        for m in self.row:
            by_itself = [(1.0, so_far[m]), (-1.0, start[m])]
            model.add_row(by_itself, alpha + beta * self.units[m], tag=tag)
        for before, m in self.neighbours():
            step = [(1.0, so_far[m]), (-1.0, so_far[before]), (-gap, begins[m])]
            model.add_row(step, beta * self.units[m], tag=tag)
        return so_far

    def _rest(self) -> dict[int, int]:
        """Per move, at most the units from it to the end of its batch."""
        model, begins, tag = self.contiguity.model, self.contiguity.begins, "contiguity.resource"
        total = sum(self.units.values())
        rest = {m: model.add_variable(0, total) for m in self.row}
        for m, after in self.neighbours():
            model.add_row([(1.0, rest[after]), (-1.0, rest[m])], -self.units[m], tag=tag)
            alone = [(-1.0, rest[m]), (-float(total), begins[after])]
            model.add_row(alone, -self.units[m] - total, tag=tag)
        model.add_row([(-1.0, rest[self.row[-1]])], -self.units[self.row[-1]], tag=tag)
        return rest

    def neighbours(self) -> list[tuple[int, int]]:
        """Moves that may be of one batch, the later one second."""
        return list(zip(self.row, self.row[1:], strict=False)) if self.merges else []

    def hold_begin(self, m: int, held: Held) -> tuple[list[tuple[float, int]], float]:
        """When a send takes a resource, of which m is the first move: terms and a constant."""
        alpha, beta = self.costs(held)
        terms = [(1.0, self.contiguity.start[m])]
        if not held.receives:
            return terms, 0.0
        if beta == self.beta:
            return terms, self.alpha - alpha
        if not self.merges:
            return terms, self.alpha - alpha + (self.beta - beta) * self.units[m]
        return [*terms, (self.beta - beta, self.rest[m])], self.alpha - alpha

    def hold_end(self, m: int, held: Held) -> tuple[list[tuple[float, int]], float]:
        """When a send lets a resource go, of which m is the last move: terms and a constant."""
        alpha, beta = self.costs(held)
        if held.receives:
            return [(1.0, self.done[m])], 0.0
        if beta == self.beta:
            return [(1.0, self.done[m])], alpha - self.alpha
        if not self.merges:
            return [(1.0, self.contiguity.start[m])], alpha + beta * self.units[m]
        return [(1.0, self.released[held][m])], 0.0


def _own_first(lane: _Lane) -> None:
    """Where own chunks go first, relayed ones may start a latency after each of them."""
    if not lane.own_first:
        return
    model, start, moves = lane.contiguity.model, lane.contiguity.start, lane.orbits.moves
    own = [m for m in lane.row if moves[m].is_own]
    relayed = [m for m in lane.row if not moves[m].is_own]
    if own and relayed:
        free = model.add_variable(0, lane.upper)
        for m in own:
            row = [(1.0, free), (-1.0, start[m])]
            model.add_row(row, lane.alpha + lane.beta * lane.units[m], tag="contiguity.availability")
        for m in relayed:
            model.add_row([(1.0, start[m]), (-1.0, free)], 0, tag="contiguity.availability")


def _batches(lane: _Lane) -> None:
    """Moves of one batch share start and arrival."""
    model, start, arrival = lane.contiguity.model, lane.contiguity.start, lane.contiguity.arrival
    begins, moves, upper, tag = lane.contiguity.begins, lane.orbits.moves, lane.upper, "contiguity.batch"
    max_merge = lane.orbits.problem.clauses.max_merge
    model.add_row([(1.0, begins[lane.row[0]])], 1, tag=tag)
    for before, m in lane.neighbours():
        model.add_row([(1.0, start[m]), (-1.0, start[before])], 0, tag=tag)
        model.add_row([(1.0, arrival[before]), (-1.0, arrival[m]), (upper, begins[m])], 0, tag=tag)
        model.add_row([(1.0, start[before]), (-1.0, start[m]), (upper, begins[m])], 0, tag=tag)
        if lane.own_first and moves[m].is_own != moves[before].is_own:
            model.add_row([(1.0, begins[m])], 1, tag=tag)
    for place in range(max_merge, len(lane.row)):
        window = [(1.0, begins[n]) for n in lane.row[place - max_merge + 1 : place + 1]]
        model.add_row(window, 1, tag="contiguity.max-merge")


def _resources(lanes: Mapping[int, _Lane], schedule: ListSchedule) -> None:
    """Neighbours in a resource's order hold it one after the other, unless they are of one batch."""
    queues: dict[int, list[tuple[int, int, int, Held]]] = defaultdict(list)
    for number, send in enumerate(schedule.sends):
        if send.link not in lanes:
            continue
        lane = lanes[send.link]
        units = sum(lane.orbits.moves[m].units for m in send.moves)
        for held in lane.holds:
            length = held.alpha + units * held.beta
            begin = send.end_ticks - length if held.receives else send.start_ticks
            queues[held.resource] += [(begin, number, m, held) for m in send.moves if m in lane.units]
    for _, queue in sorted(queues.items()):
        queue.sort(key=lambda each: each[:2])
        for (_, one, a, held_by_a), (_, other, b, held_by_b) in zip(queue, queue[1:], strict=False):
            first, second = (lanes[schedule.sends[i].link] for i in (one, other))
            end, end_us = first.hold_end(a, held_by_a)
            begins, begin_us = second.hold_begin(b, held_by_b)
            row, least = [*begins, *((-factor, variable) for factor, variable in end)], end_us - begin_us
            if first is second and first.merges:
                row.append((-first.upper, first.contiguity.begins[b]))
                least -= first.upper
            first.contiguity.model.add_row(row, least, tag="contiguity.resource")


def merged(orbits: Orbits, contiguity: ContiguityModel, values: NDArray[np.float64]) -> ListSchedule:
    """The sends that a solution of the MILP makes; their times are those of the solution, in whole ticks."""
    batches: list[list[int]] = []
    open_batch: dict[int, list[int]] = {}
    for m in contiguity.order:
        link = orbits.moves[m].link_orbit
        if m in contiguity.begins and values[contiguity.begins[m]] < 0.5:
            open_batch[link].append(m)
            continue
        open_batch[link] = [m]
        batches.append(open_batch[link])
    per_us = orbits.problem.costs.ticks_per_us
    sends = [
        send_of(orbits, moves, max(round(values[contiguity.start[m]] * per_us) for m in moves))
        for moves in batches
    ]
    sends.sort(key=lambda send: send.start_ticks)
    return ListSchedule(tuple(sends), max(send.end_ticks for send in sends))

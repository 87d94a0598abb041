"""Stage 3, contiguity: given the order on every resource, which consecutive sends of a link merge.

A MILP of linear size: sends keep their order, and a binary per send of a merging link says whether it
starts a batch. Merging saves alpha, but makes a batch's first chunks wait for its last. Every block of rows
carries a tag (`TAGS`). Source: Shah et al., "TACCL", NSDI 2023, section 5.3; the rows here are those of a
cumulative completion time, so that no product of binaries is needed.
"""

# p place in a link's order, S start, C completion so far, F arrival, u starts a batch, all times in us

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taccl.solvers.model import MilpModel
from taccl.synthesis.greedy import ListSchedule, Send

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from taccl.synthesis.orbits import Orbits

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
        Its order is kept: of moves on each resource, and of chunks in each of its merged sends.
    """
    per_us = orbits.problem.costs.ticks_per_us
    upper = schedule.finish_ticks / per_us
    model = MilpModel()
    finish = model.add_variable(0, upper, cost=1.0, name="T")
    order = tuple(m for send in schedule.sends for m in send.moves)
    start = {m: model.add_variable(0, upper, name=f"S[{m}]") for m in order}
    arrival = {m: model.add_variable(0, upper, name=f"F[{m}]") for m in order}
    merging = [m for m in order if orbits.merging[orbits.moves[m].link_orbit]]
    begins = {m: model.add_variable(0, 1, integer=True, name=f"u[{m}]") for m in merging}
    contiguity = ContiguityModel(model, start, arrival, begins, order)
    entered: dict[int, int] = {}
    for m in order:
        for p in orbits.moves[m].dsts:
            entered.setdefault(p, m)
    for m in order:
        move = orbits.moves[m]
        for p in move.srcs:
            if not orbits.places[p].is_origin:
                model.add_row(
                    [(1.0, start[m]), (-1.0, arrival[entered[p]])], 0, tag="contiguity.availability"
                )
        model.add_row([(1.0, finish), (-1.0, arrival[m])], 0, tag="contiguity.finish")
        if m not in begins:
            row = [(1.0, arrival[m]), (-1.0, start[m])]
            model.add_row(row, move.duration / per_us, tag="contiguity.completion")
    _batches(orbits, contiguity, upper)
    _resources(orbits, contiguity)
    return contiguity


def _batches(orbits: Orbits, contiguity: ContiguityModel, upper: float) -> None:
    """Moves of one batch share start and arrival; a batch takes alpha once, and starts after the last."""
    model, start, arrival, begins = (
        contiguity.model,
        contiguity.start,
        contiguity.arrival,
        contiguity.begins,
    )
    costs, max_merge = orbits.problem.costs, orbits.problem.clauses.max_merge
    per_us = costs.ticks_per_us
    rows: dict[int, list[int]] = defaultdict(list)
    for m in contiguity.order:
        if m in begins:
            rows[orbits.moves[m].link_orbit].append(m)
    for link, row in sorted(rows.items()):
        alpha = int(costs.link_alpha[orbits.link_rep[link]])
        beta = int(costs.link_beta[orbits.link_rep[link]])
        own_first = orbits.link_rep[link] in orbits.problem.clauses.own_first
        done = {m: model.add_variable(0, upper, name=f"C[{m}]") for m in row}
        for place, m in enumerate(row):
            units = orbits.moves[m].units
            first = [(1.0, done[m]), (-1.0, start[m])]
            model.add_row(first, (alpha + beta * units) / per_us, tag="contiguity.completion")
            model.add_row([(1.0, arrival[m]), (-1.0, done[m])], 0, tag="contiguity.completion")
            if place == 0:
                model.add_row([(1.0, begins[m])], 1, tag="contiguity.batch")
                continue
            before, u = row[place - 1], begins[m]
            step = [(1.0, done[m]), (-1.0, done[before]), (-alpha / per_us, u)]
            model.add_row(step, beta * units / per_us, tag="contiguity.completion")
            model.add_row([(1.0, start[m]), (-1.0, start[before])], 0, tag="contiguity.batch")
            together = [(1.0, arrival[before]), (-1.0, arrival[m]), (upper, u)]
            model.add_row(together, 0, tag="contiguity.batch")
            model.add_row([(1.0, start[before]), (-1.0, start[m]), (upper, u)], 0, tag="contiguity.batch")
            after = [(1.0, start[m]), (-1.0, arrival[before]), (-upper, u)]
            model.add_row(after, -upper, tag="contiguity.batch")
            if own_first and orbits.moves[m].is_own != orbits.moves[before].is_own:
                model.add_row([(1.0, u)], 1, tag="contiguity.batch")
            if place >= max_merge:
                window = [(1.0, begins[n]) for n in row[place - max_merge + 1 : place + 1]]
                model.add_row(window, 1, tag="contiguity.max-merge")


def _resources(orbits: Orbits, contiguity: ContiguityModel) -> None:
    """Neighbours in a resource's order that are on different links, or do not merge, go one by one."""
    queues: dict[int, list[tuple[int, int, int, bool]]] = defaultdict(list)
    for m in contiguity.order:
        for held in orbits.holds[orbits.moves[m].link_orbit]:
            queues[held.resource].append((m, held.alpha, held.beta, held.receives))
    for _, queue in sorted(queues.items()):
        for (a, alpha, beta, receives), (b, alpha_b, beta_b, receives_b) in zip(
            queue, queue[1:], strict=False
        ):
            first, second = orbits.moves[a], orbits.moves[b]
            if first.link_orbit == second.link_orbit and a in contiguity.begins:
                continue
            # A batch's hold ends by its arrival, and earlier by what it is shorter than one send.
            early = 0 if receives else first.duration - alpha - beta * first.units
            late = second.duration - alpha_b - beta_b * second.units if receives_b else 0
            gap = -(min(early, first.duration) + late) / orbits.problem.costs.ticks_per_us
            row = [(1.0, contiguity.start[b]), (-1.0, contiguity.arrival[a])]
            contiguity.model.add_row(row, gap, tag="contiguity.resource")


def merged(orbits: Orbits, contiguity: ContiguityModel, values: NDArray[np.float64]) -> ListSchedule:
    """The sends that a solution of the MILP makes; their times are those of the solution, in whole ticks."""
    costs = orbits.problem.costs
    batches: list[list[int]] = []
    open_batch: dict[int, list[int]] = {}
    for m in contiguity.order:
        link = orbits.moves[m].link_orbit
        if m in contiguity.begins and values[contiguity.begins[m]] < 0.5:
            open_batch[link].append(m)
            continue
        open_batch[link] = [m]
        batches.append(open_batch[link])
    sends = []
    for moves in batches:
        link = orbits.moves[moves[0]].link_orbit
        begin = max(round(values[contiguity.start[m]] * costs.ticks_per_us) for m in moves)
        units = sum(orbits.moves[m].units for m in moves)
        sends.append(Send(link, tuple(moves), begin, begin + costs.duration(orbits.link_rep[link], units)))
    sends.sort(key=lambda send: send.start_ticks)
    return ListSchedule(tuple(sends), max(send.end_ticks for send in sends))

"""Stage 1, routing: which chunk goes over which links, as a MILP on the fold.

One binary per move orbit, one arrival time per place orbit; contention is counted, not yet ordered. Every
block of rows carries a tag, and ``docs/formulation.md`` has one heading per tag (`TAGS`).
Source: Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023,
section 5.1, with symmetry by substitution and tight big-M as measured there.
"""

# m move, p place, x is made, y brings a chunk to a place
# s arrival, T finish, h head (earliest arrival), UB upper bound, all times in us

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taccl.solvers.model import MilpModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from taccl.synthesis.greedy import ListSchedule
    from taccl.synthesis.orbits import Orbits

__all__ = ["TAGS", "RoutingModel", "build_routing", "needed_moves", "routing_hint", "routing_of"]

#: Every block of rows of the routing model.
TAGS = (
    "routing.destination",
    "routing.transit",
    "routing.arrival",
    "routing.order",
    "routing.finish",
    "routing.resource",
    "routing.fan-out",
    "routing.crossing",
    "routing.own-first",
    "routing.switch-policy",
    "routing.link-use",
)


@dataclass(frozen=True, slots=True)
class RoutingModel:
    """The MILP, and which variable is what.

    Parameters
    ----------
    made : dict of move to variable
    taken : dict of (move, place) to variable
        Whether the place has its chunk from the move: of a move to one place, the variable of `made`. (A
        multicast may also lead to where the chunk is already.)
    arrival : dict of place to variable
    finish : int
        The variable T.
    """

    model: MilpModel
    made: dict[int, int]
    taken: dict[tuple[int, int], int]
    arrival: dict[int, int]
    finish: int


def build_routing(orbits: Orbits, *, upper_ticks: int, lower_ticks: int = 0) -> RoutingModel:
    """The routing MILP of a fold.

    Parameters
    ----------
    upper_ticks : int
        The finish of a known schedule: arrivals later than this are of no use.
    lower_ticks : int
        A proven lower bound of the problem.
    """
    per_us = orbits.problem.costs.ticks_per_us
    upper = upper_ticks / per_us
    model = MilpModel()
    finish = model.add_variable(lower_ticks / per_us, upper, cost=1.0, name="T")
    made = {
        m: model.add_variable(0, 1, integer=True, name=f"x[{move.chunk},{move.link}]")
        for m, move in enumerate(orbits.moves)
        if _in_time(orbits, m, upper_ticks)
    }
    arrival = {
        p: model.add_variable(
            min(place.head_ticks, upper_ticks) / per_us, upper, name=f"s[{place.chunk},{place.rank}]"
        )
        for p, place in enumerate(orbits.places)
        if not place.is_origin
    }
    taken = {}
    for m, x in made.items():
        move = orbits.moves[m]
        for p in move.dsts:
            name = f"y[{move.chunk},{move.link},{orbits.places[p].rank}]"
            alone = len(move.dsts) == 1
            taken[m, p] = x if alone else model.add_variable(0, 1, integer=True, name=name)
    routing = RoutingModel(model, made, taken, arrival, finish)
    _flow(orbits, routing)
    _arrivals(orbits, routing, upper_ticks)
    _resources(orbits, routing)
    _fan_out(orbits, routing)
    _crossings(orbits, routing)
    _own_first(orbits, routing, upper_ticks)
    _switch_policies(orbits, routing)
    _link_use(orbits, routing)
    return routing


def routing_of(orbits: Orbits, routing: RoutingModel, values: NDArray[np.float64]) -> list[tuple[int, int]]:
    """The (chunk, link) pairs, all members of every orbit, that a solution of the MILP makes."""
    chosen = [m for m, x in routing.made.items() if values[x] > 0.5]
    return sorted({pair for m in chosen for pair in orbits.members(m)})


def routing_hint(orbits: Orbits, routing: RoutingModel, schedule: ListSchedule) -> NDArray[np.float64] | None:
    """A schedule on the same fold as a start for the MILP; None if it uses a move that the MILP lacks.

    A chunk arrives when it would have if its send had carried no other: on a link where own chunks go first,
    relayed ones wait for no more than that.
    """
    import numpy as np

    per_us = orbits.problem.costs.ticks_per_us
    values = np.zeros(routing.model.num_variables)
    for p, s in routing.arrival.items():
        values[s] = min(orbits.places[p].head_ticks, schedule.finish_ticks) / per_us
    start_ticks = {m: send.start_ticks for send in reversed(schedule.sends) for m in send.moves}
    for p, m in _needed_entries(orbits, schedule).items():
        if m not in routing.made:
            return None
        values[routing.made[m]] = 1.0
        values[routing.taken[m, p]] = 1.0
        values[routing.arrival[p]] = (start_ticks[m] + orbits.moves[m].duration) / per_us
    values[routing.finish] = schedule.finish_ticks / per_us
    return values


def needed_moves(orbits: Orbits, schedule: ListSchedule) -> set[int]:
    """The moves of a schedule that lead to a destination."""
    return set(_needed_entries(orbits, schedule).values())


def _needed_entries(orbits: Orbits, schedule: ListSchedule) -> dict[int, int]:
    """The move that first brings the chunk to each place from which it is needed somewhere, or where."""
    first = {p: m for send in reversed(schedule.sends) for m in send.moves for p in orbits.moves[m].dsts}
    needed: dict[int, int] = {}
    pending = [p for p, place in enumerate(orbits.places) if place.is_destination]
    while pending:
        p = pending.pop()
        if p in first and p not in needed:
            needed[p] = first[p]
            pending.extend(orbits.moves[first[p]].srcs)
    return needed


def _in_time(orbits: Orbits, m: int, upper_ticks: int) -> bool:
    move = orbits.moves[m]
    head = max(orbits.places[p].head_ticks for p in move.srcs)
    return head + move.duration + move.after_ticks <= upper_ticks


def _flow(orbits: Orbits, routing: RoutingModel) -> None:
    """Each destination takes its chunk from one move; a chunk leaves only where it has come."""
    model, made = routing.model, routing.made
    for p, place in enumerate(orbits.places):
        entering = [(1.0, routing.taken[m, p]) for m in place.moves_in if m in made]
        leaving = [m for m in place.moves_out if m in made]
        single = orbits.single_path[place.chunk]
        if place.is_origin:
            if single and leaving and not place.is_destination:
                row = [(1.0, made[m]) for m in leaving]
                model.add_row(row, -float("inf"), 1, tag="routing.destination")
            continue
        if place.is_destination:
            model.add_row(entering, 1, 1, tag="routing.destination")
        elif single:
            model.add_row(entering + [(-1.0, made[m]) for m in leaving], 0, 0, tag="routing.transit")
        else:
            model.add_row(entering, -float("inf"), 1, tag="routing.transit")
            for m in leaving:
                model.add_row([*entering, (-1.0, made[m])], 0, tag="routing.transit")
    for m, x in made.items():
        dsts = orbits.moves[m].dsts
        if len(dsts) > 1:
            taken = [routing.taken[m, p] for p in dsts]
            model.add_row([*((1.0, y) for y in taken), (-1.0, x)], 0, tag="routing.transit")
            for y in taken:
                model.add_row([(1.0, x), (-1.0, y)], 0, tag="routing.transit")


def _arrivals(orbits: Orbits, routing: RoutingModel, upper_ticks: int) -> None:
    """s_r >= h_r + sum (h_a + l - h_r) y, and s_r >= s_a + l - M (1 - y) with M = UB + l - h_r."""
    model, taken, arrival = routing.model, routing.taken, routing.arrival
    per_us = orbits.problem.costs.ticks_per_us
    for p, place in enumerate(orbits.places):
        if place.is_origin:
            continue
        head = min(place.head_ticks, upper_ticks)
        lifted = [(1.0, arrival[p])]
        for m in place.moves_in:
            if (m, p) in taken:
                move = orbits.moves[m]
                start = max(orbits.places[a].head_ticks for a in move.srcs)
                lifted.append(((head - start - move.duration) / per_us, taken[m, p]))
        model.add_row(lifted, head / per_us, tag="routing.arrival")
        for m in place.moves_in:
            if (m, p) not in taken:
                continue
            length = orbits.moves[m].duration
            big = upper_ticks + length - head
            for a in orbits.moves[m].srcs:
                before = [] if orbits.places[a].is_origin else [(-1.0, arrival[a])]
                row = [(1.0, arrival[p]), *before, (-big / per_us, taken[m, p])]
                model.add_row(row, (length - big) / per_us, tag="routing.order")
        if place.is_destination:
            model.add_row([(1.0, routing.finish), (-1.0, arrival[p])], 0, tag="routing.finish")


def _resources(orbits: Orbits, routing: RoutingModel) -> None:
    """T >= the load of every resource: on a merging link a chunk counts beta + alpha / max_merge."""
    max_merge, per_us = orbits.problem.clauses.max_merge, orbits.problem.costs.ticks_per_us
    size_of_resource = Counter(orbits.resource_orbit)
    load: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for m, x in routing.made.items():
        move = orbits.moves[m]
        members = orbits.num_members(m)
        for held in orbits.holds[move.link_orbit]:
            share = max_merge if orbits.merging[move.link_orbit] else 1
            ticks = members * held.count * (held.alpha + share * held.beta * move.units)
            load[held.resource].append((-ticks / (share * size_of_resource[held.resource] * per_us), x))
    for _, terms in sorted(load.items()):
        routing.model.add_row([(1.0, routing.finish), *terms], 0, tag="routing.resource")


def _fan_out(orbits: Orbits, routing: RoutingModel) -> None:
    """T >= s_p + what the copies of one chunk hold of one resource as they leave one rank."""
    per_us = orbits.problem.costs.ticks_per_us
    for p, place in enumerate(orbits.places):
        leaving: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for m in place.moves_out:
            if m not in routing.made or orbits.merging[orbits.moves[m].link_orbit]:
                continue
            for resource, ticks in _holds_at(orbits, m, place.chunk, place.rank).items():
                leaving[resource].append((-ticks / per_us, routing.made[m]))
        for _, terms in sorted(leaving.items()):
            if len(terms) < 2:
                continue
            row = [(1.0, routing.finish), *terms]
            if not place.is_origin:
                row.append((-1.0, routing.arrival[p]))
            routing.model.add_row(row, 0, tag="routing.fan-out")


def _holds_at(orbits: Orbits, m: int, chunk: int, rank: int) -> dict[int, int]:
    """What the members of a move that take a chunk from a rank hold, and for how long."""
    move, topology = orbits.moves[m], orbits.problem.topology
    held: dict[int, int] = defaultdict(int)
    for link in move.links if orbits.group.chunks[move.chunk] == chunk else ():
        if rank in topology.links[link].srcs:
            for index, hold in orbits.indexed_holds[link]:
                alpha = int(orbits.problem.costs.hold_alpha[index])
                held[hold.resource] += alpha + move.units * int(orbits.problem.costs.hold_beta[index])
    return held


def _crossings(orbits: Orbits, routing: RoutingModel) -> None:
    """A chunk enters each node that needs it and lacks it at least once."""
    topology, collective = orbits.problem.topology, orbits.problem.collective
    node = topology.node_of_rank
    into: dict[tuple[int, int], set[int]] = defaultdict(set)
    for m, x in routing.made.items():
        c = int(orbits.group.chunks[orbits.moves[m].chunk])
        for e in filter(topology.is_internode, orbits.moves[m].links):
            for r in topology.links[e].dsts:
                into[c, node[r]].add(x)
    for (c, n), variables in sorted(into.items()):
        data = collective.chunks[c]
        starts = {node[r] for r in data.origins}
        needs = any(node[r] == n for r in data.destinations)
        if needs and n not in starts and not collective.derivations:
            routing.model.add_row([(1.0, x) for x in sorted(variables)], 1, tag="routing.crossing")


def _own_first(orbits: Orbits, routing: RoutingModel, upper_ticks: int) -> None:
    """Where own chunks go first: s_relayed >= s_own + its own duration, where both use the link.

    The relayed chunk leaves no earlier than an own one that leaves when it must would arrive alone, and so
    not before the arrival that the model knows of.
    """
    model, taken, per_us = routing.model, routing.taken, orbits.problem.costs.ticks_per_us
    for link, rep in enumerate(orbits.link_rep):
        if rep not in orbits.problem.clauses.own_first:
            continue
        ends = [(m, p) for m in orbits.moves_of_link[link] if m in routing.made for p in orbits.moves[m].dsts]
        for own in (each for each in ends if orbits.moves[each[0]].is_own):
            for relayed in (each for each in ends if not orbits.moves[each[0]].is_own):
                length = orbits.moves[relayed[0]].duration
                big = upper_ticks + length - orbits.places[relayed[1]].head_ticks
                model.add_row(
                    [
                        (1.0, routing.arrival[relayed[1]]),
                        (-1.0, routing.arrival[own[1]]),
                        (-big / per_us, taken[own]),
                        (-big / per_us, taken[relayed]),
                    ],
                    (length - 2 * big) / per_us,
                    tag="routing.own-first",
                )


def _switch_policies(orbits: Orbits, routing: RoutingModel) -> None:
    """T +- mu * (connections of a switch in use): u >= x to use few, u <= sum x to use many."""
    weight = float(orbits.problem.clauses.objective_weight)
    users: dict[int, list[int]] = defaultdict(list)
    for m, x in routing.made.items():
        users[orbits.moves[m].link_orbit].append(x)
    number = {e: orbits.link_orbit[e] for e in range(len(orbits.problem.topology.links))}
    for policy in orbits.problem.clauses.switch_policies:
        if policy.policy == "free":
            continue
        counts: dict[int, int] = defaultdict(int)
        for e in policy.links:
            counts[number[e]] += 1
        for link, count in sorted(counts.items()):
            if not users.get(link):
                continue
            few = policy.policy == "min-connections"
            cost = (weight if few else -weight) * count
            used = routing.model.add_variable(
                0, 1, integer=True, cost=cost, name=f"u[{orbits.link_rep[link]}]"
            )
            if few:
                for x in users[link]:
                    routing.model.add_row([(1.0, used), (-1.0, x)], 0, tag="routing.switch-policy")
            else:
                row = [(1.0, used), *((-1.0, x) for x in users[link])]
                routing.model.add_row(row, -float("inf"), 0, tag="routing.switch-policy")


def _link_use(orbits: Orbits, routing: RoutingModel) -> None:
    """T + mu * (uses of the busiest link), or T - mu * (uses of the idlest), inside nodes."""
    clauses, topology = orbits.problem.clauses, orbits.problem.topology
    if clauses.link_use == "free":
        return
    busiest = clauses.link_use == "min-max"
    weight = float(clauses.objective_weight)
    bound = routing.model.add_variable(
        0, orbits.problem.collective.num_chunks, cost=weight if busiest else -weight, name="use"
    )
    uses: dict[int, list[tuple[float, int]]] = defaultdict(list)
    sizes = Counter(orbits.link_orbit)
    for m, x in routing.made.items():
        uses[orbits.moves[m].link_orbit].append((float(orbits.num_members(m)), x))
    for link, terms in sorted(uses.items()):
        if topology.is_internode(orbits.link_rep[link]):
            continue
        per_link = [(-count / sizes[link], x) for count, x in terms]
        low, high = (0.0, float("inf")) if busiest else (-float("inf"), 0.0)
        routing.model.add_row([(1.0, bound), *per_link], low, high, tag="routing.link-use")

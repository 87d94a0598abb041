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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taccl.solvers.model import MilpModel
from taccl.synthesis.paper.sequencing import Pair, Windows, pairs_apart

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from taccl.problem import Problem
    from taccl.synthesis.greedy import ListSchedule
    from taccl.synthesis.paper.orbits import Orbits

__all__ = [
    "TAGS",
    "RoutingModel",
    "build_routing",
    "needed_moves",
    "routing_hint",
    "routing_of",
    "wants_more",
]

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
    "routing.hops",
    "routing.own-first",
    "routing.switch-policy",
    "routing.link-use",
    "routing.sequence",
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
    start : dict of move to variable
        When it starts, of moves to several places that are kept apart from others.
    goes_first : dict of Pair to variable
        Whether the first of two moves goes first, where both orders are possible.
    connections : dict of variable to list of variable
        Whether a connection of a switch with a policy is used, and the moves over it.
    uses : dict of variable to list of (factor, variable) per link
        The uses of the busiest, or of the idlest, link inside nodes, and what counts for each link.
    passed : dict of place to variable
        How many links the chunk has passed there, where the problem limits that.
    """

    model: MilpModel
    made: dict[int, int]
    taken: dict[tuple[int, int], int]
    arrival: dict[int, int]
    finish: int
    start: dict[int, int] = field(default_factory=dict)
    goes_first: dict[Pair, int] = field(default_factory=dict)
    connections: dict[int, list[int]] = field(default_factory=dict)
    uses: dict[int, list[list[tuple[float, int]]]] = field(default_factory=dict)
    passed: dict[int, int] = field(default_factory=dict)


def build_routing(
    orbits: Orbits, *, upper_ticks: int, lower_ticks: int = 0, sequenced: Collection[int] = ()
) -> RoutingModel:
    """The routing MILP of a fold.

    Parameters
    ----------
    upper_ticks : int
        The finish of a known schedule: arrivals later than this are of no use.
    lower_ticks : int
        A proven lower bound of the problem, or of the model.
    sequenced : collection of int
        Resources that moves hold one after another, instead of being counted alone. No two members of a move
        may meet there, so the fold is to be the one by which times fold.
    """
    per_us = orbits.problem.costs.ticks_per_us
    upper = upper_ticks / per_us
    windows = Windows(orbits, upper_ticks)
    model = MilpModel()
    finish = model.add_variable(lower_ticks / per_us, upper, cost=1.0, name="T")
    made = {
        m: model.add_variable(0, 1, integer=True, name=f"x[{orbits.moves[m].chunk},{orbits.moves[m].link}]")
        for m in windows.earliest
    }
    arrival = {
        p: model.add_variable(
            min(place.head_ticks, upper_ticks) / per_us,
            windows.due[p] / per_us if sequenced else upper,
            name=f"s[{place.chunk},{place.rank}]",
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
    _hops(orbits, routing)
    _own_first(orbits, routing, upper_ticks)
    _switch_policies(orbits, routing)
    _link_use(orbits, routing)
    if sequenced:
        _sequence(orbits, routing, windows, pairs_apart(orbits, windows, sequenced))
    return routing


def wants_more(problem: Problem) -> bool:
    """Whether the routing model of a problem minimises more than the finish."""
    clauses = problem.clauses
    return clauses.link_use != "free" or any(each.policy != "free" for each in clauses.switch_policies)


def routing_of(
    orbits: Orbits, routing: RoutingModel, values: NDArray[np.float64]
) -> dict[tuple[int, int], int]:
    """The (chunk, link) pairs that a solution makes, with all members, and when it starts them, in ticks."""
    per_us = orbits.problem.costs.ticks_per_us
    starts: dict[tuple[int, int], int] = {}
    for m, x in routing.made.items():
        if values[x] > 0.5:
            ends = [
                values[routing.arrival[p]] for p in orbits.moves[m].dsts if values[routing.taken[m, p]] > 0.5
            ]
            start = round(min(ends) * per_us) - orbits.moves[m].duration
            starts |= dict.fromkeys(orbits.members(m), start)
    return dict(sorted(starts.items()))


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
    passed: dict[int, int] = {}
    for p, m in _needed_entries(orbits, schedule).items():
        if m not in routing.made:
            return None
        values[routing.made[m]] = 1.0
        values[routing.taken[m, p]] = 1.0
        values[routing.arrival[p]] = (start_ticks[m] + orbits.moves[m].duration) / per_us
        passed[p] = m
    for p, u in routing.passed.items():
        assert orbits.hops is not None, "there are variables of hops"
        values[u] = _links_to(orbits, passed, p) if p in passed else orbits.hops.least[p]
    values[routing.finish] = schedule.finish_ticks / per_us
    made = {m: start for m, start in start_ticks.items() if m in routing.made and values[routing.made[m]]}
    for m, start in routing.start.items():
        values[start] = made.get(m, max(orbits.places[p].head_ticks for p in orbits.moves[m].srcs)) / per_us
    for used, users in routing.connections.items():
        values[used] = max(values[x] for x in users)
    for use, links in routing.uses.items():
        extreme = max if orbits.problem.clauses.link_use == "min-max" else min
        values[use] = extreme((sum(count * values[x] for count, x in terms) for terms in links), default=0)
    for pair, first in routing.goes_first.items():
        if pair.first in made and pair.second in made:
            values[first] = made[pair.second] - made[pair.first] >= pair.gap
    return values


def _links_to(orbits: Orbits, entry: dict[int, int], p: int) -> int:
    """How many links a chunk has passed at a place, from the move that enters each."""
    assert orbits.hops is not None, "links are counted"
    if orbits.places[p].is_origin:
        return 0
    if entry[p] in orbits.hops.starts_anew:
        return 1
    return 1 + max(_links_to(orbits, entry, a) for a in orbits.moves[entry[p]].srcs)


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


def _hops(orbits: Orbits, routing: RoutingModel) -> None:
    """Where paths are limited: u_r >= u_a + 1 - M (1 - y), u at most the limit less the links ahead."""
    hops, model = orbits.hops, routing.model
    if hops is None:
        return
    for p in routing.arrival:
        least, most = hops.least[p], max(hops.least[p], hops.limit - hops.left[p])
        name = f"u[{orbits.places[p].chunk},{orbits.places[p].rank}]"
        routing.passed[p] = model.add_variable(least, most, name=name)
    for (m, p), y in routing.taken.items():
        if p not in routing.passed or m in hops.starts_anew:
            continue
        for a in orbits.moves[m].srcs:
            most = 0 if orbits.places[a].is_origin else max(hops.least[a], hops.limit - hops.left[a])
            big = float(most + 1 - hops.least[p])
            before = [] if orbits.places[a].is_origin else [(-1.0, routing.passed[a])]
            if big > 0:
                model.add_row([(1.0, routing.passed[p]), *before, (-big, y)], 1.0 - big, tag="routing.hops")


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
            routing.connections[used] = users[link]
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
    routing.uses[bound] = []
    uses: dict[int, list[tuple[float, int]]] = defaultdict(list)
    sizes = Counter(orbits.link_orbit)
    for m, x in routing.made.items():
        uses[orbits.moves[m].link_orbit].append((float(orbits.num_members(m)), x))
    for link, terms in sorted(uses.items()):
        if topology.is_internode(orbits.link_rep[link]):
            continue
        routing.uses[bound].append([(count / sizes[link], x) for count, x in terms])
        per_link = [(-count / sizes[link], x) for count, x in terms]
        low, high = (0.0, float("inf")) if busiest else (-float("inf"), 0.0)
        routing.model.add_row([(1.0, bound), *per_link], low, high, tag="routing.link-use")


def _sequence(orbits: Orbits, routing: RoutingModel, windows: Windows, pairs: Sequence[Pair]) -> None:
    """One of two moves that are made waits for the other: s_b >= s_a + gap, or the other way round.

    With M as large as it must be for the pair, for each of the three reasons for which a row says nothing.
    """
    model, made = routing.model, routing.made
    several = {m for pair in pairs for m in (pair.first, pair.second) if len(orbits.moves[m].dsts) > 1}
    for m in sorted(several):
        routing.start[m] = _start_of_multicast(orbits, routing, windows, m)
    for pair in pairs:
        a, b = pair.first, pair.second
        forth = windows.earliest[a] + pair.gap <= windows.latest[b]
        back = windows.earliest[b] + pair.reverse_gap <= windows.latest[a]
        if not forth and not back:
            model.add_row([(-1.0, made[a]), (-1.0, made[b])], -1, tag="routing.sequence")
        first = None
        if forth and back:
            first = routing.goes_first[pair] = model.add_variable(0, 1, integer=True, name=f"o[{a},{b}]")
        if forth:
            _one_after_other(orbits, routing, windows, (a, b, pair.gap), first, goes_first=1)
        if back:
            _one_after_other(orbits, routing, windows, (b, a, pair.reverse_gap), first, goes_first=0)


def _start_of_multicast(orbits: Orbits, routing: RoutingModel, windows: Windows, m: int) -> int:
    """When a multicast starts: after its sources have the chunk, and its duration before it arrives."""
    model, move, per_us = routing.model, orbits.moves[m], orbits.problem.costs.ticks_per_us
    earliest, latest = windows.earliest[m], windows.latest[m]
    start = model.add_variable(earliest / per_us, latest / per_us, name=f"S[{m}]")
    for p in move.srcs:
        if not orbits.places[p].is_origin:
            big = (windows.due[p] - earliest) / per_us
            row = [(1.0, start), (-1.0, routing.arrival[p]), (-big, routing.made[m])]
            model.add_row(row, -big, tag="routing.sequence")
    for p in move.dsts:
        big = latest + move.duration - orbits.places[p].head_ticks
        row = [(1.0, routing.arrival[p]), (-1.0, start), (-big / per_us, routing.taken[m, p])]
        model.add_row(row, (move.duration - big) / per_us, tag="routing.sequence")
    return start


def _one_after_other(
    orbits: Orbits,
    routing: RoutingModel,
    windows: Windows,
    wait: tuple[int, int, int],
    first: int | None,
    *,
    goes_first: int,
) -> None:
    """For (a, b, gap) s_b >= s_a + gap, if both are made and, where there is a binary, it is `goes_first`."""
    a, b, gap = wait
    made, per_us = routing.made, orbits.problem.costs.ticks_per_us
    (until, after, soonest, _), (since, ahead, _, latest) = (
        _start(orbits, routing, windows, m) for m in (b, a)
    )
    big = max(0, latest + gap - windows.earliest[b])
    unmade = max(0, latest + gap - soonest)
    row = [(1.0, until), (-1.0, since), (-big / per_us, made[a]), (-unmade / per_us, made[b])]
    least = gap + after - ahead - big - unmade
    if first is not None:
        row.append(((-big if goes_first else big) / per_us, first))
        least -= goes_first * big
    routing.model.add_row(row, least / per_us, tag="routing.sequence")


def _start(orbits: Orbits, routing: RoutingModel, windows: Windows, m: int) -> tuple[int, int, int, int]:
    """A variable, how many ticks before it the move starts, and the bounds of that start, made or not."""
    if m in routing.start:
        return routing.start[m], 0, windows.earliest[m], windows.latest[m]
    p, duration = orbits.moves[m].dsts[0], orbits.moves[m].duration
    return routing.arrival[p], duration, orbits.places[p].head_ticks - duration, windows.due[p] - duration

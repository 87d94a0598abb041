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
from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from itertools import product

import numpy as np
from numpy.typing import NDArray

from taccl.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.solvers.model import MilpModel
from taccl.synthesis.greedy import ListSchedule, Send
from taccl.synthesis.paper.orbits import Orbits
from taccl.synthesis.paper.sequencing import Pair, Windows, pairs_apart

#: Every block of rows of the routing model.
TAGS = (
    "routing.destination",
    "routing.transit",
    "routing.arrival",
    "routing.order",
    "routing.finish",
    "routing.resource",
    "routing.crossing",
    "routing.hops",
    "routing.own-first",
    "routing.switch-policy",
    "routing.link-use",
    "routing.sequence",
)


class RoutingModel:
    """The MILP, and which variable is what.

    - `upper_ticks`: The finish of a known schedule: arrivals later than this are of no use.
    - `lower_ticks`: A proven lower bound of the problem, or of the model.
    - `sequenced`: Resources that moves hold one after another, instead of being counted alone. No two members
      of a move may meet there, so the fold is to be the one by which times fold.
    - `made`: dict of move to variable.
    - `taken` (dict of (move, place) to variable): Whether the place has its chunk from the move: of a move to
      one place, the variable of `made`. (A multicast may also lead to where the chunk is already.)
    - `arrival`: dict of place to variable.
    - `finish` (int): The variable T.
    - `start` (dict of move to variable): When it starts, of moves to several places that are kept apart from
      others.
    - `goes_first` (dict of Pair to variable): Whether the first of two moves goes first, where both orders
      are possible.
    - `connections` (dict of variable to list of variable): Whether a connection of a switch with a policy is
      used, and the moves over it.
    - `uses` (dict of variable to list of (factor, variable) per link): The uses of the busiest, or of the
      idlest, link inside nodes, and what counts for each link.
    - `passed` (dict of place to variable): How many links the chunk has passed there, where the problem
      limits that.
    """

    def __init__(
        self, orbits: Orbits, *, upper_ticks: int, lower_ticks: int = 0, sequenced: Collection[int] = ()
    ) -> None:
        self.orbits, self.upper_ticks = orbits, upper_ticks
        self.per_us = per_us = orbits.problem.costs.ticks_per_us
        self.windows = windows = Windows(orbits, upper_ticks)
        self.model = model = MilpModel()
        self.finish = model.add_variable(lower_ticks / per_us, upper_ticks / per_us, cost=1.0)
        self.made = {m: model.add_variable(0, 1, integer=True) for m in windows.earliest}
        self.arrival = {
            p: model.add_variable(
                min(place.head_ticks, upper_ticks) / per_us,
                (windows.due[p] if sequenced else upper_ticks) / per_us,
            )
            for p, place in enumerate(orbits.places)
            if not place.is_origin
        }
        self.taken = {
            (m, p): x if len(orbits.moves[m].dsts) == 1 else model.add_variable(0, 1, integer=True)
            for m, x in self.made.items()
            for p in orbits.moves[m].dsts
        }
        self.start: dict[int, int] = {}
        self.goes_first: dict[Pair, int] = {}
        self.connections: dict[int, list[int]] = {}
        self.uses: dict[int, list[list[tuple[float, int]]]] = {}
        self.passed: dict[int, int] = {}
        self._flow()
        self._arrivals()
        self._resources()
        self._crossings()
        self._hops()
        self._own_first()
        self._switch_policies()
        self._link_use()
        if sequenced:
            self._sequence(pairs_apart(orbits, windows, sequenced))

    def _no_sooner(
        self,
        tag: str,
        late: int,
        early: int | None,
        terms: Iterable[tuple[int | Fraction, int]] = (),
        ticks: int = 0,
    ) -> None:
        """A row ``late - early + terms >= ticks``: two times, of which `early` may be 0, and binaries.

        Ticks become us in one division each, so that `taccl.solvers.scaling` finds the fractions again.
        """
        row = [(1.0, late), *((float(factor / self.per_us), x) for factor, x in terms)]
        if early is not None:
            row.append((-1.0, early))
        self.model.add_row(row, ticks / self.per_us, tag=f"routing.{tag}")

    def _flow(self) -> None:
        """Each destination takes its chunk from one move; a chunk leaves only where it has come."""
        orbits, model, made = self.orbits, self.model, self.made
        for p, place in enumerate(orbits.places):
            entering = [(1.0, self.taken[m, p]) for m in place.moves_in if m in made]
            leaving = [(-1.0, made[m]) for m in place.moves_out if m in made]
            single = orbits.single_path[place.chunk]
            if place.is_origin:
                if single and leaving and not place.is_destination:
                    model.add_row(leaving, -1, tag="routing.destination")
            elif place.is_destination:
                model.add_row(entering, 1, 1, tag="routing.destination")
            elif single:
                model.add_row(entering + leaving, 0, 0, tag="routing.transit")
            else:
                model.add_row(entering, upper=1, tag="routing.transit")
                for each in leaving:
                    model.add_row([*entering, each], 0, tag="routing.transit")
        for m, x in made.items():
            dsts = orbits.moves[m].dsts
            if len(dsts) > 1:
                taken = [(1.0, self.taken[m, p]) for p in dsts]
                model.add_row([*taken, (-1.0, x)], 0, tag="routing.transit")
                for _, y in taken:
                    model.add_row([(1.0, x), (-1.0, y)], 0, tag="routing.transit")

    def _arrivals(self) -> None:
        """s_r >= h_r + sum (h_a + l - h_r) y, and s_r >= s_a + l - M (1 - y) with M = UB + l - h_r."""
        orbits = self.orbits
        for p, arrival in self.arrival.items():
            place = orbits.places[p]
            head = min(place.head_ticks, self.upper_ticks)
            into = [(orbits.moves[m], self.taken[m, p]) for m in place.moves_in if (m, p) in self.taken]
            lifted = [(head - orbits.earliest_start(move) - move.duration, y) for move, y in into]
            self._no_sooner("arrival", arrival, None, lifted, head)
            for move, y in into:
                big = self.upper_ticks + move.duration - head
                for a in move.srcs:
                    self._no_sooner("order", arrival, self.arrival.get(a), [(-big, y)], move.duration - big)
            if place.is_destination:
                self._no_sooner("finish", self.finish, arrival)

    def _resources(self) -> None:
        """T >= the load of every resource: on a merging link a chunk counts beta + alpha / max_merge."""
        orbits = self.orbits
        size_of_resource = Counter(orbits.resource_orbit)
        load: dict[int, list[tuple[Fraction, int]]] = defaultdict(list)
        for m, x in self.made.items():
            move = orbits.moves[m]
            share = orbits.problem.clauses.max_merge if orbits.merging[move.link_orbit] else 1
            for held in orbits.holds[move.link_orbit]:
                ticks = orbits.num_members(m) * held.count * (held.alpha + share * held.beta * move.units)
                load[held.resource].append((Fraction(-ticks, share * size_of_resource[held.resource]), x))
        for _, terms in sorted(load.items()):
            self._no_sooner("resource", self.finish, None, terms)

    def _crossings(self) -> None:
        """A chunk enters each node that needs it and lacks it at least once."""
        topology, collective = self.orbits.problem.topology, self.orbits.problem.collective
        node = topology.node_of_rank
        into: dict[tuple[int, int], set[int]] = defaultdict(set)
        for m, x in self.made.items() if not collective.derivations else ():
            c = int(self.orbits.group.chunks[self.orbits.moves[m].chunk])
            for e in filter(topology.is_internode, self.orbits.moves[m].links):
                for r in topology.links[e].dsts:
                    into[c, node[r]].add(x)
        for (c, n), variables in sorted(into.items()):
            data = collective.chunks[c]
            if n in {node[r] for r in data.destinations} - {node[r] for r in data.origins}:
                self.model.add_row([(1.0, x) for x in sorted(variables)], 1, tag="routing.crossing")

    def _hops(self) -> None:
        """Where paths are limited: u_r >= u_a + 1 - M (1 - y), u at most the limit less the links ahead."""
        hops, model = self.orbits.hops, self.model
        if hops is None:
            return
        most = [max(least, hops.limit - left) for least, left in zip(hops.least, hops.left, strict=True)]
        self.passed = {p: model.add_variable(hops.least[p], most[p]) for p in self.arrival}
        for (m, p), y in self.taken.items():
            if p not in self.passed or m in hops.starts_anew:
                continue
            for a in self.orbits.moves[m].srcs:
                is_start = self.orbits.places[a].is_origin
                big = float((0 if is_start else most[a]) + 1 - hops.least[p])
                before = [] if is_start else [(-1.0, self.passed[a])]
                if big > 0:
                    model.add_row([(1.0, self.passed[p]), *before, (-big, y)], 1.0 - big, tag="routing.hops")

    def _own_first(self) -> None:
        """Where own chunks go first: s_relayed >= s_own + its own duration, where both use the link.

        The relayed chunk leaves no earlier than an own one that leaves when it must would arrive alone, and
        so not before the arrival that the model knows of.
        """
        orbits, moves = self.orbits, self.orbits.moves
        for link, rep in enumerate(orbits.link_rep):
            if rep not in orbits.problem.clauses.own_first:
                continue
            ends = [(m, p) for m in orbits.moves_of_link[link] if m in self.made for p in moves[m].dsts]
            for own, relayed in product(ends, ends):
                if moves[own[0]].is_own and not moves[relayed[0]].is_own:
                    length = moves[relayed[0]].duration
                    big = self.upper_ticks + length - orbits.places[relayed[1]].head_ticks
                    both = [(-big, self.taken[own]), (-big, self.taken[relayed])]
                    late, early = self.arrival[relayed[1]], self.arrival[own[1]]
                    self._no_sooner("own-first", late, early, both, length - 2 * big)

    def _switch_policies(self) -> None:
        """T +- mu * (connections of a switch in use): u >= x to use few, u <= sum x to use many."""
        orbits, model, tag = self.orbits, self.model, "routing.switch-policy"
        weight = float(orbits.problem.clauses.objective_weight)
        users: dict[int, list[int]] = defaultdict(list)
        for m, x in self.made.items():
            users[orbits.moves[m].link_orbit].append(x)
        for policy in orbits.problem.clauses.switch_policies:
            few = policy.policy == "min-connections"
            counts = Counter(orbits.link_orbit[e] for e in policy.links if policy.policy != "free")
            for link in sorted(counts.keys() & users.keys()):
                cost = (weight if few else -weight) * counts[link]
                used = model.add_variable(0, 1, integer=True, cost=cost)
                self.connections[used] = users[link]
                if few:
                    for x in users[link]:
                        model.add_row([(1.0, used), (-1.0, x)], 0, tag=tag)
                else:
                    model.add_row([(1.0, used), *((-1.0, x) for x in users[link])], upper=0, tag=tag)

    def _link_use(self) -> None:
        """T + mu * (uses of the busiest link), or T - mu * (uses of the idlest), inside nodes."""
        orbits, clauses = self.orbits, self.orbits.problem.clauses
        if clauses.link_use == "free":
            return
        sign = 1.0 if clauses.link_use == "min-max" else -1.0
        most, weight = orbits.problem.collective.num_chunks, float(clauses.objective_weight)
        bound = self.model.add_variable(0, most, cost=sign * weight)
        uses: dict[int, list[tuple[float, int]]] = defaultdict(list)
        sizes = Counter(orbits.link_orbit)
        for m, x in self.made.items():
            link = orbits.moves[m].link_orbit
            if not orbits.problem.topology.is_internode(orbits.link_rep[link]):
                uses[link].append((orbits.num_members(m) / sizes[link], x))
        self.uses[bound] = [terms for _, terms in sorted(uses.items())]
        for terms in self.uses[bound]:
            row = [(sign, bound), *((-sign * count, x) for count, x in terms)]
            self.model.add_row(row, 0, tag="routing.link-use")

    def _sequence(self, pairs: Sequence[Pair]) -> None:
        """One of two moves that are made waits for the other: s_b >= s_a + gap, or the other way round.

        With M as large as it must be for the pair, for each of the three reasons for which a row says
        nothing.
        """
        model, made, windows = self.model, self.made, self.windows
        both = {m for pair in pairs for m in (pair.first, pair.second)}
        for m in sorted(m for m in both if len(self.orbits.moves[m].dsts) > 1):
            self.start[m] = self._start_of_multicast(m)
        for pair in pairs:
            a, b = pair.first, pair.second
            forth = windows.earliest[a] + pair.gap <= windows.latest[b]
            back = windows.earliest[b] + pair.reverse_gap <= windows.latest[a]
            if not forth and not back:
                model.add_row([(-1.0, made[a]), (-1.0, made[b])], -1, tag="routing.sequence")
            first = None
            if forth and back:
                first = self.goes_first[pair] = model.add_variable(0, 1, integer=True)
            if forth:
                self._one_after_other(a, b, pair.gap, first, goes_first=1)
            if back:
                self._one_after_other(b, a, pair.reverse_gap, first, goes_first=0)

    def _start_of_multicast(self, m: int) -> int:
        """When a multicast starts: after its sources have the chunk, and its duration before it arrives."""
        move, earliest, latest = self.orbits.moves[m], self.windows.earliest[m], self.windows.latest[m]
        start = self.model.add_variable(earliest / self.per_us, latest / self.per_us)
        for p in move.srcs:
            if p in self.arrival:
                big = self.windows.due[p] - earliest
                self._no_sooner("sequence", start, self.arrival[p], [(-big, self.made[m])], -big)
        for p in move.dsts:
            big = latest + move.duration - self.orbits.places[p].head_ticks
            terms = [(-big, self.taken[m, p])]
            self._no_sooner("sequence", self.arrival[p], start, terms, move.duration - big)
        return start

    def _one_after_other(self, a: int, b: int, gap: int, first: int | None, *, goes_first: int) -> None:
        """s_b >= s_a + gap, if both are made and, where there is a binary, it is `goes_first`."""
        (until, after, soonest, _), (since, ahead, _, latest) = (self._start(m) for m in (b, a))
        big = max(0, latest + gap - self.windows.earliest[b])
        unmade = max(0, latest + gap - soonest)
        terms = [(-big, self.made[a]), (-unmade, self.made[b])]
        least = gap + after - ahead - big - unmade
        if first is not None:
            terms.append((-big if goes_first else big, first))
            least -= goes_first * big
        self._no_sooner("sequence", until, since, terms, least)

    def _start(self, m: int) -> tuple[int, int, int, int]:
        """A variable, how many ticks before it the move starts, and the bounds of that start, made or not."""
        if m in self.start:
            return self.start[m], 0, self.windows.earliest[m], self.windows.latest[m]
        p, duration = self.orbits.moves[m].dsts[0], self.orbits.moves[m].duration
        head, due = self.orbits.places[p].head_ticks, self.windows.due[p]
        return self.arrival[p], duration, head - duration, due - duration


def wants_more(problem: Problem) -> bool:
    """Whether the routing model of a problem minimises more than the finish."""
    clauses = problem.clauses
    return clauses.link_use != "free" or any(each.policy != "free" for each in clauses.switch_policies)


def routing_of(routing: RoutingModel, values: NDArray[np.float64]) -> dict[tuple[int, int], int]:
    """The (chunk, link) pairs that a solution makes, with all members, and when it starts them, in ticks."""
    orbits, per_us = routing.orbits, routing.per_us
    starts: dict[tuple[int, int], int] = {}
    for m, x in routing.made.items():
        if values[x] > 0.5:
            ends = [
                values[routing.arrival[p]] for p in orbits.moves[m].dsts if values[routing.taken[m, p]] > 0.5
            ]
            start = round(min(ends) * per_us) - orbits.moves[m].duration
            starts |= dict.fromkeys(orbits.members(m), start)
    return dict(sorted(starts.items()))


def routing_hint(routing: RoutingModel, schedule: ListSchedule) -> NDArray[np.float64] | None:
    """A schedule on the same fold as a start for the MILP; None if it uses a move that the MILP lacks.

    A chunk arrives when it would have if its send had carried no other: on a link where own chunks go first,
    relayed ones wait for no more than that.
    """
    orbits, per_us, entries = routing.orbits, routing.per_us, _needed_entries(routing.orbits, schedule)
    if not routing.made.keys() >= set(entries.values()):
        return None
    values = np.zeros(routing.model.num_variables)
    for p, s in routing.arrival.items():
        values[s] = min(orbits.places[p].head_ticks, schedule.finish_ticks) / per_us
    start_ticks = {m: send.start_ticks for send in reversed(schedule.sends) for m in send.moves}
    for p, m in entries.items():
        values[routing.made[m]] = 1.0
        values[routing.taken[m, p]] = 1.0
        values[routing.arrival[p]] = (start_ticks[m] + orbits.moves[m].duration) / per_us
    if orbits.hops is not None:
        passed = list(orbits.hops.least)
        for m in (m for send in schedule.sends for m in send.moves):
            for p in orbits.moves[m].dsts:
                if entries.get(p) == m:
                    passed[p] = orbits.hops.after(m, orbits.moves[m], passed)
        for p, u in routing.passed.items():
            values[u] = passed[p]
    values[routing.finish] = schedule.finish_ticks / per_us
    made = {m: start for m, start in start_ticks.items() if m in routing.made and values[routing.made[m]]}
    for m, start in routing.start.items():
        values[start] = made.get(m, orbits.earliest_start(orbits.moves[m])) / per_us
    for used, users in routing.connections.items():
        values[used] = max(values[x] for x in users)
    for use, links in routing.uses.items():
        extreme = max if orbits.problem.clauses.link_use == "min-max" else min
        values[use] = extreme((sum(count * values[x] for count, x in terms) for terms in links), default=0)
    for pair, first in routing.goes_first.items():
        if pair.first in made and pair.second in made:
            values[first] = made[pair.second] - made[pair.first] >= pair.gap
    return values


def refold(orbits: Orbits, schedule: Schedule) -> ListSchedule:
    """The sends on a fold that a schedule with its symmetry is made of."""
    number = {(move.chunk, move.link): m for m, move in enumerate(orbits.moves)}
    moves: dict[int, list[int]] = defaultdict(list)
    times: dict[int, tuple[int, int]] = {}
    for t in schedule:
        if (m := number.get((t.chunk, t.link))) is not None:
            moves[t.group].append(m)
            times[t.group] = t.start_ticks, t.end_ticks
    sends = (Send(orbits.moves[some[0]].link_orbit, tuple(some), *times[g]) for g, some in moves.items())
    return ListSchedule(tuple(sends), schedule.finish_ticks)


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

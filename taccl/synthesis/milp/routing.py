"""Stage 1, routing: which links each chunk uses, as a MILP on the quotient.

There is a binary per hop orbit and an arrival time per state orbit. Contention is measured by loads, without
an order of sends. Every block of rows has a tag, and ``docs/formulation.md`` has a heading per tag (`TAGS`).
Source: Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023,
section 5.1. Here, symmetric variables are substituted by one another, and big-M constants are tight.
"""

# Symbols: m hop, p state; binaries x (1 if the hop is made) and y (1 if the hop brings the chunk to a state);
# s arrival, T finish, h head (earliest arrival), UB upper bound, all times in us.

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import product

from taccl.solvers.model import MilpModel
from taccl.synthesis.milp.jobshop import Cut
from taccl.synthesis.milp.resource_rows import Pair, Windows, add_load_rows, pairs_apart
from taccl.synthesis.symmetry.quotient import Quotient

#: Tags of the blocks of rows of the routing model.
TAGS = (
    "routing.destination",
    "routing.transit",
    "routing.arrival",
    "routing.order",
    "routing.finish",
    "routing.resource",
    "routing.messages",
    "routing.copies",
    "routing.crossing",
    "routing.hops",
    "routing.own-first",
    "routing.switch-policy",
    "routing.link-use",
    "routing.sequence",
    "routing.cut",
)


class RoutingModel:
    """The routing MILP and its variables.

    - `upper_ticks`: Finish of a known schedule; later arrivals are useless.
    - `lower_ticks`: Proven lower bound of the problem, or of the model.
    - `cuts`: Sets of hops whose joint duration has a lower bound.
    - `sequenced`: Resources on which the model also decides the order of hops, rather than their load only.
      No two members of a hop's orbit may share such a resource, as in a quotient by the timing group.
    - `made`: {hop: variable, 1 if the hop is made}.
    - `taken`: {(hop, state): variable, 1 if the state gets its chunk from the hop}. For a hop to a single
      state this is the variable of `made`; a multicast may also lead to states that have the chunk already.
    - `arrival`: {state: variable, arrival time}.
    - `finish` (int): The variable T.
    - `messages`: {link orbit: variable, number of messages over each of its links}, for merging links.
    - `start`: {hop: variable, start time}, for multicast hops on sequenced resources.
    - `goes_first`: {Pair: variable, 1 if the first of the two hops goes first}, if both orders are possible.
    - `connections`: {variable, 1 if a connection of a switch with a policy is used: variables of the hops
      over it}.
    - `uses`: {variable: terms}, if the sketch has a policy on uses of links inside nodes. The variable is the
      number of uses of the most (or least) used link. For each link, (factor, variable) terms give its uses.
    - `passed`: {state: variable, number of links that the chunk has passed}, if the problem limits paths.
    """

    def __init__(
        self,
        quotient: Quotient,
        *,
        upper_ticks: int,
        lower_ticks: int = 0,
        sequenced: Collection[int] = (),
        cuts: Collection[Cut] = (),
    ) -> None:
        self.quotient, self.upper_ticks, self.lower_ticks = quotient, upper_ticks, lower_ticks
        self.per_us = per_us = quotient.problem.costs.ticks_per_us
        self.windows = windows = Windows(quotient, upper_ticks)
        self.model = model = MilpModel()
        self.finish = model.add_variable(lower_ticks / per_us, upper_ticks / per_us, cost=1.0)
        self.made = {m: model.add_variable(0, 1, integer=True) for m in windows.earliest}
        self.arrival = {
            p: model.add_variable(
                min(state.head_ticks, upper_ticks) / per_us,
                (windows.due[p] if sequenced else upper_ticks) / per_us,
            )
            for p, state in enumerate(quotient.states)
            if not state.is_origin
        }
        self.taken = {
            (m, p): x if len(quotient.hops[m].dsts) == 1 else model.add_variable(0, 1, integer=True)
            for m, x in self.made.items()
            for p in quotient.hops[m].dsts
        }
        self.messages: dict[int, int] = {}
        self.start: dict[int, int] = {}
        self.goes_first: dict[Pair, int] = {}
        self.connections: dict[int, list[int]] = {}
        self.uses: dict[int, list[list[tuple[float, int]]]] = {}
        self.passed: dict[int, int] = {}
        self._flow()
        self._arrivals()
        add_load_rows(self)
        self._crossings()
        self._hops()
        self._own_first()
        self._switch_policies()
        self._link_use()
        if sequenced:
            self._sequence(pairs_apart(quotient, windows, sequenced))
        for cut in cuts:
            self._cut(cut)

    def least_finish(self, bound_us: float) -> float:
        """Lower bound on the finish T, from one on the objective, both in us.

        The objective may also contain weighted numbers of connections or link uses, which are subtracted.
        """
        limits = self.model.variables[1:]
        weighed = sum(max(cost * lower, cost * upper) for lower, upper, _, cost in limits if cost)
        return max(self.lower_ticks / self.per_us, bound_us - weighed)

    def chunks_per_link(self, m: int) -> int:
        """Number of chunks that the members of a hop send over each link of its orbit."""
        quotient = self.quotient
        return quotient.num_members(m) // self._links_of_orbit[quotient.hops[m].link_orbit]

    @cached_property
    def _links_of_orbit(self) -> Counter[int]:
        return Counter(self.quotient.link_orbit)

    def no_sooner(
        self,
        tag: str,
        late: int,
        early: int | None,
        terms: Iterable[tuple[int | Fraction, int]] = (),
        ticks: int = 0,
    ) -> None:
        """Add a row ``late - early + terms >= ticks`` of two times and binaries; `early` None stands for 0.

        Each coefficient is converted from ticks to us by one division, so that `taccl.solvers.cpsat` can
        recover the exact fractions.
        """
        row = [(1.0, late), *((float(factor / self.per_us), x) for factor, x in terms)]
        if early is not None:
            row.append((-1.0, early))
        self.model.add_row(row, ticks / self.per_us, tag=f"routing.{tag}")

    def _flow(self) -> None:
        """Let each destination take its chunk from one hop, and a chunk leave only states that it entered."""
        quotient, model, made = self.quotient, self.model, self.made
        for p, state in enumerate(quotient.states):
            entering = [(1.0, self.taken[m, p]) for m in state.hops_in if m in made]
            leaving = [(-1.0, made[m]) for m in state.hops_out if m in made]
            single = quotient.single_path[state.chunk]
            if state.is_origin:
                if single and leaving and not state.is_destination:
                    model.add_row(leaving, -1, tag="routing.destination")
            elif state.is_destination:
                model.add_row(entering, 1, 1, tag="routing.destination")
            elif single:
                model.add_row(entering + leaving, 0, 0, tag="routing.transit")
            else:
                model.add_row(entering, upper=1, tag="routing.transit")
                for each in leaving:
                    model.add_row([*entering, each], 0, tag="routing.transit")
        for m, x in made.items():
            dsts = quotient.hops[m].dsts
            if len(dsts) > 1:
                taken = [(1.0, self.taken[m, p]) for p in dsts]
                model.add_row([*taken, (-1.0, x)], 0, tag="routing.transit")
                for _, y in taken:
                    model.add_row([(1.0, x), (-1.0, y)], 0, tag="routing.transit")

    def _arrivals(self) -> None:
        """Let a chunk arrive at state r at least l after state a if a hop of duration l from a brings it.

        s_r >= h_r + sum (h_a + l - h_r) y; s_r >= s_a + l - M (1 - y), where M = UB + l - h_r.
        """
        quotient = self.quotient
        for p, arrival in self.arrival.items():
            state = quotient.states[p]
            head = min(state.head_ticks, self.upper_ticks)
            into = [(quotient.hops[m], self.taken[m, p]) for m in state.hops_in if (m, p) in self.taken]
            lifted = [(head - quotient.earliest_start(hop) - hop.duration, y) for hop, y in into]
            self.no_sooner("arrival", arrival, None, lifted, head)
            for hop, y in into:
                big = self.upper_ticks + hop.duration - head
                for a in hop.srcs:
                    self.no_sooner("order", arrival, self.arrival.get(a), [(-big, y)], hop.duration - big)
            if state.is_destination:
                self.no_sooner("finish", self.finish, arrival)

    def _crossings(self) -> None:
        """Require that a chunk enters, at least once, each node that needs it and lacks it."""
        topology, collective = self.quotient.problem.topology, self.quotient.problem.collective
        node = topology.node_of_rank
        into: dict[tuple[int, int], set[int]] = defaultdict(set)
        for m, x in self.made.items() if not collective.derivations else ():
            c = int(self.quotient.group.chunks[self.quotient.hops[m].chunk])
            for e in filter(topology.is_internode, self.quotient.hops[m].links):
                for r in topology.links[e].dsts:
                    into[c, node[r]].add(x)
        for (c, n), variables in sorted(into.items()):
            data = collective.chunks[c]
            if n in {node[r] for r in data.destinations} - {node[r] for r in data.origins}:
                self.model.add_row([(1.0, x) for x in sorted(variables)], 1, tag="routing.crossing")

    def _hops(self) -> None:
        """Limit the length of paths; u is the number of links that a chunk has passed at a state.

        u_r >= u_a + 1 - M (1 - y), and u is at most the limit minus the links to the nearest destination.
        """
        limits, model = self.quotient.hop_limit, self.model
        if limits is None:
            return
        most = [
            max(least, limits.limit - left) for least, left in zip(limits.least, limits.left, strict=True)
        ]
        self.passed = {p: model.add_variable(limits.least[p], most[p]) for p in self.arrival}
        for (m, p), y in self.taken.items():
            if p not in self.passed:
                continue
            for a in self.quotient.hops[m].srcs:
                if (m, a) in limits.begins:
                    continue
                is_start = self.quotient.states[a].is_origin
                big = float((0 if is_start else most[a]) + 1 - limits.least[p])
                before = [] if is_start else [(-1.0, self.passed[a])]
                if big > 0:
                    model.add_row([(1.0, self.passed[p]), *before, (-big, y)], 1.0 - big, tag="routing.hops")

    def _own_first(self) -> None:
        """Let relayed chunks start on a link no earlier than own chunks arrive (local-first priority).

        If both are sent over the link: s_relayed >= s_own + duration of the relayed hop. Under this rule, the
        relayed chunk starts no earlier than an unmerged send of the own chunk would arrive. The model's
        arrival of the own chunk is no later than that.
        """
        quotient, hops = self.quotient, self.quotient.hops
        for link, rep in enumerate(quotient.link_rep):
            if rep not in quotient.problem.clauses.own_first:
                continue
            ends = [(m, p) for m in quotient.hops_of_link[link] if m in self.made for p in hops[m].dsts]
            for own, relayed in product(ends, ends):
                if hops[own[0]].is_own and not hops[relayed[0]].is_own:
                    length = hops[relayed[0]].duration
                    big = self.upper_ticks + length - quotient.states[relayed[1]].head_ticks
                    both = [(-big, self.taken[own]), (-big, self.taken[relayed])]
                    late, early = self.arrival[relayed[1]], self.arrival[own[1]]
                    self.no_sooner("own-first", late, early, both, length - 2 * big)

    def _switch_policies(self) -> None:
        """Add mu * (number of used connections) to the objective for few connections; subtract it for many.

        The weight mu is the sketch's `objective_weight`. A binary u counts each connection. Its rows are
        u >= x for each of its hops for few connections, and u <= sum(x) for many.
        """
        quotient, model, tag = self.quotient, self.model, "routing.switch-policy"
        weight = float(quotient.problem.clauses.objective_weight)
        users: dict[int, list[int]] = defaultdict(list)
        for m, x in self.made.items():
            users[quotient.hops[m].link_orbit].append(x)
        for policy in quotient.problem.clauses.switch_policies:
            few = policy.policy == "min-connections"
            counts = Counter(quotient.link_orbit[e] for e in policy.links if policy.policy != "free")
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
        """Objective T + mu * (uses of the most used link in a node), or T - mu * (uses of the least used)."""
        quotient, clauses = self.quotient, self.quotient.problem.clauses
        if clauses.link_use == "free":
            return
        sign = 1.0 if clauses.link_use == "min-max" else -1.0
        most, weight = quotient.problem.collective.num_chunks, float(clauses.objective_weight)
        bound = self.model.add_variable(0, most, cost=sign * weight)
        uses: dict[int, list[tuple[float, int]]] = defaultdict(list)
        sizes = Counter(quotient.link_orbit)
        for m, x in self.made.items():
            link = quotient.hops[m].link_orbit
            if not quotient.problem.topology.is_internode(quotient.link_rep[link]):
                uses[link].append((quotient.num_members(m) / sizes[link], x))
        self.uses[bound] = [terms for _, terms in sorted(uses.items())]
        for terms in self.uses[bound]:
            row = [(sign, bound), *((-sign * count, x) for count, x in terms)]
            self.model.add_row(row, 0, tag="routing.link-use")

    def _sequence(self, pairs: Sequence[Pair]) -> None:
        """Let hop b of a pair start a gap after hop a, or a after b, if both are made.

        M is minimal for each pair, and for each condition that deactivates the row (a unmade, b unmade, other
        order).
        """
        model, made, windows = self.model, self.made, self.windows
        both = {m for pair in pairs for m in (pair.first, pair.second)}
        for m in sorted(m for m in both if len(self.quotient.hops[m].dsts) > 1):
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

    def _cut(self, cut: Cut) -> None:
        """Add a row for a cut: if all hops of the cut are made, the finish T is at least its ticks.

        If the cut exceeds the upper bound, the row excludes that all its hops are made.
        """
        made = [self.made[m] for m in sorted(cut.hops) if m in self.made]
        if len(made) < len(cut.hops):
            return
        if cut.ticks > self.upper_ticks:
            self.model.add_row([(-1.0, x) for x in made], 1 - len(made), tag="routing.cut")
            return
        late = cut.ticks - self.lower_ticks
        terms = [(-late, x) for x in made]
        self.no_sooner("cut", self.finish, None, terms, cut.ticks - late * len(made))

    def _start_of_multicast(self, m: int) -> int:
        """Variable for the start of a multicast: after arrivals at its sources, before arrivals by it."""
        hop, earliest, latest = self.quotient.hops[m], self.windows.earliest[m], self.windows.latest[m]
        start = self.model.add_variable(earliest / self.per_us, latest / self.per_us)
        for p in hop.srcs:
            if p in self.arrival:
                big = self.windows.due[p] - earliest
                self.no_sooner("sequence", start, self.arrival[p], [(-big, self.made[m])], -big)
        for p in hop.dsts:
            big = latest + hop.duration - self.quotient.states[p].head_ticks
            terms = [(-big, self.taken[m, p])]
            self.no_sooner("sequence", self.arrival[p], start, terms, hop.duration - big)
        return start

    def _one_after_other(self, a: int, b: int, gap: int, first: int | None, *, goes_first: int) -> None:
        """Add a row: hop b starts at least `gap` ticks after the start of hop a, if both are made.

        If a binary variable `first` is given, the row applies only where its value is `goes_first`.
        """
        (until, after, soonest, _), (since, ahead, _, latest) = (self._start(m) for m in (b, a))
        big = max(0, latest + gap - self.windows.earliest[b])
        unmade = max(0, latest + gap - soonest)
        terms = [(-big, self.made[a]), (-unmade, self.made[b])]
        least = gap + after - ahead - big - unmade
        if first is not None:
            terms.append((-big if goes_first else big, first))
            least -= goes_first * big
        self.no_sooner("sequence", until, since, terms, least)

    def _start(self, m: int) -> tuple[int, int, int, int]:
        """(time variable, ticks by which the hop starts before that time, earliest start, latest start).

        The variable exists also if the hop is not made.
        """
        if m in self.start:
            return self.start[m], 0, self.windows.earliest[m], self.windows.latest[m]
        p, duration = self.quotient.hops[m].dsts[0], self.quotient.hops[m].duration
        head, due = self.quotient.states[p].head_ticks, self.windows.due[p]
        return self.arrival[p], duration, head - duration, due - duration

"""Which clauses of a sketch clash, and the fewest edits that end it.

A chunk can be brought from its origins to a destination if links that may carry it lead there: spreading
needs no solver. (Chunks do not keep each other from arriving, only delay each other, but for one case: own
chunks that go first over links of several sources may wait for each other in a circle. There the routing
model decides.) The fewest edits are a smallest hitting set: around the ranks that a chunk does reach, one of
the links that lead out must be opened. Cuts are added until every chunk arrives.
Source: Chandrasekaran, Karp, Moreno-Centeno and Vempala, "Algorithms for Implicit Hitting Set Problems",
SODA 2011.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice
from typing import TYPE_CHECKING

from taccl.errors import SolverUnavailableError
from taccl.problem import Clauses
from taccl.solvers.conflict import smallest_conflict
from taccl.solvers.model import MilpModel
from taccl.solvers.solver import solve
from taccl.synthesis.explaining.loosening import CONNECTIONS, CROSSING, INSIDE, OWN_FIRST, RELAYS, Edit
from taccl.synthesis.orbits import fold
from taccl.synthesis.routing import TAGS, build_routing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Sequence

    from taccl.synthesis.explaining.loosening import Barriers, Half

__all__ = [
    "Change",
    "Demand",
    "blocked",
    "circle_of_own_chunks",
    "clashing",
    "demands",
    "fewest_edits",
    "reach",
]

#: Demands whose conflicts are compared, and sets of clauses that are tried for each.
_MAX_DEMANDS, _MAX_SETS = 64, 500
#: Of two edits that count the same, the one of an earlier clause is proposed.
_GENTLE = (RELAYS, INSIDE, CONNECTIONS)


@dataclass(frozen=True, slots=True)
class Demand:
    """A chunk that must get from any of `starts` to all of `ends`, and others that are no different."""

    half: Half
    chunk: int
    starts: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """Edits that make a problem feasible; `fewest` says whether no cheaper ones do, by proof."""

    edits: tuple[Edit, ...]
    fewest: bool


def demands(half: Half) -> list[Demand]:
    """What has to arrive where, once for all chunks that clauses treat alike."""
    collective = half.problem.collective
    found: dict[tuple[object, ...], Demand] = {}
    for c, data in enumerate(collective.chunks):
        made = tuple(d.rank for d in collective.derivations if d.chunk == c)
        asked = tuple(d.rank for d in collective.derivations if d.source == c)
        starts = (*data.origins, *made)
        ends = tuple(r for r in dict.fromkeys((*data.destinations, *asked)) if r not in starts)
        kind = (starts, data.origins, data.destinations, data.root, asked, half.problem.holders(c))
        if ends:
            found.setdefault(kind, Demand(half, c, starts, ends))
    return list(found.values())


def reach(demand: Demand, is_open: Callable[[int], bool]) -> frozenset[int]:
    """Ranks that a demand's chunk gets to over links that are open; a link waits for all its sources."""
    topology = demand.half.problem.topology
    seen = set(demand.starts)
    queue = list(seen)
    for rank in queue:
        for e in topology.links_from[rank]:
            link = topology.links[e]
            if seen.issuperset(link.dsts) or not seen.issuperset(link.srcs) or not is_open(e):
                continue
            fresh = set(link.dsts) - seen
            seen |= fresh
            queue.extend(fresh)
    return frozenset(seen)


def blocked(some: Sequence[Demand]) -> list[Demand]:
    """The demands that are not met, each with the ends that are not reached."""
    known: dict[Hashable, frozenset[int]] = {}
    missed = []
    for demand in some:
        kind = _kind(demand)
        if kind not in known:
            carries = partial(_carries, demand)
            known[kind] = reach(demand, carries)
        ends = tuple(r for r in demand.ends if r not in known[kind])
        if ends:
            missed.append(replace(demand, ends=ends))
    return missed


def _carries(demand: Demand, link: int) -> bool:
    return demand.half.problem.may_carry(link, demand.chunk)


def _kind(demand: Demand) -> Hashable:
    """Demands of one kind are let on the same links by the same edits."""
    problem = demand.half.problem
    data, node = problem.collective.chunks[demand.chunk], problem.topology.node_of_rank
    nodes = frozenset(node[r] for r in data.destinations) if problem.clauses.direct_crossing else None
    return demand.half.reducing, demand.starts, data.origins, data.root, nodes, problem.holders(demand.chunk)


def clashing(barriers: Barriers, missed: Sequence[Demand]) -> tuple[Demand, tuple[str, ...]]:
    """The unmet demand that the fewest clauses keep from one of its ends, and those clauses.

    Parameters
    ----------
    missed : sequence of Demand
        Not empty; each could be met without clauses.
    """
    best: tuple[Demand, tuple[str, ...]] | None = None
    for demand in missed[:_MAX_DEMANDS]:
        found = _clash_of(barriers, demand)
        if best is None or len(found[1]) < len(best[1]):
            best = found
        if len(best[1]) == 1:
            break
    assert best is not None, "there are demands that are not met"
    return best


def _clash_of(barriers: Barriers, demand: Demand) -> tuple[Demand, tuple[str, ...]]:
    """One end of a demand and the smallest set of clauses that keeps the chunk from it."""
    links = range(len(demand.half.problem.topology.links))
    blocking = [barriers.blocking(demand.half, e, demand.chunk) for e in links]
    every = sorted(set().union(*blocking), key=lambda clause: (clause == CROSSING, clause))

    def missing(clauses: Collection[str]) -> tuple[int, ...]:
        reached = reach(demand, lambda e: blocking[e].isdisjoint(clauses))
        return tuple(r for r in demand.ends if r not in reached)

    kept = every
    for clause in reversed(every):
        without = [each for each in kept if each != clause]
        if missing(without):
            kept = without
    tried = (c for n in range(1, len(kept)) for c in combinations(every, n))
    smaller = next((c for c in islice(tried, _MAX_SETS) if missing(c)), None)
    clauses = tuple(smaller or kept)
    return replace(demand, ends=missing(clauses)[:1]), clauses


def fewest_edits(barriers: Barriers, some: Sequence[Demand], *, solver: str, deadline: float) -> Change:
    """The edits of least cost that let every demand be met.

    No solver is asked where one smallest edit will do.

    Parameters
    ----------
    some : sequence of Demand
        Each could be met without clauses.
    deadline : float
        On the clock of `time.monotonic`. By then the cheapest clauses given up altogether are returned.

    Raises
    ------
    SolverUnavailableError
        If the solver is not installed, or not licensed for the model.
    """
    merged: dict[Hashable, Demand] = {}
    for demand in some:
        other = merged.setdefault(_kind(demand), demand)
        merged[_kind(demand)] = replace(other, ends=tuple(dict.fromkeys((*other.ends, *demand.ends))))
    openings: dict[tuple[int, int], list[frozenset[Edit]]] = {}

    def options(number: int, demand: Demand, link: int) -> list[frozenset[Edit]]:
        if (number, link) not in openings:
            openings[number, link] = barriers.openings(demand.half, link, demand.chunk)
        return openings[number, link]

    def opened(made: frozenset[Edit], number: int, demand: Demand, link: int) -> bool:
        return any(option <= made for option in options(number, demand, link))

    def cuts(chosen: Collection[Edit], *, first: bool = False) -> list[frozenset[frozenset[Edit]]]:
        """For every demand that is unmet after some edits, what would lead its chunk on."""
        made, found = frozenset(chosen), []
        for number, demand in enumerate(merged.values()):
            links = demand.half.problem.topology.links
            seen = reach(demand, partial(opened, made, number, demand))
            if seen.issuperset(demand.ends):
                continue
            ahead = (
                e
                for e, link in enumerate(links)
                if seen.issuperset(link.srcs) and not seen.issuperset(link.dsts)
            )
            found.append(_least({option for e in ahead for option in options(number, demand, e)}))
            if first:
                break
        return list(dict.fromkeys(found))

    known = cuts(())
    if not known:
        return Change((), True)
    alone = [frozenset(edit for option in cut if len(option) == 1 for edit in option) for cut in known]
    for edit in sorted(frozenset.intersection(*alone), key=lambda edit: (_price(edit), edit)):
        if edit.cost == 1 and not cuts([edit], first=True):
            return Change((edit,), True)
    while True:
        chosen = _hitting_set(known, solver=solver, time_limit_s=deadline - time.monotonic())
        if chosen is None:
            return _given_up(list(merged.values()), barriers)
        more = cuts(chosen)
        if not more:
            return Change(tuple(sorted(chosen)), True)
        known = list(dict.fromkeys([*known, *more]))


def _price(edit: Edit) -> int:
    """What an edit counts, in hundredths; clauses that open no new link come first among equals."""
    return 100 * edit.cost + (_GENTLE.index(edit.clause) if edit.clause in _GENTLE else len(_GENTLE))


def _least(options: Collection[frozenset[Edit]]) -> frozenset[frozenset[Edit]]:
    """The sets of edits that hold no other."""
    return frozenset(option for option in options if not any(other < option for other in options))


def _hitting_set(
    cuts: Sequence[frozenset[frozenset[Edit]]], *, solver: str, time_limit_s: float
) -> list[Edit] | None:
    """The cheapest edits that hold one option of every cut; None where time ran out.

    Minimise the cost of y subject to: of every cut some option z is taken, z <= y of each of its edits.
    """
    model = MilpModel()
    options = sorted({option for cut in cuts for option in cut}, key=sorted)
    edits = sorted({edit for option in options for edit in option})
    made = {edit: model.add_variable(0, 1, integer=True, cost=_price(edit)) for edit in edits}
    taken = {option: model.add_variable(0, 1, integer=True) for option in options}
    for option in options:
        for edit in sorted(option):
            model.add_row([(1.0, made[edit]), (-1.0, taken[option])], 0, tag="option")
    for cut in cuts:
        model.add_row([(1.0, taken[option]) for option in options if option in cut], 1, tag="cut")
    answer = solve(model, solver, time_limit_s=time_limit_s)
    if answer.status in ("unavailable", "unlicensed"):
        raise SolverUnavailableError(f"{solver} cannot run here: {answer.message}; see taccl backends")
    if answer.status == "interrupted":
        raise KeyboardInterrupt
    if answer.status != "optimal" or answer.values is None:
        return None
    return [edit for edit in edits if answer.values[made[edit]] > 0.5]


def _given_up(some: Sequence[Demand], barriers: Barriers) -> Change:
    """Every clause that is in some demand's way, given up altogether."""
    dearest: set[Edit] = set()
    for demand in some:
        for e in range(len(demand.half.problem.topology.links)):
            options = barriers.openings(demand.half, e, demand.chunk)
            dearest |= options[-1]
    return Change(tuple(sorted(dearest)), False)


def circle_of_own_chunks(barriers: Barriers, half: Half, *, solver: str, deadline: float) -> tuple[str, ...]:
    """The clauses by which own chunks that go first wait for each other in a circle; empty if none do.

    The routing model without clauses, with rows that forbid moves for every clause, one tag each.
    """
    clauses, topology = half.problem.clauses, half.problem.topology
    if all(len(topology.links[e].srcs) == 1 for e in clauses.own_first):
        return ()
    # A slack without end: no way is too long, as it is not known which are left.
    bare = Clauses(own_first=clauses.own_first, routing_slack=clauses.routing_slack + 10**6)
    orbits = fold(replace(half.problem, clauses=bare))
    # To a link of several sources a chunk goes on several ways, even if it has one destination.
    orbits = replace(orbits, single_path=(False,) * half.problem.collective.num_chunks)
    costs = half.problem.costs
    longest = max((move.duration for move in orbits.moves), default=0)
    upper = (longest + int(costs.link_alpha.max(initial=0))) * max(1, len(orbits.places)) + 1
    routing = build_routing(orbits, upper_ticks=upper)
    for m, variable in sorted(routing.made.items()):
        move = orbits.moves[m]
        for clause in sorted(barriers.blocking(half, move.link, move.chunk)):
            routing.model.add_row([(1.0, variable)], upper=0, tag=clause)
    kept = [tag for tag in TAGS if tag != "routing.own-first"]
    left_s = max(0.0, deadline - time.monotonic())
    found = smallest_conflict(routing.model, solver, time_limit_s=left_s, keep=kept)
    return () if found is None else tuple(OWN_FIRST if t == "routing.own-first" else t for t in found.tags)

"""Conflicts between clauses of a sketch, and the fewest edits that resolve them.

A chunk can reach a destination if links that may carry it lead there from its origins: a graph search decides
that, without a solver. (Chunks do not block each other, but only delay each other, with one exception: own
chunks with priority on links of several sources may wait for each other in a cycle. There the routing model
decides.) The fewest edits are a minimum hitting set: one of the links out of the set of ranks that a chunk
reaches must be allowed. Such cuts are added until every chunk arrives. Source: Chandrasekaran, Karp,
Moreno-Centeno and Vempala, "Algorithms for Implicit Hitting Set Problems", SODA 2011.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice
from typing import TypeAlias

import numpy as np

from taccl._internal.deadline import NEVER, OutOfTime
from taccl.errors import NoSolutionError, SolverUnavailableError
from taccl.problem.problem import Problem
from taccl.sketch.reachability import Need, demands, hops_from, kind_of, reached
from taccl.solvers.model import LinearModel, MilpModel
from taccl.solvers.solver import Solution, solve
from taccl.synthesis.explaining.loosening import CONNECTIONS, CROSSING, INSIDE, RELAYS, Barriers, Edit
from taccl.synthesis.milp.routing import RoutingModel
from taccl.synthesis.symmetry.quotient import take_quotient
from taccl.synthesis.transforms.phases import split
from taccl.topology.topology import Link

#: Alternative sets of edits of a sketch; each set lets a chunk reach a rank that it cannot reach yet.
_Cut: TypeAlias = frozenset[frozenset[Edit]]

#: `_MAX_DEMANDS`: max demands (a chunk with its destinations) whose conflicts are compared.
#: `_MAX_SETS`: max sets of clauses tried for each demand.
_MAX_DEMANDS, _MAX_SETS = 64, 500
#: Fields of a sketch to edit, in order of preference among edits of equal cost.
_GENTLE = (RELAYS, INSIDE, CONNECTIONS)


@dataclass(frozen=True, slots=True)
class Change:
    """Edits of a sketch that make a problem feasible.

    - `fewest`: True if no cheaper edits are proven to suffice, False if cheaper ones may exist.
    """

    edits: tuple[Edit, ...]
    fewest: bool


def reached_despite(barriers: Barriers, demand: Need, clauses: Collection[str]) -> dict[int, int]:
    """{rank: min number of links to it} of ranks that a demand's chunk can reach if only `clauses` hold.

    - `clauses`: The clauses that count; all others are ignored.
    """
    others = (each.field for each in barriers.clauses.said("path") if each.said[0] not in clauses)
    return hops_from(
        barriers.problem.topology,
        demand.starts,
        lambda e: barriers.blocking(e, demand.chunk, reducing=demand.reducing).isdisjoint(clauses),
        reducing=demand.reducing,
        limit=barriers.clauses.without(*others).path_limit,
    )


def clashing(barriers: Barriers, missed: Sequence[Need]) -> tuple[Need, tuple[str, ...]]:
    """(unmet demand, clauses that prevent it), for the demand that the fewest clauses prevent."""
    found: list[tuple[Need, tuple[str, ...]]] = []
    for demand in missed[:_MAX_DEMANDS]:
        found.append(_clash_of(barriers, demand))
        if len(found[-1][1]) == 1:
            break
    return min(found, key=lambda clash: len(clash[1]))


def _clash_of(barriers: Barriers, demand: Need) -> tuple[Need, tuple[str, ...]]:
    """(demand with one destination, smallest set of clauses found that keeps the chunk from reaching it)."""
    links = range(len(barriers.problem.topology.links))
    blocking = (barriers.blocking(e, demand.chunk, reducing=demand.reducing) for e in links)
    paths = {each.said[0] for each in barriers.clauses.said("path")}
    every = sorted(paths.union(*blocking), key=lambda clause: (clause == CROSSING, clause))

    def missing(clauses: Collection[str]) -> tuple[int, ...]:
        found = reached_despite(barriers, demand, clauses)
        return tuple(r for r in demand.ends if r not in found)

    kept = every
    for clause in reversed(every):
        without = [each for each in kept if each != clause]
        if missing(without):
            kept = without
    tried = (c for n in range(1, len(kept)) for c in combinations(every, n))
    smaller = next((c for c in islice(tried, _MAX_SETS) if missing(c)), None)
    clauses = tuple(smaller or kept)
    return replace(demand, ends=missing(clauses)[:1]), clauses


def fewest_edits(barriers: Barriers, some: Sequence[Need], *, solver: str, deadline: float) -> Change:
    """Edits of minimum cost with which all demands can be met, by paths of any number of links.

    No solver is needed if a single smallest edit suffices. If time is up, whole clauses are removed. Raises
    `SolverUnavailableError` if the solver is not installed, or not licensed for the model.
    """
    merged: dict[Hashable, Need] = {}
    for demand in some:
        kind = kind_of(barriers.problem, demand)
        other = merged.setdefault(kind, demand)
        merged[kind] = replace(other, ends=tuple(dict.fromkeys((*other.ends, *demand.ends))))
    topology = barriers.problem.topology

    def leads_on(seen: Set[int], link: Link, reducing: bool) -> bool:
        if reducing:
            return not seen.isdisjoint(link.dsts) and not seen >= set(link.srcs)
        return seen >= set(link.srcs) and not seen >= set(link.dsts)

    def cuts(chosen: Collection[Edit]) -> Iterator[_Cut]:
        """Yield a cut for each demand that is unmet after the edits `chosen`.

        A cut is the alternative sets of edits, each of which lets the chunk reach a further rank.
        """
        made = frozenset(chosen)
        for demand in merged.values():
            openings = partial(barriers.openings, chunk=demand.chunk, reducing=demand.reducing)
            seen = hops_from(
                topology,
                demand.starts,
                lambda e, openings=openings: any(option <= made for option in openings(e)),  # type: ignore[misc]
                reducing=demand.reducing,
            ).keys()
            if not seen >= set(demand.ends):
                ahead = (e for e, link in enumerate(topology.links) if leads_on(seen, link, demand.reducing))
                options = {option for e in ahead for option in openings(e)}
                # Leave out sets of edits that contain another set.
                yield frozenset(each for each in options if not any(other < each for other in options))

    known = list(dict.fromkeys(cuts(())))
    if not known:
        return Change((), True)
    alone = [frozenset(edit for option in cut if len(option) == 1 for edit in option) for cut in known]
    for edit in sorted(frozenset.intersection(*alone), key=lambda edit: (_price(edit), edit)):
        if edit.cost == 1 and next(cuts([edit]), None) is None:
            return Change((edit,), True)
    while True:
        chosen = _hitting_set(known, solver=solver, time_limit_s=deadline - time.monotonic())
        if chosen is None:  # remove every clause that blocks some demand
            links = range(len(topology.links))
            ways = (
                barriers.openings(e, d.chunk, reducing=d.reducing) for d in merged.values() for e in links
            )
            return Change(tuple(sorted(frozenset().union(*(way[-1] for way in ways)))), False)
        more = list(cuts(chosen))
        if not more:
            return Change(tuple(sorted(chosen)), True)
        known = list(dict.fromkeys([*known, *more]))


def longer_paths(barriers: Barriers, change: Change) -> Change:
    """Add an edit of the sketch's limit on links per path to a change, if the change needs longer paths."""
    loosened = barriers.loosened(change.edits)
    limits = loosened.clauses.said("path")
    if not limits:
        return change
    unlimited = loosened.without_clauses(*(each.field for each in limits))
    hops = ((reached(unlimited, demand), demand.ends) for demand in demands(unlimited))
    least = max((passed[r] for passed, ends in hops for r in ends), default=0)
    edits = tuple(
        Edit(each.said[0], "set", ((least,),), 1)
        for each in limits
        if getattr(loosened.clauses, each.field) < least
    )
    # Links opened by `change` may shorten paths, so `change` with a raised limit may not be a minimal edit.
    return replace(
        change, edits=(*change.edits, *edits), fewest=change.fewest and not (edits and change.edits)
    )


def _price(edit: Edit) -> int:
    """Cost of an edit, in hundredths; at equal costs, fields that come earlier in `_GENTLE` win."""
    return 100 * edit.cost + (_GENTLE.index(edit.clause) if edit.clause in _GENTLE else len(_GENTLE))


def _hitting_set(cuts: Sequence[_Cut], *, solver: str, time_limit_s: float) -> list[Edit] | None:
    """Cheapest edits that include one alternative of every cut; None if time ran out.

    The MILP minimises the cost of the edits y that are made. Every cut needs an alternative z that is taken,
    and z <= y for each edit of that alternative.
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
    try:
        answer = _solved(model.arrays(), solver, time_limit_s)
    except OutOfTime:
        return None
    if answer.status != "optimal" or answer.values is None:
        return None
    return [edit for edit in edits if answer.values[made[edit]] > 0.5]


def own_chunks_wait(problem: Problem, *, solver: str, deadline: float) -> bool:
    """True if no routing exists because local-first priority makes chunks wait for each other in a cycle.

    For a sum, both phases are checked: the reduce phase, reversed over reversed links, and the broadcast.
    Raises `SolverUnavailableError` if the solver is not installed or not licensed for the model;
    `NoSolutionError` if it neither finds a point nor proves infeasibility in time.
    """
    for phase in (each.problem for each in split(problem)):
        costs, own_first = phase.costs, phase.clauses.own_first.intersection(phase.links_allowed)
        if all(len(phase.topology.links[e].srcs) == 1 for e in own_first):
            continue
        # The slack is practically unlimited, so that no path is left out as too long.
        quotient = take_quotient(phase.with_clauses(routing_slack=phase.clauses.routing_slack + 10**6))
        # A chunk must reach all sources of a link, so it may need several paths even to one destination.
        quotient = replace(quotient, single_path=(False,) * phase.collective.num_chunks)
        longest = max((hop.duration for hop in quotient.hops), default=0)
        upper = (longest + int(costs.link_alpha.max(initial=0))) * max(1, len(quotient.states)) + 1
        model = RoutingModel(quotient, upper_ticks=upper).model.arrays()
        any_point = replace(model, cost=np.zeros_like(model.cost))
        answer = _solved(any_point, solver, max(0.0, deadline - time.monotonic()))
        if answer.status == "infeasible":
            return True
        if answer.values is None:
            raise NoSolutionError(f"{solver} could not decide in time whether local-first sends deadlock")
    return False


def _solved(model: LinearModel, solver: str, time_limit_s: float) -> Solution:
    """Solution of a model; raises `OutOfTime` at Ctrl-C if that ends the explanation's time limit."""
    with NEVER.enforced():
        answer = solve(model, solver, time_limit_s=time_limit_s)
        if answer.status == "interrupted":
            raise KeyboardInterrupt
    if answer.status in ("unavailable", "unlicensed"):
        raise SolverUnavailableError(f"{solver} cannot run here: {answer.message}; see taccl backends")
    return answer

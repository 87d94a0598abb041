"""The baselines that a schedule is set beside, or what those too large to be made take at least."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from taccl.baselines import BASELINES
from taccl.baselines.ring import find_rings
from taccl.baselines.routes import ShortestRoutes
from taccl.errors import CollectiveError, TopologyError

if TYPE_CHECKING:
    from taccl.problem import Problem

#: Baselines are schedules of Python objects. All of them are set beside up to so many arrivals of chunks;
#: up to the second number ring and pairwise are; beyond, what these take at least.
FEW_ARRIVALS, MOST_ARRIVALS = 6_000, 300_000


@dataclass(frozen=True, slots=True)
class Rivals:
    """What a schedule was set beside.

    Parameters
    ----------
    beside : str
        The baselines, ``"bound met"`` where none can be better, or ``"none applies"``.
    first : str
        The baseline that finishes first, or whose least finish is least.
    finish : Fraction, optional
        When it finishes, or does so at the earliest, in microseconds.
    """

    beside: str
    first: str = ""
    finish: Fraction | None = None


def find_rivals(problem: Problem, finish: Fraction) -> Rivals:
    """The baselines of a problem that are worked out in some seconds, and the first of them to finish.

    Of more arrivals than any baseline is made for, it is shown that none finishes before `finish`, in us.
    """
    arrivals = sum(max(len(c.origins), len(c.destinations)) for c in problem.collective.chunks)
    if arrivals > MOST_ARRIVALS:
        if problem.collective.combining or any(len(c.origins) > 1 for c in problem.collective.chunks):
            return Rivals("nothing: too many arrivals", "", Fraction(0))
        floors = {"ring": ring_floor(problem), "pairwise": pairwise_floor(problem, finish)}
        first = min(floors, key=lambda name: floors[name])
        return Rivals("ring, pairwise (at least)", first, floors[first])
    names = list(BASELINES) if arrivals <= FEW_ARRIVALS else ["ring", "pairwise"]
    finishes: dict[str, Fraction] = {}
    gc.disable()  # its search of millions of lists, none of them garbage, takes half of the time
    for name in names:
        try:
            finishes[name] = BASELINES[name](problem, cut=False).finish
        except (CollectiveError, TopologyError):
            continue
    gc.enable()
    first = min(finishes, key=lambda name: finishes[name], default="")
    return Rivals(", ".join(finishes) or "none applies", first, finishes.get(first))


def ring_floor(problem: Problem) -> Fraction:
    """Microseconds that a ring takes at least: hops one after another, for a chunk that goes half its way.

    Nothing where a step of a ring is relayed, as what passes a rank early goes on from there.
    """
    costs, routes = problem.costs, ShortestRoutes.of(problem)
    for order in find_rings(problem.topology, routes.ticks):
        if any(routes.direct(a, b) is None for a, b in zip(order, [*order[1:], order[0]], strict=True)):
            return Fraction(0)
    units = int(costs.chunk_units.min())
    hop = min(costs.duration(e, units) for e in range(len(problem.topology.links)))
    return costs.us(problem.topology.num_ranks // 2 * hop)


def pairwise_floor(problem: Problem, enough: Fraction) -> Fraction:
    """Microseconds that pairwise sends over one link into one rank take; no more are counted than enough.

    The rank is one with the fewest links in. What starts at the nearest others is counted first.
    """
    costs, topology, routes = problem.costs, problem.topology, ShortestRoutes.of(problem)
    into = np.bincount([link.dst for link in topology.links], minlength=topology.num_ranks)
    dst = int(into.argmin())
    starts = {c.origins[0]: i for i, c in enumerate(problem.collective.chunks) if dst in c.destinations}
    ticks: Counter[int] = Counter()
    for src in sorted(starts, key=lambda rank: abs(rank - dst)):
        if src != dst:
            last = routes.route(src, dst)[-1]
            ticks[last] += costs.duration(last, int(costs.chunk_units[starts[src]]))
            if costs.us(ticks[last]) > enough:
                break
    return costs.us(max(ticks.values()))

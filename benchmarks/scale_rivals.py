"""Baselines to compare a schedule with, or lower bounds on those that are too large to construct."""

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
    from taccl.problem.problem import Problem

#: `FEW_ARRIVALS`: max pairs of a chunk and a destination for which all baselines are constructed.
#: `MOST_ARRIVALS`: max such pairs for which ring and pairwise exchange are constructed; others are too slow.
#: `MOST_COUNTED`: max such pairs for which lower bounds of ring and pairwise replace the two (35 s of CPU).
#: Above `MOST_COUNTED`, routes would need several GB.
FEW_ARRIVALS, MOST_ARRIVALS, MOST_COUNTED = 6_000, 300_000, 10_000_000


@dataclass(frozen=True, slots=True)
class Rivals:
    """Baselines that a schedule was compared with.

    Parameters
    ----------
    beside : str
        Names of the baselines. ``"bound met"`` if the schedule is at its bound, so that no baseline is
        needed; ``"none applies"`` or ``"nothing: too many arrivals"`` if there are none.
    first : str
        The baseline with the earliest finish, or with the least lower bound on it.
    finish : Fraction, optional
        Its finish, or the lower bound on it, in microseconds.
    """

    beside: str
    first: str = ""
    finish: Fraction | None = None


def find_rivals(problem: Problem, finish: Fraction) -> Rivals:
    """Baselines of a problem that can be constructed in a few seconds, and the one with the earliest finish.

    With many arrivals, lower bounds of ring and pairwise are used instead, counted only until they exceed
    `finish`. Nothing is compared with still more arrivals, or if no such bounds are available (reductions,
    chunks with several origins).

    - `finish`: Finish in us of the schedule to compare.
    """
    arrivals = sum(max(len(c.origins), len(c.destinations)) for c in problem.collective.chunks)
    if arrivals > MOST_ARRIVALS:
        has_several = any(len(c.origins) > 1 for c in problem.collective.chunks)
        if arrivals > MOST_COUNTED or problem.collective.combining or has_several:
            return Rivals("nothing: too many arrivals")
        ring = ring_floor(problem)
        floors = {} if ring is None else {"ring": ring}
        floors["pairwise"] = pairwise_floor(problem, finish)
        first = min(floors, key=lambda name: floors[name])
        return Rivals(f"{', '.join(floors)} (at least)", first, floors[first])
    names = list(BASELINES) if arrivals <= FEW_ARRIVALS else ["ring", "pairwise"]
    finishes: dict[str, Fraction] = {}
    gc.disable()  # garbage collection scans millions of live lists, which takes half of the time
    for name in names:
        try:
            finishes[name] = BASELINES[name](problem, cut=False).finish
        except (CollectiveError, TopologyError):
            continue
    gc.enable()
    first = min(finishes, key=lambda name: finishes[name], default="")
    return Rivals(", ".join(finishes) or "none applies", first, finishes.get(first))


def ring_floor(problem: Problem) -> Fraction | None:
    """Lower bound in us on a ring algorithm: successive hops of a chunk that travels half the ring.

    None if the fastest route between two neighbours on some ring has relays, as relayed chunks may take
    shortcuts.
    """
    costs, routes = problem.costs, ShortestRoutes.of(problem)
    for order in find_rings(problem.topology, routes.ticks):
        if any(routes.direct(a, b) is None for a, b in zip(order, [*order[1:], order[0]], strict=True)):
            return None
    units = int(costs.chunk_units.min())
    hop = min(costs.duration(e, units) for e in range(len(problem.topology.links)))
    return costs.us(problem.topology.num_ranks // 2 * hop)


def pairwise_floor(problem: Problem, enough: Fraction) -> Fraction:
    """Lower bound in us on pairwise exchange: load of the busiest link into the rank with the least rate.

    Sends from the nearest rank numbers are counted first; the count stops once it exceeds `enough`.
    """
    costs, topology, routes = problem.costs, problem.topology, ShortestRoutes.of(problem)
    units = int(costs.chunk_units.max())
    rates = [1 / costs.duration(link, units) for link in range(len(topology.links))]
    into = np.bincount([link.dst for link in topology.links], rates, minlength=topology.num_ranks)
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

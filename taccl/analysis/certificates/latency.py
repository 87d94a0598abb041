"""Latency: the shortest path of a chunk to a rank that needs it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.witness import Claim, Witness
from taccl.problem.problem import Problem

#: Above this many ranks, only about `_FEW_CHUNKS` chunks are examined.
_MOST_RANKS_TIMED = 2_048
_FEW_CHUNKS = 16


@dataclass(frozen=True, slots=True)
class Path(Witness):
    """The shortest path of a chunk to a destination."""

    kind, proves = "path", "latency"
    any_chunking = True
    chunk: int
    destination: int

    def fits(self, problem: Problem) -> bool:
        """True if the witness names only what the problem has, and nothing twice."""
        chunks, num_ranks = problem.collective.num_chunks, problem.topology.num_ranks
        return 0 <= self.chunk < chunks and 0 <= self.destination < num_ranks

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return ticks <= facts.rounded(_arrival(facts, self))


def latency(demand: NeededSends, *, divisible: bool, limit: float = math.inf) -> Claim:
    """Longest shortest path from a chunk's origins to a destination; only alphas count if divisible.

    Only some chunks are examined if there are too many ranks for all-pairs times, or after time `limit`.
    """
    best = Claim(0, "nothing has to be sent", None)
    # Largest chunks first: if time runs out, the remaining chunks tend to have shorter paths.
    distances, kinds = demand.distances, sorted(demand.example.items(), key=lambda kind: -kind[0][1])
    is_large = demand.topology.num_ranks > _MOST_RANKS_TIMED
    if is_large:
        if not demand.single_ended or demand.sums_for_all or demand.problem.collective.derivations:
            return best
        kinds = kinds[:: max(1, len(kinds) // _FEW_CHUNKS)]
    # Chunks with the same origins, links and size arrive everywhere at the same times.
    alike: dict[tuple[object, ...], list[float]] = {}
    for place, ((data, whole, _, made), c) in enumerate(kinds):
        if place > _FEW_CHUNKS and time.monotonic() >= limit:
            break
        links, units = demand.carried(c), 0 if divisible else whole
        key = (data.origins, links, units, made)
        if key not in alike:
            if demand.sums_for_all:
                arrival = distances.times(links, units)[list(data.origins)].max(axis=0)
            elif is_large:
                arrival = distances.nearest(links, units, data.origins)
            else:
                arrival = distances.heads(c, units=0 if divisible else None)
            alike[key] = np.where(np.isfinite(arrival), arrival, 0).tolist()
        target = max(data.destinations, key=alike[key].__getitem__, default=None)
        if target is not None and alike[key][target] > best.ticks:
            what = f"the shortest path of chunk {c} to rank {target}"
            best = Claim(int(alike[key][target]), what, Path(c, target))
    return best


def _arrival(facts: Facts, path: Path) -> int:
    """Shortest time of a chunk to a destination; for a sum, from its farthest contribution."""
    data = facts.collective.chunks[path.chunk]
    if path.destination not in data.destinations:
        return 0
    units = 0 if facts.divisible else facts.units[path.chunk]
    links = facts.carried(path.chunk)
    if not facts.sums:
        starts = facts.origins(path.chunk, 0 if facts.divisible else None)
        return facts.times(links, units, starts).get(path.destination, 0)
    found = facts.times(links, units, {path.destination: 0}, backwards=True)
    return max(found.get(rank, 0) for rank in data.origins)

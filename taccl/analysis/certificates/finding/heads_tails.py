"""Heads and tails: min idle time of a resource at the start of a schedule, and at its end.

A send serves a chunk if it lies on the path by which a destination first gets the chunk. Its hold of a
resource begins no sooner than the chunk can be at the sender. After the hold, the chunk must still arrive and
get to a destination. In a schedule that finishes at T, sends that serve therefore hold a resource for at most
T less its head and its tail. These sends alone deliver everything that must be sent.
"""

# h a hold of resource r by a send over link e

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.certificates.finding.distances import Distances
from taccl.analysis.certificates.finding.gates import FOREVER, Ints
from taccl.problem.costs import hold_columns

Proof = TypeVar("Proof")

#: Max solves of a linear program, each with the bound that the previous one proved.
_MOST_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class HeadsTails:
    """Link, resource, head and tail of every hold that takes time; `FOREVER` if it serves no chunk."""

    link: Ints
    resource: Ints
    head: Ints
    tail: Ints

    def idle(self, num_resources: int, links: NDArray[np.bool_] | None = None) -> Ints:
        """(num_resources,) min ticks for which each resource is idle; `FOREVER` if no send holds it.

        - `links`, (num_links,) bool: Links whose sends count. Default: all.
        """
        chosen = slice(None) if links is None else links[self.link]
        ends = np.full((2, num_resources), FOREVER)
        for end, ticks in zip(ends, (self.head, self.tail), strict=True):
            np.minimum.at(end, self.resource[chosen], ticks[chosen])
        idle: Ints = np.minimum(ends.sum(axis=0), FOREVER)
        return idle


def heads_and_tails(distances: Distances, *, divisible: bool) -> HeadsTails:
    """Heads and tails of a problem whose chunks spread, or are summed for all ranks.

    - `divisible`: True if data may be cut arbitrarily; only alphas take time then.
    """
    problem = distances.problem
    holds, costs = hold_columns(problem.topology), problem.costs
    link, resource, receives = holds.link, holds.resource, holds.receives
    head, tail = (np.full(len(link), FOREVER) for _ in range(2))
    for links, units, starts, ends in _groups(distances, divisible=divisible):
        arc, src, dst = distances.arcs(links)
        first, left = (np.full(len(problem.topology.links), np.inf) for _ in range(2))
        np.minimum.at(first, arc, distances.nearest(links, units, starts)[src])
        np.minimum.at(left, arc, distances.nearest(links, units, ends, backwards=True)[dst])
        # A send of several chunks takes longer, and outlasts its holds by at least as much.
        rest = costs.link_alpha[link] - costs.hold_alpha + units * (costs.link_beta[link] - costs.hold_beta)
        for all_ticks, of_link, late in ((head, first, receives), (tail, left, ~receives)):
            found = np.isfinite(first[link]) & np.isfinite(left[link])
            ticks = np.where(found, of_link[link], 0).astype(np.int64) + np.where(late, rest, 0)
            np.minimum(all_ticks, ticks, out=all_ticks, where=found)
    lasts = costs.hold_beta + costs.hold_alpha > 0
    return HeadsTails(link[lasts], resource[lasts], head[lasts], tail[lasts])


def _groups(distances: Distances, *, divisible: bool) -> Iterator[tuple[int, int, set[int], set[int]]]:
    """Yield (links, units, ranks where chunks start, ranks that want one), by links and units."""
    collective, sizes = distances.problem.collective, distances.problem.costs.chunk_units.tolist()
    sums = collective.sums_up
    wanted: dict[int, set[int]] = {}
    for each in collective.derivations:
        wanted.setdefault(each.source, set()).add(each.rank)
    found: dict[tuple[int, int], tuple[set[int], set[int]]] = {}
    for c, chunk in enumerate(collective.chunks):
        key = distances.carried(c, reducing=None if sums else False), 0 if divisible else sizes[c]
        origins, ends = set(collective.starts[c]), wanted.get(c, set()).union(chunk.destinations)
        if not sums or len(origins) == 1:
            ends -= origins
        if origins and ends:
            all_starts, all_ends = found.setdefault(key, (set(), set()))
            all_starts |= origins
            all_ends |= ends
    for (links, units), (all_starts, all_ends) in found.items():
        yield links, units, all_starts, all_ends


def least_time(prices: Iterable[tuple[int, int]], needed: Fraction) -> Fraction:
    """Least T at which resources have paid `needed`: each pays its price per tick after its idle ticks.

    - `prices` (iterable of (int, int)): Price and idle ticks of every resource.
    """
    by_idle: dict[int, int] = {}
    for price, idle in prices:
        if price and idle < FOREVER:
            by_idle[idle] = by_idle.get(idle, 0) + price
    time, rate, before = Fraction(0), 0, Fraction(0)
    for idle in sorted(by_idle):
        if rate and (needed + before) / rate <= idle:
            break
        rate += by_idle[idle]
        before += by_idle[idle] * idle
        time = (needed + before) / rate
    return time if needed > 0 else Fraction(0)


def idle_at_most(idle: Ints, known: int) -> Ints:
    """Idle ticks for a linear program, capped at the known bound; 0 for resources that no send holds.

    The program knows the bound, but cannot express that a resource may be unused.
    """
    return np.where(idle < FOREVER, np.minimum(idle, known), 0)


def proven_in_rounds(
    idle: Ints, known: int, prove: Callable[[int], tuple[Fraction, Proof] | None]
) -> tuple[Fraction, Proof] | None:
    """Best result of a linear program, solved again with `idle_at_most` of the bound that it proved.

    - `prove`: Solves the program, given a known bound; returns None if it cannot.
    """
    best: tuple[Fraction, Proof] | None = None
    for _ in range(_MOST_ROUNDS):
        found = prove(known)
        if found is None or (best is not None and found[0] <= best[0]):
            break
        best = found
        if known >= int(best[0]) or not ((idle > known) & (idle < FOREVER)).any():
            break
        known = int(best[0])
    return best

"""Order on a resource, decided in the routing model: a binary for two hops that might meet there.

Routing alone counts what each resource carries and leaves the order to the next stage. Of its many optima
most cannot be sequenced in the time that they promise. Rows tagged ``routing.sequence`` keep hops apart that
are both made. They need a quotient in which no two members of an orbit meet: that of times. Source:
the disjunctive formulation of Manne, "On the job-shop scheduling problem", Operations Research 8 (2), 1960;
windows and big-M here are those of each pair.
"""

# a, b hop; gap ticks from a's start to b's where a goes first; s start in us, x is made, o a goes first

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from taccl.synthesis.symmetry.quotient import Held, Quotient


@dataclass(frozen=True, slots=True)
class Pair:
    """Two hops that must not hold a resource at one time.

    - `first`, `second`: Hops.
    - `gap`, `reverse_gap`: Ticks from the start of `first` to that of `second` if it goes first, and the
      other way round.
    """

    first: int
    second: int
    gap: int
    reverse_gap: int


class Windows:
    """When hops may start, in ticks, in schedules that finish by `upper_ticks`.

    - `earliest`, `latest` (dict of hop to ticks): Hops that cannot be over in time, or by which a chunk
      passes too many links, are left out.
    - `due` (list per state): The latest arrival from which a destination is reached in time; of a state that
      leads to none, the earliest.
    """

    def __init__(self, quotient: Quotient, upper_ticks: int) -> None:
        self.earliest: dict[int, int] = {}
        self.latest: dict[int, int] = {}
        for m, hop in enumerate(quotient.hops):
            earliest = quotient.earliest_start(hop)
            latest = upper_ticks - hop.duration - hop.after_ticks
            is_near = quotient.hop_limit is None or quotient.hop_limit.is_near(m, hop)
            if earliest <= latest and is_near:
                self.earliest[m], self.latest[m] = earliest, latest
        self.due = [
            upper_ticks
            if state.is_destination
            else max([min(state.head_ticks, upper_ticks), *(self.latest.get(m, 0) for m in state.hops_out)])
            for state in quotient.states
        ]


def num_pairs(quotient: Quotient, windows: Windows, resource: int) -> int:
    """Number of pairs of hops that may meet on a resource: those that may merge never do."""
    counts = Counter(quotient.hops[m].link_orbit for m in _holders(quotient, windows, resource))
    total = sum(counts.values())
    merging = sum(count * (count - 1) for link, count in counts.items() if quotient.merging[link])
    return (total * (total - 1) - merging) // 2


def pairs_apart(quotient: Quotient, windows: Windows, resources: Iterable[int]) -> list[Pair]:
    """The pairs of hops that these resources keep apart, and nothing else does.

    Where two hops may take two resources in different orders, there is a pair for each.
    """
    gaps: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for resource in resources:
        held = {
            link: [held for held in quotient.holds[link] if held.resource == resource]
            for link in quotient.links_of_resource[resource]
        }
        for a, b in combinations(_holders(quotient, windows, resource), 2):
            if _may_meet(quotient, a, b):
                for by_a in held[quotient.hops[a].link_orbit]:
                    for by_b in held[quotient.hops[b].link_orbit]:
                        gaps[a, b].append(
                            (_gap(quotient, a, by_a, b, by_b), _gap(quotient, b, by_b, a, by_a))
                        )
    pairs = []
    for (a, b), both in gaps.items():
        one_order = min(gap for gap, _ in both) + min(reverse for _, reverse in both) > 0
        if one_order:
            both = [(max(gap for gap, _ in both), max(reverse for _, reverse in both))]
        for gap, reverse in dict.fromkeys(both):
            apart = windows.latest[a] + gap <= windows.earliest[b]
            if not apart and windows.latest[b] + reverse > windows.earliest[a]:
                pairs.append(Pair(a, b, gap, reverse))
    return pairs


def _holders(quotient: Quotient, windows: Windows, resource: int) -> list[int]:
    links = quotient.links_of_resource[resource]
    return [m for link in links for m in quotient.hops_of_link[link] if m in windows.earliest]


def _may_meet(quotient: Quotient, a: int, b: int) -> bool:
    """True if both may be made unmerged, in an order that neither the chunk's path nor a clause fixes."""
    one, other = quotient.hops[a], quotient.hops[b]
    if one.link_orbit == other.link_orbit:
        own_first = quotient.link_rep[one.link_orbit] in quotient.problem.clauses.own_first
        if quotient.merging[one.link_orbit] or (own_first and one.is_own != other.is_own):
            return False
    if len(one.dsts) > 1 or len(other.dsts) > 1:
        return True
    follows = one.dsts[0] in other.srcs or other.dsts[0] in one.srcs
    return not follows and one.dsts != other.dsts


def _gap(quotient: Quotient, a: int, by_a: Held, b: int, by_b: Held) -> int:
    """The least time from the start of a to that of b, if a's hold ends before b's begins."""
    first, second = quotient.hops[a], quotient.hops[b]
    end = first.duration if by_a.receives else by_a.alpha + first.units * by_a.beta
    if not by_b.receives:
        return end
    costs, link, sizes = quotient.problem.costs, second.link_orbit, [second.units]
    if quotient.merging[link]:  # with what it merges with, the hold begins at another time after the start
        sizes.append(quotient.problem.clauses.max_merge * int(costs.chunk_units.max()))
    durations = [(units, costs.duration(quotient.link_rep[link], units)) for units in sizes]
    return end - max(duration - by_b.alpha - units * by_b.beta for units, duration in durations)

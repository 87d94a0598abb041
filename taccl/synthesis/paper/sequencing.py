"""Who goes first on a resource, decided in the routing model: a binary for two moves that might meet there.

Routing alone counts what each resource carries and leaves the order to the next stage. Of its many optima
most cannot be sequenced in the time that they promise. Rows tagged ``routing.sequence`` keep moves apart that
are both made. They need a fold in which no two members of an orbit meet: that by which times fold. Source:
the disjunctive formulation of Manne, "On the job-shop scheduling problem", Operations Research 8 (2), 1960;
windows and big-M here are those of each pair.
"""

# a, b move; gap ticks from a's start to b's where a goes first; s start in us, x is made, o a goes first

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from taccl.synthesis.paper.orbits import Held, Orbits


@dataclass(frozen=True, slots=True)
class Pair:
    """Two moves that must not hold a resource at one time.

    - `first`, `second`: Moves.
    - `gap`, `reverse_gap`: Ticks from the start of `first` to that of `second` if it goes first, and the
      other way round.
    """

    first: int
    second: int
    gap: int
    reverse_gap: int


class Windows:
    """When moves may start, in ticks, in schedules that finish by `upper_ticks`.

    - `earliest`, `latest` (dict of move to ticks): Moves that cannot be over in time, or by which a chunk
      passes too many links, are left out.
    - `due` (list per place): The latest arrival from which a destination is reached in time; of a place that
      leads to none, the earliest.
    """

    def __init__(self, orbits: Orbits, upper_ticks: int) -> None:
        self.earliest: dict[int, int] = {}
        self.latest: dict[int, int] = {}
        for m, move in enumerate(orbits.moves):
            earliest = orbits.earliest_start(move)
            latest = upper_ticks - move.duration - move.after_ticks
            is_near = orbits.hops is None or orbits.hops.is_near(m, move)
            if earliest <= latest and is_near:
                self.earliest[m], self.latest[m] = earliest, latest
        self.due = [
            upper_ticks
            if place.is_destination
            else max([min(place.head_ticks, upper_ticks), *(self.latest.get(m, 0) for m in place.moves_out)])
            for place in orbits.places
        ]


def num_pairs(orbits: Orbits, windows: Windows, resource: int) -> int:
    """How many pairs of moves may meet on a resource: those that may merge never do."""
    counts = Counter(orbits.moves[m].link_orbit for m in _holders(orbits, windows, resource))
    total = sum(counts.values())
    merging = sum(count * (count - 1) for link, count in counts.items() if orbits.merging[link])
    return (total * (total - 1) - merging) // 2


def pairs_apart(orbits: Orbits, windows: Windows, resources: Iterable[int]) -> list[Pair]:
    """The pairs of moves that these resources keep apart, and nothing else does.

    Where two moves may take two resources in different orders, there is a pair for each.
    """
    gaps: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for resource in resources:
        held = {
            link: [held for held in orbits.holds[link] if held.resource == resource]
            for link in orbits.links_of_resource[resource]
        }
        for a, b in combinations(_holders(orbits, windows, resource), 2):
            if _may_meet(orbits, a, b):
                for by_a in held[orbits.moves[a].link_orbit]:
                    for by_b in held[orbits.moves[b].link_orbit]:
                        gaps[a, b].append((_gap(orbits, a, by_a, b, by_b), _gap(orbits, b, by_b, a, by_a)))
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


def _holders(orbits: Orbits, windows: Windows, resource: int) -> list[int]:
    links = orbits.links_of_resource[resource]
    return [m for link in links for m in orbits.moves_of_link[link] if m in windows.earliest]


def _may_meet(orbits: Orbits, a: int, b: int) -> bool:
    """Whether both may be made unmerged, in an order that neither the chunk's way nor a clause sets."""
    one, other = orbits.moves[a], orbits.moves[b]
    if one.link_orbit == other.link_orbit:
        own_first = orbits.link_rep[one.link_orbit] in orbits.problem.clauses.own_first
        if orbits.merging[one.link_orbit] or (own_first and one.is_own != other.is_own):
            return False
    if len(one.dsts) > 1 or len(other.dsts) > 1:
        return True
    follows = one.dsts[0] in other.srcs or other.dsts[0] in one.srcs
    return not follows and one.dsts != other.dsts


def _gap(orbits: Orbits, a: int, by_a: Held, b: int, by_b: Held) -> int:
    """The least time from the start of a to that of b, if a's hold ends before b's begins."""
    first, second = orbits.moves[a], orbits.moves[b]
    end = first.duration if by_a.receives else by_a.alpha + first.units * by_a.beta
    if not by_b.receives:
        return end
    costs, link, sizes = orbits.problem.costs, second.link_orbit, [second.units]
    if orbits.merging[link]:  # with what it merges with, the hold begins at another time after the start
        sizes.append(orbits.problem.clauses.max_merge * int(costs.chunk_units.max()))
    durations = [(units, costs.duration(orbits.link_rep[link], units)) for units in sizes]
    return end - max(duration - by_b.alpha - units * by_b.beta for units, duration in durations)

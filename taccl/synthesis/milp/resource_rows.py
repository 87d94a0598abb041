"""Rows of the routing model on each resource: its load, and the order of two hops that may overlap on it.

A resource must carry its load after the earliest start of its hops, and before the shortest path that follows
them. This is the one-machine relaxation with heads and tails, for sets of late heads or long tails. Source:
Carlier, "The one-machine sequencing problem", European Journal of Operational Research 11 (1), 1982.

These rows leave the order to the next stage, which often cannot reach the optimum of the relaxation. Rows
tagged ``routing.sequence`` separate two hops if both are made, with a binary for each pair. They need
a quotient by the timing group, in which no two members of an orbit share a resource. Source: the
disjunctive formulation of Manne, "On the job-shop scheduling problem", Operations Research 8 (2), 1960; time
windows and big-M here are specific to each pair.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from typing import TYPE_CHECKING

from taccl.synthesis.symmetry.quotient import Held, Quotient

if TYPE_CHECKING:
    from taccl.synthesis.milp.routing import RoutingModel


#: `_MOST_HEADS`: max distinct heads (least ticks before an occupation) per resource; of more, evenly spaced.
#: `_MOST_TAILS`: max distinct tails (least ticks from an occupation to the finish); of more, evenly spaced.
_MOST_HEADS, _MOST_TAILS = 6, 4


@dataclass(frozen=True, slots=True)
class _Use:
    """Occupation of a resource by the sends of a hop's orbit, averaged over the orbit of the resource.

    - `head`, `tail`: Least ticks from time 0 to the start of the occupation, and from its end to the finish.
    - `alpha`, `units_ticks`: Ticks of the occupation per message, and for the hop's chunk.
    """

    hop: int
    link: int
    head: int
    tail: int
    alpha: Fraction
    units_ticks: Fraction


def add_load_rows(routing: RoutingModel) -> None:
    """Add the rows tagged ``routing.resource``, ``routing.messages`` and ``routing.copies``."""
    quotient = routing.quotient
    _count_messages(routing)
    uses = _uses(routing)
    heads = (state.head_ticks for state in quotient.states if state.is_destination)
    least = max([routing.lower_ticks, *heads])
    for _, some in sorted(uses.items()):
        done: set[tuple[int, ...]] = set()
        for head, tail in _windows(some):
            inside = [use for use in some if use.head >= head and use.tail >= tail]
            hops = tuple(use.hop for use in inside)
            # Idle time of the resource before and after its hops.
            # Idle time must not exceed the proven bound, as the row demands T >= idle even if no hop is made.
            head, tail = (min((getattr(use, end) for use in inside), default=0) for end in ("head", "tail"))
            idle = max(0, min(head + tail, least))
            if inside and hops not in done:
                done.add(hops)
                terms, total = _load(routing, inside, some)
                if idle == 0 or idle + total > routing.lower_ticks:
                    routing.no_sooner("resource", routing.finish, None, terms, idle)
    _copies(routing, uses)


def _count_messages(routing: RoutingModel) -> None:
    """Add the row max_merge * n >= chunks for each merging link, where n is its number of messages."""
    quotient = routing.quotient
    for link, hops in enumerate(quotient.hops_of_link):
        chunks = [(-float(routing.chunks_per_link(m)), routing.made[m]) for m in hops if m in routing.made]
        if quotient.merging[link] and chunks:
            most = sum(-count for count, _ in chunks)
            messages = routing.messages[link] = routing.model.add_variable(0, most, integer=True)
            row = [(float(quotient.problem.clauses.max_merge), messages), *chunks]
            routing.model.add_row(row, 0, tag="routing.messages")


def _uses(routing: RoutingModel) -> dict[int, list[_Use]]:
    """{resource: occupations by the hops of the model}."""
    quotient = routing.quotient
    size = Counter(quotient.resource_orbit)
    uses: dict[int, list[_Use]] = defaultdict(list)
    for m in routing.made:
        hop = quotient.hops[m]
        for held in quotient.holds[hop.link_orbit]:
            rest = _least_rest(quotient, m, held)
            before, after = (rest, 0) if held.receives else (0, rest)
            count = Fraction(quotient.num_members(m) * held.count, size[held.resource])
            uses[held.resource].append(
                _Use(
                    m,
                    hop.link_orbit,
                    quotient.earliest_start(hop) + before,
                    after + hop.after_ticks,
                    count * held.alpha,
                    count * held.beta * hop.units,
                )
            )
    return uses


def _least_rest(quotient: Quotient, m: int, held: Held) -> int:
    """Min ticks of a hop's send during which it does not hold the resource, merged or not."""
    costs, hop, sizes = quotient.problem.costs, quotient.hops[m], [quotient.hops[m].units]
    if quotient.merging[hop.link_orbit]:
        sizes.append(quotient.problem.clauses.max_merge * int(costs.chunk_units.max()))
    link = quotient.link_rep[hop.link_orbit]
    return min(costs.duration(link, units) - held.alpha - units * held.beta for units in sizes)


def _windows(uses: Sequence[_Use]) -> Iterable[tuple[int, int]]:
    """Pairs (min start of an occupation, min time from its end to the finish) to try, smallest first."""
    heads = _spaced({use.head for use in uses}, _MOST_HEADS)
    return product(heads, _spaced({use.tail for use in uses}, _MOST_TAILS))


def _spaced(values: set[int], most: int) -> list[int]:
    """At most `most` of the values, ascending and evenly spaced, including the least."""
    ordered = sorted(values)
    return ordered[:: -(-len(ordered) // most)]


def _load(
    routing: RoutingModel, inside: Sequence[_Use], every: Sequence[_Use]
) -> tuple[list[tuple[Fraction, int]], Fraction]:
    """(negated load of the hops `inside` on a resource, as row terms; max of this load).

    If all hops of a merging link are included, each of its messages adds its alpha; otherwise each chunk adds
    its share of the alpha of a full message.
    """
    quotient, max_merge = routing.quotient, routing.quotient.problem.clauses.max_merge
    left_out = Counter(use.link for use in every) - Counter(use.link for use in inside)
    terms, total = [], Fraction(0)
    paid: set[tuple[int, Fraction]] = set()
    for use in inside:
        load, messages = use.units_ticks, routing.messages.get(use.link)
        if messages is None:
            load += use.alpha
        elif use.link in left_out:
            load += use.alpha / max_merge
        else:
            alpha = use.alpha / routing.chunks_per_link(use.hop)
            if (use.link, alpha) not in paid:
                paid.add((use.link, alpha))
                terms.append((-alpha, messages))
                total += use.alpha * len(quotient.hops_of_link[use.link])
        terms.append((-load, routing.made[use.hop]))
        total += load
    return terms, total


def _copies(routing: RoutingModel, uses: dict[int, list[_Use]]) -> None:
    """Add rows T >= arrival of a chunk at a destination + load of its further sends from this rank.

    T is the finish. A row counts the sends on one resource.
    """
    quotient = routing.quotient
    for _, some in sorted(uses.items()):
        copies: dict[int, list[_Use]] = defaultdict(list)
        for use in some:
            for p in quotient.hops[use.hop].srcs:
                copies[p].append(use)
        for p, out in sorted(copies.items()):
            if len(out) > 1 and p in routing.arrival and quotient.states[p].is_destination:
                terms = [
                    (-use.units_ticks - use.alpha * (use.link not in routing.messages), routing.made[use.hop])
                    for use in out
                ]
                routing.no_sooner("copies", routing.finish, routing.arrival[p], terms)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two hops that must not occupy a resource at the same time.

    - `first`, `second`: Hops.
    - `gap`, `reverse_gap`: Min ticks from the start of `first` to that of `second` if `first` goes first; and
      from the start of `second` to that of `first` otherwise.
    """

    first: int
    second: int
    gap: int
    reverse_gap: int


class Windows:
    """Time windows of hops, in ticks, in schedules that finish by `upper_ticks`.

    - `earliest`, `latest`: {hop: start}; without hops that cannot finish in time, or that make paths too
      long.
    - `due` (list by state): Latest arrival from which a destination is reached in time; for states that lead
      to no destination, the earliest arrival.
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
    """Number of pairs of hops that may overlap on a resource; hops that may merge do not count."""
    counts = Counter(quotient.hops[m].link_orbit for m in _holders(quotient, windows, resource))
    total = sum(counts.values())
    merging = sum(count * (count - 1) for link, count in counts.items() if quotient.merging[link])
    return (total * (total - 1) - merging) // 2


def pairs_apart(quotient: Quotient, windows: Windows, resources: Iterable[int]) -> list[Pair]:
    """Pairs of hops that must not overlap on the given resources, but may overlap by their time windows.

    If two hops may use two resources in different orders, there is a pair for each resource.
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
    """True if two hops may occupy a resource in either order, each as a send of its own.

    False if they may merge, enter the same state, or if a path or a clause determines their order.
    """
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
    """Min ticks from the start of hop a to that of hop b, so that a releases a resource before b uses it."""
    first, second = quotient.hops[a], quotient.hops[b]
    end = first.duration if by_a.receives else by_a.alpha + first.units * by_a.beta
    if not by_b.receives:
        return end
    costs, link, sizes = quotient.problem.costs, second.link_orbit, [second.units]
    if quotient.merging[link]:  # the larger the merged send, the later its occupation may begin
        sizes.append(quotient.problem.clauses.max_merge * int(costs.chunk_units.max()))
    durations = [(units, costs.duration(quotient.link_rep[link], units)) for units in sizes]
    return end - max(duration - by_b.alpha - units * by_b.beta for units, duration in durations)

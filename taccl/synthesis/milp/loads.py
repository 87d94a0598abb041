"""Rows of the routing model on the load of each resource.

A resource must carry its load after the earliest of its hops can start, and before the shortest path that
follows them. Source: the one-machine relaxation with heads and tails of Carlier, "The one-machine sequencing
problem", European Journal of Operational Research 11 (1), 1982, for sets of late heads or long tails.
"""

# R resource, m hop, x is made, n messages of a merging link, all times in ticks

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

from taccl.synthesis.symmetry.quotient import Held, Quotient

if TYPE_CHECKING:
    from taccl.synthesis.milp.routing import RoutingModel

#: Max distinct heads, and tails, of a resource that give rows; evenly spaced ones beyond.
_MOST_HEADS, _MOST_TAILS = 6, 4


@dataclass(frozen=True, slots=True)
class _Use:
    """Use of a resource by the members of a hop, per resource of the orbit.

    - `head`, `tail`: Least ticks from 0 to the hold's begin, and from its end to the finish.
    - `alpha`, `units_ticks`: Ticks of the hold for each message, and for the hop's chunk.
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
            # A row with nothing inside would say T >= head + tail: only what is proven anyway may be said.
            head, tail = (min((getattr(use, end) for use in inside), default=0) for end in ("head", "tail"))
            idle = max(0, min(head + tail, least))
            if inside and hops not in done:
                done.add(hops)
                terms, total = _load(routing, inside, some)
                if idle == 0 or idle + total > routing.lower_ticks:
                    routing.no_sooner("resource", routing.finish, None, terms, idle)
    _copies(routing, uses)


def _count_messages(routing: RoutingModel) -> None:
    """max_merge n >= chunks over the link, for each merging link."""
    quotient = routing.quotient
    for link, hops in enumerate(quotient.hops_of_link):
        chunks = [(-float(routing.chunks_per_link(m)), routing.made[m]) for m in hops if m in routing.made]
        if quotient.merging[link] and chunks:
            most = sum(-count for count, _ in chunks)
            messages = routing.messages[link] = routing.model.add_variable(0, most, integer=True)
            row = [(float(quotient.problem.clauses.max_merge), messages), *chunks]
            routing.model.add_row(row, 0, tag="routing.messages")


def _uses(routing: RoutingModel) -> dict[int, list[_Use]]:
    """{resource: its uses}."""
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
    """Least ticks by which a send of the hop takes longer than it holds the resource, merged or not."""
    costs, hop, sizes = quotient.problem.costs, quotient.hops[m], [quotient.hops[m].units]
    if quotient.merging[hop.link_orbit]:
        sizes.append(quotient.problem.clauses.max_merge * int(costs.chunk_units.max()))
    link = quotient.link_rep[hop.link_orbit]
    return min(costs.duration(link, units) - held.alpha - units * held.beta for units in sizes)


def _windows(uses: Sequence[_Use]) -> Iterable[tuple[int, int]]:
    """Heads and tails to try, the least of both first."""
    heads = _spaced({use.head for use in uses}, _MOST_HEADS)
    return product(heads, _spaced({use.tail for use in uses}, _MOST_TAILS))


def _spaced(values: set[int], most: int) -> list[int]:
    """At most so many of the values in order, evenly spaced, the least among them."""
    ordered = sorted(values)
    return ordered[:: -(-len(ordered) // most)]


def _load(
    routing: RoutingModel, inside: Sequence[_Use], every: Sequence[_Use]
) -> tuple[list[tuple[Fraction, int]], Fraction]:
    """Negative terms of the load of some uses of a resource, and its most.

    Where all hops of a merging link are among them, each of its messages pays alpha; elsewhere a chunk pays
    its share of a full message.
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
    """T >= the arrival at a destination, plus the load of the chunk's copies from there on one resource."""
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

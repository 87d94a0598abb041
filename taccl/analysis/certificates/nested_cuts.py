"""The nested-cut bound: chunks enter a node over few resources, and only then spread inside it.

However the sends into the node are ordered, the last k chunks are in no sooner than the resources at its
border have passed all but k - 1. From then on these k must still come to each rank of the node that needs
them: over links inside the node, or over those that enter node and rank at once. Read backwards in time the
same holds of what must leave a rank, and then its node.
"""

# n chunks that cross both borders, k the last of them, h a hold on a send: it begins `offset` ticks after
# the send does, lasts `length`, and `rest` ticks after it began the send ends

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taccl.analysis.certificates.certificate import NestedCuts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from taccl.analysis.certificates.needed_sends import NeededSends

__all__ = ["nested_cut_bounds"]


@dataclass(frozen=True, slots=True)
class _Gate:
    """One resource that links at a border hold: how many chunks over them it lets pass in a time."""

    length: int
    earliest: int
    spread: int
    merges: bool

    def done_by(self, ticks: int) -> int:
        """How many can begin and end within so many ticks."""
        return 0 if ticks < self.earliest else 1 + (ticks - self.earliest) // self.length

    def ending_within(self, since: int, until: int) -> int:
        """How many can end from one moment to another, whenever they began; merged ones all at once."""
        return self.done_by(until) if self.merges else 1 + (until - since + self.spread) // self.length


def nested_cut_bounds(demand: NeededSends) -> Iterator[tuple[int, str, NestedCuts]]:
    """(ticks, what limits, witness) of every rank that no symmetry takes to an earlier one, and its node.

    Chunks must all have one size, and spread, over links from one rank to one rank.
    """
    problem, topology = demand.problem, demand.topology
    alike = len({kind.units for kind in demand.classes}) == 1
    if not alike or demand.sums_for_all or problem.collective.derivations:
        return
    if topology.num_nodes == 1 or not demand.single_ended:
        return
    size = int(problem.costs.chunk_units[0])
    for entering in (True, False):
        gates: dict[frozenset[int], list[_Gate] | None] = {}
        for inner in demand.different([frozenset((r,)) for r in range(topology.num_ranks)]):
            (rank,) = inner
            node = topology.node_of_rank[rank]
            outer = frozenset(topology.ranks_of_node[node])
            count = _crossing_both(demand, inner, outer, entering=entering)
            if count < 2 or outer == inner:
                continue
            if outer not in gates:
                gates[outer] = _gates(demand, _crossing(demand, outer, entering=entering), size, entering)
            at_node = gates[outer]
            at_rank = _crossing(demand, inner, entering=entering)
            far = [e for e in at_rank if _far_end(demand, e, entering=entering) not in outer]
            near = [e for e in at_rank if _far_end(demand, e, entering=entering) in outer]
            inside, direct = _gates(demand, near, size, entering), _gates(demand, far, size, entering)
            if at_node is None or inside is None or direct is None or not at_node or not (inside or direct):
                continue
            ticks, last = _best(at_node, inside, direct, count)
            if entering:
                what = (
                    f"the last {last} of {count} chunks to enter node {node}, which then go on to rank {rank}"
                )
            else:
                what = (
                    f"the first {last} of {count} chunks to leave node {node}, which leave rank {rank} before"
                )
            yield ticks, what, NestedCuts(inner, outer, entering)


def _crossing_both(
    demand: NeededSends, inner: frozenset[int], outer: frozenset[int], *, entering: bool
) -> int:
    """Chunks that must cross both borders."""
    total = 0
    (rank,) = inner
    for kind in demand.classes_at(rank, ends=entering):
        if entering:
            crosses = outer.isdisjoint(kind.data.origins)
        else:
            crosses = set(kind.data.origins) == inner and not outer.issuperset(kind.data.destinations)
        if crosses:
            total += demand.classes[kind]
    return total


def _crossing(demand: NeededSends, ranks: frozenset[int], *, entering: bool) -> list[int]:
    """Links that enter (or leave) a set of ranks."""
    links = demand.topology.links
    near = demand.topology.links_to if entering else demand.topology.links_from
    allowed = demand.allowed
    return [
        e for r in sorted(ranks) for e in near[r]
        if e in allowed and (links[e].src if entering else links[e].dst) not in ranks
    ]  # fmt: skip


def _far_end(demand: NeededSends, link: int, *, entering: bool) -> int:
    return demand.topology.links[link].src if entering else demand.topology.links[link].dst


def _gates(demand: NeededSends, links: Iterable[int], size: int, entering: bool) -> list[_Gate] | None:
    """Resources that the links hold between them, those of most links first; None where one passes all."""
    users: dict[int, list[int]] = defaultdict(list)
    left = set(links)
    for e in sorted(left):
        for resource in demand.held[e]:
            users[resource].append(e)
    gates = []
    for resource in sorted(users, key=lambda r: (-len(users[r]), r)):
        mine = [e for e in users[resource] if e in left]
        if mine:
            left -= set(mine)
            gate = _gate(demand, resource, mine, size, entering)
            if gate is None:
                return None
            gates.append(gate)
    return None if left else gates


def _gate(
    demand: NeededSends, resource: int, links: Sequence[int], size: int, entering: bool
) -> _Gate | None:
    problem = demand.problem
    if problem.clauses.max_merge > 1 and not problem.clauses.merging.isdisjoint(links):
        # Of a merged send each chunk holds the resource for its bytes at least, before the send ends.
        shortest = min(size * demand.held[e][resource][1] for e in links)
        within = all(_holds_within(demand, e, resource) for e in links)
        return _Gate(shortest, shortest, 0, True) if shortest and within else None
    lengths, offsets, rests = [], [], []
    for e in links:
        alpha, beta, receives = demand.held[e][resource]
        took, length = problem.costs.duration(e, size), alpha + size * beta
        offset = max(0, took - length) if receives else 0
        if not entering:
            offset = took - (offset + length)  # read backwards a hold begins where it ended
        lengths.append(length)
        offsets.append(offset)
        rests.append(took - offset)
    shortest = min(lengths)
    earliest = min(offsets) + min(rests)
    return _Gate(shortest, earliest, max(rests) - min(rests), False) if shortest else None


def _holds_within(demand: NeededSends, link: int, resource: int) -> bool:
    """Whether a send, of whatever size, holds a resource for no longer than it takes."""
    alpha, beta, _ = demand.held[link][resource]
    costs = demand.problem.costs
    return alpha <= int(costs.link_alpha[link]) and beta <= int(costs.link_beta[link])


def _best(
    at_node: Sequence[_Gate], inside: Sequence[_Gate], direct: Sequence[_Gate], count: int
) -> tuple[int, int]:
    """When the chunks can be at the rank at the earliest, and how many of the last ones say so."""

    def into_node(ticks: int) -> int:
        return sum(gate.done_by(ticks) for gate in at_node)

    best, last = (0, 1), 0
    while last < count:
        since = _first(lambda ticks: into_node(ticks) >= count - last)  # noqa: B023  used at once
        last = count - into_node(since - 1) if since else count
        more = _first(
            lambda ticks: (
                sum(gate.done_by(ticks) for gate in inside)
                + sum(gate.ending_within(since, since + ticks) for gate in direct)  # noqa: B023
                >= last  # noqa: B023
            )
        )
        best = max(best, (since + more, last))
    return best


def _first(holds: Callable[[int], bool]) -> int:
    """The smallest number of ticks, 0 or more, of which something holds that then goes on to hold."""
    low, high = 0, 1
    while not holds(high):
        high *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low

"""Invariants of topologies, checked when a topology is created."""

from __future__ import annotations

from operator import eq
from typing import TYPE_CHECKING

from taccl.errors import TopologyError
from taccl.topology.links import columns_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from fractions import Fraction

    from taccl.topology.topology import Hold, Link, Topology


def check_topology(topology: Topology) -> None:
    """Raise `TopologyError` if an invariant is violated."""
    for fault in _faults(topology):
        raise TopologyError(fault, where=topology.name or "topology")


def _faults(topology: Topology) -> Iterator[str]:
    if topology.alpha_meaning not in ("occupies", "pipelined"):
        yield f"found {topology.alpha_meaning!r}; expected 'occupies' or 'pipelined'"
    if topology.cost_model not in ("physical", "upstream"):
        yield f"found {topology.cost_model!r}; expected 'physical' or 'upstream'"
    if topology.launch_us < 0:
        yield f"found a launch of {topology.launch_us} us; expected at least 0"
    if topology.num_ranks == 0:
        yield "found no ranks; expected at least one"
    nodes = set(topology.node_of_rank)
    if nodes != set(range(len(nodes))):
        yield f"found node numbers {sorted(nodes)}; expected 0..{len(nodes) - 1} without a gap"
    for link in _odd_links(topology.links, topology.num_ranks):
        yield from _faults_of_link(link, topology.num_ranks)
    yield from _faults_of_holds(topology)
    free = set(range(len(topology.links))).difference(*columns_of(topology.holds, 0))
    if free:
        yield (
            f"link {topology.links[min(free)]} holds no resource, so it has unlimited capacity; add one of "
            "its own"
        )
    for switch in topology.switches:
        counts = ("rank", switch.ranks, topology.num_ranks), ("link", switch.links, len(topology.links))
        for kind, indices, count in counts:
            for wrong in (index for index in indices if not 0 <= index < count):
                yield f"switch {switch.name}: {kind} {wrong} does not exist"


def _odd_links(links: Sequence[Link], num_ranks: int) -> Iterable[Link]:
    """Links to check: the first link with each (alpha, beta), or all links if any has unusual ends.

    Usual ends are one existing source rank and another existing rank as destination. Columns are compared
    instead of links, since most topologies have many links of equal cost.
    """
    srcs, dsts, alphas, betas = map(list, columns_of(links, 0, 1, 2, 3))
    ends = set(srcs) | set(dsts)
    if any(len(ranks) != 1 or not 0 <= ranks[0] < num_ranks for ranks in ends) or any(map(eq, srcs, dsts)):
        return links
    place = range(len(links) - 1, -1, -1)  # reversed, to keep the first link of each cost
    first = dict(
        zip(zip(map(id, reversed(alphas)), map(id, reversed(betas)), strict=True), place, strict=True)
    )
    return (links[i] for i in sorted(first.values()))


def _faults_of_holds(topology: Topology) -> Iterator[str]:
    num_links, num_resources, links = len(topology.links), len(topology.resources), topology.links
    link, resource, alpha, beta, side = map(list, columns_of(topology.holds, 0, 1, 2, 3, 4))
    if link and not (
        0 <= min(link) <= max(link) < num_links and 0 <= min(resource) <= max(resource) < num_resources
    ):
        for hold in topology.holds:
            if not (0 <= hold.link < num_links and 0 <= hold.resource < num_resources):
                yield f"hold of resource {hold.resource} by link {hold.link}: no such link or resource"
    of_link = list(map(links.__getitem__, link))
    costs = (alpha, beta, *columns_of(of_link, 2, 3), side)
    known = zip(*(map(id, each) for each in costs), strict=True)  # most holds share the cost objects
    first = dict(zip(reversed(list(known)), range(len(link) - 1, -1, -1), strict=True))
    for i in sorted(first.values()):
        yield from _faults_of_hold(topology.holds[i], topology)


def _faults_of_link(link: Link, num_ranks: int) -> Iterator[str]:
    ends = (*link.srcs, *link.dsts)
    for rank in ends:
        if not 0 <= rank < num_ranks:
            yield f"link {link}: rank {rank} does not exist; the topology has ranks 0-{num_ranks - 1}"
    if not link.srcs or not link.dsts or len(set(ends)) < len(ends):
        yield f"link {link} joins a rank to itself, names a rank twice, or has an empty end"
    # Compare the numerator, which carries the sign: much faster than comparing the fraction.
    if link.alpha_us.numerator < 0 or link.beta_us_per_mb.numerator <= 0:
        yield (
            f"link {link}: found alpha {link.alpha_us} us and beta {link.beta_us_per_mb} us/MB; expected "
            "alpha >= 0 and beta > 0"
        )


def _faults_of_hold(hold: Hold, topology: Topology) -> Iterator[str]:
    link, name = topology.links[hold.link], topology.resources[hold.resource].name
    if hold.side not in ("send", "receive"):
        yield f"hold by link {link}: found side {hold.side!r}; expected 'send' or 'receive'"
    alpha, beta = hold.alpha_us.numerator, hold.beta_us_per_mb.numerator
    if alpha < 0 or beta < 0 or alpha == beta == 0:
        yield (
            f"hold of {name} by link {link}: found alpha {hold.alpha_us} us and beta {hold.beta_us_per_mb} "
            "us/MB; expected a positive time"
        )
    if _exceeds(hold.alpha_us, link.alpha_us) or _exceeds(hold.beta_us_per_mb, link.beta_us_per_mb):
        yield (
            f"hold of {name} by link {link} is longer than the send itself; raise the link's alpha or beta"
        )


def _exceeds(cost: Fraction, limit: Fraction) -> bool:
    """True if `cost` is above `limit`; fast for the common case that both are the same object."""
    return cost is not limit and cost.numerator != 0 and cost > limit

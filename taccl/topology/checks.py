"""Invariants of topologies, checked when a topology is created."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Iterator
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
    for link in topology.links:
        yield from _faults_of_link(link, topology.num_ranks)
    alike: set[tuple[int, ...]] = set()  # most holds share the cost objects
    num_links, num_resources, links = len(topology.links), len(topology.resources), topology.links
    for hold in topology.holds:
        if not (0 <= hold.link < num_links and 0 <= hold.resource < num_resources):
            yield f"hold of resource {hold.resource} by link {hold.link}: no such link or resource"
        link = links[hold.link]
        costs = hold.alpha_us, hold.beta_us_per_mb, link.alpha_us, link.beta_us_per_mb, hold.side
        known = tuple(map(id, costs))
        if known not in alike:
            yield from _faults_of_hold(hold, topology)
            alike.add(known)
    free = set(range(len(topology.links))).difference(hold.link for hold in topology.holds)
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

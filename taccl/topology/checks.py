"""What every topology must satisfy; checked whenever one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl.errors import TopologyError

if TYPE_CHECKING:
    from fractions import Fraction

    from taccl.topology.topology import Hold, Link, Topology

__all__ = ["check_topology"]


def check_topology(topology: Topology) -> None:
    """Raise `TopologyError` for what cannot be a topology."""
    where = topology.name or "topology"
    for value, known in (
        (topology.alpha_meaning, ("occupies", "pipelined")),
        (topology.cost_model, ("physical", "upstream")),
    ):
        if value not in known:
            raise TopologyError(f"found {value!r}; expected {known[0]!r} or {known[1]!r}", where=where)
    if topology.num_ranks == 0:
        raise TopologyError("found no ranks; expected at least one", where=where)
    nodes = set(topology.node_of_rank)
    if nodes != set(range(len(nodes))):
        raise TopologyError(
            f"found node numbers {sorted(nodes)}; expected 0..{len(nodes) - 1} without a gap", where=where
        )
    for link in topology.links:
        _check_link(link, topology.num_ranks, where)
    for hold in topology.holds:
        _check_hold(hold, topology, where)
    free = set(range(len(topology.links))).difference(hold.link for hold in topology.holds)
    if free:
        raise TopologyError(
            f"link {topology.links[min(free)]} holds no resource, so that any number of sends would pass "
            "at once; have it hold one of its own",
            where=where,
        )
    for switch in topology.switches:
        for kind, indices, count in (
            ("rank", switch.ranks, topology.num_ranks),
            ("link", switch.links, len(topology.links)),
        ):
            wrong = next((index for index in indices if not 0 <= index < count), None)
            if wrong is not None:
                raise TopologyError(f"switch {switch.name}: {kind} {wrong} does not exist", where=where)


def _check_link(link: Link, num_ranks: int, where: str) -> None:
    ends = (*link.srcs, *link.dsts)
    for rank in ends:
        if not 0 <= rank < num_ranks:
            raise TopologyError(
                f"link {link}: rank {rank} does not exist; the topology has ranks 0-{num_ranks - 1}",
                where=where,
            )
    if not link.srcs or not link.dsts or len(set(ends)) < len(ends):
        raise TopologyError(
            f"link {link} joins a rank to itself, names a rank twice, or has an empty end", where=where
        )
    # The numerator carries the sign, and is much cheaper to compare than the fraction.
    if link.alpha_us.numerator < 0 or link.beta_us_per_mb.numerator <= 0:
        raise TopologyError(
            f"link {link}: found alpha {link.alpha_us} us and beta {link.beta_us_per_mb} us/MB; "
            "expected alpha >= 0 and beta > 0",
            where=where,
        )


def _check_hold(hold: Hold, topology: Topology, where: str) -> None:
    if not (0 <= hold.link < len(topology.links) and 0 <= hold.resource < len(topology.resources)):
        raise TopologyError(
            f"hold of resource {hold.resource} by link {hold.link}: no such link or resource", where=where
        )
    link = topology.links[hold.link]
    if hold.side not in ("send", "receive"):
        raise TopologyError(
            f"hold by link {link}: found side {hold.side!r}; expected 'send' or 'receive'", where=where
        )
    alpha, beta = hold.alpha_us.numerator, hold.beta_us_per_mb.numerator
    if alpha < 0 or beta < 0 or alpha == beta == 0:
        raise TopologyError(
            f"hold of {topology.resources[hold.resource].name} by link {link}: found alpha "
            f"{hold.alpha_us} us and beta {hold.beta_us_per_mb} us/MB; expected a positive time",
            where=where,
        )
    if _exceeds(hold.alpha_us, link.alpha_us) or _exceeds(hold.beta_us_per_mb, link.beta_us_per_mb):
        raise TopologyError(
            f"hold of {topology.resources[hold.resource].name} by link {link} is longer than the send "
            "itself; a resource slower than its link makes the link slow: raise the link's alpha or beta",
            where=where,
        )


def _exceeds(cost: Fraction, limit: Fraction) -> bool:
    """Whether `cost` is above `limit`; most holds share the very objects of their link."""
    return cost is not limit and cost.numerator != 0 and cost > limit

"""Building blocks of machine models, fabrics and topology files: rates, crossbars, NICs."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import permutations, product
from typing import TYPE_CHECKING, Any, NamedTuple

from taccl._internal.arguments import quoted, whole_number
from taccl._internal.units import exact
from taccl.errors import InputError, TopologyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from taccl._internal.arguments import Number
    from taccl.topology.builder import TopologyBuilder
    from taccl.topology.in_network import InNetwork
    from taccl.topology.topology import Link, Side, Topology

OVERHEAD_US = Fraction("0.02")
"""Maximum time in us, within alpha, for which a message occupies a port, NIC or link; our choice."""
MAX_LINKS = 1_000_000
"""Maximum number of links of a topology; a million links take about 1 GB, and most of a minute to build."""


class LinkCost(NamedTuple):
    """Cost of a send over a link.

    - `overhead_us`: Time in us, within alpha, during which the link is busy; None for the whole alpha.
    """

    alpha_us: Fraction
    beta_us_per_mb: Fraction
    overhead_us: Fraction | None = None


def exact_cost(value: int | float | str | Fraction, *, where: str) -> Fraction:
    """Exact value of an alpha, beta or bandwidth; `TopologyError` unless it is finite and nonnegative."""
    try:
        return exact(value, where=where)
    except InputError as error:
        raise TopologyError(error.message, where=where) from None


def beta_of_bandwidth(
    gb_per_s: int | float | str | Fraction, *, where: str = "bandwidth_gb_per_s"
) -> Fraction:
    """Exact us/MB of a bandwidth in GB/s (10**9 bytes per second): 1 GB/s is 1000 us/MB.

    Raises `TopologyError` unless the bandwidth is a positive number.
    """
    rate = exact_cost(gb_per_s, where=where)
    if rate == 0:
        raise TopologyError("found 0 GB/s; expected a positive bandwidth", where=where)
    return _thousand_over(rate)


@lru_cache(maxsize=4096)
def _thousand_over(rate: Fraction) -> Fraction:
    return Fraction(1000) / rate


def thousandths(cost: Fraction) -> Fraction:
    """Cost in us/MB rounded to three decimals, so that a byte takes whole femtoseconds, as ticks need."""
    return Fraction(round(cost * 1000), 1000) or cost


def rates_of_axes(
    bandwidth_gb_per_s: Number | Sequence[Number], num_axes: int, *, where: str
) -> tuple[Fraction, ...]:
    """Beta in us/MB along each axis, from one bandwidth for all axes or one bandwidth for each axis."""
    several = isinstance(bandwidth_gb_per_s, Sequence) and not isinstance(bandwidth_gb_per_s, str)
    rates: Sequence[Any] = bandwidth_gb_per_s if several else (bandwidth_gb_per_s,) * num_axes  # type: ignore[assignment]
    if len(rates) != num_axes:
        raise TopologyError(
            f"found {len(rates)} bandwidths for {num_axes} axes; give one, or one for every axis", where=where
        )
    return tuple(beta_of_bandwidth(rate, where=where) for rate in rates)


def check_count(value: object, *, where: str, least: int = 1) -> int:
    """Return `value` if it is a whole number of at least `least`; otherwise raise `TopologyError`."""
    try:
        return whole_number(value, where, at_least=least)
    except InputError as error:
        raise TopologyError(error.message, where=where) from None


def check_ranks(
    ranks: Iterable[int],
    count: int,
    *,
    where: str,
    error: type[InputError] = TopologyError,
    of: str = "the topology has ranks",
) -> None:
    """Raise `error` for the first of `ranks` that is not from 0 to `count` - 1."""
    for rank in ranks:
        if not 0 <= rank < count:
            raise error(f"rank {quoted(rank)} does not exist; {of} 0-{count - 1}", where=where)


def links_among(links: Iterable[Link], ranks: Iterable[int]) -> list[int]:
    """Indices of the links whose sources and destinations are all among `ranks`."""
    known = set(ranks)
    return [index for index, link in enumerate(links) if known.issuperset((*link.srcs, *link.dsts))]


def check_num_links(num_links: int, *, where: str) -> None:
    """Raise `TopologyError` if a topology would have too many links to hold in memory."""
    if num_links > MAX_LINKS:
        raise TopologyError(
            f"found {quoted(num_links)} links; expected at most {MAX_LINKS}: ask for fewer ranks; "
            "taccl.synthesize_implicit lists no links of rings, tori and other fabrics by name",
            where=where,
        )


def on_rails(topology: Topology) -> bool:
    """True if links join only some ranks of different nodes, as rails do; also on a single node.

    To try both kinds of a machine instead would list the links between all ranks, too many on large machines.
    """
    links, num_ranks = topology.links, topology.num_ranks
    between = {(e.srcs, e.dsts) for index, e in enumerate(links) if topology.is_internode(index)}
    every = sum(len(ranks) * (num_ranks - len(ranks)) for ranks in topology.ranks_of_node)
    return len(between) < every or not every


def add_crossbar(
    builder: TopologyBuilder,
    ranks: Sequence[int],
    cost: LinkCost,
    *,
    name: str,
    link_name: str = "",
    reduces: InNetwork | None = None,
    port_betas: Mapping[int, Fraction] | None = None,
) -> None:
    """Join `ranks` by a switch: a link per ordered pair, and two ports (out and in) per rank.

    A send holds the source's port out and the destination's port in for as long as its own link. So a rank
    sends to one rank at a time, and receives from one at a time. Alpha (or its part `overhead_us`) counts in
    this time if the builder's `alpha_meaning` is "occupies"; with "pipelined", it does not. With `reduces`,
    the switch also gets multicast and reduction links (`add_aggregation`).

    - `port_betas`: {rank: us/MB of its ports}; by default, all ports have the beta of `cost`. A link is as
      fast as the slower of its two ports.
    """
    port_out = {rank: builder.add_resource(f"port out {rank} ({name})") for rank in ranks}
    port_in = {rank: builder.add_resource(f"port in {rank} ({name})") for rank in ranks}
    links = list(range(len(builder.links), len(builder.links) + len(ranks) * (len(ranks) - 1)))
    if port_betas is None:
        ends = list(permutations(ranks, 2))
        ports = ((port_out[src], port_in[dst]) for src, dst in ends)
        builder.add_alike(ends, ports, cost=cost, port_alpha_us=None, name=link_name or name)
    else:
        for src, dst in permutations(ranks, 2):
            each = cost._replace(beta_us_per_mb=max(port_betas[src], port_betas[dst]))
            link = builder.add_link(src, dst, **each._asdict(), name=link_name or name)
            held_us, _ = builder.links[link].held_us(builder.alpha_meaning, cost.overhead_us)
            out, into = (port_out[src], port_betas[src]), (port_in[dst], port_betas[dst])
            builder.add_hold(link, out[0], alpha_us=held_us, beta_us_per_mb=out[1])
            builder.add_hold(link, into[0], alpha_us=held_us, beta_us_per_mb=into[1], side="receive")
    if reduces is not None:
        links += add_aggregation(builder, port_out, port_in, cost, reduces=reduces, name=name)
    builder.add_switch(name, ranks, links, reduces=reduces)


def add_aggregation(
    builder: TopologyBuilder,
    port_out: Mapping[int, int],
    port_in: Mapping[int, int],
    cost: LinkCost,
    *,
    reduces: InNetwork,
    name: str,
    slowest_us_per_mb: Fraction = Fraction(0),
    groups: Sequence[Sequence[int]] = (),
) -> list[int]:
    """Add a reduction link to each rank from all others, and a multicast link from it to all others.

    A send over one of these links holds the ports of all its sources and destinations. A reduction also
    holds the switch's pool of packet slots, if their number is limited. The latency is half the round trip of
    `reduces`, or else the alpha of `cost`.
    Nothing is added for fewer than three ranks. Each of `groups` gets its own links, which share the pool.

    - `port_out`, `port_in`: {rank: resource of the switch that its sends, or its receives, hold}.
    - `cost`: Cost of a send from one rank to another through the switch.
    - `slowest_us_per_mb`: Largest beta of the other resources on the path, a lower limit for the links.

    Returns the added links, alternately reduction and multicast, rank by rank.
    """
    port_beta = cost.beta_us_per_mb / Fraction(reduces.efficiency)
    alpha = cost.alpha_us if reduces.rtt_us is None else Fraction(reduces.rtt_us) / 2
    pool_beta = reduces.pool_beta_us_per_mb
    pool = None if pool_beta is None or len(port_out) < 3 else builder.add_resource(f"pool ({name})")
    links = []
    members = [each for each in (list(port_out), *groups) if len(each) > 2]
    for rank, group in ((rank, group) for group in members for rank in group):
        others = [other for other in group if other != rank]
        for srcs, dsts in ((others, [rank]), ([rank], others)):
            adds = len(srcs) > 1
            # A reduction link is at most as fast as the switch's pool of slots.
            pooled = Fraction(0) if pool_beta is None or not adds else pool_beta
            beta = max(port_beta, pooled, slowest_us_per_mb)
            each = LinkCost(alpha, beta, cost.overhead_us)
            link = builder.add_link(srcs, dsts, **each._asdict(), name=name)
            held_us, _ = builder.links[link].held_us(builder.alpha_meaning, cost.overhead_us)
            for src in srcs:
                builder.add_hold(link, port_out[src], alpha_us=held_us, beta_us_per_mb=port_beta)
            # If the pool of packet slots, or another resource of the path, is slower, data arrives with gaps.
            # The port is still counted as busy in one block, at the send's start.
            side: Side = "receive" if beta == port_beta else "send"
            for dst in dsts:
                builder.add_hold(link, port_in[dst], alpha_us=held_us, beta_us_per_mb=port_beta, side=side)
            if adds and pool is not None and pool_beta is not None:
                builder.add_hold(link, pool, alpha_us=0, beta_us_per_mb=pool_beta)
            links.append(link)
    return links


class Network(NamedTuple):
    """Links between nodes; with `rails`, only between equal local ranks.

    A send holds the egress of the source's NIC from its start, and the ingress of the destination's NIC until
    its end. Each is held for ``nic_alpha_us + bytes * beta``. Ranks that share a NIC take turns; egress and
    ingress are independent.

    - `nic_of_place`: {local rank: its NIC} for ranks with a NIC.
    """

    cost: LinkCost
    nic_alpha_us: Fraction
    nic_of_place: Mapping[int, int]
    rails: bool
    name: str


def add_nodes(
    builder: TopologyBuilder,
    pairs: Mapping[tuple[int, int], int],
    costs: Mapping[int, LinkCost],
    network: Network | None,
    *,
    switch: str,
    where: str,
    link_name: str = "",
    reduces: InNetwork | None = None,
) -> None:
    """Link the ranks inside each node by pairs, or by a switch if `pairs` is empty; then link the nodes.

    - `pairs`: {pair of local ranks: number of links between them}.
    - `costs`: {number of parallel links: cost of a send that uses all of them at once}.
    """
    num_nodes = builder.node_of_rank[-1] + 1
    size = len(builder.node_of_rank) // num_nodes
    nic = {} if network is None or num_nodes == 1 else network.nic_of_place
    joined = [(i, j) for i in nic for j in nic if network and (i == j or not network.rails)]
    check_num_links(num_nodes * size**2 + num_nodes * (num_nodes - 1) * len(joined), where=where)
    for node in range(num_nodes):
        first = node * size
        if not pairs and size > 1:
            ranks, name = range(first, first + size), f"{switch} of node {node}"
            add_crossbar(builder, ranks, costs[1], name=name, link_name=link_name, reduces=reduces)
        for (a, b), count in sorted(pairs.items()):
            name = f"{link_name} x{count}" if link_name and count > 1 else link_name
            for src, dst in ((a, b), (b, a)):
                builder.add_link(first + src, first + dst, **costs[count]._asdict(), name=name)
    egress, ingress = (
        {
            (node, each): builder.add_resource(f"NIC {each} of node {node} {way}")
            for node, each in product(range(num_nodes), dict.fromkeys(nic.values()))
        }
        for way in ("egress", "ingress")
    )
    if network is None:
        return
    pairs_of_nodes = list(product(permutations(range(num_nodes), 2), joined))
    builder.add_alike(
        ((a * size + i, b * size + j) for (a, b), (i, j) in pairs_of_nodes),
        ((egress[a, nic[i]], ingress[b, nic[j]]) for (a, b), (i, j) in pairs_of_nodes),
        cost=network.cost, port_alpha_us=network.nic_alpha_us, name=network.name,
    )  # fmt: skip


def hold_ends(
    builder: TopologyBuilder,
    link: int,
    out: int,
    into: int,
    *,
    alpha_us: Number = 0,
    beta: Number | None = None,
) -> None:
    """Let each send over a link hold resource `out` from its start, and resource `into` until its end.

    `beta`, in us/MB, defaults to the beta of the link.
    """
    beta = builder.links[link].beta_us_per_mb if beta is None else beta
    builder.add_hold(link, out, alpha_us=alpha_us, beta_us_per_mb=beta)
    builder.add_hold(link, into, alpha_us=alpha_us, beta_us_per_mb=beta, side="receive")

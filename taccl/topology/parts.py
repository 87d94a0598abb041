"""Parts that machine models, fabrics and topology files are put together from: rates, crossbars, NICs."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
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
    from taccl.topology.topology import Link, Side

OVERHEAD_US = Fraction("0.02")
"""Our choice: of alpha, a message keeps a port, a card or a link of a machine busy for at most so long."""
MAX_LINKS = 1_000_000
"""More links than this are refused: they take about 1 GB, and most of a minute to build."""


class LinkCost(NamedTuple):
    """Cost of a send over a link, and the part of alpha that keeps the link busy; None for all of it."""

    alpha_us: Fraction
    beta_us_per_mb: Fraction
    overhead_us: Fraction | None = None


def exact_cost(value: int | float | str | Fraction, *, where: str) -> Fraction:
    """Exact value of an alpha, a beta or a bandwidth; `TopologyError` unless finite and not negative."""
    try:
        return exact(value, where=where)
    except InputError as error:
        raise TopologyError(error.message, where=where) from None


def beta_of_bandwidth(
    gb_per_s: int | float | str | Fraction, *, where: str = "bandwidth_gb_per_s"
) -> Fraction:
    """Exact us per MB of a link that carries `gb_per_s`: 1 GB/s is 10**9 bytes a second, 1000 us per MB.

    Anything but a positive number is a `TopologyError`.
    """
    rate = exact_cost(gb_per_s, where=where)
    if rate == 0:
        raise TopologyError("found 0 GB/s; expected a positive bandwidth", where=where)
    return Fraction(1000) / rate


def thousandths(cost: Fraction) -> Fraction:
    """A cost to three decimals, so that bytes take whole femtoseconds, which ticks can count."""
    return Fraction(round(cost * 1000), 1000) or cost


def rates_of_axes(
    bandwidth_gb_per_s: Number | Sequence[Number], num_axes: int, *, where: str
) -> tuple[Fraction, ...]:
    """Us per MB along every axis, of one bandwidth for all or a bandwidth for each."""
    several = isinstance(bandwidth_gb_per_s, Sequence) and not isinstance(bandwidth_gb_per_s, str)
    rates: Sequence[Any] = bandwidth_gb_per_s if several else (bandwidth_gb_per_s,) * num_axes  # type: ignore[assignment]
    if len(rates) != num_axes:
        raise TopologyError(
            f"found {len(rates)} bandwidths for {num_axes} axes; give one, or one for every axis",
            where=where,
        )
    return tuple(beta_of_bandwidth(rate, where=where) for rate in rates)


def check_count(value: object, *, where: str, least: int = 1) -> int:
    """`value`, if it is a whole number of at least `least`; else `TopologyError`."""
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
    """Raise an error for a rank that does not exist."""
    for rank in ranks:
        if not 0 <= rank < count:
            raise error(f"rank {rank} does not exist; {of} 0-{count - 1}", where=where)


def links_among(links: Iterable[Link], ranks: Iterable[int]) -> list[int]:
    """The links, by index, that have all their ends among some ranks."""
    known = set(ranks)
    return [index for index, link in enumerate(links) if known.issuperset((*link.srcs, *link.dsts))]


def check_num_links(num_links: int, *, where: str) -> None:
    """Raise `TopologyError` if a topology would have too many links to hold in memory."""
    if num_links > MAX_LINKS:
        raise TopologyError(
            f"found {quoted(num_links)} links; expected at most {MAX_LINKS}: ask for fewer ranks, or use "
            "synthesize_implicit on a fabric that it knows, which lists none",
            where=where,
        )


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
    """Join `ranks` by a switch: a link for every ordered pair, a port out and a port in for every rank.

    A send holds the source's port out and the destination's port in for as long as it holds its own link:
    with its alpha, or the overhead that is part of it, where alpha occupies, without where it pipelines. A
    rank thus sends to one rank at a time, and receives from one rank at a time. A switch that `reduces` has
    links of several ends as well (`add_aggregation`).

    - `port_betas` (mapping of int to Fraction, optional): {rank: us per MB of its ports}, in place of the
      cost's for all; a link is as fast as the slower of its two ports.
    """
    port_out = {rank: builder.add_resource(f"port out {rank} ({name})") for rank in ranks}
    port_in = {rank: builder.add_resource(f"port in {rank} ({name})") for rank in ranks}
    links = []
    betas = dict.fromkeys(ranks, cost.beta_us_per_mb) if port_betas is None else port_betas
    for src, dst in permutations(ranks, 2):
        each = cost._replace(beta_us_per_mb=max(betas[src], betas[dst]))
        link = builder.add_link(src, dst, **each._asdict(), name=link_name or name)
        held_us, _ = builder.links[link].held_us(builder.alpha_meaning, cost.overhead_us)
        builder.add_hold(link, port_out[src], alpha_us=held_us, beta_us_per_mb=betas[src])
        builder.add_hold(link, port_in[dst], alpha_us=held_us, beta_us_per_mb=betas[dst], side="receive")
        links.append(link)
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
    """Let a switch add and multicast: for each of its ranks a link from all others, and one to all others.

    A send over them holds the ports of all ranks at its ends; where it adds, also the pool of slots, if that
    is limited. Its latency is half a round trip, or the switch's. With fewer than three ranks there is
    nothing to add on the way. Groups of its ranks have such links of their own, and share the pool.

    - `port_out`, `port_in` (mapping of int to int): The resource of the switch that a rank's sends hold, and
      that of its receives.
    - `cost`: Cost of a send from one rank to another through the switch.
    - `slowest_us_per_mb`: Largest beta of the other resources on the path, a lower limit for the links.

    Returns the links: rank by rank, the one that adds and the one that multicasts.
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
            # No link is faster than the pool.
            pooled = Fraction(0) if pool_beta is None or not adds else pool_beta
            beta = max(port_beta, pooled, slowest_us_per_mb)
            each = LinkCost(alpha, beta, cost.overhead_us)
            link = builder.add_link(srcs, dsts, **each._asdict(), name=name)
            held_us, _ = builder.links[link].held_us(builder.alpha_meaning, cost.overhead_us)
            for src in srcs:
                builder.add_hold(link, port_out[src], alpha_us=held_us, beta_us_per_mb=port_beta)
            # Sums of a slow pool arrive evenly all the while; what that takes of a port is counted at once.
            side: Side = "receive" if beta == port_beta else "send"
            for dst in dsts:
                builder.add_hold(link, port_in[dst], alpha_us=held_us, beta_us_per_mb=port_beta, side=side)
            if adds and pool is not None and pool_beta is not None:
                builder.add_hold(link, pool, alpha_us=0, beta_us_per_mb=pool_beta)
            links.append(link)
    return links


class Network(NamedTuple):
    """Links between nodes: their cost, and `rails` if they join only equal places of nodes.

    A send holds the egress of the source's NIC from its start, and the ingress of the destination's NIC until
    its end. Each is held for ``nic_alpha_us + bytes * beta``. Ranks that share a NIC take turns; egress and
    ingress are separate.

    - `nic_of_place`: The NIC of each place that has one.
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
    """Join ranks in equal nodes pair by pair, or by a switch where there are no pairs; and then the nodes.

    - `pairs` (mapping of (int, int) to int): Number of links between two places in a node.
    - `costs` (mapping of int to LinkCost): {number of links: their joint cost}.
    - `switch`: Name of the switch.
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
    for (a, b), (i, j) in product(permutations(range(num_nodes), 2), joined):
        assert network is not None, "it joins them"
        link = builder.add_link(a * size + i, b * size + j, **network.cost._asdict(), name=network.name)
        hold_ends(builder, link, egress[a, nic[i]], ingress[b, nic[j]], alpha_us=network.nic_alpha_us)


def hold_ends(
    builder: TopologyBuilder,
    link: int,
    out: int,
    into: int,
    *,
    alpha_us: Number = 0,
    beta: Number | None = None,
) -> None:
    """Let sends hold `out` from their start and `into` until their end, for their link's beta or another."""
    beta = builder.links[link].beta_us_per_mb if beta is None else beta
    builder.add_hold(link, out, alpha_us=alpha_us, beta_us_per_mb=beta)
    builder.add_hold(link, into, alpha_us=alpha_us, beta_us_per_mb=beta, side="receive")

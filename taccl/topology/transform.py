"""Transforms of topologies: each returns a new topology."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

from taccl._internal.arguments import checked_as, quoted
from taccl._internal.caching import ALIKE
from taccl.errors import TopologyError
from taccl.topology.links import Hold, Link, columns_of, made_of
from taccl.topology.parts import check_ranks, exact_cost, links_among

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from taccl._internal.arguments import Number
    from taccl.topology.topology import Topology

First = TypeVar("First")
Second = TypeVar("Second")
Found = TypeVar("Found")
#: Cached properties of a topology that depend on the ends of links and the nodes of ranks alone.
_SHAPE = ("ranks_of_node", "local_rank", "links_from", "links_to", "nodes_of_link", "internode_links")


@checked_as(TopologyError)
def relabel(topology: Topology, permutation: Sequence[int]) -> Topology:
    """Topology with rank r renamed ``permutation[r]``; links, resources and holds keep their indices.

    A link's own resource is renamed with it; ports, NICs and other resources keep their names.
    """
    if sorted(permutation) != list(range(topology.num_ranks)):
        raise TopologyError(
            f"found {quoted(list(permutation))}; expected every rank 0-{topology.num_ranks - 1} once",
            where=f"{topology.name}: permutation",
        )
    node_of_rank = [0] * topology.num_ranks
    for rank, new in enumerate(permutation):
        node_of_rank[new] = topology.node_of_rank[rank]
    return _renamed(topology, dict(enumerate(permutation)), node_of_rank)


@checked_as(TopologyError)
def without(
    topology: Topology,
    *,
    links: Iterable[int | tuple[int, int]] = (),
    ranks: Collection[int] = (),
    resources: Iterable[str] = (),
) -> Topology:
    """The topology without failed links, ranks or resources.

    Parameters
    ----------
    topology : Topology
    links : iterable of int or (int, int)
        Failed links, by index or as (source, destination), which means every link between the two.
    ranks : collection of int
        Failed ranks. The other ranks are renumbered from 0 without gaps, in their old order, and so are the
        nodes that keep a rank; to keep the numbers, cut a rank off with `links`. A resource stays if a link
        that holds it stays; a switch stays if two of its ranks stay.
    resources : iterable of str
        Failed resources, by name, such as ``"NIC 0 of node 1 egress"``: links that hold them are removed.

    Raises
    ------
    TopologyError
        If a link, a rank or a resource does not exist, or no rank remains.
    """
    check_ranks(ranks, topology.num_ranks, where=f"{topology.name}: ranks")
    gone = {e for link in links for e in _links_meant(topology, link)}
    gone |= {e for name in resources for e in _links_of_resource(topology, name)}
    kept = sorted(set(range(topology.num_ranks)) - set(ranks))
    if not kept:
        raise TopologyError("found no ranks to keep; expected at least one", where=f"{topology.name}: ranks")
    left = _with_links(topology, [e for e in links_among(topology.links, kept) if e not in gone])
    if not ranks:
        return left
    new_node = {node: new for new, node in enumerate(sorted({topology.node_of_rank[r] for r in kept}))}
    node_of_rank = [new_node[topology.node_of_rank[rank]] for rank in kept]
    return _renamed(left, {rank: new for new, rank in enumerate(kept)}, node_of_rank)


@checked_as(TopologyError)
def subset(
    topology: Topology, *, ranks: Collection[int] | None = None, without_ranks: Collection[int] = ()
) -> Topology:
    """Topology of some ranks, renumbered from 0 in their old order, whatever the order of `ranks`.

    Multicasts and reductions of switches are limited to the remaining ranks, if at least three remain.

    Parameters
    ----------
    topology : Topology
    ranks : collection of int, optional
        Ranks to keep; by default all.
    without_ranks : collection of int
        Ranks to leave out.

    Raises
    ------
    TopologyError
        If a rank does not exist, or no rank remains.
    """
    kept = range(topology.num_ranks) if ranks is None else ranks
    check_ranks(kept, topology.num_ranks, where=f"{topology.name}: ranks")
    check_ranks(without_ranks, topology.num_ranks, where=f"{topology.name}: ranks")
    gone = set(range(topology.num_ranks)) - set(kept) | set(without_ranks)
    if not gone:
        return topology
    found = without(_narrowed(topology, gone), ranks=sorted(gone))
    found.cache["kept_ranks"] = tuple(rank for rank in range(topology.num_ranks) if rank not in gone)
    return found


def _narrowed(topology: Topology, gone: Collection[int]) -> Topology:
    """Topology with the ranks `gone` removed from its multicast and reduction links.

    A link is unchanged if no source, no destination, or only one rank at each end would remain.
    """
    links = list(topology.links)
    for index, link in enumerate(links):
        srcs, dsts = (tuple(rank for rank in end if rank not in gone) for end in (link.srcs, link.dsts))
        if max(len(link.srcs), len(link.dsts)) > 1 and srcs and dsts and max(len(srcs), len(dsts)) > 1:
            links[index] = link._replace(srcs=srcs, dsts=dsts)
    pairs = [(old, new) for old, new in zip(topology.links, links, strict=True) if old is not new]
    if not pairs:
        return topology
    named = {f"link {old}": f"link {new}" for old, new in pairs}
    resources = [each._replace(name=named.get(each.name, each.name)) for each in topology.resources]
    return replace(topology, links=tuple(links), resources=tuple(resources))


@checked_as(TopologyError)
def degraded(topology: Topology, links: Mapping[int | tuple[int, int] | str, Number]) -> Topology:
    """Topology with some slower links or resources.

    Parameters
    ----------
    links : mapping of int, (int, int) or str to number
        {link: remaining part of its bandwidth}, above 0 and at most 1. A link is given by index or as
        (source, destination); resources that it shares with others keep their rate. The name of a resource,
        such as ``"NIC 0 of node 1 egress"``, stands for that resource: every send holds it for longer, and
        its links are at most as fast.

    Raises
    ------
    TopologyError
        If a link or a resource does not exist, or a part is not above 0 and at most 1.
    """
    by_link: dict[int, Fraction] = {}
    by_resource: dict[str, Fraction] = {}
    for what, left in links.items():
        part = exact_cost(left, where=f"{topology.name}: {what}")
        if not 0 < part <= 1:
            raise TopologyError(
                f"found {left}; expected the part of the bandwidth that is left, above 0 and at most 1",
                where=f"{topology.name}: {what}",
            )
        if isinstance(what, str):
            _links_of_resource(topology, what)
            by_resource[what] = part
        else:
            by_link.update(dict.fromkeys(_links_meant(topology, what), part))
    held_by = Counter(hold.resource for hold in topology.holds)
    beta = [link.beta_us_per_mb / by_link.get(e, 1) for e, link in enumerate(topology.links)]
    holds = []
    for hold in topology.holds:
        part = by_resource.get(topology.resources[hold.resource].name, Fraction(1))
        if held_by[hold.resource] == 1:
            part *= by_link.get(hold.link, 1)
        holds.append(hold._replace(beta_us_per_mb=hold.beta_us_per_mb / part))
        beta[hold.link] = max(beta[hold.link], holds[-1].beta_us_per_mb)
    slower = (link._replace(beta_us_per_mb=each) for link, each in zip(topology.links, beta, strict=True))
    return replace(topology, links=tuple(slower), holds=tuple(holds))


@checked_as(TopologyError)
def under(topology: Topology, protocol: str) -> Topology:
    """Topology with messages under another protocol of its machine's profile.

    Latencies and rates are multiplied by the ratio of the two protocols' values in the profile, so that
    degraded links stay degraded.

    Raises
    ------
    TopologyError
        If the profile has no such protocol.
    """
    from taccl.topology.profiles import find_profile, profile_of

    if protocol == topology.protocol:
        return topology
    now = profile_of(topology) if topology.protocol else None
    if now is None:
        said = f"found {protocol!r}; {topology.name} has no protocols: leave it out"
        raise TopologyError(said, where="protocol")
    profile = find_profile(topology.machine, topology.profile)
    old, new = profile.under(topology.protocol), profile.under(protocol)
    # Keep constants that the user replaced.
    kept = {o.name: n for o, n in zip(old.constants, now.constants, strict=True) if o.value != n.value}
    new = replace(new, constants=tuple(kept.get(each.name, each) for each in new.constants))
    factors: dict[tuple[bool, str], Fraction] = {}
    for constant in new.constants:
        kind, _, cost = constant.name.partition("_us")[0].rpartition("_")
        if kind != "nic" and now[constant.name]:
            factors[kind == "internode", cost] = constant.value / now[constant.name]
    launch_us = topology.launch_us + new.launch_us - old.launch_us
    if launch_us < 0:
        said = (
            f"found a launch of {topology.launch_us} us, less than the profile's; expected {old.launch_us} us"
        )
        raise TopologyError(said, where="launch_us")
    found = rescaled(_alike(topology, topology.changed(protocol=protocol, launch_us=launch_us)), factors)
    found.cache["profile"] = new
    return found


def rescaled(
    topology: Topology,
    factors: Mapping[tuple[bool, str], Fraction],
    rounded: Callable[[Fraction], Fraction] | None = None,
) -> Topology:
    """Multiply the costs of links by factors above 0.

    The beta of each hold is multiplied as that of its link. Its alpha is limited to the link's new alpha.

    - `factors`: {(is between nodes, ``"alpha"`` or ``"beta"``): factor}; default 1.
    - `rounded`: Function applied to each product.
    """
    factor = {
        between: tuple(factors.get((between, cost), Fraction(1)) for cost in ("alpha", "beta"))
        for between in (False, True)
    }
    by = [factor[srcs != dsts] for srcs, dsts in topology.nodes_of_link]

    def times(cost: Fraction, factor: Fraction) -> Fraction:
        return cost * factor if rounded is None else rounded(cost * factor)

    srcs, dsts, alpha, beta, name = columns_of(topology.links, 0, 1, 2, 3, 4)
    alpha_us = list(_each_once(alpha, by, lambda cost, by: times(cost, by[0])))
    betas = _each_once(beta, by, lambda cost, by: times(cost, by[1]))
    links = made_of(Link, srcs, dsts, alpha_us, betas, name)
    link, resource, alpha, beta, side = columns_of(topology.holds, 0, 1, 2, 3, 4)
    of_hold = list(link)
    alphas = _each_once(alpha, map(alpha_us.__getitem__, of_hold), min)
    betas = _each_once(beta, map(by.__getitem__, of_hold), lambda cost, by: times(cost, by[1]))
    holds = made_of(Hold, of_hold, resource, alphas, betas, side)
    if rounded is None:
        found = topology.changed(links=links, holds=holds)
    else:
        found = replace(topology, links=links, holds=holds)
    return _alike(topology, found)


def _alike(topology: Topology, found: Topology) -> Topology:
    """Copy cached properties named in `_SHAPE` to `found`, which differs from `topology` only in costs."""
    topology.nodes_of_link  # noqa: B018  computed once for both
    found.cache[ALIKE] = topology
    vars(found).update({name: getattr(topology, name) for name in _SHAPE if name in vars(topology)})
    return found


def _each_once(
    costs: Iterable[First], others: Iterable[Second], make: Callable[[First, Second], Found]
) -> Iterator[Found]:
    """Yield ``make(cost, other)`` for each pair; computed once per pair of objects, as links share costs."""
    costs, others = list(costs), list(others)
    keys = list(zip(map(id, costs), map(id, others), strict=True))
    made = {key: make(*pair) for key, pair in dict(zip(keys, zip(costs, others), strict=True)).items()}
    return map(made.__getitem__, keys)


def _links_of_resource(topology: Topology, name: str) -> set[int]:
    """Links that hold the resource with a name."""
    found = {hold.link for hold in topology.holds if topology.resources[hold.resource].name == name}
    if not found:
        raise TopologyError(
            f"there is no resource {name!r}; resources are named like "
            f"{', '.join(repr(r.name) for r in topology.resources[-2:])}",
            where=f"{topology.name}: resources",
        )
    return found


def _links_meant(topology: Topology, link: int | tuple[int, int]) -> tuple[int, ...]:
    """Links given by an index or a (source, destination) pair."""
    if isinstance(link, int):
        found: tuple[int, ...] = (link,) if link in range(len(topology.links)) else ()
    else:
        check_ranks(link, topology.num_ranks, where=f"{topology.name}: ranks")
        found = topology.links_between(*link)
    if not found:
        said = f"link {link} does not exist; there are links 0-{len(topology.links) - 1}"
        raise TopologyError(said, where=f"{topology.name}: links")
    return found


def _with_links(topology: Topology, links: Sequence[int]) -> Topology:
    """Topology with only `links`, and the resources that they hold."""
    new_link = {link: new for new, link in enumerate(links)}
    holds = [hold for hold in topology.holds if hold.link in new_link]
    resources = sorted({hold.resource for hold in holds})
    new_resource = {resource: new for new, resource in enumerate(resources)}
    return replace(
        topology,
        links=tuple(topology.links[link] for link in links),
        resources=tuple(topology.resources[resource] for resource in resources),
        holds=tuple(h._replace(link=new_link[h.link], resource=new_resource[h.resource]) for h in holds),
        switches=tuple(
            replace(switch, links=tuple(new_link[e] for e in switch.links if e in new_link))
            for switch in topology.switches
        ),
    )


def _renamed(topology: Topology, new_rank: Mapping[int, int], node_of_rank: Sequence[int]) -> Topology:
    """Topology with ranks renamed by `new_rank`, {old: new}; switches lose all ranks that it does not name.

    Switches with fewer than two ranks left are dropped.
    """

    def renamed(link: Link) -> Link:
        srcs, dsts = (tuple(sorted(new_rank[rank] for rank in end)) for end in (link.srcs, link.dsts))
        return link._replace(srcs=srcs, dsts=dsts)

    links = tuple(renamed(link) for link in topology.links)
    resources = list(topology.resources)
    for hold in topology.holds:
        own = resources[hold.resource]
        if own.name.startswith("link ") and own.name == f"link {topology.links[hold.link]}":
            resources[hold.resource] = own._replace(name=f"link {links[hold.link]}")
    switches = [
        replace(switch, ranks=tuple(new_rank[rank] for rank in switch.ranks if rank in new_rank))
        for switch in topology.switches
    ]
    return replace(
        topology,
        node_of_rank=tuple(node_of_rank),
        links=links,
        resources=tuple(resources),
        switches=tuple(switch for switch in switches if len(switch.ranks) > 1),
    )

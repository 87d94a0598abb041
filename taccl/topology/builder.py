"""TopologyBuilder, which collects links, resources and holds one by one; topologies from networkx graphs."""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction
from itertools import chain, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from taccl._internal.arguments import checked_as
from taccl._internal.names import shown
from taccl._internal.units import exact, format_count
from taccl.errors import AssumptionWarning, InputError, TopologyError, warn
from taccl.topology.links import AlphaMeaning, Hold, Link, Resource, Side, ends_text, made_of
from taccl.topology.parts import beta_of_bandwidth, check_count, exact_cost
from taccl.topology.topology import WORDS, Switch, Topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from networkx import Graph

    from taccl._internal.arguments import Number
    from taccl.topology.in_network import InNetwork
    from taccl.topology.parts import LinkCost

#: `_PARAMETER`: end of the name of a parameter that replaces an assumption.
#: `_DETAIL`: end of the first part of an assumption.
_PARAMETER, _DETAIL = re.compile(r"\w="), re.compile(r"; | \(|, as of ")
_NOTHING = Fraction(0)  # one object for all, as conversions are cached by object identity


@checked_as(TopologyError)
@dataclass(eq=False, repr=False)
class TopologyBuilder:
    """Builder of a `Topology`: add links, resources and holds, then call `build`.

    A hold is the time for which a send over a link occupies a resource. Every link gets a resource of its
    own. A send of b bytes holds it for ``alpha + b * beta`` with "occupies", and for ``b * beta`` with
    "pipelined". An overhead, if given, limits the alpha of this hold.

    Parameters
    ----------
    node_of_rank : sequence of int
        Node of every rank.
    """

    name: str
    node_of_rank: Sequence[int]
    _: KW_ONLY
    alpha_meaning: AlphaMeaning = "occupies"
    profile: str = ""
    machine: str = ""
    cost_model: str = "physical"
    protocol: str = ""
    launch_us: Fraction = Fraction(0)
    links: list[Link] = field(default_factory=list, init=False)
    _resources: list[Resource] = field(default_factory=list, init=False)
    _holds: list[Hold] = field(default_factory=list, init=False)
    _switches: list[Switch] = field(default_factory=list, init=False)
    #: {(id of an alpha object, id of a beta object): (the two objects, their exact values)}.
    _known_costs: dict[tuple[int, int], tuple[tuple[Number, Number], tuple[Fraction, Fraction]]] = field(
        default_factory=dict, init=False
    )

    @classmethod
    @checked_as(TopologyError)
    def continuing(cls, topology: Topology) -> TopologyBuilder:
        """Builder that starts from a topology, without its notes and assumptions, to add further links."""
        words = {name: getattr(topology, name) for name in (*WORDS, "protocol", "launch_us")}
        made = cls(**words, node_of_rank=topology.node_of_rank)
        made.links += topology.links
        made._resources += topology.resources
        made._holds += topology.holds
        made._switches += topology.switches
        return made

    @checked_as(TopologyError)
    def add_link(
        self,
        src: int | Iterable[int],
        dst: int | Iterable[int],
        *,
        alpha_us: Number,
        beta_us_per_mb: Number,
        overhead_us: Number | None = None,
        name: str = "",
    ) -> int:
        """Add a link with its own resource; return the link's index.

        Parameters
        ----------
        src, dst : int or iterable of int
            Source and destination rank; several destinations for a multicast, several sources for a
            reduction.
        alpha_us, beta_us_per_mb : number
            Latency in us, and time in us per MB (10**6 bytes).
        overhead_us : number, optional
            Part of alpha during which the link is busy, with "occupies"; default: all of it.
        name : str
            Name that distinguishes links between the same ranks.
        """
        srcs = (src,) if isinstance(src, int) else tuple(sorted(src))
        dsts = (dst,) if isinstance(dst, int) else tuple(sorted(dst))
        ends = ends_text(srcs, dsts, name)
        link = Link(srcs, dsts, *self._exact(alpha_us, beta_us_per_mb, "link ", ends), name)
        index = len(self.links)
        self.links.append(link)
        if overhead_us is not None:
            overhead_us, _ = self._exact(overhead_us, _NOTHING, "overhead of link ", ends)
        held = link.held_us(self.alpha_meaning, overhead_us)
        self._holds.append(Hold(index, len(self._resources), *held))
        self._resources.append(Resource(f"link {ends}"))
        return index

    @checked_as(TopologyError)
    def add_resource(self, name: str) -> int:
        """Add a resource; return its index."""
        self._resources.append(Resource(name))
        return len(self._resources) - 1

    @checked_as(TopologyError)
    def add_hold(
        self, link: int, resource: int, *, alpha_us: Number, beta_us_per_mb: Number, side: Side = "send"
    ) -> None:
        """Declare that every send over `link` holds `resource`.

        Parameters
        ----------
        link, resource : int
            Indices returned by `add_link` and `add_resource`.
        alpha_us, beta_us_per_mb : number
            A send of b bytes holds the resource for ``alpha_us + b * beta_us_per_mb / 10**6`` us.
        side : {"send", "receive"}
            ``"send"`` to begin the hold with the send, ``"receive"`` to end it with the send.
        """
        costs = self._exact(alpha_us, beta_us_per_mb, "hold of resource ", resource, " by link ", link)
        self._holds.append(Hold(link, resource, *costs, side))

    def add_alike(
        self,
        ends: Iterable[tuple[int, int]],
        ports: Iterable[tuple[int, int]] = (),
        *,
        cost: LinkCost,
        port_alpha_us: Fraction | None = None,
        name: str = "",
    ) -> None:
        """Add links of equal cost, each between two ranks, whose sends may also hold a port at each end.

        Like `add_link` and two calls of `add_hold` for each link, but without checks, in a tenth of the time.

        Parameters
        ----------
        ends : iterable of (int, int)
            Source and destination rank of each link.
        ports : iterable of (int, int)
            For each link, the resource that its sends hold from their start, and the resource that they hold
            until their end. Empty: sends hold only the link itself.
        cost : LinkCost
            Costs of each link; its beta is that of the ports, too.
        port_alpha_us : Fraction, optional
            Alpha of the holds of ports in us; None for that of the link's own hold.
        name : str
            Name of each link.
        """
        ends, ports = list(ends), list(ports)
        if not ends:
            return
        alpha, beta = self._exact(cost.alpha_us, cost.beta_us_per_mb, "link ", name)
        ranks = [(rank,) for rank in range(len(self.node_of_rank))]
        srcs, dsts = (map(ranks.__getitem__, map(itemgetter(side), ends)) for side in (0, 1))
        links = made_of(Link, srcs, dsts, repeat(alpha), repeat(beta), repeat(name))
        index = range(len(self.links), len(self.links) + len(links))
        own = range(len(self._resources), len(self._resources) + len(links))
        held_us, _ = links[0].held_us(self.alpha_meaning, cost.overhead_us)
        holds = [made_of(Hold, index, own, repeat(held_us), repeat(beta), repeat("send"))]
        if ports:
            at_port = repeat(held_us if port_alpha_us is None else port_alpha_us), repeat(beta)
            for side, which in enumerate(("send", "receive")):
                resources = map(itemgetter(side), ports)
                holds.append(made_of(Hold, index, resources, *at_port, repeat(which)))
        self.links += links
        self._holds += chain.from_iterable(zip(*holds, strict=True)) if ports else holds[0]
        suffix = ends_text((0,), (0,), name).removeprefix("0->0")
        self._resources += made_of(Resource, [f"link {src}->{dst}{suffix}" for src, dst in ends])

    def _exact(self, alpha_us: Number, beta_us_per_mb: Number, *what: object) -> tuple[Fraction, Fraction]:
        key = id(alpha_us), id(beta_us_per_mb)  # most links share the cost objects
        if key in self._known_costs:
            return self._known_costs[key][1]
        try:
            costs = exact(alpha_us, where="alpha_us"), exact(beta_us_per_mb, where="beta_us_per_mb")
        except InputError as error:
            named = "".join(map(str, what))
            raise TopologyError(error.message, where=f"{self.name}: {named}: {error.where}") from None
        self._known_costs[key] = (alpha_us, beta_us_per_mb), costs
        return costs

    @checked_as(TopologyError)
    def add_switch(
        self, name: str, ranks: Sequence[int], links: Iterable[int], *, reduces: InNetwork | None = None
    ) -> None:
        """Declare that `links` run through one crossbar that joins `ranks`.

        Parameters
        ----------
        name : str
            Name in messages and reports.
        ranks, links : sequence of int
            At least two ranks, and link indices returned by `add_link`.
        reduces : InNetwork, optional
            Reductions that the switch can do. Its multicast and reduction links must be added separately.
        """
        self._switches.append(Switch(name, tuple(ranks), tuple(links), reduces))

    def build(self, *, notes: Sequence[str] = (), assumed: Sequence[str] = ()) -> Topology:
        """Build the topology. Raises `TopologyError` for missing ranks or links, and for wrong costs.

        Warns of the assumptions with an `AssumptionWarning`.
        """
        warn_of_assumptions(self.name, assumed)
        return Topology(
            **{name: getattr(self, name) for name in (*WORDS, "protocol", "launch_us")},
            node_of_rank=tuple(self.node_of_rank),
            links=tuple(self.links),
            resources=tuple(self._resources),
            holds=tuple(self._holds),
            switches=tuple(self._switches),
            notes=tuple(notes),
            assumed=tuple(assumed),
        )


@checked_as(TopologyError)
def from_networkx(graph: Graph, *, name: str = "", alpha_meaning: AlphaMeaning = "occupies") -> Topology:
    """Topology of a networkx graph.

    Parameters
    ----------
    graph : networkx graph of any kind
        An edge needs ``beta_us_per_mb`` or ``bandwidth_gb_per_s``, and may have ``alpha_us`` (default 0) and
        ``name``. An undirected edge becomes a link in each direction. A vertex may have ``node`` (default 0),
        the number of its node. Vertices named 0..R-1 become the ranks with these numbers; others are numbered
        in the graph's order.
    name : str
        Name of the topology; by default that of the graph.
    alpha_meaning : {"occupies", "pipelined"}
        Whether a link stays busy during its alpha.
    """
    vertices = list(graph.nodes)
    name = name or str(graph.graph.get("name", "")) or "graph"
    if not vertices:
        raise TopologyError("found no vertices; expected at least one", where=name)
    if set(vertices) == set(range(len(vertices))):
        vertices = list(range(len(vertices)))
    rank_of = {vertex: rank for rank, vertex in enumerate(vertices)}
    nodes = [
        check_count(graph.nodes[vertex].get("node", 0), where=f"{name}: node of {vertex}", least=0)
        for vertex in vertices
    ]
    builder = TopologyBuilder(name, nodes, alpha_meaning=alpha_meaning)
    for u, v, attributes in graph.edges(data=True):
        where = f"{name}: edge {u}-{v}"
        alpha = exact_cost(attributes.get("alpha_us", 0), where=f"{where}: alpha_us")
        beta, own = _beta_of_edge(attributes, where), str(attributes.get("name", ""))
        for src, dst in ((u, v),) if graph.is_directed() else ((u, v), (v, u)):
            builder.add_link(rank_of[src], rank_of[dst], alpha_us=alpha, beta_us_per_mb=beta, name=own)
    return builder.build()


def warn_of_assumptions(name: str, assumed: Sequence[str]) -> None:
    """Warn of the assumptions on which a topology rests, if any, with an `AssumptionWarning`.

    A single assumption is quoted whole. If there are more, the start of one is, preferably of a settable one.
    """
    if assumed:
        told = f": {assumed[0]}"
        if len(assumed) > 1:
            first = next((each for each in assumed if _PARAMETER.search(each)), assumed[0])
            told = f", such as {_DETAIL.split(first)[0]}"
        brief = f"{shown(name)}: {format_count(len(assumed), 'assumption')}{told}"
        warn(AssumptionWarning(brief, assumed))


def _beta_of_edge(attributes: Mapping[str, Any], where: str) -> Fraction:
    if ("beta_us_per_mb" in attributes) == ("bandwidth_gb_per_s" in attributes):
        raise TopologyError("give either beta_us_per_mb or bandwidth_gb_per_s", where=where)
    if "beta_us_per_mb" in attributes:
        beta = exact_cost(attributes["beta_us_per_mb"], where=f"{where}: beta_us_per_mb")
        if beta == 0:
            raise TopologyError("found 0; expected a positive cost", where=f"{where}: beta_us_per_mb")
        return beta
    return beta_of_bandwidth(attributes["bandwidth_gb_per_s"], where=f"{where}: bandwidth_gb_per_s")

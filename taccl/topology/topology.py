"""The topology: ranks in nodes, links between them, and the resources that sends hold.

One notion of contention: a send over a link holds resources, each for ``alpha + bytes * beta`` of the
hold, and a resource is held by one send at a time. A link holds itself; a switch port, a NIC that ranks
share and a spine uplink are resources like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from taccl.arguments import checked_as, known_index
from taccl.errors import FormatError, InputError, TopologyError
from taccl.names import shown
from taccl.topology import transform
from taccl.topology.checks import check_topology
from taccl.units import exact, format_count

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from taccl.arguments import Number

__all__ = ["AlphaMeaning", "Hold", "Link", "Resource", "Side", "Switch", "Topology", "TopologyBuilder"]

AlphaMeaning = Literal["occupies", "pipelined"]
Side = Literal["send", "receive"]


@dataclass(frozen=True, slots=True)
class Link:
    """A directed channel from `srcs` to `dsts`: one rank each, but for switches that multicast or reduce.

    A send of b bytes takes ``alpha_us + b * beta_us_per_mb / 10**6`` microseconds.
    """

    srcs: tuple[int, ...]
    dsts: tuple[int, ...]
    alpha_us: Fraction
    beta_us_per_mb: Fraction
    name: str = ""

    @property
    def src(self) -> int:
        """The sending rank of an ordinary link; the first of several."""
        return self.srcs[0]

    @property
    def dst(self) -> int:
        """The receiving rank of an ordinary link; the first of several."""
        return self.dsts[0]

    def __str__(self) -> str:
        ends = "->".join(",".join(map(str, ranks)) for ranks in (self.srcs, self.dsts))
        return f"{ends} ({shown(self.name)})" if self.name else ends


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that one send at a time can hold."""

    name: str


@dataclass(frozen=True, slots=True)
class Hold:
    """A send of b bytes over `link` holds `resource` for ``alpha_us + b * beta_us_per_mb / 10**6``.

    It is held from the send's start where `side` is ``"send"``, until the send's end where it is
    ``"receive"``.
    """

    link: int
    resource: int
    alpha_us: Fraction
    beta_us_per_mb: Fraction
    side: Side = "send"


@dataclass(frozen=True, slots=True)
class Switch:
    """Ranks joined by a crossbar, and the links that run through it."""

    name: str
    ranks: tuple[int, ...]
    links: tuple[int, ...]


@checked_as(TopologyError)
@dataclass(frozen=True)
class Topology:
    """Ranks, the nodes they live in, links, resources and holds.

    Parameters
    ----------
    node_of_rank : tuple of int
        The node of every rank; its length is the number of ranks.
    alpha_meaning : {"occupies", "pipelined"}
        Whether a link stays busy during its alpha, or is free again after ``bytes * beta``.
    profile : str
        Where the constants come from, e.g. ``"nominal"``.
    machine : str
        The machine model or fabric, e.g. ``"ndv2"``; empty for a person's own.
    cost_model : {"physical", "upstream"}
        ``upstream`` follows the published tool's per-chunk integer costs.
    """

    name: str
    node_of_rank: tuple[int, ...]
    links: tuple[Link, ...]
    resources: tuple[Resource, ...]
    holds: tuple[Hold, ...]
    switches: tuple[Switch, ...] = ()
    alpha_meaning: AlphaMeaning = "occupies"
    profile: str = ""
    machine: str = ""
    cost_model: str = "physical"
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        check_topology(self)

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return len(self.node_of_rank)

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return max(self.node_of_rank) + 1

    @cached_property
    def memo(self) -> dict[str, Any]:
        """What others have worked out about this topology, by name; no part of its value."""
        return {}

    @cached_property
    def ranks_of_node(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of every node, in order; a rank's place in its node is its local rank."""
        ranks: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for rank, node in enumerate(self.node_of_rank):
            ranks[node].append(rank)
        return tuple(tuple(each) for each in ranks)

    @cached_property
    def local_rank(self) -> tuple[int, ...]:
        """Every rank's place in its node."""
        place = {rank: i for ranks in self.ranks_of_node for i, rank in enumerate(ranks)}
        return tuple(place[rank] for rank in range(self.num_ranks))

    @cached_property
    def holds_of_link(self) -> tuple[tuple[Hold, ...], ...]:
        """The holds of a send over every link."""
        holds: list[list[Hold]] = [[] for _ in self.links]
        for hold in self.holds:
            holds[hold.link].append(hold)
        return tuple(tuple(each) for each in holds)

    @cached_property
    def links_from(self) -> tuple[tuple[int, ...], ...]:
        """Links out of every rank, by index."""
        return self._incident("srcs")

    @cached_property
    def links_to(self) -> tuple[tuple[int, ...], ...]:
        """Links into every rank, by index."""
        return self._incident("dsts")

    def _incident(self, end: Literal["srcs", "dsts"]) -> tuple[tuple[int, ...], ...]:
        links: list[list[int]] = [[] for _ in range(self.num_ranks)]
        for index, link in enumerate(self.links):
            for rank in link.srcs if end == "srcs" else link.dsts:
                links[rank].append(index)
        return tuple(tuple(each) for each in links)

    def links_between(self, src: int, dst: int) -> tuple[int, ...]:
        """Every link by which `src` can send to `dst`."""
        src, dst = known_index(src, self.num_ranks, "src"), known_index(dst, self.num_ranks, "dst")
        return tuple(link for link in self.links_from[src] if dst in self.links[link].dsts)

    def is_internode(self, link: int) -> bool:
        """Whether a link joins ranks of different nodes."""
        ends = self.links[known_index(link, len(self.links), "link")]
        return {self.node_of_rank[r] for r in ends.srcs} != {self.node_of_rank[r] for r in ends.dsts}

    @cached_property
    def internode_links(self) -> tuple[int, ...]:
        """Every link between nodes, by index."""
        return tuple(link for link in range(len(self.links)) if self.is_internode(link))

    def reversed(self) -> Topology:
        """The topology with every link turned round; link, resource and hold keep their index.

        Reversed twice, it is the same topology again.
        """
        flip: dict[str, Side] = {"send": "receive", "receive": "send"}
        suffix = " reversed"
        return Topology(
            name=self.name.removesuffix(suffix) if self.name.endswith(suffix) else self.name + suffix,
            node_of_rank=self.node_of_rank,
            links=tuple(Link(e.dsts, e.srcs, e.alpha_us, e.beta_us_per_mb, e.name) for e in self.links),
            resources=self.resources,
            holds=tuple(
                Hold(h.link, h.resource, h.alpha_us, h.beta_us_per_mb, flip[h.side]) for h in self.holds
            ),
            switches=self.switches,
            alpha_meaning=self.alpha_meaning,
            profile=self.profile,
            machine=self.machine,
            cost_model=self.cost_model,
            notes=self.notes,
        )

    def without(
        self,
        *,
        links: Iterable[int | tuple[int, int]] = (),
        ranks: Collection[int] = (),
        resources: Iterable[str] = (),
    ) -> Topology:
        """What is left when links, ranks or resources have failed; see `taccl.topology.transform.without`.

        Parameters
        ----------
        links : iterable of int or (int, int)
            Links by index, or as (source, destination), which means every link between the two.
        ranks : collection of int
            The others are renumbered from 0 without gaps.
        resources : iterable of str
            Names of resources: links that hold them are lost.

        Raises
        ------
        TopologyError
            If a link, a rank or a resource does not exist, or no rank is left.
        """
        return transform.without(self, links=links, ranks=ranks, resources=resources)

    def degraded(self, links: Mapping[int | tuple[int, int] | str, Number]) -> Topology:
        """With some links slower than they were; see `taccl.topology.transform.degraded`."""
        return transform.degraded(self, links)

    def to_dict(self) -> dict[str, Any]:
        """The topology as plain values; fractions as text."""
        return {
            "name": self.name,
            "machine": self.machine,
            "profile": self.profile,
            "cost_model": self.cost_model,
            "alpha_meaning": self.alpha_meaning,
            "node_of_rank": list(self.node_of_rank),
            "links": [
                {
                    "srcs": list(e.srcs),
                    "dsts": list(e.dsts),
                    "alpha_us": str(e.alpha_us),
                    "beta_us_per_mb": str(e.beta_us_per_mb),
                    "name": e.name,
                }
                for e in self.links
            ],
            "resources": [r.name for r in self.resources],
            "holds": [
                [h.link, h.resource, str(h.alpha_us), str(h.beta_us_per_mb), h.side] for h in self.holds
            ],
            "switches": [
                {"name": s.name, "ranks": list(s.ranks), "links": list(s.links)} for s in self.switches
            ],
        }

    @classmethod
    @checked_as(TopologyError)
    def from_dict(cls, data: dict[str, Any]) -> Topology:
        """The topology that `to_dict` wrote.

        Raises
        ------
        FormatError
            If a field is missing or is not of its kind.
        TopologyError
            If the fields make no topology.
        """
        try:
            fields = _fields_from_dict(data)
        except KeyError as error:
            raise FormatError(f"found no field {error}; it is required", where="topology") from None
        except (TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
            raise FormatError(f"found a field that is not of its kind: {error}", where="topology") from None
        return cls(**fields)

    def _repr_html_(self) -> str:
        """What a notebook shows: the figures, and the links by cost."""
        from taccl.html import card, facts, table

        kinds: dict[tuple[bool, Fraction, Fraction], int] = {}
        for index, link in enumerate(self.links):
            kind = self.is_internode(index), link.alpha_us, link.beta_us_per_mb
            kinds[kind] = kinds.get(kind, 0) + 1
        rows = [
            (
                str(count),
                "between nodes" if between else "inside nodes",
                f"{float(alpha):g}",
                f"{float(beta):g}",
                f"{float(1000 / beta):.4g}" if beta else "",
            )
            for (between, alpha, beta), count in sorted(kinds.items())
        ]
        figures = [
            ("ranks", f"{self.num_ranks} in {format_count(self.num_nodes, 'node')}"),
            ("links", f"{len(self.links)}, which hold {format_count(len(self.resources), 'resource')}"),
            ("switches", str(len(self.switches) or "")),
            ("alpha", f"{self.alpha_meaning} the link" if self.alpha_meaning == "occupies" else "pipelined"),
            ("profile", self.profile),
        ]
        head = ("links", "where", "alpha in us", "beta in us/MB", "GB/s")
        return card(self.name, facts(figures), table(head, rows, limit=8), notes=self.notes)

    def __repr__(self) -> str:
        return (
            f"Topology({shown(repr(self.name), 100)}, {self.num_ranks} ranks in {self.num_nodes} node"
            f"{'s' if self.num_nodes > 1 else ''}, {len(self.links)} links, profile {self.profile!r})"
        )


@checked_as(TopologyError)
class TopologyBuilder:
    """Collects links, resources and holds; `build` makes a `Topology` of them.

    Every link added gets a resource of its own, which it holds for alpha + bytes * beta where alpha
    occupies, and for bytes * beta where it pipelines.

    Parameters
    ----------
    node_of_rank : sequence of int
        The node of every rank.
    """

    def __init__(
        self,
        name: str,
        node_of_rank: Sequence[int],
        *,
        alpha_meaning: AlphaMeaning = "occupies",
        profile: str = "",
        machine: str = "",
        cost_model: str = "physical",
    ) -> None:
        self.name = name
        self.node_of_rank = tuple(node_of_rank)
        self.alpha_meaning: AlphaMeaning = alpha_meaning
        self.profile = profile
        self.machine = machine
        self.cost_model = cost_model
        self._links: list[Link] = []
        self._resources: list[Resource] = []
        self._holds: list[Hold] = []
        self._switches: list[Switch] = []

    @property
    def links(self) -> Sequence[Link]:
        """The links added so far."""
        return self._links

    @checked_as(TopologyError)
    def add_link(
        self,
        src: int | Iterable[int],
        dst: int | Iterable[int],
        *,
        alpha_us: Number,
        beta_us_per_mb: Number,
        name: str = "",
    ) -> int:
        """Add a link with its own resource; returns the link's index.

        Parameters
        ----------
        src, dst : int or iterable of int
            A rank, or several: of a multicast the destinations, of a reduction inside a switch the sources.
        alpha_us : number
            Latency in microseconds.
        beta_us_per_mb : number
            Microseconds for 10**6 bytes.
        name : str
            Tells links of the same ends apart.

        Raises
        ------
        TopologyError
            If a cost is not a finite, non-negative number.
        """
        srcs = (src,) if isinstance(src, int) else tuple(sorted(src))
        dsts = (dst,) if isinstance(dst, int) else tuple(sorted(dst))
        try:
            link = Link(
                srcs,
                dsts,
                exact(alpha_us, where="alpha_us"),
                exact(beta_us_per_mb, where="beta_us_per_mb"),
                name,
            )
        except InputError as error:
            ends = Link(srcs, dsts, Fraction(0), Fraction(0), name)
            raise TopologyError(error.message, where=f"{self.name}: link {ends}: {error.where}") from None
        index = len(self._links)
        self._links.append(link)
        own_alpha_us = link.alpha_us if self.alpha_meaning == "occupies" else Fraction(0)
        self._holds.append(Hold(index, len(self._resources), own_alpha_us, link.beta_us_per_mb))
        self._resources.append(Resource(f"link {link}"))
        return index

    @checked_as(TopologyError)
    def add_resource(self, name: str) -> int:
        """Add a resource; returns its index."""
        self._resources.append(Resource(name))
        return len(self._resources) - 1

    @checked_as(TopologyError)
    def add_hold(
        self,
        link: int,
        resource: int,
        *,
        alpha_us: Number,
        beta_us_per_mb: Number,
        side: Side = "send",
    ) -> None:
        """Let every send over `link` hold `resource`.

        Parameters
        ----------
        link, resource : int
            As `add_link` and `add_resource` returned them.
        alpha_us, beta_us_per_mb : number
            A send of b bytes holds the resource for ``alpha_us + b * beta_us_per_mb / 10**6`` microseconds.
        side : {"send", "receive"}
            Whether from the send's start, or until its end.

        Raises
        ------
        TopologyError
            If a cost is not a finite, non-negative number.
        """
        try:
            hold = Hold(
                link,
                resource,
                exact(alpha_us, where="alpha_us"),
                exact(beta_us_per_mb, where="beta_us_per_mb"),
                side,
            )
        except InputError as error:
            raise TopologyError(
                error.message, where=f"{self.name}: hold of resource {resource} by link {link}: {error.where}"
            ) from None
        self._holds.append(hold)

    @checked_as(TopologyError)
    def add_switch(self, name: str, ranks: Sequence[int], links: Iterable[int]) -> None:
        """Declare that `links` run through one crossbar that joins `ranks`.

        Parameters
        ----------
        name : str
            As messages and reports show it.
        ranks : sequence of int
            At least two ranks.
        links : iterable of int
            As `add_link` returned them.
        """
        self._switches.append(Switch(name, tuple(ranks), tuple(links)))

    def build(self, *, notes: Sequence[str] = ()) -> Topology:
        """The topology.

        Raises
        ------
        TopologyError
            If a rank, link or resource does not exist, a cost is not positive, or there are no ranks.
        """
        return Topology(
            name=self.name,
            node_of_rank=self.node_of_rank,
            links=tuple(self._links),
            resources=tuple(self._resources),
            holds=tuple(self._holds),
            switches=tuple(self._switches),
            alpha_meaning=self.alpha_meaning,
            profile=self.profile,
            machine=self.machine,
            cost_model=self.cost_model,
            notes=tuple(notes),
        )


def _fields_from_dict(data: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `Topology` from the plain values of `Topology.to_dict`."""
    return {
        "name": data["name"],
        "machine": data["machine"],
        "profile": data["profile"],
        "cost_model": data["cost_model"],
        "alpha_meaning": data["alpha_meaning"],
        "node_of_rank": tuple(data["node_of_rank"]),
        "links": tuple(
            Link(
                tuple(e["srcs"]),
                tuple(e["dsts"]),
                Fraction(e["alpha_us"]),
                Fraction(e["beta_us_per_mb"]),
                e["name"],
            )
            for e in data["links"]
        ),
        "resources": tuple(Resource(name) for name in data["resources"]),
        "holds": tuple(
            Hold(link, resource, Fraction(alpha), Fraction(beta), side)
            for link, resource, alpha, beta, side in data["holds"]
        ),
        "switches": tuple(Switch(s["name"], tuple(s["ranks"]), tuple(s["links"])) for s in data["switches"]),
    }

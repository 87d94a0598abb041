"""Topology: ranks in nodes, links between them, and the resources that sends hold.

All contention is modelled by resources, each held by one send at a time. A send over a link holds the link's
resources, each for ``alpha + bytes * beta`` of its hold. Each link is a resource itself; switch ports, shared
NICs and uplinks of a spine are further resources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cached_property
from itertools import compress, starmap
from operator import ne
from typing import Any, TypeVar

from taccl._internal.arguments import checked_as, known_index
from taccl._internal.caching import REVERSED_FROM, cached
from taccl._internal.names import shown
from taccl._internal.reading import plain_values
from taccl._internal.units import exact, format_count
from taccl.errors import TopologyError
from taccl.topology import transform
from taccl.topology.checks import check_topology
from taccl.topology.in_network import InNetwork
from taccl.topology.links import OTHER_SIDE, columns_of, made_of
from taccl.topology.links import AlphaMeaning as AlphaMeaning
from taccl.topology.links import Hold as Hold
from taccl.topology.links import Link as Link
from taccl.topology.links import Resource as Resource
from taccl.topology.links import Side as Side
from taccl.topology.links import ends_text as ends_text

T = TypeVar("T")
#: Text fields of a topology.
WORDS = ("name", "machine", "profile", "cost_model", "alpha_meaning")


@dataclass(frozen=True, slots=True)
class Switch:
    """Ranks joined by a crossbar, and the links through it.

    If it `reduces`, some of these links reduce data of several ranks or multicast.
    """

    name: str
    ranks: tuple[int, ...]
    links: tuple[int, ...]
    reduces: InNetwork | None = None


@checked_as(TopologyError)
@dataclass(frozen=True)
class Topology:
    """Ranks in nodes, with links, resources and holds.

    Parameters
    ----------
    node_of_rank : tuple of int
        Node of every rank; its length is the number of ranks.
    alpha_meaning : {"occupies", "pipelined"}
        Whether a link stays busy during its alpha, or is free again after ``bytes * beta``.
    profile : str
        Name of the profile of constants, e.g. ``"nominal"``.
    machine : str
        Name of the machine model or fabric, e.g. ``"ndv2"``; empty for a topology of the user's own.
    cost_model : {"physical", "upstream"}
        ``"upstream"``: per-chunk integer costs of the published tool.
    protocol : str
        Protocol of messages: ``"simple"``, ``"ll"`` or ``"ll128"``; empty if costs apply to all messages.
    launch_us : Fraction
        Time in us of a collective before its first step; not part of a schedule's finish.
    notes : tuple of str
        Facts about an import, and choices made in it.
    assumed : tuple of str
        Everything that an import assumed, dropped or guessed; bounds and times depend on it.
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
    protocol: str = ""
    launch_us: Fraction = Fraction(0)
    notes: tuple[str, ...] = field(default=(), compare=False)
    assumed: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        check_topology(self)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.node_of_rank)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return max(self.node_of_rank) + 1

    @cached_property
    def cache(self) -> dict[str, Any]:
        """Derived data, by key; not part of the topology's value."""
        return {}

    @cached_property
    def ranks_of_node(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of every node, in order; a rank's position in its node is its local rank."""
        return _listed(self.num_nodes, enumerate(self.node_of_rank))

    @cached_property
    def local_rank(self) -> tuple[int, ...]:
        """Local rank of every rank: its position in its node."""
        place = {rank: i for ranks in self.ranks_of_node for i, rank in enumerate(ranks)}
        return tuple(place[rank] for rank in range(self.num_ranks))

    @cached_property
    def holds_of_link(self) -> tuple[tuple[Hold, ...], ...]:
        """For every link, the resource holds of a send over it."""
        return _listed(len(self.links), ((hold, hold.link) for hold in self.holds))

    @cached_property
    def links_from(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the links out of every rank."""
        return _listed(self.num_ranks, ((e, rank) for e, link in enumerate(self.links) for rank in link.srcs))

    @cached_property
    def links_to(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the links into every rank."""
        return _listed(self.num_ranks, ((e, rank) for e, link in enumerate(self.links) for rank in link.dsts))

    def links_between(self, src: int, dst: int) -> tuple[int, ...]:
        """Indices of the links over which `src` can send to `dst`."""
        src, dst = known_index(src, self.num_ranks, "src"), known_index(dst, self.num_ranks, "dst")
        return tuple(link for link in self.links_from[src] if dst in self.links[link].dsts)

    def is_internode(self, link: int) -> bool:
        """True if a link joins ranks of different nodes."""
        srcs, dsts = self.nodes_of_link[known_index(link, len(self.links), "link")]
        return srcs != dsts

    @cached_property
    def nodes_of_link(self) -> tuple[tuple[frozenset[int], frozenset[int]], ...]:
        """Nodes of every link's sources, and of its destinations."""
        srcs, dsts = map(tuple, columns_of(self.links, 0, 1))
        nodes = {ranks: frozenset(map(self.node_of_rank.__getitem__, ranks)) for ranks in {*srcs, *dsts}}
        return tuple(zip(map(nodes.__getitem__, srcs), map(nodes.__getitem__, dsts), strict=True))

    @cached_property
    def internode_links(self) -> tuple[int, ...]:
        """Indices of the links between nodes."""
        if self.num_nodes == 1:
            return ()
        return tuple(compress(range(len(self.links)), starmap(ne, self.nodes_of_link)))

    def changed(self, **values: Any) -> Topology:
        """Topology with other values of some fields, without checks."""
        other = object.__new__(Topology)
        vars(other).update({each.name: getattr(self, each.name) for each in fields(self)}, **values)
        return other

    @cached
    def reversed(self) -> Topology:
        """Topology with every link reversed; links, resources and holds keep their indices."""
        suffix = " reversed"
        turned = self.changed(
            name=self.name.removesuffix(suffix) if self.name.endswith(suffix) else self.name + suffix,
            links=made_of(Link, *columns_of(self.links, 1, 0, 2, 3, 4)),
            holds=made_of(
                Hold, *columns_of(self.holds, 0, 1, 2, 3), map(OTHER_SIDE.get, *columns_of(self.holds, 4))
            ),
        )
        turned.cache[REVERSED_FROM] = self
        return turned

    @property
    def protocols(self) -> tuple[str, ...]:
        """Protocols of the machine's profile; empty if it has none."""
        from taccl.topology.profiles import profile_of

        profile = profile_of(self) if self.protocol else None
        return () if profile is None else tuple(each.name for each in profile.protocols)

    @property
    def told(self) -> list[str]:
        """Notes, then assumptions with the prefix ``assumed:``, as users read them."""
        return [*self.notes, *(f"assumed: {each}" for each in self.assumed)]

    @property
    def proviso(self) -> str:
        """Text with the number of assumptions on which bounds and times depend; empty if there are none."""
        count = format_count(len(self.assumed), "assumption")
        return f"{count} of the topology (taccl show lists them)" if self.assumed else ""

    under = transform.under
    without = transform.without
    degraded = transform.degraded

    def to_dict(self) -> dict[str, Any]:
        """The topology as plain values; fractions as text."""
        costs = {"protocol": self.protocol, "launch_us": str(self.launch_us)}
        return {
            **{name: getattr(self, name) for name in WORDS},
            **(costs if self.protocol or self.launch_us else {}),
            **({"assumed": list(self.assumed)} if self.assumed else {}),
            "node_of_rank": list(self.node_of_rank),
            "links": [
                {
                    "srcs": list(srcs),
                    "dsts": list(dsts),
                    "alpha_us": alpha_us,
                    "beta_us_per_mb": beta_us_per_mb,
                    "name": name,
                }
                for srcs, dsts, alpha_us, beta_us_per_mb, name in _with_texts(self.links)
            ],
            "resources": [resource.name for resource in self.resources],
            "holds": list(map(list, _with_texts(self.holds))),
            "switches": [plain_fields(switch) for switch in self.switches],
        }

    @classmethod
    @checked_as(TopologyError)
    def from_dict(cls, data: dict[str, Any]) -> Topology:
        """Topology from the result of `to_dict`. Raises `FormatError` or `TopologyError` for invalid data."""
        with plain_values("topology"):
            content: dict[str, Any] = {
                **{name: data[name] for name in WORDS},
                "protocol": data.get("protocol", ""),
                "launch_us": exact(data.get("launch_us", 0)),
                "assumed": tuple(map(str, data.get("assumed", ()))),
                "node_of_rank": tuple(data["node_of_rank"]),
                "links": tuple(
                    Link(
                        tuple(map(int, e["srcs"])), tuple(map(int, e["dsts"])),
                        exact(e["alpha_us"]), exact(e["beta_us_per_mb"]), str(e["name"]),
                    )
                    for e in data["links"]
                ),
                "resources": tuple(Resource(str(name)) for name in data["resources"]),
                "holds": tuple(
                    Hold(link, resource, exact(alpha), exact(beta), _SIDES.get(str(side), side))
                    for link, resource, alpha, beta, side in data["holds"]
                ),
                "switches": tuple(
                    Switch(
                        str(s["name"]), tuple(map(int, s["ranks"])), tuple(map(int, s["links"])),
                        None if s.get("reduces") is None else InNetwork(**s["reduces"]),
                    )
                    for s in data["switches"]
                ),
            }  # fmt: skip
        return cls(**content)

    @property
    def link_kinds(self) -> list[tuple[str, str, str, str, str]]:
        """Groups of links with equal costs, as text: number, place, alpha in us, beta in us/MB, GB/s."""
        kinds = Counter(
            ("between nodes" if self.is_internode(e) else "inside nodes", link.alpha_us, link.beta_us_per_mb)
            for e, link in enumerate(self.links)
        )
        return [
            (str(count), place, f"{float(alpha):g}", f"{float(beta):g}", f"{float(1000 / beta):.4g}")
            for (place, alpha, beta), count in sorted(kinds.items())
        ]

    def _repr_html_(self) -> str:
        """HTML for notebooks: a table of key facts, and one of links by cost."""
        from taccl._internal.html import card, facts, table

        figures = [
            ("ranks", f"{self.num_ranks} in {format_count(self.num_nodes, 'node')}"),
            ("links", f"{len(self.links)}, which hold {format_count(len(self.resources), 'resource')}"),
            ("switches", str(len(self.switches) or "")),
            ("alpha", "occupies the link" if self.alpha_meaning == "occupies" else "pipelined"),
            ("profile", self.profile),
        ]
        head = ("links", "where", "alpha in us", "beta in us/MB", "GB/s")
        return card(self.name, facts(figures), table(head, self.link_kinds, limit=8), notes=self.told)

    def __repr__(self) -> str:
        profile = f", profile {self.profile!r}" if self.profile else ""
        return (
            f"Topology({shown(repr(self.name), 100)}, {self.num_ranks} ranks in "
            f"{format_count(self.num_nodes, 'node')}, {len(self.links)} links{profile})"
        )


#: {side of a hold: one object for it}, by whose identity the checks find equal holds.
_SIDES = {side: side for side in ("send", "receive")}


def _listed(count: int, entries: Iterable[tuple[T, int]]) -> tuple[tuple[T, ...], ...]:
    """Group (value, index) pairs by index: for each index from 0 to `count` - 1, its values in order."""
    lists: list[list[T]] = [[] for _ in range(count)]
    for entry, place in entries:
        lists[place].append(entry)
    return tuple(tuple(each) for each in lists)


def _with_texts(rows: Sequence[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
    """Rows of five fields, such as links, with the text of the third and the fourth one, which are costs."""
    first, second, *costs, last = columns_of(rows, *range(5))
    return zip(first, second, *map(_texts, costs), last, strict=True)


def _texts(costs: Iterable[Fraction]) -> Iterable[str]:
    """Costs as text; each object, which many links or holds share, is converted once."""
    costs = list(costs)
    numbers = list(map(id, costs))
    known = {number: str(cost) for number, cost in dict(zip(numbers, costs, strict=True)).items()}
    return map(known.__getitem__, numbers)


def plain_fields(each: Switch | InNetwork) -> dict[str, Any]:
    """{field: plain value} of a dataclass with text, numbers, fractions and tuples; None is left out."""
    values = ((entry.name, getattr(each, entry.name)) for entry in fields(each))
    return {name: _plain_value(value) for name, value in values if value is not None}


def _plain_value(value: object) -> object:
    if isinstance(value, InNetwork):
        return plain_fields(value)
    if isinstance(value, Fraction):
        return str(value)
    return list(value) if isinstance(value, tuple) else value

"""Clauses: what a sketch allows and asks for, in terms of links and ranks.

A clause is declared once, beside its field of `Clauses`: what it speaks of, how its values look, where a
sketch says it, how it reads, and which chunks it admits on which links. What writes, renames, loosens, masks
and reports clauses goes over `CLAUSES`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from taccl._internal.arguments import checked
from taccl._internal.units import exact, format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

    from taccl._internal.arguments import Count
    from taccl.problem.collective import Chunk, Collective
    from taccl.topology.topology import Topology

    #: Nodes where something starts, and where it ends.
    _Nodes: TypeAlias = tuple[frozenset[int], frozenset[int]]

#: What a clause speaks of: links as such, chunks on links, chunks of process groups on links, the links that
#: a chunk passes one after another, the order of sends over a link, merged sends; or the search alone.
Scope: TypeAlias = Literal["link", "chunk", "group", "path", "order", "merge", "search"]
#: Clauses of these bind a schedule; the search is only guided.
BINDING: tuple[Scope, ...] = ("link", "chunk", "group", "path", "order", "merge")
#: Values that clauses have: sets of links or ranks, ranks per link, policies of switches, rank permutations,
#: fractions, and plain ones.
Values = Literal["links", "ranks", "ranks-of-link", "policies", "permutations", "fraction", "plain"]


@checked
@dataclass(frozen=True, slots=True)
class SwitchPolicy:
    """Number of a switch's connections that a routing should use: a term of the routing objective.

    `policy` is ``"min-connections"``, ``"max-connections"`` or ``"free"``; `links` are the switch's.
    """

    name: str
    policy: Literal["min-connections", "max-connections", "free"]
    links: tuple[int, ...]


class Transit(NamedTuple):
    """A chunk on its way, while it spreads or (`reducing`) to its root."""

    topology: Topology
    collective: Collective
    chunk: int
    reducing: bool

    @property
    def starts(self) -> frozenset[int]:
        """Ranks at which the chunk starts, or is made from another."""
        return frozenset(self.collective.starts[self.chunk])

    @property
    def data(self) -> Chunk:
        """The chunk's origins, destinations and root."""
        return self.collective.chunks[self.chunk]

    @property
    def is_rooted(self) -> bool:
        """True if the chunk is reduced to a root first."""
        return self.collective.combining and self.data.root is not None


class Clause(NamedTuple):
    """The declaration of one clause.

    - `field`, `scope`, `shape`: Its name in `Clauses`, what it speaks of (all but ``"search"`` bind a
      schedule), what its values are.
    - `said`: The fields of a sketch that say it. A single one with `is_copied` is its value.
    - `reads`: A value as (label, text) for a person; None where the report words it by itself.
    - `meaning`, `remedy`: What it says (of its ``{value}``), and how to give it up, for explanations.
    - `violation`: The kind of violation of a schedule that breaks it.
    - `of_transit`, `of_link`: What clauses on chunks go by: of a transit, None where they let it be; of a
      link, given their value and the topology.
    - `admits`: Of those, whether such a transit may use such a link.
    - `speaks_of`: Links on which a value may not admit one; None for all.
    - `in_reverse`: The field that it becomes where time is turned round; empty for its own.
    - `is_new`: Whether files are written without it where it asks for nothing, as they were before it was
      there.
    """

    field: str
    scope: Scope
    shape: Values
    said: tuple[str, ...]
    reads: Callable[[Any], tuple[str, str]] | None = None
    meaning: str = ""
    remedy: str = ""
    violation: str = ""
    of_transit: Callable[[Transit], Hashable | None] = lambda _: None
    of_link: Callable[[Any, Topology, int], Hashable] = lambda _, __, link: link
    admits: Callable[[Any, Any], bool] = lambda *_: True
    speaks_of: Callable[[Any, Topology], Collection[int]] | None = None
    in_reverse: str = ""
    is_copied: bool = False
    is_new: bool = False

    @property
    def is_scalar(self) -> bool:
        """True if its values name no links and no ranks."""
        return self.shape in ("plain", "fraction")

    def plain(self, value: Any) -> Any:
        """A value as JSON has it."""
        return None if value is None else _PLAIN[self.shape][0](value)

    def read(self, plain: Any) -> Any:
        """The value that `plain` wrote."""
        return None if plain is None else _PLAIN[self.shape][1](plain)

    def image(self, value: Any, ranks: Sequence[int], links: Mapping[int, int] | Sequence[int]) -> Any:
        """The value after a renaming of ranks and links."""
        if value is None or self.shape not in ("links", "ranks", "ranks-of-link"):
            return value
        if self.shape == "ranks-of-link":
            return {links[e]: frozenset(ranks[r] for r in of) for e, of in value.items()}
        return frozenset((links if self.shape == "links" else ranks)[each] for each in value)

    def at_link(self, value: Any, link: int, ranks: Sequence[int]) -> Hashable:
        """The part of a value about one link, after a renaming of ranks."""
        if self.shape == "links":
            return value is None or link in value
        if self.shape == "ranks-of-link":
            return tuple(sorted({ranks[r] for r in value[link]})) if link in value else None
        if self.shape == "policies":
            return tuple(sorted(each.policy for each in value if link in each.links))
        return None


#: How values of a shape are written, and read again.
_PLAIN: dict[Values, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "links": (sorted, frozenset),
    "ranks": (sorted, frozenset),
    "ranks-of-link": (
        lambda value: {str(e): sorted(ranks) for e, ranks in sorted(value.items())},
        lambda plain: {int(e): frozenset(ranks) for e, ranks in plain.items()},
    ),
    "policies": (
        lambda value: [[each.name, each.policy, list(each.links)] for each in value],
        lambda plain: tuple(SwitchPolicy(n, policy, tuple(links)) for n, policy, links in plain),
    ),
    "permutations": (lambda value: [list(each) for each in value], lambda plain: tuple(map(tuple, plain))),
    "fraction": (str, exact),
    "plain": (lambda value: value, lambda plain: plain),
}


def _start_of_spreading(transit: Transit) -> Hashable | None:
    if transit.reducing:
        return None
    return frozenset((transit.data.root,)) if transit.is_rooted else transit.starts


def _crossed_nodes(transit: Transit) -> Hashable | None:
    if transit.collective.derivations and not transit.is_rooted:
        return None
    data, node = transit.data, transit.topology.node_of_rank
    starts: Collection[int] = transit.starts
    ends: Collection[int] = data.destinations
    if transit.is_rooted:
        root = () if data.root is None else (data.root,)
        starts, ends = (starts, root) if transit.reducing else (root, ends)
    return frozenset(node[r] for r in starts), frozenset(node[r] for r in ends)


def _crosses_straight(transit: _Nodes, link: _Nodes) -> bool:
    (here, there), (srcs, dsts) = transit, link
    return srcs == dsts or (srcs <= here and dsts <= there)


def _members(transit: Transit) -> Hashable | None:
    collective = transit.collective
    return frozenset(collective.process_groups[collective.group_of_chunk[transit.chunk]].ranks)


def _ends_but_relays(relays: frozenset[int], topology: Topology, link: int) -> Hashable:
    return frozenset((*topology.links[link].srcs, *topology.links[link].dsts)) - relays


def _clause(default: Any, scope: Scope, shape: Values, said: Sequence[str], /, **declared: Any) -> Any:
    """A field of `Clauses` with its declaration."""
    made: dict[str, Any] = {"default_factory": dict} if default == {} else {"default": default}
    return field(**made, metadata={"clause": Clause("", scope, shape, tuple(said), **declared)})


@checked
@dataclass(frozen=True)
class Clauses:
    """Permissions and demands of a sketch, in terms of links and ranks; the default has none.

    Parameters
    ----------
    links_allowed : frozenset of int, optional
        Links that may be used; None for all.
    carries_from : mapping of link to frozenset of int
        While a chunk spreads, the link carries only chunks that start at these ranks.
    carries_to : mapping of link to frozenset of int
        While a chunk is reduced, the link carries only chunks whose root is one of these ranks.
    direct_crossing : bool
        A chunk crosses between nodes only straight from a node where it starts to a node that needs it
        (while it is reduced: straight to its root's node).
    own_first : frozenset of int
        On these links, chunks that start at the sender go before those it relays, at least one latency
        apart. (While chunks are reduced, time runs backwards: chunks whose root is the receiver go last.)
    max_merge : int
        How many chunks one send may carry.
    merging : frozenset of int
        Links whose sends may carry more than one chunk.
    symmetry : tuple of rank permutations
        Generators. They guide the search; a schedule need not have them.
    switch_policies : tuple of SwitchPolicy
    link_use : {"free", "min-max", "max-min"}
        A second objective of routing: keep the busiest link light, or the idlest link used.
    objective_weight : Fraction
        The weight mu of the routing objective's second terms.
    routing_slack : Fraction
        How much longer than its shortest path a chunk's path may be, relatively.
    where : mapping of clause to text
        ``"file: field"`` of every clause that came from a file.
    relays : frozenset of int, optional
        Ranks that may pass on chunks of process groups that they are not in; None for all. Members of a
        chunk's own group always may.
    max_hops : int, optional
        How many links a chunk may pass at most from where it starts; while it is reduced, how many each
        contribution may pass on its way to the root. None for any number.
    """

    name: str = ""
    links_allowed: frozenset[int] | None = _clause(
        None, "link", "links", ("internode.connections", "intranode.links", "switch"),
        violation="link-not-allowed",
    )  # fmt: skip
    carries_from: Mapping[int, frozenset[int]] = _clause(
        {}, "chunk", "ranks-of-link", ("internode.relays",),
        reads=lambda value: ("limited links", f"{format_count(len(value), 'link')}, by where chunks start"),
        meaning="links carry only what starts at some ranks",
        violation="carries-from",
        of_transit=_start_of_spreading,
        of_link=lambda carried, _, link: carried[link],
        admits=lambda starts, carried: not carried.isdisjoint(starts),
        speaks_of=lambda value, _: value,
    )  # fmt: skip
    carries_to: Mapping[int, frozenset[int]] = _clause(
        {}, "chunk", "ranks-of-link", ("internode.relays",),
        reads=lambda value: ("limited for sums", f"{format_count(len(value), 'link')}, by the sums' roots"),
        meaning="links carry only what starts at some ranks",
        violation="carries-to",
        of_transit=lambda transit: frozenset((transit.data.root,)) if transit.reducing else None,
        of_link=lambda carried, _, link: carried[link],
        admits=lambda starts, carried: not carried.isdisjoint(starts),
        speaks_of=lambda value, _: value,
        in_reverse="carries_from",
    )  # fmt: skip
    direct_crossing: bool = _clause(
        False, "chunk", "plain", ("internode.crossing",),
        reads=lambda value: ("crossing", "straight from origin to destination nodes"),
        meaning="a chunk crosses only straight from a node where it starts to one that needs it",
        remedy='set it to "any"',
        violation="direct-crossing",
        of_transit=_crossed_nodes,
        of_link=lambda _, topology, link: topology.nodes_of_link[link],
        admits=_crosses_straight,
        speaks_of=lambda _, topology: topology.internode_links,
    )  # fmt: skip
    own_first: frozenset[int] = _clause(
        frozenset(), "order", "links", ("internode.own_before_relayed",),
        reads=lambda value: ("own first", format_count(len(value), "link")),
        meaning="a sender's own chunks go before those it relays",
        remedy="set it to false",
        violation="own-first",
    )  # fmt: skip
    max_merge: Count = _clause(1, "merge", "plain", ("merging.max",), violation="merge")
    merging: frozenset[int] = _clause(frozenset(), "merge", "links", ("merging.links",), violation="merge")
    symmetry: tuple[tuple[int, ...], ...] = _clause(
        (), "search", "permutations", ("symmetry",),
        reads=lambda value: ("symmetry", format_count(len(value), "generator")),
    )  # fmt: skip
    switch_policies: tuple[SwitchPolicy, ...] = _clause(
        (), "search", "policies", ("switch",),
        reads=lambda value: ("switch policies", ", ".join(f"{each.name}: {each.policy}" for each in value)),
    )  # fmt: skip
    link_use: Literal["free", "min-max", "max-min"] = _clause(
        "free", "search", "plain", ("objective.link_use",), is_copied=True
    )
    objective_weight: Fraction = _clause(
        Fraction(1, 100), "search", "fraction", ("objective.weight",), is_copied=True
    )
    routing_slack: Fraction = _clause(
        Fraction(1, 10), "search", "fraction", ("routing.slack",), is_copied=True
    )
    where: Mapping[str, str] = field(default_factory=dict)
    relays: frozenset[int] | None = _clause(
        None, "group", "ranks", ("relays",),
        reads=lambda value: ("relays", f"ranks {', '.join(map(str, sorted(value)))} for other groups"),
        meaning="only some ranks pass on chunks of process groups that they are not in",
        remedy="remove it, so that any rank may relay",
        violation="link-not-allowed",
        of_transit=_members,
        of_link=_ends_but_relays,
        admits=lambda members, ends: ends <= members,
        is_new=True,
    )  # fmt: skip
    max_hops: Count | None = _clause(
        None, "path", "plain", ("routing.max_hops",),
        reads=lambda value: ("paths", f"of at most {format_count(value, 'link')}"),
        meaning="from where a chunk starts, or to its root, it passes no more links than {value}",
        violation="too-many-hops",
        is_copied=True,
        is_new=True,
    )  # fmt: skip

    @property
    def path_limit(self) -> int | None:
        """Most links that a chunk, or a contribution to its sum, may pass; None for any number."""
        return min((getattr(self, each.field) for each in self.said("path")), default=None)

    def said(self, *scopes: Scope) -> tuple[Clause, ...]:
        """The clauses of some scopes (default: of all) that ask for anything."""
        return tuple(
            each
            for each in CLAUSES.values()
            if (not scopes or each.scope in scopes) and getattr(self, each.field) != _NOTHING[each.field]
        )

    def without(self, *fields: str) -> Clauses:
        """The clauses but for some, which ask for nothing then."""
        return replace(self, **{each: _NOTHING[each] for each in fields})

    def only(self, *scopes: Scope) -> Clauses:
        """The clauses of some scopes alone, without a name."""
        return Clauses(**{each.field: getattr(self, each.field) for each in self.said(*scopes)})

    def same(self, other: Clauses, *scopes: Scope) -> bool:
        """True if others have the same values in some scopes."""
        return self.values(*scopes) == other.values(*scopes)

    def values(self, *scopes: Scope) -> dict[str, Any]:
        """Every clause of some scopes by field."""
        return {each.field: getattr(self, each.field) for each in CLAUSES.values() if each.scope in scopes}

    def reversed(self) -> Clauses:
        """The clauses under reversed time: those on reductions hold for broadcasts."""
        turned = {each.in_reverse: getattr(self, each.field) for each in CLAUSES.values() if each.in_reverse}
        return replace(self.without(*(each.field for each in CLAUSES.values() if each.in_reverse)), **turned)

    def indices(self) -> Iterable[tuple[str, Literal["link", "rank"], Collection[int]]]:
        """(field, what is named, their indices) of clauses that name links or ranks."""
        for each in self.said():
            value = getattr(self, each.field)
            if each.shape in ("links", "ranks", "ranks-of-link"):
                yield each.field, "rank" if each.shape == "ranks" else "link", value

    def to_dict(self) -> dict[str, Any]:
        """The clauses as plain values; those that came later only where they ask for something."""
        told = {each.field for each in self.said()}
        content = {
            each.field: each.plain(getattr(self, each.field))
            for each in CLAUSES.values()
            if not each.is_new or each.field in told
        }
        return {"name": self.name, **content, "where": dict(sorted(self.where.items()))}

    @classmethod
    @checked
    def from_dict(cls, data: dict[str, Any]) -> Clauses:
        """The clauses that `to_dict` wrote."""
        said = {
            each.field: each.read(data[each.field])
            for each in CLAUSES.values()
            if not each.is_new or each.field in data
        }
        return cls(name=data["name"], where=data["where"], **said)


#: Every clause by its field, in order.
CLAUSES: dict[str, Clause] = {
    each.name: each.metadata["clause"]._replace(field=each.name)
    for each in dataclasses.fields(Clauses)
    if "clause" in each.metadata
}
#: Values of clauses without any demand.
_NOTHING: dict[str, Any] = {name: getattr(Clauses(), name) for name in CLAUSES}

"""Clauses: permissions and constraints of a sketch, in terms of links and ranks.

Each clause is declared once, at its field of `Clauses`. The declaration gives its scope, the form of its
values, and the fields of a sketch that set it. It also gives the clause's text in reports, and the chunks
that it admits on links. All code that writes, renames, relaxes, evaluates and reports clauses iterates over
`CLAUSES`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeAlias

from taccl._internal.arguments import Count, checked
from taccl._internal.units import exact, format_count
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.topology.topology import Topology

#: (nodes at the start, nodes at the end) of a link or of a chunk's transit.
_Nodes: TypeAlias = tuple[frozenset[int], frozenset[int]]

#: Subject that a sketch's clause constrains.
#: "link": links. "chunk": chunks on links. "group": chunks of process groups on links.
#: "path": number of links on a path. "order": order of sends over a link. "merge": merged sends.
#: "search": no subject, as such a clause guides the search and constrains no schedule.
Scope: TypeAlias = Literal["link", "chunk", "group", "path", "order", "merge", "search"]
#: Scopes of clauses that constrain schedules; the other clauses only guide the search.
BINDING: tuple[Scope, ...] = ("link", "chunk", "group", "path", "order", "merge")
#: Form of a clause's values: links, ranks, ranks by link, switch policies, permutations, fraction, or other.
Values = Literal["links", "ranks", "ranks-of-link", "policies", "permutations", "fraction", "plain"]


@checked
@dataclass(frozen=True, slots=True)
class SwitchPolicy:
    """Preference on how many of a switch's connections a routing uses, a term of the routing objective.

    - `policy`: ``"min-connections"``, ``"max-connections"`` or ``"free"``.
    - `links`: Links of the switch.
    """

    name: str
    policy: Literal["min-connections", "max-connections", "free"]
    links: tuple[int, ...]


class Transit(NamedTuple):
    """A chunk on its way to its destinations, or, if `reducing`, in the reduce phase to its root."""

    topology: Topology
    collective: Collective
    chunk: int
    reducing: bool

    @property
    def starts(self) -> frozenset[int]:
        """Ranks at which the chunk starts, or is derived from another chunk."""
        return frozenset(self.collective.starts[self.chunk])

    @property
    def data(self) -> Chunk:
        """Origins, destinations and root of the chunk."""
        return self.collective.chunks[self.chunk]

    @property
    def is_rooted(self) -> bool:
        """True if the chunk is first reduced at a root."""
        return self.collective.combining and self.data.root is not None


class Clause(NamedTuple):
    """Declaration of one kind of clause: the form of its values, and the chunks that it admits on links.

    - `field`: Its field in `Clauses`.
    - `scope`: Subject that it constrains; all scopes but ``"search"`` bind a schedule.
    - `shape`: Form of its values.
    - `said`: Fields of a sketch that set it. With `is_copied`, the value of the only field is copied.
    - `reads`: Function from a value to (label, text) for reports; None if the report has its own text.
    - `meaning`, `remedy`: Texts for `taccl.explain`: its meaning (with ``{value}``), and how to remove it.
    - `violation`: Kind of violation by a schedule that breaks it.
    - `of_transit`, `of_link`: For clauses on chunks, functions that return the keys by which a link admits a
      chunk. `of_transit` gives the key of a transit, None if the clause does not concern it; it depends on
      the chunk's starts, nodes of destinations, root and process group only. `of_link` gives the key of a
      link, from the clause's value and the topology.
    - `admits`: Function of the two keys; True if the transit may use the link.
    - `speaks_of`: Function that returns the links on which the clause may refuse a chunk; None for all links.
    - `in_reverse`: Field that it becomes in reversed time; empty if it stays the same.
    - `is_new`: True to omit it from files unless it is set, as files of earlier versions do.
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
        """True if the clause's values contain no links and no ranks."""
        return self.shape in ("plain", "fraction")

    def plain(self, value: Any) -> Any:
        """A value as plain data for JSON."""
        return None if value is None else _PLAIN[self.shape][0](value)

    def read(self, plain: Any) -> Any:
        """The value from the data that `plain` returned."""
        return None if plain is None else _PLAIN[self.shape][1](plain)

    def image(self, value: Any, ranks: Sequence[int], links: Mapping[int, int] | Sequence[int]) -> Any:
        """A clause's value after a renumbering of ranks and links."""
        if value is None or self.shape not in ("links", "ranks", "ranks-of-link"):
            return value
        if self.shape == "ranks-of-link":
            return {links[e]: frozenset(ranks[r] for r in of) for e, of in value.items()}
        return frozenset((links if self.shape == "links" else ranks)[each] for each in value)

    def at_links(self, value: Any, links: Sequence[int], ranks: Sequence[int]) -> list[Hashable]:
        """Parts of a value that concern each link, after a renumbering of ranks, in a hashable form."""
        if self.shape == "links":
            return [value is None or link in value for link in links]
        if self.shape == "ranks-of-link":  # many links share a set of ranks
            images = {of: tuple(sorted({ranks[r] for r in of})) for of in {*value.values()}}
            return [images[value[link]] if link in value else None for link in links]
        if self.shape == "policies":
            parts = [(each.policy, frozenset(each.links)) for each in value]
            return [tuple(sorted(policy for policy, under in parts if link in under)) for link in links]
        return [None] * len(links)


#: {form of a clause's values: (function to plain data, function back from plain data)}.
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
    """Dataclass field of `Clauses` that carries the declaration of its clause as metadata."""
    made: dict[str, Any] = {"default_factory": dict} if default == {} else {"default": default}
    return field(**made, metadata={"clause": Clause("", scope, shape, tuple(said), **declared)})


@checked
@dataclass(frozen=True)
class Clauses:
    """Permissions and constraints of a sketch, in terms of links and ranks; the default has none.

    Parameters
    ----------
    links_allowed : frozenset of int, optional
        Links that may be used; None for all.
    carries_from : mapping of link to frozenset of int
        In the broadcast phase, the link carries only chunks that start at these ranks.
    carries_to : mapping of link to frozenset of int
        In the reduce phase, the link carries only chunks whose root is one of these ranks.
    direct_crossing : bool
        True if chunks cross between nodes only directly: from a node where the chunk starts to a node that
        needs it (in the reduce phase, to its root's node).
    own_first : frozenset of int
        Links with local-first priority: chunks that start at the sender go before those that it relays, at
        least one latency apart. (In the reduce phase, time runs backwards: chunks whose root is the receiver
        go last.)
    max_merge : int
        Max chunks in one send.
    merging : frozenset of int
        Links whose sends may carry more than one chunk.
    symmetry : tuple of rank permutations
        Generators of a symmetry group. They guide the search; a schedule need not be symmetric.
    switch_policies : tuple of SwitchPolicy
        Preferences for the number of connections of switches.
    link_use : {"free", "min-max", "max-min"}
        Second objective of routing: minimise the use of the busiest link, or maximise that of the least used
        one.
    objective_weight : Fraction
        Weight mu of the second terms of the routing objective.
    routing_slack : Fraction
        Max relative excess of a chunk's path over its shortest path.
    where : mapping of clause to text
        ``"file: field"`` of every clause that was read from a file.
    relays : frozenset of int, optional
        Ranks that may relay chunks of process groups to which they do not belong; None for all. Members of a
        chunk's own group always may.
    max_hops : int, optional
        Max links that a chunk may pass from where it starts; in the reduce phase, max links that each
        contribution may pass on its way to the root. None for no limit.
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
        meaning="links carry only sums with some roots",
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
        meaning="max links on a path from a chunk's start, or to the root of its sum: {value}",
        violation="too-many-hops",
        is_copied=True,
        is_new=True,
    )  # fmt: skip

    def __repr__(self) -> str:
        return f"Clauses({self.name!r}: {', '.join(each.field for each in self.said()) or 'none'})"

    @property
    def path_limit(self) -> int | None:
        """Max links that a chunk, or a contribution to its sum, may pass; None for no limit."""
        return min((getattr(self, each.field) for each in self.said("path")), default=None)

    def said(self, *scopes: Scope) -> tuple[Clause, ...]:
        """Clauses of the given scopes (default: all) whose values differ from the default, i.e. are set."""
        return tuple(
            each
            for each in CLAUSES.values()
            if (not scopes or each.scope in scopes) and getattr(self, each.field) != _NOTHING[each.field]
        )

    def without(self, *fields: str) -> Clauses:
        """Clauses with the given fields reset to their defaults."""
        return replace(self, **{each: _NOTHING[each] for each in fields})

    def only(self, *scopes: Scope) -> Clauses:
        """Copy with the clauses of the given scopes; all others, and `where`, have their defaults."""
        return Clauses(**{each.field: getattr(self, each.field) for each in self.said(*scopes)})

    def same(self, other: Clauses, *scopes: Scope) -> bool:
        """True if all clauses of the given scopes have the same values in `other`."""
        return self.values(*scopes) == other.values(*scopes)

    def values(self, *scopes: Scope) -> dict[str, Any]:
        """{field: value} of all clauses of the given scopes."""
        return {each.field: getattr(self, each.field) for each in CLAUSES.values() if each.scope in scopes}

    def reversed(self) -> Clauses:
        """Clauses in reversed time: those on the reduce phase then apply to the broadcast phase."""
        turned = {each.in_reverse: getattr(self, each.field) for each in CLAUSES.values() if each.in_reverse}
        return replace(self.without(*(each.field for each in CLAUSES.values() if each.in_reverse)), **turned)

    def indices(self) -> Iterable[tuple[str, Literal["link", "rank"], Collection[int]]]:
        """Yield (field, ``"link"`` or ``"rank"``, indices) of non-default clauses on links or ranks."""
        for each in self.said():
            value = getattr(self, each.field)
            if each.shape in ("links", "ranks", "ranks-of-link"):
                yield each.field, "rank" if each.shape == "ranks" else "link", value

    def to_dict(self) -> dict[str, Any]:
        """Clauses as plain values; those with `Clause.is_new` only if they are set."""
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
        """Clauses from the output of `to_dict`."""
        said = {
            each.field: each.read(data[each.field])
            for each in CLAUSES.values()
            if not each.is_new or each.field in data
        }
        return cls(name=data["name"], where=data["where"], **said)


#: {field: declaration} of every clause, in order.
CLAUSES: dict[str, Clause] = {
    each.name: each.metadata["clause"]._replace(field=each.name)
    for each in dataclasses.fields(Clauses)
    if "clause" in each.metadata
}
#: {field: default value of the clause}.
_NOTHING: dict[str, Any] = {name: getattr(Clauses(), name) for name in CLAUSES}

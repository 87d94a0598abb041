"""Clauses: what a sketch allows and asks for, in terms of links and ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from taccl.arguments import checked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taccl.arguments import Count

__all__ = ["Clauses", "SwitchPolicy"]


@checked
@dataclass(frozen=True, slots=True)
class SwitchPolicy:
    """How many of a switch's connections a routing should use: a term of the routing objective.

    `policy` is ``"min-connections"``, ``"max-connections"`` or ``"free"``; `links` are the switch's.
    """

    name: str
    policy: Literal["min-connections", "max-connections", "free"]
    links: tuple[int, ...]


@checked
@dataclass(frozen=True)
class Clauses:
    """What a sketch allows and asks for, in terms of links and ranks; the default asks for nothing.

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
    relays : frozenset of int, optional
        Ranks that may pass on chunks of process groups that they are not in; None for all. Members of a
        chunk's own group always may.
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
    """

    name: str = ""
    links_allowed: frozenset[int] | None = None
    carries_from: Mapping[int, frozenset[int]] = field(default_factory=dict)
    carries_to: Mapping[int, frozenset[int]] = field(default_factory=dict)
    direct_crossing: bool = False
    own_first: frozenset[int] = frozenset()
    max_merge: Count = 1
    merging: frozenset[int] = frozenset()
    symmetry: tuple[tuple[int, ...], ...] = ()
    switch_policies: tuple[SwitchPolicy, ...] = ()
    link_use: Literal["free", "min-max", "max-min"] = "free"
    objective_weight: Fraction = Fraction(1, 100)
    routing_slack: Fraction = Fraction(1, 10)
    where: Mapping[str, str] = field(default_factory=dict)
    relays: frozenset[int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The clauses as plain values; `relays` only where they are limited."""
        relays = {} if self.relays is None else {"relays": sorted(self.relays)}
        return {
            "name": self.name,
            "links_allowed": None if self.links_allowed is None else sorted(self.links_allowed),
            "carries_from": {str(e): sorted(r) for e, r in sorted(self.carries_from.items())},
            "carries_to": {str(e): sorted(r) for e, r in sorted(self.carries_to.items())},
            "direct_crossing": self.direct_crossing,
            "own_first": sorted(self.own_first),
            "max_merge": self.max_merge,
            "merging": sorted(self.merging),
            "symmetry": [list(p) for p in self.symmetry],
            "switch_policies": [[s.name, s.policy, list(s.links)] for s in self.switch_policies],
            "link_use": self.link_use,
            "objective_weight": str(self.objective_weight),
            "routing_slack": str(self.routing_slack),
            "where": dict(sorted(self.where.items())),
            **relays,
        }

    @classmethod
    @checked
    def from_dict(cls, data: dict[str, Any]) -> Clauses:
        """The clauses that `to_dict` wrote."""
        allowed = data["links_allowed"]
        return cls(
            name=data["name"],
            links_allowed=None if allowed is None else frozenset(allowed),
            carries_from={int(e): frozenset(r) for e, r in data["carries_from"].items()},
            carries_to={int(e): frozenset(r) for e, r in data["carries_to"].items()},
            direct_crossing=data["direct_crossing"],
            own_first=frozenset(data["own_first"]),
            max_merge=data["max_merge"],
            merging=frozenset(data["merging"]),
            symmetry=tuple(tuple(p) for p in data["symmetry"]),
            switch_policies=tuple(
                SwitchPolicy(n, p, tuple(links)) for n, p, links in data["switch_policies"]
            ),
            link_use=data["link_use"],
            objective_weight=Fraction(data["objective_weight"]),
            routing_slack=Fraction(data["routing_slack"]),
            where=data["where"],
            relays=frozenset(data["relays"]) if data.get("relays") is not None else None,
        )

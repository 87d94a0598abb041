"""Clauses that keep a chunk off a link, and edits of the sketch that would let the link carry it.

A sketch names local ranks; the clauses of a problem under the sketch name links. If a problem's clauses are
equal in every node, edits are given in local ranks, as in the sketch's file; otherwise link by link. Edits
that the sketch's symmetry maps to each other are made together, so that the sketch keeps its symmetry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

from taccl._internal.caching import cached
from taccl.problem.clauses import CLAUSES, Clause, Transit
from taccl.problem.problem import Clauses, Problem
from taccl.sketch.apply import carried

CONNECTIONS, INSIDE, RELAYS = "internode.connections", "intranode.links", "internode.relays"
CROSSING, OWN_FIRST, SWITCH = "internode.crossing", "internode.own_before_relayed", "switch"

#: `_ADD`: cost of an edit that adds an item.
#: `_SET`: cost of an edit that sets a number.
#: `_REMOVE_ENTRY`: cost of an edit that removes one sender's entry from a clause.
#: `_REMOVE_CLAUSE`: cost of an edit that removes a whole clause.
_ADD, _SET, _REMOVE_ENTRY, _REMOVE_CLAUSE = 1, 1, 2, 4


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Change of one field of a sketch, with its cost."""

    clause: str
    verb: str  # "add", "allow", "remove entry", "remove" or "set"
    #: Items to add or remove: (src, dst) or (sender, origin) pairs, (sender,) or (link,); or a number to set.
    #: Empty if the edit removes the whole clause.
    items: tuple[tuple[int, ...], ...]
    cost: int


class Barriers:
    """Clauses of a problem that exclude chunks from links, and edits of these clauses that admit the chunks.

    The problem must not be time-reversed.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.clauses = problem.clauses
        self.cache: dict[Any, Any] = {}

    @cached
    def blocking(self, link: int, chunk: int, *, reducing: bool) -> frozenset[str]:
        """Clauses that keep a chunk off a link; the relays of each sender count as a separate clause."""
        found = {each.said[0] for each in self._closing(link, chunk, reducing)}
        if self._forbidden(link):
            found.add(self._field(link))
        if self.is_local and RELAYS in found:
            found = {*found, f"{RELAYS}.{self._sender(link)}"} - {RELAYS}
        return frozenset(found)

    @cached
    def openings(self, link: int, chunk: int, *, reducing: bool) -> list[frozenset[Edit]]:
        """Sets of edits, each of which allows a chunk on a link; one empty set if it is allowed already."""
        barriers = []
        if self._forbidden(link):
            barriers.append(self._link_edits(link))
        for each in self._closing(link, chunk, reducing):
            if self.is_local and each.said[0] == RELAYS:
                barriers.append(self._relay_edits(link, chunk, reducing))
            else:
                verb, cost = ("set", _SET) if each.is_scalar else ("remove", _REMOVE_CLAUSE)
                barriers.append([frozenset([Edit(each.said[0], verb, (), cost)])])
        return list(dict.fromkeys(frozenset().union(*choice) for choice in product(*barriers)))

    def without(self, clauses: Collection[str]) -> Problem:
        """The problem without the given fields of its sketch."""
        kept, links = self.clauses, range(len(self.problem.topology.links))
        if kept.links_allowed is not None:
            allowed = kept.links_allowed.union(e for e in links if self._field(e) in clauses)
            kept = replace(kept, links_allowed=None if len(allowed) == len(links) else allowed)
        given_up = (each.field for each in kept.said() if each.scope != "link" and {*each.said} & {*clauses})
        return replace(self.problem, clauses=kept.without(*given_up))

    def loosened(self, edits: Collection[Edit]) -> Problem:
        """The problem after the given edits."""
        chosen, across = set(edits), self.problem.topology.internode_links
        loosened = self.without({edit.clause for edit in chosen if not edit.items})
        links = range(len(self.problem.topology.links))
        opened = (e for e in links if any(option <= chosen for option in self._link_edits(e)))
        allowed = frozenset(loosened.links_allowed).union(opened)
        used = [e for e in across if e in allowed]
        changed: dict[str, Any] = {"links_allowed": None if len(allowed) == len(links) else allowed}
        if self.is_local:
            relays = {sender: set(starts) for sender, starts in self.relays.items()}
            for edit in chosen:
                for item in edit.items if edit.clause == RELAYS else ():
                    if edit.verb == "add":
                        relays[item[0]].add(item[1])
                    else:
                        relays.pop(item[0], None)
            changed["carries_from"], changed["carries_to"] = carried(self.problem.topology, relays, used)
        # Under a sketch, local-first priority holds on all allowed links between nodes.
        own_first = loosened.clauses.own_first
        if own_first and own_first == {e for e in across if not self._forbidden(e)}:
            changed["own_first"] = frozenset(used)
        for each in self.clauses.said("path"):
            changed |= {each.field: edit.items[0][0] for edit in chosen if edit.clause in each.said}
        return loosened.with_clauses(**changed)

    @cached_property
    def is_local(self) -> bool:
        """True if the clauses are equal in every node, so that edits can be given in local ranks."""
        clauses = self.clauses
        if set(clauses.carries_from) != set(clauses.carries_to):
            return False
        for e in filter(self._forbidden, range(len(self.problem.topology.links))):
            if self._field(e) != SWITCH and self._named(e) <= self.open_pairs[self._field_of_ends(e)]:
                return False
        across = [e for e in self.problem.topology.internode_links if not self._forbidden(e)]
        said = carried(self.problem.topology, self.relays, across)
        return said == (dict(clauses.carries_from), dict(clauses.carries_to))

    def _forbidden(self, link: int) -> bool:
        return self.clauses.links_allowed is not None and link not in self.clauses.links_allowed

    def _field_of_ends(self, link: int) -> str:
        return CONNECTIONS if self.problem.topology.is_internode(link) else INSIDE

    def _field(self, link: int) -> str:
        """Sketch field that forbids a link.

        It is `SWITCH` if a parallel link is allowed; otherwise the field for links between or inside nodes.
        """
        ends = self.problem.topology.links[link]
        return SWITCH if (ends.srcs, ends.dsts) in self._allowed_ends else self._field_of_ends(link)

    @cached_property
    def _allowed_ends(self) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
        links = self.problem.topology.links
        return {(links[e].srcs, links[e].dsts) for e in self.problem.links_allowed}

    def _named(self, link: int) -> set[tuple[int, int]]:
        """(src, dst) local ranks that a link joins."""
        local, ends = self.problem.topology.local_rank, self.problem.topology.links[link]
        return {(local[s], local[d]) for s in ends.srcs for d in ends.dsts}

    @cached_property
    def open_pairs(self) -> dict[str, set[tuple[int, int]]]:
        """{field of the sketch: (src, dst) local ranks with an allowed link}, between and inside nodes."""
        pairs: dict[str, set[tuple[int, int]]] = defaultdict(set)
        for e in self.problem.links_allowed:
            pairs[self._field_of_ends(e)] |= self._named(e)
        return pairs

    @cached
    def _link_edits(self, link: int) -> list[frozenset[Edit]]:
        """Alternative sets of edits, each of which allows a forbidden link."""
        field = self._field(link)
        if field == SWITCH or not self.is_local:
            return [frozenset([Edit(field, "allow", ((link,),), _ADD)])]
        missing = self._named(link) - self.open_pairs[field]
        added = frozenset(self._orbit_edit(field, "add", pair, _ADD) for pair in missing)
        return [added, frozenset([Edit(field, "remove", (), _REMOVE_CLAUSE)])]

    @cached_property
    def relays(self) -> dict[int, set[int]]:
        """{local sender: local ranks whose chunks it may carry}, for senders that the sketch restricts."""
        local = self.problem.topology.local_rank
        relays: dict[int, set[int]] = {}
        for e, admitted in self.clauses.carries_from.items():
            for src in self.problem.topology.links[e].srcs:
                relays.setdefault(local[src], set()).update(local[r] for r in admitted)
        return relays

    def _sender(self, link: int) -> int:
        """Local rank whose relays apply to a link."""
        return self.problem.topology.local_rank[self.problem.topology.links[link].srcs[0]]

    def _relay_edits(self, link: int, chunk: int, reducing: bool) -> list[frozenset[Edit]]:
        """Alternative sets of edits, each of which lets the sender of a link carry a chunk."""
        topology, sender = self.problem.topology, self._sender(link)
        ends = topology.links[link].dsts if reducing else topology.links[link].srcs
        nodes = {topology.node_of_rank[r] for r in ends}
        transit = Transit(topology, self.problem.collective, chunk, reducing)
        starts = (transit.data.root,) if transit.is_rooted else transit.starts
        near = (r for r in starts if r is not None and topology.node_of_rank[r] in nodes)
        options = [self._orbit_edit(RELAYS, "add", (sender, topology.local_rank[r]), _ADD) for r in near]
        options = [*sorted(options), self._orbit_edit(RELAYS, "remove entry", (sender,), _REMOVE_ENTRY)]
        return [frozenset([each]) for each in options]

    def _closing(self, link: int, chunk: int, reducing: bool) -> list[Clause]:
        """Clauses that keep this chunk, but not all chunks, off a link."""
        return [each for each, alone in self._alone if not alone.open_links(chunk, reducing=reducing)[link]]

    @cached_property
    def _alone(self) -> list[tuple[Clause, Problem]]:
        """[(clause, problem with this clause alone)] for clauses that restrict single chunks.

        Relays are computed for all links between nodes, also for those that other clauses forbid.
        """
        values = {each: getattr(self.clauses, each.field) for each in self.clauses.said("chunk", "group")}
        if self.is_local:
            both = carried(self.problem.topology, self.relays, self.problem.topology.internode_links)
            relays = zip(("carries_from", "carries_to"), both, strict=True)
            values |= {CLAUSES[field]: of_link for field, of_link in relays if of_link}
        return [
            (each, replace(self.problem, clauses=Clauses(**{each.field: value})))
            for each, value in values.items()
        ]

    def _orbit_edit(self, clause: str, verb: str, item: tuple[int, ...], cost: int) -> Edit:
        """One edit that changes an item together with all items to which the sketch's symmetry maps it."""
        local, found, queue = self.problem.topology.local_rank, {item}, [item]
        for each in queue if self.clauses.symmetry else ():
            for ranks in self._ranks_of(each, clause == CONNECTIONS):
                images = {tuple(local[to[r]] for r in ranks) for to in self.clauses.symmetry} - found
                found |= images
                queue.extend(images)
        return Edit(clause, verb, tuple(sorted(found)), cost * len(found))

    def _ranks_of(self, item: tuple[int, ...], across: bool) -> Iterator[tuple[int, ...]]:
        """Yield the tuples of ranks that a tuple of local ranks (`item`) stands for.

        A connection (`across`) stands for one rank in each of two nodes, any other item for ranks of a node.
        """
        nodes = self.problem.topology.ranks_of_node
        for here, ranks in enumerate(nodes):
            if across:
                src, dst = item
                yield from ((ranks[src], far[dst]) for there, far in enumerate(nodes) if there != here)
            else:
                yield tuple(ranks[local] for local in item)

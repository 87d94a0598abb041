"""What keeps a chunk off a link, clause by clause, and the edits of a sketch that would let it on.

A sketch speaks of local ranks, its clauses of links. Where a problem's clauses are alike in every node,
edits are told in local ranks, as its file would have them; otherwise link by link. Edits that the sketch's
symmetry maps to each other come together, for the sketch to keep its symmetry.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

from taccl.problem import Clauses
from taccl.schedule.combine import reduction_half, spreading_half

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from taccl.problem import Problem

__all__ = ["Barriers", "Edit", "Half", "halves"]

CONNECTIONS, INSIDE, RELAYS = "internode.connections", "intranode.links", "internode.relays"
CROSSING, OWN_FIRST, SWITCH = "internode.crossing", "internode.own_before_relayed", "switch"
STRANGERS = "relays"

#: What an edit counts: naming one more pair or rank is the smallest change, giving up a clause the largest.
_ADD, _SET, _REMOVE_ENTRY, _REMOVE_CLAUSE = 1, 1, 2, 4


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """A change of one clause.

    Parameters
    ----------
    clause : str
        The field of a sketch.
    verb : {"add", "allow", "remove entry", "remove", "set"}
    items : tuple of tuples of int
        What is added or removed: (src, dst) pairs, (sender, start) pairs, (sender,) or (link,).
    cost : int
        How much it counts as a change.
    """

    clause: str
    verb: str
    items: tuple[tuple[int, ...], ...]
    cost: int


@dataclass(frozen=True, slots=True)
class Half:
    """A spreading problem that a problem is made of; a reduction runs backwards over reversed links."""

    problem: Problem
    reducing: bool


def halves(problem: Problem) -> tuple[Half, ...]:
    """The spreading problems that a problem is made of: itself, or its reduction and what follows it."""
    collective = problem.collective
    if not collective.combining or collective.derivations:
        return (Half(problem, False),)
    reduction = Half(reduction_half(problem), True)
    if all(set(chunk.destinations) == {chunk.root} for chunk in collective.chunks):
        return (reduction,)
    return reduction, Half(spreading_half(problem), False)


class Barriers:
    """What the clauses of a problem keep off which link.

    Parameters
    ----------
    problem : Problem
        Its clauses, on links as they are (not reversed).
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.clauses = problem.clauses
        self._ends = [tuple((s, d) for s in link.srcs for d in link.dsts) for link in problem.topology.links]
        self._crossing: dict[bool, Problem] = {}

    def blocking(self, half: Half, link: int, chunk: int) -> frozenset[str]:
        """The clauses that keep a chunk off a link; a sender's relays count as a clause of their own."""
        found = set()
        if self._forbidden(link):
            found.add(self._field(link))
        found.update(f"{RELAYS}.{sender}" if self.is_local else RELAYS for sender in self._unwilling(
            half, link, chunk))  # fmt: skip
        if self._crosses(half, link, chunk):
            found.add(CROSSING)
        if self._is_strange(half, link, chunk):
            found.add(STRANGERS)
        return frozenset(found)

    def openings(self, half: Half, link: int, chunk: int) -> list[frozenset[Edit]]:
        """Sets of edits, each of which lets a chunk on a link; one empty set where it may go already."""
        barriers = []
        if self._forbidden(link):
            barriers.append(self._link_edits(link))
        for sender in self._unwilling(half, link, chunk):
            barriers.append(self._relay_edits(half, link, chunk, sender))
        if self._crosses(half, link, chunk):
            barriers.append([frozenset([Edit(CROSSING, "set", (), _SET)])])
        if self._is_strange(half, link, chunk):
            barriers.append([frozenset([Edit(STRANGERS, "remove", (), _REMOVE_CLAUSE)])])
        return list(dict.fromkeys(frozenset().union(*choice) for choice in product(*barriers)))

    def without(self, clauses: Collection[str]) -> Problem:
        """The problem without some fields of its sketch."""
        kept, topology = self.clauses, self.problem.topology
        if kept.links_allowed is not None:
            freed = {e for e in range(len(topology.links)) if self._field(e) in clauses}
            allowed = kept.links_allowed | freed
            every = len(allowed) == len(topology.links)
            kept = replace(kept, links_allowed=None if every else frozenset(allowed))
        if RELAYS in clauses:
            kept = replace(kept, carries_from={}, carries_to={})
        if CROSSING in clauses:
            kept = replace(kept, direct_crossing=False)
        if OWN_FIRST in clauses:
            kept = replace(kept, own_first=frozenset())
        if STRANGERS in clauses:
            kept = replace(kept, relays=None)
        return replace(self.problem, clauses=kept)

    def loosened(self, edits: Collection[Edit]) -> Problem:
        """The problem after some edits."""
        topology, chosen = self.problem.topology, set(edits)
        allowed = {
            e
            for e in range(len(topology.links))
            if not self._forbidden(e) or any(option <= chosen for option in self._link_edits(e))
        }
        relays = {sender: set(starts) for sender, starts in self._relays.items()}
        for edit in chosen:
            for item in edit.items if edit.clause == RELAYS else ():
                if edit.verb == "add":
                    relays[item[0]].add(item[1])
                elif edit.verb == "remove entry":
                    relays.pop(item[0], None)
        carries_from, carries_to = dict(self.clauses.carries_from), dict(self.clauses.carries_to)
        if self.is_local:
            carries_from, carries_to = self._carries(relays, allowed)
        elif any(edit.clause == RELAYS for edit in chosen):
            carries_from, carries_to = {}, {}
        return self.problem.with_clauses(
            links_allowed=None if len(allowed) == len(topology.links) else frozenset(allowed),
            carries_from=carries_from,
            carries_to=carries_to,
            direct_crossing=self.clauses.direct_crossing and not any(e.clause == CROSSING for e in chosen),
            own_first=self._own_first(chosen, allowed),
            relays=None if any(e.clause == STRANGERS for e in chosen) else self.clauses.relays,
        )

    @cached_property
    def is_local(self) -> bool:
        """Whether the clauses can be told in local ranks: alike in every node, as a sketch's are."""
        clauses = self.clauses
        if set(clauses.carries_from) != set(clauses.carries_to):
            return False
        twins = {(link.srcs, link.dsts) for e, link in enumerate(self.problem.topology.links)
                 if not self._forbidden(e)}  # fmt: skip
        for e, link in enumerate(self.problem.topology.links):
            open_pairs = self._open[self._field_of_ends(e)]
            if self._forbidden(e) and (link.srcs, link.dsts) not in twins and self._named(e) <= open_pairs:
                return False
        return self._carries(self._relays, self.problem.links_allowed) == (
            dict(clauses.carries_from),
            dict(clauses.carries_to),
        )

    @cached_property
    def allowed_pairs(self) -> dict[str, list[tuple[int, int]]]:
        """The (src, dst) local ranks that may send, of connections and inside nodes."""
        return {field: sorted(self._open[field]) for field in (CONNECTIONS, INSIDE)}

    def carried_by(self, sender: int) -> list[int]:
        """The local ranks whose chunks a local rank carries off its node."""
        return sorted(self._relays.get(sender, ()))

    def _forbidden(self, link: int) -> bool:
        return self.clauses.links_allowed is not None and link not in self.clauses.links_allowed

    def _field_of_ends(self, link: int) -> str:
        return CONNECTIONS if self.problem.topology.is_internode(link) else INSIDE

    def _field(self, link: int) -> str:
        """The field that a link is forbidden by: one beside an allowed link is a plane too many."""
        ends = self.problem.topology.links[link]
        return SWITCH if (ends.srcs, ends.dsts) in self._allowed_ends else self._field_of_ends(link)

    @cached_property
    def _allowed_ends(self) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
        links = self.problem.topology.links
        return {(links[e].srcs, links[e].dsts) for e in self.problem.links_allowed}

    def _named(self, link: int) -> set[tuple[int, int]]:
        """The pairs of local ranks that a link joins."""
        local = self.problem.topology.local_rank
        return {(local[s], local[d]) for s, d in self._ends[link]}

    @cached_property
    def _open(self) -> dict[str, set[tuple[int, int]]]:
        """The pairs of local ranks that some link may be used between."""
        pairs: dict[str, set[tuple[int, int]]] = defaultdict(set)
        for e in self.problem.links_allowed:
            pairs[self._field_of_ends(e)] |= self._named(e)
        return pairs

    def _link_edits(self, link: int) -> list[frozenset[Edit]]:
        """Edits that allow a forbidden link."""
        field = self._field(link)
        if field == SWITCH or not self.is_local:
            return [frozenset([Edit(field, "allow", ((link,),), _ADD)])]
        missing = self._named(link) - self._open[field]
        added = frozenset(self._orbit_edit(field, "add", pair, _ADD) for pair in missing)
        return [added, frozenset([Edit(field, "remove", (), _REMOVE_CLAUSE)])]

    @cached_property
    def _relays(self) -> dict[int, set[int]]:
        """Local ranks whose chunks every local sender carries, of senders that have an entry."""
        local = self.problem.topology.local_rank
        relays: dict[int, set[int]] = {}
        for e, admitted in self.clauses.carries_from.items():
            for src in self.problem.topology.links[e].srcs:
                relays.setdefault(local[src], set()).update(local[r] for r in admitted)
        return relays

    def _carries(
        self, relays: dict[int, set[int]], allowed: Iterable[int]
    ) -> tuple[dict[int, frozenset[int]], dict[int, frozenset[int]]]:
        """The clauses that relays become on the links that are allowed, as `Sketch.apply` has them."""
        topology = self.problem.topology
        carries_from, carries_to = {}, {}
        for e in allowed:
            link = topology.links[e]
            senders = [topology.local_rank[src] for src in link.srcs]
            if topology.is_internode(e) and all(sender in relays for sender in senders):
                admitted = set().union(*(relays[sender] for sender in senders))
                carries_from[e] = self._in_nodes_of(link.srcs, admitted)
                carries_to[e] = self._in_nodes_of(link.dsts, admitted)
        return carries_from, carries_to

    def _in_nodes_of(self, ranks: Sequence[int], locals_: Collection[int]) -> frozenset[int]:
        topology = self.problem.topology
        nodes = {topology.node_of_rank[rank] for rank in ranks}
        return frozenset(
            r for n in nodes for r in topology.ranks_of_node[n] if topology.local_rank[r] in locals_
        )

    def _unwilling(self, half: Half, link: int, chunk: int) -> list[int]:
        """Local ranks whose relays keep a chunk off their link; [-1] where relays are no one's in all."""
        topology = self.problem.topology
        starts = self._starts(half, chunk)
        if not self.is_local:
            admitted = half.problem.clauses.carries_from.get(link)
            return [-1] if admitted is not None and admitted.isdisjoint(starts) else []
        senders = list(dict.fromkeys(topology.local_rank[s] for s in topology.links[link].srcs))
        if not topology.is_internode(link) or any(sender not in self._relays for sender in senders):
            return []
        ends = topology.links[link].dsts if half.reducing else topology.links[link].srcs
        carried = set().union(*(self._relays[sender] for sender in senders))
        return senders[:1] if self._in_nodes_of(ends, carried).isdisjoint(starts) else []

    def _relay_edits(self, half: Half, link: int, chunk: int, sender: int) -> list[frozenset[Edit]]:
        """Edits that let a sender carry a chunk."""
        if not self.is_local:
            return [frozenset([Edit(RELAYS, "remove", (), _REMOVE_CLAUSE)])]
        topology = self.problem.topology
        ends = topology.links[link].dsts if half.reducing else topology.links[link].srcs
        nodes = {topology.node_of_rank[r] for r in ends}
        near = [r for r in self._starts(half, chunk) if topology.node_of_rank[r] in nodes]
        starts = sorted({topology.local_rank[r] for r in near})
        added = [frozenset([self._orbit_edit(RELAYS, "add", (sender, start), _ADD)]) for start in starts]
        return [*added, frozenset([self._orbit_edit(RELAYS, "remove entry", (sender,), _REMOVE_ENTRY)])]

    def _starts(self, half: Half, chunk: int) -> tuple[int, ...]:
        """The ranks that clauses on what a link carries look at."""
        collective = half.problem.collective
        data = collective.chunks[chunk]
        if collective.combining and data.root is not None:
            return (data.root,)
        return data.origins or tuple(d.rank for d in collective.derivations if d.chunk == chunk)

    def _crosses(self, half: Half, link: int, chunk: int) -> bool:
        """Whether the direct crossing keeps a chunk off a link."""
        if not self.clauses.direct_crossing:
            return False
        if half.reducing not in self._crossing:
            self._crossing[half.reducing] = replace(half.problem, clauses=Clauses(direct_crossing=True))
        return not self._crossing[half.reducing].may_carry(link, chunk)

    def _is_strange(self, half: Half, link: int, chunk: int) -> bool:
        """Whether an end of a link is not in the chunk's process group, and may not relay."""
        holders, ends = half.problem.holders(chunk), self.problem.topology.links[link]
        return holders is not None and not holders.issuperset((*ends.srcs, *ends.dsts))

    def _own_first(self, chosen: Collection[Edit], allowed: Collection[int]) -> frozenset[int]:
        """Where own chunks go first: with a sketch, on every link between nodes that is allowed."""
        if not self.clauses.own_first or any(edit.clause == OWN_FIRST for edit in chosen):
            return frozenset()
        across = self.problem.topology.internode_links
        if self.clauses.own_first == {e for e in across if not self._forbidden(e)}:
            return frozenset(e for e in across if e in allowed)
        return self.clauses.own_first

    def _orbit_edit(self, clause: str, verb: str, item: tuple[int, ...], cost: int) -> Edit:
        """The edit of an item and of all that the sketch's symmetry maps it to."""
        items = self._orbit(clause == CONNECTIONS, item)
        return Edit(clause, verb, items, cost * len(items))

    def _orbit(self, across: bool, item: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        topology, found, pending = self.problem.topology, {item}, [item]
        while pending and self.clauses.symmetry:
            for ranks in self._ranks_of(pending.pop(), across):
                for generator in self.clauses.symmetry:
                    image = tuple(topology.local_rank[generator[r]] for r in ranks)
                    if image not in found:
                        found.add(image)
                        pending.append(image)
        return tuple(sorted(found))

    def _ranks_of(self, item: tuple[int, ...], across: bool) -> Iterator[tuple[int, ...]]:
        """The ranks that local ranks stand for: of two nodes for a connection, else of one."""
        nodes = self.problem.topology.ranks_of_node
        for here, ranks in enumerate(nodes):
            if across:
                src, dst = item
                yield from ((ranks[src], far[dst]) for there, far in enumerate(nodes) if there != here)
            else:
                yield tuple(ranks[local] for local in item)

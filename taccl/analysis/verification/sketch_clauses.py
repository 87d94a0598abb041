"""What a sketch says of chunks on links, checked of many sends at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.analysis.verification.places import pairs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from taccl.problem import Problem

__all__ = ["Fault", "SketchClauses"]


class Fault(NamedTuple):
    """What is wrong: a kind of `KINDS`, and a sentence."""

    kind: str
    text: str


class SketchClauses:
    """What the sketch says of chunks on links, for sends in order of start; `any`: whether it says anything.

    A send that brings a sum towards its root obeys what is said of reductions, and any other what is said of
    chunks that spread.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, clauses, collective = problem, problem.clauses, problem.collective
        topology = problem.topology
        num_links, num_ranks = len(topology.links), topology.num_ranks
        self.any = bool(
            clauses.carries_from or clauses.carries_to or clauses.direct_crossing or clauses.own_first
        )
        self._src = np.array([e.src for e in topology.links], dtype=np.int64)
        self._dst = np.array([e.dst for e in topology.links], dtype=np.int64)
        self._node = np.array(topology.node_of_rank, dtype=np.int64)
        self._allowed = _marked(problem.links_allowed, num_links)
        self._is_own_first = _marked(clauses.own_first, num_links)
        #: By link: until when own chunks keep relayed ones waiting, and when the first relayed one starts.
        self._own_until = np.full(num_links, -1, np.int64)
        self._relayed_from = np.full(num_links, np.iinfo(np.int64).max)
        #: And of sums: from when chunks whose root receives leave, and when the last relayed one ends.
        self._own_from, self._relayed_until = self._relayed_from.copy(), self._own_until.copy()
        if self.any:
            #: The root of every chunk that is reduced, else -1.
            roots = (data.root if collective.combining else None for data in collective.chunks)
            self._root = np.array([-1 if root is None else root for root in roots], np.int64)
            #: Where chunks spread from, as sets of ranks, and the number of every chunk's: roots come first.
            origins = collective.origin_sets
            alone = [(rank,) for rank in range(num_ranks)]
            self._starts = [*alone, *origins.sets]
            self._start = np.where(self._root >= 0, self._root, num_ranks + origins.of_chunk)
            self._from = _admitted(clauses.carries_from, num_links, self._starts)
            self._to = _admitted(clauses.carries_to, num_links, [*alone, ()])  # no root is the last of them
        if clauses.direct_crossing:
            self._start_nodes, self._end_nodes = (
                self._at_node(sets) for sets in (self._starts, collective.destination_sets.sets)
            )
        if clauses.own_first:
            self._starts_at = np.zeros((len(self._starts), num_ranks), bool)
            self._starts_at[pairs(self._starts)] = True
        if clauses.relays is not None:
            groups = collective.process_groups
            self._may_hold = np.zeros((len(groups), num_ranks), bool)
            self._may_hold[:, sorted(clauses.relays)] = True
            for g, group in enumerate(groups):
                self._may_hold[g, list(group.ranks)] = True
            self._group = np.array(collective.group_of_chunk, dtype=np.int64)

    def _at_node(self, sets: Sequence[tuple[int, ...]]) -> NDArray[np.bool_]:
        """Whether each of some sets of ranks has one at each node."""
        marks = np.zeros((len(sets), int(self._node.max()) + 1), bool)
        number, rank = pairs(sets)
        marks[number, self._node[rank]] = True
        return marks

    def broken(
        self,
        chunk: NDArray[np.int64],
        link: NDArray[np.int64],
        start: NDArray[np.int64],
        end: NDArray[np.int64],
        first: int,
        reducing: NDArray[np.bool_],
    ) -> Fault | None:
        """The first clause that one of some sends breaks; `reducing`: which gather sums, if any do."""
        clauses = self._problem.clauses
        src, dst = self._src[link], self._dst[link]
        bad = ~self._allowed[link]
        if bad.any():
            return self._fault("link-not-allowed", "the link may not be used", bad, chunk, link, first)
        if clauses.relays is not None:
            group = self._group[chunk]
            bad = ~(self._may_hold[group, src] & self._may_hold[group, dst])
            if bad.any():
                return self._fault("link-not-allowed", "an end of it may not relay", bad, chunk, link, first)
        if not self.any:
            return None
        if not len(reducing):
            reducing = np.zeros(len(link), bool)
        if clauses.direct_crossing:
            bad = (self._node[src] != self._node[dst]) & ~self._leads_straight(chunk, src, dst, reducing)
            if bad.any():
                text = "it does not lead straight from where the chunk starts to where it is needed"
                return self._fault("direct-crossing", text, bad, chunk, link, first)
        for kind, (of_link, admitted), of_chunk, sends in (
            ("carries-from", self._from, self._start, ~reducing),
            ("carries-to", self._to, self._root, reducing),
        ):
            bad = sends & ~admitted[of_link[link], of_chunk[chunk]]
            if bad.any():
                text = "the link does not carry chunks that start there"
                if kind == "carries-to":
                    text = "the link does not carry sums to that root"
                return self._fault(kind, text, bad, chunk, link, first)
        on = self._is_own_first[link]
        if on.any():
            self._note_order(chunk[on], link[on], start[on], end[on], reducing[on])
        return None

    def _leads_straight(
        self,
        chunk: NDArray[np.int64],
        src: NDArray[np.int64],
        dst: NDArray[np.int64],
        reducing: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Whether sends lead from a node where their chunk starts to one that needs it, or its sum."""
        collective, leaves, enters = self._problem.collective, self._node[src], self._node[dst]
        ends = self._end_nodes[collective.destination_sets.of_chunk[chunk], enters]
        spreads = self._start_nodes[self._start[chunk], leaves] & ends
        if not reducing.any():
            return spreads
        root = self._root[chunk]
        gathers = self._start_nodes[
            self._problem.topology.num_ranks + collective.origin_sets.of_chunk[chunk], leaves
        ]
        gathers &= np.where(root >= 0, self._node[root] == enters, ends)
        return np.where(reducing, gathers, spreads)

    def _note_order(
        self,
        chunk: NDArray[np.int64],
        link: NDArray[np.int64],
        start: NDArray[np.int64],
        end: NDArray[np.int64],
        reducing: NDArray[np.bool_],
    ) -> None:
        """Keep when own and relayed chunks pass links on which own ones go first, and of sums last."""
        own = np.where(
            reducing,
            self._root[chunk] == self._dst[link],
            self._starts_at[self._start[chunk], self._src[link]],
        )
        for times, at, of, which in (
            (self._own_until, np.maximum.at, end, own & ~reducing),
            (self._relayed_from, np.minimum.at, start, ~own & ~reducing),
            (self._own_from, np.minimum.at, start, own & reducing),
            (self._relayed_until, np.maximum.at, end, ~own & reducing),
        ):
            at(times, link[which], of[which])

    def own_late(self) -> Fault | None:
        """A relayed chunk that did not keep to its side of a link's own chunks, once all sends are seen."""
        for bad, text in (
            (self._relayed_from < self._own_until, "starts before the link's own chunks are through"),
            (self._relayed_until > self._own_from, "is summed after a chunk whose root receives has left"),
        ):
            if bad.any():
                ends = self._problem.topology.links[int(np.argmax(bad))]
                return Fault("own-first", f"over link {ends} a relayed chunk {text}")
        return None

    def _fault(
        self,
        kind: str,
        text: str,
        bad: NDArray[np.bool_],
        chunk: NDArray[np.int64],
        link: NDArray[np.int64],
        first: int,
    ) -> Fault:
        at = int(np.argmax(bad))
        ends = self._problem.topology.links[int(link[at])]
        return Fault(kind, f"transfer {first + at}, chunk {chunk[at]} over link {ends}: {text}")


def _marked(links: Iterable[int], num_links: int) -> NDArray[np.bool_]:
    marks = np.zeros(num_links, bool)
    marks[list(links)] = True
    return marks


def _admitted(
    said: Mapping[int, frozenset[int]], num_links: int, sets: Sequence[tuple[int, ...]]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A row for every link, and per row whether each of some sets has one of the ranks that are admitted."""
    kinds = {ranks: number for number, ranks in enumerate(dict.fromkeys(said.values()), start=1)}
    of_link = np.zeros(num_links, np.int64)
    table = np.ones((len(kinds) + 1, len(sets)), bool)
    for link, ranks in said.items():
        of_link[link] = kinds[ranks]
    for ranks, number in kinds.items():
        table[number] = [not ranks.isdisjoint(each) for each in sets]
    return of_link, table

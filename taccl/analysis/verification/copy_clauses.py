"""What a sketch says of chunks on links, checked of many sends that copy at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.analysis.verification.places import pairs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from taccl.problem import Problem

__all__ = ["CopyClauses", "Fault"]


class Fault(NamedTuple):
    """What is wrong: a kind of `KINDS`, and a sentence."""

    kind: str
    text: str


class CopyClauses:
    """What the sketch says of chunks on links, for sends that copy."""

    def __init__(self, problem: Problem) -> None:
        self._problem, clauses = problem, problem.clauses
        topology, chunks = problem.topology, problem.collective.chunks
        self._src = np.array([e.src for e in topology.links], dtype=np.int64)
        self._dst = np.array([e.dst for e in topology.links], dtype=np.int64)
        self._node = np.array(topology.node_of_rank, dtype=np.int64)
        self._is_own_first = _marked(clauses.own_first, len(topology.links))
        self._is_guarded = _marked(clauses.carries_from, len(topology.links))
        #: By link: until when own chunks keep relayed ones waiting, and when the first relayed one starts.
        self._own_until = np.full(len(topology.links), -1, np.int64)
        self._relayed_from = np.full(len(topology.links), np.iinfo(np.int64).max)
        if clauses.own_first:
            self._starts = np.zeros((len(chunks), topology.num_ranks), bool)
            self._starts[pairs([chunk.origins for chunk in chunks])] = True
        if clauses.direct_crossing:
            num_nodes = int(self._node.max()) + 1
            self._from, self._to = np.zeros((2, len(chunks), num_nodes), bool)
            for marks, ends in (
                (self._from, [chunk.origins for chunk in chunks]),
                (self._to, [chunk.destinations for chunk in chunks]),
            ):
                of_chunk, rank = pairs(ends)
                marks[of_chunk, self._node[rank]] = True
        if clauses.relays is not None:
            groups = problem.collective.process_groups
            self._may_hold = np.zeros((len(groups), topology.num_ranks), bool)
            self._may_hold[:, sorted(clauses.relays)] = True
            for g, group in enumerate(groups):
                self._may_hold[g, list(group.ranks)] = True
            self._group = np.array(problem.collective.group_of_chunk, dtype=np.int64)

    def broken(
        self,
        chunk: NDArray[np.int64],
        link: NDArray[np.int64],
        start: NDArray[np.int64],
        end: NDArray[np.int64],
        first: int,
    ) -> Fault | None:
        """The first clause that one of some sends breaks."""
        clauses = self._problem.clauses
        src, dst = self._src[link], self._dst[link]
        if clauses.relays is not None:
            group = self._group[chunk]
            bad = ~(self._may_hold[group, src] & self._may_hold[group, dst])
            if bad.any():
                return self._fault("link-not-allowed", "an end of it may not relay", bad, chunk, link, first)
        if clauses.direct_crossing:
            leaves, enters = self._node[src], self._node[dst]
            bad = (leaves != enters) & ~(self._from[chunk, leaves] & self._to[chunk, enters])
            if bad.any():
                text = "it does not lead straight from where the chunk starts to where it is needed"
                return self._fault("direct-crossing", text, bad, chunk, link, first)
        guarded = np.flatnonzero(self._is_guarded[link])
        for i in guarded.tolist():
            e, c = int(link[i]), int(chunk[i])
            if clauses.carries_from[e].isdisjoint(self._problem.collective.chunks[c].origins):
                bad = np.arange(len(link)) == i
                text = f"it carries from ranks {sorted(clauses.carries_from[e])}"
                return self._fault("carries-from", text, bad, chunk, link, first)
        on = np.flatnonzero(self._is_own_first[link])
        if len(on):
            own = self._starts[chunk[on], src[on]]
            np.maximum.at(self._own_until, link[on[own]], end[on[own]])
            np.minimum.at(self._relayed_from, link[on[~own]], start[on[~own]])
        return None

    def own_late(self) -> Fault | None:
        """A relayed chunk that did not wait for a link's own chunks, once all sends are seen."""
        bad = self._relayed_from < self._own_until
        if not bad.any():
            return None
        ends = self._problem.topology.links[int(np.argmax(bad))]
        text = f"over link {ends} a relayed chunk starts before the link's own chunks are through"
        return Fault("own-first", text)

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

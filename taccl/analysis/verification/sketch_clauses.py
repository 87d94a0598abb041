"""Vectorised checks of the sketch's clauses on chunks over links."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.verification.arrival_table import pairs
from taccl.costs import link_ends

if TYPE_CHECKING:
    from taccl.problem import Problem

    _Check: TypeAlias = tuple[str, Callable[["SendColumns"], NDArray[np.bool_]]]


class BadSend(Exception):
    """First fault found, which ends the pass over the sends: a kind of `KINDS`, and a sentence."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class SendColumns(NamedTuple):
    """Columns of a block of sends in order of start; `reducing` marks sends that gather sums."""

    chunk: NDArray[np.int64]
    link: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    reducing: NDArray[np.bool_]


class SketchClauses:
    """Checks of the sketch's clauses on chunks over links, for sends in order of start.

    A send that brings a sum towards its root must obey the clauses on reductions; any other send must obey
    those on chunks that spread. `tells_sums_apart` is True if any clause depends on this distinction.
    """

    def __init__(self, problem: Problem) -> None:
        said = problem.clauses.said("link", "chunk", "group")
        facts = _Facts(problem)
        self.tells_sums_apart = bool(problem.clauses.said("chunk", "order", "path"))
        self._links = problem.topology.links
        #: (kind of violation, message, predicate that marks the sends at fault), for each clause.
        self._checks = [
            (each.violation, *_CHECKS[each.field](facts, getattr(problem.clauses, each.field)))
            for each in said
        ]
        self._order = _Order(facts, problem.clauses.own_first) if problem.clauses.own_first else None

    def check(self, sends: SendColumns, first: int) -> None:
        """Raise `BadSend` for the first clause that a send breaks; `first` is the index of the first send."""
        for kind, text, breaks in self._checks:
            bad = breaks(sends)
            if bad.any():
                at = int(np.argmax(bad))
                ends = self._links[int(sends.link[at])]
                raise BadSend(
                    kind, f"transfer {first + at}, chunk {sends.chunk[at]} over link {ends}: {text}"
                )
        if self._order is not None:
            self._order.note(sends)

    def check_order(self) -> None:
        """Raise `BadSend` if a relayed chunk violates `own_first`; call after the last block of sends."""
        if self._order is not None:
            self._order.check()


class _Facts:
    """A problem as arrays."""

    def __init__(self, problem: Problem) -> None:
        topology = problem.topology
        self.problem, self.collective = problem, problem.collective
        self.num_links, self.num_ranks = len(topology.links), topology.num_ranks
        self.src, self.dst = link_ends(topology)
        self.node = np.array(topology.node_of_rank, dtype=np.int64)

    @cached_property
    def root(self) -> NDArray[np.int64]:
        """(num_chunks,) Root of every chunk that is reduced; -1 for other chunks."""
        roots = (data.root if self.collective.combining else None for data in self.collective.chunks)
        return np.array([-1 if root is None else root for root in roots], np.int64)

    @cached_property
    def start_sets(self) -> list[tuple[int, ...]]:
        """Sets of ranks from which chunks spread: first one set per rank (as root), then the origins."""
        return [*((rank,) for rank in range(self.num_ranks)), *self.collective.origin_sets.sets]

    @cached_property
    def start(self) -> NDArray[np.int64]:
        """(num_chunks,) Index into `start_sets` of every chunk."""
        origins = self.num_ranks + self.collective.origin_sets.of_chunk
        return np.where(self.root >= 0, self.root, origins)

    def at_node(self, sets: Sequence[tuple[int, ...]]) -> NDArray[np.bool_]:
        """(num_sets, num_nodes) bool: True if the set has a rank at the node."""
        marks = np.zeros((len(sets), int(self.node.max()) + 1), bool)
        number, rank = pairs(sets)
        marks[number, self.node[rank]] = True
        return marks

    def marked(self, links: Iterable[int]) -> NDArray[np.bool_]:
        """(num_links,) bool: True for the given links."""
        marks = np.zeros(self.num_links, bool)
        marks[list(links)] = True
        return marks

    def admitted(
        self, said: Mapping[int, frozenset[int]], sets: Sequence[tuple[int, ...]]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Table row of every link, and a (num_rows, num_sets) table of admitted sets.

        An entry is True if the set contains a rank that the row admits. Row 0 admits every set.
        """
        kinds = {ranks: number for number, ranks in enumerate(dict.fromkeys(said.values()), start=1)}
        of_link = np.zeros(self.num_links, np.int64)
        table = np.ones((len(kinds) + 1, len(sets)), bool)
        for link, ranks in said.items():
            of_link[link] = kinds[ranks]
        for ranks, number in kinds.items():
            table[number] = [not ranks.isdisjoint(each) for each in sets]
        return of_link, table


def _links_allowed(facts: _Facts, links: Collection[int]) -> _Check:
    allowed = facts.marked(links)
    return "the link may not be used", lambda sends: ~allowed[sends.link]


def _relays(facts: _Facts, relays: Collection[int]) -> _Check:
    groups = facts.collective.process_groups
    may_hold = np.zeros((len(groups), facts.num_ranks), bool)
    may_hold[:, sorted(relays)] = True
    for g, group in enumerate(groups):
        may_hold[g, list(group.ranks)] = True
    group_of = np.array(facts.collective.group_of_chunk, dtype=np.int64)

    def breaks(sends: SendColumns) -> NDArray[np.bool_]:
        mine = may_hold[group_of[sends.chunk]]
        at = np.arange(len(mine))
        return ~(mine[at, facts.src[sends.link]] & mine[at, facts.dst[sends.link]])

    return "an end of it may not relay", breaks


def _carries_from(facts: _Facts, said: Mapping[int, frozenset[int]]) -> _Check:
    of_link, admitted = facts.admitted(said, facts.start_sets)

    def breaks(sends: SendColumns) -> NDArray[np.bool_]:
        return ~sends.reducing & ~admitted[of_link[sends.link], facts.start[sends.chunk]]

    return "the link does not carry chunks that start there", breaks


def _carries_to(facts: _Facts, said: Mapping[int, frozenset[int]]) -> _Check:
    # The last set is empty: it stands for chunks without a root (index -1).
    of_link, admitted = facts.admitted(said, [*((rank,) for rank in range(facts.num_ranks)), ()])

    def breaks(sends: SendColumns) -> NDArray[np.bool_]:
        return sends.reducing & ~admitted[of_link[sends.link], facts.root[sends.chunk]]

    return "the link does not carry sums to that root", breaks


def _direct_crossing(facts: _Facts, asked: bool) -> _Check:
    collective = facts.collective
    starts, ends = facts.at_node(facts.start_sets), facts.at_node(collective.destination_sets.sets)

    def breaks(sends: SendColumns) -> NDArray[np.bool_]:
        chunk, reducing = sends.chunk, sends.reducing
        leaves, enters = facts.node[facts.src[sends.link]], facts.node[facts.dst[sends.link]]
        wanted = ends[collective.destination_sets.of_chunk[chunk], enters]
        straight = starts[facts.start[chunk], leaves] & wanted
        if reducing.any():
            root = facts.root[chunk]
            gathers = starts[facts.num_ranks + collective.origin_sets.of_chunk[chunk], leaves]
            gathers &= np.where(root >= 0, facts.node[root] == enters, wanted)
            straight = np.where(reducing, gathers, straight)
        crosses: NDArray[np.bool_] = leaves != enters
        return crosses & ~straight

    return "it does not lead straight from where the chunk starts to where it is needed", breaks


#: {clause: function that returns the message and the predicate marking sends at fault}
_CHECKS: dict[str, Callable[..., _Check]] = {
    "links_allowed": _links_allowed,
    "relays": _relays,
    "direct_crossing": _direct_crossing,
    "carries_from": _carries_from,
    "carries_to": _carries_to,
}


class _Order:
    """Times of own and relayed chunks on links in `own_first`: own chunks pass first, or last for sums."""

    def __init__(self, facts: _Facts, links: Collection[int]) -> None:
        self._facts = facts
        self._is_own_first = facts.marked(links)
        self._starts_at = np.zeros((len(facts.start_sets), facts.num_ranks), bool)
        self._starts_at[pairs(facts.start_sets)] = True
        #: Per link: latest end of an own chunk, and earliest start of a relayed one.
        self._own_until = np.full(facts.num_links, -1, np.int64)
        self._relayed_from = np.full(facts.num_links, np.iinfo(np.int64).max)
        #: The same for sums: earliest start of a chunk whose root receives, and latest end of a relayed one.
        self._own_from, self._relayed_until = self._relayed_from.copy(), self._own_until.copy()

    def note(self, sends: SendColumns) -> None:
        """Record the times of a block of sends."""
        on = self._is_own_first[sends.link]
        if not on.any():
            return
        facts, (chunk, link, start, end, reducing) = self._facts, (column[on] for column in sends)
        own = np.where(
            reducing,
            facts.root[chunk] == facts.dst[link],
            self._starts_at[facts.start[chunk], facts.src[link]],
        )
        for times, at, of, which in (
            (self._own_until, np.maximum.at, end, own & ~reducing),
            (self._relayed_from, np.minimum.at, start, ~own & ~reducing),
            (self._own_from, np.minimum.at, start, own & reducing),
            (self._relayed_until, np.maximum.at, end, ~own & reducing),
        ):
            at(times, link[which], of[which])

    def check(self) -> None:
        """Raise `BadSend` if a relayed chunk is on the wrong side of a link's own chunks."""
        for bad, text in (
            (self._relayed_from < self._own_until, "starts before the link's own chunks are through"),
            (self._relayed_until > self._own_from, "is summed after a chunk whose root receives has left"),
        ):
            if bad.any():
                ends = self._facts.problem.topology.links[int(np.argmax(bad))]
                raise BadSend("own-first", f"over link {ends} a relayed chunk {text}")

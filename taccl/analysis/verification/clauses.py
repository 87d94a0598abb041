"""Checks of a schedule against the clauses of its sketch, and against release and due dates.

The docstring of `Clauses` defines each clause. Some clauses distinguish chunks on their way to the root from
chunks on their way from it. The replay decides this (`Replay.reducing`, `NamedSums.reducing`); the flags of
transfers are ignored.

Data that a rank starts with must neither be sent nor be added to before its release date. Each chunk with a
due date must be complete at its rank by then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import places_of
from taccl.analysis.verification.columns import BLOCK, Columns, pairs, roots_of
from taccl.analysis.verification.data import arrivals, by_chunk
from taccl.analysis.verification.findings import Findings
from taccl.analysis.verification.loops import count_links, fitted
from taccl.analysis.verification.named_sums import NamedSums

#: The check of a clause consists of two functions.
#: `_Breaks`: takes a block of sends; returns True for each send that breaks the clause.
#: `_Says`: takes (chunk, link, True if the chunk travels to its root); returns a message on such a send.
_Breaks: TypeAlias = "Callable[[Sends], NDArray[np.bool_]]"
_Says: TypeAlias = "Callable[[int, int, bool], str]"


class Sends(NamedTuple):
    """Chunk and link of each send of a block; `reducing` is True for sends on the way to the chunk's root."""

    chunk: NDArray[Any]
    link: NDArray[Any]
    reducing: NDArray[np.bool_]


def check_clauses(columns: Columns, findings: Findings, reducing: NDArray[np.bool_]) -> None:
    """Check the clauses that concern one chunk over one link.

    - `reducing`, (num_transfers,) bool: True for transfers on the way to their root; empty if all are False.
    """
    said = columns.clauses.said("link", "chunk", "group")
    facts = _Facts(columns) if said else None
    checks = [(each, *_CHECKS[each.field](facts, getattr(columns.clauses, each.field))) for each in said]
    for first in range(0, len(columns), BLOCK) if said else ():
        rows = slice(first, first + BLOCK)
        chunk, link = columns.chunk[rows], columns.link[rows]
        sends = Sends(chunk, link, reducing[rows] if len(reducing) else np.zeros(len(chunk), bool))
        found = [breaks(sends) for _, breaks, _ in checks]
        for at in np.flatnonzero(np.logical_or.reduce(found)).tolist():
            for (clause, _, says), broken in zip(checks, found, strict=True):
                if broken[at]:
                    text = says(int(chunk[at]), int(link[at]), bool(sends.reducing[at]))
                    findings.report(clause.violation, text, first + at, clause=clause.field)


class _Facts:
    """Problem data as arrays, for the checks of clauses."""

    def __init__(self, columns: Columns) -> None:
        self.columns, self.collective, self.ends = columns, columns.collective, columns.ends
        self.num_links, self.num_ranks = len(columns.topology.links), columns.topology.num_ranks
        self.node = np.array(columns.topology.node_of_rank, dtype=np.int64)
        self.root, self.starts = roots_of(columns.problem), columns.start_sets()

    def starts_at(self, chunk: int) -> tuple[int, ...]:
        """Ranks from which a chunk spreads."""
        return self.starts.sets[int(self.starts.of_chunk[chunk])]

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
        """Table of the data that links may carry, and each link's row in it, as (rows, table).

        The table, (num_rows, num_sets) bool, is True if links of the row may carry data whose start ranks or
        roots are the set. Links that may carry all data have row 0.

        - `said`: {link: start ranks or roots whose data it may carry}; other links may carry all.
        - `sets`: sets of start ranks or roots, of which a link must name one.
        """
        kinds = {ranks: number for number, ranks in enumerate(dict.fromkeys(said.values()), start=1)}
        of_link = np.zeros(self.num_links, np.int64)
        table = np.ones((len(kinds) + 1, len(sets)), bool)
        for link, ranks in said.items():
            of_link[link] = kinds[ranks]
        for ranks, number in kinds.items():
            table[number] = [not ranks.isdisjoint(each) for each in sets]
        return of_link, table


def _links_allowed(facts: _Facts, links: Collection[int]) -> tuple[_Breaks, _Says]:
    allowed = facts.marked(links)
    return lambda sends: ~allowed[sends.link], lambda *_: "the link may not be used"


def _relays(facts: _Facts, relays: Collection[int]) -> tuple[_Breaks, _Says]:
    groups, group_of = facts.collective.process_groups, np.array(facts.collective.group_of_chunk, np.int64)
    may_hold = np.zeros((len(groups), facts.num_ranks), bool)
    may_hold[:, sorted(relays)] = True
    for g, group in enumerate(groups):
        may_hold[g, list(group.ranks)] = True

    def breaks(sends: Sends) -> NDArray[np.bool_]:
        bad = np.zeros(len(sends.chunk), bool)
        for send, rank in (facts.ends.sources(sends.link), facts.ends.destinations(sends.link)):
            bad[send[~may_hold[group_of[sends.chunk[send]], rank]]] = True
        return bad

    def says(chunk: int, link: int, _: bool) -> str:
        ends = facts.columns.topology.links[link]
        strangers = [r for r in {*ends.srcs, *ends.dsts} if not may_hold[group_of[chunk], r]]
        return f"ranks {_list(strangers)} are not in the chunk's process group, and may not relay"

    return breaks, says


def _carries_from(facts: _Facts, said: Mapping[int, frozenset[int]]) -> tuple[_Breaks, _Says]:
    of_link, admitted = facts.admitted(said, facts.starts.sets)

    def says(chunk: int, link: int, _: bool) -> str:
        ranks = sorted(facts.starts_at(chunk))
        return f"the link carries from ranks {sorted(said[link])}; the chunk starts at {ranks}"

    return (
        lambda sends: ~sends.reducing & ~admitted[of_link[sends.link], facts.starts.of_chunk[sends.chunk]],
        says,
    )


def _carries_to(facts: _Facts, said: Mapping[int, frozenset[int]]) -> tuple[_Breaks, _Says]:
    # The last set is empty: it stands for chunks without a root (index -1).
    of_link, admitted = facts.admitted(said, [*((rank,) for rank in range(facts.num_ranks)), ()])

    def says(chunk: int, link: int, _: bool) -> str:
        root = facts.collective.chunks[chunk].root
        return f"the link carries to roots {sorted(said[link])}; the chunk's root is {root}"

    return lambda sends: sends.reducing & ~admitted[of_link[sends.link], facts.root[sends.chunk]], says


def _direct_crossing(facts: _Facts, asked: bool) -> tuple[_Breaks, _Says]:
    collective, node, root = facts.collective, facts.node, facts.root
    links = facts.columns.topology.links
    crosses = facts.marked(
        e for e, each in enumerate(links) if {node[r] for r in each.srcs} != {node[r] for r in each.dsts}
    )
    origin_sets, start_sets, end_sets = collective.origin_sets, facts.starts, collective.destination_sets
    origins, starts, ends = (facts.at_node(each.sets) for each in (origin_sets, start_sets, end_sets))

    def breaks(sends: Sends) -> NDArray[np.bool_]:
        bad = np.zeros(len(sends.chunk), bool)
        at = np.flatnonzero(crosses[sends.link]) if not collective.derivations else np.zeros(0, np.int64)
        # Reductions go from contributing nodes to the root's node, copies from there to nodes that want them.
        send, rank = facts.ends.sources(sends.link[at])
        chunk, reducing = sends.chunk[at[send]], sends.reducing[at[send]]
        contributes = origins[origin_sets.of_chunk[chunk], node[rank]]
        leaves = np.where(reducing, contributes, starts[start_sets.of_chunk[chunk], node[rank]])
        bad[at[send[~leaves]]] = True
        send, rank = facts.ends.destinations(sends.link[at])
        chunk, reducing = sends.chunk[at[send]], sends.reducing[at[send]]
        needs = ends[end_sets.of_chunk[chunk], node[rank]]
        enters = np.where(reducing & (root[chunk] >= 0), node[root[chunk]] == node[rank], needs)
        bad[at[send[~enters]]] = True
        return bad

    def says(chunk: int, link: int, reducing: bool) -> str:
        data, each = collective.chunks[chunk], links[link]
        sources, targets = data.origins if reducing else facts.starts_at(chunk), data.destinations
        if reducing and root[chunk] >= 0:
            targets = (int(root[chunk]),)
        leaves, enters, start, needs = (
            _list({int(node[r]) for r in ranks}) for ranks in (each.srcs, each.dsts, sources, targets)
        )
        return f"crosses from node {leaves} to {enters}; expected from node {start} straight to {needs}"

    return breaks, says


#: {clause: its check}, for clauses that concern one chunk over one link.
_CHECKS: dict[str, Callable[..., tuple[_Breaks, _Says]]] = {
    "links_allowed": _links_allowed,
    "relays": _relays,
    "carries_to": _carries_to,
    "carries_from": _carries_from,
    "direct_crossing": _direct_crossing,
}


def check_order(columns: Columns, findings: Findings, reducing: NDArray[np.bool_]) -> None:
    """Check the clause `own_first`: relayed chunks start at least a latency after the link's own chunks.

    A chunk is a link's own if it starts at the link's source, or was summed there. For reductions, time runs
    backwards: chunks whose root is the link's destination must end last. Each link has two lanes: one for
    copies, and one for reductions, in reversed time.
    """
    if not columns.clauses.own_first:
        return
    facts, ticks = _Facts(columns), columns.ticks
    is_asked = facts.marked(columns.clauses.own_first)
    is_start = np.zeros((len(facts.starts.sets), facts.num_ranks), bool)
    is_start[pairs(facts.starts.sets)] = True
    #: `free_from`: Earliest tick at which relayed chunks may start in each lane (copies or sums of a link).
    #: `due_to`: The link's own chunk that determines this tick; -1 if there is none.
    free_from, due_to = np.full((2, 2 * facts.num_links), [[np.iinfo(np.int64).min], [-1]])

    def lanes() -> Iterator[tuple[NDArray[np.int64], ...]]:
        """Yield columns (transfer, chunk, lane, start, True for a link's own chunk), block by block."""
        for first in range(0, len(columns), BLOCK):
            at = first + np.flatnonzero(is_asked[columns.link[first : first + BLOCK]])
            chunk, link, start, end = columns.read(at)
            back = reducing[at] if len(reducing) else np.zeros(len(at), bool)
            is_own = np.zeros(len(at), bool)
            send, rank = facts.ends.sources(link)
            is_own[send[~back[send] & is_start[facts.starts.of_chunk[chunk[send]], rank]]] = True
            send, rank = facts.ends.destinations(link)
            is_own[send[back[send] & (facts.root[chunk[send]] == rank)]] = True
            yield at, chunk, 2 * link + back, np.where(back, -end, start), is_own

    for _, chunk, lane, start, is_own in lanes():
        chunk, lane = chunk[is_own], lane[is_own]
        free = start[is_own] + ticks.latency(lane // 2, ticks.chunk_units[chunk])
        before = free_from[lane]
        np.maximum.at(free_from, lane, free)
        latest = (free == free_from[lane]) & (free > before)
        due_to[lane[latest][::-1]] = chunk[latest][::-1]  # of chunks with this tick, the first is kept
    for at, _, lane, start, is_own in lanes():
        for k in np.flatnonzero(~is_own & (start < free_from[lane])).tolist():
            limit = int(free_from[lane[k]])
            text = f"expected a start from {ticks.us(limit)} us, one latency after"
            if lane[k] % 2:
                text = f"expected an end by {ticks.us(-limit)} us, one latency before"
            text = f"is relayed; {text} chunk {due_to[lane[k]]} of the link's own rank"
            findings.report("own-first", text, int(at[k]), clause="own_first")


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def check_paths(
    columns: Columns, findings: Findings, reducing: NDArray[np.bool_], named: NamedSums | None
) -> None:
    """Report transfers whose chunk has passed more links, this transfer's included, than a clause allows."""
    limits = [(each, getattr(columns.clauses, each.field)) for each in columns.clauses.said("path")]
    if not limits:
        return
    least = min(most for _, most in limits)
    if named is None:
        far = _far(columns, reducing, least)
    else:
        far = [(i, passed) for i, passed in enumerate(named.links_passed()) if passed > least]
    for i, passed in sorted(far):
        for clause, most in limits:
            if passed > most:
                text = f"is the {_ordinal(passed)} link on the chunk's path; expected at most {most}"
                findings.report(clause.violation, text, i, clause=clause.field)


def _far(columns: Columns, reducing: NDArray[np.bool_], most: int) -> list[tuple[int, int]]:
    """[(transfer, number of links that its chunk has passed), ...] for numbers above `most`."""
    copies, summed = np.empty((2, columns.topology.num_ranks), np.int64)
    far = []
    for some in by_chunk(columns, columns.start_sets()):
        sums = some.sums._replace(gathers=reducing[some.at]) if len(reducing) else some.sums
        passed = np.empty(len(some.at), np.int64)
        fitted(count_links, columns.is_large)(sums, some.chunks, columns.ends, copies, summed, passed)
        at = np.flatnonzero(passed > most)
        far += list(zip(some.at[at].tolist(), passed[at].tolist(), strict=True))
    return far


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def check_dates(columns: Columns, findings: Findings, dates: Mapping[tuple[int, int], int] | None) -> None:
    """Report transfers before release dates, and chunks after due dates.

    - `dates`: `Replay.dates` of copies; None for sums, which are complete after their last arrival.
    """
    problem, ticks, num_ranks = columns.problem, columns.ticks, columns.topology.num_ranks
    if not problem.release_us and not problem.due_us:
        return
    release = {(chunk, rank): us * ticks.per_us for chunk, rank, us in problem.release_us}
    released = np.array([c * num_ranks + rank for c, rank in release], np.int64)
    # Times of sends are whole ticks, so dates may be rounded up.
    release_ticks = np.array([math.ceil(each) for each in release.values()], np.int64)
    for block in columns.blocks() if release else ():
        leaves, src = columns.ends.sources(block.link)
        lands, dst = columns.ends.destinations(block.link)
        adds = columns.adds(block.rows)[lands]
        early = []
        for time, i, at, text in (
            (block.start, leaves, src, "leaves before {us} us, when it arrives at the rank"),
            (block.end, lands[adds], dst[adds], "is added to data that the rank has only from {us} us"),
        ):
            place, is_known = places_of(released, block.chunk[i] * num_ranks + at)
            is_early = np.flatnonzero(is_known)
            is_early = is_early[time[i[is_early]] < release_ticks[place[is_early]]]
            early += [(int(i[k]), int(at[k]), text) for k in is_early.tolist()]
        for k, r, text in sorted(early, key=lambda each: each[0]):
            when = f"{float(release[int(block.chunk[k]), r] / ticks.per_us):.6g}"
            findings.report("release", text.format(us=when), block.first + k, rank=r)
    arrived = arrivals(columns, [(chunk, rank) for chunk, rank, _ in problem.due_us], last=dates is None)
    for chunk, rank, us in problem.due_us:
        own = release.get((chunk, rank), (dates or {}).get((chunk, rank)))
        if (chunk, rank) not in release and rank in columns.collective.chunks[chunk].origins:
            own = 0
        times = [ticks for ticks in (own, arrived.get((chunk, rank))) if ticks is not None]
        there = max(times, default=0) if dates is None else min(times, default=0)
        if there > us * ticks.per_us:
            text = f"arrives at {ticks.us(there)} us, after its due date {float(us):.6g} us"
            findings.report("due", text, rank=rank, chunk=chunk)

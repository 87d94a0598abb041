"""Checks of a schedule against its sketch's clauses, as defined in the docstring of `Clauses`.

Some clauses come in two versions, for chunks on their way to the root and on their way from it.
`Replay.reducing`, derived from what is carried, selects the version; a transfer's own flag is ignored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from fractions import Fraction

from taccl.analysis.verification.contents import events
from taccl.analysis.verification.replay import Replay
from taccl.clauses import Clause


def check_clauses(replay: Replay) -> None:
    """Check the clauses on one chunk over one link."""
    said = replay.clauses.said("link", "chunk", "group")
    known: dict[tuple[int, int, bool], list[tuple[Clause, str]]] = {}
    for i in replay.usable if said else ():
        key = (replay.link[i], replay.chunk[i], replay.reducing[i])
        if key not in known:
            found = ((each, _CHECKS[each.field](replay, *key)) for each in said)
            known[key] = [(each, text) for each, text in found if text]
        for clause, text in known[key]:
            replay.report(clause.violation, text, i, clause=clause.field)


def check_moments(replay: Replay) -> None:
    """Check release and due dates of chunks at ranks.

    Data that a rank starts with is neither sent nor added to before its release date. Each chunk with a due
    date is complete at its rank by then.
    """
    if not (replay.release or replay.due_us):
        return
    arrived: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i in replay.usable:
        ends, chunk = replay.topology.links[replay.link[i]], replay.chunk[i]
        for rank in ends.srcs:
            release = replay.release.get((chunk, rank), 0)
            if replay.start[i] < release:
                text = f"leaves before {_us(replay, release)} us, when the rank has it"
                replay.report("release", text, i, rank=rank)
        for rank in ends.dsts:
            release = replay.release.get((chunk, rank), 0)
            arrived[chunk, rank].append(replay.end[i])
            if replay.reduce[i] and replay.end[i] < release:
                text = f"is added to what the rank has only from {_us(replay, release)} us on"
                replay.report("release", text, i, rank=rank)
    for chunk, rank, us in replay.due_us:
        if replay.collective.sums_up:  # a sum is whole with its last arrival
            there = max([replay.release.get((chunk, rank), 0), *arrived[chunk, rank]])
        else:
            there = replay.since.get((rank, chunk), 0)
        if there > us * replay.ticks_per_us:
            text = f"is there at {replay.us(there)} us; it is due at {float(us):.6g} us"
            replay.report("due", text, rank=rank, chunk=chunk)


def _us(replay: Replay, ticks: int | Fraction) -> str:
    return f"{float(Fraction(ticks) / replay.ticks_per_us):.6g}"


def _links_allowed(replay: Replay, link: int, chunk: int, reducing: bool) -> str:
    return "" if link in (replay.clauses.links_allowed or ()) else "the link may not be used"


def _relays(replay: Replay, link: int, chunk: int, reducing: bool) -> str:
    group = replay.collective.process_groups[replay.collective.group_of_chunk[chunk]]
    ends = replay.topology.links[link]
    strangers = {*ends.srcs, *ends.dsts}.difference(group.ranks, replay.clauses.relays or ())
    if not strangers:
        return ""
    return f"ranks {_list(strangers)} are not in the chunk's process group, and may not relay"


def _carries_to(replay: Replay, link: int, chunk: int, reducing: bool) -> str:
    admitted, root = replay.clauses.carries_to.get(link), replay.collective.chunks[chunk].root
    if not reducing or admitted is None or root in admitted:
        return ""
    return f"the link carries to roots {sorted(admitted)}; the chunk's root is {root}"


def _carries_from(replay: Replay, link: int, chunk: int, reducing: bool) -> str:
    admitted, found = replay.clauses.carries_from.get(link), replay.starts_at[chunk]
    if reducing or admitted is None or not admitted.isdisjoint(found):
        return ""
    return f"the link carries from ranks {sorted(admitted)}; the chunk starts at {sorted(found)}"


def _direct_crossing(replay: Replay, link: int, chunk: int, reducing: bool) -> str:
    if replay.collective.derivations:
        return ""
    data = replay.collective.chunks[chunk]
    # On its way to the root, a chunk goes from contributing nodes to the root's node; then on from there.
    from_ranks, to_ranks = data.origins, data.destinations
    if replay.collective.combining and data.root is not None:
        from_ranks, to_ranks = (from_ranks, (data.root,)) if reducing else ((data.root,), to_ranks)
    node = replay.topology.node_of_rank
    ends = replay.topology.links[link]
    leaves, enters = {node[r] for r in ends.srcs}, {node[r] for r in ends.dsts}
    starts, needs = {node[r] for r in from_ranks}, {node[r] for r in to_ranks}
    if leaves == enters or (leaves <= starts and enters <= needs):
        return ""
    return (
        f"crosses from node {_list(leaves)} to {_list(enters)}; expected from node {_list(starts)} "
        f"straight to {_list(needs)}"
    )


#: {clause: check}, for the clauses on one chunk over one link. A check returns the fault, or "".
_CHECKS: dict[str, Callable[[Replay, int, int, bool], str]] = {
    "links_allowed": _links_allowed,
    "relays": _relays,
    "carries_to": _carries_to,
    "carries_from": _carries_from,
    "direct_crossing": _direct_crossing,
}


def check_paths(replay: Replay) -> None:
    """Check the limits on the number of links that a chunk passes in sequence.

    A copy has passed one link more than its sender's copy; of several copies, the one with the fewest links
    counts. The number is 0 where the chunk starts, or where its sum is complete. A sum on its way to the root
    has passed as many links as the maximum over its contributions.
    """
    if not replay.clauses.said("path"):
        return
    if replay.carried is not None:
        _check_named_paths(replay, replay.carried)
        return
    links = replay.topology.links
    copies: dict[tuple[int, int], int] = {}  # (rank, chunk) -> links that the copy there has passed
    for chunk, ranks in enumerate(replay.starts_at):
        copies |= {(rank, chunk): 0 for rank in ranks}
    sums: dict[tuple[int, int], int] = defaultdict(int)  # of the contributions there, the most
    passed: dict[int, int] = {}
    for i, arrives in events(replay):
        chunk, ends = replay.chunk[i], links[replay.link[i]]
        if not arrives:
            before = (sums[r, chunk] if replay.reducing[i] else copies.get((r, chunk), 0) for r in ends.srcs)
            passed[i] = 1 + max(before)
            _report_path(replay, i, passed[i])
            continue
        for rank in ends.dsts:
            if not replay.reducing[i]:
                copies[rank, chunk] = min(passed[i], copies.get((rank, chunk), passed[i]))
            elif replay.reduce[i]:
                sums[rank, chunk] = max(passed[i], sums[rank, chunk])
            else:
                sums[rank, chunk] = passed[i]


def _check_named_paths(replay: Replay, carried: list[int]) -> None:
    """Check path limits if transfers name what they carry, and ranks keep arrivals separate.

    A send has passed one link more than any sum at its sources that may be a part of it. A whole sum starts
    to spread at the rank that completes it, root or not. A whole sum that arrived keeps the links that it
    passed.
    """
    links, everyone = replay.topology.links, replay.everyone
    #: Fewest links passed by each sum that arrived: {(rank, chunk): {sum: links}}
    passed: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    under_way: dict[int, int] = {}
    for i, arrives in events(replay):
        chunk, ends = replay.chunk[i], links[replay.link[i]]
        if arrives:
            for rank in ends.dsts:
                known = passed[rank, chunk]
                known[carried[i]] = min(under_way[i], known.get(carried[i], under_way[i]))
            continue
        spreads = not replay.reducing[i] and carried[i] == everyone[chunk]
        before = [
            number
            for rank in ends.srcs
            for bits, number in passed[rank, chunk].items()
            if (bits == carried[i] if spreads else not bits & ~carried[i])
        ]
        under_way[i] = 1 + max(before, default=0)
        _report_path(replay, i, under_way[i])


def _report_path(replay: Replay, i: int, passed: int) -> None:
    for clause in replay.clauses.said("path"):
        most = getattr(replay.clauses, clause.field)
        if passed > most:
            text = f"is the {_ordinal(passed)} link on the chunk's path; expected at most {most}"
            replay.report(clause.violation, text, i, clause=clause.field)


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def check_own_first(replay: Replay) -> None:
    """Check that, on links in `own_first`, relayed chunks start at least one latency after all own ones.

    While chunks are reduced, time runs backwards: chunks whose root receives end last.
    """
    lanes: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for i in replay.usable:
        if replay.link[i] in replay.clauses.own_first:
            lanes[replay.link[i], replay.reducing[i]].append(i)
    for (link, reducing), members in lanes.items():
        ends = replay.topology.links[link]
        own_end = set(ends.dsts if reducing else ends.srcs)
        # Counted backwards from the end if the chunk is reduced.
        starts = {i: -replay.end[i] if reducing else replay.start[i] for i in members}
        free: dict[int, int | Fraction] = {}  # by own chunk, when a relayed one may start
        for i in members:
            chunk = replay.chunk[i]
            root = replay.collective.chunks[chunk].root
            if root in own_end if reducing else not own_end.isdisjoint(replay.starts_at[chunk]):
                free[i] = starts[i] + replay.latency(link, replay.chunk_bytes[chunk])
        if not free:
            continue
        last = max(free, key=lambda i: free[i])
        for i in members:
            if i not in free and starts[i] < free[last]:
                if reducing:
                    limit = f"expected an end by {replay.us(-free[last])} us, one latency before chunk"
                else:
                    limit = f"expected a start from {replay.us(free[last])} us, one latency after chunk"
                text = f"is relayed; {limit} {replay.chunk[last]} of the link's own rank"
                replay.report("own-first", text, i, clause="own_first")


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))

"""Whether a schedule obeys the clauses of its sketch, as the docstring of `Clauses` puts them.

Which of two clauses holds, that for chunks on their way to the root or that for chunks on their way from it,
is read off `Replay.reducing`, which tells what is carried; what a transfer says of itself does not matter.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from fractions import Fraction

    from taccl.analysis.verification.replay import Replay

__all__ = ["check_clauses", "check_own_first"]


def check_clauses(replay: Replay) -> None:
    """The clauses that speak of one chunk on one link."""
    known: dict[tuple[int, int, bool], list[tuple[str, str, str]]] = {}
    for i in replay.usable:
        key = (replay.link[i], replay.chunk[i], replay.reducing[i])
        if key not in known:
            known[key] = list(_broken_clauses(replay, *key))
        for kind, clause, text in known[key]:
            replay.report(kind, text, i, clause=clause)


def _broken_clauses(replay: Replay, link: int, chunk: int, reducing: bool) -> Iterable[tuple[str, str, str]]:
    clauses, data = replay.clauses, replay.collective.chunks[chunk]
    if clauses.links_allowed is not None and link not in clauses.links_allowed:
        yield "link-not-allowed", "links_allowed", "the link may not be used"
    if clauses.relays is not None:
        group = replay.collective.process_groups[replay.collective.group_of_chunk[chunk]]
        ends = replay.topology.links[link]
        strangers = {*ends.srcs, *ends.dsts}.difference(group.ranks, clauses.relays)
        if strangers:
            text = f"ranks {_list(strangers)} are not in the chunk's process group, and may not relay"
            yield "link-not-allowed", "relays", text
    if reducing:
        if link in clauses.carries_to and data.root not in clauses.carries_to[link]:
            roots = sorted(clauses.carries_to[link])
            text = f"the link carries to roots {roots}; the chunk's root is {data.root}"
            yield "carries-to", "carries_to", text
    elif link in clauses.carries_from and clauses.carries_from[link].isdisjoint(replay.starts_at[chunk]):
        admitted, found = sorted(clauses.carries_from[link]), sorted(replay.starts_at[chunk])
        text = f"the link carries from ranks {admitted}; the chunk starts at {found}"
        yield "carries-from", "carries_from", text
    if not clauses.direct_crossing or replay.collective.derivations:
        return
    # While a chunk is reduced it goes from nodes that contribute to the root's; then on from there.
    from_ranks, to_ranks = data.origins, data.destinations
    if replay.collective.combining and data.root is not None:
        from_ranks, to_ranks = (from_ranks, (data.root,)) if reducing else ((data.root,), to_ranks)
    node = replay.topology.node_of_rank
    ends = replay.topology.links[link]
    leaves, enters = {node[r] for r in ends.srcs}, {node[r] for r in ends.dsts}
    if leaves == enters:
        return
    starts, needs = {node[r] for r in from_ranks}, {node[r] for r in to_ranks}
    if not (leaves <= starts and enters <= needs):
        text = (
            f"crosses from node {_list(leaves)} to {_list(enters)}; expected from node {_list(starts)} "
            f"straight to {_list(needs)}"
        )
        yield "direct-crossing", "direct_crossing", text


def check_own_first(replay: Replay) -> None:
    """On links in `own_first`, own chunks and relayed ones are one latency apart, own first.

    While chunks are reduced, time runs backwards: chunks whose root receives end last.
    """
    lanes: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for i in replay.usable:
        if replay.link[i] in replay.clauses.own_first:
            lanes[replay.link[i], replay.reducing[i]].append(i)
    for (link, reducing), members in lanes.items():
        ends = replay.topology.links[link]
        own_end = set(ends.dsts if reducing else ends.srcs)
        roots = [replay.collective.chunks[replay.chunk[i]].root for i in members]
        is_own = [
            (root in own_end) if reducing else not own_end.isdisjoint(replay.starts_at[replay.chunk[i]])
            for i, root in zip(members, roots, strict=True)
        ]
        # Ticks at which a relayed chunk may start, counted backwards from its end where it is reduced.
        free: dict[int, int | Fraction] = {}
        for i, own in zip(members, is_own, strict=True):
            if own:
                latency = replay.latency(link, replay.chunk_bytes[replay.chunk[i]])
                free[i] = (-replay.end[i] if reducing else replay.start[i]) + latency
        if not free:
            continue
        last = max(free, key=lambda i: free[i])
        for i, own in zip(members, is_own, strict=True):
            if not own and (-replay.end[i] if reducing else replay.start[i]) < free[last]:
                if reducing:
                    limit = f"expected an end by {replay.us(-free[last])} us, one latency before chunk"
                else:
                    limit = f"expected a start from {replay.us(free[last])} us, one latency after chunk"
                text = f"is relayed; {limit} {replay.chunk[last]} of the link's own rank"
                replay.report("own-first", text, i, clause="own_first")


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))

"""Receives that send on at once: two steps in one, in threadblocks that both receive and send.

A receive and the send right after it in its threadblock become one step if the send is the next to use what
came, and waits for nothing else. Nobody then waits longer than before: whoever uses what came comes after the
send anyway. Only single chunks are fused, since a step of several would pass on the first while it waits for
the others.

Such a step takes nothing before there is room for what it sends. There is: what its threadblock sent before,
it sent before the receive, and so that has been received, whatever else waits. (Were sends moved up to
receives that they do not follow directly, a ring of such steps could wait for room all around.)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taccl.program.emit import Draft, Key

__all__ = ["fuse", "join_relays"]

_FUSED = {"receive": "receive-send", "receive-reduce": "receive-reduce-copy-send"}


def join_relays(drafts: Sequence[Draft], needs: Mapping[Draft, set[Draft]]) -> dict[Key, Key]:
    """Threadblocks to be joined: of a receiving and a sending one, most of whose sends were just received."""
    sizes = Counter(draft.key for draft in drafts)
    passed_on: Counter[tuple[Key, Key]] = Counter()
    for draft in drafts:
        if draft.operation == "send" and len(needs[draft]) == 1:
            (source,) = needs[draft]
            if source.operation in _FUSED and source.key.channel == draft.key.channel:
                passed_on[source.key, draft.key] += 1
    joined: dict[Key, Key] = {}
    for (source_key, key), count in sorted(passed_on.items(), key=lambda item: (-item[1], item[0])):
        if source_key in joined or key in joined or 2 * count < max(sizes[key], sizes[source_key]):
            continue
        joined[source_key] = joined[key] = source_key._replace(kind="relay", send_to=key.peer)
    return joined


def fuse(
    drafts: Sequence[Draft], needs: Mapping[Draft, set[Draft]]
) -> tuple[list[Draft], dict[Draft, set[Draft]]]:
    """The steps in order, and what each waits for, with what can be fused fused.

    - `drafts`: In order.
    """
    blocks: dict[Key, list[Draft]] = defaultdict(list)
    for draft in drafts:
        blocks[draft.key].append(draft)
    users: dict[Draft, set[Draft]] = defaultdict(set)
    for draft, mine in needs.items():
        for other in mine:
            users[other].add(draft)
    becomes: dict[Draft, Draft] = {}
    gone: set[Draft] = set()
    for block in blocks.values():
        for first, second in pairwise(block):
            if _fits(first, second, needs, users):
                becomes[first] = becomes[second] = _fused(first, users[first] - {second})
                gone.add(second)
    left = [draft for draft in drafts if draft not in gone]
    return [becomes.get(draft, draft) for draft in left], {
        becomes.get(draft, draft): {becomes.get(other, other) for other in needs[draft]} for draft in left
    }


def _fits(
    first: Draft, second: Draft, needs: Mapping[Draft, set[Draft]], users: Mapping[Draft, set[Draft]]
) -> bool:
    return (
        first.operation in _FUSED
        and second.operation == "send"
        and first.count == second.count == 1
        and second.src == first.dst
        and needs[second] == {first}
        and all(user is second or user.order > second.order for user in users[first])
    )


def _fused(first: Draft, others: set[Draft]) -> Draft:
    """Both in one; a sum that nobody else looks at is not even kept."""
    kept = first.dst is None or first.dst.buffer != "scratch"
    kept = kept or any(first.dst == (each.dst if each.operation == "reduce" else each.src) for each in others)
    operation = _FUSED[first.operation]
    if operation == "receive-reduce-copy-send" and not kept:
        return replace(first, operation="receive-reduce-send", dst=None)
    return replace(first, operation=operation)

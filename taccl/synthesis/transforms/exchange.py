"""Exchange of sums: two ranks complete a sum simultaneously, each by sending the other its partial sum.

A sum made at one rank, its root, waits for the last contribution, and returns over the same path. If the root
sends its partial sum to the rank whose contribution comes last, both complete the sum, with the same number
of sends. The path through the tree is one link shorter, as in recursive doubling on two ranks.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from contextlib import suppress

from taccl.errors import InputError
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule, Transfer
from taccl.schedule.timing import exact_times
from taccl.synthesis.improve.routes import Tree, read_trees
from taccl.synthesis.search import Search

#: `_EXCHANGE_S_PER_TRANSFER`: estimated seconds per transfer to exchange sums.
#: `_EXCHANGE_SHARE`: max share of the time left that is reserved for an exchange.
#: `_BRIEF_S`: an exchange that takes fewer seconds is tried even after the time limit.
_EXCHANGE_S_PER_TRANSFER, _EXCHANGE_SHARE, _BRIEF_S = 1.5e-4, 0.1, 0.1


def exchange_s(problem: Problem, left_s: float) -> float:
    """Seconds to reserve for an exchange of partial sums; 0 if it takes too large a share of the time."""
    once_s = 2 * problem.collective.num_chunks * problem.collective.num_ranks * _EXCHANGE_S_PER_TRANSFER
    return once_s if once_s <= _EXCHANGE_SHARE * left_s else 0.0


def offer_optimal_exchange(search: Search) -> None:
    """Propose sums completed by an exchange if they meet the bound, so that no improvement is needed."""
    if search.bound is not None:
        offer_exchanged(search, share=_EXCHANGE_SHARE, latest=search.bound_ticks)


def offer_exchanged(search: Search, *, share: float = 1.0, latest: float = math.inf) -> None:
    """Propose the best schedule along trees, with sums that two ranks complete by an exchange.

    - `share`: Max share of the time left, unless the exchange is brief.
    - `latest`: Only a schedule that finishes by this tick is proposed.
    """
    since, schedule = time.monotonic(), search.best_along_trees
    if schedule is None or search.is_met or search.interrupted:
        return
    if schedule.num_transfers * _EXCHANGE_S_PER_TRANSFER > max(_BRIEF_S, share * search.deadline.left_s):
        return
    found = None
    with suppress(InputError, ValueError):  # merged sends may deadlock if exchanged
        found = exchanged(schedule)
    if found is not None and found.finish_ticks <= latest:
        finish = search.offer_whole(found, producer=found.producer, proposed=True)
        search.record("exchange", "taccl", "done", since, finish_us=finish)


def sums_anywhere(problem: Problem) -> bool:
    """True for sums that any rank may complete, as no server updates them."""
    return problem.collective.sums_up and not problem.collective.updates


def exchanged(schedule: Schedule) -> Schedule | None:
    """Exchange partial sums between roots and last contributors; None if that lets no send start earlier.

    None also if servers update sums, which only they can complete, or if transfers name their contributions,
    since such transfers need not follow trees. Raises
    `InputError` or `ValueError` if merged sends would wait for each other.
    """
    if not sums_anywhere(schedule.problem) or schedule.carries is not None:
        return None
    trees = iter(read_trees(schedule))
    pairs = (_last_pair(schedule, *both) for both in zip(trees, trees, strict=True))
    pair_of = {(out.chunk, out.group): (since, back) for since, out, back in filter(None, pairs)}
    start, reduce, chunk = schedule.start.copy(), schedule.reduce.copy(), schedule.chunk.tolist()
    rows: dict[int, list[int]] = defaultdict(list)
    for row, group in enumerate(schedule.group.tolist()):
        rows[group].append(row)
    for group, some in rows.items():
        found = [pair_of[chunk[row], group] for row in some if (chunk[row], group) in pair_of]
        since = max((each for each, _ in found), default=0)
        # The root sends a partial sum first: the last contributor's send must end after the exchange begins.
        is_fit = len(found) == len(some) and all(since < back.end_ticks for _, back in found)
        if is_fit and since < start[some[0]]:
            start[some], reduce[some] = since, True
    if (reduce == schedule.reduce).all():
        return None
    return exact_times(
        schedule.problem, chunk=schedule.chunk, link=schedule.link, starts=start, group=schedule.group,
        reduce=reduce, producer=f"{schedule.producer}, sums exchanged",
    )  # fmt: skip


def _last_pair(schedule: Schedule, reduction: Tree, spreading: Tree) -> tuple[int, Transfer, Transfer] | None:
    """(earliest start of the exchange, the root's send to its last contributor, that contributor's send).

    None if the root and its last contributor have no such pair of sends, or the links may not carry partial
    sums.
    """
    links, (root,) = schedule.problem.topology.links, reduction.origins
    coming = [
        (transfer.end_ticks, rank)
        for rank, transfer in reduction.read_from.items()
        if links[transfer.link].dsts == (root,)
    ]
    if not coming:
        return None
    *others, (_, last) = sorted(coming)
    out, back = spreading.read_from.get(last), reduction.read_from[last]
    ends = [] if out is None else [links[out.link].srcs, links[out.link].dsts, links[back.link].srcs]
    if out is None or ends != [(root,), (last,), (last,)]:
        return None
    problem = schedule.problem
    is_direct = problem.clauses.direct_crossing and problem.topology.is_internode(out.link)
    # The link must carry a partial sum.
    if is_direct or not problem.may_carry(out.link, out.chunk, reducing=True):
        return None
    return max(back.start_ticks, others[-1][0] if others else 0), out, back

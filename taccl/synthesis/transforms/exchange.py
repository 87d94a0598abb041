"""Exchange of sums: two ranks complete a sum simultaneously, each by sending the other its partial sum.

A sum made at one rank, its root, waits for the last contribution, and returns over the same path. If the root
sends its partial sum to the rank whose contribution comes last, both complete the sum, with the same number
of sends. The path through the tree is one link shorter, as in recursive doubling on two ranks.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import suppress

from taccl.errors import InputError
from taccl.problem.problem import Problem
from taccl.schedule.listing import listed
from taccl.schedule.schedule import Schedule, Transfer
from taccl.schedule.timing import exact_times
from taccl.synthesis.improve.routes import Tree, read_trees
from taccl.synthesis.parameters import SearchParameters
from taccl.synthesis.search import Search

#: `_EXCHANGE_S_PER_TRANSFER`: estimated seconds per transfer to exchange sums.
#: `_EXCHANGE_SHARE`: max share of the time for all transfers; above it, no exchange is tried.
_EXCHANGE_S_PER_TRANSFER, _EXCHANGE_SHARE = 1.5e-4, 0.1


def exchange_s(problem: Problem, left_s: float, parameters: SearchParameters) -> float:
    """Estimated seconds to try an exchange of partial sums in the best schedules.

    0 if the collective has no sums, or time does not suffice.
    """
    collective, portfolio = problem.collective, parameters.portfolio
    transfers = 2 * collective.num_chunks * collective.num_ranks * collective.sums_up
    once_s, most_s = transfers * _EXCHANGE_S_PER_TRANSFER, _EXCHANGE_SHARE * left_s
    return min(portfolio.exchanged * once_s, most_s) if once_s <= most_s else 0.0


def offer_exchanged(search: Search) -> None:
    """Propose variants of the earliest schedules in which two ranks complete each sum by an exchange.

    Schedules whose exchange was tried before are skipped.

    The original schedules are kept for ruin and recreate, which needs trees: exchanged sums do not arrive
    along trees. A schedule that finishes somewhat later may gain more by the exchange.
    """
    since = time.monotonic()
    best: Schedule | None = None
    for schedule in search.earliest:
        if search.is_met or search.interrupted or (best is not None and search.deadline.has_passed):
            break
        if any(schedule is each for each in search.exchange_tried):
            continue
        search.exchange_tried.append(schedule)
        # If a schedule was found under a suggested sketch, its variant need not obey that sketch.
        schedule = schedule.under(search.problem)
        for anew in (False, True):
            with suppress(InputError, ValueError):  # merged sends may deadlock if exchanged
                found = exchanged(listed(schedule) if anew else schedule)
                if found is not None and (best is None or found.finish < best.finish):
                    best = found
    if best is not None:
        if search.best is None or best.finish < search.best.finish:
            search.exchanged = best
        finish = search.offer_whole(best, producer=best.producer, proposed=True)
        search.record("exchange", "taccl", "done", since, finish_us=finish)


def exchanged(schedule: Schedule) -> Schedule | None:
    """Exchange partial sums between roots and last contributors; None if that lets no send start earlier.

    None also if transfers name their contributions, since such transfers need not follow trees. Raises
    `InputError` or `ValueError` if merged sends would wait for each other.
    """
    if not schedule.problem.collective.sums_up or schedule.carries is not None:
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
        # The root must send its partial sum before the last contribution arrives: the send of the last
        # contributor must end after the exchange begins.
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

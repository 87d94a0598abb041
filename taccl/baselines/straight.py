"""Everything straight to where it is wanted: pairwise exchange, and one-shot sums.

What one-shot sends is named (`Schedule.carries`): a rank keeps what arrives apart, as a runtime with scratch
space does, so that its own contribution may still go out alone once others have come in.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from taccl.arguments import checked
from taccl.baselines.routes import ShortestRoutes
from taccl.baselines.spread import (
    Steps,
    check_number,
    cut_while_it_pays,
    require_no_derivations,
    run,
    scheduled,
)
from taccl.errors import CollectiveError

if TYPE_CHECKING:
    from taccl.baselines.spread import Send
    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule


@checked
def pairwise(problem: Problem, *, cut: bool = True) -> Schedule:
    """A schedule in which, in step s, rank r sends to rank r + s what starts at r and ends at r + s.

    Where no link joins the two, the chunks are relayed over a shortest route. The sketch is left aside, but
    for merging.

    Parameters
    ----------
    problem, cut
        As in `ring`.

    Raises
    ------
    CollectiveError
        If the collective is a scan.
    TopologyError
        If no links lead from one rank to another.

    References
    ----------
    R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH",
    International Journal of High Performance Computing Applications 19 (2005): long-message alltoall. The
    NVIDIA Collective Communications Library sends alltoall in the same order.
    """
    require_no_derivations(problem, baseline="pairwise")
    return cut_while_it_pays(problem, lambda each: run(each, _exchange), cut=cut)


@checked
def one_shot(problem: Problem, *, cut: bool = True) -> Schedule:
    """A schedule in which ranks send their contributions to all that want the sum, which add them up.

    The sketch is left aside, but for merging.

    Parameters
    ----------
    problem : Problem
        Allreduce, reduce-scatter, reduce, or sums of the user's own.
    cut : bool
        Whether chunks may be cut, so that more of them follow one another.

    Raises
    ------
    CollectiveError
        If the collective adds nothing up, or there would be too many transfers.
    TopologyError
        If no links lead from one rank to another.

    References
    ----------
    The NVIDIA TensorRT-LLM and the MSCCL++ libraries sum small messages so inside a node.
    """
    if not problem.collective.sums_up:
        raise CollectiveError(
            f"one-shot is for sums, and {problem.collective.name} adds nothing up; use pairwise",
            where="baseline",
        )
    return cut_while_it_pays(problem, _sums, cut=cut)


def _exchange(problem: Problem) -> Schedule:
    spread = Steps(problem)
    num_ranks = problem.topology.num_ranks
    chunks_of_pair: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for c, chunk in enumerate(problem.collective.chunks):
        src = chunk.origins[0]
        for dst in chunk.destinations:
            chunks_of_pair[(dst - src) % num_ranks, src, dst].append(c)
    by_shift = groupby(sorted(chunks_of_pair.items()), key=lambda item: item[0][0])
    for shift, pairs in by_shift:
        if shift:
            spread.step([(chunks, src, dst) for (_, src, dst), chunks in pairs])
    return spread.schedule(producer="pairwise")


def _sums(problem: Problem) -> Schedule:
    """Contributions go to where they are wanted by shortest routes, and are added where they meet."""
    links, routes, used = problem.topology.links, ShortestRoutes.of(problem), Counter[int]()
    wanted: dict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
    for c, chunk in enumerate(problem.collective.chunks):
        for dst in chunk.destinations:
            wanted[dst, chunk.origins].append(c)
    sends: list[tuple[float, int, Send]] = []
    num_transfers = 0
    for (dst, ranks), chunks in wanted.items():
        carried = {rank: {rank} for rank in ranks}
        for far, rank, ways in routes.ways_in(dst):
            if rank not in carried:
                continue
            if not ways:
                routes.route(rank, dst)  # says that there are none
            # Most meet where the first link is the fast one.
            _, _, link = min((ticks, used[link], link) for ticks, link in ways)
            used[link] += len(chunks)
            at, turn = links[link].dst, (links[link].dst - rank) % problem.topology.num_ranks
            sends.append((-far, turn, (chunks, link, [tuple(sorted(carried[rank]))] * len(chunks))))
            carried[at] = carried.get(at, set()) | carried[rank]
            num_transfers += len(chunks)
        check_number(problem, num_transfers)
    sends.sort(key=itemgetter(0, 1))  # what has far to go first; in turns, where no two have one end
    return scheduled(problem, [send for _, _, send in sends], producer="one-shot")

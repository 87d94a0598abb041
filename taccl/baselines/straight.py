"""Direct sends from each source to each destination: pairwise exchange, and one-shot sums.

What one-shot sends is named (`Schedule.carries`): a rank keeps what arrives apart, as a runtime with scratch
space does, so that its own contribution may still go out alone once others have come in.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from taccl.arguments import checked
from taccl.baselines.lanes import turns_of
from taccl.baselines.routes import ShortestRoutes
from taccl.baselines.spread import (
    Steps,
    check_number,
    cut_while_it_pays,
    fastest,
    require_no_derivations,
    run,
    scheduled,
)
from taccl.errors import CollectiveError
from taccl.schedule.listing import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taccl.baselines.lanes import Floats
    from taccl.baselines.spread import Send
    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology

#: Max transfers of exchanges that are listed anew by their release dates (about 0.1 s), where they take
#: longer than their busiest resource by this factor.
_FEW_TRANSFERS, _LATE = 2000, 1.05


@checked
def pairwise(problem: Problem, *, cut: bool = True) -> Schedule:
    """A schedule in which, in step s, rank r sends to rank r + s what starts at r and ends at r + s.

    Between nodes of equal size, a step has a distance between nodes and one within them, so that NICs which
    ranks share carry the same in every step. Where no link joins the two, the chunks are relayed over a
    shortest route. The sketch is left aside, but for merging.

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
    return cut_while_it_pays(problem, lambda each: run(each, _exchange), name="pairwise", cut=cut)


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
    return cut_while_it_pays(problem, _sums, name="one-shot", cut=cut)


def least_one_shot_us(problem: Problem) -> float:
    """Lower bound on the finish of `one_shot`, without listing it; 0 for a collective without sums.

    Every contribution to a sum is sent at least once. All resources share the bytes at best.
    """
    topology, collective = problem.topology, problem.collective
    if not collective.sums_up:
        return 0.0
    mb = (
        sum(
            size * len(chunk.destinations) * (len(chunk.origins) - 1)
            for size, chunk in zip(problem.chunk_bytes, collective.chunks, strict=True)
        )
        / 1e6
    )
    us_per_mb = min(
        max((float(hold.beta_us_per_mb) for hold in holds), default=0.0) for holds in topology.holds_of_link
    )
    return mb * us_per_mb / max(1, len(topology.resources))


def _exchange(problem: Problem) -> Schedule:
    topology, spread, shift = problem.topology, Steps(problem), _shifts(problem.topology)
    chunks_of_pair: dict[tuple[tuple[int, int, int], int, int], list[int]] = defaultdict(list)
    for c, src, dst in _pairs(problem):
        far, near = shift(src, dst)
        # Relayed chunks first: those that go straight fill the time of the last hops.
        num_hops = len(spread.routes.route(src, dst))
        chunks_of_pair[(far, -num_hops, near), src, dst].append(c)
    # While chunks of one step are relayed, those of the next set out.
    moves: dict[int, list[tuple[list[int], int]]] = defaultdict(list)
    steps = groupby(sorted(chunks_of_pair.items()), key=lambda item: item[0][0])
    for number, (_, pairs) in enumerate(steps):
        for (_, src, dst), chunks in pairs:
            for hop, link in enumerate(spread.routes.route(src, dst)):
                moves[number + hop].append((chunks, link))
    busy_us = exchange_us(problem)
    for _, step in sorted(moves.items()):
        turns = turns_of([topology.holds_of_link[link] for _, link in step], busy_us)
        for i in sorted(range(len(turns)), key=turns.__getitem__):
            spread.send(*step[i])
    schedule = spread.schedule(producer="pairwise")
    if schedule.num_transfers <= _FEW_TRANSFERS and schedule.finish_us > _LATE * busy_us.max(initial=0):
        return fastest((schedule, listed(schedule), listed(schedule, longest_first=True)))
    return schedule


def exchange_us(problem: Problem) -> Floats:
    """(resources,) us for which the bytes of a pairwise exchange keep each resource busy."""
    routes, held = ShortestRoutes.of(problem), problem.topology.holds_of_link
    us = np.zeros(len(problem.topology.resources))
    for c, src, dst in _pairs(problem):
        for hold in chain.from_iterable(held[link] for link in routes.route(src, dst)):
            us[hold.resource] += problem.chunk_bytes[c] / 1e6 * float(hold.beta_us_per_mb)
    return us


def _pairs(problem: Problem) -> Iterator[tuple[int, int, int]]:
    """Every chunk, where it starts, and each other rank where it ends."""
    for c, chunk in enumerate(problem.collective.chunks):
        yield from ((c, chunk.origins[0], dst) for dst in chunk.destinations if dst != chunk.origins[0])


def _shifts(topology: Topology) -> Callable[[int, int], tuple[int, int]]:
    """Distance of two ranks between nodes and within them, or in all where nodes differ in size."""
    node, local, of_node = topology.node_of_rank, topology.local_rank, topology.ranks_of_node
    size = len(of_node[0])
    if any(len(ranks) != size for ranks in of_node):
        return lambda src, dst: (0, (dst - src) % topology.num_ranks)
    return lambda src, dst: ((node[dst] - node[src]) % len(of_node), (local[dst] - local[src]) % size)


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

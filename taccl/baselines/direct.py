"""Direct sends from each source to each destination: pairwise exchange, and one-shot sums.

One-shot sums name their contributions (`Schedule.carries`): a rank keeps arrivals unreduced, as a runtime
with scratch space does. It can therefore send its own contribution alone after others have arrived.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.arguments import checked
from taccl._internal.arrays import distinct, lexsort
from taccl.baselines.chunking import (
    busy_by_bytes_us,
    cut_while_it_pays,
    require_no_derivations,
    run,
    starts_of,
    without_sketch,
)
from taccl.baselines.edge_colouring import turns_of
from taccl.baselines.forms import fastest, fastest_form
from taccl.baselines.moves import Sends, check_least, check_number, sends_over
from taccl.baselines.routes import ShortestRoutes
from taccl.errors import CollectiveError
from taccl.problem.costs import hold_columns, hold_costs_us, link_costs_us
from taccl.schedule.listing import gap_filled

if TYPE_CHECKING:
    from taccl.baselines.lanes import Floats
    from taccl.baselines.moves import Ints
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology

#: `_FEW_TRANSFERS`: max transfers for which list scheduling is tried (about 0.1 s).
#: `_LATE`: list scheduling is tried if pairwise order takes this many times the estimated end.
_FEW_TRANSFERS, _LATE = 2000, 1.05


@checked
def pairwise(problem: Problem, *, cut: bool = True) -> Schedule:
    """Pairwise exchange: in step s, rank r sends its chunks for rank r + s directly.

    If nodes have equal sizes, all sends of a step have the same difference of node numbers, and the same
    difference of local ranks. So shared NICs carry the same load in every step. Chunks between ranks without
    a link are relayed over a shortest route. Only the merging clauses of the sketch apply.

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

    def exchanged(problem: Problem) -> Schedule:
        if not problem.collective.combining:
            return _fastest(problem)
        return run(problem, lambda copies: Sends.of(_fastest(copies))).schedule(problem, producer="pairwise")

    return cut_while_it_pays(problem, exchanged, name="pairwise", cut=cut)


@checked
def one_shot(problem: Problem, *, cut: bool = True) -> Schedule:
    """One-shot sums: ranks send their contributions to all destinations of a sum, which add them up.

    Only the merging clauses of the sketch apply.

    Parameters
    ----------
    problem : Problem
        Allreduce, reduce-scatter, reduce, or custom sums.
    cut : bool
        True to cut chunks, so that more of them follow one another.

    Raises
    ------
    CollectiveError
        If the collective adds nothing up, or there would be too many transfers.
    TopologyError
        If no links lead from one rank to another.

    References
    ----------
    The NVIDIA TensorRT-LLM and the MSCCL++ libraries use this for small messages inside a node.
    """
    if not problem.collective.sums_up:
        raise CollectiveError(
            f"one-shot is for reductions, but {problem.collective.name} has none; use pairwise",
            where="baseline",
        )

    def summed(problem: Problem) -> Schedule:
        return fastest_form(problem, [("one-shot", _sums(problem))])

    return cut_while_it_pays(problem, summed, name="one-shot", cut=cut, merges=True)


def least_one_shot_us(problem: Problem) -> float:
    """Lower bound on the finish of `one_shot` in us, without timing it; 0 for a collective without sums."""
    if not problem.collective.sums_up:
        return 0.0
    problem = without_sketch(problem)
    return _sums(problem).busy_ticks(problem) / problem.costs.ticks_per_us


def _fastest(problem: Problem) -> Schedule:
    """Schedule of copies in pairwise order; if there are few and they end late, with gaps filled.

    If merged sends end late, their parts may also be sent one by one.
    """
    sends = _exchange(problem)
    found = sends.schedule(problem, producer="pairwise")
    if len(sends.chunk) > _FEW_TRANSFERS or found.finish_us <= (late_us := _LATE * exchange_end_us(problem)):
        return found
    found = fastest((found, gap_filled(found)))
    one_by_one = sends._replace(group=np.arange(len(sends.group)))
    if found.finish_us <= late_us or (sends.group == one_by_one.group).all():
        return found
    return fastest((found, gap_filled(one_by_one.schedule(problem, producer="pairwise"))))


def _exchange(problem: Problem) -> Sends:
    """Sends in the steps of a pairwise exchange.

    Relayed chunks are forwarded during the next step.
    """
    check_least(problem)
    topology, (chunk, src, dst) = problem.topology, _pairs(problem)
    pair, hop, link = ShortestRoutes.of(problem).hops(src, dst)
    busy_us = busy_by_bytes_us(problem, chunk[pair], link)
    far, near = _shifts(topology, src, dst)
    # Relayed chunks go first, so that sends of direct chunks overlap with the last hops of relayed ones.
    hops = np.bincount(pair, minlength=len(chunk))
    width = 1 + near.max(initial=0)
    keys = (far * (1 + hops.max(initial=0)) + hops.max(initial=0) - hops) * width + near
    number = np.unique(keys, return_inverse=True)[1]
    step = number[pair] + hop
    order = lexsort((chunk[pair], dst[pair], src[pair], number[pair], step))
    pair, link, step = pair[order], link[order], step[order]
    ends = src[pair] * topology.num_ranks + dst[pair]
    # Chunks with the same source, destination and step are one message. Each message gets a turn in its step.
    first = np.flatnonzero((np.diff(ends, prepend=-1) != 0) | (np.diff(step, prepend=-1) != 0))
    turns = np.zeros(len(first), np.int64)
    for now in _crowded(topology, link[first], step[first], busy_us):
        begin, end = np.searchsorted(step[first], [now, now + 1])
        here = link[first[begin:end]].tolist()
        turns[begin:end] = turns_of([topology.holds_of_link[e] for e in here], busy_us)
    message = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(pair))))
    order = lexsort((turns[message], step))
    return sends_over(problem, chunk[pair[order]], link[order], message[order])


def _crowded(topology: Topology, link: Ints, step: Ints, busy_us: Floats) -> list[int]:
    """Steps in which two sends hold the same busiest resource of their sender or of their receiver."""
    holds = hold_columns(topology)
    send, hold = holds.of_sends(link)
    resource, receives = holds.resource[hold], holds.receives[hold]
    order = lexsort((-busy_us[resource], receives, send))
    send, receives, resource = send[order], receives[order], resource[order]
    busiest = np.flatnonzero((np.diff(send, prepend=-1) != 0) | (np.diff(receives, prepend=False) != 0))
    keys = (2 * step[send] + receives) * len(topology.resources) + resource
    found, counts = np.unique(keys[busiest], return_counts=True)
    steps: list[int] = distinct(found[counts > 1] // (2 * len(topology.resources))).tolist()
    return steps


def exchange_us(problem: Problem) -> Floats:
    """Time in us that the bytes of a pairwise exchange hold each resource."""
    chunk, src, dst = _pairs(problem)
    pair, _, link = ShortestRoutes.of(problem).hops(src, dst)
    return busy_by_bytes_us(problem, chunk[pair], link)


def exchange_end_us(problem: Problem, *, empty: bool = False) -> float:
    """Estimated end of a pairwise exchange in us: that of its longest route, or of its busiest resource.

    A resource holds messages one after another: all; those alone that relays have passed on, or have yet to
    pass on; or those alone with the longest latencies before or after it. It begins with the earliest of
    these, and the rest of some route follows.

    - `empty`: True for messages of 0 bytes.
    """
    topology, (chunk, src, dst) = problem.topology, _pairs(problem)
    pair, hop, link = ShortestRoutes.of(problem).hops(src, dst)
    if not len(pair):
        return 0.0
    alpha_us, us_per_mb = link_costs_us(topology)
    mb = (0 if empty else 1) * np.array(problem.chunk_bytes, dtype=float)[chunk[pair]] / 1e6
    takes_us = alpha_us[link] + mb * us_per_mb[link]
    until_us, first = np.cumsum(takes_us), np.flatnonzero(hop == 0)  # of all routes, one after another
    whole_us = np.add.reduceat(takes_us, first)
    before_us = until_us - takes_us - (until_us[first] - takes_us[first])[pair]
    after_us = whole_us[pair] - before_us - takes_us
    left = np.bincount(pair)[pair] - 1 - hop
    ends_us = [float(whole_us.max())]
    for num_hops in (hop, left):
        for least in range(int(hop.max()) + 1):
            rows = num_hops >= least
            ends_us.append(_busiest_end_us(topology, link[rows], mb[rows], before_us[rows], after_us[rows]))
    return max(ends_us)


def _busiest_end_us(topology: Topology, link: Ints, mb: Floats, before_us: Floats, after_us: Floats) -> float:
    """Latest end in us of the sends of a resource, one after another, and of the rest of a route.

    - `mb`, `before_us`, `after_us`, (num_sends,): Size of each send, and times of its route before and after.
    """
    holds, count = hold_columns(topology), len(topology.links)
    num, total_mb = np.bincount(link, minlength=count), np.bincount(link, mb, count)
    used = np.flatnonzero(num[holds.link])
    over, resource, receives = holds.link[used], holds.resource[used], holds.receives[used]
    least = np.full((3, count), np.inf)
    for row, values in zip(least, (mb, before_us, after_us), strict=True):
        np.minimum.at(row, link, values)
    least_mb, least_before, least_after = least[:, over]
    # A send takes `free_us` longer than its hold.
    alpha_us, us_per_mb = (each[over] for each in link_costs_us(topology))
    held_us, held_us_per_mb = (each[used] for each in hold_costs_us(topology))
    free_us = alpha_us - held_us + (us_per_mb - held_us_per_mb) * least_mb
    begins_us = least_before + np.where(receives, free_us, 0.0)
    rests_us = least_after + np.where(receives, 0.0, free_us)
    busy_us = held_us * num[over] + held_us_per_mb * total_mb[over]
    return max(
        _latest_us(resource, begins_us, busy_us, rests_us), _latest_us(resource, rests_us, busy_us, begins_us)
    )


def _latest_us(resource: Ints, begins_us: Floats, busy_us: Floats, rests_us: Floats) -> float:
    """Latest end in us of the holds of a resource that begin no earlier than one of them, and of a rest.

    - `resource`, `begins_us`, `busy_us`, `rests_us`, (num_holds,): Resource of each hold, its earliest begin,
      its length, and the least time that follows it.
    """
    order = lexsort((-begins_us, resource))
    begins_us, busy_us, rests_us = (each[order] for each in (begins_us, busy_us, rests_us))
    first = np.diff(resource[order], prepend=-1) != 0
    group = np.cumsum(first) - 1
    until_us = np.cumsum(busy_us)
    until_us -= (until_us - busy_us)[first][group]
    apart_us = (1 + rests_us.max(initial=0)) * group
    least_us = np.minimum.accumulate(rests_us - apart_us) + apart_us  # over the holds up to each, by resource
    return float((begins_us + until_us + least_us).max(initial=0.0))


def _pairs(problem: Problem) -> tuple[Ints, Ints, Ints]:
    """Columns of chunk, source and destination: a row for each chunk and each other rank that wants it."""
    starts, ends = starts_of(problem), problem.collective.destination_sets
    counts = np.array([len(ranks) for ranks in ends.sets], np.int64)
    chunk = np.repeat(np.arange(len(starts)), counts[ends.of_chunk])
    ranks = [np.array(each, np.int64) for each in ends.sets]
    dst = np.concatenate([np.zeros(0, np.int64), *(ranks[i] for i in ends.of_chunk.tolist())])
    rows = np.flatnonzero(dst != starts[chunk])
    return chunk[rows], starts[chunk[rows]], dst[rows]


def _shifts(topology: Topology, src: Ints, dst: Ints) -> tuple[Ints, Ints]:
    """Difference of nodes and of local ranks from source to destination, each modulo their number.

    For nodes of unequal size: zero, and the difference of rank numbers.
    """
    node, local, of_node = topology.node_of_rank, topology.local_rank, topology.ranks_of_node
    size = len(of_node[0])
    if any(len(ranks) != size for ranks in of_node):
        return np.zeros_like(src), (dst - src) % topology.num_ranks
    far, near = (np.array(each)[dst] - np.array(each)[src] for each in (node, local))
    return far % len(of_node), near % size


def _sums(problem: Problem) -> Sends:
    """Sends of contributions over shortest routes to destinations; contributions that meet are added up."""
    links, routes, used = problem.topology.links, ShortestRoutes.of(problem), Counter[int]()
    wanted: dict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
    for c, chunk in enumerate(problem.collective.chunks):
        for dst in chunk.destinations:
            wanted[dst, chunk.origins].append(c)
    number: dict[tuple[int, ...], int] = {}
    messages: list[tuple[float, int, int, int, list[int]]] = []
    num_transfers = 0
    for (dst, ranks), chunks in wanted.items():
        carried = {rank: {rank} for rank in ranks}
        for far, rank, paths in routes.paths_in(dst):
            if rank not in carried:
                continue
            if not paths:
                routes.route(rank, dst)  # raises the error for a missing route
            # Among shortest routes, take the fastest first link: then most contributions meet, and are added.
            _, _, link = min((ticks, used[link], link) for ticks, link in paths)
            used[link] += len(chunks)
            at, turn = links[link].dst, (links[link].dst - rank) % problem.topology.num_ranks
            named = number.setdefault(tuple(sorted(carried[rank])), len(number))
            messages.append((-far, turn, link, named, chunks))
            carried[at] = carried.get(at, set()) | carried[rank]
            num_transfers += len(chunks)
        check_number(problem, num_transfers)
    messages.sort(key=itemgetter(0, 1))  # farthest first, then by distance of ranks
    of_message = np.array([(*each, len(some)) for _, _, *each, some in messages], np.int64).reshape(-1, 3)
    message = np.repeat(np.arange(len(messages)), of_message[:, 2])
    chunks_of = np.array([c for *_, some in messages for c in some], np.int64)
    over, carries = of_message[message, :2].T
    return sends_over(problem, chunks_of, over, message, sums=list(number), carries=carries)

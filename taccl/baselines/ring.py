"""The ring algorithm, over rings of fast links."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from taccl.arguments import checked
from taccl.baselines.cycles import find_rings, find_rings_apart
from taccl.baselines.routes import Routes
from taccl.baselines.spread import (
    Steps,
    chunks_of_starts,
    cut_chunks,
    cut_while_it_pays,
    fastest,
    require_everywhere,
    run,
    without_sketch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology

    FindRings = Callable[[Topology, Routes], list[list[int]]]

    #: A ring of ranks, and the chunks at each place of it.
    LoadedRing = tuple[Sequence[int], Sequence[Sequence[int]]]


@checked
def ring(problem: Problem, *, cut: bool = True) -> Schedule:
    """A schedule in which every chunk goes round a ring of ranks, and reductions come round it.

    Of four forms the fastest is returned, and its `producer` names it: one ring or several (the chunks are
    dealt out by the rings' speed), and chunks that go round one way, or half the ring each way. The sketch is
    left aside, but for merging.

    NDv2's ring runs over its double links; steps that no link joins are relayed.

    Parameters
    ----------
    problem : Problem
        What is to be done.
    cut : bool
        Whether chunks may be cut, so that every ring has one for each rank, or more.

    Raises
    ------
    CollectiveError
        If a chunk does not concern every rank, as in alltoall.
    TopologyError
        If no links lead from one rank to another.

    References
    ----------
    P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", Journal
    of Parallel and Distributed Computing 69 (2009). Several rings at once, one crossing of nodes each: the
    NVIDIA Collective Communications Library.
    """
    require_everywhere(problem, baseline="ring")
    make, parts = _rings(problem, find_rings, (1, 2))
    return cut_while_it_pays(problem, make, cut=cut, parts=max(2, parts))


def rings_apart(problem: Problem, *, cut: bool = True) -> Schedule:
    """The same as NCCL does it: one way, over rings that share nothing in a node, a chunk for each rank."""
    require_everywhere(problem, baseline="ring")
    make, parts = _rings(problem, find_rings_apart, (1,))
    problem, parts = without_sketch(problem), min(parts, *problem.chunk_bytes)
    return make(cut_chunks(problem, parts) if cut and parts > 1 else problem)


def _rings(
    problem: Problem, find: FindRings, ways: tuple[int, ...]
) -> tuple[Callable[[Problem], Schedule], int]:
    """The fastest form of a problem, and into how many each chunk is cut that all ranks of rings have one."""
    num_rings = len(find(problem.topology, Routes(problem)))
    parts = -(-num_rings * problem.topology.num_ranks // max(1, problem.collective.num_chunks))
    return partial(_fastest_rings, find=find, ways=ways, num_rings=num_rings), parts


def _fastest_rings(problem: Problem, *, find: FindRings, ways: tuple[int, ...], num_rings: int) -> Schedule:
    """The fastest form; where every rank has a chunk for each ring, one ring alone is not tried."""
    own = Counter(
        chunk.root if chunk.root is not None else chunk.origins[0] for chunk in problem.collective.chunks
    )
    are_full = min(own[rank] for rank in range(problem.topology.num_ranks)) >= num_rings
    numbers = (None,) if are_full else (1, None)
    return fastest(
        run(problem, partial(_go_round, find=find, max_rings=n, ways=way)) for n in numbers for way in ways
    )


def pass_round(spread: Steps, rings: Sequence[LoadedRing], ways: int) -> None:
    """Pass chunks round rings, all rings at once: one way, or (`ways` 2) half the ring each way."""
    longest = max((len(order) for order, _ in rings), default=0)
    for step in range(longest - 1):
        moves = []
        for order, chunks_of_place in rings:
            size = len(order)
            forward = size // 2 if ways == 2 else size - 1
            for way, hops in ((1, forward), (-1, size - 1 - forward)):
                if step >= hops:
                    continue
                for place, chunks in enumerate(chunks_of_place):
                    src, dst = (place + way * step) % size, (place + way * (step + 1)) % size
                    moves.append((chunks, order[src], order[dst]))
        spread.step(moves)


def _go_round(problem: Problem, *, find: FindRings, max_rings: int | None, ways: int) -> Schedule:
    spread = Steps(problem)
    rings = find(problem.topology, spread.routes)[:max_rings]
    slowest = [_slowest_step(spread, order) for order in rings]
    num_dealt = [0] * len(rings)
    chunks_of_ring: list[list[list[int]]] = [[[] for _ in order] for order in rings]
    place = [{rank: i for i, rank in enumerate(order)} for order in rings]
    for rank, chunks in enumerate(chunks_of_starts(problem)):
        for c in chunks:
            r = min(range(len(rings)), key=lambda r: ((num_dealt[r] + 1) * slowest[r], r))
            num_dealt[r] += 1
            chunks_of_ring[r][place[r][rank]].append(c)
    pass_round(spread, list(zip(rings, chunks_of_ring, strict=True)), ways)
    number = "1 ring" if len(rings) == 1 else f"{len(rings)} rings"
    return spread.schedule(producer=f"ring ({number}, {'one way' if ways == 1 else 'both ways'})")


def _slowest_step(spread: Steps, order: Sequence[int]) -> int:
    """What the slowest step of a ring takes, relays included; at least 1."""
    costs = spread.problem.costs
    units = int(costs.chunk_units.max(initial=1))
    routes = (spread.routes.route(src, dst) for src, dst in zip(order, [*order[1:], order[0]], strict=True))
    return max(1, *(sum(costs.duration(e, units) for e in route) for route in routes))

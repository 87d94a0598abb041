"""The ring algorithm, over rings of fast links."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from taccl.arguments import checked
from taccl.baselines.cut import cut_while_it_pays
from taccl.baselines.cycles import find_rings
from taccl.baselines.routes import Routes
from taccl.baselines.spread import Spread, chunks_of_starts, fastest_form, require_everywhere

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule

    #: A ring of ranks, and the chunks at each place of it.
    LoadedRing = tuple[Sequence[int], Sequence[Sequence[int]]]

__all__ = ["pass_round", "ring"]


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
    num_rings = len(find_rings(problem.topology, Routes(problem)))
    parts = -(-num_rings * problem.topology.num_ranks // max(1, problem.collective.num_chunks))
    make = partial(_fastest_rings, num_rings=num_rings)
    return cut_while_it_pays(problem, make, cut=cut, parts=max(2, parts))


def _fastest_rings(problem: Problem, *, num_rings: int) -> Schedule:
    """The fastest form; where every rank has a chunk for each ring, one ring alone is not tried."""
    own = Counter(
        chunk.root if chunk.root is not None else chunk.origins[0] for chunk in problem.collective.chunks
    )
    are_full = min(own[rank] for rank in range(problem.topology.num_ranks)) >= num_rings
    numbers = (None,) if are_full else (1, None)
    return fastest_form(
        problem, (partial(_go_round, max_rings=n, ways=ways) for n in numbers for ways in (1, 2))
    )


def pass_round(spread: Spread, rings: Sequence[LoadedRing], ways: int) -> None:
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


def _go_round(problem: Problem, *, max_rings: int | None, ways: int) -> Schedule:
    spread = Spread(problem)
    rings = find_rings(problem.topology, spread.routes)[:max_rings]
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


def _slowest_step(spread: Spread, order: Sequence[int]) -> int:
    """What the slowest step of a ring takes, relays included; at least 1."""
    costs = spread.problem.costs
    units = int(costs.chunk_units.max(initial=1))
    routes = (spread.routes.route(src, dst) for src, dst in zip(order, [*order[1:], order[0]], strict=True))
    return max(1, *(sum(costs.duration(e, units) for e in route) for route in routes))

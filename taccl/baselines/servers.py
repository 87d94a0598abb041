"""Parameter servers: workers push to the rank that sums a chunk, and pull the sum from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from itertools import pairwise
from typing import Literal

import numpy as np

from taccl._internal.arguments import checked
from taccl.baselines.chunking import cut_while_it_pays
from taccl.baselines.routes import ShortestRoutes
from taccl.errors import CollectiveError
from taccl.problem.problem import Problem
from taccl.schedule.listing import Tasks
from taccl.schedule.precedence import Precedence
from taccl.schedule.schedule import Schedule

#: Chunks are cut while that saves 0.5 % of the time: only the pulls of the last chunk overlap no other work.
_PAYS = Fraction(199, 200)
#: Max sends of schedules in finer chunks (about 5 s of CPU time).
MOST_CUT = 100_000
#: Max sends of any schedule; each is a Python object.
_MOST_SENDS = 200_000


@checked
def servers(problem: Problem, *, cut: bool = True, levels: Literal["one", "two"] | None = None) -> Schedule:
    """Parameter-server schedule: contributors push to a chunk's root, and other ranks pull the sum from it.

    With two levels, a server near the workers, such as one in their rack, adds up their pushes. It forwards
    only the sum to a far root; pulls take the same route back. The nearest servers are those to which a
    send holds the fewest resources. The sketch does not apply.

    Parameters
    ----------
    problem, cut
        As in `ring`.
    levels : {"one", "two"}, optional
        Number of levels. Default: the faster.

    Raises
    ------
    CollectiveError
        If the collective does not add up at roots, no link joins a rank and its server, or (with two levels)
        every server is near.

    References
    ----------
    L. Luo et al., "Parameter Hub: a rack-scale parameter server for distributed deep neural network
    training", SoCC 2018.
    """

    def schedule(form: Literal["one", "two"]) -> Schedule:
        make = _one_level if form == "one" else _two_levels
        return cut_while_it_pays(
            problem, make, name=f"servers {form}", cut=cut, pays=_PAYS, most_transfers=MOST_CUT
        )

    if levels is not None:
        return schedule(levels)
    found = [schedule("one")]
    with suppress(CollectiveError):
        found.append(schedule("two"))
    return min(found, key=lambda schedule: schedule.finish)


def _one_level(problem: Problem) -> Schedule:
    return _schedule(problem, lambda _, root: root, "servers")


def _two_levels(problem: Problem) -> Schedule:
    topology, routes = problem.topology, ShortestRoutes.of(problem)
    roots = sorted({chunk.root for chunk in problem.collective.chunks if chunk.root is not None})

    def held(src: int, dst: int) -> int:
        return 0 if src == dst else sum(len(topology.holds_of_link[e]) for e in routes.route(src, dst))

    concerned = sorted({rank for chunk in problem.collective.chunks for rank in chunk.origins} | {*roots})
    near: dict[int, list[int]] = {}
    for rank in concerned:
        least = min((held(rank, root) for root in roots if root != rank), default=0)
        near[rank] = [root for root in roots if held(rank, root) <= least]
    if all(near[rank] == roots for rank in near):
        raise CollectiveError(
            "every server is close to every worker; use servers in one level", where="baseline"
        )

    def relay(rank: int, root: int) -> int:
        if root in near.get(rank, roots):
            return root
        return near[rank][near[root].index(root) % len(near[rank])]

    return _schedule(problem, relay, "servers (two levels)")


def _schedule(problem: Problem, relay: Callable[[int, int], int], producer: str) -> Schedule:
    """Schedule of pushes to roots by way of relays, and of pulls back over the same relays.

    - `relay`: Function (rank, root) -> server to which the rank pushes. With one level, it is the root.
    """
    chunks, routes = problem.collective.chunks, ShortestRoutes.of(problem)
    if not problem.collective.sums_up or any(chunk.root is None for chunk in chunks):
        said = f"servers reduces at roots, but {problem.collective.name} has none; use pairwise"
        raise CollectiveError(said, where="baseline")
    num_sends = sum(len(chunk.origins) + len(chunk.destinations) for chunk in chunks)
    if num_sends > _MOST_SENDS:
        raise CollectiveError(
            f"{problem.title} needs {num_sends} transfers with servers; expected at most {_MOST_SENDS}: "
            "use fewer chunks, or synthesize it without an update",
            where="baseline",
        )
    roots = sorted({chunk.root for chunk in chunks if chunk.root is not None})
    place = {root: i for i, root in enumerate(roots)}
    period = max(len(roots), problem.topology.num_ranks - len(roots), *(len(c.origins) for c in chunks))
    group_of, kept = problem.collective.group_of_chunk, defaultdict[tuple[int, int], int](int)
    sends: list[tuple[int, int, bool]] = []
    turns: dict[tuple[int, bool, int], list[tuple[int, int]]] = defaultdict(list)  # by (sender, adds, level)
    for c, chunk in enumerate(chunks):
        root = chunk.root
        assert root is not None
        # Process groups that share a server push their chunks to it alternately.
        block, kept[group_of[c], root] = kept[group_of[c], root], kept[group_of[c], root] + 1
        for ends, adds in ((chunk.origins, True), (chunk.destinations, False)):
            relays = {rank: relay(rank, root) for rank in ends}
            # A relay adds its own contribution to the sum that it forwards, so it has no push of its own.
            relays |= {each: each for each in relays.values() if each in relays}
            near = [(rank, each) for rank, each in relays.items() if rank not in (root, each)]
            far = [(each, root) for each in sorted({*relays.values()} - {root})]
            for level, hops in enumerate((near, far) if adds else (far, near)):
                for outer, inner in hops:
                    src, dst = (outer, inner) if adds else (inner, outer)
                    link = routes.direct(src, dst)
                    if link is None:
                        said = (
                            f"found no link from rank {src} to rank {dst}, which servers needs; use pairwise"
                        )
                        raise CollectiveError(said, where="baseline")
                    # In a turn, no two pushes have one worker or server in common, and no two pulls.
                    turn = block * period + (outer - place[root]) % period
                    turns[src, adds, level].append((turn, len(sends)))
                    sends.append((c, link[1], adds))
    chunk_of, link_of, adds_at = np.array(sends, dtype=np.int64).reshape(-1, 3).T
    reduce = adds_at.astype(bool)
    order = Precedence(
        problem, problem, chunk=chunk_of, link=link_of, group=np.arange(len(sends)), reduce=reduce,
        start=np.arange(len(sends)), places=True,
    )  # fmt: skip
    tasks = Tasks.of_sends(order)
    urgency = [(0,)] * order.num_events
    for lane in turns.values():
        lane.sort()
        for turn, s in lane:
            urgency[s] = (turn,)
        for (_, s), (_, later) in pairwise(lane):
            tasks.after[s].append((later, 0))
    return order.schedule(tasks.starts(urgency), producer=producer)

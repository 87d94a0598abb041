"""Parameter servers: workers push to the rank that keeps a chunk, and pull from it once it has the sum."""

from __future__ import annotations

from collections import defaultdict, deque
from contextlib import suppress
from fractions import Fraction
from functools import cache, partial
from heapq import heappop, heappush
from math import ceil
from typing import TYPE_CHECKING, Literal, NamedTuple

from taccl.arguments import checked
from taccl.baselines.cut import cut_while_it_pays
from taccl.baselines.routes import Routes
from taccl.errors import CollectiveError
from taccl.schedule.timing import exact_times

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Hold, Link

__all__ = ["servers"]

#: Chunks are cut while that saves a two-hundredth: pulls of the last one are all that is lost.
_PAYS = Fraction(199, 200)
#: More sends than this are refused: each is a Python object, and takes its time.
_MOST_SENDS = 200_000


@checked
def servers(problem: Problem, *, cut: bool = True, levels: Literal["one", "two"] | None = None) -> Schedule:
    """A schedule in which all that contribute push to a chunk's root, and all that want the sum pull from it.

    In two levels a server near the workers (over whose links the fewest resources are held: one of their
    rack) adds up what they push, and only that goes on to a far root; pulls come the same way. The sketch
    is left aside.

    Parameters
    ----------
    problem, cut
        As in `ring`.
    levels : {"one", "two"}, optional
        Default: whichever finishes first.

    Raises
    ------
    CollectiveError
        If the collective does not add up at roots, no link joins a rank and its server, or (in two levels)
        every server is near.

    References
    ----------
    L. Luo et al., "Parameter Hub: a rack-scale parameter server for distributed deep neural network
    training", SoCC 2018.
    """
    forms = {"one": _one_level, "two": _two_levels}
    if levels is not None:
        return cut_while_it_pays(problem, forms[levels], cut=cut, pays=_PAYS)
    found = [cut_while_it_pays(problem, _one_level, cut=cut, pays=_PAYS)]
    with suppress(CollectiveError):
        found.append(cut_while_it_pays(problem, _two_levels, cut=cut, pays=_PAYS))
    return min(found, key=lambda schedule: schedule.finish)


def _one_level(problem: Problem) -> Schedule:
    return _schedule(problem, lambda _, root: root, "servers")


def _two_levels(problem: Problem) -> Schedule:
    topology, routes = problem.topology, Routes(problem)
    roots = sorted({chunk.root for chunk in problem.collective.chunks if chunk.root is not None})

    def held(src: int, dst: int) -> int:
        return 0 if src == dst else sum(len(topology.holds_of_link[e]) for e in routes.route(src, dst))

    concerned = sorted({rank for chunk in problem.collective.chunks for rank in chunk.origins} | {*roots})
    near: dict[int, list[int]] = {}
    for rank in concerned:
        least = min((held(rank, root) for root in roots if root != rank), default=0)
        near[rank] = [root for root in roots if held(rank, root) <= least]
    if all(near[rank] == roots for rank in near):
        raise CollectiveError("every server is near every worker; use servers in one level", where="baseline")

    def relay(rank: int, root: int) -> int:
        if root in near.get(rank, roots):
            return root
        return near[rank][near[root].index(root) % len(near[rank])]

    return _schedule(problem, relay, "servers (two levels)")


def _schedule(problem: Problem, relay: Callable[[int, int], int], producer: str) -> Schedule:
    """Pushes by way of relays, and pulls by the same way back."""
    chunks, routes = problem.collective.chunks, Routes(problem)
    if not problem.collective.sums_up or any(chunk.root is None for chunk in chunks):
        said = f"servers add up, and {problem.collective.name} does not, or names no roots; use pairwise"
        raise CollectiveError(said, where="baseline")
    num_sends = sum(len(chunk.origins) + len(chunk.destinations) for chunk in chunks)
    if num_sends > _MOST_SENDS:
        raise CollectiveError(
            f"{problem.title} takes {num_sends} transfers with servers; expected at most {_MOST_SENDS}: take "
            "fewer chunks, or synthesize it without an update",
            where="baseline",
        )
    roots = sorted({chunk.root for chunk in chunks if chunk.root is not None})
    place = {root: i for i, root in enumerate(roots)}
    period = max(len(roots), problem.topology.num_ranks - len(roots), *(len(c.origins) for c in chunks))
    group_of, kept = problem.collective.group_of_chunk, defaultdict[tuple[int, int], int](int)
    sends: list[_Send] = []
    for c, chunk in enumerate(chunks):
        root = chunk.root
        assert root is not None
        # Groups that share servers take turns.
        block, kept[group_of[c], root] = kept[group_of[c], root], kept[group_of[c], root] + 1
        brought: dict[int, list[int]] = defaultdict(list)  # sends that bring it to a rank
        for ends, adds in ((chunk.origins, True), (chunk.destinations, False)):
            relays = {rank: relay(rank, root) for rank in ends}
            near = [(rank, each) for rank, each in relays.items() if rank not in (root, each)]
            far = [(each, root) for each in sorted({*relays.values()} - {root})]
            for level, hop in enumerate((near, far) if adds else (far, near)):
                for outer, inner in hop:
                    src, dst = (outer, inner) if adds else (inner, outer)
                    link = routes.direct(src, dst)
                    if link is None:
                        said = (
                            f"servers needs a link from rank {src} to rank {dst}, and there is none; use tree"
                        )
                        raise CollectiveError(said, where="baseline")
                    # No two go to one server, nor from one worker, in a turn.
                    turn = block * period + (outer - place[root]) % period
                    lane = (src, adds, level)
                    sends.append(_Send(turn, c, link[1], adds, lane, tuple(brought[src])))
                    brought[dst].append(len(sends) - 1)
    return exact_times(
        problem,
        chunk=[send.chunk for send in sends],
        link=[send.link for send in sends],
        reduce=[send.adds for send in sends],
        starts=_soonest_first(problem, sends),
        producer=producer,
    )


class _Send(NamedTuple):
    """A chunk over a link, once other sends have come to their ends; those of a lane go in their turns."""

    turn: int
    chunk: int
    link: int
    adds: bool
    lane: tuple[int, bool, int]
    awaited: tuple[int, ...]


def _soonest_first(problem: Problem, sends: Sequence[_Send]) -> list[int]:
    """When each send starts, in ticks: ever one that can start soonest; those of a lane in their turns."""
    lanes: dict[tuple[int, bool, int], deque[int]] = defaultdict(deque)
    for s in sorted(range(len(sends)), key=lambda s: sends[s].turn):
        lanes[sends[s].lane].append(s)
    waiting: dict[int, list[int]] = defaultdict(list)  # what is first in its lane, by what it waits for
    spans = cache(partial(_spans, problem))
    begin, end = [0] * len(sends), [-1] * len(sends)
    free = [0] * len(problem.topology.resources)
    queue: list[tuple[int, int, int]] = []

    def enter(s: int) -> None:
        """Queue the first send of a lane, unless it waits for one that has not been queued yet."""
        missing = next((each for each in sends[s].awaited if end[each] < 0), None)
        if missing is not None:
            waiting[missing].append(s)
            return
        there = max((end[each] for each in sends[s].awaited), default=0)
        heappush(queue, (there + _update_ticks(problem, sends[s]), sends[s].turn, s))

    for lane in lanes.values():
        enter(lane[0])
    while queue:
        ready, turn, s = heappop(queue)
        duration, held = spans(sends[s].link, problem.chunk_bytes[sends[s].chunk])
        start = max(ready, *(free[resource] - since for resource, since, _ in held))
        if start > ready:
            heappush(queue, (start, turn, s))
            continue
        begin[s], end[s] = start, start + duration
        for resource, _, until in held:
            free[resource] = start + until
        lane = lanes[sends[s].lane]
        lane.popleft()
        for each in (*waiting.pop(s, ()), *([lane[0]] if lane else ())):
            enter(each)
    return begin


def _update_ticks(problem: Problem, send: _Send) -> int:
    """For how long a server works on a chunk before it sends it."""
    chunk, us_per_mb = problem.collective.chunks[send.chunk], problem.collective.update_us_per_mb or 0
    if send.adds or problem.topology.links[send.link].src != chunk.root:
        return 0
    return ceil(us_per_mb * Fraction(problem.chunk_bytes[send.chunk], 10**6) * problem.costs.ticks_per_us)


def _spans(problem: Problem, link: int, num_bytes: int) -> tuple[int, list[tuple[int, int, int]]]:
    """The ticks of a send, and what it holds: (resource, since when, until when) after its start."""
    per_us = problem.costs.ticks_per_us

    def ticks(each: Link | Hold) -> int:
        return ceil((each.alpha_us + each.beta_us_per_mb * Fraction(num_bytes, 10**6)) * per_us)

    duration, held = ticks(problem.topology.links[link]), []
    for hold in problem.topology.holds_of_link[link]:
        length = ticks(hold)
        since = duration - length if hold.side == "receive" else 0
        held.append((hold.resource, since, since + length))
    return duration, held

"""Re-planning after a failure: a new schedule that keeps what still holds of an old one.

The way of every chunk is read from the old schedule as a tree. Where links or ranks are lost, only what is
cut off is reached again, by the cheapest way on the links that are left; where a link has become slower than
what it carries, chunks are led round it while that helps. Then all sends are timed anew, and the routes that
changed are improved by ruin and recreate; all routes, where it finishes later than before.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from taccl.analysis.verification.verify import verify
from taccl.arguments import checked
from taccl.errors import InputError
from taccl.schedule.schedule import Schedule
from taccl.schedule.timing import exact_times
from taccl.sketch.reachability import check_reachable
from taccl.synthesis.heuristic.fixed import Planner, schedule_trees
from taccl.synthesis.heuristic.improvement import compile_improvement, improve_schedule, suits_improvement
from taccl.synthesis.heuristic.routes import Roads, Tree, bare_trees, lighten, mend, read_trees
from taccl.synthesis.memory import check_memory
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.synthesis.synthesize import synthesize
from taccl.units import format_count, format_us

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from taccl.arguments import Megabytes, Natural, Seconds
    from taccl.problem import Problem
    from taccl.synthesis.heuristic.fixed import Order, Sends

__all__ = ["Replan", "replan"]


@dataclass(frozen=True, slots=True)
class Replan:
    """A verified schedule after a failure, and how much of the old one is in it.

    Parameters
    ----------
    schedule : Schedule
    old : Schedule
    num_kept : int
        Transfers of the old schedule that are left: the same chunk over the same link, at any time.
    num_added : int
        Transfers that the old schedule did not have.
    changed : tuple of int
        Chunks, as the new problem numbers them, that go another way than before.
    from_scratch : bool
        Whether nothing could be mended, and all was synthesized anew.
    seconds : float
    """

    schedule: Schedule
    old: Schedule
    num_kept: int
    num_added: int
    changed: tuple[int, ...]
    from_scratch: bool
    seconds: float

    @property
    def finish_us(self) -> float:
        """The last arrival, in microseconds."""
        return self.schedule.finish_us

    @property
    def num_dropped(self) -> int:
        """Transfers of the old schedule that are gone."""
        return self.old.num_transfers - self.num_kept

    def __repr__(self) -> str:
        problem = self.schedule.problem
        return (
            f"Replan({problem.title}: finish "
            f"{format_us(self.finish_us)}, {format_us(self.old.finish_us)} before; "
            f"{format_count(self.num_kept, 'transfer')} kept, {self.num_dropped} dropped, {self.num_added} "
            f"added; {len(self.changed)} of {format_count(problem.collective.num_chunks, 'chunk')} changed; "
            f"verified, in {self.seconds:.2f} s)"
        )


@checked
def replan(
    old: Schedule,
    problem: Problem,
    *,
    ranks: Sequence[int] | None = None,
    time_limit_s: Seconds = 1.0,
    seed: Natural = 0,
    memory_limit_mb: Megabytes | None = None,
    parameters: SearchParameters = DEFAULTS,
) -> Replan:
    """A verified schedule of a problem that keeps what it can of the schedule of another.

    Parameters
    ----------
    old : Schedule
        Of the problem before something failed.
    problem : Problem
        What is left: the topology without what failed, and its collective. Links are known by their ends and
        name, chunks by where they start, are rooted and end.
    ranks : sequence of int, optional
        The old number of every rank of the problem; by default ranks kept their numbers. After
        ``without(topology, ranks=...)`` it is the ranks that are left, in order.
    time_limit_s : float
        When to stop trying to finish earlier; the first schedule is always finished.
    seed : int
        Of the search.
    memory_limit_mb : int, optional
        By default 80 % of what is free. What would need more is refused before it begins.
    parameters : SearchParameters
        Constants of the search.

    Raises
    ------
    InputError
        If `ranks` does not name an old rank for every new one, once each, the problem shares no chunk with
        the old schedule, the time limit is not positive, or there is not enough memory.
    SketchError, TopologyError
        If a chunk cannot reach a destination any more.
    """
    began = time.monotonic()
    check_memory(problem, memory_limit_mb=memory_limit_mb, mended=True)
    new_rank = _new_ranks(old, problem, ranks)
    new_link = _new_links(old.problem, problem, new_rank)
    new_chunk = _new_chunks(old.problem, problem, new_rank)
    check_reachable(problem)
    deadline = began + time_limit_s
    old_trees = read_trees(old)
    trees = _carried_over(old_trees, problem, new_rank, new_link, new_chunk)
    roads = Roads(problem, trees)
    scale = Fraction(problem.costs.ticks_per_us, old.problem.costs.ticks_per_us)
    starts = {
        (new_chunk[t.chunk], new_link[t.link], t.reduce): int(t.start_ticks * scale)
        for t in old
        if t.chunk in new_chunk and t.link in new_link
    }
    schedule = None
    if trees and mend(roads, trees):
        slower = _slower(old.problem, problem, new_link)
        free = [tree for tree in trees if tree.is_mended or not slower.isdisjoint(tree.link_to.values())]
        lighten(roads, free, ceiling=_busiest_ticks(old.problem, old_trees, problem), deadline=deadline)
        order = _first_order(Planner(problem), roads, trees, starts)
        schedule = schedule_trees(problem, trees, order)
        if schedule is not None and suits_improvement(problem):
            asked = time.monotonic()
            compile_improvement()  # which no time limit counts
            left = deadline - parameters.replan.reserve_share * time_limit_s - asked
            # What finishes no later than before leaves alone what did not fail.
            chunks = {tree.chunk for tree in free} if schedule.finish <= old.finish else None
            if chunks != set():
                schedule, _ = improve_schedule(schedule, seconds=max(0.0, left), seed=seed, chunks=chunks)
    same = _unchanged(old, problem, new_chunk, new_link)
    candidates = [each for each in (same, schedule) if each is not None and verify(each).ok]
    schedule = min(candidates, key=lambda each: each.finish_ticks, default=None)
    from_scratch = schedule is None
    if schedule is None:
        found = synthesize(
            problem, backend="greedy", time_limit_s=time_limit_s, seed=seed, parameters=parameters
        ).schedule
        schedule = found if isinstance(found, Schedule) else found.expand()
    before, after = set(starts), {(t.chunk, t.link, t.reduce) for t in schedule}
    return Replan(
        schedule=schedule,
        old=old,
        num_kept=len(before & after),
        num_added=len(after - before),
        changed=tuple(sorted({c for c, _, _ in before ^ after})),
        from_scratch=from_scratch,
        seconds=time.monotonic() - began,
    )


def _new_ranks(old: Schedule, problem: Problem, ranks: Sequence[int] | None) -> dict[int, int]:
    """The new number of every old rank that is left."""
    was, count = old.problem.topology.num_ranks, problem.topology.num_ranks
    if ranks is None:
        if was != count:
            raise InputError(
                f"found {count} ranks, and {was} in the old schedule; give the old number of every rank",
                where="ranks",
            )
        ranks = range(count)
    known = len(ranks) == count == len(set(ranks)) and all(0 <= rank < was for rank in ranks)
    if not known:
        raise InputError(
            f"found {list(ranks)[:16]}; expected {count} different ranks of 0-{was - 1}", where="ranks"
        )
    return {rank: new for new, rank in enumerate(ranks)}


def _matched(old: Iterable[tuple[int, Hashable]], new: Iterable[tuple[int, Hashable]]) -> dict[int, int]:
    """Where every old index goes: to the new index of its name; of several, the k-th to the k-th."""
    named: dict[Hashable, list[int]] = defaultdict(list)
    for index, name in new:
        named[name].append(index)
    for indices in named.values():
        indices.reverse()
    return {index: named[name].pop() for index, name in old if named.get(name)}


def _new_links(old: Problem, new: Problem, new_rank: dict[int, int]) -> dict[int, int]:
    """The new index of every old link that is left, and that the sketch allows."""

    def renamed(ranks: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(new_rank.get(rank, -1) for rank in ranks))

    links = old.topology.links
    before = ((e, (renamed(link.srcs), renamed(link.dsts), link.name)) for e, link in enumerate(links))
    links_after = ((e, new.topology.links[e]) for e in new.links_allowed)
    after = ((e, (tuple(sorted(x.srcs)), tuple(sorted(x.dsts)), x.name)) for e, x in links_after)
    return _matched(before, after)


def _new_chunks(old: Problem, new: Problem, new_rank: dict[int, int]) -> dict[int, int]:
    """The new index of every old chunk that is left: the one that starts, is rooted and ends as it did."""

    def names(problem: Problem, ranks: dict[int, int]) -> list[tuple[int, Hashable]]:
        made_at = {d.chunk: ranks.get(d.rank, -1) for d in problem.collective.derivations}
        return [
            (
                c,
                (
                    tuple(sorted(ranks[r] for r in data.origins if r in ranks)),
                    tuple(sorted(ranks[r] for r in data.destinations if r in ranks)),
                    None if data.root is None else ranks.get(data.root, -1),
                    made_at.get(c),
                ),
            )
            for c, data in enumerate(problem.collective.chunks)
        ]

    same = {rank: rank for rank in range(new.topology.num_ranks)}
    found = _matched(names(old, new_rank), names(new, same))
    if not found and new.collective.chunks:
        raise InputError(
            f"{new.collective.name} shares no chunk with the old schedule's {old.collective.name}; "
            "synthesize it",
            where="problem",
        )
    return found


def _carried_over(
    old_trees: Sequence[Tree],
    problem: Problem,
    new_rank: dict[int, int],
    new_link: dict[int, int],
    new_chunk: dict[int, int],
) -> list[Tree]:
    """The old trees on what is left, without the links that are lost or may not carry the chunk."""
    known = {(new_chunk.get(tree.chunk), tree.reducing): tree for tree in old_trees}
    roots: dict[int, int] = {}
    # Clauses speak of a chunk's root: with such, its sum is complete there and nowhere else.
    if not problem.clauses.said("chunk", "path", "order"):
        for (c, reducing), tree in known.items():
            home = next(iter(tree.origins), None)
            if reducing and c is not None and home in new_rank:
                roots[c] = new_rank[home]
    trees = bare_trees(problem, roots=roots)
    for tree in trees:
        was = known.get((tree.chunk, tree.reducing))
        for rank, link in was.link_to.items() if was is not None else ():
            here, e = new_rank.get(rank), new_link.get(link)
            if here is None or e is None or here in tree.origins:
                continue
            if problem.may_carry(e, tree.chunk, reducing=tree.reducing):
                tree.link_to[here] = e
        # What is cut off but leads to a target stays: mending has to reach its first rank only.
        tree.prune(problem)
    return trees


def _unchanged(
    old: Schedule, problem: Problem, new_chunk: Mapping[int, int], new_link: Mapping[int, int]
) -> Schedule | None:
    """All transfers in their old order, timed anew; None where one is lost, or the order is none any more."""
    if not all(t.chunk in new_chunk and t.link in new_link for t in old):
        return None
    try:
        return exact_times(
            problem,
            chunk=[new_chunk[c] for c in old.chunk.tolist()],
            link=[new_link[e] for e in old.link.tolist()],
            starts=old.start,
            group=old.group,
            reduce=old.reduce,
            producer=old.producer,
        )
    except ValueError:
        return None


def _first_order(
    planner: Planner, roads: Roads, trees: Sequence[Tree], starts: Mapping[tuple[int, int, bool], int]
) -> Order:
    """The sends of all trees as they were ordered before, or those first that most waits for."""
    sends = planner.sends(trees)
    as_before = planner.find(trees, urgency=-np.array(_expected(roads, sends, starts), np.int64))
    return min(planner.find(trees), as_before, key=lambda order: order.finish_ticks)


def _expected(roads: Roads, sends: Sends, starts: Mapping[tuple[int, int, bool], int]) -> list[int]:
    """When every send would start if all went on as before: as it did, or once what it waits for is there."""
    rows = list(zip(sends.chunk.tolist(), sends.link.tolist(), sends.reduces.tolist(), strict=True))
    expected = [starts.get(row, 0) for row in rows]
    after: list[list[int]] = [[] for _ in rows]
    left = [0] * len(rows)
    for a, b in sends.arcs.tolist():
        after[a].append(b)
        left[b] += 1
    ready = [m for m, count in enumerate(left) if not count]
    for m in ready:
        end = expected[m] + roads.took(rows[m][1], rows[m][0])
        for other in after[m]:
            expected[other] = max(expected[other], end)
            left[other] -= 1
            if not left[other]:
                ready.append(other)
    return expected


def _slower(old: Problem, new: Problem, new_link: dict[int, int]) -> set[int]:
    """New links that are slower than they were."""
    was, now = old.topology.links, new.topology.links
    return {
        e
        for link, e in new_link.items()
        if now[e].alpha_us > was[link].alpha_us or now[e].beta_us_per_mb > was[link].beta_us_per_mb
    }


def _busiest_ticks(old: Problem, old_trees: Sequence[Tree], problem: Problem) -> int:
    """How long the old schedule held its busiest resource, in the new problem's ticks."""
    most = max(Roads(old, old_trees).ticks, default=0)
    return math.floor(old.costs.us(most) * problem.costs.ticks_per_us)

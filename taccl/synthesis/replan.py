"""Re-planning after a failure: a new schedule that keeps what still holds of an old one.

The route of every chunk is read from the old schedule as a tree. Where links or ranks are lost, or links have
become slower, only what is cut off is reached again, by the cheapest route on the links that are left. Then
all sends are timed anew in the order that they had, and the routes that changed are improved by ruin and
recreate; all routes, where it finishes later than before.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

from taccl.analysis.verification.verify import verify
from taccl.arguments import checked
from taccl.errors import InputError
from taccl.schedule.schedule import Schedule
from taccl.schedule.timing import exact_times
from taccl.sketch.reachability import check_reachable
from taccl.synthesis.heuristic.improvement import compile_improvement, improve_schedule, suits_improvement
from taccl.synthesis.heuristic.routes import bare_trees, mend, read_trees
from taccl.synthesis.memory import check_memory
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.synthesis.synthesize import synthesize
from taccl.units import format_count, format_us

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from taccl.arguments import Megabytes, Natural, Seconds
    from taccl.problem import Problem
    from taccl.synthesis.heuristic.routes import Tree

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

    A schedule whose ranks keep contributions apart has no trees to mend: it is kept whole, or made anew.

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
    was_there = {link: e for link, e in new_link.items() if not _is_slower(old.problem, problem, link, e)}
    trees, is_whole = [], False
    for links in (
        (was_there, new_link) if old.carries is None else ()
    ):  # what came over slower links may have no other route
        trees = _carried_over(read_trees(old), problem, new_rank, links, new_chunk)
        if is_whole := bool(trees) and mend(problem, trees):
            break
    scale = Fraction(problem.costs.ticks_per_us, old.problem.costs.ticks_per_us)
    merges = problem.clauses.merging if problem.clauses.max_merge >= old.problem.clauses.max_merge else ()
    before = {
        (new_chunk[t.chunk], new_link[t.link], t.reduce): (
            int(t.start_ticks * scale),
            t.group if new_link[t.link] in merges else (t.chunk,),
        )
        for t in old
        if t.chunk in new_chunk and t.link in new_link
    }
    schedule = _in_old_order(problem, trees, before) if is_whole else None
    mended = {tree.chunk for tree in trees if tree.is_mended}
    limits = parameters.replan
    if schedule is not None and mended and suits_improvement(problem, most_routes=limits.most_routes):
        asked = time.monotonic()
        compile_improvement()  # which no time limit counts
        left = began + (1 - limits.reserve_share) * time_limit_s - asked
        turns = limits.least_sends // len(schedule)
        schedule, _ = improve_schedule(schedule, turns=turns, seed=seed, chunks=mended)
        # What finishes no later than before leaves alone what did not fail.
        chunks = mended if schedule.finish <= old.finish else None
        schedule, _ = improve_schedule(schedule, seconds=max(0.0, left), seed=seed, chunks=chunks)
    same = _unchanged(old, problem, new_chunk, new_link, new_rank)
    candidates = [each for each in (same, schedule) if each is not None and verify(each).ok]
    schedule = min(candidates, key=lambda each: each.finish_ticks, default=None)
    from_scratch = schedule is None
    if schedule is None:
        found = synthesize(
            problem, backend="greedy", time_limit_s=time_limit_s, seed=seed, parameters=parameters
        ).schedule
        schedule = found if isinstance(found, Schedule) else found.expand()
    was, now = before.keys(), {(t.chunk, t.link, t.reduce) for t in schedule}
    return Replan(
        schedule=schedule,
        old=old,
        num_kept=len(was & now),
        num_added=len(now - was),
        changed=tuple(sorted({c for c, _, _ in was ^ now})),
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
        tree.prune(problem)
    return trees


def _unchanged(
    old: Schedule,
    problem: Problem,
    new_chunk: Mapping[int, int],
    new_link: Mapping[int, int],
    new_rank: Mapping[int, int],
) -> Schedule | None:
    """All transfers in their old order, timed anew; None where one is lost, or the order is none any more."""
    if not all(t.chunk in new_chunk and t.link in new_link for t in old):
        return None
    named = old.contributions
    if named is not None and not all(rank in new_rank for ranks in named for rank in ranks):
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
            contributions=None if named is None else [[new_rank[r] for r in ranks] for ranks in named],
        )
    except ValueError:
        return None


def _in_old_order(
    problem: Problem, trees: Sequence[Tree], before: Mapping[tuple[int, int, bool], tuple[int, Hashable]]
) -> Schedule | None:
    """Every send when it was before, or once what it waits for is there; None if some wait for each other.

    Parameters
    ----------
    before : mapping of (chunk, link, whether it reduces) to (start, what else travels in the same send)
    """
    costs = problem.costs
    rows = [(tree, link) for tree in trees for link in dict.fromkeys(tree.link_to.values())]
    number: dict[tuple[int, bool, Hashable], int] = {}
    send: list[int] = []
    start: list[int] = []
    took: list[int] = []
    for tree, link in rows:
        at, together = before.get((tree.chunk, link, tree.reducing), (0, (tree.chunk,)))
        m = number.setdefault((link, tree.reducing, together), len(number))
        if m == len(start):
            start.append(at)
            took.append(int(costs.link_alpha[link]))
        took[m] += int(costs.chunk_units[tree.chunk] * costs.link_beta[link])
        send.append(m)
    try:
        waits = _waits(problem, rows, send)
        for m in TopologicalSorter(waits).static_order():
            start[m] = max([start[m], *(start[other] + took[other] for other in waits[m])])
        return exact_times(
            problem,
            chunk=[tree.chunk for tree, _ in rows],
            link=[link for _, link in rows],
            starts=[start[m] for m in send],
            group=send,
            reduce=[tree.reducing for tree, _ in rows],
            producer="replan",
        )
    except ValueError:  # a cycle
        return None


def _waits(problem: Problem, rows: Sequence[tuple[Tree, int]], send: Sequence[int]) -> dict[int, set[int]]:
    """The sends that every send along trees waits for, by the send that each (tree, link) is part of."""
    links, collective = problem.topology.links, problem.collective
    starts_at = {tree.chunk: tree.origins for tree, _ in rows if not tree.reducing}
    source_of = {(d.chunk, d.rank): d.source for d in collective.derivations}
    brings: dict[tuple[int, int, bool], set[int]] = defaultdict(set)
    on_link: dict[tuple[int, bool], dict[bool, set[int]]] = defaultdict(lambda: {False: set(), True: set()})
    for (tree, link), m in zip(rows, send, strict=True):
        ends = links[link]
        for rank in ends.dsts:
            if tree.reducing or tree.link_to.get(rank) == link:
                brings[tree.chunk, rank, tree.reducing].add(m)
        if link in problem.clauses.own_first:
            is_own = not tree.origins.isdisjoint(ends.dsts if tree.reducing else ends.srcs)
            on_link[link, tree.reducing][is_own].add(m)

    def bring(c: int, rank: int, *, reducing: bool) -> set[int]:
        """The sends by which a rank gets a chunk, or all that it adds to its own."""
        while not reducing and rank in starts_at.get(c, ()):
            if (c, rank) not in source_of or rank in collective.chunks[c].origins:
                reducing = True
            else:
                c = source_of[c, rank]
        return brings[c, rank, reducing]

    waits: dict[int, set[int]] = {m: set() for m in send}
    for (tree, link), m in zip(rows, send, strict=True):
        for rank in links[link].srcs:
            waits[m] |= bring(tree.chunk, rank, reducing=tree.reducing)
    for (_, reducing), sends in on_link.items():
        first, then = sends[not reducing], sends[reducing]
        for m in then - first:
            waits[m] |= first - then if reducing else first
    return waits


def _is_slower(old: Problem, new: Problem, link: int, e: int) -> bool:
    """Whether a new link is slower than it was."""
    was, now = old.topology.links[link], new.topology.links[e]
    return now.alpha_us > was.alpha_us or now.beta_us_per_mb > was.beta_us_per_mb

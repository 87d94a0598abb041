"""Re-planning after a failure: a new schedule that reuses the valid parts of an old one.

The route of every chunk is read from the old schedule as a tree. If links or ranks are lost, or links have
become slower, only disconnected parts are routed again. Ruin and recreate completes the trees, keeps the
order of sends, and improves the trees that changed; or all trees, if the schedule finishes later than before.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from taccl._internal.arguments import Megabytes, Natural, Seconds, checked, quoted
from taccl._internal.deadline import Deadline
from taccl._internal.units import format_count, format_us
from taccl.analysis.verification.verify import verify
from taccl.errors import InputError
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.schedule.timing import exact_times
from taccl.sketch.reachability import check_reachable
from taccl.synthesis.improve.improvement import (
    Improvement,
    compile_improvement,
    first_turns,
    improve_schedule,
    suits_improvement,
)
from taccl.synthesis.improve.routes import Tree, bare_trees, read_trees
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.synthesis.synthesize import synthesize
from taccl.synthesis.transforms.exchange import exchanged
from taccl.synthesis.transforms.isomorphic import matched

_RESERVE_SHARE = 0.3  # share of the time reserved for building and verifying the schedule
#: Max sends re-timed in the first iterations of ruin and recreate, which precede the time limit.
_LEAST_SENDS = 400_000
_MOST_ROUTES = 250_000  # max routes (trees times ranks) for improvement


@dataclass(frozen=True, slots=True)
class Replan:
    """A verified schedule after a failure, compared with the old one.

    Parameters
    ----------
    schedule : Schedule
    old : Schedule
    num_kept : int
        Transfers of the old schedule that are kept: the same chunk over the same link, at any time.
    num_added : int
        Transfers that the old schedule did not have.
    changed : tuple of int
        Chunks, as numbered by the new problem, whose routes differ from before.
    from_scratch : bool
        True if the old schedule could not be reused, so that a new one was synthesized.
    seconds : float
        Seconds of the re-planning.
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
        """Time of the last arrival, in microseconds."""
        return self.schedule.finish_us

    @property
    def num_dropped(self) -> int:
        """Number of transfers of the old schedule that the new one lacks."""
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
    """A verified schedule of a problem that reuses what it can of the schedule of another problem.

    Not supported are routes that are not trees (unreduced contributions or derived chunks), local-first
    priority, limited paths, and too many routes. The old schedule is then kept as a whole if it is still
    valid; otherwise a new one is synthesized.

    Parameters
    ----------
    old : Schedule
        Schedule of the problem before the failure.
    problem : Problem
        The problem after the failure: the topology without the failed parts, and its collective. Links are
        matched by their ends and name, chunks by their origins, root and destinations.
    ranks : sequence of int, optional
        Old number of each rank of the problem; None if ranks kept their numbers. After
        ``without(topology, ranks=...)``, these are the remaining ranks, in order.
    time_limit_s : float
        Seconds after which no further improvement is tried; the first schedule is always completed.
    seed : int
        Seed of the search.
    memory_limit_mb : int, optional
        Memory limit of a new synthesis; see `synthesize`.
    parameters : SearchParameters
        Constants of the search.

    Raises
    ------
    InputError
        If `ranks` does not name a different old rank for every new one, the problem shares no chunk with
        the old schedule, the time limit is not positive, or memory does not suffice for a new synthesis.
    SketchError, TopologyError
        If a chunk can no longer reach a destination.
    """
    began = time.monotonic()
    new_rank = _new_ranks(old, problem, ranks)
    new_link = _new_links(old.problem, problem, new_rank)
    new_chunk = _new_chunks(old.problem, problem, new_rank)
    check_reachable(problem)
    same = None
    with suppress(KeyError, ValueError):  # a transfer is lost, or the order is invalid now
        same = _unchanged(old, problem, new_chunk, new_link, new_rank)
    schedule, limits = None, Limits(seed=seed, parameters=parameters)
    if old.carries is None and suits_improvement(problem, most_routes=_MOST_ROUTES):
        links, links_now = old.problem.topology.links, problem.topology.links
        was_there = {
            link: e
            for link, e in new_link.items()
            if links_now[e].alpha_us <= links[link].alpha_us
            and links_now[e].beta_us_per_mb <= links[link].beta_us_per_mb
        }
        trees = _carried_over(read_trees(old), problem, new_rank, was_there, new_chunk)
        cut_off = {tree.chunk for tree in trees if not tree.drop_loose_ends(problem)}
        if cut_off or (trees and same is None):
            asked = time.monotonic()
            compile_improvement()  # its seconds do not count towards the time limit
            left_s = max(0.0, began + (1 - _RESERVE_SHARE) * time_limit_s - asked)
            search = Improvement(problem, trees, limits, chunks=cut_off)
            turns = first_turns(old.num_transfers, parameters.ruin) if cut_off else 0
            if search.run(turns=min(turns, _LEAST_SENDS // max(1, old.num_transfers))) >= 0:
                schedule = search.schedule("replan")
    if schedule is not None and cut_off:
        # If the finish is no later than before, unaffected chunks stay as they are.
        chunks = cut_off if schedule.finish <= old.finish else None
        limits = replace(limits, deadline=Deadline.after(left_s))
        schedule, _ = improve_schedule(schedule, limits, chunks=chunks)
    crossed = None
    with suppress(InputError, ValueError):
        crossed = None if schedule is None else exchanged(schedule)
    candidates = [each for each in (same, schedule, crossed) if each is not None and verify(each).ok]
    schedule = min(candidates, key=lambda each: each.finish_ticks, default=None)
    from_scratch = schedule is None
    if schedule is None:
        schedule = synthesize(
            problem, backend="greedy", time_limit_s=time_limit_s, seed=seed,
            memory_limit_mb=memory_limit_mb, parameters=parameters,
        ).schedule  # fmt: skip
    known = (t for t in old if t.chunk in new_chunk and t.link in new_link)
    was = {(new_chunk[t.chunk], new_link[t.link], t.reduce) for t in known}
    now = {(t.chunk, t.link, t.reduce) for t in schedule}
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
    """{old rank: new rank} of the remaining ranks."""
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
            f"found {quoted(list(ranks))}; expected {count} different ranks of 0-{was - 1}", where="ranks"
        )
    return {rank: new for new, rank in enumerate(ranks)}


def _new_links(old: Problem, new: Problem, new_rank: dict[int, int]) -> dict[int, int]:
    """{old link: new link} of the remaining links that the sketch allows."""

    def renamed(ranks: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(new_rank.get(rank, -1) for rank in ranks))

    links = old.topology.links
    before = ((e, (renamed(link.srcs), renamed(link.dsts), link.name)) for e, link in enumerate(links))
    links_after = ((e, new.topology.links[e]) for e in new.links_allowed)
    after = ((e, (tuple(sorted(x.srcs)), tuple(sorted(x.dsts)), x.name)) for e, x in links_after)
    return matched(before, after)


def _new_chunks(old: Problem, new: Problem, new_rank: dict[int, int]) -> dict[int, int]:
    """{old chunk: new chunk} of the remaining chunks, matched by origins, root and destinations."""

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
    found = matched(names(old, new_rank), names(new, same))
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
    """The old trees in the new problem, without links that are lost or may not carry the chunk."""
    known = {(new_chunk.get(tree.chunk), tree.reducing): tree for tree in old_trees}
    roots: dict[int, int] = {}
    # Clauses on chunks refer to their roots; with such clauses a sum must be completed at its own root.
    if not problem.clauses.said("chunk", "path", "order"):
        for (c, reducing), tree in known.items():
            home = next(iter(tree.origins), None)
            if reducing and c is not None and home in new_rank:
                roots[c] = new_rank[home]
    trees = bare_trees(problem, roots=roots)
    merges = problem.clauses.merging if problem.clauses.max_merge > 1 else ()
    for number, tree in enumerate(trees):
        was = known.get((tree.chunk, tree.reducing))
        if was is None:
            continue
        for rank, link in was.link_to.items():
            here, e = new_rank.get(rank), new_link.get(link)
            if here is None or e is None or here in tree.origins:
                continue
            if problem.may_carry(e, tree.chunk, reducing=tree.reducing):
                tree.link_to[here] = e
                sent = was.read_from[rank]
                tree.read_from[here] = sent if e in merges else sent._replace(group=-1 - number)
    return trees


def _unchanged(
    old: Schedule,
    problem: Problem,
    new_chunk: Mapping[int, int],
    new_link: Mapping[int, int],
    new_rank: Mapping[int, int],
) -> Schedule:
    """All transfers in their old order, re-timed; `KeyError` if one is lost, `ValueError` on deadlock."""
    named = old.contributions
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

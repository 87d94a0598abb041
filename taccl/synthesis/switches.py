"""Switches that add: all sums by them, or by them and by ranks, each with a share of the data."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from taccl.analysis.verification.verify import verify
from taccl.baselines import baseline
from taccl.baselines.cut import cut_chunks
from taccl.baselines.in_network import shared_links
from taccl.errors import InputError
from taccl.schedule.timing import exact_times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule

__all__ = ["InNetworkUse", "by_switches", "over_links"]

InNetworkUse = Literal["auto", "off", "only"]

#: Into how many each chunk is cut where both sum, so that what ranks send fits between what the switch adds.
_CUTS = (8, 16, 32)
#: No more transfers than this are made.
_MOST_TRANSFERS = 20_000
#: Both together must promise to finish in this share of the time of either.
_PAYS = Fraction(98, 100)


def over_links(problem: Problem, *, shared: bool) -> Problem:
    """The problem over the links of switches that add alone, or over all others."""
    several = set(shared_links(problem.topology))
    if not several and not shared:
        return problem
    allowed = frozenset(e for e in problem.links_allowed if (e in several) == shared)
    return problem.with_clauses(links_allowed=allowed)


def by_switches(problem: Problem, use: InNetworkUse) -> Schedule | None:
    """The schedule that finishes first of those in which switches add, or share the sums with ranks.

    Where the problem leaves the number of chunks open, it is chosen here. With ``"only"`` there is no
    sharing, and an `InputError` says why no switch can do it; else None is returned.
    """
    if use == "only" and not shared_links(problem.topology):
        raise InputError(
            f"found 'only', and no switch of {problem.topology.name} adds; expected a topology with one, "
            "such as taccl.topologies.in_network(8)",
            where="in_network",
        )
    try:
        alone = baseline("in-network", problem, cut=problem.chunks_open)
    except InputError:
        if use == "only":
            raise
        return None
    found = [alone, *(_shared(problem) if use == "auto" and problem.collective.sums_up else ())]
    # What clauses forbid is no schedule of the problem.
    found = [replace(each, problem=replace(each.problem, clauses=problem.clauses)) for each in found]
    return min((each for each in found if verify(each).ok), key=lambda each: each.finish, default=None)


def _shared(problem: Problem) -> list[Schedule]:
    """Schedules in which a switch adds a share of the chunks, and ranks pass the rest round rings."""
    found = []
    with suppress(InputError):  # no ring, or chunks smaller than a packet
        for parts in _CUTS if problem.chunks_open else (1,):
            cut = replace(cut_chunks(problem, parts), chunks_open=False) if parts > 1 else problem
            whole = [baseline(name, cut, cut=False) for name in ("in-network", "ring")]
            share, finish = _best_share(*map(_loads, whole))
            chosen = _chunks_of_share(cut, share)
            is_split = 0 < len(chosen) < cut.collective.num_chunks
            promising = finish < _PAYS * min(each.finish for each in whole)
            if is_split and promising and whole[1].num_transfers <= _MOST_TRANSFERS:
                found.append(_together(cut, chosen))
    return found


def _loads(schedule: Schedule) -> dict[int, Fraction]:
    """For how many microseconds a schedule holds each resource, without latencies."""
    problem, loads = schedule.problem, defaultdict[int, Fraction](Fraction)
    num_bytes = np.bincount(schedule.link, np.array(problem.chunk_bytes)[schedule.chunk])
    for link in np.flatnonzero(num_bytes).tolist():
        for hold in problem.topology.holds_of_link[link]:
            loads[hold.resource] += hold.beta_us_per_mb * int(num_bytes[link]) / 10**6
    return loads


def _best_share(switch: dict[int, Fraction], ranks: dict[int, Fraction]) -> tuple[Fraction, Fraction]:
    """The share of the data that switches add so that all resources are free soonest, and when they are."""

    def busiest(share: Fraction) -> Fraction:
        return max(share * switch.get(r, 0) + (1 - share) * ranks.get(r, 0) for r in {*switch, *ranks})

    # It falls and then rises, in straight pieces; a 256th is finer than chunks are.
    share = min((Fraction(i, 256) for i in range(257)), key=busiest)
    return share, busiest(share)


def _chunks_of_share(problem: Problem, share: Fraction) -> set[int]:
    """The first chunks of every root, so many of them."""
    of_root: dict[int | None, list[int]] = defaultdict(list)
    for c, chunk in enumerate(problem.collective.chunks):
        of_root[chunk.root].append(c)
    return {c for chunks in of_root.values() for c in chunks[: round(share * len(chunks))]}


def _together(problem: Problem, chosen: set[int]) -> Schedule:
    """Chosen chunks added by switches while ranks sum the others: each goes on as fast as it does alone."""
    rows = []
    others = [c for c in range(problem.collective.num_chunks) if c not in chosen]
    for name, chunks in (("in-network", sorted(chosen)), ("ring", others)):
        alone = baseline(name, _of_chunks(problem, chunks), cut=False)
        progress = (alone.start / alone.finish_ticks).tolist()
        columns = (alone.chunk.tolist(), alone.link.tolist(), alone.reduce.tolist())
        rows += [(p, chunks[c], e, adds) for p, c, e, adds in zip(progress, *columns, strict=True)]
    rows.sort()
    share = len(chosen) / problem.collective.num_chunks
    return exact_times(
        problem,
        chunk=[c for _, c, _, _ in rows],
        link=[e for _, _, e, _ in rows],
        reduce=[adds for *_, adds in rows],
        sequence=range(len(rows)),
        producer=f"in-network ({share:.0%}) and ring",
    )


def _of_chunks(problem: Problem, chunks: Sequence[int]) -> Problem:
    """The problem of some chunks alone, as one group."""
    own = problem.collective.chunks
    collective = replace(problem.collective, chunks=tuple(own[c] for c in chunks), groups=())
    sizes = tuple(problem.chunk_bytes[c] for c in chunks)
    return replace(problem, collective=collective, chunk_bytes=sizes, size_bytes=None)

"""Chunking of baselines: finer chunks, merged sends; and reductions from broadcasts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl._internal.caching import cached
from taccl._internal.deadline import OutOfTime
from taccl._internal.units import format_count
from taccl.baselines.forms import complete_so_far, fastest, fastest_form
from taccl.baselines.moves import check_least
from taccl.errors import CollectiveError
from taccl.problem.costs import hold_columns, hold_costs_us, link_ends
from taccl.problem.making import make_problem
from taccl.schedule.combine import broadcast_phase, reduce_phase
from taccl.schedule.schedule import make_schedule
from taccl.topology.recognise import grid_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from taccl._internal.deadline import Deadline
    from taccl.baselines.moves import Ints, Sends
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule

#: `_KEPT`: key in a topology's cache for schedules whose chunks are not cut.
#: `_MOST_KEPT`: max number of problems whose schedules are cached under `_KEPT`.
_KEPT, _MOST_KEPT = f"{__name__}: whole chunks", 8
#: Finer chunks are kept if they finish within this share of the time of coarser ones.
_PAYS = Fraction(97, 100)
#: Max ratio of finishes at which exchanges of whole chunks' partial sums (`or_whole_sums`) keep finer chunks.
#: A small gain suffices, as the number of parts lets all ports carry equally many.
_PAYS_EVENLY = Fraction(999, 1000)
#: Max chunks times ranks for which exchanges of unscattered partial sums are tried (some 500,000 transfers).
_MOST_OF_WHOLE_SUMS = 80_000
#: `_LONG_CUT`: a cut of more than four times as many transfers takes long, so that coarser ones come first.
#: `MANY_CUT`: default max transfers of a schedule that is cut further.
#: `MOST_CUT`: max transfers of a schedule after the cut.
#: `MOST_MERGED`: the same for merged messages, but for sums at all ranks: 0.9 us of CPU for each.
MANY_CUT, MOST_CUT, MOST_MERGED, _LONG_CUT = 20_000, 100_000, 600_000, 1_500


def run(
    problem: Problem,
    spread: Callable[[Problem], Sends],
    *,
    backwards: Callable[[Problem], Sends] | None = None,
    roots: Sequence[int] | None = None,
) -> Sends:
    """Sends of any problem, from an algorithm that copies chunks to their destinations.

    A reduction is a copy over reversed links in reversed time; an allreduce is a reduction and a copy.

    - `spread`: Function from a problem without sums to its sends.
    - `backwards`: Function from the time-reversed reduction to its sends; default: `spread`.
    - `roots`: Rank at which each chunk is summed; default: the collective's own.
    """
    if not problem.collective.combining:
        return spread(problem)
    check_least(problem)  # each phase has fewer transfers
    if roots is not None:
        pairs = zip(problem.collective.chunks, roots, strict=True)
        chunks = tuple(replace(chunk, root=root) for chunk, root in pairs)
        problem = replace(problem, collective=replace(problem.collective, chunks=chunks))
    reduced = (backwards or spread)(reduce_phase(problem)).reversed()
    if problem.collective.stays_at_roots:
        return reduced
    return reduced.then(spread(broadcast_phase(problem)))


def cut_while_it_pays(
    problem: Problem,
    make: Callable[[Problem], Schedule],
    *,
    name: str,
    cut: bool,
    parts: int = 2,
    pays: Fraction = _PAYS,
    merges: bool = False,
    most_transfers: int = MANY_CUT,
    likely: int = 1,
    asked: Problem | None = None,
    most_merged: int | None = None,
    even: int = 1,
) -> Schedule:
    """Schedule of a problem without its sketch, in finer and finer chunks while that shortens it enough.

    - `make`: Function from a problem to its schedule.
    - `name`: Name of the algorithm, under which schedules are cached.
    - `cut`: True if chunks may be cut.
    - `parts`: Number of parts of each chunk in the first cut; every further cut doubles it.
    - `pays`: Finer chunks are kept if they finish within this share of the time of coarser ones.
    - `merges`: True to also try each message of the algorithm as one send, if sends may merge.
    - `most_transfers`: Max transfers of a schedule in finer chunks.
    - `likely`: Number of parts that probably is the best, tried right after half of `parts`; 1 if unknown.
    - `asked`: Problem whose earliest schedule is kept (`keep_soonest`), if links of `problem` merge instead.
    - `most_merged`: Max transfers after a cut, if each message is one send, or if `merges` is false; default:
      `MOST_CUT`.
    - `even`: Number of parts up to which cuts go on even if one does not pay. Fewer parts load the ports
      unequally.
    """
    if not problem.collective.num_chunks:  # without chunks there are no sends
        return make_schedule(problem, chunk=[], link=[], start=[], end=[], producer=name)
    cut_in = partial(
        _cut_while_it_pays, name=name, parts=parts, pays=pays, most_transfers=most_transfers, likely=likely,
        even=even,
    )  # fmt: skip

    def kept(finer: Problem) -> Schedule:
        complete = complete_so_far(finer)
        complete.clear()
        try:
            return keep_soonest(asked or problem, make(finer))
        finally:  # an interrupted algorithm may have completed a form
            for each in complete[-1:]:
                keep_soonest(asked or problem, each)

    if not (merges and cut and may_merge(problem)):
        return cut_in(problem, kept, cut=cut, most_after=None if merges else most_merged)
    together = cut_in(merging(problem), lambda finer: kept(merging(finer)), cut=True, most_after=most_merged)
    alone = cut_in(problem, kept, cut=False)
    if _alphas_us(alone) < together.finish_us:
        alone = cut_in(problem, kept, cut=True)
    return fastest((alone, together))


def or_whole_sums(
    found: Schedule, problem: Problem, sends: Callable[[Problem], Sends], *, name: str, fewest: int, cut: bool
) -> Schedule:
    """The faster of `found` and a schedule in which ranks exchange partial sums unscattered.

    - `sends`: Function from a problem to its sends.
    - `fewest`: If chunks may be cut, least number of parts per chunk with which all ports carry equal numbers
      of parts.
    """
    if not sums_everywhere(problem):
        return found
    merges = cut and may_merge(problem)
    together = merging(problem) if merges else problem
    even = without_sketch(together)
    if cut and fewest <= min(problem.chunk_bytes):
        even = cut_chunks(even, fewest)
    if even.collective.num_chunks * problem.topology.num_ranks > _MOST_OF_WHOLE_SUMS:
        return found
    try:
        least_ticks = sends(even).busy_ticks(even)
    except CollectiveError:  # too many transfers because of relays
        return found
    if Fraction(least_ticks) / even.costs.ticks_per_us >= found.finish:
        return found

    def made(finer: Problem) -> Schedule:
        finer = merging(finer) if merges else finer
        return keep_soonest(problem, fastest_form(finer, [(name, sends(finer))]))

    whole = cut_while_it_pays(together, made, name=name, cut=cut, parts=fewest, pays=_PAYS_EVENLY)
    return fastest((found, whole))


def _cut_while_it_pays(
    problem: Problem,
    make: Callable[[Problem], Schedule],
    *,
    name: str,
    cut: bool,
    parts: int,
    pays: Fraction,
    most_transfers: int,
    likely: int,
    even: int,
    most_after: int | None = None,
) -> Schedule:
    made = _whole(problem)
    if name not in made:
        made[name] = make(without_sketch(problem))
    finer = finest(problem)
    problem = without_sketch(problem)
    best = made[name]
    if best.problem is not problem:  # cached for an equal problem with other notes
        best = replace(best, problem=problem)
    if not best.num_transfers:
        return best
    most = min((most_after or MOST_CUT) // best.num_transfers, *problem.chunk_bytes)
    parts = min(parts, most)
    first: dict[int, Schedule] = {}
    if cut and name in finer:  # continue where an earlier call ended
        best = finer[name]
        parts = 2 * best.problem.collective.num_chunks // problem.collective.num_chunks
        most *= 2 * best.num_transfers <= most_transfers
    elif cut and likely > 1 and parts <= likely <= most:
        # Coarse chunks take little time, and are complete if time ends; `parts` and finer ones follow below.
        for number in dict.fromkeys((max(2, parts // 2), likely)):
            first[number] = make(cut_chunks(problem, number))
            finer[name] = fastest(first.values())
    elif cut:  # coarser chunks come first, so that some are complete if time ends
        for coarser in _coarser(parts, best.num_transfers):
            with suppress(CollectiveError):
                found = make(cut_chunks(problem, coarser))
                if found.finish < best.finish:
                    finer[name], best = found, found
    while cut and 1 < parts <= most:
        try:
            found = first.get(parts) or make(cut_chunks(problem, parts))
        except CollectiveError:  # the algorithm cannot cut finer
            break
        if found.finish > pays * best.finish:
            if parts >= even or 2 * found.num_transfers > most_transfers:
                break
            parts *= 2
            continue
        best, parts = found, 2 * parts
        if name not in finer or found.finish < finer[name].finish:
            finer[name] = found
        if 2 * found.num_transfers > most_transfers:
            break
    return fastest((best, *first.values()))


def _coarser(parts: int, num_transfers: int) -> list[int]:
    """Numbers of parts to try before a first cut that takes long: each a quarter of the next, in integers.

    - `num_transfers`: Number of transfers of whole chunks.
    """
    found = []
    while parts % 4 == 0 and parts > 4 and parts // 4 * num_transfers > _LONG_CUT:
        parts //= 4
        found.append(parts)
    return found[::-1]


def may_merge(problem: Problem) -> bool:
    """True if a baseline may merge sends on all links.

    This holds for an open number of chunks under the default clauses.
    """
    if not problem.chunks_open or problem.collective.derivations:
        return False
    default = make_problem(problem.topology, problem.collective, size_bytes=problem.size_bytes)
    return problem.clauses == default.clauses


def sums_everywhere(problem: Problem) -> bool:
    """True if there are chunks, and every rank contributes to each of them and wants its sum."""
    num_ranks, collective = problem.topology.num_ranks, problem.collective
    sums = {(len(chunk.origins), len(chunk.destinations)) for chunk in collective.chunks}
    return collective.sums_up and sums == {(num_ranks, num_ranks)}


@cached
def merging(problem: Problem) -> Problem:
    """Return the problem with unlimited merging on every link whose latency occupies a resource."""
    holds = hold_columns(problem.topology).link[problem.costs.hold_alpha > 0]
    links, most = problem.clauses.merging.union(holds.tolist()), max(6, problem.collective.num_chunks)
    if (links, most) == (problem.clauses.merging, problem.clauses.max_merge):
        return problem
    note = f"a send may merge any number of chunks, on {format_count(len(links), 'link')}"
    notes = (*(each for each in problem.notes if not each.startswith("a send may merge")), note)
    return replace(problem.with_clauses(merging=links, max_merge=most), notes=notes)


def built_within(
    problem: Problem,
    make: Callable[[], Schedule | None],
    limit: Deadline,
    may_end: Callable[[], bool] = lambda: False,
) -> Schedule | None:
    """Build a baseline of a problem; at the deadline, return its best complete schedule.

    The deadline takes effect once a schedule is complete. None if it takes effect before.

    - `may_end`: Function that returns true if the deadline takes effect even so.
    """
    complete = complete_so_far(without_sketch(problem))
    complete.clear()
    with suppress(OutOfTime), limit.enforced(lambda: bool(complete) or may_end()):
        return make()
    return replace(complete[-1], problem=without_sketch(problem)) if complete else None


@cached
def finest(problem: Problem) -> dict[str, Schedule]:
    """{algorithm: best schedule in finer chunks so far}; kept if the search is interrupted."""
    return {}


@cached
def soonest_so_far(problem: Problem) -> list[Schedule]:
    """[earliest-finishing schedule that baselines have made so far]; empty before the first schedule.

    The list is kept if a baseline is interrupted.
    """
    return []


def keep_soonest(problem: Problem, made: Schedule) -> Schedule:
    """Return `made`; keep it in `soonest_so_far` of the problem if it finishes before the one kept there.

    Raises `CollectiveError` if servers update sums, and another rank than its server sends a sum first.
    """
    if problem.collective.updates:
        _require_updates(made)
    found = soonest_so_far(problem)
    if not found or made.finish < found[0].finish:
        found[:] = [made]
    return made


def _require_updates(made: Schedule) -> None:
    """Raise `CollectiveError` unless each sum is first sent on by its server, which updates it, to all ranks.

    A rank that contributes alone has the sum from the start, but not the updated one.
    """
    problem, copies, num_ranks = made.problem, ~made.reduce, made.problem.topology.num_ranks
    src, dst = (ends[made.link[copies]] for ends in link_ends(problem.topology))
    first = made.chunk[copies].astype(np.int64) * num_ranks
    sent, received = set((first + src).tolist()), set((first + dst).tolist())
    chunks = problem.collective.chunks
    roots = (chunk.root for chunk in chunks)  # collectives with updates have a root for each sum
    at_servers = {number * num_ranks + root for number, root in enumerate(roots) if root is not None}
    wanted = {number * num_ranks + rank for number, chunk in enumerate(chunks) for rank in chunk.destinations}
    if made.carries is not None or not sent <= received | at_servers or not wanted <= received | at_servers:
        raise CollectiveError(
            f"{made.producer} does not add up {problem.collective.name} at the servers that update sums; use "
            "servers or pairwise",
            where="baseline",
        )


def _alphas_us(schedule: Schedule) -> float:
    """Max time in us for which a resource is held by the latencies of unmerged sends alone.

    A schedule in finer chunks has at least as many sends per resource, even if parts of chunks go along other
    dimensions. So the result is a lower bound on its finish.
    """
    topology, holds = schedule.problem.topology, hold_columns(schedule.problem.topology)
    sends = np.bincount(schedule.link, minlength=len(topology.links))
    held_us = np.bincount(
        holds.resource, sends[holds.link] * hold_costs_us(topology)[0], len(topology.resources)
    )
    return float(held_us.max(initial=0.0))


def _whole(problem: Problem) -> dict[str, Schedule]:
    """{algorithm: schedule in the problem's own chunks}, cached with the topology.

    Problems that differ only in their sketches share these schedules. The last few problems are kept.
    """
    kept: list[tuple[Problem, dict[str, Schedule]]] = problem.topology.cache.setdefault(_KEPT, [])
    plain = without_sketch(problem)
    for other, made in kept:
        if other == plain:
            return made
    kept.append((plain, {}))
    del kept[:-_MOST_KEPT]
    return kept[-1][1]


def cut_chunks(problem: Problem, parts: int) -> Problem:
    """Return the problem with every chunk cut into equal parts, which are adjacent in buffers.

    Parts are rounded up to whole bytes; a note in the problem says so. Each part has its chunk's dates.
    """

    def of_parts(dates: Sequence[tuple[int, int, Fraction]]) -> tuple[tuple[int, int, Fraction], ...]:
        return tuple((chunk * parts + p, rank, us) for chunk, rank, us in dates for p in range(parts))

    padded = ", rounded up to whole bytes" * any(size % parts for size in problem.chunk_bytes)
    return replace(
        problem,
        collective=problem.collective.split(parts),
        chunk_bytes=tuple(-(-size // parts) for size in problem.chunk_bytes for _ in range(parts)),
        notes=(*problem.notes, f"each chunk is cut into {parts} parts{padded}"),
        release_us=of_parts(problem.release_us),
        due_us=of_parts(problem.due_us),
    )


@cached
def without_sketch(problem: Problem) -> Problem:
    """Return the problem with only the merging clauses of its sketch."""
    return replace(problem, clauses=problem.clauses.only("merge"))


def are_pairs(problem: Problem) -> bool:
    """True if each chunk goes from one rank to one rank, as in an alltoall."""
    collective = problem.collective
    return all((ends.sizes == 1).all() for ends in (collective.origin_sets, collective.destination_sets))


def starts_of(problem: Problem) -> Ints:
    """Rank at which each chunk starts, (num_chunks,); the first one if there are several origins."""
    origins = problem.collective.origin_sets
    return np.array([ranks[0] for ranks in origins.sets], np.int64)[origins.of_chunk]


def held_at_start(problem: Problem) -> tuple[Ints, Ints, Ints]:
    """Columns of the chunks at the start: rank (ascending), chunk, index among the chunks of this rank."""
    starts = starts_of(problem)
    chunk = np.argsort(starts, kind="stable")
    holder = starts[chunk]
    return holder, chunk, np.arange(len(chunk)) - np.searchsorted(holder, holder)


def require_no_derivations(problem: Problem, *, baseline: str) -> None:
    """Raise `CollectiveError` if chunks of the collective derive from one another."""
    if problem.collective.derivations:
        raise CollectiveError(
            f"{baseline} does not support {problem.collective.name}, which derives chunks; synthesize it",
            where="baseline",
        )


def require_everywhere(problem: Problem, *, baseline: str) -> None:
    """Raise `CollectiveError` unless all ranks contribute to each sum, or hold or want each copied chunk."""
    require_no_derivations(problem, baseline=baseline)
    num_ranks = problem.topology.num_ranks
    for chunk in problem.collective.chunks:
        contributors = chunk.origins if problem.collective.combining else chunk.destinations
        if len({*contributors, *chunk.origins}) < num_ranks:
            raise CollectiveError(
                f"{baseline} does not support {problem.collective.name}, whose chunks do not reach every "
                "rank; use pairwise, recursive or hierarchical",
                where="baseline",
            )


def soonest_cut_us(schedule: Schedule) -> float:
    """Estimated finish in us that a schedule would have with its chunks cut into as many parts as possible.

    Finer chunks hold resources for as long as whole chunks do. The rest of the finish is the time in which
    chunks fill a pipeline; it is divided by the largest number of parts. On a torus or a mesh, the rest is
    left out, and the busy time is divided by twice the number of dimensions: there, parts may merge, and may
    use all dimensions in both directions.
    """
    busy_us = float(busy_by_bytes_us(schedule.problem, schedule.chunk, schedule.link).max(initial=0))
    dims = grid_of(schedule.problem.topology)
    if dims is not None:
        return busy_us / (2 * len(dims))
    return busy_us + (schedule.finish_us - busy_us) / max(2.0, MANY_CUT / max(1, schedule.num_transfers))


def busy_by_bytes_us(problem: Problem, chunk: NDArray[Any], link: NDArray[Any]) -> NDArray[np.float64]:
    """Time in us that the bytes of transfers hold each resource, (num_resources,)."""
    topology, holds = problem.topology, hold_columns(problem.topology)
    size = np.array(problem.chunk_bytes, dtype=float)[chunk]
    mb = np.bincount(link, size, len(topology.links)) / 1e6
    busy_us = mb[holds.link] * hold_costs_us(topology)[1]
    return np.bincount(holds.resource, busy_us, len(topology.resources)).astype(float)

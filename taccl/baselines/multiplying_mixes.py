"""Mixed plans of recursive multiplying: chunks are divided into parts, each with its own plan and size.

In a single plan the bottleneck is idle until the first sums reach it, and again while the last ones spread. A
mixed plan uses these times: some parts cross between nodes before they are summed in their node, others at
the end. Parts with more steps and fewer bytes share the bottleneck with parts of fewer steps and more bytes.

Local search and simulated annealing over the plans, sizes and order of the parts minimise the estimated
finish. They use the steps of `StepTimes`, whose estimates are exact on machines of equal nodes and ports.
"""

from __future__ import annotations

import math
from bisect import insort
from itertools import accumulate, pairwise, product
from operator import itemgetter
from random import Random
from typing import TYPE_CHECKING

from taccl._internal.caching import cached
from taccl._internal.deadline import NEVER
from taccl.baselines.multiplying_mix_times import MOST_RESOURCES, Mix, MixTimes, TimedPart
from taccl.baselines.multiplying_plans import MIXED, PlanPart, StepPlan, all_mixable
from taccl.baselines.multiplying_times import MOST_SENDS, Grid, StepTimes
from taccl.baselines.spread import cut_chunks, may_merge, merging, without_sketch
from taccl.topology.recognise import grid_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from taccl._internal.deadline import Deadline
    from taccl.problem.problem import Problem


#: `_MIXED_BLOCKS`: wanted numbers of chunks of a mixed plan, as multiples of the ranks per node.
#: `_MIXED_TRANSFERS`: max transfers of a mixed plan.
#: `_TRANSFERS_EACH`: approximate transfers of a mixed plan per chunk and rank.
_MIXED_BLOCKS, _MIXED_TRANSFERS, _TRANSFERS_EACH = (128, 64, 16), 100_000, 3
#: `PAYS`: finer chunks are used if their estimated finish is at most this share of that of coarser chunks.
#: `_OTHERS`: number of mixed plans in fine chunks from which the search in coarser chunks starts.
PAYS, _OTHERS = 0.997, 2
#: `_MOST_PARTS`: max number of parts of a mixed plan.
#: `_EQUAL_PARTS`: numbers of equal parts into which the search cuts the chunks of a plan at its start.
_MOST_PARTS, _EQUAL_PARTS = 12, (1, 2, 4, 8)
#: Denominators of the share of a small part with another plan (1 / 16 or 1 / 8 of the chunks), in further
#: mixed plans from which the search starts.
_SHARES = (16, 8)
#: `_STARTS`: number of mixed plans from which local search starts, the best by estimate.
#: `_PATIENCE`: number of successive moves without gain after which a search ends.
_STARTS, _PATIENCE = 8, 600
#: `_RUNS`, `_MOVES`: number of runs of simulated annealing from the best plan so far, and moves of each.
#: `_WARM`, `_COLD`: temperatures at the start and the end of a run, as shares of the estimated finish.
_RUNS, _MOVES, _WARM, _COLD = 3, 8_000, 0.003, 0.000_006
#: Max share of the time left for simulated annealing.
_ANNEALING_SHARE = 0.4


def soonest_mix(problems: Iterable[Problem], until: Deadline = NEVER) -> tuple[StepTimes, StepPlan] | None:
    """Mixed plan of an allreduce with the least estimated finish over several numbers of chunks (`to_mix`).

    Returns (times of the problem in the chosen chunks, plan); None if there is no mixed plan. Finer chunks
    are chosen if they finish sufficiently earlier (`PAYS`).

    - `until`: Deadline after which the best plan so far is returned.
    """
    best: tuple[StepTimes, StepPlan] | None = None
    best_us, others = math.inf, list[StepPlan]()
    for problem in problems:
        if best is not None and until.has_passed:
            break
        times = times_of(problem)
        plans = best_mixes(times, others=others, until=until)
        if not plans:
            return None
        us = times.ticks(plans[0]) / problem.costs.ticks_per_us
        if best is None or us * PAYS <= best_us:
            # A search that does not start from the plans of finer chunks may find a better plan.
            if others and not until.has_passed:
                plans = sorted((*plans, *best_mixes(times, until=until)), key=times.ticks)
            best, best_us = (times, plans[0]), us
        others = plans[:_OTHERS]
    return best


@cached
def to_mix(problem: Problem) -> list[Problem]:
    """Versions of the problem in finer chunks for mixed plans, the finest first, with merging if allowed.

    Empty for one rank, on tori and meshes, and if there would be too many transfers.
    """
    merges, problem = may_merge(problem), without_sketch(problem)
    num_ranks, num_chunks = problem.topology.num_ranks, problem.collective.num_chunks
    # On tori and meshes all links are alike, so that mixing gains nothing. Two nodes of two ranks form a ring
    # as well, but have slower links between nodes.
    has_tiers = 1 < problem.topology.num_nodes < num_ranks
    if num_ranks < 2 or (grid_of(problem.topology) is not None and not has_tiers):
        return []
    most = min(_MIXED_TRANSFERS // (_TRANSFERS_EACH * num_ranks), num_chunks * min(problem.chunk_bytes))
    found: dict[int, Problem] = {}
    for blocks in _MIXED_BLOCKS:
        parts, wanted = 1, blocks * num_ranks // problem.topology.num_nodes
        while parts * num_chunks < wanted and 2 * parts * num_chunks <= most:
            parts *= 2
        if parts not in found and parts * num_chunks <= most:
            finer = cut_chunks(problem, parts) if parts > 1 else problem
            found[parts] = merging(finer) if merges else finer
    return list(found.values())


def mixed_transfers(problem: Problem) -> int:
    """Approximate number of transfers of a mixed plan in the problem's own chunks."""
    return _TRANSFERS_EACH * problem.topology.num_ranks * problem.collective.num_chunks


@cached
def times_of(problem: Problem) -> StepTimes:
    """Estimator of the step times of a problem."""
    return StepTimes(problem, Grid(problem))


@cached
def _mixes_of(times: StepTimes) -> MixTimes:
    """Estimator of mixed plans, whose parts may each have any of the mixable plans."""
    ranks = times.grid.ranks
    parts = all_mixable(*ranks.shape, most=1 + MOST_SENDS // ranks.size)
    return MixTimes(times, list(dict.fromkeys(parts)))


@cached
def _soonest_equal(times: StepTimes) -> tuple[float, Mix]:
    """Mix of equal parts of one plan with the least estimated finish, as (ticks, mix); (inf, []) if none."""
    mixes, num_chunks = _mixes_of(times), times.problem.collective.num_chunks
    if len(mixes.resources) > MOST_RESOURCES:
        return math.inf, []
    best: tuple[float, Mix] = math.inf, []
    for part in mixes.parts:
        for number in _EQUAL_PARTS:
            # Several parts send no fewer messages than one, so they hold resources for as long or longer.
            if number > 1 and max(mixes.timed(part, num_chunks).loads, default=0.0) > best[0]:
                break
            mix = _equal(mixes, part, num_chunks, number)
            ticks = mixes.finish(mix, best[0])
            if ticks < best[0]:
                best = ticks, mix
    return best


def first_mix(problem: Problem) -> tuple[float, StepTimes, StepPlan] | None:
    """Mixed plan of equal parts of one plan, in the coarsest chunks of `to_mix` in which it is fast.

    Returns (estimated finish in us, times, plan); None if there is no mixed plan. Finer chunks are used while
    they finish sufficiently earlier (`PAYS`).
    """
    best: tuple[float, StepTimes, StepPlan] | None = None
    for each in reversed(to_mix(problem)):
        times = times_of(each)
        ticks, mix = _soonest_equal(times)
        us = ticks / each.costs.ticks_per_us
        if not mix or (best is not None and us > PAYS * best[0]):
            break
        best = us, times, _plan_of(mix)
    return best


def best_mixes(
    times: StepTimes, *, others: Sequence[StepPlan] = (), until: Deadline = NEVER
) -> list[StepPlan]:
    """Mixed plans of an allreduce, the one with the least estimated finish first.

    Empty if more than `MOST_RESOURCES` resources can cause delays, or if every plan has a step with too
    many sends.

    - `others`: Mixed plans of the same problem in other chunks, from which the search starts.
    - `until`: Deadline after which the search ends.
    """
    mixes, num_chunks = _mixes_of(times), times.problem.collective.num_chunks
    if len(mixes.resources) > MOST_RESOURCES:
        return []
    starts = [_scaled(mixes, plan, num_chunks) for plan in others]
    best_ticks, best = mixes.soonest(starts) if starts else _soonest_equal(times)
    if best_ticks == math.inf:
        return []
    # Leave out plans that end no earlier than the best mix even if they have only a small part of the chunks.
    least = max(1, num_chunks // _MOST_PARTS)
    soon = [part for part in mixes.parts if mixes.finish([mixes.timed(part, least)]) < best_ticks]
    pool = mixes.not_worse(soon, least)
    # If time is short, local search of the best mix gains more than the search for other starts.
    found = [] if starts else [_improved(mixes, best, pool, Random(0), until)]
    random = Random(0)
    for mix in starts or _starts(mixes, (best_ticks, best), pool, until):
        if found and until.has_passed:
            break
        found.append(_improved(mixes, mix, pool, random, until))
    until = until.sooner(_ANNEALING_SHARE * until.left_s)
    for number in range(0 if starts else _RUNS):
        parts = pool if number % 2 else soon  # in turns, as either of them is better on some machines
        found.append(_annealed(mixes, min(found, key=itemgetter(0)), parts, random, until))
    found.sort(key=itemgetter(0))
    return [_plan_of(mix) for _, mix in found]


def _plan_of(mix: Mix) -> StepPlan:
    return StepPlan(tuple(each.part for each in mix), MIXED, tuple(each.size for each in mix))


def _starts(mixes: MixTimes, best: tuple[float, Mix], pool: Sequence[PlanPart], until: Deadline) -> list[Mix]:
    """Mixed plans from which local search starts: the best one, and variants with small parts of other plans.

    - `best`: (estimated finish in ticks, mix of equal parts of one plan).
    """
    main, num_chunks = best[1][0].part, sum(each.size for each in best[1])
    found = [best]
    for first, last in product((None, *pool), repeat=2):
        if until.has_passed:
            break
        most = found[-1][0] if len(found) == _STARTS else math.inf
        other = mixes.soonest(_beside(mixes, main, num_chunks, first, last), most)
        if other[0] <= most:
            insort(found, other, key=itemgetter(0))
            del found[_STARTS:]
    return [mix for _, mix in found]


def _improved(
    mixes: MixTimes, mix: Mix, pool: Sequence[PlanPart], random: Random, until: Deadline
) -> tuple[float, Mix]:
    """Improve a mixed plan by local search until `_PATIENCE` moves gain nothing; return (ticks, plan)."""
    ticks, stalled = mixes.finish(mix), 0
    while stalled < _PATIENCE and not until.has_passed:
        found = _changed(mixes, mix, pool, random)
        found_ticks = mixes.finish(found, ticks) if len(found) <= _MOST_PARTS else math.inf
        stalled = 0 if found_ticks < ticks else stalled + 1
        if found_ticks <= ticks:
            mix, ticks = found, found_ticks
    return ticks, mix


def _annealed(
    mixes: MixTimes, best: tuple[float, Mix], parts: Sequence[PlanPart], random: Random, until: Deadline
) -> tuple[float, Mix]:
    """Best mixed plan of a run of simulated annealing that starts from a plan, as (ticks, plan)."""
    ticks, mix = best
    for move in range(_MOVES):
        if until.has_passed:
            break
        heat = _WARM * (_COLD / _WARM) ** (move / _MOVES) * best[0]
        most = ticks - heat * math.log(1 - random.random())
        found = _changed(mixes, mix, parts, random)
        found_ticks = mixes.finish(found, most) if len(found) <= _MOST_PARTS else math.inf
        if found_ticks <= most:
            mix, ticks = found, found_ticks
            best = min(best, (ticks, mix), key=itemgetter(0))
    return best


def _scaled(mixes: MixTimes, plan: StepPlan, num_chunks: int) -> Mix:
    """Mixed plan converted to finer or coarser chunks, with the shares of its parts kept if possible."""
    ends = [end * num_chunks // sum(plan.sizes) for end in accumulate(plan.sizes, initial=0)]
    sizes = (end - begin for begin, end in pairwise(ends))
    return [mixes.timed(part, size) for part, size in zip(plan.parts, sizes, strict=True) if size]


def _equal(mixes: MixTimes, part: PlanPart, num_chunks: int, number: int) -> Mix:
    """Mixed plan whose parts all have the plan `part`, with sizes as equal as possible."""
    ends = [num_chunks * k // number for k in range(number + 1)]
    sizes = [end - begin for begin, end in pairwise(ends) if end > begin]
    timed = {size: mixes.timed(part, size) for size in set(sizes)}
    return [timed[size] for size in sizes]


def _beside(
    mixes: MixTimes, main: PlanPart, num_chunks: int, first: PlanPart | None, last: PlanPart | None
) -> Iterator[Mix]:
    """Yield mixed plans of equal parts with one plan, and a small part before them, after them, or both."""
    for number, share in product(_EQUAL_PARTS[1:], _SHARES):
        small = max(1, num_chunks // share)
        before, after = ([mixes.timed(part, small)] if part else [] for part in (first, last))
        left = num_chunks - small * (len(before) + len(after))
        if left > 0:
            yield [*before, *_equal(mixes, main, left, number), *after]


def _changed(mixes: MixTimes, mix: Mix, pool: Sequence[PlanPart], random: Random) -> Mix:
    """Random neighbour of a mixed plan: chunks move to another part or plan, or a part moves in the order."""
    found: list[TimedPart | None] = list(mix)
    kind, timed = random.random(), mixes.timed
    here = random.randrange(len(found))
    if kind < 0.2:  # some chunks of the largest part get another plan
        here = max(range(len(mix)), key=lambda number: mix[number].size)
    part, size = mix[here].part, mix[here].size
    moved = min(size, 2 ** random.randrange(size.bit_length()))
    rest = timed(part, size - moved) if size > moved else None
    if kind < 0.2:
        found[here] = rest
        found.insert(random.choice((0, len(found))), timed(random.choice(pool), moved))
    elif kind < 0.35:
        found[here] = rest
        found.insert(random.randrange(len(found) + 1), timed(part, moved))
    elif kind < 0.7:
        there = random.randrange(len(found))
        if there != here:
            found[here], found[there] = rest, timed(mix[there].part, mix[there].size + moved)
    elif kind < 0.8:
        found[here] = timed(random.choice(pool), size)
    else:
        found.insert(random.randrange(len(found)), found.pop(here))
    return [each for each in found if each is not None]

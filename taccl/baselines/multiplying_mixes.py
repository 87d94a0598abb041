"""Mixed plans of recursive multiplying: chunks are divided into parts, each with its own plan and size.

In a single plan the bottleneck is idle until the first sums reach it, and again while the last ones spread. A
mixed plan uses these times: some parts cross between nodes before they are summed in their node, others at
the end. Parts with more steps and fewer bytes share the bottleneck with parts of fewer steps and more bytes.

Simulated annealing over the plans, sizes and order of the parts minimises the estimated finish
(`taccl.baselines.multiplying_annealing`). Later runs also delay steps, so that those of other parts go first.
"""

from __future__ import annotations

import math
import operator
from functools import lru_cache, partial
from itertools import accumulate, compress, count, pairwise
from typing import TYPE_CHECKING, NamedTuple

from taccl._internal.caching import cached
from taccl._internal.deadline import NEVER
from taccl.baselines.chunking import cut_chunks, may_merge, merging, without_sketch
from taccl.baselines.multiplying_insertions import with_insertions
from taccl.baselines.multiplying_mix_times import MOST_RESOURCES, Mix, MixTimes
from taccl.baselines.multiplying_plans import MIXED, PlanPart, StepPlan, all_mixable
from taccl.baselines.multiplying_times import MOST_SENDS, Grid, StepTimes
from taccl.topology.recognise import grid_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from taccl._internal.deadline import Deadline
    from taccl.problem.problem import Problem


#: `_MIXED_BLOCKS`: wanted numbers of chunks of a mixed plan, as multiples of the ranks per node.
#: `_MIXED_TRANSFERS`: max transfers of a mixed plan.
#: `_TRANSFERS_EACH`: approximate transfers of a mixed plan per chunk and rank.
_MIXED_BLOCKS, _MIXED_TRANSFERS, _TRANSFERS_EACH = (512, 256, 128, 64, 16), 800_000, 3
#: Finer chunks are used if their estimated finish is at most this share of that of coarser chunks.
PAYS = 0.997
#: `_MOST_PARTS`: max number of parts of a mixed plan.
#: `_EQUAL_PARTS`: numbers of equal parts into which the search cuts the chunks of a plan at its start.
#: `_LEAST_EACH`: min chunks of each rank in a first mix, so that four parts may be scattered to all ranks.
_MOST_PARTS, _EQUAL_PARTS, _LEAST_EACH = 20, (1, 2, 4, 8), 4
#: Divided forms of a plan are tried in equal parts if the plan takes at most this multiple of the best time.
_NEAR = 1.1
#: Chains of runs of simulated annealing, as arguments of `Run`. 1,000 moves need 2 to 6 ms of CPU.
#: `_RUNS`: chain from equal parts; each run starts from the best mix of its chain. Delays of steps gain up to
#: 0.8 %.
#: `_MORE_CHAINS`: further chains of a search that has time left; they gain up to 1 %. All start from equal
#: parts, but the last one starts from the best mix.
#: `_MILD_RUNS`: chain from the best mix, cut into finer chunks.
#: `_GREEDY_SHARE`: a greedy mix competes after the first run unless this run ends at less than this share of
#: its start, as greedy mixes usually gain at most 2 %.
_RUNS = (20_000, 0.005, False), (40_000, 0.02, False), (60_000, 0.005, False), (60_000, 0.005, True)
_MORE_CHAINS = (
    *(((60_000, 0.005, False), (150_000, 0.01, True)),) * 2,
    ((150_000, 0.01, True), (150_000, 0.005, True)),
)
_MILD_RUNS, _GREEDY_SHARE = ((100_000, 0.002, False),), 0.985


def soonest_mix(
    problems: Iterable[Problem],
    until: Deadline = NEVER,
    *,
    first: StepTimes | None = None,
    patient: bool = False,
    show: Callable[[StepTimes, StepPlan], object] | None = None,
) -> tuple[StepTimes, StepPlan] | None:
    """Mixed plan of an allreduce with the least estimated finish over several numbers of chunks (`to_mix`).

    Returns (times of the problem in the chosen chunks, plan); None if there is no mixed plan. Finer chunks
    are chosen if they finish sufficiently earlier (`PAYS`).

    - `problems`: The problem in fewer and fewer chunks.
    - `until`: Deadline after which the best plan so far is returned.
    - `first`, `patient`: As for `best_mix`.
    - `show`: As for `best_mix`, with the times; called in the first problem's chunks only.
    """
    best: tuple[StepTimes, StepPlan] | None = None
    least_us, left_s = math.inf, until.left_s
    for problem in problems:
        # Coarser chunks take as long to search as finer ones, but only save transfers.
        if best is not None and (until.has_passed or until.left_s < left_s / 2):
            break
        times = times_of(problem)
        like = None if best is None else best[1]
        is_mild = like is not None
        early = None if is_mild or show is None else partial(show, times)
        plan = best_mix(
            times, first=first, like=like, until=until, patient=patient, is_mild=is_mild, show=early
        )
        if plan is None:
            return None
        us = times.ticks(plan) / problem.costs.ticks_per_us
        if us * PAYS > least_us:
            break
        best, least_us = (times, plan), min(us, least_us)
    return best


@cached
def to_mix(problem: Problem) -> list[Problem]:
    """Versions of the problem in finer chunks for mixed plans, the finest first, with merging if allowed.

    Empty for one rank, on tori and meshes, and if there would be too many transfers.
    """
    merges, problem = may_merge(problem), without_sketch(problem)
    num_ranks, num_chunks = problem.topology.num_ranks, problem.collective.num_chunks
    # On tori and meshes all links are alike, so mixing gains nothing.
    # Two nodes of two ranks are a ring, too, but their links between nodes are slower.
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


@lru_cache(maxsize=16)
def _mixable(num_nodes: int, num_local: int, *, most: int) -> tuple[PlanPart, ...]:
    """Distinct plans of `all_mixable`; problems in other chunks share them."""
    return tuple(dict.fromkeys(all_mixable(num_nodes, num_local, most=most)))


@cached
def _mixes_of(times: StepTimes) -> MixTimes:
    """Estimator of mixed plans, whose parts may each have any of the mixable plans."""
    ranks = times.grid.ranks
    parts = _mixable(*ranks.shape, most=1 + MOST_SENDS // ranks.size)
    # Estimates of divided messages assume that messages between nodes take turns.
    divisible = all(times.takes_turns(digit) for part in parts for digit in part.scattered if digit.across)
    return MixTimes(times, [part for part in parts if divisible or not part.is_divided])


class _EqualMixes(NamedTuple):
    """Mixes that divide the chunks equally among copies of one plan.

    - `mixes`: The soonest mix is the last one, as (estimated ticks, mix). The one before it, if any, is the
      soonest that divides no messages. Empty if there are too many resources or too many sends.
    - `near`: Plans without divided messages whose mixes are almost as soon (`_NEAR`).
    """

    mixes: list[tuple[float, Mix]]
    near: frozenset[PlanPart]


@cached
def _equal_mixes(times: StepTimes, first: StepTimes | None = None) -> _EqualMixes:
    """Soonest mixes of equal parts; with `first`, only of plans that are near the soonest in its chunks."""
    mixes, num_chunks = _mixes_of(times), times.problem.collective.num_chunks
    if len(mixes.resources) > MOST_RESOURCES:
        return _EqualMixes([], frozenset())
    parts = mixes.parts
    if first is not None and first is not times:
        near = _equal_mixes(first).near
        parts = [part for part in parts if part.undivided in near]
    best: tuple[float, Mix] = math.inf, []
    found: list[tuple[float, Mix]] = []
    whole: dict[PlanPart, float] = {}
    # Plans that divide no messages are tried first, and then the divided forms of the best ones.
    for part in sorted(parts, key=lambda part: part.is_divided):
        if part.is_divided and whole[part.undivided] > _NEAR * best[0]:
            continue
        most = best[0] if part.is_divided else _NEAR * best[0]
        for number in _EQUAL_PARTS:
            # Several parts send no fewer messages than one, so they hold resources for as long or longer.
            if number > 1 and max(mixes.timed(part, num_chunks).loads, default=0.0) > most:
                break
            mix = _equal(mixes, part, num_chunks, number)
            ticks = mixes.finish(mix, most)
            whole[part] = min(ticks, whole.get(part, math.inf))
            if ticks < best[0]:
                best = ticks, mix
                found = [*found[: int(part.is_divided)], best]
    near = frozenset(part for part, ticks in whole.items() if ticks <= _NEAR * best[0] < math.inf)
    return _EqualMixes(found, frozenset(part.undivided for part in near))


@cached
def _insertable(times: StepTimes, first: StepTimes) -> list[PlanPart]:
    """Plans that may be part of a sooner mix than equal parts: a part of an average size ends sooner.

    If estimates are not exact, all plans take the steps between nodes that the equal parts take. Other steps
    use the same links at other times of a step, so that estimates of such mixes are up to 6 % too low.
    """
    mixes, (most, equal) = _mixes_of(times), _equal_mixes(times, first).mixes[-1]
    parts, least = mixes.parts, max(1, mixes.num_chunks // _MOST_PARTS)
    if not times.are_exact:
        known = equal[0].part.crossings
        parts = [part for part in parts if part.crossings <= known]
    return [part for part in parts if mixes.timed(part, least).undelayed < most]


def greedy_mix(times: StepTimes, first: StepTimes | None = None) -> StepPlan:
    """Mixed plan found without annealing: equal parts of one plan, and small parts with other plans.

    - `first`: As for `best_mix`.
    """
    return _plan_of(_greedy(times, first or times)[1])


@cached
def _greedy(times: StepTimes, first: StepTimes) -> tuple[float, Mix]:
    """Mix that `greedy_mix` returns, as (estimated ticks, mix)."""
    mixes, plans = _mixes_of(times), _insertable(times, first)
    equal = _equal_mixes(times, first).mixes
    ticks, mix = equal[-1]
    # Undivided parts may leave more room for other plans, even if divided ones finish earlier alone.
    for _, start in equal if plans else ():
        used = {each.part.undivided for each in start}
        some = [part for part in plans if not part.is_divided or part.undivided in used]
        found = with_insertions(mixes, start, some, most_parts=_MOST_PARTS)
        ticks, mix = min((ticks, mix), found, key=operator.itemgetter(0))
    return ticks, mix


@cached
def first_mix(problem: Problem) -> tuple[float, StepTimes, StepPlan] | None:
    """Mixed plan of equal parts of one plan, in the coarsest chunks of `to_mix` in which such plans are fast.

    Returns (estimated finish in us, times, plan); None if there is no mixed plan. Each rank has at least
    `_LEAST_EACH` chunks, if possible. Finer chunks are used while the best equal parts of coarser ones finish
    sufficiently earlier in them (`PAYS`).
    """
    every, least = to_mix(problem), _LEAST_EACH * problem.topology.num_ranks
    every = [each for each in every[::-1] if each.collective.num_chunks >= least] or every[:1]
    equal = _equal_mixes(times_of(every[0])).mixes if every else []
    if not equal:
        return None
    plan, chosen = _plan_of(equal[-1][1]), every[0]
    best_us = equal[-1][0] / chosen.costs.ticks_per_us
    for each in every[1:]:
        us = times_of(each).ticks(_in_chunks(plan, each.collective.num_chunks)) / each.costs.ticks_per_us
        if us > PAYS * best_us:
            break
        best_us, chosen = us, each
    times = times_of(chosen)
    ticks, mix = _equal_mixes(times).mixes[-1]
    return ticks / chosen.costs.ticks_per_us, times, _plan_of(mix)


def best_mix(
    times: StepTimes,
    *,
    first: StepTimes | None = None,
    like: StepPlan | None = None,
    until: Deadline = NEVER,
    patient: bool = False,
    is_mild: bool = False,
    show: Callable[[StepPlan], object] | None = None,
) -> StepPlan | None:
    """Mixed plan of an allreduce with the least estimated finish that is found.

    None if more than `MOST_RESOURCES` resources can cause delays, or if every plan has a step with too many
    sends. Without time to compile the kernel of simulated annealing, the plan of `greedy_mix` is returned.
    The search also ends once no mix can finish earlier.

    - `first`: Times in the chunks in which equal parts are compared and plans chosen; default: `times`.
    - `like`: Good mixed plan of the same problem, perhaps in other chunks, from which the search starts.
    - `until`: Deadline after which the search ends.
    - `patient`: True for further chains of annealing (`_MORE_CHAINS`).
    - `is_mild`: True for one run at a low temperature (`_MILD_RUNS`).
    - `show`: Called with the best plan after the first chain, if further chains follow.
    """
    from taccl.baselines.multiplying_annealing import Annealing, Run  # it loads kernels

    first = first or times
    if not (equal := _equal_mixes(times, first).mixes):
        return None
    mixes, is_late = _mixes_of(times), until.has_passed
    before, best = equal[-1]
    if like is not None:
        best = min(best, _scaled(mixes, like), key=mixes.finish)
    if is_late:
        best = min(best, _greedy(times, first)[1], key=mixes.finish)
    else:
        plans = _insertable(times, first)
        least = mixes.least(plans, mixes.num_chunks)
        annealing = Annealing(times, mixes.resources, plans, most_parts=_MOST_PARTS, until=until)
        chains = (_MILD_RUNS,) if is_mild else (_RUNS, *_MORE_CHAINS) if patient else (_RUNS,)
        start, seeds = best, count()
        for number, chain in enumerate(chains):
            if number == 1 and show is not None and mixes.finish(best) > least and not until.has_passed:
                show(_plan_of(best))
            mix = best if chain is chains[-1] else start
            for run in chain:
                if mixes.finish(best) <= least:
                    break
                seed = next(seeds)
                parts = annealing.improved(
                    [(each.part, each.size, each.delay) for each in mix], Run(*run), seed
                )
                mix = min(mix, [mixes.timed(*each) for each in parts], key=mixes.finish)
                gains_more = seed or like is not None or mixes.finish(mix) < _GREEDY_SHARE * before
                if not (gains_more or until.has_passed):
                    mix = min(mix, _greedy(times, first)[1], key=mixes.finish)
                best = min(best, mix, key=mixes.finish)
    return _plan_of(best)


def _plan_of(mix: Mix) -> StepPlan:
    delays = tuple(each.delay for each in mix)
    parts, sizes = tuple(each.part for each in mix), tuple(each.size for each in mix)
    return StepPlan(parts, MIXED, sizes, delays if any(us for _, us in delays) else ())


def _scaled(mixes: MixTimes, plan: StepPlan) -> Mix:
    """Mixed plan in the chunks of other times, with the shares of its parts kept if possible."""
    scaled = _in_chunks(plan, mixes.num_chunks)
    delays = scaled.delays or ((0, 0.0),) * len(scaled.parts)
    return [mixes.timed(*each) for each in zip(scaled.parts, scaled.sizes, delays, strict=True)]


def _in_chunks(plan: StepPlan, num_chunks: int) -> StepPlan:
    """Mixed plan converted to finer or coarser chunks, with the shares of its parts kept if possible."""
    ends = [end * num_chunks // sum(plan.sizes) for end in accumulate(plan.sizes, initial=0)]
    sizes = tuple(b - a for a, b in pairwise(ends))
    parts, delays = tuple(compress(plan.parts, sizes)), tuple(compress(plan.delays, sizes))
    return plan._replace(parts=parts, sizes=tuple(filter(None, sizes)), delays=delays)


def _equal(mixes: MixTimes, part: PlanPart, num_chunks: int, number: int) -> Mix:
    """Mixed plan whose parts all have the plan `part`, with sizes as equal as possible."""
    ends = [num_chunks * k // number for k in range(number + 1)]
    sizes = [end - begin for begin, end in pairwise(ends) if end > begin]
    timed = {size: mixes.timed(part, size) for size in set(sizes)}
    return [timed[size] for size in sizes]

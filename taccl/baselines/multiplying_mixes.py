"""Mixed plans of recursive multiplying: parts of the chunks with plans and sizes of their own.

In a single plan the bottleneck is idle until the first sums reach it, and again while the last ones spread. A
mixed plan uses these times: some parts cross between nodes before they are summed in their node, others at
the end. Parts with more steps and fewer bytes share the bottleneck with parts of fewer steps and more bytes.

Local search over the plans, sizes and order of the parts minimises the estimated finish. It uses the steps of
`StepTimes`, whose estimates are exact on machines of equal nodes and ports.
"""

from __future__ import annotations

import math
from itertools import pairwise, product
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from taccl.baselines.multiplying_plans import MIXED, PlanPart, StepPlan, all_mixable
from taccl.baselines.multiplying_times import MOST_SENDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from taccl.baselines.moves import Ints
    from taccl.baselines.multiplying_plans import Digit
    from taccl.baselines.multiplying_times import StepTimes

    #: Parts in order of urgency, each with its number of chunks.
    Mix = list[tuple[PlanPart, int]]
    #: (ticks of a step, [(resource, ticks for which the step holds it), ...]).
    Step = tuple[float, list[tuple[int, float]]]

#: `_MOST_PARTS`: max number of parts of a mix.
#: `_EQUAL_PARTS`: numbers of equal parts, all with one plan, in the mixes from which the search starts.
_MOST_PARTS, _EQUAL_PARTS = 12, (1, 2, 4, 8)
#: Denominators of the share of a small part with another plan, in further mixes from which the search starts:
#: 1 / 16 or 1 / 8 of the chunks.
_SHARES = (16, 8)
#: `_STARTS`: number of mixes from which local search starts, the best by estimate.
#: `_PATIENCE`: number of successive moves without gain after which a search ends.
_STARTS, _PATIENCE = 8, 600
#: Max number of resources with different loads for which mixes are searched: on irregular machines, estimates
#: would take too long.
_MOST_RESOURCES = 64


def best_mix(times: StepTimes, *, seed: int = 0) -> StepPlan | None:
    """Mixed plan of an allreduce with the least estimated finish.

    None if more than `_MOST_RESOURCES` resources can cause delays, or if every plan has a step with too
    many sends.
    """
    grid, num_chunks = times.grid, times.problem.collective.num_chunks
    most = 1 + MOST_SENDS // len(grid.place)
    parts = list(dict.fromkeys(all_mixable(*grid.ranks.shape, most=most)))
    mixes = MixTimes(times, parts)
    if len(mixes.resources) > _MOST_RESOURCES:
        return None
    equal = [_equal(part, num_chunks, number) for part in parts for number in _EQUAL_PARTS]
    best = min(equal, key=mixes.finish)
    best_ticks = mixes.finish(best)
    if best_ticks == math.inf:
        return None
    # Leave out plans that, even alone with a small part of the chunks, end no earlier than the best mix.
    least = max(1, num_chunks // _MOST_PARTS)
    pool = mixes.not_worse([part for part in parts if mixes.finish([(part, least)]) < best_ticks], least)
    starts = [best]
    for first, last in product((None, *pool), repeat=2):
        alike = _beside(best[0][0], num_chunks, first, last)
        starts.append(min(alike, key=mixes.finish, default=best))
    random = Random(seed)
    for mix in sorted(starts, key=mixes.finish)[:_STARTS]:
        ticks, stalled = mixes.finish(mix), 0
        while stalled < _PATIENCE:
            found = _changed(mix, pool, random)
            found_ticks = mixes.finish(found, ticks) if len(found) <= _MOST_PARTS else math.inf
            stalled = 0 if found_ticks < ticks else stalled + 1
            if found_ticks <= ticks:
                mix, ticks = found, found_ticks
        if ticks < best_ticks:
            best, best_ticks = mix, ticks
    some, sizes = zip(*best, strict=True)
    return StepPlan(some, MIXED, sizes)


def _equal(part: PlanPart, num_chunks: int, number: int) -> Mix:
    """Mix of a number of parts of one plan, with sizes as equal as possible."""
    ends = [num_chunks * k // number for k in range(number + 1)]
    return [(part, end - begin) for begin, end in pairwise(ends) if end > begin]


def _beside(main: PlanPart, num_chunks: int, first: PlanPart | None, last: PlanPart | None) -> Iterator[Mix]:
    """Yield mixes of equal parts of one plan, with a small part of another plan before and after them."""
    for number, share in product(_EQUAL_PARTS[1:], _SHARES):
        small = max(1, num_chunks // share)
        before, after = ([(part, small)] if part else [] for part in (first, last))
        left = num_chunks - small * (len(before) + len(after))
        if left > 0:
            yield [*before, *_equal(main, left, number), *after]


def _changed(mix: Mix, pool: Sequence[PlanPart], random: Random) -> Mix:
    """A random neighbour of a mix: chunks moved to another part or plan, or a part moved in the order."""
    found, kind = list(mix), random.random()
    here = random.randrange(len(found))
    if kind < 0.2:  # mostly take chunks from the largest part
        here = max(range(len(found)), key=lambda number: found[number][1])
    part, size = found[here]
    moved = min(size, 2 ** random.randrange(size.bit_length()))
    if kind < 0.2:
        found[here] = part, size - moved
        found.insert(random.choice((0, len(found))), (random.choice(pool), moved))
    elif kind < 0.35:
        found[here] = part, size - moved
        found.insert(random.randrange(len(found) + 1), (part, moved))
    elif kind < 0.7:
        there = random.randrange(len(found))
        found[here] = part, size - moved
        found[there] = found[there][0], found[there][1] + moved
    elif kind < 0.8:
        found[here] = random.choice(pool), size
    else:
        found.insert(random.randrange(len(found)), found.pop(here))
    return [each for each in found if each[1]]


class MixTimes:
    """Estimated finishes of mixes, which consider only resources that can cause delays.

    - `resources`: Indices of resources, without those dominated by another one: in every step, the other is
      held at least as long. One of several equal resources remains.
    """

    def __init__(self, times: StepTimes, parts: Iterable[PlanPart]) -> None:
        self._times = times
        digits = dict.fromkeys(
            (digit, verb != "scatter")
            for part in parts
            for verb, digit in part.steps()
            if _fits(times, digit)
        )
        self.resources = _that_delay(times, digits)
        self._place = {resource: place for place, resource in enumerate(self.resources.tolist())}
        self._steps: dict[tuple[PlanPart, int], list[Step]] = {}
        self._known: dict[tuple[int, Digit, bool], Step] = {}

    def finish(self, mix: Mix, most: float = math.inf) -> float:
        """Estimated finish of a mix in ticks, infinite beyond `most`; same order as `StepTimes.timeline`."""
        free = [0.0] * len(self.resources)
        steps = [iter(self._steps_of(part, size)) for part, size in mix]
        heads = [(0.0, *next(each)) for each in steps]  # (ready, ticks, holds) of each part's next step
        finish = 0.0
        while heads:
            since, first = math.inf, -1
            for k, (start, _, holds) in enumerate(heads):
                for place, _ in holds:
                    if free[place] > start:
                        start = free[place]
                if start < since:
                    since, first = start, k
            if first < 0:
                return math.inf
            _, ticks, holds = heads[first]
            for place, busy in holds:
                free[place] = since + busy
            ready = since + ticks
            if ready > most:
                return math.inf
            step = next(steps[first], None)
            if step is not None:
                heads[first] = ready, *step
            else:
                finish = max(finish, ready)
                del heads[first], steps[first]
        return finish

    def not_worse(self, parts: Sequence[PlanPart], size: int) -> list[PlanPart]:
        """Parts that no other part dominates in all `_traits`; of equal parts, the first."""
        rows = np.array([self._traits(part, size) for part in parts]).reshape(len(parts), -1)
        kept: list[int] = []
        for number in np.argsort(rows.sum(axis=1), kind="stable").tolist():
            if not any((rows[other] <= rows[number]).all() for other in kept):
                kept.append(number)
        return [parts[number] for number in kept]

    def _traits(self, part: PlanPart, size: int) -> list[float]:
        """[ticks of the part alone, then by resource: load, ticks before first use, ticks after last use]."""
        steps, count, now = self._steps_of(part, size), len(self.resources), 0.0
        total = sum(ticks for ticks, _ in steps)
        load, before, after = [0.0] * count, [total] * count, [0.0] * count
        for ticks, holds in steps:
            for place, busy in holds:
                load[place] += busy
                before[place], after[place] = min(before[place], now), total - now - ticks
            now += ticks
        return [total, *load, *before, *after]

    def _steps_of(self, part: PlanPart, size: int) -> list[Step]:
        key = part, size
        if key not in self._steps:
            self._steps[key] = steps = []
            for verb, digit in part.steps():
                share = -(-size // digit.base) if verb == "scatter" else size
                steps.append(self._step(share, digit, verb != "scatter"))
                size = share if verb == "scatter" else size * digit.base if verb == "gather" else size
        return self._steps[key]

    def _step(self, count: int, digit: Digit, is_same: bool) -> Step:
        key = count, digit, is_same
        if key not in self._known:
            if _fits(self._times, digit):
                ticks, busy, used = self._times.step(*key)
                place = self._place
                held = zip(used.tolist(), busy.tolist(), strict=True)
                self._known[key] = ticks, [(place[each], long) for each, long in held if each in place]
            else:
                self._known[key] = math.inf, []
        return self._known[key]


def _fits(times: StepTimes, digit: Digit) -> bool:
    """True if an exchange along the digit has at most `MOST_SENDS` sends."""
    return bool(times.hops(digit))


def _that_delay(times: StepTimes, digits: Iterable[tuple[Digit, bool]]) -> Ints:
    """Indices of resources that can limit a plan: no other one is held as long or longer in every step."""
    loads = []
    for digit, is_same in digits:
        used, _, alphas, betas = times.loads(digit, is_same)
        each = np.zeros((3, len(times.problem.topology.resources)), np.int64)
        each[:2, used], each[2, used] = alphas, betas
        loads.append(each)
    rows = np.concatenate(loads or [np.zeros((1, 0), np.int64)]).T
    distinct = list({row.tobytes(): number for number, row in enumerate(rows)}.values())
    kept: list[int] = []
    for number in sorted(distinct, key=lambda number: -int(rows[number].sum())):
        if rows[number].any() and not any((rows[number] <= rows[other]).all() for other in kept):
            kept.append(number)
        if len(kept) > _MOST_RESOURCES:
            break
    return np.array(kept, np.int64)

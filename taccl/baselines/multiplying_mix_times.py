"""Estimated times of mixed plans of recursive multiplying, by the steps of their parts.

A part waits for the resources that the parts before it hold. Estimates use the steps of `StepTimes`, and are
exact on machines of equal nodes and ports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import add
from typing import TYPE_CHECKING

import numpy as np

from taccl.baselines.multiplying_overlaps import Progress, Undelayed, held_after, share_in, undelayed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taccl.baselines.moves import Ints
    from taccl.baselines.multiplying_plans import Digit, PlanPart
    from taccl.baselines.multiplying_times import StepTimes

    #: (ticks of a step, [(resource, ticks for which the step holds it), ...]).
    Step = tuple[float, list[tuple[int, float]]]
    #: See `TimedPart.steps`.
    TimedStep = tuple[float, list[tuple[int, float]], float, bool, float]
    #: (index of a step of a part, its earliest start in us).
    Delay = tuple[int, float]

#: Max resources with different loads for which mixed plans are searched; with more, estimates are too slow.
MOST_RESOURCES = 64
#: Ratio by which a lower bound must exceed a limit to end a simulation, as sums of times are rounded.
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class TimedPart:
    """Part of a mixed plan, with its estimated times.

    - `size`: Number of its chunks.
    - `delay`: A step that starts later, so that other parts go first.
    - `steps`: (ticks, holds, rest, True if it only moves chunks of the own node, earliest start) of each
      step. The rest are the ticks from its start to the end of the steps that depend on it.
    - `alone`: Undelayed times of each step; empty if steps follow one another.
    - `loads`: For each resource, the ticks for which the part holds it.
    - `heads`, `tails`: For each resource, the ticks before its first use, and after its last use. Both are
      the total ticks of the part if it does not use the resource.
    """

    part: PlanPart
    size: int
    delay: Delay
    steps: list[TimedStep]
    alone: list[Undelayed]
    loads: list[float]
    heads: list[float]
    tails: list[float]

    @property
    def undelayed(self) -> float:
        """Ticks of the part if other parts do not delay it."""
        return self.steps[0][2] if self.steps else 0.0

    @classmethod
    def of(
        cls,
        part: PlanPart,
        size: int,
        delay: Delay,
        ticks_per_us: int,
        steps: Sequence[tuple[tuple[str, Digit], float, list[tuple[int, float]]]],
        num_resources: int,
    ) -> TimedPart:
        """Part of a mixed plan, with its times computed from its steps."""
        alone: list[Undelayed] = []
        if part.is_divided:
            longest = [(ticks, max((busy for _, busy in holds), default=0.0)) for _, ticks, holds in steps]
            alone = undelayed([head for head, _, _ in steps], longest)
        total = left = alone[0].left if alone else sum(ticks for _, ticks, _ in steps)
        loads, heads, tails = [0.0] * num_resources, [total] * num_resources, [total] * num_resources
        rows = []
        for number, (head, ticks, holds) in enumerate(steps):
            start = total - left
            if alone:
                start, left = alone[number][:2]
            for place, busy in holds:
                loads[place] += busy
                heads[place], tails[place] = min(heads[place], start), min(tails[place], left - busy)
            earliest = ticks_per_us * delay[1] if number == delay[0] else 0.0
            rows.append((ticks, holds, left, head[1].own > 0, earliest))
            left -= ticks
        return cls(part, size, delay, rows, alone, loads, heads, tails)


#: Mixed plan: parts of the chunks in order of priority.
Mix = list[TimedPart]


class MixTimes:
    """Estimator of the finish of mixed plans; it considers only resources that can cause delays.

    - `parts`: Plans that parts may have.
    - `spreads`: True if chunks are only gathered, without sums.
    - `num_chunks`: Number of chunks of the problem.
    - `resources`: Indices of these resources. A resource is left out if another one is held at least as long
      in every step; of several resources with equal loads, one is listed.
    """

    def __init__(self, times: StepTimes, parts: Sequence[PlanPart], *, spreads: bool = False) -> None:
        self._times, self.parts, self._spreads = times, parts, spreads
        self.num_chunks = times.problem.collective.num_chunks
        every = {
            (digit, verb != "scatter"): None for part in parts for verb, digit in part.steps(spreads=spreads)
        }
        digits = dict.fromkeys((digit.undivided, is_same) for digit, is_same in every if _fits(times, digit))
        self.resources = _limiting_resources(times, digits)
        #: Place of each resource of the topology in `resources`, -1 if it has none.
        self._place = np.full(len(times.problem.topology.resources), -1)
        self._place[self.resources] = np.arange(len(self.resources))
        self._parts: dict[tuple[PlanPart, int, Delay], TimedPart] = {}
        self._known: dict[tuple[int, Digit, bool], Step] = {}
        #: {mixed plan: (finish in ticks, or inf if later than a limit; this limit)}.
        self._finishes: dict[tuple[TimedPart, ...], tuple[float, float]] = {}

    def soonest(self, mixes: Iterable[Mix], most: float = math.inf) -> tuple[float, Mix]:
        """Mixed plan with the least estimated finish, as (ticks, plan); (inf, []) if all exceed `most`."""
        best, found = math.inf, []
        for mix in mixes:
            ticks = self.finish(mix, min(best, most))
            if ticks < best:
                best, found = ticks, mix
        return best, found

    def finish(self, mix: Mix, most: float = math.inf) -> float:
        """Estimated finish of a mixed plan in ticks; infinite beyond `most`.

        Steps of different parts are ordered as in `StepTimes.timeline`.
        """
        key = tuple(mix)
        finish, known_to = self._finishes.get(key, (math.inf, -math.inf))
        if finish == math.inf and most > known_to:
            finish = self._simulated(mix, most)
            self._finishes[key] = finish, most
        return finish if finish <= most else math.inf

    def _simulated(self, mix: Mix, most: float) -> float:
        """Estimated finish as in `finish`, by a simulation that ends once a lower bound exceeds `most`.

        Before and after each step, that bound is, over all resources: the load that is left, behind the time
        at which the resource is free, and the shortest tail.
        """
        left_loads: list[float] = list(map(sum, zip(*[each.loads for each in mix], strict=True)))
        firsts = map(min, zip(*[each.heads for each in mix], strict=True))
        tails = list(map(min, zip(*[each.tails for each in mix], strict=True)))
        if max(map(add, map(add, left_loads, firsts), tails), default=0.0) > most:
            return math.inf
        above = most * _ROUNDING
        free = [0.0] * len(self.resources)
        # Steps of each part that are left; their earliest start; a step that may start before the first.
        left = [[*reversed(each.steps)] for each in mix]
        ready = [0.0] * len(mix)
        others: dict[int, TimedStep] = {}
        done = {k: Progress() for k, each in enumerate(mix) if each.alone}
        parts, finish = [*range(len(mix))], 0.0
        while parts:
            since, first, is_own, early = math.inf, -1, False, False
            for k in parts:
                start = ready[k]
                _, holds, _, own, earliest = left[k][-1]
                if earliest > start:
                    start = earliest
                for place, _ in holds:
                    if free[place] > start:
                        start = free[place]
                if start < since or (start == since and is_own and not own):
                    since, first, is_own, early = start, k, own, False
                if k in others:
                    start = max(ready[k], others[k][4])
                    for place, _ in others[k][1]:
                        if free[place] > start:
                            start = free[place]
                    if start < since:
                        since, first, is_own, early = start, k, True, True
            if first < 0:
                return math.inf
            steps = left[first]
            ticks, holds, rest, _, _ = steps.pop(-1 - early)
            if since + rest > most:
                return math.inf
            for place, busy in holds:
                free[place] = since + busy
                left_loads[place] -= busy
                if free[place] + left_loads[place] + tails[place] > above:
                    return math.inf
            end = since + ticks
            if end > finish:
                finish = end
            others.pop(first, None)
            if first in done:
                done[first].started(since, ticks, mix[first].alone, early=early)
                ready[first] = done[first].ready
                if len(steps) > 1 and steps[-2][3] and not early:
                    others[first] = steps[-2]
            else:
                ready[first] = end
            if not steps:
                parts.remove(first)
        return finish

    def timed(self, part: PlanPart, size: int, delay: Delay = (0, 0.0)) -> TimedPart:
        """Part of a mixed plan that has `size` chunks; the same object for the same arguments."""
        key = part, size, delay
        if key not in self._parts:
            held, steps, heads = size, [], part.steps(spreads=self._spreads)
            for head in heads:
                steps.append(self._step(share_in(head, held), head[1], head[0] != "scatter"))
                held = held_after(head, held)
            rows = [(head, *step) for head, step in zip(heads, steps, strict=True)]
            per_us = self._times.problem.costs.ticks_per_us
            self._parts[key] = TimedPart.of(part, size, delay, per_us, rows, len(self.resources))
        return self._parts[key]

    def least(self, parts: Sequence[PlanPart], num_chunks: int) -> float:
        """Ticks that every mix of the plans takes, but for the rounding of shares and merged messages.

        That is the least load of a resource, behind its earliest first use and before its shortest tail.
        """
        whole, single = ([self.timed(part, size) for part in parts] for size in (num_chunks, 1))
        loads = (min(each) for each in zip(*[part.loads for part in whole], strict=True))
        heads = (min(each) for each in zip(*[part.heads for part in single], strict=True))
        tails = (min(each) for each in zip(*[part.tails for part in single], strict=True))
        return max(map(sum, zip(loads, heads, tails, strict=True)), default=0.0)

    def _step(self, count: int, digit: Digit, is_same: bool) -> Step:
        key = count, digit, is_same
        if key not in self._known:
            if _fits(self._times, digit):
                ticks, busy, used = self._times.step(*key)
                place = self._place[used]
                kept = np.flatnonzero(place >= 0)
                self._known[key] = ticks, list(zip(place[kept].tolist(), busy[kept].tolist(), strict=True))
            else:
                self._known[key] = math.inf, []
        return self._known[key]


def _fits(times: StepTimes, digit: Digit) -> bool:
    """True if an exchange among ranks that differ in `digit` has at most `MOST_SENDS` sends."""
    return bool(times.hops(digit))


def _limiting_resources(times: StepTimes, digits: Iterable[tuple[Digit, bool]]) -> Ints:
    """Indices of resources that can limit a plan, without those dominated by another resource.

    A resource dominates another if it is held at least as long in every step.
    """
    loads = []
    # Exchanges whose messages take direct links share their loads.
    distinct_loads = {id(each): each for each in (times.loads(*pair) for pair in digits)}
    for used, _, alphas, betas in distinct_loads.values():
        each = np.zeros((3, len(times.problem.topology.resources)), np.int64)
        each[:2, used], each[2, used] = alphas, betas
        loads.append(each)
    rows = np.concatenate(loads or [np.zeros((1, 0), np.int64)]).T
    distinct = list({row.tobytes(): number for number, row in enumerate(rows)}.values())
    kept: list[int] = []
    for number in sorted(distinct, key=lambda number: -int(rows[number].sum())):
        if rows[number].any() and not any((rows[number] <= rows[other]).all() for other in kept):
            kept.append(number)
        if len(kept) > MOST_RESOURCES:
            break
    return np.array(kept, np.int64)

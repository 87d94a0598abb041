"""Tiles of a plan: ranges of sizes, each with the fastest schedule there, found by few simulations."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from taccl._internal.deadline import Deadline, OutOfTime
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.scopes import cuts_s
from taccl.analysis.simulation.simulate import simulate
from taccl.analysis.verification.verify import verify
from taccl.errors import InputError, TacclWarning
from taccl.explore.plan_ranges import PlanRange
from taccl.problem.clauses import Clauses
from taccl.problem.problem import Problem
from taccl.program.program import Program
from taccl.schedule.schedule import Schedule
from taccl.synthesis.bounding import no_bound

#: `_MOST_BOUND_S`, `_LEAST_BOUND_S`: max and min seconds for a bound; then a known or a trivial one serves.
_MOST_BOUND_S, _LEAST_BOUND_S = 2.1, 0.1


#: {(protocol, size in bytes): lower bound over all chunkings that a synthesis proved}.
KnownBounds = Mapping[tuple[str, int | None], Certificate]


class TimedSchedule:
    """A schedule, and its finish at any size, launch included.

    The order of sends is fixed, so the finish is the longest path in their precedence graph. Lengths of paths
    are affine in bytes, so the finish is a convex, nondecreasing function of the size. So the finishes at two
    sizes limit the finish at a third: from below if both lie on one side of it, from above if it lies between
    them. Few sizes need a simulation.
    """

    def __init__(self, schedule: Schedule, source: str) -> None:
        self.schedule, self.source = schedule, source
        self._finish: dict[int, Fraction | float] = {}
        #: {size for which a schedule of this shape was made: its predicted time there in us}.
        self.made_us: dict[int, float] = {}

    @cached_property
    def shape(self) -> tuple[object, ...]:
        """Key of the schedule's sends without times; schedules with equal keys finish alike at every size."""
        s = self.schedule
        columns = (column.tobytes() for column in (s.chunk, s.link, s.group, s.reduce))
        carried = str(s.contributions) if s.carries is not None else ""
        return s.problem.topology.protocol, s.problem.collective.num_chunks, carried, *columns

    def _chunk_bytes(self, size: int) -> int:
        return -(-size // self.schedule.problem.collective.size_chunks)

    def finish(self, size: int) -> Fraction | float:
        """Exact finish at a size in us, launch included; infinite if the order of sends is infeasible."""
        key = self._chunk_bytes(size)
        if key not in self._finish:
            least, most = self._range(key)
            if least < most:
                try:
                    found = simulate(self.schedule, size=size)
                    least = found.launch + found.finish
                except InputError:
                    least = math.inf
            self._finish[key] = least
        return self._finish[key]

    def at_least(self, size: int) -> Fraction | float:
        """Known lower limit of the finish at a size."""
        return self._range(self._chunk_bytes(size))[0]

    def _range(self, key: int) -> tuple[Fraction | float, Fraction | float]:
        """(lower, upper) limit of the finish for chunks of `key` bytes; equal if the finish is known."""
        if key in self._finish:
            return (self._finish[key],) * 2
        known = sorted((x, Fraction(y)) for x, y in self._finish.items() if y < math.inf)
        below, above = [p for p in known if p[0] < key], [p for p in known if p[0] > key]

        def line(one: tuple[int, Fraction], other: tuple[int, Fraction]) -> Fraction:
            (x, y), (other_x, other_y) = one, other
            return y + (y - other_y) * (key - x) / (x - other_x)

        least: Fraction | float = below[-1][1] if below else 0
        least = max([least, *(line(*pair) for pair in (below[:-3:-1], above[:2]) if len(pair) == 2)])
        return least, line(below[-1], above[0]) if below and above else math.inf

    def at(self, size: int) -> Schedule:
        """The verified schedule with its times at a size.

        At its own size it is not simulated, unless a simulation has shown that it could finish earlier.
        """
        schedule, key = self.schedule, self._chunk_bytes(size)
        is_own = schedule.problem.size_bytes == size and {*schedule.problem.chunk_bytes} == {key}
        known = schedule.launch + schedule.finish
        if not is_own or self._finish.get(key, known) < known:
            schedule = simulate(schedule, size=size).as_schedule()
        verify(schedule).raise_if_failed()
        return schedule


#: Range of sizes of a plan: first size, last size, and the schedule that is fastest from one to the other.
Tile = tuple[int, int, TimedSchedule]


def winner_at(candidates: Sequence[TimedSchedule], size: int) -> TimedSchedule:
    """The candidate that finishes first at a size."""
    best: TimedSchedule | None = None
    for each in sorted(candidates, key=lambda candidate: candidate.at_least(size)):
        if best is not None and each.at_least(size) >= best.finish(size):
            break
        if best is None or each.finish(size) < best.finish(size):
            best = each
    assert best is not None, "there is a candidate"
    return best


def tiles_of(candidates: Sequence[TimedSchedule], grid: Sequence[int]) -> list[Tile]:
    """Contiguous tiles (first size, last size, fastest schedule) that cover the sizes of the grid."""

    def best(size: int, *preferred: TimedSchedule) -> TimedSchedule:
        """Best schedule at a size; among equals a preferred one, so that ranges do not change needlessly."""
        found = winner_at(candidates, size)
        return next((each for each in preferred if each.finish(size) <= found.finish(size)), found)

    def starts(
        first: int, before: TimedSchedule, last: int, after: TimedSchedule
    ) -> list[tuple[int, TimedSchedule]]:
        """(first size, winner) of each tile that starts after size `first`, up to size `last`.

        - `before`, `after`: Winners at sizes `first` and `last`.
        """
        if before is after or last - first == 1:
            return [] if before is after else [(last, after)]
        middle = (first + last) // 2
        between = best(middle, before, after)
        return starts(first, before, middle, between) + starts(middle, between, last, after)

    found = [(grid[0], best(grid[0]))]
    for first, last in pairwise(grid):
        before = found[-1][1]
        found += starts(first, before, last, best(last, before))
    ends = [*(begin - 1 for begin, _ in found[1:]), grid[-1]]
    return [(begin, end, winner) for (begin, winner), end in zip(found, ends, strict=True)]


def without_one(tiles: Sequence[Tile], grid: Sequence[int]) -> list[TimedSchedule]:
    """All schedules of `tiles` except the one whose removal increases finishes least.

    The increase is the largest ratio of the finish without it to the best finish, at sizes of `grid` and ends
    of tiles.
    """
    winners = list(dict.fromkeys(winner for _, _, winner in tiles))
    sizes = sorted({*grid, *(end for first, last, _ in tiles for end in (first, last))})

    def best(some: Sequence[TimedSchedule], size: int) -> Fraction | float:
        return min(each.finish(size) for each in some)

    def regret(left_out: TimedSchedule) -> Fraction | float:
        others = [each for each in winners if each is not left_out]
        return max(ratio(best(others, size), best(winners, size)) for size in sizes)

    least = min(winners, key=regret)
    return [each for each in winners if each is not least]


def ratio(finish: Fraction | float, best: Fraction | float) -> Fraction | float:
    """Ratio of a finish to the best finish; 1 if the best is 0, as then no send is necessary."""
    return finish / best if best else 1


def range_of(
    tile: Tile, program: Program | None, until: Deadline, left: int, known: KnownBounds
) -> PlanRange:
    """Plan range of a tile: its schedule, with finish and lower bound at both ends and at its own size.

    - `program`: Program of the schedule; None if there was too little time for it.
    - `until`: Deadline for the lower bounds of this range and of the ranges after it.
    - `left`: Number of lower bounds to compute until then.
    - `known`: Lower bounds from syntheses, for sizes at which none can be computed in time.
    """
    first, last, winner = tile
    own = min(max(winner.schedule.problem.size_bytes or first, first), last)
    schedules = {size: winner.at(size) for size in sorted({first, own, last})}
    bounds: dict[int, Certificate] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TacclWarning)
        for size, each in schedules.items():
            # Bounds must hold for all sketches and chunkings, so only the clauses on merging are kept.
            free = replace(each.problem, clauses=each.problem.clauses.only("merge"))
            share_s = max(0.0, until.left_s) / (left - len(bounds))
            bounds[size] = _bound(free, min(_MOST_BOUND_S, share_s), known)
    return PlanRange(
        first, last, schedules[own], winner.source, schedules[first].finish, schedules[last].finish,
        bounds[own], bounds[first], bounds[last], program,
    )  # fmt: skip


def _bound(problem: Problem, seconds: float, known: KnownBounds) -> Certificate:
    """Lower bound over all chunkings; after `seconds` (min `_LEAST_BOUND_S`), a known or a trivial bound.

    Without any time, a known bound is not computed again, and none that would surely take too long is begun.
    """
    budget_s = max(seconds, _LEAST_BOUND_S) / 2
    found = known.get((problem.topology.protocol, problem.size_bytes))
    # A known bound also holds for problems that allow no more merging than the problem it was proved for.
    if found is not None and not _merges(problem.clauses, within=found.problem.clauses):
        found = None
    trivial = no_bound(problem, divisible=True)
    if not seconds and (found is not None or cuts_s(problem) > _LEAST_BOUND_S):
        return found or trivial
    try:
        with Deadline.after(2 * budget_s).enforced():
            return lower_bound(problem, divisible=True, budget_s=budget_s, limit_s=2 * budget_s)
    except OutOfTime:
        return found or trivial


def _merges(clauses: Clauses, *, within: Clauses) -> bool:
    """True if `clauses` allow no more merging than `within`, and `within` has only clauses on merging."""
    is_free = within == within.only("merge")
    return is_free and clauses.merging <= within.merging and clauses.max_merge <= within.max_merge

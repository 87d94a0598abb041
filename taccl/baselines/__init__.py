"""Well-known algorithms of libraries as schedules, for comparison with synthesized schedules.

Each function makes a `Schedule` for a `Problem`. The schedule respects only the merging clauses of a sketch.
Chunks are cut into smaller ones while that shortens the schedule, as libraries do; ``cut=False`` keeps the
chunks.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from taccl._internal.arguments import Seconds, checked, known_name
from taccl._internal.deadline import Deadline
from taccl._internal.garbage import rarely_collected
from taccl._internal.units import format_us
from taccl.baselines.buckets import bucket
from taccl.baselines.chunking import are_pairs, built_within, keep_soonest, soonest_so_far
from taccl.baselines.direct import least_one_shot_us, one_shot, pairwise
from taccl.baselines.hierarchical import dimension_balanced, hierarchical
from taccl.baselines.in_network import in_network
from taccl.baselines.multiplying import multiplying
from taccl.baselines.nccl import nccl, nccl_choices
from taccl.baselines.recursive import bine, recursive, swing
from taccl.baselines.ring import ring
from taccl.baselines.servers import servers
from taccl.baselines.table import BASELINES, build_times, row_of, soonest_us
from taccl.baselines.tree import tree
from taccl.errors import CollectiveError, TopologyError
from taccl.schedule.listing import released
from taccl.topology.recognise import grid_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule

__all__ = [
    "BASELINES", "baseline", "best", "bine", "bucket", "dimension_balanced", "hierarchical", "in_network",
    "multiplying", "nccl", "nccl_choices", "one_shot", "pairwise", "recursive", "ring", "servers",
    "swing", "tree",
]  # fmt: skip


@checked
def baseline(name: str, problem: Problem, *, cut: bool = True) -> Schedule:
    """Schedule of a problem by the baseline of the given name.

    Parameters
    ----------
    name : str
        One of `BASELINES`; ``"best"``, the fastest of them; or ``"nccl"``, the predicted choice of NCCL. Case
        and separators do not matter.
    problem : Problem
        The problem to solve. If it has due dates, urgent sends come first where that makes the schedule less
        late. A note of its problem says how late it is.
    cut : bool
        True to cut chunks into smaller ones while that shortens the schedule, even if their number was given;
        ``taccl baseline`` then keeps it. A note of the schedule's problem has the number of parts.

    Raises
    ------
    InputError
        If the name is unknown, or the baseline does not support the problem.
    """
    known: dict[str, Any] = {**BASELINES, "best": best, "nccl": nccl}
    key = known_name(name, known, "baseline")
    found: Schedule = known[key](problem, cut=cut)
    return _in_due_order(found) if problem.due_us and key != "best" else found


#: `_LONG_S`, `_LONG_TIMES`: baselines that take more than this number of CPU seconds by estimate, and this
#: multiple of the quickest one, come last (recursive multiplying on 256 ranks).
#: `_USUAL_TURNS`: number of turns by which the usually best baselines of tori and meshes come earlier.
#: `_CUT_ANYWAY`: max transfers (0.2 s) for finer chunks even if `soonest_us` is past the best finish.
#: `_CUT_TIMES`: max ratio of this estimate to the best finish; 461 cases finished at 0.35 of it or more.
_LONG_S, _LONG_TIMES, _USUAL_TURNS, _CUT_ANYWAY, _CUT_TIMES = 2.0, 3.0, 5, 2_000, 3.0


@checked
@rarely_collected()
def best(problem: Problem, *, cut: bool = True, time_limit_s: Seconds | None = None) -> Schedule:
    """Schedule with the earliest finish over all baselines that support the problem.

    If the problem has due dates, the least late schedules come first (see `baseline`).
    Baselines that are quick to build come first. Once the time limit has passed, the best schedule so far is
    returned.

    Parameters
    ----------
    problem : Problem
        The problem to solve.
    cut : bool
        True to cut chunks into smaller ones while that shortens the schedule.
    time_limit_s : float, optional
        Seconds after which no further baseline is tried, and no further form of one. One schedule is always
        completed.

    Raises
    ------
    CollectiveError
        If no baseline supports the problem.
    """
    deadline = Deadline.after(math.inf if time_limit_s is None else time_limit_s)
    made: dict[str, Schedule] = {}

    def attempt(name: str, *, cut: bool) -> Schedule | None:
        """Schedule of a baseline, or None if it is unsupported or out of time.

        None also for the one-shot baseline if it is known to be slower than another one. Forms that are
        complete when time is up count.

        - `cut`: True to cut chunks.
        """
        least_us = min((schedule.finish_us for schedule in made.values()), default=math.inf)

        def make() -> Schedule | None:
            if BASELINES[name] is one_shot and not cut and least_one_shot_us(problem) > least_us:
                return None
            return BASELINES[name](problem, cut=cut)

        with suppress(CollectiveError, TopologyError):
            found = built_within(problem, make, deadline, lambda: bool(made))
            return None if found is None else keep_soonest(problem, found)
        return None

    finer: list[Schedule] = []
    for group in _groups(problem):
        for name in group:
            if (found := attempt(name, cut=False)) is not None:
                made[name] = found
        built = [name for name in group if name in made]
        for name in sorted(built, key=lambda name: made[name].finish):
            whole, least_us = made[name], min(each.finish_us for each in (*made.values(), *finer))
            times = _CUT_TIMES if whole.num_transfers <= _CUT_ANYWAY else 1.0
            if cut and soonest_us(name, whole) < times * least_us:
                finer += filter(None, (attempt(name, cut=True),))
    if not made:
        raise CollectiveError(f"no baseline supports {problem.title}; synthesize it", where="baseline")
    every = [*(made[name] for name in BASELINES if name in made), *finer]
    if cut and deadline.has_passed:
        every += soonest_so_far(problem)
    if problem.due_us:
        every = [_in_due_order(each) for each in every]
        return min(every, key=lambda schedule: (_late_us(schedule), schedule.finish_us))
    return min(every, key=lambda schedule: schedule.finish)


def _in_due_order(schedule: Schedule) -> Schedule:
    """The schedule, with urgent sends first if it is then less late; a note states how late it is."""
    with suppress(ValueError):
        urgent = released(schedule.problem, schedule)
        schedule = min(schedule, urgent, key=lambda each: (_late_us(each), each.finish))
    late_us, problem = _late_us(schedule), schedule.problem
    if not late_us:
        return schedule
    note = f"a due date is missed by {format_us(late_us)}, as baselines do not plan for due dates"
    return schedule.under(replace(problem, notes=(*problem.notes, note)))


def _late_us(schedule: Schedule) -> float:
    """Max time in us from a due date to the arrival of its chunk; 0 if all due dates are met."""
    problem = schedule.problem
    links, is_sum = problem.topology.links, problem.collective.sums_up
    arrivals: dict[tuple[int, int], list[int]] = defaultdict(list)
    for c, e, end in zip(
        *(schedule.columns[name].tolist() for name in ("chunk", "link", "end")), strict=True
    ):
        for rank in links[e].dsts:
            arrivals[c, rank].append(end)
    # A copy is complete at its first arrival, and a sum at its last one.
    when = {key: max(ends) if is_sum else min(ends) for key, ends in arrivals.items()}
    ticks_per_us = problem.costs.ticks_per_us
    late = (float(when.get((c, rank), 0) - us * ticks_per_us) for c, rank, us in problem.due_us)
    return max(0.0, *late) / ticks_per_us


def _groups(problem: Problem) -> Sequence[list[str]]:
    """Names of the baselines, in order, in groups, each of which is built and cut before the next.

    On tori and meshes the usually best ones come first. Those that take far longer than the quickest one come
    last.
    """
    takes_s, on_grid = build_times(problem, sys.maxsize), grid_of(problem.topology) is not None
    most_s = max(_LONG_S, _LONG_TIMES * min(takes_s.values(), default=0.0))
    # Other algorithms than pairwise exchange send chunks for one rank over several ranks.
    first = "pairwise" if are_pairs(problem) else ""

    def turn(name: str) -> int:
        row = row_of(name)
        is_usual = on_grid and not first and row.grid_place is not None
        return row.turn + (row.grid_place or 0) - _USUAL_TURNS if is_usual else row.turn

    groups: tuple[list[str], ...] = [], [], []
    for name in sorted(BASELINES, key=lambda name: (name != first, turn(name))):
        is_long = takes_s.get(name, 0.0) > most_s
        groups[0 if turn(name) <= -_USUAL_TURNS else 1 + is_long].append(name)
    return groups

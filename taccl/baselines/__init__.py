"""What a library does today: well-known algorithms as schedules, to set results beside.

Each takes a `Problem` and returns a `Schedule`; all leave the sketch aside, but for merging.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl.arguments import checked
from taccl.baselines.hierarchical import hierarchical
from taccl.baselines.one_shot import one_shot
from taccl.baselines.pairwise import pairwise
from taccl.baselines.recursive import recursive
from taccl.baselines.ring import ring
from taccl.baselines.tree import tree
from taccl.errors import CollectiveError, InputError
from taccl.names import did_you_mean, matching

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule

__all__ = [
    "BASELINES", "baseline", "best", "hierarchical", "one_shot", "pairwise", "recursive", "ring", "tree",
]  # fmt: skip

#: Every baseline, by name.
BASELINES: dict[str, Callable[[Problem], Schedule]] = {
    "ring": ring,
    "tree": tree,
    "recursive": recursive,
    "hierarchical": hierarchical,
    "pairwise": pairwise,
    "one-shot": one_shot,
}


@checked
def baseline(name: str, problem: Problem) -> Schedule:
    """The schedule of the baseline of that name, however it is spelt; `InputError` if it cannot be had."""
    known = {**BASELINES, "best": best}
    found = matching(name, known)
    if found is None:
        raise InputError(
            f"found {name!r}; expected one of {', '.join(BASELINES)}, or best{did_you_mean(name, known)}",
            where="baseline",
        )
    return known[found](problem)


@checked
def best(problem: Problem) -> Schedule:
    """The schedule that finishes first, of all baselines that can do the collective on the topology."""
    schedules = []
    for function in BASELINES.values():
        try:
            schedules.append(function(problem))
        except CollectiveError:
            continue
    if not schedules:
        raise CollectiveError(f"no baseline can do {problem.title}; synthesize it", where="baseline")
    return min(schedules, key=lambda schedule: schedule.finish_ticks)

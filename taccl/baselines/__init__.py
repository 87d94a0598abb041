"""Well-known algorithms of libraries as schedules, for comparison with results.

Each takes a `Problem` and returns a `Schedule`; all leave the sketch aside, but for merging. As libraries do,
they cut chunks into smaller ones for as long as that pays; with ``cut=False`` the chunks are the problem's.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from taccl.arguments import checked, known_name
from taccl.baselines.hierarchical import dimension_balanced, hierarchical
from taccl.baselines.in_network import in_network
from taccl.baselines.multiplying import multiplying
from taccl.baselines.nccl import nccl, nccl_choices
from taccl.baselines.recursive import bine, recursive, swing
from taccl.baselines.ring import ring
from taccl.baselines.servers import servers
from taccl.baselines.spread import soonest_cut_us
from taccl.baselines.straight import least_one_shot_us, one_shot, pairwise
from taccl.baselines.tree import tree
from taccl.errors import CollectiveError

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule

__all__ = [
    "BASELINES", "baseline", "best", "bine", "dimension_balanced", "hierarchical", "in_network",
    "multiplying", "nccl", "nccl_choices", "one_shot", "pairwise", "recursive", "ring", "servers",
    "swing", "tree",
]  # fmt: skip

#: Every baseline, by name.
BASELINES: dict[str, Callable[..., Schedule]] = {
    "ring": ring,
    "tree": tree,
    "recursive": recursive,
    "swing": swing,
    "bine": bine,
    "hierarchical": hierarchical,
    "dimension-balanced": dimension_balanced,
    "pairwise": pairwise,
    "one-shot": one_shot,
    "multiplying": multiplying,
    "in-network": in_network,
    "servers": servers,
}


@checked
def baseline(name: str, problem: Problem, *, cut: bool = True) -> Schedule:
    """The schedule of the baseline of that name, however it is spelt; `InputError` if it cannot be had.

    Parameters
    ----------
    name : str
        One of `BASELINES`, ``"best"`` of them, or ``"nccl"``: what that library would choose, under a
        protocol that it also chooses.
    problem : Problem
        What is to be done.
    cut : bool
        Whether chunks may be cut, for as long as that pays.
    """
    known = {**BASELINES, "best": best, "nccl": nccl}
    return known[known_name(name, known, "baseline")](problem, cut=cut)


#: Schedules of fewer transfers are cut in any case (about 0.5 s).
_CUT_ANYWAY = 2_000


@checked
def best(problem: Problem, *, cut: bool = True) -> Schedule:
    """The schedule that finishes first, of all baselines that can do the collective on the topology."""
    made: dict[str, Schedule] = {}
    for name, function in sorted(BASELINES.items(), key=lambda item: item[1] is one_shot):
        finishes_us = [schedule.finish_us for schedule in made.values()]
        if function is one_shot and finishes_us and least_one_shot_us(problem) > min(finishes_us):
            continue  # it lists by far the most transfers
        with suppress(CollectiveError):
            made[name] = function(problem, cut=False)
    if not made:
        raise CollectiveError(f"no baseline can do {problem.title}; synthesize it", where="baseline")
    found = sorted(
        ((made[name], function) for name, function in BASELINES.items() if name in made),
        key=lambda each: each[0].finish,
    )
    fastest = found[0][0]
    for whole, function in found if cut else ():
        if whole.num_transfers <= _CUT_ANYWAY or soonest_cut_us(whole) < fastest.finish_us:
            fastest = min(fastest, function(problem, cut=True), key=lambda schedule: schedule.finish)
    return fastest

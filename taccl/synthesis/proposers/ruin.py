"""Ruin and recreate in a search: after other proposers, or early, in time that is reserved for it."""

from __future__ import annotations

import time
from functools import partial

from taccl._internal.deadline import OutOfTime, busy_factor
from taccl.synthesis.improve.improvement import improve_schedule
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.proposers.compiling import are_kept, have_compiled
from taccl.synthesis.search import Search

#: Max time of ruin and recreate in a turn, as a share of the turn.
_RUIN_SHARE = 0.3
#: Difference between the seeds of consecutive runs of ruin and recreate.
_NEXT_SEED = 1_000_003
#: Seconds past the deadline in which a run may still end by itself.
_LATE_S = 0.5


def ruin_early(search: Search) -> None:
    """Ruin and recreate in a turn, in time that is reserved for it after the turns.

    So its gain at a given time does not depend on the time limit. The time that it takes is no longer
    available to later turns and to the last run of ruin and recreate.
    """
    slice_s = min(busy_factor() * _RUIN_SHARE * search.turn_s, search.kept_s)
    began = time.monotonic()
    search.allow(slice_s)
    with search.keeping(max(0.0, search.deadline.left_s - slice_s)):
        ruin_and_recreate(search)
    spent_s = time.monotonic() - began
    search.allow(spent_s - slice_s)
    search.kept_s -= spent_s


def is_cold(search: Search) -> str:
    """Reason to skip a step that does not wait for kernels; empty if they are compiled."""
    return "" if are_kept(search.problem) else "its kernels are not compiled yet"


def ruin_within(search: Search, seconds: float) -> None:
    """Ruin and recreate for at most `seconds`."""
    deadline = search.deadline
    search.deadline = deadline.sooner(seconds)
    ruin_and_recreate(search)
    search.deadline = deadline


def ruin_and_recreate(search: Search) -> None:
    """Ruin and recreate on the incumbent's routes and order, until time is up or it finds nothing better.

    It needs chunks that travel along trees. If the incumbent names contributions, it starts from the best
    schedule that does not.
    """
    known = search.best_along_trees
    if search.done:
        return
    if known is None:
        said = "no schedule along trees to start from"
        search.record("ruin and recreate", "compiled", "skipped", time.monotonic(), message=said)
        return
    if not have_compiled(search):
        said = f"its kernels were not {'loaded' if are_kept(search.problem) else 'compiled'} in time"
        search.record("ruin and recreate", "compiled", "skipped", time.monotonic(), message=said)
        return
    since, num_transfers = time.monotonic(), known.num_transfers
    if num_transfers * search.parameters.ruin.s_per_transfer > search.deadline.left_s:
        said = f"too little time to read {num_transfers} transfers"
        search.record("ruin and recreate", "compiled", "skipped", since, message=said)
        return
    search.report("improving")
    limits = Limits(
        search.deadline, target_ticks=search.bound_ticks,
        seed=search.options.seed + _NEXT_SEED * search.num_ruins,
        parameters=search.parameters, idle_s=lambda: search.idle_s,
    )  # fmt: skip
    search.num_ruins += 1
    improving = partial(improve_schedule, known, limits)
    try:
        better, done = search.deadline.later(_LATE_S).run(improving)
    except OutOfTime:
        search.record("ruin and recreate", "compiled", "no-solution", since, message="no schedule in time")
        return
    finish = search.offer_whole(better, producer="ruin and recreate", proposed=True)
    search.record("ruin and recreate", "compiled", "done", since, finish_us=finish, message=done)

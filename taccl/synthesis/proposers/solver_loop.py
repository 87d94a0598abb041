"""Loop of one solver: routing, ordering and merging, job shops, and cuts."""

from __future__ import annotations

import time
from collections.abc import Callable

from taccl._internal.deadline import busy_factor
from taccl.synthesis.milp.jobshop import Cut, find_cut
from taccl.synthesis.milp.resource_rows import Windows, num_pairs
from taccl.synthesis.milp.solutions import needed_hops
from taccl.synthesis.proposers.greedy import ListSchedule
from taccl.synthesis.proposers.solver_stages import (
    Routed,
    improve_by_job_shop,
    job_shop,
    route,
    schedule_routed,
)
from taccl.synthesis.search import Search

#: `_FIRST_TURN_S`: seconds of the first turn of all stages; doubled after each routing not proven optimal.
#: Stages have shares of a turn, so that results at a given time do not depend on the time limit.
#: `_ROUTING_SHARE`: share of a turn for routing.
#: `_JOB_SHOP_SHARE`, `_MOST_JOB_SHOP_S`: share of a turn, and max CPU seconds, for the job shop of a routing.
#: `_CONTIGUITY_S`: max CPU seconds of a contiguity model.
#: `_CUT_S`: max CPU seconds of the proof of a cut: hops that together force a late finish.
#: `_ROUNDS_S`: seconds without improvement after which the rounds of job shops end.
_FIRST_TURN_S, _ROUTING_SHARE, _JOB_SHOP_SHARE, _MOST_JOB_SHOP_S = 4.0, 0.25, 0.15, 4.0
_CONTIGUITY_S, _CUT_S, _ROUNDS_S = 2.0, 1.0, 4.0
#: Statuses of a routing without a solution after which the loop goes on; other ones end it.
_OUT_OF_TIME = "no-solution", "timed-out"
#: Max pairs of hops on one resource for which routing also decides their order.
#: Each pair may need a binary and two rows; with more pairs, solvers mostly do not end within a few seconds.
_MOST_PAIRS = 1_000


def alone(search: Search, solver: str, improve: Callable[[], None]) -> None:
    """Loop of one solver over routing, ordering and merging, and cuts, until a bound is met or time is up.

    Without a time limit by the caller, it also ends after a share of its time without progress.

    - `improve`: Called in each turn before the rounds of job shops; it improves the rival's schedule.
    """
    shares = search.parameters.solver
    search.turn_s = _FIRST_TURN_S
    sequenced: frozenset[int] = frozenset()
    cuts: list[Cut] = []
    lower, is_first, progress = 0, True, _Progress(search)
    while is_first or search.deadline.left_s > shares.least_round_s:
        routing_s = busy_factor() * _ROUTING_SHARE * search.turn_s
        routed = route(
            search, solver, budget_s=min(routing_s, shares.routing_share * search.deadline.left_s),
            sequenced=sequenced, lower_ticks=lower, cuts=cuts, sooner=not is_first,
        )  # fmt: skip
        may_go_on = routed is None and search.stages[-1].status in _OUT_OF_TIME
        found = None if routed is None else _sequenced(search, routed, solver)
        if is_first and found is None and not may_go_on or _is_over(search, routed):
            return
        is_first = False
        if routed is None or not routed.is_optimal:
            search.turn_s *= 2
        elif not sequenced and (sequenced := _to_sequence(search, routed)):
            lower = routed.bound_ticks
            continue  # solve again, with order decided in the model
        improve()
        improve_by_job_shop(search, _ROUNDS_S)
        if search.stages[-1].status == "unavailable" or _is_over(search, routed):
            return
        if not progress.continues(search, 0 if routed is None else routed.bound_ticks):
            return
        if found is not None:
            cuts += _cuts(search, found)


class _Progress:
    """Best finish and model bound of a loop, and the time by which one of them must improve."""

    def __init__(self, search: Search) -> None:
        self.upper, self.lower = search.known[0], 0
        self.until_s = time.monotonic() + search.idle_s

    def continues(self, search: Search, lower: int) -> bool:
        """True if the finish or the bound has improved since the last call, or there is time left for it."""
        upper = search.known[0]
        if upper < self.upper or lower > self.lower:
            self.upper, self.lower = upper, max(lower, self.lower)
            self.until_s = time.monotonic() + search.idle_s
        return time.monotonic() < self.until_s


def _is_over(search: Search, routed: Routed | None) -> bool:
    """True if the loop is to end: a known finish meets the bound of the problem or model, or time is up."""
    upper, _ = search.known
    lower = search.bound_ticks if routed is None else max(search.bound_ticks, routed.bound_ticks)
    return search.interrupted or upper <= lower or search.done


def _sequenced(search: Search, routed: Routed, solver: str) -> ListSchedule | None:
    """Best schedule of a routing: ordered and merged by rules and the solver, then by a job shop."""
    if not routed.starts:
        return None
    job_shop_s = busy_factor() * min(_MOST_JOB_SHOP_S, _JOB_SHOP_SHARE * search.turn_s)
    budget_s = job_shop_s
    if solver != "cpsat":
        share = search.parameters.solver.contiguity_share
        budget_s = min(busy_factor() * _CONTIGUITY_S, share * search.deadline.left_s)
    found = schedule_routed(search, routed, solver, budget_s)
    if found is None or solver == "cpsat" or _is_over(search, routed):
        return found
    required = needed_hops(search.quotient, found)
    better = job_shop(search, "job shop", required=required, optional=(), hint=found, budget_s=job_shop_s)
    return better or found


def _cuts(search: Search, found: ListSchedule) -> list[Cut]:
    """The cut from a schedule's critical path, if one is proven in about a second; recorded as a stage."""
    since, (upper, _) = time.monotonic(), search.known
    cut = find_cut(
        search.quotient, found, upper_ticks=upper, lower_ticks=search.bound_ticks,
        time_limit_s=min(busy_factor() * _CUT_S, search.deadline.left_s), **search.of_solvers,
    )  # fmt: skip
    message = "nothing proven" if cut is None else f"{len(cut.hops)} hops on the limiting cut"
    ticks = None if cut is None else cut.ticks
    search.record("cut", "cpsat", "done", since, ticks=ticks, message=message)
    return [] if cut is None else [cut]


def _to_sequence(search: Search, routed: Routed) -> frozenset[int]:
    """Resources whose order of sends the next routing model should decide; empty if that would not help."""
    (upper, _), quotient = search.known, search.quotient
    # If sends merge, their order is not that of single hops: NDv2 x2 and x4 did not improve by sequencing.
    merges = any(quotient.merging[hop.link_orbit] for hop in quotient.hops)
    if merges or upper <= max(search.bound_ticks, routed.bound_ticks):
        return frozenset()
    windows = Windows(quotient, upper)
    pairs = {resource: num_pairs(quotient, windows, resource) for resource in range(quotient.num_resources)}
    too_large = sum(pairs.values()) > _MOST_PAIRS
    return frozenset(resource for resource, count in pairs.items() if count and not too_large)

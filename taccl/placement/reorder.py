"""Rank reordering: assign ranks to hosts so that a library's algorithm in rank order fits the network."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from taccl._internal.arguments import Natural, Seconds, Size, checked
from taccl._internal.deadline import Deadline, OutOfTime
from taccl.errors import warn
from taccl.placement.case import Case
from taccl.placement.hosts import ProbedHosts
from taccl.placement.judging import Judgement, has_clear_clusters, judge
from taccl.placement.placement import Placement
from taccl.placement.probe import Probe
from taccl.program.program import Program
from taccl.schedule.schedule import Schedule
from taccl.topology.topology import Topology

#: Maximum number of ranks for which branch and bound proves the best order.
_PROVABLE = 10
#: Seconds for the lower bound even if the time limit has passed.
_LEAST_BOUND_S = 0.3
#: `_SEARCHING`: max part of the time limit for the search on a probe; the rest is for the statistical test.
#: `_JUDGING`: time reserved for this test, as a multiple of the time of the preparation before the search.
#: Both build cases and time orders. For 1,000 hosts, the test takes 1.4 times as long, without its searches.
_SEARCHING, _JUDGING = 0.5, 2.0
#: Relative difference below which two times count as equal.
_NOTHING = 1e-6


@checked
def reorder(
    topology: Topology | Probe | ProbedHosts,
    collective: str = "allreduce",
    algorithm: str | Schedule | Program = "ring",
    size: Size = "100MB",
    *,
    time_limit_s: Seconds = 20.0,
    seed: Natural = 0,
    within_noise: bool = False,
    progress: Callable[[str, float | None, float | None], None] | None = None,
) -> Placement:
    """Assign ranks to hosts so that an algorithm that runs in rank order finishes early.

    The objective is the simulated finish (`taccl.placement.kernel.timed`): messages hold links, ports and
    uplinks as in any schedule, and each resource serves them in the algorithm's order. Up to ten ranks,
    branch and bound proves the best order in this simulation unless the time limit comes first
    (`Placement.proven`). The result is never simulated slower than the original order, rank r on host slot r.

    On a probe, or a topology made from one, the gain is tested on repetitions that the search did not use
    (`Placement.judgement`). If the gain is within noise, the original order is kept.

    Parameters
    ----------
    topology : Topology or Probe
        The hosts; slot r is rank r of the topology.
    collective : str
        Name of the collective, e.g. ``"allreduce"``, ``"allgather"`` or ``"alltoall"``.
    algorithm : str, Schedule or Program
        ``"ring"``, ``"rings:4"``, ``"double-tree:8"`` (8 pieces per tree; by default the power of two that is
        fastest in the original order), ``"halving-doubling"``, ``"pairwise"``, ``"hierarchical:8"`` (groups
        of 8 ranks; by default the nodes, if all have one size); or a schedule or program with the same number
        of ranks, whose protocol then applies.
    size : int or str
        Larger of one rank's input and output buffer, e.g. ``"100MB"``.
    time_limit_s : float
        Time limit in seconds; after it, or at Ctrl-C, the best order so far is returned.
    seed : int
        Seed of the search; one seed always gives the same order unless the time limit ends the search.
    within_noise : bool
        Whether to return the new order even if its gain is, or may be, within noise.
    progress : callable, optional
        Called with the stage, the finish in the original order in us, and the lower bound in us.

    Raises
    ------
    InputError
        If the algorithm does not support the collective or the number of ranks.
    TopologyError
        If no links lead from one rank to another.
    """
    began = time.monotonic()
    deadline = Deadline.after(time_limit_s)  # includes building the case, which can take seconds
    case = Case(topology, collective, algorithm, size)
    count, hosts = case.hosts.num_ranks, case.hosts
    given = tuple(range(count))
    before, bound = case.ticks(given, compiled=not case.is_small), 0
    with suppress(OutOfTime), deadline.at_least(_LEAST_BOUND_S).enforced():
        bound = case.ticks([-1] * count, compiled=not case.is_small)
        if before > bound:
            bound = max(bound, case.fabric.least_crossing(case.messages))
    best, after, proven = given, before, before <= bound * (1 + _NOTHING)
    measured = hosts if isinstance(hosts, ProbedHosts) else None
    judgement = None
    # After the search, the same figures are computed for the new order: reserve the time that they take.
    figures_began = time.monotonic()
    least = case.ticks(given, compiled=not case.is_small, is_relaxed=True)
    limits = case.limits(given, before)
    deadline = deadline.later(figures_began - time.monotonic())

    def tell(_seconds: float, doing: str, _part: float | None) -> None:
        if progress is not None:
            progress(doing or "placing ranks", case.us(before), case.us(bound))

    if not proven:

        def work() -> tuple[tuple[int, ...], int, bool]:
            first.check()
            found = case.search(given, seed, first)
            return case.prove(found, first) if count <= _PROVABLE else (*found, False)

        # The first call compiles the kernels, so the time limit may end the search before it has an order.
        # To have an order, try first the one that puts near hosts together, as it needs no search.
        near = case.ticks(case.nested, compiled=not case.is_small)
        best, after = min((best, after), (case.nested, near), key=lambda found: found[1])
        first = deadline
        if measured is not None:
            judging_s = _JUDGING * (time.monotonic() - began)
            first = deadline.sooner(min(_SEARCHING * deadline.left_s, deadline.left_s - judging_s))
        with suppress(OutOfTime), deadline.interruptible():
            best, after, proven = first.run(work, tell=tell)
    if after >= before * (1 - _NOTHING):
        best, after = given, before
    if best != given and measured is not None:
        reason = "the time limit was reached; give more time"
        judgement = Judgement(reason=reason, has_clusters=has_clear_clusters(measured.probe))
        with suppress(OutOfTime), deadline.interruptible():
            judgement = deadline.run(lambda: judge(measured, case, seed, deadline), tell=tell)
        if deadline.cancellation.why and not judgement.gains:
            judgement = replace(judgement, reason="stopped by Ctrl-C")
        if not (within_noise or judgement.is_trusted):
            best, after, proven = given, before, False
    bound = max(bound, after) if proven else min(bound, after)
    if deadline.cancellation.why:
        warn("stopped by Ctrl-C; this is the best order so far")
    return Placement(
        hosts, case.algorithm, case.size_bytes, best, case.us(before), case.us(after), case.us(bound), proven,
        (limits, case.limits(best, after)),
        case.fabric.distance(int(case.messages.units.max())) / case.ticks_per_us,
        case.us(least), judgement,
    )  # fmt: skip

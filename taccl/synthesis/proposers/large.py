"""Greedy synthesis by compiled kernels, of problems too large for MILP and the list scheduler in Python.

A reduction is searched in phases: its reduce phase is the reversal of a broadcast over reversed links, and
the broadcast phase follows once it has ended. Routes are found as if no sends merged. If sends may merge and
are few enough, chunks that wait for the same link are merged afterwards. No Python object is made per send.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taccl._internal.deadline import NEVER, Deadline, OutOfTime, busy_factor
from taccl.problem.costs import hold_columns, wide_links
from taccl.schedule.columns import narrow
from taccl.schedule.schedule import MANY, Schedule, make_schedule
from taccl.synthesis.improve.improvement import improve_schedule, suits_improvement
from taccl.synthesis.kernels.fabric import (
    Demand,
    Fabric,
    are_alike,
    most_merged,
    problem_arrays,
    sharing_latency,
)
from taccl.synthesis.kernels.limits import Limits, Sends
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.synthesis.proposers.queues import routes_of, send_together
from taccl.synthesis.proposers.spreading import has_chunk_masks, spread, spread_masked, urgent_hops
from taccl.synthesis.transforms.phases import Phase, join, overlapped, split

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from taccl.problem.problem import Problem

#: Name of the compiled list scheduler, in schedules and reports.
COMPILED = "compiled list scheduler"
#: Name of each phase in progress reports.
_DOING = {"": "", "reduce": "reduction", "broadcast": "copies"}
#: Share of the time for the first of two phases.
_PHASE_SHARE = 0.5
#: `_TURN_SENDS`: product of the number of iterations of ruin and recreate and the number of sends.
#: `_LEAST_TURNS`: min number of iterations.
_TURN_SENDS, _LEAST_TURNS = 6_000_000, 200
#: `_MOST_MERGED`: max arrivals (chunks times destinations) of a problem whose sends are merged.
#: `_MERGE_S`: estimated CPU seconds to merge sends, per send.
_MOST_MERGED, _MERGE_S = 100_000, 5e-6


def suits(problem: Problem) -> bool:
    """True if the compiled kernels support the problem."""
    return not why_not(problem)


def why_not(problem: Problem) -> str:
    """Features of the problem that the compiled kernels do not support; empty if they support all."""
    wide = set(wide_links(problem.topology))
    reasons = {
        "derived chunks": bool(problem.collective.derivations),
        "links of several ends": bool(wide) and not wide.isdisjoint(problem.links_allowed),
        "local-first priority on links that are free before a send ends": not _own_first_holds(problem),
    }
    return ", ".join(what for what, is_asked in reasons.items() if is_asked)


def _own_first_holds(problem: Problem) -> bool:
    """True if a send occupies each link with local-first priority until it ends.

    A relayed send then cannot start before the send ahead of it on the link ends.
    """
    costs, holds = problem.costs, hold_columns(problem.topology)
    same = costs.hold_alpha == costs.link_alpha[holds.link]
    same &= costs.hold_beta == costs.link_beta[holds.link]
    return problem.own_first <= set(holds.link[same].tolist())


def effort(problem: Problem) -> int:
    """Number of chunk-link pairs (hops) before symmetry reduction."""
    return problem.collective.num_chunks * len(problem.links_allowed)


def schedule_large(
    problem: Problem,
    *,
    merges: bool = False,
    target_ticks: int = 0,
    time_limit_s: float | None = None,
    deadline: Deadline = NEVER,
    seed: int = 0,
    num_runs: int | None = None,
    order_s: float = math.inf,
    spill_dir: str | os.PathLike[str] | None = None,
    parameters: SearchParameters = DEFAULTS,
) -> Schedule:
    """Schedule by the compiled kernels, for a problem that they support (`suits`).

    - `merges`: True to merge sends if the problem allows it, it pays, and there are few enough.
    - `target_ticks`: Finish at which the search may stop, such as a lower bound.
    - `time_limit_s`: Seconds after which no further run starts; the deadline also stops a run under way.
    - `num_runs`: Max number of rules and seeds to try; None for each rule once.
    - `order_s`: As in `Limits`.
    - `spill_dir`: Folder for unnamed temporary files that hold the schedule's columns during the search; None
      for memory.

    Raises `OutOfTime` if it was stopped before there was a schedule.
    """
    phases = split(problem)
    share = _PHASE_SHARE if len(phases) > 1 else 1.0
    limit_s = math.inf if time_limit_s is None else share * time_limit_s
    target_ticks //= len(phases)
    limits = Limits(
        deadline, None, target_ticks, num_runs, seed, order_s, spill_dir=spill_dir, parameters=parameters
    )
    merges = merges and spill_dir is None and _may_merge(problem, parameters)
    known: list[_Scheduled] = []
    found: Iterator[Any] = (
        _schedule_phase(phase, len(phases) - 1 - place, limit_s, limits, known, merges=merges)
        for place, phase in enumerate(phases)
    )
    joined = join(problem, found, retimed=merges, spill_dir=spill_dir)
    joined = joined if merges or spill_dir is not None else overlapped(joined)
    return joined if joined.num_transfers > MANY else joined.in_order()


class _Scheduled(NamedTuple):
    """Arrays of a phase, and its schedule."""

    fabric: Fabric
    demand: Demand
    schedule: Schedule


def _schedule_phase(
    phase: Phase, behind: int, limit_s: float, limits: Limits, known: list[_Scheduled], *, merges: bool
) -> Schedule:
    """Schedule of one phase of a problem, after which `behind` further phases are searched.

    - `known`: Phases scheduled so far. A phase that is alike takes over the schedule; this one is added.
    """
    problem, deadline = phase.problem, limits.deadline
    limits = replace(limits, until=deadline.sooner(limit_s))
    if problem.collective.is_met:
        nothing = np.zeros(0, np.int32)
        return _schedule(problem, Sends(nothing, nothing, nothing, 0))
    with deadline.scope(_DOING[phase.name], ahead=float(behind)):
        fabric, demand = problem_arrays(problem)
        is_plain = problem.clauses == problem.clauses.only("merge")
        may_share = is_plain and not merges and limits.spill_dir is None
        for each in known:
            if may_share and are_alike(each.fabric, fabric) and _are_equal(each.demand, demand):
                return _over_other_links(each, problem, fabric)
        is_masked = has_chunk_masks(problem)
        search = partial(spread_masked, problem) if is_masked else spread
        found = search(fabric, demand, limits)
        schedule = _schedule(problem, found, in_files=limits.spill_dir is not None)
        if merges:
            schedule = _merged(problem, fabric, demand, found, search, limits)
        is_open = limits.num_runs is None and schedule.finish_ticks > limits.target_ticks
        is_over = deadline.has_passed or demand.target is not None
        if is_masked or not is_open or is_over or not suits_improvement(problem):
            if may_share and behind:
                known.append(_Scheduled(fabric, demand, schedule))
            return schedule
        turns = max(_LEAST_TURNS, _TURN_SENDS // max(1, schedule.num_transfers))
        whole = schedule.in_order()
        better, _ = improve_schedule(whole, limits, turns=turns, merges=merges)
        if merges or better is whole:
            return better.under(problem, producer=whole.producer) if merges else schedule
        order = np.argsort(better.start, kind="stable")
        columns = better.chunk[order], better.link[order].astype(np.int32), better.start[order]
        return _schedule(problem, Sends(*columns, better.finish_ticks))


def _are_equal(one: Demand, other: Demand) -> bool:
    """True if two demands have the same chunks, in the same order."""
    pairs = ((getattr(one, field.name), getattr(other, field.name)) for field in fields(Demand))
    return all(a is b or (a is not None and b is not None and np.array_equal(a, b)) for a, b in pairs)


def _over_other_links(found: _Scheduled, problem: Problem, fabric: Fabric) -> Schedule:
    """The schedule of another phase, over the links at the same slots of this phase's fabric."""
    kept = found.schedule.kept
    link_of = np.zeros(int(found.fabric.link.max(initial=0)) + 1, np.int32)
    link_of[found.fabric.link] = fabric.link
    return Schedule(problem, kept.chunk, narrow(link_of[kept.link]), kept.start, producer=COMPILED)


def _may_merge(problem: Problem, parameters: SearchParameters) -> bool:
    """True if merging pays on some link, and the number of sends is small enough."""
    large, collective = parameters.large, problem.collective
    starting, ending = collective.origin_sets.sizes, collective.destination_sets.sizes
    arrivals = int(np.maximum(starting, ending).sum())
    return arrivals <= _MOST_MERGED and bool((most_merged(problem, large.merging_share) > 1).any())


def _merged(
    problem: Problem,
    fabric: Fabric,
    demand: Demand,
    found: Sends,
    search: Callable[[Fabric, Demand, Limits], Sends],
    limits: Limits,
) -> Schedule:
    """The best schedule with merged sends, if that finishes sooner; otherwise the schedule of `found`.

    A second search charges each chunk only its share of the latency of a full merged send; its sends are
    merged, too. Sends are not merged, or not again, if that would take longer than the time left.
    """
    most = most_merged(problem, limits.parameters.large.merging_share)[fabric.link]
    best, together, among, until = found, None, found, limits.until or limits.deadline
    merge_s = busy_factor() * _MERGE_S * len(found.chunk)
    while until.left_s >= merge_s:
        routes, first = routes_of(fabric, demand.num_chunks, among)
        urgent = urgent_hops(problem, fabric, demand, routes)
        merged = send_together(fabric, demand.units, replace(routes, urgent=urgent), first, most, limits)
        if merged is not None and merged.finish_ticks < best.finish_ticks:
            best = together = merged
        is_over = until.left_s < 2 * merge_s or best.finish_ticks <= limits.target_ticks
        if among is not found or is_over:
            break
        try:
            among = search(sharing_latency(fabric, most), demand, limits)
        except OutOfTime:
            break
    if together is None:
        return _schedule(problem, found).in_order()
    _, group = np.unique([together.link, together.start], axis=1, return_inverse=True)
    return make_schedule(
        problem,
        chunk=together.chunk,
        link=together.link,
        start=together.start,
        group=group,
        producer=COMPILED,
    )


def _schedule(problem: Problem, found: Sends, *, in_files: bool = False) -> Schedule:
    link = found.link if in_files else narrow(found.link)
    return Schedule(problem, found.chunk, link, found.start, producer=COMPILED)

"""`suggest_sketches`: suggested sketches for a topology, a collective and a size.

Every plan of which ranks send between nodes is tried with and without merging, and the best of these then
with other numbers of chunks. The list scheduler works on the quotient of each candidate by its symmetry; the
schedules are verified. The proposals are the candidates that finish first, with their bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Unpack

from taccl._internal.arguments import Count, Natural, Seconds, Size, checked
from taccl._internal.deadline import NEVER, Deadline, OutOfTime, busy_factor
from taccl._internal.units import parse_size
from taccl.analysis.certificates.bounds import latency_bound, lower_bound
from taccl.analysis.verification.verify import verify
from taccl.errors import InputError, SketchError, warn
from taccl.problem.collective import Collective
from taccl.problem.collectives import CollectiveArguments
from taccl.problem.making import make_problem
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.sketch.apply import apply
from taccl.sketch.reachability import check_reachable
from taccl.synthesis.options import Observer, Options
from taccl.synthesis.parameters import DEFAULTS
from taccl.synthesis.proposers import stages
from taccl.synthesis.proposers.balanced import balanced_schedule
from taccl.synthesis.proposers.compiling import are_kept, compile_with_progress
from taccl.synthesis.proposers.large import effort, schedule_large, suits
from taccl.synthesis.search import Search
from taccl.synthesis.suggesting.proposals import (
    InternodePlan,
    Shift,
    SketchProposal,
    SketchShape,
    find_shape,
    fitting_shifts,
    make_sketch,
    relay_plans,
)
from taccl.synthesis.symmetry.timing_group import timing_group
from taccl.synthesis.transforms.phases import search_phases
from taccl.topology.topology import Topology

if TYPE_CHECKING:
    from taccl.sketch.sketch import Sketch

#: `_BOUNDS_SHARE`: max share of the time for bounds of proposals.
#: `_FIRST_BOUND_S`: max seconds for the bound of the best proposal.
#: `_BOUND_S`: max seconds for each other bound.
_BOUNDS_SHARE, _FIRST_BOUND_S, _BOUND_S = 0.3, 5.0, 2.0
#: `_MOST_RANKED_HOPS`: max hops, after symmetry reduction, for list scheduling in Python, not compiled.
#: `_RANKING_S`: max seconds of the list scheduler in Python for each phase of a candidate.
_MOST_RANKED_HOPS, _RANKING_S = 40_000, 0.5
#: `_LATE_S`, `_LATE_S_PER_HOP`: CPU seconds, fixed and per hop, to schedule a candidate in a hurry.
#: Trials leave this time until there is a candidate.
#: `_LATE_SHARE`: max share of the time left for it on small problems; large ones may have all time for it.
#: `_GRACE_S`: CPU seconds after which a trial that does not end at its deadline is stopped.
#: `_SHIFTS_SHARE`: max share of a trial's time to find its symmetries.
_LATE_S, _LATE_S_PER_HOP, _LATE_SHARE, _GRACE_S, _SHIFTS_SHARE = 0.5, 4e-8, 0.4, 0.1, 0.4
#: Max chunks in one send between nodes.
_MOST_MERGED = 6


@checked
def suggest_sketches(
    topology: Topology | str,
    collective: str | Collective,
    size: Size | None = None,
    *,
    nodes: Count | None = None,
    profile: str | None = None,
    protocol: str | None = None,
    chunk_size: Size | None = None,
    chunks_per_rank: Count | None = None,
    most: Count = 5,
    time_limit_s: Seconds = 20.0,
    seed: Natural = 0,
    progress: Callable[[str, float | None, float | None], None] | None = None,
    **arguments: Unpack[CollectiveArguments],
) -> list[SketchProposal]:
    """Suggest sketches for a topology, a collective and a size, the most promising first.

    Parameters
    ----------
    topology : Topology or str
        A topology, or a machine or fabric by name.
    nodes, profile, protocol : optional
        As for `taccl.make_problem`, which chooses the protocol of a machine by name for the size.
    collective : str or Collective
        For a name, or a collective made without `chunks_per_rank`, proposals choose the number of chunks per
        rank, unless a chunk size or `chunks_per_rank` fixes it.
    size, chunk_size : int or str, optional
        The larger of one rank's input and output buffer, e.g. ``"64MB"``; or bytes of one chunk instead.
    chunks_per_rank : int, optional
        Number of chunks into which a rank's part of the data is cut.
    most : int
        Max number of proposals; there are none if no candidate can be scheduled.
    time_limit_s : float
        Seconds to try candidates and to bound the best. If none is complete by then, the first one for which
        a list scheduler finds a schedule is taken. Ctrl-C keeps the candidates so far.
    seed : int
        Seed of the list scheduler.
    progress : callable, optional
        Called with (current candidate, best finish in us or None, None).
    **arguments : CollectiveArguments
        `root`, `roots` or `counts` of a named collective, as for `taccl.collectives.make`.

    Raises
    ------
    InputError
        If sizes, numbers or the collective's name do not fit, or both sizes or none are given.
    TopologyError, SketchError
        If nodes differ in size, there are hyperedges, or the topology does not connect ranks that must
        exchange chunks.
    """
    if (size is None) == (chunk_size is None):
        raise InputError(
            "give either a size, e.g. '64MB', or a chunk size, and not both", where="size, chunk_size"
        )
    size_bytes = None if size is None else parse_size(size, where="size")
    chunk_bytes = None if chunk_size is None else parse_size(chunk_size, where="chunk_size")

    if isinstance(collective, Collective) and not collective.size_chunks:
        said = f"found an {collective.name} without data; expected bytes for a pair of ranks"
        raise InputError(said, where="collective")
    is_given = isinstance(collective, Collective) and not collective.chunks_open
    from taccl.synthesis.problems import asked_topology, under_asked_protocol  # imported late, as few need it

    until = Deadline.after(time_limit_s)
    fabric, protocol = asked_topology(topology, nodes=nodes, profile=profile, protocol=protocol)

    notes: tuple[str, ...] = ()

    def sized(number: int | None) -> Problem:
        return make_problem(
            fabric, collective, size_bytes=size_bytes, chunk_bytes=chunk_bytes, chunks_per_rank=number,
            notes=notes, **arguments,
        )  # fmt: skip

    if protocol == "auto":
        chosen = under_asked_protocol(sized(chunks_per_rank), protocol, until)
        fabric, notes = chosen.topology, chosen.protocol_notes()

    @cache
    def cut(count: int) -> Problem:
        return sized(chunks_per_rank if is_given else count)

    if isinstance(collective, Collective) and is_given:
        counts = [collective.chunks_per_rank]
    elif chunks_per_rank is not None or size_bytes is None:
        # If the chunk size is given, another number of chunks would change the size of the collective.
        counts = [chunks_per_rank or 1]
    else:  # chunks have at least one byte
        first, *others = DEFAULTS.suggesting.partitions
        least = (cut(first).collective if isinstance(collective, str) else collective).size_chunks
        counts = [first, *(each for each in others if each * least <= size_bytes)]
    options = Options(seed=seed, observer=Observer(progress=progress))
    return suggest_for(counts, cut, options, most=most, time_limit_s=until.left_s, along=True)


def suggest_for(
    counts: Sequence[int],
    cut: Callable[[int], Problem],
    options: Options,
    *,
    most: int,
    time_limit_s: float,
    give_up: Deadline = NEVER,
    along: bool = False,
) -> list[SketchProposal]:
    """Suggested sketches for a problem without one, in one or several chunkings; see `suggest_sketches`.

    - `counts`: Numbers of chunks per rank to try.
    - `cut`: Function from a number of chunks per rank to the problem with this number; the same number gives
      an equal problem.
    - `give_up`: Deadline at which the function returns without proposals; by default it waits for one.
    - `along`: True to include schedules along the dimensions of a product topology as candidates. A search
      that goes on from the best candidate tries such schedules itself, and does better if it does not start
      from one.
    """
    suggesting = options.parameters.suggesting
    is_patient = give_up is NEVER
    if is_patient:
        bounds_s = _FIRST_BOUND_S + (most - 1) * _BOUND_S
        give_up = Deadline.after(time_limit_s)
        time_limit_s -= min(bounds_s, _BOUNDS_SHARE * time_limit_s)
    fewest = min(counts)
    per_rank = suggesting.first_partition if suggesting.first_partition in counts else fewest
    coarse = cut(fewest)
    check_reachable(coarse)
    shape = find_shape(coarse.topology, deadline=NEVER if is_patient else give_up)
    num_hops, most_late_s = per_rank * effort(coarse) // fewest, _LATE_SHARE * give_up.left_s
    late_s = busy_factor() * (_LATE_S + _LATE_S_PER_HOP * num_hops) * is_patient
    if late_s > most_late_s and num_hops <= _MOST_RANKED_HOPS:
        late_s = most_late_s  # small problems may have a candidate sooner
    until, first_until = give_up.sooner(time_limit_s), give_up.later(-late_s)
    trials = _Trials(cut, shape, options, until, first_until, give_up, is_patient)
    first = coarse if is_patient and first_until.has_passed else cut(per_rank)
    most_merged = min(first.clauses.max_merge, _MOST_MERGED)
    merges = (1,) if first.topology.num_nodes == 1 or most_merged == 1 else (1, most_merged)
    if shape.is_small(min(first.chunk_bytes)):
        merges = merges[::-1]
    ways = [(plan, max_merge) for plan in relay_plans(shape) for max_merge in merges]
    with trials.interruptible():
        tried = [trials.attempt(*way, per_rank) for way in ways]
        finish_us = min(tried)
        _try_partitions(trials, counts, *ways[tried.index(finish_us)], per_rank, finish_us)
        for way in ways if is_patient and not trials.found else ():
            if trials.attempt(*way, fewest, is_late=True) < math.inf:
                break
        if along and not trials.deadline.has_passed:
            _try_dimensions(trials, most)
    if is_patient and give_up.cancellation.why and not trials.found:
        raise KeyboardInterrupt
    # If merging makes no difference to a plan's first schedule, only the sketch that allows it is kept.
    distinct: dict[tuple[str, int, float], _Candidate] = {}
    for candidate in sorted(trials.found, key=lambda each: each.rank):
        schedule = candidate.schedule
        made = candidate.plan.name, schedule.problem.collective.chunks_per_rank, schedule.finish_us
        if candidate.sketch.merging.max > 1 or made not in distinct:
            distinct[made] = candidate
    best, proposals, budget = list(distinct.values())[:most], [], options.parameters.budget
    until = give_up.later(budget.last_bound_s)
    for place, candidate in enumerate(best):
        bound_s, share = _BOUND_S if place else _FIRST_BOUND_S, 1 / (len(best) - place)
        limit_s = share * max(give_up.left_s, budget.least_bound_s)
        end_s = share * until.left_s
        proposals.append(_proposal(trials, candidate, min(bound_s, limit_s), limit_s, end_s))
    if is_patient and give_up.cancellation.why:
        warn("stopped by Ctrl-C; these are the best sketches so far, and their bounds may be loose")
    return sorted(proposals, key=lambda each: (each.finish_us, each.bound_us))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A sketch that was tried, its plan and its schedule."""

    sketch: Sketch
    plan: InternodePlan
    schedule: Schedule

    @property
    def rank(self) -> tuple[float, int]:
        """(finish in us, number of hops after symmetry reduction): the smallest is the best candidate."""
        problem = self.schedule.problem
        return self.schedule.finish_us, effort(problem) // timing_group(problem).counted


@dataclass
class _Trials:
    """Trials of sketches on one topology and collective.

    - `cut`: Function from a number of chunks per rank to the problem with this number.
    - `deadline`: Time at which trials are stopped once there is a candidate.
    - `first`: Time at which trials are stopped while there is none. If one is then made in a hurry, time is
      left for that.
    - `give_up`: Time at which all ends.
    - `keeps`: True to keep the candidates so far at Ctrl-C.
    - `found`: Candidates so far.
    - `fitting`: {name of a plan: symmetries of a sketch with this plan}.
    """

    cut: Callable[[int], Problem]
    shape: SketchShape
    options: Options
    deadline: Deadline
    first: Deadline
    give_up: Deadline
    keeps: bool
    found: list[_Candidate] = field(default_factory=list)
    fitting: dict[str, tuple[Shift, ...]] = field(default_factory=dict)

    def interruptible(self) -> AbstractContextManager[None]:
        """Context that Ctrl-C ends, with all trials, if `keeps`; else `KeyboardInterrupt` is raised."""
        return self.give_up.interruptible() if self.keeps else nullcontext()

    def attempt(self, plan: InternodePlan, max_merge: int, per_rank: int, *, is_late: bool = False) -> float:
        """Try a plan; returns the finish of its schedule in us, or infinity if none is found in time.

        - `max_merge`: Max chunks in a send between nodes.
        - `per_rank`: Number of chunks per rank.
        - `is_late`: True to ignore the time limit, to skip symmetries, and to use the compiled list scheduler
          first if it is compiled.
        """
        until = NEVER if is_late else self.deadline if self.found else self.first
        best_us = min((each.schedule.finish_us for each in self.found), default=None)
        self.options.observer.report(f"sketch {plan.name}, {per_rank} a rank", best_us)
        try:
            until.check()
            with until.later(busy_factor() * _GRACE_S).enforced():
                if plan.name not in self.fitting:
                    shifts: Sequence[Shift] = () if is_late else self.shape.shifts
                    if shifts:
                        _, plain = self.under(plan, max_merge, per_rank)
                        soon = until.sooner(_SHIFTS_SHARE * until.left_s)
                        shifts = fitting_shifts(plain, shifts, deadline=soon)
                    self.fitting[plan.name] = tuple(shifts)
                sketch, applied = self.under(plan, max_merge, per_rank, self.fitting[plan.name])
                until.check()
                # After the time limit, kernels are only used if they are compiled already, in one run.
                quick = None
                if is_late and are_kept(applied):
                    quick = compiled_schedule(applied, self.options, until, is_late=True)
                schedule = quick or quick_schedule(applied, self.options, until)
                if schedule is None:
                    return math.inf
                verify(schedule).raise_if_failed()
                self.found.append(_Candidate(sketch, plan, schedule))
        except (SketchError, OutOfTime):  # no path for a chunk under this plan, or roots break the symmetry
            return math.inf
        return schedule.finish_us

    def under(
        self, plan: InternodePlan, max_merge: int, per_rank: int, shifts: Sequence[Shift] = ()
    ) -> tuple[Sketch, Problem]:
        """(sketch of a plan with the symmetries `shifts`, problem under this sketch)."""
        problem = self.cut(per_rank)
        sketch = make_sketch(problem, self.shape, plan, max_merge, shifts)
        sizes = problem.chunk_bytes[0] if len(set(problem.chunk_bytes)) == 1 else problem.chunk_bytes
        applied = apply(sketch, problem.topology, problem.collective, chunk_size=sizes, reachable=False)
        notes = (*applied.notes, *problem.protocol_notes())
        applied = replace(applied, size_bytes=problem.size_bytes, notes=notes)
        check_reachable(applied)
        return sketch, applied


def compiled_schedule(
    problem: Problem, options: Options, give_up: Deadline, *, is_late: bool = False, num_runs: int | None = 1
) -> Schedule | None:
    """Schedule of a few runs of the compiled list scheduler; None if it does not support the problem.

    None also if it is not compiled yet, and time does not suffice to compile it.

    - `is_late`: True for a run as short as possible, without merged sends.
    - `num_runs`: Max number of runs; None for each rule once, and a short improvement.
    """
    if not (suits(problem) and has_kernels(problem, options, give_up)):
        return None
    limit_s = 0.0 if is_late else None
    return schedule_large(
        problem,
        merges=not is_late,
        time_limit_s=limit_s,
        num_runs=num_runs,
        seed=options.seed,
        deadline=give_up,
    )


def has_kernels(problem: Problem, options: Options, give_up: Deadline) -> bool:
    """True if the compiled list scheduler is ready; it is compiled here if time suffices."""
    return are_kept(problem) or compile_with_progress(problem, options, give_up)


def quick_schedule(problem: Problem, options: Options, give_up: Deadline) -> Schedule | None:
    """Quick schedule by a list scheduler, in Python or compiled, to judge a sketch; None if there is none."""
    suggesting = options.parameters.suggesting
    if effort(problem) > _MOST_RANKED_HOPS * timing_group(problem).counted:
        return compiled_schedule(problem, options, give_up)
    search = Search(problem, options.unobserved, give_up, gives_up=give_up is not NEVER)
    runs = suggesting.ranking_runs
    search_phases(search, lambda phase: stages.greedy(phase, budget_s=_RANKING_S, max_runs=runs))
    return search.best


def _try_partitions(
    trials: _Trials, counts: Sequence[int], plan: InternodePlan, max_merge: int, start: int, best_us: float
) -> None:
    """Try a plan with more and more chunks per rank while that helps; if more do not help, with fewer."""
    counts, first_us = sorted(counts), best_us
    for further in ([k for k in counts if k > start], [k for k in reversed(counts) if k < start]):
        for per_rank in further if best_us == first_us else ():
            finish_us = trials.attempt(plan, max_merge, per_rank)
            if finish_us >= best_us:
                break
            best_us = finish_us


def _try_dimensions(trials: _Trials, most: int) -> None:
    """Replace schedules of the best candidates by schedules along dimensions that finish earlier."""
    most_transfers = trials.options.parameters.portfolio.balanced_transfers
    for each in sorted(trials.found, key=lambda each: each.rank)[:most]:
        problem, finish = each.schedule.problem, each.schedule.finish
        # InputError: the topology is no product of dimensions, or the sketch forbids the schedule.
        with suppress(InputError):
            found = balanced_schedule(problem, most_transfers=most_transfers, sooner_than=finish)
            if found is not None:
                trials.found[trials.found.index(each)] = replace(each, schedule=found)


def _proposal(
    trials: _Trials, candidate: _Candidate, bound_s: float, limit_s: float, end_s: float
) -> SketchProposal:
    problem, sketch, plan, shape = candidate.schedule.problem, candidate.sketch, candidate.plan, trials.shape
    unmerged = sketch.merging.max == 1
    parts = [plan.why]
    if trials.fitting[plan.name]:
        parts.append(f"{timing_group(problem)} symmetries reduce the model")
    if unmerged and problem.topology.num_nodes > 1:
        parts.append("sends do not wait to be merged")
    comments = {f"internode.{name}": text for name, (_, text) in plan.internode.items()}
    comments["nodes"] = f"{shape.ranks_per_node} ranks each; `with_nodes` and --nodes rescale it."
    comments["chunks"] = (
        "More chunks per rank let sends overlap. Each send pays its own latency, and each chunk makes the "
        "model larger."
    )
    if sketch.chunk_bytes is not None:
        comments["switch"] = (
            "Small chunks: many connections, each carries little, so few sends wait."
            if shape.is_small(sketch.chunk_bytes)
            else "Large chunks: few connections, each used heavily."
        )
    comments["symmetry"] = (
        "Symmetry of the topology, the clauses above and the collective: rank r behaves as rank "
        "(r + offset) mod group inside its block. Leave an entry out to give the search more freedom."
    )
    comments["merging"] = (
        "Every chunk between nodes goes in a send of its own, so that it can be passed on at once."
        if unmerged
        else f"One send between nodes may carry up to {sketch.merging.max} chunks, and pays the latency once."
    )
    bound = None
    with suppress(OutOfTime), trials.interruptible():
        bound = lower_bound(problem, budget_s=bound_s, limit_s=limit_s, end_s=end_s)
    bound = latency_bound(problem) if bound is None else bound
    return SketchProposal(sketch, bound, candidate.schedule, "; ".join(parts), comments)

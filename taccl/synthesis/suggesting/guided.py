"""Synthesis for those who gave no sketch: with the best that is suggested, and without; the better is kept.

Whatever obeys a sketch is a schedule of the problem without it, so the two are compared on the problem that
was given, and the bound is that problem's. Its chunks stay as they are.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from taccl.analysis.verification.verify import verify
from taccl.deadline import NEVER, Deadline, OutOfTime
from taccl.errors import InputError, NoSolutionError
from taccl.problem import Clauses
from taccl.schedule.compact import CompactSchedule
from taccl.synthesis.backends import package_versions
from taccl.synthesis.large import compile_kernels, effort, schedule_large, suits
from taccl.synthesis.result import Moment, Result, Stage
from taccl.synthesis.suggesting.suggest import suggest_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taccl.analysis.certificates.certificate import Certificate
    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.suggesting.proposals import SketchProposal

__all__ = ["Run", "check_proposal", "is_unguided", "synthesize_guided"]

#: Chunks times links up to which one job shop holds the whole problem, so that no guidance is needed.
_FEW_MOVES = 600
#: Beyond so many no candidate can be tried in a moment.
_MOST_MOVES = 3_000_000
#: Parts of the time: for a first schedule without a sketch, for suggestions, for the sketch of what is left.
_FIRST_SHARE, _SUGGEST_SHARE, _SKETCH_SHARE = 0.1, 0.25, 0.7
_MOST_SUGGESTING_S = 20.0
#: The part of the time after which no first suggestion is waited for where there is a schedule without.
_GIVE_UP_SHARE = 0.5
#: Seconds that a search without a sketch takes for each move before it has a schedule. Where less is left,
#: the compiled list scheduler takes its place, which folds nothing, unless it would not even be compiled.
_S_PER_MOVE, _LEAST_COMPILED_S = 1e-4, 1.0
#: Sketches that are tried, as long as their bounds are below the best schedule.
_MOST_SKETCHES = 3


class Run(Protocol):
    """A synthesis of a problem as it is; its bound is worked out unless it is given.

    One that gives up raises `OutOfTime` where time is up before there is a schedule.
    """

    def __call__(
        self,
        problem: Problem,
        *,
        backend: str,
        time_limit_s: float,
        bound: Certificate | None = None,
        gives_up: bool = False,
    ) -> Result: ...


def is_unguided(problem: Problem) -> bool:
    """Whether a problem has no sketch, and as many moves that one may help; and anything to send."""
    is_between = _FEW_MOVES < effort(problem) <= _MOST_MOVES
    return is_between and _is_plain(problem) and not problem.collective.is_met


def _is_plain(problem: Problem) -> bool:
    """Whether a problem has no clause but what merges."""
    clauses = problem.clauses
    return clauses == Clauses(max_merge=clauses.max_merge, merging=clauses.merging)


def check_proposal(proposal: SketchProposal, problem: Problem) -> None:
    """Raise `InputError` for a proposal of another topology, collective or chunks, or beside a sketch."""
    made_for = proposal.problem
    if not _is_plain(problem):
        raise InputError(
            f"found a proposal, and a problem that has a sketch already, {problem!r}; leave one out",
            where="sketch",
        )
    for name, found, expected in (
        ("topology", made_for.topology, problem.topology),
        ("collective", made_for.collective, problem.collective),
        ("chunk sizes", made_for.chunk_bytes, problem.chunk_bytes),
    ):
        if found != expected:
            raise InputError(
                f"found a proposal for another problem, {made_for!r}: its {name} differ; suggest "
                "one for this",
                where="sketch",
            )


def synthesize_guided(
    bound: Certificate,
    run: Run,
    *,
    began: float,
    time_limit_s: float,
    proposal: SketchProposal | None = None,
    first: Result | None = None,
    seed: int = 0,
    progress: Callable[[str, float | None, float | None], None] | None = None,
) -> Result:
    """The better of what the best suggested sketch leads to, and of what is found without.

    Parameters
    ----------
    bound : Certificate
        Of the problem, and with it the problem.
    run : callable
        Synthesis of a problem as it is, in a time.
    began, time_limit_s : float
        When it all began, on the clock of `time.monotonic`, and how long it may take from then on.
    proposal : SketchProposal, optional
        The sketch, if it is known already.
    first : Result, optional
        What was found without, if nothing more is to be tried there.
    """
    problem = bound.problem
    end = Deadline(began + time_limit_s)

    def left_s() -> float:
        return max(0.1, end.left_s)

    parts: list[tuple[float, Result]] = [] if first is None else [(0.0, first)]
    first_s = max(0.1, _FIRST_SHARE * time_limit_s)
    if first is None and effort(problem) * _S_PER_MOVE <= first_s:
        parts.append(
            (time.monotonic() - began, run(problem, backend="greedy", time_limit_s=first_s, bound=bound))
        )
        if _settled(parts[0][1]):
            return replace(parts[0][1], backend="auto")
    if suits(problem):
        end = Deadline(end.at_s + compile_kernels(problem))
        if not parts:
            parts.append((time.monotonic() - began, _compiled(bound, left_s(), seed, num_runs=1)))
    suggesting: tuple[Stage, ...] = ()
    tried: list[SketchProposal] = []
    interrupted = False
    try:
        since = time.monotonic()
        suggest_s = min(_MOST_SUGGESTING_S, _SUGGEST_SHARE * time_limit_s)
        give_up = end.sooner(_GIVE_UP_SHARE * time_limit_s) if parts else NEVER
        sketches = [proposal] if proposal else []
        if not sketches and not _any_settled(parts):
            sketches = _best_for(problem, suggest_s, seed, progress, give_up)
            late = give_up.has_passed
            suggesting = (_suggested(sketches, time.monotonic() - since, late=late),)
        for sketch in sketches:
            best_us = min((result.finish_us for _, result in parts), default=math.inf)
            if sketch.bound_us >= best_us or _any_settled(parts):
                continue
            parts.append((time.monotonic() - began, _proposed(bound, sketch, seed)))
            tried.append(sketch)
            at = time.monotonic() - began
            with contextlib.suppress(NoSolutionError):
                parts.append((at, _freed(bound, sketch, run, _SKETCH_SHARE * left_s())))
        at = time.monotonic() - began
        if not parts:
            parts.append((at, run(problem, backend="auto", time_limit_s=left_s(), bound=bound)))
        elif first is None and not _any_settled(parts):
            with contextlib.suppress(InputError, NoSolutionError):  # too little memory, or time
                parts.append((at, _without(bound, run, left_s(), seed)))
    except KeyboardInterrupt:
        if not parts:
            raise
        interrupted = True
    joined = _joined(bound, parts, tried, suggesting, time.monotonic() - began)
    return replace(joined, stopped="interrupted") if interrupted else joined


def _suggested(sketches: Sequence[SketchProposal], seconds: float, *, late: bool) -> Stage:
    """What became of the suggestions, as a stage."""
    if not sketches:
        why = "no time to try a sketch" if late else "no sketch suits"
        return Stage("suggest", "taccl", "no-solution", seconds, message=why)
    names = ", ".join(sketch.sketch.name for sketch in sketches)
    return Stage("suggest", "taccl", "done", seconds, sketches[0].finish_us, None, names)


def _settled(result: Result) -> bool:
    """Whether nothing is left to search for, or the user has had enough."""
    return result.stopped in ("bound met", "interrupted")


def _any_settled(parts: list[tuple[float, Result]]) -> bool:
    return any(_settled(result) for _, result in parts)


def _without(bound: Certificate, run: Run, time_limit_s: float, seed: int) -> Result:
    """What is found without a sketch; by the compiled list scheduler where there is no time to fold."""
    problem = bound.problem
    if effort(problem) * _S_PER_MOVE <= time_limit_s:
        return run(problem, backend="auto", time_limit_s=time_limit_s, bound=bound, gives_up=True)
    if not suits(problem) or time_limit_s < _LEAST_COMPILED_S:
        raise NoSolutionError("no time for a search without a sketch", bound_us=bound.bound_us)
    return _compiled(bound, time_limit_s, seed)


def _compiled(bound: Certificate, time_limit_s: float, seed: int, *, num_runs: int | None = None) -> Result:
    """What the compiled list scheduler finds without a sketch, verified."""
    problem, since = bound.problem, time.monotonic()
    target = -int(-bound.bound * problem.costs.ticks_per_us // 1)
    found = schedule_large(
        problem, target_ticks=target, time_limit_s=time_limit_s, seed=seed, num_runs=num_runs
    )
    verify(found).raise_if_failed()
    schedule = found.expand()
    stage = Stage("greedy", "compiled", "done", time.monotonic() - since, schedule.finish_us)
    return _found(bound, schedule, stage, seed, choice="the compiled list scheduler, without a sketch")


def _found(bound: Certificate, schedule: Schedule, stage: Stage, seed: int, *, choice: str) -> Result:
    """A result of one stage."""
    met = schedule.finish <= bound.bound
    return Result(
        schedule=schedule,
        bound=bound,
        backend="auto",
        stages=(stage,),
        seconds=stage.seconds,
        seed=seed,
        versions=package_versions(),
        stopped="bound met" if met else "nothing better found",
        progress=(Moment(stage.seconds, schedule.finish_us, bound.bound_us),),
        choice=choice,
    )


def _best_for(
    problem: Problem,
    time_limit_s: float,
    seed: int,
    progress: Callable[[str, float | None, float | None], None] | None,
    give_up: Deadline,
) -> list[SketchProposal]:
    try:
        return suggest_for(
            problem,
            most=_MOST_SKETCHES,
            time_limit_s=time_limit_s,
            seed=seed,
            progress=progress,
            give_up=give_up,
        )
    except (InputError, OutOfTime):  # what a sketch cannot speak of, such as nodes of several sizes
        return []


def _proposed(bound: Certificate, proposal: SketchProposal, seed: int) -> Result:
    """The schedule that came with a proposal, as a result of the problem without its sketch."""
    since = time.monotonic()
    schedule = _without_sketch(bound.problem, proposal.schedule, proposal)
    stage = Stage("suggested", "taccl", "done", time.monotonic() - since, schedule.finish_us)
    return _found(bound, schedule, stage, seed, choice="a suggested sketch")


def _without_sketch(problem: Problem, found: Schedule | CompactSchedule, sketch: SketchProposal) -> Schedule:
    """What obeys a sketch as a schedule of the problem without, verified."""
    whole = found.expand() if isinstance(found, CompactSchedule) else found
    producer = f"{whole.producer}, sketch {sketch.sketch.name}"
    schedule = replace(whole, problem=problem, producer=producer)
    verify(schedule).raise_if_failed()
    return schedule


def _freed(bound: Certificate, best: SketchProposal, run: Run, time_limit_s: float) -> Result:
    """What is found under a sketch, as a result of the problem without."""
    found = run(best.problem, backend="auto", time_limit_s=time_limit_s, bound=best.bound, gives_up=True)
    schedule = _without_sketch(bound.problem, found.schedule, best)
    stages = tuple(replace(stage, name=f"sketch: {stage.name}") for stage in found.stages)
    stopped = "nothing better found"  # to meet the bound of the sketch is not to meet the problem's own
    if found.interrupted:
        stopped = "interrupted"
    elif schedule.finish <= bound.bound:
        stopped = "bound met"
    return replace(found, schedule=schedule, stages=stages, stopped=stopped)


def _joined(
    bound: Certificate,
    parts: list[tuple[float, Result]],
    tried: Sequence[SketchProposal],
    suggesting: tuple[Stage, ...],
    seconds: float,
) -> Result:
    """One result of several: the best schedule, and the bound of the problem itself."""
    results = [result for _, result in parts]
    best = min(results, key=lambda result: result.schedule.finish)
    stages = [*suggesting, *(stage for result in results for stage in result.stages)]
    last = results[-1]
    if any(result.interrupted for result in results):
        stopped = "interrupted"
    elif best.schedule.finish <= bound.bound:
        stopped = "bound met"
    else:
        stopped = last.stopped if last.stopped != "bound met" else "nothing better found"
    found = (note for result in results for note in result.notes)
    notes = tuple(dict.fromkeys((*bound.problem.notes, *found)))
    if tried:
        notes += (_told(best, tried),)
    return replace(
        best,
        bound=bound,
        backend="auto",
        stages=tuple(stages),
        seconds=seconds,
        stopped=stopped,
        notes=notes,
        progress=_moments(parts, bound.bound_us),
    )


def _told(best: Result, tried: Sequence[SketchProposal]) -> str:
    """Which sketches were tried, what for, and how to do without."""
    ahead = [each for each in tried if best.schedule.producer.endswith(f"sketch {each.sketch.name}")]
    parts = [f"the suggested {each.sketch.name} led to this schedule ({each.why})" for each in ahead]
    others = ", ".join(each.sketch.name for each in tried if each not in ahead)
    parts += [f"{others} {'was' if len(tried) - len(ahead) == 1 else 'were'} tried, and not ahead"] * bool(
        others
    )
    return f"no sketch was given: {'; '.join(parts)}; sketch='none' (--no-sketch) suggests none"


def _moments(parts: list[tuple[float, Result]], bound_us: float) -> tuple[Moment, ...]:
    """What was known when, over all parts: the best finish so far against the bound of the problem."""
    moments: list[Moment] = []
    best_us: float | None = None
    for began, result in parts:
        for moment in result.progress:
            if moment.finish_us is not None:
                best_us = moment.finish_us if best_us is None else min(best_us, moment.finish_us)
            at = began + moment.seconds
            moments.append(replace(moment, seconds=at, finish_us=best_us, bound_us=bound_us))
    return tuple(moments)

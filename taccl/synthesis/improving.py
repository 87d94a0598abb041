"""`improve`: search from a given schedule for one that finishes no later."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from taccl._internal.arguments import Natural, Seconds, Share, checked
from taccl._internal.deadline import Deadline
from taccl.analysis.certificates.certificate import Certificate
from taccl.errors import InputError
from taccl.schedule.schedule import Schedule
from taccl.synthesis.bounding import look_for_bound
from taccl.synthesis.budget import going_on, run
from taccl.synthesis.checking import checked_start
from taccl.synthesis.improve.improvement import suits_improvement
from taccl.synthesis.options import Observer, Options, raising_errors_of_callbacks
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.synthesis.proposers.table import IMPROVERS
from taccl.synthesis.result import Result, Stage, with_note_on_gap
from taccl.synthesis.search import Search
from taccl.synthesis.stopping import SearchState, stopping_rules
from taccl.synthesis.synthesize import synthesize
from taccl.synthesis.transforms.switches import PlainLinks


@checked
def improve(
    schedule: Schedule,
    *,
    time_limit_s: Seconds = 10.0,
    until_gap: Share | None = None,
    seed: Natural = 0,
    progress: Callable[[str, float | None, float | None], None] | None = None,
    on_incumbent: Callable[[Schedule], None] | None = None,
    on_bound: Callable[[Certificate], None] | None = None,
    on_stage: Callable[[Stage], None] | None = None,
    stop_when: Callable[[SearchState], bool] | None = None,
    parameters: SearchParameters = DEFAULTS,
) -> Result:
    """Improve a schedule: the result has the same chunks and finishes no later.

    Two searches start from the schedule: ruin and recreate, then an exchange in which two ranks complete a
    sum by sending each other their partial sums. Both are repeated with other seeds while that helps. If ruin
    and recreate does not support the problem, `synthesize` runs with ``start=schedule``.

    Parameters
    ----------
    schedule : Schedule
        Any valid schedule, such as a baseline or one from a file; it is verified first.
    time_limit_s : float
        Seconds for the whole improvement.
    until_gap : float, optional
        The search ends once ``result.gap`` is at most this, such as 0.01 or ``"1%"``.
    seed : int
        Seed of the first round; later rounds use the following numbers.
    progress : callable, optional
        Called with (current activity, best finish in us, bound in us or None).
    on_incumbent, on_bound, on_stage, stop_when : callable, optional
        As for `synthesize`. The first incumbent is the given schedule.
    parameters : SearchParameters
        The constants of the search.

    Raises
    ------
    InputError
        If the verifier refuses the schedule.
    """
    problem = schedule.problem
    has_dates = bool(problem.release_us or problem.due_us)
    if has_dates or PlainLinks.apply(problem) is not None or not suits_improvement(problem):
        return synthesize(
            problem, start=schedule, time_limit_s=time_limit_s, until_gap=until_gap, seed=seed,
            progress=progress, on_incumbent=on_incumbent, on_bound=on_bound, on_stage=on_stage,
            stop_when=stop_when, parameters=parameters, sketch="none",
        )  # fmt: skip
    since, limit = time.monotonic(), Deadline.after(time_limit_s)
    try:
        given = checked_start(problem, schedule)
    except InputError as error:
        raise InputError(error.message, where="schedule") from None
    observer = Observer(
        progress=progress, on_incumbent=on_incumbent, on_bound=on_bound, on_stage=on_stage,
        rules=stopping_rules(until_gap=until_gap, stop_when=stop_when), cancellation=limit.cancellation,
    )  # fmt: skip
    options = Options(seed=seed, observer=observer, parameters=parameters, began_s=since, ends_s=limit.at_s)
    search = Search(problem, options, limit, limit_s=time_limit_s)
    with raising_errors_of_callbacks():
        return _improved(search, given, since, until_gap)


def _improved(search: Search, given: Schedule, since: float, until_gap: float | None) -> Result:
    """Improve the given schedule, whose check began at `since`, in rounds while that helps."""
    options = search.options
    search.offer_whole(given, producer="start", verified=True)
    search.record("start", "taccl", "done", since, finish_us=given.finish_us, message="verified")
    with going_on(search):
        look_for_bound(search)
        finish = None
        while finish != search.finish and not search.done:
            finish = search.finish
            run(search, IMPROVERS)
            search.options = replace(search.options, seed=search.options.seed + 1)
    search.options = options
    found = search.result("ruin and recreate, from the schedule that was given")
    return found if until_gap is None else with_note_on_gap(found, until_gap, is_judged=True)

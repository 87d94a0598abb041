"""The fastest of several forms (variants) of a baseline, also if time ends before all of them are timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from taccl._internal.caching import cached
from taccl.problem.costs import ranks_differ
from taccl.schedule.combine import reduce_phase, reverse
from taccl.schedule.listing import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from taccl.baselines.moves import Sends
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule

#: Max transfers of a form for which list scheduling is tried by default (about 0.05 s).
_FEW_TRANSFERS = 4000
#: `_AS_ESTIMATED`: estimates of forms are used if one finishes no sooner than this share of its estimate.
#: `_ALIKE`: forms are tried if their estimates are less than this multiple of that of the best form so far.
_AS_ESTIMATED, _ALIKE = 0.9, 1.01


def fastest(schedules: Iterable[Schedule]) -> Schedule:
    """Schedule with the earliest finish; the first of equal ones."""
    return min(schedules, key=lambda schedule: schedule.finish)


def fastest_form(problem: Problem, forms: Iterable[tuple[str, Sends]], *, lists: bool = False) -> Schedule:
    """Schedule of the form (variant of an algorithm) with the earliest finish; the first of equal ones.

    A form is not timed if its busiest resource is held for longer than the best schedule so far takes. All
    forms are timed in order before the first one is timed by list scheduling, which takes ten times as long.
    In a runtime, no message waits for a later one at a port that is free; list scheduling allows for this.

    Reductions to one rank each are timed as copies in reversed time, and only the earliest is reversed.

    - `forms`: (producer, sends) of each form.
    - `lists`: True to time forms of any size by list scheduling, too (`timed`), not only small ones.
    """
    forms, collective = list(forms), problem.collective
    is_named = any(sends.carries is not None for _, sends in forms)
    if is_named or not (collective.combining and collective.stays_at_roots) or ranks_differ(problem.topology):
        return _fastest_form(problem, forms, lists=lists)
    backwards = [(name, each.reversed()) for name, each in forms]
    return in_reversed_time(problem, lambda copies: _fastest_form(copies, backwards, lists=lists))


class Form(NamedTuple):
    """Form (variant) of an algorithm: its name, a function that returns its sends, its estimated finish.

    The estimate is in ticks; 0 if unknown.
    """

    name: str
    sends: Callable[[], Sends]
    estimate: float = 0.0


def fastest_in_turn(problem: Problem, forms: Iterable[Form]) -> Schedule:
    """Schedule of the form with the earliest finish; the first of equal ones.

    Each form is timed before the next one is built. So a good form is complete early if it is the first one.
    Once a form finishes about as estimated, forms with later estimates (by 1 %) are skipped.

    - `forms`: At least one.
    """
    complete, best, most = complete_so_far(problem), None, math.inf
    for form in forms:
        if form.estimate >= most:
            continue
        sends = form.sends()
        if best is None or sends.busy_ticks(problem) < best.finish_ticks:
            found = next(timed(problem, sends, form.name, least=None))
            if best is None or found.finish_ticks < best.finish_ticks:
                best = found
                complete.append(best)
                most = max(_ALIKE * form.estimate, best.finish_ticks)
                if best.finish_ticks < _AS_ESTIMATED * form.estimate:  # estimates are not reliable
                    most = math.inf
    assert best is not None, "there is a form"
    return best


def in_reversed_time(problem: Problem, make: Callable[[Problem], Schedule]) -> Schedule:
    """Schedule of a reduction: the one that `make` returns for its copies, in reversed time."""
    copies, found = reduce_phase(problem), []
    complete_so_far(copies).clear()
    try:
        found.append(make(copies))
    finally:  # if time is up, the best complete schedule counts
        _keep_reversed(found or complete_so_far(copies), problem)
    return complete_so_far(problem)[-1]


def _keep_reversed(copies: Sequence[Schedule], problem: Problem) -> None:
    """Add the last schedule, in reversed time, to `complete_so_far`; time limits do not interrupt this."""
    complete_so_far(problem).extend(reverse(each, problem) for each in copies[-1:])


def _fastest_form(problem: Problem, forms: Sequence[tuple[str, Sends]], *, lists: bool) -> Schedule:
    """Schedule of the form with the earliest finish; each is timed as `timed` does."""
    ranked = sorted((sends.busy_ticks(problem), i, name, sends) for i, (name, sends) in enumerate(forms))
    complete = complete_so_far(problem)
    best, place = None, 0
    rest = [
        (least, i, timed(problem, sends, name, least=least if lists or _is_small(sends) else None))
        for least, i, name, sends in ranked
    ]
    while rest:
        left, rest = rest, []
        for least, i, times in left:
            if best is not None and (least, i) >= (best.finish_ticks, place):
                continue
            found = next(times, None)
            if found is None:
                continue
            rest.append((least, i, times))
            if best is None or (found.finish_ticks, i) < (best.finish_ticks, place):
                best, place = found, i
                complete.append(best)
    assert best is not None, "there is a form"
    return best


def _is_small(sends: Sends) -> bool:
    """True if sends are few enough to be list-scheduled by default."""
    return len(sends.chunk) <= _FEW_TRANSFERS


def timed(problem: Problem, sends: Sends, producer: str, *, least: int | None) -> Iterator[Schedule]:
    """Yield a schedule of sends in their order; if it exceeds `least` ticks, also one by list scheduling.

    The list scheduler starts the send with the longest remaining path first. It is not used if `least` is
    None. Reductions to one rank each are timed as copies in reversed time, and finish no later than these.
    If the costs of links differ between ranks or directions, they are timed in order, too.
    """
    if sends.carries is None and problem.collective.combining and problem.collective.stays_at_roots:
        for each in timed(reduce_phase(problem), sends.reversed(), producer, least=least):
            yield reverse(each, problem)
        if not ranks_differ(problem.topology):
            return
    found = sends.schedule(problem, producer=producer)
    yield found
    if least is not None and found.finish_ticks > least:
        with suppress(ValueError):  # raised if ranks that exchange sums wait for each other
            yield listed(found, longest_first=True)


@cached
def complete_so_far(problem: Problem) -> list[Schedule]:
    """Complete schedules that a baseline has made so far, the best last; an interruption leaves them here."""
    return []

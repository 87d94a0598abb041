"""Periodic plans: phases of recurring sends, such that no two hold a resource at the same time.

Pieces that follow one another over the same hops repeat the same sends each period. A plan gives each hop a
phase within the period; this is modulo scheduling.

References
----------
B. R. Rau, "Iterative modulo scheduling", Proc. MICRO-27 (1994).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

#: A hold of a send: (resource, us from the send's start to the hold's start, us of the hold).
Held = tuple[int, float, float]

#: Max difference of two times that count as equal, as a share of the period.
_ROUNDING = 1e-9
#: Max ratio of a plan's total time to that of a plan without waits; then no further plans are tried.
_ENOUGH = 1.02
#: Periods to try, as multiples of the time for which the busiest resource is held.
_PERIODS = (1, 1.01, 1.03, 1.06, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2, 2.5, 3, 4)


def periodic(
    holds: Sequence[Sequence[Held]],
    takes: Sequence[float],
    before: Sequence[int],
    orders: Iterable[Sequence[int]],
    end_us: Callable[[float, Sequence[float] | None], float] | None = None,
    repeats: float = 1.0,
) -> tuple[float, list[float]] | None:
    """Short period of recurring sends, and phase of each send in it, in us; None if no period is found.

    - `holds`: Holds of each send.
    - `takes`: Duration of each send in us.
    - `before`: Index of the send whose data each send forwards; -1 if there is none.
    - `orders`: Orders in which sends choose their phases, the one with the shortest waits first. The first
      feasible order is used. A send takes the first free phase after the arrival of its data. If no order is
      feasible so, it takes the first free phase of the period.
    - `end_us`: Function (period, phases) that returns the end of the first repetition in us; with None for
      phases, the earliest possible end. If this function is given, longer periods are tried in the first
      order, too, and the plan with the least total time is returned. The total time is the end of the first
      repetition plus ``repeats - 1`` periods.
    - `repeats`: Number of repetitions.
    """
    busy: dict[int, float] = defaultdict(float)
    for each in holds:
        for resource, _, lasts in each:
            busy[resource] += lasts
    listed, nothing = list(orders), [-1] * len(holds)
    tried = [(order, chain) for chain in (before, nothing) for order in listed]
    busiest, best = max(busy.values(), default=0.0), None
    alone_us, least_us = 0.0 if end_us is None else end_us(0.0, None), float("inf")
    for factor in _PERIODS if busiest else ():
        period = factor * busiest
        if least_us <= _ENOUGH * (alone_us + (repeats - 1) * period):
            break
        found = (_phases(holds, takes, chain, order, period) for order, chain in tried)
        phases = next((each for each in found if each is not None), None)
        if phases is None:
            continue
        if end_us is None:
            return period, phases
        if best is None:
            tried = tried[:1]
        total_us = end_us(period, phases) + (repeats - 1) * period
        if total_us < least_us:
            least_us, best = total_us, (period, phases)
    return best


def _phases(
    holds: Sequence[Sequence[Held]],
    takes: Sequence[float],
    before: Sequence[int],
    order: Sequence[int],
    period: float,
) -> list[float] | None:
    """Phase of each send: in the given order, each takes the first free phase after its data arrives.

    None if a send finds no free phase.
    """
    placed: dict[int, list[tuple[float, float]]] = defaultdict(list)
    most = period * (1 + _ROUNDING)
    phases: list[float | None] = [None] * len(holds)
    for send in order:
        earlier = phases[before[send]] if before[send] >= 0 else None
        wanted = 0.0 if earlier is None else (earlier + takes[before[send]]) % period
        taken = []
        for resource, begin, lasts in holds[send]:
            end = wanted + begin + lasts
            for other_begin, other_lasts in placed[resource]:
                together = lasts + other_lasts
                if together > most:
                    return None
                taken.append(((other_begin - end) % period, together))
        wait = _first_free(taken, period)
        if wait is None:
            return None
        phase = (wanted + wait) % period
        phases[send] = phase
        for resource, begin, lasts in holds[send]:
            placed[resource].append((phase + begin, lasts))
    return [phase or 0.0 for phase in phases]


def _first_free(taken: list[tuple[float, float]], period: float) -> float | None:
    """First point from 0 on outside all circular intervals (begin, length); None if they cover the period."""
    rounding, at = _ROUNDING * period, 0.0
    for number, (begin, length) in enumerate(taken):
        if begin >= period - rounding:
            taken[number] = begin, length = 0.0, length
        if begin + length - period > at:
            at = begin + length - period
    at = at if at > rounding else 0.0
    taken.sort()
    for begin, length in taken:
        if begin + rounding >= at:
            break
        if begin + length > at:
            at = begin + length
    return at if at < period - rounding else None

"""Exact time by which enough is served, for counts that are linear between whole ticks."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from taccl.analysis.certificates.finding.gates import first_tick

#: Ticks, whole or not.
Time = int | Fraction
#: Pairs that sends serve by a time, as a sum of (gain, functions of time): gain times the least of them.
Served = list[tuple[int, tuple[Callable[[Time], Time], ...]]]


def first_served(served: Served, needed: int) -> Fraction:
    """Least ticks by which enough is served, exact.

    Between whole ticks every function is linear. The least of some is concave then, and so is their sum:
    following its tangents from the left never leads too far.
    """

    def reached(ticks: int) -> bool:
        return sum(gain * min(each(ticks) for each in least) for gain, least in served) >= needed

    end = first_tick(reached)
    if not end:
        return Fraction(0)
    start, middle = end - 1, end - Fraction(1, 2)
    lines = [
        (gain, [(each(start), 2 * (each(middle) - each(start))) for each in least]) for gain, least in served
    ]
    time = Fraction(0)
    while time < 1:
        now = [(gain, *min((value + rate * time, rate) for value, rate in some)) for gain, some in lines]
        missing, rate = needed - sum(gain * value for gain, value, _ in now), sum(g * r for g, _, r in now)
        if missing <= 0:
            break
        time = time + Fraction(missing) / rate if rate else Fraction(1)
    return start + min(time, Fraction(1))

"""Find the message sizes at which the times of a measured series are irregular."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from math import expm1, inf, log
from statistics import fmean, median
from typing import Literal, NamedTuple

from taccl._internal.units import format_size, format_us
from taccl.measure.series import Series

#: Min ratio of an outlier's time to the longer of the times at its two neighbouring sizes.
_OUTLIER = 1.2
#: A size is irregular if it and the size before it both take longer than the next larger size.
#: `_REVERSED`: min ratio of the irregular size's time to the time at the next larger size.
#: `_LASTS`: min ratio of the time at the size before it to the time at the next larger size.
#: Below `_LASTS`, only one size is slow; this is noise, unless its time exceeds `_OUTLIER`.
_REVERSED, _LASTS = 1.15, 1.07
#: Max growth of regular times: ratio of the times at two successive sizes over the ratio of the sizes.
#: Above it, several messages of the smaller size would be faster than one of the larger size.
#: If growth is regular once the larger size is left out, that size is an outlier.
_FALL = 1.25
#: Two limits on growth detect a late switch: a protocol is used at a size where the next one is faster.
#: Growth is the ratio of the times at two successive sizes over the ratio of the sizes.
#: `_BOUND`: min growth up to the protocol's last size, at which the protocol is bandwidth-bound.
#: `_FREE`: max growth from that size to the next one, at which a faster protocol is used.
_BOUND, _FREE = 0.8, 0.6

#: `_SLOW`: factor by which a slow size's measured / expected time exceeds the median of both series ends.
#: `_END`: number of smallest sizes, and of largest sizes, that count as an end of the series.
_SLOW, _END = 1.6, 4
#: Min slowdown, as for `_SLOW`, at two or more successive sizes that the verdict mentions.
#: Several published logs of healthy machines reach 1.3 to 1.8 at middle sizes.
_NOTABLE = 1.3
#: Sizes from `_MIDDLE_BYTES` on are predicted up to `_MIDDLE_ERROR` times too fast on healthy machines.
#: So in a series that starts there, a larger ratio at its smallest sizes is not usual.
_MIDDLE_BYTES, _MIDDLE_ERROR = 64 << 10, 1.5

#: Min changes from one size to the next that show the noise of times.
_LEAST_CHANGES = 3

#: Min `irregularity` of a series that is worth a note.
IRREGULAR = 0.03

#: A size in bytes and its measured time in us.
_Row = tuple[int, float]


class Kink(NamedTuple):
    """Message size at which the times of a series leave a smooth curve.

    - `kind`: ``"outlier"``: a single slow size. ``"late switch"``: the algorithm or protocol changes at too
      large a size. ``"wrong switch"``: it changes to a slower one. ``"slow"``: the ratio of measured to
      expected time is far above the ratio at both ends of the series.
    - `size_bytes`: The slow size.
    - `evidence`: Times at this size and its neighbours.
    """

    kind: Literal["outlier", "late switch", "wrong switch", "slow"]
    size_bytes: int
    evidence: str


def kinks(series: Series) -> tuple[Kink, ...]:
    """Outliers, and late or wrong switches of algorithm or protocol, in ascending order of size."""
    rows = list(zip(series.size_bytes, series.times_us, strict=True))
    found: list[Kink] = []
    # A size beside an outlier may be an outlier, too, which shows only without the first one.
    while outliers := list(_outliers(rows)):
        found += outliers
        slow = {each.size_bytes for each in outliers}
        rows = [row for row in rows if row[0] not in slow]
    falls = [
        (this, after)
        for before, this, after in zip([None, *rows], rows, rows[1:], strict=False)
        if this[1] > _REVERSED * after[1]
        and (before is None or before[1] > _LASTS * after[1])
        or _growth(this, after) > _FALL
    ]
    found += [
        Kink(
            _kind_of_fall(this[1], falls),
            this[0] if this[1] > after[1] else after[0],
            _rows_text(this, after),
        )
        for this, after in falls
    ]
    found += [
        Kink("late switch", this[0], _rows_text(before, this, after))
        for before, this, after in zip(rows, rows[1:], rows[2:], strict=False)
        if _growth(before, this) >= _BOUND
        and after[1] / this[1] >= 1 / _REVERSED
        and _growth(this, after) <= _FREE
    ]
    return tuple(sorted(found, key=lambda each: each.size_bytes))


def _kind_of_fall(time_us: float, falls: Sequence[tuple[_Row, _Row]]) -> Literal["outlier", "wrong switch"]:
    """Kind of a size that takes longer than the next larger one: noise, or a wrong switch of protocols.

    A library changes to another protocol once. If times rise to the same level again and fall again, they are
    noise of the host.
    """
    alike = [each for each, _ in falls if max(each[1], time_us) <= _REVERSED * min(each[1], time_us)]
    return "outlier" if len(alike) > 1 else "wrong switch"


def _outliers(rows: Sequence[_Row]) -> Iterator[Kink]:
    """Yield the sizes that are slower than both neighbours."""
    for before, this, after in zip([None, *rows], rows, rows[1:], strict=False):
        if (
            this[1] > (_OUTLIER * max(before[1], after[1]) if before else _REVERSED * after[1])
            or before
            and _growth(before, this) > _FALL
            and _growth(before, after) <= 1
        ):
            yield Kink("outlier", this[0], _rows_text(*([before] if before else []), this, after))


def irregularity(series: Series) -> float:
    """Mean relative distance of the times from the nearest curve that rises with the size; 0 if they rise.

    Noise causes it, and changes of algorithm or protocol at the wrong size.
    """
    blocks: list[list[float]] = []
    for each in map(log, series.times_us):
        blocks.append([each])
        while len(blocks) > 1 and median(blocks[-2]) > median(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    return expm1(fmean(abs(each - median(block)) for block in blocks for each in block))


def irregularity_note(series: Series) -> str:
    """Note on a series whose times are irregular; empty for others."""
    found = irregularity(series)
    if found < IRREGULAR:
        return ""
    return f"irregular times: {found:.1%} off the nearest curve that rises with the size, on average"


def noise(series: Iterable[Series]) -> float | None:
    """Median relative deviation of a time, as times in place and out of place show it; None if unknown.

    The logarithm of their ratio changes little from one size to the next, even if one place is slower at all
    sizes. It is the difference of two deviations. Its change thus has twice the spread of one deviation.
    """
    changes: list[float] = []
    for each in series:
        pairs = zip(each.times_us, each.others_us, strict=False)
        ratios = [log(other_us / time_us) for time_us, other_us in pairs if other_us]
        changes += [abs(after - before) for before, after in pairwise(ratios)]
    return expm1(median(changes) / 2) if len(changes) >= _LEAST_CHANGES else None


def slow_middle(series: Series, predicted_us: Sequence[float]) -> Iterator[Kink]:
    """Yield sizes whose ratio of measured to expected time far exceeds the ratio at both ends of a series."""
    ratios, ends = _ratios(series, predicted_us)
    for size, time_us, ratio in zip(series.size_bytes, series.times_us, ratios, strict=True):
        if ratio > _SLOW * ends:
            yield Kink("slow", size, f"{_rows_text((size, time_us))}, {ratio:.2g} times the expected time")


def middle_clause(series: Series, predicted_us: Sequence[float]) -> str:
    """Clause on the longest range of sizes that take notably longer than expected, relative to both ends.

    Empty if there is none. In a series without small sizes, its smallest may be slow as well.
    """
    most = _MIDDLE_ERROR if series.size_bytes[0] > _MIDDLE_BYTES else inf
    ratios, ends = _ratios(series, predicted_us, most)
    runs = [
        list(run)
        for is_slow, run in groupby(range(len(ratios)), lambda i: ratios[i] > _NOTABLE * ends)
        if is_slow
    ]
    longest = max(runs, key=len, default=[])
    if len(longest) < 2:
        return ""
    first, last = (format_size(series.size_bytes[i]) for i in (longest[0], longest[-1]))
    return f"{first} to {last} take up to {max(ratios[i] for i in longest):.2g} times the expected time"


def _ratios(series: Series, predicted_us: Sequence[float], most: float = inf) -> tuple[list[float], float]:
    """Ratios of measured to expected times, and the ratio that counts as usual.

    The usual ratio is the larger of the medians over the smallest and the largest sizes, but at least 1. The
    first of them counts up to `most`.
    """
    ratios = [time_us / wanted for time_us, wanted in zip(series.times_us, predicted_us, strict=True)]
    return ratios, max(1.0, min(median(ratios[:_END]), most), median(ratios[-_END:]))


def _growth(before: _Row, after: _Row) -> float:
    """Ratio of the times at two sizes over the ratio of the sizes."""
    return (after[1] / before[1]) / (after[0] / before[0])


def _rows_text(*rows: _Row) -> str:
    return ", ".join(f"{format_size(size)} in {format_us(time_us)}" for size, time_us in rows)

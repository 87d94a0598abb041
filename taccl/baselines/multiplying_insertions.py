"""Greedy improvement of mixed plans of recursive multiplying, without kernels.

Small parts with other plans use the times in which the bottleneck of the mix is idle: before its first sums
arrive, and after its last ones have left. So a round screens all plans as a small part, first or last. It
inserts the best ones in several sizes, and then moves chunks between parts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taccl.baselines.multiplying_mix_times import Mix, MixTimes
    from taccl.baselines.multiplying_plans import PlanPart

#: `_SCREENED`: share of the chunks in the part by which plans are screened.
#: `_MOST_KEPT`: max number of (plan, place) pairs that are then tried in other sizes.
#: `_SHARES`: sizes of an inserted part, as shares of the chunks.
#: `_LARGEST_SHIFT`: largest number of chunks that moves between two parts, as a share of the chunks.
_SCREENED, _MOST_KEPT, _SHARES, _LARGEST_SHIFT = 64, 8, (256, 128, 64, 32, 16, 8, 4), 8
#: `_MOST_ROUNDS`: max number of rounds, of about 30 ms of CPU each.
#: `_PAYS`: max ratio of finishes for a further round.
_MOST_ROUNDS, _PAYS = 6, 0.9995


def with_insertions(
    mixes: MixTimes, mix: Mix, plans: Sequence[PlanPart], *, most_parts: int
) -> tuple[float, Mix]:
    """Improve a mix by inserting small parts with any of the given plans; return (estimated ticks, mix)."""
    ticks = mixes.finish(mix)
    for _ in range(_MOST_ROUNDS):
        before = ticks
        if len(mix) < most_parts:
            ticks, mix = _with_part(mixes, mix, ticks, plans)
        ticks, mix = _shifted(mixes, mix, ticks)
        if ticks > _PAYS * before:
            break
    return ticks, mix


def _with_part(mixes: MixTimes, mix: Mix, ticks: float, plans: Sequence[PlanPart]) -> tuple[float, Mix]:
    """The mix with one further part, if that finishes sooner; else unchanged."""
    num_chunks = sum(each.size for each in mix)
    largest = max(range(len(mix)), key=lambda k: mix[k].size)
    size = max(1, num_chunks // _SCREENED)
    found = []
    for number, plan in enumerate(plans):
        for is_last in (False, True):
            for changed in _inserted(mixes, mix, plan, size, largest, is_last):
                if (finish := mixes.finish(changed, ticks)) < math.inf:
                    found.append((finish, number, is_last))
    best = ticks, mix
    for _, number, is_last in sorted(found)[:_MOST_KEPT]:
        for donor in range(len(mix)):
            for size in dict.fromkeys(num_chunks // share for share in _SHARES):
                for changed in _inserted(mixes, mix, plans[number], size, donor, is_last):
                    if (finish := mixes.finish(changed, best[0])) < best[0]:
                        best = finish, changed
    return best


def _inserted(
    mixes: MixTimes, mix: Mix, plan: PlanPart, size: int, donor: int, is_last: bool
) -> Iterator[Mix]:
    """Yield the mix in which `size` chunks of a part become a part of their own; none if it has too few."""
    if 0 < size < mix[donor].size:
        changed = [*mix]
        changed[donor] = mixes.timed(mix[donor].part, mix[donor].size - size)
        yield [*changed, mixes.timed(plan, size)] if is_last else [mixes.timed(plan, size), *changed]


def _shifted(mixes: MixTimes, mix: Mix, ticks: float) -> tuple[float, Mix]:
    """The mix after moves of chunks between parts, as long as they shorten it; ever fewer chunks at once."""
    size = sum(each.size for each in mix) // _LARGEST_SHIFT
    while size:
        has_gained = False
        for here in range(len(mix)):
            for there in range(len(mix)):
                if here == there or mix[here].size <= size:
                    continue
                changed = [*mix]
                changed[here] = mixes.timed(mix[here].part, mix[here].size - size)
                changed[there] = mixes.timed(mix[there].part, mix[there].size + size)
                finish = mixes.finish(changed, ticks)
                if finish < ticks:
                    ticks, mix, has_gained = finish, changed, True
        size = size if has_gained else size // 2
    return ticks, mix

"""Steps of recursive multiplying that overlap: when a step of a part may start.

A step starts when the one before it has ended, unless messages inside nodes are divided into pieces. Then
the step between nodes overlaps with it, as each piece serves some of the partners there. Chunks for the
rank's own node may go while others cross between nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.baselines.multiplying_plans import Digit

#: Start of a step of a part: two pairs of shares (x, y) of the ticks for which an earlier step and the step
#: itself hold their bottlenecks. The step starts when the earlier one has held it for x, less y of its own.
Shares = tuple[tuple[float, float], tuple[float, float]]
#: The step starts when the earlier one may start.
AT_ONCE: Shares = (0.0, 0.0), (0.0, 0.0)
#: The step starts when all earlier steps have ended.
AFTER_ALL: Shares = (1.0, 0.0), (1.0, 0.0)


def follows(heads: Sequence[tuple[str, Digit]], step: int) -> tuple[int, Shares]:
    """When a step of a part may start, undelayed: (number of steps back, shares); 0 back means after all.

    In a step inside nodes, the messages of a rank to all partners in one piece are sent before those in the
    next piece. Each piece is for, or from, equally many partners in the step between nodes, in the order of
    their turns; the rank itself is the last of them if chunks are scattered, the first if they are gathered.
    Between the first and the last piece, times are linear.
    """
    verb, digit = heads[step]
    if digit.own > 0:
        return 1, AT_ONCE
    back = 2 if verb == "gather" and digit.own < 0 else 1
    if step < back or heads[step - 1][0] != verb:
        return 0, AFTER_ALL
    other = heads[step - back][1]
    inside, across = (other, digit) if verb == "scatter" else (digit, other)
    pieces = inside.pieces
    if inside.across or not across.across or inside.own > 0 or (pieces == 1 and not inside.own):
        return 0, AFTER_ALL
    first, last = (1 / pieces, 0.0), (1.0, (pieces - 1) / pieces)
    if inside.own:
        return back, (first, last)
    # One of the partners, the rank itself, gets no message between nodes.
    num_others, each = across.base - 1, across.base // pieces
    if verb == "scatter":
        ending = pieces - 1 - (each == 1)  # its piece may be for itself only
        return 1, (first, ((ending + 1) / pieces, ending * each / num_others))
    begin = int(each == 1)
    return 1, ((((begin + 1) * each - 1) / num_others, begin / pieces), last)


def lead_of(shares: Shares, head: tuple[float, float], busy: float) -> float:
    """Ticks from the start of a step to the earliest start of a step that follows it.

    - `head`: Ticks of the first step, and ticks for which it holds its bottleneck.
    - `busy`: Ticks for which the second one holds its bottleneck.
    """
    if shares == AT_ONCE:
        return 0.0
    return max(0.0, head[0] - head[1] + max(x * head[1] - y * busy for x, y in shares))


class Undelayed(NamedTuple):
    """Times of a step of a part, if other parts do not delay it.

    - `start`: Its start.
    - `left`: Ticks from its start to the end of the steps that depend on it.
    - `back`: How many steps before it is the one that it follows; 0 if it follows all.
    - `lead`: Ticks from the start of that step to its earliest start.
    - `is_own`: True if it only moves chunks of the own node.
    """

    start: float
    left: float
    back: int
    lead: float
    is_own: bool


def undelayed(heads: Sequence[tuple[str, Digit]], times: Sequence[tuple[float, float]]) -> list[Undelayed]:
    """Times of the steps of a part, if other parts do not delay it.

    - `times`: (ticks, ticks for which it holds its bottleneck) of each step.
    """
    starts, follow, end = list[float](), list[tuple[int, float]](), 0.0
    for step, (ticks, busy) in enumerate(times):
        back, shares = follows(heads, step)
        lead = lead_of(shares, times[step - back], busy) if back else 0.0
        starts.append(starts[step - back] + lead if back else end)
        follow.append((back, lead))
        end = max(end, starts[step] + ticks)
    lefts, then = [ticks for ticks, _ in times], 0.0  # `then`: from the next step that follows all others
    for step in reversed(range(len(times))):
        lefts[step] = max(lefts[step], times[step][0] + then)
        back, lead = follow[step]
        if back:
            lefts[step - back] = max(lefts[step - back], lead + lefts[step])
        else:
            then = lefts[step]
    columns = zip(heads, starts, lefts, follow, strict=True)
    return [Undelayed(start, left, *each, digit.own > 0) for (_, digit), start, left, each in columns]


class Progress:
    """Steps of a part that have started.

    A step for chunks of the own node may start before the step between nodes that precedes it.

    - `ready`: Earliest start of the next step.
    - `place`: Its number.
    - `early`: True if the step after it has started.
    - `end`: Time at which all started steps have ended.
    """

    __slots__ = ("early", "end", "place", "ready", "starts")

    def __init__(self) -> None:
        self.ready, self.place, self.early, self.end, self.starts = 0.0, 0, False, 0.0, list[float]()

    def started(self, since: float, ticks: float, every: Sequence[Undelayed], *, early: bool) -> None:
        """Note the start of the next step, or of the one after it if `early`.

        - `every`: Undelayed times of the part's steps; empty if these follow one another.
        """
        self.end = max(self.end, since + ticks)
        if early:
            self.early = True
            return
        self.starts += [since] * (1 + self.early)
        self.place, self.early = len(self.starts), False
        step = every[self.place] if self.place < len(every) else None
        if step is None or not step.back:
            self.ready = self.end
        elif not step.is_own:
            self.ready = self.starts[-step.back] + step.lead


def merged_sends(num_chunks: Any, pieces: int, most: int) -> Any:
    """Number of sends of `num_chunks` chunks in `pieces` messages, with at most `most` chunks in each."""
    if pieces == 1:
        return -(-num_chunks // most)
    pieces = np.minimum(pieces, num_chunks)
    return pieces * -(-num_chunks // (pieces * most))


def share_in(head: tuple[str, Digit], count: int) -> int:
    """Number of a part's chunks in each message of a step, from the `count` that a rank holds before it."""
    verb, digit = head
    if digit.own > 0:
        return count if verb == "scatter" else -(-count // digit.own)
    share = -(-count // digit.base) if verb == "scatter" else count
    return share + (share // digit.own if digit.own else 0)  # `digit.own` is negative


def held_after(head: tuple[str, Digit], count: int) -> int:
    """Number of a part's chunks that a rank holds after a step; `count` is the number before the step."""
    verb, digit = head
    if digit.own > 0:
        return count
    if verb == "sum":
        return count * max(1, len(digit.turns))
    return -(-count // digit.base) if verb == "scatter" else count * digit.base

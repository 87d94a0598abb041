"""Numbers of arrivals by a time, and labels that bound them, for evaluations of witnesses.

Ranks that hold data send it on, so the number that can hold data by a time depends on the numbers before. A
witness states these numbers as labels. They hold if the senders that they admit cannot exceed them: the first
arrival that exceeds a label would come from earlier ones, which exceed none. docs/formulation.md, "Checking",
has the argument.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise

from taccl.analysis.certificates.evaluation.facts import NEVER, Facts
from taccl.analysis.certificates.evaluation.passages import GatePassage, by_place, passages_of
from taccl.analysis.certificates.witness import Labels

#: Max starting ranks for which distances are used.
_MOST_STARTS = 256
#: [(since, more), ...]: from `since` on, that many more senders may hold data.
Steps = Sequence[tuple[int, int]]


class Fastest:
    """Component-wise fastest sender: passage by passage, the best of several senders.

    A send has at most `most` chunks.
    """

    def __init__(self, senders: Iterable[list[GatePassage]], most: int = 1) -> None:
        limited = [[way.of_most(most) for way in mine] for mine in senders]
        full = max((way.most for mine in limited for way in mine), default=1)

        def pace(way: GatePassage) -> tuple[object, ...]:
            """Ticks for a full send of any passage, then the time of the first chunk."""
            return full // way.most * (way.alpha + way.most * way.beta), way.before + way.after[0], way.after

        self._places = by_place(limited, pace)
        self._known: dict[int, int] = {}

    def within(self, ticks: int) -> int:
        """Max chunks that arrive within `ticks` of the time from which one sender holds data."""
        if ticks not in self._known:
            self._known[ticks] = sum(max(way.between(0, ticks) for way in some) for some in self._places)
        return self._known[ticks]

    def by(self, ticks: int, awake: Steps) -> int:
        """Max chunks that arrive by `ticks`, if senders hold data as the steps say."""
        return sum(more * self.within(ticks - since) for since, more in awake if since <= ticks)


def steps(labels: Labels, most: int) -> list[tuple[int, int]]:
    """[(since, more), ...]: times at which more items can be there than before, `most` in the end."""
    found, since, before = list[tuple[int, int]](), 0, 0
    for until, number in (*labels, (NEVER, most)):
        number = min(number, most)
        found.append((since, number - before))
        since, before = until, number
    return found


def are_true(labels: Labels, arrived: Callable[[int], int]) -> bool:
    """True if, before the time of each label, no more items can have arrived than it says.

    - `arrived`: Max number of items by given ticks, if labels hold for all senders before.
    """
    if any(ticks <= before or most < few for (before, few), (ticks, most) in pairwise(((-1, 0), *labels))):
        return False
    return all(arrived(ticks - 1) <= most for ticks, most in labels)


def reached(
    facts: Facts,
    labels: Labels,
    links: Sequence[int],
    most: int,
    *,
    starts: Collection[int] | None = None,
    backwards: bool = False,
) -> list[int] | None:
    """Earliest times at which data of one rank can be at 1, 2, ..., `most` ranks; None if a label is wrong.

    - `starts`: Ranks of which the data comes, for distances along the links. Default: unknown.
    - `backwards`: True if `facts` has the ends of links exchanged.
    """
    sender, awake = Fastest(passages_of(facts, links, facts.src).values()), steps(labels, most)
    near = None
    if starts is not None and len(starts) <= _MOST_STARTS:
        near = facts.nearest(links, starts, backwards=backwards)

    def arrived(ticks: int) -> int:
        number = 1 + sender.by(ticks, awake)
        return number if near is None else min(number, bisect_right(near, ticks))

    if not are_true(labels, arrived):
        return None
    return [since for since, more in awake for _ in range(more)]

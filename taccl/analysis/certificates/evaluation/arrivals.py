"""Earliest arrivals of data that ranks pass on to each other, for evaluations of witnesses."""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain, count, islice, repeat

from taccl.analysis.certificates.evaluation.facts import NEVER
from taccl.analysis.certificates.evaluation.passages import GatePassage


def of_most(passage: GatePassage, most: int) -> GatePassage:
    """The same passage for sends of at most `most` chunks."""
    return replace(passage, most=min(passage.most, most), after=passage.after[:most])


class Fastest:
    """Best of several passages: earliest arrivals of successive chunks, sent from a given time on."""

    def __init__(self, ways: Iterable[GatePassage]) -> None:
        self._coming = map(min, zip(*(way.ends(0) for way in ways), strict=True))
        self._known: list[int] = []

    def since(self, moment: int) -> Iterator[int]:
        """Arrivals of successive chunks, sent from a given time on."""
        for i in count():
            if i == len(self._known):
                self._known.append(next(self._coming))
            yield moment + self._known[i]


def fastest(senders: Iterable[list[GatePassage]], most: int = 1) -> list[Fastest]:
    """Component-wise fastest sender, passage by passage, with at most `most` chunks per send."""
    ways: dict[int, set[GatePassage]] = defaultdict(set)
    for mine in senders:
        some = (of_most(each, most) for each in mine)
        for place, way in enumerate(sorted(some, key=lambda p: (p.hold, p.before + p.after[0]))):
            ways[place].add(way)
    return [Fastest(some) for some in ways.values()]


def sent(fast: list[Fastest], awake: list[int]) -> Iterator[int]:
    """Merged arrivals of what all senders send, each from the time at which it holds something."""
    return heapq.merge(*(each.since(when) for when in awake if when < NEVER for each in fast))


def reached(
    fast: list[Fastest],
    woken: Iterable[int],
    num: int,
    *,
    room: Iterable[int] = repeat(0),
    num_senders: float = math.inf,
) -> list[int]:
    """Earliest times at which 1, 2, ..., num ranks can be reached, if each reached rank sends on.

    - `woken`: Times at which ranks are reached from elsewhere.
    - `room`: Earliest admissible times of the first, second, ... arrival.
    - `num_senders`: Max reached ranks that send.
    """
    sources: list[Iterator[int]] = [chain(woken, repeat(NEVER))]
    queue = [(next(sources[0]), 0)]
    when: list[int] = []
    for soonest in islice(room, num):
        now, source = queue[0]
        heapq.heapreplace(queue, (next(sources[source]), source))
        now = max(now, soonest)
        when.append(now)
        for each in fast if now < NEVER and len(when) <= num_senders else ():
            sources.append(each.since(now))
            heapq.heappush(queue, (next(sources[-1]), len(sources) - 1))
    return when


def into_sets(into: Collection[list[GatePassage]], since: int, last: int) -> Iterator[int]:
    """Earliest ends of the first, second, ... entry of `last` chunks, if each chunk enters a set once.

    Every set counts as one that admits at least as much as any set. A send carries a chunk once.

    - `into`: Passages into each set.
    """
    sets = {frozenset(Counter(of_most(way, last) for way in ways).items()) for ways in into}
    merged = (
        heapq.merge(*(way.ends_since(since) for way, number in ways for _ in range(number))) for ways in sets
    )
    best = map(min, zip(*merged, strict=True))
    return (each for each in best for _ in range(min(last, len(into))))

"""Dissemination: where chunks merge, a send still brings no more than its sender has by then.

A rank has its own data at first. It gets that of others by sends one after another, and a send has data of so
many ranks only if somebody had that much when it started. docs/formulation.md, "Dissemination".
"""

# m ranks whose data is in a send

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from taccl.analysis.certificates.gates import FOREVER, Costs, Gates, Ints, gates_of
from taccl.analysis.certificates.needed_sends import NeededSends
from taccl.analysis.certificates.witnesses import Claim, Dissemination
from taccl.units import format_count

#: Of so many ranks, and nodes, it is asked, those first that lack the most.
_MOST_SETS = 8


def dissemination_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Of some ranks, and nodes, that no symmetry takes to an earlier one."""
    if demand.sums_for_all or not demand.spreads_alike(in_network=in_network):
        return
    if not demand.costs.merges.any():
        return
    wanted: dict[int, set[int]] = {}
    for data, *_ in demand.classes:
        if len(data.origins) == 1:
            for rank in data.destinations:
                wanted.setdefault(rank, set()).update(data.origins)
    num = max((len(some - {rank}) for rank, some in wanted.items()), default=0)
    if num < 2:
        return
    spread = _Spread(demand, num)

    def lacking(ranks: frozenset[int]) -> int:
        return max(len(wanted.get(rank, set()) - ranks) for rank in ranks)

    for name, sets in demand.families:
        for ranks in sorted(demand.different(sets), key=lacking, reverse=True)[:_MOST_SETS]:
            demand.deadline.check()
            number = lacking(ranks)
            if number > 1:
                node = demand.topology.node_of_rank[min(ranks)]
                where = f"rank {min(ranks)}" if name == "rank" else f"a rank of node {node}"
                what = f"data of {format_count(number, 'rank')} that {where} lacks, as senders get it"
                yield Claim(spread.into(ranks, number), what, Dissemination(ranks))


class _Spread:
    """When ranks can have data of so many others at the earliest."""

    def __init__(self, demand: NeededSends, num: int) -> None:
        self._costs, self._links = demand.costs, np.array(sorted(demand.allowed), dtype=np.int64)
        anywhere = _ways(self._costs, self._links)
        #: By number of ranks: when some rank can have data of so many, its own included.
        self.anywhere = _learnt([(way, None) for way in anywhere], [0, 0], num)

    def into(self, ranks: frozenset[int], number: int) -> int:
        """When a rank of a set can have data of so many ranks outside it."""
        inner = np.zeros(self._costs.num_ranks, dtype=bool)
        inner[list(ranks)] = True
        leaves, enters = inner[self._costs.src[self._links]], inner[self._costs.dst[self._links]]
        border, inside = (_ways(self._costs, self._links[enters & some]) for some in (~leaves, leaves))
        ways: list[tuple[_Way, list[int] | None]] = [(way, self.anywhere) for way in border]
        ways += [(way, None) for way in inside]
        return _learnt(ways, [0], number)[number]


@dataclass(frozen=True, slots=True)
class _Way:
    """One of the resources by which a rank that outdoes all others is entered.

    - `held`, `rest`, (most,) int64: How long a send of so many chunks holds it, and lasts from its hold on.
    - `offset`: From a send's start to its hold.
    """

    held: Ints
    rest: Ints
    offset: int


def _ways(costs: Costs, links: Ints) -> list[_Way]:
    gates = gates_of(costs, links, costs.dst, np.zeros_like(costs.dst))
    places: dict[int, list[int]] = {}
    seen: dict[int, int] = {}
    for i in np.lexsort((gates.offset, gates.most, gates.alpha, gates.hold, gates.of_set)).tolist():
        place = seen[gates.of_set[i]] = seen.get(gates.of_set[i], -1) + 1
        places.setdefault(place, []).append(i)
    return [_best_of(gates, np.array(some)) for some in places.values()]


def _best_of(gates: Gates, some: Ints) -> _Way:
    most = int(gates.most[some].max())
    chunks = np.arange(1, most + 1)
    held = gates.alpha[some].min() + chunks * gates.beta[some].min()
    rest = gates.rest[:most, some].min(axis=1)
    return _Way(held, np.minimum.accumulate(rest[::-1])[::-1], int(gates.offset[some].min()))


def _learnt(ways: list[tuple[_Way, list[int] | None]], had: list[int], num: int) -> list[int]:
    """By number of ranks: when a rank can have data of so many, at the earliest.

    - `ways`: How it is entered, and when senders can have so much themselves: None is as this rank.
    - `had`: The beginning of what is returned.
    """
    when = list(had)
    free = [np.full(num + 1, FOREVER) for _ in ways]  # from when on so much has passed
    for done in free:
        done[0] = 0
    arrivals: list[int] = []

    def passed(number: int, way: _Way, known: list[int] | None, done: Ints) -> int:
        """When so much has come this way; `FOREVER` where nobody can have sent it yet."""
        senders = when if known is None else known
        most = min(len(way.held), number, len(senders) - 1)
        if most < 1:
            return FOREVER
        begin = np.maximum(np.array(senders[1 : most + 1]) + way.offset, done[number - most : number][::-1])
        done[number] = (begin + way.held[:most]).min()
        return int((begin + way.rest[:most]).min())

    for number in range(1, num + 1):
        found = [passed(number, *each, done) for each, done in zip(ways, free, strict=True)]
        for each in found:
            insort(arrivals, each)
        when.append(arrivals[number - 1])
        # Somebody has so much from then on, and may send it.
        for each, (way, known), done in zip(found, ways, free, strict=True):
            if known is None:
                arrivals.remove(each)
                insort(arrivals, passed(number, way, known, done))
    return when

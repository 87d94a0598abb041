"""Dissemination: even a merged send carries no more than its sender holds when it starts.

A rank initially holds its own data, and gets that of others by successive sends. A send carries data of m
ranks only if its sender held data of m ranks at its start. See docs/formulation.md, "Dissemination".
"""

# m ranks whose data is in a send

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from operator import le

import numpy as np

from taccl._internal.units import format_count
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.evaluation.passages import GatePassage, passages_of, strongest
from taccl.analysis.certificates.finding.gates import FOREVER, Gates, Ints, fastest, gates_of
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.witness import Claim, OfRanks

#: Max ranks, and nodes, to examine, those with the most missing data first.
_MOST_SETS = 8


@dataclass(frozen=True, slots=True)
class Dissemination(OfRanks):
    """Ranks of which one wants data of many ranks outside the set, and earliest times as labels, in ticks.

    - `anywhere`: Earliest times at which any rank can hold data of 0, 1, ... ranks, its own included.
    - `inside`: Earliest times at which a rank of the set can hold data of 0, 1, ... ranks outside.
    """

    kind = proves = "dissemination"
    ranks: frozenset[int]
    anywhere: tuple[int, ...]
    inside: tuple[int, ...]

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return ticks <= facts.rounded(_disseminated(facts, self))


def dissemination_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield claims for some ranks, and nodes, that no symmetry maps to an earlier one."""
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
    costs, links = demand.costs, np.array(sorted(demand.allowed), dtype=np.int64)

    def entered(over: Ints) -> Gates:
        return fastest(gates_of(costs, over, costs.dst))

    #: Earliest times at which some rank can hold data of 0, 1, ... ranks, its own included.
    anywhere = _learnt(num, [0, 0], (entered(links), None))

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
                leaves, enters = (np.isin(ends[links], list(ranks)) for ends in (costs.src, costs.dst))
                border, inside = entered(links[enters & ~leaves]), entered(links[enters & leaves])
                times = tuple(_learnt(number, [0], (border, anywhere), (inside, None)))
                yield Claim(times[-1], what, Dissemination(ranks, tuple(anywhere[: number + 1]), times))


def _learnt(num: int, had: list[int], *ways: tuple[Gates, list[int] | None]) -> list[int]:
    """Earliest times at which a rank can hold data of 0, 1, ..., `num` ranks.

    - `had`: First times of the result, which are known.
    - `ways`: Bottleneck resources into the rank, and the senders' times; None: as for this rank.
    """
    when = list(had)
    came = [np.full((len(gates.most), num), FOREVER) for gates, _ in ways]
    free = [np.full((len(gates.most), num + 1), FOREVER) for gates, _ in ways]  # when that much has passed
    for passed in free:
        passed[:, 0] = 0

    def bring(number: int, gates: Gates, known: list[int] | None, came: Ints, free: Ints) -> None:
        senders = when if known is None else known
        most = min(len(gates.rest), number, len(senders) - 1)
        if most < 1:  # no sender can hold it yet
            return
        m = np.arange(1, most + 1)
        begin = np.maximum(
            np.array(senders[1 : most + 1]) + gates.offset[:, None], free[:, number - most : number][:, ::-1]
        )
        begin = np.where(m <= gates.most[:, None], begin, FOREVER)
        free[:, number] = (begin + gates.alpha[:, None] + m * gates.beta[:, None]).min(axis=1)
        came[:, number - 1] = (begin + gates.rest[:most].T).min(axis=1)

    for number in range(1, num + 1):
        for way, *times in zip(ways, came, free, strict=True):
            bring(number, *way, *times)
        arrivals = np.concatenate([each[:, :number].ravel() for each in came])
        when.append(int(np.partition(arrivals, number - 1)[number - 1]))
        for way, *times in zip(ways, came, free, strict=True):
            if way[1] is None:  # some rank holds that much now, and may send it
                bring(number, *way, *times)
    return when


def _disseminated(facts: Facts, witness: Dissemination) -> int:
    """Earliest time at which a rank of the set can hold all its wanted outside data; 0 proves nothing."""
    if not facts.spreads_alike or facts.sums or facts.divisible:
        return 0
    wanted: dict[int, set[int]] = defaultdict(set)
    for data in facts.collective.chunks:
        if len(data.origins) == 1:
            for rank in data.destinations:
                wanted[rank].update(data.origins)
    number = max((len(wanted[rank] - witness.ranks) for rank in witness.ranks), default=0)
    if not len(witness.anywhere) >= len(witness.inside) == number + 1:
        return 0
    entering = [e for e in facts.allowed if facts.dst[e] in witness.ranks]
    border, inside, every = (
        strongest(passages_of(facts, links, facts.dst).values())
        for links in (
            [e for e in entering if facts.src[e] not in witness.ranks],
            [e for e in entering if facts.src[e] in witness.ranks],
            facts.allowed,
        )
    )
    known = [(way, witness.anywhere) for way in every]
    ways = [(way, witness.anywhere) for way in border] + [(way, witness.inside) for way in inside]
    is_proven = _are_earliest(witness.anywhere, known, own=1) and _are_earliest(witness.inside, ways, own=0)
    return witness.inside[number] if is_proven else 0


def _are_earliest(
    times: tuple[int, ...], ways: list[tuple[GatePassage, tuple[int, ...]]], *, own: int
) -> bool:
    """True if no rank that is entered in these ways can hold data of 0, 1, ... ranks before these times.

    Each time is at most that of an arrival, if senders hold data of m ranks from their m-th label on. The
    first rank to hold more than its labels say would have it from senders whose labels are true.

    - `ways`: Bottleneck resources into the rank, and the labels of the senders.
    - `own`: Number of ranks whose data the rank has from the start.
    """
    came: list[int] = []
    for way, senders in ways:
        passed = [0]  # time at which the way is free after data of 0, 1, ... ranks
        for i in range(1, len(times) - own):
            begins = [
                (max(senders[m] + way.before, passed[i - m]), m) for m in range(1, min(way.most, i) + 1)
            ]
            passed.append(min(begin + way.alpha + m * way.beta for begin, m in begins))
            came.append(min(begin + way.after[m - 1] for begin, m in begins))
    return bool(ways) and all(map(le, times, [0] * (own + 1) + sorted(came)))

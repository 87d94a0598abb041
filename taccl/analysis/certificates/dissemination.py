"""Dissemination: even a merged send carries no more than its sender holds when it starts.

A rank initially holds its own data, and gets that of others by successive sends. A send carries data of m
ranks only if its sender held data of m ranks at its start. See docs/formulation.md, "Dissemination".
"""

# m ranks whose data is in a send

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from taccl.analysis.certificates.gates import FOREVER, Gates, Ints, fastest, gates_of
from taccl.analysis.certificates.needed_sends import NeededSends
from taccl.analysis.certificates.witnesses import Claim, Dissemination
from taccl.units import format_count

#: Max ranks, and nodes, to examine, those with the most missing data first.
_MOST_SETS = 8


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
                ticks = _learnt(number, [0], (border, anywhere), (inside, None))[number]
                yield Claim(ticks, what, Dissemination(ranks))


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

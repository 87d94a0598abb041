"""Dissemination: where chunks merge, a send still brings no more than its sender has by then.

A rank has its own data at first. It gets that of others by sends one after another, and a send has data of so
many ranks only if somebody had that much when it started. docs/formulation.md, "Dissemination".
"""

# m ranks whose data is in a send

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from taccl.analysis.certificates.gates import FOREVER, Gates, Ints, fastest, gates_of
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
    costs, links = demand.costs, np.array(sorted(demand.allowed), dtype=np.int64)

    def entered(over: Ints) -> Gates:
        return fastest(gates_of(costs, over, costs.dst))

    #: By number of ranks: when some rank can have data of so many, its own included.
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
    """By number of ranks: when a rank can have data of so many, up to `num`, at the earliest.

    - `had`: The beginning of what is returned.
    - `ways`: By what it is entered, and when senders there can have so much: None is as this rank.
    """
    when = list(had)
    came = [np.full((len(gates.most), num), FOREVER) for gates, _ in ways]
    free = [np.full((len(gates.most), num + 1), FOREVER) for gates, _ in ways]  # so much has passed by then
    for passed in free:
        passed[:, 0] = 0

    def bring(number: int, gates: Gates, known: list[int] | None, came: Ints, free: Ints) -> None:
        senders = when if known is None else known
        most = min(len(gates.rest), number, len(senders) - 1)
        if most < 1:  # nobody can have sent it yet
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
            if way[1] is None:  # somebody has so much from then on, and may send it
                bring(number, *way, *times)
    return when

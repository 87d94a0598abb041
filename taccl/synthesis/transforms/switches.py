"""In-network reduction: sums made by switches alone, or shared between switches and ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from taccl._internal.deadline import Deadline
from taccl.analysis.certificates.transformed import check_switches_add, over_links
from taccl.analysis.verification.verify import verify
from taccl.baselines import baseline
from taccl.baselines.chunking import cut_chunks
from taccl.errors import InputError
from taccl.problem.costs import hold_columns
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.schedule.timing import exact_times
from taccl.sketch.reachability import check_possible
from taccl.synthesis.transforms.requirements import Transform
from taccl.topology.in_network import shared_links

InNetworkUse = Literal["auto", "off", "only"]

#: Parts per chunk to try if switches and ranks share the sums; short sends of ranks fill a switch's gaps.
_CUTS = (8, 16, 32)
#: Max transfers of the ring schedule that shares the sums with switches.
_MOST_TRANSFERS = 20_000


@dataclass(frozen=True)
class PlainLinks(Transform):
    """A problem without the links of in-network reduction, so that only ranks add.

    If ranks cannot do without these links, as no others join some of them, the part is the problem itself.
    """

    name: ClassVar[str] = "without reductions in switches"

    @classmethod
    def apply(cls, problem: Problem) -> Self | None:
        """Remove the links of switches that add; None if no switch of the topology adds."""
        if not shared_links(problem.topology):
            return None
        part = over_links(problem, shared=False)
        try:
            check_possible(part)
        except InputError:
            part = problem
        return cls(problem, part)

    def invert(self, found: Schedule) -> Schedule:
        """The found schedule under the original clauses; its sends and its chunks are kept."""
        return found.under(replace(found.problem, clauses=self.problem.clauses))


def by_switches(problem: Problem, use: InNetworkUse, limit: Deadline) -> Schedule | None:
    """Earliest schedule with in-network reduction, by switches alone or with ranks; None if there is none.

    If the problem leaves the number of chunks open, it is chosen here, while there is time. With ``"only"``
    ranks make no sums; if no switch can make them either, an `InputError` says why.
    """
    if use == "only":
        check_switches_add(problem.topology)
    try:
        alone = baseline("in-network", problem, cut=problem.chunks_open)
    except InputError:
        if use == "only":
            raise
        return None
    found = [alone, *(_shared(problem, limit) if use == "auto" and problem.collective.sums_up else ())]
    # Schedules that the sketch forbids do not count.
    found = [each.under(replace(each.problem, clauses=problem.clauses)) for each in found]
    return min((each for each in found if verify(each).ok), key=lambda each: each.finish, default=None)


def _shared(problem: Problem, limit: Deadline) -> Iterator[Schedule]:
    """Schedules in which a switch adds a share of the chunks, and ranks reduce the rest along rings."""
    for parts in _CUTS if problem.chunks_open else (1,):
        if limit.has_passed:
            return
        cut = replace(cut_chunks(problem, parts), chunks_open=False) if parts > 1 else problem
        try:
            switch, ring = (baseline(name, cut, cut=False) for name in ("in-network", "ring"))
        except InputError:  # no ring, or chunks smaller than a packet
            return
        if ring.num_transfers > _MOST_TRANSFERS:
            return
        loads = _loads(switch), _loads(ring)
        # The maximum load falls and then rises with the share; steps of 1/256 are finer than the chunks.
        share = min(np.linspace(0, 1, 257), key=lambda x: (x * loads[0] + (1 - x) * loads[1]).max())
        if 0 < share < 1:
            yield _combined(cut, float(share))


def _loads(schedule: Schedule) -> NDArray[np.float64]:
    """(num_resources,) ticks for which a schedule occupies each resource, without latencies."""
    problem = schedule.problem
    units = np.bincount(
        schedule.link, problem.costs.chunk_units[schedule.chunk], minlength=len(problem.topology.links)
    )
    holds = hold_columns(problem.topology)
    held = problem.costs.hold_beta * units[holds.link]
    return np.bincount(holds.resource, held, minlength=len(problem.topology.resources)).astype(float)


def _combined(problem: Problem, share: float) -> Schedule:
    """Schedule in which switches sum the first `share` of every root's chunks; ranks sum the rest."""
    of_root: dict[int | None, list[int]] = defaultdict(list)
    for c, chunk in enumerate(problem.collective.chunks):
        of_root[chunk.root].append(c)
    chosen = sorted(c for chunks in of_root.values() for c in chunks[: round(share * len(chunks))])
    rows = []
    for name, some in (
        ("in-network", chosen),
        ("ring", sorted({*range(problem.collective.num_chunks)} - {*chosen})),
    ):
        own = tuple(problem.collective.chunks[c] for c in some)
        collective = replace(problem.collective, chunks=own, groups=())
        sizes = tuple(problem.chunk_bytes[c] for c in some)
        part = replace(problem, collective=collective, chunk_bytes=sizes, size_bytes=None)
        alone = baseline(name, part, cut=False)
        progress = (alone.start / max(1, alone.finish_ticks)).tolist()
        columns = (alone.chunk.tolist(), alone.link.tolist(), alone.reduce.tolist())
        rows += [(p, some[c], e, adds) for p, c, e, adds in zip(progress, *columns, strict=True)]
    _, chunks, links, reduce = zip(*sorted(rows), strict=True)
    return exact_times(
        problem, chunk=chunks, link=links, reduce=reduce, sequence=range(len(rows)),
        producer=f"in-network ({len(chosen) / problem.collective.num_chunks:.0%}) and ring",
    )  # fmt: skip

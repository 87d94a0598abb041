"""Collectives of process groups, each balanced over its group's dimensions, all concurrent."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.baselines.hierarchical import dimensions_of
from taccl.errors import CollectiveError, TopologyError
from taccl.problem.collectives import make
from taccl.problem.making import make_problem
from taccl.problem.problem import Problem
from taccl.schedule.columns import narrow
from taccl.schedule.implicit_schedule import IMPLICIT_COLLECTIVES
from taccl.schedule.schedule import Schedule
from taccl.topology.transform import subset

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from taccl.topology.products import Dimensions

_WHERE = "dimension-balanced: groups"


@dataclass(frozen=True)
class GroupPart:
    """One group's collective, on the topology of its members alone.

    - `chunks`: Indices of its chunks in the problem of all groups.
    - `ranks`: Its members, ascending: rank i of the part is ``ranks[i]``.
    """

    problem: Problem
    dims: Dimensions
    chunks: range
    ranks: tuple[int, ...]


def parts_of(problem: Problem) -> list[GroupPart]:
    """A `GroupPart` for each process group; raises `CollectiveError` if a group spans no dimensions."""
    collective = problem.collective
    found = []
    for group, chunks in zip(collective.process_groups, collective.chunks_of_group, strict=True):
        if group.name not in IMPLICIT_COLLECTIVES or list(group.ranks) != sorted(group.ranks):
            raise CollectiveError(
                f"found {group.name} of ranks {list(group.ranks[:8])}; expected one of "
                f"{', '.join(IMPLICIT_COLLECTIVES)}, of ranks in ascending order",
                where=_WHERE,
            )
        pieces, rest = divmod(group.num_chunks, make(group.name, len(group.ranks)).num_chunks)
        alone = make(group.name, len(group.ranks), chunks_per_rank=max(1, pieces))
        inside = alone.among(group.ranks, num_ranks=collective.num_ranks)
        sizes = set(problem.chunk_bytes[chunks.start : chunks.stop])
        if rest or len(sizes) > 1 or inside.chunks != collective.chunks[chunks.start : chunks.stop]:
            said = f"found {group.name} with custom chunks; expected a complete one, in chunks of one size"
            raise CollectiveError(said, where=_WHERE)
        try:
            topology = subset(problem.topology, ranks=group.ranks)
        except TopologyError as error:
            raise CollectiveError(error.message, where=_WHERE) from None
        part = make_problem(topology, alone, chunk_bytes=sizes.pop())
        found.append(GroupPart(part, dimensions_of(part, baseline=_WHERE), chunks, group.ranks))
    return found


def schedule_of_groups(
    problem: Problem, make_part: Callable[[Problem, Dimensions], Schedule | None], *, producer: str
) -> Schedule | None:
    """One schedule in which all groups run concurrently; None if `make_part` returns None for a group.

    Groups of the same shape share one schedule. The result is not verified: it is invalid if groups
    share resources.

    - `make_part`: Function from a group's problem and dimensions to its schedule.
    """
    made: dict[tuple[Any, ...], Schedule | None] = {}
    columns: list[tuple[NDArray[Any], ...]] = []
    links = {(link.src, link.dst): index for index, link in enumerate(problem.topology.links)}
    for part in parts_of(problem):
        alike = part.dims.dims, part.problem.collective, part.problem.chunk_bytes[0]
        if alike not in made:
            made[alike] = make_part(part.problem, part.dims)
        found = made[alike]
        if found is None:
            return None
        ticks = Fraction(problem.costs.ticks_per_us, found.problem.costs.ticks_per_us)
        if ticks.denominator > 1:
            said = "found costs of the groups' links in other ticks than those of all links"
            raise CollectiveError(said, where=_WHERE)
        inside = found.problem.topology.links
        outside = [links[part.ranks[link.src], part.ranks[link.dst]] for link in inside]
        columns.append(
            (
                np.asarray(found.chunk) + part.chunks.start,
                np.array(outside, np.int64)[found.link],
                np.asarray(found.start) * int(ticks),
                np.asarray(found.reduce),
            )
        )
    chunk, link, start, reduce = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(start, kind="stable")
    chunk, link, start, reduce = (column[order] for column in (chunk, link, start, reduce))
    return Schedule(problem, narrow(chunk), narrow(link), narrow(start), reduce=reduce, producer=producer)

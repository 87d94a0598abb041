"""The symmetries of a topology that a sketch's offsets express: shifts of ranks inside blocks.

They are tried one by one: `link_permutation` and `resource_permutation` decide, as they do for a sketch that
a person writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from taccl.deadline import NEVER, Deadline
from taccl.sketch.symmetry import block_shifts, link_permutation, offset_permutation, resource_permutation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taccl.topology.topology import Topology

__all__ = ["Shift", "find_shifts"]

#: Beyond so many links a shift takes too long to check.
_MOST_LINKS = 200_000


@dataclass(frozen=True, slots=True, order=True)
class Shift:
    """Rank r to (r + offset) mod group inside its block of `group` ranks, as ``[[symmetry]]`` says it."""

    group: int
    offset: int

    def ranks(self, num_ranks: int) -> tuple[int, ...]:
        """Where every rank goes."""
        return offset_permutation(num_ranks, self.offset, self.group)

    def repeats_one_of(self, known: Iterable[Shift]) -> bool:
        """Whether it is another shift applied several times."""
        return any(each.group == self.group and self.offset % each.offset == 0 for each in known)


def find_shifts(topology: Topology, *, deadline: Deadline = NEVER) -> tuple[Shift, ...]:
    """Every shift by a divisor of its block that the topology has; whole nodes go to whole nodes.

    Raises
    ------
    OutOfTime
        Once the deadline has passed.
    """
    found: list[Shift] = []
    for offset, group in block_shifts(topology.num_ranks) if len(topology.links) <= _MOST_LINKS else ():
        deadline.check()
        shift = Shift(group, offset)
        if shift.repeats_one_of(found) or _holds(topology, shift.ranks(topology.num_ranks)):
            found.append(shift)
    return tuple(found)


def _holds(topology: Topology, ranks: tuple[int, ...]) -> bool:
    node, degree = topology.node_of_rank, [len(links) for links in topology.links_from]
    if len({(node[r], node[image]) for r, image in enumerate(ranks)}) != topology.num_nodes:
        return False
    if any(degree[r] != degree[image] for r, image in enumerate(ranks)):
        return False
    links = link_permutation(topology, ranks)
    return links is not None and resource_permutation(topology, links) is not None

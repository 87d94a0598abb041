"""Process groups of a step: its ranks as a mesh with named dimensions, and layouts along each dimension.

Ranks are numbered in row-major order, as in PyTorch's `DeviceMesh`. A *group* is one dimension, such as
``tp``, or several, such as ``dp+tp``: ranks that differ only in these dimensions run a collective together.
Each part of a layout names its dimensions: ``sliced(0) over dp, partial over tp``.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from taccl._internal.names import did_you_mean
from taccl.errors import WorkloadError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taccl.workload.operations import Tensor


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks in row-major order over dimensions (name, size).

    - `dims`: A step without groups has one dimension with an empty name.
    """

    dims: tuple[tuple[str, int], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all dimensions."""
        return tuple(name for name, _ in self.dims)

    def dims_of(self, group: str, *, where: str) -> tuple[str, ...]:
        """Names of a group's dimensions, in the mesh's order; all if the group has no name.

        Raises `WorkloadError` if a dimension does not exist or is named twice.
        """
        if not group:
            return self.names
        asked = group.split("+")
        for name in asked:
            if name not in self.names or not name:
                said = f"found group {group!r}{did_you_mean(name, self.names)}"
                known = "+".join(self.names)
                advice = f"expected some of {known}" if known else "give the step a mesh"
                raise WorkloadError(f"{said}; {advice}", where=where)
        if len(set(asked)) < len(asked):
            raise WorkloadError(f"found group {group!r}; name each dimension once", where=where)
        return tuple(name for name in self.names if name in asked)

    def size(self, names: Sequence[str]) -> int:
        """Number of ranks of a group over some dimensions."""
        return math.prod(size for name, size in self.dims if name in names)

    def index(self, rank: int, names: Sequence[str]) -> int:
        """Position of a rank in its group over some dimensions."""
        found, stride = 0, math.prod(size for _, size in self.dims)
        for name, size in self.dims:
            stride //= size
            if name in names:
                found = found * size + rank // stride % size
        return found

    def groups(self, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Ranks of each group over some dimensions, in the order of their positions."""
        outside = [name for name in self.names if name not in names]
        every = range(math.prod(size for _, size in self.dims))
        ranked = sorted(every, key=lambda rank: (self.index(rank, outside), self.index(rank, names)))
        return tuple(tuple(each) for each in _in_parts(ranked, self.size(names)))

    def slicing(self, tensor: Tensor, axis: int) -> tuple[str, ...]:
        """Mesh dimensions over which a tensor's axis is sliced; the first one makes the largest slices."""
        return tuple(name for name in self.names if tensor.along(name) == f"sliced({axis})")

    def slices(self, tensor: Tensor, axis: int) -> int:
        """Number of slices of a tensor on an axis; 1 if it is not sliced."""
        return self.size(self.slicing(tensor, axis))

    def partial(self, tensor: Tensor) -> tuple[str, ...]:
        """Mesh dimensions over which a tensor is partial: ranks along them hold summands of it."""
        return tuple(name for name in self.names if tensor.along(name) == "partial")

    def layout(self, along: Mapping[str, str]) -> str:
        """Text of a layout, from {dimension: layout along it}."""
        if self.names == ("",):
            return along[""]
        of_kind: dict[str, list[str]] = {}
        for name in self.names:
            of_kind.setdefault(along[name], []).append(name)
        of_kind.pop("replicated", None)
        parts = (f"{kind} over {'+'.join(names)}" for kind, names in of_kind.items())
        return ", ".join(parts) or "replicated"


def mesh_of(ranks: Mesh | int) -> Mesh:
    """Return a mesh unchanged; for a number of ranks, the mesh without groups."""
    return Mesh((("", ranks),)) if isinstance(ranks, int) else ranks


@lru_cache(maxsize=1024)
def parts_of_layout(layout: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """(layout, dimensions) of each part of a layout; empty dimensions mean all."""
    parts = (part.partition(" over ") for part in layout.split(", "))
    return tuple((kind, tuple(dims.split("+")) if over else ()) for kind, over, dims in parts)


def _in_parts(ranks: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(itertools.islice(ranks, at, at + size)) for at in range(0, len(ranks), size)]

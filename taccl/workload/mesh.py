"""Mesh of ranks with named dimensions: the process groups of a step, and layouts along each dimension.

Ranks are numbered in row-major order, as in PyTorch's `DeviceMesh`. A *group* is one dimension, such as
``tp``, or several, such as ``dp+tp``: ranks that differ only in these dimensions run a collective together.
A layout may differ between dimensions, as in ``sliced(0) over dp, partial over tp``.
"""

from __future__ import annotations

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
    """Mesh of ranks, numbered in row-major order over its dimensions.

    - `dims`: (name, size) of each dimension. A step without groups has one dimension with an empty name.
    """

    dims: tuple[tuple[str, int], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all dimensions."""
        return tuple(name for name, _ in self.dims)

    def dims_of(self, group: str, *, where: str) -> tuple[str, ...]:
        """Names of the dimensions of a group such as ``"dp+tp"``, in the mesh's order; all if it is empty.

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
        """Number of ranks in each group over the named dimensions."""
        return math.prod(size for name, size in self.dims if name in names)

    def index(self, rank: int, names: Sequence[str]) -> int:
        """Position of a rank in its group over the named dimensions."""
        found, stride = 0, math.prod(size for _, size in self.dims)
        for name, size in self.dims:
            stride //= size
            if name in names:
                found = found * size + rank // stride % size
        return found

    def groups(self, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Ranks of each group over the named dimensions, ordered by their positions in the group."""
        outside = [name for name in self.names if name not in names]
        every = range(math.prod(size for _, size in self.dims))
        ranked = sorted(every, key=lambda rank: (self.index(rank, outside), self.index(rank, names)))
        size = self.size(names)
        return tuple(tuple(ranked[at : at + size]) for at in range(0, len(ranked), size))

    def slicing(self, tensor: Tensor, axis: int) -> tuple[str, ...]:
        """Mesh dimensions over which a tensor's axis is sliced; each cuts the slices of the one before it."""
        return tuple(name for name in self.names if tensor.along(name) == f"sliced({axis})")

    def sliced_axes(self, tensor: Tensor) -> list[int]:
        """Axes along which a tensor is sliced."""
        return [axis for axis in range(len(tensor.shape)) if self.slicing(tensor, axis)]

    def slices(self, tensor: Tensor, axis: int) -> int:
        """Number of slices into which a tensor's axis is cut; 1 if it is not sliced."""
        return self.size(self.slicing(tensor, axis))

    def partial(self, tensor: Tensor) -> tuple[str, ...]:
        """Mesh dimensions over which a tensor is partial: its value is the sum of the parts along them."""
        return tuple(name for name in self.names if tensor.along(name) == "partial")

    def layout(self, along: Mapping[str, str]) -> str:
        """Layout as text, such as ``"sliced(0) over dp"``, from {dimension: layout along the dimension}."""
        if self.names == ("",):
            return along[""]
        of_kind: dict[str, list[str]] = {}
        for name in self.names:
            of_kind.setdefault(along[name], []).append(name)
        of_kind.pop("replicated", None)
        parts = (f"{kind} over {'+'.join(names)}" for kind, names in of_kind.items())
        return ", ".join(parts) or "replicated"


def mesh_of(ranks: Mesh | int) -> Mesh:
    """Return a mesh unchanged; for a number of ranks, return a mesh of one dimension with an empty name."""
    return Mesh((("", ranks),)) if isinstance(ranks, int) else ranks


@lru_cache(maxsize=1024)
def parts_of_layout(layout: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Split a layout such as ``"sliced(0) over dp+tp, partial over pp"`` into (layout, dimensions) pairs.

    A layout that names no dimension applies to all of them; its dimensions are empty.
    """
    parts = (part.partition(" over ") for part in layout.split(", "))
    return tuple((kind, tuple(dims.split("+")) if over else ()) for kind, over, dims in parts)

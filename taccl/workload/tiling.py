"""Tiles of operations that overlap: the axis along which each result is cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from taccl.errors import WorkloadError
from taccl.workload.operations import operand_axes, refuse_first

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taccl._internal.arguments import Count, Natural
    from taccl.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class Overlap:
    """Operations that run tile by tile: each tile passes through all of them, pipelined with other tiles.

    Tiles are cut along `axis` of the first operation's result, and along the matching axis of the others.
    """

    operations: tuple[str, ...]
    tiles: Count
    axis: Natural = 0


class Tiling(NamedTuple):
    """Cut of an operation's result into `tiles` along `axis`, for an overlap.

    Each tile consists of `ways` contiguous index ranges along the axis: one for each slice if a tensor of the
    overlap is sliced along that axis, else one.
    """

    tiles: int
    axis: int
    ways: int
    overlap: Overlap | None


def tile_axes(workload: Workload, overlap: Overlap) -> tuple[dict[str, int], int]:
    """{operation of an overlap: axis of its tiles}, and the number of index ranges per tile (`ways`).

    Raises `WorkloadError` if an operation does not run tile by tile with the others.
    """
    axes: dict[str, int] = {}
    dims: set[str] = set()  # dimensions that slice one of its tensors on the tile axis
    inside = frozenset(overlap.operations)
    for operation in (each for each in workload.operations if each.name in inside):
        tensors, out = workload.operands(operation), workload.tensors[operation.name]
        to_axes = [operand_axes(operation, tensors, out, at) for at in range(len(tensors))]
        both = zip(operation.inputs, to_axes, strict=True)
        # An operation may read one tensor twice, along different axes: matmul(x, x).
        read = [(name, to_axis[axes[name]]) for name, to_axis in both if name in axes]
        found = {each for _, each in read} if axes else {overlap.axis}
        if not found and operation.fused in axes:  # only its kernel connects it with the overlap
            found = {axes[operation.fused]}
        axis = min((each for each in found if each is not None), default=0)
        whole = next((name for name, each in read if each is None), None)
        shape = out.shape
        refuse_first(
            operation.name,
            (not found, "reads no result of the overlap; leave it out of the overlap"),
            (
                whole,
                f"reads all of {whole} along axis {axes.get(whole or '')} for each of its tiles; end the "
                "overlap before it",
            ),
            (len(found) > 1, f"reads tiles along several axes, {found}; leave it out of the overlap"),
            (overlap.tiles < 1 or not 0 <= axis < len(shape), f"found {overlap.tiles} tiles along axis "
             f"{axis} of shape {shape}; expected 1 or more along an axis that it has"),
        )  # fmt: skip
        axes[operation.name] = axis
        dims.update(workload.grid.slicing(out, axis))
        for each, to_axis in zip(tensors, to_axes, strict=True):
            dims.update(*(workload.grid.slicing(each, i) for i, to in enumerate(to_axis) if to == axis))
    return axes, workload.grid.size([*dims]) if dims else 1


def tilings_of(workload: Workload, overlap: Overlap) -> dict[str, Tiling]:
    """{operation: tiling} of an overlap.

    Raises `WorkloadError` if a tile needs more of an operand than the tile of its own number, or the axis
    does not divide into tiles.
    """
    axes, ways = tile_axes(workload, overlap)
    num_pieces = ways * overlap.tiles
    for name, axis in axes.items():
        operation = workload.operation[name]
        tensors, out = workload.operands(operation), workload.tensors[name]
        lengths = {out.shape[axis]} | {
            tensor.shape[i]
            for at, tensor in enumerate(tensors)
            for i, to in enumerate(operand_axes(operation, tensors, out, at))
            if to == axis
        }
        length = next((n for n in sorted(lengths) if n % num_pieces), 0)
        if length:
            few = "there are more tiles than chunks; " if length < num_pieces else ""
            pieces = (f"{ways} slices of " if ways > 1 else "") + f"{overlap.tiles} tiles"
            said = f"axis {axis} of length {length} does not divide into {pieces}"
            raise WorkloadError(f"{said}; {few}choose a number of tiles that divides it", where=name)
    return {name: Tiling(overlap.tiles, axis, ways, overlap) for name, axis in axes.items()}


def reached(
    workload: Workload, place: Mapping[str, int]
) -> tuple[dict[str, int], dict[int, int], dict[int, int]]:
    """({operation: its unit}, units on which each unit depends, units that depend on it) as bit masks.

    An overlap is one unit; any other operation is a unit by itself.
    """
    place = workload._units
    order = list(dict.fromkeys(place[name] for name, _ in workload.tiles))
    sources = {unit: set[int]() for unit in order}
    for name, unit in place.items():
        sources[unit] |= {place[each] for each in workload.waits[name] if each in place} - {unit}
    before, behind = dict.fromkeys(order, 0), dict.fromkeys(order, 0)
    for unit in order:
        for source in sources[unit]:
            before[unit] |= before[source] | 1 << source
    for unit in reversed(order):
        for source in sources[unit]:
            behind[source] |= behind[unit] | 1 << unit
    return dict(place), before, behind

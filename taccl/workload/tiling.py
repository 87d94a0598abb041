"""Tiles of operations that overlap: the axis along which each result is cut, and the order of all tiles."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from taccl.errors import WorkloadError
from taccl.workload.operations import free_axes, refuse_first

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from taccl._internal.arguments import Count, Natural
    from taccl.workload.operations import Operation
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

    Each tile consists of `ranges` contiguous index ranges along the axis: one for each slice if a tensor of
    the overlap is sliced along that axis, else one.
    """

    tiles: int
    axis: int
    ranges: int
    overlap: Overlap | None


def tile_axes(workload: Workload, overlap: Overlap) -> tuple[dict[str, int], int]:
    """({operation of an overlap: axis of its tiles}, number of index ranges along this axis per tile).

    Raises `WorkloadError` if an operation cannot run tile by tile with the others.
    """
    axes: dict[str, int] = {}
    dims: set[str] = set()
    inside = frozenset(overlap.operations)
    for operation in (each for each in workload.operations if each.name in inside):
        _join(workload, operation, overlap.tiles, overlap.axis, axes, dims)
    return axes, _num_ranges(workload, dims)


def _join(
    workload: Workload, operation: Operation, tiles: int, axis: int, axes: dict[str, int], dims: set[str]
) -> None:
    """Add an operation to `axes`, and the dimensions that slice its tensors on the tile axis to `dims`.

    Operations are added in program order. Raises `WorkloadError` if `operation` cannot run tile by tile.

    - `axis`: Axis along which the result of the overlap's first operation is cut.
    - `axes`: {operation added before: axis of its tiles}.
    """
    both = zip(operation.inputs, workload.axes_read[operation.name], strict=True)
    # An operation may read one tensor twice, along different axes: matmul(x, x).
    read = [(name, to_axis[axes[name]]) for name, to_axis in both if name in axes]
    found = {each for _, each in read} if axes else {axis}
    if not found and operation.fused in axes:  # reads no tensor of the overlap, but is in one of its kernels
        found = {axes[operation.fused]}
    own = min((each for each in found if each is not None), default=0)
    whole = next((name for name, each in read if each is None), None)
    out = workload.tensors[operation.name]
    at_once = free_axes(operation, workload.operands(operation), out) if operation.kind == "aten" else []
    shape = out.shape
    refuse_first(
        operation.name,
        (not found, "reads no result of the overlap; leave it out of the overlap"),
        (
            whole,
            f"reads all of {whole} along axis {axes.get(whole or '')} for each of its tiles; end the "
            "overlap before it",
        ),
        (own in at_once, f"computes axis {own} of its result at once, by {operation.call}; overlap along "
         "another axis"),
        (len(found) > 1, f"reads tiles along several axes, {found}; leave it out of the overlap"),
        (tiles < 1 or not 0 <= own < len(shape), f"found {tiles} tiles along axis "
         f"{own} of shape {shape}; expected 1 or more along an axis that it has"),
    )  # fmt: skip
    axes[operation.name] = own
    dims |= _cut(workload, operation.name, own)[0]


def _cut(workload: Workload, name: str, axis: int) -> tuple[frozenset[str], frozenset[int]]:
    """(mesh dimensions that slice the tile axis of an operation's tensors, lengths of this axis)."""
    if (name, axis) not in workload.cuts:
        out, grid = workload.tensors[name], workload.grid
        every = [(out, axis)]
        for each, to_axis in zip(
            workload.operands(workload.operation[name]), workload.axes_read[name], strict=True
        ):
            every += [(each, i) for i, to in enumerate(to_axis) if to == axis]
        dims = frozenset(dim for each, i in every for dim in grid.slicing(each, i))
        workload.cuts[name, axis] = dims, frozenset(each.shape[i] for each, i in every)
    return workload.cuts[name, axis]


def _num_ranges(workload: Workload, dims: set[str]) -> int:
    return workload.grid.size([*dims]) if dims else 1


def tilings_of(workload: Workload, overlap: Overlap) -> dict[str, Tiling]:
    """{operation: tiling} of the operations in an overlap, checked to run tile by tile.

    Raises `WorkloadError` if the axis does not divide into tiles. Also if a tile needs more of an operand
    than the operand's tile of the same number.
    """
    axes, ranges = tile_axes(workload, overlap)
    for name, axis in axes.items():
        _check_divides(workload, name, axis, overlap.tiles, ranges)
    return {name: Tiling(overlap.tiles, axis, ranges, overlap) for name, axis in axes.items()}


def _check_divides(workload: Workload, name: str, axis: int, tiles: int, ranges: int) -> None:
    """Raise `WorkloadError` unless the tile axis of an operation's result and operands divides into tiles."""
    num_pieces = ranges * tiles
    length = next((n for n in sorted(_cut(workload, name, axis)[1]) if n % num_pieces), 0)
    if length:
        few = "there are more tiles than chunks; " if length < num_pieces else ""
        pieces = (f"{ranges} slices of " if ranges > 1 else "") + f"{tiles} tiles"
        said = f"axis {axis} of length {length} does not divide into {pieces}"
        raise WorkloadError(f"{said}; {few}choose a number of tiles that divides it", where=name)


class GrowingOverlap:
    """An overlap to which kernels are added one by one; each is checked against the earlier kernels only.

    - `workload`: The step; its own overlaps may contain none of the added operations.
    - `tiles`, `axis`: Number of tiles of the overlap, and axis along which its first result is cut.
    """

    def __init__(self, workload: Workload, tiles: int, axis: int) -> None:
        self.workload, self.tiles, self.axis = workload, tiles, axis
        self._axes: dict[str, int] = {}
        self._dims: set[str] = set()
        self._first = 0
        self._units, self._before, self._behind = 0, 0, 0

    def add(self, *names: str) -> None:
        """Add the kernels that contain the named operations.

        Raises `WorkloadError`, and adds nothing, if the overlap is not possible with them.
        """
        workload, place = self.workload, self.workload.place
        heads = {workload.operation[name].fused or name for name in names}
        new = {name for head in heads for name in workload.kernels[head]} - self._axes.keys()
        axes, dims = dict(self._axes), set(self._dims)
        # Append new operations if none precedes the overlap's first one, and none of the overlap reads them.
        # Otherwise join all operations again, in program order.
        is_first = any(place[name] < self._first for name in new)
        if is_first or any(not axes.keys().isdisjoint(workload.readers[name]) for name in new):
            new, axes, dims = new | axes.keys(), {}, set[str]()
        before = _num_ranges(workload, dims)
        for name in sorted(new, key=place.__getitem__):
            if workload.tiling(name).overlap is not None:
                raise WorkloadError("is in two overlaps; put it into one", where=name)
            _join(workload, workload.operation[name], self.tiles, self.axis, axes, dims)
        ranges = _num_ranges(workload, dims)
        for name in new if ranges == before else axes:
            _check_divides(workload, name, axes[name], self.tiles, ranges)
        units, needed, dependent = workload.depending(new)
        units, needed, dependent = self._units | units, self._before | needed, self._behind | dependent
        if needed & dependent & ~units:
            raise circular(names[0])
        self._axes, self._dims, self._first = axes, dims, min(place[name] for name in axes)
        self._units, self._before, self._behind = units, needed, dependent


def circular(name: str) -> WorkloadError:
    """Error for an overlap and an operation outside it that depend on each other."""
    said = "overlaps with operations that depend on its results outside the overlap"
    return WorkloadError(f"{said}; include those in the overlap, or end it earlier", where=name)


def reached(
    workload: Workload, place: Mapping[str, int]
) -> tuple[dict[str, int], dict[int, int], dict[int, int]]:
    """Direct and indirect dependencies between units; a unit is an overlap, or an operation outside overlaps.

    Returns ({operation: its unit}, units on which each unit depends, units that depend on each unit). Sets of
    units are bit masks.

    - `place`: {operation: its unit}.
    """
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


def ordered_tiles(
    workload: Workload, unit: Mapping[str, int]
) -> dict[tuple[str, int], tuple[tuple[str, int], ...]]:
    """{(operation, number of a tile): tiles that it reads}, with producers before consumers.

    Overlaps are ordered tile by tile. Raises `WorkloadError` if an overlap depends on an operation outside
    that depends on the overlap itself, or if kernels wait for each other.

    - `unit`: {operation: its unit}; an overlap is one unit.
    """
    import networkx as nx

    members = defaultdict[int, list[str]](list)
    for name, number in unit.items():
        members[number].append(name)
    graph = nx.DiGraph()
    graph.add_nodes_from(members)
    for each in workload.operations:
        sources = {unit[name] for name in workload.waits[each.name] if name in unit} - {unit[each.name]}
        graph.add_edges_from((source, unit[each.name]) for source in sources)
    try:
        order = list(nx.lexicographical_topological_sort(graph))
    except nx.NetworkXUnfeasible:
        units = [unit for unit, _ in nx.find_cycle(graph)]
        for overlap in workload.overlaps:
            if unit[overlap.operations[0]] in units:
                raise circular(overlap.operations[0]) from None
        heads = {workload.operation[members[each][0]].fused or members[each][0] for each in units}
        fused = sorted(heads & {each.fused for each in workload.operations})
        said = f"the kernels of {' and '.join(fused)} wait for each other; fuse fewer operations"
        raise WorkloadError(said, where=fused[0]) from None
    return {
        (name, tile): tuple(_reads(workload, name, tile))
        for number in order
        for tile in range(workload.tiling(members[number][0]).tiles)
        for name in _in_order(workload, members[number])
    }


def _in_order(workload: Workload, names: Sequence[str]) -> list[str]:
    """Sort operations of one overlap by dependency, and by program order where that leaves a choice."""
    left, order = list(names), list[str]()
    while left:
        ready = next(name for name in left if not set(left).intersection(workload.waits[name]))
        left.remove(ready)
        order.append(ready)
    return order


def _reads(workload: Workload, operation: str, tile: int) -> Iterator[tuple[str, int]]:
    """Yield the tiles for which a tile waits.

    If a result that it reads is in its own overlap, it waits for the tile of the same number. Otherwise it
    waits for all tiles of the result.
    """
    overlap = workload.tiling(operation).overlap
    for name in workload.waits[operation]:
        cut = workload.tiling(name)
        within = overlap is not None and cut.overlap is overlap
        yield from ((name, each) for each in ([tile] if within else range(cut.tiles)))

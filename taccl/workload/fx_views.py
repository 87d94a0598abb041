"""Views of distributed tensors in PyTorch graphs: point-wise operations on them, and their global shapes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from taccl.workload.fx_values import Named, View, described
from taccl.workload.operations import Operation, Tensor, labels_of

if TYPE_CHECKING:
    from taccl.workload.fx_graph import Graph


def unviewed(graph: Graph, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[int, ...] | None]:
    """(operands, shape): tensors without their views, and the local shape for a view of the result.

    A point-wise operation commutes with a view if all views reshape alike. Other operands may only have
    the last axis, and only if views leave it unchanged. Otherwise operands stay, and the shape is None.
    """
    views = [value for value in values if isinstance(value, View)]
    shapes = {(view.shape, graph.local_shape(Named(view.name))) for view in views}
    rest = [graph.local_shape(Named(graph.name_of(value))) for value in values if value not in views]
    (shape, whole), *others = shapes
    keeps_rows = bool(shape and whole) and shape[-1] == whole[-1]
    if others or any(len(each) > 1 or (each and not keeps_rows) for each in rest):
        return values, None
    return tuple(Named(each.name) if isinstance(each, View) else each for each in values), shape


def whole_shape(graph: Graph, view: View) -> tuple[int, ...]:
    """Shape of the global array whose local parts have the shape of a view."""
    tensor, local = graph.tensors[view.name], view.shape
    sliced = [axis for axis in range(len(tensor.shape)) if graph.mesh.slicing(tensor, axis)]
    parts = {axis: graph.mesh.slices(tensor, axis) for axis in sliced}
    found: list[tuple[tuple[int, int], tuple[int, ...]]] = []
    for to in itertools.product(range(len(local)), repeat=len(sliced)):
        shape = list(local)
        for axis, place in zip(sliced, to, strict=True):
            shape[place] *= parts[axis]
        operation = Operation(view.name, "reshape", (view.name,), shape=tuple(shape))
        (labels,) = labels_of(operation, [tensor], Tensor(view.name, tuple(shape)))
        if all(labels[axis] == place for axis, place in zip(sliced, to, strict=True)):
            moved = sum(abs(axis - place) for axis, place in zip(sliced, to, strict=True))
            before = graph.local_shape(Named(view.name))
            other = sum(before[a] != local[b] for a, b in zip(sliced, to, strict=True))
            found.append(((other if view.is_squeezed else 0, moved), tuple(shape)))
    if not found:
        said = f"{graph.node.target} reads {described(view)}, but {view.name} is {tensor}"
        raise graph.refused(f"{said}: no global tensor has these local parts; slice an outer axis")
    return min(found)[1]

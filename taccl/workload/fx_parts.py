"""Numbers that each rank computes from its own part of the data, such as the mean loss of its own tokens.

A sum over a sliced axis is a partial tensor, whose parts are the ranks' own sums. A linear operation on all
parts is one on their sum. Any other, such as the quotient of two sums, is an operation on each part. For it
the parts become slices of a tensor with one more axis, of one index per rank, and the result is an `Own`.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from taccl.workload.fx_values import Named, Own
from taccl.workload.operations import POINTWISE, Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.workload.fx_graph import Graph


def of_parts(graph: Graph, kind: str, values: Sequence[Any], **options: Any) -> Any:
    """Result of a point-wise operation on the parts of partial numbers; None if they cannot be separated.

    It is an `Own`, or a tensor that is sliced as another operand is.
    """
    if kind not in POINTWISE or kind == "dropout":
        return None
    mesh, names, shapes = graph.mesh, list[str](), list[tuple[int, ...]]()
    dims, places = set[tuple[str, ...]](), set[tuple[int, int]]()
    for value in values:
        own = _own(graph, value)
        names.append(graph.name_of(value) if own is None else own)
        shapes.append(graph.local_shape(value))
        tensor = graph.tensors[names[-1]]
        axes = [axis for axis in range(len(tensor.shape)) if mesh.slicing(tensor, axis)]
        if own is not None:
            dims.add(mesh.slicing(tensor, 0))
        elif mesh.partial(tensor) or (not axes and math.prod(tensor.shape) > 1):
            return None
        else:
            places |= {(axis - len(tensor.shape), tensor.shape[axis]) for axis in axes}
            dims |= {mesh.slicing(tensor, axis) for axis in axes}
    if len(dims) != 1 or len(places) > 1:
        return None
    if not places:
        made = graph.make(kind, *map(Named, names), **options)
        return Own(graph.name_of(made), max(shapes, key=len))
    ((place, length),) = places
    for at, value in enumerate(values):
        if _own(graph, value) is not None:
            (ranks,) = graph.tensors[names[at]].shape
            wide = graph.make("repeat", Named(names[at]), axis=0, stop=length // ranks)
            shape = (length, *(-place - 1) * (1,))
            names[at] = graph.name_of(wide if place == -1 else graph.make("reshape", wide, shape=shape))
    return graph.make(kind, *map(Named, names), **options)


def total_of(graph: Graph, value: Own) -> str:
    """Name of the partial tensor whose part at each rank is the rank's own number."""
    made = graph.make("sum", Named(value.name), axis=0)
    if value.shape:
        made = graph.make("reshape", made, shape=value.shape)
    name = graph.name_of(made)
    graph.parts[name] = value.name
    return name


def _own(graph: Graph, value: Any) -> str | None:
    """Vector of a rank's own numbers; None if a value is not such a number."""
    if isinstance(value, Own):
        return value.name
    tensor = graph.tensor(value)
    if not graph.mesh.partial(tensor) or math.prod(tensor.shape) != 1:
        return None
    found = _separated(graph, tensor.name)
    if found is None or len(graph.tensors[found].shape) == 1:
        return found
    flat = graph.make("reshape", Named(found), shape=graph.tensors[found].shape[:1])
    return graph.name_of(flat)


def _separated(graph: Graph, name: str) -> str | None:
    """Tensor whose first axis has the parts of a partial tensor, one per rank; None if there is none."""
    if name in graph.parts:
        return graph.parts[name]
    operation = next((each for each in graph.operations if each.name == name), None)
    made = None if operation is None else _remade(graph, operation)
    if made is None:
        return None
    graph.parts[name] = graph.name_of(made)
    return graph.parts[name]


def _remade(graph: Graph, operation: Operation) -> Any:
    """Partial result of an operation, made again with its parts separate; None if that is not possible."""
    mesh, tensors = graph.mesh, graph.tensors
    out = tensors[operation.name]
    dims, axis = mesh.partial(out), operation.axis
    if operation.kind == "sum" and axis is not None:
        source = tensors[operation.inputs[0]]
        if mesh.slicing(source, axis) == dims:
            ranks = mesh.size(dims)
            before, after = source.shape[:axis], source.shape[axis + 1 :]
            cut = (*before, ranks, source.shape[axis] // ranks, *after)
            made = graph.make("reshape", Named(source.name), shape=cut)
            if axis:
                order = (axis, *(i for i in range(len(cut)) if i != axis))
                made = graph.make("transpose", made, axes=order)
            return graph.make("sum", made, axis=axis + 1)
    if operation.kind not in (*POINTWISE, "sum", "reshape") or operation.kind == "dropout":
        return None
    names: list[str] = []
    for each in operation.inputs:
        is_partial = bool(mesh.partial(tensors[each]))
        known = _separated(graph, each) if is_partial and mesh.partial(tensors[each]) == dims else None
        is_aligned = operation.kind not in POINTWISE or len(tensors[each].shape) == len(out.shape)
        if is_partial and (known is None or not is_aligned):
            return None
        names.append(each if known is None else known)
    apart = ("name", "kind", "inputs", "seed")
    options = {
        each.name: getattr(operation, each.name) for each in fields(Operation) if each.name not in apart
    }
    if operation.kind == "sum":
        options["axis"] = 1 + (axis or 0)
    elif operation.kind == "reshape":
        options["shape"] = (mesh.size(dims), *operation.shape)
    return graph.make(operation.kind, *map(Named, names), **options)

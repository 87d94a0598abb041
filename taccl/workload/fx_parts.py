"""Tensors that each rank computes from its own data, such as the mean loss of its own tokens.

A sum over a sliced axis is a partial tensor, whose parts are the ranks' own sums. A linear operation can be
applied to the partial tensor itself. Any other operation, such as the quotient of two sums, is applied to
each part separately. Its operands are converted to tensors with an additional first axis, whose index r is
rank r's part, and its result is an `Own`.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from taccl.workload.fx_values import Named, Own
from taccl.workload.fx_views import by_rank
from taccl.workload.kind_rules import permutation
from taccl.workload.operations import POINTWISE, Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.workload.fx_graph import Graph

#: Kinds of operations that move the elements of a tensor along one axis, or exchange axes.
_MOVES = ("transpose", "narrow", "pad", "repeat", "concat")


def of_parts(graph: Graph, kind: str, values: Sequence[Any], **options: Any) -> Any:
    """Result of a point-wise operation that each rank applies to its own values, before they are summed.

    If another operand is sliced, the result is a tensor sliced in the same way. Otherwise the result is an
    `Own`, with one part per rank. None if the operation is not point-wise, the parts cannot be separated, or
    the operands do not fit together.
    """
    if kind not in POINTWISE or kind == "dropout":
        return None
    mesh = graph.mesh
    owned = [own_of(graph, value) for value in values]
    if all(own is None for own in owned):
        return None
    rest = [graph.tensor(value) for value, own in zip(values, owned, strict=True) if own is None]
    axes = [(each, axis) for each in rest for axis in mesh.sliced_axes(each)]
    dims = {mesh.slicing(each, axis) for each, axis in axes}
    dims |= {mesh.slicing(graph.tensors[own.name], 0) for own in owned if own is not None}
    places = {(axis - len(each.shape), each.shape[axis]) for each, axis in axes}
    if len(dims) != 1 or len(places) > 1 or any(mesh.partial(each) for each in rest):
        return None
    if places and any(own is not None and math.prod(own.shape) > 1 for own in owned):
        return None
    count = max(len(graph.local_shape(value)) for value in values)
    names = list[str]()
    for value, own in zip(values, owned, strict=True):
        if own is None:
            names.append(graph.name_of(value))
        elif places:
            names.append(_widened(graph, own, *next(iter(places))))
        else:
            names.append(parts_of(graph, own, (*(count - len(own.shape)) * (1,), *own.shape)))
    made = graph.make(kind, *map(Named, names), **options)
    return made if places else Own(made.name, graph.tensor(made).shape[1:])


def total_of(graph: Graph, value: Own) -> str:
    """Name of a partial tensor, added to the step, whose part at each rank is the rank's own `value`."""
    apart = parts_of(graph, value, value.shape)
    name = graph.name_of(graph.make("sum", Named(apart), axis=0))
    graph.parts[name] = apart
    return name


def spread(graph: Graph, value: Any) -> Any:
    """Convert an `Own` to a tensor sliced along its first axis; return scalars and other values unchanged."""
    return Named(rows_of(graph, value)) if isinstance(value, Own) and value.shape else value


def rows_of(graph: Graph, value: Own) -> str:
    """Name of a tensor, sliced along its first axis, whose part at each rank is the rank's own `value`."""
    apart = parts_of(graph, value, value.shape)
    ranks, first, *rest = graph.tensors[apart].shape
    return graph.name_of(graph.make("reshape", Named(apart), shape=(ranks * first, *rest)))


def parts_of(graph: Graph, value: Own, shape: tuple[int, ...]) -> str:
    """Name of a tensor whose index r along the first axis is rank r's part of `value`, in the given shape."""
    ranks, *before = graph.tensors[value.name].shape
    if (*before,) == shape:
        return value.name
    return graph.name_of(graph.make("reshape", Named(value.name), shape=(ranks, *shape)))


def _widened(graph: Graph, number: Own, place: int, length: int) -> str:
    """Name of a tensor of `length` elements in which each rank's slice is filled with the rank's `number`.

    - `place`: Index of the sliced axis, counted from the end (-1 the last); the axes after it have length 1.
    """
    flat = parts_of(graph, number, ())
    made = graph.make("repeat", Named(flat), axis=0, stop=length // graph.tensors[flat].shape[0])
    if place != -1:
        made = graph.make("reshape", made, shape=(length, *(-place - 1) * (1,)))
    return graph.name_of(made)


def own_of(graph: Graph, value: Any) -> Own | None:
    """`Own` with the ranks' parts of a partial tensor.

    An `Own` is returned unchanged. None if the value is not partial, or its parts cannot be separated.
    """
    if isinstance(value, Own):
        return value
    tensor = graph.tensor(value)
    found = _separated(graph, tensor.name) if graph.mesh.partial(tensor) else None
    return None if found is None else Own(found, tensor.shape)


def _separated(graph: Graph, name: str) -> str | None:
    """Name of a tensor whose index r along the first axis is rank r's part of the partial tensor `name`.

    None if the parts cannot be separated.
    """
    if name in graph.parts:
        return graph.parts[name]
    operation = next((each for each in graph.operations if each.name == name), None)
    made = None if operation is None else _remade(graph, operation)
    if made is None:
        return None
    graph.parts[name] = graph.name_of(made)
    return graph.parts[name]


def _remade(graph: Graph, operation: Operation) -> Any:
    """Recompute a partial result as a tensor whose index r along the first axis is rank r's part.

    None if this is not possible.
    """
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
            if mesh.slicing(graph.tensor(made), axis) != dims:
                return None  # for one rank, the new axis is not distinguishable from others of length 1
            if axis:
                order = (axis, *(i for i in range(len(cut)) if i != axis))
                made = graph.make("transpose", made, axes=order)
            return graph.make("sum", made, axis=axis + 1)
    if operation.kind == "matmul":
        return _product_remade(graph, operation, dims)
    if operation.kind not in (*POINTWISE, *_MOVES, "sum", "reshape") or operation.kind == "dropout":
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
    if axis is not None:
        options["axis"] = 1 + axis
    elif operation.kind == "transpose":
        options["axes"] = (0, *(each + 1 for each in permutation(operation, len(out.shape))))
    elif operation.kind == "reshape":
        options["shape"] = (mesh.size(dims), *operation.shape)
    return graph.make(operation.kind, *map(Named, names), **options)


def _product_remade(graph: Graph, operation: Operation, dims: Sequence[str]) -> Any:
    """Recompute a partial matrix product as a tensor whose index r along the first axis is rank r's part.

    None unless the product sums over a sliced axis, or its first matrix is partial.
    """
    mesh = graph.mesh
    a, b = (graph.tensors[name] for name in operation.inputs)
    both, count = len(a.shape) - 1, len(b.shape)
    if mesh.partial(a) == dims and not mesh.partial(b):
        known = _separated(graph, a.name) if count == 2 else None
        return None if known is None else graph.make("matmul", Named(known), Named(b.name))
    is_over = mesh.slicing(a, both) == dims == mesh.slicing(b, count - 2)
    if not is_over or mesh.partial(a) or (count == 2 and len(a.shape) > 3):
        return None
    (_, one), (ranks, two) = by_rank(graph, a.name, both), by_rank(graph, b.name, count - 2)
    if count == 2 and len(a.shape) == 3:  # a batch of matrices times one matrix: join the rows of the batch
        shape = graph.tensor(one).shape
        one = graph.make("reshape", one, shape=(ranks, shape[1] * shape[2], shape[3]))
    made = graph.make("matmul", one, two)
    out = graph.tensors[operation.name].shape
    return made if graph.tensor(made).shape[1:] == out else graph.make("reshape", made, shape=(ranks, *out))

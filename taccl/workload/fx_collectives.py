"""Convert functional collectives in PyTorch graphs, and the chunk and concat operations around them.

PyTorch's collectives work along axis 0. For another axis, a graph cuts local tensors into a piece for each
rank and concatenates the pieces along axis 0, or the reverse.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

from taccl.workload.fx_graph import Graph
from taccl.workload.fx_parts import own_of, parts_of, spread
from taccl.workload.fx_values import Arguments, Named, Own, Piece, Reader, Repeated, Stacked, View, described
from taccl.workload.fx_views import by_rank


def _in_pieces(graph: Graph, given: Arguments) -> Any:
    """Convert a split of a local tensor into several tensors along an axis.

    Equal pieces stay symbolic (`Piece`), as collectives along axes other than 0 use them. Unequal pieces are
    slices, added to the step if an operation reads them.
    """
    source, axis = given["self"], given["dim"]
    if not isinstance(source, (Named, Stacked)):
        source = Named(graph.name_of(spread(graph, source)))
    shape = graph.local_shape(source)
    axis %= max(len(shape), 1)
    parts: Any = graph.node.meta.get("val", graph.node.meta.get("tensor_meta"))
    count, lengths = len(parts), [part.shape[axis] for part in parts]
    if any(length * count != shape[axis] for length in lengths):
        whole = Named(graph.name_of(source))
        ends = list(itertools.accumulate(lengths, initial=0))
        return graph.lazily(
            *(functools.partial(graph.part, whole, axis, *ends[i : i + 2]) for i in range(count))
        )
    return _all_pieces(Piece(source, axis, 0, count))


def _all_pieces(first: Piece) -> list[Piece]:
    return [replace(first, position=position) for position in range(first.count)]


def _joined(graph: Graph, given: Arguments) -> Any:
    """Convert a concatenation of all pieces of one split tensor, along any axis, or of several tensors."""
    pieces = given["tensors"]
    first = pieces[0] if pieces else None
    if not isinstance(first, Piece) or pieces != _all_pieces(first):
        return _concatenated(graph, given)
    source, rank = first.whole, len(graph.tensors[first.whole.name].shape)
    to = given["dim"] % rank
    if to == first.axis:
        return source
    key = (first.axis, to, first.count)
    if isinstance(source, Stacked) and key == (0, source.axis, source.count):
        return Named(source.name)
    if isinstance(source, Named) and to == 0:
        return Stacked(source.name, first.axis, first.count)
    return _concatenated(graph, given)


def _concatenated(graph: Graph, given: Arguments) -> Any:
    """Convert a concatenation of several tensors along an axis."""
    values = given["tensors"]
    axis = given["dim"] % len(graph.local_shape(values[0]))
    sliced = next((each for each in values if not isinstance(each, Repeated)), None)
    if sliced is not None:
        values = [_beside(graph, each, sliced) if isinstance(each, Repeated) else each for each in values]
    return graph.joined(values, axis)


def _beside(graph: Graph, value: Repeated, other: Any) -> Any:
    """Expand a repeated value into a tensor in memory, sliced over ranks in the same way as `other`."""
    tensor, local = graph.tensor(other), graph.local_shape(value.source)
    local = (*(len(value.shape) - len(local)) * (1,), *local)
    axes = graph.mesh.sliced_axes(tensor)
    if not axes or len(tensor.shape) != len(local) or any(local[axis] != 1 for axis in axes):
        return value
    row = Named(tensor.name)
    for axis, length in enumerate(tensor.shape):
        if axis not in axes and length > 1:
            row = graph.make("narrow", row, axis=axis, start=0, stop=1)
    source = Named(graph.name_of(View(graph.name_of(value.source), local, is_squeezed=True)))
    made = graph.make("expand", source, row)
    for axis, length in enumerate(value.shape):
        if axis not in axes and local[axis] != length:
            made = graph.make("repeat", made, axis=axis, stop=length)
    return made


def _stacked(graph: Graph, given: Arguments) -> Any:
    """Convert a concatenation of tensors along a new axis (``torch.stack``)."""
    shape = graph.local_shape(given["tensors"][0])
    axis = given["dim"] % (len(shape) + 1)
    wide = (*shape[:axis], 1, *shape[axis:])
    values = [View(graph.name_of(each), wide, is_squeezed=True) for each in given["tensors"]]
    return graph.joined(values, axis)


def _all_reduce(graph: Graph, given: Arguments) -> Any:
    group, size = graph.group(given)
    return _reduced(graph, given, graph.make("allreduce", given["input"], group=group), size)


def _reduce_scatter(graph: Graph, given: Arguments) -> Any:
    group, size = graph.group(given)
    source, axis = _along(graph, given, size)
    return _reduced(graph, given, graph.make("reduce_scatter", source, axis=axis, group=group), size)


def _reduced(graph: Graph, given: Arguments, total: Named, size: int) -> Named:
    """Result of a reduction whose sum is `total`; for an average, divided by `size`, the number of ranks."""
    operation = str(given["reduce_op"]).lower()
    if operation not in ("sum", "avg", "mean"):
        raise graph.refused(f"reduces by {operation!r}; only sum and avg are supported")
    return total if operation == "sum" else graph.make("scale", total, value=1 / size)


def _source(graph: Graph, value: Any) -> Any:
    """Operand of an allgather or alltoall; for a partial tensor, the ranks' own parts if these are known."""
    if isinstance(value, (Stacked, Own)) or not graph.mesh.partial(graph.tensor(value)):
        return value
    return own_of(graph, Named(graph.name_of(value))) or value


def _all_gather(graph: Graph, given: Arguments) -> Any:
    group, size = graph.group(given)
    given = given | {"input": spread(graph, _source(graph, given["input"]))}
    return _gathered(graph, graph.make("allgather", given["input"], group=group), given["input"], group, size)


def _all_to_all(graph: Graph, given: Arguments) -> Any:
    group, size = graph.group(given)
    for which in ("output_split_sizes", "input_split_sizes"):
        if len(set(given[which])) > 1:
            raise graph.refused(f"has {which} {given[which]}; only equal slices are supported")
    value = _source(graph, given["input"])
    if isinstance(value, (Named, View)):
        tensor = graph.tensor(value)
        if tuple(graph.mesh.slicing(tensor, 0)) == graph.mesh.dims_of(group, where=graph.node.name):
            _, apart = by_rank(graph, tensor.name, 0)
            value = Own(graph.name_of(apart), tensor.local_shape(graph.mesh))
    source, axis = _along(graph, given | {"input": value}, size)
    if isinstance(source, Own):  # a rank's operand has one part per destination, its result one per source
        made = graph.make("alltoall", Named(parts_of(graph, source, source.shape)), axis=1, group=group)
        return View(made.name, source.shape)
    return _gathered(graph, graph.make("alltoall", source, axis=axis, group=group), source, group, size)


def _broadcast(graph: Graph, given: Arguments) -> Any:
    """Replace a broadcast by its operand: all ranks must have it already, as they have initial parameters."""
    group, _ = graph.group(given)
    tensor = graph.tensor(given["input"])
    dims = graph.mesh.dims_of(group, where=graph.node.name)
    if any(tensor.along(dim) != "replicated" for dim in dims):
        said = f"broadcasts {tensor.name}, which is {tensor}; only tensors that all ranks have are supported"
        raise graph.refused(f"{said}: gather it, and take the part of one rank")
    return given["input"]


def _along(graph: Graph, given: Arguments, size: int) -> tuple[Any, int]:
    """(operand of a collective, axis along which each rank of the group gets a slice)."""
    source = given["input"]
    if not isinstance(source, Stacked):
        return source, 0
    if source.count != size:
        raise graph.refused(f"needs a slice for each of {size} ranks; {described(source)} are {source.count}")
    return Named(source.name), source.axis


def _gathered(graph: Graph, made: Named, source: Any, group: str, size: int) -> Any:
    """Result of a collective that joins slices, which PyTorch concatenates along axis 0."""
    dims = graph.mesh.dims_of(group, where=graph.node.name)
    axis = replace(graph.tensor(source), layout=graph.tensor(source).along(dims[0])).axis
    return made if not axis else Stacked(made.name, axis, size)


def _each(reader: Reader) -> Reader:
    """Converter of a collective over a list of tensors, from the converter for one tensor."""

    def read(graph: Graph, given: Arguments) -> Any:
        return [reader(graph, given | {"input": each}) for each in given["inputs"]]

    return read


#: {operator in an FX graph, without its overload: function that converts the node}.
COLLECTIVE_READERS: dict[str, Reader] = {
    **dict.fromkeys(
        ("aten.chunk", "aten.split", "aten.split_with_sizes", "aten.tensor_split"), _in_pieces,
    ),
    "aten.cat": _joined, "aten.stack": _stacked,
    "_c10d_functional.all_reduce": _all_reduce,
    "_c10d_functional.reduce_scatter_tensor": _reduce_scatter,
    "_c10d_functional.all_gather_into_tensor": _all_gather,
    "_c10d_functional.all_to_all_single": _all_to_all,
    "_c10d_functional.broadcast": _broadcast,
    "_c10d_functional.all_reduce_coalesced": _each(_all_reduce),
    "_c10d_functional.reduce_scatter_tensor_coalesced": _each(_reduce_scatter),
    "_c10d_functional.all_gather_into_tensor_coalesced": _each(_all_gather),
}  # fmt: skip

"""Views of distributed tensors in PyTorch graphs: point-wise operations on them, and their global shapes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from taccl.workload.fx_values import Named, Own, Stacked, View, described
from taccl.workload.operations import Operation, Tensor, labels_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taccl.workload.fx_graph import Graph


def unviewed(graph: Graph, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[int, ...] | None]:
    """(operands, shape): tensors without their views, and the local shape for a view of the result.

    A point-wise operation commutes with views if all of its views reshape alike. An operand that is no view
    must be a scalar or, if the views keep the last axis, a vector along it. Otherwise the values are returned
    unchanged, and the shape is None.
    """
    views = [value for value in values if isinstance(value, View)]
    shapes = {(view.shape, graph.local_shape(Named(view.name))) for view in views}
    rest = [graph.local_shape(Named(graph.name_of(value))) for value in values if value not in views]
    (shape, whole), *others = shapes
    keeps_rows = bool(shape and whole) and shape[-1] == whole[-1]
    if others or any(len(each) > 1 or (each and not keeps_rows) for each in rest):
        return values, None
    return tuple(Named(each.name) if isinstance(each, View) else each for each in values), shape


def have_whole_rows(graph: Graph, values: Sequence[Any]) -> bool:
    """True if all values are views of equal shapes that keep the last axis, along which none is sliced."""
    if not all(isinstance(value, View) and value.shape for value in values):
        return False
    tensors = [graph.tensors[value.name] for value in values]
    if any(graph.mesh.slicing(each, len(each.shape) - 1) for each in tensors):
        return False
    ((shape, local), *others) = {(value.shape, graph.local_shape(Named(value.name))) for value in values}
    return not others and shape[-1:] == local[-1:]


def made_whole(graph: Graph, view: View) -> str:
    """Add a tensor to the step whose part at each rank equals the view; return its name."""
    shape = _whole_shape(graph, view)
    if shape is not None:
        return graph.name_of(graph.make("reshape", Named(view.name), shape=shape))
    tensor = graph.tensors[view.name]
    axes = graph.mesh.sliced_axes(tensor)
    if len(axes) > 1:
        said = f"{graph.node.target} reads {described(view)}, but {view.name} is {tensor}"
        raise graph.refused(f"{said}: no global tensor has these local parts; slice one axis alone")
    # The new tensor has the elements of the first slice, then those of the second, and so on.
    ranks, made = by_rank(graph, view.name, axes[0])
    if not view.shape:
        flat = graph.make("reshape", made, shape=(ranks,))
        return graph.name_of(Own(graph.name_of(flat), ()))
    shape = (ranks * view.shape[0], *view.shape[1:])
    return graph.name_of(graph.make("reshape", made, shape=shape))


def by_rank(graph: Graph, name: str, axis: int) -> tuple[int, Any]:
    """(number of slices, tensor whose first axis counts the slices) for a tensor sliced along `axis`."""
    tensor = graph.tensors[name]
    ranks, shape = graph.mesh.slices(tensor, axis), tensor.shape
    cut = (*shape[:axis], ranks, shape[axis] // ranks, *shape[axis + 1 :])
    made = graph.make("reshape", Named(name), shape=cut)
    order = (axis, *(i for i in range(len(cut)) if i != axis))
    return ranks, graph.make("transpose", made, axes=order) if axis else made


def in_memory(graph: Graph, value: Stacked) -> Named | Own:
    """Tensor with the elements of a `Stacked` in the order of each rank's memory.

    An `Own` if axis 0 is sliced over ranks, as each rank then has concatenated its own slices.
    """
    tensor, axis = graph.tensors[value.name], value.axis
    length, *shape = tensor.shape
    sliced = {*graph.mesh.sliced_axes(tensor)}
    if axis in sliced or (0 in sliced and (len(sliced) > 1 or graph.mesh.partial(tensor))):
        said = f"{graph.node.target} reads {described(value)}, which is {tensor}"
        raise graph.unread(f"{said}; concatenate them along axis {axis} with cat(chunk(...)) first")
    ranks = graph.mesh.slices(tensor, 0)
    pieces = [*shape[: axis - 1], value.count, shape[axis - 1] // value.count, *shape[axis:]]
    made = graph.make("reshape", Named(value.name), shape=(ranks, length // ranks, *pieces))
    order = (0, axis + 1, *(place for place in range(1, len(pieces) + 2) if place != axis + 1))
    made = graph.make("transpose", made, axes=order)
    del pieces[axis - 1]
    local = (value.count * length // ranks, *pieces)
    if ranks == 1:
        return Named(graph.name_of(graph.make("reshape", made, shape=local)))
    return Own(graph.name_of(graph.make("reshape", made, shape=(ranks, *local))), local)


def of_each_slice(graph: Graph, kind: str, values: list[Any], axis: int, **options: Any) -> Any:
    """Result of an operation along an axis, applied to each rank's slice of that axis.

    If the axis is sliced, it becomes two: one of ranks, and one of a rank's indices.
    """
    named = [Named(graph.name_of(value)) for value in values]
    slices = {graph.mesh.slices(graph.tensor(each), axis) for each in named}
    if slices == {1} or len(slices) > 1:
        return graph.make(kind, *named, axis=axis, **options)
    (ranks,) = slices
    cut = []
    for each in named:
        shape = graph.tensor(each).shape
        two = (*shape[:axis], ranks, shape[axis] // ranks, *shape[axis + 1 :])
        cut.append(graph.make("reshape", each, shape=two))
    made = graph.make(kind, *cut, axis=axis + 1, **options)
    shape = graph.tensor(made).shape
    one = (*shape[:axis], ranks * shape[axis + 1], *shape[axis + 2 :])
    return graph.make("reshape", made, shape=one)


def with_axis_last(graph: Graph, value: Any, axis: int) -> tuple[Any, Callable[[Any], Any]]:
    """(value with the given axis moved last, function that moves it back in a tensor of the same shape).

    If ranks hold slices of the axis, each slice becomes a row of its own.
    """
    named = Named(graph.name_of(value))
    before = graph.tensor(named).shape
    ranks = graph.mesh.slices(graph.tensor(named), axis)
    shape = (*before[:axis], ranks, before[axis] // ranks, *before[axis + 1 :]) if ranks > 1 else before
    axis += ranks > 1
    order = (*(i for i in range(len(shape)) if i != axis), axis)
    inverse = tuple(order.index(i) for i in range(len(shape)))
    is_last = axis == len(shape) - 1
    made: Any = named if ranks == 1 else graph.make("reshape", named, shape=shape)
    made = made if is_last else graph.make("transpose", made, axes=order)

    def back(found: Any) -> Any:
        found = found if is_last else graph.make("transpose", found, axes=inverse)
        return found if ranks == 1 else graph.make("reshape", found, shape=before)

    return made, back


def transposed(graph: Graph, view: View, axes: Sequence[int]) -> View | None:
    """Transpose the tensor of a view that merges axes; return the same view of the result.

    A batch of matrices whose batch consists of several sliced axes has no global shape, but its tensor has.
    None if the view does not merge axes, or if a transpose of its global tensor is as good.
    """
    groups = _merged_axes(graph, view)
    is_batch = len(view.shape) == 3 and list(axes) == [0, 2, 1]
    if groups is None or not (is_batch or _whole_shape(graph, view) is None):
        return None
    order = tuple(axis for group in axes for axis in groups[group])
    made = graph.make("transpose", Named(view.name), axes=order)
    return View(made.name, tuple(view.shape[axis] for axis in axes))


def in_one_batch(graph: Graph, a: View, b: View) -> tuple[str, str] | None:
    """Names of tensors with equal leading axes, which two views merge into the axis of a batch of matrices.

    None if there are no such tensors.
    """
    one, two = _unmerged_batch(graph, a), _unmerged_batch(graph, b)
    if one is None or two is None:
        return None
    first, second = (graph.local_shape(Named(name)) for name in (one, two))
    if first[:-2] == second[:-2]:
        return one, two
    for name, shape, lead in ((two, second, first[:-2]), (one, first, second[:-2])):
        other = View(name, (*lead, *shape[-2:]))
        if _whole_shape(graph, other) is not None:
            found = graph.name_of(other)
            return (one, found) if name == two else (found, two)
    return None


def _unmerged_batch(graph: Graph, view: View) -> str | None:
    """Name of the tensor whose leading axes a view merges into the axis of a batch of matrices.

    Axes of length 1 are removed from the tensor where necessary. None for another view.
    """
    groups = _merged_axes(graph, view) if len(view.shape) == 3 else None
    if groups is None:
        return None
    local, lengths = graph.local_shape(Named(view.name)), graph.tensors[view.name].shape
    lead, *matrix = ([axis for axis in group if lengths[axis] > 1] for group in groups)
    if any(len(group) > 1 for group in matrix):
        return None
    short = (*(local[axis] for axis in lead), *view.shape[1:])
    return view.name if short == local else graph.name_of(View(view.name, short, is_squeezed=True))


def _merged_axes(graph: Graph, view: View) -> list[list[int]] | None:
    """Axes of a view's tensor that each axis of the view merges; None if the view splits or adds an axis.

    An axis of local length 1 belongs to the axis before it, as one head per rank belongs to the batch.
    """
    local, left, groups = graph.local_shape(Named(view.name)), 0, list[list[int]]()
    for place, length in enumerate(view.shape):
        first, merged = left, 1
        while left < len(local) and (merged < length or left == first):
            merged *= local[left]
            left += 1
        if merged != length or left == first:
            return None
        while left < len(local) and local[left] == 1 and view.shape[place + 1 : place + 2] != (1,):
            left += 1
        groups.append([*range(first, left)])
    return groups if left == len(local) and 0 not in local else None


def alike_sliced(graph: Graph, names: Sequence[str]) -> list[str] | None:
    """Slice tensors along one common axis, with unchanged local parts; return the names of the results.

    The axis is that of the first sliced tensor, counted from the last axis. Unsliced tensors stay unsliced.
    None if nothing has to change, or if a sliced tensor cannot be sliced along that axis alone.
    """
    mesh, found, wanted, length = graph.mesh, list[str](), None, 0
    for name in names:
        tensor = graph.tensors[name]
        axes = mesh.sliced_axes(tensor)
        places = [axis - len(tensor.shape) for axis in axes]
        if len(axes) > 1 or mesh.partial(tensor):
            return None
        if not axes or wanted in (None, places[0]):
            if axes:
                wanted, length = places[0], tensor.local_shape(mesh)[axes[0]]
            found.append(name)
            continue
        local, to = tensor.local_shape(mesh), len(tensor.shape) + wanted
        if to < 0 or local[to] != length:
            return None
        ranks, made = by_rank(graph, name, axes[0])
        order = (*range(1, to + 1), 0, *range(to + 1, len(local) + 1))
        made = graph.make("transpose", made, axes=order) if to else made
        shape = (*local[:to], ranks * local[to], *local[to + 1 :])
        found.append(graph.name_of(graph.make("reshape", made, shape=shape)))
    return found if found != [*names] else None


def _whole_shape(graph: Graph, view: View) -> tuple[int, ...] | None:
    """Global shape whose part at each rank equals the view.

    None if there is no such shape. The view may split a sliced axis into an axis of length 1 and one of the
    old length; then the new tensor may be sliced along either. The axis of length 1 is right if
    the old axis consists of heads, the other one if the view only inserts an axis. The latter is chosen if
    `graph.keeps_lengths`, or if the view only adds or removes axes of length 1 (`view.is_squeezed`). It is
    also chosen for axis 0, which never consists of heads. Otherwise the former is chosen.
    """
    tensor, local = graph.tensors[view.name], view.shape
    sliced = graph.mesh.sliced_axes(tensor)
    parts = {axis: graph.mesh.slices(tensor, axis) for axis in sliced}
    before = graph.local_shape(Named(view.name))
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for to in itertools.product(range(len(local)), repeat=len(sliced)):
        shape = list(local)
        for axis, place in zip(sliced, to, strict=True):
            shape[place] *= parts[axis]
        operation = Operation(view.name, "reshape", (view.name,), shape=tuple(shape))
        (labels,) = labels_of(operation, [tensor], Tensor(view.name, tuple(shape)))
        if all(labels[axis] == place for axis, place in zip(sliced, to, strict=True)):
            moved = sum(abs(axis - place) for axis, place in zip(sliced, to, strict=True))
            other = sum(before[a] != local[b] for a, b in zip(sliced, to, strict=True))
            inner = sum(place for axis, place in zip(sliced, to, strict=True) if axis and before[axis] > 1)
            found.append(((inner, other, moved), tuple(shape)))
    if not found:
        return None
    first, kept = min(found)[1], min((rank[1:], shape) for rank, shape in found)[1]
    if first == kept or view.is_squeezed:
        return kept
    graph.has_choice = True
    return kept if graph.keeps_lengths else first

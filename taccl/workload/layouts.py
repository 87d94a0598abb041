"""Inference of the layout of an operation's result, separately along each dimension of the mesh.

Source of the layouts and their rules: Jangda et al. (CoCoNet), ASPLOS 2022; see `taccl.workload.operations`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from taccl.errors import WorkloadError
from taccl.workload.kind_rules import LEAST_SUMMED, refused
from taccl.workload.kinds import TABLE
from taccl.workload.mesh import Mesh, mesh_of
from taccl.workload.operations import (
    DTYPE_BYTES,
    FLOATS,
    INTEGERS,
    Operation,
    Tensor,
    inner_axes,
    labels_of,
    operand_axes,
)

#: Maximum number of operations whose inferred layouts are cached.
_MOST_CACHED = 10_000


def infer(operation: Operation, inputs: Sequence[Tensor], ranks: Mesh | int) -> Tensor:
    """Infer shape, element type and layout of an operation's result.

    Raises `WorkloadError` if there is no valid layout. The layout is inferred separately along each dimension
    of the mesh. Results are cached, as transformations make many steps with nearly the same operations.

    - `ranks`: The mesh of ranks, or their number.
    """
    return _inferred(operation, tuple(inputs), mesh_of(ranks))


@lru_cache(maxsize=_MOST_CACHED)
def _inferred(operation: Operation, inputs: tuple[Tensor, ...], mesh: Mesh) -> Tensor:
    operation.check()
    kind = operation.kind
    if kind == "compute":
        out = Tensor(operation.name, operation.shape, operation.dtype, operation.layout).check(mesh)
    elif operation.is_collective:
        out = inputs[0]
    else:
        shape = TABLE[kind].shape(operation, [each.shape for each in inputs])
        out = Tensor(operation.name, shape, _dtype(operation, inputs))
    over = mesh.dims_of(operation.group, where=operation.name)
    along: dict[str, str] = {}
    for dim in mesh.names:
        if operation.is_collective and dim not in over:
            along[dim] = inputs[0].along(dim)
            continue
        here = [replace(each, layout=each.along(dim)) for each in inputs]
        try:
            along[dim] = _layout(operation, here, replace(out, layout=out.along(dim)))
        except WorkloadError as error:
            said = f"along {dim}: {error.message}" if dim else error.message
            raise WorkloadError(said, where=error.where) from None
    made = replace(out, name=operation.name, layout=mesh.layout(along)).check(mesh)
    _check_order(operation, inputs, made, mesh, over)
    return made


def _layout(operation: Operation, inputs: Sequence[Tensor], out: Tensor) -> str:
    """Layout of a result along one dimension, from the layouts of its operands along it."""
    if operation.kind == "compute":
        return _of_compute(operation, inputs, out.layout)
    if operation.is_collective:
        return _of_collective(operation, inputs[0])
    if any(each.layout == "partial" for each in inputs):
        return _of_partial(operation, inputs)
    return _of_slices(operation, inputs, out)


def _check_order(
    operation: Operation, inputs: Sequence[Tensor], out: Tensor, mesh: Mesh, over: Sequence[str]
) -> None:
    """Raise `WorkloadError` if slices of one axis over several dimensions do not nest.

    A later dimension of the mesh cuts the slices of an earlier one. So a collective may cut or join an axis
    over a dimension only if no later dimension slices that axis. For other operations, the dimensions that
    slice an operand's axis must be the first of those that slice the matching axis of the result.
    """
    moves = operation.is_collective and operation.kind not in ("allreduce", "send")
    both = [
        (mesh.slicing(each, axis), each.name)
        for each in ((inputs[0], out) if moves else ())
        for axis in range(len(each.shape))
    ]
    for dims, name in both:
        mine = [dim for dim in dims if dim in over]
        if mine and [*dims[-len(mine) :]] != mine:
            said = f"cuts or joins {name} along {'+'.join(mine)}, but {dims[-1]} divides these slices further"
            raise refused(operation, f"{said}; put {dims[-1]} before it in the mesh, or slice another axis")
    if operation.is_collective:
        return
    pairs = []
    for at, each in enumerate(inputs):
        for axis, to in enumerate(operand_axes(operation, inputs, out, at)):
            if to is not None:
                pairs.append((mesh.slicing(each, axis), mesh.slicing(out, to)))
    for axes in inner_axes(labels_of(operation, inputs, out)).values():
        met = sorted((mesh.slicing(inputs[at], axis) for at, axis in axes.items()), key=len)
        pairs += [(each, met[-1]) for each in met[:-1]]
    for few, many in pairs:
        if few != many[: len(few)]:
            said = f"found slices over {'+'.join(few)} and slices over {'+'.join(many)} along one axis"
            raise refused(operation, f"{said}; slice another axis, or name {few[0]} first in the mesh")


def has_types(operation: Operation, inputs: Sequence[Tensor]) -> bool:
    """True if an operation accepts operands of the element types of `inputs`."""
    try:
        _dtype(operation, inputs)
    except WorkloadError:
        return False
    return True


def _dtype(operation: Operation, inputs: Sequence[Tensor]) -> str:
    """Element type of a result; raises `WorkloadError` if the kind does not support an operand's type."""
    kind = TABLE[operation.kind]
    if kind.mixed:
        if operation.dtype not in DTYPE_BYTES:
            raise refused(operation, f"found dtype {operation.dtype}; expected {' or '.join(DTYPE_BYTES)}")
        return operation.dtype
    first = next((each.dtype for at, each in enumerate(inputs) if at not in kind.masks), "")
    for at, each in enumerate(inputs):
        known = FLOATS if kind.ids is not None or first in FLOATS else (first,)
        if kind.ids is not None and at in kind.ids:
            known = INTEGERS
        elif at in kind.masks:
            known = ("bool",) if kind.pointwise else ("bool", *FLOATS)
        if operation.kind != "cast" and each.dtype not in known:
            said = f"reads {each.name}, which is of {each.dtype}; expected {' or '.join(known)}"
            raise refused(operation, said)
    if kind.makes:
        return kind.makes
    if "dtype" in kind.options:
        if operation.dtype not in FLOATS:
            raise refused(operation, f"found dtype {operation.dtype}; expected {' or '.join(FLOATS)}")
        return operation.dtype
    typed = range(len(inputs)) if kind.typed is None else kind.typed
    computed = [inputs[at] for at in typed if at not in (*(kind.ids or ()), *kind.masks)]
    found = max((each.dtype for each in computed), key=lambda name: DTYPE_BYTES[name])
    if "VALUE" in kind.options and found not in FLOATS:
        value = float(operation.value or 0)
        if value not in (0, 1) if found == "bool" else not value.is_integer():
            fitting = "0 or 1" if found == "bool" else "a whole number"
            raise refused(
                operation, f"found value {operation.value} for {found}; give {fitting}, or cast first"
            )
    return found


def _of_compute(operation: Operation, inputs: Sequence[Tensor], layout: str) -> str:
    """Layout that a `compute` states for its result; raises `WorkloadError` if it needs communication."""
    fits = {"partial": ("replicated", "sliced", "partial"), "replicated": ("replicated",)}
    for each in inputs:
        if not each.layout.startswith(fits.get(layout, ("replicated", "sliced"))):
            said = f"has a {layout} result, but its operand {each.name} is {each.layout}"
            raise refused(operation, f"{said}; insert a collective first")
    return layout


def _of_collective(operation: Operation, given: Tensor) -> str:
    kind, axis = operation.kind, operation.axis
    wanted = "partial" if kind in ("allreduce", "reduce_scatter") else "sliced"
    if not given.layout.startswith(wanted):
        raise refused(operation, f"needs a {wanted} tensor; {given.name} is {given.layout}")
    if kind == "alltoall" and given.axis == axis:
        raise refused(operation, f"found {given.name} sliced along axis {axis} already; name another axis")
    if kind in ("reduce_scatter", "alltoall"):
        return f"sliced({axis})"
    return given.layout if kind == "send" else "replicated"


def _of_partial(operation: Operation, inputs: Sequence[Tensor]) -> str:
    kind, layouts = operation.kind, [each.layout for each in inputs]
    partial = next(each for each in inputs if each.layout == "partial").name
    letters = "".join({"partial": "p", "replicated": "r"}.get(each, "s") for each in layouts)
    before, after = DTYPE_BYTES[inputs[0].dtype], DTYPE_BYTES.get(operation.dtype, 0)
    # A cast of partial tensors to a wider type is exact, as the wider type holds every part exactly.
    is_cast = kind == "cast" and (before < after or inputs[0].dtype == operation.dtype)
    if is_cast or letters in TABLE[kind].linear or (set(letters) == {"p"} and "p+" in TABLE[kind].linear):
        return "partial"
    said = f"is not linear in {partial}, which is partial; reduce it first"
    if kind == "cast":
        said = f"to {operation.dtype} rounds each part of {partial}, which is partial; reduce it first"
    if kind in ("add", "subtract"):
        said = f"of {partial}, which is partial, and a complete tensor would add that tensor once per rank; "
        said += "add it after the reduction"
    raise refused(operation, said)


def _of_slices(operation: Operation, inputs: Sequence[Tensor], out: Tensor) -> str:
    """Layout of a result from sliced or replicated inputs; partial if it sums over a sliced axis."""
    found = set()
    labels = labels_of(operation, inputs, out)
    for at, each in enumerate(inputs):
        if each.axis is not None:
            label = labels[at][each.axis]
            if label is not None and label < LEAST_SUMMED:
                said = f"is over axis {each.axis} of {each.name}, which is sliced over ranks"
                raise refused(operation, f"{said}; insert a collective first, or split it")
            found.add(label)
    if len(found) > 1:
        told = " and ".join(f"{each.name} {each.layout}" for each in inputs)
        raise refused(operation, f"found {told}, which do not match; alltoall or allgather one of them first")
    label = found.pop() if found else None
    return "replicated" if label is None else f"sliced({label})" if label >= 0 else "partial"

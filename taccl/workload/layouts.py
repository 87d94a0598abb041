"""Layout inference: layout of each operation's result, separately along each dimension of the mesh.

Source of the layouts and their rules: Jangda et al. (CoCoNet), ASPLOS 2022; see `taccl.workload.operations`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from taccl.errors import WorkloadError
from taccl.workload.mesh import mesh_of
from taccl.workload.operations import DTYPE_BYTES, REDUCTIONS, ROWWISE, Tensor, operand_axes, permutation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.workload.mesh import Mesh
    from taccl.workload.operations import Operation


def infer(operation: Operation, inputs: Sequence[Tensor], ranks: Mesh | int) -> Tensor:
    """Infer the result of an operation with its layout. Raises `WorkloadError` if there is no valid layout.

    The layout is inferred separately along each dimension of the mesh.

    - `operation`: An operation of any kind.
    - `inputs`: Its operands, in order.
    - `ranks`: The mesh of ranks, or their number.
    """
    operation.check()
    mesh, kind = mesh_of(ranks), operation.kind
    if kind == "compute":
        out = Tensor(operation.name, operation.shape, operation.dtype, operation.layout).check(mesh)
    elif operation.is_collective:
        out = inputs[0]
    else:
        dtype = max((each.dtype for each in inputs), key=lambda name: DTYPE_BYTES[name])
        dtype = operation.dtype if kind == "cast" else dtype
        out = Tensor(operation.name, _shape(operation, inputs), dtype)
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
    over a dimension only if no later dimension slices that axis. Operands may be sliced only along the first
    of the dimensions that slice the result.
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
            raise _refused(operation, f"{said}; put {dims[-1]} before it in the mesh, or slice another axis")
    if operation.is_collective:
        return
    pairs = []
    for at, each in enumerate(inputs):
        for axis, to in enumerate(operand_axes(operation, inputs, out, at)):
            if to is not None:
                pairs.append((mesh.slicing(each, axis), mesh.slicing(out, to)))
    if operation.kind == "matmul":
        summed = sorted((mesh.slicing(inputs[0], len(inputs[0].shape) - 1),
                         mesh.slicing(inputs[1], len(inputs[1].shape) - 2)), key=len)  # fmt: skip
        pairs.append((summed[0], summed[1]))
    for few, many in pairs:
        if few != many[: len(few)]:
            said = f"meets slices over {'+'.join(few)} with slices over {'+'.join(many)} on one axis"
            raise _refused(operation, f"{said}; slice another axis, or name {few[0]} first in the mesh")


def _refused(operation: Operation, said: str) -> WorkloadError:
    return WorkloadError(f"{operation.kind} {said}", where=operation.name)


def _shape(operation: Operation, inputs: Sequence[Tensor]) -> tuple[int, ...]:
    shapes = [each.shape for each in inputs]
    if operation.kind in REDUCTIONS:
        return ()
    if operation.kind in ROWWISE and not shapes[0]:
        raise _refused(operation, "needs an axis; found a scalar")
    if operation.kind == "sum":
        axis = operation.axis or 0
        if axis >= len(shapes[0]):
            raise _refused(operation, f"is over axis {axis} of {shapes[0]}; name an axis that it has")
        return (*shapes[0][:axis], *shapes[0][axis + 1 :])
    if operation.kind == "transpose":
        count = len(shapes[0])
        order = permutation(operation, count)
        if sorted(order) != [*range(count)]:
            said = f"found axes {order} for {shapes[0]}; name each of its axes once"
            raise _refused(operation, said)
        return tuple(shapes[0][axis] for axis in order)
    if operation.kind == "matmul":
        a, b = shapes
        if len(a) >= 2 and len(b) >= 2 and a[-1] == b[-2] and (len(b) == 2 or a[:-2] == b[:-2]):
            return (*a[:-1], b[-1])
        said = f"found shapes {a} and {b}; expected (..., m, k) and (k, n), or as many matrices in both"
        raise _refused(operation, said)
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        said = f"found shapes {shapes[0]} and {shapes[1]}, which do not fit each other; make them fit"
        raise _refused(operation, said) from None


def _of_compute(operation: Operation, inputs: Sequence[Tensor], layout: str) -> str:
    """Stated layout of a `compute`. Raises `WorkloadError` if it would need communication."""
    fits = {"partial": ("replicated", "sliced", "partial"), "replicated": ("replicated",)}
    for each in inputs:
        if not each.layout.startswith(fits.get(layout, ("replicated", "sliced"))):
            said = f"makes {layout} of {each.name}, which is {each.layout}"
            raise _refused(operation, f"{said}; insert a collective first")
    return layout


def _of_collective(operation: Operation, given: Tensor) -> str:
    kind, axis = operation.kind, operation.axis
    wanted = "partial" if kind in ("allreduce", "reduce_scatter") else "sliced"
    if not given.layout.startswith(wanted):
        raise _refused(operation, f"needs a {wanted} tensor; {given.name} is {given.layout}")
    if kind == "alltoall" and given.axis == axis:
        raise _refused(operation, f"found {given.name} sliced along axis {axis} already; name another")
    if kind in ("reduce_scatter", "alltoall"):
        return f"sliced({axis})"
    return given.layout if kind == "send" else "replicated"


def _of_partial(operation: Operation, inputs: Sequence[Tensor]) -> str:
    kind, layouts = operation.kind, [each.layout for each in inputs]
    partial = next(each for each in inputs if each.layout == "partial").name
    both, one = layouts == ["partial", "partial"], "replicated" in layouts
    before, after = DTYPE_BYTES[inputs[0].dtype], DTYPE_BYTES.get(operation.dtype, 0)
    is_linear = {
        "scale": True, "dropout": True, "add": both, "subtract": both, "multiply": one, "matmul": one,
        "divide": layouts[-1] == "replicated", "relu_grad": layouts[-1] == "replicated",
        "transpose": True, "sum": True,
        # a wider type holds every part exactly
        "cast": before < after or inputs[0].dtype == operation.dtype,
    }  # fmt: skip
    if is_linear.get(kind, False):
        return "partial"
    said = f"of these is not linear in {partial}, which is partial; reduce it first"
    if kind == "cast":
        said = f"to {operation.dtype} rounds each part of {partial}, which is partial; reduce it first"
    if kind in ("add", "subtract"):
        said = f"of {partial}, which is partial, and a complete tensor would count the latter "
        said += "once per rank; add it after the reduction"
    raise _refused(operation, said)


def _of_slices(operation: Operation, inputs: Sequence[Tensor], out: Tensor) -> str:
    """Layout of a result from sliced or replicated inputs; partial if it sums over a sliced axis."""
    found = set()
    for at, each in enumerate(inputs):
        if each.axis is not None:
            axis = operand_axes(operation, inputs, out, at)[each.axis]
            if axis is None and operation.kind in ("norm", *ROWWISE):
                said = f"is over axis {each.axis} of {each.name}, of which a rank has a slice"
                raise _refused(operation, f"{said}; insert a collective first, or split it")
            found.add("partial" if axis is None else f"sliced({axis})")
    if len(found) > 1:
        told = " and ".join(f"{each.name} {each.layout}" for each in inputs)
        raise _refused(
            operation, f"found {told}, which do not match; alltoall or allgather one of them first"
        )
    return found.pop() if found else "replicated"

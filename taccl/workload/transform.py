"""Transformations of steps that preserve results; an illegal one raises `WorkloadError`.

Legality follows from layouts. They are inferred again after each transformation (`layouts.infer`), and the
outputs of the step must keep their layouts.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from taccl._internal.arguments import Count, Natural, checked_as
from taccl._internal.names import did_you_mean
from taccl.errors import WorkloadError
from taccl.workload.kernels import kernel
from taccl.workload.layouts import infer
from taccl.workload.operations import POINTWISE, Operation, Tensor, refuse_first
from taccl.workload.tiling import Overlap
from taccl.workload.workload import Workload


@checked_as(WorkloadError)
def split(workload: Workload, operation: str, *, axis: Natural | None = None) -> Workload:
    """Split an allreduce into reduce-scatter and allgather, or a norm into sum of squares and square root.

    Parameters
    ----------
    workload : Workload
        The step that contains the operation.
    operation : str
        Name of an allreduce or a norm.
    axis : int, optional
        Axis of the slices between reduce-scatter and allgather. The default is the first axis that divides
        evenly among the ranks of a group.

    Raises
    ------
    WorkloadError
        If the operation is neither an allreduce nor a norm, or no axis divides by the number of ranks.
    """
    found = _free(workload, operation)
    if found.kind == "norm":
        squares = Operation(_fresh(workload, f"{operation}_squares"), "sum_of_squares", found.inputs)
        return _with(workload, {operation: [squares, replace(found, kind="sqrt", inputs=(squares.name,))]})
    if found.kind != "allreduce":
        raise WorkloadError(f"is a {found.kind}; only an allreduce or a norm can be split", where=operation)
    shape = workload.tensors[operation].shape
    scatter = replace(found, name=_fresh(workload, f"{operation}_slice"), kind="reduce_scatter", axis=axis)
    if axis is None:
        every = (replace(scatter, axis=each) for each in range(len(shape)))
        fitting = next((each for each in every if _is_legal(workload, each)), None)
        if fitting is None:
            ranks = workload.grid.size(workload.grid.dims_of(found.group, where=operation))
            said = f"no axis of shape {shape} divides into {ranks} slices; pad one"
            raise WorkloadError(said, where=operation)
        scatter = fitting
    return _with(workload, {operation: [scatter, replace(found, kind="allgather", inputs=(scatter.name,))]})


@checked_as(WorkloadError)
def reorder(workload: Workload, collective: str, *operations: str) -> Workload:
    """Move operations before the collective whose result they read; it then communicates their results.

    Each operation reads the collective or an operation earlier in the list. If no operations are given, all
    that can be moved are moved. The collective is removed if no other operation reads it, and it is no
    output. If an operation also reads results of other collectives of the same kind, it is moved before these
    as well if layouts permit. A sum of squares that is moved to slices is followed by an allreduce of one
    number.

    Parameters
    ----------
    workload : Workload
        The step that contains them.
    collective, *operations : str
        Name of the collective; names of the operations, in the order in which they are moved.

    Raises
    ------
    WorkloadError
        If an operation does not read the collective, or would have another result on the collective's input.
    """
    if operations:
        behind = {collective}
        for name in operations:
            read = [each for each in _of(workload, name).inputs if each in behind]
            workload = _reordered(workload, read[0] if read else collective, name)
            behind.add(name)
        return workload
    pending = [collective]
    while pending:
        first = pending.pop()
        if first not in workload.operation or not workload.operation[first].is_collective:
            continue
        for name in workload.readers[first]:
            with contextlib.suppress(WorkloadError):
                workload = _reordered(workload, first, name)
                pending += [first, name]
                break
    return workload


def _reordered(workload: Workload, collective: str, operation: str) -> Workload:
    moved, after = _free(workload, collective), _free(workload, operation)
    is_send, apart = moved.kind == "send", _are_disjoint(workload, moved, after)
    by_place = len(set(after.inputs)) > 1 or after.kind not in POINTWISE or after.kind == "dropout"
    by_place &= not apart
    is_fixed = after.kind == "compute" or (after.is_collective and not apart)
    why = "is a collective itself" if after.is_collective else "has unknown semantics"
    refuse_first(collective, (not moved.is_collective, f"is a {moved.kind}; name a collective"))
    refuse_first(
        operation,
        (collective not in after.inputs, f"does not read {collective}; reorder what reads it"),
        (is_fixed, f"{why}; keep it after {collective}"),
        (
            is_send and by_place,
            f"depends on the place of its elements, which {collective} changes; keep it after {collective}",
        ),
    )  # fmt: skip
    before, old = workload.tensors[moved.inputs[0]], workload.tensors[operation]
    alike = {
        each.name: each.inputs[0]
        for each in workload.operations
        if (each.kind, each.shift, each.group) == (moved.kind, moved.shift, moved.group)
        and each.name in after.inputs
        and workload.tensors[each.inputs[0]].layout == before.layout
    }  # fmt: skip
    for last, instead in ((False, alike), (True, {collective: moved.inputs[0]})):
        early = replace(after, inputs=tuple(instead.get(name, name) for name in after.inputs))
        try:
            made = infer(early, workload.operands(early), workload.grid)
            break
        except WorkloadError:
            if last:
                raise
    if made.layout == old.layout and not is_send:
        steps = [early]
    else:
        fresh = _fresh(workload, f"{operation}_{'part' if made.layout == 'partial' else 'slice'}")
        mover = replace(_mover(workload, operation, made, old, moved), inputs=(fresh,))
        steps = [replace(early, name=fresh), mover]
    result = _with(workload, {operation: steps})
    unread = {name for name in alike if not result.readers[name] and name not in result.outputs}
    return replace(result, operations=tuple(each for each in result.operations if each.name not in unread))


@checked_as(WorkloadError)
def fuse(workload: Workload, collective: str, *operations: str) -> Workload:
    """Fuse point-wise operations into the last step of a collective, or into one compute kernel.

    Fused operations do not read from memory what their kernel holds in registers. They read their other
    inputs from memory, and write only results that are needed outside the kernel. A compute kernel is one
    launch: it waits for all its operands, and reads each tensor once. Its head is its first operation in
    program order. A norm or a sum of squares may end it.

    Parameters
    ----------
    workload : Workload
        The step that contains them.
    collective : str
        Name of the collective into which the operations are fused, or of an operation of the compute kernel.
    *operations : str
        Names of the operations. Each reads, or is read by, an operation that is in the kernel already.

    Raises
    ------
    WorkloadError
        If an operation is not point-wise, is not connected with the kernel, reads a result that depends on
        the kernel, or has another layout.
    """
    _of(workload, collective)
    for name in operations:
        found = _of(workload, name)
        if into := found.fused:
            raise WorkloadError(f"is fused into {into} already; leave it there", where=name)
        if found.is_collective or any(each.fused == name for each in workload.operations):
            raise WorkloadError("heads another kernel; fuse others into it", where=name)
    head, order = workload.operation[collective].fused or collective, list(workload.operation)
    names = {head, *operations}
    if not workload.operation[head].is_collective:
        names |= {*kernel(workload, head)}
        head = min(names, key=order.index)
    instead = {
        name: [replace(workload.operation[name], fused="" if name == head else head)] for name in names
    }
    # Operations to be fused may come before the head in program order; they are moved behind it.
    early = [name for name in order[: order.index(head)] if name in names]
    instead[head] += [new for name in early for new in instead[name]]
    return _with(workload, instead | dict.fromkeys(early, ()))


@checked_as(WorkloadError)
def overlap(workload: Workload, operations: Sequence[str], *, tiles: Count, axis: Natural = 0) -> Workload:
    """Run operations tile by tile, so that some compute while others communicate.

    Parameters
    ----------
    workload : Workload
        The step that contains them.
    operations : sequence of str
        Names of the operations. Each except the first reads a result of another one in the list. Operations
        in the same kernels overlap as well.
    tiles : int
        Number of tiles into which the first operation's result is cut.
    axis : int
        Axis of the first operation's result along which it is cut.

    Raises
    ------
    WorkloadError
        If a tile needs more of an operand than the operand's tile of the same number, or if the axis is not
        divisible into tiles. Also if an operation outside the overlap lies on a dependency path between two
        operations inside.
    """
    for name in operations:
        _of(workload, name)
    if not operations:
        raise WorkloadError("found no operations; name those to overlap", where="overlap")
    heads = {workload.operation[name].fused or name for name in operations}  # kernels overlap as a whole
    inside = tuple(each.name for each in workload.operations if heads & {each.name, each.fused})
    return workload.with_overlap(Overlap(inside, tiles, axis), returned=_asked(workload))


@checked_as(WorkloadError)
def slice_state(workload: Workload, *state: str) -> Workload:
    """Slice state, such as that of an optimiser, over ranks, so that each rank keeps only its slice.

    The tensor that replaces the state must be the result of an allgather that no operation reads; `reorder`
    moves operations before the allgather, so that it is last.

    Raises
    ------
    WorkloadError
        If a name is not state, its replacement is not the result of an allgather, or an operation reads the
        gathered tensor. Also if another output of the step would change its layout.
    """
    successor, inputs = dict(workload.state), {each.name for each in workload.inputs}
    slices: dict[str, str] = {}  # {allgather: tensor of the slices that it gathers}
    layout: dict[str, str] = {}
    for name in state:
        if name not in successor:
            advice = did_you_mean(name, list(successor))
            raise WorkloadError(f"is not a state of the step{advice}; declare it with updating()", where=name)
        made = _free(workload, successor[name])
        source = made.inputs[0] if made.inputs else ""
        reader = next(iter(workload.readers[made.name]), "")
        refuse_first(
            name,
            (
                made.kind != "allgather",
                f"is replaced by {made.name}, which a {made.kind} completes; insert an allgather first",
            ),
            (
                made.name in workload.returned,
                f"is replaced by {made.name}, which the step returns whole; return another tensor",
            ),
            (reader, f"{reader} reads its whole replacement; reorder that first"),
            (source in inputs, "is replaced by an input; slice it in its declaration"),
            (source in slices.values(), "is replaced by the same slices as another; slice one"),
        )  # fmt: skip
        slices[made.name], layout[name] = source, workload.tensors[source].layout
    renamed = {source: name for name, source in slices.items()}
    operations = tuple(
        replace(
            each,
            name=renamed.get(each.name, each.name),
            inputs=tuple(renamed.get(name, name) for name in each.inputs),
            fused=renamed.get(each.fused, each.fused),
        )
        for each in workload.operations
        if each.name not in slices
    )
    given = tuple(replace(each, layout=layout.get(each.name, each.layout)) for each in workload.inputs)
    result = replace(workload, inputs=given, operations=operations, returned=_asked(workload))
    return _same(workload, result, but=slices)


def _of(workload: Workload, name: str) -> Operation:
    if name not in workload.operation:
        advice = did_you_mean(name, list(workload.operation))
        raise WorkloadError(f"there is no such operation in {workload.name}{advice}", where=name)
    return workload.operation[name]


def _free(workload: Workload, name: str) -> Operation:
    """Operation by name; `WorkloadError` if it is overlapped, fused, or has operations fused into it."""
    found = _of(workload, name)
    if workload.tiling(name).overlap is not None:
        raise WorkloadError("overlaps already; apply overlap last", where=name)
    if found.fused or any(each.fused == name for each in workload.operations):
        raise WorkloadError("is fused already; apply this before fusing", where=name)
    return found


def _fresh(workload: Workload, name: str) -> str:
    every = itertools.chain([name], (f"{name}{i}" for i in itertools.count(2)))
    return next(each for each in every if each not in workload.tensors)


def _is_legal(workload: Workload, operation: Operation) -> bool:
    """True if an operation has a valid result on the tensors of a step."""
    try:
        infer(operation, workload.operands(operation), workload.grid)
    except WorkloadError:
        return False
    return True


def _are_disjoint(workload: Workload, one: Operation, two: Operation) -> bool:
    """True if `one` is a collective, `two` is a send, and their groups have no common dimension.

    The two can then be exchanged, as the send copies its data unchanged.
    """
    if not one.is_collective or not two.is_collective or two.kind != "send":
        return False
    dims = [set(workload.grid.dims_of(each.group, where=each.name)) for each in (one, two)]
    return dims[0].isdisjoint(dims[1])


def _mover(workload: Workload, name: str, made: Tensor, wanted: Tensor, moved: Operation) -> Operation:
    """Collective that converts a tensor to a wanted layout, over the same groups as the collective `moved`.

    - `made`, `wanted`: Tensor to convert, and a tensor of the layout to reach.
    - `moved`: Collective before which an operation was moved.
    """
    if moved.kind == "send":
        return replace(moved, name=name)
    over = workload.grid.dims_of(moved.group, where=moved.name)
    differing = [dim for dim in workload.grid.names if made.along(dim) != wanted.along(dim)]
    before, after = ({each.along(dim) for dim in over} for each in (made, wanted))
    said = f"would make {made.layout} before {moved.name}, where {wanted.layout} is required"
    if not set(differing) <= set(over) or len(before) > 1 or len(after) > 1:
        raise WorkloadError(f"{said}; keep the operation after it", where=name)
    one, two = before.pop(), after.pop()
    mover = replace(moved, name=name, axis=None)
    if one == "partial" and two == "replicated":
        return replace(mover, kind="allreduce")
    if one == "replicated" or two == "partial":
        raise WorkloadError(f"{said}; keep the operation after it", where=name)
    if two == "replicated":
        return replace(mover, kind="allgather")
    axis = replace(wanted, layout=two).axis
    return replace(mover, kind="reduce_scatter" if one == "partial" else "alltoall", axis=axis)


def _asked(workload: Workload) -> tuple[str, ...]:
    """Names of the tensors that the step returns, even if it does not list them.

    The default is all results without readers, and a transformation may change which these are.
    """
    new = {name for _, name in workload.state}
    return workload.returned or tuple(name for name in workload.outputs if name not in new)


def _with(workload: Workload, instead: Mapping[str, Sequence[Operation]]) -> Workload:
    """Replace each operation named in `instead` by a sequence of operations.

    Raises `WorkloadError` if an output would change its layout; see `_same`.
    """
    operations = tuple(new for each in workload.operations for new in instead.get(each.name, (each,)))
    return _same(workload, replace(workload, operations=operations, returned=_asked(workload)))


def _same(workload: Workload, result: Workload, but: Collection[str] = ()) -> Workload:
    """Return `result`; raise `WorkloadError` if an output or an operand of a `compute` changed its layout.

    - `but`: Names of tensors whose layouts may change.
    """
    read = {name for each in result.operations if each.kind == "compute" for name in each.inputs}
    for name in sorted({*workload.outputs, *read} - {*but}):
        before, after = workload.tensors.get(name), result.tensors[name]
        if before is not None and before.layout != after.layout:
            said = f"is {before.layout}, but would become {after.layout}; its layout must not change"
            raise WorkloadError(said, where=name)
    return result

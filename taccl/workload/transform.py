"""Transformations of steps that keep what they mean, each refused where it would not.

Whether one is legal follows from layouts: what it makes is inferred anew (`operations.infer`), and what the
step is for must come out in the layouts that it had.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from taccl.arguments import checked_as
from taccl.errors import WorkloadError
from taccl.names import did_you_mean
from taccl.workload.operations import (
    COLLECTIVES,
    POINTWISE,
    Operation,
    Tensor,
    infer,
)
from taccl.workload.workload import Overlap, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taccl.arguments import Count, Natural

__all__ = ["fuse", "overlap", "reorder", "slice_state", "split"]


@checked_as(WorkloadError)
def split(workload: Workload, operation: str, *, axis: Natural | None = None) -> Workload:
    """The step with an allreduce as reduce-scatter and allgather, or a norm as sum of squares and root.

    Parameters
    ----------
    workload : Workload
        Where it is.
    operation : str
        An allreduce, or a norm.
    axis : int, optional
        Along which the allreduce is sliced between the two; by default the first that divides by the ranks.

    Raises
    ------
    WorkloadError
        If it is another operation, or no axis divides.
    """
    found = _free(workload, operation)
    (source,) = found.inputs if len(found.inputs) == 1 else ("",)
    if found.kind == "norm":
        squares = Operation(_fresh(workload, f"{operation}_squares"), "sum_of_squares", (source,))
        return _with(workload, {operation: [squares, replace(found, kind="sqrt", inputs=(squares.name,))]})
    if found.kind != "allreduce":
        raise WorkloadError(f"is a {found.kind}; an allreduce or a norm can be split", where=operation)
    shape = workload.tensors[operation].shape
    if axis is None:
        axis = next((i for i, length in enumerate(shape) if length % workload.num_ranks == 0), None)
    if axis is None:
        said = f"no axis of shape {shape} divides into {workload.num_ranks} slices; pad one"
        raise WorkloadError(said, where=operation)
    scatter = Operation(_fresh(workload, f"{operation}_slice"), "reduce_scatter", (source,), axis=axis)
    return _with(workload, {operation: [scatter, Operation(operation, "allgather", (scatter.name,))]})


@checked_as(WorkloadError)
def reorder(workload: Workload, collective: str, *operations: str) -> Workload:
    """The step with operations before the collective whose result they read, which then moves their result.

    Each reads it or one before it in the list; where nothing is named, all that can be moved is. The
    collective is kept for others that read it, and left out if there are none. Other inputs that come out of
    the same kind of collective are read before theirs, too. A sum of squares of slices is an allreduce of one
    number.

    Parameters
    ----------
    workload : Workload
        Where both are.
    collective, *operations : str
        By the names of what they make, in the order in which they are to go.

    Raises
    ------
    WorkloadError
        If the operation does not read the collective, or would make something else of what is there before
        it.
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
    if moved.kind not in COLLECTIVES:
        raise WorkloadError(f"is a {moved.kind}; name a collective", where=collective)
    if collective not in after.inputs:
        raise WorkloadError(f"does not read {collective}; reorder what reads it", where=operation)
    if after.is_collective or after.kind == "compute":
        why = "is a collective itself" if after.is_collective else "does what is not known with what it reads"
        raise WorkloadError(f"{why}; it stays behind {collective}", where=operation)
    if moved.kind == "send" and (
        len(set(after.inputs)) > 1 or after.kind not in POINTWISE or after.kind == "dropout"
    ):
        said = f"depends on where its elements are, which {collective} changes; it stays behind it"
        raise WorkloadError(said, where=operation)
    before = workload.tensors[moved.inputs[0]]
    old = workload.tensors[operation]
    alike = {
        each.name: each.inputs[0]
        for each in workload.operations
        if each.kind == moved.kind and each.shift == moved.shift and each.name in after.inputs
        and workload.tensors[each.inputs[0]].layout == before.layout
    }  # fmt: skip
    alone = {collective: moved.inputs[0]}
    try:
        early, made = _retyped(workload, after, alike)
    except WorkloadError:
        if alike == alone:
            raise
        early, made = _retyped(workload, after, alone)
    if made.layout == old.layout and moved.kind != "send":
        steps = [replace(early, name=operation)]
    else:
        last = _mover(operation, made, old.layout, moved)
        early = replace(
            early, name=_fresh(workload, f"{operation}_{'part' if made.layout == 'partial' else 'slice'}")
        )
        steps = [early, replace(last, inputs=(early.name,))]
    return _without_unread(_with(workload, {operation: steps}), *alike)


@checked_as(WorkloadError)
def fuse(workload: Workload, collective: str, *operations: str) -> Workload:
    """The step with point-wise operations in the last step of a collective, which has the data in hand.

    They take no pass of their own over the collective's result; of other inputs they do.

    Parameters
    ----------
    workload : Workload
        Where all of them are.
    collective : str
        Into which they are fused.
    *operations : str
        Each reads the collective's result, or what is fused before it.

    Raises
    ------
    WorkloadError
        If an operation is not point-wise, does not read the collective or what is fused into it, or reads
        something that is not there before the collective begins.
    """
    if _of(workload, collective).kind not in COLLECTIVES:
        raise WorkloadError("is no collective; name the one that others are fused into", where=collective)
    inside = {collective, *(each.name for each in workload.operations if each.fused == collective)}
    behind = set(inside)
    for each in workload.operations:
        if behind.intersection(each.inputs):
            behind.add(each.name)
    for name in operations:
        found = _of(workload, name)
        if found.fused:
            raise WorkloadError(f"is fused into {found.fused} already; leave it there", where=name)
        if found.kind not in POINTWISE:
            said = (
                f"is a {found.kind}, which needs more than the element in hand; only point-wise "
                f"ones are fused"
            )
            raise WorkloadError(said, where=name)
        if not inside.intersection(found.inputs):
            raise WorkloadError(
                f"does not read {collective} or what is fused into it; fuse what does", where=name
            )
        late = [each for each in found.inputs if each in behind and each not in inside]
        if late:
            raise WorkloadError(
                f"reads {late[0]}, which is made after {collective}; it stays behind it", where=name
            )
        if workload.tensors[name].layout != workload.tensors[collective].layout:
            raise WorkloadError(f"is laid out otherwise than {collective}; it stays behind it", where=name)
        inside.add(name)
    return _with(workload, {name: [replace(_of(workload, name), fused=collective)] for name in operations})


@checked_as(WorkloadError)
def overlap(workload: Workload, operations: Sequence[str], *, tiles: Count, axis: Natural = 0) -> Workload:
    """The step with operations that run tile by tile, so that some compute while others communicate.

    Parameters
    ----------
    workload : Workload
        Where they are.
    operations : sequence of str
        Each but the first reads what others of them make.
    tiles : int
        Into so many what the first makes is cut.
    axis : int
        Along which.

    Raises
    ------
    WorkloadError
        If some tile needs more than the same tile of what it reads, tiles do not divide, or operations
        outside are in between.
    """
    for name in operations:
        _of(workload, name)
    if not operations:
        raise WorkloadError("found no operations; name those that are to overlap", where="overlap")
    inside = tuple(each.name for each in workload.operations if each.name in operations)
    return replace(
        workload, returned=_asked(workload), overlaps=(*workload.overlaps, Overlap(inside, tiles, axis))
    )


@checked_as(WorkloadError)
def slice_state(workload: Workload, *state: str) -> Workload:
    """The step with state of which every rank keeps its slice, and nobody all of it.

    What replaces the state must be made of slices already, and gathered last: `reorder` gets it there.

    Raises
    ------
    WorkloadError
        If it is no state, if its successor is not gathered or somebody reads all of it, or if something else
        that the step is for would change its layout.
    """
    successor = dict(workload.state)
    slices = {}
    for name in state:
        if name not in successor:
            advice = did_you_mean(name, list(successor))
            raise WorkloadError(f"is no state of the step{advice}; declare it with updating()", where=name)
        made = _free(workload, successor[name])
        if made.kind != "allgather":
            said = (
                f"is replaced by {made.name}, which a {made.kind} makes whole; put an allgather "
                f"behind it first"
            )
            raise WorkloadError(said, where=name)
        if made.name in workload.returned:
            said = f"is replaced by {made.name}, which the step is to return whole; return it otherwise"
            raise WorkloadError(said, where=name)
        if workload.readers[made.name]:
            said = f"{workload.readers[made.name][0]} reads all of what replaces it; reorder that first"
            raise WorkloadError(said, where=name)
        slices[name] = made
    result = workload
    layout = {name: workload.tensors[made.inputs[0]].layout for name, made in slices.items()}
    renamed = {made.inputs[0]: made.name for made in slices.values()}
    gone = {made.name for made in slices.values()}
    if len(renamed) < len(gone):
        raise WorkloadError("two states are replaced by the same slices; slice one", where=", ".join(state))
    operations = tuple(
        replace(
            each,
            name=renamed.get(each.name, each.name),
            inputs=tuple(renamed.get(name, name) for name in each.inputs),
            fused=renamed.get(each.fused, each.fused),
        )
        for each in workload.operations
        if each.name not in gone
    )
    inputs = tuple(replace(each, layout=layout.get(each.name, each.layout)) for each in workload.inputs)
    made_inputs = set(renamed).intersection(each.name for each in workload.inputs)
    if made_inputs:
        raise WorkloadError(
            "is replaced by an input; it is sliced by its declaration", where=min(made_inputs)
        )
    result = replace(workload, inputs=inputs, operations=operations, returned=_asked(workload))
    _same_outputs(workload, result, but=gone)
    return result


def _of(workload: Workload, name: str) -> Operation:
    if name not in workload.operation:
        advice = did_you_mean(name, list(workload.operation))
        raise WorkloadError(f"there is no such operation in {workload.name}{advice}", where=name)
    return workload.operation[name]


def _free(workload: Workload, name: str) -> Operation:
    """An operation that is not yet overlapped or fused, nor anything fused into it."""
    found = _of(workload, name)
    if name in workload.tiles_of:
        raise WorkloadError("overlaps with others already; do this first, and overlap last", where=name)
    if found.fused or any(each.fused == name for each in workload.operations):
        raise WorkloadError("is fused already; do this first, and fuse then", where=name)
    return found


def _fresh(workload: Workload, name: str) -> str:
    taken = workload.tensors
    return next(
        each for each in (name, *(f"{name}{i}" for i in range(2, len(taken) + 3))) if each not in taken
    )


def _retyped(
    workload: Workload, operation: Operation, instead: Mapping[str, str]
) -> tuple[Operation, Tensor]:
    """An operation with other inputs, and what it makes of them."""
    early = replace(operation, inputs=tuple(instead.get(name, name) for name in operation.inputs))
    return early, infer(early, workload.operands(early), workload.num_ranks)


def _mover(name: str, made: Tensor, layout: str, moved: Operation) -> Operation:
    """The collective that leads from what is made to the layout that it should have."""
    if moved.kind == "send":
        return replace(moved, name=name)
    if made.layout == "partial" and layout == "replicated":
        return Operation(name, "allreduce", ())
    if made.layout == "replicated" or layout == "partial":
        said = f"would make {made.layout} of what is before {moved.name}, where {layout} is wanted"
        raise WorkloadError(f"{said}; it stays behind it", where=name)
    if layout == "replicated":
        return Operation(name, "allgather", ())
    axis = Tensor(name, made.shape, layout=layout).axis
    return Operation(name, "reduce_scatter" if made.layout == "partial" else "alltoall", (), axis=axis)


def _asked(workload: Workload) -> tuple[str, ...]:
    """What is returned, named: what nobody reads may change otherwise."""
    new = {name for _, name in workload.state}
    return workload.returned or tuple(name for name in workload.outputs if name not in new)


def _with(workload: Workload, instead: Mapping[str, Sequence[Operation]]) -> Workload:
    """The step with operations in place of some."""
    operations = tuple(new for each in workload.operations for new in instead.get(each.name, (each,)))
    result = replace(workload, operations=operations, returned=_asked(workload))
    _same_outputs(workload, result)
    return result


def _same_outputs(workload: Workload, result: Workload, but: Sequence[str] | set[str] = ()) -> None:
    for name in workload.outputs:
        before, after = workload.tensors[name], result.tensors[name]
        if before.layout != after.layout and name not in but:
            said = (
                f"is {before.layout}, and would come out {after.layout}; the step is to return it as it was"
            )
            raise WorkloadError(said, where=name)


def _without_unread(workload: Workload, *names: str) -> Workload:
    """The step without those of some operations that nobody reads or wants."""
    unread = {name for name in names if not workload.readers[name] and name not in workload.outputs}
    return replace(
        workload, operations=tuple(each for each in workload.operations if each.name not in unread)
    )

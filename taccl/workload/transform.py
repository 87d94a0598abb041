"""Transformations of steps that keep what they mean, each refused where it would not.

Whether one is legal follows from layouts: what it makes is inferred anew (`operations.infer`), and what the
step is for must come out in the layouts that it had.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from taccl.arguments import checked_as
from taccl.errors import WorkloadError
from taccl.names import did_you_mean
from taccl.workload.operations import POINTWISE, Operation, Tensor, infer, refuse_first
from taccl.workload.workload import Overlap, Workload

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from taccl.arguments import Count, Natural


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
    if found.kind == "norm":
        squares = Operation(_fresh(workload, f"{operation}_squares"), "sum_of_squares", found.inputs)
        return _with(workload, {operation: [squares, replace(found, kind="sqrt", inputs=(squares.name,))]})
    if found.kind != "allreduce":
        raise WorkloadError(f"is a {found.kind}; an allreduce or a norm can be split", where=operation)
    shape = workload.tensors[operation].shape
    if axis is None:
        axis = next((i for i, length in enumerate(shape) if length % workload.num_ranks == 0), None)
    if axis is None:
        said = f"no axis of shape {shape} divides into {workload.num_ranks} slices; pad one"
        raise WorkloadError(said, where=operation)
    scatter = Operation(_fresh(workload, f"{operation}_slice"), "reduce_scatter", found.inputs, axis=axis)
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
    is_send = moved.kind == "send"
    by_place = len(set(after.inputs)) > 1 or after.kind not in POINTWISE or after.kind == "dropout"
    why = "is a collective itself" if after.is_collective else "does what is not known with what it reads"
    refuse_first(collective, (not moved.is_collective, f"is a {moved.kind}; name a collective"))
    refuse_first(
        operation,
        (collective not in after.inputs, f"does not read {collective}; reorder what reads it"),
        (after.is_collective or after.kind == "compute", f"{why}; it stays behind {collective}"),
        (is_send and by_place, f"depends on where its elements are, which {collective} changes; it stays "
         "behind it"),
    )  # fmt: skip
    before, old = workload.tensors[moved.inputs[0]], workload.tensors[operation]
    alike = {
        each.name: each.inputs[0]
        for each in workload.operations
        if each.kind == moved.kind and each.shift == moved.shift and each.name in after.inputs
        and workload.tensors[each.inputs[0]].layout == before.layout
    }  # fmt: skip
    for last, instead in ((False, alike), (True, {collective: moved.inputs[0]})):
        early = replace(after, inputs=tuple(instead.get(name, name) for name in after.inputs))
        try:
            made = infer(early, workload.operands(early), workload.num_ranks)
            break
        except WorkloadError:
            if last:
                raise
    if made.layout == old.layout and not is_send:
        steps = [early]
    else:
        fresh = _fresh(workload, f"{operation}_{'part' if made.layout == 'partial' else 'slice'}")
        mover = replace(_mover(operation, made, old.layout, moved), inputs=(fresh,))
        steps = [replace(early, name=fresh), mover]
    result = _with(workload, {operation: steps})
    unread = {name for name in alike if not result.readers[name] and name not in result.outputs}
    return replace(result, operations=tuple(each for each in result.operations if each.name not in unread))


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
    _of(workload, collective)
    for name in operations:
        if into := _of(workload, name).fused:
            raise WorkloadError(f"is fused into {into} already; leave it there", where=name)
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
    successor, inputs = dict(workload.state), {each.name for each in workload.inputs}
    slices: dict[str, str] = {}  # by the name of an allgather: that of the slices that it gathers
    layout: dict[str, str] = {}
    for name in state:
        if name not in successor:
            advice = did_you_mean(name, list(successor))
            raise WorkloadError(f"is no state of the step{advice}; declare it with updating()", where=name)
        made = _free(workload, successor[name])
        source = made.inputs[0] if made.inputs else ""
        reader = next(iter(workload.readers[made.name]), "")
        refuse_first(
            name,
            (made.kind != "allgather", f"is replaced by {made.name}, which a {made.kind} makes whole; put an "
             "allgather behind it first"),
            (made.name in workload.returned, f"is replaced by {made.name}, which the step is to return "
             "whole; return it otherwise"),
            (reader, f"{reader} reads all of what replaces it; reorder that first"),
            (source in inputs, "is replaced by an input; it is sliced by its declaration"),
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
    """An operation that is not yet overlapped or fused, nor anything fused into it."""
    found = _of(workload, name)
    if workload.tiling(name).overlap is not None:
        raise WorkloadError("overlaps with others already; do this first, and overlap last", where=name)
    if found.fused or any(each.fused == name for each in workload.operations):
        raise WorkloadError("is fused already; do this first, and fuse then", where=name)
    return found


def _fresh(workload: Workload, name: str) -> str:
    every = itertools.chain([name], (f"{name}{i}" for i in itertools.count(2)))
    return next(each for each in every if each not in workload.tensors)


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
    return _same(workload, replace(workload, operations=operations, returned=_asked(workload)))


def _same(workload: Workload, result: Workload, but: Collection[str] = ()) -> Workload:
    """The result, if what the step is for, and what kernels that nobody knows read, is laid out as before."""
    read = {name for each in result.operations if each.kind == "compute" for name in each.inputs}
    for name in sorted({*workload.outputs, *read} - {*but}):
        before, after = workload.tensors.get(name), result.tensors[name]
        if before is not None and before.layout != after.layout:
            said = f"is {before.layout}, and would come out {after.layout}; it is wanted as it was"
            raise WorkloadError(said, where=name)
    return result

"""Kernels, each of which is a collective or a computation, with the operations fused into it.

The first operation of a kernel is its *head*. If the head is a collective, the other operations run in its
last step, on each element that has arrived. Otherwise the kernel is one launch: it starts when all its
operands are ready, and reads and writes each tensor at most once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl.errors import WorkloadError
from taccl.workload.operations import POINTWISE, REDUCTIONS, refuse_first

if TYPE_CHECKING:
    from taccl.workload.operations import Operation
    from taccl.workload.workload import Workload


def kernel(workload: Workload, name: str) -> list[str]:
    """Names of the operations in the kernel that contains operation `name`, the head first."""
    return workload.kernels[workload.operation[name].fused or name]


def is_computed(workload: Workload, name: str) -> bool:
    """True if an operation belongs to a compute kernel of several operations."""
    head = workload.operation[workload.operation[name].fused or name]
    return not head.is_collective and len(kernel(workload, name)) > 1


def waits(workload: Workload) -> dict[str, tuple[str, ...]]:
    """{operation: tensors that must be ready before it starts}.

    A fused operation also waits for its head. The head of a compute kernel waits for all operands of the
    kernel.
    """
    found = {each.name: [*each.inputs, *([each.fused] if each.fused else [])] for each in workload.operations}
    for each in workload.operations:
        if each.fused and not workload.operation[each.fused].is_collective:
            inside = workload.kernels[each.fused]
            found[each.fused] += [name for name in each.inputs if name not in inside]
    return {name: tuple(dict.fromkeys(names)) for name, names in found.items()}


def bytes_written(workload: Workload, operation: Operation) -> int:
    """Number of bytes of an operation's result that a rank writes, in a kernel of several operations.

    0 if only operations of the same kernel read the result, and it is no output. State is written in full. If
    no operation outside the kernel reads the result of its collective, the receive buffer of the collective
    holds another result: the last one, other than state, that is read elsewhere. Only its bytes beyond the
    buffer's size count.
    """
    group = kernel(workload, operation.name)
    state = {new for _, new in workload.state}
    kept = [
        name for name in group if name in workload.outputs or not set(workload.readers[name]) <= set(group)
    ]
    num_bytes = {name: workload.tensors[name].local_bytes(workload.grid) for name in group}
    if operation.name not in kept:
        return 0
    buffered = next((name for name in reversed(kept) if name not in state), "")
    has_buffer = workload.operation[group[0]].is_collective and group[0] not in kept
    if operation.name == buffered and has_buffer:
        return max(0, num_bytes[operation.name] - num_bytes[group[0]])
    return num_bytes[operation.name]


def check_kernels(workload: Workload) -> None:
    """Raise `WorkloadError` unless every fused operation can run in the kernel of its head."""
    for each in workload.operations:
        if each.fused:
            _check_fused(workload, each)


def _check_fused(workload: Workload, operation: Operation) -> None:
    into = operation.fused
    if into not in workload.operation:
        raise WorkloadError("is not an operation; name the kernel's first operation", where=into)
    head, place = workload.operation[into], workload.place
    refuse_first(
        into,
        (head.fused, f"is itself fused into {head.fused}; fuse into that"),
        (head.kind in REDUCTIONS, f"is a {head.kind}, which can only end a kernel; name another"),
        (
            place[into] > place[operation.name],
            f"follows {operation.name}; name the kernel's first operation",
        ),
    )  # fmt: skip
    inside = set(workload.kernels[into])
    beside = [name for name in operation.inputs if name not in inside]
    late = next(
        (name for name in beside if name in workload.operation and workload.needed(name) & inside), ""
    )
    is_fed = beside != [*operation.inputs]
    fed = [name for name in workload.readers[operation.name] if name in inside]
    ends_kernel = operation.kind in REDUCTIONS and not head.is_collective
    # For a reduction, the layout of its operand is compared, as its result is one number.
    laid_out = operation.inputs[0] if ends_kernel else operation.name
    is_apart = workload.tensors[laid_out].layout != workload.tensors[into].layout
    refuse_first(
        operation.name,
        (
            operation.kind not in POINTWISE and not ends_kernel,
            f"is a {operation.kind}; fuse only point-wise operations",
        ),
        (
            ends_kernel and fed,
            f"is a {operation.kind}, which {next(iter(fed), '')} reads in the same kernel; fuse it elsewhere",
        ),
        (not is_fed and not fed, f"does not read {into} or its fused operations; fuse one that does"),
        (not is_fed and workload.tensors[operation.name].shape != workload.tensors[into].shape,
         f"differs in shape from {into} and reads nothing of its kernel; keep it before {into}"),
        (late, f"reads {late}, which is made after {into}; keep it after {into}"),
        (is_apart, f"differs in layout from {into}; keep it after {into}"),
        (workload.tiling(into).overlap is not workload.tiling(operation.name).overlap,
         f"is fused into {into}, but only one of the two overlaps; overlap both"),
    )  # fmt: skip

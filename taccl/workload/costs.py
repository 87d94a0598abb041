"""Times of a step's operations at a rank: as stated, or a roofline of FLOPs and memory bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from taccl._internal.arguments import checked_as
from taccl._internal.units import exact
from taccl.errors import WorkloadError
from taccl.workload.meaning import places_read
from taccl.workload.operations import DTYPE_BYTES

if TYPE_CHECKING:
    from taccl.workload.operations import Operation
    from taccl.workload.workload import Workload


@checked_as(WorkloadError)
@dataclass(frozen=True, slots=True)
class Rates:
    """Peak rates of a rank's processor: TFLOPS, and GB of memory traffic per second."""

    tflops: float
    gb_per_s: float

    def __post_init__(self) -> None:
        if not (0 < self.tflops < math.inf and 0 < self.gb_per_s < math.inf):
            raise WorkloadError(
                f"found tflops {self.tflops} and gb_per_s {self.gb_per_s}; expected numbers above 0"
            )


#: Peaks from NVIDIA's data sheets: dense 16-bit matrix products, and memory bandwidth. A100 80 GB SXM, H100
#: SXM, V100 SXM2 32 GB.
RATES = {
    "dgx-a100": Rates(312, 2039), "dgx-h100": Rates(989, 3350), "dgx1": Rates(125, 900),
    "dgx2": Rates(125, 900), "ndv2": Rates(125, 900),
}  # fmt: skip


def work_of(workload: Workload, operation: Operation) -> tuple[float, float]:
    """Floating-point operations and bytes of memory traffic of an operation at one rank.

    Every input is read once, even if it is named twice, and the result is written once. An operation that is
    fused into a collective does not read the collective's result from memory, nor results of operations fused
    before it. It writes its own result only where that is kept (`_fused_bytes_written`).
    """
    ranks, out, tensors = workload.num_ranks, workload.tensors[operation.name], workload.operands(operation)
    written, *held = ([*map(range, each.local_shape(ranks))] for each in (out, *tensors))
    read = places_read(operation, out, tensors, held, written)
    size = math.prod(map(len, written))
    flops = 2.0 * size * len(read[0][-1]) if operation.kind == "matmul" else 0.0
    in_hand = _fused_group(workload, operation.fused) if operation.fused else ()
    num_bytes = float(
        _fused_bytes_written(workload, operation) if operation.fused else size * DTYPE_BYTES[out.dtype]
    )
    reads: dict[str, int] = {}
    for tensor, here in zip(tensors, read, strict=True):
        # A product of a tensor with itself reads no more than the larger of its two operands.
        own = math.prod(map(len, here)) * DTYPE_BYTES[tensor.dtype]
        reads[tensor.name] = max(own, reads.get(tensor.name, 0))
    num_bytes += sum(own for name, own in reads.items() if name not in in_hand)
    return (
        flops if operation.flops is None else operation.flops,
        num_bytes if operation.memory_bytes is None else operation.memory_bytes,
    )


def _fused_group(workload: Workload, collective: str) -> list[str]:
    """Names of a collective and of the operations that are fused into it, in program order."""
    return [each.name for each in workload.operations if collective in (each.name, each.fused)]


def _fused_bytes_written(workload: Workload, operation: Operation) -> int:
    """Number of bytes that a rank writes of the result of a fused operation.

    0 if only operations fused into the same collective read the result. State is written in full. The buffer
    that the collective's transfers fill can hold one more result: the last one, other than state, that is
    read elsewhere. Only the bytes of that result that exceed the buffer are written.
    """
    group = _fused_group(workload, operation.fused)
    state = {new for _, new in workload.state}
    kept = [
        name for name in group if name in workload.outputs or not set(workload.readers[name]) <= set(group)
    ]
    num_bytes = {name: workload.tensors[name].local_bytes(workload.num_ranks) for name in group}
    if operation.name not in kept:
        return 0
    buffered = next((name for name in reversed(kept) if name not in state), "")
    if operation.name == buffered and operation.fused not in kept:
        return max(0, num_bytes[operation.name] - num_bytes[operation.fused])
    return num_bytes[operation.name]


def tile_costs(
    workload: Workload, rates: Rates | None, communication_share: float = 0.0
) -> dict[str, Fraction]:
    """{operation: time of one tile at a rank in us}, without communication; 0 for collectives.

    Raises `WorkloadError` if neither the cost of an operation nor the machine's rates are known.
    """
    share = exact(communication_share)
    return {
        each.name: _whole_us(workload, each, rates) / workload.tiling(each.name).tiles / (1 - share)
        for each in workload.operations
    }


def _whole_us(workload: Workload, operation: Operation, rates: Rates | None) -> Fraction:
    if operation.is_collective:
        return Fraction(0)
    if operation.cost_us is not None:
        return Fraction(operation.cost_us)
    flops, num_bytes = work_of(workload, operation)
    if not flops and not num_bytes:
        return Fraction(0)
    if rates is None:
        said = "has no cost_us, and the machine's rates are not known; give one, or rates="
        raise WorkloadError(f"{said}Rates(tflops, gb_per_s)", where=operation.name)
    # Rounded up to the picosecond, as times of sends have no finer ticks.
    picoseconds = max(flops / rates.tflops, num_bytes * 1e3 / rates.gb_per_s)
    return Fraction(math.ceil(picoseconds), 10**6)

"""Times of a step's operations at a rank, as the user states them or from a roofline of FLOPs and bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from taccl._internal.arguments import checked_as
from taccl._internal.units import exact
from taccl.errors import WorkloadError
from taccl.workload.kernels import bytes_written, is_computed, kernel
from taccl.workload.kinds import TABLE
from taccl.workload.meaning import places_read
from taccl.workload.operations import DTYPE_BYTES, Operation
from taccl.workload.workload import Workload


@checked_as(WorkloadError)
@dataclass(frozen=True, slots=True)
class Rates:
    """Peak rates of a rank's processor: TFLOPS, and memory bandwidth in GB/s."""

    tflops: float
    gb_per_s: float

    def __post_init__(self) -> None:
        if not (0 < self.tflops < math.inf and 0 < self.gb_per_s < math.inf):
            raise WorkloadError(
                f"found tflops {self.tflops} and gb_per_s {self.gb_per_s}; expected numbers above 0"
            )


#: {machine: peak rates of NVIDIA's data sheets}: dense 16-bit matrix products, and memory bandwidth.
#: The GPUs are A100 80 GB SXM, H100 SXM and V100 SXM2 32 GB.
RATES = {
    "dgx-a100": Rates(312, 2039), "dgx-h100": Rates(989, 3350), "dgx1": Rates(125, 900),
    "dgx2": Rates(125, 900), "ndv2": Rates(125, 900),
}  # fmt: skip


def rates_of(tflops: float | None, gb_per_s: float | None) -> Rates | None:
    """Rates of a processor; None if neither rate is given. Raises `WorkloadError` if only one is given."""
    if tflops is None and gb_per_s is None:
        return None
    if tflops is None or gb_per_s is None:
        absent, given = ("tflops", "gb_per_s") if tflops is None else ("gb_per_s", "tflops")
        raise WorkloadError(f"found none beside {given}; give both, or neither", where=absent)
    return Rates(tflops, gb_per_s)


def work_of(workload: Workload, operation: Operation) -> tuple[float, float]:
    """Floating-point operations and bytes of memory traffic of an operation at one rank.

    Every input is read once, even if it is named twice, and the result is written once. In a kernel of
    several operations, results of the kernel and tensors already read are not read from memory again. A
    result is written only where it is needed later (`taccl.workload.kernels.bytes_written`).
    """
    ranks, out, tensors = workload.grid, workload.tensors[operation.name], workload.operands(operation)
    written, *held = ([*map(range, each.local_shape(ranks))] for each in (out, *tensors))
    read = places_read(operation, out, tensors, held, written)
    size = math.prod(map(len, written))
    lengths = [tuple(map(len, each)) for each in (written, *read)]
    flops = TABLE[operation.kind].work(operation, lengths[0], lengths[1:]) if operation.kind in TABLE else 0.0
    in_hand = _at_hand(workload, operation)
    is_alone = not operation.fused and not is_computed(workload, operation.name)
    num_bytes = float(size * DTYPE_BYTES[out.dtype] if is_alone else bytes_written(workload, operation))
    reads: dict[str, int] = {}
    for tensor, here in zip(tensors, read, strict=True):
        # A tensor that is read twice, as in a product with itself, counts once, with the larger of the reads.
        own = math.prod(map(len, here)) * DTYPE_BYTES[tensor.dtype]
        reads[tensor.name] = max(own, reads.get(tensor.name, 0))
    num_bytes += sum(own for name, own in reads.items() if name not in in_hand)
    return (
        flops if operation.flops is None else operation.flops,
        num_bytes if operation.memory_bytes is None else operation.memory_bytes,
    )


def _at_hand(workload: Workload, operation: Operation) -> set[str]:
    """Tensors that an operation's kernel holds in registers when the operation runs."""
    group = kernel(workload, operation.name)
    earlier = group[: group.index(operation.name)]
    return {*group, *(name for each in earlier for name in workload.operation[each].inputs)}


def tile_costs(
    workload: Workload, rates: Rates | None, communication_share: float = 0.0
) -> dict[str, Fraction]:
    """{operation: computation time of one tile at a rank in us}; 0 for collectives.

    The first operation of a compute kernel has the time of the whole kernel; its other operations have 0.

    - `communication_share`: Fraction of the processor reserved for communication; times are divided by
      1 minus this share.

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
    group = [operation]
    if is_computed(workload, operation.name):
        if operation.fused:
            return Fraction(0)
        group = [workload.operation[name] for name in kernel(workload, operation.name)]
    stated = sum((Fraction(each.cost_us) for each in group if each.cost_us is not None), Fraction(0))
    work = [work_of(workload, each) for each in group if each.cost_us is None]
    flops, num_bytes = (sum(each) for each in zip(*work, strict=True)) if work else (0.0, 0.0)
    if not flops and not num_bytes:
        return stated
    if rates is None:
        named = next(each.name for each in group if each.cost_us is None)
        said = "has no cost_us, and the rates of the machine's processors are not known"
        raise WorkloadError(f"{said}; give it one, or give tflops=... and gb_per_s=...", where=named)
    # Round up to whole picoseconds, the finest tick of sends.
    picoseconds = max(flops / rates.tflops, num_bytes * 1e3 / rates.gb_per_s)
    return stated + Fraction(math.ceil(picoseconds), 10**6)

"""Chunks of NCCL's rings: their rounding under LL128, and the copy of the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taccl.topology.tuning import (
    PROTOCOLS,
    RING_CHUNK_BYTES,
    RING_COPY,
    RING_LL128_BYTES,
    RING_LL128_VERSION,
    RING_LL128_WHOLE_BYTES,
)

if TYPE_CHECKING:
    from taccl._internal.arrays import Floats
    from taccl.measure.library import Run

#: Collectives whose rings cut data into a chunk for each rank.
_CUT = ("allreduce", "allgather", "reduce-scatter")


def ring_data_us(run: Run, p: int, gb_per_s: float) -> Floats:
    """Time in us of a ring's data, for each size: its chunks on all hops, and the copy of the last chunk.

    Under simple, a rank copies its last chunk out of the buffer, and sends nothing meanwhile.

    - `p`: Index of the protocol in `PROTOCOLS`.
    - `gb_per_s`: Rate at which a rank sends through all channels.
    """
    name, costs, bytes_per_us = PROTOCOLS[p].name, run.costs, gb_per_s * 1000
    num = 2 * run.num_channels  # NCCL doubles the channels that it found
    size, copied = run.size, np.zeros_like(run.size)
    is_old = bool(costs.generation) and costs.is_before(*RING_LL128_VERSION)
    if is_old and (name, run.collective) == ("ll128", "allreduce"):
        size = whole_chunks(size, num * run.num_ranks)
    if name == "simple" and run.collective in _CUT and not costs.pcie:
        chunk = np.minimum(size / (num * run.num_ranks), RING_CHUNK_BYTES)
        copied = RING_COPY.get(costs.generation, 0.0) * chunk * num
    return np.asarray((size * run.num_steps / run.num_ranks + copied) / bytes_per_us)


def whole_chunks(size: Floats, num_parts: int) -> Floats:
    """Bytes of a ring under LL128 if all chunks are as large as the largest, which determines its time.

    Chunks are multiples of a unit. Full chunks come first, in loops of one chunk for each channel and rank.

    - `num_parts`: Number of chunks of a loop: channels times ranks.
    """
    loop, unit = num_parts * RING_LL128_WHOLE_BYTES, num_parts * RING_LL128_BYTES
    rest = size % loop
    return np.asarray(size - rest + np.minimum(np.ceil(rest / unit) * unit, loop))

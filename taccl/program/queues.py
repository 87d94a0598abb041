"""Capacity of a queue between two ranks: number of messages, and chunks per message.

The kernels of MSCCL cut a step of several chunks into messages of at most one buffer slot each. A queue holds
a fixed number of messages (`PROTOCOLS`), however small they are. So a step of several small chunks is one
message, and the same step of large chunks is several.

The number of messages of a step never decreases as sizes grow. A program that runs to its end with some
number of messages per step does so with fewer. Proof: keep the last messages of every step, at both ends, at
their times in that run. Every queue then holds no more than it did, and each message still comes before its
receive. A step begins no earlier and ends when it did. So a program that hangs at one size hangs at every
larger one.

Large chunks are sent in several rounds of all steps. A round that ends leaves every queue empty. Whether a
program hangs does not depend on timing, so one round decides for all.

Sources: ``msccl_setup.cc`` and ``msccl_kernel_impl.h`` of RCCL 2.21.5, ``enqueue.cc`` and
``msccl_interpreter.h`` of microsoft/msccl (NCCL 2.12.12), and ``msccl_setup.cc`` of Azure/msccl-executor-nccl
(NCCL 2.23.4).
"""

from __future__ import annotations

from taccl.program.program import Program

#: Largest size in bytes if there is no limit.
NO_LIMIT = 2**63 - 1
#: Max chunks per message (``MSCCL_MAX_COUNT - 1``).
MAX_CHUNKS = 71
#: Max payload of a message in bytes, by library and protocol, with the default buffer sizes. Simple:
#: half of a 4 MiB buffer. LL: half of a slot of 8 lines x 16 bytes x 512 (NCCL) or 256 (RCCL) threads. LL128:
#: 15/16 of a slot of 120 x 640 words (NCCL), 7/8 of one of 28 x 256 words (RCCL).
LIBRARIES = {
    "NCCL": {"Simple": 2**21, "LL": 2**15, "LL128": 576_000},
    "RCCL": {"Simple": 2**21, "LL": 2**14, "LL128": 50_176},
}
#: Collectives whose messages use one slot of the Simple buffer, not four (``BROADCAST_CHUNKSTEPS``,
#: ``REDUCE_CHUNKSTEPS``).
_ONE_STEP = ("broadcast", "reduce")


def chunks_per_message(program: Program, size_bytes: int, library: str) -> int:
    """Max chunks per message of a library, at a size in bytes as nccl-tests counts it."""
    chunk_bytes = max(-(-size_bytes // program.size_chunks), 1)
    return min(max(_payload(program, library) // chunk_bytes, 1), MAX_CHUNKS)


def fewest_chunks(program: Program, size_bytes: int) -> int:
    """Max chunks per message of the library with the smallest messages, at a size in bytes."""
    return min(chunks_per_message(program, size_bytes, each) for each in LIBRARIES)


def first_size(program: Program, chunks: int, library: str) -> int:
    """Smallest size in bytes at which a message carries at most `chunks` chunks, fewer than `MAX_CHUNKS`."""
    return _payload(program, library) // (chunks + 1) * program.size_chunks + 1


def _payload(program: Program, library: str) -> int:
    payload = LIBRARIES[library][program.protocol]
    is_one_step = program.collective is not None and program.collective.name in _ONE_STEP
    return payload // 4 if is_one_step and program.protocol == "Simple" else payload

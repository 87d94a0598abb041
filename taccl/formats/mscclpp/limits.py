"""Limits of the MSCCL++ executor on one rank's part of a plan, and the operations that can be simulated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taccl.errors import FormatError

#: Operations that the simulated executor supports.
OPERATIONS = (
    "nop", "put", "ppkt", "copy", "upkt", "re", "repkt", "signal", "wait", "flush", "sem_acquire",
    "sem_release",
)  # fmt: skip
#: Limits of MSCCL++ 0.9.0 (``src/core/include/execution_common.hpp``).
#: `_MAX_OPERATIONS`: max operations of a threadblock.
#: `_MAX_IDS`: max ids in a list of channels or remote buffers of a threadblock, or of semaphores of an
#: operation.
#: `_MAX_CHANNELS`: max channels of an operation.
#: `_MAX_BUFFERS`: max buffers of an operation.
_MAX_OPERATIONS, _MAX_IDS, _MAX_CHANNELS, _MAX_BUFFERS = 64, 16, 8, 10


def check_gpu(gpu: Mapping[str, Any], r: int) -> None:
    """Raise `FormatError` if a rank's part of a plan exceeds limits or has unsupported operations."""
    if gpu["id"] != r:
        raise FormatError(f"found gpu {gpu['id']} in place {r}; expected them in order", where="plan")
    if gpu["input_chunks"] < 1 or gpu["output_chunks"] < 1:
        raise FormatError(
            f"gpu {r} has {gpu['input_chunks']} input and {gpu['output_chunks']} output chunks; expected at "
            "least one each, as only such plans can be checked here",
            where="plan",
        )
    for t, threadblock in enumerate(gpu["threadblocks"]):
        where, ops = f"threadblock {t} of gpu {r}", threadblock["ops"]
        lists = [each["channel_ids"] for each in threadblock["channels"]]
        lists += [each["remote_buffer_ids"] for each in threadblock["remote_buffer_refs"]]
        lists += [op.get("semaphore_ids", ()) for op in ops]
        if threadblock["id"] != t:
            raise FormatError(f"found id {threadblock['id']}; expected {t}", where=where)
        channels = max((len(op.get("channel_ids", ())) for op in ops), default=0)
        buffers = max((len(op.get(end, ())) for op in ops for end in ("src_buff", "dst_buff")), default=0)
        for found, most, what in (
            (len(ops), _MAX_OPERATIONS, "operations"),
            (channels, _MAX_CHANNELS, "channels of an operation"),
            (buffers, _MAX_BUFFERS, "buffers of an operation"),
            (max(map(len, lists), default=0), _MAX_IDS, "channels, buffers or semaphores in a list"),
        ):
            if found > most:
                raise FormatError(f"found {found} {what}; expected at most {most}", where=where)
        unknown = next((op["name"] for op in ops if op["name"] not in OPERATIONS), None)
        if unknown is not None:
            said = f"found operation {unknown!r}, which cannot be checked here"
            known = ", ".join(OPERATIONS)
            raise FormatError(f"{said}; run the plan with MSCCL++, or use only {known}", where=where)

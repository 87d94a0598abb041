"""Collectives and operations of MSCCL++ plans that can be run here, and limits of the executor on a rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from taccl._internal.names import quoted
from taccl.errors import FormatError
from taccl.formats.program_kind import ProgramKind, collective_of
from taccl.problem.collective import Collective


class Flow(NamedTuple):
    """Sources and destinations of a GPU operation that copies a source, or the sum of its sources.

    Each is the rank's own chunks (``"own"``) or those of another rank (``"remote"``). It may also be packets
    in the rank's scratch (``"packets"``), or in another rank's scratch (``"remote packets"``). Empty: none.
    """

    source: str
    further_sources: str
    destination: str
    second_destination: str = ""
    further_destinations: str = ""


#: {operation: its flow}.
FLOWS = {
    "copy": Flow("own", "", "own"),
    "re": Flow("own", "own", "own"),
    "res": Flow("own", "own", "own", "remote", "remote"),
    "rre": Flow("own", "remote", "own"),
    "rres": Flow("own", "remote", "own", "remote", "remote"),
    "cpkt": Flow("own", "", "packets"),
    "upkt": Flow("packets", "", "own"),
    "repkt": Flow("own", "packets", "own"),
    "recpkt": Flow("own", "packets", "own", "packets"),
    "respkt": Flow("own", "packets", "own", "remote packets", "remote packets"),
    "recspkt": Flow("own", "packets", "own", "packets", "remote packets"),
    "rppkt": Flow("packets", "", "remote packets", "remote packets", "remote packets"),
}
#: Operations that the simulated executor supports.
OPERATIONS = (
    "nop", "barrier", "get", "put", "pws", "pwsf", "ppkt", *FLOWS, "signal", "wait", "rlxsignal", "rlxwait",
    "flush", "sem_acquire", "sem_release", "pipeline",
)  # fmt: skip
#: Operations that can be checked only over memory channels, where threads copy, not over ports of NICs.
_OF_THREADS = ("get", *(name for name in FLOWS if name != "rppkt"))
#: {operation on packets: number of its leading sources that are not packets}.
FIRST_PACKET = {name: int(flow.source != "packets") for name, flow in FLOWS.items() if "packets" in flow[:2]}
#: Errors for scratch that cannot be checked: `FIXED`: the executor leaves data other than packets of other
#: ranks in the first half, while local accesses change halves. `SHARED`: the next call may come too early.
FIXED = "found data in scratch other than packets, with use_double_scratch_buffer; use packets alone there"
SHARED = (
    "found packets to another rank without use_double_scratch_buffer; set it, as the order of two calls that "
    "share scratch cannot be checked here"
)
#: Limits of MSCCL++ 0.9.0 (``src/core/include/execution_common.hpp``).
#: `_MAX_OPERATIONS`: max operations of a threadblock.
#: `_MAX_IDS`: max channels or remote buffers that a threadblock lists, or semaphores that an operation lists.
#: `_MAX_CHANNELS`: max channels of an operation.
#: `_MAX_BUFFERS`: max buffers of an operation.
#: `_MAX_BARRIERS`: max barriers of a rank.
_MAX_OPERATIONS, _MAX_IDS, _MAX_CHANNELS, _MAX_BUFFERS, _MAX_BARRIERS = 64, 16, 8, 10, 16


#: Max chunks of a buffer, or value of a semaphore at its start, so that checks take seconds; our choice.
_MOST_CHUNKS = 1 << 20
#: Bytes of scratch that plans with ``reuse_resources`` share (``PREDFINED_SCRATCH_SIZE``).
_REUSED_SCRATCH_BYTES = 1 << 26
#: {name of a collective in plans: collective that defines the outputs to check}.
_KINDS = {
    "allgather": "allgather", "allreduce": "allreduce", "reducescatter": "reduce_scatter",
    "alltoall": "alltoall", "broadcast": "broadcast", "reduce": "reduce",
}  # fmt: skip


def collective_of_plan(plan: Mapping[str, Any], root: int) -> Collective | None:
    """Collective of a plan; None if its name is unknown."""
    if plan["collective"] not in _KINDS:
        return None
    size = max(plan["gpus"][0]["input_chunks"], plan["gpus"][0]["output_chunks"])
    return collective_of(ProgramKind(_KINDS[plan["collective"]], size, root), len(plan["gpus"]))


def flat_operations(ops: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the operations of a threadblock, each pipeline before those that it repeats."""
    for op in ops:
        yield op
        yield from op["ops"] if op["name"] == "pipeline" else ()


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
    sizes = [gpu[f"{name}_chunks"] for name in ("input", "output", "scratch")]
    if max(sizes) > _MOST_CHUNKS:
        said = f"found {max(sizes)} chunks in a buffer of gpu {r}; expected at most {_MOST_CHUNKS}"
        raise FormatError(f"{said}, as only such plans can be checked here", where="plan")
    signals = max((each["init_value"] for each in gpu.get("semaphores", ())), default=0)
    if signals > _MOST_CHUNKS:
        said = f"found a semaphore of gpu {r} that begins at {signals}; expected at most {_MOST_CHUNKS}"
        raise FormatError(f"{said}, as only such plans can be checked here", where="plan")
    for t, threadblock in enumerate(gpu["threadblocks"]):
        where, ops = f"threadblock {t} of gpu {r}", [*flat_operations(threadblock["ops"])]
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
            (max((op.get("barrier_id", 0) + 1 for op in ops), default=0), _MAX_BARRIERS, "barriers"),
        ):
            if found > most:
                raise FormatError(f"found {found} {what}; expected at most {most}", where=where)
        unknown = next((op["name"] for op in ops if op["name"] not in OPERATIONS), None)
        if unknown is not None:
            said = f"found operation {unknown!r}, which cannot be checked here"
            known = ", ".join(OPERATIONS)
            raise FormatError(f"{said}; run the plan with MSCCL++, or use only {known}", where=where)
        longest = max((op["iter_context"]["num_chunks"] for op in ops if op["name"] == "pipeline"), default=0)
        if longest > max(sizes):
            said = f"found a pipeline of {longest} chunks"
            raise FormatError(f"{said}; gpu {r} has buffers of at most {max(sizes)}", where=where)
        for group in (op["tbg_info"] for op in ops if "tbg_info" in op):
            if not 0 <= group["tb_id"] < group["tbg_size"]:
                said = (
                    f"found tb_id {group['tb_id']} in a group of {group['tbg_size']} threadblocks (tbg_info)"
                )
                raise FormatError(f"{said}; expected one from 0 on", where=where)
        if any(op["name"] == "pipeline" for each in ops for op in each.get("ops", ())):
            raise FormatError("found a pipeline in a pipeline; expected operations", where=where)
        of_nic = next(
            (op for op in ops if op["name"] in _OF_THREADS and op.get("channel_type") == "port"), None
        )
        if of_nic is not None:
            said = f"found operation {of_nic['name']!r} over a port channel, which cannot be checked here"
            raise FormatError(f"{said}; run the plan with MSCCL++, or use a memory channel", where=where)
        other = next((op for op in ops if op.get("reduce_op", "sum") != "sum"), None)
        if other is not None:
            said = f"found the reduction {quoted(other['reduce_op'])} of {other['name']}"
            raise FormatError(f"{said}; expected sum, which alone can be checked here", where=where)


def reused_scratch_bytes(plan: Mapping[str, Any]) -> int | None:
    """Max message size whose chunks fit into the scratch of a plan with ``reuse_resources``; None if any.

    The executor cuts scratch of fixed size into slots, one for each chunk. Larger chunks are written past
    their slots, except in pipelines.
    """
    if not plan.get("reuse_resources"):
        return None
    half = _REUSED_SCRATCH_BYTES // (2 if plan.get("use_double_scratch_buffer") else 1)
    fits = [
        half // gpu["scratch_chunks"]
        * gpu["output_chunks" if plan["collective"] == "allgather" else "input_chunks"]
        for gpu in plan["gpus"]
        if gpu["scratch_chunks"]
    ]  # fmt: skip
    return min(fits, default=None)

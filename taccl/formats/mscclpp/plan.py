"""Write programs as MSCCL++ execution plans, the JSON that the executor of MSCCL++ runs.

Every send becomes a put into the receiver's memory and a signal after it; every receive becomes a wait for
that signal. `taccl.formats.mscclpp.messages` chooses where messages land, and which sends wait for room.
Within a node, data goes over memory channels, written by the GPU's own threads. Between nodes it goes over
port channels, written by the NIC. Other operations of the executor (``get``, sums that read another rank's
memory, operations fused with signals) are not used. The operations used are correct over both kinds of
channel, and the same for every collective.

Under protocol LL, messages are packets that carry their own arrival flags, so no signals are needed. MSCCL++
has no LL128: a program for it is written as packets if they are safe, else as ``Simple``, with a warning.

Before a plan is written, `taccl.formats.mscclpp.executor` runs it symbolically. That module implements the
rules of MSCCL++'s executor, and does not use the program.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from taccl._internal.arguments import Bytes, Count, Natural, checked
from taccl.errors import ExportError, FallbackWarning, InputError, VerificationError, warn
from taccl.formats.mscclpp.executor import run_plan
from taccl.formats.mscclpp.gpu import MAX_OPERATIONS, PlanGpu
from taccl.formats.mscclpp.messages import place_messages
from taccl.formats.mscclpp.registration import ranks_per_host, registration_snippet
from taccl.formats.program_kind import ProgramKind, kind_of, sizes_of, warn_of_split, warn_of_updates
from taccl.problem.collective import Collective
from taccl.program.columns import columns_of
from taccl.program.program import Program
from taccl.runtimes.table import RUNTIMES

#: {MSCCL's name of a collective: MSCCL++'s name}.
COLLECTIVES = {
    "allgather": "allgather", "allreduce": "allreduce", "reduce_scatter": "reducescatter",
    "alltoall": "alltoall", "broadcast": "broadcast", "reduce": "reduce",
}  # fmt: skip

#: `_OFFSETS`: largest buffer offset that the executor supports, in bytes.
#: `_ALIGNMENT`: alignment of chunks in bytes.
_OFFSETS, _ALIGNMENT = 2**32 - 1, 16
_MAX_THREADS = 1024
_SEARCHED_FOR_RACES = 100_000


@checked
def dump_mscclpp_plan(
    program: Program,
    path: str | os.PathLike[str],
    *,
    register: bool = False,
    min_bytes: Bytes | Natural | None = None,
    max_bytes: Bytes | Natural | None = None,
    ranks_per_node: Count | None = None,
    num_threads_per_block: Count = 1024,
    max_threadblocks: Count = RUNTIMES["mscclpp"].max_threadblocks,
    split: bool | None = None,
    name: str = "",
) -> dict[Path, str]:
    """{file: content} of a program's plan and, with `register`, of a Python module that registers it.

    - `register`: True to write a module next to the plan, ``NAME_register.py``. It registers the plan with
      MSCCL++ and selects it for calls that it fits: see `taccl.formats.mscclpp.registration`.
    - `min_bytes`, `max_bytes`, `ranks_per_node`, `num_threads_per_block`, `max_threadblocks`, `split`,
      `name`: See `build_mscclpp_plan`.
    """
    target = Path(path)
    plan = build_mscclpp_plan(
        program, min_bytes=min_bytes, max_bytes=max_bytes, ranks_per_node=ranks_per_node,
        num_threads_per_block=num_threads_per_block, max_threadblocks=max_threadblocks, split=split,
        name=name,
    )  # fmt: skip
    files = {target: text_of_plan(plan)}
    if register:
        stem = re.sub(r"\W", "_", target.name.removesuffix(".json").removesuffix(".plan"))
        module = target.with_name(f"{stem}_register.py")
        per_host = ranks_per_host(_nodes(program, ranks_per_node))
        files[module] = registration_snippet({target.name: plan}, ranks_per_node=per_host, module=module.stem)
    return files


def text_of_plan(plan: Mapping[str, Any]) -> str:
    """JSON of a plan, one line per field and per GPU; indented JSON would be twice as long."""
    fields = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in plan.items() if name != "gpus"]
    gpus = ",\n".join(map(json.dumps, plan["gpus"]))
    return "{\n" + ",\n".join([*fields, f'"gpus": [\n{gpus}\n]']) + "\n}\n"


@checked
def build_mscclpp_plan(
    program: Program,
    *,
    min_bytes: Bytes | Natural | None = None,
    max_bytes: Bytes | Natural | None = None,
    ranks_per_node: Count | None = None,
    num_threads_per_block: Count = 1024,
    max_threadblocks: Count = RUNTIMES["mscclpp"].max_threadblocks,
    split: bool | None = None,
    name: str = "",
) -> dict[str, Any]:
    """MSCCL++ execution plan of a program as a dict for JSON, checked by one symbolic run.

    - `min_bytes`, `max_bytes`: Range of sizes of the larger of a rank's two buffers for which the plan is
      used. Default: the program's range (for a lowered schedule, half to twice its size), within the range
      of the executor's 32-bit offsets.
    - `ranks_per_node`: Number of ranks per node; by default that of the topology for which the program was
      lowered.
    - `num_threads_per_block`: Number of threads of each threadblock, a multiple of 32.
    - `max_threadblocks`: Max threadblocks of a rank. They must all run concurrently: one that never begins
      would block others forever. With 1024 threads this is one per multiprocessor of the GPU; the default is
      that of a V100.
    - `split`: True to split a threadblock with more operations than the executor holds into several that run
      one after another. Default: split if needed, with a warning.
    - `name`: Name of the plan, by default the program's. MSCCL++ identifies plans by name, so each needs its
      own.
    """
    nodes = _nodes(program, ranks_per_node)
    if num_threads_per_block % 32 or not 32 <= num_threads_per_block <= _MAX_THREADS:
        raise InputError(
            f"found {num_threads_per_block}; expected a multiple of 32, at most {_MAX_THREADS}",
            where="num_threads_per_block",
        )
    program = _under_known_protocol(program, nodes)
    packets, collective = program.protocol == "LL", program.collective
    kind = kind_of(program, "MSCCL++")
    warn_of_updates(program, "MSCCL++")
    buffers = _buffers(program, kind)
    messages = place_messages(program, packets=packets)
    longest = max(*(max(each) for each in buffers), messages.scratch_chunks * (2 if packets else 1))
    reach = _OFFSETS // longest // _ALIGNMENT * _ALIGNMENT * max(max(each) for each in buffers)
    least, most = sizes_of(program, min_bytes, max_bytes, otherwise=reach)
    if max_bytes is None and least <= reach:
        most = min(most, reach)
    if most > reach:
        raise ExportError(
            f"offsets of 32 bits limit this plan to {reach} bytes, but it is for "
            f"{least} to {most} bytes; give max_bytes={reach}"
        )
    steps = columns_of(program)
    queues = [steps.queues[number] for number in np.unique(steps.outgoing[steps.outgoing >= 0]).tolist()]
    parts = [PlanGpu(program, r, nodes, messages, queues) for r in range(program.num_ranks)]
    gpus = [
        part.plan(own, split is not False, max_threadblocks) for part, own in zip(parts, buffers, strict=True)
    ]
    if split is None and any(part.was_split for part in parts):
        warn_of_split(f"MSCCL++ holds at most {MAX_OPERATIONS} operations per threadblock")
    # An allgather of ranks in another order is not MSCCL++'s allgather, and must not be selected as one.
    name_here = "custom" if collective is None else collective.name
    name_here = COLLECTIVES.get(kind.name, "custom" if name_here in COLLECTIVES.values() else name_here)
    plan = {
        "name": name or program.name,
        "collective": name_here,
        "protocol": "LL" if packets else "Simple",
        "inplace": program.in_place,
        # If True, later calls would use the buffer addresses of the first call.
        "reuse_resources": False,
        "num_threads_per_block": num_threads_per_block,
        "use_double_scratch_buffer": packets,
        "buffer_alignment": _ALIGNMENT,
        "min_message_size": least,
        "max_message_size": most,
        "gpus": gpus,
    }
    if kind.name not in COLLECTIVES:  # the executor compares the range with the input of each rank
        inputs = [each for each, _ in buffers]
        longest = max(map(max, buffers))
        plan["min_message_size"] = least * min(inputs) // longest
        plan["max_message_size"] = most * max(inputs) // longest
    if kind.root is not None:  # the registration reads the root, the executor does not
        plan = {"root": kind.root, **plan}
    _check(plan, kind)
    return plan


def served_bytes(plan: Mapping[str, Any]) -> tuple[int, int]:
    """Smallest and largest size in bytes that a plan serves, of the larger of a rank's two buffers.

    The range in a plan for a collective that MSCCL++ has no name for is one of input sizes of all ranks.
    """
    least, most = plan["min_message_size"], plan["max_message_size"]
    if plan["collective"] in COLLECTIVES.values():
        return least, most
    inputs = [gpu["input_chunks"] for gpu in plan["gpus"]]
    longest = max(max(gpu["input_chunks"], gpu["output_chunks"]) for gpu in plan["gpus"])
    return -(-least * longest // min(inputs)), most * longest // max(inputs)


def _nodes(program: Program, ranks_per_node: int | None) -> tuple[int, ...]:
    nodes = program.node_of_rank
    if ranks_per_node is not None:
        if ranks_per_node < program.num_ranks and program.num_ranks % ranks_per_node:
            said = f"found {ranks_per_node} for {program.num_ranks} ranks; expected a divisor of their number"
            raise InputError(said, where="ranks_per_node")
        nodes = tuple(r // ranks_per_node for r in range(program.num_ranks))
    if nodes is None:
        raise InputError(
            "MSCCL++ uses other channels between nodes, but the program does not state which "
            "ranks share a node; give ranks_per_node (taccl convert: --set ranks_per_node=8)",
            where="ranks_per_node",
        )
    if reason := why_no_nodes(nodes):
        raise ExportError(reason, remedy="number the ranks of the topology node by node")
    return nodes


def why_no_nodes(nodes: Sequence[int]) -> str:
    """Reason why MSCCL++ cannot run on nodes with these ranks; empty if it can.

    The executor divides the number of a rank by the number of ranks per node to find its node.

    - `nodes`: Node of each rank.
    """
    size, places = nodes.count(nodes[0]), list(dict.fromkeys(nodes))
    expected = [rank // size for rank in range(len(nodes))]
    if len(nodes) % size == 0 and [places.index(node) for node in nodes] == expected:
        return ""
    return "MSCCL++ requires nodes of equally many ranks with consecutive numbers"


def _under_known_protocol(program: Program, nodes: Sequence[int]) -> Program:
    """The program, with a protocol that MSCCL++ has; `ExportError` if it uses LL where packets are unsafe."""
    if program.protocol == "Simple":
        return program
    unsafe = why_no_packets(program.collective, nodes)
    if program.protocol == "LL":
        if unsafe:
            raise ExportError(unsafe, remedy="lower the schedule with protocol='Simple'")
        return program
    instead = "Simple" if unsafe else "LL"
    warn(
        f"MSCCL++ has no {program.protocol}: the plan uses {instead}, whose times differ "
        "(protocol='Simple' or 'LL' chooses)",
        FallbackWarning,
    )
    return replace(program, protocol=instead)


def why_no_packets(collective: Collective | None, nodes: Sequence[int]) -> str:
    """Reason why data must not be sent as LL packets; empty if packets are safe.

    - `nodes`: Node of each rank.

    Successive calls alternate between the two halves of the scratch buffer. So a call overwrites the data of
    two calls ago, and may do so only after all ranks have read them. A rank knows this only if the call in
    between brought it data from every other rank.
    """
    if len(set(nodes)) > 1:
        return "plans of several nodes are not written as packets (LL)"
    for rank in range(len(nodes)):
        heard = {rank}
        for chunk in collective.chunks if collective is not None else ():
            if rank in chunk.destinations:
                heard.update(chunk.origins)
        if len(heard) < len(nodes):
            return (
                "packets (LL) are safe only where every rank's output depends on every rank, and that of "
                f"rank {rank} does not"
            )
    return ""


def _buffers(program: Program, kind: ProgramKind) -> list[tuple[int, int]]:
    if kind.name in COLLECTIVES:
        return [kind.buffer_chunks(program.num_ranks)] * program.num_ranks
    for r, rank in enumerate(program.ranks):
        if not rank.input_chunks or not rank.output_chunks:
            empty = "output" if rank.input_chunks else "input"
            raise ExportError(
                f"MSCCL++ has no ranks without {empty}, and rank {r} has none; leave such ranks out of the "
                f"topology, or choose one of {', '.join(COLLECTIVES)} among all"
            )
    return [(rank.input_chunks, rank.output_chunks) for rank in program.ranks]


def _check(plan: Mapping[str, Any], kind: ProgramKind) -> None:
    """Raise `ExportError` if a plan fails in a symbolic run; large plans are not searched for races."""
    size = sum(len(threadblock["ops"]) for gpu in plan["gpus"] for threadblock in gpu["threadblocks"])
    try:
        run_plan(plan, root=kind.root or 0, races=size <= _SEARCHED_FOR_RACES)
    except VerificationError as error:
        remedy = "interpret the program, which may be at fault, or lower the schedule with other options"
        if str(error).startswith("deadlock"):
            remedy = (
                "MSCCL++ has no queues in which messages wait; if the program needs them, write MSCCL XML, "
                "or make a schedule of it and convert that"
            )
        raise ExportError(f"the plan would not work ({error})", remedy=remedy) from None

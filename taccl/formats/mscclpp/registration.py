"""Python code that registers MSCCL++ plans, and selects among them by size, world size and in-place use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from taccl.errors import InputError

_SNIPPET = '''"""Registers execution plans with MSCCL++ 0.9.0, which then serve torch.distributed.

In the program, before `init_process_group`: `import {module}; {module}.register(rank)`.
Run it with MSCCL++ in place of NCCL; NCCL itself serves calls without a matching plan (on AMD GPUs it is
librccl.so, with RCCL_MSCCL_ENABLE=0):

    LD_PRELOAD=.../libmscclpp_nccl.so MSCCLPP_NCCL_LIB_PATH=.../libnccl.so torchrun ...

Plans compute sums, and MSCCL++ does not tell a plan which reduction a call requests: use plans only in
programs that reduce by sum. Its NCCL interface uses plans for allreduce, allgather, reduce-scatter and
broadcast only.
"""

from pathlib import Path

import mscclpp
from mscclpp.ext import AlgorithmCollectionBuilder

FOLDER = Path(__file__).resolve().parent

# File, name, collective, ranks, ranks per node (0: any), in place, min and max bytes of a message, bytes of
# which it must be a multiple, root (None: any).
PLANS = [
{plans}
]
# Data types that the executor reduces and copies; calls with other types use no plan.
DTYPES = ("float16", "float32", "bfloat16", "int32", "uint32")


def algorithms(rank):
    """{{name: MSCCL++ algorithm}} of all plans, which an executor can also run directly.

    Their constraint matches no number of ranks, so that only `select` chooses them. MSCCL++'s own choice
    treats all plans as in place if one is, and uses some for sizes that do not divide into their chunks.
    """
    nowhere = mscclpp.Algorithm.Constraint(world_size=0, n_ranks_per_node=0)
    return {{
        name: mscclpp.Algorithm(
            id=name, execution_plan=mscclpp.ExecutionPlan(str(FOLDER / file), rank), constraint=nowhere
        )
        for file, name, *_ in PLANS
    }}


def select(known, request):
    """Algorithm of the first plan that fits a call; if None, MSCCL++ proceeds as without plans."""
    size, offset = request.message_size, 0
    if request.collective == "allgather":  # the message size is that of one rank's input
        offset = request.rank * size
        size *= request.world_size
    in_place = request.input_buffer == request.output_buffer + offset
    if request.collective == "reducescatter":
        begin = request.input_buffer + request.rank * (size // request.world_size)
        in_place = request.output_buffer == begin
    if str(request.dtype).rpartition(".")[2].lower() not in DTYPES:
        return None
    for _, name, collective, ranks, per_node, plan_in_place, least, most, unit, root in PLANS:
        if (
            (collective, ranks, plan_in_place) == (request.collective, request.world_size, in_place)
            and per_node in (0, request.n_ranks_per_node)
            and least <= size <= most
            and size % unit == 0
            and (root is None or root in request.hints.get("root", ()))
        ):
            return known[collective][name]
    return None


def register(rank):
    """Register the plans with MSCCL++; call this once per process."""
    builder = AlgorithmCollectionBuilder()
    for algorithm in algorithms(rank).values():
        builder.add_algorithm_builder(algorithm)
    builder.set_algorithm_selector(select)
'''


#: Max GPUs of one host, as in a DGX-2. Larger nodes are several hosts that NVLink joins, as in GB200 NVL72.
_MOST_PER_HOST = 16


def ranks_per_host(nodes: Sequence[int]) -> int:
    """Number of ranks per host, for which MSCCL++ uses plans; 0 for any number, if the hosts are unknown.

    - `nodes`: Node of each rank; all nodes have equally many ranks. MSCCL++ counts the ranks of a host.
    """
    size = nodes.count(nodes[0])
    return size if size <= _MOST_PER_HOST else 0


def unit_bytes(plan: Mapping[str, Any]) -> int:
    """Number of bytes of which message sizes must be a multiple, so that chunks are aligned.

    A message size is the size of the larger of a rank's two buffers.
    """
    chunks = max(max(gpu["input_chunks"], gpu["output_chunks"]) for gpu in plan["gpus"])
    return int(chunks * plan.get("buffer_alignment", 16))


def registration_snippet(
    plans: Mapping[str | os.PathLike[str], Mapping[str, Any]],
    *,
    ranks_per_node: int = 0,
    module: str = "taccl_plans",
) -> str:
    """Text of a Python module that registers plans and installs a selector.

    - `plans` (mapping of file name to plan): Plans that `taccl.formats.mscclpp.plan.build_mscclpp_plan`
      returned, or that were read from JSON. Their files must be in the module's folder. The first plan that
      fits a call is used.
    - `ranks_per_node`: Number of ranks per host for which plans are used; 0 for any number.
    """
    if not plans:
        raise InputError("found no plan; expected at least one", where="plans")
    rows: list[str] = []
    names: set[str] = set()
    for file, plan in plans.items():
        try:
            row = (
                os.path.basename(os.fspath(file)), plan["name"], plan["collective"], len(plan["gpus"]),
                ranks_per_node, bool(plan["inplace"]), plan["min_message_size"], plan["max_message_size"],
                unit_bytes(plan), plan.get("root"),
            )  # fmt: skip
        except (KeyError, TypeError) as error:
            raise InputError(f"found no {error}; expected an MSCCL++ plan", where=os.fspath(file)) from None
        if plan["name"] in names:
            raise InputError(
                f"found two plans named {plan['name']!r}; MSCCL++ keeps plans by name, so give each its own",
                where=os.fspath(file),
            )
        names.add(plan["name"])
        rows.append(f"    {row!r},")
    return _SNIPPET.format(plans="\n".join(rows), module=module)

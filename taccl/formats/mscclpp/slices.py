"""MSCCL++ plans in finer chunks: shares of operations that threadblocks share, and iterations of pipelines.

A plan that has either is rewritten without them. Each chunk is cut into units, which stand for units of the
plan's alignment. A threadblock's share of an operation follows the executor's formula: units that do not
divide evenly go to the first threadblocks. An iteration of a pipeline handles one unit of its operations.

One number of units divides evenly among all groups, and one leaves a remainder in each. If groups of several
sizes share a chunk, their shares begin at different units in the second case.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from taccl.errors import FormatError, VerificationError
from taccl.formats.mscclpp.operations import FIRST_PACKET, flat_operations

#: Max units of a chunk. Plans with larger or more unlike groups of threadblocks are refused.
_MOST_UNITS = 256
#: Units of a chunk, so that a pipeline has several iterations per chunk.
_ITERATIONS = 3
_ENDS = ("src_buff", "dst_buff")
#: Operations that handle all of their chunks in every iteration of a pipeline.
_WHOLE = ("ppkt", "upkt", *FIRST_PACKET, "cpkt")
Op = dict[str, Any]


def finer_plans(plan: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (units per chunk, plan in units), such that the plan works if all of these do.

    Raises `FormatError` if pipelines reuse scratch, or contain operations of groups.
    """
    ops = [op for gpu in plan["gpus"] for each in gpu["threadblocks"] for op in flat_operations(each["ops"])]
    shares = {op["tbg_info"]["tbg_size"] for op in ops if "tbg_info" in op} - {1}
    is_pipelined = any(op["name"] == "pipeline" for op in ops)
    if is_pipelined and plan.get("reuse_resources"):
        said = "found a pipeline with reuse_resources, whose scratch cannot be checked here"
        raise FormatError(f"{said}; run the plan with MSCCL++", where="plan")
    even = math.lcm(*shares)
    if even > _MOST_UNITS:
        sizes = ", ".join(map(str, sorted(shares)))
        said = f"found groups of {sizes} threadblocks (tbg_info), which cannot be checked here together"
        raise FormatError(f"{said}; run the plan with MSCCL++", where="plan")
    if not shares and not is_pipelined:
        yield 1, plan
        return
    for units in sorted({even, 2 * even - 1, even * (_ITERATIONS if is_pipelined else 1)}):
        yield units, _in_units(plan, units)


def _in_units(plan: Mapping[str, Any], units: int) -> dict[str, Any]:
    gpus = []
    for r, gpu in enumerate(plan["gpus"]):
        chunks = {f"{name}_chunks": gpu[f"{name}_chunks"] * units for name in ("input", "output", "scratch")}
        blocks = [
            block | {"ops": [*_unrolled(block["ops"], units, f"threadblock {t} of gpu {r}")]}
            for t, block in enumerate(gpu["threadblocks"])
        ]
        gpus.append(gpu | chunks | {"threadblocks": blocks})
    return {**plan, "gpus": gpus}


def _unrolled(ops: list[Op], units: int, where: str) -> Iterator[Op]:
    for s, op in enumerate(ops):
        if op["name"] != "pipeline":
            yield _share(op, units) | {"at": s}
            continue
        num_units = op["iter_context"]["num_chunks"] * units
        for number in range(num_units):
            for i, inner in enumerate(op["ops"]):
                if inner.get("tbg_info", {}).get("tbg_size", 1) > 1:
                    said = (
                        f"found operation {inner['name']!r} in a pipeline, which several threadblocks share"
                    )
                    raise FormatError(f"{said} (tbg_info); such plans cannot be checked here", where=where)
                yield _iteration(_share(inner, units), number, num_units, where) | {"at": f"{s}.{i}"}


def _share(op: Op, units: int) -> Op:
    """Operation of one threadblock of its group, in units."""
    group = op.get("tbg_info", {"tb_id": 0, "tbg_size": 1})
    changed = {}
    for end in (each for each in _ENDS if each in op):
        changed[end] = [
            buffer | _part(buffer["index"] * units, buffer["size"] * units, group["tb_id"], group["tbg_size"])
            for buffer in op[end]
        ]
    return op | changed


def _part(index: int, size: int, number: int, num_parts: int) -> dict[str, int]:
    """Part of a range, by the executor's formula."""
    each, rest = divmod(size, num_parts)
    begin, end = (i * each + min(i, rest) for i in (number, number + 1))
    return {"index": index + begin, "size": end - begin}


def _iteration(op: Op, number: int, num_units: int, where: str) -> Op:
    """Operation in one iteration of a pipeline of `num_units` iterations."""
    if op["name"] in _WHOLE:
        return op
    short = next((each for end in _ENDS for each in op.get(end, ()) if each["size"] < num_units), None)
    if short is not None:
        said = f"{where}: the pipeline is longer than the chunks of its operation {op['name']!r}"
        raise VerificationError(f"{said}, and goes on past them")
    return op | {
        end: [each | {"index": each["index"] + number, "size": 1} for each in op[end]]
        for end in _ENDS
        if end in op
    }

"""Execution plans have the fields that MSCCL++ 0.9.0 reads, with their types, and within its limits.

The fields are those of ``src/core/executor/execution_plan.cc``, which raises for a missing field and ignores
others.
"""

import copy

import pytest

from taccl.errors import FormatError
from taccl.formats.mscclpp.executor import run_plan
from taccl.formats.mscclpp.plan import build_mscclpp_plan
from tests.program.examples import program_of

#: {field: type, or fields of the elements of a list}; fields that end in a question mark have a default.
CHUNKS = {"type?": str, "buffer_id?": int, "index": int, "size": int}
OPERATION = {
    "name": str, "channel_type?": str, "channel_ids?": [int], "src_buff?": [CHUNKS], "dst_buff?": [CHUNKS],
    "semaphore_ids?": [int],
}  # fmt: skip
THREADBLOCK = {
    "id": int, "ops": [OPERATION], "channels": [{"channel_type": str, "channel_ids": [int]}],
    "remote_buffer_refs?": [{"access_channel_type": str, "remote_buffer_ids": [int]}],
}  # fmt: skip
GPU = {
    "id": int, "input_chunks": int, "output_chunks": int, "scratch_chunks": int,
    "channels": [{"channel_type": str, "connected_to": [int]}],
    "remote_buffers": [{"rank": int, "type": str, "access_channel_types": [str]}],
    "semaphores?": [{"init_value": int}], "threadblocks": [THREADBLOCK],
}  # fmt: skip
PLAN = {
    "name": str, "collective": str, "protocol": str, "inplace": bool, "gpus": [GPU], "reuse_resources?": bool,
    "use_double_scratch_buffer?": bool, "buffer_alignment?": int, "num_threads_per_block?": int,
    "min_message_size?": int, "max_message_size?": int,
}  # fmt: skip
#: Fields of taccl, which the executor ignores.
OWN = {"root"}


def faults(value, schema, where="plan"):
    """Yield places of missing, unknown or wrong fields."""
    if isinstance(schema, list):
        for i, each in enumerate(value):
            yield from faults(each, schema[0], f"{where}[{i}]")
    elif isinstance(schema, dict):
        known = {name.rstrip("?"): (kind, name.endswith("?")) for name, kind in schema.items()}
        yield from (f"{where}: unknown {name}" for name in set(value) - set(known) - OWN)
        for name, (kind, optional) in known.items():
            if name in value:
                yield from faults(value[name], kind, f"{where}.{name}")
            elif not optional:
                yield f"{where}: no {name}"
    elif type(value) is not schema:
        yield f"{where}: {value!r} is no {schema.__name__}"


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["Simple", "LL"])
@pytest.mark.parametrize("name", ["allgather", "allreduce", "reduce-scatter", "alltoall"])
def test_plans_have_the_fields_that_are_read(name, protocol):
    """No field is missing, unknown or of another type, with one node and with two."""
    for ranks_per_node in (4,) if protocol == "LL" else (4, 2):
        plan = build_mscclpp_plan(
            program_of(name, "ring:4", protocol=protocol), ranks_per_node=ranks_per_node
        )
        assert not list(faults(plan, PLAN))


@pytest.mark.parametrize(
    ("name", "field", "count", "said"),
    [
        ("signal", "channel_ids", 9, "found 9 channels of an operation; expected at most 8"),
        ("put", "src_buff", 11, "found 11 buffers of an operation; expected at most 10"),
    ],
)
def test_limits_of_an_operation_hold(name, field, count, said):
    """An operation has at most 8 channels and 10 buffers on each side."""
    plan = copy.deepcopy(build_mscclpp_plan(program_of("allgather", "ring:4"), ranks_per_node=4))
    ops = (op for block in plan["gpus"][0]["threadblocks"] for op in block["ops"] if op["name"] == name)
    op = next(ops)
    op[field] = op[field][:1] * count
    with pytest.raises(FormatError, match=said):
        run_plan(plan)

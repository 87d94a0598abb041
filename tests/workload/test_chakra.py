"""Steps from Chakra traces."""

import json

import pytest

import taccl
from taccl.errors import LossyConversionWarning, WorkloadError
from taccl.workload import from_chakra, schedule_workload


def trace(tmp_path, *nodes):
    """Write a trace file with nodes of (id, type, dependencies, duration, more fields)."""
    every = [
        {"Id": i, "Name": f"node {i}", "NodeType": kind, "data_deps": after, "runtime": us, **more}
        for i, kind, after, us, more in nodes
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"workload_graph": every}))
    return tmp_path / "trace.json"


def training(tmp_path):
    """Write a trace of two backward kernels, an allreduce of the gradient after each, and an update after
    both."""
    return trace(
        tmp_path,
        (1, 4, [], 100, {}),
        (2, 7, [1], 900, {"comm_type": 0, "comm_size": 1 << 20}),
        (3, 4, [1], 100, {}),
        (4, 7, [3], 900, {"comm_type": 0, "comm_size": 1 << 20}),
        (5, 4, [2, 4], 10, {}),
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::taccl.LossyConversionWarning")
def test_computations_overlap_with_collectives_of_others(tmp_path):
    """The first allreduce overlaps with the second kernel; the update of 10 us starts after the second
    allreduce."""
    step = from_chakra(training(tmp_path), 4)
    scheduled = schedule_workload(step, taccl.topologies.fully_connected(4))
    assert scheduled.verify().ok
    start = {each.operation: float(each.start_us) for each in scheduled.tiles if each.rank == 0}
    end = {each.operation: float(each.end_us) for each in scheduled.tiles if each.rank == 0}
    assert (start["node_1_1"], end["node_1_1"], start["node_3_3"], end["node_3_3"]) == (0, 100, 100, 200)
    assert end["node_5_5"] == scheduled.finish_us
    assert start["node_5_5"] > 200


def test_what_the_import_ignores_is_noted(tmp_path):
    """A note lists what the import ignores: times of host operations and of collectives, unsupported
    collectives, and dependencies on absent nodes."""
    path = trace(
        tmp_path,
        (1, 4, [99], 50, {"is_cpu_op": True}),
        (2, 7, [1], 30, {"comm_type": 5, "comm_size": 8}),
        (3, 7, [2], 30, {"comm_type": 0, "comm_size": 8}),
        (4, 4, [3], 20, {}),
    )
    said = (
        r"ranks that differ.*times of 1 host operation \(50 us\); measured times of 1 collective \(30 us\);"
        r" collectives of other kinds \(1 BROADCAST\); dependencies on nodes .* \(99\)"
    )
    with pytest.warns(LossyConversionWarning, match=said):
        step = from_chakra(path, 2)
    assert [each.kind for each in step.operations] == ["compute", "allreduce", "compute"]


@pytest.mark.filterwarnings("ignore::taccl.LossyConversionWarning")
def test_dependencies_go_through_host_operations(tmp_path):
    """A kernel depends on another kernel through a host operation between them."""
    path = trace(tmp_path, (1, 4, [], 5, {}), (2, 4, [1], 9, {"is_cpu_op": True}), (3, 4, [2], 5, {}))
    step = from_chakra(path, 2)
    assert step.operation["node_3_3"].inputs == ("node_1_1",)


@pytest.mark.filterwarnings("ignore::taccl.LossyConversionWarning")
def test_sizes_are_bytes_of_the_input_of_each_rank(tmp_path):
    """With 64 bytes on each of 4 ranks an all-gather gives 256 bytes and a reduce-scatter 16."""
    sized = {"comm_size": 64}
    path = trace(
        tmp_path,
        (1, 7, [], 0, {"comm_type": 2, **sized}),
        (2, 7, [], 0, {"comm_type": 7, **sized}),
        (3, 7, [], 0, {"comm_type": 6, **sized}),
        (4, 7, [], 0, {"comm_type": 0, **sized}),
    )
    step = from_chakra(path, 4)
    given = {each.kind: step.tensors[each.inputs[0]] for each in step.operations if each.is_collective}
    made = {each.kind: step.tensors[each.name] for each in step.operations if each.is_collective}
    assert {tensor.local_bytes(4) for tensor in given.values()} == {64}
    wanted = {"allgather": 256, "reduce_scatter": 16, "alltoall": 64, "allreduce": 64}
    assert {kind: tensor.local_bytes(4) for kind, tensor in made.items()} == wanted


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::taccl.LossyConversionWarning")
def test_process_groups_become_dimensions(tmp_path):
    """Process groups become dimensions: 64 bytes per rank, gathered over tp, then reduced over dp."""
    path = trace(
        tmp_path,
        (1, 4, [], 5, {}),
        (2, 7, [1], 0, {"comm_type": 2, "comm_size": 64, "pg_name": "7"}),
        (3, 7, [2], 0, {"comm_type": 7, "comm_size": 64, "pg_name": "8"}),
        (4, 7, [3], 0, {"comm_type": 6, "comm_size": 64, "pg_name": "8"}),
        (5, 4, [4], 5, {}),
    )
    step = from_chakra(path, 4, mesh=(("dp", 2), ("tp", 2)), groups={"7": "tp", "8": "dp"})
    local = {each.kind: step.tensors[each.name].local_bytes(step.grid) for each in step.operations}
    assert [local[kind] for kind in ("allgather", "reduce_scatter", "alltoall")] == [128, 32, 64]
    assert [each.group for each in step.operations if each.is_collective] == ["tp", "dp", "dp"]
    scheduled = schedule_workload(step, taccl.topologies.fully_connected(4))
    assert scheduled.verify().ok


@pytest.mark.filterwarnings("ignore::taccl.LossyConversionWarning")
def test_slices_of_one_byte_elements_are_moved(tmp_path):
    """An allgather of an odd number of bytes, as of 8-bit numbers, and an alltoall have those bytes."""
    path = trace(tmp_path, (1, 7, [], 0, {"comm_type": 2, "comm_size": 1023}),
                 (2, 7, [], 0, {"comm_type": 6, "comm_size": 1020}))  # fmt: skip
    step = from_chakra(path, 4)
    sizes = {each.kind: step.tensors[each.name].local_bytes(step.grid) for each in step.operations}
    assert (sizes["allgather"], sizes["alltoall"]) == (4 * 1023, 1020)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([(1, 5, [], 0, {"comm_size": 8})], "node 1, node 1: is a send or a receive, but"),
        ([(1, 7, [], 0, {"comm_type": 0})], "found comm_size 0; expected bytes of each rank"),
        ([(1, 7, [], 0, {"comm_size": 8})], "is a collective without comm_type"),
        ([(1, 7, [], 0, {"comm_type": 7, "comm_size": 10})], "does not divide into 4 parts"),
        ([(1, 7, [], 0, {"comm_type": 0, "comm_size": 1023})],
         "found comm_size 1023: sums of one-byte elements are not supported; leave this collective out"),
        ([(5, 4, [], 1, {}), (5, 4, [], 2, {})], "found several nodes with id 5, expected one; convert"),
        ([(1, 4, [2], 1, {}), (2, 4, [1], 1, {})], "nodes 1, 2 wait for one another"),
        ([(1, 4, [], 1, {"is_cpu_op": True})], "no computation on a device and no collective"),
        ([(i, 7, [], 0, {"comm_type": 0, "comm_size": 8, "pg_name": str(i)}) for i in (1, 2)],
         "node 2, node 2: is over process group '2', and others over '1'"),
    ],
)  # fmt: skip
def test_traces_that_are_no_step_are_refused(tmp_path, nodes, said):
    """The error for a trace that is not a step names the node."""
    with pytest.raises(WorkloadError, match=said):
        from_chakra(trace(tmp_path, *nodes), 4)

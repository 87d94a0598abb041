"""Chakra traces, decoded with protobuf's own library and executed as by ASTRA-sim."""

from fractions import Fraction

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import taccl
from taccl import collectives
from taccl.errors import ExportError, InputError, LossyConversionWarning
from taccl.formats import files
from taccl.formats.astra.chakra import dump_chakra
from taccl.problem.making import make_problem
from taccl.schedule.schedule import make_schedule
from tests.effort import first_schedule
from tests.synthesis.small_problems import linked

COMP, SEND, RECEIVE = 4, 5, 6


def _messages():
    """(metadata, node) classes of the published messages, with the fields that collectives need."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="chakra", syntax="proto3")
    kinds = {
        "string": field.TYPE_STRING, "int32": field.TYPE_INT32, "int64": field.TYPE_INT64,
        "uint64": field.TYPE_UINT64, "bool": field.TYPE_BOOL,
    }  # fmt: skip
    published = {
        "Attribute": [("name", 1, "string", 0), ("int32_val", 7, "int32", 0), ("int64_val", 9, "int64", 0),
                      ("bool_val", 27, "bool", 0), ("string_val", 29, "string", 0)],
        "Metadata": [("version", 1, "string", 0), ("attr", 2, "Attribute", 1)],
        "Node": [("id", 1, "uint64", 0), ("name", 2, "string", 0), ("type", 3, "int32", 0),
                 ("ctrl_deps", 4, "uint64", 1), ("data_deps", 5, "uint64", 1),
                 ("duration_micros", 7, "uint64", 0), ("attr", 10, "Attribute", 1)],
    }  # fmt: skip
    for name, fields in published.items():
        message = file.message_type.add(name=name)
        for label, number, kind, repeated in fields:
            added = message.field.add(name=label, number=number, label=3 if repeated else 1)
            if label.endswith("_val"):  # one of a choice, which is written even if it is 0
                if not message.oneof_decl:
                    message.oneof_decl.add(name="value")
                added.oneof_index = 0
            added.type = kinds.get(kind, field.TYPE_MESSAGE)
            if kind not in kinds:
                added.type_name = f".chakra.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"chakra.{name}"))
        for name in ("Metadata", "Node")
    ]


METADATA, NODE = _messages()


def _decoded(trace):
    """(metadata, nodes) of a file; asserts that the published messages know every field."""
    parts, at = [], 0
    while at < len(trace):
        length = shift = 0
        while True:
            byte = trace[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        parts.append(trace[at : at + length])
        at += length
    assert at == len(trace)
    metadata, *nodes = [
        kind.FromString(part)
        for kind, part in zip([METADATA] + [NODE] * (len(parts) - 1), parts, strict=True)
    ]
    for message, part in zip([metadata, *nodes], parts, strict=True):
        assert message.ByteSize() == len(part)
    return metadata, nodes


def _attributes(node):
    return {each.name: getattr(each, each.WhichOneof("value")) for each in node.attr}


def _traces(schedule):
    with pytest.warns(LossyConversionWarning):
        return [_decoded(trace)[1] for trace in dump_chakra(schedule, "trace").values()]


def _ring(collective, ranks=4):
    problem = make_problem(
        taccl.topologies.ring(ranks), collectives.make(collective, ranks), chunk_bytes=1000
    )
    return taccl.baselines.ring(problem)


def _run(traces, schedule):
    """Finish of traces in ticks if sends take as long as in the schedule and other nodes take no time.

    Receives are posted at time 0, and end with the send of the same source, destination and tag.
    """
    costs = schedule.problem.costs
    lasts = {t.group: costs.us(t.end_ticks - t.start_ticks) for t in schedule}
    done = {}
    sent = {}
    waiting = [(rank, node) for rank, nodes in enumerate(traces) for node in nodes]
    while waiting:
        left = []
        for rank, node in waiting:
            attributes = _attributes(node)
            if any((rank, each) not in done for each in node.data_deps):
                left.append((rank, node))
                continue
            time = max((done[rank, each] for each in node.data_deps), default=Fraction(0))
            if node.type == SEND:
                time += lasts[attributes["comm_tag"]]
                sent[rank, attributes["comm_dst"], attributes["comm_tag"]] = (time, attributes["comm_size"])
            elif node.type == RECEIVE:
                key = attributes["comm_src"], rank, attributes["comm_tag"]
                if key not in sent:
                    left.append((rank, node))
                    continue
                assert sent[key][1] == attributes["comm_size"]
                time = max(time, sent.pop(key)[0])
            done[rank, node.id] = time
        assert len(left) < len(waiting), "deadlock"
        waiting = left
    assert not sent
    return max(done.values())


def test_nodes_by_hand():
    """Rank 0 sends a chunk to rank 1, which adds it and sends the sum to rank 2: six nodes with their
    dependencies.

    Links 0->1 and 1->2 take 1 us for 1 MB.
    """
    topology = linked("line", [0, 0, 0], ((0, 1), (1, 2)), alpha_us=0, beta_us_per_mb=1)
    problem = make_problem(topology, collectives.reduce(3, root=2), chunk_bytes=10**6)
    schedule = make_schedule(
        problem, chunk=[0, 0], link=[0, 1], start=[0, 1], end=[1, 2], reduce=[True, True]
    )
    traces = _traces(schedule)
    found = [[(node.type, list(node.data_deps)) for node in nodes] for nodes in traces]
    assert found == [[(SEND, [])], [(RECEIVE, []), (COMP, [0]), (SEND, [1])], [(RECEIVE, []), (COMP, [0])]]
    assert _attributes(traces[1][2]) == {
        "comm_type": SEND, "comm_dst": 2, "comm_size": 10**6, "comm_tag": 1, "msg_chunk_cnt": -1,
        "msg_chunk_idx": -1, "total_chunk_cnt": -1, "is_cpu_op": 0,
    }  # fmt: skip


def test_metadata_leads():
    """Every file starts with its version and metadata."""
    with pytest.warns(LossyConversionWarning):
        metadata, _ = _decoded(next(iter(dump_chakra(_ring("allgather"), "trace").values())))
    assert metadata.version == "0.0.4"
    assert metadata.attr[0].string_val == "allgather on ring:4"


def test_ids_are_places():
    """Node ids of a rank count from 0, and a node depends only on earlier ones."""
    for nodes in _traces(_ring("allreduce")):
        assert [node.id for node in nodes] == list(range(len(nodes)))
        assert all(each < node.id for node in nodes for each in node.data_deps)


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter", "allreduce", "broadcast"])
def test_run_takes_as_long_as_the_schedule(collective):
    """On rings, where ranks share no resource, dependencies alone give the schedule's finish."""
    schedule = _ring(collective, 6)
    assert _run(_traces(schedule), schedule) == schedule.finish


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "collective", "baseline"),
    [("ndv2", "allgather", "hierarchical"), ("ndv2", "alltoall", "pairwise"), ("ndv2", "allreduce", "ring")],
)
def test_machines_run_to_their_end(machine, collective, baseline):
    """On machines with switches and NICs, too, all nodes of the traces run, and end no later than the schedule."""
    topology = taccl.topologies.parse(machine, nodes=2)
    problem = make_problem(topology, collectives.make(collective, topology.num_ranks), chunk_bytes=10**6)
    schedule = taccl.baselines.baseline(baseline, problem)
    assert _run(_traces(schedule), schedule) <= schedule.finish


def test_prefix_sums_wait_for_their_source():
    """In a scan rank 1 sends the derived chunk after it has received its source."""
    problem = make_problem(taccl.topologies.ring(3), collectives.scan(3), chunk_bytes=1000)
    schedule = first_schedule(problem)
    traces = _traces(schedule)
    sends = [node for node in traces[1] if node.type == SEND]
    assert sends
    assert all(node.data_deps for node in sends)


def test_sizes_scale_where_chunks_are_alike():
    """An allgather of 4 ranks has 4 chunks in all, and each message is one of them."""
    attributes = _attributes(_traces(_ring("allgather"))[0][0])
    assert (attributes["msg_chunk_cnt"], attributes["total_chunk_cnt"]) == (1, 4)


def test_rank_without_sends_has_a_node():
    """A rank without sends has one node that does nothing, as readers require a start node."""
    problem = make_problem(
        taccl.topologies.ring(4),
        collectives.custom(4, precondition={0: [0]}, postcondition={0: [1]}),
        chunk_bytes=1000,
    )
    nodes = _traces(
        make_schedule(problem, chunk=[0], link=[0], start=[0], end=[problem.costs.duration(0, 1)])
    )[3]
    assert [(node.type, node.name) for node in nodes] == [(COMP, "nothing to do")]


def test_order_on_shared_resources_is_named_as_lost():
    """A warning names the shared NICs whose order of sends is lost."""
    machine = taccl.topologies.ndv2(nodes=2)
    problem = make_problem(machine, collectives.alltoall(16), chunk_bytes=10**6)
    with pytest.warns(LossyConversionWarning, match=r"order of sends of different ranks .*NIC"):
        dump_chakra(taccl.baselines.pairwise(problem), "trace")


def test_multicast_is_refused():
    """A multicast send is refused, as traces have none."""
    topology = linked("switch", [0, 0, 0], [((0,), (1, 2))], alpha_us=0, beta_us_per_mb=1)
    problem = make_problem(topology, collectives.broadcast(3), chunk_bytes=10**6)
    with pytest.raises(ExportError, match="0->1,2 joins more than two ranks"):
        dump_chakra(make_schedule(problem, chunk=[0], link=[0], start=[0], end=[1]), "trace")


def test_files_are_numbered_by_rank(tmp_path):
    """``x.et`` stands for ``x.0.et`` and so on."""
    schedule = _ring("allgather")
    with pytest.warns(LossyConversionWarning):
        paths = taccl.write(schedule, tmp_path / "ring.et")
    assert [path.name for path in paths] == [f"ring.{rank}.et" for rank in range(4)]
    with pytest.warns(LossyConversionWarning):
        assert [path.read_bytes() for path in paths] == list(dump_chakra(schedule, "trace").values())


def test_one_existing_file_stops_all(tmp_path):
    """If one of the files exists, none is written."""
    (tmp_path / "ring.2.et").write_text("mine")
    with pytest.warns(LossyConversionWarning), pytest.raises(InputError, match=r"ring\.2\.et"):
        taccl.write(_ring("allgather"), tmp_path / "ring", format="chakra")
    assert [path.name for path in tmp_path.iterdir()] == ["ring.2.et"]


def test_failure_half_way_leaves_none(tmp_path, monkeypatch):
    """If the third file cannot be written, the first two are removed."""
    written = []
    whole = files.write_whole

    def fails(path, content, *, overwrite):
        if len(written) == 2:
            raise InputError("the disk is full")
        written.append(path)
        whole(path, content, overwrite=overwrite)

    monkeypatch.setattr(files, "write_whole", fails)
    with pytest.warns(LossyConversionWarning), pytest.raises(InputError, match="full"):
        taccl.write(_ring("allgather"), tmp_path / "ring", format="chakra")
    assert not list(tmp_path.iterdir())

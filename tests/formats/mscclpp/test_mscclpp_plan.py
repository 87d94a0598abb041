"""MSCCL++ plans run as their schedule, under the executor's rules."""

import itertools
import json
import warnings
from dataclasses import replace

import pytest

import taccl
from taccl.errors import ExportError, FallbackWarning, InputError, LossyConversionWarning
from taccl.formats.detection import format_of_content
from taccl.formats.mscclpp.executor import run_plan
from taccl.formats.mscclpp.plan import build_mscclpp_plan, served_bytes
from taccl.formats.registry import convert, write
from taccl.program.lower import lower
from taccl.program.program import Program, RankProgram, Slot, Step, Threadblock
from taccl.topology.builder import TopologyBuilder
from tests.effort import first_schedule
from tests.program.examples import program_of, schedule_of

OPTIONS = [
    {},
    {"in_place": True},
    {"threadblocks": "per-peer", "channels": "round-robin", "num_channels": 2},
    {"in_place": True, "merged": "pack", "instances": 2},
]


def ops_of(plan, rank, threadblock):
    """Names of a threadblock's operations."""
    return [op["name"] for op in plan["gpus"][rank]["threadblocks"][threadblock]["ops"]]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    "name", ["allgather", "alltoall", "reduce-scatter", "allreduce", "broadcast", "reduce"]
)
def test_every_plan_runs_right(name, options):
    """Plans within a node and over two give right outputs, without deadlocks, races or leftover signals."""
    program = program_of(name, "mesh:2x3", chunks_per_rank=2, **options)
    for ranks_per_node in (6, 3):
        assert run_plan(build_mscclpp_plan(program, ranks_per_node=ranks_per_node, split=True))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["allgather", "alltoall", "reduce-scatter", "allreduce"])
def test_every_plan_of_packets_runs_right(name, options):
    """LL plans use packets in two halves of the scratch, without signals."""
    program = program_of(name, "mesh:2x3", chunks_per_rank=2, protocol="LL", **options)
    plan = build_mscclpp_plan(program, ranks_per_node=6, split=True)
    assert run_plan(plan)
    assert (plan["protocol"], plan["use_double_scratch_buffer"]) == ("LL", True)
    used = {op["name"] for gpu in plan["gpus"] for tb in gpu["threadblocks"] for op in tb["ops"]}
    assert not used & {"signal", "wait", "put"}


def test_two_ranks_by_hand():
    """In an in-place allgather in one node, each of two ranks puts its chunk into the other's buffer and signals.

    No step of the receiver uses that part of its buffer before; its signal at its start permits the put.
    """
    plan = build_mscclpp_plan(program_of("allgather", "ring:2", in_place=True))
    assert plan["gpus"][0] == {
        "id": 0, "input_chunks": 1, "output_chunks": 2, "scratch_chunks": 0,
        "channels": [{"channel_type": "memory", "connected_to": [1, 1]}],
        "remote_buffers": [{"rank": 1, "type": "o", "access_channel_types": ["memory"]}],
        "semaphores": [],
        "threadblocks": [
            {
                "id": 0,
                "ops": [
                    {"name": "signal", "channel_ids": [0], "channel_type": "memory"},
                    {"name": "wait", "channel_ids": [0], "channel_type": "memory"},
                ],
                "channels": [{"channel_type": "memory", "channel_ids": [1]}],
                "remote_buffer_refs": [],
            },
            {
                "id": 1,
                "ops": [
                    {"name": "wait", "channel_ids": [0], "channel_type": "memory"},
                    {"name": "nop"},
                    {
                        "name": "put", "channel_type": "memory",
                        "src_buff": [{"type": "o", "index": 0, "size": 1}],
                        "dst_buff": [{"buffer_id": 0, "index": 0, "size": 1}],
                    },
                    {"name": "nop"},
                    {"name": "signal", "channel_ids": [0], "channel_type": "memory"},
                ],
                "channels": [{"channel_type": "memory", "channel_ids": [0]}],
                "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0]}],
            },
        ],
    }  # fmt: skip


def test_another_node_is_reached_over_port_channels():
    """Between nodes a NIC puts and signals, and the buffer is reusable only after a flush."""
    plan = build_mscclpp_plan(program_of("allgather", "ring:2", in_place=True), ranks_per_node=1)
    assert ops_of(plan, 0, 1) == ["wait", "put", "signal", "flush"]
    flush = plan["gpus"][0]["threadblocks"][1]["ops"][-1]
    assert len(flush["dst_buff"]) == 1  # the executor flushes as many channels as there are destinations
    assert {each["channel_type"] for each in plan["gpus"][0]["channels"]} == {"port"}


def test_channels_of_two_ranks_stand_in_one_order():
    """Channels between two ranks are listed in the same order at both, by which the executor pairs them."""
    program = program_of("alltoall", "ring:5", channels="round-robin", num_channels=2)
    plan = build_mscclpp_plan(program)
    lists = [gpu["channels"][0]["connected_to"] for gpu in plan["gpus"]]
    for a in range(5):
        for b in range(5):
            assert lists[a].count(b) == lists[b].count(a)


def test_out_of_place_sums_need_no_scratch():
    """Out of place, rank 0 adds its input to the chunk that arrives in its output, so no scratch is needed."""
    plan = build_mscclpp_plan(program_of("reduce", "ring:2"))
    assert plan["gpus"][0]["scratch_chunks"] == 0
    sums = [op for tb in plan["gpus"][0]["threadblocks"] for op in tb["ops"] if op["name"] == "re"]
    assert [[each["type"] for each in op["src_buff"] + op["dst_buff"]] for op in sums] == [["i", "o", "o"]]


def test_in_place_sums_need_scratch():
    """In place the sum replaces the rank's own chunk, so an arriving chunk needs a place in scratch."""
    plan = build_mscclpp_plan(program_of("reduce", "ring:2", in_place=True))
    assert plan["gpus"][0]["scratch_chunks"] == 1


@pytest.mark.slow
def test_nodes_come_from_the_topology():
    """With two nodes of four, ranks of the same node use memory channels, others port channels."""
    problem = taccl.make_problem(
        taccl.topologies.parse("ring:8", nodes=2), taccl.collectives.allgather(8), chunk_bytes=1000
    )
    schedule = first_schedule(problem)
    plan = build_mscclpp_plan(lower(schedule))
    for r, gpu in enumerate(plan["gpus"]):
        for each in gpu["channels"]:
            same = [peer // 4 == r // 4 for peer in each["connected_to"]]
            assert all(same) if each["channel_type"] == "memory" else not any(same)


@pytest.mark.parametrize(("members", "name"), [((0, 1, 2), "allgather"), ((2, 0, 1), "custom")])
def test_ranks_in_another_order_are_no_collective_of_theirs(members, name):
    """An allgather whose members are not in order of rank gives a plan named "custom".

    Its output has another order than that of the runtime's allgather.
    """
    collective = taccl.collectives.allgather(3).among(members, num_ranks=3)
    problem = taccl.make_problem(taccl.topologies.ring(3), collective, chunk_bytes=1000)
    plan = build_mscclpp_plan(lower(first_schedule(problem)))
    assert plan["collective"] == name
    own = [gpu for gpu in plan["gpus"] if gpu["id"] == 2][0]
    copies = [op for tb in own["threadblocks"] for op in tb["ops"] if op["name"] == "copy"]
    assert [each["index"] for op in copies for each in op["dst_buff"]] == [members.index(2)]


def test_the_number_of_nodes_of_a_file_is_required():
    """For a program from a file, the number of nodes is a required argument."""
    program = replace(program_of("allgather", "ring:4"), node_of_rank=None)
    with pytest.raises(InputError, match="give ranks_per_node"):
        build_mscclpp_plan(program)


@pytest.mark.slow
def test_long_threadblocks_are_refused_or_split():
    """Above 64 operations a threadblock is refused with a remedy, or split into consecutive ones."""
    program = program_of("alltoall", "ring:5", chunks_per_rank=8)
    with pytest.raises(ExportError, match=r"at most 64 operations .* leave split=False out"):
        build_mscclpp_plan(program, split=False)
    plan = build_mscclpp_plan(program, split=True)
    lengths = [len(tb["ops"]) for gpu in plan["gpus"] for tb in gpu["threadblocks"]]
    assert max(lengths) <= 64
    assert len(lengths) > sum(len(rank.threadblocks) for rank in program.ranks)
    assert run_plan(plan)
    most = max(len(rank.threadblocks) for rank in program.ranks)
    with pytest.raises(
        ExportError, match=f"its {most} threadblocks are split .*; make the schedule in fewer"
    ):
        build_mscclpp_plan(program, split=True, max_threadblocks=most)


@pytest.mark.slow
def test_what_is_split_unasked_is_warned_of():
    """By default a threadblock is split only if it is too long, with a warning."""
    program = program_of("alltoall", "ring:5", chunks_per_rank=8)
    with pytest.warns(
        FallbackWarning, match="at most 64 operations per threadblock: each longer threadblock was split"
    ):
        plan = build_mscclpp_plan(program)
    assert plan == build_mscclpp_plan(program, split=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_mscclpp_plan(program_of("allgather", "ring:4"))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_threadblocks": 1}, ExportError, "at most 1 threadblocks per rank"),
        ({"max_bytes": 2**40}, ExportError, "give max_bytes=4294967232"),
        ({"min_bytes": 8, "max_bytes": 4}, InputError, "expected a range"),
        ({"num_threads_per_block": 100}, InputError, "multiple of 32"),
        ({"ranks_per_node": 0}, InputError, "at least 1"),
    ],
)
def test_limits_are_named(options, error, words):
    """The error for exceeding a limit of the executor names the limit and a remedy."""
    with pytest.raises(error, match=words):
        build_mscclpp_plan(program_of("allgather", "ring:4"), **options)


@pytest.mark.parametrize(
    ("name", "options", "plan_options", "words"),
    [
        ("allgather", {"protocol": "LL"}, {"ranks_per_node": 2}, "protocol='Simple'"),
        ("broadcast", {"protocol": "LL"}, {}, "every rank's output depends on every rank"),
        ("gather", {}, {}, "no ranks without output, and rank 1 has none"),
    ],
)
def test_what_plans_do_not_hold_is_named(name, options, plan_options, words):
    """Protocols, numbers of nodes and collectives that the executor does not support are refused."""
    with pytest.raises(ExportError, match=words):
        build_mscclpp_plan(program_of(name, "ring:4", **options), **plan_options)


@pytest.mark.parametrize(
    ("name", "plan_options", "instead"),
    [("allgather", {}, "LL"), ("allgather", {"ranks_per_node": 2}, "Simple"), ("broadcast", {}, "Simple")],
)
def test_a_program_for_ll128_is_written_for_a_protocol_that_there_is(name, plan_options, instead):
    """A program for LL128 is written as packets where safe, else for Simple, with a warning."""
    program = program_of(name, "ring:4", protocol="LL128")
    with pytest.warns(FallbackWarning, match=f"MSCCL\\+\\+ has no LL128: the plan uses {instead}"):
        plan = build_mscclpp_plan(program, **plan_options)
    assert plan["protocol"] == instead
    assert run_plan(plan)


def test_sizes_stay_within_the_offsets():
    """The sizes of a plan are limited by offsets of 32 bits within a chunk.

    2^32 bytes exceed them: each of 4 chunks is below 2^30 bytes, a multiple of 16.
    """
    reach = 4 * ((2**32 - 1) // 4 // 16 * 16)
    program = replace(program_of("allgather", "ring:4"), sizes_bytes=None)
    assert build_mscclpp_plan(program)["max_message_size"] == reach
    large = replace(program, sizes_bytes=(0, reach + 1))
    assert build_mscclpp_plan(large)["max_message_size"] == reach
    with pytest.raises(ExportError, match="limit this plan to"):
        build_mscclpp_plan(replace(program, sizes_bytes=(reach + 1, 2 * reach)))


def test_plan_is_for_sizes_about_that_of_its_schedule():
    """A plan is for half to twice its schedule's size by default."""
    problem = taccl.make_problem(taccl.topologies.ring(4), taccl.collectives.allgather(4), size_bytes=10**9)
    program = lower(taccl.baselines.ring(problem))
    plan = build_mscclpp_plan(program)
    assert (plan["min_message_size"], plan["max_message_size"]) == (5 * 10**8, 2 * 10**9)
    told = build_mscclpp_plan(program, min_bytes=0, max_bytes="4GB")
    assert (told["min_message_size"], told["max_message_size"]) == (0, 4 * 10**9)


@pytest.mark.parametrize("nodes", [(0, 1, 0, 1), (0, 0, 0, 1), (0, 0, 1, 2)])
def test_nodes_are_blocks_of_equally_many_ranks(nodes):
    """Other nodes are refused, as the executor computes a rank's node from its number (``useIB``)."""
    with pytest.raises(
        ExportError, match="nodes of equally many ranks with consecutive numbers; number the ranks"
    ):
        build_mscclpp_plan(replace(program_of("allgather", "ring:4"), node_of_rank=nodes))
    topology = TopologyBuilder("hosts", list(nodes))
    for src, dst in itertools.permutations(range(4), 2):
        topology.add_link(src, dst, alpha_us=1, beta_us_per_mb=10)
    with pytest.raises(InputError, match="consecutive numbers; choose another runtime"):
        taccl.plan(topology.build(), "allgather", sizes="64KB", runtime="mscclpp")


def test_executor_accepts_the_input_of_every_rank():
    """The range of a plan for an allgatherv is one of input sizes, which the executor compares with it.

    Ranks start with 1, 3, 2 and 2 of 8 chunks of 1600 bytes, so that a rank's input at half to twice this size
    has 800 to 9600 bytes. (``checkMessageSize`` of ``execution_plan.cc`` uses the output for allgathers alone.)
    """
    collective = taccl.collectives.allgatherv(4, counts=[1, 3, 2, 2])
    problem = taccl.make_problem(taccl.topologies.ring(4), collective, chunk_bytes=1600)
    plan = build_mscclpp_plan(lower(taccl.baselines.baseline("best", problem, cut=False)))
    assert [gpu["input_chunks"] for gpu in plan["gpus"]] == [1, 3, 2, 2]
    assert (plan["min_message_size"], plan["max_message_size"]) == (800, 9600)
    assert served_bytes(plan) == (6400, 25600)
    assert served_bytes(plan | {"collective": "allgather"}) == (800, 9600)


def test_programs_that_need_queues_are_refused():
    """A program in which two ranks send before they receive is refused: the executor has no queues, so it
    would deadlock."""

    def rank(peer):
        steps = (
            Step("copy", Slot("input", 0), Slot("output", 0)),
            Step("send", Slot("output", 0)),
            Step("receive", None, Slot("output", 0)),
        )
        return RankProgram(1, 1, 0, (Threadblock(steps, peer, peer),))

    program = Program("swap", (rank(1), rank(0)), node_of_rank=(0, 0))
    with pytest.raises(ExportError, match="deadlock"):
        build_mscclpp_plan(program)


def test_a_program_that_is_wrong_is_not_written():
    """A plan with wrong outputs is not written."""
    good = program_of("allgather", "ring:3")
    wrong = replace(good, collective=taccl.collectives.allreduce(3), ranks=tuple(
        replace(rank, input_chunks=3) for rank in good.ranks
    ))  # fmt: skip
    with pytest.raises(ExportError, match="would not work"):
        build_mscclpp_plan(wrong)


def test_convert_writes_a_plan(tmp_path):
    """A schedule file is converted with a warning of losses, and the plan is recognised by its content."""
    schedule = schedule_of("allgather", "ring:4")
    taccl.save(schedule, tmp_path / "in.json")
    with pytest.warns(LossyConversionWarning, match="cannot hold"):
        convert(tmp_path / "in.json", tmp_path / "out.json", to="mscclpp", name="mine", in_place=True)
    assert format_of_content(tmp_path / "out.json").name == "mscclpp"
    plan = json.loads((tmp_path / "out.json").read_text())
    assert (plan["name"], plan["inplace"]) == ("mine", True)
    assert run_plan(plan)


def test_the_registration_is_written_beside_the_plan(tmp_path):
    """On request the registration module is written with the plan; if either file exists, none is written."""
    schedule = schedule_of("allgather", "ring:4")
    paths = write(schedule, tmp_path / "ring-4.plan.json", register=True)
    assert [path.name for path in paths] == ["ring-4.plan.json", "ring_4_register.py"]
    paths[0].unlink()
    with pytest.raises(InputError, match="exists"):
        write(lower(schedule), paths[0], register=True)
    assert not paths[0].exists()

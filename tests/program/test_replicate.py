"""Instances: chunks divided over separate channels."""

import pytest

import taccl
from taccl._internal.units import parse_size
from taccl.formats.msccl.xml import dump_msccl_xml
from taccl.formats.mscclpp.plan import build_mscclpp_plan
from taccl.program.interpret import interpret
from taccl.program.program import Slot
from taccl.program.replicate import replicate
from tests.program.examples import program_of


def ring_on_h100(size):
    """A ring allgather on eight GPUs with links of 450 GB/s."""
    topology = taccl.topologies.dgx_h100(profile="nominal")
    problem = taccl.make_problem(topology, taccl.collectives.allgather(8), size_bytes=parse_size(size))
    return taccl.baselines.ring(problem, cut=False)


def test_one_instance_is_the_program():
    """`replicate` with one instance returns the same program."""
    program = program_of("allgather", "ring:2")
    assert replicate(program, 1) is program


def test_parts_are_neighbours_and_take_turns():
    """Chunks are cut into adjacent parts, one per instance: of three instances, the second sends slot 1 of
    each three over channel 1."""
    program = replicate(program_of("allgather", "ring:2", in_place=True), 3)
    senders = [tb for tb in program.ranks[0].threadblocks if tb.send_to == 1]
    assert [(tb.channel, tb.steps[0].src) for tb in senders] == [
        (0, Slot("output", 0)), (1, Slot("output", 1)), (2, Slot("output", 2)),
    ]  # fmt: skip
    assert program.collective.num_chunks == 6


@pytest.mark.slow
def test_instances_of_instances():
    """Two instances of two instances give four channels and correct outputs."""
    program = replicate(replicate(program_of("allreduce", "ring:3"), 2), 2)
    assert program.num_channels == 4
    interpret(program, capacity=1).raise_if_failed()


@pytest.mark.slow
def test_as_many_as_the_links_need():
    """With instances="auto", a program gets as many channels as the links need.

    450 GB/s at 30 GB/s per channel take 15 channels; 16 divide the size. The result runs correctly.
    """
    program = taccl.lower(ring_on_h100("64MB"), instances="auto", threadblocks="relay")
    assert program.num_channels == 16
    assert program.notes == ("instances: 16 for 450 GB/s at 30 GB/s per channel",)
    assert "16 for 450 GB/s" in repr(program)
    interpret(program).raise_if_failed()
    dump_msccl_xml(program)
    build_mscclpp_plan(program)


@pytest.mark.parametrize(
    ("size", "options", "most", "why"),
    [
        ("64MB", {"channels": "by-chunk", "num_channels": 3}, 8, "MSCCL has 32 channels"),
        ("64KB", {"threadblocks": "relay"}, 4, "parts of chunks have at least 1024 bytes"),
    ],
)
def test_what_limits_instances_is_reported(size, options, most, why):
    """A note says what limits the number of instances.

    In MSCCL 32 channels allow at most 32 / 3 instances, so 8. Chunks of 8 KB, in parts of at least 1024 bytes,
    allow 4.
    """
    program = taccl.lower(ring_on_h100(size), instances="auto", **options)
    assert program.notes[0].startswith(f"instances: {most}, and not 16 for 450 GB/s")
    assert program.notes[0].endswith(why)
    dump_msccl_xml(program)


def test_threadblocks_limit_instances():
    """MSCCL++ runs at most 80 threadblocks, which limits instances of 14 threadblocks, one per peer and
    direction."""
    topology = taccl.topologies.dgx_h100(profile="nominal")
    problem = taccl.make_problem(topology, taccl.collectives.alltoall(8), size_bytes=64_000_000)
    program = taccl.lower(taccl.baselines.pairwise(problem, cut=False), instances="auto")
    assert program.notes[0].startswith("instances: 4, and not 16")
    assert program.max_threadblocks <= 80 < 2 * program.max_threadblocks
    assert "MSCCL++ runs at most 80 threadblocks per rank" in program.notes[0]
    build_mscclpp_plan(program)

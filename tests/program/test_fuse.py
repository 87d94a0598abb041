"""Fusion of a receive with a following send, where it delays no other step."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.problem.collectives import COLLECTIVES, broadcast, reduce
from taccl.program.interpret import interpret
from taccl.program.lower import lower
from tests.program.examples import program_of, schedule_of, timed
from tests.synthesis.small_problems import problem_of, ring


def operations(program):
    """{operation: count}."""
    return Counter(step.operation for _, step in program.steps())


def chain(collective, links, **options):
    """The program of one chunk over a chain of links, 10 ticks each."""
    problem = problem_of(ring(3), collective)
    number = {(link.srcs[0], link.dsts[0]): i for i, link in enumerate(problem.topology.links)}
    reduces = collective.combining
    transfers = [(10 * i, 0, number[link], i, reduces) for i, link in enumerate(links)]
    return lower(timed(problem, transfers), threadblocks="relay", **options)


def test_a_broadcast_is_passed_on_in_one_step():
    """A rank receives a broadcast's chunk and sends it on in one step instead of two."""
    program = chain(broadcast(3, root=0), [(0, 1), (1, 2)])
    assert operations(program) == {"copy": 1, "send": 1, "receive-send": 1, "receive": 1}
    (threadblock,) = program.ranks[1].threadblocks
    assert (threadblock.receive_from, threadblock.send_to) == (0, 2)
    assert interpret(program, capacity=1).ok


def test_a_sum_under_way_is_kept_nowhere():
    """A rank adds to a sum and forwards it in one step, without storing it."""
    program = chain(reduce(3, root=0), [(2, 1), (1, 0)])
    assert operations(program)["receive-reduce-send"] == 1
    (step,) = program.ranks[1].threadblocks[0].steps
    assert step.dst is None
    assert interpret(program, capacity=1).ok


def test_a_scan_keeps_what_it_passes_on():
    """In a scan each rank stores its prefix and forwards it in one step."""
    program = program_of("scan", "ring:4", threadblocks="relay")
    assert operations(program)["receive-reduce-copy-send"] == 2
    assert interpret(program, capacity=1).ok


@pytest.mark.slow
def test_what_is_sent_back_is_one_step_where_one_threadblock_does_both():
    """On a ring of five with one threadblock per peer, a completed sum is sent back in the receiving step."""
    program = program_of("allreduce", "ring:5", chunks_per_rank=2, threadblocks="per-peer")
    assert operations(program)["receive-reduce-copy-send"] > 0
    assert interpret(program, capacity=1).ok


def test_a_receive_is_fused_with_at_most_one_of_two_sends():
    """A rank that forwards a chunk to two others fuses the receive with at most one of the two sends."""
    program = program_of("broadcast", "fully-connected:4", threadblocks="relay")
    plain = program_of("broadcast", "fully-connected:4")
    fused = operations(program)["receive-send"]
    assert program.num_steps == plain.num_steps - fused


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_runs_right(name):
    """Fused programs are correct, in place and out of place, with room for one chunk per queue."""
    for topology in ("ring:4", "mesh:2x3") if name in ("allgather", "allreduce", "alltoall") else ("ring:4",):
        schedule = schedule_of(name, topology, chunks_per_rank=2)
        for in_place in (False, True):
            program = lower(schedule, threadblocks="relay", in_place=in_place)
            interpretation = interpret(program, capacity=1)
            assert interpretation.ok, interpretation
            assert program.num_steps <= lower(schedule, in_place=in_place).num_steps


_SCHEDULES = {}


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["allgather", "allreduce", "reduce-scatter", "broadcast", "reduce"]),
    st.sampled_from(["ring:4", "mesh:2x3", "hypercube:3"]),
    st.fixed_dictionaries(
        {
            "in_place": st.booleans(),
            "instances": st.integers(1, 2),
            "channels": st.sampled_from(["single", "by-chunk"]),
            "num_channels": st.integers(1, 3),
            "merged": st.sampled_from(["split", "pack"]),
        }
    ),
)
def test_relays_run_right_with_every_option(name, topology, options):
    """Fused programs have no deadlock, race or wrong output, and no more threadblocks than unfused ones."""
    if (name, topology) not in _SCHEDULES:
        _SCHEDULES[name, topology] = schedule_of(name, topology, chunks_per_rank=2)
    program = lower(_SCHEDULES[name, topology], threadblocks="relay", **options)
    assert interpret(program, capacity=1).ok
    assert program.max_threadblocks <= lower(_SCHEDULES[name, topology], **options).max_threadblocks

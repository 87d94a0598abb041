"""The bound of a step: no schedule is below it, for any order of computation."""

from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

import taccl
from taccl import Workload
from taccl.topology.builder import TopologyBuilder
from taccl.workload import fuse, overlap, schedule_workload
from taccl.workload.bound import StepBound
from taccl.workload.costs import tile_costs
from taccl.workload.exchange import parts_of, problem_of
from taccl.workload.step import ComputeTile, Step
from tests.fuzzing import MANY, cases
from tests.workload.random_steps import random_step, steps_below, uneven_topology

#: Four ranks, fully connected, 100 us/MB and no latency.
RANKS = taccl.topologies.fully_connected(4, alpha_us=0, bandwidth_gb_per_s=10)


def bound_of(step, topology=RANKS):
    """The bounds of a step whose kernels have given costs."""
    return StepBound(step, topology, tile_costs(step, None))


@cache
def some_topology(seed):
    """A random topology of two or three ranks, cached with its collective schedules."""
    rng = np.random.default_rng(seed)
    return uneven_topology(rng, int(rng.integers(2, 4)))


@pytest.mark.fuzz
def test_no_order_of_tiles_and_sends_is_below_the_bound():
    """On random steps with uneven links neither the schedule found nor any active schedule is below the
    bound."""
    for seed in cases("steps: no active schedule below the bound", few=1, many=300, first=19):
        topology = some_topology(seed // 8)
        rng = np.random.default_rng(seed)
        step = schedule_workload(random_step(rng, topology.num_ranks), topology)
        assert step.verify().ok, seed
        assert step.bound <= step.finish, seed
        for algorithm in ("stock", "synthesized", "best"):
            below = next(steps_below(step, algorithm, most_nodes=1500 if MANY else 500), None)
            assert below is None, (seed, below, below and below.verify())


def uneven(n):
    """A topology with ports of 1 MB/us, except that rank 0 sends at 1/4 MB/us, and rank 1 receives at 1/2
    MB/us."""
    builder = TopologyBuilder("uneven", [0] * n)
    out = [builder.add_resource(f"out {rank}") for rank in range(n)]
    into = [builder.add_resource(f"into {rank}") for rank in range(n)]
    for src in range(n):
        for dst in range(n):
            if src != dst:
                here, there = 4 if src == 0 else 1, 2 if dst == 1 else 1
                link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=max(here, there))
                builder.add_hold(link, out[src], alpha_us=0, beta_us_per_mb=here)
                builder.add_hold(link, into[dst], alpha_us=0, beta_us_per_mb=there, side="receive")
    return builder.build()


@pytest.mark.slow
def test_ranks_may_end_with_different_kernels():
    """The bound of a step is valid even if ranks compute their kernels in different orders.

    Rank 0 first computes the input of an alltoall, which it sends slowly. The other ranks first compute that
    of an allgather, which rank 1 receives slowly.

    Each collective takes 16 us: 4 MB leave rank 0, or 8 MB enter rank 1. But the schedule ends before 2 * 50
    + 16 us. Each rank sends the data of its first kernel while it computes the second.
    """
    n, us = 5, 50
    step = Workload("uneven", n)
    step = step.then("a", "compute", shape=(n, n * 250_000), layout="sliced(0)", cost_us=us)
    step = step.then("a2a", "alltoall", "a", axis=1)
    step = step.then("b", "compute", shape=(n * 2 * 250_000,), layout="sliced(0)", cost_us=us)
    step = step.then("ag", "allgather", "b")
    topology, ranks = uneven(n), range(n)
    start = {(name, rank): us * ((name == "a") == (rank > 0)) for name in "ab" for rank in ranks}
    tiles = [
        ComputeTile(name, 0, rank, Fraction(us), Fraction(us + 50)) for (name, rank), us in start.items()
    ]
    problem, kernel = problem_of(step, topology, parts_of(step)), {"a2a": "a", "ag": "b"}
    release = [
        (chunk, rank, Fraction(us + start[kernel[part.operation], rank]))
        for part in parts_of(step)
        for chunk in part.chunks
        for rank in problem.collective.chunks[chunk].origins
    ]
    found = taccl.synthesize(replace(problem, release_us=tuple(release)), backend="greedy", sketch="none")
    mine = Step(step, topology, tuple(tiles), found.schedule, None)
    assert mine.verify().ok
    assert mine.bound <= mine.finish < 2 * us + 16


@pytest.mark.slow
def test_a_contribution_needs_less_than_the_whole_collective():
    """An allgather of 1 MB per rank takes 300 us over one port; one rank's contribution arrives after 100 us."""
    builder = TopologyBuilder("slow into 0", [0] * 4)
    port = builder.add_resource("into 0")
    for src in range(4):
        for dst in range(4):
            if src != dst:
                link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=100)
                if dst == 0:
                    builder.add_hold(link, port, alpha_us=0, beta_us_per_mb=100, side="receive")
    step = Workload("w", 4).then("a", "compute", shape=(1_000_000,), layout="sliced(0)", cost_us=10)
    found = bound_of(step.then("g", "allgather", "a"), builder.build())
    transfers = found.transfers("g")
    assert transfers.all_us == 300
    assert transfers.from_us == [100] * 4
    assert transfers.to_us == [300, 100, 100, 100]
    assert found.tails["a"] == [100] * 4
    assert found.spans["a"] == found.best() == 310


def test_a_reader_may_start_before_all_ranks_have_their_results():
    """A kernel starts at each rank once that rank has the result of an allgather.

    Rank 0 gets the result at 310 us, and rank 1 at 110 us; the kernel takes 5 us more.
    """
    builder = TopologyBuilder("slow into 0", [0, 0])
    for src, us in ((0, 100), (1, 300)):
        builder.add_link(src, 1 - src, alpha_us=0, beta_us_per_mb=us)
    step = Workload("w", 2).then("a", "compute", shape=(500_000,), layout="sliced(0)", cost_us=10)
    step = step.then("g", "allgather", "a").then("z", "compute", "g", shape=(2,), cost_us=5)
    found = bound_of(step, builder.build())
    assert found.starts["z"] == [310, 110]
    assert found.best() == 315


@pytest.mark.slow
def test_tiles_keep_up_with_what_they_wait_for():
    """A kernel and an allreduce in four tiles take at least 25 + 4 * 25 us: the first send waits for a tile.

    Each tile takes 25 us of computation and 25 us of allreduce. In the allreduce of 2 MB, each link carries
    0.5 MB of partial sums and 0.5 MB of sums.
    """
    step = Workload("w", 4).then("a", "compute", shape=(500_000,), layout="partial", cost_us=100)
    step = overlap(step.then("sum", "allreduce", "a"), ["a", "sum"], tiles=4)
    found = bound_of(step)
    assert found.transfers("sum").all_us == 4 * found.transfers("sum", one=True).all_us == 100
    assert found.best() >= 125


@pytest.mark.slow
def test_collectives_merge_as_the_step_allows():
    """Beside a small sum, sends of an alltoall may merge, too, so the alltoall's bound must allow it.

    On a ring of six, three hops of merged sends take 1.52 us; alone, unmerged sends take at least 2.27 us.
    """
    topology = taccl.topologies.ring(6)
    alltoall = Workload("w", 6).input("x", (24, 48), layout="sliced(0)", dtype="float64")
    alltoall = alltoall.then("s", "alltoall", "x", axis=1)
    both = alltoall.input("y", (24, 24), layout="partial", dtype="float64").then("t", "allreduce", "y")
    assert float(bound_of(alltoall, topology).transfers("s").all_us) == pytest.approx(2.273, rel=1e-3)
    assert float(bound_of(both, topology).transfers("s").all_us) == pytest.approx(1.515, rel=1e-3)


def test_a_rank_computes_one_kernel_at_a_time():
    """A rank computes one kernel at a time: three independent ones of 10, 20 and 30 us take 60 us."""
    step = Workload("w", 4)
    for number in (1, 2, 3):
        step = step.then(f"k{number}", "compute", shape=(4,), cost_us=10 * number)
    assert bound_of(step).best() == 60


def test_tails_count_no_kernels_of_other_ranks():
    """If rank r sends to r + 1, the tail of a kernel is one hop and the next kernel.

    Kernels of other ranks do not count.
    """
    step = Workload("w", 4).then("a", "compute", shape=(1_000_000,), layout="sliced(0)", cost_us=10)
    found = bound_of(step.then("s", "send", "a").then("z", "scale", "s", value=2, cost_us=7))
    assert found.tails["a"] == [107] * 4
    assert found.best() == 117


def test_a_kernel_may_wait_for_an_operation_behind_its_head():
    """A kernel of two operations ends at 4 us, which is also the bound.

    Its operations take 1 us each, but the second reads a result that takes 2 us.
    """
    step = Workload("late", 2).input("x", (4,)).input("y", (4,))
    step = step.then("a", "relu", "x", cost_us=1).then("b", "exp", "y", cost_us=2)
    step = fuse(step.then("c", "multiply", "a", "b", cost_us=1), "a", "c")
    made = schedule_workload(step, taccl.topologies.fully_connected(2))
    assert made.finish_us == made.bound_us == 4

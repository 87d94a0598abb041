"""Data into a node: a bound over all chunkings, by hand, against all schedules, and against baselines."""

import random
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest

import taccl
from taccl import collectives
from taccl.analysis.certificates.throughput import node_data_bounds
from taccl.analysis.certificates.transformed import into_node, merging_freely
from taccl.topology.builder import TopologyBuilder
from taccl.topology.in_network import InNetwork
from taccl.topology.parts import LinkCost, add_aggregation
from tests.analysis.claims import both_chunkings, certificates_of, is_unbeaten, raised, ratios
from tests.analysis.test_exchange_time import cluster
from tests.analysis.test_node_sums import machine
from tests.effort import brief_synthesis
from tests.fuzzing import cases, some
from tests.synthesis.small_problems import custom, linked, problem_of, two_levels

MB = 10**6


#: Certificates of the claims on data into a node, over all chunkings.
certificates = partial(certificates_of, node_data_bounds, divisible=True, in_network=False)


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter"])
def test_ports_wait_for_data_from_other_nodes(name):
    """Six of eight parts of 1 MB enter a node, by its NICs after 4 us and on by ports after 5 us.

    Both pass 1/4 MB per us, so that (T - 4) / 4 + (T - 5) / 4 = 6/8 at T = 6 us. All data, of which one part
    starts in the node, need T with (T - 4) / 4 + (T - 1) / 4 = 7/8, less than 6 us.
    """
    topology = cluster(4, 2, near=(1, 0, 4), far=(4, 0, 4), rails=True)
    problem = taccl.make_problem(topology, name, size_bytes=MB)
    bound = taccl.lower_bound(problem, divisible=True)
    assert (bound.bound, bound.kind, bound.witness.kind) == (6, "throughput", "data into a node")
    assert bound.check() and not raised(bound).check()


def test_data_for_other_nodes_leaves_the_root_early():
    """Six of eight parts of 1 MB leave rank 0 for other nodes, by its NIC until 4 us before the end, and by its
    port until 5 us before, as in a gather in reversed time."""
    problem = taccl.make_problem(
        cluster(4, 2, near=(1, 0, 4), far=(4, 0, 4), rails=True), "scatter", size_bytes=MB
    )
    (bound,) = (each for each in certificates(problem) if each.bound == 6)
    assert bound.limits == "traffic out of rank 0, of data for other nodes"
    assert bound.check() and not raised(bound).check()
    assert not replace(bound, witness=replace(bound.witness, backwards=False)).check()


def test_the_part_is_the_data_that_starts_elsewhere():
    """Chunks that start in the node, and destinations elsewhere, are left out."""
    problem = taccl.make_problem(cluster(2, 2), "allgather", size_bytes=4 * MB)
    chunks = into_node(problem, 1).collective.chunks
    assert [(each.origins, each.destinations) for each in chunks] == [((0,), (2, 3)), ((1,), (2, 3))]


def test_chunks_may_cross_to_other_nodes_that_want_them():
    """Rank 0 sends a chunk to rank 1 of a second node, which also has it at rank 2, and on to rank 3: 2 us.

    Rank 3 is in a third node, and gets the chunk from rank 2 in 5 us. The clause on crossings allows both.
    """
    topology = linked("three nodes", [0, 1, 1, 2], [(0, 1, 0, 1), (1, 3, 0, 1), (2, 3, 0, 5)])
    collective = custom(4, [([0, 2], [1, 3])])
    problem = merging_freely(problem_of(topology, collective, direct_crossing=True))
    bound = taccl.lower_bound(problem, divisible=True)
    assert bound.bound <= brief_synthesis(problem).schedule.finish == 2 and bound.check()


def test_switches_alone_may_bring_the_data():
    """Over the links of a reducing switch alone, of 1 + 2 us, a chunk enters the second node after 3 us."""
    builder = TopologyBuilder("switch", [0, 0, 1])
    ports = [{r: builder.add_resource(f"{way} {r}") for r in range(3)} for way in ("out", "in")]
    add_aggregation(builder, *ports, LinkCost(Fraction(1), Fraction(2)), reduces=InNetwork(), name="switch")
    builder.add_switch("switch", range(3), range(len(builder.links)), reduces=InNetwork())
    collective = custom(3, [([0, 2], [1]), ([1], [2])])
    problem = taccl.make_problem(builder.build(), collective, chunk_bytes=MB)
    bound = taccl.lower_bound(problem, divisible=True, in_network="only")
    assert (bound.bound, bound.witness.kind) == (3, "data into a node")
    assert bound.check() and not raised(bound).check()


@pytest.mark.parametrize("own", [MB + 1, 3 * MB, 7 * MB])
def test_sizes_of_other_data_do_not_count(own):
    """The grid of times depends on all sizes; the bound for the 3 MB from another node, in us, does not."""
    topology = cluster(2, 2, near=(0, 0, 9), far=(1, 0, 3))
    problem = taccl.make_problem(topology, "allgather", chunk_bytes=(own, own, 3 * MB, 3 * MB))
    into_first = [each for each in certificates(problem) if each.witness.node == 0]
    part = taccl.lower_bound(into_node(problem, 0), divisible=True)
    assert max(each.bound for each in into_first) == part.bound
    assert all(each.check() and not raised(each).check() for each in into_first)


def test_the_part_may_have_another_unit_of_time():
    """Four chunks of 1 MB enter a node through its NIC, with other sizes inside the nodes, so with finer ticks."""
    topology, collective = two_levels(2, local=1, nic=4), collectives.alltoall(4)
    near = [chunk.origins[0] // 2 == chunk.destinations[0] // 2 for chunk in collective.chunks]
    problem = problem_of(topology, collective, chunk_bytes=[MB - is_near for is_near in near])
    assert into_node(problem, 0).costs.ticks_per_us < problem.costs.ticks_per_us
    found = certificates(problem)
    assert {each.bound for each in found} == {16}
    assert all(each.check() and not raised(each).check() for each in found)


@pytest.mark.filterwarnings("ignore::taccl.errors.NumericsWarning")
def test_the_part_may_need_no_rounding():
    """The ticks of all data exceed 64 bits unless costs are rounded; those of the part do not."""
    nic = 9 * 2**62 // (10 * 64 * MB)
    topology = two_levels(2, local=Fraction(1, 2), nic=nic)
    problem = problem_of(topology, collectives.alltoall(4), chunk_bytes=999_983)
    assert into_node(problem, 0).costs.ticks_per_us > problem.costs.ticks_per_us
    found = certificates(problem)
    assert {each.bound for each in found} == {4 * nic * Fraction(999_983, MB)}
    assert all(each.check() and not raised(each).check() for each in found)


def test_nothing_is_claimed_elsewhere():
    """One node, nodes of one rank, and sums that all ranks want yield no claim."""
    for topology in (taccl.topologies.ring(4), cluster(4, 1)):
        assert certificates(taccl.make_problem(topology, "allgather", size_bytes=MB)) == []
    assert certificates(taccl.make_problem(cluster(2, 2), "allreduce", size_bytes=MB)) == []


@pytest.mark.fuzz
def test_no_schedule_in_any_chunks_beats_the_bound():
    """On two nodes of one to three ranks no schedule in 1 or 2 chunks ends earlier, by exhaustive search."""
    decided = 0
    for seed in cases("data into a node, over all schedules", few=4, many=200):
        rng = random.Random(f"node data {seed}")
        topology = machine(rng, rng.choice(((2, 2), (2, 1), (1, 3))), is_tiny=True)
        problems = both_chunkings(
            topology, rng.choice(("allgather", "reduce-scatter", "gather", "scatter", "broadcast"))
        )
        found = certificates(problems[0]) if problems else []
        assert all(each.check() for each in found), seed
        best = max((each.bound for each in found), default=0)
        decided += sum(best > 0 and is_unbeaten(each, best, max_states=2000) for each in problems)
    assert decided >= some(2, 20)


@pytest.mark.fuzz
def test_no_baseline_beats_the_bound():
    """On random nodes, baselines and a search finish no sooner than the claim, in every number of chunks."""
    nearest = []
    for seed in cases("data into a node against baselines", few=2, many=50):
        rng = random.Random(f"into nodes {seed}")
        topology = machine(rng, rng.choice(((2, 2), (3, 3), (2, 2, 2), (2, 3))))
        name = rng.choice(("allgather", "reduce-scatter", "gather", "scatter", "alltoall"))
        problem = taccl.make_problem(topology, name, size_bytes=rng.choice((10**5, MB, 4 * MB)))
        nearest += ratios(certificates(merging_freely(problem)), problem, seed, searched=True)
    assert 1 <= min(nearest) < 1.25

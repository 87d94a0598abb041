"""Trees of chunks that load a fabric evenly, and sends along them."""

import math
import random
from functools import partial

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl._internal.deadline import Deadline, OutOfTime
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.verification.verify import verify
from taccl.errors import CollectiveError
from taccl.problem.collectives import together
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.schedule.schedule import Schedule
from taccl.synthesis.kernels.fabric import problem_arrays
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.proposers import router
from taccl.synthesis.proposers.large import schedule_large
from taccl.synthesis.proposers.queues import latest_starts, send_along_trees, spread_starts
from taccl.synthesis.proposers.router import find_paths, find_trees, reroute
from taccl.synthesis.proposers.spreading import spread
from tests.analysis.valid_schedules import full
from tests.fuzzing import MANY
from tests.synthesis.proposers.random_problems import ring_with_chords
from tests.synthesis.small_problems import custom, linked

MB = 10**6
topologies = taccl.topologies


def arrays(topology, collective, *, chunk_bytes=MB):
    """Fabric and demand of a problem without merging, and the problem."""
    problem = make_problem(topology, collective, chunk_bytes=chunk_bytes, clauses=Clauses())
    return *problem_arrays(problem), problem


def star(*pairs):
    """A topology of four ranks with the given links at 1 us/MB."""
    return linked("star", [0] * 4, pairs, alpha_us=0, beta_us_per_mb=1)


def ends(fabric, trees, c):
    """(source, destination) of every hop of a chunk's tree."""
    slots = trees.slot[trees.hop_of[c] : trees.hop_of[c + 1]]
    return [(int(fabric.src[e]), int(fabric.dst[e])) for e in slots]


def test_a_tree_shares_links_to_its_destinations():
    """A chunk crosses links that its destinations share only once.

    On 0 -> 1 -> {2, 3} it crosses 0 -> 1 once, though rank 1 is not a destination.
    """
    wants = custom(4, [([0], [2, 3])])
    fabric, demand, _ = arrays(star((0, 1), (1, 2), (1, 3)), wants)
    trees = find_trees(fabric, demand)
    assert sorted(ends(fabric, trees, 0)) == [(0, 1), (1, 2), (1, 3)]
    assert ends(fabric, trees, 0)[0] == (0, 1)


def test_chunks_divide_over_paths():
    """Chunks divide over two paths, so that none is overloaded.

    Two chunks go from 0 to 3 through ranks 1 and 2, so no link is busy for more than 1 us.
    """
    wants = custom(4, [([0], [1, 3]), ([0], [2, 3])])
    fabric, demand, problem = arrays(star((0, 1), (0, 2), (1, 3), (2, 3)), wants)
    assert find_trees(fabric, demand).peak_ticks * problem.costs.us(1) == 1


def test_every_target_is_reached_once():
    """Each destination has one hop into it, after the hop into that hop's source."""
    fabric, demand, problem = arrays(
        topologies.mesh(3, 4), collectives.allgather(6).among([0, 2, 3, 7, 8, 11], num_ranks=12)
    )
    trees = find_trees(fabric, demand)
    for c, chunk in enumerate(problem.collective.chunks):
        there = set(chunk.origins)
        for src, dst in ends(fabric, trees, c):
            assert src in there and dst not in there
            there.add(dst)
        assert set(chunk.destinations) <= there


def test_a_chunk_that_cannot_come_is_named():
    """If rank 3 has no incoming link, the error names the chunk that must reach it."""
    wants = custom(4, [([0], [1, 2]), ([0], [1, 3])])
    fabric, demand, _ = arrays(star((0, 1), (0, 2)), wants)
    with pytest.raises(CollectiveError, match="chunk 1 cannot reach"):
        find_trees(fabric, demand)


def test_a_stopped_search_has_no_trees_yet():
    """A tree search stopped before its first tree raises OutOfTime."""
    fabric, demand, _ = arrays(topologies.mesh(4, 4), collectives.allgather(16))
    with pytest.raises(OutOfTime, match="give more time"):
        find_trees(fabric, demand, Limits(Deadline.after(0.0)))


def test_passes_end_with_the_time_for_runs(monkeypatch):
    """Once no further run may start, the pass under way is the last."""
    fabric, demand, _ = arrays(topologies.ring(4), collectives.allgather(4))
    passes = []
    route = router.route
    monkeypatch.setattr(router, "route", lambda *given: passes.append(given) or route(*given))
    assert find_trees(fabric, demand, Limits(until=Deadline.after(0.0))).peak_ticks > 0
    assert len(passes) == 1


@pytest.mark.slow
def test_a_limit_stops_growing_trees():
    """1600 chunks to 40 ranks each: a limit of 0.05 s stops the search before all trees exist."""
    wants = [([c % 1600], [(c * 37 + 41 * i) % 1600 for i in range(1, 41)]) for c in range(1600)]
    fabric, demand, _ = arrays(topologies.mesh(40, 40), custom(1600, wants))
    limit = Deadline.after(0.05)
    with pytest.raises(OutOfTime):  # a search that is not stopped, and waited for, returns trees
        limit.run(lambda: find_trees(fabric, demand, Limits(limit)), patience_s=math.inf)


def test_loads_are_those_of_the_trees():
    """The peak load, updated as trees are removed and regrown, equals the load summed over all sends."""
    fabric, demand, _ = arrays(
        topologies.dgx_h100(2, profile="nominal"), collectives.broadcast(16, chunks_per_rank=4)
    )
    routes = find_trees(fabric, demand)
    load, resource_load = np.zeros(fabric.num_slots), np.zeros(fabric.num_resources)
    for c, e in zip(routes.chunk, routes.slot, strict=True):
        load[e] += fabric.own_alpha[e] + demand.units[c] * fabric.own_beta[e]
        for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
            resource_load[fabric.hold_resource[h]] += (
                fabric.hold_alpha[h] + demand.units[c] * fabric.hold_beta[h]
            )
    assert routes.peak_ticks == max(load.max(), resource_load.max())


@pytest.mark.slow
def test_the_same_seed_finds_the_same():
    """Two searches with one seed give the same starts."""
    fabric, demand, _ = arrays(
        topologies.dgx_h100(2, profile="nominal"), collectives.broadcast(16, chunks_per_rank=4)
    )
    find = partial(find_trees, fabric, demand)
    one, two = (
        send_along_trees(fabric, demand, Limits(seed=5), find(Limits(seed=5)), find) for _ in range(2)
    )
    assert one is not None and two is not None
    assert (one.start == two.start).all() and (one.link == two.link).all()


def test_nothing_is_returned_that_ends_after_the_limit():
    """No schedule is returned that finishes after the limit."""
    fabric, demand, _ = arrays(
        topologies.dgx_h100(2, profile="nominal"), collectives.broadcast(16, chunks_per_rank=4)
    )
    find = partial(find_trees, fabric, demand)
    assert send_along_trees(fabric, demand, Limits(), find(), find, limit_ticks=1) is None


@pytest.mark.slow
def test_broadcast_uses_all_links_out_of_the_root():
    """A broadcast uses all links out of its root.

    16 chunks of 20.5 us leave a corner of a 4x4 mesh over 2 links: 8 sends, and 5 more hops of the last one,
    266.5 us.
    """
    problem = make_problem(
        topologies.mesh(4, 4), collectives.broadcast(16, chunks_per_rank=16), chunk_bytes=MB
    )
    found = schedule_large(problem)
    assert found.finish_us <= 287.0
    assert float(lower_bound(problem).bound) == 266.5


_LONG = pytest.mark.skipif(not MANY, reason="long; set TACCL_MANY=1 to run it")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "kind", "at_most"),
    [
        (4, "strided", 1.08),  # three chunks of 20 us into a NIC, each passed on inside: 60 us + 2 * 2.2 us
        (4, "random", 1.34),  # four chunks into some NIC, where three are the average
        pytest.param(8, "strided", 1.01, marks=_LONG),
        pytest.param(8, "random", 1.25, marks=_LONG),
    ],
)
def test_process_groups_share_nics_evenly(nodes, kind, at_most, monkeypatch):
    """One process group of eight ranks per DGX-H100 node, in order or shuffled, loads the NICs evenly."""
    monkeypatch.setattr("taccl.synthesis.proposers.large._TURN_SENDS", 10**6)
    order = list(range(8 * nodes))
    if kind == "random":
        random.Random(0).shuffle(order)
    parts = [order[g::nodes] if kind == "strided" else order[8 * g : 8 * g + 8] for g in range(nodes)]
    groups = [collectives.allgather(8).among(sorted(ranks), num_ranks=len(order)) for ranks in parts]
    problem = make_problem(topologies.dgx_h100(nodes, profile="nominal"), together(groups), chunk_bytes=MB)
    found = schedule_large(problem)
    bound = lower_bound(problem, budget_s=1)
    assert verify(full(found)).ok
    assert 1 <= found.finish / bound.bound <= at_most


@pytest.mark.parametrize("seed", range(400 if MANY else 15))
def test_random_groups_on_random_graphs_verify(seed):
    """On random graphs and groups all schedulers' results verify, and none finishes before the bound."""
    rng = random.Random(seed)
    topology = ring_with_chords(rng)
    num_ranks = topology.num_ranks
    order = rng.sample(range(num_ranks), num_ranks)
    groups = [order[: num_ranks // 2], order[num_ranks // 2 :]]
    joint = together([collectives.allgather(len(g)).among(sorted(g), num_ranks=num_ranks) for g in groups])
    problem = make_problem(topology, joint, chunk_bytes=MB, clauses=Clauses())
    fabric, demand = problem_arrays(problem)
    found = spread(fabric, demand, Limits(seed=seed))
    schedule = Schedule(problem, found.chunk, found.link, found.start, producer="greedy")
    bound = lower_bound(problem)
    assert verify(schedule).ok
    assert bound.check()
    assert bound.bound <= schedule.finish


def skewed(num_nodes, skew, seed=0):
    """Fabric, demand and problem of a skewed alltoall on DGX-H100 nodes."""
    topology = topologies.dgx_h100(num_nodes)
    problem = taccl.alltoallv_problem(topology, taccl.skewed_sizes(8 * num_nodes, 64 * MB, skew, seed=seed))
    return *problem_arrays(problem), problem


def test_rerouted_chunks_relieve_the_busiest_part():
    """Chunks of one hot pair leave the shared trees of their origin for individual paths over all NICs."""
    fabric, demand, _ = skewed(2, "zipf:1.2")
    shared = find_paths(fabric, demand)
    assert reroute(fabric, demand, shared, Limits(until=Deadline.after(-1))) is shared, "the time is over"
    assert reroute(fabric, demand, shared, Limits(order_s=0.0)) is shared, "the sends must be ordered, too"
    own = reroute(fabric, demand, shared)
    assert own.peak_ticks < 0.75 * shared.peak_ticks
    assert (own.chunk[np.append(True, np.diff(own.chunk) > 0)] == np.arange(demand.num_chunks)).all()


@pytest.mark.slow
def test_the_last_passes_reach_the_least_whole_number_of_chunks():
    """Rerouting reaches the lowest peak load that is possible in whole chunks.

    An alltoall on GenKautz(4,16) needs 53/7 rounds of a pair's data, so at least 182 rounds of chunks with 24
    chunks per pair.
    """
    links = [(u, (-4 * u - a) % 16) for u in range(16) for a in range(1, 5) if 5 * u % 16 != -a % 16]
    graph = linked("GenKautz", [0] * 16, links, alpha_us=0, beta_us_per_mb=1)
    fabric, demand, problem = arrays(graph, collectives.alltoall(16, chunks_per_rank=24))
    paths = reroute(fabric, demand, find_paths(fabric, demand))
    assert paths.peak_ticks == 182 * problem.costs.ticks_per_us


def test_paths_without_better_ones_are_kept():
    """A uniform exchange over a switch keeps its direct paths, whose load is minimal."""
    fabric, demand, _ = arrays(topologies.dgx_h100(1), collectives.alltoall(8))
    paths = find_paths(fabric, demand)
    assert reroute(fabric, demand, paths).peak_ticks == paths.peak_ticks


def chain_with_two_sends():
    """Chunk 0 goes 0 -> 1 -> 2 and chunk 1 goes 0 -> 1, 10 us per hop: 20 us on the first link."""
    problem = make_problem(
        star((0, 1), (1, 2)), custom(4, [([0], [2]), ([0], [1])]), chunk_bytes=10 * MB, clauses=Clauses()
    )
    fabric, demand = problem_arrays(problem)
    return demand.units, fabric, find_paths(fabric, demand), problem.costs.ticks_per_us


def test_a_chunk_with_hops_to_come_starts_first():
    """The chunk with two hops must start first, if both chunks are to arrive within the peak load of 20 us.

    The latest starts are 0 and 10 us for its two hops, and 10 us for the other chunk.
    """
    units, fabric, paths, per_us = chain_with_two_sends()
    starts = latest_starts(fabric, units, paths, np.zeros(3))
    assert (starts / per_us).tolist() == [0, 10, 10]


def test_hops_over_one_link_start_in_the_given_order():
    """Two hops over the same link start one after the other, the one with the smaller given number first."""
    units, fabric, paths, per_us = chain_with_two_sends()
    starts = spread_starts(fabric, units, paths, np.array([0.5, 0.1, 0.2]))
    assert (starts / per_us).tolist() == [10, 10, 0]

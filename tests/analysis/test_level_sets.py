"""Cuts along level sets of functions on ranks: bisections by hand, and witnesses."""

import math
from fractions import Fraction

import numpy as np
import pytest

import taccl
from taccl.analysis.certificates.bounds import claims_of, lower_bound
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.finding import volume as volumes
from taccl.analysis.certificates.finding.volume import Volume
from taccl.analysis.certificates.level_sets import _Graph, _sides, level_cut, node_cut
from taccl.analysis.certificates.transformed import as_spreading, merging_freely
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.making import make_problem
from taccl.topology.builder import TopologyBuilder
from taccl.topology.transform import relabel
from tests.synthesis.small_problems import MB, custom, linked, problem_of, random_problem, random_sum_problem


def grid(*dims, order=None):
    """An alltoall of 1 MB chunks on a mesh of 1 us links, with ranks in any order."""
    topology = taccl.topologies.mesh(*dims, alpha_us=0, bandwidth_gb_per_s=1000)
    topology = topology if order is None else relabel(topology, order)
    return make_problem(topology, taccl.collectives.alltoall(topology.num_ranks), chunk_bytes=MB)


def found(problem, *, divisible=False):
    """The level-set bound in us, proven by its witness."""
    volume = Volume(as_spreading(problem), divisible=divisible)
    best = level_cut(volume, budget_s=math.inf)
    ticks, witness = best
    bound = Fraction(ticks if divisible else math.ceil(ticks)) / problem.costs.ticks_per_us
    certificate = Certificate(problem, bound, "throughput", "levels", witness, divisible, False)
    assert certificate.check()
    return bound


@pytest.mark.parametrize(("dims", "bound"), [((4, 4), 16), ((6, 4), 36), ((3, 5), 18), ((2, 2, 4), 16)])
def test_half_of_a_mesh_sends_to_the_other(dims, bound):
    """On meshes the best cut is a bisection.

    8 x 8 chunks cross 4 links, 12 x 12 cross 4, 6 x 9 cross 3, and 8 x 8 cross 4.
    """
    assert found(grid(*dims)) == bound


@pytest.mark.slow
def test_the_numbers_of_ranks_do_not_matter():
    """With randomly numbered ranks the bisection of an 8 x 6 mesh is found by distances from the corners."""
    order = np.random.default_rng(0).permutation(48).tolist()
    assert found(grid(8, 6, order=order)) == found(grid(8, 6)) == 24 * 24 / 6


@pytest.mark.slow
def test_the_bisection_of_a_mesh():
    """The bisection of a mesh is found.

    On a 4 x 4 mesh 8 x 8 chunks cross 4 links, 16 each at 20.5 us.
    """
    topology = taccl.topologies.mesh(4, 4)
    problem = make_problem(topology, taccl.collectives.alltoall(16), chunk_bytes=MB)
    bound = taccl.lower_bound(problem)
    assert bound.bound == 16 * 20.5
    assert bound.check()


def two_clusters():
    """Two fully connected clusters of six ranks, joined by two slow links."""
    builder = TopologyBuilder("clusters", [0] * 12)
    members = ([0, 3, 4, 7, 8, 11], [1, 2, 5, 6, 9, 10])
    pairs = [(a, b) for some in members for a in some for b in some if a != b]
    for a, b in pairs:
        builder.add_link(a, b, alpha_us=0, beta_us_per_mb=1)
    for a, b in ((0, 1), (1, 0), (3, 2), (2, 3)):
        builder.add_link(a, b, alpha_us=0, beta_us_per_mb=2)
    return builder.build(), members


def test_the_fiedler_vector_finds_clusters():
    """The Fiedler vector separates two clusters, however ranks are numbered: 36 chunks over two links of 2
    us."""
    topology, members = two_clusters()
    problem = make_problem(topology, taccl.collectives.alltoall(12), chunk_bytes=MB)
    (vector,) = _Graph(Volume(problem, divisible=False)).eigenvector()
    assert len({bool(vector[rank] > 0) for rank in members[0]}) == 1
    assert vector[members[0][0]] * vector[members[1][0]] < 0
    assert found(problem) == 36


def test_bytes_count_where_chunks_differ():
    """Chunks of 1, 2 and 3 MB leave rank 0 over one link of 1 us/MB in 6 us, whole or divided."""
    topology = linked("pair", [0, 0], [(0, 1)], alpha_us=0, beta_us_per_mb=1)
    problem = problem_of(topology, custom(2, [([0], [1])] * 3), chunk_bytes=[MB, 2 * MB, 3 * MB])
    assert found(problem) == found(problem, divisible=True) == 6


def test_sums_cross_once():
    """In an allreduce of 4 sums on a line of four ranks each sum enters either half once, over one link of 1
    us."""
    builder = TopologyBuilder("line", [0] * 4)
    for a, b in ((0, 1), (1, 2), (2, 3)):
        builder.add_link(a, b, alpha_us=0, beta_us_per_mb=1)
        builder.add_link(b, a, alpha_us=0, beta_us_per_mb=1)
    everyone = (0, 1, 2, 3)
    collective = Collective("sums", 4, (Chunk(everyone, everyone, 0),) * 4, combining=True)
    # Links of the cut idle while contributions and copies cross other links: 4 us of sends take 6 us.
    assert found(problem_of(builder.build(), collective)) >= 4


@pytest.mark.parametrize("seed", range(40))
def test_witnesses_of_random_problems_hold(seed):
    """On random problems with ports, merging, sizes, multicasts and sums every claim is proven."""
    problem = random_problem(seed) if seed % 2 else random_sum_problem(seed)
    if level_cut(Volume(as_spreading(problem), divisible=False), budget_s=math.inf) is not None:
        found(problem)
        found(problem, divisible=True)


def test_no_time_is_no_cut():
    """Without any time budget the search along level sets returns no cut."""
    assert level_cut(Volume(grid(3, 3), divisible=False), budget_s=-1) is None


@pytest.mark.parametrize("name", ["mesh:3x8", "torus:4x4x2", "mesh:6x6"])
def test_the_first_cuts_of_a_grid_halve_its_longest_dimension(name):
    """However short the time, cuts through the middle are tried: an alltoall crosses the narrowest of them."""
    problem = make_problem(taccl.topologies.parse(name), "alltoall", size_bytes=10**6)
    volume = Volume(as_spreading(problem), divisible=True)
    assert level_cut(volume, budget_s=0)[0] == level_cut(volume, budget_s=math.inf)[0] > 0


def test_levels_are_both_sides():
    """Each set of ranks comes with its complement, and none is empty or contains all ranks."""
    volume = Volume(grid(3, 4), divisible=False)
    everyone = frozenset(range(12))
    sets = {frozenset(np.flatnonzero(side).tolist()) for side in _sides(volume)}
    assert all(0 < len(ranks) < 12 and everyone - ranks in sets for ranks in sets)


@pytest.mark.parametrize("combining", [False, True], ids=["copies", "sums"])
@pytest.mark.parametrize("sparse", [0, math.inf], ids=["kinds", "pairs"])
def test_the_volume_into_many_sets_is_that_into_each(combining, sparse, monkeypatch):
    """A product over kinds of chunks, or over all pairs of ends, gives the same volumes as each set by itself."""
    monkeypatch.setattr(volumes, "_SPARSE", sparse)
    for seed in range(20):
        volume = Volume(random_problem(seed, combining=combining), divisible=seed % 2 == 0)
        num_ranks = volume.problem.topology.num_ranks
        sides = np.array(
            [[bool(number >> r & 1) for r in range(num_ranks)] for number in range(2**num_ranks)]
        )
        alone = [volume.needed((frozenset(np.flatnonzero(side).tolist()),)) for side in sides]
        assert volume.needed_in(sides).tolist() == alone


@pytest.mark.slow
@pytest.mark.parametrize(("name", "collective"), [("dgx1", "allreduce"), ("dgx1", "allgather")])
def test_borders_of_nodes_bound_without_a_linear_program(name, collective):
    """Cuts around nodes give the linear program's bound where traffic between nodes limits."""
    topology = getattr(taccl.topologies, name)(nodes=4)
    problem = merging_freely(taccl.make_problem(topology, collective, size_bytes=2**26))
    bound, witness = node_cut(Volume(as_spreading(problem), divisible=True))
    claims = [claim.ticks for claim in claims_of(problem, divisible=True) if claim.kind == "throughput"]
    assert 0.99 * max(claims) <= bound <= max(claims)
    assert Certificate(problem, bound / problem.costs.ticks_per_us, "throughput", "", witness, True).check()


def test_ranks_of_one_node_have_borders():
    """Ranks of a single node are bounded by cuts around single ranks.

    If ranks add, and not the star's switch, each rank sends and receives 2 (n - 1) / n of a sum's data.
    """
    problem = merging_freely(taccl.make_problem(taccl.topologies.star(8), "allreduce", size_bytes=8 * MB))
    bound, witness = node_cut(Volume(as_spreading(problem), divisible=True))
    sent_us = 14 * 20  # 14 MB at 50 GB/s
    assert sent_us <= bound / problem.costs.ticks_per_us <= sent_us + 1
    assert Certificate(problem, bound / problem.costs.ticks_per_us, "throughput", "", witness, True).check()


@pytest.mark.slow
@pytest.mark.parametrize("end_s", [0.0, 0.05])
def test_exchange_has_a_border_bound_without_time(end_s):
    """However short the time limit, the bound over all chunkings of a parameter-server exchange counts
    bandwidth."""
    exchange = taccl.collectives.exchange(48, 16, chunks_per_server=8)
    problem = taccl.make_problem(taccl.topologies.star(64), exchange, size_bytes=100 * MB)
    bound = lower_bound(problem, divisible=True, budget_s=0.0, limit_s=0.0, end_s=end_s)
    assert bound.check()
    assert bound.bound_us > 2000  # workers send 100 MB at 50 GB/s


@pytest.mark.slow
@pytest.mark.parametrize("end_s", [None, 0.0])
def test_many_ranks_have_a_bound_of_cuts_without_time(end_s):
    """However short the time limit, the bound of an allreduce over 256 ranks in any chunks counts bandwidth.

    Adding up and distributing take 2 * 255 sends of the 64 MB, over 960 links of 50 GB/s.
    """
    problem = taccl.make_problem(taccl.topologies.mesh(16, 16), "allreduce", size_bytes=64 * MB)
    bound = lower_bound(problem, divisible=True, budget_s=0.0, limit_s=0.0, end_s=end_s)
    assert bound.check()
    assert bound.bound_us > 2 * 255 * 64 * 20 / 960


def test_a_link_that_holds_a_resource_twice_counts_it_once():
    """Of several holds of one resource by one link the last counts; the columns are sorted by link."""
    builder = TopologyBuilder("bus", [0, 0, 0], alpha_meaning="pipelined")
    bus = builder.add_resource("bus")
    for src, dst in ((0, 1), (1, 2), (2, 0)):
        link = builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=3)
        builder.add_hold(link, bus, alpha_us=0, beta_us_per_mb=1)
        builder.add_hold(link, bus, alpha_us=0, beta_us_per_mb=2, side="receive")
    problem = make_problem(builder.build(), "allgather", chunk_bytes=MB)
    volume = Volume(problem, divisible=False)
    per_us = volume.ticks_scale * problem.costs.ticks_per_us
    rows = list(zip(*(column.tolist() for column in volume.holds), strict=True))
    assert rows == [(e, r, ticks * per_us) for e in range(3) for r, ticks in ((e + 1, 3), (0, 2))]
    assert volume.held == [{r: ticks for link, r, ticks in rows if link == e} for e in range(3)]


def test_the_bisection_is_found_without_time(monkeypatch):
    """Even without time, a bound of many chunks on one node has the cut through the middle of a mesh."""
    monkeypatch.setattr("taccl.analysis.certificates.bounds._MAX_TIMED", 0)
    problem = make_problem(taccl.topologies.mesh(4, 4), "alltoall", size_bytes="64MB")
    bound = lower_bound(problem, divisible=True, budget_s=0, limit_s=0)
    # 8 x 8 pairs of 4 MB cross 4 links of 50 GB/s; a corner has 60 MB for 2 links, which takes 600 us.
    assert bound.bound_us == pytest.approx(1280, abs=1) and bound.check()

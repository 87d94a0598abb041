"""Linear programs of bounds, folded by symmetry (one variable per orbit), give the bounds of the whole
programs."""

import random
from fractions import Fraction

import pytest

from taccl import collectives, topologies
from taccl.analysis.certificates.cuts import throughput
from taccl.analysis.certificates.finding.volume import Volume
from taccl.analysis.certificates.flows import multicommodity
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.sketch.group import Symmetries, find_symmetries
from taccl.topology.builder import TopologyBuilder
from tests.fuzzing import cases
from tests.synthesis.small_problems import custom, full, linked, problem_of, ring

MB = 10**6

TOPOLOGIES = {
    "ring of 6": lambda: topologies.ring(6),
    "mesh 3x3": lambda: topologies.mesh(3, 3),
    "torus 3x4": lambda: topologies.torus(3, 4),
    "hypercube 3": lambda: topologies.hypercube(3),
    "DGX-1": lambda: topologies.dgx1(1, profile="nominal"),
    "NDv2 x2": lambda: topologies.ndv2(2),
    "DGX-A100 x2": lambda: topologies.dgx_a100(2, profile="nominal"),
}


def problem(topology, name):
    """The problem of a collective of 1 MB chunks."""
    return make_problem(topology, collectives.make(name, topology.num_ranks), chunk_bytes=MB)


def priced(problem, symmetries, *, divisible):
    """The throughput bound in ticks."""
    found = throughput(Volume(problem, divisible=divisible), symmetries, in_network=False, budget_s=20)
    return found[0] if found is not None else Fraction(0)


@pytest.mark.parametrize("divisible", [False, True], ids=["whole", "divisible"])
@pytest.mark.parametrize("name", ["allgather", "allreduce", "alltoall"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_folded_prices_give_the_same_bound(topology, name, divisible):
    """The linear program on orbits has the same optimum as the whole one."""
    whole = problem(TOPOLOGIES[topology](), name)
    folded = priced(whole, find_symmetries(whole), divisible=divisible)
    flat = priced(whole, Symmetries(whole, ()), divisible=divisible)
    assert float(folded) == pytest.approx(float(flat), rel=1e-6)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_folded_flows_give_the_same_bound(topology):
    """Multicommodity flows on orbits have the same optimum as the whole program."""
    whole = problem(TOPOLOGIES[topology](), "alltoall")
    volume = Volume(whole, divisible=True)
    folded = multicommodity(volume, find_symmetries(whole))
    flat = multicommodity(volume, Symmetries(whole, ()))
    assert float(folded[0]) == pytest.approx(float(flat[0]), rel=1e-6)


def circulant(rng):
    """A random circulant topology: each rank links to those at fixed distances; speeds repeat after one or
    two ranks."""
    period = rng.choice((1, 1, 2))
    num_ranks = period * rng.randint(2, 4)
    builder = TopologyBuilder("circulant", [0] * num_ranks)
    ports = [builder.add_resource(f"port {r}") for r in range(num_ranks)]
    shared = rng.random() < 0.5
    for step in {1, *(rng.randrange(1, num_ranks) for _ in range(2))}:
        betas = [rng.randint(1, 4) for _ in range(period)]
        for src in range(num_ranks):
            beta = betas[src % period]
            link = builder.add_link(src, (src + step) % num_ranks, alpha_us=1, beta_us_per_mb=beta)
            if shared:
                builder.add_hold(link, ports[src], alpha_us=0, beta_us_per_mb=beta)
    return builder.build()


@pytest.mark.fuzz
@pytest.mark.parametrize("divisible", [False, True], ids=["whole", "divisible"])
@pytest.mark.parametrize("name", ["allgather", "allreduce"])
def test_random_circulants_fold_to_no_lower_bound(name, divisible):
    """On random circulants the bound of the folded program is no lower than that of the whole program.

    It may be higher: of several optima, it may find one whose prices give better heads and tails.
    """
    for seed in cases("random circulants have quotients of no lower bound", few=16, many=400):
        some = problem(circulant(random.Random(seed)), name)
        symmetries = find_symmetries(some)
        assert len(set(symmetries.ranks.tolist())) < some.topology.num_ranks
        folded = priced(some, symmetries, divisible=divisible)
        flat = priced(some, Symmetries(some, ()), divisible=divisible)
        assert float(folded) >= (1 - 1e-6) * float(flat), f"seed {seed}"


def test_a_ring_looks_the_same_from_every_rank():
    """A ring has one orbit of ranks, and one orbit of links in each direction."""
    symmetries = find_symmetries(problem(topologies.ring(6), "allgather"))
    assert set(symmetries.ranks.tolist()) == {0}
    assert len(set(symmetries.links.tolist())) == 2


def test_nodes_look_the_same():
    """Four NDv2 nodes are symmetric; the ranks of one node are not."""
    whole = problem(topologies.ndv2(4), "allgather")
    symmetries = find_symmetries(whole)
    nodes = [frozenset(ranks) for ranks in whole.topology.ranks_of_node]
    assert symmetries.sets(nodes).tolist() == [0, 0, 0, 0]
    assert len(set(symmetries.ranks.tolist())) <= 8


def test_ranks_behind_a_switch_look_the_same():
    """Sixteen ranks of two DGX-A100 form one orbit."""
    symmetries = find_symmetries(problem(topologies.dgx_a100(2, profile="nominal"), "allgather"))
    assert set(symmetries.ranks.tolist()) == {0}


def test_a_slow_link_breaks_the_symmetry():
    """A ring of 5 with one slower link has no symmetry."""
    topology = linked("slow link", [0] * 5, ((rank, (rank + 1) % 5, 0, 1 + (rank == 2)) for rank in range(5)))
    assert find_symmetries(problem(topology, "allgather")).generators == ()


def test_a_shared_resource_breaks_the_symmetry():
    """Equal links, two of which share a port, have no symmetry."""
    builder = TopologyBuilder("port", [0] * 3)
    port = builder.add_resource("port")
    for rank in range(3):
        link = builder.add_link(rank, (rank + 1) % 3, alpha_us=0, beta_us_per_mb=1)
        if rank < 2:
            builder.add_hold(link, port, alpha_us=0, beta_us_per_mb=1)
    assert find_symmetries(problem(builder.build(), "allgather")).generators == ()


def test_a_root_breaks_the_symmetry():
    """The root of a broadcast breaks the symmetry of a ring."""
    symmetries = find_symmetries(problem(topologies.ring(5), "broadcast"))
    assert symmetries.generators == ()


def test_clauses_break_the_symmetry():
    """Without one of its links a ring of 5 is a chain."""
    topology = ring(5)
    allowed = frozenset(range(1, len(topology.links)))
    some = make_problem(
        topology, collectives.allgather(5), chunk_bytes=MB, clauses=Clauses(links_allowed=allowed)
    )
    assert find_symmetries(some).generators == ()


def test_chunk_sizes_break_the_symmetry():
    """One larger chunk of an allgather breaks the symmetry."""
    some = problem_of(ring(5), collectives.allgather(5), chunk_bytes=[2 * MB, MB, MB, MB, MB])
    assert find_symmetries(some).generators == ()


def test_declared_symmetries_are_used():
    """A declared symmetry that swaps 0 with 1 and 2 with 3, and is not a shift inside blocks, is used.

    The links between 0 and 1, and between 2 and 3, have other costs than those between 0 and 2, and 1 and 3.
    """
    builder = TopologyBuilder("pairs", [0] * 4)
    costs = {(0, 1): 1, (1, 0): 1, (2, 3): 2, (3, 2): 2, (0, 3): 3, (1, 2): 3, (3, 0): 3, (2, 1): 3}
    for (src, dst), beta in costs.items():
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
    some = problem_of(builder.build(), collectives.allgather(4), symmetry=((1, 0, 3, 2),))
    assert find_symmetries(some).ranks.tolist() == [0, 0, 2, 2]


def test_derived_chunks_have_no_symmetry():
    """No symmetry is used for scans, whose chunks are derived from one another."""
    assert find_symmetries(problem(topologies.ring(4), "scan")).generators == ()


def test_images_of_a_set_of_ranks():
    """A set of two neighbours on a ring of 6 has six images; one of opposite ranks has three."""
    symmetries = find_symmetries(problem(topologies.ring(6), "allgather"))
    assert len(symmetries.images((frozenset((0, 1)),))) == 6
    opposite = symmetries.images((frozenset((0, 3)),))
    assert opposite == [(frozenset((0, 3)),), (frozenset((1, 4)),), (frozenset((2, 5)),)]


def test_images_of_a_partition_keep_it_whole():
    """The only image of the partition into single ranks is that partition itself."""
    symmetries = find_symmetries(problem(topologies.ring(6), "allreduce"))
    parts = tuple(frozenset((r,)) for r in range(6))
    assert symmetries.images(parts) == [parts]


def test_without_symmetry_every_orbit_is_single():
    """Without symmetry every rank, link and resource is an orbit of its own."""
    some = problem_of(full(3), custom(3, [([0], [1, 2])]))
    none = Symmetries(some, ())
    assert none.ranks.tolist() == [0, 1, 2]
    assert none.links.tolist() == list(range(6))
    assert none.images((frozenset((1,)),)) == [(frozenset((1,)),)]


def test_symmetries_are_found_once():
    """Symmetries are cached with the problem."""
    some = problem(topologies.ring(6), "allgather")
    assert find_symmetries(some) is find_symmetries(some)

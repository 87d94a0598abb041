"""The ring baseline, and the search for rings."""

import random
import sys
from itertools import pairwise, permutations

import pytest

from taccl import collectives
from taccl.analysis.verification.verify import verify
from taccl.baselines import ring
from taccl.baselines.ring import find_rings, walk
from taccl.baselines.routes import ShortestRoutes
from taccl.errors import CollectiveError
from taccl.problem.making import make_problem
from taccl.topology import fabrics, machines
from taccl.topology.builder import TopologyBuilder


def test_one_way_ring_takes_a_hop_per_other_rank(make, unit_costs):
    """Over a one-way ring of 4 ranks an allgather takes 3 hops."""
    topology = fabrics.ring(4, **unit_costs).without(links=range(4, 8))
    # 3 hops of 1 us latency and 1 us of data, on links that are busy in every step: 6 us.
    assert ring(make("allgather", topology)).finish_us == 6


def test_both_ways_halves_the_hops(make, unit_costs):
    """Over a ring with links both ways, chunks go half the ring each way."""
    schedule = ring(make("allgather", fabrics.ring(4, **unit_costs)))
    # 2 hops one way, 1 hop the other: 2 steps of 2 us.
    assert (schedule.finish_us, schedule.producer) == (4, "ring (1 ring, both ways)")


def test_reduce_scatter_is_the_allgather_backwards(make, unit_costs):
    """A reduce-scatter takes as long as the allgather on the same ring."""
    topology = fabrics.ring(5, **unit_costs)
    assert ring(make("reduce-scatter", topology)).finish == ring(make("allgather", topology)).finish


def test_allreduce_is_both_phases(make, unit_costs):
    """An allreduce takes as long as a reduce-scatter and an allgather together."""
    assert ring(make("allreduce", fabrics.ring(4, **unit_costs))).finish_us == 8


def test_two_rings_share_the_chunks(make, unit_costs):
    """Five ranks, all linked, have two rings without a common link, which carry half of the chunks each."""
    schedule = ring(make("allgather", fabrics.fully_connected(5, **unit_costs), chunks_per_rank=2))
    # On each ring one chunk per rank goes two hops each way: 4 us. One ring alone takes 8 us.
    assert (schedule.finish_us, schedule.producer) == (4, "ring (2 rings, both ways)")


def test_ring_follows_ndv2s_double_links():
    """On one NDv2 node the first ring uses only the double links, of 23 us per MB."""
    topology = machines.ndv2(profile="taccl")
    routes = ShortestRoutes.of(make_problem(topology, collectives.allgather(8), chunk_bytes=10**6))
    order = find_rings(topology, routes.ticks)[0]
    betas = {
        topology.links[routes.direct(a, b)[1]].beta_us_per_mb
        for a, b in zip(order, order[1:] + order[:1], strict=True)
    }
    assert betas == {23}


def test_rings_of_dgx2_cross_by_different_nics():
    """On two DGX-2 nodes no two rings use the same NIC between nodes."""
    topology = machines.dgx2(nodes=2)
    routes = ShortestRoutes.of(make_problem(topology, collectives.allgather(32), chunk_bytes=10**6))
    rings = find_rings(topology, routes.ticks)
    assert find_rings(topology, routes.ticks, 1) == rings[:1]
    used = []
    for order in rings:
        for a, b in zip(order, order[1:] + order[:1], strict=True):
            link = routes.direct(a, b)[1]
            if topology.is_internode(link):
                used += [hold.resource for hold in topology.holds_of_link[link]]
    assert len(rings) > 1
    assert len(used) == len(set(used))


@pytest.mark.parametrize(
    ("topology", "seeds"),
    [(fabrics.torus(4, 8), range(10)), (fabrics.torus(8, 8), range(5)), (fabrics.mesh(6, 6), [None])],
)
def test_search_that_is_lost_starts_again(topology, seeds):
    """A search for a ring of a torus or mesh that is lost starts again, so it succeeds with any order of ties."""
    joined = {(link.src, link.dst) for link in topology.links}
    ways = [{b for a, b in joined if a == rank} for rank in range(topology.num_ranks)]
    for seed in seeds:
        path = walk(ways, joined, None if seed is None else random.Random(seed))
        assert path is not None
        assert sorted(path) == list(range(topology.num_ranks))
        assert {*pairwise(path), (path[-1], path[0])} <= joined


@pytest.mark.slow
def test_many_costs_of_links_are_bisected(monkeypatch):
    """Among 306 costs of links, the lowest limit that leaves a ring is found by few searches for each ring."""
    generator, searches = random.Random(1), []

    def counted(ways, closing, **named):
        searches.append(ways)
        return walk(ways, closing, **named)

    monkeypatch.setattr(sys.modules["taccl.baselines.ring"], "walk", counted)
    builder = TopologyBuilder("costs", [0] * 18)
    for src, dst in permutations(range(18), 2):
        builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=generator.randrange(100, 10**6))
    problem = make_problem(builder.build(), collectives.allgather(18), chunk_bytes=10**6)
    rings = find_rings(problem.topology, ShortestRoutes.of(problem).ticks)
    assert len(searches) <= 2 * (len(rings) + 1) * 9


def test_no_ring_of_links_means_relays(make, unit_costs):
    """On a 3 x 3 mesh, which has no Hamiltonian ring, some steps are relayed by other ranks, also in the
    reduce phase."""
    schedule = ring(make("allreduce", fabrics.mesh(3, 3, **unit_costs)))
    verify(schedule).raise_if_failed()


def test_two_ranks(make, unit_costs):
    """Two ranks are a ring of one hop."""
    assert ring(make("allgather", fabrics.ring(2, **unit_costs))).finish_us == 2


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_rings_of_a_cluster_come_to_the_rate_of_its_network_cards(collective):
    """Eight rings on four DGX-H100, with a chunk per rank each, fill eight NICs of 50 GB/s per node."""
    made = collectives.make(collective, 32)
    schedule = ring(make_problem(machines.dgx_h100(4, profile="nominal"), made, size_bytes=10**9))
    # A ring has 32 chunks of 1/256 of the data; 31 cross each link between nodes without a pause.
    # So 31/32 of 1 GB pass at 8 * 50 GB/s, twice in an allreduce.
    assert schedule.problem.collective.num_chunks == 256
    assert schedule.busbw_gb_per_s == pytest.approx(8 * 50)


def test_as_many_chunks_as_ranks_on_each_ring():
    """Chunks are cut so that each of two rings has one for each of 5 ranks."""
    topology = fabrics.fully_connected(5, alpha_us=0, bandwidth_gb_per_s=1)
    problem = make_problem(topology, collectives.allgather(5), chunk_bytes=1000)
    schedule = ring(problem)
    # On each ring a half chunk of 0.5 us goes two hops each way; whole chunks would take 2 us.
    assert (schedule.finish_us, schedule.producer) == (1, "ring (2 rings, both ways)")
    assert ring(problem, cut=False).finish_us == 2


def test_alltoall_is_refused(make, unit_costs):
    """An alltoall is refused, and the error suggests pairwise."""
    with pytest.raises(CollectiveError, match="alltoall.*pairwise"):
        ring(make("alltoall", fabrics.ring(4, **unit_costs)))


def test_rails_are_walked_to_and_fro():
    """If only equal local ranks are linked between nodes, every second node is traversed backwards."""
    builder = TopologyBuilder("rails", [0, 0, 0, 1, 1, 1])
    for node in ((0, 1, 2), (3, 4, 5)):
        for src, dst in permutations(node, 2):
            builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
    for local in range(3):
        builder.add_link(local, local + 3, alpha_us=0, beta_us_per_mb=9)
        builder.add_link(local + 3, local, alpha_us=0, beta_us_per_mb=9)
    topology = builder.build()
    routes = ShortestRoutes.of(make_problem(topology, collectives.allgather(6), chunk_bytes=10**6))
    for order in find_rings(topology, routes.ticks):
        assert sorted(order) == list(range(6))
        assert all(routes.direct(a, b) for a, b in zip(order, order[1:] + order[:1], strict=True))


def test_paths_that_can_no_longer_close_are_left(monkeypatch):
    """A search leaves a path once it has passed every rank from which the ring could close.

    Among eight ranks, only a path from 0 to 1 closes, but 0, 1 comes first; 720 paths begin so.
    """
    monkeypatch.setattr(sys.modules["taccl.baselines.ring"], "_MAX_VISITS", 100)
    path = walk([set(range(8)) - {rank} for rank in range(8)], {(1, 0)}, again=False)
    assert sorted(path) == list(range(8)) and (path[0], path[-1]) == (0, 1)

"""Shortest routes that are computed for many pairs of ranks at once equal those of each pair alone."""

import numpy as np
import pytest

from taccl import topologies
from taccl.baselines import routes
from taccl.baselines.routes import ShortestRoutes
from taccl.placement.host_links import HostLinks
from taccl.problem.making import make_problem


@pytest.fixture(params=["ndv2 x2", "dgx1 x2", "dgx2 x2", "mi300x x2", "torus:3x4", "star:6"])
def problem(request):
    """A problem on a topology in which some pairs have no link, or a slow one."""
    name, _, nodes = request.param.partition(" x")
    topology = topologies.parse(name, nodes=int(nodes)) if nodes else topologies.parse(name)
    return make_problem(topology, "alltoall", chunk_bytes=10**5)


def test_hops_of_all_pairs_are_the_routes_of_each(problem):
    """All pairs together have the hops that `route` finds for each pair alone."""
    n = problem.topology.num_ranks
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    pair, hop, link = ShortestRoutes.of(problem).hops(src, dst)
    alone = ShortestRoutes(problem.topology, ShortestRoutes.of(problem).ticks)
    for i, ends in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        assert link[pair == i][np.argsort(hop[pair == i])].tolist() == alone.route(*ends)


def test_links_of_a_problem_are_the_hops_of_each_pair(problem, monkeypatch):
    """Placement takes the routes of all pairs at once, in the order of pairs and hops, as `hop` gives them."""
    n, alone = problem.topology.num_ranks, ShortestRoutes.of(problem)
    pairs = [[] if src == dst else alone.hop(src, dst) for src in range(n) for dst in range(n)]
    monkeypatch.setattr(ShortestRoutes, "hop", lambda *_: pytest.fail("pair by pair"))
    links = HostLinks.of_problem(problem)
    assert links.hops.tolist() == [len(each) for each in pairs]
    assert links.link.tolist() == [link for each in pairs for link in each]


def test_distances_of_all_pairs_are_one_search(monkeypatch):
    """Distances of all pairs take one call of the shortest-path search."""
    problem = make_problem(topologies.ndv2(2), "alltoall", chunk_bytes=10**5)
    calls, found = [], routes.shortest_paths
    monkeypatch.setattr(routes, "shortest_paths", lambda *given: calls.append(1) or found(*given))
    src, dst = np.nonzero(~np.eye(16, dtype=bool))
    ShortestRoutes.of(problem).hops(src, dst)
    assert len(calls) == 1


def test_direct_links_between_nodes_need_no_search(monkeypatch):
    """A link between nodes that is as fast as any other is the shortest route, without a search."""
    monkeypatch.setattr(routes, "shortest_paths", lambda *_: pytest.fail("searched"))
    problem = make_problem(topologies.dgx2(2), "alltoall", chunk_bytes=10**5)
    src, dst = np.nonzero(~np.eye(32, dtype=bool))
    assert len(ShortestRoutes.of(problem).hops(src, dst)[0]) == len(src)


def test_routes_over_relays_are_found_once(monkeypatch):
    """The last links of the shortest routes from a rank are kept for later calls."""
    problem = make_problem(topologies.ndv2(2), "alltoall", chunk_bytes=10**5)
    found, src = ShortestRoutes.of(problem), np.zeros(15, np.int64)
    first = found.hops(src, np.arange(1, 16))
    monkeypatch.setattr(np, "isfinite", lambda *_: pytest.fail("searched again"))
    again = found.hops(src, np.arange(1, 16))
    assert all((one == other).all() for one, other in zip(first, again, strict=True))


def test_paths_into_a_rank_are_found_in_arrays(monkeypatch):
    """The first hops of all shortest routes to a rank are selected at once, not link by link."""
    problem = make_problem(topologies.ndv2(2), "alltoall", chunk_bytes=10**5)
    found = ShortestRoutes.of(problem)
    monkeypatch.setattr(ShortestRoutes, "_into", property(lambda _: pytest.fail("links one by one")))
    rows = found.paths_in(3)
    lengths = [length for length, _, _ in rows]
    assert lengths == sorted(lengths, reverse=True)
    assert all(problem.topology.links[link].src == rank for _, rank, hops in rows for _, link in hops)
    assert {rank for _, rank, _ in rows} == set(range(16)) - {3}


def test_times_beyond_double_precision_have_routes():
    """Links of 2^53 ticks and more have shortest routes, up to the precision of their unit."""
    topology, random = topologies.parse("mesh:3x3"), np.random.default_rng(0)
    ticks = tuple(int(each) for each in random.integers(2**56, 2**59, len(topology.links)))
    found, fine = (ShortestRoutes(topology, times) for times in (ticks, tuple(each >> 16 for each in ticks)))
    src, dst = np.nonzero(~np.eye(9, dtype=bool))
    found.hops(src, dst)
    for ends in zip(src.tolist(), dst.tolist(), strict=True):
        took, least = (sum(ticks[link] for link in routes.route(*ends)) for routes in (found, fine))
        assert took == pytest.approx(least, rel=1e-9)

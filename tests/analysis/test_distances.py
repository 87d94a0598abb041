"""Shortest times of chunks over the links that may carry them."""

import random
from math import inf

import networkx as nx
import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl._internal.graph_algorithms import paths_from_nearest
from taccl.analysis.certificates import pair_counting
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.evaluation import arrivals
from taccl.analysis.certificates.finding.distances import Distances, shortest_times
from taccl.analysis.verification.verify import verify
from taccl.problem.chunks import Chunk, Derivation
from taccl.problem.clauses import Clauses
from taccl.problem.collective import Collective
from taccl.topology.builder import TopologyBuilder
from tests.analysis.claims import certificates_of
from tests.arguments import arguments_for
from tests.effort import brief_synthesis
from tests.fuzzing import MANY, some
from tests.synthesis.small_problems import custom, linked, problem_of, random_problem, ring

MB = 10**6


def detour(**options):
    """Rank 0 reaches rank 1 in 4 us + 1 us/MB, or through rank 2 in (1 + 2) us/MB."""
    topology = linked("detour", [0] * 3, [(0, 1, 4, 1), (0, 2, 0, 1), (2, 1, 0, 2)])
    return problem_of(topology, custom(3, [([0], [1, 2])]), **options)


def test_the_shortest_path_may_have_more_hops():
    """Rank 0 reaches rank 1 fastest through rank 2, at 3 us; no link leads back."""
    assert shortest_times(detour(), (0, 1, 2), 1).tolist() == [[0, 3, 1], [inf, 0, inf], [inf, 2, 0]]


def test_larger_chunks_may_take_another_path():
    """For 3 MB the direct link, 4 + 3 us, beats the path through rank 2, 3 + 6 us."""
    assert shortest_times(detour(), (0, 1, 2), 3)[0, 1] == 7


def test_of_parallel_links_the_faster_counts():
    """The faster of two parallel links, 5 and 3 us, gives the distance."""
    topology = linked("parallel", [0, 0], [(0, 1, 0, 3), (0, 1, 0, 5)])
    problem = problem_of(topology, custom(2, [([0], [1])]))
    assert shortest_times(problem, (0, 1), 1)[0, 1] == 3


def test_a_multicast_reaches_all_its_ends():
    """One link from rank 0 to ranks 1 and 2 reaches both in 2 us."""
    topology = linked("multicast", [0] * 3, [(0, (1, 2))], alpha_us=1, beta_us_per_mb=1)
    problem = problem_of(topology, collectives.broadcast(3))
    assert shortest_times(problem, (0,), 1)[0].tolist() == [0, 2, 2]


def test_of_several_sources_the_first_counts():
    """A reduction link from ranks 0 and 1 to rank 2 gives a distance of 2 us from each."""
    topology = linked("reducing", [0] * 3, [((0, 1), 2)], alpha_us=1, beta_us_per_mb=1)
    problem = problem_of(topology, collectives.reduce(3, root=2))
    assert shortest_times(problem, (0,), 1)[:, 2].tolist() == [2, 2, 0]


def test_a_link_that_is_left_out_leads_nowhere():
    """Given only link 2 -> 1 of the detour, the other ranks are unreachable."""
    assert shortest_times(detour(), (2,), 1).tolist() == [[0, inf, inf], [inf, 0, inf], [inf, 2, 0]]


@pytest.mark.parametrize("max_hops", [None, 3])
def test_times_beyond_double_precision_are_not_rounded_up(max_hops):
    """Times of 2^53 ticks and more are at most the exact ones, and so are the bounds that follow from them."""
    topology = linked("path", [0] * 4, [(0, 1, 0, 1), (1, 2, 0, 2), (2, 3, 0, 3)])
    clauses = Clauses(max_hops=max_hops)
    for odd in range(1, 12, 2):
        problem = taccl.make_problem(
            topology, custom(4, [([0], [3])]), chunk_bytes=2**54 + odd, clauses=clauses
        )
        costs = problem.costs
        exact = sum(int(costs.chunk_units[0]) * beta for beta in costs.link_beta.tolist())
        assert exact * (1 - 2**-40) < Distances(problem).heads(0)[3] <= exact
        assert lower_bound(problem).check()


@pytest.mark.parametrize("make", [collectives.broadcast, collectives.reduce])
def test_spreads_beyond_double_precision_are_not_rounded_up(make):
    """Two hops of an odd number of ticks above 2^53 are not rounded up by bounds on how chunks spread."""
    ends = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 1), (2, 3), (3, 0), (3, 1), (3, 2)]
    topology = linked("sparse", [0] * 4, [(src, dst, 1, 1) for src, dst in ends])
    problem = taccl.make_problem(topology, make(4, root=0), chunk_bytes=18139877402061931)
    assert lower_bound(problem).check()


def test_spreads_between_nodes_beyond_double_precision_are_not_rounded_up(monkeypatch):
    """Times of several hops between nodes, of odd numbers of ticks above 2^53, are not rounded up in bounds."""
    monkeypatch.setattr(pair_counting, "_MOST_RANKS", 0)
    monkeypatch.setattr(arrivals, "_MOST_STARTS", 0)
    topology = linked("ring", range(6), [(i, (i + d) % 6, 0, 1 + i % 3) for i in range(6) for d in (1, -1)])
    problem = taccl.make_problem(topology, "allreduce", chunk_bytes=2**54 + 39)
    found = certificates_of(pair_counting.pair_counting_bounds, problem, in_network=False)
    assert found and all(each.check() for each in found)


def test_times_are_read_only():
    """The array of times is read-only, since callers share it."""
    times = shortest_times(detour(), (0, 1, 2), 1)
    with pytest.raises(ValueError, match="read-only"):
        times[0, 1] = 0


def test_only_allowed_links_carry():
    """Without link 0 -> 2 the chunk reaches rank 1 over the direct link, and never reaches rank 2."""
    distances = Distances(detour(links_allowed=frozenset({0, 2})))
    assert distances.links(distances.carried(0)) == (0, 2)
    assert distances.heads(0).tolist() == [0, 5, inf]


def test_relays_carry_only_their_ranks_chunks():
    """Link 2 -> 1 carries only chunks of rank 2, so rank 0's chunk needs 5 us."""
    assert Distances(detour(carries_from={2: frozenset({2})})).heads(0)[1] == 5


def test_reducing_and_spreading_have_their_own_links():
    """If link 0 may carry only sums of root 2 in the reduce phase, a chunk with root 1 may only be copied
    over it."""
    problem = problem_of(
        detour().topology, custom(3, [([0, 2], [1])], combining=True), carries_to={0: frozenset({2})}
    )
    distances = Distances(problem)
    assert distances.links(distances.carried(0, reducing=True)) == (1, 2)
    assert distances.links(distances.carried(0)) == (0, 1, 2)
    assert distances.links(distances.carried(0, reducing=None)) == (0, 1, 2)


def test_several_origins_count_from_the_nearest():
    """Ranks 0 and 2 hold the chunk: rank 1 gets it from the nearest, at 2 us."""
    problem = problem_of(detour().topology, custom(3, [([0, 2], [1])]))
    assert Distances(problem).heads(0).tolist() == [0, 2, 0]


def test_derived_chunks_start_when_their_source_arrives():
    """Scan on a ring with 2 us per hop: prefix 1 is formed at rank 1 at 2 us and reaches rank 2 at 4 us."""
    distances = Distances(problem_of(ring(4), collectives.scan(4)))
    assert distances.origins(1) == {1: 2}
    assert distances.heads(1)[2] == 4
    assert distances.origins(3) == {3: 6}


def test_times_to_a_destination_depend_on_the_size():
    """Chunks of 1 and 3 MB take different paths to rank 1."""
    problem = problem_of(detour().topology, custom(3, [([0], [1]), ([0], [1])]), chunk_bytes=[MB, 3 * MB])
    distances = Distances(problem)
    assert distances.to_go(0, 1).tolist() == [3, 0, 2]
    assert distances.to_go(1, 1).tolist() == [7, 0, 6]


def test_direct_crossing_leaves_out_other_nodes():
    """Direct crossing excludes the path through node 1: 0 -> 2 takes the direct link of 5 us."""
    builder = TopologyBuilder("row", [0, 1, 2])
    for src, dst, beta in ((0, 1, 1), (1, 2, 1), (0, 2, 5)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
    problem = problem_of(builder.build(), custom(3, [([0], [2]), ([0], [1, 2])]))
    assert Distances(problem).heads(0)[2] == 2
    direct = Distances(problem.with_clauses(direct_crossing=True))
    assert direct.heads(0).tolist() == [0, inf, 5]
    assert direct.heads(1).tolist() == [0, 1, 5]


def test_equal_chunks_share_a_set_of_links():
    """Chunks of one origin share a set of allowed links; relays give another origin's chunks a set of their
    own."""
    problem = problem_of(
        detour().topology,
        custom(3, [([0], [1]), ([0], [2]), ([2], [1])]),
        carries_from={0: frozenset({0}), 1: frozenset({0})},
    )
    distances = Distances(problem)
    assert distances.carried(0) == distances.carried(1) != distances.carried(2)
    assert distances.links(distances.carried(2)) == (2,)


def test_times_of_a_numbered_set_are_kept():
    """Times over a set of links are computed once for each chunk size."""
    distances = Distances(detour())
    number = distances.carried(0)
    assert distances.times(number, 1) is distances.times(number, 1)
    assert distances.times(number, 1)[0, 1] == 3
    assert distances.times(number, 3)[0, 1] == 7


def test_a_chunk_that_is_never_formed_has_no_origin():
    """A scan in which rank 0 has no outgoing link: prefix 1 is never formed at rank 1, so it has no origin."""
    topology = ring(3)
    allowed = frozenset(e for e, link in enumerate(topology.links) if link.src != 0)
    distances = Distances(problem_of(topology, collectives.scan(3), links_allowed=allowed))
    assert distances.origins(1) == {}
    assert distances.heads(1).tolist() == [inf] * 3


def graph_of(problem, links, units):
    """A networkx graph of the ranks with the fastest link between each pair."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(problem.topology.num_ranks))
    for e in links:
        link, time = problem.topology.links[e], problem.costs.duration(e, units)
        if not graph.has_edge(link.src, link.dst) or graph[link.src][link.dst]["time"] > time:
            graph.add_edge(link.src, link.dst, time=time)
    return graph


def large_random_problem(seed):
    """A random problem of up to 12 ranks in up to 3 nodes, with some links closed to all or to some chunks."""
    rng = random.Random(seed)
    num_ranks = rng.randint(4, 12)
    num_nodes = rng.choice((1, 2, 3))
    builder = TopologyBuilder(f"random {seed}", [r * num_nodes // num_ranks for r in range(num_ranks)])
    pairs = [(a, b) for a in range(num_ranks) for b in range(num_ranks) if a != b]
    pairs = rng.choices(pairs, k=rng.randint(num_ranks, 4 * num_ranks))  # some of them twice, in parallel
    for src, dst in pairs:
        builder.add_link(src, dst, alpha_us=rng.randint(0, 9), beta_us_per_mb=rng.randint(1, 9))
    ways = []
    for _ in range(6):
        origins = sorted(rng.sample(range(num_ranks), rng.choice((1, 1, 2))))
        ways.append((origins, sorted(rng.sample(range(num_ranks), rng.randint(1, num_ranks)))))
    links = range(len(pairs))
    return problem_of(
        builder.build(),
        custom(num_ranks, ways),
        chunk_bytes=[rng.choice((1, 2, 5)) * MB for _ in ways],
        links_allowed=frozenset(e for e in links if rng.random() < 0.8),
        carries_from={e: frozenset(rng.sample(range(num_ranks), 3)) for e in links if rng.random() < 0.2},
        direct_crossing=rng.random() < 0.3,
    )


def test_times_agree_with_networkx():
    """`heads` (times from the origins) and `to_go` (times to a destination) equal networkx's shortest paths.

    Only the links that may carry the chunk are used.
    """
    for seed in range(some(10, 40)):
        problem = large_random_problem(seed)
        distances = Distances(problem)
        for c, data in enumerate(problem.collective.chunks):
            admitted = [e for e in range(len(problem.topology.links)) if problem.may_carry(e, c)]
            assert distances.links(distances.carried(c)) == tuple(admitted)
            graph = graph_of(problem, admitted, int(problem.costs.chunk_units[c]))
            heads = nx.multi_source_dijkstra_path_length(graph, set(data.origins), weight="time")
            expected = [heads.get(r, inf) for r in range(problem.topology.num_ranks)]
            assert distances.heads(c).tolist() == expected
            for destination in data.destinations:
                to_go = nx.single_source_dijkstra_path_length(graph.reverse(), destination, weight="time")
                expected = [to_go.get(r, inf) for r in range(problem.topology.num_ranks)]
                assert distances.to_go(c, destination).tolist() == expected


def test_links_of_sums_agree_with_the_clauses():
    """Links for the reduce phase, the broadcast phase or either are those that `Problem.may_carry` admits."""
    for seed in range(some(10, 40)):
        problem = random_problem(seed, combining=True)
        distances = Distances(problem)
        for c in range(problem.collective.num_chunks):
            admitted = {
                mode: {
                    e for e in range(len(problem.topology.links)) if problem.may_carry(e, c, reducing=mode)
                }
                for mode in (False, True)
            }
            for mode, links in admitted.items():
                assert set(distances.links(distances.carried(c, reducing=mode))) == links
            either = admitted[False] | admitted[True]
            assert set(distances.links(distances.carried(c, reducing=None))) == either


@pytest.mark.slow
def test_a_chain_of_derived_chunks_may_be_long():
    """Two ranks alternately derive 1,500 chunks, each from the previous one: 1,499 sends of 2 us in sequence."""
    count = 1500
    chunks = [Chunk((0,), ()), *(Chunk((), ()) for _ in range(count - 2)), Chunk((), (count % 2,))]
    made = tuple(Derivation(c - 1, c % 2, c) for c in range(1, count))
    problem = problem_of(ring(2), Collective("by turns", 2, tuple(chunks), True, derivations=made))
    bound = lower_bound(problem)
    assert bound.bound == 2 * (count - 1) + 2
    assert bound.check()


@pytest.mark.slow
@pytest.mark.skipif(not MANY, reason="long; set TACCL_MANY=1 to run it")
@pytest.mark.parametrize("name", collectives.COLLECTIVES)
def test_two_thousand_ranks_on_a_ring(name):
    """On a ring of 2,000 ranks every collective has a proven bound; broadcast, reduce and scan also have a
    verified schedule.

    An alltoall would have four million chunks, and runs on 500 ranks.
    """
    num_ranks = 500 if name == "alltoall" else 2000
    collective = collectives.make(name, num_ranks, **arguments_for(name, num_ranks))
    problem = problem_of(taccl.topologies.ring(num_ranks), collective, max_merge=1)
    bound = lower_bound(problem)
    assert bound.bound > 0
    assert bound.check()
    if name in ("broadcast", "reduce", "scan"):
        result = brief_synthesis(problem)
        assert verify(result.schedule).ok
        assert result.schedule.finish == bound.bound


def test_shortest_paths_use_parallel_links_and_free_ones():
    """Shortest paths use the cheaper of two parallel links and links of cost 0."""
    src, dst = np.array([0, 0, 1, 2]), np.array([1, 1, 2, 3])
    found = paths_from_nearest(4, src, dst, np.array([5.0, 3.0, 0.0, 2.0]), [0])
    assert found.tolist() == [0, 3, 3, 5]


def test_shortest_paths_start_at_the_nearest_origin():
    """Shortest paths start at the nearest origin; unreachable ranks are at infinity."""
    found = paths_from_nearest(4, np.array([0, 1]), np.array([2, 2]), np.array([5.0, 1.0]), [0, 1])
    assert found.tolist() == [0, 0, 1, np.inf]

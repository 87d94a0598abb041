"""Channels: rings and chains packed into directed links."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise, permutations

import numpy as np
import pytest

import taccl
from taccl.baselines import channels
from taccl.baselines.channel_schedules import channels_of
from taccl.baselines.cheap_rings import cheap_paths, cheapest_paths
from taccl.topology import fabrics, machines
from taccl.topology.builder import TopologyBuilder


def problem_of(topology, collective="allgather"):
    """The problem of a collective of 64 MB."""
    return taccl.make_problem(topology, collective, size_bytes=1 << 26)


def hops_of(channels):
    """{(rank, rank): number of rings with this hop}."""
    return Counter(hop for order in channels.orders for hop in pairwise((*order, order[0])))


def test_all_directed_links_of_a_mesh_of_eight_are_on_one_of_seven_rings():
    """Seven rings cover all directed links of a mesh of eight ranks, as each rank has seven links out."""
    channels = channels_of(problem_of(machines.mi300x()), "ring")
    assert len(channels.orders) == 7
    assert set(hops_of(channels)) == set(permutations(range(8), 2))


@pytest.mark.slow
def test_channels_are_searched_once_for_all_sizes(monkeypatch):
    """Sizes at which the same links are the fastest share the search for channels."""
    topology = machines.dgx1()
    problems = [taccl.make_problem(topology, "allgather", size_bytes=size) for size in (1 << 10, 1 << 26)]
    first = [channels_of(problems[0], algorithm) for algorithm in ("ring", "tree")]
    monkeypatch.setattr("taccl.baselines.channels._found", lambda _: pytest.fail("searched again"))
    assert [channels_of(problems[1], algorithm) for algorithm in ("ring", "tree")] == first


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_meshes_with_a_card_a_rank_have_eight_rings(nodes):
    """Meshes with one NIC per rank have eight rings without a common directed link."""
    channels = channels_of(problem_of(machines.mi300x(nodes)), "ring")
    assert len(channels.orders) == 8
    assert set(hops_of(channels).values()) == {1}


@pytest.mark.parametrize("ranks", [4, 5, 6])
def test_rings_through_an_odd_number_of_nodes_stay_on_rails(ranks):
    """Rings through three nodes with a rail per local rank need no relays: they end on the rail where they
    began."""
    builder = taccl.topologies.TopologyBuilder("rails", [n for n in range(3) for _ in range(ranks)])
    for a, b in permutations(range(3 * ranks), 2):
        if a // ranks == b // ranks or a % ranks == b % ranks:
            builder.add_link(a, b, alpha_us=1, beta_us_per_mb=4 if a // ranks == b // ranks else 40)
    channels = channels_of(problem_of(builder.build()), "ring")
    rails = [
        hop
        for order in channels.orders
        for hop in pairwise((*order, order[0]))
        if hop[0] // ranks != hop[1] // ranks
    ]
    assert all(src % ranks == dst % ranks for src, dst in rails)
    assert len(rails) == 3 * len(channels.orders) == 3 * ranks == len(set(rails))


def test_links_of_two_kinds_are_used_up():
    """On a DGX-1 a double link carries twice as many rings as a single link."""
    topology = machines.dgx1()
    channels = channels_of(problem_of(topology), "ring")
    hops, betas = hops_of(channels), {(e.src, e.dst): e.beta_us_per_mb for e in topology.links}
    assert len(hops) == len(topology.links)
    single = {hops[hop] for hop, beta in betas.items() if beta == max(betas.values())}
    assert {hops[hop] for hop, beta in betas.items() if beta == min(betas.values())} == {2 * single.pop()}
    assert not single


def test_rings_cross_by_different_cards():
    """Two DGX-1 have four NICs each, and one ring leaves and enters by each."""
    topology = machines.dgx1(2)
    channels = channels_of(problem_of(topology), "ring")
    cards = Counter(
        (src // 2, dst // 2) for src, dst in hops_of(channels) if topology.node_of_rank[src] != topology.node_of_rank[dst]
    )  # fmt: skip
    assert len(channels.orders) == 4
    assert all(len({pair[end] for pair in cards}) == len(cards) == 8 for end in (0, 1))


#: {number of xGMI links: pairs of GPUs that they join}, in a server of eight MI250, each two GPUs.
MI250 = {
    4: "0-3 1-2 4-5 6-7 8-11 9-10 12-13 14-15",
    2: "0-4 2-7 10-13 11-15",
    1: "0-1 1-3 1-6 2-3 3-5 4-13 5-12 5-14 6-12 6-14 7-15 8-9 8-10 8-14 9-11 9-12",
}


@pytest.mark.slow
def test_rings_of_sixteen_ranks_use_most_links():
    """Rings carry at least 85 % of what leaves a rank of a torus (4 links), or a module of MI250 (6 links)."""
    rings = channels_of(problem_of(fabrics.torus(4, 4)), "ring")
    assert len(rings.orders) / max(hops_of(rings).values()) >= 0.85 * 4
    builder = taccl.topologies.TopologyBuilder("mi250", [0] * 16)
    width = {}
    for num_links, pairs in MI250.items():
        for a, b in (map(int, pair.split("-")) for pair in pairs.split()):
            width |= {(a, b): num_links, (b, a): num_links}
    for (src, dst), num_links in width.items():
        builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=Fraction(24, num_links))
    rings = channels_of(problem_of(builder.build()), "ring")
    assert len(rings.orders) / max(num / width[hop] for hop, num in hops_of(rings).items()) >= 0.85 * 6


def test_four_ranks_that_are_all_linked_use_every_link():
    """Four fully connected ranks have no three disjoint rings, so six rings use each link twice, at the same
    total rate."""
    channels = channels_of(problem_of(fabrics.fully_connected(4)), "ring")
    assert set(hops_of(channels).values()) == {len(channels.orders) // 3}


def test_chains_of_a_mesh_share_no_link():
    """Four chains of eight ranks on a mesh share none of their seven links each."""
    channels = channels_of(problem_of(machines.mi300x(), "allreduce"), "tree")
    links = [frozenset(hop) for order in channels.orders for hop in pairwise(order)]
    assert len(links) == len(set(links)) == 28


@pytest.mark.parametrize("seed", range(5))
def test_the_cheapest_path_is_that_of_all_orders(seed):
    """The cheapest path through all ranks equals the minimum over all orders, for random costs of hops and of
    the closing hop."""
    generator = np.random.default_rng(seed)
    steps, closing = generator.random((2, 5, 5))
    for cost, path in cheapest_paths(steps, closing):
        every = [
            sum(steps[pair] for pair in pairwise(order)) + closing[order[-1], order[0]]
            for order in permutations(range(5))
            if order[0] == path[0]
        ]
        assert cost == pytest.approx(min(every))
        assert cost == pytest.approx(sum(steps[pair] for pair in pairwise(path)) + closing[path[-1], path[0]])


@pytest.mark.parametrize("seed", range(3))
def test_beam_search_finds_cheapest_paths_of_few_ranks(seed):
    """Between few ranks the beam search drops no path, so its paths are as cheap as the cheapest ones."""
    generator = np.random.default_rng(seed)
    steps, closing = generator.random((2, 6, 6))
    steps[generator.random((6, 6)) < 0.2] = np.inf
    exact = {path[0]: cost for cost, path in cheapest_paths(steps, closing)}
    found = {path[0]: (cost, path) for cost, path in cheap_paths(steps, closing)}
    assert {first: cost for first, (cost, _) in found.items()} == pytest.approx(exact)
    for cost, path in found.values():
        assert cost == pytest.approx(sum(steps[pair] for pair in pairwise(path)) + closing[path[-1], path[0]])


def test_pairs_of_a_pattern_are_made_once(monkeypatch):
    """All columns of a search share the pairs of ranks that their steps join."""
    made, pairs = [], channels._Chains.pairs
    monkeypatch.setattr(
        channels._Chains, "pairs", lambda self, *given: made.append(given) or pairs(self, *given)
    )
    assert channels_of(problem_of(machines.dgx1(nodes=2)), "tree").orders
    assert made == [(False,)]


def test_links_of_extreme_rates_are_packed_alike():
    """Rings and trees reach the same rate, in proportion, if all links take 10**12 times as long."""
    rates = {}
    for scale in (1, 10**12):
        builder = TopologyBuilder("unlike", [0] * 4)
        for src, dst in permutations(range(4), 2):
            beta = 9 if 3 in (src, dst) else 4 if 1 not in (src, dst) else 5
            builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta * scale)
        problem = taccl.make_problem(builder.build(), "allreduce", size_bytes=10**6)
        rates[scale] = {
            each.algorithm: each.gb_per_s * scale for each in taccl.baselines.nccl_choices(problem)
        }
    assert rates[1] == pytest.approx(rates[10**12], rel=1e-3)

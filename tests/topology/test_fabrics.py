"""Fabrics: their links and costs."""

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import taccl
from taccl.errors import TopologyError
from taccl.topology import products
from taccl.topology.builder import TopologyBuilder
from taccl.topology.fabrics import fully_connected, hypercube, mesh, ring, star, torus

DIMS = st.lists(st.integers(1, 5), min_size=1, max_size=3).filter(lambda dims: 2 <= math.prod(dims) <= 40)


def edges(topology):
    return sorted((link.src, link.dst) for link in topology.links)


def out_degrees(topology):
    return [len(links) for links in topology.links_from]


def reaches_all(topology):
    """True if rank 0 reaches every rank and every rank reaches rank 0."""
    return all(
        len(_reached([[(e.src, e.dst), (e.dst, e.src)][backwards] for e in topology.links]))
        == topology.num_ranks
        for backwards in (0, 1)
    )


def _reached(arcs):
    following = {}
    for src, dst in arcs:
        following.setdefault(src, []).append(dst)
    seen, stack = {0}, [0]
    while stack:
        new = set(following.get(stack.pop(), ())) - seen
        seen |= new
        stack += new
    return seen


_ROWS = [(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)]


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        pytest.param(
            ring(3), [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)], id="a ring goes both ways round"
        ),
        pytest.param(ring(3, bidirectional=False), [(0, 1), (1, 2), (2, 0)], id="or upwards only"),
        pytest.param(ring(2), [(0, 1), (1, 0)], id="both ways round, the next of two is the other"),
        pytest.param(ring(2, bidirectional=False), [(0, 1), (1, 0)], id="and one way round as well"),
        pytest.param(
            mesh(2, 3), sorted([*_ROWS, *((b, a) for a, b in _ROWS)]), id="a mesh is numbered row by row"
        ),
        pytest.param(torus(5), edges(ring(5)), id="a torus of one axis is a ring"),
    ],
)
def test_links_of_small_fabrics(topology, expected):
    """Every link exists once, in both directions by default."""
    assert edges(topology) == expected


@given(dims=DIMS)
@settings(max_examples=40, deadline=None)
def test_torus_degrees(dims):
    """A rank has two links along an axis of 3 or more ranks, one along 2, none along 1; no link is repeated."""
    topology = torus(*dims)
    assert set(out_degrees(topology)) == {sum(min(dim - 1, 2) for dim in dims)}
    assert max(Counter(edges(topology)).values()) == 1
    assert reaches_all(topology)


@given(dims=DIMS)
@settings(max_examples=40, deadline=None)
def test_mesh_links(dims):
    """Each line of d ranks along an axis has d - 1 neighbouring pairs, linked once in each direction."""
    topology = mesh(*dims)
    ranks = math.prod(dims)
    assert len(topology.links) == sum(2 * (dim - 1) * ranks // dim for dim in dims)
    assert max(Counter(edges(topology)).values()) == 1
    assert reaches_all(topology)


@given(dimension=st.integers(1, 6))
def test_hypercube_degrees(dimension):
    """Every rank has one link for each bit of its number, to the rank whose number differs in that bit only."""
    topology = hypercube(dimension)
    assert set(out_degrees(topology)) == {dimension}
    assert all((link.src ^ link.dst).bit_count() == 1 for link in topology.links)
    assert reaches_all(topology)


@pytest.mark.parametrize("make", [fully_connected, star])
def test_all_pairs_are_linked(make):
    """There is one link for every ordered pair."""
    assert edges(make(4)) == [(a, b) for a in range(4) for b in range(4) if a != b]


def test_links_of_a_star_share_ports():
    """In a star of four ranks, three links share rank 0's port out, and three its port in."""
    topology = star(4)
    by_name = Counter(topology.resources[hold.resource].name for hold in topology.holds)
    assert (by_name["port out 0 (switch)"], by_name["port in 0 (switch)"]) == (3, 3)
    assert topology.switches[0].links == tuple(range(12))


@pytest.mark.parametrize("make", [ring, mesh, torus, fully_connected, star])
def test_costs_are_exact(make):
    """At 30 GB/s beta is exactly 1000 / 30 us per MB."""
    topology = make(4, bandwidth_gb_per_s=30, alpha_us=0.7, alpha_meaning="pipelined")
    costs = {(link.alpha_us, link.beta_us_per_mb) for link in topology.links}
    assert costs == {(Fraction(7, 10), Fraction(100, 3))}
    assert topology.alpha_meaning == "pipelined"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(ring(4).node_of_rank, (0, 0, 0, 0), id="a fabric says nothing of nodes"),
        pytest.param(
            torus(2, 4, ranks_per_node=4).node_of_rank,
            (0, 0, 0, 0, 1, 1, 1, 1),
            id="nodes of consecutive ranks",
        ),
        pytest.param(
            {(link.alpha_us, link.beta_us_per_mb) for link in hypercube(2).links},
            {(Fraction(1, 2), 20)},
            id="50 GB/s and half a microsecond by default",
        ),
        pytest.param(
            {e.ends: e.beta_us_per_mb for e in mesh(2, 2, bandwidth_gb_per_s=(50, 25)).links if e.src == 0},
            {"0->2": 20, "0->1": 40},
            id="axes may differ in bandwidth: 0-2 is along the first of 2x2, 0-1 along the second",
        ),
        pytest.param(
            [(h.link, h.resource) for h in fully_connected(4).holds],
            [(i, i) for i in range(12)],
            id="links of a fully connected fabric hold themselves alone",
        ),
    ],
)
def test_nodes_costs_and_holds(found, expected):
    """Fabrics have the expected nodes, costs and holds, by default and with options."""
    assert found == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ring(1), "expected a whole number of at least 2"),
        (lambda: ring(0), "expected a whole number of at least 2"),
        (lambda: fully_connected(0), "expected a whole number of at least 2"),
        (lambda: star(-1), "expected a whole number of at least 2"),
        (lambda: star("8"), "num_ranks: found '8'"),
        (lambda: fully_connected(2.5), "num_ranks: found 2.5"),
        (lambda: mesh(), "found no axes"),
        (lambda: mesh(1, 1), "expected a whole number of at least 2"),
        (lambda: torus(4, 0), "dims: found 0"),
        (lambda: hypercube(0), "dimension: found 0"),
        (lambda: hypercube(1000), "expected at most 1000000"),
        (lambda: fully_connected(10**5), "expected at most 1000000"),
        (lambda: ring(4, ranks_per_node=3), "expected a divisor of the 4 ranks"),
        (lambda: ring(4, ranks_per_node=0), "ranks_per_node: found 0"),
        (lambda: ring(4, bandwidth_gb_per_s=0), "found 0 GB/s"),
        (lambda: ring(4, alpha_us=-1), "alpha_us: found -1"),
        (lambda: torus(4, 4, bandwidth_gb_per_s=(1, 2, 3)), "found 3 bandwidths for 2 axes"),
    ],
)
def test_what_makes_no_fabric_is_refused(make, message):
    """Invalid sizes, costs and numbers of nodes are refused before anything is built."""
    with pytest.raises(TopologyError, match=message):
        make()


def test_pairs_of_all_ranks_of_a_ring_are_not_listed(monkeypatch):
    """A ring of 100,000 ranks has 200,000 links, but 10 billion pairs of ranks."""
    monkeypatch.setattr(products, "permutations", None)
    assert len(ring(8).links) == 16


@pytest.mark.parametrize("name", [
    "fully-connected:6", "ring:5", "mesh:3x2", "torus:2x3", "hypercube:3", "star:4", "multidim:ring3@50,switch2@25",
])  # fmt: skip
@pytest.mark.parametrize("alpha_meaning", ["occupies", "pipelined"])
def test_links_of_fabrics_are_those_that_are_added_one_by_one(name, alpha_meaning):
    """The links of a fabric are added together, and are those of a builder that adds them one by one."""
    made = taccl.topologies.parse(name, alpha_meaning=alpha_meaning)
    builder, place = TopologyBuilder(made.name, made.node_of_rank, alpha_meaning=alpha_meaning), {}
    for index, link in enumerate(made.links):
        costs = {"alpha_us": link.alpha_us, "beta_us_per_mb": link.beta_us_per_mb}
        assert builder.add_link(link.src, link.dst, **costs, name=link.name) == index
        own, *_ = made.holds_of_link[index]
        place[own.resource] = index
    alone = builder.build()
    assert alone.links == made.links
    names = [made.resources[resource].name for resource, _ in sorted(place.items(), key=lambda each: each[1])]
    assert names == [each.name for each in alone.resources]
    assert [made.holds_of_link[e][0][2:] for e in range(len(made.links))] == [
        hold[2:] for hold in alone.holds
    ]


def test_large_fabrics_add_no_link_alone(monkeypatch):
    """All links of a large fabric are added together, which takes a tenth of the time."""
    monkeypatch.setattr(TopologyBuilder, "add_link", lambda *_, **__: pytest.fail("a link is added alone"))
    for name, count in (("fully-connected:40", 1560), ("torus:8x8", 256), ("hypercube:6", 384)):
        assert len(taccl.topologies.parse(name).links) == count

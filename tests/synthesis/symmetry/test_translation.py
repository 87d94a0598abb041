"""Synthesis by translation: bounds are met, and implicit schedules equal their expansions."""

from dataclasses import replace
from fractions import Fraction
from itertools import permutations

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl import collectives, topologies
from taccl.analysis.certificates.bounds import latency_bound, lower_bound
from taccl.analysis.certificates.translation_bound import bound_of, divisible_bound, path_bound
from taccl.analysis.verification.verify import verify
from taccl.analysis.verification.verify_implicit import verify_implicit
from taccl.errors import InputError, TopologyError
from taccl.problem.making import make_problem
from taccl.synthesis.symmetry.implicit import find_translations, implicit_translations, synthesize_implicit
from taccl.synthesis.symmetry.translation import memory_needed, translate
from taccl.topology import transform
from taccl.topology.builder import TopologyBuilder, from_networkx
from taccl.topology.named import as_named, parse_named
from taccl.topology.translations import CyclicProduct, PermutationGroup, along_ring, translations_of_topology
from tests.fuzzing import some
from tests.synthesis.brute_force import optimal_ticks
from tests.synthesis.small_problems import linked

COLLECTIVES = ("allgather", "reduce-scatter", "allreduce", "alltoall")
NAMES = ("ring:2", "ring:5", "torus:3x4", "torus:2x2x3", "hypercube:3", "fully-connected:5", "star:5")


def check(result):
    """Assert that an implicit schedule and its expansion are valid and finish together."""
    schedule = result.schedule
    expanded = schedule.expand()
    assert verify_implicit(schedule).ok
    assert verify(expanded).ok
    assert (expanded.finish, expanded.num_transfers) == (schedule.finish, schedule.num_transfers)
    assert result.bound.bound <= schedule.finish


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("name", NAMES)
def test_small_fabrics_expand_to_valid_schedules(name, collective):
    """Every fabric and collective gives valid schedules, under both meanings of alpha."""
    for meaning in ("occupies", "pipelined"):
        check(synthesize_implicit(name, collective, chunk_size=1000, alpha_meaning=meaning))


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("name", ["ring:3", "star:3", "mesh:2x2"])
def test_no_schedule_in_any_chunks_is_below_the_bound_over_all_chunkings(name, collective):
    """Exhaustive search finds no schedule that finishes earlier.

    A chunk of 1000 bytes takes 1 us, plus a latency of 1 us, and sends may merge chunks. The bound of the
    explicit topology is no lower.
    """
    fabric = parse_named(name, bandwidth_gb_per_s=1, alpha_us=1)
    shape, topology = implicit_translations(fabric), fabric.to_topology()
    problem = make_problem(topology, collective, chunk_bytes=1000)
    problem = problem.with_clauses(merging=frozenset(problem.links_allowed), max_merge=100)
    bound = divisible_bound(shape, collective, chunk_bytes=Fraction(1000)).bound
    path = path_bound(shape, collective, chunk_bytes=1000).bound
    least = optimal_ticks(problem, max_states=2_000)
    assert least is None or max(bound, path) * problem.costs.ticks_per_us <= least
    assert bound <= lower_bound(problem, divisible=True, budget_s=0.0).bound
    assert path == latency_bound(problem).bound


@pytest.mark.parametrize(
    ("name", "collective", "bound_us", "kind"),
    [
        ("ring:4", "allgather", 7.5, "throughput"),  # 0.75 MB into each rank over two links at 20 us/MB
        ("torus:4x4", "alltoall", 10, "throughput"),  # 32 hops of 1/16 MB over four links
        ("fully-connected:5", "reduce-scatter", 4, "throughput"),  # 0.8 MB out of each rank over four links
        ("mesh:4x4", "allreduce", 12.5, "throughput"),  # 2 * 15 * 16 sends of 1/16 MB over 48 links
        ("hypercube:6", "allgather", 3.28125, "throughput"),  # 63/64 MB over six links
        ("torus:32x32", "allgather", 16, "latency"),  # 32 hops of 0.5 us
    ],
)
def test_bounds_over_all_chunkings_by_hand(name, collective, bound_us, kind):
    """Bytes over the rate of the links that they must cross, or the latencies to the farthest rank."""
    shape = implicit_translations(name)
    bound = divisible_bound(shape, collective, chunk_bytes=Fraction(10**6, shape.num_ranks))
    assert (bound.bound_us, bound.kind) == (bound_us, kind)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_several_chunks_per_rank(collective):
    """Two and three chunks per rank give valid schedules."""
    for pieces in (2, 3):
        check(synthesize_implicit("torus:3x4", collective, chunks_per_rank=pieces))


@pytest.mark.slow
@settings(max_examples=some(15, 25), deadline=None)
@given(
    dims=st.lists(st.integers(1, 5), min_size=1, max_size=3).filter(lambda d: 2 <= np.prod(d) <= 30),
    rates=st.lists(st.sampled_from([12, 50, 75, 400]), min_size=3, max_size=3),
    alpha=st.sampled_from(["0", "0.5", "30"]),
    meaning=st.sampled_from(["occupies", "pipelined"]),
    collective=st.sampled_from(COLLECTIVES),
    pieces=st.integers(1, 2),
)
def test_any_torus_is_valid(dims, rates, alpha, meaning, collective, pieces):
    """Tori of random sides, bandwidths per axis and alpha give valid schedules."""
    check(
        synthesize_implicit(
            f"torus:{'x'.join(map(str, dims))}",
            collective,
            chunks_per_rank=pieces,
            bandwidth_gb_per_s=rates[: len(dims)],
            alpha_us=alpha,
            alpha_meaning=meaning,
        )
    )


@pytest.mark.parametrize("dims", ["4x4", "3x7", "5x5", "2x9", "31x33", "32x32", "2x3x4", "7x9x11", "3x3x3x3"])
def test_tori_meet_the_bound(dims):
    """Tori meet the bound: ceil((R - 1) / links) rounds, or the diameter."""
    assert synthesize_implicit(f"torus:{dims}").gap == 0


@pytest.mark.parametrize("name", ["hypercube:1", "hypercube:7", "ring:9", "fully-connected:40", "star:20"])
def test_other_fabrics_meet_the_bound(name):
    """On fabrics other than tori an allgather meets the bound."""
    assert synthesize_implicit(name).gap == 0


def test_two_speeds_meet_the_bound():
    """With 75 GB/s on one axis and 50 on the other, every link is busy to the end."""
    assert synthesize_implicit("torus:16x16", bandwidth_gb_per_s=[75, 50]).gap < 0.001


def test_torus_200x200():
    """On 40,000 ranks, 1.6 billion transfers take 10,000 rounds of 20.5 us, which is the bound."""
    result = synthesize_implicit("torus:200x200")
    assert result.finish_us == 10_000 * 20.5
    assert result.bound.bound == Fraction(205_000)
    assert result.schedule.num_transfers == 40_000 * 39_999


@pytest.mark.slow
def test_torus_of_a_million_ranks():
    """A million ranks take ceil(999,999 / 6) rounds of 20.5 us."""
    assert synthesize_implicit("torus:100x100x100").finish_us == 166_667 * 20.5


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("name", ["torus:3x4", "hypercube:3", "star:4", "fully-connected:4"])
def test_bounds_are_no_better_than_the_certificate(name, collective):
    """On small fabrics the bound of an implicit schedule is within 15 % of that of `lower_bound`.

    Only if the schedule is proven optimal may the implicit bound be larger than that of `lower_bound`.
    """
    result = synthesize_implicit(name, collective)
    certificate = lower_bound(result.schedule.problem())
    assert certificate.bound <= result.schedule.finish
    assert result.bound.bound <= certificate.bound or result.gap == 0
    assert float(result.bound.bound) == pytest.approx(float(certificate.bound), rel=0.15)


def test_alltoall_balances_both_directions():
    """On an even torus, chunks that travel half a side use both directions equally: the gap is at most 1 %."""
    assert synthesize_implicit("torus:16x16", "alltoall").gap <= 0.01


def test_an_allgather_and_its_reversal_take_as_long():
    """A reduce-scatter is the allgather reversed in time; an allreduce takes twice as long."""
    finish = {name: synthesize_implicit("torus:5x6", name).schedule.finish for name in COLLECTIVES[:3]}
    assert finish["reduce-scatter"] == finish["allgather"]
    assert finish["allreduce"] == 2 * finish["allgather"]


def test_the_same_seed_makes_the_same_schedule():
    """Two runs with one seed give equal digests."""
    first, second = (synthesize_implicit("torus:3x7", seed=5).schedule.digest() for _ in range(2))
    assert first == second


def test_a_one_way_ring_needs_reversed_links_for_sums():
    """A ring of links in one direction has valid schedules of allgather and of sums; allgather's is optimal."""
    topology = topologies.ring(5).without(links=range(5, 10))
    for collective in COLLECTIVES:
        result = synthesize_implicit(topology, collective)
        check(result)
    assert synthesize_implicit(topology).gap == 0


# ---- Translations of topologies, found from their links.


@pytest.mark.parametrize(
    "topology",
    [topologies.torus(4, 3), topologies.hypercube(3), topologies.star(4), topologies.fully_connected(5)],
    ids=lambda topology: topology.name,
)
def test_translations_are_found(topology):
    """The translations of a topology are found from its links and holds alone."""
    assert find_translations(topology) is not None
    check(synthesize_implicit(topology))


def test_circulant_graphs_are_found():
    """A circulant graph is recognised by its links, and its allgather meets the bound.

    With 13 ranks and steps of 1 and 5 both ways, 12 chunks over 4 links take 3 rounds.
    """
    graph = networkx.circulant_graph(13, [1, 5])
    for _, _, data in graph.edges(data=True):
        data.update(bandwidth_gb_per_s=50, alpha_us=0.5)
    result = synthesize_implicit(from_networkx(graph, name="circulant"))
    check(result)
    assert result.finish_us == 3 * 20.5


def test_a_group_may_be_given():
    """The group may be given by its generators: here that of two triangles with links between them, the
    Cayley graph of S3."""
    elements = list(permutations(range(3)))

    def times(a, b):
        return elements.index(tuple(elements[a][i] for i in elements[b]))

    swap, turn, back = (elements.index(each) for each in ((1, 0, 2), (1, 2, 0), (2, 0, 1)))
    builder = TopologyBuilder("S3", [0] * 6)
    for rank in range(6):
        for step in (swap, turn, back):
            builder.add_link(rank, times(rank, step), alpha_us=1, beta_us_per_mb=20)
    generators = [[times(g, r) for r in range(6)] for g in (swap, turn)]
    for collective in COLLECTIVES[:3]:
        result = synthesize_implicit(builder.build(), collective, group=generators)
        check(result)
        assert result.gap == 0


def test_alltoall_requires_links_along_the_axes():
    """An alltoall is refused if links do not follow the axes, such as links from r to r + 2 among 7 ranks."""
    graph = networkx.circulant_graph(7, [2])
    for _, _, data in graph.edges(data=True):
        data.update(bandwidth_gb_per_s=50, alpha_us=0.5)
    with pytest.raises(TopologyError, match="along the axes"):
        synthesize_implicit(from_networkx(graph, name="twos"), "alltoall")


def test_a_broken_torus_has_no_translations():
    """A torus without one link has no translations."""
    with pytest.raises(TopologyError, match="found no translations"):
        synthesize_implicit(transform.without(topologies.torus(3, 3), links=[0]))


def test_shared_nics_are_refused():
    """NICs shared by ranks of a node are refused, since translations do not preserve them."""
    builder = TopologyBuilder("shared", [0, 0, 1, 1])
    nic = builder.add_resource("nic")
    for src in range(4):
        link = builder.add_link(src, (src + 1) % 4, alpha_us=1, beta_us_per_mb=1)
        builder.add_hold(link, nic, alpha_us=1, beta_us_per_mb=1)
    with pytest.raises(TopologyError, match="share resources such as nic"):
        translations_of_topology(builder.build(), [[1, 2, 3, 0]])


@pytest.mark.parametrize(
    ("generators", "text"),
    [
        ([], "at least one"),
        ([[0, 0, 1, 2]], "name every rank"),
        ([[1, 0, 2, 3]], "to 2 of 4 ranks"),
        ([[1, 2, 3, 0], [0, 3, 2, 1]], "two elements take some rank to the same rank"),
        ([[1, 2, 0]], "expected 4"),
        ([[2, 3, 1, 0]], "no link"),
    ],
)
def test_groups_that_do_not_fit_are_refused(generators, text):
    """Generators are refused that are not permutations, generate too much, or change ranks or links."""
    with pytest.raises(TopologyError, match=text):
        translations_of_topology(topologies.ring(4), generators)


def test_links_of_unequal_costs_are_refused():
    """A ring with one slower link is refused."""
    ring = topologies.ring(4)
    links = (ring.links[0]._replace(alpha_us=Fraction(9)), *ring.links[1:])
    with pytest.raises(TopologyError, match="costs otherwise"):
        translations_of_topology(replace(ring, links=links), [[1, 2, 3, 0]])


def test_links_that_do_not_reach_all_are_refused():
    """Links that do not connect all ranks are refused: two separate rings of two ranks."""
    topology = linked("apart", [0] * 4, ((src, src ^ 1) for src in range(4)), alpha_us=1, beta_us_per_mb=1)
    shape = translations_of_topology(topology, CyclicProduct((2, 2)))
    with pytest.raises(TopologyError, match="do not lead from a rank to every other"):
        translate(shape, chunk_bytes=1000)


# ---- Groups of translations, and fabrics by name.


@pytest.mark.parametrize("moduli", [(5,), (2, 3), (3, 1, 4), (2, 2, 2)])
def test_a_product_is_the_group_that_its_shifts_generate(moduli):
    """The table of the group generated by shifts equals addition of digits."""
    group = CyclicProduct(moduli)
    places = np.arange(group.order)
    table = group.translate(places[:, None], places[None, :])
    generated = PermutationGroup(tuple(tuple(row) for row in table[1:].tolist()))
    assert np.array_equal(generated.table, table)
    taking = group.taking(places[:, None], places[None, :])
    assert np.array_equal(generated.taking(places[:, None], places[None, :]), taking)
    assert np.array_equal(group.translate(taking, places[:, None]), np.broadcast_to(places, table.shape))


@pytest.mark.parametrize("name", [*NAMES, "mesh:3x4", "mesh:2x3x2", "torus:1x5", "mesh:1x4"])
def test_a_named_fabric_has_the_links_that_are_listed(name):
    """For every pair of ranks, link and cost by arithmetic equal those of the listed topology."""
    rates = [10 * (axis + 1) for axis in range(name.count("x") + 1)] if name[0] in "mt" else 10
    fabric = parse_named(name, bandwidth_gb_per_s=rates)
    listed = {(e.src, e.dst): e.beta_us_per_mb for e in fabric.to_topology().links}
    ranks = np.arange(fabric.num_ranks)
    src, dst = (each.ravel() for each in np.meshgrid(ranks, ranks, indexing="ij"))
    axis = fabric.axis(src, dst).tolist()
    found = {
        (int(s), int(d)): fabric.axes[a].beta_us_per_mb
        for s, d, a in zip(src, dst, axis, strict=True)
        if a >= 0
    }
    assert found == listed


@pytest.mark.parametrize("name", [*NAMES, "mesh:3x4"])
def test_a_topology_is_known_by_its_links(name):
    """A topology from a name is recognised by its links; without one link it is not."""
    fabric = parse_named(name, alpha_us=2)
    topology = fabric.to_topology()
    assert as_named(topology) == fabric
    assert as_named(transform.without(topology, links=[0])) is None
    assert as_named(replace(topology, name="mine")) is None


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("", {}, "expected a fabric"),
        ("ndv2", {}, "found .ndv2.; expected a fabric"),
        ("torus", {}, "no size"),
        ("torus:0x4", {}, "at least 1"),
        ("ring:1", {}, "found 1; expected a whole number of at least 2"),
        ("torus:99999x99999", {}, "ranks"),
        ("hypercube:99", {}, "ranks"),
        ("fully-connected:999999", {}, "each linked to all others"),
        ("torus:4x4", {"bandwidth_gb_per_s": [1, 2, 3]}, "3 bandwidths for 2 axes"),
        ("torus:4x4", {"bandwidth_gb_per_s": 0}, "positive"),
        ("torus:4x4", {"alpha_us": -1}, "not negative"),
        ("torus:4x4", {"alpha_meaning": "sometimes"}, "occupies"),
        ("mesh:3x3", {}, "no ring visits every rank"),
    ],
)
def test_bad_names_are_refused(name, options, text):
    """Invalid names and costs of fabrics are refused before any work, with the reason."""
    with pytest.raises(TopologyError, match=text):
        synthesize_implicit(name, **options)


def test_other_bad_input():
    """Bad collectives, chunk sizes, and patterns that need too much memory are refused."""
    with pytest.raises(InputError, match="expected one of allgather"):
        synthesize_implicit("ring:4", "broadcast")
    with pytest.raises(InputError, match="chunk_size"):
        synthesize_implicit("ring:4", chunk_size=0)
    with pytest.raises(InputError, match="at least 1"):
        synthesize_implicit("ring:4", chunks_per_rank=0)
    with pytest.raises(InputError, match="which need .*; expected at most 4GiB"):
        synthesize_implicit("torus:8192x8192")
    with pytest.raises(InputError, match="hops"):
        synthesize_implicit("ring:100000", "alltoall")


def test_memory_is_known_before():
    """Memory is predicted: a million ranks with six links each need 24 MB of steps, and 100 bytes per row."""
    assert memory_needed(implicit_translations("torus:100x100x100")) == 124 * 10**6


def test_invalid_rings_are_refused():
    """A ring is refused if it misses ranks, uses missing links, or has unequal links."""
    mesh = parse_named("mesh:2x3")
    with pytest.raises(TopologyError, match="every rank once"):
        along_ring(mesh, [0, 1, 2, 3, 4, 4])
    with pytest.raises(TopologyError, match="not linked"):
        along_ring(mesh, [0, 1, 2, 3, 4, 5])
    uneven = parse_named("mesh:2x3", bandwidth_gb_per_s=[1000, 500])
    with pytest.raises(TopologyError, match="differ in bandwidth"):
        along_ring(uneven, [0, 1, 2, 5, 4, 3])


def test_the_bound_names_what_limits():
    """The bound of an implicit schedule names what limits: latency on small fabrics, links on large ones.

    On 16 ranks four hops take as long as 15 chunks over 4 links; on 64 ranks links limit.
    """
    assert synthesize_implicit("torus:4x4").bound.kind == "latency"
    bound = synthesize_implicit("torus:8x8").bound
    assert (bound.kind, bound.bound_us) == ("cut counting", 16 * 20.5)
    assert "63 sends of whole chunks over 4 resources of each rank" in bound.limits


def test_a_result_as_plain_values():
    """`to_dict` of a result has finish, bound, gap and counts."""
    found = synthesize_implicit("torus:8x8")
    told = found.to_dict()
    assert (told["finish_us"], told["bound_us"], told["gap"]) == (328.0, 328.0, 0.0)
    assert "gap 0.00%" in repr(found)
    assert bound_of(found.schedule) == found.bound


def test_fabric_divided_into_nodes_has_an_implicit_schedule():
    """A torus that is divided into nodes has an implicit schedule, whose problem equals the given one."""
    problem = make_problem(
        topologies.torus(4, 4, ranks_per_node=4), collectives.allgather(16), chunk_bytes=10**6
    )
    schedule = translate(implicit_translations(problem.topology), chunk_bytes=10**6)
    assert verify(schedule.expand()).ok
    assert schedule.problem() == problem


@pytest.mark.parametrize(
    ("fabric", "costs"), [("ring:4", {"bandwidth": 1}), (topologies.ring(4), {"alpha_us": 1})]
)
def test_unused_cost_options_are_refused(fabric, costs):
    """Cost options are refused if the fabric's name does not accept them, or if a topology already has costs."""
    for backend in ("auto", "dimension-balanced"):
        with pytest.raises(InputError, match="unused option"):
            synthesize_implicit(fabric, backend=backend, **costs)


@pytest.mark.parametrize("backend", ["auto", "dimension-balanced"])
def test_stages_of_an_implicit_result_account_for_its_time(backend):
    """The stages of implicit synthesis add up to its seconds, and `to_dict` lists them."""
    result = synthesize_implicit("torus:4x4", chunk_size="1MB", chunks_per_rank=2, backend=backend)
    table = result.stages.to_frame()
    assert table.seconds.sum() == pytest.approx(result.seconds, rel=0.01, abs=0.01)
    assert list(table["name"])[-2:] == ["verification", "bound"]
    assert [each["name"] for each in result.to_dict()["stages"]] == list(table["name"])

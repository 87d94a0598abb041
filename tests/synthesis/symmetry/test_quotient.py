"""Quotients by symmetry: number of hops, symmetries that schedules may have, and paths within routing slack.

A schedule may have a symmetry only if a send and its image can take place at the same time. The timing group
is the subgroup of such symmetries: no link shares a resource with its image.
"""

import random
import tracemalloc
from fractions import Fraction
from itertools import permutations

import pytest

from taccl import collectives, topologies
from taccl.analysis.verification.verify import verify
from taccl.problem.chunks import Chunk, Derivation
from taccl.problem.collective import Collective
from taccl.sketch.group import symmetry_group
from taccl.sketch.library import load_sketch
from taccl.sketch.symmetry import offset_permutation
from taccl.sketch.upstream import load_problem
from taccl.synthesis.proposers.greedy import critical_priorities, expand, list_schedule
from taccl.synthesis.symmetry.quotient import take_quotient
from taccl.synthesis.symmetry.timing_group import timing_group
from taccl.topology import machines
from taccl.topology.builder import TopologyBuilder
from tests.effort import brief_synthesis
from tests.foreign import OURS
from tests.fuzzing import cases
from tests.synthesis.small_problems import custom, full, linked, problem_of, ring

ROTATION = tuple((r + 1) % 4 for r in range(4))


def timing_quotient(problem):
    """The quotient by the timing group, the symmetries that a schedule may have."""
    return take_quotient(problem, timing_group(problem))


def test_without_symmetry_every_chunk_and_link_is_a_hop():
    """In an allgather on a full graph of 3, each chunk may use the 4 links that do not end at its origin.

    With 3 chunks at 3 ranks there are 9 states, (chunk, rank).
    """
    quotient = timing_quotient(problem_of(full(3), collectives.allgather(3)))
    assert quotient.group.order == 1
    assert len(quotient.hops) == 3 * 4
    assert len(quotient.states) == 3 * 3
    assert (quotient.num_resources, len(quotient.link_rep)) == (6, 6)


def test_a_rotation_makes_all_chunks_one():
    """A rotation reduces the chunks of an allgather to one.

    On a ring of 4 it uses the 6 of 8 links that do not end at its origin; there are 4 states and 2 orbits of
    links.
    """
    quotient = timing_quotient(problem_of(ring(4), collectives.allgather(4), symmetry=(ROTATION,)))
    assert quotient.group.order == 4
    assert (len(quotient.hops), len(quotient.states), len(quotient.link_rep)) == (6, 4, 2)
    assert all(len(quotient.members(m)) == 4 for m in range(6))


def test_hops_over_one_orbit_of_links_share_its_representative():
    """Hops over one orbit of links share its representative, so that they can merge."""
    quotient = timing_quotient(problem_of(ring(4), collectives.allgather(4), symmetry=(ROTATION,)))
    assert {hop.link for hop in quotient.hops} == set(quotient.link_rep)


@pytest.mark.parametrize(
    ("sketch", "topology", "size", "hops"),
    [
        ("hub-n1", "hub-64KB", 2, 2 * 1 // 2),  # chunks * links that do not lead home // elements
        # Rank 0's chunk uses 0->1, 0->3, 2->3 and 3->2, but neither 1->0, to its origin, nor 2->1, back.
        ("hub-n2", "hub-64KB", 2, 4 * 4 // 2),
        ("hub-rails-n2", "hub-64KB", 4, 4 * (1 + 2 + 2) // 4),
        # Each of 12 chunks, two per rank, may use one link in its own node.
        # For each of the two other nodes it may use 4 links into the node and 2 inside the node.
        ("hub-n3", "hub-64KB", 3, 12 * (1 + 2 * 4 + 2 * 2) // 3),
        ("ndv2-n2", "ndv2-2MB", 2, 16 * (32 - 4 + 1 + 32) // 2),
        ("dgx2-n1", "dgx2-4KB", 4, 16 * (240 - 15) // 4),
    ],
)
def test_our_sketches_fold(sketch, topology, size, hops):
    """Timing groups of our sketches have the order, and their quotients the number of hops, derived by hand."""
    folder = OURS / "upstream-taccl"
    problem = load_problem(folder / "sketch" / f"{sketch}.json", folder / "topo" / f"{topology}.json")
    quotient = timing_quotient(problem)
    assert (quotient.group.order, len(quotient.hops)) == (size, hops)


@pytest.mark.parametrize(
    ("sketch", "topology", "size", "hops"),
    [
        ("sk1-ndv2-n1", "topo-ndv2-1MB", 1, 224), ("sk1-ndv2-n2", "topo-ndv2-1MB", 2, 488),
        ("sk1-dgx2-n1", "topo-dgx2-1MB", 8, 450), ("sk1-dgx2-n2", "topo-dgx2-1MB", 16, 1864),
        ("sk2-dgx2-n2", "topo-dgx2-1KB", 16, 932),
    ],
)  # fmt: skip
def test_published_sketches_fold(shared_data, sketch, topology, size, hops):
    """Timing groups of the published sketches have the expected order, and their quotients the number of hops."""
    folder = shared_data / "upstream-taccl"
    problem = load_problem(folder / "sketch" / f"{sketch}.json", folder / "topo" / f"{topology}.json")
    quotient = timing_quotient(problem)
    assert (quotient.group.order, len(quotient.hops)) == (size, hops)


@pytest.mark.slow
def test_the_shipped_dgx2_sketch_folds_sixteenfold():
    """The shipped sketch's symmetry of two DGX-2 divides the 64 chunks of an allgather, two per rank, into orbits
    of 16.

    A chunk may use 16 * 15 links inside its node, minus the 15 to its origin. It crosses to the other node
    only over its relay's connection, and may use all 16 * 15 links there: 466 hops.
    """
    topology, collective = machines.dgx2(nodes=2), collectives.allgather(32, chunks_per_rank=2)
    quotient = timing_quotient(load_sketch("dgx2/sk1").apply(topology, collective, chunk_size="1MB"))
    assert quotient.group.order == 16
    assert len(quotient.hops) == 64 // 16 * (225 + 1 + 240) == 1864


def test_an_unfolded_schedule_verifies():
    """A schedule of the quotient expands to a valid schedule of the whole problem with the same finish."""
    problem = problem_of(ring(4), collectives.allgather(4), symmetry=(ROTATION,))
    quotient = timing_quotient(problem)
    found = list_schedule(quotient, critical_priorities(quotient))
    whole = expand(quotient, found.sends, producer="test")
    assert verify(whole).ok
    assert whole.finish_ticks == found.finish_ticks == 4
    assert len(whole) == 12


def listed(generators):
    """Every product of the generators, including the identity; each is a tuple of permutations."""
    steps = list(generators)
    found = [tuple(tuple(range(len(part))) for part in steps[0])]
    for element in found:
        for step in steps:
            product = tuple(tuple(b[i] for i in a) for a, b in zip(element, step, strict=True))
            if product not in found:
                found.append(product)
    return found


def symmetric(seed):
    """A small network with up to three of its symmetries, and random chunks closed under them."""
    rng = random.Random(seed)
    mirror = tuple(range(5, -1, -1))
    three = ((1, 2, 0, 4, 5, 3, 7, 8, 6), (0, 3, 6, 1, 4, 7, 2, 5, 8), (3, 4, 5, 6, 7, 8, 0, 1, 2))
    cube = ((1, 0, 3, 2, 5, 4, 7, 6), (0, 2, 1, 3, 4, 6, 5, 7), (0, 2, 4, 6, 1, 3, 5, 7))
    anyone = tuple(rng.choice(list(permutations(range(4)))[1:]) for _ in range(3))
    topology, known = rng.choice(
        (
            (ring(6), ((1, 2, 3, 4, 5, 0), mirror)),
            (topologies.torus(3, 3), three),
            (topologies.hypercube(3), cube),
            (full(4), anyone),
            (full(4, port=True), anyone),
            (topologies.dgx2(1), (offset_permutation(16, 3, 8), offset_permutation(16, 8, 16))),
        )
    )
    ranks = rng.sample(known, rng.randint(1, len(known)))
    num_ranks = topology.num_ranks
    everyone = range(num_ranks) if rng.random() < 0.3 else rng.sample(range(num_ranks), rng.randint(1, 2))
    origins = rng.sample(range(num_ranks), rng.randint(1, 2))
    images = (
        (tuple(sorted(g[r] for r in origins)), tuple(sorted(g[r] for r in everyone)))
        for (g,) in listed([(each,) for each in ranks])
    )
    ways = list(dict.fromkeys(images)) * rng.randint(1, 2)
    slack = Fraction(rng.choice((0, 1, 1000)))
    return problem_of(topology, custom(num_ranks, ways), symmetry=tuple(ranks), routing_slack=slack)


@pytest.mark.fuzz
def test_a_fold_by_generators_is_that_by_the_listed_group():
    """Generators give the same quotient as a list of all group elements: hops with their ends, and states."""
    for seed in cases("quotients by generators", few=7, many=400):
        problem = symmetric(seed)
        group = symmetry_group(problem)
        elements = listed((g.ranks, g.chunks, g.links) for g in group.generators)
        plain, whole = take_quotient(problem), take_quotient(problem, group)
        assert group.order == len({ranks for ranks, _, _ in elements})
        sends = {
            (hop.chunk, hop.link): {(chunks[hop.chunk], links[hop.link]) for _, chunks, links in elements}
            for hop in plain.hops
        }
        names = {
            (state.chunk, state.rank): min((chunks[state.chunk], r[state.rank]) for r, chunks, _ in elements)
            for state in plain.states
        }
        assert {(state.chunk, state.rank) for state in whole.states} == set(names.values())
        assert {frozenset(whole.members(m)) for m in range(len(whole.hops))} == set(
            map(frozenset, sends.values())
        )
        assert len(whole.hops) == len(set(map(frozenset, sends.values())))
        for m, hop in enumerate(whole.hops):
            members = sends[hop.chunk, hop.link]
            first = min(e for _, e in members)
            assert (hop.chunk, hop.link) == min((c, e) for c, e in members if e == first)
            assert whole.num_members(m) == len(members)
            row = min(c for c, _ in members)
            assert list(hop.links) == sorted(e for c, e in members if c == row)
        ends = {
            (hop.chunk, hop.link): [
                {names[plain.states[p].chunk, plain.states[p].rank] for p in each}
                for each in (hop.srcs, hop.dsts)
            ]
            for hop in plain.hops
        }
        for hop in whole.hops:
            assert ends[hop.chunk, hop.link] == [
                {(whole.states[p].chunk, whole.states[p].rank) for p in each} for each in (hop.srcs, hop.dsts)
            ]


@pytest.mark.fuzz
def test_what_is_folded_in_time_never_clashes():
    """No link shares a resource with its image under the timing group, and expanded schedules verify."""
    for seed in cases("quotients of times", few=15, many=400):
        problem = symmetric(seed)
        quotient = timing_quotient(problem)
        held = [{hold.resource for hold in holds} for holds in problem.topology.holds_of_link]
        generators = [(g.ranks, g.links) for g in quotient.group.generators]
        for ranks, links in listed(generators) if generators else ():
            moved = ranks != tuple(range(len(ranks)))
            assert not moved or all(held[e].isdisjoint(held[links[e]]) for e in problem.links_allowed)
        found = list_schedule(quotient, critical_priorities(quotient))
        whole = expand(quotient, found.sends, producer="test")
        assert verify(whole).ok
        assert whole.finish_ticks <= found.finish_ticks


def test_more_symmetries_than_memory_holds():
    """All 24! renamings of 24 ranks reduce an alltoall to five hops; the timing group has order 24.

    The five hops of a chunk: sender to receiver, sender to another rank, another rank to the receiver,
    receiver to another rank, and between two other ranks.
    """
    rotation, swap = offset_permutation(24, 1, 24), (1, 0, *range(2, 24))
    problem = problem_of(full(24), collectives.alltoall(24), symmetry=(swap, rotation))
    whole = take_quotient(problem, symmetry_group(problem))
    assert whole.group.order is None
    assert sorted(whole.num_members(m) for m in range(len(whole.hops))) == [
        24 * 23,
        *[24 * 23 * 22] * 3,
        24 * 23 * 22 * 21,
    ]
    assert timing_group(problem).order == 24


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "offsets", "order", "in_time"),
    [
        (topologies.fully_connected(12), ((1, 3), (1, 4), (1, 12)), None, 12),
        (topologies.fully_connected(12), ((1, 3), (1, 4)), None, 4),
        (topologies.dgx2(1), ((3, 8), (1, 16)), 2048, 16),
        (topologies.dgx2(2), ((2, 8), (2, 16), (16, 32)), 128, 16),
    ],
    ids=["3, 4 and 12", "3 and 4", "8 and 16", "8, 16 and 32"],
)
def test_several_symmetries_fold_in_little_memory(topology, offsets, order, in_time):
    """Several symmetries give quotients of known group orders, in at most 64 MB of memory.

    `order`: order of the whole group, None if it is not counted. `in_time`: order of the timing group. The
    twelve rotations in groups of 3 and 4 are products of several generators.
    """
    num_ranks = topology.num_ranks
    symmetry = tuple(offset_permutation(num_ranks, *each) for each in offsets)
    problem = problem_of(topology, collectives.allgather(num_ranks), symmetry=symmetry)
    tracemalloc.start()
    quotient = timing_quotient(problem)
    whole = take_quotient(problem, symmetry_group(problem))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (whole.group.order, quotient.group.order) == (order, in_time)
    assert most < 64 * 2**20


def shared(*, half_duplex=False):
    """Sends 0 -> 2 and 1 -> 3 behind one NIC (or 0 -> 1 and back over one wire), with their mirror symmetry."""
    if half_duplex:
        builder = TopologyBuilder("wire", [0, 0])
        pairs, mirror = ((0, 1), (1, 0)), (1, 0)
    else:
        builder = TopologyBuilder("NIC", [0, 0, 1, 1])
        pairs, mirror = ((0, 2), (1, 3)), (1, 0, 3, 2)
    resource = builder.add_resource("shared")
    for src, dst in pairs:
        link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
        builder.add_hold(link, resource, alpha_us=0, beta_us_per_mb=1)
    ways = [([src], [dst]) for src, dst in pairs]
    return problem_of(builder.build(), custom(len(mirror), ways), symmetry=(mirror,))


@pytest.mark.parametrize("half_duplex", [False, True], ids=["NIC", "wire"])
def test_a_fixed_resource_is_not_folded_in_time(half_duplex):
    """A mirror symmetry that fixes a shared resource is not in the timing group.

    The two sends, one the image of the other, hold the resource in sequence, for 2 us.
    """
    problem = shared(half_duplex=half_duplex)
    group = symmetry_group(problem)
    assert group.order == 2
    assert timing_group(problem).order == 1
    assert len(take_quotient(problem, group).hops) == 1
    quotient = timing_quotient(problem)
    found = list_schedule(quotient, critical_priorities(quotient))
    assert found.finish_ticks == 2


def test_a_fixed_resource_that_no_send_may_use_does_not_matter():
    """If no link that holds the shared NIC is allowed, the mirror symmetry is in the timing group."""
    builder = TopologyBuilder("idle NIC", [0, 0, 1, 1])
    nic = builder.add_resource("NIC")
    for src, dst in ((0, 1), (1, 0), (0, 2), (1, 3)):
        link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
        if dst > 1:
            builder.add_hold(link, nic, alpha_us=0, beta_us_per_mb=1)
    collective = custom(4, [([0], [1]), ([1], [0])])
    problem = problem_of(builder.build(), collective, symmetry=((1, 0, 3, 2),))
    group = symmetry_group(problem)
    assert (group.order, timing_group(problem).order) == (2, 1)
    inside = problem.with_clauses(links_allowed=frozenset({0, 1}))
    assert timing_group(inside).order == 2


def test_only_the_part_that_acts_freely_is_taken():
    """A symmetry that fixes a resource is not in the timing group, nor is any whose power (not identity) does.

    Four ranks are in a ring; ranks 0 and 2 share a port, as do 1 and 3: a half turn fixes both ports. A
    quarter turn swaps the ports, but its square is the half turn, so only the identity remains.
    """
    builder = TopologyBuilder("ports", [0] * 4)
    ports = [builder.add_resource("even"), builder.add_resource("odd")]
    for r in range(4):
        link = builder.add_link(r, (r + 1) % 4, alpha_us=0, beta_us_per_mb=1)
        builder.add_hold(link, ports[r % 2], alpha_us=0, beta_us_per_mb=1)
    problem = problem_of(builder.build(), collectives.allgather(4), symmetry=(ROTATION,))
    group = symmetry_group(problem)
    assert (group.order, timing_group(problem).order) == (4, 1)


def test_one_destination_makes_a_single_path():
    """A chunk with one destination besides its origins has a single path."""
    ways = [([0], [2]), ([0], [0, 2]), ([0], [1, 2])]
    assert timing_quotient(problem_of(ring(3), custom(3, ways))).single_path == (True, True, False)


def near_tie(slack):
    """Rank 0 reaches 1 in 46 us, or through rank 2 in 23.3 + 23.3 us."""
    builder = TopologyBuilder("near tie", [0] * 3)
    for src, dst, beta in ((0, 1, 46), (0, 2, "23.3"), (2, 1, "23.3")):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
    return timing_quotient(problem_of(builder.build(), custom(3, [([0], [1])]), routing_slack=slack))


@pytest.mark.parametrize(
    ("slack", "links"), [(Fraction(0), {0}), (Fraction(1, 100), {0}), (Fraction(1, 10), {0, 1, 2})]
)
def test_slack_keeps_near_ties(slack, links):
    """Routing slack keeps paths that are nearly as short as the shortest.

    46.6 us is 1.3 % above 46: a slack of 1 % keeps one path, a slack of 10 % both.
    """
    assert {hop.link for hop in near_tie(slack).hops} == links


def test_exact_ties_need_no_slack():
    """Both directions around a ring of 4 to the opposite rank are kept without slack."""
    quotient = timing_quotient(problem_of(ring(4), custom(4, [([0], [2])]), routing_slack=Fraction(0)))
    assert len(quotient.hops) == 4


def test_hops_have_tails():
    """In a broadcast on a ring of 5 the first hop has a tail (time needed after it) of one hop, 2 us."""
    topology = ring(5)
    quotient = timing_quotient(problem_of(topology, collectives.broadcast(5), routing_slack=Fraction(0)))
    tails = {(topology.links[m.link].src, topology.links[m.link].dst): m.tail_ticks for m in quotient.hops}
    assert (tails[0, 1], tails[1, 2]) == (2, 0)


def test_restricting_keeps_only_the_given_hops():
    """`restrict` keeps all states, and renumbers the given hops."""
    quotient = timing_quotient(problem_of(full(3), collectives.broadcast(3)))
    part = quotient.restrict([(0, 0)])
    assert [(m.chunk, m.link) for m in part.hops] == [(0, 0)]
    assert len(part.states) == len(quotient.states)
    assert sum(len(p.hops_in) for p in part.states) == 1


def test_derived_chunks_share_the_state_of_their_source():
    """Scan on 3 ranks: prefix 1 starts from the state of prefix 0 at rank 1; the last prefix is never sent."""
    quotient = timing_quotient(problem_of(ring(3), collectives.scan(3), routing_slack=Fraction(0)))
    sources = {hop.chunk: quotient.states[hop.srcs[0]] for hop in quotient.hops}
    assert (sources[1].chunk, sources[1].rank) == (0, 1)
    assert not sources[1].is_origin


@pytest.mark.parametrize("backend", ["greedy", "highs", "cpsat"])
def test_a_link_of_several_sources_continues_the_longest_path(backend):
    """Two chunks made at rank 1 pass two links over the fast link of ranks 1 and 2, if so many are allowed."""
    links = [(0, 1, 0, 1), (1, 2, 0, 1), (1, 3, 0, 9), ((1, 2), 3, 0, 1)]
    chunks = (Chunk((0,), ()), *[Chunk((), (2, 3))] * 2)
    derivations = (Derivation(0, 1, 1), Derivation(0, 1, 2))
    made = Collective("made", 4, chunks, True, derivations=derivations)
    for max_hops, least_us, most_us in ((1, 19, 19), (2, 4, 10)):
        problem = problem_of(linked("wide", [0] * 4, links), made, max_hops=max_hops)
        found = brief_synthesis(problem, backend=backend, sketch="none")
        assert least_us <= found.finish_us <= most_us


def test_a_sketch_link_is_no_hop():
    """Links that the sketch forbids give no hops."""
    quotient = timing_quotient(
        problem_of(full(3), collectives.allgather(3), links_allowed=frozenset({0, 1, 2, 4}))
    )
    assert {hop.link for hop in quotient.hops} == {0, 1, 2, 4}


def test_a_link_of_several_sources_shortens_no_path():
    """The fast link from ranks 0 and 2 to 1 waits for both, so it shortens no path: rank 2's chunk goes
    through 0."""
    topology = linked(
        "ring", [0, 0, 0], [*((rank, (rank + 1) % 3, 0, 5) for rank in range(3)), ((0, 2), 1, 0, 1)]
    )
    problem = problem_of(topology, collectives.gather(3, root=1), routing_slack=Fraction(1, 10))
    assert {(hop.chunk, hop.link) for hop in take_quotient(problem).hops} >= {(0, 0), (2, 2), (2, 0)}

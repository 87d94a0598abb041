"""Lower bounds: values derived by hand, published cases, and comparison with schedules, which never beat
them."""

import re
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl import collectives
from taccl._internal.deadline import OutOfTime
from taccl.analysis.certificates import bounds, cuts
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.finding.volume import Volume
from taccl.analysis.certificates.first_arrivals import latency
from taccl.analysis.verification.verify import verify
from taccl.problem.alltoallv import alltoallv_problem
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.schedule.combine import reduce_phase
from taccl.sketch.group import find_symmetries
from taccl.sketch.upstream import load_problem
from taccl.synthesis.synthesize import synthesize
from taccl.topology.builder import TopologyBuilder
from taccl.topology.fabrics import mesh
from tests.arguments import arguments_for
from tests.foreign import OURS
from tests.fuzzing import some
from tests.synthesis.brute_force import optimal_ticks
from tests.synthesis.small_problems import custom, full, linked, problem_of, random_problem, ring, two_nodes

MB = 10**6


def pair(*links, meaning="occupies"):
    """Parallel links from rank 0 to rank 1 with the given (alpha, beta)."""
    return linked("pair", [0, 0], ((0, 1, alpha, beta) for alpha, beta in links), alpha_meaning=meaning)


def test_nothing_to_send_takes_no_time():
    """The bound of a problem is 0 if every chunk starts where it must end."""
    bound = lower_bound(problem_of(pair((1, 1)), custom(2, [([0], [0])])))
    assert (bound.bound, bound.kind) == (0, "none")


@pytest.mark.slow
def test_latency_is_the_longest_shortest_path():
    """The latency bound is the longest of the shortest paths to destinations.

    On a ring of 5 with 2 us a hop, rank 2 is two hops from rank 0: 4 us.
    """
    bound = lower_bound(problem_of(ring(5), collectives.broadcast(5)))
    assert (bound.bound, bound.kind) == (4, "latency")


def test_latency_starts_at_the_nearest_origin():
    """The latency bound counts from the nearest origin of a chunk.

    Ranks 0 and 2 of a ring of 5 hold the chunk, so rank 4 gets it from its neighbour 0 in 2 us.
    """
    bound = lower_bound(problem_of(ring(5), custom(5, [([0, 2], [4])])))
    assert bound.bound == 2


def test_a_latency_of_0_does_not_say_that_all_data_are_there():
    """Divisible data over links without latency have no latency; only data that need no send are there."""
    for ends, limits in (
        ([1], "no cause that was found"),
        ([0], "nothing: every rank holds its data at the start"),
    ):
        claim = latency(NeededSends(problem_of(full(2), custom(2, [([0], ends)]))), divisible=True)
        assert (claim.ticks, claim.limits) == (0, limits)


def test_a_sum_waits_for_its_farthest_contribution():
    """A reduce to rank 0 needs rank 2's contribution, two hops of 2 us away."""
    assert lower_bound(problem_of(ring(5), collectives.reduce(5))).bound == 4


def test_counting_passes_whole_chunks():
    """Cut counting counts whole chunks per link.

    Links of 3 and 5 us pass floor(9 / 3) + floor(9 / 5) = 4 chunks in 9 us. In 8 us they pass only 2 + 1.
    Divisible data would take 4 / (1/3 + 1/5) = 7.5 us.
    """
    bound = lower_bound(problem_of(pair((0, 3), (0, 5)), collectives.broadcast(2, chunks_per_rank=4)))
    assert (bound.bound, bound.kind) == (9, "cut counting")


def test_chunks_of_unequal_size_count_by_size():
    """Chunks of unequal size count by their bytes: 1, 2 and 3 MB over one link of 1 us/MB take 6 us."""
    problem = problem_of(pair((0, 1)), custom(2, [([0], [1])] * 3), chunk_bytes=[MB, 2 * MB, 3 * MB])
    assert lower_bound(problem).bound == 6


def test_a_pipelined_link_holds_for_beta_alone():
    """A pipelined link is held for beta alone: three chunks start at 0, 1 and 2, and the last takes 2 + 1 us."""
    problem = problem_of(pair((2, 1), meaning="pipelined"), custom(2, [([0], [1])] * 3))
    assert lower_bound(problem).bound == 5


def test_merging_pays_alpha_once_a_batch():
    """Merged chunks pay alpha once for each send.

    Six chunks in two sends of three take 2 * (2 + 3) us; unmerged they take 18.
    """
    problem = problem_of(pair((2, 1)), custom(2, [([0], [1])] * 6), merging=frozenset({0}), max_merge=3)
    assert lower_bound(problem).bound == 10
    assert lower_bound(problem.with_clauses(max_merge=1)).bound == 18


def test_one_machine_weighs_batches_releases_and_tails():
    """The single-machine bound takes batches, releases and tails into account together: 32 us.

    A link may merge two chunks. One chunk is released there at 0, two more at 4. A batch of n chunks takes 10
    + n us; the next link then takes 5 us for each chunk, one at a time. If the first chunk is sent alone and
    then the other two, the batches end at 11 and 23. The last chunk then arrives at 33. If two chunks are
    sent first and then the third, the batches end at 16 and 27, and the last chunk arrives at 32. Three
    batches of one chunk alone take 33 us.
    """
    builder = TopologyBuilder("machine", [0, 0, 1, 1])
    builder.add_link(0, 1, alpha_us=0, beta_us_per_mb=4)
    builder.add_link(1, 2, alpha_us=10, beta_us_per_mb=1)
    builder.add_link(2, 3, alpha_us=0, beta_us_per_mb=5)
    collective = custom(4, [([1], [3]), ([0], [3]), ([0], [3])])
    problem = problem_of(builder.build(), collective, merging=frozenset({1}), max_merge=2)
    bound = lower_bound(problem)
    assert (bound.bound, bound.kind) == (32, "single machine")


def test_a_shared_nic_serialises_two_links():
    """Two sends over one NIC are serialised: each takes 3 us and holds it for 2, so the second ends at 5."""
    problem = problem_of(two_nodes(), custom(4, [([0], [2]), ([1], [3])]), links_allowed=frozenset({4, 5}))
    assert lower_bound(problem).bound == 5


def test_a_receiving_hold_serialises_too():
    """Two sends into one ingress are serialised, as each holds the ingress at its end.

    Each takes 4 us and holds the ingress for its last 3 us, so they end at 4 and 7.
    """
    builder = TopologyBuilder("ingress", [0, 0, 1, 1])
    nic = builder.add_resource("ingress")
    for src, dst in ((0, 2), (1, 3)):
        link = builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=3)
        builder.add_hold(link, nic, alpha_us=0, beta_us_per_mb=3, side="receive")
    assert lower_bound(problem_of(builder.build(), custom(4, [([0], [2]), ([1], [3])]))).bound == 7


def test_an_allreduce_needs_twice_n_minus_one_sends():
    """Each sum of an allreduce needs 2 (n - 1) sends.

    On a one-way ring of four, 4 chunks need 24 sends, which take 6 us over 4 links of 1 us. Only 4 chunks
    must enter each rank, and the longest path has 3 hops.
    """
    builder = TopologyBuilder("one-way ring", [0] * 4)
    for rank in range(4):
        builder.add_link(rank, (rank + 1) % 4, alpha_us=0, beta_us_per_mb=1)
    bound = lower_bound(problem_of(builder.build(), collectives.allreduce(4)))
    assert bound.bound == 6


def test_an_allreduce_may_beat_its_two_halves():
    """Two ranks that exchange one chunk both have the sum after one send, so the bound must not count two
    sends."""
    problem = problem_of(full(2), custom(2, [([0, 1], [0, 1])], combining=True))
    assert lower_bound(problem).bound == optimal_ticks(problem) == 1


def test_a_sketch_raises_the_bound():
    """A sketch that forbids a link raises the bound.

    Without link 0 -> 1 of a ring of 3 the chunk takes two hops, 4 us instead of 2.
    """
    topology = ring(3)
    problem = problem_of(topology, custom(3, [([0], [1])]))
    allowed = frozenset(e for e, link in enumerate(topology.links) if (link.src, link.dst) != (0, 1))
    assert lower_bound(problem).bound == 2
    assert lower_bound(problem.with_clauses(links_allowed=allowed)).bound == 4


def test_a_hold_that_some_link_escapes_limits_nothing():
    """Two links share a resource, which one holds for its alpha only and the other for its beta only: the
    bound is at most the optimum.

    The least alpha and the least beta of a hold are both 0, so the resource limits nothing.
    """
    builder = TopologyBuilder("mixed", [0, 0])
    shared = builder.add_resource("shared")
    for alpha, beta, hold in ((1, 1, (1, 0)), (0, 1, (0, 1))):
        link = builder.add_link(0, 1, alpha_us=alpha, beta_us_per_mb=beta)
        builder.add_hold(link, shared, alpha_us=hold[0], beta_us_per_mb=hold[1])
    problem = problem_of(builder.build(), custom(2, [([0], [1])] * 2))
    assert 0 < lower_bound(problem).bound <= optimal_ticks(problem)


def test_the_bound_is_exact():
    """Fractions stay exact: alpha of 1/3 us and 1 us for the chunk give 4/3 us."""
    topology = linked("third", [0, 0], [(0, 1)], alpha_us=Fraction(1, 3), beta_us_per_mb=1)
    assert lower_bound(problem_of(topology, custom(2, [([0], [1])]))).bound == Fraction(4, 3)


@pytest.mark.parametrize(
    ("sketch", "topology", "collective", "expected"),
    [
        ("hub-n1", "hub-64KB", "allgather", "5"),  # one send
        # The chunks of ranks 0 and 1 cross to the other node in two sends: 2 * (7.5 + 12).
        # The second chunk then takes 5 to the other rank of that node.
        ("hub-n2", "hub-64KB", "allgather", "44"),
        ("hub-n2", "hub-64KB", "alltoall", "63"),  # four chunks over one link in two sends: 2 * (7.5 + 24)
        ("hub-rails-n2", "hub-64KB", "allgather", "36.5"),  # from 0 to 3: 5 and 7.5 + 24
        ("hub-rails-n2", "hub-64KB", "alltoall", "55.5"),  # two chunks in one send over each link: 7.5 + 48
        (
            "hub-n3",
            "hub-64KB",
            "allgather",
            "204.5",
        ),  # four chunks through each port into a node: 7.5 + 4 * 48; then 5 to the other rank
        ("hub-n3", "hub-64KB", "alltoall", "399"),  # eight, of which six go together: 2 * 7.5 + 8 * 48
        ("three-n1", "three-by-hand", "allgather", "14"),  # four chunks into rank 1 over two links of 7
        # Links of 12, 12, 22 and 22 us bring rank 0 3 + 3 + 1 + 1 chunks by 36 us, fewer than 7 before.
        ("ndv2-n1", "ndv2-2MB", "allgather", "36"),
        ("ndv2-n2", "ndv2-2MB", "alltoall", "3939.75"),  # 64 over one link, six together: 11 * 3.25 + 64 * 61
        ("dgx2-n1", "dgx2-4KB", "allgather", "90"),  # fifteen chunks of 6 into every rank
    ],
)
def test_cases_by_hand(sketch, topology, collective, expected):
    """The bounds of our files in the published tool's format equal values derived by hand."""
    folder = OURS / "upstream-taccl"
    problem = load_problem(
        folder / "sketch" / f"{sketch}.json", folder / "topo" / f"{topology}.json", collective=collective
    )
    assert lower_bound(problem).bound == Fraction(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sketch", "topology", "collective", "expected"),
    [
        ("sk1-ndv2-n1", "topo-ndv2-1MB", "allgather", "69"),
        ("sk1-ndv2-n2", "topo-ndv2-1MB", "allgather", "916.8"),
        ("sk1-ndv2-n4", "topo-ndv2-1MB", "allgather", "2607.2"),
        ("sk1-dgx2-n1", "topo-dgx2-1MB", "allgather", "120"),
        ("sk1-dgx2-n2", "topo-dgx2-1MB", "allgather", "496"),
        ("sk2-dgx2-n2", "topo-dgx2-1KB", "allgather", "930"),
        ("sk1-ndv2-n2", "topo-ndv2-1MB", "alltoall", "6748.6"),
        ("sk2-dgx2-n2", "topo-dgx2-1KB", "alltoall", "1193"),
    ],
)
def test_published_cases(shared_data, sketch, topology, collective, expected):
    """The bounds of the published tool's cases equal stored values, in the files' own unit of time."""
    folder = shared_data / "upstream-taccl"
    problem = load_problem(
        folder / "sketch" / f"{sketch}.json", folder / "topo" / f"{topology}.json", collective=collective
    )
    assert lower_bound(problem).bound == Fraction(expected)


@pytest.mark.slow
@pytest.mark.parametrize("combining", [False, True], ids=["copies", "sums"])
def test_no_schedule_beats_the_bound(combining):
    """On random tiny problems the bound is at most what exhaustive search finds, and often equal."""
    solved = tight = 0
    for seed in range(some(12, 75 if combining else 100)):
        problem = random_problem(seed, combining=combining)
        best = optimal_ticks(problem, max_states=1500)
        if best is None:
            continue
        bound = lower_bound(problem).bound * problem.costs.ticks_per_us
        assert bound <= best, f"seed {seed}"
        solved += 1
        tight += bound == best
    assert solved > some(3, 25)
    assert tight > 0.7 * solved


@pytest.mark.slow
@settings(deadline=None, max_examples=some(6, 60), derandomize=True)
@given(
    name=st.sampled_from([*collectives.COLLECTIVES]),
    num_ranks=st.integers(2, 5),
    costs=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=3, max_size=12),
    extra=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=6),
    two=st.booleans(),
    pipelined=st.booleans(),
)
def test_greedy_never_beats_the_bound(name, num_ranks, costs, extra, two, pipelined):
    """List schedules on random strongly connected topologies are valid and finish no earlier than the
    bound."""
    nodes = [int(two and 2 * rank >= num_ranks) for rank in range(num_ranks)]
    builder = TopologyBuilder("random", nodes, alpha_meaning="pipelined" if pipelined else "occupies")
    pairs = [(r, (r + 1) % num_ranks) for r in range(num_ranks)]
    pairs += [(a, b) for a, b in extra if a != b and max(a, b) < num_ranks]
    for i, (src, dst) in enumerate(pairs):
        alpha, beta = costs[i % len(costs)]
        builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
    topology = builder.build()
    clauses = Clauses(max_merge=3, merging=frozenset(topology.internode_links))
    arguments = arguments_for(name, num_ranks)
    problem = make_problem(topology, name, chunk_bytes=MB, clauses=clauses, **arguments)
    schedule = synthesize(problem, backend="greedy", time_limit_s=0.01).schedule
    assert verify(schedule).ok
    assert lower_bound(problem).bound <= schedule.finish


@pytest.mark.slow
def test_a_cut_bounds_without_any_time():
    """With a budget of 0 s a cut still gives a bound.

    The corner of a mesh receives 100 sums over two links of 20.5 us, which takes 50 rounds.
    """
    topology = mesh(10, 10)
    problem = make_problem(topology, collectives.allreduce(100), chunk_bytes=MB)
    bound = lower_bound(problem, budget_s=0.0)
    assert bound.bound >= 50 * Fraction("20.5")
    assert bound.check()


def test_a_budget_bounds_the_search_on_small_problems_too(monkeypatch):
    """Finders of bounds on small problems end 1.5 s after the start, or with `limit_s`; `end_s` ends all.

    The finder here notes how much time it has, and finds nothing.
    """
    problem = make_problem(mesh(4, 4), "allreduce", size_bytes=MB)
    left_s = []

    def noting(demand, *, in_network):
        left_s.append(demand.deadline.left_s)
        return iter(())

    monkeypatch.setattr(bounds, "ALL_CHUNKINGS", [noting] * 4)
    monkeypatch.setattr(bounds, "busy_factor", lambda: 1.0)
    for limits, most_s in (
        ({"budget_s": 0.0}, 1.5),
        ({"budget_s": 0.0, "limit_s": 9.0}, 9),
        ({"budget_s": 60.0}, 60),
        ({"budget_s": 60.0, "end_s": 30.0}, 30),
    ):
        left_s.clear()
        lower_bound(problem, **limits)
        assert most_s / 2 < max(left_s) < most_s


def test_the_bound_so_far_is_returned_at_the_end(monkeypatch):
    """If the search for the bound after the latency bound never ends, the latency bound is returned at the
    time limit."""
    find = bounds.claims_of

    def endless(*args, **how):
        yield next(find(*args, **how))
        while True:
            pass

    monkeypatch.setattr(bounds, "claims_of", endless)
    problem = make_problem(mesh(3, 3), collectives.allgather(9), chunk_bytes=MB)
    assert lower_bound(problem, end_s=0.05).kind == "latency"


def test_a_time_limit_before_the_first_bound_is_an_error():
    """If the time limit ends before the latency bound is found, `OutOfTime` is raised."""
    problem = make_problem(mesh(3, 3), collectives.allgather(9), chunk_bytes=MB)
    with pytest.raises(OutOfTime):
        lower_bound(problem, end_s=0.0)


def test_one_cut_bounds_if_no_linear_program_is_solved(monkeypatch):
    """If no linear program is solved, the bound comes from the prices of one cut.

    The cut is around a corner of the mesh, which 100 sums enter over two links: 50 rounds.
    """
    monkeypatch.setattr(cuts._Program, "solve", lambda *_: None)
    problem = make_problem(mesh(10, 10), collectives.allreduce(100), chunk_bytes=MB)
    volume = Volume(problem, divisible=False)
    symmetries = find_symmetries(problem)
    found = cuts.throughput(volume, symmetries, in_network=False, budget_s=1.0)
    assert found[0] / problem.costs.ticks_per_us == 50 * Fraction("20.5")


def test_a_bound_that_a_finish_meets_is_enough(monkeypatch):
    """If a bound meets the given finish, no linear program is solved.

    15 chunks enter a corner of a 4x4 mesh over two links in 8 rounds, which is the finish.
    """
    monkeypatch.setattr(cuts._Program, "solve", lambda *_: pytest.fail("a program was solved"))
    problem = make_problem(mesh(4, 4), collectives.allgather(16), chunk_bytes=MB)
    bound = lower_bound(problem, finish=8 * Fraction("20.5"))
    assert (bound.bound, bound.kind) == (164, "cut counting")


def test_the_bound_is_the_largest_claim():
    """On a ring of 5 with given chunks, the bound is the largest claim of all bound families."""
    problem = problem_of(ring(5), collectives.allgather(5))
    ticks = max(claim.ticks for claim in bounds.claims_of(problem))
    assert lower_bound(problem).bound == Fraction(ticks) / problem.costs.ticks_per_us


@pytest.mark.slow
def test_late_contributions_cross_nodes_by_way_of_the_root():
    """A contribution released at 10 us reaches rank 3 by way of the sum's root, at 12 us.

    Each rank is a node. Without the earlier contribution, the sum would start at rank 1, and the clause on
    crossings would forbid the link from rank 2 to rank 3.
    """
    topology = linked("nodes", [0, 1, 2, 3], [(0, 2, 0, 1), (1, 2, 0, 1), (2, 3, 0, 1), (1, 3, 0, 7)])
    sums = custom(4, [([0, 1], [2, 3])], combining=True)
    problem = replace(problem_of(topology, sums, direct_crossing=True), release_us=((0, 1, Fraction(10)),))
    bound = lower_bound(problem)
    assert bound.bound == 12 and bound.check()


def test_a_finish_ends_the_search_after_each_release_date(monkeypatch):
    """Release dates are tried in order, until the bound meets the given finish of 174 us.

    The work after the release date 10 us takes at least 164 us, 174 us in total. So the later date of 11 us
    is not tried.
    """
    problem = make_problem(mesh(4, 4), collectives.allgather(16), chunk_bytes=MB)
    dates = tuple((chunk, chunk, Fraction(10)) for chunk in range(15))
    late = replace(problem, release_us=(*dates, (15, 15, Fraction(11))))
    asked, claims = [], bounds.claims_of

    def recorded(*args, finish, **options):
        asked.append(finish)
        return claims(*args, finish=finish, **options)

    monkeypatch.setattr(bounds, "claims_of", recorded)
    assert lower_bound(late, finish=10 + 8 * Fraction("20.5")).bound == 174
    assert asked == [174, 164]


@pytest.mark.slow
def test_bandwidth_counts_however_short_the_time():
    """If no time is left, the bound is still the volume of data over the rates of resources, and not only
    latency.

    The 56 pairs of ranks on a ring of 8 send different amounts of data, up to 64 MB.
    """
    sizes = np.random.default_rng(0).permutation(np.arange(1, 65)).reshape(8, 8) * MB
    problem = alltoallv_problem(ring(8), sizes)
    hurried = lower_bound(problem, budget_s=0.0, limit_s=0.0)
    assert hurried.bound >= lower_bound(problem, divisible=True).bound
    assert hurried.check()


def test_the_latency_of_the_largest_chunk_is_computed_first():
    """Past the time limit the bound is still the latency of the largest chunk.

    One pair of ranks has a chunk of 64 MB; the chunks of the other pairs are far smaller.
    """
    sizes = np.arange(1, 65).reshape(8, 8)
    sizes[7, 3] = 64 * MB
    problem = alltoallv_problem(ring(8), sizes, chunk_bytes=64 * MB)
    hurried = lower_bound(problem, budget_s=0.0, limit_s=0.0)
    assert (hurried.kind, hurried.limits) == ("latency", "the shortest path of chunk 52 to rank 3")


def test_latencies_of_small_chunks_are_not_computed_if_no_path_is_longer():
    """Between ranks that are all linked, the largest chunk has the longest path, so no other size counts."""
    sizes = np.random.default_rng(0).permutation(np.arange(1, 65)).reshape(8, 8) * MB
    np.fill_diagonal(sizes, 0)
    problem = alltoallv_problem(full(8), sizes, chunk_bytes=64 * MB)
    demand, units = NeededSends(problem), problem.costs.chunk_units
    assert latency(demand, divisible=False).ticks == max(problem.costs.duration(0, u) for u in units.tolist())
    assert len(demand.distances._times) == 1


@pytest.mark.slow
def test_cuts_around_ranks_are_evaluated_for_many_ranks():
    """With 1,600 ranks, the bytes into a rank bound an allgather over all chunkings also without a budget.

    Two links of 20 us/MB enter a corner of the mesh, so 1,599 MB take 15,990 us.
    """
    problem = make_problem(mesh(40, 40), collectives.allgather(1600), chunk_bytes=MB)
    bound = lower_bound(problem, divisible=True, budget_s=0)
    assert bound.bound_us >= 15_990 and bound.check()


@pytest.mark.parametrize(
    ("name", "divisible", "limits"),
    [
        # Each broadcast or allgather on the reversed ring is the sum reversed in time.
        ("broadcast", False, "the shortest path of chunk 0 to rank 1"),
        ("reduce", False, "the shortest path of chunk 0 from rank 1"),
        ("broadcast", True, "data from rank 0 to rank 1, stored and forwarded send by send"),
        ("reduce", True, "data from rank 1 to rank 0, stored and forwarded send by send"),
    ],
)
def test_bottlenecks_of_sums_are_in_the_direction_of_their_data(name, divisible, limits):
    """On a one-way ring data for a sum at rank 0 takes longest from rank 1, although the bound is of copies.

    A broadcast on the reversed ring takes longest to rank 1.
    """
    topology = linked("cycle", [0] * 4, [(r, (r + 1) % 4) for r in range(4)], alpha_us=1, beta_us_per_mb=1)
    topology = topology if name == "reduce" else topology.reversed()
    problem = make_problem(topology, getattr(collectives, name)(4), chunk_bytes=MB)
    assert lower_bound(problem, divisible=divisible).limits == limits


@pytest.mark.parametrize("divisible", [False, True])
@pytest.mark.parametrize("name", ["reduce", "reduce_scatter"])
def test_claims_on_sums_name_the_opposite_directions_of_those_on_copies(name, divisible):
    """Each claim on a sum has the text of the claim on its copies in reversed time, with directions swapped."""
    problem = problem_of(two_nodes(), getattr(collectives, name)(4))
    sums, copies = (
        [(claim.kind, claim.limits) for claim in bounds.claims_of(each, divisible=divisible)]
        for each in (problem, reduce_phase(problem))
    )
    words = {
        "into": "out of",
        "enter": "leave",
        "entering": "leaving",
        "get to": "come from",
        "data from": "data for",
    }
    words = {**words, **{value: key for key, value in words.items()}}
    swap = partial(re.sub, rf"\b({'|'.join(words)})\b", lambda found: words[found[1]])
    assert len(sums) == len(copies) > 10
    for (kind, total), (same_kind, copy) in zip(sums, copies, strict=True):
        assert kind == same_kind
        if kind in ("latency", "mean flow time", "dissemination", "spread tail"):
            assert total != copy
        else:
            assert total == swap(copy)

"""Certificates of random problems: no schedule beats them, and their witnesses prove exactly their bounds.

The default run takes some hundreds of problems; with TACCL_MANY=1 in the environment it takes thousands.
"""

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl import baselines, collectives, topologies
from taccl._internal.deadline import OutOfTime
from taccl.analysis.certificates import bounds, cuts, first_arrivals, flows, scopes
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.certificate import kinds_of_bounds
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.scopes import prices
from taccl.analysis.simulation.simulate import simulate
from taccl.analysis.verification.verify import verify
from taccl.errors import CollectiveError, InputError, TopologyError
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.schedule.schedule import make_schedule
from taccl.sketch.library import load_sketch
from taccl.synthesis.synthesize import synthesize
from taccl.topology.builder import TopologyBuilder
from tests.analysis.tampering import made_up
from tests.arguments import arguments_for
from tests.effort import AMPLE_S
from tests.fuzzing import cases, fuzzed, some
from tests.synthesis.brute_force import optimal_ticks
from tests.synthesis.small_problems import (
    custom,
    full,
    linked,
    problem_of,
    random_group_problem,
    random_problem,
    ring,
)

MB = 10**6

#: Options of a bound besides the defaults.
#: Names in capitals are limits of modules, above which a family of bounds is skipped.
OPTIONS = (
    {"divisible": True},
    {"in_network": True},
    {"in_network": False},
    {"budget_s": 0.0},
    {"_MAX_TIMED": 0},
    {"_MAX_TIMED": 0, "divisible": True},
    {"_MOST_RANKS_TIMED": 0},
)

seeds = st.integers(0, 2**32 - 1)


def every_claim(problem, **way):
    """All claims of every bound family, not only the best."""
    claims = []
    found = bounds.claims_of

    def recorded(*args, **options):
        for claim in found(*args, **options):
            claims.append(claim)
            yield claim

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "claims_of", recorded)
        for name in [name for name in way if name.isupper()]:
            patch.setattr(first_arrivals if hasattr(first_arrivals, name) else bounds, name, way.pop(name))
        best = lower_bound(problem, **way)
    return [
        replace(best, bound=Fraction(each.ticks) / problem.costs.ticks_per_us, kind=each.kind,
                limits=each.limits, witness=each.witness)
        for each in claims
    ]  # fmt: skip


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_latency_bound_without_time_sees_paths_between_nodes(nodes):
    """Without time for all chunks, the few that are examined have different ends: some cross nodes.

    So the bound is that of all chunks. No list of all chunks is made.
    """
    problem = make_problem(topologies.dgx_h100(nodes), "alltoall", size_bytes="1MB")
    every = next(bounds.claims_of(problem, budget_s=60.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NeededSends, "_kinds", property(lambda _: pytest.fail("all chunks are listed")))
        assert bounds.latency_bound(problem).bound * problem.costs.ticks_per_us == every.ticks


@pytest.mark.parametrize("name", ["allreduce", "reduce-scatter"])
def test_a_latency_bound_of_sums_without_time_is_that_at_a_few_destinations(name):
    """Contributions from the other node are the last at any rank, so a few ranks prove the bound of all."""
    problem = make_problem(topologies.dgx_h100(2), name, size_bytes="1MB")
    every = next(bounds.claims_of(problem, budget_s=60.0))
    bound = bounds.latency_bound(problem)
    assert bound.bound * problem.costs.ticks_per_us == every.ticks
    assert bound.check()


@pytest.mark.parametrize("way", OPTIONS, ids=str)
def test_a_sketch_may_leave_no_links_where_nothing_moves(way):
    """If nothing has to move, the bound is 0, even if no link is allowed, and under all options."""
    nothing = custom(2, [((0,), (0,))])
    claims = every_claim(problem_of(full(2), nothing, links_allowed=frozenset()), **way)
    assert max((each.bound for each in claims), default=0) == 0


@pytest.mark.fuzz
def test_no_claim_of_any_family_is_above_the_optimum():
    """Every claim on random problems is proven by its witness and at most the optimum; no witness proves one
    tick above it.

    The problems have process groups, relays, scans, sums, chunks of several sizes, and clauses.
    """
    compared = 0
    for seed in cases("claims of bounds against the optimum", few=10, many=800):
        problem = random_group_problem(seed)
        way = OPTIONS[seed % len(OPTIONS)]
        claims, others = every_claim(problem), every_claim(problem, **way)
        if way.get("divisible") or way.get("in_network"):  # granting more only lowers a bound
            assert max(each.bound for each in others) <= max(each.bound for each in claims), seed
        claims += others
        ticks = [each.bound * problem.costs.ticks_per_us for each in claims]
        assert all(each.check() for each in claims), seed
        highest = -int(-max(ticks) // 1)
        optimum = optimal_ticks(problem, least=highest - 1, max_states=600)
        if optimum is None:
            continue
        assert optimum >= highest, seed
        compared += 1
        above = Fraction(optimum + 1, problem.costs.ticks_per_us)
        assert not any(replace(each, bound=above).check() for each in claims), seed
        rng = random.Random(seed)
        made = [replace(claims[-1], bound=above, witness=made_up(problem, rng)) for _ in range(4)]
        assert not any(each.check() for each in made), seed
    assert compared > some(5, 40)


def test_sums_that_need_no_send_bring_no_links():
    """Two of four sums need no send: links that may carry only these add no capacity for the others."""
    assert all(each.check() for each in every_claim(random_group_problem(315)))


def links(*ends, buses=()):
    """A topology from links (source, destination, us for 1 MB) and buses (name, links that hold the bus)."""
    builder = TopologyBuilder("links", [0] * (1 + max(max(src, dst) for src, dst, _ in ends)))
    for src, dst, beta in ends:
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
    for name, held in buses:
        bus = builder.add_resource(name)
        for link in held:
            builder.add_hold(link, bus, alpha_us=0, beta_us_per_mb=ends[link][2], side="receive")
    return builder.build()


def sent(problem, *sends):
    """The finish of a valid schedule of (chunk, link, start in us)."""
    ends = [start + int(problem.topology.links[link].beta_us_per_mb) for _, link, start in sends]
    chunk, link, start = zip(*sends, strict=True)
    schedule = make_schedule(problem, chunk=chunk, link=link, start=start, end=ends)
    assert verify(schedule).ok
    return schedule.finish


def test_chunks_that_differ_in_who_may_hold_them():
    """Chunks of two groups differ in the ranks that may relay them.

    Both groups send from 0 to 1. Only the group of three ranks may route through rank 2, in 2 us instead of
    10.
    """
    pair = collectives.custom(2, precondition={0: [0]}, postcondition={0: [1]}).among((0, 1), num_ranks=3)
    three = collectives.custom(3, precondition={0: [0]}, postcondition={0: [1]}).among((0, 1, 2), num_ranks=3)
    problem = problem_of(
        links((0, 1, 10), (0, 2, 1), (2, 1, 1)), collectives.together([pair, three]), relays=frozenset()
    )
    assert sent(problem, (0, 0, 0), (1, 1, 0), (1, 2, 1)) == 10
    assert all(each.bound <= 10 for each in every_claim(problem))
    assert lower_bound(problem).bound == 10


def test_chunks_that_are_made_of_others_at_different_ranks():
    """Bounds on two scans that derive their chunks at different ranks are at most the optimum, 2 us.

    One scan passes ranks 0, 1 and 2 in this order, the other 0, 2 and 1. Each needs two sends in sequence,
    one of which uses the bus into rank 2.
    """
    topology = links(
        (0, 1, 1), (0, 2, 1), (1, 2, 1), (2, 1, 1), (1, 0, 1), (2, 0, 1), buses=[("into 2", (1, 2))]
    )
    scans = [collectives.scan(3).among(ranks, num_ranks=3) for ranks in ((0, 1, 2), (0, 2, 1))]
    problem = problem_of(topology, collectives.together(scans))
    assert sent(problem, (0, 0, 0), (3, 1, 0), (1, 2, 1), (4, 3, 1)) == 2
    assert all(each.bound <= 2 for each in every_claim(problem))
    assert lower_bound(problem).bound == 2


def test_symmetries_respect_relays():
    """A symmetry of the links is no symmetry of the problem if it maps the only relay to another rank.

    In a ring of four with diagonals of 10 us only rank 3 relays. The chunk from 2 to 0 can avoid its diagonal
    through rank 3, the chunk from 0 to 2 cannot.
    """
    topology = links(
        (0, 1, 1), (1, 2, 1), (2, 3, 1), (3, 0, 1), (0, 2, 10), (2, 0, 10), buses=[("diagonals", (4, 5))]
    )
    problem = problem_of(topology, custom(4, [([0], [2]), ([2], [0])]), relays=frozenset({3}))
    assert sent(problem, (0, 4, 0), (1, 2, 0), (1, 3, 1)) == 10
    assert all(each.bound <= 10 and each.check() for each in every_claim(problem))
    assert lower_bound(problem).bound == 10


def test_sums_of_two_sizes_are_counted_with_alpha():
    """Sums of two sizes are counted with the alpha of each of their sends.

    Three ranks share a sum of 2 MB and one of 1 MB over one bus: at least 8 sends of 101 us each.
    """
    builder = TopologyBuilder("bus", [0] * 3)
    bus = builder.add_resource("bus")
    for rank in range(3):
        link = builder.add_link(rank, (rank + 1) % 3, alpha_us=100, beta_us_per_mb=1)
        builder.add_hold(link, bus, alpha_us=100, beta_us_per_mb=1)
    shared = Chunk((0, 1, 2), (0, 1, 2), 0)
    problem = problem_of(
        builder.build(), Collective("sums", 3, (shared, shared), True), chunk_bytes=(2 * MB, MB)
    )
    bound = lower_bound(problem)
    assert (bound.bound, bound.kind) == (808, "cut counting")
    assert bound.check()


@st.composite
def fabrics(draw, max_ranks=6):
    """A random strongly connected topology: a ring, more links, nodes, and resources that links share."""
    num_ranks = draw(st.integers(2, max_ranks))
    num_nodes = draw(st.integers(1, min(3, num_ranks)))
    nodes = [r * num_nodes // num_ranks for r in range(num_ranks)]
    meaning = draw(st.sampled_from(("occupies", "pipelined")))
    builder = TopologyBuilder("random", nodes, alpha_meaning=meaning)
    pairs = [(r, (r + 1) % num_ranks) for r in range(num_ranks)]
    ends = st.tuples(st.integers(0, num_ranks - 1), st.integers(0, num_ranks - 1))
    pairs += [pair for pair in draw(st.lists(ends, max_size=8)) if pair[0] != pair[1]]
    shared = [builder.add_resource(f"shared {i}") for i in range(draw(st.integers(0, 2)))]
    sides = [draw(st.sampled_from(("send", "receive"))) for _ in shared]
    for src, dst in pairs:
        alpha, beta = draw(st.integers(0, 3)), draw(st.integers(1, 5))
        link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
        for resource, side in zip(shared, sides, strict=True):
            held = draw(st.integers(0, beta))
            if held:
                builder.add_hold(link, resource, alpha_us=0, beta_us_per_mb=held, side=side)
    return builder.build()


@fuzzed(few=8, many=600)
@given(seed=seeds, combining=st.booleans())
def test_no_schedule_of_the_list_scheduler_beats_the_bound(seed, combining):
    """On random problems the bound is at most the list scheduler's finish, and the gap compares the two."""
    problem = random_problem(seed, combining=combining)
    schedule = synthesize(problem, backend="greedy", time_limit_s=0.01).schedule
    bound = lower_bound(problem)
    assert bound.bound <= schedule.finish
    assert bound.gap(schedule.finish) >= 0
    assert simulate(schedule).finish == schedule.finish


@fuzzed(few=8, many=2500)
@given(seed=seeds, combining=st.booleans(), divisible=st.booleans(), in_network=st.booleans())
def test_every_witness_proves_its_bound(seed, combining, divisible, in_network):
    """Witnesses prove their bounds for whole chunks and divisible data, with and without in-network
    reduction."""
    problem = random_problem(seed, combining=combining)
    bound = lower_bound(problem, divisible=divisible, in_network=in_network)
    assert bound.kind in {"none", *kinds_of_bounds()}
    assert bound.check()


@fuzzed(few=4, many=400)
@given(
    topology=fabrics(),
    name=st.sampled_from([*collectives.COLLECTIVES]),
    chunks=st.integers(1, 2),
    max_merge=st.integers(1, 3),
)
def test_named_collectives_have_valid_certificates(topology, name, chunks, max_merge):
    """Named collectives on random topologies: the certificate checks, and is at most the list scheduler's
    finish."""
    arguments = arguments_for(name, topology.num_ranks)
    collective = collectives.make(name, topology.num_ranks, chunks_per_rank=chunks, **arguments)
    clauses = Clauses(max_merge=max_merge, merging=frozenset(topology.internode_links))
    problem = make_problem(topology, collective, chunk_bytes=MB, clauses=clauses)
    bound = lower_bound(problem)
    assert bound.check()
    assert bound.bound <= synthesize(problem, backend="greedy", time_limit_s=0.01).schedule.finish


@fuzzed(few=8, many=300)
@given(topology=fabrics(), name=st.sampled_from([*collectives.COLLECTIVES]))
def test_no_baseline_beats_the_bound(topology, name):
    """No baseline that supports the collective on the topology finishes before the bound."""
    problem = make_problem(topology, name, chunk_bytes=MB, **arguments_for(name, topology.num_ranks))
    bound = lower_bound(problem)
    for function in baselines.BASELINES.values():
        try:
            schedule = function(problem, cut=False)
        except CollectiveError:
            continue
        assert bound.bound <= schedule.finish


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "name"),
    [(topologies.dgx1, each) for each in ("allgather", "alltoall", "reduce-scatter", "allreduce")]
    + [(topologies.dgx2, "alltoall")],
)
def test_no_baseline_beats_the_bound_on_a_machine(machine, name):
    """No baseline finishes before the bound on two nodes of real servers."""
    topology = machine(2)
    problem = make_problem(topology, name, chunk_bytes=MB, **arguments_for(name, topology.num_ranks))
    bound = lower_bound(problem)
    assert bound.check()
    assert bound.bound <= baselines.best(problem, cut=False).finish


@fuzzed(few=8, many=700)
@given(seed=seeds, combining=st.booleans())
def test_divisible_data_is_no_slower(seed, combining):
    """The bound over all chunkings is at most the finish of any schedule of whole chunks."""
    problem = random_problem(seed, combining=combining)
    found = synthesize(problem, backend="greedy", time_limit_s=0.01).schedule
    assert lower_bound(problem, divisible=True).bound <= found.finish


@fuzzed(few=8, many=700)
@given(seed=seeds)
def test_switches_that_reduce_are_no_slower(seed):
    """Allowing in-network reduction never raises a bound."""
    problem = random_problem(seed, combining=True)
    assert lower_bound(problem, in_network=True).bound <= lower_bound(problem, in_network=False).bound


@fuzzed(few=8, many=700)
@given(seed=seeds, combining=st.booleans())
def test_a_bound_in_no_time_still_holds(seed, combining):
    """With a budget of 0 s a valid bound is returned, no larger than the bound with a budget."""
    problem = random_problem(seed, combining=combining)
    hurried = lower_bound(problem, budget_s=0)
    assert hurried.check()
    assert hurried.bound <= lower_bound(problem).bound


@pytest.mark.slow
def test_what_is_quick_is_never_left_out(monkeypatch):
    """With a budget of 0 s a small problem gets all bounds except those from linear programs.

    The highest bound is that of a single machine: merged sends over one InfiniBand link.
    """
    monkeypatch.setattr(bounds, "_SMALL_S", AMPLE_S)  # enough on a busy machine, too
    sketch = load_sketch("ndv2/sk1")
    topology = sketch.topology()
    problem = sketch.apply(topology, collectives.allgather(topology.num_ranks))
    hurried = lower_bound(problem, budget_s=0)
    assert (hurried.kind, hurried.bound) == ("single machine", lower_bound(problem).bound)


def test_beyond_timed_borders_whole_chunks_are_counted(monkeypatch):
    """A problem with too many chunks for cuts with release dates is bounded by prices, and by counting chunks
    at cuts without release dates.

    Counting gives the higher bound here. Links of 3 and 5 us pass 9 // 3 + 9 // 5 = 4 chunks in 9 us. In 8 us
    they pass only 2 + 1. Prices give 4 / (1/3 + 1/5) = 7.5 us.
    """
    monkeypatch.setattr(bounds, "_MAX_TIMED", 0)
    topology = linked("pair", [0, 0], [(0, 1, 0, 3), (0, 1, 0, 5)])
    bound = lower_bound(problem_of(topology, collectives.broadcast(2, chunks_per_rank=4)))
    assert (bound.bound, bound.kind) == (9, "cut counting")
    assert bound.check()


@fuzzed(few=8, many=700)
@given(seed=seeds, combining=st.booleans())
def test_bounds_without_times_hold(seed, combining):
    """Bounds without cuts that use release dates are proven by their witnesses, and are no larger than bounds
    with such cuts."""
    problem = random_problem(seed, combining=combining)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "_MAX_TIMED", 0)
        untimed = lower_bound(problem)
    assert untimed.check()
    assert untimed.bound <= lower_bound(problem).bound


def test_divisible_data_takes_fractions():
    """Divisible data divides over links in proportion to their rates.

    Three chunks over links of 2 and 3 us take 3 / (1/2 + 1/3) = 18/5 us.
    """
    topology = linked("pair", [0, 0], [(0, 1, 0, 2), (0, 1, 0, 3)])
    problem = problem_of(topology, collectives.broadcast(2, chunks_per_rank=3))
    bound = lower_bound(problem, divisible=True)
    assert bound.bound == Fraction(18, 5)
    assert bound.check()


def test_divisible_data_pays_one_alpha_at_least():
    """Divisible data over a link of 2 us + 1 us/MB take 3 us: the pieces together pay at least one alpha."""
    topology = linked("pair", [0, 0], [(0, 1)], alpha_us=2, beta_us_per_mb=1)
    bound = lower_bound(problem_of(topology, custom(2, [([0], [1])])), divisible=True)
    assert (bound.bound, bound.kind) == (3, "throughput")


NOMINAL = [
    # A rank receives 7 of 8 chunks at 150 GB/s.
    ("dgx1", 1, "allgather", False, Fraction(1200, 7)),
    # A rank receives 15 of 16 chunks at 300 + 25 GB/s.
    ("dgx-a100", 2, "allgather", False, Fraction(1040, 3)),
    # A node receives half of the chunks (two nodes) or three quarters (four nodes) at 12.5 GB/s.
    ("ndv2", 2, "allgather", False, Fraction(25)),
    ("ndv2", 4, "allgather", False, Fraction(50, 3)),
    # The 16 ranks of a node receive 31 of 32 chunks each, at 16 * 150 + 8 * 12.5 GB/s.
    ("dgx2", 2, "allgather", False, Fraction(5000, 31)),
    # A node receives 8 * 8 chunks (two nodes) or 8 * 24 (four) at 12.5 GB/s; a rank has 16 or 32.
    ("ndv2", 2, "alltoall", False, Fraction(25, 8)),
    ("ndv2", 4, "alltoall", False, Fraction(25, 12)),
    # A node receives 16 * 16 chunks at 100 GB/s; a rank has 32 chunks.
    ("dgx2", 2, "alltoall", False, Fraction(25, 2)),
    # Each of two nodes receives all sums once at 12.5 GB/s; four nodes need 2 * 3 sends per sum over 4 NICs.
    ("ndv2", 2, "allreduce", False, Fraction(25, 2)),
    ("ndv2", 4, "allreduce", False, Fraction(25, 3)),
    # A sum takes 2 * 7 sends over 8 ports of 300 GB/s, or one send into each rank if the switch reduces.
    ("dgx-a100", 1, "allreduce", False, Fraction(1200, 7)),
    ("dgx-a100", 1, "allreduce", True, Fraction(300)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "nodes", "name", "in_network", "gb_per_s"), NOMINAL)
def test_bandwidth_of_machines(machine, nodes, name, in_network, gb_per_s):
    """Upper bounds on bandwidth of machines equal the values derived by hand."""
    topology = topologies.parse(machine, nodes=nodes, profile="nominal")
    problem = make_problem(topology, name, chunk_bytes=MB, **arguments_for(name, topology.num_ranks))
    bound = lower_bound(problem, divisible=True, in_network=in_network)
    assert problem.size_bytes is not None
    assert problem.size_bytes / bound.bound / 1000 == gb_per_s
    assert bound.check()


def test_losses_of_sketch_chunks_and_search_are_separated():
    """`prices` states the loss from the sketch, from whole chunks, and from the search.

    On a ring of 3, the sketch makes 4 MB take two hops of 5 us instead of one. For divisible data, each rank
    on the path does best to cut the 4 MB into sends of 7/3, 4/3 and 1/3 MB. In these, the data arrive after
    53/12 us on average. The search adds no loss.
    """
    topology = ring(3)
    allowed = frozenset(e for e, link in enumerate(topology.links) if (link.src, link.dst) != (0, 1))
    problem = problem_of(topology, custom(3, [([0], [1])]), chunk_bytes=4 * MB, links_allowed=allowed)
    found = prices(problem, synthesize(problem, backend="greedy", time_limit_s=0.1).schedule)
    bounds_us = found.bound.bound, found.without_sketch.bound, found.divisible.bound
    assert bounds_us == (10, 5, Fraction(53, 6))
    assert (found.sketch, found.chunks, found.solver) == (1, pytest.approx(7 / 53), 0)
    assert "sketch: +100.00% over 5 us without it" in repr(found)


@pytest.mark.slow
def test_stronger_arguments_for_divisible_data_are_no_cost_of_a_sketch():
    """If the bound for divisible data is the larger one, it is compared with that without the sketch.

    On a star of six, byte counting proves more of a small sum and an allgather than all bounds for whole
    chunks do, with the sketch and without it.
    """
    parts = [
        collectives.allreduce(3).among((2, 4, 1), num_ranks=6),
        collectives.allgather(3).among((0, 3, 5), num_ranks=6),
    ]
    problem = make_problem(topologies.star(6), collectives.together(parts), chunk_bytes=1000)
    assert lower_bound(problem).bound < lower_bound(problem, divisible=True).bound
    for each in (problem, problem.with_clauses(max_hops=2)):
        found = prices(each)
        assert found.without_sketch.bound == found.bound.bound == found.divisible.bound


def test_prices_without_a_bound_in_time_name_the_limit(monkeypatch):
    """If the time limit ends before any bound, the error names the argument `time_limit_s` and the remedy."""

    def late(*_, **__):
        raise OutOfTime("the time limit came first")

    monkeypatch.setattr(scopes, "lower_bound", late)
    problem = problem_of(ring(3), collectives.allgather(3))
    with pytest.raises(OutOfTime, match=r"time_limit_s: no bound in 0\.5 s; give more time"):
        prices(problem, time_limit_s=0.5)


def test_prices_without_time_for_whole_chunks_have_their_latency(monkeypatch):
    """If the time limit ends before a bound for whole chunks, the latency bound stands in for it."""

    def only_divisible(of, *, divisible, **_):
        if not divisible:
            raise OutOfTime("the time limit came first")
        return lower_bound(of, divisible=True)

    monkeypatch.setattr(scopes, "lower_bound", only_divisible)
    found = prices(problem_of(ring(3), collectives.allgather(3)), time_limit_s=60)
    assert found.without_sketch.kind == "latency"
    assert found.bound.bound >= found.divisible.bound > 0


def test_prices_without_a_schedule():
    """Without a schedule the loss of the search is None and is not shown."""
    found = prices(problem_of(ring(3), collectives.allgather(3)))
    assert found.solver is None
    assert "solver" not in repr(found)


@pytest.fixture
def no_solver(monkeypatch):
    """Make every linear program raise an error."""

    def refuse(*args, **kwargs):
        raise AssertionError("a solver was started")

    monkeypatch.setattr(cuts, "minimise", refuse)
    monkeypatch.setattr(flows, "minimise", refuse)


def _linked(num_ranks, *pairs):
    return linked("some links", [0] * num_ranks, pairs, alpha_us=0, beta_us_per_mb=1)


@pytest.mark.usefixtures("no_solver")
@pytest.mark.parametrize("name", ["allgather", "alltoall", "allreduce", "reduce-scatter", "broadcast"])
def test_two_parts_without_a_link_between_them(name):
    """For two parts without a link between them the error names a rank on each side, before any solver runs."""
    topology = _linked(4, (0, 1), (1, 0), (2, 3), (3, 2))
    problem = make_problem(topology, collectives.make(name, 4), chunk_bytes=MB)
    with pytest.raises(TopologyError, match=r"rank (0 to rank 2|2 to rank 0): some links has no path"):
        lower_bound(problem)


@pytest.mark.usefixtures("no_solver")
@pytest.mark.parametrize("name", ["allgather", "alltoall", "allreduce", "broadcast"])
def test_a_rank_that_can_never_receive(name):
    """The error for a rank that can never receive names that rank."""
    topology = _linked(3, (0, 1), (1, 0), (2, 0), (2, 1))
    problem = make_problem(topology, collectives.make(name, 3), chunk_bytes=MB)
    with pytest.raises(TopologyError, match="to rank 2: some links has no path"):
        lower_bound(problem)


@pytest.mark.parametrize("beta", [float("inf"), float("nan"), "inf", 10**500])
def test_a_link_without_capacity_is_no_link(beta):
    """An infinite beta is an error that names the link."""
    builder = TopologyBuilder("dead", [0, 0])
    with pytest.raises(TopologyError, match=r"link 0->1: beta_us_per_mb: found"):
        builder.add_link(0, 1, alpha_us=0, beta_us_per_mb=beta)
        builder.build()


@pytest.mark.usefixtures("no_solver")
def test_a_beta_whose_times_exceed_64_bits_is_refused():
    """A beta of 10**30 us/MB, whose times exceed 64 bits, raises an error."""
    topology = linked("all but dead", [0, 0], [(0, 1)], alpha_us=0, beta_us_per_mb=10**30)
    with pytest.raises(InputError, match="64 bits"):
        lower_bound(make_problem(topology, custom(2, [([0], [1])]), chunk_bytes=MB))


def test_what_a_certificate_says_of_itself():
    """`to_dict` gives the bound, its kind, its witness and the other fields as plain values."""
    said = lower_bound(problem_of(ring(5), collectives.broadcast(5))).to_dict()
    assert said["bound_us"] == 4.0
    assert said["kind"] == "latency"
    assert said["witness"] == {"kind": "path", "chunk": 0, "destination": 2}
    assert not said["divisible"]


def test_the_gap_of_nothing_to_do():
    """If no send is necessary, the gap of a finish of 0 is 0, and that of a later finish is infinite."""
    bound = lower_bound(problem_of(ring(3), custom(3, [([0], [0])])))
    assert bound.gap(Fraction(0)) == 0.0
    assert bound.gap(Fraction(1)) == float("inf")


def test_past_the_limit_latency_and_throughput_are_claimed_alone(monkeypatch):
    """Problems above the size limit get only latency and throughput bounds, none that counts whole chunks at
    cuts."""
    monkeypatch.setattr(bounds, "_MAX_BRIEF", 0)
    sketch = load_sketch("ndv2/sk1")
    topology = sketch.topology()
    problem = sketch.apply(topology, collectives.allgather(topology.num_ranks))
    hurried = lower_bound(problem, budget_s=0, limit_s=0)
    assert hurried.check()
    assert (hurried.kind, hurried.bound > 0) == ("throughput", True)
    assert hurried.bound < lower_bound(problem, budget_s=0).bound

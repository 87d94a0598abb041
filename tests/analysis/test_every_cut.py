"""Scope of bounds: the chunks of a problem, or all chunkings of its data."""

import itertools
import random
from dataclasses import replace
from fractions import Fraction
from functools import partial

import networkx
import pytest

import taccl
from taccl._internal.deadline import OutOfTime
from taccl.analysis.certificates import bounds, flows, scopes
from taccl.analysis.certificates.finding.distances import Distances
from taccl.analysis.certificates.scopes import (
    bound_over_all_chunkings,
    bound_rows,
    gap_text,
    share_bound_over_all_chunkings,
    standing,
    stronger,
)
from taccl.cli.output import result_answer
from taccl.problem.making import merged
from taccl.synthesis.bounding import no_bound
from taccl.topology.builder import TopologyBuilder
from tests.effort import HASTY, brief_synthesis
from tests.fuzzing import MANY, by_turns, cases

#: A ring without alpha, at 20 us/MB: times depend on the data alone.
RING = taccl.topologies.ring(5, alpha_us=0)


def kautz(num_ranks):
    """Generalized Kautz graph of degree 2, with links of 1 us and 50 GB/s."""
    costs = {"alpha_us": 1, "bandwidth_gb_per_s": 50}
    edges = [(u, (-2 * u - a) % num_ranks) for u in range(num_ranks) for a in (1, 2)]
    return taccl.topologies.from_networkx(networkx.DiGraph((u, v, costs) for u, v in edges if u != v))


def _bound(topology, collective, size, **options):
    return taccl.lower_bound(taccl.make_problem(topology, collective, size_bytes=size, **options))


def test_a_finish_that_other_chunks_beat_is_optimal_for_its_chunks_alone():
    """A finish that other chunks beat is called optimal only for its own number of chunks.

    Whole chunks on a ring of 4 take 40 us; half chunks go both ways, and take 30 us.
    """
    ring = taccl.topologies.ring(4, alpha_us=0)
    whole = _bound(ring, "allgather", 4_000_000, chunks_per_rank=1)
    halves = taccl.make_problem(ring, "allgather", size_bytes=4_000_000, chunks_per_rank=2)
    result = brief_synthesis(halves)
    # Three chunks enter over two links, so two pass one link of 20 us each; halves need 30 us.
    assert (whole.bound, result.finish_us) == (40, 30)
    assert standing(whole, Fraction(40), bound_over_all_chunkings(whole)) == "optimal for 1 chunk per rank"
    assert result.standing == "proven best"


def test_both_bounds_are_reported_if_they_differ():
    """Different bounds, 40 us for whole chunks and 30 us over all chunkings, are shown in two rows; equal
    bounds in one. Without a bound the row says so."""
    ring = taccl.topologies.ring(4, alpha_us=0)
    whole = _bound(ring, "allgather", 4_000_000, chunks_per_rank=1)
    alike = _bound(RING, "allgather", 5_000_000, chunks_per_rank=1)
    rows = bound_rows(whole, bound_over_all_chunkings(whole))
    assert [name for name, _ in rows] == ["bound", "over all chunkings"]
    assert rows[0][1].startswith("40 us for 1 chunk per rank")
    assert rows[1][1].startswith("30 us")
    assert len(bound_rows(alike, bound_over_all_chunkings(alike))) == 1
    assert bound_rows(no_bound(whole.problem), None) == [("bound", "none proven so far")]


@pytest.mark.slow
def test_the_bound_over_all_chunkings_precedes_the_choice_of_chunks():
    """If time is short, the bound over all chunkings is computed before chunks are chosen."""
    problem = taccl.make_problem(RING, "broadcast", size_bytes=4_000_000)  # the first schedule is not best
    result = brief_synthesis(problem, parameters=HASTY)
    names = [stage.name for stage in result.stages]
    assert names.index("bound over all chunkings") < names.index("chunks")
    assert names.count("bound over all chunkings") == 1


def test_a_bound_that_used_up_its_time_is_sought_again(monkeypatch):
    """A larger budget recomputes a bound only if the smaller budget was exhausted; the larger bound is kept."""
    budgets = []

    def found(problem, *, budget_s, **options):
        budgets.append(budget_s)
        return bounds.lower_bound(problem, **options, budget_s=budget_s)

    monkeypatch.setattr(scopes, "lower_bound", found)
    bound = _bound(RING, "allgather", 5_000_000, chunks_per_rank=1)
    bound_over_all_chunkings(bound, budget_s=0.0)
    first = bound_over_all_chunkings(bound)
    assert bound_over_all_chunkings(bound, budget_s=100.0).bound >= first.bound
    assert bound_over_all_chunkings(bound, budget_s=1000.0) is bound_over_all_chunkings(bound)
    assert budgets == [0.0, 100.0]


@pytest.mark.parametrize("num_cut_off", [1, 2])
def test_flows_that_time_cut_off_are_sought_again(monkeypatch, num_cut_off):
    """A linear program of flows that ends with its share of the time is solved again in the remaining time.

    If that is too short as well, a larger budget computes the bound over all chunkings again.
    """
    solve, tries = flows._solve, []
    problem = taccl.make_problem(kautz(7), "alltoall", size_bytes=4_200_000, chunks_per_rank=1)
    solved = taccl.lower_bound(problem, divisible=True)
    assert not solved.is_cut_off

    def late(*given):
        tries.append(1)
        return solve(*given) if len(tries) > num_cut_off else None

    monkeypatch.setattr(flows, "_solve", late)
    found = bound_over_all_chunkings(bounds.latency_bound(problem), budget_s=10.0)
    assert (found.bound < solved.bound, found.is_cut_off) == ((num_cut_off == 2,) * 2)
    assert bound_over_all_chunkings(found, budget_s=20.0) is found
    assert bound_over_all_chunkings(bounds.latency_bound(problem), budget_s=20.0).bound == solved.bound


def test_prices_of_whole_chunks_hold_over_all_chunkings(monkeypatch):
    """If time cut the bound over all chunkings off, the prices of the chunks' own bound prove a larger one."""
    problem = taccl.make_problem(kautz(7), "alltoall", size_bytes=4_200_000, chunks_per_rank=1)
    own, solved = taccl.lower_bound(problem), taccl.lower_bound(problem, divisible=True)
    monkeypatch.setattr(flows, "_solve", lambda *_: None)
    assert bound_over_all_chunkings(bounds.latency_bound(problem), budget_s=1.0).bound < solved.bound
    every = bound_over_all_chunkings(own)
    assert every.check()
    assert (1 - Fraction(1, 10**3)) * solved.bound <= every.bound <= solved.bound


def test_other_chunks_of_the_same_data_share_their_bound():
    """Problems that differ only in their number of chunks share one bound over all chunkings."""
    one, two = (
        taccl.make_problem(RING, "allgather", size_bytes=5_000_000, chunks_per_rank=n) for n in (1, 2)
    )
    found = bound_over_all_chunkings(taccl.lower_bound(one))
    share_bound_over_all_chunkings(two, one)
    assert bound_over_all_chunkings(taccl.lower_bound(two)) is found


def test_data_of_other_origins_or_destinations_pay_an_alpha_in_every_chunking():
    """Over all chunkings, data of different origins or destinations pay an alpha each.

    16 KB on the 16 ranks of a DGX-2, unmerged: each rank receives 15 sends of 0.3 us, and 15 KB at 8 us/MB.
    """
    problem = taccl.make_problem(
        taccl.topologies.dgx2(), "allgather", size_bytes=16_000, clauses=taccl.problem.problem.Clauses()
    )
    bound = taccl.lower_bound(problem)
    assert (bound.scope, bound.bound) == ("all chunkings", Fraction(462, 100))
    assert bound.check()


def test_a_bound_over_all_chunkings_lets_any_sends_merge():
    """On a DGX-2 four sends deliver data of 15 ranks: 1.2 us of alphas and 0.12 us of bytes, met by a
    schedule.

    The default merges sends only between nodes, but the search also merges inside nodes where that is faster.
    """
    problem = taccl.make_problem(taccl.topologies.dgx2(), "allgather", size_bytes=16_000)
    bound = taccl.lower_bound(problem)
    assert bound.bound <= Fraction(132, 100) == taccl.baselines.multiplying(merged(problem), cut=False).finish
    assert bound.gap(Fraction(132, 100)) < 1e-4


def test_a_finish_that_merged_sends_beat_is_not_proven_best():
    """A finish without merging is not proven best if merged sends finish earlier.

    1 MB takes 12 us on a DGX-2 without merging and 8.7 us with it.
    """
    problem = taccl.make_problem(taccl.topologies.dgx2(), "allgather", size_bytes="1MB", chunks_per_rank=1)
    bound = taccl.lower_bound(problem)
    assert bound.bound == 12
    assert not standing(bound, Fraction(12), bound_over_all_chunkings(bound)).startswith("proven best")


def test_a_best_finish_without_merging_names_the_limit():
    """A finish of 12 us is optimal only while merging is forbidden: merged sends take 8.7 us."""
    problem = taccl.make_problem(taccl.topologies.dgx2(), "allgather", size_bytes="1MB", chunks_per_rank=1)
    bound = taccl.lower_bound(problem.with_clauses(max_merge=1), divisible=True)
    assert standing(bound, bound.bound, bound) == "proven best under these limits on merging"


def test_merged_sends_share_an_alpha_in_every_chunking():
    """Over all chunkings, chunks that may merge share an alpha.

    Two chunks from rank 0 to ranks 1 and 2 over one link of 6 us that merges two pay 3 us of alpha each.
    """
    builder = taccl.topologies.TopologyBuilder("chain", [0, 0, 0])
    for src in (0, 1):
        builder.add_link(src, src + 1, alpha_us=6, beta_us_per_mb=1)
    scatter = taccl.collectives.custom(3, precondition={0: [0], 1: [0]}, postcondition={0: [1], 1: [2]})
    problem = taccl.make_problem(builder.build(), scatter, chunk_bytes=[1_000_000] * 2)
    unmerged = problem.with_clauses(max_merge=1)
    found = []
    for each in (unmerged, problem):
        claims = bounds.claims_of(bounds.merging_freely(each), divisible=True)
        found.append(max(claim.ticks for claim in claims if claim.kind != "mean flow time"))
    # Unmerged, the first link takes two alphas of 6 us and 2 us of bytes.
    # Merged, the second link sends from 6 us on, and takes an alpha and 1 us of bytes.
    assert [Fraction(ticks) / problem.costs.ticks_per_us for ticks in found] == [14, 13]


def test_one_send_carries_no_more_than_all_data():
    """64 KB of one rank have one bound over all chunkings, whether they start in 1 chunk or in 16."""
    problems = [
        taccl.make_problem(taccl.topologies.mesh(2, 3), "broadcast", size_bytes=64_000, chunks_per_rank=count)
        for count in (1, 16)
    ]
    found = [taccl.lower_bound(each, divisible=True) for each in problems]
    assert found[0].bound == pytest.approx(found[1].bound, rel=1e-12)
    assert found[1].check()


@pytest.mark.slow
def test_one_chunk_for_all_pays_one_alpha():
    """The bound over all chunkings of an allreduce is at most the finish of a single chunk for all data.

    That chunk pays fewer alphas than the chunks of an allreduce, which have a root each.
    """
    topology = taccl.topologies.fully_connected(4, alpha_us=10)
    whole = taccl.collectives.custom(
        4, precondition={0: range(4)}, postcondition={0: range(4)}, combining=True
    )
    finish = taccl.synthesize(
        taccl.make_problem(topology, whole, chunk_bytes=[4_000]), time_limit_s=2
    ).finish_us
    assert _bound(topology, "allreduce", 4_000).bound_us <= finish


def _random_topology(draw):
    """A random topology: three or four ranks on a ring with chords, random costs, and a port into each rank."""
    num_ranks = draw.choice((3, 4))
    builder = taccl.topologies.TopologyBuilder("random", [0] * num_ranks)
    ports = [builder.add_resource(f"port {r}") for r in range(num_ranks)]
    for src, dst in itertools.permutations(range(num_ranks), 2):
        if dst == (src + 1) % num_ranks or draw.random() < 0.6:
            alpha, beta = draw.choice((0, 1, 5, 20)), draw.choice((1, 2, 5))
            link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
            builder.add_hold(link, ports[dst], alpha_us=alpha, beta_us_per_mb=1, side="receive")
    return builder.build()


@pytest.mark.fuzz
def test_no_chunking_beats_the_bound_over_all():
    """Schedules in 1 to 4 chunks per rank, merged or not, finish no sooner than the bound over all chunkings."""
    names = "allgather", "alltoall", "allreduce", "reduce-scatter", "broadcast", "reduce"
    for seed in cases("schedules in several chunkings against the bound over all", few=2, many=400):
        draw = random.Random(seed)
        topology, name, most = _random_topology(draw), draw.choice(names), draw.choice((1, 2, 8))
        size = draw.choice((1_000, 100_000, 1_000_000)) * topology.num_ranks
        merging = {"merging": frozenset(range(len(topology.links)) if most > 1 else ()), "max_merge": most}
        every = taccl.lower_bound(taccl.make_problem(topology, name, size_bytes=size).with_clauses(**merging))
        assert every.check()
        for count in (1, 2, 3, 4):
            problem = taccl.make_problem(topology, name, size_bytes=size, chunks_per_rank=count)
            found = brief_synthesis(problem.with_clauses(**merging), backend="greedy")
            assert every.bound <= found.schedule.finish


def test_a_later_finish_has_no_standing():
    """A result whose finish exceeds the bound is not called optimal: `standing` is empty."""
    bound = _bound(RING, "allgather", 5_000_000, chunks_per_rank=1)
    every = bound_over_all_chunkings(bound)
    assert standing(bound, bound.bound, every) == "proven best"
    assert standing(bound, bound.bound + 1, every) == ""


def test_the_best_under_a_sketch_is_marked():
    """A finish that meets the bound of a sketched problem is proven best under that sketch only."""
    problem = taccl.make_problem(RING, "allgather", size_bytes=5_000_000, chunks_per_rank=1)
    sketched = taccl.lower_bound(problem.with_clauses(name="mine"))
    assert (
        standing(sketched, sketched.bound, bound_over_all_chunkings(sketched))
        == "proven best under this sketch"
    )


def test_no_bound_over_all_chunkings_is_sought_after_ctrl_c(monkeypatch):
    """If Ctrl-C interrupts the bound over all chunkings, the result is shown without it."""
    problem = taccl.make_problem(RING, "allgather", size_bytes=5_000_000, chunks_per_rank=1)
    result = taccl.synthesize(problem, time_limit_s=1)
    result.bound.problem.cache.clear()  # the search has found it already
    asked = []

    def interrupted(*_, **__):
        asked.append(problem)
        raise KeyboardInterrupt

    monkeypatch.setattr(scopes, "lower_bound", interrupted)
    answer = result_answer(result)
    assert len(asked) == 1
    assert answer.values["bound_over_all_chunkings_us"] is None
    assert answer.values["standing"] == "optimal for 1 chunk per rank"


def test_a_sketch_that_prevents_merging_is_reported():
    """A sketch that merges only between nodes makes 1 KB take two hops, 1.01 us instead of 0.52; the result
    says so."""
    topology = taccl.topologies.fully_connected(4)
    sketch = taccl.Sketch(merging={"links": "internode"})
    problem = sketch.apply(topology, "allreduce", size="1KB", chunks_per_rank=1)
    bound = taccl.lower_bound(problem)
    every = bound_over_all_chunkings(bound)
    assert standing(bound, bound.bound, every) == "optimal for 1 chunk per rank under these limits on merging"


def test_padding_is_no_part_of_the_bound_over_all_chunkings():
    """The bound over all chunkings counts the data without padding: 11 B, not 5 chunks of 3 B."""
    bound = _bound(RING, "allgather", 11, chunks_per_rank=1)
    every = bound_over_all_chunkings(bound)
    exact = _bound(RING, "allgather", 11_000_000, chunks_per_rank=1)
    assert every.bound * 10**6 == bound_over_all_chunkings(exact).bound
    assert every.bound < bound.bound
    assert every.check()
    assert every.problem.size_bytes == 11


def test_padding_is_no_part_of_any_bound_of_divisible_data():
    """`lower_bound`, `prices` and a synthesis agree; sends may merge, although the default allows less.

    Latency is longer than the transmission of 5 B, and shorter than that of 4 chunks of 2 B.
    """
    topology = taccl.topologies.fully_connected(4, alpha_us=7, bandwidth_gb_per_s="0.001")
    problem = taccl.make_problem(topology, "allreduce", size_bytes=5)
    bound = taccl.lower_bound(problem)
    every = bound_over_all_chunkings(taccl.lower_bound(problem, divisible=False))
    assert bound.bound == every.bound == taccl.prices(problem).divisible.bound
    for each in (bound, every):
        assert each.check()
        assert each.problem.size_bytes == 5
        assert each.problem.clauses.merging == frozenset(range(12))


@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_without_time_padding_reduces_the_whole_bound(monkeypatch, collective):
    """If time is too short to take the padding off each link, the whole bound is reduced by its share."""
    ring = taccl.topologies.ring(5, alpha_us=1)
    bound, same = (_bound(ring, collective, 2999, chunks_per_rank=1) for _ in range(2))
    exact = bound_over_all_chunkings(bound, budget_s=10.0)

    def late(*_):
        raise OutOfTime("time is up")

    monkeypatch.setattr(bounds, "without_padding", late)
    monkeypatch.setattr(scopes, "_MOST_PRICED", 0)
    every = bound_over_all_chunkings(same, budget_s=10.0)
    assert every.check()
    assert 0.999 * exact.bound <= every.bound < exact.bound


def test_the_bound_over_all_chunkings_is_found_once():
    """A second request for a problem's bound over all chunkings returns the same object."""
    bound = _bound(RING, "allgather", 5_000_000, chunks_per_rank=1)
    assert bound_over_all_chunkings(bound) is bound_over_all_chunkings(bound)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "name", "collective"),
    by_turns(
        [8, 1000, 10**6],
        ["ring:4", "fully-connected:4", "hypercube:2"],
        ["allreduce", "reduce-scatter", "allgather", "alltoall"],
    ),
)
def test_no_baseline_in_any_chunks_beats_the_bound(name, collective, size):
    """No baseline in any number of chunks finishes before the bound over all chunkings."""
    topology = taccl.topologies.parse(name)
    every = bound_over_all_chunkings(_bound(topology, collective, size, chunks_per_rank=1))
    for count in (1, 2, 3, 8, 16) if MANY else (1, 3, 8):
        problem = taccl.make_problem(topology, collective, size_bytes=size, chunks_per_rank=count)
        for make in taccl.baselines.BASELINES.values():
            try:
                schedule = make(problem, cut=False)
            except taccl.InputError:
                continue
            assert every.bound <= schedule.finish


def test_scope_names_the_chunks():
    """`scope` names the chunkings for which a certificate holds."""
    problem = taccl.make_problem(RING, "allgather", size_bytes=10**6, chunks_per_rank=2)
    assert taccl.lower_bound(problem).scope == "2 chunks per rank"
    assert taccl.lower_bound(problem, divisible=True).scope == "all chunkings"
    assert "for 2 chunks per rank" in repr(taccl.lower_bound(problem))


def test_the_bound_over_all_chunkings_holds_for_the_chunks_used():
    """A weak bound of whole chunks is raised to the bound over all chunkings; a larger bound stays."""
    problem = taccl.make_problem(RING, "allgather", size_bytes=11, chunks_per_rank=1)
    whole = taccl.lower_bound(problem)
    every = bound_over_all_chunkings(whole)
    starved = replace(whole, bound=every.bound / 2)
    assert stronger(whole, every) is whole
    assert stronger(starved, every) is every
    assert every.check()
    assert stronger(starved, None) is starved


def test_a_synthesis_out_of_time_shows_no_less_than_the_bound_over_all_chunkings(monkeypatch):
    """If time is short, the result's bound is at least the bound over all chunkings, apart from rounding of
    prices.

    The problem is an alltoall on the generalized Kautz graph of degree 2 and order 12. On a very busy machine
    it would be bounded by cuts alone.
    """
    for module in ("synthesis.bounding", "analysis.certificates.scopes"):
        monkeypatch.setattr(f"taccl.{module}.busy_factor", lambda: 1.0)
    problem = taccl.make_problem(kautz(12), "alltoall", size_bytes=10**8, chunks_per_rank=1)
    result = taccl.synthesize(problem, backend="greedy", time_limit_s=0.01)
    assert result.bound.bound >= (1 - Fraction(1, 10**6)) * taccl.lower_bound(problem, divisible=True).bound


def test_the_gap_that_was_asked_for_comes_first():
    """40 us meet the bound for one chunk per rank, and are a third above the bound over all chunkings, 30 us."""
    ring = taccl.topologies.ring(4, alpha_us=0)
    whole = _bound(ring, "allgather", 4_000_000, chunks_per_rank=1)
    every = bound_over_all_chunkings(whole)
    asked = partial(gap_text, whole, every=every)
    assert asked(Fraction(40)) == "0.00% (optimal for 1 chunk per rank; 33.33% over all chunkings)"
    assert asked(Fraction(40), is_open=True) == "33.33% over all chunkings (optimal for 1 chunk per rank)"
    assert asked(Fraction(60)) == "50.00% for 1 chunk per rank (100.00% over all chunkings)"
    assert asked(Fraction(60), is_open=True) == "100.00% over all chunkings (50.00% for 1 chunk per rank)"
    assert gap_text(whole, Fraction(40), None) == "0.00% (optimal for 1 chunk per rank)"
    assert gap_text(every, Fraction(30), every) == "0.00% (proven best)"
    assert gap_text(every, Fraction(60), every) == "100.00% over all chunkings"


@pytest.mark.slow
def test_a_problem_with_an_open_number_is_bounded_over_all_chunkings():
    """If the number of chunks is open, bound and gap are over all chunkings.

    The bound and the gap for the chosen chunks are given as well. On a line of 4 ranks, 3 MB enter a rank at the
    end in 60 us and one latency, or in whole chunks, in three latencies.
    """
    problem = taccl.make_problem(
        taccl.topologies.mesh(4), taccl.collectives.allgather(4), size_bytes=4_000_000
    )
    result = brief_synthesis(problem, backend="greedy")
    assert result.bound.scope == "all chunkings"
    assert 60 < result.bound.bound == taccl.lower_bound(problem).bound < Fraction(123, 2)
    assert result.bound_in_chunks.scope != "all chunkings"
    assert result.gap == result.gap_over_all_chunkings >= result.gap_in_chunks
    assert dict(result.facts())["gap"].startswith(f"{result.gap:.2%} over all chunkings")


def test_chunks_that_merge_by_default_are_under_no_sketch():
    """If clauses only let more chunks merge than by default, `standing` (what is proven of a finish) does not
    say "under this sketch".

    It says "for 1 chunk per rank", as whole chunks are padded from 62.5 to 63 bytes.
    """
    problem = taccl.make_problem(taccl.topologies.dgx2(), "allgather", size_bytes=1_000, chunks_per_rank=1)
    bound = taccl.lower_bound(merged(problem), budget_s=0.1)
    assert standing(bound, bound.bound, bound_over_all_chunkings(bound)) == "optimal for 1 chunk per rank"


@pytest.mark.slow
def test_bounds_of_little_work_do_not_hang_on_the_clock(monkeypatch):
    """On two NDv2 the bounds of 256 chunks and of divisible data are the same with a budget of 0 s as with a
    minute."""
    for name in ("_FIRST_S", "_SMALL_S"):
        monkeypatch.setattr(bounds, name, 60)
    for divisible in (False, True):
        found = [
            taccl.lower_bound(
                taccl.make_problem(taccl.topologies.ndv2(2), "alltoall", size_bytes="64MB"),
                divisible=divisible, budget_s=budget_s, limit_s=budget_s,
            ).bound
            for budget_s in (0.001, 60)
        ]  # fmt: skip
        assert found[0] == found[1]


@pytest.mark.slow
def test_a_search_that_time_ended_is_not_made_again(monkeypatch):
    """A search for the bound over all chunkings that ran out of time returns None and is not repeated."""
    problem = taccl.make_problem(taccl.topologies.dgx2(2), "allreduce", size_bytes=10**6).in_its_chunks
    bound, tries = taccl.lower_bound(problem), []

    def ended(*_, **__):
        tries.append(1)
        raise OutOfTime("time is up")

    monkeypatch.setattr(scopes, "lower_bound", ended)
    assert scopes.bound_over_all_chunkings(bound, budget_s=1.0) is None
    assert scopes.bound_over_all_chunkings(bound) is None and len(tries) == 1


@pytest.mark.slow
def test_large_problems_have_the_bound_of_nodes(monkeypatch):
    """Beyond the number of moves for other bounds, the bound over all chunkings is that of node cuts.

    Two nodes of eight GPUs exchange half of all data over eight NICs each; a chunk crosses sooner.
    """
    monkeypatch.setattr(scopes, "_MOST_MOVES", 1000)
    problem = taccl.make_problem(taccl.topologies.dgx_h100(2), "alltoall", size_bytes="4MB")
    assert problem.collective.num_chunks * len(problem.topology.links) > scopes._MOST_MOVES
    least = bounds.latency_bound(problem)
    every = bound_over_all_chunkings(least, budget_s=10.0)
    assert every.bound > 1.3 * least.bound
    assert every.check()
    assert bound_over_all_chunkings(least, budget_s=1e6) is every  # final, so it is not computed again


def test_a_hurried_bound_is_that_of_cuts_and_is_sought_again(monkeypatch):
    """If little time is left, cuts alone are evaluated; they include the middle of a mesh."""
    problem = taccl.make_problem(taccl.topologies.mesh(4, 4, alpha_us=0), "alltoall", size_bytes=16 * 10**6)
    least = bounds.latency_bound(problem)
    monkeypatch.setattr(scopes, "_BRIEF_MOVES", 0)
    search = bounds.claims_of

    def quick(*given, budget_s, **options):
        assert budget_s == 0, "no search begins"
        return search(*given, budget_s=budget_s, **options)

    monkeypatch.setattr(bounds, "claims_of", quick)
    hurried = bound_over_all_chunkings(least, budget_s=0.01)
    assert (hurried.kind, hurried.bound) == ("throughput", 16 * 20) and hurried.check()
    monkeypatch.undo()
    assert bound_over_all_chunkings(least, budget_s=10.0) is not hurried


def test_the_last_bound_of_late_searches_lists_no_chunks(monkeypatch):
    """Once time is up, the cut around a node of 4,096 chunks is found from sets of ranks, not chunk by chunk."""
    problem = taccl.make_problem(taccl.topologies.dgx_h100(8), "alltoall", size_bytes="64MB")
    first = next(bounds.claims_of(problem, divisible=True, budget_s=0.0, limit_s=0.0))

    def ended(*_, **__):
        yield first
        raise OutOfTime("time is up")

    monkeypatch.setattr(bounds, "claims_of", ended)
    asked, carried = [], Distances.carried
    lists = property(lambda _: pytest.fail("lists the chunks"))
    monkeypatch.setattr(bounds.NeededSends, "_kinds", lists)
    monkeypatch.setattr(Distances, "carried", lambda *given, **how: asked.append(1) or carried(*given, **how))
    found = taccl.lower_bound(problem, divisible=True, end_s=60.0)
    assert found.kind == "throughput" and len(asked) == 1 and found.check()
    assert found.bound > 5 * first.ticks / problem.costs.ticks_per_us


SHARED_NICS = """\
        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    CPU Affinity    NUMA Affinity
GPU0     X      NV4     SYS     SYS     PHB     SYS     0-15            0
GPU1    NV4      X      SYS     SYS     PHB     SYS     0-15            0
GPU2    SYS     SYS      X      NV4     SYS     PHB     16-31           1
GPU3    SYS     SYS     NV4      X      SYS     PHB     16-31           1
NIC0    PHB     PHB     SYS     SYS      X      SYS
NIC1    SYS     SYS     PHB     PHB     SYS      X
"""


@pytest.mark.filterwarnings("ignore::taccl.errors.AssumptionWarning")
def test_without_time_each_nic_counts_once(tmp_path):
    """Without time, the bound of a node is that of its NICs, though each link holds one at either node.

    2 GB enter each node over two NICs of 12.5 GB/s, so they need 80 ms.
    """
    path = tmp_path / "matrix.txt"
    path.write_text(SHARED_NICS)
    topology = taccl.topologies.load(path, nodes=2, nic_gb_per_s=12.5)
    problem = taccl.make_problem(topology, "alltoall", size_bytes=10**9)
    found = taccl.lower_bound(problem, divisible=True, end_s=0.0)
    assert found.bound_us == pytest.approx(80_000, rel=1e-3)
    assert found.check()


def test_without_time_shared_resources_make_cuts():
    """Without time, the bound includes cuts of the ranks behind a shared resource inside a node.

    Ranks 0 and 1 send 4 MB to ranks 2 and 3 over a bridge of 10 GB/s, so they need 400 us.
    """
    builder = TopologyBuilder("bridge", [0] * 4)
    bridge = builder.add_resource("bridge")
    for src, dst in itertools.permutations(range(4), 2):
        link = builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=100 if src < 2 <= dst else 10)
        if src < 2 <= dst:
            builder.add_hold(link, bridge, alpha_us=0, beta_us_per_mb=100)
    problem = taccl.make_problem(builder.build(), "alltoall", size_bytes=4 * 10**6)
    found = taccl.lower_bound(problem, divisible=True, end_s=0.0)
    assert found.bound >= 400
    assert found.check()


def test_without_time_latencies_and_the_middle_of_a_mesh_count():
    """Without time, the bound includes the latencies of the longest path and the cut through the middle.

    From corner to corner of a 2x8 mesh, 8 hops take 0.5 us each. Of 16 MB at each rank, 64 MB cross the
    middle over two links of 50 GB/s.
    """
    topology = taccl.topologies.mesh(2, 8)
    latency, middle = (
        taccl.lower_bound(
            taccl.make_problem(topology, "alltoall", size_bytes=size), divisible=True, end_s=0.0
        )
        for size in ("16B", "16MB")
    )
    assert (latency.kind, latency.bound_us) == ("latency", 4.0)
    assert middle.bound_us >= 640
    assert latency.check() and middle.check()

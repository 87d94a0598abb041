"""Ruin and recreate: results verify, never finish later than the start, and are reproducible."""

import random
from dataclasses import replace

import numpy as np
import pytest

from taccl import collectives, topologies
from taccl._internal.deadline import Deadline
from taccl.analysis.verification.verify import verify
from taccl.problem.making import make_problem
from taccl.schedule.schedule import Schedule
from taccl.schedule.timing import exact_times
from taccl.synthesis.improve.improvement import Improvement, first_turns, improve_schedule, suits_improvement
from taccl.synthesis.improve.routes import bare_trees, read_trees
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.synthesis.proposers import ruin
from taccl.synthesis.proposers.large import schedule_large
from taccl.synthesis.search import Options, Search
from taccl.topology.builder import TopologyBuilder
from taccl.topology.transform import without
from tests.effort import first_bounds, first_schedule
from tests.fuzzing import cases, some
from tests.synthesis.brute_force import optimal_ticks
from tests.synthesis.small_problems import (
    MB,
    custom,
    full,
    late_hold,
    linked,
    problem_of,
    random_group_problem,
    random_problem,
    relayed,
    ring,
    star,
    two_nodes,
    with_updates,
)


def first_of(problem):
    """The first schedule of a search."""
    with first_bounds():
        found = first_schedule(problem, sketch="none")
    assert isinstance(found, Schedule)
    return found


def from_nothing(problem, *, turns=300, seed=0):
    """A schedule found by the search without an initial schedule."""
    search = Improvement(problem, bare_trees(problem), Limits(seed=seed))
    assert search.run(turns=turns) >= 0
    return search.schedule()


def pair_of_pairs(*, multicast):
    """Rank 0 has four chunks for ranks 1 and 2, with a link to each, and maybe a multicast link to both."""
    builder = TopologyBuilder("two to serve", [0] * 3)
    port = builder.add_resource("port of 0")
    for dst in (1, 2):
        link = builder.add_link(0, dst, alpha_us=0, beta_us_per_mb=2)
        builder.add_hold(link, port, alpha_us=0, beta_us_per_mb=2)
    if multicast:
        link = builder.add_link(0, (1, 2), alpha_us=0, beta_us_per_mb=3)
        builder.add_hold(link, port, alpha_us=0, beta_us_per_mb=3)
    return problem_of(builder.build(), custom(3, [([0], [1, 2])] * 4))


def _suited(problems, *, at_least):
    """Those of `problems` that the improvement supports; asserts that their number is at least `at_least`."""
    suited = [problem for problem in problems if suits_improvement(problem)]
    assert len(suited) >= at_least
    return suited


@pytest.mark.slow
@pytest.mark.parametrize("combining", [False, True])
def test_problems_of_any_shape(combining):
    """For random holds, merging, chunk sizes and origins the result verifies and finishes no later than the
    start."""
    problems = (random_problem(seed, combining=combining) for seed in range(some(12, 16)))
    for seed, problem in enumerate(_suited(problems, at_least=3)):
        first = first_of(problem)
        better, _ = improve_schedule(first, Limits(seed=seed), turns=200)
        verify(better).raise_if_failed()
        assert better.finish_ticks <= first.finish_ticks


@pytest.mark.slow
def test_clauses_of_all_kinds():
    """Improved schedules obey process groups, relays, multicast links and clauses on single chunks."""
    for seed, problem in enumerate(_suited(map(random_group_problem, range(12)), at_least=5)):
        better, _ = improve_schedule(first_of(problem), Limits(seed=seed), turns=200)
        verify(better).raise_if_failed()


@pytest.mark.parametrize(
    ("origins", "ends", "us"), [([0, 1, 2], [0], 2), ([1, 2], [0], 10), ([1, 2], [0, 1], 11)]
)
def test_links_of_several_sources_add_each_contribution_once(origins, ends, us):
    """A fast link of ranks 0 and 1 adds the contributions of both; it is of no use if rank 0 has none."""
    links = [(2, 0, 0, 1), (0, 2, 0, 1), (1, 2, 0, 9), (0, 1, 0, 1), ((0, 1), 2, 0, 1)]
    sums = custom(3, [(origins, ends)], combining=True)
    problem = problem_of(linked("wide", [0, 0, 0], links), sums)
    better, _ = improve_schedule(first_of(problem), Limits(), turns=100)
    assert verify(better).ok and better.finish == us


@pytest.mark.fuzz
def test_a_tree_uses_a_multicast_link_once():
    """A rank that a tree loses is reached again by the send over the multicast link that still carries it."""
    for seed in cases("multicast links, ruined and recreated", few=12, many=600):
        rng = random.Random(seed)
        links = [(rank, (rank + 1) % 4, 0, rng.choice((1, 2, 3))) for rank in range(4)]
        for src in rng.sample(range(4), 3):
            heads = tuple(rank for rank in range(4) if rank != src)
            links.append((src, heads, rng.choice((0, 2)), rng.choice((2, 3, 5))))
        collective = collectives.make(rng.choice(("allreduce", "broadcast")), 4, chunks_per_rank=3)
        found = from_nothing(problem_of(linked("multicast", [0] * 4, links), collective), seed=seed)
        verify(found).raise_if_failed()
        sends = {*zip(found.chunk.tolist(), found.link.tolist(), found.reduce.tolist(), strict=True)}
        assert len(sends) == len(found)


@pytest.mark.fuzz
def test_sums_of_any_shape():
    """Random sums, with updates by servers or without: the schedule after a few iterations verifies."""
    for seed in cases("sums, ruined and recreated", few=2, many=800, first=300):
        problem = random_problem(seed, combining=True)
        problem = with_updates(problem, seed // 2 % 3) if seed % 2 else problem
        if suits_improvement(problem):
            better, _ = improve_schedule(first_of(problem), Limits(seed=seed), turns=10)
            verify(better).raise_if_failed()
            verify(from_nothing(problem, turns=10, seed=seed)).raise_if_failed()


def test_updates_by_servers_take_their_time():
    """The search counts the update of each sum, also of one to which only its server contributes."""
    for origins in ([0], [0, 1, 2]):
        problem = with_updates(problem_of(ring(3), custom(3, [(origins, [0, 1, 2])], combining=True)), 7)
        search = Improvement(problem, bare_trees(problem))
        finish, found = search.run(turns=20), search.schedule()
        verify(found).raise_if_failed()
        assert finish == found.finish_ticks >= problem.update_ticks[0]


def test_a_sum_that_is_passed_on_like_a_contribution():
    """A schedule whose last sends of a sum are marked as reductions, too, is improved without error.

    The contributions of ranks 0 and 1 add up at rank 1, and their sum is sent on to ranks 2 and 3.
    """
    topology = ring(4)
    problem = problem_of(topology, custom(4, [([0, 1], [3])], combining=True))
    ways = [
        next(e for e, link in enumerate(topology.links) if (link.src, link.dst) == (r, r + 1))
        for r in range(3)
    ]
    took = problem.costs.duration(ways[0], int(problem.costs.chunk_units[0]))
    starts = [0, took, 2 * took]
    first = exact_times(problem, chunk=[0, 0, 0], link=ways, starts=starts, reduce=[True] * 3)
    verify(first).raise_if_failed()
    for seed in range(4):
        better, _ = improve_schedule(first, Limits(seed=seed), turns=10)
        verify(better).raise_if_failed()


@pytest.mark.faulty
def test_the_verifier_has_the_last_word(monkeypatch):
    """A schedule that the verifier refuses never replaces a valid one."""
    problem = problem_of(ring(4), collectives.allgather(4))
    search = Search(problem, Options(), Deadline.after(60))
    right = from_nothing(problem)
    search.offer_whole(right, producer="")
    wrong = replace(right, start=right.start // 2, end=right.end // 2)
    monkeypatch.setattr(ruin, "improve_schedule", lambda *_, **__: (wrong, ""))
    ruin.ruin_and_recreate(search)
    assert search.best is right


def test_a_chunk_that_comes_from_several_ranks_at_once():
    """If one link sends a chunk from ranks 1 and 2 together to 0, there is no tree: the schedule is
    unchanged."""
    topology = linked("together", [0] * 3, [(2, 1), ((1, 2), 0)], alpha_us=1, beta_us_per_mb=1)
    problem = problem_of(topology, custom(3, [([2], [0, 1])] * 3))
    first = first_of(problem)
    assert improve_schedule(first, turns=100) == (first, "some chunks have no path along a tree")


@pytest.mark.parametrize(
    "name", ["allreduce", "broadcast", "allgather", "reduce", "reduce_scatter", "alltoall", "gather"]
)
def test_no_schedule_is_needed(name):
    """Without an initial schedule the search makes valid schedules, for all kinds of collectives on two NDv2."""
    topology = topologies.ndv2(2)
    problem = make_problem(topology, collectives.make(name, topology.num_ranks), chunk_bytes=MB)
    assert verify(from_nothing(problem, turns=20)).ok


@pytest.mark.parametrize(
    "problem",
    [
        problem_of(ring(3), collectives.allgather(3)),
        problem_of(star(3), collectives.broadcast(4, chunks_per_rank=2)),
        problem_of(full(3, port=True), collectives.allgather(3)),
        problem_of(two_nodes(), custom(4, [([0], [2, 3]), ([1], [2, 3])])),
        problem_of(late_hold(), custom(4, [([0], [2]), ([1], [3]), ([0], [3])])),
        problem_of(ring(3), custom(3, [([0, 1, 2], [0]), ([0, 1, 2], [1])], combining=True)),
        problem_of(full(3, port=True), custom(3, [([0, 1, 2], [1])] * 2, combining=True)),
    ],
    ids=lambda problem: problem.title,
)
def test_the_least_finish_of_tiny_problems(problem):
    """On tiny problems the search reaches the optimum of exhaustive search."""
    found = from_nothing(problem)
    assert verify(found).ok
    assert found.finish_ticks == optimal_ticks(problem)


def test_halves_of_an_allreduce_overlap():
    """Reduce and broadcast phases of an allreduce overlap: some copies start before the last sum is complete."""
    topology = topologies.ndv2(2)
    problem = make_problem(topology, collectives.allreduce(16), chunk_bytes=MB)
    found = from_nothing(problem, turns=50)
    reduces = found.reduce
    assert found.start[~reduces].min() < found.end[reduces].max()


@pytest.mark.slow
def test_a_reduction_is_improved_as_far_as_a_broadcast():
    """If links are symmetric, an improved reduction finishes within 3 % of the improved broadcast."""
    topology, finish = topologies.dgx_h100(2), {}
    for name in ("broadcast", "reduce"):
        problem = make_problem(topology, collectives.make(name, 16, chunks_per_rank=16), chunk_bytes=4 * MB)
        first = schedule_large(problem, num_runs=1)
        best, _ = improve_schedule(first, turns=5_000)
        verify(best).raise_if_failed()
        assert best.finish <= first.finish
        finish[name] = best.finish
    assert finish["reduce"] <= 1.03 * finish["broadcast"]


def test_more_links_do_not_hurt():
    """Four chunks to two ranks through a port take 16 us one by one, and 12 us with a multicast link."""
    alone = from_nothing(pair_of_pairs(multicast=False))
    both = from_nothing(pair_of_pairs(multicast=True))
    assert alone.finish_us == 16
    assert both.finish_us == 12


@pytest.mark.parametrize("givers", [(1, 2), (0, 1, 2)])
def test_links_of_several_sources_with_nothing_to_add_are_not_used(givers):
    """A link from ranks 0 and 1 adds up what both contribute to a sum at rank 2: 1 us, and 8 us by others.

    If rank 0 contributes nothing, the link is not used. The search starts from nothing, or from another
    schedule.
    """
    plain, wide = [(0, 1), (1, 2), (2, 0)], ((0, 1), 2, 0, 1)
    joined = linked("joined", [0] * 3, [*plain, wide], alpha_us=0, beta_us_per_mb=4)
    sums = custom(3, [(givers, [2])], combining=True)
    first = first_of(problem_of(joined, sums, links_allowed=frozenset(range(3))))
    given = replace(first, problem=problem_of(joined, sums))
    best = from_nothing(given.problem), improve_schedule(given, turns=100)[0]
    assert all(verify(each).ok for each in best)
    assert [each.finish_us for each in best] == [4 if len(givers) == 2 else 1] * 2


def test_what_merges_pays_the_latency_once():
    """Eight chunks over a link of 10 us + 1 us each: 18 us in one send, 88 us in eight."""
    topology = linked("pair", [0, 1], [(0, 1)], alpha_us=10, beta_us_per_mb=1)
    problem = problem_of(
        topology, collectives.broadcast(2, chunks_per_rank=8), merging=frozenset({0}), max_merge=8
    )
    assert from_nothing(problem).finish_us == 18


@pytest.mark.slow
def test_a_seed_finds_the_same_again():
    """Two runs with one seed give the same sends at the same times."""
    problem = make_problem(topologies.ndv2(2), collectives.allreduce(16), chunk_bytes=MB)
    first, second = (from_nothing(problem, turns=100, seed=3) for _ in range(2))
    assert first.digest() == second.digest()


@pytest.mark.slow
def test_few_turns_go_far():
    """On four DGX-1, 300 iterations improve the first schedule of an allgather in 2 chunks per rank by more
    than 3 %."""
    topology = topologies.dgx1(4)
    problem = make_problem(topology, collectives.allgather(32, chunks_per_rank=2), size_bytes=MB)
    first = schedule_large(problem, num_runs=1)
    better, _ = improve_schedule(first, turns=300)
    verify(better).raise_if_failed()
    assert better.finish_ticks < 0.97 * first.finish_ticks  # 0.937 to 0.963 for seeds 0 to 5


def test_chunks_that_are_not_free_keep_their_routes():
    """If only chunk 2 of an allgather may be re-routed ("free"), all other chunks keep their paths."""
    problem = make_problem(topologies.ndv2(1), collectives.allgather(8), chunk_bytes=MB)
    before = from_nothing(problem, turns=0)
    search = Improvement(problem, read_trees(before), chunks={2})
    search.run(turns=300)
    after = search.schedule()
    assert search.counts[1] > 0
    for old, new in zip(read_trees(before), read_trees(after), strict=True):
        assert old.chunk == 2 or old.link_to == new.link_to


def test_a_target_that_is_met_ends_the_search():
    """A search stops once its target finish is met."""
    problem = problem_of(ring(4), collectives.allgather(4))
    search = Improvement(problem, bare_trees(problem), Limits(target_ticks=10**9))
    search.run(turns=50)
    assert search.counts.tolist() == [0, 0, 0]


def test_an_unreachable_rank_ends_the_search():
    """If no link leads to rank 3, there is no schedule."""
    topology = ring(4)
    lost = [e for e, link in enumerate(topology.links) if 3 in link.dsts]
    problem = problem_of(without(topology, links=lost), collectives.allgather(4))
    search = Improvement(problem, bare_trees(problem))
    assert search.run(turns=5) == -1


def test_derived_chunks_and_local_first_priority_are_not_supported():
    """Improvement supports neither derived chunks nor local-first priority."""
    assert not suits_improvement(relayed())
    assert not suits_improvement(problem_of(ring(3), collectives.make("scan", 3)))


def test_the_calendar_holds_one_send_at_a_time():
    """After a search no two calendar entries of a resource overlap, and its load is the sum of all holds."""
    problem = make_problem(
        topologies.dgx_h100(2, profile="nominal"), collectives.allgather(16), chunk_bytes=MB
    )
    search = Improvement(problem, bare_trees(problem))
    search.run(turns=30)
    best, arcs = search.best, search.arcs
    load = np.zeros_like(best.load)
    for m in best.order[: best.size[0]].tolist():
        rows = slice(arcs.hold_of[best.link[m]], arcs.hold_of[best.link[m] + 1])
        load[arcs.resource[rows]] += arcs.hold_alpha[rows] + best.units[m] * arcs.hold_beta[rows]
    assert best.load.tolist() == load.tolist()
    assert verify(search.schedule()).ok


def test_a_search_without_success_ends():
    """A problem of two sends has few schedules: the search ends long before its limit of 10**7 iterations."""
    first = schedule_large(make_problem(topologies.ring(2), collectives.allgather(2), chunk_bytes=MB))
    better, done = improve_schedule(first, turns=10**7)
    assert better == first
    turns = 3 * first_turns(len(first), DEFAULTS.ruin)  # one run, and another of twice the turns
    assert done == f"{turns} iterations, 0 of them better, from {first.finish_us:.4g} us"


@pytest.mark.slow
def test_what_one_seed_does_not_find_another_may():
    """After a run without improvement the next run has twice the iterations and another seed."""
    collective = collectives.broadcast(5, chunks_per_rank=8)
    problem = make_problem(topologies.star(5), collective, chunk_bytes=MB)
    first, found = schedule_large(problem, num_runs=1), []
    for runs in (1, 6):
        ruin = {"idle_runs": runs, "run_turns": 10}
        limits = Limits(parameters=SearchParameters.from_dict({"ruin": ruin}))
        found.append(improve_schedule(first, limits, turns=20_000))
    (alone, few), (best, many) = found
    assert verify(best).ok
    assert best.finish < alone.finish
    assert int(few.split()[0]) < int(many.split()[0])


def test_a_send_that_is_taken_over_has_one_link():
    """Two sends of one chunk over different links stay two sends, even if re-planning gave both one group
    number."""
    problem = make_problem(topologies.ring(5), collectives.allgather(5), chunk_bytes=MB)
    problem = problem.with_clauses(max_merge=4, merging=frozenset(range(len(problem.topology.links))))
    trees = read_trees(first_of(problem))
    for number, tree in enumerate(trees):
        tree.read_from = {rank: sent._replace(group=-1 - number) for rank, sent in tree.read_from.items()}
    now = Improvement(problem, trees).now
    used = now.way >= 0
    assert (now.link[now.send[used]] == now.way[used]).all()


def test_a_finish_that_the_calendar_underestimates_is_not_believed(monkeypatch):
    """If a run reports a finish of 1 tick, but its schedule is later than the start, the start is returned.

    A full calendar drops occupations, so a run may report too early a finish.
    """
    problem = problem_of(ring(4), collectives.allgather(4))
    start = schedule_large(problem, num_runs=1)
    later = replace(start, start=start.start + 1, end=start.end + 1)
    monkeypatch.setattr(Improvement, "run", lambda *_, **__: 1)
    monkeypatch.setattr(Improvement, "schedule", lambda *_, **__: later)
    best, _ = improve_schedule(start, turns=10)
    assert best is start

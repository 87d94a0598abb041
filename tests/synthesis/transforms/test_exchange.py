"""Sums that two ranks complete at the same time by an exchange of partial sums."""

import random
import time
from dataclasses import replace

import pytest

import taccl
from taccl import collectives
from taccl._internal.deadline import Deadline
from taccl.baselines import baseline
from taccl.schedule.listing import listed
from taccl.schedule.timing import exact_times
from taccl.synthesis.budget import run
from taccl.synthesis.improve.improvement import Improvement
from taccl.synthesis.improve.routes import read_trees
from taccl.synthesis.proposers import ruin
from taccl.synthesis.proposers.finer import cut, search_for
from taccl.synthesis.proposers.table import LAST, PROPOSERS
from taccl.synthesis.replan import replan
from taccl.synthesis.search import Options, Search
from taccl.synthesis.transforms.exchange import exchange_s, exchanged, offer_exchanged
from taccl.topology.builder import TopologyBuilder
from taccl.topology.transform import without
from tests.effort import AMPLE_S, brief_synthesis
from tests.fuzzing import cases, some
from tests.synthesis.small_problems import custom, full, problem_of, random_problem, ring, two_levels


def line(num_ranks):
    """A line with links both ways, 1 us each."""
    builder = TopologyBuilder("line", [0] * num_ranks)
    for rank in range(num_ranks - 1):
        builder.add_link(rank, rank + 1, alpha_us=0, beta_us_per_mb=1)
        builder.add_link(rank + 1, rank, alpha_us=0, beta_us_per_mb=1)
    return builder.build()


def one_sum(topology, *sends, **clauses):
    """A sum of all ranks for all ranks, root 1, by sends (from, to, reduce) in order, as early as possible."""
    everyone = range(topology.num_ranks)
    problem = problem_of(topology, custom(len(everyone), [(everyone, everyone)], combining=True), **clauses)
    link = {(each.src, each.dst): e for e, each in enumerate(topology.links)}
    return exact_times(
        problem, chunk=[0] * len(sends), link=[link[a, b] for a, b, _ in sends], sequence=range(len(sends)),
        reduce=[added for _, _, added in sends], producer="by hand",
    )  # fmt: skip


ALONG_A_LINE = [(0, 1, True), (3, 2, True), (2, 1, True), (1, 2, False), (1, 0, False), (2, 3, False)]


def test_the_middle_of_a_line_exchanges():
    """Four ranks in a line take 4 us through root 1, and 3 us if ranks 1 and 2 exchange partial sums."""
    schedule = one_sum(line(4), *ALONG_A_LINE)
    found = exchanged(schedule)
    taccl.verify(found).raise_if_failed()
    assert (schedule.finish_us, found.finish_us) == (4, 3)
    assert (len(found), found.producer) == (len(schedule), "by hand, sums exchanged")
    assert exchanged(found) is None  # two ranks complete it: no one is the root


def test_an_exchange_is_read_as_trees():
    """If an exchange is read as trees, one of its two ranks becomes the root.

    The other rank receives the sum from the root and forwards it to its subtree.
    """
    reduction, spreading = read_trees(exchanged(one_sum(line(4), *ALONG_A_LINE)))
    (root,) = reduction.origins
    assert root in (1, 2) and spreading.origins == {root}
    assert reduction.link_to.keys() == spreading.link_to.keys() == {0, 1, 2, 3} - {root}
    starts = {rank: sent.start_ticks for rank, sent in spreading.read_from.items()}
    assert starts[3 - root] >= max(sent.end_ticks for sent in reduction.read_from.values())
    assert starts[0 if root == 2 else 3] >= spreading.read_from[3 - root].end_ticks


def test_improvement_begins_from_an_exchange():
    """Improvement of an exchange starts from trees with one root, which finish at 4 us, as without exchange."""
    found = exchanged(one_sum(line(4), *ALONG_A_LINE))
    search = Improvement(found.problem, read_trees(found))
    assert found.problem.costs.us(search.run(turns=0)) == 4
    taccl.verify(search.schedule()).raise_if_failed()


@pytest.mark.slow
def test_what_fails_leaves_most_of_an_exchange():
    """After a link failed, most sends of an exchanged schedule are kept. The others are re-planned along
    trees, whose sums are then exchanged."""
    topology = ring(6, alpha=0)
    problem = problem_of(topology, collectives.allreduce(6))
    old = exchanged(baseline("ring", problem, cut=False))
    assert old.producer.endswith("sums exchanged")
    left = without(topology, links=[(0, 1)])
    found = replan(old, problem_of(left, collectives.allreduce(6)), time_limit_s=3)
    assert not found.from_scratch and found.num_kept > len(old) / 2


def test_what_is_exchanged_is_lowered():
    """The lowered program of an exchange runs with one buffer per rank."""
    found = exchanged(one_sum(line(4), *ALONG_A_LINE))
    program = taccl.lower(found)
    assert program.num_steps


def test_no_exchange_if_both_ends_are_equally_far_from_the_root():
    """On a line of three both ends reach the middle at the same time, so no exchange helps."""
    schedule = one_sum(line(3), (0, 1, True), (2, 1, True), (1, 0, False), (1, 2, False))
    assert exchanged(schedule) is None


def test_a_sum_that_returns_over_another_link_stays():
    """If the sum returns over another link, the schedule is unchanged."""
    sends = [(2, 1, True), (0, 1, True), (1, 2, False), (2, 0, False)]
    assert exchanged(one_sum(full(3), *sends)) is None


def test_list_scheduling_keeps_a_schedule_along_a_line():
    """A schedule along a line is unchanged if its sends are list-scheduled again, longest first or not."""
    schedule = one_sum(line(4), *ALONG_A_LINE)
    for longest_first in (False, True):
        again = listed(schedule, longest_first=longest_first)
        taccl.verify(again).raise_if_failed()
        assert again.digest() == schedule.digest()


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "steps"), [(4, 3), (6, 5), (8, 7)])
def test_rings_of_even_length_take_one_step_less(num_ranks, steps):
    """Rings of even length take one step less with an exchange in the last reduce step."""
    problem = problem_of(ring(num_ranks, alpha=0), collectives.allreduce(num_ranks))
    result = brief_synthesis(problem)
    taccl.verify(result.schedule).raise_if_failed()
    assert result.finish_us == steps


def test_exchange_is_offered_last_and_only_if_it_finishes_earlier():
    """An exchange of the best schedule replaces it only if it finishes earlier."""
    schedule = one_sum(line(4), *ALONG_A_LINE)
    search = Search(schedule.problem, Options(), Deadline.after(60))
    search.offer_whole(schedule, producer="some")
    offer_exchanged(search)
    assert search.best.finish_us == 3 and search.stages[-1].name == "exchange"
    same = search.best
    offer_exchanged(search)
    assert search.best is same


def test_sums_in_finer_chunks_are_exchanged_at_the_end():
    """An allreduce of 1 MB on a DGX A100 in four chunks per rank is earliest, and earlier with an exchange."""
    problem = taccl.make_problem(taccl.topologies.dgx_a100(1), "allreduce", size_bytes="1MB")
    search = Search(problem.in_its_chunks, Options(), Deadline.after(AMPLE_S), asked=problem)
    finer = cut(problem.in_its_chunks, 4)
    search.others.append(search_for(search, baseline("multiplying", finer, cut=False)))
    before = search.earliest_search.finish
    run(search, [each for each in LAST if each.proposer.name == "exchange in finer chunks"])
    assert search.earliest_search.best.producer.endswith("sums exchanged")
    assert search.earliest_search.finish < before


def searching(schedule):
    """A search whose best schedule is along trees, and the proposers of exchanges and of ruin and recreate."""
    search = Search(schedule.problem, Options(), Deadline.after(AMPLE_S), limit_s=AMPLE_S)
    search.offer_whole(schedule, producer="some")
    return search, [each for each in PROPOSERS if each.proposer.name in ("exchange", "ruin and recreate")]


def test_sums_of_improved_trees_are_exchanged(monkeypatch):
    """Ruin and recreate starts from the best schedule along trees, and the sums of its result are exchanged."""
    given = []
    schedule = one_sum(line(4), *ALONG_A_LINE)

    def improve(found, limits):
        given.append(found)
        return replace(found, producer="improved"), ""

    monkeypatch.setattr(ruin, "improve_schedule", improve)
    monkeypatch.setattr(ruin, "have_compiled", lambda _: True)
    search, turns = searching(schedule)
    search.deadline = Deadline.after(AMPLE_S)
    run(search, turns)
    assert [each.digest() for each in given] == [schedule.digest()]
    assert search.best.producer.endswith("sums exchanged") and search.best.finish_us == 3


def test_an_exchange_that_meets_the_bound_precedes_improvement():
    """An exchange is proposed before improvement only if no schedule finishes earlier than its result."""
    search, (first, *_) = searching(one_sum(line(4), *ALONG_A_LINE))
    run(search, [first])
    assert search.best.finish_us == 4  # without a bound
    search.prove(taccl.lower_bound(search.problem), time.monotonic())
    run(search, [first])
    assert search.best.finish_us == 3 and search.is_met


def test_the_best_schedule_along_trees_is_kept_beside_a_better_one():
    """If the incumbent names contributions, the best schedule along trees is kept, also from a sketch."""
    problem = problem_of(full(3), collectives.allreduce(3))
    one_shot, tree = (baseline(each, problem, cut=False).under(problem) for each in ("one-shot", "tree"))
    search = Search(problem, Options(), Deadline.after(60))
    part = search.part(problem, "sketch: ", search.deadline, serves_above=True)
    for each in (one_shot, tree):
        part.offer_whole(each, producer="some")
    assert search.best is one_shot and search.best_along_trees.digest() == tree.digest()


def test_named_contributions_are_left_alone():
    """One-shot sends name individual contributions, so no rank has a partial sum to exchange."""
    schedule = baseline("one-shot", problem_of(full(3), collectives.allreduce(3)), cut=False)
    assert schedule.carries is not None
    assert exchanged(schedule) is None


def test_no_time_is_reserved_for_an_exchange_that_takes_too_long():
    """Nothing is reserved for an allreduce that is too large for the time."""
    reduction = problem_of(ring(4), collectives.allreduce(4))
    assert exchange_s(reduction, 60.0) > 0 == exchange_s(reduction, 0.01)


@pytest.mark.fuzz
def test_exchanged_sums_are_sums():
    """Exchanged schedules of random problems verify and have as many sends as before."""
    found = 0
    for seed in cases("sums exchanged", few=4, many=500):
        rng = random.Random(f"sums exchanged {seed}")
        betas = [rng.randrange(3) for _ in range(4)]
        around = ring(rng.randint(3, 7), betas=betas), two_levels(2, local=1, nic=rng.randint(1, 4)), line(5)
        topology = rng.choice(around)
        sums = collectives.allreduce(topology.num_ranks, chunks_per_rank=rng.randint(1, 2))
        problem = random_problem(seed, combining=True) if seed % 3 == 0 else problem_of(topology, sums)
        schedule = brief_synthesis(problem, backend="greedy").schedule
        try:
            other = exchanged(schedule)
        except ValueError:
            continue
        if other is not None:
            taccl.verify(other).raise_if_failed()
            assert len(other) == len(schedule)
            found += 1
    assert found > some(0, 100)

"""The job shop: inputs, answers, and sums that are complete when all contributions have arrived."""

from dataclasses import replace

import pytest

from taccl import collectives
from taccl.synthesis.milp import jobshop
from taccl.synthesis.milp.solutions import needed_hops
from taccl.synthesis.proposers.greedy import critical_priorities, list_schedule
from taccl.synthesis.symmetry.quotient import take_quotient
from tests.effort import AMPLE_S, in_time
from tests.synthesis.small_problems import custom, full, linked, problem_of, ring


def orbits_of(problem):
    """Quotient of a problem without its symmetry: the problem itself."""
    return take_quotient(problem)


def listed(quotient, *, backward=False):
    """A list schedule to start from. With `backward`, chunks with the shortest way go first, which is a poor
    order."""
    sign = -1 if backward else 1
    found = list_schedule(quotient, [sign * p for p in critical_priorities(quotient)])
    assert found is not None
    return found


def solved(quotient, upper, **options):
    """The job shop's answer, with every hop optional unless the options say otherwise."""
    hops = {"optional": range(len(quotient.hops)), "required": (), "time_limit_s": AMPLE_S}
    return jobshop.solve(quotient, upper_ticks=upper, **(hops | options))


def late(problem):
    """The quotient of a problem whose list schedule by backward priorities takes 6 ticks, while the optimum
    takes 4."""
    quotient = orbits_of(problem)
    assert listed(quotient, backward=True).finish_ticks == 6
    return quotient


def two_hops():
    """One chunk for rank 1, one for rank 2 through rank 1, 2 us per hop: the far chunk first gives 4 us."""
    topology = linked("line", [0] * 3, [(0, 1), (1, 2)], alpha_us=1, beta_us_per_mb=1)
    return problem_of(topology, custom(3, [([0], [1]), ([0], [2])]))


def test_a_hint_is_improved_on():
    """A hint of 6 ticks is improved to the optimum of 4."""
    quotient = late(two_hops())
    answer = solved(quotient, 6, hint=listed(quotient, backward=True))
    assert (answer.status, answer.bound_ticks) == ("optimal", 4)
    assert answer.schedule.finish_ticks == 4


def test_a_hint_that_does_not_fit_does_no_harm():
    """A hint of 6 ticks above the upper limit of 4 does no harm."""
    quotient = late(two_hops())
    answer = solved(quotient, 4, hint=listed(quotient, backward=True))
    assert answer.schedule.finish_ticks == 4


def test_required_hops_of_a_hint_make_a_schedule():
    """If all hops of the hint are required and no others are optional, the schedule has just these hops."""
    quotient = orbits_of(problem_of(ring(3), collectives.broadcast(3)))
    hint = listed(quotient)
    needed = [m for send in hint.sends for m in send.hops]
    answer = solved(quotient, hint.finish_ticks, optional=(), required=needed, hint=hint)
    assert answer.schedule is not None
    assert sorted(m for send in answer.schedule.sends for m in send.hops) == sorted(needed)


def test_no_schedule_is_shorter_than_the_best():
    """A limit of 3 us, below the optimum of 4, is infeasible: no schedule and no bound."""
    answer = solved(late(two_hops()), 3)
    assert (answer.status, answer.schedule, answer.bound_ticks) == ("infeasible", None, None)


def test_a_proven_lower_bound_is_believed():
    """Neither the finish nor the bound is reported below a given lower bound."""
    answer = solved(late(two_hops()), 6, lower_ticks=5)
    assert (answer.status, answer.schedule.finish_ticks, answer.bound_ticks) == ("optimal", 5, 5)
    assert max(send.end_ticks for send in answer.schedule.sends) <= 5


def test_a_lower_bound_above_the_upper_one_is_cut():
    """A lower bound above the upper limit is reduced to it, and a schedule that meets the limit is found."""
    answer = solved(late(two_hops()), 4, lower_ticks=5)
    assert answer.schedule.finish_ticks == 4


def heavy():
    """A problem too large to solve in seconds, and its list schedule: alltoall on a ring of 12, no symmetry."""
    quotient = orbits_of(problem_of(ring(12, betas=(0, 1, 3, 2)), collectives.alltoall(12)))
    return quotient, listed(quotient)


@pytest.mark.slow
def test_a_time_limit_is_kept():
    """Within 0.3 s the answer is feasible or no-solution, not optimal; a schedule comes with a bound."""
    quotient, hint = heavy()
    answer = solved(quotient, hint.finish_ticks, hint=hint, time_limit_s=0.3)
    assert answer.status in ("feasible", "no-solution")
    assert (answer.schedule is None) == (answer.status == "no-solution")
    assert answer.schedule is None or (answer.bound_ticks or 0) < answer.schedule.finish_ticks


@pytest.mark.slow
def test_what_was_found_by_the_time_limit_is_returned():
    """The schedule found by the time limit is returned, with too little time for its proof."""
    quotient, hint = heavy()
    needed = needed_hops(quotient, hint)

    def attempt(limit_s):
        return solved(
            quotient, 2 * hint.finish_ticks, optional=(), required=needed, hint=hint, time_limit_s=limit_s
        )

    answer = in_time(attempt, lambda found: found.schedule is not None)
    assert answer.status in ("feasible", "optimal")
    assert answer.schedule is not None
    assert sum(len(send.hops) for send in answer.schedule.sends) == len(needed)
    assert answer.schedule.finish_ticks <= hint.finish_ticks


def test_progress_reports_every_better_schedule():
    """Progress reports every better schedule with its finish; the last is the answer's."""
    quotient, news = late(two_hops()), []
    answer = solved(quotient, 6, hint=listed(quotient, backward=True), on_progress=news.append)
    assert answer.schedule is not None
    finishes = [each["finish"] for each in news]
    assert finishes == sorted(finishes, reverse=True)
    assert finishes[-1] == answer.schedule.finish_ticks


def test_the_same_seed_gives_the_same_schedule():
    """One seed on one thread gives the same schedule twice."""
    quotient = orbits_of(problem_of(ring(4), collectives.allgather(4)))
    one, same = (solved(quotient, 6, seed=3, threads=1) for _ in range(2))
    assert one.schedule == same.schedule


def hops_of(answer):
    """The hops of the answer's schedule."""
    assert answer.schedule is not None
    return sorted(m for send in answer.schedule.sends for m in send.hops)


def test_optional_hops_are_made_as_needed():
    """A broadcast to three ranks uses three of nine optional hops."""
    quotient = orbits_of(problem_of(full(4), collectives.broadcast(4)))
    assert len(quotient.hops) == 9
    assert len(hops_of(solved(quotient, 1))) == 3


def test_required_hops_are_made():
    """Required hops are made: the chunk must go 0 -> 1 -> 2, though rank 0 could send to both in 1 us."""
    quotient = orbits_of(problem_of(full(3), collectives.broadcast(3)))
    ends = {(m.srcs[0], m.dsts[0]): i for i, m in enumerate(quotient.hops)}
    number = {state.rank: p for p, state in enumerate(quotient.states)}
    ways = [ends[number[0], number[1]], ends[number[1], number[2]]]
    answer = solved(quotient, 3, optional=(), required=ways)
    assert hops_of(answer) == sorted(ways)
    assert answer.bound_ticks == 2


def test_hops_that_are_not_given_are_not_made():
    """Hops that are not given are not used: without 0 -> 1, a broadcast on a full graph goes through 2."""
    quotient = orbits_of(problem_of(full(3), collectives.broadcast(3)))
    links = quotient.problem.topology.links
    left = [m for m, hop in enumerate(quotient.hops) if (links[hop.link].src, links[hop.link].dst) != (0, 1)]
    answer = solved(quotient, 3, optional=left)
    assert answer.bound_ticks == 2
    assert set(hops_of(answer)) <= set(left)


def test_a_destination_that_nothing_enters_is_infeasible():
    """Without any hop the destinations are unreachable: infeasible."""
    quotient = orbits_of(problem_of(full(3), collectives.broadcast(3)))
    assert solved(quotient, 5, optional=()).status == "infeasible"


def test_chunks_that_may_merge_go_in_one_send():
    """Three chunks of 2 + 1 us over a link that merges three go in one send of 5 us."""
    topology = linked("merge", [0, 1], [(0, 1)], alpha_us=2, beta_us_per_mb=1)
    problem = problem_of(topology, custom(2, [([0], [1])] * 3), merging=frozenset({0}), max_merge=3)
    answer = solved(orbits_of(problem), 9)
    (send,) = answer.schedule.sends
    assert (len(send.hops), send.start_ticks, send.end_ticks) == (3, 0, 5)


@pytest.mark.parametrize("merging", [frozenset(), frozenset({0})], ids=["one by one", "merging"])
def test_own_chunks_go_first(merging):
    """An own chunk and a relayed one, of 2 + 1 us each, are not merged; the own chunk goes first."""
    problem = problem_of(
        linked("lane", [0, 1], [(0, 1)], alpha_us=2, beta_us_per_mb=1),
        custom(2, [([0], [1])] * 2),
        merging=merging,
        max_merge=2,
        own_first=frozenset({0}),
    )
    quotient = orbits_of(problem)
    own, relayed = quotient.hops
    quotient = replace(quotient, hops=(own, replace(relayed, is_own=False)))
    answer = solved(quotient, 10, optional=(), required=(0, 1))
    assert [send.hops for send in answer.schedule.sends] == [(0,), (1,)]
    assert answer.bound_ticks == 6

"""The list scheduler: obeys every rule, gives up when told, and gets stuck nowhere."""

import pytest

from taccl import collectives
from taccl.analysis.verification.verify import verify
from taccl.problem.problem import make_problem
from taccl.synthesis.milp import jobshop
from taccl.synthesis.milp.solutions import needed_hops
from taccl.synthesis.proposers.greedy import critical_priorities, expand, list_schedule
from taccl.synthesis.symmetry.quotient import take_quotient
from taccl.topology.builder import TopologyBuilder
from tests.effort import brief_synthesis
from tests.fuzzing import some
from tests.synthesis.brute_force import TooLarge, optimal_ticks
from tests.synthesis.small_problems import (
    custom,
    late_hold,
    linked,
    problem_of,
    random_problem,
    relayed,
    ring,
    star,
    two_nodes,
)

MB = 10**6


def orbits_of(problem):
    """The problem itself."""
    return take_quotient(problem)


def test_the_longest_way_goes_first():
    """Rank 0 sends to 3 by 1, and to 1: the chunk with more ahead of it leaves first, 2 us a hop.

    So 0 -> 1 at 0 and 2, 1 -> 3 at 2: all is there at 4, the other way round at 6.
    """
    topology = linked("line", [0] * 3, [(0, 1), (1, 2)], alpha_us=1, beta_us_per_mb=1)
    quotient = orbits_of(problem_of(topology, custom(3, [([0], [1]), ([0], [2])])))
    found = list_schedule(quotient, critical_priorities(quotient))
    assert found.finish_ticks == 4


def test_priorities_decide():
    """With the priorities turned round it takes 6."""
    topology = linked("line", [0] * 3, [(0, 1), (1, 2)], alpha_us=1, beta_us_per_mb=1)
    quotient = orbits_of(problem_of(topology, custom(3, [([0], [1]), ([0], [2])])))
    found = list_schedule(quotient, [-p for p in critical_priorities(quotient)])
    assert found.finish_ticks == 6


def test_noise_depends_on_the_seed_alone():
    """The same seed gives the same priorities, another one others."""
    quotient = orbits_of(problem_of(ring(4), collectives.allgather(4)))
    one, same, other = (critical_priorities(quotient, noise=1.0, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_a_limit_ends_the_run():
    """Nothing is returned that does not finish before the limit."""
    quotient = orbits_of(problem_of(ring(4), collectives.allgather(4)))
    priorities = critical_priorities(quotient)
    found = list_schedule(quotient, priorities)
    assert list_schedule(quotient, priorities, limit_ticks=found.finish_ticks) is None
    assert list_schedule(quotient, priorities, limit_ticks=found.finish_ticks + 1) == found


def test_own_chunks_leave_first():
    """On own-first links the relayed chunk starts a latency after the last own one."""
    problem = relayed()
    schedule = brief_synthesis(problem, backend="greedy").schedule
    assert verify(schedule).ok
    assert schedule.finish_ticks == optimal_ticks(problem)


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem",
    [
        problem_of(star(3), collectives.broadcast(4)),
        problem_of(two_nodes(), collectives.allgather(4), merging=frozenset({4, 5, 6}), max_merge=3),
        problem_of(two_nodes(meaning="pipelined"), collectives.allgather(4)),
        problem_of(late_hold(), custom(4, [([0], [2, 3]), ([1], [3])])),
    ],
    ids=["star", "merging", "pipelined", "late hold"],
)
def test_the_best_of_many_runs_is_the_optimum_of_these(problem):
    """Restarts find what exhaustive search finds."""
    schedule = brief_synthesis(problem, backend="greedy").schedule
    assert schedule.finish_ticks == optimal_ticks(problem)


@pytest.mark.slow
@pytest.mark.parametrize("combining", [False, True], ids=["copies", "sums"])
def test_random_problems_get_schedules_that_verify(combining):
    """Whatever holds, merges and orders there are; never better than the optimum."""
    for seed in range(1, some(8, 80)):
        problem = random_problem(seed, combining=combining)
        schedule = brief_synthesis(problem, backend="greedy").schedule
        assert verify(schedule).ok, seed
        try:
            assert schedule.finish_ticks >= optimal_ticks(problem, max_states=400), seed
        except TooLarge:
            continue


def dead_end():
    """Two chunks from 0 to 2 over one link of 46 us; 0 -> 1 and 1 -> 0 take 1 us, so the detour is in reach."""
    builder = TopologyBuilder("dead end", [0, 0, 0])
    for src, dst, beta in ((0, 1, 1), (1, 0, 1), (0, 2, 46)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
    return make_problem(builder.build(), custom(3, [([0], [2]), ([0], [2])]), chunk_bytes=MB)


def test_a_chunk_with_one_destination_takes_no_dead_end():
    """A chunk that waits for its only link must not wander off and never come back."""
    assert brief_synthesis(dead_end(), backend="greedy").schedule.finish_ticks == 92


def test_a_chunk_with_one_destination_stays_there():
    """While the second of two chunks 0 -> 1 is on its way, the first does not go on from 1 to 2."""
    quotient = orbits_of(problem_of(ring(3), custom(3, [([0], [1]), ([0], [1])])))
    found = list_schedule(quotient, critical_priorities(quotient))
    assert {m for send in found.sends for m in send.hops} == needed_hops(quotient, found)


@pytest.mark.parametrize(("chunks_per_rank", "finish"), [(1, 49), (2, 68)])
def test_a_multicast_may_bring_a_rank_what_it_made_itself(chunks_per_rank, finish):
    """Of scan: rank 1 makes prefix 1 and sends it on, long before 0's multicast brings it there on its way to 3.

    One chunk: 2 us from 0 to 1, where prefix 1 is made; 11 + 2 + 2 + 2 on to 2 by 4, 0 and 3, where prefix 2
    is made at 19; 1 + 11 + 2 + 2 on to 3, prefix 3 at 35; 2 + 1 + 11 on to 4.
    """
    builder = TopologyBuilder("scan", [0] * 5)
    for src, dst, alpha, beta in ((4, 0, 1, 1), (2, 1, 0, 1), (1, 4, 10, 1), (3, 2, 0, 2), (0, (1, 3), 1, 1)):
        builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
    problem = problem_of(builder.build(), collectives.scan(5, chunks_per_rank=chunks_per_rank))
    quotient = orbits_of(problem)
    found = list_schedule(quotient, critical_priorities(quotient))
    schedule = expand(quotient, found.sends, producer="test")
    assert verify(schedule).ok
    assert schedule.finish_ticks == finish


def test_what_stays_is_not_sent_on_by_the_job_shop_either():
    """Alltoall on a ring on which any way is allowed: what the list scheduler does can be asked for."""
    quotient = orbits_of(problem_of(ring(8, betas=(0, 1, 2)), collectives.alltoall(8)))
    found = list_schedule(quotient, critical_priorities(quotient))
    made = {m for send in found.sends for m in send.hops}
    answer = jobshop.solve(
        quotient, optional=(), required=made, upper_ticks=found.finish_ticks, hint=found, time_limit_s=5.0
    )
    assert answer.status in ("feasible", "optimal")


def apart(**clauses):
    """A broadcast to a node whose two ranks are not joined: it must be entered twice, own chunks first."""
    topology = linked("apart", [0, 1, 1], [(0, 1), (0, 2)], alpha_us=0, beta_us_per_mb=1)
    return problem_of(topology, collectives.broadcast(3), **clauses)


@pytest.mark.parametrize("own_first", [frozenset(), frozenset({0, 1})], ids=["plain", "own first"])
def test_a_node_that_must_be_entered_twice_is(own_first):
    """One run is enough."""
    quotient = orbits_of(apart(own_first=own_first))
    found = list_schedule(quotient, critical_priorities(quotient))
    assert verify(expand(quotient, found.sends, producer="test")).ok

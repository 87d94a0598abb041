"""The list scheduler: obeys every clause, stops at limits, and never deadlocks."""

import pytest

from taccl import collectives
from taccl.analysis.verification.verify import verify
from taccl.problem.making import make_problem
from taccl.synthesis.milp import jobshop
from taccl.synthesis.milp.solutions import needed_hops
from taccl.synthesis.proposers.greedy import critical_priorities, expand, list_schedule
from taccl.synthesis.symmetry.quotient import take_quotient
from taccl.topology.builder import TopologyBuilder
from tests.effort import brief_synthesis
from tests.fuzzing import some
from tests.synthesis.brute_force import optimal_ticks
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
    """Quotient of a problem without its symmetry: the problem itself."""
    return take_quotient(problem)


def test_the_longest_path_goes_first():
    """The chunk with more hops goes first.

    Rank 0 sends one chunk to rank 1, and another through rank 1 to rank 2, with 2 us per hop. If the far one goes
    first, all is done at 4 us, else at 6 us.
    """
    topology = linked("line", [0] * 3, [(0, 1), (1, 2)], alpha_us=1, beta_us_per_mb=1)
    quotient = orbits_of(problem_of(topology, custom(3, [([0], [1]), ([0], [2])])))
    found = list_schedule(quotient, critical_priorities(quotient))
    assert found.finish_ticks == 4


def test_priorities_decide():
    """With reversed priorities the nearer of two chunks goes first, and the finish is 6 us instead of 4."""
    topology = linked("line", [0] * 3, [(0, 1), (1, 2)], alpha_us=1, beta_us_per_mb=1)
    quotient = orbits_of(problem_of(topology, custom(3, [([0], [1]), ([0], [2])])))
    found = list_schedule(quotient, [-p for p in critical_priorities(quotient)])
    assert found.finish_ticks == 6


def test_noise_depends_on_the_seed_alone():
    """The same seed gives the same noisy priorities, another seed different ones."""
    quotient = orbits_of(problem_of(ring(4), collectives.allgather(4)))
    one, same, other = (critical_priorities(quotient, noise=1.0, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_a_limit_ends_the_run():
    """No schedule is returned unless it finishes before the limit."""
    quotient = orbits_of(problem_of(ring(4), collectives.allgather(4)))
    priorities = critical_priorities(quotient)
    found = list_schedule(quotient, priorities)
    assert list_schedule(quotient, priorities, limit_ticks=found.finish_ticks) is None
    assert list_schedule(quotient, priorities, limit_ticks=found.finish_ticks + 1) == found


@pytest.mark.slow
def test_own_chunks_leave_first():
    """Under local-first priority a relayed chunk starts one latency after the last own chunk."""
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
    """With restarts the list scheduler reaches the optimum of exhaustive search."""
    schedule = brief_synthesis(problem, backend="greedy").schedule
    assert schedule.finish_ticks == optimal_ticks(problem)


@pytest.mark.slow
@pytest.mark.parametrize("combining", [False, True], ids=["copies", "sums"])
def test_random_problems_get_schedules_that_verify(combining):
    """Random problems with holds, merging and local-first priority: schedules are valid, none below the
    optimum."""
    for seed in range(1, some(4, 80)):
        problem = random_problem(seed, combining=combining)
        schedule = brief_synthesis(problem, backend="greedy").schedule
        assert verify(schedule).ok, seed
        best = optimal_ticks(problem, max_states=400)
        assert best is None or schedule.finish_ticks >= best, seed


def dead_end():
    """Two chunks from 0 to 2 over one link of 46 us; 0 -> 1 and 1 -> 0 take 1 us and lead nowhere else."""
    builder = TopologyBuilder("dead end", [0, 0, 0])
    for src, dst, beta in ((0, 1, 1), (1, 0, 1), (0, 2, 46)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
    return make_problem(builder.build(), custom(3, [([0], [2]), ([0], [2])]), chunk_bytes=MB)


def test_a_chunk_with_one_destination_takes_no_dead_end():
    """A chunk that waits for its only link takes no detour into a dead end."""
    assert brief_synthesis(dead_end(), backend="greedy").schedule.finish_ticks == 92


def test_a_chunk_with_one_destination_stays_there():
    """The first of two chunks 0 -> 1 is not forwarded to 2 while the second is in flight."""
    quotient = orbits_of(problem_of(ring(3), custom(3, [([0], [1]), ([0], [1])])))
    found = list_schedule(quotient, critical_priorities(quotient))
    assert {m for send in found.sends for m in send.hops} == needed_hops(quotient, found)


@pytest.mark.parametrize(("chunks_per_rank", "finish"), [(1, 49), (2, 68)])
def test_a_multicast_may_bring_a_rank_what_it_made_itself(chunks_per_rank, finish):
    """A multicast may deliver a prefix to a rank that has already derived and forwarded the prefix itself.

    In this scan that is rank 1. Computed by hand: a chunk takes 2 us from 0 to 1, where prefix 1 is formed.
    It reaches 2 through 4, 0 and 3 after 11 + 2 + 2 + 2 us, where prefix 2 is formed at 19 us. Prefix 2
    reaches 3 after 1 + 11 + 2 + 2 us, where prefix 3 is formed at 35 us. Prefix 3 reaches 4 after 2 + 1 + 11
    us.
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
    """For an alltoall with all paths allowed, the job shop is feasible if the list scheduler's hops are required."""
    quotient = orbits_of(problem_of(ring(8, betas=(0, 1, 2)), collectives.alltoall(8)))
    found = list_schedule(quotient, critical_priorities(quotient))
    made = {m for send in found.sends for m in send.hops}
    answer = jobshop.solve(
        quotient, optional=(), required=made, upper_ticks=found.finish_ticks, hint=found, time_limit_s=5.0
    )
    assert answer.status in ("feasible", "optimal")


def apart(**clauses):
    """A broadcast to a node whose two ranks are not connected, so the chunk must enter it twice."""
    topology = linked("apart", [0, 1, 1], [(0, 1), (0, 2)], alpha_us=0, beta_us_per_mb=1)
    return problem_of(topology, collectives.broadcast(3), **clauses)


@pytest.mark.parametrize("own_first", [frozenset(), frozenset({0, 1})], ids=["plain", "own first"])
def test_a_node_that_must_be_entered_twice_is(own_first):
    """One run of the list scheduler sends the chunk into the node twice, once to each rank."""
    quotient = orbits_of(apart(own_first=own_first))
    found = list_schedule(quotient, critical_priorities(quotient))
    assert verify(expand(quotient, found.sends, producer="test")).ok

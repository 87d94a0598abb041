"""Cuts from critical paths: sets of hops that take at least the cut's time under every routing."""

import pytest

from taccl import collectives
from taccl.solvers.solver import solve
from taccl.synthesis.milp.jobshop import critical_hops, find_cut
from taccl.synthesis.milp.routing import RoutingModel
from taccl.synthesis.milp.solutions import needed_entries
from taccl.synthesis.proposers.greedy import critical_priorities, list_schedule
from taccl.synthesis.symmetry.quotient import take_quotient
from tests.synthesis.brute_force import optimal_ticks
from tests.synthesis.small_problems import custom, problem_of, random_problem, ring, star, two_nodes


def scheduled(problem):
    """The quotient of a problem without its symmetry, and the list scheduler's schedule."""
    quotient = take_quotient(problem)
    return quotient, list_schedule(quotient, critical_priorities(quotient))


def cut_of(problem):
    """The quotient of a problem, its list schedule, and the cut found from that schedule."""
    quotient, found = scheduled(problem)
    cut = find_cut(quotient, found, upper_ticks=found.finish_ticks, lower_ticks=0, time_limit_s=20)
    return quotient, found, cut


def test_the_critical_path_leads_from_the_start_to_the_finish():
    """The critical path of a chunk over three links of a ring of six is its three hops."""
    quotient, found = scheduled(problem_of(ring(6), custom(6, [([0], [3]), ([4], [5])])))
    hops = critical_hops(quotient, found, needed_entries(quotient, found))
    assert [quotient.hops[m].chunk for m in hops] == [0, 0, 0]


@pytest.mark.slow
def test_hops_that_cannot_be_sooner_are_excluded_together():
    """Three chunks over one link take the same time in any order, so the cut contains all three hops.

    The cut states that a routing with all of its hops takes at least the list schedule's time.
    """
    quotient, found, cut = cut_of(problem_of(star(2), custom(3, [([1], [0])] * 3)))
    assert cut is not None
    assert {quotient.hops[m].chunk for m in cut.hops} == {0, 1, 2}
    assert cut.ticks == found.finish_ticks


@pytest.mark.slow
def test_a_merging_link_with_more_hops_than_batches_gets_no_cut():
    """Eleven hops over a merging link exceed the limit on batches in the job shop, so no cut is derived."""
    problem = problem_of(ring(2), custom(2, [([0], [1])] * 11), merging=frozenset({0}), max_merge=2)
    assert cut_of(problem)[2] is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_no_cut_excludes_the_optimum(seed):
    """With its cut, the routing model of a random problem is still a relaxation."""
    problem = random_problem(seed)
    quotient, found, cut = cut_of(problem)
    cuts = [] if cut is None else [cut]
    best = optimal_ticks(problem)
    if best is None:
        pytest.skip("too large for an exhaustive search")
    model = RoutingModel(quotient, upper_ticks=found.finish_ticks, cuts=cuts)
    objective = solve(model.model, "highs", time_limit_s=20).objective
    assert objective is not None
    assert objective <= best / problem.costs.ticks_per_us + 1e-6


@pytest.mark.slow
def test_a_cut_raises_the_objective_to_the_finish():
    """A gather over two nodes has a single routing. With a cut, the objective of the routing model rises to
    that routing's finish."""
    problem = problem_of(two_nodes(), collectives.gather(4))
    quotient, found, cut = cut_of(problem)
    assert cut is not None
    model = RoutingModel(quotient, upper_ticks=found.finish_ticks, cuts=[cut])
    free = RoutingModel(quotient, upper_ticks=found.finish_ticks)
    with_cut, without = (solve(each.model, "highs", time_limit_s=20).objective for each in (model, free))
    assert without <= with_cut <= cut.ticks / problem.costs.ticks_per_us + 1e-6

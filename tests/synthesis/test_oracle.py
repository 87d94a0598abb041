"""The exact methods against exhaustive search: on tiny problems the job shop finds and proves the optimum."""

from functools import cache

import pytest

from taccl import collectives
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.verification.verify import verify
from taccl.schedule.combine import reduce_phase, reverse
from taccl.synthesis.milp import jobshop
from taccl.synthesis.proposers.greedy import critical_priorities, expand, list_schedule
from taccl.synthesis.symmetry.quotient import take_quotient
from taccl.synthesis.symmetry.timing_group import timing_group
from taccl.topology.builder import TopologyBuilder
from tests.effort import AMPLE_S, brief_synthesis
from tests.fuzzing import cases, some
from tests.synthesis.brute_force import optimal_ticks
from tests.synthesis.small_problems import (
    MB,
    custom,
    full,
    late_hold,
    problem_of,
    random_derived_problem,
    random_problem,
    relayed,
    ring,
    star,
    two_nodes,
)

SEEDS = range(1, some(40, 160))
QUARTER = tuple((r + 1) % 4 for r in range(4))


def proven(problem, *, reduced=False):
    """Schedule that the job shop proves optimal, with every hop optional.

    The upper limit on the finish is 3 ticks above that of the list schedule.
    """
    quotient = take_quotient(problem, timing_group(problem) if reduced else None)
    found = list_schedule(quotient, critical_priorities(quotient))
    answer = jobshop.solve(
        quotient,
        optional=range(len(quotient.hops)),
        required=(),
        upper_ticks=found.finish_ticks + 3,
        time_limit_s=AMPLE_S,
    )
    assert answer.status == "optimal"
    assert answer.bound_ticks == answer.schedule.finish_ticks
    return expand(quotient, answer.schedule.sends, producer="job shop")


def multicast():
    """Rank 0 multicasts to 1, 2 and 3 in 2 us; 0 -> 1 -> 2 -> 3 and 1 -> 3 take 1 us each."""
    builder = TopologyBuilder("multicast", [0] * 4)
    builder.add_link(0, (1, 2, 3), alpha_us=0, beta_us_per_mb=2)
    for src, dst in ((0, 1), (1, 2), (2, 3), (1, 3)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
    return builder.build()


def multicasts():
    """Rank 0 multicasts to 1 and 2, or to 2 and 3, in 1 us; 1 -> 3, 2 -> 0 and 3 -> 0 take 1 us each."""
    builder = TopologyBuilder("multicasts", [0] * 4)
    for src, dst in ((0, (1, 2)), (0, (2, 3)), (1, 3), (2, 0), (3, 0)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
    return builder.build()


def named():
    """{name: small problem}; together they use every feature that a schedule must respect."""
    nodes = collectives.allgather(4)
    inter = {"merging": frozenset({4, 5, 6})}
    uneven = ring(3, betas=(0, 1, 2))
    return {
        "ring": problem_of(ring(4, betas=(0, 1, 2)), nodes),
        "pipelined ring": problem_of(ring(3, meaning="pipelined"), custom(3, [([0], [1])] * 4)),
        "alltoall": problem_of(uneven, collectives.alltoall(3)),
        "star": problem_of(star(3), collectives.broadcast(4)),
        "gather on a star": problem_of(star(3), collectives.gather(4)),
        "one port a rank": problem_of(full(3, port=True), collectives.allgather(3)),
        "shared NIC": problem_of(two_nodes(), nodes),
        "merging": problem_of(two_nodes(), nodes, **inter, max_merge=3),
        "merging two": problem_of(two_nodes(), nodes, **inter, max_merge=2),
        "pipelined NIC": problem_of(two_nodes(meaning="pipelined"), nodes, **inter, max_merge=2),
        "sizes": problem_of(two_nodes(), custom(4, [([0], [3]), ([1], [2, 3])]), chunk_bytes=(MB, 2 * MB)),
        "late hold": problem_of(late_hold(), custom(4, [([0], [2, 3]), ([1], [3])])),
        "own first": relayed(),
        "several origins": problem_of(uneven, custom(3, [([0, 2], [1]), ([1], [0, 2])])),
        "multicast": problem_of(multicast(), custom(4, [([0], [1, 2, 3])] * 3)),
        "multicasts that overlap": problem_of(multicasts(), collectives.broadcast(4)),
        "multicasts to one": problem_of(multicasts(), custom(4, [([0], [1])] * 2 + [([0], [3])] * 2)),
        "merging multicast": problem_of(
            multicast(), custom(4, [([0], [2, 3])] * 3), merging=frozenset({0}), max_merge=2
        ),
    }


@cache
def least(seed):
    """The optimum of a random problem; None where exhaustive search would take too long."""
    return optimal_ticks(random_problem(seed), max_states=3000)


@pytest.mark.slow
@pytest.mark.parametrize("name", named())
def test_the_job_shop_proves_the_optimum(name):
    """The job shop's schedule verifies and equals the optimum of exhaustive search."""
    problem = named()[name]
    schedule = proven(problem)
    assert verify(schedule).ok
    assert schedule.finish_ticks == optimal_ticks(problem)


@pytest.mark.slow
def test_the_job_shop_proves_the_optimum_of_random_problems():
    """The job shop is optimal on random problems with shared resources, merging, local-first priority, chunk
    sizes and both meanings of alpha."""
    compared = 0
    for seed in SEEDS:
        problem = random_problem(seed)
        best = least(seed)
        if best:
            schedule = proven(problem)
            assert verify(schedule).ok, seed
            assert schedule.finish_ticks == best, seed
            compared += 1
    assert compared > 0.9 * len(SEEDS)


@pytest.mark.slow
def test_no_bound_is_above_the_optimum():
    """On random problems no lower bound exceeds the optimum."""
    for seed in SEEDS:
        problem, best = random_problem(seed), least(seed)
        assert best is None or lower_bound(problem).bound * problem.costs.ticks_per_us <= best, seed


@pytest.mark.fuzz
def test_what_is_made_of_chunks_is_found_and_bounded():
    """With derived chunks the list scheduler finds a schedule and the job shop the optimum."""
    compared = 0
    for seed in cases("chunks made of others, by exhaustive search", few=10, many=400):
        problem = random_derived_problem(seed)
        first = brief_synthesis(problem, backend="greedy").schedule
        assert verify(first).ok, seed
        best = optimal_ticks(problem, max_states=3000)
        if best is None:
            continue
        assert lower_bound(problem).bound * problem.costs.ticks_per_us <= best <= first.finish_ticks, seed
        assert proven(problem).finish_ticks == best, seed
        compared += 1
    assert compared > some(5, 200)


def test_own_chunks_of_unlike_sizes():
    """A link with local-first priority sends own chunks of 2 and 1 MB, then relays one of 1 MB: optimum 10 us.

    The link 0 -> 1 takes 1 us/MB. The large chunk still takes 8 us from rank 1 to 3, so it leaves first,
    alone, and arrives at 10 us. The small one leaves at 2 us, and the relayed one at 3, once the small one
    has arrived. The relayed chunk reaches rank 1 at 4 us and rank 4 at 10.
    """
    builder = TopologyBuilder("sizes", [0] * 5)
    for src, dst, beta in ((2, 0, 1), (0, 1, 1), (1, 3, 4), (1, 4, 6)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
    problem = problem_of(
        builder.build(),
        custom(5, [([0], [3]), ([0], [1]), ([2], [4])]),
        chunk_bytes=(2 * MB, MB, MB),
        merging=frozenset({1}),
        max_merge=2,
        own_first=frozenset({1}),
    )
    assert optimal_ticks(problem) == 10
    assert proven(problem).finish_ticks == 10


@pytest.mark.slow
def test_folding_costs_nothing_where_the_best_has_the_symmetry():
    """Allgather on a ring: the best rotation-symmetric schedule is optimal among all."""
    problem = problem_of(ring(4), collectives.allgather(4), symmetry=(QUARTER,))
    assert proven(problem, reduced=True).finish_ticks == optimal_ticks(problem)


def test_folding_has_a_price_where_the_best_lacks_the_symmetry():
    """Alltoall on a ring of 4, 2 us per hop: under symmetry all chunks for opposite ranks take one
    direction.

    Each link of that direction then carries a neighbour's chunk and two hops of chunks for opposite ranks,
    6 us. If half of those chunks go the other way, the 8 + 8 hops load each of the 8 links with two, 4 us.
    """
    problem = problem_of(ring(4), collectives.alltoall(4), symmetry=(QUARTER,))
    assert proven(problem, reduced=True).finish_ticks == 6
    assert proven(problem).finish_ticks == 4


def rooted():
    """Reductions whose sums are needed only at their roots, and which are copies reversed in time."""
    return {
        "reduce": problem_of(ring(3, betas=(0, 1, 2)), collectives.reduce(3)),
        "reduce on a star": problem_of(star(3), collectives.reduce(4, root=1)),
        "reduce-scatter": problem_of(ring(3), collectives.reduce_scatter(3)),
        "port": problem_of(full(3, port=True), collectives.reduce_scatter(3)),
        "NIC": problem_of(two_nodes(), custom(4, [([0, 1], [2]), ([0, 1], [3])], combining=True)),
        "merging": problem_of(
            two_nodes(),
            custom(4, [([0, 1], [2])] * 2, combining=True),
            merging=frozenset({4, 5}),
            max_merge=2,
        ),
        "pipelined": problem_of(
            two_nodes(meaning="pipelined"), custom(4, [([0, 1, 3], [2]), ([2, 3], [0])], combining=True)
        ),
    }


def reduced(problem):
    """The job shop's best broadcast from the roots over reversed links, reversed in time."""
    return reverse(proven(reduce_phase(problem)), problem)


@pytest.mark.parametrize("name", rooted())
def test_the_job_shop_proves_the_optimum_of_reductions(name):
    """The reversed schedule verifies and equals the optimum of exhaustive search."""
    problem = rooted()[name]
    schedule = reduced(problem)
    assert verify(schedule).ok
    assert schedule.finish_ticks == optimal_ticks(problem)


@pytest.mark.slow
def test_the_job_shop_proves_the_optimum_of_random_reductions():
    """The job shop is optimal on random sums that only their roots need."""
    compared = 0
    for seed in SEEDS:
        problem = random_problem(seed, combining=True)
        chunks = problem.collective.chunks
        if any(data.destinations != (data.root,) for data in chunks):
            continue
        if all(data.origins == (data.root,) for data in chunks):
            continue
        best = optimal_ticks(problem, max_states=3000)
        if best is None:
            continue
        schedule = reduced(problem)
        assert verify(schedule).ok, seed
        assert schedule.finish_ticks == best, seed
        compared += 1
    assert compared >= some(2, 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("reduce", rooted()["reduce"]),
        ("own first", named()["own first"]),
        ("merging", named()["merging"]),
        ("allreduce", problem_of(ring(2, betas=(0, 1)), collectives.allreduce(2))),
    ],
)  # fmt: skip
def test_the_portfolio_finds_the_optimum(name, problem):
    """``backend="auto"`` finds the optimum of problems small enough for exhaustive search."""
    schedule = brief_synthesis(problem, backend="auto").schedule
    assert schedule.finish_ticks == optimal_ticks(problem), name

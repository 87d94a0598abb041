"""Bound families that are rarely the largest: tested on problems where they often are, and never above a
schedule."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl import collectives
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.dynamic_cut import dynamic_cut_bounds
from taccl.analysis.certificates.spread_tail import spread_tail_bounds
from taccl.analysis.verification.verify import verify
from taccl.errors import InputError
from taccl.sketch.reachability import check_reachable
from taccl.synthesis.synthesize import synthesize
from tests.analysis.claims import certificates_of, is_unbeaten, raised
from tests.fuzzing import cases, fuzzed
from tests.synthesis.brute_force import optimal_ticks
from tests.synthesis.small_problems import custom, joined, merged, problem_of, random_problem, two_levels


def disseminated(seed):
    """A random problem of four to six ranks, whose sends merge and hold ports during latency."""
    rng = random.Random(f"disseminated {seed}")
    num_ranks = rng.choice((4, 5, 6))
    nodes = rng.choice(([0] * num_ranks, [int(2 * r >= num_ranks) for r in range(num_ranks)]))
    far = rng.choice((3, 5, 9)) if any(nodes) else 1
    topology = joined(nodes, alpha=rng.choice((2, 3, 4)), far=far, shared=rng.random() < 0.2)
    name = rng.choice(("allgather", "allgather", "gather", "reduce_scatter", "scatter"))
    return merged(topology, name, rng.randint(num_ranks - 1, num_ranks))


def spread_late(seed):
    """A random broadcast or reduce of one or two chunks, within a node or over nodes with a NIC each."""
    rng = random.Random(f"spread late {seed}")
    per_node, num_nodes = rng.choice(((2, 2), (3, 2), (4, 2), (2, 3), (3, 1), (4, 1), (5, 1)))
    topology = two_levels(
        per_node, local=rng.choice((1, 2)), nic=rng.choice((1, 2, 3)), num_nodes=num_nodes,
        alpha=rng.choice((0, 1)), meaning=rng.choice(("occupies", "pipelined")),
    )  # fmt: skip
    root, chunks = rng.randrange(topology.num_ranks), rng.choice((1, 1, 2))
    name = rng.choice(("broadcast", "broadcast", "reduce"))
    return problem_of(topology, collectives.make(name, topology.num_ranks, root=root, chunks_per_rank=chunks))


@pytest.mark.fuzz
@pytest.mark.parametrize(("kind", "made"), [("dissemination", disseminated), ("spread tail", spread_late)])
def test_no_rare_bound_is_above_a_schedule(kind, made):
    """The family gives the best bound in a sixth of the problems, proven, and no schedule beats it."""
    best = tried = 0
    for seed in cases(f"{kind}, where it is the best bound", few=3, many=1000):
        problem = made(seed)
        bound = lower_bound(problem)
        assert bound.check(), seed
        found = synthesize(problem, backend="greedy", sketch="none", time_limit_s=0.1).schedule
        assert verify(found).ok, seed
        assert bound.bound <= found.finish, seed
        tried += 1
        if bound.kind != kind:
            continue
        best += 1
        if bound.bound < found.finish:
            is_unbeaten(problem, bound.bound, max_states=300)
    assert best > tried / 6


def few_start(seed, *, combining):
    """A random problem in which one or two ranks hold all chunks, or need all sums."""
    rng = random.Random(seed)
    base = random_problem(seed)
    num_ranks = base.topology.num_ranks
    homes = rng.sample(range(num_ranks), rng.choice((1, 1, 2)))
    ways = []
    for _ in range(rng.choice((1, 2, 3) if combining else (1, 2, 3, 3, 4))):
        few = sorted(set(rng.choices(homes, k=rng.choice((1, 1, 2)))))
        many = sorted(rng.sample(range(num_ranks), rng.randint(max(1, num_ranks - 2), num_ranks)))
        ways.append((many, few[:1]) if combining else (few, many))
    clauses = {}
    if not combining and rng.random() < 0.2:
        admitted = frozenset(rng.sample(range(num_ranks), rng.randint(1, num_ranks)))
        clauses["carries_from"] = {rng.randrange(len(base.topology.links)): admitted}
    return problem_of(
        base.topology,
        custom(num_ranks, ways, combining=combining),
        merging=base.clauses.merging,
        max_merge=base.clauses.max_merge,
        own_first=frozenset() if combining else base.clauses.own_first,
        **clauses,
    )


def least_ticks(problem):
    """Optimal makespan in ticks; None if the search would take too long or a destination is unreachable."""
    try:
        check_reachable(problem)
        return optimal_ticks(problem, max_states=1000)
    except InputError:
        return None


@fuzzed(few=15, many=1000)
@given(seed=st.integers(0, 2**32 - 1), combining=st.booleans(), few=st.booleans())
def test_no_rare_claim_is_above_the_optimum(seed, combining, few):
    """On random problems, claims of spread tails and dynamic cuts are at most the optimum, and no witness
    proves more."""
    problem = (few_start if few else random_problem)(seed, combining=combining)
    least = least_ticks(problem)
    if least is None:
        return
    optimum = Fraction(least, problem.costs.ticks_per_us)
    for finder in (spread_tail_bounds, dynamic_cut_bounds):
        for bound in certificates_of(finder, problem, in_network=False):
            assert bound.bound <= optimum
            assert bound.check()
            assert not raised(replace(bound, bound=optimum)).check()

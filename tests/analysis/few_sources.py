"""Random problems in which one or two ranks hold all chunks, and their optimal makespans."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from taccl.errors import InputError
from taccl.sketch.reachability import check_reachable
from tests.synthesis.brute_force import TooLarge, optimal_ticks
from tests.synthesis.small_problems import custom, problem_of, random_problem

if TYPE_CHECKING:
    from taccl.problem.problem import Problem


def few_start(seed: int, *, combining: bool) -> Problem:
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
    clauses: dict[str, object] = {}
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


def least_ticks(problem: Problem) -> int | None:
    """Optimal makespan in ticks; None if the search would take too long or a destination is unreachable."""
    try:
        check_reachable(problem)
        return optimal_ticks(problem, max_states=1000)
    except (TooLarge, InputError):
        return None

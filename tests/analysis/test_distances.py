"""Shortest times of chunks over the links that may carry them."""

from __future__ import annotations

from synthesis.small_problems import custom, problem_of, ring

from taccl import collective as collectives
from taccl.analysis.distances import Distances, shortest_times
from taccl.problem import Problem
from taccl.topology.topology import TopologyBuilder

MB = 10**6


def detour(**options: object) -> Problem:
    """0 -> 1 in 5 us, or by rank 2 in 1 + 2 us; 10 us/MB more for nothing else."""
    builder = TopologyBuilder("detour", [0] * 3)
    builder.add_link(0, 1, alpha_us=4, beta_us_per_mb=1)
    builder.add_link(0, 2, alpha_us=0, beta_us_per_mb=1)
    builder.add_link(2, 1, alpha_us=0, beta_us_per_mb=2)
    return problem_of(builder.build(), custom(3, [([0], [1, 2])]), **options)  # type: ignore[arg-type]


def test_the_shortest_way_may_have_more_hops() -> None:
    """Rank 1 is reached at 3, by rank 2."""
    assert shortest_times(detour(), range(3), {0: 0}, 1) == {0: 0, 2: 1, 1: 3}


def test_larger_chunks_may_go_another_way() -> None:
    """Three units: 4 + 3 over link 0 beats 3 + 6 by rank 2."""
    assert shortest_times(detour(), range(3), {0: 0}, 3)[1] == 7


def test_backward_times_lead_to_the_start() -> None:
    """To rank 1: 3 from rank 0, 2 from rank 2."""
    assert shortest_times(detour(), range(3), {1: 0}, 1, backward=True) == {1: 0, 2: 2, 0: 3}


def test_several_starts_count_from_their_own_times() -> None:
    """Rank 2 has it at 7, rank 0 at 0: rank 2 is still reached first from rank 0."""
    assert shortest_times(detour(), range(3), {0: 0, 2: 7}, 1) == {0: 0, 2: 1, 1: 3}


def test_unreachable_ranks_are_left_out() -> None:
    """Over link 0 alone rank 2 is not reached."""
    assert shortest_times(detour(), [0], {0: 0}, 1) == {0: 0, 1: 5}


def test_only_allowed_links_carry() -> None:
    """Without link 0 -> 2 the chunk comes to rank 1 over link 0."""
    times, carried = Distances(detour(links_allowed=frozenset({0, 2}))).of(0)
    assert carried == (0, 2)
    assert times == {0: 0, 1: 5}


def test_relays_carry_only_their_ranks_chunks() -> None:
    """Link 2 -> 1 carries rank 2's chunks only, so rank 0's chunk needs 5 us."""
    times, _ = Distances(detour(carries_from={2: frozenset({2})})).of(0)
    assert times[1] == 5


def test_derived_chunks_start_when_their_source_arrives() -> None:
    """Scan on a ring with 2 us a hop: prefix 1 is made at rank 1 at 2, and is at rank 2 at 4."""
    distances = Distances(problem_of(ring(4), collectives.scan(4)))
    assert distances.origins(1) == {1: 2}
    assert distances.of(1)[0][2] == 4
    assert distances.origins(3) == {3: 6}


def test_times_to_a_destination_are_kept_per_size() -> None:
    """Chunks of 1 and 3 MB have different ways to rank 1."""
    problem = problem_of(
        detour().topology, custom(3, [([0], [1]), ([0], [1])]), chunk_bytes=[MB, 3 * MB]
    )
    distances = Distances(problem)
    assert distances.to_go(0, 1)[0] == 3
    assert distances.to_go(1, 1)[0] == 7

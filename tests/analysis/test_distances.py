"""Shortest times of chunks over the links that may carry them."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from synthesis.small_problems import custom, problem_of, ring

from taccl import collective as collectives
from taccl.analysis.distances import Distances, shortest_times
from taccl.topology.topology import TopologyBuilder

if TYPE_CHECKING:
    from taccl.problem import Problem

MB = 10**6


def detour(**options: object) -> Problem:
    """0 -> 1 in 4 us and 1 us/MB, or by rank 2 in 1 + 2 us/MB."""
    builder = TopologyBuilder("detour", [0] * 3)
    builder.add_link(0, 1, alpha_us=4, beta_us_per_mb=1)
    builder.add_link(0, 2, alpha_us=0, beta_us_per_mb=1)
    builder.add_link(2, 1, alpha_us=0, beta_us_per_mb=2)
    return problem_of(builder.build(), custom(3, [([0], [1, 2])]), **options)  # type: ignore[arg-type]


def test_the_shortest_way_may_have_more_hops() -> None:
    """From rank 0 rank 1 is reached at 3, by rank 2; nothing leads back."""
    assert shortest_times(detour(), (0, 1, 2), 1).tolist() == [[0, 3, 1], [inf, 0, inf], [inf, 2, 0]]


def test_larger_chunks_may_go_another_way() -> None:
    """Three units: 4 + 3 over link 0 beats 3 + 6 by rank 2."""
    assert shortest_times(detour(), (0, 1, 2), 3)[0, 1] == 7


def test_of_parallel_links_the_faster_counts() -> None:
    """Links of 5 and 3 us side by side."""
    builder = TopologyBuilder("parallel", [0, 0])
    for beta in (3, 5):
        builder.add_link(0, 1, alpha_us=0, beta_us_per_mb=beta)
    problem = problem_of(builder.build(), custom(2, [([0], [1])]))
    assert shortest_times(problem, (0, 1), 1)[0, 1] == 3


def test_a_multicast_reaches_all_its_ends() -> None:
    """One link from rank 0 to ranks 1 and 2."""
    builder = TopologyBuilder("multicast", [0] * 3)
    builder.add_link(0, (1, 2), alpha_us=1, beta_us_per_mb=1)
    problem = problem_of(builder.build(), collectives.broadcast(3))
    assert shortest_times(problem, (0,), 1)[0].tolist() == [0, 2, 2]


def test_only_allowed_links_carry() -> None:
    """Without link 0 -> 2 the chunk comes to rank 1 over link 0, and never to rank 2."""
    distances = Distances(detour(links_allowed=frozenset({0, 2})))
    assert distances.links(distances.carried(0)) == (0, 2)
    assert distances.heads(0).tolist() == [0, 5, inf]


def test_relays_carry_only_their_ranks_chunks() -> None:
    """Link 2 -> 1 carries rank 2's chunks only, so rank 0's chunk needs 5 us."""
    assert Distances(detour(carries_from={2: frozenset({2})})).heads(0)[1] == 5


def test_reducing_and_spreading_have_their_own_links() -> None:
    """Link 0 carries to root 2 only while it reduces; a chunk rooted at 1 may not be reduced over it."""
    problem = problem_of(
        detour().topology, custom(3, [([0, 2], [1])], combining=True), carries_to={0: frozenset({2})}
    )
    distances = Distances(problem)
    assert distances.links(distances.carried(0, reducing=True)) == (1, 2)
    assert distances.links(distances.carried(0)) == (0, 1, 2)
    assert distances.links(distances.carried(0, reducing=None)) == (0, 1, 2)


def test_several_origins_count_from_the_nearest() -> None:
    """Ranks 0 and 2 have the chunk: rank 1 has it at 2."""
    problem = problem_of(detour().topology, custom(3, [([0, 2], [1])]))
    assert Distances(problem).heads(0).tolist() == [0, 2, 0]


def test_derived_chunks_start_when_their_source_arrives() -> None:
    """Scan on a ring with 2 us a hop: prefix 1 is made at rank 1 at 2, and is at rank 2 at 4."""
    distances = Distances(problem_of(ring(4), collectives.scan(4)))
    assert distances.origins(1) == {1: 2}
    assert distances.heads(1)[2] == 4
    assert distances.origins(3) == {3: 6}


def test_times_to_a_destination_depend_on_the_size() -> None:
    """Chunks of 1 and 3 MB have different ways to rank 1."""
    problem = problem_of(detour().topology, custom(3, [([0], [1]), ([0], [1])]), chunk_bytes=[MB, 3 * MB])
    distances = Distances(problem)
    assert distances.to_go(0, 1).tolist() == [3, 0, 2]
    assert distances.to_go(1, 1).tolist() == [7, 0, 6]

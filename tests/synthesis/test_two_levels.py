"""Crossings between nodes first, then what is sent inside nodes: rounds, times, gaps, and whole schedules."""

from __future__ import annotations

import numpy as np
import pytest

from taccl import collectives, topologies
from taccl.analysis.verification.verify import verify
from taccl.problem import Clauses, Problem, make_problem
from taccl.synthesis.compiled.fixed import schedule_trees
from taccl.synthesis.crossing.crossings import make_crossings, make_inside
from taccl.synthesis.crossing.inside_nodes import book, earliest, gather, make_booked, time_sums
from taccl.synthesis.crossing.rounds import enter_rounds
from taccl.synthesis.crossing.times import make_times, pin, time_crossings
from taccl.synthesis.crossing.two_levels import find_two_levels, spread_two_levels, suits_two_levels
from taccl.synthesis.large import schedule_large
from taccl.synthesis.replan import replan
from taccl.topology.topology import Topology, TopologyBuilder
from taccl.topology.transform import without

MB = 10**6


def pairs(num_nodes: int) -> Topology:
    """Nodes of two ranks, 1 us for a chunk between them; of one of each a link of 10 us to all other nodes."""
    builder = TopologyBuilder("pairs", [rank // 2 for rank in range(2 * num_nodes)])
    for node in range(num_nodes):
        builder.add_link(2 * node, 2 * node + 1, alpha_us=0, beta_us_per_mb=1)
        builder.add_link(2 * node + 1, 2 * node, alpha_us=0, beta_us_per_mb=1)
        for other in range(num_nodes):
            if other != node:
                builder.add_link(2 * node, 2 * other, alpha_us=0, beta_us_per_mb=10)
    return builder.build()


def problem(topology: Topology, name: str, *, chunks_per_rank: int = 1, **clauses: object) -> Problem:
    return make_problem(
        topology,
        collectives.make(name, topology.num_ranks, chunks_per_rank=chunks_per_rank),
        chunk_bytes=MB,
        clauses=Clauses(**{"routing_slack": 10, **clauses}),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "name", ["allreduce", "broadcast", "allgather", "reduce", "reduce_scatter", "alltoall", "gather"]
)
@pytest.mark.parametrize("make", [lambda: topologies.dgx_h100(2), lambda: pairs(3)])
def test_what_is_found_verifies(name: str, make: object) -> None:
    """Collectives of every kind: each chunk goes along trees, in the order that was found."""
    case = problem(make(), name)  # type: ignore[operator]
    found = find_two_levels(case)
    assert found is not None
    trees, order = found
    schedule = schedule_trees(case, trees, order)
    assert schedule is not None
    assert verify(schedule).ok
    assert schedule.finish_ticks <= order.finish_ticks


def test_a_pair_of_pairs_reduces_at_the_bound() -> None:
    """4 chunks, each 1 us, 10 us over, 10 us back, 1 us: over the one link each way 40 us, and 1 us at each end.

    Each way takes a sum or a copy of every chunk; the first waits for a sum, the last is copied.
    """
    case = problem(pairs(2), "allreduce")
    found = find_two_levels(case)
    assert found is not None
    assert case.costs.us(found[1].finish_ticks) == 42


def test_nothing_later_than_the_limit_is_found() -> None:
    """What takes 42 us is no answer where 41 us are allowed."""
    case = problem(pairs(2), "allreduce")
    assert find_two_levels(case, limit_ticks=41 * case.costs.ticks_per_us) is None


def test_a_seed_finds_the_same_again() -> None:
    """Two runs with one seed: the same links and starts."""
    case = problem(topologies.dgx_h100(2), "allreduce")
    (_, first), (_, second) = (found for found in (find_two_levels(case, seed=3) for _ in range(2)) if found)
    assert first.start.tolist() == second.start.tolist()
    assert first.sends.link.tolist() == second.sends.link.tolist()


@pytest.mark.parametrize(
    ("make", "name", "clauses"),
    [
        (lambda: topologies.ring(4), "allreduce", {}),
        (lambda: pairs(2), "scan", {}),
        (lambda: pairs(2), "allreduce", {"own_first": frozenset({0})}),
        (lambda: pairs(2), "allgather", {"relays": frozenset({0})}),
    ],
)
def test_who_asks_for_more_is_sent_away(make: object, name: str, clauses: dict[str, object]) -> None:
    """One node, chunks made from others, and clauses about which chunk goes where, or first."""
    assert not suits_two_levels(problem(make(), name, **clauses))  # type: ignore[operator]


def test_ranks_that_no_link_joins_are_no_node() -> None:
    """On NDv2 a GPU has links to four of the seven others."""
    assert find_two_levels(problem(topologies.ndv2(2), "allgather")) is None


class TestRounds:
    """Every crossing has a round of its own on its link."""

    def test_a_link_takes_one_crossing_a_round(self) -> None:
        """Of an allgather on two pairs two chunks cross each way: two rounds do, one does not."""
        case = problem(pairs(2), "allgather")
        inside = make_inside(case)
        assert inside is not None
        x = make_crossings(case, inside)
        root = np.array([0, 0, 1, 1])
        assert x.fewest_rounds(root) == 2
        assert enter_rounds(x, root, 1, turns=100, seed=0) is None
        plan = enter_rounds(x, root, 2, turns=100, seed=0)
        assert plan is not None
        taken = sorted(zip(plan.link[plan.link >= 0], plan.round[plan.link >= 0], strict=True))
        assert taken == [(0, 0), (0, 1), (1, 0), (1, 1)]

    def test_crossings_start_when_they_can(self) -> None:
        """Of each node one chunk starts where it crosses, at 0 us; the other is 1 us late, and follows at 10 us."""
        case = problem(pairs(2), "allgather")
        inside = make_inside(case)
        assert inside is not None
        x = make_crossings(case, inside)
        plan = enter_rounds(x, np.array([0, 0, 1, 1]), 2, turns=100, seed=0)
        assert plan is not None
        times = make_times(x)
        times.key[:] = plan.round
        tick = case.costs.ticks_per_us
        # The last chunk is in after 20 us, and copied by 21 us; had it to wait, it would be 22 us.
        assert time_crossings(x, plan, times, 4) in (21 * tick, 22 * tick)
        assert pin(x, plan, times) in (21 * tick, 22 * tick)


class TestInsideNodes:
    """Sends go into the gaps between others."""

    def test_sums_follow_one_another(self) -> None:
        """Of 8 ranks in pairs: three sends of 20/9 us one after another, so for two sums at once."""
        case = problem(topologies.dgx_h100(2), "allreduce")
        inside = make_inside(case)
        assert inside is not None
        ticks = np.zeros(4, np.int64)
        time_sums(inside, 0, int(case.costs.chunk_units[0]), ticks)
        hop = 20 / 9 * case.costs.ticks_per_us
        assert ticks[:2].tolist() == [3 * hop, 3 * hop]
        assert ticks[2] > 3 * hop

    def test_a_gap_is_used(self) -> None:
        """A link is taken until 1 us and from 3 us: a send of 1 us fits at 1 us, then at 2 us, then at 4 us."""
        case = problem(pairs(2), "allgather")
        inside = make_inside(case)
        assert inside is not None
        booked, units, tick = make_booked(inside, 8), int(case.costs.chunk_units[0]), case.costs.ticks_per_us
        link = int(inside.link[0, 1])
        for at in (0, 3):
            book(inside, booked, link, units, at * tick, False)
        found = []
        for _ in range(3):
            found.append(earliest(inside, booked, link, units, 0, False))
            book(inside, booked, link, units, found[-1], False)
        assert found == [tick, 2 * tick, 4 * tick]

    def test_parts_come_together(self) -> None:
        """Rank 1 of a pair has its part from 5 us: the sum is at rank 0 from 6 us."""
        case = problem(pairs(2), "allgather")
        inside = make_inside(case)
        assert inside is not None
        booked, units, tick = make_booked(inside, 1), int(case.costs.chunk_units[0]), case.costs.ticks_per_us
        booked.holder[:2] = 0, 1
        booked.ready[1] = 5 * tick
        assert gather(inside, booked, 2, 0, units, False, np.zeros(4)) == 1
        assert booked.ready[0] == 6 * tick


def test_a_lost_nic_costs_little() -> None:
    """Of 32 NICs one is lost: 192 crossings of 20 us over 31 take 140 us; at most a fifth is added."""
    whole = topologies.dgx_h100(4)
    old = schedule_large(problem(whole, "allreduce"), num_runs=1).expand()
    left = without(whole, resources=["NIC 0 of node 0 egress", "NIC 0 of node 0 ingress"])
    new = replan(old, problem(left, "allreduce"), time_limit_s=4)
    assert verify(new.schedule).ok
    assert 140 <= new.finish_us <= 168


def test_a_broadcast_keeps_all_nics_busy() -> None:
    """16 chunks from one rank to four nodes: 48 crossings of 20 us over 24 NICs in, in 93 us before this."""
    found = schedule_large(problem(topologies.dgx_h100(4), "broadcast", chunks_per_rank=16))
    assert verify(found).ok
    assert 60 <= found.finish_us < 93


def test_columns_are_in_order_of_start() -> None:
    """An allgather's sends as columns: 4 ranks receive 3 chunks each, the first send at 0."""
    case = problem(pairs(2), "allgather")
    columns = spread_two_levels(case, limit_ticks=100 * case.costs.ticks_per_us)
    assert columns is not None
    chunk, _, start = columns
    assert len(chunk) == 12
    assert start[0] == 0
    assert (np.diff(start) >= 0).all()


def test_no_columns_are_later_than_the_limit() -> None:
    """Two chunks have to cross one link of 10 us each way: not in 19 us."""
    case = problem(pairs(2), "allgather")
    assert spread_two_levels(case, limit_ticks=19 * case.costs.ticks_per_us) is None

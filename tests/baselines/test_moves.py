"""Moves (sends between ranks of an algorithm), and their routing over links."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import taccl
from taccl.analysis.verification.verify import verify
from taccl.baselines.chunking import run, starts_of
from taccl.baselines.moves import Moves, routed
from taccl.baselines.recursive import exchange
from taccl.baselines.tree import _descend
from taccl.errors import CollectiveError
from taccl.schedule.combine import broadcast_phase, concatenate, reduce_phase, reverse
from taccl.topology import fabrics, machines


def test_moves_are_sorted_by_step():
    """Moves of one step keep the order of their rows."""
    moves = Moves.of([(1, [0, 1], 2, 3, False), (0, [4], 5, 6, False), (1, [7], 8, 9, True)])
    assert moves.step.tolist() == [0, 1, 1, 1]
    assert moves.chunk.tolist() == [4, 0, 1, 7]
    assert moves.adds.tolist() == [False, False, False, True]


def test_chunks_between_two_ranks_are_one_message():
    """Chunks that one row of moves sends in one step between two ranks are one message; two rows are two
    messages."""
    moves = Moves.of([(0, [0, 1], 2, 3, False), (0, [4], 2, 3, False)])
    first, second, third = moves.message.tolist()
    assert first == second != third


def test_a_broadcast_reversed_is_a_sum():
    """A reversed broadcast is a reduction: moves in reverse order and direction, with sums."""
    moves = Moves.of([([0, 1], 0, [0, 1], [1, 2], False)]).reversed()
    assert moves.step.tolist() == [0, 1]
    assert (moves.src.tolist(), moves.dst.tolist()) == ([2, 1], [1, 0])
    assert moves.adds.all()


def test_moves_without_a_link_are_relayed(make, unit_costs):
    """On a one-way ring of 4 a chunk for the rank 3 places ahead is relayed over 3 links."""
    problem = make("scatter", fabrics.ring(4, **unit_costs).without(links=range(4, 8)))
    sends = routed(problem, Moves.of([(0, 3, 0, 3, False)]))
    assert [problem.topology.links[e].dst for e in sends.link.tolist()] == [1, 2, 3]


def test_nothing_goes_to_a_rank_twice(make, unit_costs):
    """Only the first move of a chunk to a rank is kept, and none to its origin."""
    problem = make("broadcast", fabrics.fully_connected(3, **unit_costs))
    moves = Moves.of([(0, 0, 0, 1, False), (1, 0, 1, [0, 2], False), (2, 0, 0, [1, 2], False)])
    ends = [problem.topology.links[e] for e in routed(problem, moves).link.tolist()]
    assert [(e.src, e.dst) for e in ends] == [(0, 1), (1, 2)]


def test_moves_that_lead_nowhere_are_left_out(make, unit_costs):
    """Moves to ranks that neither need nor forward a chunk are dropped."""
    problem = make("scatter", fabrics.fully_connected(3, **unit_costs))
    assert routed(problem, Moves.of([(0, [1, 2], 0, 1, False)])).chunk.tolist() == [1]
    passed_on = Moves.of([(0, [1, 2], 0, 1, False), (1, 2, 1, 2, False)])
    assert routed(problem, passed_on).chunk.tolist() == [1, 2, 2]


def test_messages_merge_up_to_the_limit(make, unit_costs):
    """Five chunks of a message over a link that merges up to three are two sends."""
    problem = make("scatter", fabrics.fully_connected(2, **unit_costs), chunks_per_rank=5)
    clauses = replace(problem.clauses, merging=frozenset(range(2)), max_merge=3)
    sends = routed(replace(problem, clauses=clauses), Moves.of([(0, range(5, 10), 0, 1, False)]))
    assert sends.group.tolist() == [0, 0, 0, 1, 1]


SPREADS = {
    "exchange": lambda half: exchange(
        half, [[[[rank ^ (1 << bit) for rank in range(half.topology.num_ranks)]] for bit in range(3)]]
    ),
    "trees": partial(_descend, members="ranks"),
}


@pytest.mark.parametrize("name", SPREADS)
@pytest.mark.parametrize("collective", ["allreduce", "reduce-scatter", "reduce"])
@pytest.mark.parametrize(
    "topology", [machines.ndv2(), fabrics.torus(2, 4, ranks_per_node=4), fabrics.star(8)]
)
def test_sums_in_one_pass_are_reversed_broadcasts(name, collective, topology):
    """Sums planned in one pass finish at the same time as a separately planned broadcast that is reversed in
    time."""
    problem = taccl.make_problem(topology, collective, size_bytes=10**6, chunks_per_rank=1)
    spread = SPREADS[name]
    found = run(problem, spread).schedule(problem, producer="")
    verify(found).raise_if_failed()
    halves = reduce_phase(problem), broadcast_phase(problem)
    first, second = (spread(half).schedule(half, producer="") for half in halves)
    apart = reverse(first, problem)
    if collective == "allreduce":
        apart = concatenate([apart, second], problem)
    assert found.finish == apart.finish


@pytest.mark.parametrize("name", SPREADS)
def test_the_busiest_resource_bounds_the_finish(name):
    """The busy time of the busiest resource is a lower bound on the finish."""
    problem = taccl.make_problem(machines.ndv2(), "allreduce", size_bytes=10**6, chunks_per_rank=1)
    sends = run(problem, SPREADS[name])
    assert 0 < sends.busy_ticks(problem) <= sends.schedule(problem, producer="").finish_ticks


def test_chunks_start_at_their_first_origin(make, unit_costs):
    """`starts_of` gives the first origin of each chunk: rank r for chunks 2r and 2r + 1 of an allgather."""
    problem = make("allgather", fabrics.ring(3, **unit_costs), chunks_per_rank=2)
    assert starts_of(problem).tolist() == [0, 0, 1, 1, 2, 2]
    assert starts_of(problem).dtype == np.int64


def test_allreduces_of_many_transfers_are_refused_before_their_phases_are_made(monkeypatch):
    """Each phase of an allreduce alone would be small enough for a baseline."""
    monkeypatch.setattr("taccl.baselines.moves._MOST_TRANSFERS", 100)  # 50 for sums
    problem = taccl.make_problem(taccl.topologies.parse("ring:8"), "allreduce", chunk_bytes=1)
    with pytest.raises(CollectiveError, match="needs at least 112 transfers"):
        run(problem, lambda phase: pytest.fail("a phase was made"))

"""One-shot sums and recursive doubling: finishes derived by hand."""

from fractions import Fraction

import pytest

import taccl
from taccl import collectives
from taccl.baselines import one_shot, recursive
from taccl.errors import CollectiveError, TopologyError
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses, Problem
from taccl.topology.builder import TopologyBuilder


def test_one_message_a_link():
    """One-shot takes one message per link, for any number of chunks.

    On four fully connected ranks this is 0.5 us and 1,000 bytes at 20 us/MB.
    """
    whole = collectives.allreduce(4, chunks_per_rank=1)
    problem = make_problem(taccl.topologies.fully_connected(4), whole, size_bytes=1000)
    schedule = one_shot(problem)
    assert (schedule.finish, schedule.num_sends) == (Fraction("0.52"), 12)
    assert taccl.lower_bound(problem).bound == schedule.finish


def test_large_messages_go_chunk_by_chunk():
    """If sending all the data takes longer than a link's latency, the chunks of the problem are not
    merged."""
    topology = taccl.topologies.fully_connected(4)
    large = make_problem(topology, collectives.allreduce(4), size_bytes=10**6)
    assert large.clauses.merging == frozenset()
    assert one_shot(large, cut=False).num_sends == 4 * 12


def test_only_small_sums_merge_by_default():
    """Small sums may merge by default; the chunks of an allgather may not, however small they are."""
    topology = taccl.topologies.fully_connected(4)
    assert make_problem(topology, collectives.allgather(4), size_bytes=1000).clauses == Clauses(max_merge=6)


def test_contributions_add_up_where_they_meet():
    """Contributions that pass a common rank are added up there.

    Ranks 0 and 1 reach rank 3 through rank 2, which sends one message with the sum of all three, not three
    messages.
    """
    builder = TopologyBuilder("y", [0] * 4)
    for src, dst in ((0, 2), (1, 2), (2, 3)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
    collective = collectives.custom(4, precondition={0: [0, 1, 2]}, postcondition={0: [3]}, combining=True)
    schedule = one_shot(make_problem(builder.build(), collective, chunk_bytes=10**6), cut=False)
    assert taccl.verify(schedule).ok
    assert (schedule.finish, schedule.num_sends) == (2, 3)


def test_doubling_sends_all_at_every_step():
    """Doubling takes two steps of 0.5 us and 1,000 bytes on four ranks; halving and doubling takes four."""
    problem = make_problem(taccl.topologies.fully_connected(4), collectives.allreduce(4), size_bytes=1000)
    schedule = recursive(problem)
    assert schedule.producer.startswith("recursive doubling")
    assert (schedule.finish, set(map(len, schedule.contributions))) == (Fraction("1.04"), {1, 2})
    assert taccl.verify(schedule).ok


def test_a_reduction_in_one_shot():
    """All ranks send their contribution to the root in one step."""
    problem = make_problem(
        taccl.topologies.fully_connected(5), collectives.reduce(5, root=2), size_bytes=1000
    )
    schedule = one_shot(problem)
    assert (schedule.finish, schedule.num_transfers) == (Fraction("0.52"), 4)
    assert taccl.verify(schedule).ok


def test_relays_pass_contributions_on():
    """On a ring every contribution crosses each link of its shortest paths once."""
    problem = make_problem(taccl.topologies.ring(5), collectives.allreduce(5), size_bytes=1000)
    schedule = one_shot(problem)
    assert taccl.verify(schedule).ok
    assert schedule.num_sends == 5 * 4


def test_what_adds_nothing_up_is_refused():
    """One-shot refuses collectives without sums."""
    problem = make_problem(taccl.topologies.ring(4), collectives.allgather(4), size_bytes=1000)
    with pytest.raises(CollectiveError, match="is for reductions"):
        one_shot(problem)


@pytest.mark.slow
def test_far_too_many_transfers_are_refused():
    """A one-shot sum of a hundred ranks and chunks, which has a million transfers, is refused."""
    problem = make_problem(
        taccl.topologies.fully_connected(101), collectives.allreduce(101), size_bytes=10**9
    )
    with pytest.raises(CollectiveError, match="transfers"):
        one_shot(problem)


def test_a_sum_for_a_rank_that_nothing_reaches_is_refused():
    """A sum for a rank without incoming links is refused."""
    builder = TopologyBuilder("one-way", [0] * 4)
    for src, dst in ((0, 1), (0, 2), (1, 0), (2, 1), (3, 0), (3, 2)):
        builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=10)
    chunks = Chunk((0, 2), (0, 2), 0), Chunk((2, 3), (2, 3), 1)
    problem = Problem(builder.build(), Collective("sums", 4, chunks, combining=True), (10**6,) * 2)
    with pytest.raises(TopologyError, match="rank 3"):
        one_shot(problem)

"""Gathers and scatters in finer chunks that share messages."""

import pytest

import taccl
from taccl.baselines import baseline
from taccl.schedule.timing import exact_times
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.proposers.merged import _cut_and_merged, _improved, gathers_or_scatters
from taccl.topology.builder import TopologyBuilder


@pytest.mark.parametrize(("collective", "suits"), [("gather", True), ("scatter", True), ("alltoall", False)])
def test_data_of_one_rank_are_recognised(collective, suits):
    """Gathers and scatters have one end at one rank; an alltoall and a broadcast have not."""
    topology = taccl.topologies.hypercube(3)
    assert gathers_or_scatters(taccl.make_problem(topology, collective, size_bytes="1MB")) == suits
    assert not gathers_or_scatters(taccl.make_problem(topology, "broadcast", size_bytes="1MB"))


@pytest.mark.parametrize("parts", [1, 3])
def test_cut_chunks_travel_in_the_messages_of_whole_ones(parts):
    """Parts of a chunk share its message, so that the schedule keeps its sends and its finish."""
    problem = taccl.make_problem(taccl.topologies.mesh(3, 3), "gather", size_bytes=2_700)
    whole = baseline("pairwise", problem, cut=False)
    found = _cut_and_merged(problem, whole, parts)
    assert taccl.verify(found).ok
    assert (found.num_transfers, found.num_sends) == (parts * whole.num_transfers, whole.num_sends)
    assert found.finish_us == whole.finish_us
    assert _cut_and_merged(problem, whole, 1_000) is None


@pytest.mark.parametrize("collective", ["gather", "scatter"])
def test_messages_of_a_gather_or_scatter_merge(collective):
    """Each link of the root takes two messages, which is a latency of 0.5 us more than the bound of 6.33 us.

    Baselines take three. A scatter ends as early as a gather, whose reverse it is.
    """
    problem = taccl.make_problem(taccl.topologies.hypercube(3), collective, size_bytes="1MB")
    first = baseline("recursive", problem)
    found = _improved(_cut_and_merged(problem, first, 1), Limits(), 10_000)
    assert taccl.verify(found).ok
    assert first.finish_us > 7.3 and found.finish_us < 6.84


def test_a_scatter_over_a_multicast_is_improved_as_it_is():
    """A multicast link has no reverse for copies, so that a scatter over it is not reversed in time."""
    builder = TopologyBuilder("multicast", [0] * 3)
    wide = builder.add_link(0, (1, 2), alpha_us=0, beta_us_per_mb=1)
    onward = builder.add_link(1, 2, alpha_us=0, beta_us_per_mb=1)
    problem = taccl.make_problem(builder.build(), "scatter", size_bytes=3_000_000)
    twice = exact_times(
        problem,
        chunk=[1, 2, 2],
        link=[wide, wide, onward],
        sequence=range(3),
        producer="forwarded needlessly",
    )
    found = _improved(twice, Limits(), 100)
    assert taccl.verify(found).ok and found.finish_us == 2


def test_a_scatter_is_not_improved_over_a_link_of_several_sources():
    """Reversed in time, a fast link from ranks 0 and 2 would bring a chunk to both; a scatter cannot use it."""
    builder = TopologyBuilder("several sources", [0] * 3)
    for src, dst, us in ((0, 1, 2), (1, 2, 2), (2, 1, 2), (1, 0, 2), ((0, 2), 1, 1)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=us)
    problem = taccl.make_problem(builder.build(), "scatter", size_bytes=3_000_000)
    first = exact_times(problem, chunk=[1, 2, 2], link=[0, 0, 1], sequence=range(3))
    assert taccl.verify(_improved(first, Limits(), 100)).ok

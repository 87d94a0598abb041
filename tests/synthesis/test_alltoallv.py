"""Schedules of a sequence of alltoallv exchanges with different size matrices."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import taccl
from taccl.errors import InputError
from taccl.problem.alltoallv import borders_of, skewed_sizes
from taccl.synthesis.synthesize import _choice

TWO_NODES = taccl.topologies.dgx_h100(2)


@pytest.mark.slow
@pytest.mark.parametrize("skew", ["hot:64", "zipf:0.4", "zipf:0.8", "zipf:1.2"])
def test_skew_costs_no_more_than_a_twentieth(skew):
    """Skewed exchanges on two nodes finish within 5 % of the bound over all chunkings."""
    sizes = skewed_sizes(16, 64 * 10**6, skew)
    found = taccl.AllToAllV(TWO_NODES).schedule(sizes)
    bound = taccl.lower_bound(found.problem, divisible=True)
    assert found.finish <= 1.05 * bound.bound


def test_the_data_of_every_pair_arrive():
    """The chunks of each pair have the pair's bytes, and the schedule verifies."""
    sizes = skewed_sizes(16, 10**6, "zipf:1", seed=3)
    found = taccl.AllToAllV(TWO_NODES, chunk_bytes=10**4).schedule(sizes)
    arrived = np.zeros_like(sizes)
    for chunk, num_bytes in zip(found.problem.collective.chunks, found.problem.chunk_bytes, strict=True):
        arrived[chunk.origins[0], chunk.destinations[0]] += num_bytes
    assert (arrived == sizes).all()
    assert taccl.verify(found).ok


@pytest.mark.parametrize(
    ("pair_bytes", "factors"),
    [(10**7, [1, 1 / 4, 4, 1 / 2]), (10**9, [1, 1 / 4, 1 / 16, 1 / 2]), (9, [1])],
)
def test_chunk_sizes_follow_the_one_that_gains(pair_bytes, factors):
    """After the usual and a smaller size, a still smaller or a larger one is tried, and sizes for few chunks.

    Equal chunks are tried only once.
    """
    sizes = np.zeros((16, 16), int)
    sizes[:8, 8:] = pair_bytes
    finish_us, tried = {}, []
    for each in taccl.AllToAllV(TWO_NODES)._chunk_sizes(TWO_NODES, sizes, finish_us):
        tried.append(each)
        finish_us[each] = each if pair_bytes > 10**8 else 1 / each
    assert tried == [int(tried[0] * factor) for factor in factors]


def test_nothing_to_send_is_a_schedule():
    """A matrix of zeros has a schedule without sends."""
    assert taccl.AllToAllV(TWO_NODES).schedule(np.zeros((16, 16), int)).num_sends == 0


@pytest.mark.slow
@pytest.mark.parametrize("links", [[(0, 1)], [(0, 1), (1, 0), (2, 3), (3, 2)]], ids=["one-way", "islands"])
def test_data_without_a_path_are_refused(links):
    """Data are refused if no link leads on from a rank, or none leads to another part of the topology."""
    num_ranks = 1 + max(map(max, links))
    builder = taccl.topologies.TopologyBuilder("parts", [0] * num_ranks)
    for src, dst in links:
        builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
    sizes = np.zeros((num_ranks, num_ranks), np.int64)
    sizes[-1, 0] = 10
    with pytest.raises(InputError, match="cannot (get|reach)"):
        taccl.AllToAllV(builder.build()).schedule(sizes)


def test_more_orders_finish_no_later():
    """The best of several orders of sends is kept."""
    sizes = skewed_sizes(16, 10**6, "zipf:1.2")
    one, many = (taccl.AllToAllV(TWO_NODES, num_orders=n).schedule(sizes) for n in (1, 6))
    assert many.finish <= one.finish


@pytest.mark.slow
@pytest.mark.parametrize("skew", ["zipf:0.5", "hot:9"])
def test_borders_bound_an_exchange_from_below(skew):
    """The time for bytes across a cut (bytes / rate + latency) is at most the bound over all chunkings."""
    topology = taccl.topologies.ndv2(2)
    sizes = skewed_sizes(16, 10**7, skew)
    bound = taccl.lower_bound(taccl.alltoallv_problem(topology, sizes), divisible=True)
    assert 0.5 * bound.bound_us < borders_of(topology).least_us(sizes) <= bound.bound_us * (1 + 1e-9)


@pytest.mark.slow
def test_large_machines_spread_hot_pairs_over_all_nics():
    """On 128 ranks hot pairs of Zipf's law finish within 5 % of their bound."""
    topology = taccl.topologies.dgx_h100(16)
    sizes = skewed_sizes(128, 64 * 10**6, "zipf:1.2")
    assert taccl.AllToAllV(topology).schedule(sizes).finish_us <= 1.05 * borders_of(topology).least_us(sizes)


@pytest.mark.parametrize(("chunk_bytes", "said"), [((5,), "of another stage"), ((9,), "in other chunks")])
def test_the_choice_names_other_chunks_only_if_they_differ(chunk_bytes, said):
    """If a schedule from outside the chosen search is best, the text says whether it has the same chunks."""
    chosen, best = (
        SimpleNamespace(problem=SimpleNamespace(chunk_bytes=each), choice=choice, best=1)
        for each, choice in ((chunk_bytes, "the portfolio"), ((5,), ""))
    )
    whole = SimpleNamespace(others=[chosen], made_by=None)
    assert _choice(best, whole) == f"the portfolio; the best schedule is {said}"


@pytest.mark.slow
def test_machines_by_name_have_the_protocol_of_the_problem_of_each_matrix():
    """A scheduler of a machine by name answers as `alltoallv_problem` does: LL for 2 kB a pair, Simple for 10 MB."""
    scheduler = taccl.AllToAllV("dgx-a100")
    for pair_bytes, protocol in ((2_000, "ll"), (10**7, "simple"), (2_000, "ll")):
        sizes = np.full((8, 8), pair_bytes)
        found = scheduler.schedule(sizes)
        problem = taccl.alltoallv_problem("dgx-a100", sizes)
        assert (found.problem.topology.protocol, problem.topology.protocol) == (protocol, protocol)
        assert found.problem.protocol_notes() == problem.protocol_notes()


def test_a_given_protocol_or_topology_keeps_its_protocol():
    """Without a choice of protocol, schedules are under the given one, or under the topology's own, and have no note."""
    sizes = np.full((8, 8), 2_000)
    given = taccl.AllToAllV("dgx-a100", protocol="LL128").schedule(sizes)
    own = taccl.AllToAllV(taccl.topologies.dgx_a100()).schedule(sizes)
    assert [each.problem.topology.protocol for each in (given, own)] == ["ll128", "simple"]
    assert not given.problem.protocol_notes() and not own.problem.protocol_notes()

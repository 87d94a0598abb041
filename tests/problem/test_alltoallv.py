"""Exchanges in which every pair of ranks has its own number of bytes."""

from __future__ import annotations

import numpy as np
import pytest

import taccl
from taccl.errors import CollectiveError, InputError
from taccl.problem.alltoallv import (
    alltoallv_collective,
    alltoallv_problem,
    is_uneven,
    skewed_sizes,
)
from taccl.topologies import dgx_h100, ndv2, ring
from tests.synthesis.small_problems import linked


@pytest.mark.parametrize(
    ("sizes", "pairs", "chunk_bytes", "size_bytes"),
    [
        ([[0, 10, 0], [0, 7, 0], [5, 0, 0]], [((0,), (1,)), ((2,), (0,))], (10, 5), 10),
        ([[9, 0, 0], [0, 9, 0], [0, 0, 9]], [], (), None),
    ],
)
def test_alltoallv_has_a_chunk_for_every_pair_that_sends(sizes, pairs, chunk_bytes, size_bytes):
    """A chunk for every pair of different ranks with bytes to send, and no other."""
    problem = alltoallv_problem(ring(3), sizes)
    assert [(c.origins, c.destinations) for c in problem.collective.chunks] == pairs
    assert (problem.chunk_bytes, problem.size_bytes) == (chunk_bytes, size_bytes)


@pytest.mark.parametrize(
    ("sizes", "word"),
    [
        ([[0, 1], [1, 0]], r"shape \(2, 2\); expected \(3, 3\)"),
        ([[0, 1, 0], [0, 0, -4], [0, 0, 0]], "-4 bytes from rank 1 to 2"),
        ([[0, 1.5, 0], [0, 0, 0], [0, 0, 0]], "found 1.5 from rank 0 to 1"),
        ([[0, 2**61, 0], [2**61, 0, 0], [0, 0, 0]], r"4.61e\+18 bytes in total; expected less than 2\*\*62"),
    ],
)
def test_alltoallv_refuses(sizes, word):
    """Matrices of other shapes are refused, and negative, fractional or too large sizes."""
    with pytest.raises(CollectiveError, match=word):
        alltoallv_problem(ring(3), sizes)


@pytest.mark.parametrize("alpha_us", [0, 1])
def test_data_of_a_rank_without_links_are_refused_by_the_search(alpha_us):
    """Rank 1 has no link to another rank; the problem is made, and the search names a chunk without a path."""
    topology = linked("to 1", [0, 0, 0], [(0, 1), (0, 2), (2, 1)], alpha_us=alpha_us, beta_us_per_mb=1)
    problem = taccl.alltoallv_problem(topology, [[0, 0, 7], [100_000, 0, 0], [0, 0, 0]])
    with pytest.raises(InputError, match="cannot reach a rank that wants it"):
        taccl.synthesize(problem, time_limit_s=1)


def test_the_data_of_a_pair_are_cut_into_equal_chunks():
    """The data of a pair are cut into nearly equal chunks.

    100 bytes in chunks of at most 40 are 34, 33 and 33; a pair with fewer stays whole.
    """
    problem = alltoallv_problem(ring(3), [[0, 100, 30], [0, 0, 0], [0, 0, 0]], chunk_bytes=40)
    assert problem.chunk_bytes == (34, 33, 33, 30)
    assert [chunk.destinations for chunk in problem.collective.chunks] == [(1,)] * 3 + [(2,)]
    assert problem.notes[0].startswith("2 pairs of ranks in 4 chunks of at most 40B")


def test_no_more_is_cut_than_latency_allows():
    """Chunks are not cut below the size that takes eight latencies on a link.

    On a link of 50 GB/s with 0.5 us of latency that size is 200 KB, 4 us.
    """
    counts = []
    for total in (8_000_000, 4_000_000, 100_000):
        problem = alltoallv_problem(ring(3), [[0, total, 0], [0, 0, 0], [0, 0, 0]])
        counts.append(problem.collective.num_chunks)
    assert counts == [40, 20, 1]


@pytest.mark.parametrize(
    ("hot", "machine", "num_chunks"),
    [
        # No fixed times: at most 512 chunks.
        ([(0, 9)], dgx_h100(2, profile="nominal"), 512),
        # T = 6722.6 us at the NIC, where 24.76 KB pass in a fixed time: sqrt(6722.6 x 24762 / (2 x 105e-6)) bytes
        # are 890 KB, not half of the 1 MB that a 64th of the data has.
        ([(0, 9)], ndv2(2), 64),
        # T = 457.6 us inside the node, h = 13.04 KB, b = 46 us/MB: 255 KB.
        ([(0, 1)], ndv2(2), 252),
        # More pairs than a quarter of the ranks, T = 33602.6 us: 1.99 MB, 33 chunks each.
        ([(0, i) for i in range(11, 16)], ndv2(2), 165),
        # The same without fixed times: a quarter of the 5 MB that a 64th of the data has.
        ([(0, i) for i in range(11, 16)], dgx_h100(2, profile="nominal"), 260),
    ],
)
def test_chunks_make_pipelines_end_sooner_as_far_as_fixed_times_allow(hot, machine, num_chunks):
    """64 MB of a pair are cut by the fixed times on their way; without these, data of few pairs are cut most."""
    sizes = np.zeros((16, 16), int)
    for source, destination in hot:
        sizes[source, destination] = 64_000_000
    assert alltoallv_problem(machine, sizes).collective.num_chunks == num_chunks


def test_pairs_are_rounded_up_to_chunks_of_one_size():
    """Each pair's bytes are rounded up to chunks of one size, and `size_bytes` is that of the busiest rank.

    With chunks of 40 bytes, 30 bytes become one chunk and 100 bytes three.
    """
    collective = alltoallv_collective([[0, 100, 30], [0, 0, 0], [0, 0, 0]], chunk_bytes=40)
    assert [each.destinations for each in collective.chunks] == [(1,), (1,), (1,), (2,)]
    assert taccl.make_problem(ring(3), collective, size_bytes=400).chunk_bytes == (100,) * 4


@pytest.mark.parametrize("sizes", [3, [[0, 1]], [[0, 1], [2]], [[0, 0.5], [1, 0]], []])
def test_no_square_matrix_makes_no_collective(sizes):
    """Size matrices that are scalars, have rows of other lengths, or fractions, are refused."""
    with pytest.raises(CollectiveError, match="sizes: found"):
        alltoallv_collective(sizes)


def test_zipf_sizes_fall_with_their_rank():
    """Sorted sizes are proportional to 1 / k ** S, and ranks send the given bytes on average."""
    sizes = skewed_sizes(4, 10**9, "zipf:0.5", seed=3)
    falling = np.sort(sizes[~np.eye(4, dtype=bool)])[::-1]
    assert falling / falling[0] == pytest.approx(np.arange(1, 13) ** -0.5)
    assert sizes.sum() == pytest.approx(4 * 10**9, abs=12)
    assert not sizes.diagonal().any()


def test_a_hot_pair_sends_the_given_multiple():
    """One pair, chosen by the seed, sends F times the bytes of every other."""
    hot = {seed: skewed_sizes(3, 50, "hot:10", seed=seed) for seed in range(9)}
    assert all(sorted(sizes.ravel()) == [0, 0, 0, *[10] * 5, 100] for sizes in hot.values())
    assert len({int(sizes.argmax()) for sizes in hot.values()}) > 1


@pytest.mark.parametrize("skew", ["zipf", "zipf:-1", "hot:x", "even:1", "zipf:nan"])
def test_a_skew_without_its_number_is_refused(skew):
    """The error for a skew without a number shows both forms, zipf:S and hot:F."""
    with pytest.raises(InputError, match="expected zipf:S, such as zipf:0.8, or hot:F"):
        skewed_sizes(3, 50, skew)


@pytest.mark.parametrize(
    ("sizes", "uneven"), [([[0, 5], [7, 0]], True), ([[0, 5], [5, 0]], False), ([[0, 5], [0, 0]], False)]
)
def test_pairs_with_different_numbers_of_bytes_are_uneven(sizes, uneven):
    """An exchange is uneven if two of its pairs have different numbers of bytes; other pairs have none."""
    problem = taccl.alltoallv_problem(taccl.topologies.ring(2), sizes, chunk_bytes=2)
    assert is_uneven(problem) is uneven
    assert not is_uneven(taccl.make_problem(taccl.topologies.ring(2), "allgather", size_bytes=10))


@pytest.mark.parametrize(
    ("num_pairs", "chunk_bytes", "uneven"), [(2, 5, True), (2, 10, False), (3, 5, False)]
)
def test_few_pairs_are_uneven_if_their_data_are_cut(num_pairs, chunk_bytes, uneven):
    """Two pairs of eight ranks are few, and count as uneven unless each has a single chunk."""
    sizes = np.zeros((8, 8), int)
    sizes[range(num_pairs), range(1, num_pairs + 1)] = 10
    assert is_uneven(alltoallv_problem(ring(8), sizes, chunk_bytes=chunk_bytes)) is uneven


@pytest.mark.parametrize("name", ["alltoallv", "AllToAllV", "all-to-all-v"])
def test_its_name_leads_to_the_function_that_makes_it(name):
    """`make_problem` has no sizes of pairs, so its error names `alltoallv_problem`."""
    with pytest.raises(CollectiveError, match=r"taccl\.alltoallv_problem\(topology, sizes\)"):
        taccl.make_problem(ring(4), name, size_bytes=4000)

"""Shares of the sums of an allreduce that are rooted at each rank."""

from fractions import Fraction

import pytest

import taccl
from taccl.analysis.verification.verify import verify
from taccl.synthesis.proposers.trees import along_trees
from taccl.synthesis.trees.roots import has_free_roots, root_shares, with_roots
from taccl.topology.builder import TopologyBuilder


def never():
    """A search for shares without a time limit."""
    return False


def allreduce(betas, chunks_per_rank=1):
    """Allreduce of 3 MB on three ranks in a triangle, with `betas` in us/MB of links 0-1, 0-2 and 1-2."""
    builder = TopologyBuilder("triangle", [0] * 3, alpha_meaning="pipelined")
    for (a, b), beta in zip(((0, 1), (0, 2), (1, 2)), betas, strict=True):
        for src, dst in ((a, b), (b, a)):
            builder.add_link(src, dst, alpha_us="0.1", beta_us_per_mb=beta)
    collective = taccl.collectives.allreduce(3, chunks_per_rank=chunks_per_rank)
    return taccl.make_problem(builder.build(), collective, size_bytes="3MB")


def test_a_rank_with_slow_links_roots_more_sums():
    """Half of the sums are rooted at rank 0, which two slow links join to ranks 1 and 2.

    The two links pass 1 MB/us in each direction. With a share w at rank 0, each phase sends 1 - w of the sums
    over them in one direction, and w in the other. The larger one is least for w = 1/2; even shares give 2/3.
    """
    shares = root_shares(allreduce((2, 2, Fraction(1, 8))), never)
    assert shares[0] == Fraction(1, 2)
    assert sum(shares) == 1


def test_alike_ranks_keep_even_shares():
    """On a symmetric machine no other shares are quicker than even ones."""
    assert root_shares(allreduce((1, 1, 1)), never) is None


def test_roots_of_a_reduce_scatter_are_fixed():
    """The sums of a reduce-scatter end at given ranks; only those of an allreduce may have other roots."""
    topology = allreduce((2, 2, 1)).topology
    fixed = taccl.make_problem(topology, "reduce-scatter", size_bytes="3MB").in_its_chunks
    assert not has_free_roots(fixed)
    assert root_shares(fixed, never) is None


def test_shares_that_take_too_long_are_left_out():
    """Without time no shares are chosen, so the problem's own roots remain."""
    assert root_shares(allreduce((2, 2, 1)), lambda: True) is None


def test_sums_are_rooted_by_their_shares():
    """Six sums are rooted at three ranks: three, one and two of them."""
    problem = with_roots(allreduce((1, 1, 1), 2), (Fraction(1, 2), Fraction(1, 6), Fraction(1, 3)))
    assert [chunk.root for chunk in problem.collective.chunks] == [0, 0, 0, 1, 2, 2]


@pytest.mark.slow
def test_chosen_roots_make_an_allreduce_faster():
    """Trees with chosen roots give a valid schedule of the same problem that ends sooner."""
    problem = allreduce((2, 2, Fraction(1, 8)), 32)
    even, chosen = along_trees(problem), along_trees(problem, shares=root_shares(problem, never))
    assert chosen.problem is problem
    assert verify(chosen).ok
    assert chosen.finish_us < 0.85 * even.finish_us

"""Pipelines of derived chunks: valid schedules over several paths, earlier than along one path."""

from fractions import Fraction

import pytest

from taccl import collectives, make_problem, verify
from taccl.synthesis.proposers.chains import pipeline
from taccl.topology import fabrics
from tests.effort import brief_synthesis


def scan(topology, *, pieces):
    """A scan of 1 MB per rank in the given number of pieces."""
    collective = collectives.scan(topology.num_ranks, chunks_per_rank=pieces)
    return make_problem(topology, collective, chunk_bytes=10**6 // pieces)


def test_pieces_take_several_paths():
    """Between four ranks with links of 1 us per KB, pieces take the direct link and the detours."""
    problem = scan(fabrics.fully_connected(4, alpha_us=0, bandwidth_gb_per_s=1), pieces=20)
    one, several = (pipeline(problem, period) for period in (1, 4))
    for found in (one, several):
        verify(found).raise_if_failed()
    assert one.finish == (20 + 2) * 50  # 20 pieces of 50 us through three pairs of ranks
    assert several.finish < Fraction(3, 4) * one.finish


@pytest.mark.parametrize(
    "problem",
    [
        make_problem(fabrics.ring(3), "allgather", chunk_bytes=9),  # starts at one rank, ends at others
        scan(fabrics.ring(3), pieces=2).with_clauses(direct_crossing=True),
    ],
)
def test_other_problems_have_no_pipeline(problem):
    """There is no pipeline if chunks end at several ranks, or if a sketch restricts paths."""
    assert pipeline(problem, 1) is None


@pytest.mark.slow
@pytest.mark.parametrize("is_open", [True, False])
def test_scans_are_pipelined(is_open):
    """The search proposes pipelines, in finer chunks if their number is open: at most one for each byte."""
    topology = fabrics.fully_connected(4, alpha_us=0, bandwidth_gb_per_s="1e-6")
    collective = collectives.scan(4, chunks_per_rank=None if is_open else 12)
    found = brief_synthesis(make_problem(topology, collective, size_bytes=12), until_gap=0.7).schedule
    assert "pipeline" in found.producer
    assert found.problem.collective.num_chunks == 4 * 12
    assert found.finish <= 10_000

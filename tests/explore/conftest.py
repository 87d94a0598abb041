"""A small problem with an optimum derived by hand, and an empty cache for each test."""

from __future__ import annotations

import pytest

import taccl


@pytest.fixture
def problem():
    """Allgather of 4 MB on a ring of four: two hops of 0.5 us + 1 MB / (50 GB/s), so 41 us."""
    ring = taccl.topologies.parse("ring:4")
    return taccl.make_problem(ring, taccl.collectives.allgather(4, chunks_per_rank=1), size_bytes=4 * 10**6)


@pytest.fixture
def impossible(problem):
    """The problem with a sketch that forbids all links."""
    return problem.with_clauses(name="no links", links_allowed=frozenset())


@pytest.fixture
def cache(tmp_path):
    """An empty cache."""
    return taccl.Cache(tmp_path / "cache")

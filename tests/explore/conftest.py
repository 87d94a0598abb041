"""A small problem with an optimum derived by hand, an empty cache for each test, and shared channels."""

from __future__ import annotations

import pytest

import taccl
from taccl.baselines import channels

#: {what a search for channels reads: channels found}.
_CHANNELS = {}


@pytest.fixture(autouse=True, scope="module")
def _shared_channels():
    """Search the channels of equal topologies once: most diagnoses are of the same few machines."""
    search = channels._found

    def shared(pattern):
        topology = pattern.topology
        parts = topology.links, topology.holds, topology.node_of_rank, pattern.routes.ticks
        key = type(pattern), parts
        if key not in _CHANNELS:
            _CHANNELS[key] = search(pattern)
        return _CHANNELS[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels, "_found", shared)
        yield


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

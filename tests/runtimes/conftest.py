"""Files for the tests of runtimes."""

import pytest

import taccl


@pytest.fixture(scope="session")
def ring_file(tmp_path_factory):
    """Path of a ring allgather of two ranks."""
    problem = taccl.make_problem(taccl.topologies.ring(2), "allgather", size_bytes="1KB", chunks_per_rank=1)
    path = tmp_path_factory.mktemp("ring") / "ring.json"
    taccl.save(taccl.baselines.ring(problem), path)
    return str(path)

"""Ranks that relay chunks that they do not need."""

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl.analysis.verification.verify import verify
from taccl.problem.collectives import together
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.schedule.schedule import Schedule
from taccl.synthesis.kernels.fabric import problem_arrays
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.proposers import spreading
from taccl.synthesis.proposers.spreading import spread


@pytest.fixture
def problem():
    """Three process groups of four non-adjacent ranks of a mesh, three chunks per rank."""
    parts = [range(g, 12, 3) for g in range(3)]
    joint = together(
        [collectives.allgather(4, chunks_per_rank=3).among(list(part), num_ranks=12) for part in parts]
    )
    return make_problem(taccl.topologies.mesh(3, 4), joint, chunk_bytes=10**6, clauses=Clauses())


def test_relays_lead_to_all_that_want_a_chunk(problem, monkeypatch):
    """Relays are ranks outside a chunk's group. Schedules verify, whether routes over relays are kept or
    dropped."""
    for steps in (0, 10**9):
        monkeypatch.setattr(spreading, "KEPT_STEPS", steps)
        fabric, demand = problem_arrays(problem)
        relayed, routes = spreading._with_relays(fabric, demand, Limits())
        assert (routes is None) == (steps == 0)
        assert relayed.wanted is not None and relayed.needed is demand.wanted
        assert np.bitwise_count(relayed.wanted).sum() > np.bitwise_count(relayed.needed).sum()
        found = spread(fabric, demand, Limits())
        schedule = Schedule(problem, found.chunk, found.link, found.start, producer="greedy")
        assert verify(schedule).ok

"""Ranks that carry what they do not want, where there are too many chunks for a tree each."""

from __future__ import annotations

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl.analysis.verification.verify import verify
from taccl.collectives import together
from taccl.problem import Clauses, make_problem
from taccl.schedule.compact import CompactSchedule
from taccl.synthesis.heuristic import relays
from taccl.synthesis.heuristic.fabric import problem_arrays
from taccl.synthesis.heuristic.limits import Limits
from taccl.synthesis.heuristic.relays import with_relays
from taccl.synthesis.heuristic.spreading import spread
from taccl.synthesis.parameters import SearchParameters


@pytest.fixture
def problem():
    """Three groups of four ranks of a mesh, the ranks of which are no neighbours, with three chunks a rank."""
    parts = [range(g, 12, 3) for g in range(3)]
    joint = together(
        [collectives.allgather(4, chunks_per_rank=3).among(list(part), num_ranks=12) for part in parts]
    )
    return make_problem(taccl.topologies.mesh(3, 4), joint, chunk_bytes=10**6, clauses=Clauses())


def test_chunks_that_start_and_end_alike_share_a_search(problem) -> None:
    """Two at most, of the three that each of the twelve ranks has."""
    _, demand = problem_arrays(problem)
    shared, net = relays._shared(demand, 2)
    assert net[:6].tolist() == [0, 0, 1, 2, 2, 3]
    assert shared.units[:4].tolist() == [2 * demand.units[0], demand.units[0]] * 2
    assert shared.origin.tolist() == [
        rank for each in range(3) for rank in range(each, 12, 3) for _ in range(2)
    ]


def test_relays_of_shared_searches_lead_to_all_that_want_a_chunk(problem) -> None:
    """One pass, and chunks in pairs: what is sent verifies, and ranks relay that are in no group of the chunk."""
    few = SearchParameters.from_dict({"router": {"kept_steps": 0, "most_searches": 18}})
    fabric, demand = problem_arrays(problem)
    relayed = with_relays(fabric, demand, Limits(parameters=few))
    assert relayed.routes is None
    assert relayed.wanted is not None and relayed.needed is demand.wanted
    assert np.bitwise_count(relayed.wanted).sum() > np.bitwise_count(relayed.needed).sum()
    found = spread(fabric, relayed)
    schedule = CompactSchedule(problem, found.chunk, found.link, found.start, "greedy").expand()
    assert verify(schedule).ok

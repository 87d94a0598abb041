"""Problems that the tests of baselines share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taccl import collectives
from taccl.problem.problem import make_problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl.problem.problem import Problem
    from taccl.topology.topology import Topology

#: Links on which a chunk of 1000 bytes takes 1 us of latency and 1 us of 1000 B / (1 GB/s): 2 us a hop.
UNIT_COSTS = {"alpha_us": 1, "bandwidth_gb_per_s": 1}


@pytest.fixture
def unit_costs() -> dict[str, int]:
    """Keywords of a fabric on whose links a chunk of `make` takes 2 us a hop."""
    return UNIT_COSTS


@pytest.fixture
def make() -> Callable[..., Problem]:
    """A problem of 1000-byte chunks from a collective's name and a topology."""

    def problem(name: str, topology: Topology, **options: int) -> Problem:
        return make_problem(topology, collectives.make(name, topology.num_ranks, **options), chunk_bytes=1000)

    return problem

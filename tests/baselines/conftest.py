"""Fixtures for the tests of baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taccl import collectives
from taccl.problem.making import make_problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl.problem.problem import Problem
    from taccl.topology.topology import Topology

#: 1 us of latency and 1 us for 1000 bytes at 1 GB/s: 2 us per hop.
UNIT_COSTS = {"alpha_us": 1, "bandwidth_gb_per_s": 1}


@pytest.fixture
def unit_costs() -> dict[str, int]:
    """Keywords for a fabric on which a chunk of `make` takes 2 us per hop."""
    return UNIT_COSTS


@pytest.fixture
def annealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Improve mixed plans by longer runs of simulated annealing than tests do by default."""
    runs = (20_000, 0.005), (40_000, 0.02), (60_000, 0.005), (60_000, 0.001)
    monkeypatch.setattr("taccl.baselines.multiplying_mixes._RUNS", runs)


@pytest.fixture
def make() -> Callable[..., Problem]:
    """Function of a collective's name and a topology that returns a problem of 1000-byte chunks."""

    def problem(name: str, topology: Topology, **options: int) -> Problem:
        return make_problem(topology, collectives.make(name, topology.num_ranks, **options), chunk_bytes=1000)

    return problem

"""Pictures without a screen, and results that are drawn."""

from __future__ import annotations

import matplotlib
import pytest

import taccl
from taccl import collectives
from taccl.schedule.schedule import make_schedule
from tests.synthesis.small_problems import full, problem_of, two_nodes

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def no_figures_left():
    """Close the figures that a test opened."""
    from matplotlib import pyplot

    yield
    pyplot.close("all")


@pytest.fixture(scope="session")
def exchange():
    """Two ranks that send each other 1 MB in 1 us, then rank 0 sends chunk 0 once more, in vain: 2 us in all."""
    problem = problem_of(full(2), collectives.allgather(2))
    return make_schedule(
        problem, chunk=[0, 1, 0], link=[0, 1, 0], start=[0, 0, problem.costs.ticks_per_us],
        end=[problem.costs.ticks_per_us] * 2 + [2 * problem.costs.ticks_per_us], producer="by hand",
    )  # fmt: skip


@pytest.fixture(scope="session")
def found():
    """An allreduce over two nodes of two ranks, searched in two halves."""
    problem = problem_of(two_nodes(), collectives.allreduce(4))
    return taccl.synthesize(problem, backend="greedy", time_limit_s=1)

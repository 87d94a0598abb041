"""``benchmarks/peers.py``: rows of comparisons, and the linear programs of two peers."""

from __future__ import annotations

import pytest

from benchmarks.peer_graphs import GRAPHS, bfb, multicommodity
from benchmarks.peers import comparisons


@pytest.mark.parametrize(
    ("name", "steps", "rounds"),
    [("Petersen", 2, 3), ("torus 3x5", 3, 3.5), ("GenKautz(2,12)", 3, 7)],
)
def test_rounds_of_a_breadth_first_broadcast(name, steps, rounds):
    """Ranks of the first two receive n - 1 chunks evenly; on the last graph some steps leave links idle."""
    assert bfb(GRAPHS[name]) == (steps, pytest.approx(rounds))


@pytest.mark.parametrize(("name", "rounds"), [("Q3", 4), ("K4,4", 2.5), ("torus 3x3", 3)])
def test_rounds_of_a_multicommodity_flow(name, rounds):
    """On symmetric graphs the total distance from a rank, over its links, is reached."""
    assert multicommodity(GRAPHS[name]) == pytest.approx(rounds)


@pytest.mark.slow
def test_every_comparison_has_a_name_of_its_own():
    """Rows are stored under their names."""
    names = [each.name for each in comparisons()]
    assert len(set(names)) == len(names)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_data")
def test_all_machines_can_be_made():
    """Files, fabrics and graphs have the ranks that their collectives need."""
    assert all(each.machine().num_ranks > 1 for each in comparisons())

"""``benchmarks/peers.py``: rows of comparisons, and the linear programs of two peers."""

from __future__ import annotations

import json

import pytest

from benchmarks.peer_graphs import GRAPHS, bfb, multicommodity
from benchmarks.peers import Comparison, comparisons, main, measured
from taccl.topologies import ring


@pytest.mark.parametrize(
    ("name", "steps", "rounds"), [("Petersen", 2, 3), ("torus 3x5", 3, 3.5), ("GenKautz(2,12)", 3, 7)]
)
def test_rounds_of_a_breadth_first_broadcast(name, steps, rounds):
    """On the first two graphs every step of the breadth-first broadcast keeps all links equally busy.

    On the last graph some steps leave links idle.
    """
    assert bfb(GRAPHS[name]) == (steps, pytest.approx(rounds))


@pytest.mark.parametrize(("name", "rounds"), [("Q3", 4), ("K4,4", 2.5), ("torus 3x3", 3)])
def test_rounds_of_a_multicommodity_flow(name, rounds):
    """On symmetric graphs the rounds are the sum of a rank's distances to all others, divided by its number
    of links."""
    assert multicommodity(GRAPHS[name]) == pytest.approx(rounds)


@pytest.fixture(scope="module")
def every_comparison():
    """All comparisons, without the linear programs that give the times of two peers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.peers.bfb", lambda graph: (1, 1.0))
        patch.setattr("benchmarks.peers.multicommodity", lambda graph: 1.0)
        return list(comparisons())


@pytest.mark.slow
def test_every_comparison_has_a_name_of_its_own(every_comparison):
    """Names of comparisons are unique, as rows are stored under them."""
    names = [each.name for each in every_comparison]
    assert len(set(names)) == len(names)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_data")
def test_all_machines_can_be_made(every_comparison):
    """Machines of all comparisons can be made, and have more than one rank."""
    assert all(each.machine().num_ranks > 1 for each in every_comparison)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("peer_us", "most", "missed"), [(1.0, 1.0, []), (20.5, 1.0, []), (20.5, 0.9, ["finish"])]
)
def test_a_figure_below_the_bound_is_of_the_bound(peer_us, most, missed):
    """A peer's time below the lower bound counts as the bound, here 20.5 us for 2 MB on two ranks."""
    case = Comparison("peer", "pair", lambda: ring(2), "allgather", 2 * 10**6, peer_us, most, 1)
    row = measured(case, limit_s=2.0, seed=0)
    assert row["ours_us"] == row["bound_us"] == 20.5
    assert row["missed"] == missed


@pytest.mark.slow
def test_rows_that_are_not_run_stay(tmp_path, monkeypatch, capsys):
    """With --only, rows of an earlier file are kept in order; --stored prints them, and runs nothing."""
    pair = [
        Comparison(name, "pair", lambda: ring(2), "allgather", 2000, 9.0, 1.0, 1) for name in ("one", "two")
    ]
    monkeypatch.setattr("benchmarks.peers.comparisons", lambda: iter(pair))
    output = tmp_path / "peers.json"
    for words in (["--only", "two"], ["--only", "one"], ["--stored"]):
        monkeypatch.setattr("sys.argv", ["peers", *words, "--limit", "1", "--output", str(output)])
        assert main() == 0
    assert capsys.readouterr().out.rpartition("(times in us)")[2].count("allgather") == 2
    assert [row["peer"] for row in json.loads(output.read_text())["rows"]] == ["one", "two"]

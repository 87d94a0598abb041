"""The picture of a comparison: a mark for every run, also for runs without a schedule."""

import pytest

import taccl
from taccl.errors import InputError
from taccl.explore.rows import DETAILS, frame, new_row, shortened


def row(backend, gap, **known):
    """Row of a run on one problem; without a gap it has no schedule."""
    if gap is None:
        known |= {"status": "unavailable", "error": "it is not installed"}
    else:
        known |= {"status": "found", "finish_us": 10 * (1 + gap), "bound_us": 10.0, "gap": gap}
    return new_row(backend=backend, sketch="none", seconds=2.0, **known)


def test_every_run_has_a_mark():
    """Two runs with a schedule and one without have a mark each."""
    ax = taccl.plot.comparison(frame([row("greedy", 0.2), row("highs", 0.0), row("scip", None)]))
    assert len(ax.collections) == 2
    assert [line.get_marker() for line in ax.lines] == ["x"]
    assert ax.collections[0].get_offsets().tolist() == [[2.0, 0.2]]


def test_failures_say_why():
    """The legend of a comparison shows the status of runs without a schedule."""
    ax = taccl.plot.comparison(frame([row("greedy", 0.2), row("scip", None)]))
    assert "scip (x: unavailable)" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_failures_alone_make_a_picture():
    """Runs without any schedule are drawn without an error."""
    ax = taccl.plot.comparison(frame([row("scip", None)]))
    assert "1 run, 0 with a schedule" in ax.get_title(loc="left")


def test_marks_distinguish_sizes():
    """For two sizes of one sketch the legend shows both."""
    ax = taccl.plot.comparison(
        frame([row("greedy", 0.2, size_bytes=10**6), row("greedy", 0.1, size_bytes=10**9)])
    )
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    assert words == ["greedy", "1MB", "1GB"]


@pytest.mark.slow
def test_no_two_kinds_of_runs_look_alike():
    """Twelve backends at ten sizes have 120 different pairs of colour and mark."""
    runs = [row(f"pulp:{b}", 0.1, size_bytes=10**s) for b in range(12) for s in range(10)]
    ax = taccl.plot.comparison(frame(runs))
    looks = {
        (each.get_facecolor().tobytes(), each.get_paths()[0].vertices.tobytes()) for each in ax.collections
    }
    assert len(looks) == 120


def test_equal_gaps_are_bars():
    """Runs of equal gaps, whose marks would overlap, are bars of equal length; a failure has its reason."""
    ax = taccl.plot.backends(frame([row("highs", 0.25), row("greedy", 0.25), row("scip", None)]))
    assert [(bar.get_x(), bar.get_width()) for bar in ax.patches] == [(1.0, 0.25)] * 2
    assert [text.get_text() for text in ax.get_yticklabels()] == ["greedy", "highs", "scip"]
    assert [text.get_text() for text in ax.texts] == [" 1.25 (12.5 us)"] * 2 + [" unavailable"]


def test_bars_of_sizes_and_seeds_are_distinguished():
    """If bars of one backend differ in size or seed, their names state these."""
    runs = [row("greedy", 0.0, size_bytes=10**6, seed=0), row("greedy", 0.5, size_bytes=10**9, seed=1)]
    ax = taccl.plot.backends(frame(runs))
    assert [text.get_text() for text in ax.get_yticklabels()] == [
        "greedy, 1MB, seed 0",
        "greedy, 1GB, seed 1",
    ]
    with pytest.raises(InputError, match="at most 100"):
        taccl.plot.backends(frame(runs * 51))


def test_other_tables_are_refused():
    """A table without the required columns, or without rows, is refused."""
    import pandas as pd

    with pytest.raises(InputError, match="without backend"):
        taccl.plot.comparison(pd.DataFrame({"gap": [1.0]}))
    with pytest.raises(InputError, match="without rows"):
        taccl.plot.comparison(frame([]))


@pytest.mark.parametrize("name", ["comparison", "backends", "performance_profile"])
def test_tables_with_details_are_drawn(name):
    """A table that keeps details, and has no column for the sketch, as all rows have the same one, is drawn."""
    table = shortened(frame([row("greedy", 0.2), row("highs", 0.0)]), DETAILS)
    assert "sketch" not in table
    assert getattr(taccl.plot, name)(table).has_data()

"""The picture of a comparison: a mark for every run, also for those without a schedule."""

from __future__ import annotations

import pytest

import taccl
from taccl.errors import InputError
from taccl.explore.rows import frame, new_row


def row(backend, gap, **known):
    """A run on one problem; without a gap it has no schedule."""
    if gap is None:
        known |= {"status": "unavailable", "error": "it is not installed"}
    else:
        known |= {"status": "found", "finish_us": 10 * (1 + gap), "bound_us": 10.0, "gap": gap}
    return new_row(backend=backend, sketch="none", seconds=2.0, **known)


def test_every_run_has_a_mark():
    """Two runs with a schedule, one without."""
    ax = taccl.plot.comparison(frame([row("greedy", 0.2), row("highs", 0.0), row("scip", None)]))
    assert len(ax.collections) == 2
    assert [line.get_marker() for line in ax.lines] == ["x"]
    assert ax.collections[0].get_offsets().tolist() == [[2.0, 0.2]]


def test_failures_say_why():
    """The key has the status of runs without a schedule."""
    ax = taccl.plot.comparison(frame([row("greedy", 0.2), row("scip", None)]))
    assert "scip (x: unavailable)" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_failures_alone_make_a_picture():
    """No schedule at all is no error."""
    ax = taccl.plot.comparison(frame([row("scip", None)]))
    assert "1 run, 0 with a schedule" in ax.get_title(loc="left")


def test_shapes_tell_sizes_apart():
    """Two sizes of one sketch: the key has both."""
    ax = taccl.plot.comparison(
        frame([row("greedy", 0.2, size_bytes=10**6), row("greedy", 0.1, size_bytes=10**9)])
    )
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    assert words == ["greedy", "1MB", "1GB"]


def test_other_tables_are_refused():
    """A table without the columns, or without rows, is no comparison."""
    import pandas as pd

    with pytest.raises(InputError, match="without backend"):
        taccl.plot.comparison(pd.DataFrame({"gap": [1.0]}))
    with pytest.raises(InputError, match="without rows"):
        taccl.plot.comparison(frame([]))

"""Pictures of comparisons, the performance profile, and the progress of a search."""

import dataclasses

import pytest

import taccl
from taccl import collectives
from taccl.errors import InputError
from taccl.explore.rows import DETAILS, frame, new_row, shortened
from taccl.plot.comparison import trace_in
from taccl.synthesis.result import TraceEntry
from tests.effort import brief_synthesis
from tests.synthesis.small_problems import problem_of, relayed, ring


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


@pytest.fixture(scope="module")
def found():
    """Allreduce on a ring of four, searched in two phases, as no baseline meets the bound."""
    return brief_synthesis(problem_of(ring(4), collectives.allreduce(4)), backend="greedy")


@pytest.mark.slow
def test_key_is_beside_the_lines(found):
    """The legend begins to the right of the axes, so that it covers no curve."""
    ax = taccl.plot.progress(found)
    ax.figure.canvas.draw()
    assert ax.get_legend().get_window_extent().x0 >= ax.bbox.x1


def test_a_result_keeps_its_progress():
    """Entries of a result's trace are ordered by time, and their finishes improve down to the result's.

    No finish is below the bound.
    """
    result = brief_synthesis(relayed(), backend="greedy")
    assert relayed().collective.combining is False
    times = [entry.seconds for entry in result.trace]
    finishes = [entry.finish_us for entry in result.trace if entry.finish_us is not None]
    assert times == sorted(times)
    assert finishes == sorted(finishes, reverse=True)
    assert result.found_s == next(e.seconds for e in result.trace if e.finish_us == result.finish_us)
    assert result.trace[-1].finish_us == result.finish_us
    assert result.trace[-1].bound_us == result.bound_us
    assert times[-1] <= result.seconds


def test_phases_are_distinguished(found):
    """Entries of an allreduce belong to one of its two phases, and the last one to the whole."""
    assert {entry.phase for entry in found.trace} == {"", "reduce", "broadcast"}
    assert found.trace[-1].phase == ""


def test_traces_of_earlier_files_are_read():
    """The broadcast phase was once named "spread" in files."""
    entries = [{"seconds": 1, "finish_us": 5.0, "bound_us": 4.0, "half": "spread"}]
    assert [entry.phase for entry in trace_in({"trace": entries})] == ["broadcast"]


def test_a_named_solver_has_its_own_progress():
    """The progress of a named solver starts from its own schedules, not the list scheduler's."""
    problem = problem_of(ring(3), collectives.allgather(3))
    result = brief_synthesis(problem, backend="highs")
    assert result.trace[-1].finish_us == result.finish_us
    finishes = [entry.finish_us for entry in result.trace if entry.finish_us is not None]
    assert finishes == sorted(finishes, reverse=True)


def test_steps_are_drawn(found):
    """The picture has a line for the finish and one for the bound, of each phase and of the whole."""
    ax = taccl.plot.progress(found)
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    assert "whole: best finish so far" in words
    assert "reduce phase: bound" in words
    assert ax.get_xlabel() == "seconds since the start"


def test_a_result_made_by_hand_has_none(found):
    """The error for a result without a trace says so."""
    with pytest.raises(InputError, match="no record of a search"):
        taccl.plot.progress(dataclasses.replace(found, trace=()))


def test_plain_values_give_the_same_trace(found):
    """A trace survives a round trip through plain values."""
    assert trace_in(found.to_dict()) == found.trace


@pytest.mark.parametrize(
    "trace",
    [None, "text", [1], [{}], [{"seconds": "1"}], [{"seconds": float("nan")}], [{"seconds": 1, "phase": 3}],
     [{"seconds": 1, "finish_us": True}]],
)  # fmt: skip
def test_what_is_not_in_order_is_left_out(trace):
    """A trace with an invalid entry is ignored."""
    assert trace_in({"trace": trace}) == ()


def test_entries_need_only_seconds():
    """An entry of a trace may lack finish and bound."""
    assert trace_in({"trace": [{"seconds": 1}]}) == (TraceEntry(1, None, None),)


def profile_row(backend, finish_us, size_bytes=1000):
    """Row of a run; without a finish it has no schedule."""
    return new_row(backend=backend, sketch="none", seconds=2.0, finish_us=finish_us, size_bytes=size_bytes)


def curves(rows):
    """{backend: points of its curve}."""
    ax = taccl.plot.performance_profile(frame(rows))
    return {line.get_label(): [tuple(map(float, point)) for point in line.get_xydata()] for line in ax.lines}


def test_a_curve_rises_by_a_problem_at_the_ratio_to_its_best():
    """Two backends that are each best at one of two sizes, and need twice the best at the other, have equal
    curves."""
    rows = [
        profile_row("highs", 1.0),
        profile_row("scip", 2.0),
        profile_row("highs", 4.0, 2000),
        profile_row("scip", 2.0, 2000),
    ]
    for points in curves(rows).values():
        assert points[:3] == [(1.0, 0.0), (1.0, 0.5), (2.0, 1.0)]


def test_a_run_without_a_schedule_keeps_its_curve_below_one():
    """A backend that solves one of two problems has a curve that ends at 1/2."""
    found = curves(
        [
            profile_row("highs", 1.0),
            profile_row("scip", 1.0),
            profile_row("highs", None, 2000),
            profile_row("scip", 1.0, 2000),
        ]
    )
    assert found["highs"][-1][1] == 0.5
    assert found["scip"][-1][1] == 1.0


def test_a_table_without_a_schedule_is_an_error():
    """A table without any schedule is refused, as there is no best to compare with."""
    with pytest.raises(InputError, match="no run with a schedule"):
        curves([profile_row("highs", None)])

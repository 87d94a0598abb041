"""The progress of a search: the trace in its result, and its picture."""

import dataclasses

import pytest

import taccl
from taccl import collectives
from taccl.errors import InputError
from taccl.plot.comparison import trace_in
from taccl.synthesis.result import TraceEntry
from tests.effort import brief_synthesis
from tests.synthesis.small_problems import problem_of, relayed, ring


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

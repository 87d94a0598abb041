"""`Result` of a synthesis: figures, printed text, and ``--json``."""

import contextlib
import io
import itertools
import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from html import escape

import pytest

import taccl
from taccl import collectives
from taccl.cli import main
from taccl.sketch.upstream import load_problem
from taccl.synthesis.result import Result, Stage, Stages, Trace, TraceEntry
from tests.effort import AMPLE_S, HASTY, brief_synthesis
from tests.foreign import OURS
from tests.synthesis.small_problems import problem_of, ring, star

FIGURES = {
    "finish_us", "bound_us", "bound_limits", "gap", "algbw_gb_per_s", "busbw_gb_per_s", "backend", "verified",
    "collective", "topology", "sketch", "cost_model", "size_bytes", "num_ranks", "num_chunks",
    "num_transfers", "num_sends", "producer", "stages", "seconds", "seed", "stopped", "interrupted",
    "versions", "notes", "digest", "trace", "choice", "standing", "bound_over_all_chunkings_us",
    "launch_us", "predicted_us", "protocol", "assumed", "bound_scope", "gap_in_chunks", "gap_over_all_chunkings",
    "chunks_per_rank", "found_s",
}  # fmt: skip


@pytest.fixture(scope="module")
def result():
    """Allgather of 1 MB chunks on a ring of 4: 3 chunks into each rank over 2 links of 2 us, so 4 us."""
    problem = problem_of(ring(4), collectives.allgather(4))
    return brief_synthesis(problem, backend="greedy", seed=3)


def with_bound(result, factor):
    """The result with a bound of `factor` times its finish."""
    return replace(result, bound=replace(result.bound, bound=result.schedule.finish * Fraction(factor)))


class TestFigures:
    """Finish, bound and gap."""

    def test_finish_and_bound(self, result):
        """Finish and bound are in microseconds, and equal here."""
        assert (result.finish_us, result.bound_us, result.gap) == (4.0, 4.0, 0.0)
        assert result.stopped == "bound met"

    @pytest.mark.parametrize(("factor", "gap"), [("1", 0.0), ("1/2", 1.0), ("4/5", 0.25)])
    def test_gap(self, result, factor, gap):
        """The gap is (finish - bound) / bound."""
        assert with_bound(result, factor).gap == gap

    def test_no_bound(self, result):
        """Without a positive bound the gap is infinite, and null in JSON, which knows no infinity."""
        unbounded = with_bound(result, 0)
        assert unbounded.gap == math.inf
        assert unbounded.to_dict()["gap"] is None
        unbounded.bound.problem.cache.clear()  # of the bound over all chunkings
        assert dict(replace(unbounded, stopped="interrupted").facts())["gap"] == "none proven"

    def test_nothing_to_do(self):
        """If every rank has its data from the start, finish, bound and gap are 0."""
        collective = collectives.custom(2, precondition={0: [0, 1]}, postcondition={0: [0, 1]})
        done = brief_synthesis(problem_of(ring(2), collective))
        assert (done.finish_us, done.bound_us, done.gap, done.schedule.num_transfers) == (0, 0, 0, 0)
        assert done.stopped == "bound met"

    @pytest.mark.parametrize(
        ("stopped", "interrupted"), [("interrupted", True), ("time limit", False), ("bound met", False)]
    )
    def test_interrupted(self, result, stopped, interrupted):
        """`interrupted` is True only if the search was stopped by Ctrl-C."""
        assert replace(result, stopped=stopped).interrupted is interrupted
        assert replace(result, stopped=stopped).to_dict()["interrupted"] is interrupted

    def test_frozen(self, result):
        """A result is immutable."""
        with pytest.raises(AttributeError):
            result.seconds = 0.0


class TestStopped:
    """Reasons why the search ended."""

    @pytest.mark.slow
    def test_time_limit(self, loose_bound):
        """A portfolio with stages left to run stops at its time limit."""
        problem = problem_of(ring(5, betas=(0, 1, 2)), collectives.alltoall(5))
        assert taccl.synthesize(problem, time_limit_s=0.2).stopped == "time limit"

    def test_nothing_better_found(self, loose_bound):
        """A solver that completes its stages reports "nothing better found"."""
        problem = problem_of(ring(4), collectives.allgather(4))
        assert brief_synthesis(problem, backend="highs").stopped == "nothing better found"

    @pytest.mark.slow
    def test_time_limit_of_a_phase(self, loose_bound):
        """An allreduce whose phases were both cut short reports "time limit"."""
        problem = problem_of(ring(5, betas=(0, 1, 2)), collectives.allreduce(5))
        assert taccl.synthesize(problem, time_limit_s=0.2).stopped == "time limit"


class TestRepr:
    """Printed text of a result."""

    def test_facts(self, result):
        """4 MB in 4 us are 1000 GB/s of algorithm bandwidth, with twelve transfers of one chunk."""
        title, *lines = repr(result).splitlines()
        facts = dict(line.strip().split("  ", 1) for line in lines[: len(result.facts())])
        assert title == "allgather on ring of 4, 4MB"
        assert facts["finish"].strip() == "4 us, algbw 1000 GB/s, busbw 750 GB/s"
        assert facts["bound"].strip().startswith("4 us for 1 chunk per rank, limited by ")
        assert (
            facts["gap"].strip()
            == "0.00% (optimal for 1 chunk per rank under this sketch; 14.29% over all chunkings)"
        )
        assert facts["schedule"].strip() == "12 transfers in 12 sends, verified"
        found = re.fullmatch(
            rf"{re.escape(result.schedule.producer)}, after ([0-9.]+) of ([0-9.]+) s, seed 3",
            facts["found by"].strip(),
        )
        assert found and 0 <= float(found[1]) <= float(found[2])
        assert result.found_s == pytest.approx(float(found[1]), abs=0.006)

    def test_a_notebook_shows_the_same_facts(self, result):
        """Notebooks show the same facts, and why the search ended."""
        page = result._repr_html_()
        assert all(escape(text) in page for _, text in result.facts())
        assert result.stopped in page

    def test_every_stage_has_a_line(self, result):
        """Every stage has a line with name, solver, status, seconds, finish and message, in order of ending."""
        stages = (
            Stage("routing", "highs", "crashed", 1.25, message="the worker was killed by SIGABRT"),
            Stage("greedy", "taccl", "done", 0.5, finish_us=4.0),
        )
        lines = repr(replace(result, stages=stages, notes=())).splitlines()[-2:]
        assert lines[0].split(maxsplit=4)[:4] == ["routing", "highs", "crashed", "1.25"]
        assert lines[0].endswith("the worker was killed by SIGABRT")
        assert lines[1].endswith("4 us")

    def test_notes_come_last(self, result):
        """The printed result has a line for each note, at the end."""
        text = repr(replace(result, notes=("first", "second")))
        assert text.splitlines()[-2:] == ["  note: first", "  note: second"]

    def test_unknown_size(self):
        """If the size is unknown, no bandwidth is claimed."""
        folder = OURS / "upstream-taccl"
        problem = load_problem(folder / "sketch" / "hub-n1.json", folder / "topo" / "hub-64KB.json")
        found = brief_synthesis(problem, backend="greedy")
        assert "GB/s" not in repr(found)
        assert found.to_dict()["algbw_gb_per_s"] is None


class TestToDict:
    """`to_dict`: the figures as plain values."""

    def test_fields(self, result):
        """Every figure has a field named with its unit."""
        assert set(result.to_dict()) == FIGURES

    def test_plain_values(self, result):
        """The plain values of a result are unchanged after a round trip through JSON."""
        values = result.to_dict()
        assert json.loads(json.dumps(values, allow_nan=False)) == values

    def test_counts(self, result):
        """Four ranks and four chunks of 1 MB, each sent three times."""
        values = result.to_dict()
        assert (values["num_ranks"], values["num_chunks"], values["num_transfers"]) == (4, 4, 12)
        assert values["size_bytes"] == 4 * 10**6
        assert (values["algbw_gb_per_s"], values["busbw_gb_per_s"]) == (1000.0, 750.0)

    def test_how_the_schedule_was_found(self, result):
        """Backend, seed, versions, and the digest of the schedule are included."""
        values = result.to_dict()
        assert (values["backend"], values["seed"], values["verified"]) == ("greedy", 3, True)
        assert values["digest"] == result.schedule.digest()
        assert values["versions"]["taccl"] == taccl.__version__

    def test_stages(self, result):
        """A stage has its name, solver, status, seconds, finish, bound, message and model."""
        stages = result.to_dict()["stages"]
        assert [stage["name"] for stage in stages] == [stage.name for stage in result.stages]
        for stage in stages:
            known = {
                "name",
                "solver",
                "status",
                "seconds",
                "finish_us",
                "bound",
                "message",
                "model",
                "began_s",
            }
            assert set(stage) == known
            assert 0 <= stage["seconds"] <= result.seconds

    @pytest.mark.slow
    def test_notes_of_the_problem(self):
        """Notes of the sketch are included: here, that a rooted collective has no symmetry."""
        sketch = taccl.load_sketch("ndv2/sk1")
        problem = sketch.apply(sketch.topology(), collectives.broadcast(16))
        found = brief_synthesis(problem, backend="greedy")
        assert problem.notes
        assert found.to_dict()["notes"] == list(problem.notes)


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    """The JSON object that the command prints."""
    file = tmp_path_factory.mktemp("parameters") / "hasty.toml"
    tables = HASTY.to_dict().items()
    lines = [[f"[{name}]", *(f"{key} = {value}" for key, value in each.items())] for name, each in tables]
    file.write_text("\n".join(itertools.chain.from_iterable(lines)))
    words = (
        f"synthesize ndv2/sk1 --collective allreduce --time-limit {AMPLE_S} --seed 5 --backend auto --json"
    )
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([*words.split(), "--parameters", str(file)]) == 0
    return json.loads(printed.getvalue())


@pytest.mark.slow
class TestCommandLine:
    """``taccl synthesize --json``."""

    def test_object(self, values):
        """The printed object has the fields of `to_dict`."""
        assert set(values) == FIGURES

    def test_figures(self, values):
        """The gap follows from finish and bound, and bandwidth from size and finish."""
        finish, bound = values["finish_us"], values["bound_us"]
        assert values["gap"] == pytest.approx((finish - bound) / bound)
        assert values["algbw_gb_per_s"] == pytest.approx(values["size_bytes"] / finish / 1000)
        assert values["busbw_gb_per_s"] == pytest.approx(values["algbw_gb_per_s"] * 2 * 15 / 16)
        assert (values["seed"], values["verified"], values["num_ranks"]) == (5, True, 16)

    def test_names_of_stages_state_the_phase(self, values):
        """Names of an allreduce's stages start with "reduce: " or "broadcast: "."""
        names = [stage["name"] for stage in values["stages"]]
        assert {"reduce: greedy", "broadcast: greedy"} <= set(names)


def test_result_of_a_schedule_made_elsewhere():
    """A result made from a baseline's schedule has a bound and seconds, and no stages."""
    schedule = taccl.baselines.baseline("ring", problem_of(ring(4), collectives.allgather(4)))
    found = Result(schedule, taccl.lower_bound(schedule.problem), "baseline ring", Stages(), 0.25)
    assert found.to_dict()["stages"] == []
    assert "0.25 s" in repr(found)


def test_no_bound_over_all_chunkings_is_computed_at_once():
    """Without time, only a bound over all chunkings that is known counts."""
    schedule = taccl.baselines.baseline("ring", problem_of(ring(4), collectives.allgather(4)))
    bound = taccl.lower_bound(schedule.problem, divisible=False)
    result = Result(schedule, bound, "ring", Stages(), 0.0)
    assert result.over_all_chunkings(at_once=True) is result
    every = result.over_all_chunkings()
    assert every.bound.divisible
    assert result.over_all_chunkings(at_once=True) == every


def test_frames_of_stages_and_trace():
    """Frames of stages and trace keep the order of rows; unknown numbers are NaN."""
    stages = Stages(
        [Stage("bound", "taccl", "done", 0.5, bound_us=4.0), Stage("greedy", "taccl", "done", 0.25)]
    )
    frame = stages.to_frame()
    assert frame["name"].tolist() == ["bound", "greedy"]
    assert frame["bound_us"].dtype == "float64" and math.isnan(frame["bound_us"][1])
    trace = Trace([TraceEntry(0.5, 6.0, 4.0)]).to_frame()
    assert trace.to_dict("records") == [{"seconds": 0.5, "finish_us": 6.0, "bound_us": 4.0, "phase": ""}]
    assert list(Trace().to_frame()) == list(trace)


def test_stages_and_trace_are_shown_as_tables():
    """The text and the HTML of stages and of a trace have a heading and a row per entry."""
    stages = Stages([Stage("bound", "taccl", "done", 0.5, bound_us=4.0)])
    trace = Trace([TraceEntry(0.5, 6.0, None, "reduce"), TraceEntry(0.75, 5.0, 4.0)])
    assert repr(stages).splitlines()[1].split() == ["bound", "taccl", "done", "0.50", "4", "us"]
    assert [line.split() for line in repr(trace).splitlines()] == [
        ["seconds", "finish", "bound", "phase"], ["0.50", "6", "us", "reduce"],
        ["0.75", "5", "us", "4", "us"],
    ]  # fmt: skip
    assert [each._repr_html_().count("<tr") for each in (stages, trace)] == [2, 3]


def test_slow_links_count():
    """On a star of 2 leaves (1 and 2 us per chunk) the hub's last chunk arrives after 2 * 2 us."""
    found = brief_synthesis(problem_of(star(2), collectives.broadcast(3, chunks_per_rank=2)))
    assert (found.finish_us, found.bound_us) == (4.0, 4.0)


class TestTrace:
    """The trace over searches in different chunks."""

    def test_the_best_finish_never_rises(self):
        """A later schedule in other chunks that is worse is left out of the trace, and so is a bound above
        that of the result; bounds never fall."""
        entries = [
            TraceEntry(1.0, 20.0, None), TraceEntry(2.0, 30.0, None), TraceEntry(3.0, 30.0, 12.0),
            TraceEntry(4.0, 9.0, 25.0, "reduce"), TraceEntry(5.0, 18.0, 14.0), TraceEntry(5.5, 18.0, 11.0),
        ]  # fmt: skip
        last = TraceEntry(6.0, 18.0, 13.0)
        assert Trace.of(entries, last) == (
            TraceEntry(1.0, 20.0, None), TraceEntry(3.0, 20.0, 12.0), TraceEntry(4.0, 9.0, 25.0, "reduce"),
            TraceEntry(5.0, 18.0, 12.0), last,
        )  # fmt: skip

    def test_an_entry_without_news_is_left_out(self):
        """A schedule or bound that equals the best so far adds no entry; the result always has one."""
        entries = [
            TraceEntry(1.0, 20.0, None), TraceEntry(2.0, 20.0, 12.0), TraceEntry(3.0, 20.0, 12.0),
            TraceEntry(4.0, 9.0, 5.0, "reduce"), TraceEntry(5.0, 9.0, 5.0, "reduce"),
        ]  # fmt: skip
        last = TraceEntry(6.0, 20.0, 12.0)
        assert Trace.of(entries, last) == (*entries[:2], entries[3], last)

    @pytest.mark.slow
    def test_a_bound_over_all_chunkings_is_an_entry_when_it_is_proven(self):
        """Every bound over all chunkings that callbacks receive is in the trace of an open number of chunks."""
        told = []
        result = brief_synthesis(
            taccl.make_problem(taccl.topologies.ring(5), "broadcast", size_bytes="1MB"),
            on_bound=lambda bound: told.append(bound.bound_us if bound.divisible else 0),
        )
        assert max(told) in {entry.bound_us for entry in result.trace[:-1]}

    @pytest.mark.slow
    def test_trace_begins_with_the_first_schedule(self):
        """Every schedule passed to `on_incumbent` is an entry of the trace, also in other chunks."""
        told = []
        result = brief_synthesis(
            taccl.make_problem(taccl.topologies.ring(5), "broadcast", size_bytes="1MB"),
            on_incumbent=lambda schedule: told.append(schedule.finish_us),
        )
        assert len(told) > 1
        assert set(told) <= {entry.finish_us for entry in result.trace if not entry.phase}
        assert result.found_s <= result.seconds


@pytest.mark.parametrize("name", ["bound", "gap"])
def test_former_names_warn_and_still_work(name):
    result = taccl.synthesize(problem_of(ring(3), collectives.allgather(3)), backend="greedy")
    with pytest.warns(DeprecationWarning, match=f"{name}_over_all_chunkings now"):
        former = getattr(result, f"{name}_of_every_cut")
    assert former == getattr(result, f"{name}_over_all_chunkings")

"""Progress callbacks, stopping rules, and the account of a search's time by stages."""

import math
import time
from dataclasses import replace
from fractions import Fraction
from inspect import signature

import numpy as np
import pytest

import taccl
from taccl._internal.deadline import Cancellation, Deadline, OutOfTime
from taccl.synthesis import improving, synthesize
from taccl.synthesis.budget import Turn, run
from taccl.synthesis.improve import improvement
from taccl.synthesis.options import Observer, Options, raising_errors_of_callbacks
from taccl.synthesis.parameters import DEFAULTS
from taccl.synthesis.proposers import compiling, ruin, stages
from taccl.synthesis.proposing import OwnProposer
from taccl.synthesis.search import Search
from taccl.synthesis.stopping import CallersRule, SearchState, stopping_rules
from tests.effort import brief_synthesis


def problem_of(collective="allgather", size="64MB"):
    ring = taccl.topologies.ring(4, alpha_us=1, bandwidth_gb_per_s=100)
    return taccl.make_problem(ring, collective, size_bytes=size)


def test_progress_never_goes_back():
    """The reported finish never rises, and the reported bound never falls."""
    told = []
    observer = Observer(progress=lambda *news: told.append(news))
    for news in (("a", 5.0, 1.0), ("b", 7.0, 3.0), ("c", None, 2.0), ("d", 4.0, None)):
        observer.report(*news)
    assert told == [("a", 5.0, 1.0), ("b", 5.0, 3.0), ("c", 5.0, 3.0), ("d", 4.0, 3.0)]


def test_a_state_without_a_bound_has_an_infinite_gap():
    assert SearchState(1.0, 5.0, 0.0).gap == math.inf
    assert SearchState(1.0, 6.0, 4.0).gap == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_incumbents_get_better_and_end_with_the_result(collective):
    """Reported incumbents improve, and the last one is the result."""
    found, bounds, stages = [], [], []
    result = brief_synthesis(
        problem_of(collective), on_incumbent=found.append, on_bound=bounds.append, on_stage=stages.append
    )
    finishes = [schedule.finish_us for schedule in found]
    assert finishes == sorted(set(finishes), reverse=True)
    assert finishes[-1] == result.finish_us
    proven = [bound.bound_us for bound in bounds]
    assert proven == sorted(set(proven)) and proven
    assert set(result.stages) <= set(stages)


@pytest.mark.slow
def test_incumbents_of_a_problem_with_release_dates_keep_them():
    """A reported schedule has the release dates of the problem, though the search ignores them."""
    ring = taccl.topologies.ring(4, alpha_us=1, bandwidth_gb_per_s=100)
    plain = taccl.make_problem(ring, taccl.collectives.allgather(4, chunks_per_rank=1), size_bytes="4MB")
    problem, found, states = replace(plain, release_us=((0, 0, Fraction(50)),)), [], []
    result = brief_synthesis(
        problem, on_incumbent=found.append, stop_when=lambda state: states.append(state.finish_us)
    )
    assert found and all(schedule.problem == problem for schedule in found)
    assert found[-1].finish_us == min(states) == result.finish_us > 50


@pytest.mark.slow
def test_a_rule_ends_the_search():
    """`stop_when` ends the search at its first schedule, and the result says so."""
    problem = taccl.make_problem(taccl.topologies.dgx1(), "allreduce", size_bytes="8MB")
    asked = []
    result = brief_synthesis(problem, stop_when=lambda state: asked.append(state) or True)
    assert result.stopped == "stopping rule"
    assert result.choice == "the first schedule, after which the search ended: stopping rule"
    assert "; stopping rule before " in result.stages[0].message
    assert len(asked) >= 1 and asked[0].finish_us >= result.finish_us
    assert taccl.verify(result.schedule).ok


def test_a_rule_is_not_asked_before_there_is_a_schedule():
    """`stop_when` is not called before a schedule exists."""
    cancellation = Cancellation()
    problem = problem_of()
    observer = Observer(rules=[CallersRule(lambda state: True)], cancellation=cancellation)
    observer.bound(taccl.lower_bound(problem))
    assert not cancellation.why
    observer.incumbent(taccl.baselines.ring(problem))
    assert cancellation.why == "stopping rule"


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["allgather", "allreduce", "alltoall"])
def test_stages_account_for_the_time(collective, monkeypatch):
    """Stages add up to the CPU time of the search, within 5 % or 20 ms."""
    monkeypatch.setattr(time, "monotonic", time.process_time)
    problem = taccl.make_problem(taccl.topologies.dgx1(), collective, size_bytes="1MB")
    result = brief_synthesis(problem)
    table = result.stages.to_frame()
    assert table.seconds.sum() == pytest.approx(result.seconds, rel=0.01, abs=0.002)
    assert table.seconds[table["name"] == "overhead"].sum() <= 0.05 * result.seconds + 0.02
    assert (table.seconds >= -1e-6).all()


@pytest.mark.slow
def test_kernels_that_there_is_no_time_to_compile_are_a_row(monkeypatch):
    """If the limit is too short to compile kernels, a stage says that the compiled list scheduler is left
    out."""
    monkeypatch.setattr(compiling, "are_kept", lambda problem: False)
    monkeypatch.setattr(compiling, "is_quick", lambda *_: False)
    monkeypatch.setattr(compiling, "is_kept", lambda name: False)
    ring = taccl.topologies.ring(6, alpha_us=1, bandwidth_gb_per_s=100)
    problem = taccl.make_problem(ring, "alltoall", size_bytes="6MB", chunks_per_rank=1)
    result = brief_synthesis(problem, backend="greedy")
    skipped = {stage.name: stage.message for stage in result.stages if stage.status == "skipped"}
    assert "kernels are not compiled" in skipped["compiled list scheduler"]


@pytest.mark.parametrize("is_kept, said", [(True, "needs at least 0.5 s"), (False, "are not compiled")])
def test_a_short_time_is_not_blamed_on_compiled_kernels(monkeypatch, is_kept, said):
    """With compiled kernels, the reason for a skipped stage is the time that it needs to load and to run them."""
    monkeypatch.setattr(improvement, "is_loaded", lambda kernel: False)
    monkeypatch.setattr(improvement, "is_compiled", lambda kernel: is_kept)
    monkeypatch.setattr(compiling, "is_quick", lambda *_: False)
    monkeypatch.setattr(compiling, "is_kept", lambda name: is_kept)
    problem = taccl.make_problem(taccl.topologies.ring(2), "allgather", size_bytes=2, chunks_per_rank=1)
    search = Search(problem, Options(), Deadline.after(10), limit_s=0.36)
    assert said in compiling.too_short(search) and "0.36 s" in compiling.too_short(search)


@pytest.mark.parametrize("is_loaded", [True, False])
def test_loaded_kernels_run_even_if_little_time_is_left(monkeypatch, is_loaded):
    """Kernels that are in memory need 0.1 s; those on disk need 0.5 s."""
    monkeypatch.setattr(improvement, "is_loaded", lambda kernel: is_loaded)
    monkeypatch.setattr(improvement, "is_compiled", lambda kernel: True)
    for limit_s in (0.09, 0.12, 0.48, 0.51):
        assert improvement.is_quick(limit_s, DEFAULTS) == (limit_s > (0.1 if is_loaded else 0.5))


@pytest.mark.slow
def test_compiling_kernels_is_a_row(monkeypatch):
    """The time to compile kernels is a stage of its own."""
    monkeypatch.setattr(compiling, "_NOTABLE_S", 0.0)
    for module in (compiling, ruin, stages):
        monkeypatch.setattr(module, "are_kept", lambda problem: False)
    ring = taccl.topologies.ring(6, alpha_us=1, bandwidth_gb_per_s=100)
    problem = taccl.make_problem(ring, "alltoall", size_bytes="6MB", chunks_per_rank=1)
    result = brief_synthesis(problem)
    said = [stage.message for stage in result.stages if stage.name.endswith("kernels")]
    assert said and all(each.startswith("compiled once") for each in said)


@pytest.mark.parametrize("error", [taccl.InputError("mine"), OutOfTime("mine"), OSError("mine")])
@pytest.mark.parametrize("callback", ["progress", "on_incumbent", "on_bound", "on_stage", "rules"])
def test_no_handler_of_the_search_catches_an_error_of_a_callback(callback, error):
    """An exception of a callback leaves the search unchanged, past handlers of its own type."""

    def fail(*_):
        raise error

    given = [CallersRule(fail)] if callback == "rules" else fail
    search = Search(problem_of(), Options(observer=Observer(**{callback: given})), Deadline.after(10))
    with pytest.raises(type(error)) as raised, raising_errors_of_callbacks():
        try:
            search.offer_whole(taccl.baselines.ring(search.problem, cut=False), producer="ring")
            search.prove(taccl.lower_bound(search.problem), time.monotonic())
        except Exception as found:
            pytest.fail(f"a handler of the search caught {found!r}")
    assert raised.value is error


def test_a_rule_without_a_truth_value_is_an_error():
    """If the value of `stop_when` is neither true nor false, such as an array, its error ends the search."""
    search = Search(
        problem_of(),
        Options(observer=Observer(rules=[CallersRule(lambda _: np.ones(2))])),
        Deadline.after(10),
    )
    with pytest.raises(ValueError, match="truth value"), raising_errors_of_callbacks():
        try:
            search.offer_whole(taccl.baselines.ring(search.problem, cut=False), producer="ring")
        except Exception as found:
            pytest.fail(f"a handler of the search caught {found!r}")


@pytest.mark.parametrize("status, error", [("timed-out", OutOfTime("late")), ("done", None)])
def test_time_of_a_proposer_outside_its_stages_is_a_row(status, error):
    """The time that a proposer spends outside its stages is a stage with its name, even if it is cut."""
    search = Search(problem_of(), Options(), Deadline.after(100))

    def propose(search):
        since = time.monotonic()
        time.sleep(0.01)
        search.record("inner", "taccl", "done", since)
        time.sleep(0.06)
        if error is not None:
            raise error

    try:
        run(search, [Turn(OwnProposer("outer", propose))])
    except OutOfTime as found:
        assert found is error
    inner, outer = search.stages
    assert (inner.name, outer.name, outer.status) == ("inner", "outer", status)
    assert outer.seconds >= 0.06 > inner.seconds >= 0.01


def test_a_proposer_that_an_outer_deadline_interrupts_is_a_row():
    """If an outer deadline interrupts a proposer between two bytecodes, its time is a stage of its own."""
    search = Search(problem_of(), Options(), Deadline.after(100))

    def propose(search):
        while True:
            sum(range(100))

    with pytest.raises(OutOfTime), Deadline.after(0.4).enforced():
        run(search, [Turn(OwnProposer("endless", propose))])
    (row,) = search.stages
    assert (row.name, row.status) == ("endless", "timed-out") and row.seconds > 0


def test_proposers_without_time_left_are_a_row():
    """Proposers that do not run because time is up share a row that names them, unless a rule ended the search."""
    search = Search(problem_of(), Options(), Deadline.after(0))
    search.offer_whole(taccl.baselines.ring(search.problem, cut=False), producer="ring")
    turns = [Turn(OwnProposer(name, lambda search: None), improves=True) for name in ("one", "two")]
    run(search, turns)
    (row,) = search.stages
    assert (row.name, row.status, row.message) == ("later steps", "skipped", "no time left for one, two")
    search.stages.clear()
    search.deadline.cancellation.cancel("stopping rule")
    run(search, turns)
    assert not search.stages


@pytest.mark.parametrize("is_kept", [True, False])
def test_steps_that_kernels_decide_are_rows(monkeypatch, is_kept):
    """The list scheduler over any path is skipped with compiled kernels, early ruin and recreate without."""
    for module in (ruin, stages):
        monkeypatch.setattr(module, "are_kept", lambda problem: is_kept)
    named = ("list scheduler over any path", "ruin and recreate")
    idle = {name: OwnProposer(name, lambda search: None) for name in named}
    own = [turn for turn in stages.STAGES["auto"] if turn.proposer.name in named]
    turns = [replace(turn, proposer=idle[turn.proposer.name]) for turn in own]
    search = Search(problem_of("alltoall"), Options(), Deadline.after(100), kept_s=10.0)
    search.offer_whole(taccl.baselines.pairwise(search.problem), producer="pairwise")
    for _ in range(2):  # the same reason is one row
        run(search, turns)
    (row,) = search.stages
    expected = (named[0], "the compiled list scheduler may use any path")
    if not is_kept:
        expected = (named[1], "its kernels are not compiled yet")
    assert (row.name, row.message, row.status) == (*expected, "skipped")


@pytest.mark.parametrize(("is_kept", "verb"), [(False, "compiled"), (True, "loaded")])
def test_ruin_and_recreate_without_kernels_or_trees_is_a_row(monkeypatch, is_kept, verb):
    """If kernels are not ready in time, or no schedule has trees, a row says why nothing is improved."""
    monkeypatch.setattr(ruin, "have_compiled", lambda search: False)
    monkeypatch.setattr(ruin, "are_kept", lambda problem: is_kept)
    search = Search(problem_of(), Options(), Deadline.after(100))
    ruin.ruin_and_recreate(search)
    search.offer_whole(taccl.baselines.ring(search.problem, cut=False), producer="ring")
    ruin.ruin_and_recreate(search)
    first, second = search.stages
    assert (first.status, first.message) == ("skipped", "no schedule along trees to start from")
    assert (second.status, second.message) == ("skipped", f"its kernels were not {verb} in time")


@pytest.mark.parametrize("module", [synthesize, improving])
def test_the_check_of_a_start_is_a_row(module, monkeypatch):
    """The time to verify a given schedule is in the stage `start`, and in the seconds of the result."""

    def slow(problem, start):
        time.sleep(0.1)
        return start

    monkeypatch.setattr(module, "checked_start", slow)
    problem = taccl.make_problem(taccl.topologies.ring(2), "allgather", size_bytes=2, chunks_per_rank=1)
    start = taccl.baselines.ring(problem, cut=False)
    result = taccl.improve(start) if module is improving else brief_synthesis(problem, start=start)
    (row,) = (stage for stage in result.stages if stage.name == "start")
    assert row.seconds >= 0.1 and result.seconds >= 0.1


def test_improvement_has_the_callbacks_of_a_search():
    """`improve` calls `on_incumbent`, `on_bound`, `on_stage` and `stop_when`; a rule ends it."""
    start = taccl.baselines.ring(problem_of(size="1MB"), cut=False)
    found, bounds, told = [], [], []
    result = taccl.improve(
        start,
        on_incumbent=found.append,
        on_bound=bounds.append,
        on_stage=told.append,
        stop_when=lambda state: True,
    )
    assert [schedule.finish_us for schedule in found] == [start.finish_us]
    assert bounds and tuple(told) == result.stages
    assert result.stopped in ("stopping rule", "bound met")


@pytest.mark.parametrize("module", [synthesize, improving])
def test_every_keyword_of_stopping_rules_is_passed_on(module, monkeypatch):
    """`synthesize` and `improve` accept each keyword of `stopping_rules` and pass its value on."""
    start = taccl.baselines.ring(problem_of())
    given = dict.fromkeys(signature(stopping_rules).parameters, 0.5) | {"stop_when": callable}
    passed = {}

    def recorded(**keywords):
        passed.update(keywords)
        raise NotImplementedError

    monkeypatch.setattr(module, "stopping_rules", recorded)
    with pytest.raises(NotImplementedError):
        taccl.improve(start, **given) if module is improving else taccl.synthesize(start.problem, **given)
    assert passed == given


def test_improvement_by_synthesis_has_every_option(monkeypatch):
    """If ruin and recreate does not support a problem, `improve` passes all its options to `synthesize`."""
    passed = {}
    monkeypatch.setattr(improving, "suits_improvement", lambda _: False)
    monkeypatch.setattr(improving, "synthesize", lambda _, **options: passed.update(options))
    start = taccl.baselines.ring(problem_of())
    taccl.improve(start)
    assert passed.pop("start") is start and passed.pop("sketch") == "none"
    options = {name: each.default for name, each in signature(taccl.improve).parameters.items()}
    assert passed == {name: value for name, value in options.items() if name != "schedule"}

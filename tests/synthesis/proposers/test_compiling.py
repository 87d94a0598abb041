"""Kernels compiled in worker processes during a search: start, waiting, and messages."""

import re
import threading
import time

import pytest

import taccl
from taccl import collectives
from taccl._internal.deadline import Deadline
from taccl.errors import TacclError
from taccl.problem.making import make_problem
from taccl.solvers.worker import Outcome
from taccl.synthesis.kernels.flow_kernel import flow_up_to, largest_shortfall
from taccl.synthesis.options import Observer, Options
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.synthesis.proposers import baseline_proposals, compiling, stages
from taccl.synthesis.proposers.large import schedule_large
from taccl.synthesis.proposers.trees import along_trees
from taccl.synthesis.search import Search
from tests.effort import AMPLE_S, BRIEF, brief_synthesis
from tests.fuzzing import MANY

MESH = make_problem(taccl.topologies.mesh(8, 8), collectives.allgather(64), chunk_bytes=10**6)
COLD_S = DEFAULTS.choice.cold_s


@pytest.fixture
def cold(monkeypatch):
    """Empty the cache of kernels and replace their compilation, so that workers finish immediately.

    Returns the list of kernels that workers were asked to compile.
    """
    begun = []

    def run_task(family, function, payload, *, time_limit_s):
        begun.extend(payload["names"])
        return Outcome("done", {"cpu_s": 7.0})

    monkeypatch.setattr(compiling, "_BEGUN", {})
    monkeypatch.setattr(compiling, "is_kept", lambda name: name in begun)
    monkeypatch.setattr(compiling, "compile_kernels", lambda problem: None)
    monkeypatch.setattr(compiling, "run_task", run_task)
    return begun


def searching(problem=MESH, backend="auto", threads=2, limit_s=AMPLE_S):
    return Search(problem, Options(backend, threads=threads), Deadline.after(limit_s))


def test_workers_begin_with_a_search_of_many_hops(cold):
    """A search of many hops starts one worker for list schedulers and one for ruin and recreate."""
    compiling.begin_compiling(searching())
    assert sorted(compiling._BEGUN) == ["allgather", "ruin and recreate"]


def test_a_reduction_needs_the_kernels_of_its_phases(cold):
    """One worker compiles the kernels of both phases of an allreduce, as these share functions."""
    problem = make_problem(taccl.topologies.mesh(8, 8), collectives.allreduce(64), chunk_bytes=10**6)
    assert compiling.have_compiled(searching(problem))
    workers = {tuple(each.names) for each in compiling._BEGUN.values()}
    assert workers == {("reduce-scatter", "allgather"), ("ruin and recreate",)}


@pytest.mark.parametrize(
    "given",
    [
        {"backend": "highs"},
        {"threads": 1},
        {"limit_s": COLD_S / 2},
        {"problem": make_problem(taccl.topologies.ring(4), collectives.allgather(4), chunk_bytes=1)},
    ],
    ids=["no kernels needed", "one core", "too little time", "few hops"],
)
def test_no_worker_begins_without_need_core_or_time(given, cold):
    """No worker starts for a lone solver, on one core, within a short limit, or for few hops."""
    compiling.begin_compiling(searching(**given))
    assert compiling._BEGUN == {}


def test_a_search_waits_for_its_kernels_in_a_row_of_the_stages(cold, monkeypatch):
    """Waiting for kernels is a stage, whose message has the CPU time of both workers, 7 s each."""
    monkeypatch.setattr(compiling, "_NOTABLE_S", 0.0)
    search = searching()
    assert compiling.have_compiled(search)
    assert [(each.name, each.status, each.message) for each in search.stages] == [
        ("kernels", "done", "compiled once: 14.0 s of CPU besides the search")
    ]


def test_what_workers_could_not_compile_is_compiled_here(cold, monkeypatch):
    """If a worker dies, its kernels are compiled in this process."""
    compiled = []
    monkeypatch.setattr(compiling, "run_task", lambda *_, **__: Outcome("crashed"))
    monkeypatch.setattr(compiling, "compile_kernels", compiled.append)
    assert compiling.have_compiled(searching())
    assert compiled == [MESH]


def test_time_since_the_start_of_a_worker_counts(cold, monkeypatch):
    """With half of a compilation's time left, a search starts no worker, but waits for workers that started
    long ago."""
    monkeypatch.setattr(compiling, "busy_factor", lambda: 1.0)
    brief = Deadline.after(COLD_S / 2)
    assert not compiling.compile_with_progress(MESH, Options(), brief)
    compiling.begin_compiling(searching())
    for each in compiling._BEGUN.values():
        each.wait(Deadline())
        each.began_s -= COLD_S
    cold.clear()
    assert compiling.compile_with_progress(MESH, Options(), brief)
    assert cold == []


@pytest.mark.slow
def test_kernels_left_out_are_one_row_however_often_a_search_needs_them(cold):
    """Skipped kernels are one stage, however many parts of a search need them."""
    search = searching(limit_s=COLD_S / 2)
    search.best = taccl.baselines.ring(MESH)
    assert not compiling.have_compiled(search)
    assert not compiling.have_compiled(search)
    assert [(each.name, each.status) for each in search.stages] == [("kernels", "skipped")]


def test_compiling_is_reported(monkeypatch):
    """During the first compilation, progress says that kernels are compiled."""
    heard = threading.Event()
    monkeypatch.setattr(compiling, "compile_kernels", lambda problem: heard.wait(60))

    def progress(doing, *_):
        assert re.fullmatch(r"compiling kernels once, \d+ s so far", doing)
        heard.set()

    options = Options(
        observer=Observer(progress=progress),
        parameters=SearchParameters.from_dict({"large": {"told_after_s": 0}}),
    )
    monkeypatch.setattr(compiling, "are_kept", lambda _: True)
    assert compiling.compile_with_progress(MESH, options, Deadline())
    assert heard.is_set()


@pytest.mark.slow
def test_without_kernels_a_baseline_is_returned_and_a_note_says_why(monkeypatch):
    """Without kernels a baseline is returned, with a note that names the necessary time limit."""
    monkeypatch.setattr(compiling, "are_kept", lambda _: False)
    monkeypatch.setattr(baseline_proposals, "are_kept", lambda _: False)
    cold = SearchParameters.from_dict({"choice": {"most_hops": 1000, "cold_s": 2 * AMPLE_S}})
    result = taccl.synthesize(MESH, backend="greedy", time_limit_s=AMPLE_S, parameters=cold)
    assert taccl.verify(result.schedule).ok
    assert any("compiled search was left out" in note for note in result.notes)


@pytest.mark.slow
@pytest.mark.skipif(not MANY, reason="compiles ruin and recreate, for ten seconds of CPU; set TACCL_MANY=1")
def test_a_worker_fills_the_cache(monkeypatch, tmp_path):
    """A worker stores its kernels in this process's cache folder."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    made = compiling.Compilation(["ruin and recreate"])
    made.wait(Deadline.after(300))
    assert made.outcome.status == "done", made.outcome.message
    assert [each.name.partition("-")[0] for each in tmp_path.rglob("*.nbc")] == ["improvement_kernel.improve"]


def test_all_kernels_are_compiled_in_two_workers(cold):
    """All kernels are compiled in two workers, one for all list schedulers; a second call compiles nothing."""
    assert compiling.compile_every() == 14.0
    assert sorted(cold) == ["allgather", "alltoall", "mixes", "reduce-scatter", "ruin and recreate", "trees"]
    assert compiling.compile_every() == 0.0


@pytest.mark.slow
def test_trees_are_packed_with_the_kernels_that_warmup_compiles():
    """Packing of trees calls kernels with the argument types that `warmup` compiles, so nothing more is
    compiled."""
    compiling.compile_named(compiling.TREES)
    assert compiling.is_kept(compiling.TREES)
    known = {kernel: list(kernel._dispatcher.signatures) for kernel in (flow_up_to, largest_shortfall)}
    assert along_trees(make_problem(taccl.topologies.dgx1(), collectives.allgather(8), chunk_bytes=10**6))
    assert {kernel: kernel._dispatcher.signatures for kernel in known} == known


def test_a_worker_that_dies_is_an_error(cold, monkeypatch):
    """The error for a dead worker contains its last message."""
    crashed = Outcome("crashed", message="the worker was killed by SIGSEGV")
    monkeypatch.setattr(compiling, "run_task", lambda *_, **__: crashed)
    with pytest.raises(TacclError, match="could not be compiled: the worker was killed by SIGSEGV"):
        compiling.compile_every()


def test_kernels_that_cannot_be_kept_are_an_error(cold, monkeypatch):
    """If kernels cannot be stored, the error asks for a writable folder in NUMBA_CACHE_DIR."""
    monkeypatch.setattr(compiling, "is_kept", lambda name: False)
    with pytest.raises(TacclError, match="name a folder to write to in NUMBA_CACHE_DIR"):
        compiling.compile_every()


@pytest.mark.slow
def test_without_kernels_an_exchange_may_go_a_longer_way(monkeypatch):
    """Without compiled kernels, part of an exchange still takes a longer path.

    10 MB from rank 0 to 1 of a ring of 3, in 40 chunks: half go through rank 2, 115.5 us instead of 220.
    """
    for module in (compiling, baseline_proposals, stages):
        monkeypatch.setattr(module, "are_kept", lambda _: False)
    sizes = [[0, 10_000_000, 0], [0, 0, 0], [0, 0, 0]]
    problem = taccl.alltoallv_problem(taccl.topologies.ring(3), sizes, chunk_bytes=250_000)
    cold = SearchParameters.from_dict({**BRIEF.to_dict(), "choice": {"cold_s": 2 * AMPLE_S}})
    result = brief_synthesis(problem, parameters=cold)
    assert (result.finish_us, result.stopped) == (115.5, "bound met")


def test_a_wait_for_kernels_leaves_time_and_is_recorded(monkeypatch):
    """A search with a schedule waits for half of its time at most; a wait in vain is a stage with its seconds."""
    waits_s = []

    def in_vain(problem, options, deadline):
        waits_s.append(deadline.left_s)
        time.sleep(2 * compiling._WAITED_S)
        return False

    monkeypatch.setattr(compiling, "are_kept", lambda problem: False)
    monkeypatch.setattr(compiling, "compile_with_progress", in_vain)
    small = make_problem(taccl.topologies.ring(4), collectives.allgather(4), chunk_bytes=1)
    search = searching(small)
    search.offer_whole(taccl.baselines.baseline("ring", small), producer="ring")
    assert not compiling.have_compiled(search) and not compiling.have_compiled(search)
    assert all(0.4 * AMPLE_S < wait_s <= 0.5 * AMPLE_S for wait_s in waits_s)
    first, second = (stage for stage in search.stages if stage.name == "kernels")
    assert (first.message, second.message) == (compiling.COLD, "not compiled in time")
    assert min(first.seconds, second.seconds) >= compiling._WAITED_S


def test_kernels_that_are_loaded_too_late_are_not_called_uncompiled(monkeypatch):
    """If compiled kernels are not loaded in time, no message says that compilation takes long."""
    monkeypatch.setattr(compiling, "are_kept", lambda problem: True)
    monkeypatch.setattr(compiling, "compile_with_progress", lambda problem, options, deadline: False)
    search = searching()
    assert compiling.have_compiled(search)  # the first schedule loads them itself
    search.best = schedule_large(search.problem, num_runs=1)
    assert not compiling.have_compiled(search)
    assert search.notes == [compiling.UNLOADED] == [search.stages[-1].message]
    assert "compil" not in compiling.UNLOADED.replace("compiled search", "")

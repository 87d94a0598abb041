"""`taccl.compare`: a row for each run, also for runs that fail."""

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings

import pytest

import taccl
from taccl.errors import FallbackWarning, InfeasibleError, NoSolutionError, SolverUnavailableError
from taccl.explore import parallel_runs
from taccl.explore import run as run_module
from taccl.explore.rows import COLUMNS, DETAILS, SHORT
from taccl.explore.run import RunRequest, failed_row
from taccl.explore.workers import interrupts_held
from taccl.solvers.process import WORKERS
from taccl.synthesis.result import Stage
from tests.effort import AMPLE_S, BRIEF
from tests.explore.stand_ins import dying, held
from tests.fuzzing import MANY

#: The function `taccl.synthesize` itself, also while a test replaces it.
SYNTHESIZE = taccl.synthesize
#: Columns that differ from run to run.
TIMES = [
    *(c.name for c in COLUMNS if c.name.endswith("_s") and c.name != "time_limit_s"),
    "seconds",
    "stages",
]


def compare(problem, **options):
    """Compare backends quickly, in this process and without a cache."""
    return taccl.compare(
        problem, **{"num_workers": 1, "cache": False, "time_limit_s": 5, "full": True, **options}
    )


@pytest.fixture
def failing(monkeypatch):
    """Function that makes `synthesize` raise an error."""

    def fail(error):
        def synthesize(*_, **__):
            raise error

        monkeypatch.setattr(run_module, "_load_libraries", lambda: None)
        monkeypatch.setattr("taccl.synthesis.synthesize.synthesize", synthesize)

    return fail


@pytest.mark.slow
def test_twelve_columns_unless_all_are_requested(problem):
    """A table has twelve columns, and a column of seeds if there are several; with `full` all columns."""
    assert tuple(compare(problem, backends=["greedy"], full=False).columns) == SHORT
    seeds = compare(problem, backends=["greedy"], seeds=[0, 1], full=False)
    assert set(seeds.columns) == {*SHORT, "seed"}
    assert len(SHORT) == 12
    every = compare(problem, backends=["greedy"], full=True)
    assert list(every.columns) == [column.name for column in COLUMNS]


@pytest.mark.slow
def test_rows_are_in_the_order_asked(problem):
    """Rows are ordered by backend, then by seed."""
    table = compare(problem, backends=["greedy", "auto"], seeds=[2, 0])
    assert list(zip(table.backend, table.seed, strict=True)) == [
        ("greedy", 2), ("greedy", 0), ("auto", 2), ("auto", 0),
    ]  # fmt: skip


def test_figures_are_those_derived_by_hand(problem):
    """Figures of a row equal those derived by hand.

    The optimum is two hops of 20.5 us, so 4 MB take 41 us; the bus bandwidth counts 3/4 of the data.
    """
    (row,) = compare(problem, backends=["greedy"]).itertuples()
    assert (row.status, row.finish_us, row.bound_us, row.gap) == ("proven for its chunks", 41.0, 41.0, 0.0)
    assert row.algbw_gb_per_s == pytest.approx(4e6 / 41e-6 / 1e9)
    assert row.busbw_gb_per_s == pytest.approx(row.algbw_gb_per_s * 3 / 4)
    assert row.verified
    assert 0 < row.first_schedule_s <= row.proven_s == row.seconds


@pytest.mark.slow
def test_a_milp_has_a_size_and_times(problem):
    """A MILP backend has a model size, a proof and a version; the list scheduler has none."""
    milp, greedy = compare(problem, backends=["highs", "greedy"]).itertuples()
    assert min(milp.model_columns, milp.model_rows, milp.model_nonzeros) > 0
    assert 0 < milp.model_first_feasible_s <= milp.model_proof_s <= milp.routing_s
    assert milp.solver_version.startswith("highs 1.")
    assert str(greedy.model_columns) == str(greedy.solver_version) == "<NA>"


@pytest.mark.slow
def test_details_say_what_a_backend_did(problem):
    """For HiGHS, details have one round of routing, proven by a bound no later than the finish; for the list
    scheduler they have none."""
    table = compare(problem, backends=["highs", "greedy"], full=False, details=True)
    assert set(table.columns) == {*DETAILS}
    milp, greedy = table.itertuples()
    assert (milp.routing_status, milp.ordering_status, milp.rounds) == ("optimal", "optimal", 1)
    assert milp.solver_bound_us <= milp.finish_us + 1e-9
    assert milp.nodes >= 0
    assert 0 < milp.first_schedule_s <= milp.best_schedule_s <= milp.seconds
    assert str(greedy.routing_status) == str(greedy.rounds) == "<NA>"


def test_stages_add_up_to_the_run(problem):
    """The times of stages add up to the run's time."""
    (row,) = compare(problem, backends=["highs"]).itertuples()
    stages = [getattr(row, c.name) for c in COLUMNS if c.meaning.startswith("part: ")]
    assert sum(stages) == pytest.approx(row.seconds, abs=1e-3)


@pytest.mark.slow
def test_columns_do_not_depend_on_what_came_out(problem, impossible):
    """The columns' names, order and dtypes are those of the schema, even if every run fails."""
    expected = {column.name: column.dtype for column in COLUMNS}
    for each in (problem, impossible):
        table = compare(each, backends=["greedy"])
        assert {name: str(dtype) for name, dtype in table.dtypes.items()} == expected


def test_infeasible_is_a_row(impossible):
    """An infeasible sketch gives a row with the reason."""
    (row,) = compare(impossible, backends=["greedy"]).itertuples()
    assert (row.status, row.verified, row.sketch) == ("infeasible", False, "no links")
    assert "chunk" in row.error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SolverUnavailableError("no such solver here"), "unavailable"),
        (NoSolutionError("nothing in time"), "no schedule"),
        (InfeasibleError("no way"), "infeasible"),
        (MemoryError(), "out of memory"),
        (RuntimeError("broken"), "crashed"),
    ],
)
def test_failures_are_rows(problem, failing, error, status):
    """An exception gives a row with its status and message."""
    failing(error)
    (row,) = compare(problem, backends=["greedy"]).itertuples()
    assert row.status == status
    assert str(error) in row.error
    assert row.finish_us != row.finish_us


@pytest.mark.slow
def test_a_solver_that_is_not_installed_is_a_row(problem):
    """A solver that is not installed gives a row with status "unavailable"; the other rows are unaffected."""
    lacking, greedy = compare(problem, backends=["pulp:MOSEK", "greedy"]).itertuples()
    assert (lacking.status, greedy.status) == ("unavailable", "proven for its chunks")


@pytest.mark.parametrize(("stage", "status"), [("unlicensed", "unlicensed"), ("no-solution", "no schedule")])
def test_a_fallback_is_not_the_backends_own(problem, monkeypatch, stage, status):
    """A schedule from another solver is not attributed to the backend."""

    def fallen_back(problem, **options):
        found = SYNTHESIZE(problem, **{**options, "backend": "greedy"})
        stages = (*found.stages, Stage("routing", "gurobi", stage, 0.1))
        warnings.warn("highs was used instead", FallbackWarning, stacklevel=2)
        return dataclasses.replace(found, stages=stages, notes=("highs was used instead",))

    monkeypatch.setattr("taccl.synthesis.synthesize.synthesize", fallen_back)
    (row,) = compare(problem, backends=["gurobi"]).itertuples()
    assert (row.status, row.error, row.verified) == (status, "highs was used instead", False)
    assert row.finish_us != row.finish_us
    assert row.bound_us == 41.0


def test_what_a_solver_started_from_may_be_the_better_one(problem, monkeypatch):
    """If the list scheduler's schedule beats the solver's, the row shows it, and the notes say so."""

    def outdone(problem, **options):
        found = SYNTHESIZE(problem, **{**options, "backend": "greedy"})
        return dataclasses.replace(found, notes=("highs alone reached 9 us",))

    monkeypatch.setattr("taccl.synthesis.synthesize.synthesize", outdone)
    (row,) = compare(problem, backends=["highs"]).itertuples()
    assert (row.status, row.notes, row.verified) == (
        "proven for its chunks",
        "highs alone reached 9 us",
        True,
    )


def test_unknown_backends_are_refused_at_once(problem):
    """An unknown backend is refused before any run."""
    with pytest.raises(taccl.InputError, match="did you mean 'highs'"):
        compare(problem, backends=["greedy", "hihgs"])


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"backends": []}, "backends"), ({"backends": [3]}, "backends[0]"), ({"seeds": [0, -1]}, "seeds[1]"),
        ({"seeds": ["a"]}, "seeds[0]"), ({"time_limit_s": 0}, "time_limit_s"), ({"threads": 0}, "threads"),
        ({"num_workers": 0}, "num_workers"), ({"num_workers": 1.5}, "num_workers"),
        ({"backends": None}, "backends"), ({"backends": [[]]}, "backends[0]"), ({"seeds": None}, "seeds"),
        ({"seeds": 2**63}, "seeds"), ({"threads": 1.5}, "threads"), ({"threads": 2**63}, "threads"),
        ({"time_limit_s": "10"}, "time_limit_s"), ({"cache": ""}, "cache"), ({"cache": 3}, "cache"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(problem, options, where):
    """The error for an invalid option of `compare` names the argument."""
    with pytest.raises(taccl.InputError) as caught:
        compare(problem, **options)
    assert caught.value.where == where


def test_what_is_compared_is_a_problem():
    """The name of a sketch is refused in place of a problem."""
    with pytest.raises(taccl.InputError, match="expected a problem"):
        taccl.compare("ndv2/sk1")


@pytest.mark.slow
def test_workers_find_the_same(problem):
    """Two workers give the same table as one, in the same order, except for times."""
    options = {"backends": ["greedy", "highs"], "seeds": range(2)}
    both = compare(problem, **options, num_workers=2).drop(columns=TIMES)
    assert both.equals(compare(problem, **options).drop(columns=TIMES))


@pytest.mark.slow
def test_runs_are_counted(problem, cache):
    """Every run counts once in the progress, cached or not."""
    seen = []
    options = {
        "backends": ["greedy"],
        "seeds": range(3),
        "cache": cache,
        "progress": lambda *n: seen.append(n),
    }
    compare(problem, **options)
    compare(problem, **options)
    assert seen == [(1, 3), (2, 3), (3, 3)] * 2


@pytest.mark.slow
def test_an_error_of_the_progress_function_is_raised(problem, cache):
    """An exception of `progress` ends the comparison and is raised; the cache has the finished run."""

    def fail(*numbers):
        raise ValueError(f"mine, after {numbers}")

    options = {"backends": ["greedy"], "seeds": range(2), "cache": cache, "full": True}
    with pytest.raises(ValueError, match=r"mine, after \(1, 2\)"):
        compare(problem, progress=fail, **options)
    assert list(compare(problem, **options).from_cache) == [True, False]


@pytest.mark.slow
def test_the_bar_is_on_stderr(problem, capfd):
    """A requested progress bar shows the number of runs on stderr, and writes nothing to stdout."""
    compare(problem, backends=["greedy"], seeds=range(2), progress=True)
    out, err = capfd.readouterr()
    assert (out, "2/2" in err) == ("", True)


def test_no_bar_in_a_pipe(problem, capfd):
    """Without a terminal no progress bar is written."""
    compare(problem, backends=["greedy"])
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done(problem, cache, monkeypatch):
    """After Ctrl-C the remaining runs are rows with a status of their own, and a repeated call runs them."""
    numbers = iter(range(9))

    def interrupted(problem, **options):
        if next(numbers) == 1:
            raise KeyboardInterrupt
        return SYNTHESIZE(problem, **options)

    run_module._load_libraries()
    monkeypatch.setattr("taccl.synthesis.synthesize.synthesize", interrupted)
    options = {"backends": ["greedy"], "seeds": range(3), "cache": cache}
    with pytest.warns(taccl.TacclWarning, match="1 of 3 runs are left: run the same again to resume"):
        table = compare(problem, **options)
    assert list(table.status) == ["proven for its chunks", "interrupted", "not run"]
    again = compare(problem, **options)
    assert list(again.status) == ["proven for its chunks"] * 3
    assert list(again.from_cache) == [True, False, False]


def test_ctrl_c_before_anything_is_done(problem, monkeypatch):
    """Ctrl-C before the first result raises KeyboardInterrupt."""
    monkeypatch.setattr(
        "taccl.explore.parallel_runs.perform", lambda run: os.kill(os.getpid(), signal.SIGINT)
    )
    with pytest.raises(KeyboardInterrupt):
        compare(problem, backends=["greedy"])


SCRIPT = """
    import sys, taccl
    if __name__ == "__main__":
        topology = taccl.topologies.dgx2(nodes=2)
        problem = taccl.make_problem(topology, taccl.collectives.alltoall(32), size_bytes=10**7)
        ring = taccl.topologies.parse("ring:4")
        quick = taccl.make_problem(ring, taccl.collectives.allgather(4), size_bytes=4)
        taccl.compare(quick, backends=["greedy", "highs"], num_workers=2, cache=False, full=True)
        def say(done, total):
            print("done", done, flush=True)
        table = taccl.compare(
            problem, backends=["greedy", "highs"], seeds=range(4), num_workers=2, cache=False, progress=say,
            time_limit_s=0.5,
        )
        print(",".join(table.status), flush=True)
"""


@pytest.mark.slow
def test_ctrl_c_ends_every_process(tmp_path):
    """After Ctrl-C no further run starts, a table is returned, and neither solvers nor their files remain."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    folder = tmp_path / "tmp"
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        [sys.executable, str(script)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout.readline() == "done 1\n"
        os.killpg(process.pid, signal.SIGINT)
        statuses = process.stdout.read().splitlines()[-1].split(",")
        assert process.wait(timeout=20) == 0
    assert {"found", "proven"} & set(statuses)
    assert statuses.count("not run") >= 4
    deadline = time.monotonic() + 10
    while list(folder.glob("taccl-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not list(folder.glob("taccl-*"))


@pytest.mark.slow
def test_ctrl_c_keeps_the_best_so_far_of_runs_in_workers(problem, monkeypatch):
    """Ctrl-C interrupts the runs under way, whose schedules are rows; the runs after them do not begin."""
    monkeypatch.setattr("taccl.explore.parallel_runs._numbered", held)
    options = {"backends": ["greedy"], "seeds": range(5), "num_workers": 2, "cache": False, "full": True}
    with pytest.warns(
        taccl.TacclWarning, match="3 of 5 runs are left, and 2 ended early: run the same again"
    ):
        table = taccl.compare(problem, **options)
    assert [*table.stopped[:2]] == ["interrupted"] * 2
    assert [*table.status] == ["found"] * 2 + ["not run"] * 3


@pytest.mark.skipif(sys.platform == "win32", reason="signals cannot be blocked")
def test_ctrl_c_waits_while_workers_start():
    """Processes that start while Ctrl-C is held do not receive it either, until they unblock it."""
    blocked = "signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])"
    with interrupts_held():
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", f"import signal; print({blocked})"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    assert done.stdout == "True\n"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.slow
def test_a_run_that_ends_its_worker_is_a_row(problem, monkeypatch):
    """If a run ends its worker process, other runs continue. Running each one alone shows which run it was."""
    monkeypatch.setattr("taccl.explore.parallel_runs._numbered", dying)
    table = taccl.compare(problem, backends=["greedy"], seeds=range(3), num_workers=2, cache=False, full=True)
    assert [*table.status] == ["found", "crashed", "found"]
    assert table.error[1] == "its process died, also when run alone (TerminatedWorkerError)"


TERMINATED = """
    import os, signal, sys, taccl
    def end(done, total):
        os.kill(os.getpid(), int(sys.argv[1]))
    signal.signal(int(sys.argv[1]), signal.SIG_DFL)  # nohup has a process ignore SIGHUP
    if __name__ == "__main__":
        ring = taccl.topologies.parse("ring:4")
        quick = taccl.make_problem(ring, taccl.collectives.allgather(4), size_bytes=4)
        options = {"num_workers": 2, "cache": False, "progress": end}
        taccl.compare(quick, backends=["greedy"], seeds=range(4), **options)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, *([signal.SIGHUP] if MANY else [])])
def test_a_signal_ends_a_comparison_silently(tmp_path, number):
    """If a signal ends the process, no shared resource remains that joblib would warn about."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(TERMINATED))
    done = subprocess.run(
        [sys.executable, str(script), str(int(number))], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (128 + number, "")


KILLED = """
    import os, signal, taccl
    def kill(done, total):
        os.kill(os.getpid(), signal.SIGKILL)
    if __name__ == "__main__":
        ring = taccl.topologies.parse("ring:4")
        quick = taccl.make_problem(ring, taccl.collectives.allgather(4), size_bytes=4)
        options = {"num_workers": 2, "cache": False, "progress": kill}
        taccl.compare(quick, backends=["greedy"], seeds=range(4), **options)
"""


@pytest.mark.slow
def test_workers_end_with_who_compares(tmp_path):
    """If the process is killed, its workers end, too, instead of holding its pipes for minutes."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(KILLED))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as process:
        process.communicate(timeout=60)  # to the end of its stdout, at every process that has it
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_pool_workers_end_their_solvers(problem, monkeypatch):
    """In a worker process, solver processes end soon after the last run."""
    monkeypatch.setattr(run_module, "_LINGER_S", 0.05)
    compare(problem, backends=["highs"])
    assert WORKERS._idle["highs"]
    run_module._end_solvers_soon(home="another")
    deadline = time.monotonic() + 10
    while WORKERS._idle["highs"] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not WORKERS._idle["highs"]


@pytest.mark.slow
def test_every_table_says_into_how_many_chunks_a_run_cut_the_data(tmp_path):
    """Number of chunks and gap over all chunkings are columns of every run, cached or not."""
    ring = taccl.topologies.ring(4)
    asked = taccl.make_problem(ring, taccl.collectives.broadcast(4), size_bytes=1000)
    given = taccl.make_problem(ring, taccl.collectives.broadcast(4, chunks_per_rank=1), size_bytes=1000)
    for problem, count in ((asked, 2), (given, 1)):
        found = [
            compare(
                problem,
                backends=["greedy"],
                parameters=[BRIEF],
                cache=tmp_path,
                time_limit_s=AMPLE_S,
                num_workers=1,
                full=full,
            )
            for full in (False, True)
        ]
        for table in found:
            assert table.chunks_per_rank.tolist() == [count]
            assert table.gap_over_all_chunkings[0] >= 0
        assert found[1].from_cache.tolist() == [True]
        assert found[0].finish_us[0] == found[1].finish_us[0]


def test_runs_share_the_time_that_is_left(problem, monkeypatch):
    """Three consecutive runs may use a third, half and all, respectively, of the time left at their start."""
    rounds, limits = [], []

    def perform(request):
        rounds.append(request.rounds)
        limits.append(request.row["time_limit_s"])
        return failed_row(request.row, NoSolutionError("none", bound_us=None)), None

    monkeypatch.setattr("taccl.explore.parallel_runs.perform", perform)
    compare(problem, backends=["greedy"], seeds=range(3), time_limit_s=60, total_limit_s=50)
    assert rounds == [3, 2, 1]
    assert limits == [20, 20, 20], "the table has equal parts of the limit that was asked for"


@pytest.mark.slow
def test_a_run_that_would_begin_too_late_is_left_out(problem, monkeypatch):
    """Once all runs should have ended, a run that has a schedule at once is still performed, and no other."""
    monkeypatch.setattr("taccl.explore.run._LATE_S", -1000.0)
    monkeypatch.setattr("taccl.explore.run._LEAST_LIMIT_S", AMPLE_S)
    found = compare(
        problem,
        backends=["highs", "greedy"],
        seeds=range(2),
        total_limit_s=100,
        num_workers=1,
        cache=False,
        full=True,
    )
    assert found.verified.tolist() == [False, False, True, False]
    assert found.backend.tolist() == ["highs", "highs", "greedy", "greedy"]
    left_out = found[found.status == "not run"]
    assert left_out.error.tolist() == ["no time was left for it; give more time"] * 3


@pytest.mark.parametrize(("left_s", "factor", "starts"), [(4.0, 1.0, True), (4.0, 3.0, False)])
def test_processes_are_started_only_if_that_takes_half_of_the_time_at_most(
    monkeypatch, left_s, factor, starts
):
    """A process takes 1 s of CPU to start, so 3 s on a busy machine, which is more than half of 4 s."""
    monkeypatch.setattr(parallel_runs, "busy_factor", lambda: factor)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert parallel_runs._may_start_workers(left_s) == starts


def test_a_run_has_an_equal_part_of_what_is_left():
    """A run gets an equal part of the time left: in the first of four rounds 25 of 100 s. After the time
    limit it gets the minimum, and never more than its own limit, whatever earlier runs left."""
    request = RunRequest(None, {"time_limit_s": 30.0}, "", False)
    assert request.limit_s == 30.0
    shared = request._replace(until_s=time.time() + 100, rounds=4)
    assert 20 < shared.limit_s <= 25
    assert shared._replace(rounds=1).limit_s == 30.0
    assert 0 < shared._replace(until_s=time.time() - 1).limit_s < 1

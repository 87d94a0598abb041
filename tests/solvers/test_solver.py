"""Every solver on models with known answers, and on models too hard to solve."""

import os
import signal
import subprocess
import sys
from functools import cache
from threading import Timer

import numpy as np
import pytest

from taccl.errors import InputError
from taccl.solvers import cbc
from taccl.solvers.child import Control
from taccl.solvers.model import MilpModel
from taccl.solvers.registry import known_solvers, require_known, solver_infos, solver_task
from taccl.solvers.solver import STATUSES, _Call, solve
from tests.effort import AMPLE_S, in_time
from tests.fuzzing import thinned
from tests.solvers.solver_models import SOLVERS, assignment, knapsack, market_split, odd_sum, two_jobs


def in_fresh_process(text, *, check=True):
    """Result of a script in a new process that can import ``tests``."""
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=90, check=check,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip


@pytest.mark.parametrize("solver", [*SOLVERS, "pulp:PULP_CBC_CMD"])
@pytest.mark.parametrize(("build", "optimum"), [(knapsack, -220), (assignment, 5), (two_jobs, 4)])
def test_every_solver_proves_the_optimum(solver, build, optimum):
    """All solvers, in one process, prove the objective derived by hand."""
    solution = solve(build(), solver, time_limit_s=AMPLE_S)
    assert solution.status == "optimal", solution.message
    assert solution.objective == pytest.approx(optimum, abs=1e-6)
    assert solution.bound == pytest.approx(optimum, abs=1e-3)
    assert solution.version


@pytest.mark.parametrize("solver", SOLVERS)
def test_infeasible(solver):
    """2x + 2y = 1 has no whole solution."""
    solution = solve(odd_sum(), solver, time_limit_s=AMPLE_S)
    assert (solution.status, solution.values, solution.bound) == ("infeasible", None, None)


def test_cpsat_says_when_it_rounded():
    """CP-SAT rounds x + y <= 10.25 to a grid, so its answer is not called optimal."""
    model = MilpModel()
    x, y = model.add_variable(0, 3.5, cost=-1), model.add_variable(0, 9, cost=-2)
    model.add_row([(1, x), (1, y)], upper=10.25, tag="sum")
    solution = solve(model, "cpsat", time_limit_s=AMPLE_S)
    assert (solution.status, solution.bound) == ("feasible", None)
    assert solution.objective == pytest.approx(-19.25, abs=1e-3)  # y = 9, x = 1.25
    assert "rounded grid" in solution.message


def split(solver, **options):
    """Solution of a soft market split, under a limit that suffices for a feasible point but for no proof."""

    def attempt(limit_s):
        return solve(market_split(soft=True), solver, time_limit_s=limit_s, **options)

    return in_time(attempt, lambda solution: solution.status != "no-solution")


@pytest.fixture(scope="module")
def known():
    """Function that returns a solver's solution of the soft market split, found once."""
    return cache(split)


@pytest.mark.parametrize("solver", SOLVERS)
def test_time_limit_with_a_solution(solver, known):
    """A solver that ends at its time limit with a feasible point has status "feasible".

    Its bound is at most its objective.
    """
    solution = known(solver)
    assert solution.status == "feasible", solution.message
    assert solution.objective > 0
    assert solution.bound is None or solution.bound <= solution.objective
    assert solution.message


@pytest.mark.parametrize("solver", SOLVERS)
def test_time_limit_with_nothing(solver):
    """A solver that ends at its time limit without a feasible point returns no values."""
    solution = solve(market_split(soft=False), solver, time_limit_s=0.5)
    assert (solution.status, solution.values, solution.objective) == ("no-solution", None, None), (
        solution.message
    )


@pytest.mark.parametrize("solver", SOLVERS)
def test_hint_is_used(solver, known):
    """If a solver gets a solution as hint, it returns none that is worse, even with little time."""
    best = known("highs")
    solution = split(solver, hint=best.values)
    assert solution.status == "feasible", solution.message
    assert solution.objective <= best.objective


def test_hint_may_be_partial():
    """Entries of a hint that are NaN are chosen by the solver."""
    hint = np.array([np.nan, 1.0, np.nan])
    for solver in SOLVERS:
        assert solve(knapsack(), solver, time_limit_s=AMPLE_S, hint=hint).objective == -220


def test_hint_that_breaks_the_model_does_no_harm():
    """An infeasible hint (weight 6 of 5) does not change the optimum."""
    for solver in SOLVERS:
        assert solve(knapsack(), solver, time_limit_s=AMPLE_S, hint=np.ones(3)).objective == -220


def test_values_are_whole_and_read_only():
    """Integer variables are returned as integers, read-only."""
    values = solve(knapsack()).values
    assert values.tolist() == [0, 1, 1]
    assert not values.flags.writeable


@pytest.mark.parametrize("solver", SOLVERS)
def test_model_without_rows(solver):
    """Without rows each variable goes to its cheaper bound: -1 * 3 + 2 * 0."""
    model = MilpModel()
    model.add_variable(0, 3, integer=True, cost=-1)
    model.add_variable(0, 3, integer=True, cost=2)
    assert solve(model, solver, time_limit_s=AMPLE_S).objective == -3


def test_crossed_bounds_are_infeasible():
    """A row with crossed bounds is infeasible without a solver."""
    model = MilpModel()
    model.add_row([(1, model.add_variable(0, 1))], 2, 1, tag="crossed")
    solution = solve(model)
    assert solution.status == "infeasible"
    assert "crossed" in solution.message


def test_large_model_is_unlicensed_for_gurobi():
    """A model above Gurobi's bundled licence gives an error with the limit and the model's size."""
    licence = next(info.licence for info in solver_infos() if info.name == "gurobi")
    if not (licence or "").startswith("size-limited"):
        pytest.skip(f"Gurobi here has the licence {licence!r}, without a size limit")
    model = MilpModel()
    for _ in range(2001):
        model.add_variable(0, 1, cost=1)
    solution = solve(model, "gurobi")
    assert solution.status == "unlicensed"
    assert "2000 variables" in solution.message
    assert "2001 variables" in solution.message


def test_unscalable_model_is_unavailable_for_cpsat():
    """An irrational coefficient makes CP-SAT unavailable for the model."""
    model = MilpModel()
    model.add_row([(2**0.5, model.add_variable(0, 1, integer=True))], upper=1, tag="irrational")
    assert solve(model, "cpsat").status == "unavailable"


@pytest.mark.parametrize(
    ("solver", "advice"), [("gurobbi", "did you mean 'gurobi'"), ("pulp:nonsense", "pulp:GLPK_CMD")]
)
def test_unknown_solver_is_refused(solver, advice):
    """A misspelt solver gets a suggestion, and for an unknown one of PuLP the error lists those of PuLP."""
    with pytest.raises(InputError, match=advice):
        solve(knapsack(), solver)


@pytest.mark.parametrize("solver", ["highs", "pulp:HiGHS"])
def test_the_number_of_threads_may_change(solver):
    """The number of threads may change between models of one process."""
    assert [solve(knapsack(), solver, threads=threads).status for threads in (1, 2, 1)] == ["optimal"] * 3


def test_unknown_pulp_solver_is_refused_where_it_was_named():
    """The error for an unknown PuLP solver suggests the nearest name."""
    with pytest.raises(InputError, match="did you mean 'pulp:HiGHS'") as caught:
        require_known("pulp:HiGS", where="backend")
    assert caught.value.where == "backend"


SHORT_OF_MEMORY = """
from tests.solvers.solver_models import knapsack, market_split
from taccl.solvers.solver import solve
for limit_mb in (1, 5):
    print(solve(market_split(soft=True), %r, time_limit_s=1, memory_limit_mb=limit_mb).status)
    print(solve(knapsack(), %r).status)
print(solve(knapsack(), "pulp:HiGHS").status)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the address space of a process")
@pytest.mark.parametrize("solver", thinned([*SOLVERS, "pulp:PULP_CBC_CMD"]))
def test_without_memory_a_solver_is_not_missing(solver):
    """A solver that runs out of memory is not reported as missing, and its worker is not reused."""
    text = SHORT_OF_MEMORY % (solver, solver)
    done = in_fresh_process(text)
    *pairs, other = done.stdout.split()
    assert set(pairs[::2]) <= {"out-of-memory", "crashed", "feasible", "no-solution"}
    assert set(pairs[1::2]) == {"optimal"}
    assert other == "optimal"


@pytest.mark.slow
def test_scip_without_memory():
    """SCIP's out-of-memory code is recognised, although ortools raises no exception for it."""
    text = """
from ortools.math_opt.python import mathopt
from tests.solvers.solver_models import knapsack
from taccl.solvers import scip
from taccl.solvers.child import Control
def fail(*positional, **named):
    try:
        raise RuntimeError("SCIP error code -1 (file 'gscip.cc', line 1) on 'SCIPsolve(scip_)'")
    except RuntimeError:
        raise AttributeError("no attribute 'canonical_code'") from None
mathopt.solve = fail
payload = {"model": knapsack().arrays().to_message(), "seed": 0, "hint": None, "log": False}
try:
    scip.run(payload, Control(print, 5.0))
except MemoryError as error:
    print(error)
"""
    # Ignore the exit code, as the library may crash when its process ends.
    done = in_fresh_process(text, check=False)
    assert done.stdout == "SCIP ran out of memory\n", done.stderr


def test_missing_pulp_solver_is_unavailable():
    """A PuLP solver that this machine lacks is reported as unavailable."""
    installed = {info.name for info in solver_infos()}
    if "pulp:MIPCL_CMD" in installed:
        pytest.skip("MIPCL is installed here, so nothing is missing")
    assert solve(knapsack(), "pulp:MIPCL_CMD").status == "unavailable"


def test_a_model_that_highs_refuses_is_a_crash():
    """HiGHS accepts no coefficients of 10^15 or more, and then takes the model for an empty one."""
    model = MilpModel()
    model.add_row([(1e15, model.add_variable(0, 1, cost=1))], lower=1, tag="large")
    solution = solve(model, "highs", time_limit_s=AMPLE_S)
    assert (solution.status, solution.values) == ("crashed", None)
    assert "refuses the model, whose coefficients go up to 1e+15" in solution.message


def test_point_that_breaks_the_model_is_a_crash():
    """A solver's point that breaks the model is reported as a crash, with row and tag: here 1 + 2 + 3 > 5."""
    call = _Call(knapsack().arrays(), {"solver": "highs", "log": False}, 1.0)
    solution = call._vetted("optimal", "", np.ones(3))
    assert (solution.status, solution.values) == ("crashed", None)
    assert "breaks row 0 (capacity)" in solution.message


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["highs", "scip", "cbc", "gurobi", "cpsat"])
def test_a_solution_has_the_number_of_search_nodes(solver, known):
    """A solution has the number of nodes of the search tree."""
    found = known(solver)
    if not found.nodes:  # a slow machine, where it found a solution at the root
        found = in_time(
            lambda limit_s: solve(market_split(soft=True), solver, time_limit_s=limit_s),
            lambda found: bool(found.nodes),
        )
    assert found.nodes > 0


def test_progress_is_reported():
    """`on_progress` is called for each better solution; the final solution has the times of all of these."""
    seen = []

    def attempt(limit_s):
        seen.clear()
        return solve(market_split(soft=True), "highs", time_limit_s=limit_s, on_progress=seen.append)

    solution = in_time(attempt, lambda solution: solution.status != "no-solution")
    assert solution.first_feasible_s is not None
    assert [item["objective"] for item in seen] == [item[1] for item in solution.progress]
    assert any("values" in item for item in seen)


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_interrupt_returns_the_best_so_far(solver, monkeypatch):
    """Ctrl-C returns the best point of a solver that has the time to answer."""
    monkeypatch.setattr("taccl.solvers.worker._INTERRUPT_S", AMPLE_S)
    fired = []

    def interrupt_once(progress):
        if progress["objective"] is not None and not fired:
            fired.append(True)
            Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()

    found = solve(market_split(soft=True), solver, time_limit_s=AMPLE_S, on_progress=interrupt_once)
    assert (found.status, found.values is not None) == ("interrupted", True), found.message


@pytest.mark.slow
def test_nothing_heavy_is_loaded_here():
    """After solving, none of the solvers' libraries is loaded in the calling process."""
    text = """
import sys
from tests.solvers.solver_models import SOLVERS, knapsack
from taccl.solvers.registry import solver_infos
from taccl.solvers.solver import solve
solver_infos()
print([solve(knapsack(), solver).objective for solver in SOLVERS])
print([name for name in ("highspy", "ortools", "gurobipy", "pulp", "scipy", "pandas") if name in sys.modules])
"""
    done = in_fresh_process(text)
    assert done.stdout.splitlines() == [str([-220.0] * len(SOLVERS)), "[]"]


@pytest.mark.slow
def test_script_without_main_guard(tmp_path):
    """A plain script file solves; a worker does not run the script again."""
    script = tmp_path / "script.py"
    script.write_text(
        "from taccl.solvers.model import MilpModel\nfrom taccl.solvers.solver import solve\n"
        "model = MilpModel()\nmodel.add_variable(0, 3, integer=True, cost=-1)\n"
        "print(solve(model).objective)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "-3.0\n"


def test_statuses_cover_what_solvers_return():
    """A solver returns one of the documented statuses."""
    assert solve(knapsack()).status in STATUSES


def test_known_solvers_have_families():
    """HiGHS and OR-Tools have different families, so that they never share a worker process."""
    families = {name: solver_task(name)[0] for name in known_solvers()}
    assert families["highs"] != families["cpsat"] == families["scip"]
    assert solver_task("pulp:GLPK_CMD")[0] == "pulp"


def test_solver_infos():
    """Every known solver is listed, with a version if available and a reason if not."""
    infos = solver_infos()
    assert {info.name for info in infos} >= set(known_solvers())
    assert all(info.version if info.available else info.why_not for info in infos)


@pytest.mark.slow
def test_warnings_as_errors_do_not_take_a_solver_away():
    """Warnings turned into errors do not make a solver unavailable."""
    script = "from tests.solvers.solver_models import knapsack; from taccl.solvers.solver import solve; print(solve(knapsack(), 'cbc', time_limit_s=60).objective)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONWARNINGS": "error"},
    )
    assert (done.returncode, done.stdout) == (0, "-220.0\n"), done.stderr


@pytest.mark.parametrize(
    "script, status, message",
    [
        ("exec sleep 60", "no-solution", "CBC: stopped on time, without a solution"),
        ("trap '' INT; while :; do sleep 0.1; done", "no-solution", "CBC: stopped on time, without a solution"),
        ("sleep 0.2", "no-solution", "CBC: stopped on time, without a solution"),
        ("kill -SEGV $$", "crashed", "CBC wrote no solution file; its last line: CBC died of SIGSEGV"),
        ("echo 'Stopped on time (no integer solution - continuous used) - objective value 3' > solution.txt", "no-solution", "CBC: stopped on time"),
    ],
)  # fmt: skip
def test_a_cbc_that_ran_out_of_time_did_not_crash(script, status, message, tmp_path, monkeypatch):
    """CBC at its time limit, ending in any way without a solution, is not a crash; other endings are."""
    fake = tmp_path / "cbc"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(cbc, "_executable", lambda: str(fake))
    monkeypatch.setattr(cbc, "_OVERRUN_S", 0.3)
    monkeypatch.setattr(cbc, "_STOP_GRACE_S", 0.2)
    payload = {"model": knapsack().arrays().to_message(), "seed": 0, "threads": 1, "hint": None, "log": False}
    answer = cbc.run(payload, Control(lambda news: None, 0.1))
    assert (answer["status"], answer["message"]) == (status, message)

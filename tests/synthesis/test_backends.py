"""The table of backends: which are there, in what version, licensed until when, and why not."""

import datetime
import os
import subprocess
import sys
from importlib import metadata

import pytest

import taccl
from taccl.solvers import registry
from taccl.solvers.registry import Backends, SolverInfo, package_versions

NAMES = ["auto", "greedy", "dimension-balanced", "highs", "scip", "cbc", "gurobi", "cpsat"]


@pytest.fixture(scope="module")
def table():
    """The table of this machine."""
    return taccl.backends()


def row(table, name):
    return next(row for row in table if row.name == name)


def test_names_in_order(table):
    """Our own come first, then the solvers, then those that PuLP finds, under ``pulp:``."""
    names = [row.name for row in table]
    assert names[: len(NAMES)] == NAMES
    assert all(name.startswith("pulp:") for name in names[len(NAMES) :])
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", NAMES)
def test_declared_dependencies_are_available(table, name):
    """What taccl's dependencies bring is there, with a version."""
    found = row(table, name)
    assert (found.available, found.why_not) == (True, None)
    assert found.version[0].isdigit()


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("auto", "taccl"),
        ("greedy", "taccl"),
        ("highs", "highspy"),
        ("gurobi", "gurobipy"),
        ("cpsat", "ortools"),
    ],
)
def test_version_is_the_installed_one(table, name, package):
    """The version is what the package manager says."""
    assert row(table, name).version.split(".")[:2] == metadata.version(package).split(".")[:2]


def test_gurobis_licence_has_an_end(table):
    """The bundled licence ends on a day that is named, as an ISO date."""
    gurobi = row(table, "gurobi")
    if not (gurobi.licence or "").startswith("size-limited"):
        pytest.skip(f"needs Gurobi with its bundled licence; here: {gurobi.why_not or gurobi.licence}")
    assert datetime.date.fromisoformat(gurobi.licence_ends) > datetime.date(2025, 1, 1)
    assert "2000 variables, 2000 rows" in gurobi.licence


@pytest.mark.parametrize("name", ["highs", "scip", "cbc", "cpsat", "auto", "greedy"])
def test_free_solvers_do_not_expire(table, name):
    """Only a commercial licence ends."""
    assert row(table, name).licence_ends is None


def test_every_row_can_be_read(table):
    """The printed table has a line for each row, with its name and version."""
    lines = repr(table).splitlines()
    assert lines[0].split() == ["backend", "available", "version", "note"]
    assert len(lines) == 1 + len(table.rows)
    for found, line in zip(table, lines[1:], strict=True):
        assert line.startswith(found.name)
        assert found.version in line


def test_absent_backend_says_why():
    """The note of a backend that is not there is the reason; that of a licence has its end."""
    table = Backends(
        (
            SolverInfo("a", False, None, None, None, "a does not load"),
            SolverInfo("b", True, "1.0", "trial", "2030-01-31", None),
        )
    )
    _, a, b = repr(table).splitlines()
    assert a.split(maxsplit=3) == ["a", "no", "-", "a does not load"]
    assert b.split(maxsplit=3) == ["b", "yes", "1.0", "trial, until 2030-01-31"]


def test_columns_are_aligned_and_html():
    """A long name hops the columns of all rows; notebooks get a table whose texts are escaped."""
    table = Backends(
        (
            SolverInfo("pulp:A_VERY_LONG_NAME", True, "1.0", "free", None, None),
            SolverInfo("b", False, None, None, None, "<gone>"),
        )
    )
    lines = repr(table).splitlines()
    assert {line.index(word) for line, word in zip(lines, ("available", "yes", "no"), strict=True)} == {23}
    assert "&lt;gone&gt;" in table._repr_html_()
    assert table._repr_html_().count("<tr") == 3


@pytest.mark.slow
def test_library_that_kills_its_worker(monkeypatch):
    """A library that dies when it is asked is unavailable for that reason; the others are there."""
    start = registry.run_task

    def drilled(family, function, *rest, **options):
        return start(
            family,
            "tests.solvers.faults:abort" if family == "gurobi" else function,
            *rest,
            **options,
        )

    monkeypatch.setattr(registry, "run_task", drilled)
    table = taccl.backends()
    assert not row(table, "gurobi").available
    assert "SIGABRT" in row(table, "gurobi").why_not
    assert row(table, "highs").available


@pytest.fixture
def without_gurobi(tmp_path):
    """An environment in which gurobipy does not load."""
    (tmp_path / "gurobipy.py").write_text("raise ImportError('no gurobipy in this test')")
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


@pytest.mark.slow
def test_library_that_does_not_load(without_gurobi):
    """A package that fails on import is named, with what it said; the exit code is that of success."""
    done = subprocess.run(
        [sys.executable, "-m", "taccl", "backends"], capture_output=True, text=True, env=without_gurobi
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("gurobi"))
    assert done.returncode == 0
    assert line.split(maxsplit=3)[1:] == ["no", "-", "gurobipy does not load: no gurobipy in this test"]


@pytest.mark.slow
def test_absent_backend_is_refused(without_gurobi):
    """Asking for it is an error of its own, with exit code 3 and one sentence."""
    words = "synthesize --topology ring:4 --collective allgather --size 4KB --backend gurobi"
    done = subprocess.run(
        [sys.executable, "-m", "taccl", *words.split()], capture_output=True, text=True, env=without_gurobi
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1
    assert "gurobi cannot run here: gurobipy does not load: no gurobipy in this test" in done.stderr


def test_package_versions():
    """A result names Python and every package that had a part in it."""
    versions = package_versions()
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert versions["highspy"] == metadata.version("highspy")
    assert {"taccl", "ortools", "gurobipy", "pulp", "numpy"} <= set(versions)

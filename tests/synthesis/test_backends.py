"""The table of backends: availability, version, licence end, and reasons for absence."""

import datetime
import json
import sys
from importlib import metadata

import pytest

import taccl
from taccl.cli import main
from taccl.solvers import registry
from taccl.solvers.process import WORKERS
from taccl.solvers.registry import Backends, SolverInfo, package_versions

NAMES = ["auto", "greedy", "dimension-balanced", "highs", "scip", "cbc", "gurobi", "cpsat"]


@pytest.fixture(scope="module")
def table():
    """The table of this machine's backends."""
    return taccl.backends()


def row(table, name):
    return next(row for row in table if row.name == name)


def test_names_in_order(table):
    """taccl's backends come first, then the solvers, then those found by PuLP, as ``pulp:...``."""
    names = [row.name for row in table]
    assert names[: len(NAMES)] == NAMES
    assert all(name.startswith("pulp:") for name in names[len(NAMES) :])
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", NAMES)
def test_declared_dependencies_are_available(table, name):
    """Backends among taccl's dependencies are available, with a version."""
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
    """The version equals that of the installed package."""
    assert row(table, name).version.split(".")[:2] == metadata.version(package).split(".")[:2]


def test_gurobis_licence_has_an_end(table):
    """The end of Gurobi's bundled licence is an ISO date."""
    gurobi = row(table, "gurobi")
    if not (gurobi.licence or "").startswith("size-limited"):
        pytest.skip(f"needs Gurobi with its bundled licence; here: {gurobi.why_not or gurobi.licence}")
    assert datetime.date.fromisoformat(gurobi.licence_ends) > datetime.date(2025, 1, 1)
    assert "2000 variables, 2000 rows" in gurobi.licence


@pytest.mark.parametrize("name", ["highs", "scip", "cbc", "cpsat", "auto", "greedy"])
def test_free_solvers_do_not_expire(table, name):
    """Free solvers have no licence end."""
    assert row(table, name).licence_ends is None


def test_every_row_can_be_read(table):
    """The printed table has a line for each row, with name and version."""
    lines = repr(table).splitlines()
    assert lines[0].split() == ["backend", "available", "version", "note"]
    assert len(lines) == 1 + len(table.rows)
    for found, line in zip(table, lines[1:], strict=True):
        assert line.startswith(found.name)
        assert found.version in line


def test_absent_backend_says_why():
    """An absent backend's note is the reason; a licence's note is its end."""
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
    """A long name widens the column in all rows; notebooks get an HTML table with escaped text."""
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
    """A library that crashes its worker is unavailable for that reason; the others stay available."""
    start = registry.run_task

    def drilled(family, function, *rest, **options):
        return start(
            family, "tests.solvers.faults:abort" if family == "gurobi" else function, *rest, **options
        )

    monkeypatch.setattr(registry, "run_task", drilled)
    monkeypatch.setattr(registry, "_SOLVERS", {name: registry._SOLVERS[name] for name in ("highs", "gurobi")})
    table = taccl.backends()
    assert not row(table, "gurobi").available
    assert "SIGABRT" in row(table, "gurobi").why_not
    assert row(table, "highs").available


@pytest.fixture
def without_gurobi(tmp_path, monkeypatch):
    """Make gurobipy fail to import in new workers, the only ones of the test."""
    (tmp_path / "gurobipy.py").write_text("raise ImportError('no gurobipy in this test')")
    monkeypatch.syspath_prepend(tmp_path)
    WORKERS.end_idle()
    yield
    WORKERS.end_idle()


@pytest.mark.slow
def test_library_that_does_not_load(without_gurobi, monkeypatch, capsys):
    """A package that fails to import is listed with its error; the exit code is 0."""
    monkeypatch.setattr(registry, "_SOLVERS", {"gurobi": registry._SOLVERS["gurobi"]})
    assert main(["backends"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("gurobi"))
    assert line.split(maxsplit=3)[1:] == ["no", "-", "gurobipy does not load: no gurobipy in this test"]


@pytest.mark.slow
def test_absent_backend_is_refused(without_gurobi, capsys):
    """Use of an absent backend is an error with exit code 3 and one sentence."""
    words = "synthesize --topology ring:4 --collective allgather --size 4KB --backend gurobi"
    code, (out, err) = main(words.split()), capsys.readouterr()
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
    assert "gurobi cannot run here: gurobipy does not load: no gurobipy in this test" in err


def test_package_versions():
    """A result names the versions of Python and of every package used."""
    versions = package_versions()
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert versions["highspy"] == metadata.version("highspy")
    assert {"taccl", "ortools", "gurobipy", "pulp", "numpy"} <= set(versions)
    assert json.loads(json.dumps(versions)) == versions

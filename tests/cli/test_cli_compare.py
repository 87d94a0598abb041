"""``taccl compare``, ``taccl sweep`` and ``taccl cache``: tables on stdout and in files, and exit codes."""

from __future__ import annotations

import json
import os

import pytest

RUNS = ("--collective", "allgather", "--backends", "greedy", "--time-limit", "5", "--workers", "1")
SMALL = ("compare", "ring:4", *RUNS, "--size", "4KB")
SWEEP = ("sweep", "ring:4", *RUNS)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache of its own for each test."""
    monkeypatch.setenv("TACCL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def test_compare_as_text(run):
    """A line for each run, with what tells them apart."""
    code, out, err = run(*SMALL, "--seeds", "0:2")
    assert (code, err) == (0, "")
    title, head, *rows = out.splitlines()
    assert title == "allgather on ring:4, 4KB"
    assert head.split() == ["seed", "backend", "finish", "gap", "GB/s", "seconds", "status"]
    assert [row.split()[:3] for row in rows] == [["0", "greedy", "1.04"], ["1", "greedy", "1.04"]]


def test_modules_of_the_current_folder_are_left_alone(run, monkeypatch):
    """Processes that are started for runs import nothing that is called like a library's, such as json.py."""
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    run(*SMALL)
    assert os.environ["PYTHONSAFEPATH"] == "1"


def test_compare_as_json(run_json):
    """Every column of every run."""
    code, values = run_json(*SMALL)
    (row,) = values["rows"]
    # Two hops of 0.5 us + 1000 B / (50 GB/s).
    assert (code, row["finish_us"], row["status"], row["model_rows"]) == (0, 1.04, "proven", None)


def test_a_second_call_says_that_it_read(run):
    """What came from the cache is marked, unless the cache is not wanted."""
    run(*SMALL)
    assert "proven (cached)" in run(*SMALL)[1]
    assert "cached" not in run(*SMALL, "--no-cache")[1]


@pytest.mark.parametrize("ending", ["csv", "json", "parquet"])
def test_the_table_in_a_file(run, folder, ending):
    """Each format gives back what was found; a file is not replaced unasked."""
    import pandas as pd

    path = folder / f"table.{ending}"
    code, out, _ = run(*SMALL, "-o", path)
    assert (code, out.splitlines()[-1]) == (0, f"written to {path}")
    reader = {"csv": pd.read_csv, "json": pd.read_json, "parquet": pd.read_parquet}[ending]
    assert list(reader(path).finish_us) == [1.04]
    code, _, err = run(*SMALL, "-o", path)
    assert (code, "the file exists" in err) == (2, True)
    assert run(*SMALL, "-o", path, "--overwrite")[0] == 0


def test_other_endings_are_refused(run, folder):
    """Before anything runs."""
    code, _, err = run(*SMALL, "-o", folder / "table.xlsx")
    assert (code, "expected .csv, .json or .parquet" in err) == (2, True)


def test_no_schedule_at_all(run):
    """The answer is no: exit code 1, with the reason."""
    code, out, err = run(
        "compare", "ring:4", "--collective", "allgather", "--size", "1KB", "--backends", "pulp:MOSEK"
    )
    assert (code, "pulp:MOSEK: unavailable: " in out) == (1, True)
    assert "none of 1 run has a schedule" in err


def test_unknown_backends(run):
    """A typing error names the option."""
    code, _, err = run(*SMALL, "--backends", "greedy,cbd")
    assert (code, "--backends: found 'cbd'" in err) == (2, True)


@pytest.mark.parametrize("seeds", ["a", "3:3", "1,,2", "-1", "0:2:3"])
def test_seeds_that_make_no_sense(run, seeds):
    """Seeds are numbers, or a range with numbers in it."""
    code, _, err = run(*SMALL, f"--seeds={seeds}")
    assert (code, "--seeds" in err) == (2, True)


def test_sweep(run_json):
    """Sketches, sizes and cuts make rows in the order they are named."""
    code, values = run_json(*SWEEP, "--sizes", "1KB:100KB", "--chunks-per-rank", "1,2")
    found = [(row["size_bytes"], row["chunks_per_rank"]) for row in values["rows"]]
    assert (code, found) == (0, [(s, k) for s in (1000, 10_000, 100_000) for k in (1, 2)])


def test_sweep_as_text(run):
    """Only what differs between runs has a column; a sketch that does not fit says why."""
    code, out, _ = run(*SWEEP, "--sizes", "1KB,4KB", "--sketches", "none,ndv2/sk1")
    assert code == 0
    assert out.splitlines()[1].split()[:3] == ["sketch", "size", "backend"]
    assert "does not fit: ndv2/sk1: " in out


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1KB", [1000]),
        ("1KiB:1MiB:32", [2**10, 2**15, 2**20]),
        ("1KB:5KB", [1000]),
        ("2KB,1KB", [2000, 1000]),
    ],
)
def test_sizes(run_json, text, sizes):
    """One, several, or from one to another by a factor."""
    _, values = run_json(*SWEEP, "--sizes", text)
    assert [row["size_bytes"] for row in values["rows"]] == sizes


@pytest.mark.parametrize("text", ["1XB", "1MB:1KB", "1KB:1MB:1", "1KB:1MB:2:3", "1KB:1MB:x", ":", ""])
def test_sizes_that_make_no_sense(run, text):
    """The option is named."""
    code, _, err = run(*SWEEP, f"--sizes={text}")
    assert (code, "--sizes" in err) == (2, True)


def test_nodes_rescale_sketches(run_json, sketch_file):
    """A sketch for two nodes of ndv2 is rescaled to three."""
    words = ("sweep", "ndv2", *RUNS, "--sketches", sketch_file, "--sizes", "1MB")
    code, values = run_json(*words, "--nodes", "3")
    (row,) = values["rows"]
    assert (code, row["status"] in ("found", "proven"), row["num_ranks"]) == (0, True, 24)


def test_cache_info_and_clear(run, run_json, folder):
    """What there is, what was removed, and that nothing is left."""
    run(*SMALL, "--seeds", "0:3")
    _, info = run_json("cache", "info")
    assert (info["num_entries"], info["folder"], info["removed"]) == (3, str(folder / "cache"), False)
    code, out, _ = run("cache", "clear")
    assert (code, out.startswith("removed 3 results")) == (0, True)
    assert json.loads(run("cache", "info", "--json")[1])["num_entries"] == 0
    assert run("cache", "empty")[0] == 2

"""``taccl compare``, ``taccl sweep`` and ``taccl cache``: tables on stdout and in files, and exit codes."""

import json
import os
import re
import subprocess
import sys

import pytest

from taccl.cli.verbs import compare
from tests.fuzzing import MANY
from tests.hardships import without_privileges

#: Options of each run. The number of chunks is given, as choosing it would take longer than the runs.
RUNS = (
    "--collective", "allgather", "--chunks-per-rank", "1", "--backends", "greedy", "--time-limit", "5", "--workers", "1",
)  # fmt: skip
SMALL = ("compare", "ring:4", *RUNS, "--size", "4KB")
SWEEP = ("sweep", "ring:4", *RUNS)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Cache folder of the test's own."""
    monkeypatch.setenv("TACCL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


#: Column titles of a table with one seed.
COLUMNS = [
    "backend",
    "chunks/rank",
    "finish",
    "gap",
    "gap over all chunkings",
    "algbw GB/s",
    "seconds",
    "status",
]


@pytest.mark.slow
def test_compare_as_text(run):
    """The text has a line for each run, with the properties in which runs differ."""
    code, out, err = run(*SMALL, "--seeds", "0:2")
    assert (code, err) == (0, "")
    title, head, *rows = out.splitlines()
    assert title == "allgather on ring:4, 4KB"
    assert re.split(r"  +", head.strip()) == ["seed", *COLUMNS]
    assert [row.split()[:4] for row in rows] == [["0", "greedy", "1", "1.04"], ["1", "greedy", "1", "1.04"]]


def test_tables_need_no_pandas(run, monkeypatch):
    """A comparison and a sweep print their tables without pandas, which takes half a second to load."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    for words in (SMALL, (*SWEEP, "--sizes", "4KB")):
        code, out, err = run(*words)
        assert (code, err) == (0, "") and "greedy" in out


@pytest.mark.slow
def test_details_are_columns(run):
    """With --details the table has statuses, the solver's bound, sizes and rounds instead of bandwidths."""
    code, out, _ = run(*SMALL, "--details")
    head = re.split(r"  +", out.splitlines()[1].strip())
    assert code == 0
    assert head[:6] == ["backend", "status", "finish", "bound", "gap", "routing"]
    assert {"solver's bound", "variables", "nodes", "rounds", "first at s", "best at s"} <= set(head)


@pytest.mark.slow
def test_a_run_that_was_not_begun_leaves_the_title(run_json):
    """After Ctrl-C a run that did not start has no collective, topology or size; the title takes these from
    the other runs."""
    known = run_json(*SMALL)[1]["rows"]
    asked = {name: known[0][name] for name in ("sketch", "seed")} | {"backend": "highs", "status": "not run"}
    title, head, *rows = compare._text([dict.fromkeys(known[0]) | asked, *known]).splitlines()
    assert title == "allgather on ring:4, 4KB"
    assert re.split(r"  +", head.strip()) == COLUMNS
    assert [row.split()[0] for row in rows] == ["highs", "greedy"]


@pytest.mark.parametrize(
    ("known", "told"),
    [
        (("found", "time limit", False), "found (time limit)"),
        (("found", "time limit", True), "found (time limit, cached)"),
        (("found", "nothing better found", False), "found"),
        (("proven", "time limit", True), "proven (cached)"),
        (("not run", None, None), "not run"),
    ],
)
def test_the_status_says_if_the_time_limit_cut_the_search(known, told):
    """The status of an unproven schedule says if its search was cut by the time limit, also from the cache."""
    row = dict(zip(("status", "stopped", "from_cache"), known, strict=True))
    assert compare._told_status(row) == told


@pytest.mark.slow
def test_modules_of_the_current_folder_are_left_alone(run, monkeypatch):
    """Worker processes import no module of the current folder that has a library's name, such as json.py."""
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    run(*SMALL)
    assert os.environ["PYTHONSAFEPATH"] == "1"


@pytest.mark.slow
def test_proofs_on_an_import_hold_for_its_model(run, folder):
    """Below the table stands the number of assumptions of an imported topology; a machine has none."""
    path = folder / "m.csv"
    path.write_text("us,GPU0,GPU1\nGPU0,0,2\nGPU1,2,0\n")
    out = run("compare", str(path), *RUNS, "--size", "1KB")[1]
    assert "figures and proofs hold for this model: 2 assumptions of the topology" in out
    assert "this model" not in run(*SMALL)[1]


@pytest.mark.slow
def test_compare_as_json(run_json):
    """The JSON of a comparison has every column of every run."""
    code, values = run_json(*SMALL)
    (row,) = values["rows"]
    # Two hops of 0.5 us + 1000 B / (50 GB/s).
    assert (code, row["finish_us"], row["status"], row["model_rows"]) == (
        0,
        1.04,
        "proven for its chunks",
        None,
    )


@pytest.mark.slow
def test_a_second_call_marks_rows_from_the_cache(run):
    """Rows that were read from the cache are marked; if the cache is disabled, no row is."""
    run(*SMALL)
    assert "proven for its chunks (cached)" in run(*SMALL)[1]
    assert "cached" not in run(*SMALL, "--no-cache")[1]


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["csv", "json"])
def test_the_table_in_a_file(run, folder, ending):
    """With ``-o`` each file format holds the same table; an existing file is replaced only on request."""
    import pandas as pd

    path = folder / f"table.{ending}"
    code, out, _ = run(*SMALL, "-o", path)
    assert (code, out.splitlines()[-1]) == (0, f"written to {path}")
    reader = {"csv": pd.read_csv, "json": pd.read_json}[ending]
    assert list(reader(path).finish_us) == [1.04]
    code, _, err = run(*SMALL, "-o", path)
    assert (code, "the file exists" in err) == (2, True)
    assert run(*SMALL, "-o", path, "--overwrite")[0] == 0


@pytest.mark.slow
def test_no_schedule_at_all(run):
    """Without any schedule the exit code is 1, with the reason."""
    code, out, err = run(
        "compare", "ring:4", "--collective", "allgather", "--size", "1KB", "--backends", "pulp:MOSEK"
    )
    assert (code, "pulp:MOSEK: unavailable: " in out) == (1, True)
    assert "none of 1 run has a schedule" in err


@pytest.mark.slow
def test_sweep(run_json):
    """Sketches, sizes and numbers of chunks give rows in the order of the arguments."""
    code, values = run_json(*SWEEP, "--sizes", "1KB:100KB", "--chunks-per-rank", "1,2")
    found = [(row["size_bytes"], row["chunks_per_rank"]) for row in values["rows"]]
    assert (code, found) == (0, [(s, k) for s in (1000, 10_000, 100_000) for k in (1, 2)])


@pytest.mark.slow
def test_sweep_has_the_size_of_other_commands_by_default(run, run_json):
    """Without sizes and sketches, a sweep is of 64 MB, as other commands are, and a note says so."""
    code, _, err = run(*SWEEP)
    assert (code, err) == (0, "taccl: note: the size is 64MB, as neither --sizes nor a sketch states one\n")
    _, values = run_json(*SWEEP)
    assert [row["size_bytes"] for row in values["rows"]] == [64 * 10**6]


@pytest.mark.slow
def test_sweep_as_text(run):
    """Only properties in which runs differ have a column; for a sketch that does not fit, the reason is given."""
    code, out, _ = run(*SWEEP, "--sizes", "1KB,4KB", "--sketches", "none,ndv2/sk1")
    assert code == 0
    assert out.splitlines()[1].split()[:3] == ["sketch", "size", "backend"]
    assert "does not fit: ndv2/sk1: " in out


@pytest.mark.slow
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
    """``--sizes`` is one size, a list, or a range with a factor."""
    _, values = run_json(*SWEEP, "--sizes", text)
    assert [row["size_bytes"] for row in values["rows"]] == sizes


@pytest.mark.slow
def test_nodes_rescale_sketches(run_json, sketch_file):
    """A sketch for two nodes of ndv2 is rescaled to three."""
    words = ("sweep", "ndv2", *RUNS, "--sketches", sketch_file, "--sizes", "1MB")
    code, values = run_json(*words, "--nodes", "3")
    (row,) = values["rows"]
    assert (code, row["status"] in ("found", "proven for its chunks"), row["num_ranks"]) == (0, True, 24)


@pytest.mark.slow
def test_cache_info_and_clear(run, run_json, folder):
    """`cache info` has folder and number of entries; `cache clear` removes all and prints their number."""
    run(*SMALL, "--seeds", "0:3")
    _, info = run_json("cache", "info")
    assert (info["num_entries"], info["folder"], info["removed"]) == (3, str(folder / "cache"), False)
    code, out, _ = run("cache", "clear")
    assert (code, out.startswith("removed 3 results")) == (0, True)
    assert json.loads(run("cache", "info", "--json")[1])["num_entries"] == 0
    assert run("cache", "empty")[0] == 2


def changed(*keys, **values):
    """Text of a stored result with some fields changed."""

    def change(path):
        document = inner = json.loads(path.read_text())
        for key in keys:
            inner = inner[key]
        inner.update(values)
        path.write_text(json.dumps(document))

    return change


def cut_short(path):
    path.write_bytes(path.read_bytes()[:2000])


def a_later_end(path):
    document = json.loads(path.read_text())
    document["transfers"]["end"][-1] += 1
    path.write_text(json.dumps(document))


def a_folder(path):
    path.unlink()
    path.mkdir()


def holds(text):
    return lambda path: path.write_bytes(text)


#: {kind of damage: function that applies it to a stored file}.
DAMAGE = {
    "cut short": cut_short, "garbage": holds(bytes(range(256))), "empty": holds(b""),
    **{text.decode(): holds(text) for text in (
        b"[1]", b"3", b'"a"', b"null", b"{}", b'{"format": []}', b'{"format": "taccl-failure", "result": []}',
        b'{"format": "taccl-failure", "result": {"row": "x"}}',
    )},
    "too deep": holds(b"[" * 5000), "a later version": changed(version=99), "a later end": a_later_end,
    "a folder": a_folder,
    **{f"row {row!r}": changed("result", row=row) for row in (3, [], None, {})}, "another key": changed("result", key=3),
    **{f"{name} {value!r}": changed("result", "row", **{name: value}) for name, value in (
        ("finish_us", "x"), ("finish_us", 0.5), ("finish_us", None), ("bound_us", 9.0), ("bound_us", "x"),
        ("bound_us", None), ("gap", []), ("gap", 0.5), ("gap", None), ("status", 3), ("status", "infeasible"),
        ("status", "found"), ("num_transfers", 1.5), ("num_transfers", 10**30), ("num_sends", 7), ("notes", {}),
        ("unknown", 1), ("seconds", "x"), ("verified", 1), ("verified", False), ("stopped", "interrupted"),
        ("algbw_gb_per_s", 9.0), ("problem_digest", 3), ("schedule_digest", "x"),
    )},
}  # fmt: skip


@pytest.fixture
def stored(run_json, folder):
    """{words of a command: (rows of its answer, cached files of its results)} for two commands."""
    found = {}
    for words in ((*SMALL, "--seeds", "0:2"), (*SWEEP, "--sizes", "4KB,8KB")):
        rows = run_json(*words)[1]["rows"]
        found[words] = (rows, [folder.joinpath("cache/results/v1", f"{r['key']}.json") for r in rows])
    return found


def is_computed_again(run, words, rows):
    """True if a command computes its earlier results again, with one warning."""
    code, out, err = run(*words, "--json")
    measured = ("finish_us", "bound_us", "gap", "status", "num_transfers", "schedule_digest")
    again = json.loads(out)["rows"]
    assert [[row[name] for name in measured] for row in again] == [
        [row[name] for name in measured] for row in rows
    ]
    assert not any(row["from_cache"] for row in again)
    assert (code, err.count("taccl: "), err.startswith("taccl: warning: ")) == (0, 1, True), err
    return True


@pytest.mark.slow
def test_damaged_results_are_computed_again(run, stored):
    """If two cached results are damaged in any way, figures are computed again, with one warning for both."""
    for words, (rows, paths) in stored.items():
        whole = [path.read_bytes() for path in paths]
        for damage in list(DAMAGE.values())[:: 1 if MANY else 7 if words[0] == "compare" else 11]:
            for path, content in zip(paths, whole, strict=True):
                path.write_bytes(content)
                damage(path)
            assert is_computed_again(run, words, rows)
            for path in paths:
                if path.is_dir():
                    path.rmdir()


@pytest.mark.slow
def test_results_under_each_others_keys_are_computed_again(run, stored):
    """Results swapped between their files are valid in themselves, but refused under their new keys."""
    for words, (rows, (first, second)) in stored.items():
        contents = first.read_bytes(), second.read_bytes()
        second.write_bytes(contents[0])
        first.write_bytes(contents[1])
        assert is_computed_again(run, words, rows)


@pytest.mark.slow
def test_a_file_in_place_of_the_cache(run, folder, stored, monkeypatch):
    """If a file is in place of the cache folder, nothing is stored, and one message says so."""
    (folder / "file").touch()
    monkeypatch.setenv("TACCL_CACHE_DIR", str(folder / "file"))
    for words, (rows, _) in stored.items():
        assert is_computed_again(run, words, rows)


@pytest.mark.slow
def test_a_user_without_rights(stored, folder):
    """Unreadable results are computed again and read afterwards; if none can be stored, there is one
    warning."""
    words, (_, paths) = next(iter(stored.items()))
    script = (
        "import os, sys; from taccl.cli import main; paths = sys.argv[1:3]\n"
        "for path in paths: os.chmod(path, 0)\n"
        "print(main(sys.argv[3:]), flush=True); main(sys.argv[3:])\n"
        "for path in paths: os.remove(path)\n"
        "os.chmod(os.path.dirname(paths[0]), 0o500)\n"
        "main(sys.argv[3:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, paths), *words],
        capture_output=True, text=True, timeout=120, preexec_fn=without_privileges,
    )  # fmt: skip
    for path in paths:
        path.parent.chmod(0o700)
    assert (
        done.returncode,
        done.stdout.count("proven for its chunks (cached)"),
        done.stdout.count("proven for its chunks"),
    ) == (0, 2, 6)
    first, second = done.stderr.splitlines()
    assert "is unusable and computed again (the file cannot be read (Permission denied)" in first
    assert "results cannot be stored" in second
    assert "Permission denied" in second


@pytest.mark.parametrize("index", [b"", b"[]", b"{}", b"\xff\xfe", b'{"format": 3}'])
def test_a_plan_whose_index_is_damaged_is_not_replaced(run, folder, index):
    """`taccl plan` does not replace a folder whose index is damaged, as it may hold other files than a plan."""
    (folder / "plan").mkdir()
    (folder / "plan" / "plan.json").write_bytes(index)
    code, _, err = run("plan", "ring:4", "--collective", "allgather", "-o", folder / "plan", "--overwrite")
    assert (code, err.count("taccl: "), "other than a plan" in err) == (2, 1, True)
    assert (folder / "plan" / "plan.json").read_bytes() == index

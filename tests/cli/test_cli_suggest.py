"""``taccl suggest``, and ``taccl synthesize`` without a sketch."""

import json
import re
import tomllib

import pytest

import taccl

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def known():
    """Cache of suggested sketches, {arguments of the call except the time left: sketches}."""
    return {}


@pytest.fixture(autouse=True)
def _suggested_once(known, monkeypatch):
    """Compute each suggestion once for all tests of this module."""
    suggest = taccl.suggest_sketches

    def once(*words, time_limit_s, progress=None, **options):
        key = repr((*words, options))
        if key not in known:
            known[key] = suggest(*words, time_limit_s=time_limit_s, progress=progress, **options)
        return known[key]

    monkeypatch.setattr(taccl, "suggest_sketches", once)


SMALL = ("suggest", "ndv2", "--nodes", "2", "--collective", "allgather")
QUICK = (*SMALL, "--size", "1MB", "--chunks-per-rank", "1", "--time-limit", "20")


def test_usual_size(run):
    """Without a size, the size is 64 MB, and stderr says so."""
    code, out, err = run("suggest", "ndv2", "--collective", "allgather", "--time-limit", 2)
    assert code == 0
    assert "64MB" in out
    assert "the size is 64MB" in err


def test_a_table_of_sketches(run):
    """The table of suggested sketches has each one's finish, bound and reason."""
    code, out, _ = run(*QUICK)
    assert code == 0
    head, symmetries, baseline, *_ = out.splitlines()
    assert (head, symmetries.split()) == (
        "allgather on ndv2 x2, 1MB",
        ["symmetries", "2", "in", "4,", "4", "in", "8,", "8", "in", "16"],
    )
    assert baseline.startswith("  best baseline  ")
    table, _, reasons = out.partition("chunks/rank")[2].partition("\n\n")
    assert "auto-own-chunks" in table and "  auto-own-chunks" in reasons
    assert max(map(len, out.splitlines())) <= 110


def test_a_baseline_that_is_sooner_is_reported(run):
    """If a baseline is faster than every sketch, as for 800 bytes, the output says so."""
    words = ("suggest", "dgx-a100", "--nodes", 2, "--collective", "allreduce", "--size", "800B")
    _, out, _ = run(*words, "--time-limit", 60)
    assert re.search(r"best baseline +multiplying.*, faster than every sketch", out)


def test_the_best_as_toml(run, tmp_path):
    """With --best only a valid sketch file is printed."""
    code, out, _ = run(*QUICK, "--best")
    assert code == 0
    assert tomllib.loads(out)["machine"] == "ndv2"
    path = tmp_path / "best.toml"
    path.write_text(out)
    assert taccl.load_sketch(path).nodes == 2


def test_files_of_a_folder(run, tmp_path):
    """The folder gets a file for each sketch, which `synthesize` reads, and the JSON Schema."""
    folder = tmp_path / "sketches"
    assert run(*QUICK, "-o", folder)[0] == 0
    files = sorted(folder.glob("*.toml"))
    assert files[0].name.startswith("1-auto-")
    assert json.loads((folder / "sketch.schema.json").read_text())["title"] == "taccl communication sketch"
    code, out, _ = run(
        "synthesize", files[0], "--collective", "allgather", "--time-limit", "1", "--backend", "greedy"
    )
    assert code == 0
    assert "verified" in out


def test_files_are_not_replaced(run, tmp_path):
    """A second `taccl suggest` into the same folder refuses to replace the files."""
    assert run(*QUICK, "-o", tmp_path)[0] == 0
    code, _, err = run(*QUICK, "-o", tmp_path)
    assert code == 2
    assert "--overwrite" in err
    assert run(*QUICK, "-o", tmp_path, "--overwrite")[0] == 0


def test_json_has_the_toml(run_json):
    """The JSON of a suggestion has the TOML text of each sketch."""
    code, values = run_json(*QUICK, "--most", "1")
    assert code == 0
    (proposal,) = values["proposals"]
    assert tomllib.loads(proposal["toml"])["name"] == proposal["name"]
    assert proposal["bound_us"] <= proposal["finish_us"]


def test_a_sketch_is_checked(run):
    """For a sketch that fits, the check reports each clause."""
    code, out, _ = run(*SMALL, "--check", "ndv2/sk1")
    assert code == 0
    assert "internode.connections  binds   costs at least" in out


def test_a_wrong_sketch_fails_its_check(run, tmp_path):
    """For a wrong sketch the check has exit code 1 and the reason."""
    path = tmp_path / "wrong.toml"
    path.write_text("schema = 1\n[[symmetry]]\noffset = 1\ngroup = 16\n")
    code, out, err = run(*SMALL, "--chunk-size", "1MB", "--check", path)
    assert code == 1
    assert "the nearest symmetry that holds is offset 8 in groups of 16" in out
    assert "cannot be used as it is" in err


WITHOUT = ("synthesize", "dgx-a100", "--nodes", "2", "--collective", "allgather", "--time-limit", "2")
#: The optimum has two chunks of 500 B, which travel around the ring in opposite directions.
BOTH_WAYS = ("synthesize", "ring:4", "--collective", "broadcast", "--size", "1KB", "--time-limit", "3600")


def test_synthesize_cuts_the_data_as_suggested(run_json):
    """With a size alone the suggestion chooses the number of chunks, and the result says so."""
    code, values = run_json(*BOTH_WAYS)
    assert (code, values["num_chunks"]) == (0, 2)
    assert any("--chunks-per-rank" in note for note in values["notes"])


def test_synthesize_keeps_chunks_that_were_given(run_json):
    """With --chunks-per-rank the given number of chunks is kept."""
    code, values = run_json(*BOTH_WAYS, "--chunks-per-rank", "1")
    assert (code, values["num_chunks"]) == (0, 1)


def test_synthesize_without_suggestions(run_json):
    """With --no-sketch the output does not mention sketches."""
    code, values = run_json(*WITHOUT, "--size", "16MB", "--no-sketch")
    assert code == 0
    assert not any("sketch" in note for note in values["notes"])

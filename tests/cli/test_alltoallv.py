"""``--collective alltoallv --matrix FILE|SKEW``: exchanges with a given number of bytes per pair of ranks."""

from __future__ import annotations

import json

import pytest

import taccl

WORDS = ["--topology", "ring:3", "--collective", "alltoallv"]


@pytest.fixture
def matrix(tmp_path):
    """Path of a matrix with 1 MB from rank 0 to rank 1, and 10 bytes back."""
    path = tmp_path / "sizes.csv"
    path.write_text("0,1MB,0\n10,0,0\n0,0,0\n")
    return path


@pytest.mark.parametrize(
    ("words", "bound_us"),
    [
        # 1 MB has two paths to rank 1 at 20 us/MB: one link of 0.5 us, and one behind another such link.
        # (T - 0.5) / 20 + (T - 1) / 20 = 1 gives T = 10.75 us.
        (["FILE"], 10.75),
        # Each rank sends 2 MB, the mean, to each of the two others over a link of its own.
        (["zipf:0", "--size", "4MB"], 40.5),
    ],
)
def test_the_bound_of_a_matrix(run_json, matrix, words, bound_us):
    """The bound of a size matrix counts all paths of a pair; `--size` is the mean that a rank sends of a skew."""
    words = [matrix if word == "FILE" else word for word in words]
    code, found = run_json("bound", *WORDS, "--matrix", *words)
    assert (code, found["prices"]["divisible"]["bound_us"]) == (0, bound_us)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["FILE"], ["hot:3", "--size", "1MB"]], ids=["file", "skew"])
def test_a_comparison_of_a_matrix(run_json, matrix, words):
    """``taccl compare`` accepts a matrix."""
    words = [matrix if word == "FILE" else word for word in words]
    common = ["--backends", "greedy", "--time-limit", "0.3", "--no-cache"]
    code, found = run_json("compare", *WORDS, "--matrix", *words, *common)
    assert code == 0
    assert [row["collective"] for row in found["rows"]] == ["alltoallv"]
    assert found["rows"][0]["verified"]


@pytest.mark.slow
def test_a_plan_of_a_matrix(run, matrix):
    """``taccl plan`` scales all pairs to a size, in chunks of equal size, as programs need; a note says
    so.
    """
    words = ["--matrix", matrix, "--sizes", "1MB,2MB", "--time-limit", "4", "--runtime", "msccl", "--json"]
    code, out, err = run("plan", *WORDS, *words)
    assert code == 0
    assert "64 at the busiest rank for 1MB; pairs are rounded up to whole chunks" in err
    found = json.loads(out)
    assert found["ranges"][-1]["max_bytes"] == 2 * 10**6


@pytest.mark.slow
def test_a_schedule_of_a_matrix(run_json, matrix, tmp_path):
    """The schedule of a size matrix has chunks of at most 100 KB for each pair, and verifies."""
    path = tmp_path / "schedule.json"
    words = ["--matrix", matrix, "--chunk-size", "100KB", "--time-limit", "2", "-o", path]
    assert run_json("synthesize", *WORDS, *words)[0] == 0
    sizes = taccl.load(path).problem.chunk_bytes
    assert sorted(sizes) == [10, *[100_000] * 10]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (WORDS, "--matrix: found none; alltoallv takes its sizes from a CSV or .npy file, or a skew such as"),
        ([*WORDS, "--matrix", "zipf:x"], "skew: found 'zipf:x'; expected zipf:S"),
        (
            [*WORDS[:-1], "allgather", "--matrix", "FILE"],
            "--matrix: allgather takes none, only alltoallv does",
        ),
        ([*WORDS, "--matrix", "FILE", "--size", "1MB"], "--size: alltoallv takes none; leave it out"),
        (
            ["--topology", "ring:4", *WORDS[2:], "--matrix", "FILE"],
            "found a matrix of 3 ranks; expected one of 4",
        ),
    ],
    ids=["no matrix", "no skew", "another collective", "a size", "another number of ranks"],
)
def test_what_does_not_fit_is_refused(run, matrix, words, said):
    """A matrix that does not fit is refused in one sentence that names the option."""
    code, _, err = run("bound", *(matrix if word == "FILE" else word for word in words))
    assert code != 0
    assert said in err

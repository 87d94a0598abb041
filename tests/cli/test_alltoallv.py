"""``--collective alltoallv --matrix FILE``: exchanges whose sizes a file holds."""

from __future__ import annotations

import pytest

WORDS = ["--topology", "ring:3", "--collective", "alltoallv"]


@pytest.fixture
def matrix(tmp_path):
    """A file with 1 MB from rank 0 to rank 1, and 10 bytes back."""
    path = tmp_path / "sizes.csv"
    path.write_text("0,1MB,0\n10,0,0\n0,0,0\n")
    return path


@pytest.mark.parametrize("verb", ["bound", "synthesize"])
def test_verbs_take_a_matrix(run_json, matrix, verb):
    """Two ways lead from rank 0 to rank 1: one link alone would take 20.5 us."""
    code, found = run_json(verb, *WORDS, "--matrix", matrix)
    assert code == 0
    assert 10.5 <= found["bound_us"] <= found.get("finish_us", 20) < 20.5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (WORDS, "--matrix: found none; alltoallv takes its sizes from a CSV or .npy file"),
        (
            [*WORDS[:-1], "allgather", "--matrix", "FILE"],
            "--matrix: found one of allgather; only alltoallv has one",
        ),
        ([*WORDS, "--matrix", "FILE", "--size", "1MB"], "--size: alltoallv takes none; leave it out"),
        (["--topology", "ring:4", *WORDS[2:], "--matrix", "FILE"], "sizes: found a matrix of shape (3, 3)"),
    ],
    ids=["no matrix", "another collective", "a size", "another number of ranks"],
)
def test_what_does_not_fit_is_refused(run, matrix, words, said):
    """One sentence names the option."""
    code, _, err = run("bound", *(matrix if word == "FILE" else word for word in words))
    assert code != 0
    assert said in err

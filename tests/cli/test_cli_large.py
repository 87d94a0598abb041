"""``taccl synthesize`` at sizes beyond memory: refused before any work, or as a summary, or in files."""

import json

import pytest

import taccl
from taccl.errors import CollectiveError

GREEDY = ("--chunk-size", "1MB", "--backend", "greedy")


@pytest.mark.parametrize("name", ["alltoall", "allgather"])
def test_absurd_numbers_of_chunks(name):
    """10**12 chunks are refused before any is created."""
    with pytest.raises(CollectiveError, match="expected at most 5000000"):
        taccl.collectives.make(name, 4, chunks_per_rank=10**12)


@pytest.mark.slow
def test_summary(run):
    """With ``--summary`` the output has a schedule's figures, without its transfers."""
    words = [
        "synthesize",
        "--topology",
        "mesh:17x17",
        "--collective",
        "allgather",
        *GREEDY,
        "--summary",
        "--json",
    ]
    code, out, _ = run(*words)
    values = json.loads(out)
    assert (code, values["verified"], values["num_transfers"]) == (0, True, 289 * 288)
    assert "compiled list scheduler" in values["choice"]


@pytest.mark.slow
def test_spill(run, tmp_path):
    """With ``--spill`` the schedule's columns are in the folder, and a second run does not overwrite them."""
    words = ["synthesize", "--topology", "mesh:17x17", "--collective", "allgather", *GREEDY]
    words += ["--spill", tmp_path / "columns"]
    assert run(*words)[0] == 0
    assert taccl.load_spilled(tmp_path / "columns").num_transfers == 289 * 288
    code, _, err = run(*words)
    assert code == 2 and "the folder is not empty" in err

"""``taccl synthesize`` at sizes beyond memory: refused before any work, or as a summary, or in files."""

import pytest

import taccl
from taccl.errors import CollectiveError

GREEDY = ("--chunk-size", "1MB", "--backend", "greedy")


@pytest.mark.parametrize("name", ["alltoall", "allgather"])
def test_absurd_numbers_of_chunks(name):
    """10**12 chunks are refused before any is created."""
    with pytest.raises(CollectiveError, match="expected at most 5000000"):
        taccl.collectives.make(name, 4, chunks_per_rank=10**12)


@pytest.fixture
def words(tmp_path):
    """Words of a search on a mesh, which parameters leave to the compiled list scheduler, as on a large one."""
    path = tmp_path / "parameters.toml"
    path.write_text("[choice]\nmost_hops = 0\nfew_hops = 0\n")
    return [
        "synthesize",
        "--topology",
        "mesh:5x5",
        "--collective",
        "allgather",
        *GREEDY,
        "--parameters",
        path,
    ]


@pytest.mark.slow
def test_summary(run_json, words):
    """With ``--summary`` the output has a schedule's figures, without its transfers."""
    code, values = run_json(*words, "--summary")
    assert (code, values["verified"], values["num_transfers"]) == (0, True, 25 * 24)
    assert "compiled list scheduler" in values["choice"]


@pytest.mark.slow
def test_spill(run, words, tmp_path):
    """With ``--spill`` the schedule's columns are in the folder, and a second run does not overwrite them."""
    words += ["--spill", tmp_path / "columns"]
    assert run(*words)[0] == 0
    assert taccl.load_spilled(tmp_path / "columns").num_transfers == 25 * 24
    code, _, err = run(*words)
    assert code == 2 and "the folder is not empty" in err

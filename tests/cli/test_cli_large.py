"""``taccl synthesize`` at sizes beyond memory: refused before any work, or as a summary, or in files."""

import pytest

import taccl
from taccl.cli.verbs import synthesize
from taccl.errors import CollectiveError, NoSolutionError

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


@pytest.mark.slow
def test_a_schedule_that_takes_too_long_to_list_is_implicit(run, tmp_path, monkeypatch):
    """A torus of 576 ranks gets an implicit schedule within 1 s, but not if its transfers are to be written.

    Without a time limit, or with a longer one, its transfers are listed.
    """
    words = ["synthesize", "torus:24x24", "--collective", "allgather", "--size", "1MB"]
    code, out, _ = run(*words, "--time-limit", "1")
    assert code == 0 and "implicit: 575 rows that 576 translations repeat; verified" in out

    def listed(*_, **__):
        raise NoSolutionError("all transfers are to be listed", bound_us=None)

    monkeypatch.setattr(synthesize, "problem_from_options", listed)
    for others in ((), ("--time-limit", "10"), ("--time-limit", "1", "-o", tmp_path / "schedule.json")):
        code, _, err = run(*words, *others)
        assert code == 1 and "all transfers are to be listed" in err

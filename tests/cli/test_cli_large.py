"""``taccl synthesize`` at sizes that fit nowhere, or only in a summary or in files: said before any work."""

import json

import pytest

import taccl
from taccl.errors import CollectiveError

GREEDY = ("--chunk-size", "1MB", "--backend", "greedy")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fabric", "collective", "word"),
    [
        ("mesh:1000001x1000001", "allgather", "links; expected at most"),
        ("ring:1000000000000", "allgather", "found '1000000000000'"),
        ("mesh:301x301", "allgather", "8.2e+09 transfers at least, which need 82.1GB"),
        ("mesh:151x151", "alltoall", "519885601 in all"),
        ("fully-connected:100000", "broadcast", "links; expected at most"),
    ],
)
def test_absurd_sizes(run, fabric, collective, word):
    """One sentence with the figures, exit code 2, before any work, which would not end."""
    words = ["synthesize", "--topology", fabric, "--collective", collective, *GREEDY]
    code, out, err = run(*words, "--memory-limit", "20GB")
    assert (code, out) == (2, "")
    assert word in err
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("synthesize", "ring:1000000", "broadcast"), "found 2000000 links; expected at most 1000000"),
        (("explain", "ring:3000", "alltoall"), "9000000 in all; expected at most 5000000"),
        (("baseline", "pairwise", "ring:3000", "allgather"), "takes 8997000 transfers or more"),
        # 500 * 500 chunks go 125 links on the average.
        (("baseline", "pairwise", "ring:500", "alltoall"), "takes 31250000 transfers or more"),
        (("compare", "ring:4", "allgather", "--seeds", "0:100000000"), "found more than 1000000 in range(0"),
        (("compare", "ring:4", "allgather", "--seeds", "0:100000"), "found 600000 runs or more"),
        (("sweep", "ring:4", "allgather", "--seeds", "0:200000"), "--seeds: found 200000 runs or more"),
    ],
)
def test_absurd_counts(run, words, message):
    """What nobody can wait for is refused with the count and the most that goes, before it is begun."""
    at = next(i for i, word in enumerate(words) if ":" in word)
    verb, fabric, collective, options = words[:at], words[at], words[at + 1], words[at + 2 :]
    topology = (fabric,) if verb == ("sweep",) else ("--topology", fabric)
    sizes = ("--sizes", "1MB") if verb == ("sweep",) else ("--size", "1MB")
    code, out, err = run(*verb, *topology, "--collective", collective, *sizes, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize("name", ["alltoall", "allgather"])
def test_absurd_numbers_of_chunks(name):
    """10**12 chunks are refused before any is made."""
    with pytest.raises(CollectiveError, match="expected at most 5000000"):
        taccl.collectives.make(name, 4, chunks_per_rank=10**12)


def test_memory_limit_is_an_option(run):
    """The error names the option, as a person gave it."""
    code, _, err = run("synthesize", "--topology", "mesh:25x25", "--collective", "allgather", *GREEDY,
                       "--memory-limit", "10MB")  # fmt: skip
    assert code == 2
    assert err.startswith("taccl: error: --memory-limit: allgather on mesh:25x25 would take")


@pytest.mark.slow
def test_summary(run):
    """The figures, without transfers."""
    words = [
        "synthesize",
        "--topology",
        "mesh:25x25",
        "--collective",
        "allgather",
        *GREEDY,
        "--summary",
        "--json",
    ]
    code, out, _ = run(*words)
    values = json.loads(out)
    assert (code, values["verified"], values["num_transfers"]) == (0, True, 625 * 624)
    assert "compiled list scheduler" in values["choice"]


@pytest.mark.slow
def test_spill(run, tmp_path):
    """The columns are left in the folder; a second run does not write over them."""
    words = ["synthesize", "--topology", "mesh:25x25", "--collective", "allgather", *GREEDY]
    words += ["--spill", tmp_path / "columns"]
    assert run(*words)[0] == 0
    assert taccl.load_spilled(tmp_path / "columns").num_transfers == 625 * 624
    code, _, err = run(*words)
    assert code == 2 and "the folder is not empty" in err


@pytest.mark.parametrize("option", [["--summary"], ["--spill", "columns"]])
def test_nothing_to_write(run, tmp_path, option):
    """A file was asked for as well."""
    code, _, err = run("synthesize", "--topology", "mesh:25x25", "--collective", "allgather", *GREEDY, *option,
                       "-o", tmp_path / "x.json")  # fmt: skip
    assert code == 2 and "--output" in err

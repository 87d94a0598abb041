"""Matching and suggestion of names as users type them."""

import re
import tomllib
from pathlib import Path

import pytest

from taccl._internal.names import (
    did_you_mean,
    in_runs,
    install_extra,
    matching,
    notes_by_text,
    shown,
    shown_lines,
)

KNOWN = ("allgather", "reduce-scatter", "broadcast")


def test_notes_that_differ_in_numbers_share_a_line():
    """A line has the extremes of each number; numbers within names and sizes tell notes apart."""
    named = [
        ("1KB to 4KB", "sends are split (2 into 30), as MSCCL++ has no LL128"),
        ("4KB to 1MB", "sends are split (12 into 20), as MSCCL++ has no LL128"),
        ("1MB to 1GB", "sends are split (4 into 30), as MSCCL++ has no LL"),
        ("1GB to 2GB", "sends are split (2 into 25.5), as MSCCL++ has no LL128"),
        ("2GB to 4GB", "sends are split (2 into 25.5), as MSCCL++ has no LL128"),
    ]
    assert notes_by_text(named) == [
        "1KB to 4KB, 4KB to 1MB, 1GB to 2GB and 1 more: "
        "sends are split (2 to 12 into 20 to 30), as MSCCL++ has no LL128",
        "1MB to 1GB: sends are split (4 into 30), as MSCCL++ has no LL",
    ]


@pytest.mark.parametrize("word", ["reduce-scatter", "Reduce_Scatter", "REDUCESCATTER", " reduce scatter"])
def test_spelling_does_not_matter(word):
    """Case, dashes, underscores and blanks in names are ignored."""
    assert matching(word, KNOWN) == "reduce-scatter"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(matching("allgathr", KNOWN), None, id="a typing error is not taken for what it is near"),
        pytest.param(
            did_you_mean("reduce-scater", KNOWN), "; did you mean 'reduce-scatter'?", id="the nearest name"
        ),
        pytest.param(did_you_mean("zzz", KNOWN), "", id="nothing near, nothing said"),
        pytest.param(
            shown("a\x1b[1m\n\u202eb \ud800 \u00e9\u4e2d"),
            "a\\x1b[1m\\n\\u202eb \\ud800 \u00e9\u4e2d",
            id="controls and marks of direction become escapes; letters of any script stay",
        ),
        pytest.param(shown("ab" + "x" * 100 + "yz", 9), "abx...xyz", id="both ends of a long text stay"),
        pytest.param(shown_lines("a\tb\nc"), "a\\tb\nc", id="line breaks of a text of several lines stay"),
        pytest.param(
            in_runs([7, 1, 0, 2, 4]), "0-2, 4, 7", id="numbers in a row by their ends, in any order"
        ),
        pytest.param(in_runs(()), "none", id="no numbers"),
    ],
)
def test_names_as_text(found, expected):
    """Functions that match, suggest and display names return the expected values."""
    assert found == expected


@pytest.mark.parametrize(
    ("word", "name"),
    [("h100", "dgx-h100"), ("nvl72", "gb200-nvl72"), ("H-200", "h200"), ("p5", "p5.48xlarge")],
)
def test_a_name_that_holds_the_word_is_offered_first(word, name):
    """A name that contains the word is suggested first: ``h100`` gives ``dgx-h100``, not ``h200``."""
    known = ("h200", "dgx-h100", "gb200-nvl72", "p5.48xlarge", "p5en.48xlarge")
    assert did_you_mean(word, known) == f"; did you mean {name!r}?"


def test_the_first_of_names_that_are_about_equally_near_is_offered():
    """Of names that are similar to about the same degree, the first known one is suggested."""
    known = ("ndv2/sk1", "ndv2/sk1-n1", "ndv2/sk2")
    assert did_you_mean("ndv2/sk11", known) == did_you_mean("ndv2/sk9", known) == "; did you mean 'ndv2/sk1'?"


def test_extras_are_installed_from_the_source():
    """Pages and code name extras as in ``'.[mpi]'``, never of a published package, and each extra exists."""
    root = Path(__file__).parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in (root / "README.md", *root.glob("docs/*.md"), *root.glob("taccl/**/*.py"))
    }
    assert [path for path, text in texts.items() if "'taccl[" in text] == []
    code = r"install_extra\([\"'](\w+)"
    named = {name for text in texts.values() for name in re.findall(code, text)}
    named |= {
        name
        for text in texts.values()
        for group in re.findall(r"'\.\[([\w,]+)\]'", text)
        for name in group.split(",")
    }
    assert {"mpi", "parquet", "torch"} <= named <= {*extras}
    assert install_extra("mpi") == "pip install '.[mpi]' in the folder of taccl's source"

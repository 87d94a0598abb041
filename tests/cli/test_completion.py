"""Tab completion: the candidates that a shell gets for a partial command line."""

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("taccl syn", "synthesize"),
        ("taccl synthesize ndv2/sk", "ndv2/sk1"),
        ("taccl synthesize --coll", "--collective"),
        ("taccl synthesize --collective allg", "allgather"),
        ("taccl bound --topology tor", "torus:"),
    ],
)
def test_a_line_is_completed(tmp_path, line, word):
    """Verbs, options, and names of sketches, collectives, backends and topologies are completed."""
    assert word in completions(line, tmp_path)


@pytest.mark.slow
def test_options_of_one_kind_offer_no_other(tmp_path):
    """After --backend only backends are candidates, neither sketches nor files."""
    (tmp_path / "file").touch()
    offered = completions("taccl synthesize --backend ", tmp_path)
    assert {"auto", "highs"} <= {*offered} and not {"ndv2/sk1", "torus:", "allgather", "file"} & {*offered}


def completions(line, folder):
    """Candidates for a partial command line in a folder."""
    answer = folder / "answer"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    command = [sys.executable, "-m", "taccl"]
    subprocess.run(command, env=os.environ | asked, timeout=60, check=True, cwd=folder)
    return answer.read_text().split("\n")

"""Without the real files of other tools, tests that read them are skipped locally and fail in CI."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

READER = Path(__file__).parent / "formats" / "astra" / "test_astra_network.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ci", "code", "summary"),
    [
        (
            {},
            0,
            r"no real files of other tools at .*: 4 tests of them are left out(.|\n)*\b1 skipped, \d+ deselected",
        ),
        ({"CI": "true"}, 1, r" 4 errors"),
    ],
    ids=["at home", "in CI"],
)
def test_without_real_files(ci, code, summary, tmp_path):
    """Without real files the four tests of ASTRA-sim's files are one skip locally, and four errors in CI."""
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", READER, "-k", "real"],
        env=environment | ci | {"TACCL_TEST_DATA": str(tmp_path / "none")}, capture_output=True, text=True,
        cwd=READER.parents[3],
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    assert re.search(summary, done.stdout), done.stdout

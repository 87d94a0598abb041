"""Files of other tools: ours, which every clone has, and real ones where they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_PROJECT = Path(__file__).resolve().parents[1]

#: Written by hand for these tests, in the folders that the real files have, too.
OURS = _PROJECT / "tests" / "data" / "foreign"
#: What the tools themselves, and cloud providers, wrote.
REAL = Path(os.environ.get("TACCL_TEST_DATA") or _PROJECT.parent / "shared" / "data")


def foreign_files(pattern: str) -> list:
    """Parameters of a test over all files that match: ours, and the real ones where they are."""
    return [
        pytest.param(path, id=f"{kind}-{path.name}")
        for kind, folder in (("ours", OURS), ("real", REAL))
        for path in sorted(folder.glob(pattern))
    ]

"""Files of other tools: our own, in every clone, and real ones where available."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_PROJECT = Path(__file__).resolve().parents[1]

#: Hand-written files for these tests, in the same folders as the real ones.
OURS = _PROJECT / "tests" / "data" / "foreign"
#: Files written by the tools themselves and by cloud providers.
REAL = Path(os.environ.get("TACCL_TEST_DATA") or _PROJECT.parent / "shared" / "data")


def foreign_files(pattern: str) -> list:
    """Test parameters for all matching files: ours, and the real ones where available."""
    return [
        pytest.param(path, id=f"{kind}-{path.name}")
        for kind, folder in (("ours", OURS), ("real", REAL))
        for path in sorted(folder.glob(pattern))
    ]

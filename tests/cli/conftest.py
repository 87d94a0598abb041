"""Fixtures that run one command in this process, and input files for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from taccl.cli import main
from tests.cli.words import SKETCH, SMALL
from tests.foreign import OURS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(capsys):
    """Function that runs one command and returns (exit code, stdout, stderr)."""

    def command(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return command


@pytest.fixture
def run_json(run):
    """Function that runs one command with ``--json`` and returns (exit code, JSON object from stdout)."""

    def command(*words: object) -> tuple[int, dict]:
        code, out, _ = run(*words, "--json")
        assert out.count("\n") == 1
        return code, json.loads(out)

    return command


@pytest.fixture
def saved(tmp_path, run) -> Path:
    """Path of a schedule file."""
    path = tmp_path / "schedule.json"
    assert run("baseline", "ring", *SMALL, "-o", path)[0] == 0
    return path


@pytest.fixture
def sketch_file(tmp_path) -> Path:
    """Path of a sketch file for two NDv2 nodes."""
    path = tmp_path / "sketch.toml"
    path.write_text(SKETCH)
    return path


@pytest.fixture
def upstream() -> Path:
    """Folder of our own files in the published tool's format."""
    return OURS / "upstream-taccl"

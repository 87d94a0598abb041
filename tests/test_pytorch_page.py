"""The page on PyTorch runs in the environment with PyTorch, as it stands."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.pytorch import TORCH, environment, needs_torch

PAGE = Path(__file__).resolve().parents[1] / "docs" / "pytorch.md"


@needs_torch
@pytest.mark.slow
def test_the_way_to_a_comparison_runs(tmp_path):
    """Every command of the way but the installation does, with less time to search, and training ends at the same parameters."""
    text = PAGE.read_text()
    (tmp_path / "train.py").write_text(re.search(r'title="train.py"\n(.*?)```', text, re.DOTALL)[1])
    [commands] = re.findall(r"```shell\n(.*?)```", text, re.DOTALL)
    lines = [line for line in commands.splitlines() if not line.startswith("pip ")]
    assert len(lines) == 4
    brief = re.sub(r"--time-limit \S+", "--time-limit 0.2", "\n".join(lines))
    done = subprocess.run(
        ["bash", "-e", "-c", brief],
        cwd=tmp_path, env={**environment(), "PATH": f"{TORCH}/bin:{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "correct: every output agrees bit for bit with all_reduce" in done.stdout
    assert "largest difference 0\n" in done.stdout
    assert (tmp_path / "stock.log").exists()

"""The page on PyTorch runs unchanged in the environment with PyTorch."""

import os
import re
import subprocess

import pytest

from tests.pytorch import PYTHON, ROOT, TORCH, environment, free_port, needs_torch

PAGE = ROOT / "docs" / "pytorch.md"
#: Stands for ``torchrun --nproc-per-node N SCRIPT``: loading PyTorch in three processes takes 13 s of CPU.
TORCHRUN = """#!/bin/sh
export WORLD_SIZE=$2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}
{python} {root}/tests/forked_ranks.py "$2" "$PWD/$3"
cat rank-0
"""


@needs_torch
@pytest.mark.slow
def test_the_way_to_a_comparison_runs(tmp_path):
    """Every command of the comparison except installation runs, and training ends at the same parameters."""
    text = PAGE.read_text()
    (tmp_path / "train.py").write_text(re.search(r'title="train.py"\n(.*?)```', text, re.DOTALL)[1])
    [commands] = re.findall(r"```shell\n(.*?)```", text, re.DOTALL)
    lines = [line for line in commands.splitlines() if not line.startswith("pip ")]
    assert len(lines) == 4
    brief = re.sub(r"--time-limit \S+", "--time-limit 0.2", "\n".join(lines))
    torchrun = tmp_path / "bin" / "torchrun"
    torchrun.parent.mkdir()
    torchrun.write_text(TORCHRUN.format(port=free_port(), python=PYTHON, root=ROOT))
    torchrun.chmod(0o755)
    path = f"{torchrun.parent}:{TORCH}/bin:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", brief],
        cwd=tmp_path, env={**environment(), "PATH": path},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "correct: every output agrees bit for bit with all_reduce" in done.stdout
    assert "largest difference 0\n" in done.stdout
    assert (tmp_path / "stock.log").exists()

"""GPU scripts, as far as they run without a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

from taccl.runtimes.table import RUNTIMES
from tests.pytorch import needs_torch, started

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "benchmarks" / "gpu"


@needs_torch
@pytest.mark.slow
def test_training_runs_on_two_cpus():
    """Two ranks end with the same parameters and a smaller loss, by gloo."""
    found = started(2, "benchmarks/gpu/train.py")
    assert all("parameters as rank 0: True" in each.said for each in found)


@pytest.mark.slow
def test_the_smoke_test_loads_without_a_gpu():
    """The smoke test shows its options without MSCCL++ or a GPU; the page says that it was not run."""
    words = [sys.executable, SCRIPTS / "smoke.py", "--help"]
    found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert "has not been run" in " ".join(found.stdout.split())
    assert "**It has not been run**" in (ROOT / "docs" / "runtimes.md").read_text(encoding="utf-8")


def test_the_page_has_the_limits_of_runtimes():
    """The page's table has the steps, threadblocks and channels that files are checked against."""
    page = (ROOT / "docs" / "runtimes.md").read_text(encoding="utf-8")
    names = ("msccl", "msccl-executor", "rccl")
    for head, field in (
        ("steps or operations of a threadblock", "max_steps"),
        ("threadblocks of a rank", "max_threadblocks"),
        ("channels", "max_channels"),
    ):
        cells = " | ".join(str(getattr(RUNTIMES[name], field)) for name in names)
        assert f"| {head} | {cells} |" in page

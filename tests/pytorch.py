"""PyTorch for tests: an environment of its own, which ``TACCL_TORCH`` names."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: The environment that `pip install -e '.[torch]'` makes; PyTorch takes 5 GB, so tests do without where it is not.
TORCH = os.environ.get("TACCL_TORCH", "")
PYTHON = f"{TORCH}/bin/python"
needs_torch = pytest.mark.skipif(not TORCH, reason="TACCL_TORCH names no environment with PyTorch and taccl")


class Rank(NamedTuple):
    """Exit code and output of a rank."""

    returncode: int
    said: str


def environment() -> dict[str, str]:
    """Environment of a process that finds this checkout; one thread, as ranks share few cores."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def started(num_ranks: int, script: str, *words: object, check: bool = True) -> list[Rank]:
    """Ranks of PyTorch that ran a script of this folder to its end."""
    address = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    running = [
        subprocess.Popen(
            [PYTHON, str(ROOT / script), *map(str, words)],
            env={**environment(), **address, "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(num_ranks)
    ]  # fmt: skip
    done = []
    try:
        for each in running:
            said, _ = each.communicate(timeout=300)
            done.append(Rank(each.returncode, said))
    finally:
        for each in running:
            each.kill()
    assert not check or not any(each.returncode for each in done), "\n".join(each.said for each in done)
    return done

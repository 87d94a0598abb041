"""PyTorch for tests, in a separate environment named by ``TACCL_TORCH``."""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from select import select
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
#: Environment made by `pip install -e '.[torch]'`; PyTorch takes 5 GB, so its tests are skipped without it.
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


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that is filled by the first of a run's workers that asks for it; the others wait and read it.

    Tests of one module go to several workers, each of which would start ranks of its own.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = factory.mktemp(name)
        make(folder)
        return folder
    folder = factory.getbasetemp().parent / f"{name}-of-all-workers"
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made := Path(f"{folder}.made")).exists():
            shutil.rmtree(folder, ignore_errors=True)  # what is left of a failure
            folder.mkdir()
            make(folder)
            made.touch()
    return folder


def free_port() -> int:
    """A free port that no outgoing connection gets meanwhile: Linux takes theirs from 32768 to 60999."""
    while True:
        with socket.socket() as held, suppress(OSError):
            held.bind(("127.0.0.1", port := random.SystemRandom().randrange(10000, 32768)))
            return port


@cache
def _starter() -> tuple[subprocess.Popen[str], IO[str]]:
    """(process that forks all ranks of this run, as loading PyTorch takes 2 s; file with its stderr)."""
    said = TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
    running = subprocess.Popen(
        [PYTHON, str(ROOT / "tests" / "forked_ranks.py")], env=environment(), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True,
    )  # fmt: skip
    atexit.register(_end, running)
    return running, said


def _end(starter: subprocess.Popen[str]) -> None:
    """Kill the process and the ranks that it has forked."""
    with suppress(ProcessLookupError):
        os.killpg(starter.pid, signal.SIGKILL)
    starter.communicate()


def started(num_ranks: int, script: str, *words: object, check: bool = True) -> list[Rank]:
    """Ranks of PyTorch that ran a script of this checkout to its end, as forks of one process."""
    address = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    starter, said = _starter()
    with TemporaryDirectory() as folder:
        job = {
            "num_ranks": num_ranks, "script": str(ROOT / script), "words": [*map(str, words)],
            "folder": folder, "environment": {**environment(), **address},
        }  # fmt: skip
        codes, fault = None, "ended"
        with suppress(OSError, ValueError):  # raised if it has ended
            starter.stdin.write(json.dumps(job) + "\n")
            starter.stdin.flush()
            if select([starter.stdout], [], [], 300)[0]:
                codes = json.loads(starter.stdout.readline())
            else:
                fault = "was killed after 300 s"
        if codes is None:
            _starter.cache_clear()
            _end(starter)
            said.seek(0)
            outputs = {each.name: each.read_text() for each in sorted(Path(folder).glob("rank-*"))}
            pytest.fail(f"starter of ranks {fault}: {said.read()}, code {starter.returncode}; {outputs}")
        done = [Rank(code, Path(folder, f"rank-{rank}").read_text()) for rank, code in enumerate(codes)]
    assert not check or not any(each.returncode for each in done), "\n".join(each.said for each in done)
    return done

"""Fixtures for real MPI ranks, and detection of processes and memory that they leave."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fuzzing import MANY
from tests.runtime.rank_session import RankSession

#: Ranks of a session: as many as the largest of its jobs has.
NUM_RANKS = 32 if MANY else 6


class Marked:
    """Processes with a mark in their environment, which their child processes inherit."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self._segments = self._shared()

    def left_in_memory(self) -> set[Path]:
        """Shared-memory files created since the start that no process uses any more.

        Those that are gone within half a second are of ranks of other tests, which have ended meanwhile.
        """
        until, left = time.monotonic() + 0.5, self._unused()
        while left and time.monotonic() < until:
            time.sleep(0.05)
            left &= self._unused()
        return left

    def _unused(self) -> set[Path]:
        return {path for path in self._shared() - self._segments if not _used(path)}

    def start(self, *words: object, command: tuple[object, ...] = (), **options: object) -> subprocess.Popen:
        """Start one ``taccl`` command, as arguments of another command (such as ``mpiexec``) if one is given."""
        everything = [*command, sys.executable, "-m", "taccl", *words]
        return subprocess.Popen(
            [str(word) for word in everything],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TACCL_TEST_MARK": self.mark},
            **options,
        )

    def wait_until_shared(self, process: subprocess.Popen, seconds: float = 30) -> None:
        """Wait until ranks share memory, which shows that MPI is initialized."""
        until = time.monotonic() + seconds
        while not self._shared() - self._segments:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until, "they share nothing"
            time.sleep(0.05)

    def _shared(self) -> set[Path]:
        return set(Path("/dev/shm").glob("mpich_shm_*"))

    def alive(self) -> list[int]:
        """Marked processes that still run."""
        mark = f"TACCL_TEST_MARK={self.mark}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in entry.read_bytes().split(b"\0"):
                    found.append(int(entry.parent.name))
            except OSError:
                continue
        return found

    def alive_after(self, seconds: float) -> list[int]:
        """Marked processes that still run after `seconds`, or none as soon as all have ended."""
        until = time.monotonic() + seconds
        while (left := self.alive()) and time.monotonic() < until:
            time.sleep(0.05)
        return left

    def wait_for(self, count: int, process: subprocess.Popen, seconds: float = 30) -> list[int]:
        """Wait until `count` marked processes run, and return them."""
        until = time.monotonic() + seconds
        while len(found := self.alive()) < count:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until, f"only {len(found)} processes"
            time.sleep(0.05)
        return found


def _used(path: Path) -> bool:
    """True if any process has mapped the file."""
    for entry in Path("/proc").glob("[0-9]*/maps"):
        try:
            if str(path) in entry.read_text(errors="replace"):
                return True
        except OSError:
            continue
    return False


@pytest.fixture
def marked(mpiexec, tmp_path, monkeypatch) -> Marked:
    """Start commands and find what they leave; their temporary files are in ``tmp_path / 'temporary'``."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("this system has no /proc, in which the test looks for processes")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    return Marked(f"{os.getpid()}-{time.monotonic_ns()}")


@pytest.fixture(scope="session")
def rank_session(mpiexec, tmp_path_factory):
    """A session of ranks, shared by all tests."""
    session = RankSession(mpiexec, tmp_path_factory.mktemp("ranks"), NUM_RANKS)
    yield session
    session.close()


@pytest.fixture
def ranks(rank_session):
    """Let the ranks of a session execute programs and steps, in place of new ranks for each."""
    with rank_session.serving():
        yield

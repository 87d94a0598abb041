"""Ends ranks together with their parent, including their shared memory.

The guard is a process that reads a pipe from whoever starts the ranks. The pipe's end, which comes however
the starter ends, is the end of all processes that have a mark in their environment. No thread of theirs could
see to that: while MPI starts, a rank that waits for one that is gone runs nothing else.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

#: The variable whose value, a folder, marks what the guard ends.
MARK = "TACCL_GUARDED"
#: Seconds without a new process, after the parent's death, before the guard ends; and the polling interval.
_QUIET_S, _POLL_S = 2.0, 0.02
#: Files that MPICH shares memory by, and leaves behind where its processes are ended.
_SEGMENT = re.compile(r"/dev/shm/mpich_shm_\w+")


@contextlib.contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """End what is marked with a folder, and remove that, at the end or when this process dies before."""
    nothing = subprocess.DEVNULL
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(folder), *_segments()],
        env={}, cwd="/", stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, start_new_session=True,
    )  # fmt: skip
    try:
        yield
    finally:
        guard.communicate(b"nobody died")


def _guard(folder: Path, others: set[str]) -> None:
    """Wait for the pipe's end, and leave nothing: segments of others were there before."""
    quiet_s = 0.0 if sys.stdin.buffer.read() else _QUIET_S
    until = time.monotonic() + quiet_s
    while (left := marked(folder)) or time.monotonic() < until:
        if left:
            until = time.monotonic() + quiet_s
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    shutil.rmtree(folder, ignore_errors=True)
    # What another job has just made is for a moment in nobody's memory, so that it takes two looks.
    if unused := _unused() - others:
        time.sleep(_POLL_S)
        remove_segments(unused & _unused())


def marked(folder: Path) -> set[int]:
    """The processes that have a folder as their mark; none where the system does not tell."""
    found, mark = set(), os.fsencode(f"{MARK}={folder}")
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in entry.read_bytes().split(b"\0"):
                found.add(int(entry.parent.name))
    return found


def segments_of(pid: int) -> set[str]:
    """The files that a process shares memory by with other ranks."""
    with contextlib.suppress(OSError):
        return set(_SEGMENT.findall(Path(f"/proc/{pid}/maps").read_text(errors="replace")))
    return set()


def remove_segments(paths: Iterable[str]) -> None:
    """Remove such files, as far as they are still there."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _segments() -> set[str]:
    """All such files of this user."""
    found = set()
    for path in Path("/dev/shm").glob("mpich_shm_*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid():
                found.add(str(path))
    return found


def _unused() -> set[str]:
    """Those that no process has open."""
    found = _segments()
    for entry in Path("/proc").glob("[0-9]*") if found else ():
        found -= segments_of(int(entry.name))
    return found


if __name__ == "__main__":
    _guard(Path(sys.argv[1]), set(sys.argv[2:]))

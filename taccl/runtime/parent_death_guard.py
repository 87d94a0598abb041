"""Guard process that kills ranks and removes their shared memory once their parent has ended.

The guard reads a pipe from the process that starts the ranks. The pipe closes however that process ends. Then
the guard kills all processes with a mark in their environment. A thread of the ranks could not do so: while
MPI starts, a rank that waits for a dead one runs no other code.
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

#: Environment variable that marks the processes to kill; its value is the folder of the job.
MARK = "TACCL_GUARDED"
#: `_QUIET_S`: seconds without a new process, after the parent's death, before the guard ends.
#: `_POLL_S`: seconds between polls.
_QUIET_S, _POLL_S = 2.0, 0.02
#: Pattern of the files of MPICH's shared memory, which remain if its processes are killed.
_SEGMENT = re.compile(r"/dev/shm/mpich_shm_\w+")


@contextlib.contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Context that ends with marked processes killed and `folder` removed, even if this process dies."""
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
    """Wait for the pipe to close; then kill marked processes, and remove the folder and unused segments.

    - `others`: Segments of shared memory that existed before the job, and are kept.
    """
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
    # A segment that another job has just made is briefly mapped by no process, so check twice.
    if unused := _unused() - others:
        time.sleep(_POLL_S)
        remove_segments(unused & _unused())


def marked(folder: Path) -> set[int]:
    """Ids of the processes whose environment has the mark of a job's folder; empty without /proc."""
    found, mark = set(), os.fsencode(f"{MARK}={folder}")
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in entry.read_bytes().split(b"\0"):
                found.add(int(entry.parent.name))
    return found


def segments_of(pid: int) -> set[str]:
    """Segments of shared memory (files) that a process has mapped."""
    with contextlib.suppress(OSError):
        return set(_SEGMENT.findall(Path(f"/proc/{pid}/maps").read_text(errors="replace")))
    return set()


def remove_segments(paths: Iterable[str]) -> None:
    """Remove segments of shared memory, if they still exist."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _segments() -> set[str]:
    """All segments of shared memory of this user."""
    found = set()
    for path in Path("/dev/shm").glob("mpich_shm_*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid():
                found.add(str(path))
    return found


def _unused() -> set[str]:
    """Segments of this user that no process has mapped."""
    found = _segments()
    for entry in Path("/proc").glob("[0-9]*") if found else ():
        found -= segments_of(int(entry.name))
    return found


if __name__ == "__main__":
    _guard(Path(sys.argv[1]), set(sys.argv[2:]))

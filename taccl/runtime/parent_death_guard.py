"""What ties ranks to whoever started them, so that nothing outlives it: neither processes nor shared memory.

The guard is a process that reads a named pipe. Whoever starts the ranks holds that open for writing; its
end, which comes however the starter ends, is the end of the ranks. No thread of theirs could see to that:
while MPI starts, a rank that waits for one that is gone runs nothing else.
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

_NAME = "guard"
#: The variable that tells the guard of its folder: whatever names that on its command line is ended.
_FOLDER = "TACCL_GUARDED"
#: For so long nothing may be started any more before the guard goes.
_QUIET_S, _POLL_S = 2.0, 0.02
#: Files that MPICH shares memory by, and leaves behind where its processes are ended.
_SEGMENT = re.compile(r"/dev/shm/mpich_shm_\w+")
_SHARED = Path("/dev/shm")


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """While this lasts, see to it that what names a folder ends with this process."""
    path = folder / _NAME
    os.mkfifo(path, 0o600)
    held_open = os.open(path, os.O_RDWR)  # for reading, too: else it would wait for a reader
    nothing = subprocess.DEVNULL
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        env={_FOLDER: str(folder)}, cwd="/", stdin=nothing, stdout=nothing, stderr=nothing,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield
    finally:
        os.write(held_open, b".")  # nobody died
        guard.wait()
        os.close(held_open)


def _guard(folder: Path) -> None:
    """End what names a folder once nobody holds its pipe any more."""
    with contextlib.suppress(OSError):  # it is gone already
        # To open it must not wait for somebody to hold it, as its end may have come already.
        pipe = os.open(folder / _NAME, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(pipe, True)
        if os.read(pipe, 1):
            return
        end_all(folder)
        shutil.rmtree(folder, ignore_errors=True)
        end_all(folder, quiet_s=_QUIET_S)


def end_all(folder: Path, *, quiet_s: float = 0.0) -> None:
    """Kill processes that name a folder, and those that they started, until for a while there are none."""
    until = time.monotonic() + quiet_s
    while (left := _with_descendants(processes_naming(folder))) or time.monotonic() < until:
        if left:
            until = time.monotonic() + quiet_s
        for pid in left:
            remove_segments(segments_of(pid))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _with_descendants(pids: set[int]) -> set[int]:
    """Some processes with all that they started, and these."""
    started: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            _, _, rest = entry.read_text(errors="replace").rpartition(")")
            started.setdefault(int(rest.split()[1]), []).append(int(entry.parent.name))
    found, more = set(pids), list(pids)
    while more:
        new = [pid for pid in started.get(more.pop(), []) if pid not in found]
        found.update(new)
        more += new
    return found


def processes_naming(folder: Path) -> set[int]:
    """The processes whose command names a folder; none where the system does not tell."""
    found = set()
    mark = os.fsencode(str(folder))
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark in entry.read_bytes():
                found.add(int(entry.parent.name))
    return found


def segments_of(pid: int) -> set[str]:
    """The files that a process shares memory by with other ranks."""
    with contextlib.suppress(OSError):
        return set(_SEGMENT.findall(Path(f"/proc/{pid}/maps").read_text(errors="replace")))
    return set()


def segments(*, unused: bool = False) -> set[str]:
    """The files of this user by which any MPICH shares memory; if asked, those that no process has open."""
    found = set()
    for path in _SHARED.glob("mpich_shm_*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid():
                found.add(str(path))
    if found and unused:
        for entry in Path("/proc").glob("[0-9]*"):
            found -= segments_of(int(entry.name))
    return found


def remove_segments(paths: Iterable[str]) -> None:
    """Remove such files, as far as they are still there."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


if __name__ == "__main__":
    _guard(Path(os.environ[_FOLDER]))

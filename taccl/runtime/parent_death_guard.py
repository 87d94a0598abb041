"""What ties ranks to whoever started them, so that nothing outlives it: neither processes nor shared memory.

The guard is a named pipe. Whoever starts the ranks holds it open for writing, and writes nothing; every
rank waits for its end, which comes however the starter ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

_NAME = "guard"
_EXIT_CODE = 1
#: Files that MPICH shares memory by, and leaves behind where its processes are ended.
_SEGMENT = re.compile(r"/dev/shm/mpich_shm_\w+")
_SHARED = Path("/dev/shm")


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the pipe that guards ranks, in a folder."""
    path = folder / _NAME
    os.mkfifo(path, 0o600)
    held_open = os.open(path, os.O_RDWR)  # for reading, too: else it would wait for a reader
    try:
        yield
    finally:
        os.close(held_open)


def end_with(folder: Path) -> None:
    """End this process, from a thread of its own, once the pipe in a folder is let go."""
    threading.Thread(target=_end_with, args=(folder,), name="parent-death guard", daemon=True).start()


def _end_with(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it is gone already
        line = os.open(folder / _NAME, os.O_RDONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            os.read(line, 1)  # of a line that nobody holds this is the end, of which poll would not tell
            raise BrokenPipeError
        poll = select.poll()
        poll.register(line, select.POLLIN)
        poll.poll()
    remove_segments(segments_of(os.getpid()))
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(_EXIT_CODE)


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

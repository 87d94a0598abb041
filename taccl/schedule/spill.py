"""Schedules whose transfers are not in memory: in files, as memory-mapped columns, or summarized.

A folder holds ``chunk.npy``, ``link.npy``, ``start.npy`` and other stored columns, which `numpy.load` also
reads. ``schedule.json`` holds everything else, and is written last. It omits a very large problem; the caller
must then supply it on loading. During a search, columns are in unnamed temporary files, which vanish when the
process ends in any way. A summary has only figures and a digest.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from taccl._internal.arguments import checked
from taccl._internal.reading import parse_json, read_text
from taccl._internal.units import format_size
from taccl.errors import FormatError, InputError
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule, bare_digest

_FORMAT, _VERSION = "taccl-spilled-schedule", 1
#: {column: file name}; the first three files always exist.
_FILES = {
    "chunk": "chunk.npy", "link": "link.npy", "start": "start.npy", "end": "end.npy", "group": "group.npy",
    "reduce": "reduces.npy", "carries": "carries.npy",
}  # fmt: skip
_INDEX = "schedule.json"
#: Max total number of chunk origins and destinations of a problem that is written beside its schedule.
_MOST_PAIRS = 1_000_000
_MAX_INDEX_BYTES = 10**9


def check_folder(folder: str | os.PathLike[str], *, num_bytes: int = 0) -> None:
    """Raise `InputError` if a schedule of `num_bytes` bytes cannot be written to a folder; writes nothing."""
    where, path = os.fspath(folder), Path(folder)
    try:
        path.lstat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"the folder cannot be made ({reason}); give another path", where=where) from None
    if os.path.lexists(path) and not os.path.isdir(path):
        raise InputError("is a file; give a folder, which may be new", where=where)
    there = path if os.path.isdir(path) else path.absolute().parent
    if not os.path.isdir(there):
        raise InputError(f"there is no folder {there}; make it first", where=where)
    if not os.access(there, os.W_OK):
        raise InputError("is not writable; give another folder", where=where)
    if there is path and any(path.iterdir()):
        raise InputError("the folder is not empty; give an empty or a new one", where=where)
    free = shutil.disk_usage(there).free
    if num_bytes > free:
        raise InputError(
            f"found {format_size(free)} free; the schedule needs {format_size(num_bytes)}; give a folder "
            "on another disk",
            where=where,
        )


def room_for(num_rows: int, dtype: DTypeLike, folder: str | os.PathLike[str] | None) -> NDArray[Any]:
    """Uninitialized array, in memory (`folder` None) or in an unnamed file in the folder."""
    if folder is None or num_rows == 0:
        return np.empty(num_rows, dtype)
    num_bytes = num_rows * np.dtype(dtype).itemsize
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # else a full disk kills the process on a later write
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            else:
                file.truncate(num_bytes)
            return np.asarray(np.memmap(file, dtype, "r+", shape=(num_rows,)))
    except OSError as error:
        raise InputError(
            f"{format_size(num_bytes)} cannot be written ({error.strerror}); give another folder",
            where=os.fspath(folder),
        ) from None


def spill(schedule: Schedule, folder: str | os.PathLike[str]) -> Schedule:
    """Write the columns of a schedule to a new or empty folder; return a schedule that maps these files."""
    check_folder(folder, num_bytes=schedule.num_bytes)
    num_pairs = sum(len(c.origins) + len(c.destinations) for c in schedule.problem.collective.chunks)
    kept, path = schedule.kept, Path(folder)
    made = not path.exists()
    path.mkdir(exist_ok=True)
    carries = {} if schedule.carries is None else {"carries": schedule.carries}
    try:
        for name, column in (kept.arrays | carries).items():
            np.save(path / _FILES[name], column, allow_pickle=False)
        index = {
            "format": _FORMAT,
            "version": _VERSION,
            "producer": schedule.producer,
            "num_transfers": schedule.num_transfers,
            "num_reducing": kept.reduce if isinstance(kept.reduce, int) else 0,
            "sums": schedule.sums,
            "finish_us": schedule.finish_us,
            "digest": _digest(schedule),
            "problem_digest": schedule.problem.digest(),
            "problem": schedule.problem.to_dict() if num_pairs <= _MOST_PAIRS else None,
        }
        (path / _INDEX).write_text(json.dumps(index))
    except BaseException as error:
        for name in (*_FILES.values(), _INDEX):
            (path / name).unlink(missing_ok=True)
        if made:
            path.rmdir()
        if isinstance(error, OSError):
            raise InputError(
                f"cannot be written ({error.strerror}); give another folder", where=os.fspath(folder)
            ) from None
        raise
    return _over_files(schedule.problem, path, index)


@checked
def load_spilled(folder: str | os.PathLike[str], problem: Problem | None = None) -> Schedule:
    """Load a schedule that `spill` wrote; its columns remain in their files.

    Parameters
    ----------
    folder : path
        The folder.
    problem : Problem, optional
        The schedule's problem; required if it is too large to be in the folder.

    Raises
    ------
    InputError
        If the folder holds no schedule, or a schedule for another problem; or if neither `problem` nor the
        folder supplies the problem.
    """
    path, where = Path(folder), os.fspath(folder)
    try:
        index = parse_json(read_text(path / _INDEX, _MAX_INDEX_BYTES), source=f"{where}/{_INDEX}")
    except FormatError as error:
        raise FormatError(
            f"found no {_INDEX} that can be read ({error.message}); expected a spilled schedule", where=where
        ) from None
    if (index.get("format"), index.get("version")) != (_FORMAT, _VERSION):
        raise FormatError(f"expected a {_FORMAT} of version {_VERSION}", where=f"{where}/{_INDEX}")
    try:
        if problem is None and index["problem"] is None:
            raise InputError(
                "the folder does not contain its large problem; give it as well", where="problem"
            )
        problem = problem or Problem.from_dict(index["problem"])
        if problem.digest() != index["problem_digest"]:
            raise FormatError(f"it is for another problem, not {problem!r}", where=where)
        schedule = _over_files(problem, path, index)
        stated = (index["num_transfers"], index["digest"])
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"a part is missing or damaged ({error}); synthesize it again", where=where
        ) from None
    if (schedule.num_transfers, _digest(schedule)) != stated:
        raise FormatError("the files were changed after they were written; synthesize it again", where=where)
    return schedule


def _digest(schedule: Schedule) -> str:
    """Hash of a schedule's problem and stored columns."""
    is_bare = schedule.kept.end is None and schedule.carries is None
    return bare_digest(schedule) if is_bare else schedule.digest()


def _over_files(problem: Problem, path: Path, index: dict[str, Any]) -> Schedule:
    columns: dict[str, Any] = {"reduce": int(index["num_reducing"]) or None}
    for place, (name, file) in enumerate(_FILES.items()):
        if place < 3 or (path / file).exists():
            columns[name] = np.load(path / file, mmap_mode="r", allow_pickle=False)
    sums = tuple(map(tuple, index.get("sums", ())))
    return Schedule(problem, producer=index["producer"], sums=sums, **columns)


@dataclass(frozen=True, eq=False, repr=False)
class ScheduleSummary(Schedule):
    """Figures and digest of a schedule; anything that needs its transfers raises `InputError`."""

    num_transfers: int = 0
    num_sends: int = 0
    finish_ticks: int = 0
    num_bytes: int = 0
    content_digest: str = ""

    def __post_init__(self) -> None:
        """Skip the checks of columns, as a summary has none."""

    @property
    def kept(self) -> NoReturn:
        """Raise `InputError`: a summary has no transfers."""
        raise InputError(
            f"only a summary was kept of these {self.num_transfers} transfers; synthesize again without "
            "keep='summary' (--summary), or with spill_dir= (--spill) to keep them in files",
            where="schedule",
        )

    def digest(self) -> str:
        """Digest of the summarized schedule."""
        return self.content_digest


def summarize(schedule: Schedule) -> ScheduleSummary:
    """Summary of a schedule."""
    return ScheduleSummary(
        schedule.problem,
        *(np.zeros(0, np.int32),) * 3,
        producer=schedule.producer,
        num_transfers=schedule.num_transfers,
        num_sends=schedule.num_sends,
        finish_ticks=schedule.finish_ticks,
        content_digest=schedule.digest(),
    )

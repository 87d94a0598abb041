"""Cache of results in the user's cache folder, keyed by a hash of problem, options and versions.

Each result has one file, ``results/v1/KEY.json``. A schedule is stored in taccl's own format, so that
`taccl.load` and every verb can read it; a proof that no schedule exists is stored as a small JSON file. Files
are written whole or not at all, so that many processes may share a folder without a lock.

Entries are not trusted: digests are recomputed, the schedule is verified, and its figures must be those of
its row. An entry that fails these checks counts as a cache miss, with a `CacheWarning`. Bounds and proofs of
infeasibility are trusted: proving them again may take as long as the original run.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from taccl._internal.arguments import checked
from taccl._internal.reading import parse_json, read_text
from taccl._internal.units import format_count, format_size
from taccl.analysis.verification.verify import verify
from taccl.errors import CacheWarning, InputError, TacclError, warn
from taccl.explore.rows import is_of, new_row
from taccl.formats.files import write_whole
from taccl.formats.native import FORMAT, dump_schedule, load_schedule
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.solvers.registry import package_versions
from taccl.synthesis.proposing import registered

_SCHEMA = 1
_FAILURE = "taccl-failure"
_KEY = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[0-9a-f]{64}\.json|\.[0-9a-f]{64}\.json\.[0-9a-f]{16}\.tmp")
_LIMIT_BYTES = 10**9


class Entry(NamedTuple):
    """Cache entry of a run: its table row, and its schedule, or None if the run proved that none exists."""

    row: dict[str, Any]
    schedule: Schedule | None


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Folder of a cache, and number and total size of its results."""

    folder: Path
    num_entries: int
    num_bytes: int

    def __repr__(self) -> str:
        held = f"{format_count(self.num_entries, 'result')}, {format_size(self.num_bytes)}"
        return f"{held} in {self.folder}"


@checked
class Cache:
    """Cache of results, keyed by problem and options, in a folder that any number of processes may share.

    Parameters
    ----------
    folder : path, optional
        Folder of the cache, created when the first result is stored; default: `cache_folder`.

    Examples
    --------
    >>> table = taccl.compare(problem, backends=["greedy"])  # doctest: +SKIP
    >>> taccl.Cache().schedule(table.key[0])  # doctest: +SKIP
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        if folder is None:
            self.folder = cache_folder()
        elif not os.fspath(folder) or "\0" in str(folder):
            raise InputError(f"found {folder!r}; expected the path of a folder", where="cache")
        else:
            self.folder = Path(folder)

    @checked
    def path(self, key: str) -> Path:
        """Path at which the result with a key is, or would be, stored; `taccl.load` reads the file."""
        if not _KEY.fullmatch(key):
            said = f"found {key!r}; expected 64 hexadecimal digits, as in the column key"
            raise InputError(said, where="key")
        return self.folder / "results" / f"v{_SCHEMA}" / f"{key}.json"

    def find(self, key: str, problem: Problem | None = None) -> Entry | str | None:
        """Verified entry of a key, None if the key has no entry, or a message why the entry is unusable.

        - `problem`: The problem that the entry should be for; with it, reading is faster.
        """
        path = self.path(key)
        if not os.path.isfile(path):
            return None
        try:
            return _read(path, key, problem)
        except (TacclError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            reason = str(error).removeprefix(f"{path}: ")
            return f"{path}: a stored result is unusable and computed again ({reason})"

    @checked
    def store(self, document: dict[str, Any]) -> bool:
        """Store a document of `entry_document`; True on success, otherwise False with a `CacheWarning`."""
        path = self.path(document["result"]["key"])
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text, overwrite=True, keep_mode=False)
        except (OSError, InputError) as error:
            reason = getattr(error, "strerror", None) or error
            warn(f"{self.folder}: results cannot be stored ({reason})", CacheWarning)
            return False
        return True

    @checked
    def schedule(self, key: str) -> Schedule:
        """Verified schedule stored under a key from the table of a comparison.

        Raises
        ------
        InputError
            If the cache holds no schedule under this key.
        """
        entry = self.find(key)
        if isinstance(entry, Entry):
            if entry.schedule is not None:
                return entry.schedule
            entry = f"a run without a schedule ({entry.row['status']})"
        said = f"found {entry or 'nothing'} in {self.folder}; expected a schedule; compare once more"
        raise InputError(f"{said} with this cache", where=key)

    def info(self) -> CacheInfo:
        """Number and total size of the stored results, those of other versions of taccl included."""
        found = []
        for path in self._files():
            with contextlib.suppress(OSError):  # another process may have cleared the cache
                if path.name[0] != ".":
                    found.append(path.stat().st_size)
        return CacheInfo(self.folder, len(found), sum(found))

    def clear(self) -> CacheInfo:
        """Remove all results, but no other files of the folder; return the results' number and size."""
        removed = self.info()
        for path in self._files():
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise InputError(f"the file cannot be removed ({error.strerror})", where=str(path)) from None
        return removed

    def _files(self) -> Iterator[Path]:
        """Files of results in all versions of the cache, and temporary files of interrupted writes."""
        try:
            if self.folder.exists() and not self.folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "it is not a folder")
            paths = sorted((self.folder / "results").glob("v*/*"))
        except OSError as error:
            said = f"the cache cannot be read ({error.strerror}); give another folder"
            raise InputError(said, where=str(self.folder)) from None
        yield from (path for path in paths if _FILE.fullmatch(path.name))

    def __repr__(self) -> str:
        return f"Cache({str(self.folder)!r})"


def warn_of_damage(sentences: Sequence[str]) -> None:
    """Issue one `CacheWarning` for all cache entries that cannot be used."""
    if sentences:
        more = f", and {len(sentences) - 1} more like it" if len(sentences) > 1 else ""
        warn(sentences[0] + more, CacheWarning)


def cache_folder() -> Path:
    """Folder of the cache: TACCL_CACHE_DIR if it is set, else ``taccl`` in the user's cache folder."""
    named = os.environ.get("TACCL_CACHE_DIR")
    if named:
        return Path(os.path.expanduser(named))  # an unknown ~user stays as written
    from platformdirs import user_cache_path

    # RuntimeError: no home folder; older platformdirs return a relative path instead.
    with contextlib.suppress(RuntimeError):
        folder = user_cache_path("taccl", appauthor=False)
        if folder.is_absolute():
            return folder
    # Entries are verified when read, so that a folder which others can write to is safe.
    return Path(tempfile.gettempdir()) / f"taccl-cache-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


def key_of(problem_digest: str, **options: str | int | float | None) -> str:
    """Key of a run: a hash of its problem, options, registered proposers, package versions and code."""
    content: dict[str, Any] = {
        "schema": _SCHEMA, "problem": problem_digest, "options": options, "versions": _versions(),
        "code": _code_digest(),
    }  # fmt: skip
    proposers = sorted(each.name for each in registered())
    return _digest(content | {"proposers": proposers} if proposers else content)


def entry_document(
    key: str, row: dict[str, Any], schedule: Schedule | None, *, found: dict[str, Any] | None = None
) -> dict[str, Any]:
    """JSON document with which the cache stores a run's outcome; `found` is `Result.to_dict`."""
    content = {**(found or {}), "key": key, "row": row}
    if schedule is not None:
        return dump_schedule(schedule, extra=content)
    content = {"format": _FAILURE, "version": _SCHEMA, "result": content}
    return content | {"file_digest": _digest(content)}


def _read(path: Path, key: str, problem: Problem | None) -> Entry:
    """Read and check the entry in a file."""
    document = parse_json(read_text(path, _LIMIT_BYTES), source=str(path))
    schedule = None
    if document["format"] == FORMAT:
        schedule = load_schedule(document, where=str(path), problem=problem)
        verify(schedule).raise_if_failed()
    elif document["format"] != _FAILURE:
        raise ValueError("it is no result")
    elif document["file_digest"] != _digest({k: v for k, v in document.items() if k != "file_digest"}):
        raise ValueError("the content does not match its digest")
    row: dict[str, Any] = document["result"]["row"]
    if row.keys() != new_row().keys():
        raise ValueError("its row has other columns")
    if schedule is not None and not is_of(row, schedule):
        raise ValueError("its row is not that of its schedule")
    digest = row["problem_digest"]
    if schedule is not None and not (problem is not None and _is_cut_of(schedule.problem, problem)):
        digest = schedule.problem.digest()
    if document["result"]["key"] != key:
        raise ValueError("it is the result of another run")
    if problem is not None and digest != problem.digest():
        raise ValueError("it is the result of another problem")
    return Entry(row, schedule)


def _is_cut_of(cut: Problem, problem: Problem) -> bool:
    """True if `cut` is `problem` with a chosen number of chunks, which `problem` leaves open.

    Their clauses on merging may differ.
    """
    if not problem.chunks_open or cut.collective.chunks_per_rank % problem.collective.chunks_per_rank:
        return False
    parts = cut.collective.chunks_per_rank // problem.collective.chunks_per_rank
    merging = {name: getattr(problem.clauses, name) for name in ("merging", "max_merge")}
    return (cut.topology, cut.size_bytes, cut.collective, replace(cut.clauses, **merging)) == (
        problem.topology, problem.size_bytes, problem.collective.split(parts), problem.clauses
    )  # fmt: skip


@cache
def _versions() -> dict[str, str]:
    return {name: version for name, version in package_versions().items() if name != "python"}


@cache
def _code_digest() -> str:
    """Hash of this package's source files, as edited code may find other results at the same version."""
    digest, package = hashlib.sha256(), Path(__file__).parents[1]
    for file in sorted(package.rglob("*.py")):
        digest.update(f"{file.relative_to(package)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()

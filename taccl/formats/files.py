"""Atomic writes, by which files are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from taccl.errors import InputError

#: {operating-system error: message for the caller}.
_REASONS: dict[type[OSError], str] = {
    FileExistsError: (
        "the file exists; pass --overwrite (overwrite=True) to replace it, or give another path"
    ),
    FileNotFoundError: "no file can be made in its folder ({reason}); give another path",
    IsADirectoryError: "is a folder; give the path of a file",
}
_UNWRITABLE = "the file cannot be written ({reason}); give another path"


def write_whole(
    path: str | os.PathLike[str], content: str | bytes, *, overwrite: bool = False, keep_mode: bool = True
) -> None:
    """Write a file whole or not at all, even if the write is interrupted.

    - `keep_mode`: True to keep the permissions of a file that is replaced; False for those of a new file.

    Raises `InputError` if the file exists and `overwrite` is False, its folder is missing, or it may not be
    written.
    """
    where = os.fspath(path)
    with _explained(where):
        data = content.encode() if isinstance(content, str) else content
        target = _target(path, overwrite)
        with _draft_beside(target) as draft:
            with open(draft, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if keep_mode and overwrite and target.exists():
                os.chmod(draft, stat.S_IMODE(target.stat().st_mode))
            _put(draft, target, overwrite)


def write_all(contents: Mapping[Path, str | bytes], *, overwrite: bool = False) -> tuple[Path, ...]:
    """Write several files as `write_whole` does; return their paths.

    If one write fails, the files that did not exist before are removed.
    """
    for path in contents:
        check_writable(path, overwrite=overwrite)
    made: list[Path] = []
    try:
        for path, content in contents.items():
            if not path.exists():
                made.append(path)
            write_whole(path, content, overwrite=overwrite)
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise
    return tuple(contents)


def check_writable(path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Raise `InputError` if `write_whole` would raise it; the check creates and removes an empty file."""
    with _explained(os.fspath(path)), _draft_beside(_target(path, overwrite)):
        pass


def check_page(path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Raise `InputError` if a page in HTML cannot be written, or its name has another ending."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in ("", ".html", ".htm"):
        remedy = "the output is a page in HTML, so give a name that ends in .html"
        raise InputError(f"found the ending {ending!r}; {remedy}", where=os.fspath(path))
    check_writable(path, overwrite=overwrite)


def folder_path(folder: str | os.PathLike[str]) -> Path:
    """Absolute path of an output folder, new or existing; `InputError` for no path, ``-`` or a file."""
    where = os.fspath(folder)
    _check_name(where, "folder")
    path = Path(os.path.abspath(folder))
    if os.path.lexists(path) and not path.is_dir():
        raise InputError("is not a folder; give the path of a folder, new or existing", where=where)
    return path


def _check_name(where: str, kind: str) -> None:
    """Raise `InputError` for an empty path, and for ``-``, by which other programs mean stdout."""
    if not where:
        raise InputError(f"found an empty path; give the path of a {kind}", where="output")
    if where == "-":
        raise InputError(f"is not a {kind}; give the path of a {kind}, or ./- for this name", where=where)


def _target(path: str | os.PathLike[str], overwrite: bool) -> Path:
    """Path of the file to write, with symbolic links resolved; raises an error if it may not be written."""
    where = os.fspath(path)
    _check_name(where, "file")
    target = Path(os.path.realpath(path))  # a symbolic link stays a link; its target is replaced
    if target.is_dir():
        raise IsADirectoryError
    if target.exists() and not target.is_file():
        raise InputError("is not a regular file; give the path of a file", where=where)
    if target.exists() and not overwrite:
        raise FileExistsError
    if not target.parent.is_dir():
        raise InputError(
            f"there is no folder {target.parent}; make it first, or give another path", where=where
        )
    return target


@contextlib.contextmanager
def _draft_beside(target: Path) -> Iterator[Path]:
    """Yield an empty file in the folder of `target`; it is removed at the end unless it was renamed."""
    draft = target.parent / f".{target.name[:100]}.{secrets.token_hex(8)}.tmp"
    # The draft is created with the mode of an ordinary new file, so that the umask applies.
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _put(draft: Path, target: Path, overwrite: bool) -> None:
    """Rename `draft` to `target`; `FileExistsError` if `target` now exists and may not be replaced."""
    if not overwrite:
        try:
            os.link(draft, target)
            return
        except OSError:  # the target exists, or the file system has no hard links
            if target.exists():
                raise FileExistsError from None
    os.replace(draft, target)


@contextlib.contextmanager
def _explained(where: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        text = next((text for kind, text in _REASONS.items() if isinstance(error, kind)), _UNWRITABLE)
        raise InputError(text.format(reason=reason), where=where) from None

"""Reading text files within limits, and writing files whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from taccl.errors import FormatError, InputError
from taccl.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["check_writable", "read_limited", "write_whole"]

_PIECE_BYTES = 1 << 20


def read_limited(path: str | os.PathLike[str], limit_bytes: int) -> str:
    """The text of a UTF-8 file, without a byte order mark.

    Raises
    ------
    InputError
        If the file is missing, a directory, or may not be read.
    FormatError
        If it is empty, not UTF-8 text, or larger than `limit_bytes`.
    """
    where = os.fspath(path)
    pieces: list[bytes] = []
    num_bytes = 0
    with _explained(where, "read"), open(path, "rb") as file:
        if stat.S_ISDIR(os.fstat(file.fileno()).st_mode):
            raise IsADirectoryError
        while piece := file.read(_PIECE_BYTES):
            if not pieces and piece.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise FormatError("found UTF-16 text; expected UTF-8; save it as UTF-8", where=where)
            num_bytes += len(piece)
            if b"\0" in piece:
                raise FormatError("found binary data; expected UTF-8 text", where=where)
            if max(num_bytes, os.fstat(file.fileno()).st_size) > limit_bytes:
                raise FormatError(
                    f"the file is larger than {format_size(limit_bytes)}, the most that is read; "
                    "check that it is the file you meant",
                    where=where,
                )
            pieces.append(piece)
    try:
        text = b"".join(pieces).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(
            f"found bytes that are not UTF-8 text, at byte {error.start}; save the file as UTF-8", where=where
        ) from None
    if not text.strip():
        raise FormatError("the file is empty; save it anew, or check the path", where=where)
    return text


def write_whole(path: str | os.PathLike[str], content: str | bytes, *, overwrite: bool = False) -> None:
    """Write a file so that it is there whole or not at all, even if the write is cut short.

    Raises
    ------
    InputError
        If the file exists and `overwrite` is False, its folder is missing, or it may not be written.
    """
    where = os.fspath(path)
    data = content.encode() if isinstance(content, str) else content
    with _explained(where, "written"):
        target = _target(path, overwrite)
        with _draft_beside(target) as draft:
            with open(draft, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if overwrite and target.exists():
                os.chmod(draft, stat.S_IMODE(target.stat().st_mode))
            _put(draft, target, overwrite)


def check_writable(path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Do nothing where `write_whole` would find nothing in its way; an empty file is made and removed.

    Raises
    ------
    InputError
        As `write_whole` would.
    """
    with _explained(os.fspath(path), "written"), _draft_beside(_target(path, overwrite)):
        pass


def _target(path: str | os.PathLike[str], overwrite: bool) -> Path:
    """The file to put in place, once nothing speaks against it."""
    where = os.fspath(path)
    if not where:
        raise InputError("found an empty path; give the path of a file", where="output")
    target = Path(os.path.realpath(path))  # a symbolic link stays one; its target is replaced
    if target.is_dir():
        raise IsADirectoryError
    if target.exists() and not overwrite:
        raise FileExistsError
    if target.exists() and not target.is_file():
        raise InputError("is not a regular file; give the path of a file", where=where)
    if not target.parent.is_dir():
        raise InputError(
            f"there is no folder {target.parent}; make it first, or give another path", where=where
        )
    return target


@contextlib.contextmanager
def _draft_beside(target: Path) -> Iterator[Path]:
    """An empty file in the folder of `target`, removed at the end unless it was given another name."""
    draft = target.parent / f".{target.name[:100]}.{secrets.token_hex(8)}.tmp"
    # Made with the mode of an ordinary new file, so that the umask applies.
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _put(draft: Path, target: Path, overwrite: bool) -> None:
    """Give `draft` the name `target`; FileExistsError if it was taken meanwhile and may not be replaced."""
    if not overwrite:
        try:
            os.link(draft, target)
            return
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            if target.exists():
                raise FileExistsError from None
    os.replace(draft, target)


@contextlib.contextmanager
def _explained(where: str, verb: str) -> Iterator[None]:
    """Turn the operating system's errors into `InputError`."""
    try:
        yield
    except InputError:
        raise
    except FileExistsError:
        raise InputError(
            "the file exists; pass --overwrite (overwrite=True) to replace it, or give another path",
            where=where,
        ) from None
    except FileNotFoundError as error:
        if verb == "written":
            raise InputError(
                f"no file can be made in its folder ({error.strerror}); give another path", where=where
            ) from None
        raise InputError("there is no such file; check the path", where=where) from None
    except IsADirectoryError:
        raise InputError("is a folder; give the path of a file", where=where) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"the file cannot be {verb} ({reason}); give another path", where=where) from None

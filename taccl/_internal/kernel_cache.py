"""Compiled kernels on disk in numba's format, in private folders; damaged files are replaced.

This module imports numba; `taccl._internal.kernels` imports it at the first call of a kernel.
"""

from __future__ import annotations

import os
import pickle
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from numba.core import caching
from numba.core.runtime.nrt import rtsys

from taccl._internal.address_space import require_free_space
from taccl._internal.kernel_stamp import are_current, cache_name, compiler_versions, layouts
from taccl.errors import CacheWarning, warn


@cache
def _warn(what: str) -> None:
    """Warn once per process for each text."""
    advice = "name a folder that can be written in NUMBA_CACHE_DIR"
    warn(f"{what}; {advice}", CacheWarning)


class _UserWideLocator(caching.UserWideCacheLocator):
    """User's cache folder; without a home, numba would create a folder ``~`` in the current one."""

    def ensure_cache_path(self) -> None:
        if not os.path.isabs(self.get_cache_path()):
            raise FileNotFoundError
        super().ensure_cache_path()


class _TemporaryLocator(caching.InTreeCacheLocator):
    """Private folder of this user among the temporary files."""

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        super().__init__(py_func, py_file)
        user = os.geteuid() if hasattr(os, "geteuid") else "user"
        self._folder = os.path.join(tempfile.gettempdir(), f"taccl-kernels-{user}")
        self._cache_path = os.path.join(self._folder, self.get_suitable_cache_subpath(py_file))

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _TemporaryLocator | None:
        try:
            locator: _TemporaryLocator | None = super().from_function(py_func, py_file)
        except OSError:  # no folder for temporary files
            return None
        if locator is not None:
            others = "as neither the folder of taccl nor the user's cache folder can be written"
            _warn(f"compiled functions are kept in {locator._folder}, {others}")
        return locator

    def ensure_cache_path(self) -> None:
        """Create the folder; raise `OSError` unless it is private: its content is executed."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        found = os.lstat(self._folder)
        if hasattr(os, "geteuid") and (
            not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077
        ):
            raise PermissionError(f"{self._folder} belongs to another user")
        super().ensure_cache_path()


class _Impl(caching.CompileResultCacheImpl):
    _locator_classes = [
        _UserWideLocator if locator is caching.UserWideCacheLocator else locator
        for locator in caching.CompileResultCacheImpl._locator_classes
    ] + [_TemporaryLocator]


class _Files(caching.IndexDataCacheFile):
    """Cache files of one kernel: an index of its compiled signatures, and a file for the code of each.

    The index begins with its heading and the layouts of its signatures, which `taccl._internal.kernels` reads
    without numba. Files of code contain their own key: two concurrent writers, or a writer killed between two
    files, can leave a wrong file in the index.
    """

    def __init__(self, folder: str, name: str, stamp: str) -> None:
        super().__init__(folder, name, stamp)
        self._heading = (compiler_versions(), stamp)

    def flush(self) -> None:
        """Delete the index, instead of writing an empty one."""
        Path(self._index_path).unlink(missing_ok=True)

    def save(self, key: object, data: object) -> None:
        super().save(key, (self._source_stamp, key, data))

    def load(self, key: object) -> object:
        found = super().load(key)
        return found[2] if found is not None and found[:2] == (self._source_stamp, key) else None

    def _load_index(self) -> dict[tuple[Any, ...], str]:
        """{key of a signature: name of its file}; empty for other sources or other versions."""
        try:
            with open(self._index_path, "rb") as file:
                heading, _ = pickle.load(file)
                return pickle.load(file) if heading == self._heading else {}
        except FileNotFoundError:
            return {}

    def _save_index(self, overloads: dict[tuple[Any, ...], str]) -> None:
        with self._open_for_write(self._index_path) as file:
            pickle.dump((self._heading, [key[-1] for key in overloads]), file)
            file.write(self._dump(overloads))


class _FunctionCache(caching.FunctionCache):
    _impl_class = _Impl

    def __init__(self, py_func: Callable[..., Any], stamp: str) -> None:
        super().__init__(py_func)
        self._cache_file = _Files(self._cache_path, cache_name(py_func), stamp)

    def load_overload(self, sig: Any, target_context: Any) -> object:
        """Code for a signature; None if there is none.

        Numba would first load its tables of types and operations, which only compilation needs (0.15 s of
        CPU). Compiled code needs only the symbols of numba's runtime.
        """
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)

    def _index_key(self, sig: Any, codegen: object) -> tuple[Any, ...]:
        """Key of a signature, ending with its layouts: numba's types are equal even if fields differ."""
        return (*super()._index_key(sig, codegen), layouts(sig))


class KernelCache(caching.NullCache):
    """Cache of one kernel, opened at its first call; errors of the cache never end a run.

    - `stamp`: Function that returns the kernel's stamp, a digest of all that is compiled into the kernel. It
      is called at the cache's first use, when all functions that the kernel calls are defined.
    """

    def __init__(self, function: Callable[..., Any], stamp: Callable[[], str]) -> None:
        self._function, self._stamp = function, stamp

    @cached_property
    def _kept(self) -> Any:
        try:
            return _FunctionCache(self._function, self._stamp())
        except (OSError, RuntimeError):  # no writable folder, or a missing source
            _warn("compiled functions are not kept, so every process compiles them again")
            return caching.NullCache()

    @property
    def cache_path(self) -> Any:
        """Folder of the cache."""
        return self._kept.cache_path

    @property
    def is_filled(self) -> bool:
        """True if the cache has compiled code for the present source."""
        try:
            return any(are_current(key[-1]) for key in self._kept._cache_file._load_index())
        except Exception:  # no cache, or an unreadable one
            return False

    def load_overload(self, sig: object, target_context: object) -> object:
        """Code for a signature; None if it is missing or damaged, and must be compiled."""
        require_free_space()
        try:
            return self._kept.load_overload(sig, target_context)
        except Exception:  # pickle and LLVM may raise any error for a damaged file
            self.flush()
            return None

    def save_overload(self, sig: object, data: object) -> None:
        """Store the code for a signature."""
        with self._without():
            self._kept.save_overload(sig, data)

    def flush(self) -> None:
        """Delete the code for all signatures."""
        with self._without():
            self._kept.flush()

    @contextmanager
    def _without(self) -> Iterator[None]:
        """Context that turns the cache off if a file cannot be written."""
        try:
            yield
        except OSError as error:
            self._kept = caching.NullCache()
            _warn(f"compiled functions cannot be kept ({error.strerror})")

"""Kernels: functions compiled by numba, and where what is compiled is kept.

The cache is where numba would keep it: in ``NUMBA_CACHE_DIR``, beside the source, or in the user's cache
folder. If none of these is writable, it is in a private folder among the temporary files. Without any of
them, kernels are compiled in every run, as are those that cannot be read or written.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, TypeVar, overload

from taccl.address_space import require_address_space

require_address_space()  # LLVM ends the process where it gets no memory

import numba  # noqa: E402
from numba.core import caching  # noqa: E402
from numba.core.types import unliteral  # noqa: E402

from taccl.errors import CacheWarning, warn  # noqa: E402

_Function = TypeVar("_Function", bound="Callable[..., Any]")


@overload
def compiled(function: _Function) -> _Function: ...
@overload
def compiled(*, allocates: bool) -> Callable[[_Function], _Function]: ...
def compiled(function: _Function | None = None, *, allocates: bool = False) -> Any:
    """The function compiled, to run beside other threads.

    References to arrays are counted only where it `allocates` arrays or lists: the rest takes half the time.
    """
    return _compiled(function, allocates)


@overload
def inner(function: _Function) -> _Function: ...
@overload
def inner(*, allocates: bool) -> Callable[[_Function], _Function]: ...
def inner(function: _Function | None = None, *, allocates: bool = False) -> Any:
    """The function compiled, for kernels to call: Python cannot.

    The Python wrapper of a function with many arrays takes as long to compile as the function.
    """
    return _compiled(function, allocates, no_cpython_wrapper=True)


def _compiled(function: _Function | None, allocates: bool, **options: Any) -> Any:
    if function is None:
        return partial(_compiled, allocates=allocates, **options)
    # Kernels are never handed to C, so they need no C wrapper.
    options |= {"nogil": True, "no_cfunc_wrapper": True} | ({} if allocates else {"_nrt": False})
    kernel: Any = numba.njit(**options)(function)
    if kernel is not function:  # NUMBA_DISABLE_JIT=1
        kernel._cache = _Cache(function)
        kernel.get_call_template = partial(_without_literals, kernel.get_call_template)
    return kernel


def is_compiled(kernel: Any) -> bool:
    """True if a kernel is compiled, here or in an earlier run that kept it, so that it loads quickly."""
    return bool(getattr(kernel, "signatures", True)) or kernel._cache.is_filled


def _without_literals(find: Callable[..., Any], args: Any, kws: Any) -> Any:
    """Signature without literals: compiled for integers, not for 0 and once more for 1."""
    return find(tuple(map(unliteral, args)), {name: unliteral(kind) for name, kind in kws.items()})


@cache
def _warn(what: str) -> None:
    """Warn once in this process, however many kernels it concerns."""
    advice = "name a folder that can be written in NUMBA_CACHE_DIR"
    warn(f"{what}; {advice}", CacheWarning)


class _UserWideLocator(caching.UserWideCacheLocator):
    """The user's cache folder; without a home, numba would make a folder ``~`` in the current one."""

    def ensure_cache_path(self) -> None:
        if not os.path.isabs(self.get_cache_path()):
            raise FileNotFoundError
        super().ensure_cache_path()


class _TemporaryLocator(caching.InTreeCacheLocator):
    """A private folder of this user among the temporary files."""

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        super().__init__(py_func, py_file)
        user = os.geteuid() if hasattr(os, "geteuid") else "user"
        self._folder = os.path.join(tempfile.gettempdir(), f"taccl-kernels-{user}")
        self._cache_path = os.path.join(self._folder, self.get_suitable_cache_subpath(py_file))

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _TemporaryLocator | None:
        try:
            locator: _TemporaryLocator | None = super().from_function(py_func, py_file)
        except OSError:  # no folder for temporary files at all
            return None
        if locator is not None:
            others = "as neither the folder of taccl nor the user's cache folder can be written"
            _warn(f"compiled functions are kept in {locator._folder}, {others}")
        return locator

    def ensure_cache_path(self) -> None:
        """Raise `OSError` unless the folder is private to this user: its content will be executed."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        found = os.lstat(self._folder)
        if hasattr(os, "geteuid") and (
            not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077
        ):
            raise PermissionError(f"{self._folder} is not this user's own")
        super().ensure_cache_path()


class _Impl(caching.CompileResultCacheImpl):
    _locator_classes = [
        _UserWideLocator if locator is caching.UserWideCacheLocator else locator
        for locator in caching.CompileResultCacheImpl._locator_classes
    ] + [_TemporaryLocator]


class _Files(caching.IndexDataCacheFile):
    """Files that say what they hold.

    Two concurrent writers, or one that is killed between two files, can leave a wrong file in numba's index.
    """

    def save(self, key: object, data: object) -> None:
        super().save(key, (self._source_stamp, key, data))

    def load(self, key: object) -> object:
        found = super().load(key)
        return found[2] if found is not None and found[:2] == (self._source_stamp, key) else None


class _FunctionCache(caching.FunctionCache):
    _impl_class = _Impl

    def __init__(self, py_func: Callable[..., Any]) -> None:
        super().__init__(py_func)
        files = self._cache_file
        # A kernel's callees in neighbouring modules are compiled into it.
        beside = sorted(Path(py_func.__code__.co_filename).parent.glob("*.py"))
        stamp = files._source_stamp, tuple((each.stat().st_mtime, each.stat().st_size) for each in beside)
        self._cache_file = _Files(files._cache_path, self._impl.filename_base, stamp)


class _Cache(caching.NullCache):
    """Cache of one kernel, opened at its first call; faults of the cache never end a run."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @cached_property
    def _kept(self) -> Any:
        try:
            return _FunctionCache(self._function)
        except (OSError, RuntimeError):  # nowhere to keep it, or a source that is gone
            _warn("compiled functions are kept nowhere, and every process compiles them anew")
            return caching.NullCache()

    @property
    def cache_path(self) -> Any:
        return self._kept.cache_path

    @property
    def is_filled(self) -> bool:
        """True if the cache has any version of the present source."""
        try:
            return bool(self._kept._cache_file._load_index())
        except Exception:  # nothing is kept, or what is cannot be read
            return False

    def load_overload(self, sig: object, target_context: object) -> object:
        try:
            return self._kept.load_overload(sig, target_context)
        except Exception:  # whatever pickle and LLVM make of a damaged file
            self.flush()
            return None

    def save_overload(self, sig: object, data: object) -> None:
        with self._without():
            self._kept.save_overload(sig, data)

    def flush(self) -> None:
        with self._without():
            self._kept.flush()

    @contextmanager
    def _without(self) -> Iterator[None]:
        """Keep nothing from now on if a file cannot be written."""
        try:
            yield
        except OSError as error:
            self._kept = caching.NullCache()
            _warn(f"compiled functions cannot be kept ({error.strerror})")

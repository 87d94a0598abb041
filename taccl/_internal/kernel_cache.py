"""Compiled kernels on disk in numba's format, with private folders and tolerance of damaged files.

Functions that only kernels call are compiled to LLVM code, which kernels include and optimise. By default
numba also optimises each such function and generates machine code for it, and repeats both in every caller.
Skipping that saves a fifth of the CPU time for all kernels together.

This module imports numba; `taccl._internal.kernels` imports it at the first call of a kernel.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numba
from numba.core import caching
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

from taccl._internal.address_space import require_free_space
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
    """Cache files that contain their own key.

    Two concurrent writers, or a writer killed between two files, can leave a wrong file in numba's index. An
    index begins with its `version`, which `taccl._internal.kernels.is_compiled` reads without numba.
    """

    def __init__(self, folder: str, name: str, stamp: object, version: object) -> None:
        super().__init__(folder, name, stamp)
        self._version = version

    def flush(self) -> None:
        """Delete the index, instead of writing an empty one."""
        Path(self._index_path).unlink(missing_ok=True)

    def save(self, key: object, data: object) -> None:
        super().save(key, (self._source_stamp, key, data))

    def load(self, key: object) -> object:
        found = super().load(key)
        return found[2] if found is not None and found[:2] == (self._source_stamp, key) else None


class _FunctionCache(caching.FunctionCache):
    _impl_class = _Impl

    def __init__(self, py_func: Callable[..., Any], stamp: object) -> None:
        super().__init__(py_func)
        files = self._cache_file
        self._cache_file = _Files(
            files._cache_path,
            self._impl.filename_base,
            (files._source_stamp, stamp),
            (numba.__version__, stamp),
        )


class KernelCache(caching.NullCache):
    """Cache of one kernel, opened at its first call; errors of the cache never end a run.

    - `stamp`: Function for the state of the sources, such as their times and sizes.
    """

    def __init__(self, function: Callable[..., Any], stamp: Callable[[Callable[..., Any]], object]) -> None:
        self._function, self._stamp = function, stamp

    @cached_property
    def _kept(self) -> Any:
        try:
            return _FunctionCache(self._function, self._stamp(self._function))
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
            return bool(self._kept._cache_file._load_index())
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


class InnerCompiler(Compiler):
    """Compiler of numba for a function that only kernels call."""

    def compile_extra(self, function: Callable[..., Any]) -> Any:
        """Compile the function into an `_InnerLibrary`."""
        library = _InnerLibrary(self.state.targetctx.codegen(), function.__qualname__)
        library.enable_object_caching()
        self.state.library = library
        return super().compile_extra(function)


class _InnerLibrary(JITCodeLibrary):
    """LLVM code of a function, without optimisation and machine code."""

    @property
    def codegen(self) -> Any:
        return _NoMachineCode()

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0, as there is no machine code; finish the LLVM code."""
        self._ensure_finalized()
        return 0

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class _NoMachineCode:
    """Code generator of an `_InnerLibrary`, with the method that numba calls after compilation."""

    def set_env(self, name: str, environment: object) -> None:
        """Ignore the environment of Python objects, as kernels use none."""

"""Read and set the limit of this process's address space (``ulimit -v``); recognise errors due to it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any

#: Python's module of resource limits; None on Windows. It is imported early, as imports fail without memory.
_resource: Any = None
with suppress(ImportError):
    _resource = import_module("resource")

#: `BLAS_BYTES`: min address space in bytes to load numpy, scipy and BLAS (measured: 325 MB on two cores).
#: `LLVM_BYTES`: min address space in bytes to load numba and LLVM.
BLAS_BYTES, LLVM_BYTES = 400 * 10**6, 640 * 10**6
#: Address space in bytes that LLVM may map while it compiles or loads a function.
_FUNCTION_BYTES = 64 * 10**6
#: Parameter of glibc's ``mallopt``: maximum number of heaps (``M_ARENA_MAX``).
_NUMBER_OF_HEAPS = -8

#: Parts of the messages of native libraries and Python when an allocation fails.
MEMORY_WORDS = ("bad_alloc", "MemoryError", "Cannot allocate memory", "out of memory", "Out of memory")
#: Parts of further messages of Python and the dynamic loader if a limited address space is exhausted.
_BOUNDED_WORDS = ("can't start new thread", "failed to map segment", "find/load shared object file")


def address_space_bytes() -> int | None:
    """Limit of this process's address space in bytes; None if there is none."""
    if _resource is None:
        return None
    soft, _ = _resource.getrlimit(_resource.RLIMIT_AS)
    return None if soft == _resource.RLIM_INFINITY else int(soft)


def free_space_bytes() -> int | None:
    """Bytes of address space that this process may still map; None without a limit."""
    bound = address_space_bytes()
    return None if bound is None else max(0, bound - mapped_bytes())


def mapped_bytes() -> int:
    """Bytes of address space that this process has mapped; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def require_address_space(least_bytes: int = BLAS_BYTES) -> None:
    """Raise `MemoryError` if the address space is too small to load libraries.

    LLVM and BLAS kill the process or hang if they get no memory while they load. All of SciPy except
    ``scipy.sparse`` loads BLAS.
    """
    bound = address_space_bytes()
    if bound is not None and bound < least_bytes:
        raise MemoryError(
            f"too little memory: {bound // 10**6} MB of address space are allowed, and "
            f"{least_bytes // 10**6} MB are needed; allow more (ulimit -v)"
        )
    if bound is not None:
        _share_heap()


@cache
def _share_heap() -> None:
    """Let all threads share one heap: glibc reserves 64 to 128 MB of address space for each further heap."""
    import ctypes

    with suppress(AttributeError, OSError):  # C libraries other than glibc may lack `mallopt`
        ctypes.CDLL(None).mallopt(_NUMBER_OF_HEAPS, 1)


def require_free_space() -> None:
    """Raise `MemoryError` if LLVM could run out of address space while it compiles or loads a function."""
    free = free_space_bytes()
    if free is not None and free < _FUNCTION_BYTES:
        raise MemoryError(
            f"too little memory: {free // 10**6} MB of address space are left, and compiled functions need "
            f"{_FUNCTION_BYTES // 10**6} MB; allow more (ulimit -v)"
        )


def means_out_of_memory(error: BaseException, *, bounded: bool) -> bool:
    """True if an exception means that memory ran out; `bounded` says if the process had a memory limit."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return bounded and any(word in str(error) for word in (*MEMORY_WORDS, *_BOUNDED_WORDS))


@contextmanager
def limited_memory(memory_limit_mb: int | None) -> Iterator[None]:
    """Context that limits the growth of the address space to `memory_limit_mb` (10**6 bytes), if given.

    There is no limit where the platform does not support one (macOS ignores RLIMIT_AS).
    """
    if memory_limit_mb is None or _resource is None:
        yield
        return
    soft, hard = _resource.getrlimit(_resource.RLIMIT_AS)
    limit = mapped_bytes() + memory_limit_mb * 10**6
    if hard != _resource.RLIM_INFINITY:
        limit = min(limit, hard)
    try:
        _resource.setrlimit(_resource.RLIMIT_AS, (limit, hard))
    except (ValueError, OSError):
        yield
        return
    try:
        yield
    finally:
        _resource.setrlimit(_resource.RLIMIT_AS, (soft, hard))

"""The bound of this process's address space, as ``ulimit -v`` sets it, and what fits into it."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

#: The module of limits, missing on Windows. It is imported early: without memory it cannot be.
_resource: Any = None
with suppress(ImportError):
    _resource = import_module("resource")

#: Bytes that Python needs with numpy, scipy and BLAS loaded (325 MB on two cores), and with numba and LLVM.
BLAS_BYTES, LLVM_BYTES = 400 * 10**6, 640 * 10**6
#: Bytes that LLVM may map as it compiles or loads a function.
_FUNCTION_BYTES = 64 * 10**6
#: Parameter of glibc's ``mallopt``: the number of heaps (``M_ARENA_MAX``).
_NUMBER_OF_HEAPS = -8


def address_space_bytes() -> int | None:
    """The bound of this process's address space; None without one."""
    if _resource is None:
        return None
    soft, _ = _resource.getrlimit(_resource.RLIMIT_AS)
    return None if soft == _resource.RLIM_INFINITY else int(soft)


def free_space_bytes() -> int | None:
    """Bytes of address space that this process may still map; None without a bound."""
    bound = address_space_bytes()
    return None if bound is None else max(0, bound - mapped_bytes())


def mapped_bytes() -> int:
    """Bytes of address space that this process has mapped; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def require_address_space(least_bytes: int = BLAS_BYTES) -> None:
    """Raise `MemoryError` if the address space is too small to load libraries.

    LLVM and BLAS end the process, or wait without end, where they get no memory as they load. All of SciPy
    but ``scipy.sparse`` loads BLAS.
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

    with suppress(AttributeError, OSError):  # other C libraries have no such heaps
        ctypes.CDLL(None).mallopt(_NUMBER_OF_HEAPS, 1)


def require_free_space() -> None:
    """Raise `MemoryError` if LLVM could run out of address space as it compiles or loads a function."""
    free = free_space_bytes()
    if free is not None and free < _FUNCTION_BYTES:
        raise MemoryError(
            f"too little memory: {free // 10**6} MB of address space are left, and compiled functions need "
            f"{_FUNCTION_BYTES // 10**6} MB; allow more (ulimit -v)"
        )

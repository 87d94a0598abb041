"""The bound of this process's address space, as ``ulimit -v`` sets it, and what fits into it."""

from __future__ import annotations

import os

#: Bytes that Python needs with all libraries loaded: numba and LLVM, numpy, scipy and BLAS.
_LEAST_BYTES = 640 * 10**6


def address_space_bytes() -> int | None:
    """The bound of this process's address space; None without one."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


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


def require_address_space() -> None:
    """Raise `MemoryError` if the address space is too small to load all libraries.

    LLVM and BLAS end the process, or wait without end, where they get no memory as they load.
    """
    bound = address_space_bytes()
    if bound is not None and bound < _LEAST_BYTES:
        raise MemoryError(
            f"too little memory: {bound // 10**6} MB of address space are allowed, and "
            f"{_LEAST_BYTES // 10**6} MB are needed; allow more (ulimit -v)"
        )

"""A bound on what a task may add to its process's memory, and what running out of it looks like."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from taccl._internal.address_space import mapped_bytes

#: Messages of native libraries and Python when an allocation fails.
MEMORY_WORDS = ("bad_alloc", "MemoryError", "Cannot allocate memory", "out of memory", "Out of memory")
#: Further messages of Python, if the address space is bounded.
_BOUNDED_WORDS = ("can't start new thread", "failed to map segment", "find/load shared object file")


def tells_of_memory(error: BaseException, *, bounded: bool) -> bool:
    """True if an exception means that memory ran out, in a process whose memory was `bounded` or not."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return bounded and any(word in str(error) for word in (*MEMORY_WORDS, *_BOUNDED_WORDS))


@contextlib.contextmanager
def limited_memory(memory_limit_mb: int | None) -> Iterator[None]:
    """Bound the address space to what is mapped now and `memory_limit_mb` (10**6 bytes) on top.

    Where the platform cannot bound it (macOS ignores RLIMIT_AS), what is inside runs unbounded.
    """
    if memory_limit_mb is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = mapped_bytes() + memory_limit_mb * 10**6
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    except (ValueError, OSError):
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

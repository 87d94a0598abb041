"""Kernels, which are functions that numba compiles at their first call, and loads from a cache afterwards.

numba is imported at the first call of any kernel, as its import takes 0.2 s of CPU.

The cache is where numba would keep it: in ``NUMBA_CACHE_DIR``, next to the source, or in the user's cache
folder. If none of these is writable, it is in a private folder among the temporary files. Without a writable
folder, every run compiles the kernels.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from functools import cache, partial, update_wrapper
from pathlib import Path
from typing import Any, TypeVar, overload

from taccl._internal.address_space import LLVM_BYTES, require_address_space
from taccl._internal.kernel_stamp import StampedFunction, are_current, cache_name, compiler_versions

require_address_space(LLVM_BYTES)  # LLVM kills the process if it gets no memory

_Function = TypeVar("_Function", bound="Callable[..., Any]")

#: Lock under which kernels are prepared one at a time, as preparing one may import numba.
_PREPARING = threading.RLock()


@overload
def compiled(function: _Function) -> _Function: ...
@overload
def compiled(*, allocates: bool = ..., vectorizes: bool = ...) -> Callable[[_Function], _Function]: ...
def compiled(function: _Function | None = None, *, allocates: bool = False, vectorizes: bool = False) -> Any:
    """Decorate a function to be compiled at its first call; it runs without the GIL.

    - `allocates`: True if the function allocates arrays or lists. Otherwise references are not counted, which
      halves the time.
    - `vectorizes`: True to vectorize loops, for kernels whose innermost loops are long.
    """
    return _lazily(function, allocates, **({"vectorizes": True} if vectorizes else {}))


@overload
def inner(function: _Function) -> _Function: ...
@overload
def inner(*, allocates: bool) -> Callable[[_Function], _Function]: ...
def inner(function: _Function | None = None, *, allocates: bool = False) -> Any:
    """Decorate a function to be compiled for calls from kernels only, not from Python.

    It gets no Python wrapper, which takes as long to compile as the function if it has many arrays.
    """
    return _lazily(function, allocates, no_cpython_wrapper=True)


def _lazily(function: _Function | None, allocates: bool, **options: Any) -> Any:
    if function is None:
        return partial(_lazily, allocates=allocates, **options)
    # Kernels are never passed to C, so they need no C wrapper.
    options |= {"nogil": True, "no_cfunc_wrapper": True} | ({} if allocates else {"_nrt": False})
    return _Kernel(function, options)


def is_compiled(kernel: Any) -> bool:
    """True if a kernel is compiled, in this process or in the cache, so that it loads quickly."""
    return not isinstance(kernel, _Kernel) or kernel.is_compiled


def is_loaded(kernel: Any) -> bool:
    """True if a kernel's compiled code is in this process, so that it runs at once."""
    if not isinstance(kernel, _Kernel):
        return True
    dispatcher = vars(kernel).get("_dispatcher")
    return dispatcher is not None and bool(getattr(dispatcher, "signatures", True))


class _Kernel(StampedFunction):
    """Stand-in for numba's dispatcher of a function, which is created when first needed.

    Compiled code that calls the kernel uses the dispatcher. The kernel is pickled by its name.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        super().__init__(function, options)

    def __call__(self, *args: Any) -> Any:
        return self._dispatcher(*args)

    def __getattr__(self, name: str) -> Any:
        if name == "_dispatcher":
            return self._prepare()
        if name.startswith("__"):  # hooks that numba's dispatchers lack
            raise AttributeError(name)
        return getattr(self._dispatcher, name)

    def __reduce__(self) -> str:
        return str(self._function.__qualname__)

    @property
    def is_compiled(self) -> bool:
        """True if compiled code exists, loaded or cached; numba is imported only for caches elsewhere."""
        folder = Path(self._function.__code__.co_filename).parent / "__pycache__"
        is_beside = not os.environ.get("NUMBA_CACHE_DIR") and os.access(folder, os.W_OK)
        if is_beside and "_dispatcher" not in self.__dict__:
            return os.environ.get("NUMBA_DISABLE_JIT", "0") != "0" or self._is_kept(folder)
        return bool(getattr(self._dispatcher, "signatures", True)) or self._dispatcher._cache.is_filled

    def _prepare(self) -> Any:
        """Create the dispatcher, once for all threads."""
        with _PREPARING:
            found = self.__dict__.get("_dispatcher")
            if found is None:
                found = self._dispatcher = _dispatcher(self, self._function, self._options)
        return found

    def _is_kept(self, folder: Path) -> bool:
        """True if a folder has the index of compiled code for the present sources."""
        try:
            with open(folder / f"{cache_name(self._function)}.nbi", "rb") as file:
                heading, signatures = pickle.load(file)
            return heading == (compiler_versions(), self.stamp) and any(map(are_current, signatures))
        except Exception:  # no cache, or an unreadable one
            return False


def _dispatcher(kernel: _Kernel, function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Dispatcher of numba for a function, with our cache; the function itself if ``NUMBA_DISABLE_JIT=1``."""
    import numba

    from taccl._internal.kernel_cache import KernelCache
    from taccl._internal.kernel_compiler import (
        InnerCompiler,
        KernelCompiler,
        VectorizingCompiler,
        teach_numba,
    )

    teach_numba()
    _use_dispatchers()
    is_inner, vectorizes = "no_cpython_wrapper" in options, "vectorizes" in options
    compiler = InnerCompiler if is_inner else VectorizingCompiler if vectorizes else KernelCompiler
    options = {name: value for name, value in options.items() if name != "vectorizes"}
    dispatcher: Any = numba.njit(**options, pipeline_class=compiler)(function)
    if dispatcher is not function:  # NUMBA_DISABLE_JIT=1
        if not is_inner:  # inner functions are part of the cached code of their callers
            dispatcher._cache = KernelCache(function, lambda: kernel.stamp)
        dispatcher.get_call_template = partial(_without_literals, dispatcher.get_call_template)
    return dispatcher


@cache
def _use_dispatchers() -> None:
    """Make numba use the dispatcher of a kernel that compiled code calls."""
    from numba.extending import typeof_impl

    @typeof_impl.register(_Kernel)
    def type_of(kernel: _Kernel, context: Any) -> Any:
        return typeof_impl(kernel._dispatcher, context)


def _without_literals(find: Callable[..., Any], args: Any, kws: Any) -> Any:
    """Signature without literals, so that one compilation serves all integers, 0 and 1 included."""
    from numba.core.types import unliteral

    return find(tuple(map(unliteral, args)), {name: unliteral(kind) for name, kind in kws.items()})

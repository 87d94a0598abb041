"""Compilation of functions that only kernels call: to LLVM code, which kernels include and optimise.

By default numba also optimises each such function and makes machine code of it, and does both again in every
caller. Leaving that out saves a fifth of the CPU for all kernels together.

This module imports numba. `taccl._internal.kernels` imports it at the first call of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class InnerCompiler(Compiler):
    """numba's compiler for a function that only kernels call."""

    def compile_extra(self, function: Callable[..., Any]) -> Any:
        """Compile the function into an `_InnerLibrary`."""
        library = _InnerLibrary(self.state.targetctx.codegen(), function.__qualname__)
        library.enable_object_caching()
        self.state.library = library
        return super().compile_extra(function)


class _InnerLibrary(JITCodeLibrary):
    """LLVM code of a function, neither optimised nor made into machine code."""

    @property
    def codegen(self) -> Any:
        return _NoMachineCode()

    def get_pointer_to_function(self, name: str) -> int:
        """Null, as there is no machine code. The LLVM code is complete from now on."""
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
    """Code generator of an `_InnerLibrary`, as numba calls it once a function is compiled."""

    def set_env(self, name: str, environment: object) -> None:
        """Ignore the environment, which holds Python objects: kernels use none."""

"""Compilation of kernels by numba, at less cost than by default.

Functions that only kernels call are compiled to LLVM code, which each kernel includes and optimises as a
whole. Numba by default also links and optimises each such function with those that it calls, and generates
machine code for it. Every caller then does all of this again.

This module imports numba; `taccl._internal.kernels` imports it at the first call of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from types import BuiltinFunctionType
from typing import Any
from weakref import WeakKeyDictionary

from llvmlite.binding import create_pass_builder, create_pipeline_tuning_options
from numba.core import config
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.targetconfig import TargetConfig
from numba.core.types.functions import BaseFunction

from taccl._internal.kernel_context import KernelContext


class KernelCompiler(Compiler):
    """Compiler of numba for a kernel."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.state.targetctx = KernelContext.like(self.state.targetctx)

    def compile_extra(self, function: Callable[..., Any]) -> Any:
        """Compile the function into a library of this class."""
        library = self._library_class(self.state.targetctx.codegen(), function.__qualname__)
        library.enable_object_caching()
        self.state.library = library
        return super().compile_extra(function)

    @property
    def _library_class(self) -> Any:
        return _KernelLibrary


class VectorizingCompiler(KernelCompiler):
    """Compiler of numba for a kernel whose loops are vectorized."""

    @property
    def _library_class(self) -> Any:
        return _VectorizedLibrary


class InnerCompiler(KernelCompiler):
    """Compiler of numba for a function that only kernels call."""

    @property
    def _library_class(self) -> Any:
        return _InnerLibrary


class _KernelLibrary(JITCodeLibrary):
    """Code of a kernel, with that of all functions that it reaches."""

    vectorizes = False

    def finalize(self) -> None:
        """Link all functions that the kernel reaches, and generate machine code."""
        self._linking_libraries = _callers_first(self._linking_libraries)
        super().finalize()

    def add_ir_module(self, ir_module: Any) -> None:
        """Add a function; the one that Python calls is not optimised, as it runs once per call."""
        if ir_module.name.startswith("wrapper"):
            for function in ir_module.functions:
                if not function.is_declaration:
                    function.attributes.add("noinline")
                    function.attributes.add("optnone")
        super().add_ir_module(ir_module)

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if not function.is_declaration:
                if function.linkage.name == "external":  # not inlined, as it reads what its caller writes
                    function.add_function_attribute("noinline")
                elif function.linkage.name == "linkonce_odr":
                    function.linkage = "internal"
        if not hasattr(self._codegen, "_pass_builder"):  # numba 0.61
            super()._optimize_final_module()
            return
        cheap = {"opt": 0, "cost": "cheap", "loop_vectorize": False, "slp_vectorize": False}
        passes, builder = self._codegen._module_pass_manager(**cheap)
        passes.run(self._final_module, builder)
        tuning = create_pipeline_tuning_options(int(config.OPT))  # type: ignore[attr-defined]
        # These would double the code, and most kernels run no faster, as their innermost loops are short.
        tuning.loop_vectorization, tuning.slp_vectorization = self.vectorizes, False
        builder = create_pass_builder(self._codegen._tm, tuning)
        builder.getModulePassManager().run(self._final_module, builder)


class _VectorizedLibrary(_KernelLibrary):
    vectorizes = True


class _InnerLibrary(JITCodeLibrary):
    """LLVM code of a function, without those that it calls, optimisation and machine code.

    - `needed`: Libraries of the functions that it calls.
    """

    @property
    def codegen(self) -> Any:
        return _NoMachineCode()

    def finalize(self) -> None:
        """Finish the LLVM code."""
        self.needed, self._linking_libraries = self._linking_libraries, []
        super().finalize()

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0, as there is no machine code; finish the LLVM code."""
        self._ensure_finalized()
        return 0

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:  # as numba would for each caller, in a copy
            if not function.is_declaration and function.linkage.name == "external":
                function.linkage = "linkonce_odr"

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class _NoMachineCode:
    """Code generator of an `_InnerLibrary`, with the method that numba calls after compilation."""

    def set_env(self, name: str, environment: object) -> None:
        """Ignore the environment of Python objects, as kernels use none."""


def _callers_first(libraries: Iterable[Any]) -> list[Any]:
    """Libraries and all that they need, each after those that call it: LLVM leaves out uncalled functions."""
    found: dict[Any, None] = {}

    def visit(library: Any) -> None:
        if library not in found:
            for each in getattr(library, "needed", ()):
                visit(each)
            found[library] = None

    for each in libraries:
        visit(each)
    return [*reversed(found)]


@cache
def teach_numba() -> None:
    """Make numba infer types in half the time, and take for granted that SciPy has a BLAS.

    Numba compares all options of a compilation each time it looks for the type of an operation, and looks
    for equal operations again. For BLAS, it would load ``scipy.linalg`` (0.2 s of CPU). Functions that need
    BLAS still load it.
    """
    from numba.np import linalg

    equal = TargetConfig.__eq__

    def are_equal(one: Any, other: Any) -> Any:
        return (type(one) is type(other) and one._values == other._values) or equal(one, other)

    TargetConfig.__eq__ = are_equal  # type: ignore[method-assign]
    TargetConfig.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
    BaseFunction.get_call_type = _remembering(BaseFunction.get_call_type)  # type: ignore[method-assign]
    ensure_blas, linalg.ensure_blas = linalg.ensure_blas, lambda: None
    try:
        import numba.np.arraymath  # noqa: F401  calls `ensure_blas` once, when it is imported
    finally:
        linalg.ensure_blas = ensure_blas


def _remembering(find: Callable[..., Any]) -> Callable[..., Any]:
    """`find`, the search for the signature of a call, which remembers signatures of numba's own operators."""
    known: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()

    def found(function: Any, context: Any, args: Any, kws: Any) -> Any:
        operator = function.typing_key
        if kws or not isinstance(operator, BuiltinFunctionType):
            return find(function, context, args, kws)
        signatures, key = known.setdefault(function, {}), (context, *args)
        if key in signatures:
            return signatures[key]
        signature = find(function, context, args, kws)
        if function._impl_keys.get(signature.args) is operator:  # else it depends on options
            signatures[key] = signature
        return signature

    return found

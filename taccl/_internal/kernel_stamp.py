"""Stamps of kernels, which are digests of all that is compiled into a kernel.

A stamp covers the bytecode of the kernel and of every function that it reaches by global names. It also
covers their constants, default values, closures and options, and the fields of named tuples that they create.
It leaves out comments, docstrings and line numbers.

Argument types are unknown before the first call. Each compiled signature is stored with the fields of its
named tuples (`layouts`).
"""

from __future__ import annotations

import hashlib
import importlib
import opcode
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np

#: Packages whose functions and types numba implements itself.
_KNOWN = sys.stdlib_module_names | {"numpy", "numba"}
#: Types whose values are fully described by their `repr`.
_PLAIN = (
    *(int, float, complex, bool, str, bytes, range, slice, type(None), type(...)),
    *(Enum, np.generic, np.dtype),
)

#: Modules that decide how numba compiles.
_COMPILING = ("kernels", "kernel_cache", "kernel_compiler", "kernel_context")

#: Module, qualified name and fields of a named tuple.
Layout: TypeAlias = tuple[str, str, tuple[str, ...]]


class StampedFunction:
    """Base of functions to compile: a Python function, and options of its compilation."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._function, self._options = function, options

    @property
    def stamp(self) -> str:
        """Digest of all that is compiled into the function.

        Raises `TypeError` if the function reaches a value of an unsupported type.
        """
        digest = hashlib.sha256(_compiler_source())
        for part in _Walk().parts_of(self):
            digest.update(repr(part).encode() + b"\n")
        return digest.hexdigest()


def cache_name(function: Callable[..., Any]) -> str:
    """Name of a kernel's cache files, without the ending; unlike numba's, it has no line number."""
    module = Path(function.__code__.co_filename).stem
    python = f"py{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
    return f"{module}.{function.__qualname__}.{python}".replace("<", "").replace(">", "")


def layouts(kinds: Iterable[Any]) -> tuple[Layout, ...]:
    """Module, name and fields of each named-tuple class among numba types, also of those inside tuples."""
    found: set[Layout] = set()
    for kind in kinds:
        found.update(layouts(getattr(kind, "types", ())))
        if hasattr(kind, "instance_class"):
            found.add(_layout(kind.instance_class))
    return tuple(sorted(found))


def are_current(expected: Iterable[Layout]) -> bool:
    """True if each expected named tuple exists in the present sources, with the same fields."""
    try:
        return all(
            _layout(attrgetter(name)(importlib.import_module(module))) == (module, name, fields)
            for module, name, fields in expected
        )
    except (ImportError, AttributeError):
        return False


def _layout(made: Any) -> Layout:
    return made.__module__, made.__qualname__, made._fields


@cache
def compiler_versions() -> tuple[str, ...]:
    """Versions of the packages that generate code."""
    from importlib.metadata import version  # the import takes 0.02 s, and only compilation needs it

    return tuple(map(version, ("numba", "llvmlite", "numpy")))


@cache
def _compiler_source() -> bytes:
    """Source of the modules that decide how numba compiles."""
    folder = Path(__file__).parent
    return b"".join((folder / f"{name}.py").read_bytes() for name in _COMPILING)


class _Walk:
    """Walk over the functions that a kernel reaches, each described at its first visit."""

    def __init__(self) -> None:
        self._seen: dict[Any, int] = {}

    def parts_of(self, value: Any, names: Iterable[str] = ()) -> Iterator[object]:
        """Plain values that together describe a value.

        - `names`: Attributes to describe if the value is a module.
        """
        if isinstance(value, StampedFunction):
            yield sorted(value._options.items())
            value = value._function
        elif hasattr(value, "targetoptions"):  # compiled by a decorator of numba
            yield sorted(value.targetoptions.items())
            value = value.py_func
        package = str(getattr(value, "__module__", None) or type(value).__module__).partition(".")[0]
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        if isinstance(value, _PLAIN):
            yield type(value).__qualname__, value
        elif isinstance(value, CodeType):
            yield from self._code(value, None)
        elif isinstance(value, (tuple, list)):
            yield type(value).__qualname__, len(value), getattr(value, "_fields", None)
            for each in value:
                yield from self.parts_of(each)
        elif isinstance(value, (frozenset, dict)):
            items = value.items() if isinstance(value, dict) else value
            yield sorted(repr(list(self.parts_of(each))) for each in items)
        elif isinstance(value, np.ndarray):
            yield str(value.dtype), value.shape, value.tobytes()
        elif isinstance(value, ModuleType):
            yield from self._module(value, names)
        elif package in _KNOWN and name is not None and callable(value):
            yield package, name
        elif isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, type) and hasattr(value, "_fields"):
            yield _layout(value)
            yield from self.parts_of(value._field_defaults)  # type: ignore[attr-defined]
        elif isinstance(value, type) and issubclass(value, Enum):
            yield name, list(value)
        elif isinstance(value, type) and issubclass(value, BaseException):
            yield name
        else:
            raise TypeError(f"a kernel reaches {value!r}, of a type that its stamp does not support")

    def _module(self, module: ModuleType, names: Iterable[str]) -> Iterator[object]:
        yield module.__name__
        key = (module, tuple(names))
        if key in self._seen or module.__name__.partition(".")[0] in _KNOWN:
            return
        self._seen[key] = len(self._seen)
        for name in names:
            if hasattr(module, name):
                yield name
                yield from self.parts_of(getattr(module, name), names)

    def _function(self, function: FunctionType) -> Iterator[object]:
        number = len(self._seen)
        found = self._seen.setdefault(function, number)
        yield "function", found
        if found < number:
            return
        code = function.__code__
        yield from self._code(code, function.__doc__)
        yield from self.parts_of((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            yield from self.parts_of(cell.cell_contents)
        # `co_names` also has attributes: those of modules are needed; others that equal a global do no harm.
        names = sorted({name for each in _nested(code) for name in each.co_names})
        for name in names:
            if name in function.__globals__:
                yield name
                yield from self.parts_of(function.__globals__[name], names)

    def _code(self, code: CodeType, doc: str | None) -> Iterator[object]:
        """Bytecode with its names and constants, without the docstring."""
        yield code.co_code, code.co_exceptiontable, code.co_flags, code.co_argcount, code.co_posonlyargcount
        yield code.co_kwonlyargcount, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        constants = code.co_consts
        loads_first = (opcode.opmap["LOAD_CONST"], 0) in zip(
            code.co_code[::2], code.co_code[1::2], strict=True
        )
        has_doc = bool(constants) and constants[0] is doc and not loads_first
        yield from self.parts_of(constants[has_doc:])


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _nested(each)

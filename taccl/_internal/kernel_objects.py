"""Machine code of kernels on disk, called without numba, whose import takes 0.2 s of CPU.

Numba's cache needs numba, as it stores numba's types. When a kernel is compiled, its object code is therefore
also stored with a plain description of its arguments. LLVM then loads it (0.03 s), and `ctypes` calls it. The
arguments are passed as in `taccl._internal.kernel_context`.

Some kernels have no such code, and numba calls them: those that allocate memory, and those with arguments of
other kinds than numbers, arrays and named tuples of arrays.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from taccl._internal.address_space import require_free_space
from taccl._internal.kernel_stamp import Layout, are_current, cache_name, compiler_versions

#: Description of a value: ``"int64"``, ``"float64"`` or ``"bool"``; for an array
#: ``("array", data type, number of axes, layout)``; for a named tuple ``("tuple", module, name, fields)``.
Kind: TypeAlias = "str | tuple[Any, ...]"

#: Version of the files; others are ignored.
_FORMAT = 1
#: Symbols of numba's runtime that only the function for calls from Python needs, which is not called here.
_FOR_PYTHON = (
    *("numba_adapt_ndarray", "numba_do_raise", "numba_runtime_build_excinfo_struct", "numba_unpickle"),
    *("numba_gil_ensure", "numba_gil_release"),
)
_TYPES = {"int64": ctypes.c_int64, "float64": ctypes.c_double, "bool": ctypes.c_uint8}
#: Fields of an array before its shape: two references, number of elements, bytes of an element, data.
_ARRAY_TYPES = (*(ctypes.c_void_p,) * 2, *(ctypes.c_int64,) * 2, ctypes.c_void_p)


class Unsupported(Exception):  # noqa: N818  it is no error: numba calls the kernel
    """The value or the code is of a kind that only numba supports."""


class _Code(NamedTuple):
    """Object code for arguments of given kinds.

    - `symbol`: Name of the function in the code.
    - `returns`: Kind of its result; None for no result.
    - `processor`: Processor for which it was compiled.
    - `unresolved`: Names of the symbols that it does not define.
    - `text`: The object code.
    """

    symbol: str
    returns: Kind | None
    processor: tuple[str, str]
    unresolved: tuple[str, ...]
    text: bytes


def allows_objects(options: dict[str, Any]) -> bool:
    """True if a kernel with these options of its compilation may run without numba: it allocates nothing."""
    return options.get("_nrt") is False and os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"


def objects_in(folder: Path, function: Callable[..., Any]) -> Path:
    """File in a folder of caches for the object code of a kernel."""
    return folder / f"{cache_name(function)}.obj"


def kinds_of(values: tuple[Any, ...]) -> tuple[Kind, ...]:
    """Kinds of the arguments of a kernel; raises `Unsupported` for other kinds."""
    return tuple(map(_kind_of, values))


def _kind_of(value: Any) -> Kind:
    if isinstance(value, np.ndarray):
        flags = value.flags
        if not (flags.writeable and flags.aligned and flags.c_contiguous and value.dtype.isnative):
            raise Unsupported
        return "array", value.dtype.str, value.ndim, "C"
    if isinstance(value, bool | np.bool_):
        return "bool"
    if isinstance(value, float):
        return "float64"
    if type(value) is int or isinstance(value, np.int64):
        if not -(2**63) <= value < 2**63:
            raise Unsupported
        return "int64"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        made = type(value)
        return "tuple", made.__module__, made.__qualname__, made._fields, kinds_of(value)
    raise Unsupported


def is_kept(path: Path, stamp: str) -> bool:
    """True if a file has code with the given stamp, for named tuples with their present fields."""
    return any(are_current(_layouts(kinds)) for kinds in _read(path, stamp))


def _layouts(kinds: Iterable[Any]) -> Iterator[Layout]:
    """Layout of each named tuple among kinds of arguments, also of those inside others."""
    for kind in kinds:
        if kind[0] == "tuple":
            yield kind[1], kind[2], kind[3]
            yield from _layouts(kind[4])


def _read(path: Path, stamp: str) -> dict[tuple[Kind, ...], _Code]:
    """{kinds of arguments: code} in a file; empty if it has another stamp or is damaged."""
    try:
        heading, codes = pickle.loads(path.read_bytes())
        return codes if heading == (_FORMAT, compiler_versions(), stamp) else {}
    except Exception:  # no file, or a damaged one, for which pickle may raise any error
        return {}


def keep(
    path: Path, stamp: str, kinds: tuple[Kind, ...], symbol: str, returns: Kind | None, text: bytes
) -> None:
    """Add code for arguments of some kinds to a file; raises `Unsupported` if it needs numba's runtime."""
    code = _Code(symbol, returns, _processor(), tuple(_unresolved(text)), text)
    codes = _read(path, stamp) | {kinds: code}
    part = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        part.write_bytes(pickle.dumps(((_FORMAT, compiler_versions(), stamp), codes)))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def load(path: Path, stamp: str, kinds: tuple[Kind, ...]) -> Callable[..., Any] | None:
    """Function with the code of a file for arguments of some kinds; None if there is no such code."""
    code = _read(path, stamp).get(kinds)
    if code is None:
        return None
    require_free_space()
    import llvmlite.binding as llvm

    engine = _engine()  # LLVM knows the symbols of this process once it has a linker
    abort = llvm.address_of_symbol("abort")
    if code.processor != _processor() or not abort:
        return None
    for name in code.unresolved:
        if not llvm.address_of_symbol(name):
            if name not in _FOR_PYTHON:
                return None
            llvm.add_symbol(name, abort)  # numba replaces it when it is imported
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.text))
    engine.finalize_object()
    return _caller(engine.get_function_address(code.symbol), kinds, code.returns)


@cache
def _engine() -> Any:
    """LLVM's linker of object code, which keeps all code for the life of the process."""
    import llvmlite.binding as llvm

    _processor()
    machine = llvm.Target.from_default_triple().create_target_machine(codemodel="jitdefault", jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


@cache
def _processor() -> tuple[str, str]:
    """Name and features of the processor."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def _caller(address: int, kinds: tuple[Kind, ...], returns: Kind | None) -> Callable[..., Any]:
    """Python function that calls a compiled one; it runs without the GIL.

    The compiled function gets a place for its result, one for an exception, and the arguments. It returns a
    status, which is 0 unless it raises an exception. Kernels raise none.
    """
    types = [each for kind in kinds for each in _types_of(kind)]
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *types)(address)
    result_type: Any = ctypes.c_void_p if returns is None else _TYPES[str(returns)]

    def call(*args: Any) -> Any:
        words: list[Any] = []  # keeps the words of named tuples until the function returns
        flat = [each for kind, value in zip(kinds, args, strict=True) for each in _flat(kind, value, words)]
        result, error = result_type(), ctypes.c_void_p()
        if function(ctypes.addressof(result), ctypes.addressof(error), *flat):
            raise RuntimeError("a kernel raised an exception")
        return None if returns is None else bool(result.value) if returns == "bool" else result.value

    return call


def _types_of(kind: Kind) -> tuple[Any, ...]:
    """C types by which an argument is passed."""
    if isinstance(kind, str):
        return (_TYPES[kind],)
    if kind[0] == "tuple":
        return (ctypes.c_void_p,)
    return *_ARRAY_TYPES, *(ctypes.c_int64,) * (2 * kind[2])


def _flat(kind: Kind, value: Any, words: list[Any]) -> Iterator[Any]:
    """Values by which an argument is passed; appends the words of named tuples to `words`."""
    if isinstance(kind, str):
        yield value
    elif kind[0] == "tuple":
        found = [each for pair in zip(kind[4], value, strict=True) for each in _words(*pair, words)]
        words.append((ctypes.c_int64 * len(found))(*found))
        yield ctypes.addressof(words[-1])
    else:
        yield from (None, None, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides)


def _words(kind: Kind, value: Any, words: list[Any]) -> Iterator[int]:
    """Words of a field of a named tuple."""
    if kind == "float64":
        yield struct.unpack("=q", struct.pack("=d", value))[0]
    elif isinstance(kind, str):
        yield int(value)
    elif kind[0] == "tuple":
        yield from _flat(kind, value, words)
    else:
        yield from (value.ctypes.data, *value.shape)


def _unresolved(text: bytes) -> Iterator[str]:
    """Names of the symbols that object code does not define; raises `Unsupported` for other formats than ELF.

    The format is that of Linux on 64-bit processors whose lowest byte comes first.
    """
    if text[:6] != b"\x7fELF\x02\x01" or sys.byteorder != "little":
        raise Unsupported
    (begin,) = struct.unpack_from("<Q", text, 0x28)
    size, count = struct.unpack_from("<HH", text, 0x3A)
    # Of each section: name, type, flags, address, offset, size, link, info, alignment, bytes of an entry.
    sections = [struct.unpack_from("<IIQQQQIIQQ", text, begin + size * k) for k in range(count)]
    for _, kind, _, _, offset, length, link, *_ in sections:
        if kind != 2:  # no table of symbols
            continue
        names = sections[link][4]
        for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", text[offset : offset + length]):
            if name and not section:
                yield text[names + name : text.index(b"\0", names + name)].decode()

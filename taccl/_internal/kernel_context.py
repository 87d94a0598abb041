"""Code that numba generates for named tuples and for elements of arrays in kernels, shorter than by default.

Numba by default passes a named tuple as all fields of all its arrays, often some hundred values, which each
function packs and unpacks. In kernels, a named tuple is a pointer, and a function loads what it uses. The
address of an array's element takes few instructions, where numba's code covers slices as well.

Python creates named tuples, and they never change while a kernel runs.

This module imports numba; `taccl._internal.kernels` imports it at the first call of a kernel.
"""

from __future__ import annotations

import operator
from functools import cache, partial
from itertools import accumulate
from typing import Any

from llvmlite.ir import Constant, IntType
from numba.core import cgutils, types
from numba.core.cpu import CPUContext
from numba.core.datamodel.manager import DataModelManager
from numba.core.datamodel.models import PrimitiveModel
from numba.core.datamodel.registry import default_manager
from numba.np.arrayobj import load_item, store_item

_WORD = IntType(64)


class KernelContext(CPUContext):
    """Context of the compilation of kernels."""

    is_wrapper = False

    @classmethod
    def like(cls, context: CPUContext) -> KernelContext:
        """Same context, with code for named tuples and elements as in kernels."""
        made = cls.__new__(cls)
        made.__dict__.update(context.__dict__)
        made.data_model_manager = _models()
        return made

    def create_cpython_wrapper(self, *args: Any, **kwargs: Any) -> None:
        """Generate a function that Python calls, which writes named tuples to the stack."""
        wrapper = self.subtarget(is_wrapper=True)
        super(KernelContext, wrapper).create_cpython_wrapper(*args, **kwargs)

    def make_tuple(self, builder: Any, typ: Any, values: Any) -> Any:
        """Code that creates a tuple."""
        if not isinstance(typ, types.BaseNamedTuple):
            return super().make_tuple(builder, typ, values)
        if not self.is_wrapper:
            raise NotImplementedError(f"kernels get named tuples from Python, and cannot create a {typ.name}")
        return _write(self, builder, typ, values)

    def get_getattr(self, typ: Any, attr: str) -> Any:
        """Code for an attribute."""
        return _read_named if isinstance(typ, types.BaseNamedTuple) else super().get_getattr(typ, attr)

    def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        """Code for an operation."""
        if fn == "static_getitem" and isinstance(sig.args[0], types.BaseNamedTuple):
            return lambda builder, args: _read(self, builder, sig.args[0], *args)
        if isinstance(fn, types.Callable) and sig.args and _is_element(*sig.args[:2]):
            if fn.get_impl_key(sig) is operator.getitem:
                return partial(_get_element, self, sig)
            if fn.get_impl_key(sig) is operator.setitem and not isinstance(sig.args[2], types.Array):
                return partial(_set_element, self, sig)
        return super().get_function(fn, sig, _firstcall)


class _Reference(PrimitiveModel):
    """Pointer to the words of a named tuple.

    An array takes a word for its data and one for each length, then one for each stride if it is not
    contiguous. Any other field takes one word.

    - `places`: Index of the first word of each field, then the number of words.
    """

    def __init__(self, models: Any, kind: Any) -> None:
        super().__init__(models, kind, _WORD.as_pointer())
        self.places = [*accumulate(map(_num_words, kind.types), initial=0)]


@cache
def _models() -> Any:
    """Data models of numba for kernels: named tuples are pointers."""
    models = DataModelManager().chain(default_manager)
    models.register(types.NamedTuple, _Reference)
    models.register(types.NamedUniTuple, _Reference)
    return models


def _num_words(kind: Any) -> int:
    if not isinstance(kind, types.Array):
        return 1
    return 1 + kind.ndim * (1 if kind.layout == "C" else 2)


def _pointer(builder: Any, words: Any, place: int, kind: Any) -> Any:
    """Pointer to a word as a value of type `kind`."""
    found = builder.gep(words, [_WORD(place)], inbounds=True)
    return found if kind == _WORD else builder.bitcast(found, kind.as_pointer())


def _write(context: KernelContext, builder: Any, typ: Any, values: Any) -> Any:
    """Code that writes a named tuple to the stack; returns a pointer to it."""
    models = context.data_model_manager
    *places, num_words = models[typ].places
    made = cgutils.alloca_once(builder, _WORD, size=num_words)
    for place, kind, value in zip(places, typ.types, values, strict=True):
        model = models[kind]
        words = [model.as_data(builder, value)]
        if isinstance(kind, types.Array):
            at = model.get_field_position
            sizes = ("shape",) if kind.layout == "C" else ("shape", "strides")
            words = [builder.extract_value(value, at("data"))]
            words += [builder.extract_value(value, [at(s), i]) for s in sizes for i in range(kind.ndim)]
        for k, word in enumerate(words):
            builder.store(word, _pointer(builder, made, place + k, word.type))
    return made


def _read_named(context: KernelContext, builder: Any, typ: Any, words: Any, attr: str) -> Any:
    """Code that reads a field of a named tuple by its name."""
    return _read(context, builder, typ, words, typ.fields.index(attr))


def _read(context: KernelContext, builder: Any, typ: Any, words: Any, index: int) -> Any:
    """Code that reads a field of a named tuple."""

    def load(place: int, kind: Any = _WORD) -> Any:
        found = builder.load(_pointer(builder, words, place, kind))
        found.set_metadata("invariant.load", builder.module.add_metadata([]))
        return found

    models = context.data_model_manager
    place, kind = models[typ].places[index], typ.types[index]
    model = models[kind]
    if not isinstance(kind, types.Array):
        return model.from_data(builder, load(place, model.get_data_type()))
    ndim, at = kind.ndim, model.get_field_position
    shape = [load(place + 1 + i) for i in range(ndim)]
    strides = [_WORD(context.get_abi_sizeof(context.get_data_type(kind.dtype)))] * ndim
    fields = {"itemsize": strides[-1], "data": load(place, models[model.get_type("data")].get_value_type())}
    size = shape[-1]
    for i in reversed(range(ndim - 1)):
        strides[i] = builder.mul(strides[-1], size)
        size = builder.mul(size, shape[i])
    if kind.layout != "C":
        strides = [load(place + 1 + ndim + i) for i in range(ndim)]
    array = Constant(context.get_value_type(kind), None)
    for name, value in (fields | {"nitems": size}).items():
        array = builder.insert_value(array, value, at(name))
    for name, values in (("shape", shape), ("strides", strides)):
        for i, value in enumerate(values):
            array = builder.insert_value(array, value, [at(name), i])
    return array


def _is_element(array: Any, index: Any = None, *_: Any) -> bool:
    """True if these are types of a contiguous array, and of an index for each of its axes."""
    if not isinstance(array, types.Array) or array.layout != "C" or isinstance(array.dtype, types.Record):
        return False
    kinds = _kinds(index)
    return len(kinds) == array.ndim and all(isinstance(kind, types.Integer) for kind in kinds)


def _kinds(index: Any) -> tuple[Any, ...]:
    """Types of the numbers of an index."""
    return tuple(getattr(index, "types", (index,)))


def _element(context: KernelContext, builder: Any, sig: Any, args: Any) -> Any:
    """Pointer to an element; negative indices count from the end."""
    kind, (array, index) = sig.args[0], args[:2]
    at = context.data_model_manager[kind].get_field_position
    is_tuple, kinds = isinstance(sig.args[1], types.BaseTuple), _kinds(sig.args[1])
    place = _WORD(0)
    for i, each in enumerate(kinds):
        k = builder.extract_value(index, i) if is_tuple else index
        k = context.cast(builder, k, each, types.intp if each.signed else types.uintp)
        length = builder.extract_value(array, [at("shape"), i])
        if each.signed:
            k = builder.select(builder.icmp_signed("<", k, _WORD(0)), builder.add(k, length), k)
        place = k if i == 0 else builder.add(builder.mul(place, length), k)
    return builder.gep(builder.extract_value(array, at("data")), [place], inbounds=True)


def _get_element(context: KernelContext, sig: Any, builder: Any, args: Any) -> Any:
    """Code that reads an element."""
    return load_item(context, builder, sig.args[0], _element(context, builder, sig, args))


def _set_element(context: KernelContext, sig: Any, builder: Any, args: Any) -> Any:
    """Code that writes an element."""
    kind, value = sig.args[0], context.cast(builder, args[2], sig.args[2], sig.args[0].dtype)
    store_item(context, builder, kind, value, _element(context, builder, sig, args))

"""Operators of PyTorch's ATen library as one kind of operation: shapes, labels, values and program text.

An operation of kind `aten` calls one operator, such as a convolution or a top-k, on each rank's own operands.
Its field `labels` names the axes of operands and result, in the notation of an Einstein sum::

    n c . ., o c . . -> n o . .

Axes of the same name match: if an operand is sliced along an axis, so is the result. An axis whose name the
result lacks is summed over, so if it is sliced, results are partial sums. ``.`` is an axis that must not be
sliced, ``1`` an axis of length 1 that is broadcast. ``*`` can only be the first axis: the operator is called
for each of its indices, and the results are stacked. If each rank calls the operator on its own tensors, the
indices are the ranks.
"""

from __future__ import annotations

import functools
import json
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl._internal.names import install_extra
from taccl.errors import WorkloadError
from taccl.workload.kind_rules import labels_by_name, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from taccl.workload.kind_rules import Labels, Shape
    from taccl.workload.operations import Operation

    Array = NDArray[Any]

_NAME = re.compile(r"aten\.[a-z]\w*\.[A-Za-z]\w*|aten\._[a-z]\w*\.[A-Za-z]\w*", re.ASCII)
_TYPE = re.compile(r"[a-z]+\d*", re.ASCII)


def operand(place: int) -> dict[str, int]:
    """Placeholder in the JSON of arguments for the operand at a position."""
    return {"operand": place}


@functools.lru_cache(maxsize=4096)
def _words(labels: str) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """(names of the axes of each operand, names of the axes of the result)."""
    read, _, made = labels.partition("->")
    return tuple(tuple(each.split()) for each in read.split(",")), tuple(made.split())


def names_of(operation: Operation, shapes: Sequence[Shape]) -> tuple[Sequence[Sequence[str]], Sequence[str]]:
    """Names of the axes of each operand and of the result; all are ``.`` if the field `labels` is empty."""
    if not operation.labels:
        return [len(each) * "." for each in shapes], len(operation.shape) * "."
    read, made = _words(operation.labels)
    return (read if shapes else ()), made


def shape_of(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Check an operation's labels, operator and arguments; return the shape that it states for its result."""
    read, made = names_of(operation, shapes)
    found = [len(each) for each in read], len(made)
    if found != ([len(each) for each in shapes], len(operation.shape)):
        told = ", ".join(map(str, shapes)) or "no operands"
        said = f"has labels {operation.labels!r} for operands of shapes {told} and a result of"
        raise refused(operation, f"{said} {operation.shape}; name each axis")
    if any("*" in each[1:] for each in (*read, made)) or (made[:1] == ("*",)) != any(
        "*" in each for each in read
    ):
        raise refused(operation, f"has labels {operation.labels!r}; '*' can only be the first axis, of both")
    for axis, name in enumerate(made):
        length = operation.shape[axis]
        named = [each for each in zip(read, shapes, strict=True) if name in each[0] and name not in ".1"]
        other = next((shape for names, shape in named if shape[[*names].index(name)] != length), None)
        if other is not None or (name not in ".1" and [*made].count(name) > 1):
            said = f"has labels {operation.labels!r}, but axis {name} of an operand of shape {other}"
            raise refused(operation, f"{said} differs from the result's {operation.shape}")
    if not _NAME.fullmatch(operation.call) or operation.call.startswith("aten.from_file."):
        said = f"calls {operation.call!r}; expected an operator of ATen with its overload, such as"
        raise refused(operation, f"{said} 'aten.topk.default'")
    _texts(operation, [""] * len(shapes))
    return operation.shape


def labels_of(operation: Operation, shapes: Sequence[Shape], out: Shape) -> Labels:
    """Labels of each operand's axes: matching result axis, None if broadcast, negative if summed or whole."""
    return labels_by_name(*names_of(operation, shapes))


def value_of(operation: Operation, read: Sequence[Array]) -> Any:
    """Values of the result, computed by PyTorch. Raises `WorkloadError` if it is not installed."""
    try:
        import torch
    except ImportError:
        said = f"calls {operation.call}, which needs PyTorch; install it with {install_extra('torch')}"
        raise WorkloadError(said, where=operation.name) from None
    try:
        called: Any = functools.reduce(getattr, operation.call.split("."), torch.ops)
    except AttributeError:
        raise refused(operation, f"calls {operation.call}, which PyTorch {torch.__version__} lacks") from None
    if called._schema.is_mutable:
        raise refused(operation, f"calls {operation.call}, which writes its operands; name another operator")

    def made(*operands: Any) -> Any:
        given, named = _arguments(
            operation, lambda place: operands[place], lambda dtype: getattr(torch, dtype), "cpu"
        )
        found = called(*given, **named)
        return found if operation.item is None else found[operation.item]

    operands = [torch.from_numpy(np.array(each, order="C")) for each in read]
    marks = _marked(operation)
    if not any(marks):
        return made(*operands).numpy()
    count = next(len(each) for each, mark in zip(operands, marks, strict=True) if mark)
    parts = [
        made(*(each[i] if mark else each for each, mark in zip(operands, marks, strict=True)))
        for i in range(count)
    ]
    return torch.stack(parts).numpy()


def text_of(operation: Operation, operands: Sequence[str]) -> str:
    """PyTorch expression of the result, from the expressions of the operands."""
    marks = _marked(operation)
    if not any(marks):
        return _texts(operation, operands)
    names = [f"x{place}" for place in range(len(operands))]
    inner = _texts(operation, names)
    return f"each_own(lambda {', '.join(names)}: {inner}, {tuple(marks)!r}, {', '.join(operands)})"


def _marked(operation: Operation) -> list[bool]:
    """For each operand, True if its first axis is ``*`` (one index per call); empty without `labels`."""
    return [each[:1] == ("*",) for each in _words(operation.labels)[0]] if operation.labels else []


def _texts(operation: Operation, operands: Sequence[str]) -> str:
    """PyTorch expression of one call."""
    given, named = _arguments(
        operation,
        lambda place: _Text(operands[place]),
        lambda dtype: _Text(f"torch.{dtype}"),
        _Text("device()"),
    )
    shown = [*map(_text, given), *(f"{name}={_text(value)}" for name, value in named.items())]
    item = "" if operation.item is None else f"[{operation.item}]"
    return f"torch.ops.{operation.call}({', '.join(shown)}){item}"


class _Text(str):
    """Python expression, which `_text` inserts as it is, and not as a string in quotes."""

    __slots__ = ()


def _text(value: Any) -> str:
    if isinstance(value, _Text):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)


def _arguments(
    operation: Operation, operand: Callable[[int], Any], typed: Callable[[str], Any], device: str
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments of a call. Raises `WorkloadError` if they are not of the expected form.

    - `operand`: Value of the operand at a position.
    - `typed`: Value of an element type, by name.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(each) for each in value]
        if not isinstance(value, dict):
            return value
        ((name, inner),) = value.items()
        if name == "operand":
            return operand(inner)
        if name == "device":
            return device
        if name != "dtype" or not _TYPE.fullmatch(inner):
            raise ValueError
        return typed(inner)

    try:
        given, named = json.loads(operation.arguments)
        if not all(each.isidentifier() for each in named):
            raise ValueError
        return [plain(each) for each in given], {name: plain(each) for name, each in named.items()}
    except (ValueError, TypeError, IndexError, AttributeError, RecursionError):
        said = (
            f"has arguments {operation.arguments[:80]!r}; expected JSON of a list and of an object, in which"
        )
        said += ' {"operand": 0} is the first operand, and {"dtype": "float32"} a type'
        raise refused(operation, said) from None


#: Source code of a function in generated modules that calls an operator on each rank's own tensors.
EACH_OWN = '''
def each_own(call, marks, *operands):
    """Stack the results of `call` on each index of the first axis of those operands that are marked."""
    count = next(len(each) for each, mark in zip(operands, marks) if mark)
    return torch.stack([
        call(*(each[i] if mark else each for each, mark in zip(operands, marks))) for i in range(count)
    ])
'''

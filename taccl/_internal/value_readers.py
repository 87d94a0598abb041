"""Readers of values by annotations: each checks and converts a value, and words the error for a wrong one.

Annotations stay text, so that they need no imports. Types such as ``Count`` (`arguments`) are stricter than
the Python types that they stand for.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import math
import numbers
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, get_args, get_origin

import numpy as np

from taccl._internal.names import did_you_mean, noun, quoted
from taccl._internal.units import exact, parse_size, parse_time_us
from taccl.errors import InputError

_MAX_WHOLE = 2**63 - 1
#: Max seconds of a time limit, some 31 years; clocks and solvers fail for far longer ones.
MOST_S = 1e9
_A_SHARE = "a share such as 0.01 or '1%'; above 1 with a percent sign"


@dataclass(frozen=True, slots=True)
class Reader:
    """Check and conversion of values for an annotation.

    - `expected`: Description of valid values, for messages.
    - `read`: Function of a value and its parameter's name; returns the converted value or raises
      `InputError`.
    - `family`: Kinds of values that it reads ("number", "text", "several"). If all readers of a union fail,
      the error is that of a reader whose family includes the value.
    - `classes`: Names of classes whose instances are valid.
    - `plain`: Types whose values need no conversion, for speed.
    """

    expected: str
    read: Callable[[Any, str], Any]
    family: str = ""
    classes: tuple[str, ...] = ()
    plain: frozenset[type] = frozenset()


def whole_number(number: object, where: str, *, at_least: int | None = None) -> int:
    """Convert a whole number of any type to `int`, or raise `InputError`.

    - `where`: Place of the number, for the message of the error.
    - `at_least`: Min value. If it is given, the number must also be less than 2**63.
    """
    if type(number) is int:
        whole: int | None = number
    else:
        whole = None if isinstance(number, (bool, np.bool_)) else _whole(number)
    if whole is None or (at_least is not None and whole < at_least):
        raise InputError(f"found {quoted(number)}; expected {_whole_words(at_least)}", where=where)
    if at_least is not None and whole > _MAX_WHOLE:
        raise InputError(f"found {quoted(number)}; expected less than 2**63", where=where)
    return whole


def _whole(number: Any) -> int | None:
    try:
        return int(operator.index(number))
    except TypeError:
        if isinstance(number, numbers.Rational):
            return int(number.numerator) if number.denominator == 1 else None
        is_real = isinstance(number, (numbers.Real, Decimal))
        whole = is_real and math.isfinite(number) and not number % 1
        return int(number) if whole else None


def _whole_words(at_least: int | None) -> str:
    return "a whole number" if at_least is None else f"a whole number of at least {at_least}"


def _count(at_least: int) -> Reader:
    return Reader(_whole_words(at_least), functools.partial(whole_number, at_least=at_least), "number")


def _finite(value: Any, where: str) -> float:
    is_real = isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
    try:
        number = float(value) if is_real else math.nan
    except OverflowError:  # a whole number or a fraction beyond the largest float
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"found {quoted(value)}; expected a finite number", where=where)
    return number


def _extended(value: Any, where: str) -> float:
    if isinstance(value, str) and value in ("inf", "-inf"):
        value = float(value)
    if isinstance(value, float) and math.isinf(value):
        return value
    return _finite(value, where)


def _seconds(value: Any, where: str, *, zero: bool = False) -> float:
    expected = (
        f"expected a {'finite' if zero else 'positive'} number of seconds, or a time such as '60s' or '5min'"
    )
    try:
        has_unit = isinstance(value, str) and value.strip()[-1:].isalpha()
        seconds = float(parse_time_us(value) / 10**6) if has_unit else _finite(value, where)
    except (InputError, OverflowError):
        seconds = -1.0
    if seconds < 0 or (seconds == 0 and not zero):
        raise InputError(f"found {quoted(value)}; {expected}", where=where)
    return min(seconds, MOST_S)


def share(value: Any, where: str) -> float:
    """Convert a share, such as 0.01 or ``"1%"``, or raise `InputError`.

    A number above 1 without a percent sign is refused, as it is likely meant as a percentage.
    """
    text = value.strip() if isinstance(value, str) else ""
    try:
        found = _finite(float(text.removesuffix("%")) if text else value, where)
    except (InputError, OverflowError, ValueError):
        found = -1.0
    if found < 0 or (found > 1 and not text.endswith("%")):
        raise InputError(f"found {quoted(value)}; expected {_A_SHARE}", where=where)
    return found / 100 if text.endswith("%") else found


def _bytes(value: Any, where: str) -> int:
    if not isinstance(value, str):
        value = whole_number(value, at_least=1, where=where)
    return parse_size(value, where=where)


def _megabytes(value: Any, where: str) -> int:
    if isinstance(value, str):
        return max(1, parse_size(value, where=where) // 10**6)
    return whole_number(value, at_least=1, where=where)


def _number(value: Any, where: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (int, float, str, Fraction)):
        raise InputError(f"found {quoted(value)}; expected a finite number", where=where)
    return value


def _fraction(value: Any, where: str) -> Fraction:
    return exact(_number(value, where), where=where)


def _such(
    fits: Callable[[Any], bool],
    expected: str,
    family: str = "",
    *,
    make: Any = None,
    plain: type | None = None,
) -> Reader:
    """Reader of values that fulfil `fits`; `make` converts them if given."""

    def read(value: Any, where: str) -> Any:
        if not fits(value):
            raise InputError(f"found {quoted(value)}; expected {expected}", where=where)
        return make(value) if make else value

    return Reader(expected, read, family, plain=frozenset({plain} if plain else ()))


def _is_a(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


KINDS = {
    "int": Reader("a whole number", whole_number, "number", plain=frozenset({int})),
    "Count": _count(1),
    "Natural": _count(0),
    "AtLeastTwo": _count(2),
    **dict.fromkeys(
        ("Bytes", "Size"), Reader("a size such as '1MB', or a number of bytes", _bytes, "number text")
    ),
    "Megabytes": Reader("a whole number of MB, or a size such as '4GB'", _megabytes, "number text"),
    "Seconds": Reader("a positive number of seconds", _seconds, "number text"),
    "Duration": Reader("a number of seconds", functools.partial(_seconds, zero=True), "number text"),
    "Share": Reader(_A_SHARE, share, "number text"),
    "float": Reader("a finite number", _finite, "number"),
    "Extended": Reader("a finite number, 'inf' or '-inf'", _extended, "number text"),
    "Fraction": Reader("a number that is not negative", _fraction, "number text"),
    "Number": Reader(
        "a number that is not negative", _number, "number text", plain=frozenset({int, Fraction})
    ),
    "bool": _such(_is_a(bool, np.bool_), "True or False", make=bool, plain=bool),
    "str": _such(_is_a(str), "text", "text", plain=str),
    "PathLike": _such(_is_a(os.PathLike), "a path"),
    "Callable": _such(lambda value: callable(value) and not isinstance(value, type), "a function"),
    "None": _such(_is_a(type(None)), "None", plain=type(None)),
}


#: Maximum number of items read from an iterable, which may be endless.
_MAX_ITEMS = 1_000_000
_SEVERAL = ("Collection", "Iterable", "Sequence", "frozenset", "list", "tuple")
_UNCHECKED = ("Any", "ArrayLike", "Column", "Contributions", "NDArray", "Self", "object")
_HINTS = {
    "Cache": "taccl.Cache(folder)",
    "Collective": "taccl.collectives.make(name, num_ranks) makes one",
    "Problem": "a sketch's apply, or taccl.make_problem, makes one; that of a schedule is schedule.problem",
    "Program": "taccl.lower makes one of a schedule",
    "Result": "taccl.synthesize returns one",
    "Schedule": "taccl.synthesize finds one, and taccl.load reads one from a file",
    "SearchParameters": "taccl.SearchParameters.from_dict or .load makes them",
    "Sketch": "taccl.load_sketch(name) reads one",
    "Topology": "taccl.topologies.parse(name) makes one",
}


def reader_of(annotation: object, scope: Mapping[str, Any]) -> Reader | None:
    """Reader of the values that an annotation admits; None if any value is valid.

    - `scope`: Global names of the annotated function's module.
    """
    return None if isinstance(annotation, type) else _kind(_parsed(annotation), scope)


def _parsed(annotation: object) -> ast.expr:
    if annotation is inspect.Parameter.empty:
        return ast.Name("Any")
    return ast.parse(str(annotation), mode="eval").body


def _kind(node: ast.expr, scope: Mapping[str, Any]) -> Reader | None:
    """Reader of the values that a part of an annotation admits; None if any value is valid."""
    if isinstance(node, ast.BinOp):
        return _any_of(_alternatives(node), scope)
    if isinstance(node, ast.Constant):
        return KINDS["None"] if node.value is None else _kind(_parsed(node.value), scope)
    inner: list[ast.expr] = []
    if isinstance(node, ast.Subscript):
        inner = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        node = node.value
    name = str(getattr(node, "attr", getattr(node, "id", "")))
    if name == "Literal":
        return _one_of(tuple(ast.literal_eval(each) for each in inner))
    if name in _UNCHECKED:
        return None
    if name in _SEVERAL:
        return _several(name, inner, scope)
    if name in ("Mapping", "dict"):
        return _mapping(_kind(inner[0], scope), _kind(inner[1], scope))
    alias = scope.get(name)
    if get_origin(alias) is Literal:
        return _one_of(get_args(alias))
    if name in KINDS:
        return KINDS[name]
    return _of_class((name,))


def _alternatives(node: ast.expr) -> list[ast.expr]:
    return [*_alternatives(node.left), node.right] if isinstance(node, ast.BinOp) else [node]


def _any_of(nodes: Sequence[ast.expr], scope: Mapping[str, Any]) -> Reader | None:
    """Reader of a union: the first alternative that accepts a value converts it; errors name all of them."""
    found = [_kind(node, scope) for node in nodes]
    kinds = [kind for kind in found if kind is not None]
    if len(kinds) < len(found):
        return None
    none = KINDS["None"]
    optional = none in kinds
    classes = tuple(name for kind in kinds for name in kind.classes)
    kinds = [kind for kind in kinds if kind is not none and not kind.classes]
    if classes:
        kinds.insert(0, _of_class(classes))
    expected = _or([kind.expected for kind in kinds])

    def read(value: Any, where: str) -> Any:
        if value is None and optional:
            return None
        if len(kinds) == 1:
            return kinds[0].read(value, where)
        alike = None
        for kind in kinds:
            try:
                return kind.read(value, where)
            except InputError as error:
                if _family(value) in kind.family:
                    wider = error.message.replace(f"expected {kind.expected}", f"expected {expected}")
                    alike = type(error)(wider, where=error.where)
        raise alike or InputError(f"found {quoted(value)}; expected {expected}", where=where)

    plain = frozenset[type]().union(*(kind.plain for kind in found if kind is not None))
    return Reader(expected, read, " ".join(kind.family for kind in kinds), classes, plain)


def _or(words: Iterable[str]) -> str:
    *others, last = dict.fromkeys(words)
    return f"{', '.join(others)} or {last}" if others else last


def _family(value: object) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, numbers.Real):
        return "number"
    return "several" if isinstance(value, Iterable) and not isinstance(value, bytes) else "nothing"


def _one_of(words: tuple[Any, ...]) -> Reader:
    listed = _or(map(repr, words))

    def read(value: Any, where: str) -> Any:
        if isinstance(value, str) and value in words:
            return value
        near = did_you_mean(value, words) if isinstance(value, str) else ""
        raise InputError(f"found {quoted(value)}; expected {listed}{near}", where=where)

    return Reader(listed, read, "text")


def _several(container: str, inner: Sequence[ast.expr], scope: Mapping[str, Any]) -> Reader:
    """Reader of a collection, also given as one item or an iterator, or of a tuple of fixed length."""
    fixed = container == "tuple" and not (inner and _is_dots(inner[-1]))
    kinds = [_kind(each, scope) for each in inner if not _is_dots(each)]
    item = kinds[0] if kinds else None
    make: Any = frozenset if container == "frozenset" else tuple
    ordered = container not in ("Collection", "Iterable", "frozenset")
    what = f"{len(kinds)} values in order" if fixed else "several in order" if ordered else "several"
    expected = what if item is None else f"{what}, each {item.expected}"

    def read(value: Any, where: str) -> Any:
        if isinstance(value, np.ndarray):
            value = tuple(value.tolist()) if value.ndim else value.item()
        alone = isinstance(value, (str, bytes)) or not isinstance(value, Iterable)
        alone = alone or (item is not None and _is_any(type(value), item.classes))
        if alone and item is not None and not fixed:
            try:
                return make((item.read(value, where),))
            except InputError as error:
                if _family(value) in item.family:
                    raise
                raise InputError(f"found {quoted(value)}; expected {expected}", where=error.where) from None
        if alone or isinstance(value, (Mapping, Set) if ordered else Mapping):
            raise InputError(f"found {quoted(value)}; expected {expected}", where=where)
        sized = isinstance(value, (Sequence, Set)) and not isinstance(value, range)
        values = value if sized else tuple(itertools.islice(value, _MAX_ITEMS + 1))
        if not sized and len(values) > _MAX_ITEMS:
            many = f"found more than {_MAX_ITEMS} in {quoted(value)}"
            raise InputError(f"{many}; expected fewer", where=where)
        if fixed and len(values) != len(kinds):
            raise InputError(f"found {quoted(value)}; expected {expected}", where=where)
        # To save time, items are not read one by one if none needs a conversion, and equal numbers only once.
        types = {*map(type, values)}
        if not fixed and (item is None or _takes_all(item, types)):
            as_it_is = type(values) is make or (make is tuple and container != "tuple")
            return values if as_it_is else make(values)
        if not fixed and item is not None and types == {int}:
            first: dict[int, int] = {}
            for place, each in enumerate(values):
                first.setdefault(each, place)
            known = {each: item.read(each, f"{where}[{place}]") for each, place in first.items()}
            return make(map(known.__getitem__, values))
        each_kind = kinds if fixed else itertools.repeat(item)
        return make(
            each if kind is None else kind.read(each, f"{where}[{place}]")
            for place, (kind, each) in enumerate(zip(each_kind, values, strict=False))
        )

    return Reader(expected, read, "several")


def _takes_all(item: Reader, kinds: set[type]) -> bool:
    """True if items of these types need no conversion; an implicit schedule needs one (its expansion)."""
    if "Schedule" in item.classes:
        return kinds <= item.plain
    return all(each in item.plain or _is_any(each, item.classes) for each in kinds)


def _is_dots(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _mapping(key: Reader | None, value: Reader | None) -> Reader:
    def read(found: Any, where: str) -> Any:
        if not isinstance(found, Mapping):
            raise InputError(f"found {quoted(found)}; expected a mapping", where=where)
        if key is None and value is None:
            return found
        keys = [k if key is None else key.read(k, where) for k in found]
        values = [v if value is None else value.read(v, f"{where}[{quoted(k)}]") for k, v in found.items()]
        return dict(zip(keys, values, strict=True))

    return Reader("a mapping", read, "several")


def _of_class(names: tuple[str, ...]) -> Reader:
    """Reader of instances of the named classes; a result is read as the schedule that it contains."""
    expected = _or(map(noun, names))
    hint = next((f" ({_HINTS[name]})" for name in names if name in _HINTS), "")

    def read(value: Any, where: str) -> Any:
        own = type(value).__module__.partition(".")[0] == "taccl"
        meant = value
        if own and not _is_any(type(value), names):  # a result stands for the schedule that it contains
            meant = getattr(value, "schedule", value)
        is_one = _is_any(type(meant), names)
        if "Schedule" in names and not is_one and _is_any(type(meant), ("ImplicitSchedule",)):
            return meant.expand()
        if is_one:
            return meant.listable() if own and names == ("Schedule",) else meant
        raise InputError(f"found {quoted(value)}; expected {expected}{hint}", where=where)

    return Reader(expected, read, classes=names)


def _is_any(kind: type, names: tuple[str, ...]) -> bool:
    """True if a class or one of its bases has one of these names; needs no import of these classes."""
    return kind.__name__ in names or any(each.__name__ in names for each in kind.__mro__)

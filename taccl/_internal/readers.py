"""Readers derived from annotations: each checks and converts a value, and words the error for a wrong one.

Annotations stay text, so that they need no imports. Types such as ``Count`` (`arguments`) are stricter than
the Python types that they stand for.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import numbers
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Literal, get_args, get_origin

import numpy as np

from taccl._internal.names import did_you_mean, noun, quoted
from taccl._internal.value_readers import KINDS, Reader
from taccl.errors import InputError

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
    what = f"{len(kinds)} things in order" if fixed else "several in order" if ordered else "several"
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

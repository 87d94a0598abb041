"""Checks of the arguments of public functions, derived from their annotations.

A `checked` function, or class (its constructor), converts its arguments by its annotations: numpy numbers to
Python's, ``1e6`` to a whole number, ``"16MB"`` to bytes, a result to its schedule. For any other value, it
raises an error of one sentence that names the parameter. The keywords of ``**arguments: Unpack[Record]`` are
checked by the fields of that typed dictionary.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from fractions import Fraction
from typing import Any, TypeVar

from taccl._internal.names import did_you_mean, matching
from taccl._internal.names import quoted as quoted
from taccl._internal.value_readers import Reader, reader_of
from taccl._internal.value_readers import whole_number as whole_number
from taccl.errors import InputError

#: Annotation of whole numbers of at least 1.
Count = int
#: Annotation of whole numbers of at least 0.
Natural = int
#: Annotation of whole numbers of at least 2.
AtLeastTwo = int
#: Annotation of numbers that may be infinite, also as the text ``"inf"`` or ``"-inf"``.
Extended = float
#: Annotation of whole numbers of bytes, also as text such as ``"4GB"``.
Bytes = int
#: Annotation of whole numbers of MB, also as text such as ``"4GB"``.
Megabytes = int
#: Annotation of sizes in bytes, usually as text such as ``"1MB"``.
Size = int | float | str
#: Annotation of positive, finite numbers of seconds, also as text such as ``"60s"``.
Seconds = float
#: Annotation of finite numbers of seconds, at least 0, also as text such as ``"60s"``.
Duration = float
#: Annotation of finite shares, at least 0, also as text such as ``"1%"``; above 1 only as such text.
Share = float
#: Annotation of costs, given as a number or text, and passed on without rounding.
Number = int | float | str | Fraction

#: Max keywords that a message lists for positional arguments beyond those allowed.
_MOST_KEYWORDS = 3
T = TypeVar("T")


def checked(thing: T) -> T:
    """Decorate a function or class to check and convert (constructor) arguments by their annotations."""
    return checked_as(InputError)(thing)


def checked_as(error: type[InputError]) -> Callable[[T], T]:
    """Decorator that checks and converts arguments as `checked` does, but raises `error` for a wrong one."""

    def decorate(thing: T) -> T:
        if isinstance(thing, type):
            thing.__init__ = decorate(thing.__init__)  # type: ignore[misc]
            return thing
        function: Any = thing
        parameters = inspect.signature(function).parameters.values()
        by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [each.name for each in parameters if each.kind in by_place]
        rest = next((each.name for each in parameters if each.kind is each.VAR_POSITIONAL), "")
        further = next((str(each.annotation) for each in parameters if each.kind is each.VAR_KEYWORD), None)
        takes_any = further is not None and not further.startswith("Unpack[")
        kinds: dict[str, Reader | None] = {}
        #: {(types of positional arguments, keywords, types of their values): arguments that need conversion}.
        unread: dict[tuple[Any, ...], tuple[list[tuple[int, Reader, str]], list[tuple[str, Reader]]]] = {}

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            types = (*map(type, args), *kwargs, *map(type, kwargs.values()))
            if types not in unread:
                if not kinds:  # annotations may name classes defined after the function
                    kinds.update(kinds_of(function))
                for name in () if takes_any else kwargs.keys() - kinds.keys():
                    near = did_you_mean(name, kinds)
                    raise TypeError(
                        f"{function.__qualname__}() got an unexpected keyword argument {name!r}{near}"
                    )
                if len(args) > len(names) and not rest:
                    raise TypeError(_too_many(function.__qualname__, names, len(args), kinds))
                given = enumerate(zip(itertools.chain(names, itertools.repeat(rest)), args, strict=False))
                unread[types] = (
                    [(i, kind, name) for i, (name, value) in given if (kind := _reader(kinds, name, value))],
                    [(name, kind) for name, value in kwargs.items() if (kind := _reader(kinds, name, value))],
                )
            by_place, by_name = unread[types]
            if by_place or by_name:
                values = list(args)
                try:
                    for i, kind, name in by_place:
                        values[i] = kind.read(values[i], name)
                    kwargs |= {name: kind.read(kwargs[name], name) for name, kind in by_name}
                except InputError as found:
                    raise error(found.message, where=found.where) from None
                return function(*values, **kwargs)
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


def _reader(kinds: Mapping[str, Reader | None], name: str, value: Any) -> Reader | None:
    """Reader of a parameter's value; None if the value needs no conversion."""
    kind = kinds.get(name)
    return None if kind is None or type(value) in kind.plain else kind


def kinds_of(function: Callable[..., Any]) -> dict[str, Reader | None]:
    """{parameter of the function: reader of its values, or None if any value is valid}."""
    function = inspect.unwrap(function)
    scope, annotations = function.__globals__, {}
    for name, each in inspect.signature(function).parameters.items():
        if each.kind is not each.VAR_KEYWORD:
            annotations[name] = each.annotation
        elif str(each.annotation).startswith("Unpack["):
            record = scope[each.annotation.removeprefix("Unpack[").removesuffix("]")]
            annotations |= {key: kind.__forward_arg__ for key, kind in record.__annotations__.items()}
    return {name: reader_of(annotation, scope) for name, annotation in annotations.items()}


def known_index(index: int, count: int, where: str) -> int:
    """Check that an index is a whole number from 0 to `count` - 1, and return it; faster than `checked`."""
    if type(index) is not int:
        index = whole_number(index, where)
    if not 0 <= index < count:
        raise InputError(f"found {quoted(index)}; expected a number from 0 to {count - 1}", where=where)
    return index


def known_word(word: str, known: Iterable[str], where: str, error: type[InputError] = InputError) -> None:
    """Raise an error that suggests the most similar known word, unless `word` is in `known`."""
    if word not in known:
        near, words = did_you_mean(word, known), ", ".join(known)
        raise error(f"found {quoted(word)}; expected one of {words}{near}", where=where)


def _too_many(function: str, names: list[str], num_given: int, known: Collection[str]) -> str:
    """Message on positional arguments beyond those that a function takes, with keywords to use instead."""
    is_method = names[:1] == ["self"]
    takes, given = len(names) - is_method, num_given - is_method
    keywords = [f"{name}=" for name in known if name not in names][:_MOST_KEYWORDS]
    plural, verb = "s" * (takes != 1), "was" if given == 1 else "were"
    said = f"{function}() takes {takes} positional argument{plural} but {given} {verb} given"
    return f"{said}; name the others, e.g. {', '.join(keywords)}" if keywords else said


def known_name(word: str, known: Collection[str], where: str, error: type[InputError] = InputError) -> str:
    """The known name equal to `word` apart from case and dashes; raises an error if there is none."""
    found = matching(word, known) or word
    known_word(found, known, where, error)
    return found

"""Derived data, computed once and kept in the `cache` of its topology, problem or program."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


class _Keeps(Protocol):
    @property
    def cache(self) -> dict[Any, Any]: ...


#: Cache key under which a reversed topology keeps the original, to reuse arrays computed for the original.
REVERSED_FROM = "reversed from"
#: Cache key under which a topology with changed costs keeps the original.
#: The original and the changed topology have the same links, which occupy the same resources.
ALIKE = "other costs than"

Thing = TypeVar("Thing", bound=_Keeps)
Found = TypeVar("Found")
Rest = ParamSpec("Rest")


def cached(function: Callable[Concatenate[Thing, Rest], Found]) -> Callable[Concatenate[Thing, Rest], Found]:
    """Decorate a function of a topology, problem or program to keep its results in that object's `cache`.

    Further arguments must be hashable.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def look_up(thing: Thing, /, *args: Rest.args, **named: Rest.kwargs) -> Found:
        key = (name, *args, *named.items())
        if key not in thing.cache:
            thing.cache[key] = function(thing, *args, **named)
        found: Found = thing.cache[key]
        return found

    return look_up

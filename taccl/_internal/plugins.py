"""Plug-ins: objects that users register by name, or that installed packages provide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from taccl._internal.names import shown
from taccl.errors import FallbackWarning, InputError, warn


class Named(Protocol):
    """An object with a name."""

    @property
    def name(self) -> str:
        """Name by which the object is registered."""


T = TypeVar("T", bound=Named)


class Plugins(Generic[T]):
    """Registry of plug-ins of one kind; installed packages provide theirs as entry points.

    - `group`: Group of the entry points; each names an object of the kind, or a class to instantiate.
    - `noun`: Name of the kind in messages, such as ``"proposer"``.
    - `fits`: Predicate: True if an object is of the kind.
    - `expected`: Description of a valid object, for messages.
    """

    def __init__(self, group: str, noun: str, fits: Callable[[object], bool], expected: str) -> None:
        self.group, self.noun, self.expected = group, noun, expected
        self._fits = fits
        self._registered: dict[str, T] = {}
        self._found: list[T] | None = None

    def register(self, thing: T) -> None:
        """Register an object in this process; it replaces one of the same name.

        Raises `InputError` if it is not of the kind.
        """
        if not self._fits(thing):
            raise InputError(f"found {shown(repr(thing), 60)}; expected {self.expected}", where=self.noun)
        self._registered[thing.name] = thing

    def unregister(self, name: str) -> None:
        """Remove an object that was registered in this process. Raises `InputError` if there is none."""
        if name not in self._registered:
            known = ", ".join(self._registered) or "none"
            raise InputError(f"found {name!r}; registered: {known}", where="name")
        del self._registered[name]

    def by_name(self) -> dict[str, T]:
        """{name: object}; objects registered in this process replace those of installed packages."""
        if self._found is None:
            self._found = self.installed()
        return {each.name: each for each in self._found} | self._registered

    def installed(self) -> list[T]:
        """Objects of installed packages. One that fails to load is left out with a warning."""
        from importlib.metadata import entry_points

        found: list[T] = []
        for entry in entry_points(group=self.group):
            try:
                loaded: Any = entry.load()
                thing = loaded() if isinstance(loaded, type) else loaded
            except Exception as error:  # importing another package may raise any error
                said = f"the {self.noun} {entry.name} could not be loaded ({error}); it is left out"
                warn(said, FallbackWarning)
                continue
            if self._fits(thing):
                found.append(thing)
            else:
                said = f"the entry point {entry.name} names {entry.value}, which is no {self.noun}"
                warn(f"{said} (expected {self.expected}); it is left out", FallbackWarning)
        return found

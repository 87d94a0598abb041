"""Modules at their former names, which will be removed in the next release."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import Any

#: {former name of a module: present name}.
_MOVED = {
    "taccl.clauses": "taccl.problem.clauses",
    "taccl.collective": "taccl.problem.collective",
    "taccl.collectives": "taccl.problem.collectives",
    "taccl.costs": "taccl.problem.costs",
    "taccl.units": "taccl._internal.units",
}


class _Finder:
    """Import finder of the moved modules, asked after Python's own finders; it warns."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, _Finder()) if name in _MOVED else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create an empty module."""

    def exec_module(self, module: Any) -> None:
        """Replace the empty module by the moved one."""
        name = module.__name__
        warnings.warn(f"{name} is {_MOVED[name]} now", DeprecationWarning, stacklevel=2)
        sys.modules[name] = import_module(_MOVED[name])


def install() -> None:
    """Add the finder to Python's import system."""
    sys.meta_path.append(_Finder)

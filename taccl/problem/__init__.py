"""Problems: a topology, a collective, chunk sizes, and the clauses of a sketch."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Look up a name of the former module ``taccl.problem``, with a deprecation warning; for one release."""
    for place in ("problem", "making", "alltoallv") if not name.startswith("_") else ():
        found = vars(import_module(f"taccl.problem.{place}")).get(name)
        if found is not None:
            warnings.warn(f"{name} is in {found.__module__} now", DeprecationWarning, stacklevel=2)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Versions of installed packages, without the 3 ms a package that `importlib.metadata` takes to read them."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache

#: Endings of the folders and files with a package's metadata, whose names begin ``NAME-VERSION``.
_ENDINGS = ".dist-info", ".egg-info"


def installed_version(package: str) -> str | None:
    """Version of a package; None if no folder of `sys.path` has its metadata."""
    return _installed().get(package)


@cache
def _installed() -> dict[str, str]:
    """{package: version} of all that is installed; the first folder of `sys.path` counts."""
    found: dict[str, str] = {}
    for folder in sys.path:
        with suppress(OSError):
            for each in os.listdir(folder or "."):
                name, _, rest = each.partition("-")
                ending = next(filter(rest.endswith, _ENDINGS), None)
                if ending is not None:
                    found.setdefault(name.lower(), rest.removesuffix(ending).partition("-")[0])
    return found

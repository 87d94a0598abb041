"""Schedules for collective communication, synthesized from communication sketches, verified and bounded.

>>> import taccl
>>> topology = taccl.topologies.ndv2(nodes=2)
>>> collective = taccl.collectives.allgather(topology.num_ranks)
>>> problem = taccl.load_sketch("ndv2/sk1").apply(topology, collective, chunk_size="1MB")
>>> result = taccl.synthesize(problem, time_limit_s=60)  # doctest: +SKIP

Every name is loaded when it is first used, so that importing taccl costs next to nothing.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pkgutil import get_data
from typing import Any

from taccl._internal import moved

moved.install()

#: {public name: its module}, as listed in the stub file ``__init__.pyi``.
_MODULE_OF_NAME = {
    alias.name: str(node.module)
    for node in ast.parse(get_data(__name__, "__init__.pyi") or b"").body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}

__all__ = [*_MODULE_OF_NAME, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name == "CompactSchedule":
        return _compact_schedule()
    elif _MODULE_OF_NAME.get(name) == __name__:
        value = import_module(f"{__name__}.{name}")
    elif name in _MODULE_OF_NAME:
        module = import_module(_MODULE_OF_NAME[name])
        is_inner = name not in vars(module)
        value = import_module(f"{module.__name__}.{name}") if is_inner else vars(module)[name]
    else:
        from importlib.util import find_spec

        said = f"module 'taccl' has no attribute {name!r}"
        if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
            said += f"; write `import {__name__}.{name}` first"
        raise AttributeError(said, name=name, obj=sys.modules[__name__])  # for Python's own suggestion
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__doc__", "__name__", "__file__", "__path__"})


def _compact_schedule() -> Any:
    """Return class `Schedule`, and warn that the next release removes its former name `CompactSchedule`."""
    import warnings

    from taccl.schedule.schedule import Schedule

    said = "taccl.CompactSchedule is taccl.Schedule, and goes with the next release; use taccl.Schedule"
    warnings.warn(said, DeprecationWarning, stacklevel=3)
    return Schedule


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("taccl")
    except PackageNotFoundError:  # run from a source tree without installation
        return "0+unknown"

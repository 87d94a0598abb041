"""Old names of modules, as earlier documentation gave them; they remain importable for one release."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import Any

#: {former name of a module: present name}.
_MOVED = {
    "taccl.aggregation.layers": "taccl.aggregation.shards",
    "taccl.aggregation.serving": "taccl.aggregation.shards",
    "taccl.analysis.certificates.node_data": "taccl.analysis.certificates.throughput",
    "taccl.clauses": "taccl.problem.clauses",
    "taccl.collective": "taccl.problem.collective",
    "taccl.collectives": "taccl.problem.collectives",
    "taccl.costs": "taccl.problem.costs",
    "taccl.formats.msccl.limits": "taccl.program.runtimes",
    "taccl.formats.published.collective": "taccl.formats.published.fields",
    "taccl.formats.published.topology": "taccl.formats.published.fields",
    "taccl.formats.runtimes": "taccl.program.runtimes",
    "taccl.measure.ranges": "taccl.measure.estimate",
    "taccl.placement.tuner": "taccl.placement.files",
    "taccl.plot.layout": "taccl.plot.topology",
    "taccl.plot.profile": "taccl.plot.comparison",
    "taccl.solvers.scaling": "taccl.solvers.cpsat",
    "taccl.synthesis.steps": "taccl.synthesis.proposing",
    "taccl.topology.graphs": "taccl.topology.builder",
    "taccl.units": "taccl._internal.units",
}


class _Finder:
    """Import finder for former names of modules, asked after Python's own; each such import warns."""

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

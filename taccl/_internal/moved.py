"""Former places of modules and names in earlier documentation; they remain importable for one release."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: {former name of a module: present name}.
_MOVED = {
    "taccl.aggregation.layers": "taccl.aggregation.shards",
    "taccl.aggregation.serving": "taccl.aggregation.shards",
    "taccl.analysis.bounds": "taccl.analysis.certificates.bounds",
    "taccl.analysis.certificates.distances": "taccl.analysis.certificates.finding.distances",
    "taccl.analysis.certificates.node_data": "taccl.analysis.certificates.throughput",
    "taccl.analysis.certificates.readings": "taccl.analysis.certificates.transformed",
    "taccl.analysis.certificates.symmetries": "taccl.sketch.group",
    "taccl.analysis.certificates.volume": "taccl.analysis.certificates.finding.volume",
    "taccl.analysis.distances": "taccl.analysis.certificates.finding.distances",
    "taccl.analysis.flows": "taccl.analysis.certificates.flows",
    "taccl.analysis.symmetries": "taccl.sketch.group",
    "taccl.analysis.verification.verify_compact": "taccl.analysis.verification.verify",
    "taccl.analysis.verify_compact": "taccl.analysis.verification.verify",
    "taccl.analysis.volume": "taccl.analysis.certificates.finding.volume",
    "taccl.baselines.cycles": "taccl.baselines.ring",
    "taccl.baselines.spread": "taccl.baselines.chunking",
    "taccl.clauses": "taccl.problem.clauses",
    "taccl.collective": "taccl.problem.collective",
    "taccl.collectives": "taccl.problem.collectives",
    "taccl.costs": "taccl.problem.costs",
    "taccl.explore.protocols": "taccl.synthesis.suggesting.protocols",
    "taccl.formats.astra_network": "taccl.formats.astra.network",
    "taccl.formats.msccl.limits": "taccl.program.limits",
    "taccl.formats.msccl_xml": "taccl.formats.msccl.xml",
    "taccl.formats.mscclpp_plan": "taccl.formats.mscclpp.plan",
    "taccl.formats.mscclpp_registration": "taccl.formats.mscclpp.registration",
    "taccl.formats.mscclpp_run": "taccl.formats.mscclpp.executor",
    "taccl.formats.nccl_topology": "taccl.formats.nccl.topology",
    "taccl.formats.nvidia_smi": "taccl.formats.nccl.nvidia_smi",
    "taccl.formats.published.collective": "taccl.formats.published.fields",
    "taccl.formats.published.topology": "taccl.formats.published.fields",
    "taccl.formats.runtimes": "taccl.program.limits",
    "taccl.formats.transfers_table": "taccl.schedule.transfers",
    "taccl.measure.calibrate": "taccl.measure.fit",
    "taccl.measure.channel_search": "taccl.measure.channels",
    "taccl.measure.missing": "taccl.measure.fitted",
    "taccl.measure.pair_channels": "taccl.measure.channels",
    "taccl.measure.ranges": "taccl.measure.estimate",
    "taccl.measure.run_reports": "taccl.measure.json_logs",
    "taccl.placement.tuner": "taccl.placement.nccl_table",
    "taccl.plot.layout": "taccl.plot.topology",
    "taccl.plot.profile": "taccl.plot.comparison",
    "taccl.program.runtimes": "taccl.program.limits",
    "taccl.schedule.compact": "taccl.schedule.schedule",
    "taccl.solvers.scaling": "taccl.solvers.cpsat",
    "taccl.synthesis.backends": "taccl.solvers.registry",
    "taccl.synthesis.balanced": "taccl.synthesis.proposers.balanced",
    "taccl.synthesis.stages": "taccl.synthesis.result",
    "taccl.synthesis.steps": "taccl.synthesis.proposing",
    "taccl.topology.graphs": "taccl.topology.builder",
    "taccl.units": "taccl._internal.units",
}

#: {present module: {name that was once in it: present (module, name)}}.
_NAMES = {
    "taccl.analysis.verification.verify": {
        "verify_compact": ("taccl.analysis.verification.verify", "verify")
    },
    "taccl.baselines.routes": {"Routes": ("taccl.baselines.routes", "ShortestRoutes")},
    "taccl.placement.files": {
        name: ("taccl.placement.launchers", name) for name in ("hostfile", "rankfile", "read_hosts")
    }
    | {"nccl_tuner": ("taccl.placement.nccl_table", "nccl_tuner")},
    "taccl.problem.alltoallv": {"load_sizes": ("taccl.problem.byte_matrices", "load_sizes")},
    "taccl.problem.collective": {"together": ("taccl.problem.custom_collectives", "together")},
    "taccl.problem.problem": {"make_problem": ("taccl.problem.making", "make_problem")},
    "taccl.program.limits": {
        "RUNTIMES": ("taccl.runtimes.table", "RUNTIMES"),
        "runtime_named": ("taccl.runtimes.registry", "runtime_named"),
        "usual_runtimes": ("taccl.runtimes.registry", "usual_runtimes"),
    },
    "taccl.schedule.schedule": {"CompactSchedule": ("taccl.schedule.schedule", "Schedule")},
    "taccl.topology.recognise": {
        name: ("taccl.topology.clusters", name)
        for name in ("asymmetry", "common_levels", "completed", "levels", "nested_order")
    },
    "taccl.topology.topology": {"TopologyBuilder": ("taccl.topology.builder", "TopologyBuilder")},
    "taccl.workload": {"run_workload": ("taccl.workload.meaning", "run_workload")},
}


class _Finder:
    """Import finder, asked before Python's own, for moved modules and for modules that names have left.

    Each import of a moved module warns, as does each use of a moved name.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in _MOVED:
            return ModuleSpec(name, _Finder())  # type: ignore[arg-type]
        spec = PathFinder.find_spec(name, path, target) if name in _NAMES else None
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            loader.exec_module = _with_former_names(loader.exec_module)
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create an empty module."""

    def exec_module(self, module: Any) -> None:
        """Replace the empty module by the moved one."""
        name = module.__name__
        warnings.warn(f"{name} is {_MOVED[name]} now", DeprecationWarning, stacklevel=2)
        sys.modules[name] = import_module(_MOVED[name])


def _with_former_names(execute: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap a loader's `exec_module` such that the module also looks up the names that have left it."""

    def exec_module(module: Any) -> None:
        def look_up(name: str) -> Any:
            if name not in _NAMES[module.__name__]:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            place, present = _NAMES[module.__name__][name]
            said = f"{module.__name__}.{name} is {place}.{present} now"
            warnings.warn(said, DeprecationWarning, stacklevel=2)
            return getattr(import_module(place), present)

        module.__getattr__ = look_up
        execute(module)

    return exec_module


def install() -> None:
    """Add the finder to Python's import system."""
    sys.meta_path.insert(0, _Finder)

"""Modules and names at their former places, which will be removed in the next release."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import Any

#: {former name of a module: present name}.
_MOVED = {
    "taccl._internal.cpu_share": "taccl._internal.deadline",
    "taccl._internal.kernel_pipeline": "taccl._internal.kernel_cache",
    "taccl.aggregation.layers": "taccl.aggregation.shards",
    "taccl.aggregation.serving": "taccl.aggregation.shards",
    "taccl.analysis.certificates.cost_of_sketch": "taccl.analysis.certificates.scopes",
    "taccl.analysis.certificates.counting": "taccl.analysis.certificates.borders",
    "taccl.analysis.certificates.dissemination": "taccl.analysis.certificates.first_arrivals",
    "taccl.analysis.certificates.evaluation.entries": "taccl.analysis.certificates.evaluation.arrivals",
    "taccl.analysis.certificates.evaluation.jobs": "taccl.analysis.certificates.evaluation.passages",
    "taccl.analysis.certificates.evaluation.prices": "taccl.analysis.certificates.evaluation.facts",
    "taccl.analysis.certificates.every_cut": "taccl.analysis.certificates.scopes",
    "taccl.analysis.certificates.finding.heads_tails": "taccl.analysis.certificates.finding.distances",
    "taccl.analysis.certificates.finding.served": "taccl.analysis.certificates.finding.gates",
    "taccl.analysis.certificates.latency": "taccl.analysis.certificates.first_arrivals",
    "taccl.analysis.certificates.single_machine": "taccl.analysis.certificates.borders",
    "taccl.analysis.certificates.witness": "taccl.analysis.certificates.certificate",
    "taccl.analysis.simulation.assumptions": "taccl.analysis.simulation.simulate",
    "taccl.analysis.verification.contention": "taccl.analysis.verification.sends",
    "taccl.analysis.verification.dates": "taccl.analysis.verification.clauses",
    "taccl.analysis.verification.paths": "taccl.analysis.verification.clauses",
    "taccl.analysis.verification.violation": "taccl.analysis.verification.findings",
    "taccl.clauses": "taccl.problem.clauses",
    "taccl.cli.exchanges": "taccl.cli.problems",
    "taccl.cli.implicit": "taccl.cli.verbs.synthesize",
    "taccl.cli.programs": "taccl.cli.things",
    "taccl.cli.text": "taccl.cli.output",
    "taccl.cli.verbs.backends": "taccl.cli.verbs.installation",
    "taccl.cli.verbs.cache": "taccl.cli.verbs.installation",
    "taccl.cli.verbs.diagnose": "taccl.cli.verbs.fit",
    "taccl.cli.verbs.explain": "taccl.cli.verbs.suggest",
    "taccl.cli.verbs.report": "taccl.cli.verbs.plot",
    "taccl.cli.verbs.sweep": "taccl.cli.verbs.compare",
    "taccl.cli.verbs.warmup": "taccl.cli.verbs.installation",
    "taccl.collective": "taccl.problem.collective",
    "taccl.collectives": "taccl.problem.collectives",
    "taccl.costs": "taccl.problem.costs",
    "taccl.formats.msccl.limits": "taccl.program.runtimes",
    "taccl.formats.published.collective": "taccl.formats.published.fields",
    "taccl.formats.published.topology": "taccl.formats.published.fields",
    "taccl.formats.runtimes": "taccl.program.runtimes",
    "taccl.measure.mismatch": "taccl.measure.machine",
    "taccl.measure.ranges": "taccl.measure.estimate",
    "taccl.placement.tuner": "taccl.placement.files",
    "taccl.plot.layout": "taccl.plot.topology",
    "taccl.plot.profile": "taccl.plot.comparison",
    "taccl.plot.verdict": "taccl.plot.report",
    "taccl.program.allocate": "taccl.program.layout",
    "taccl.program.queues": "taccl.program.checks",
    "taccl.program.races": "taccl.program.execution",
    "taccl.schedule.implicit.pattern": "taccl.schedule.implicit_schedule",
    "taccl.schedule.implicit.schedule": "taccl.schedule.implicit_schedule",
    "taccl.schedule.single_pass": "taccl.schedule.timing",
    "taccl.schedule.summary": "taccl.schedule.spill",
    "taccl.solvers.linear_program": "taccl.solvers.highs",
    "taccl.solvers.memory": "taccl._internal.address_space",
    "taccl.solvers.scaling": "taccl.solvers.cpsat",
    "taccl.synthesis.backends": "taccl.solvers.registry",
    "taccl.synthesis.milp.contiguity": "taccl.synthesis.milp.ordering",
    "taccl.synthesis.milp.cuts": "taccl.synthesis.milp.jobshop",
    "taccl.synthesis.milp.loads": "taccl.synthesis.milp.resource_rows",
    "taccl.synthesis.milp.sequencing": "taccl.synthesis.milp.resource_rows",
    "taccl.synthesis.observing": "taccl.synthesis.options",
    "taccl.synthesis.proposers.benders": "taccl.synthesis.proposers.solver_stages",
    "taccl.synthesis.proposers.chunk_masks": "taccl.synthesis.proposers.spreading",
    "taccl.synthesis.steps": "taccl.synthesis.proposing",
    "taccl.synthesis.suggesting.plans": "taccl.synthesis.suggesting.proposals",
    "taccl.synthesis.symmetry.hamiltonian": "taccl.synthesis.symmetry.implicit",
    "taccl.synthesis.symmetry.offset_paths": "taccl.synthesis.symmetry.translation",
    "taccl.synthesis.transforms.release_dates": "taccl.synthesis.transforms.requirements",
    "taccl.synthesis.transforms.roots": "taccl.synthesis.transforms.requirements",
    "taccl.synthesis.trees.routes": "taccl.synthesis.trees.packing",
    "taccl.synthesis.trees.splitting": "taccl.synthesis.trees.network",
    "taccl.topology.clusters": "taccl.topology.recognise",
    "taccl.topology.graphs": "taccl.topology.builder",
    "taccl.topology.regular": "taccl.topology.translations",
    "taccl.units": "taccl._internal.units",
}

#: Packages that no longer exist; `_MOVED` has the present names of their modules.
_PACKAGES = ("taccl.schedule.implicit",)


def former_names(module: str, moved: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module whose names have moved; `moved` is {name: its present module}."""

    def getattr_(name: str) -> Any:
        if name in moved:
            return getattr(import_module(moved[name]), name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return getattr_


class _Finder:
    """Import finder for former names of modules, asked after Python's own; each such import warns."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in _MOVED and name not in _PACKAGES:
            return None
        return ModuleSpec(name, _Finder(), is_package=name in _PACKAGES)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create an empty module."""

    def exec_module(self, module: Any) -> None:
        """Replace the empty module by the moved one; a former package stays empty."""
        name = module.__name__
        if name in _PACKAGES:
            return
        warnings.warn(f"{name} is {_MOVED[name]} now", DeprecationWarning, stacklevel=2)
        sys.modules[name] = import_module(_MOVED[name])


def install() -> None:
    """Add the finder to Python's import system."""
    sys.meta_path.append(_Finder)

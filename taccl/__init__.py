"""Schedules for collective communication, synthesized from communication sketches, verified and bounded.

>>> import taccl
>>> topology = taccl.topologies.ndv2(nodes=2)
>>> collective = taccl.collectives.allgather(topology.num_ranks)
>>> problem = taccl.load_sketch("ndv2/sk1").apply(topology, collective, chunk_size="1MB")
>>> result = taccl.synthesize(problem, time_limit_s=60)  # doctest: +SKIP

Every name is loaded when it is first used, so that importing taccl costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taccl import aggregation as aggregation
    from taccl import baselines as baselines
    from taccl import collectives  # noqa: F401
    from taccl import plot as plot
    from taccl import topologies as topologies
    from taccl import workload as workload
    from taccl.analysis.certificates.bounds import lower_bound as lower_bound
    from taccl.analysis.certificates.certificate import Certificate as Certificate
    from taccl.analysis.certificates.cost_of_sketch import Prices as Prices
    from taccl.analysis.certificates.cost_of_sketch import prices as prices
    from taccl.analysis.simulation.simulate import simulate as simulate
    from taccl.analysis.simulation.simulation import Simulation as Simulation
    from taccl.analysis.simulation.steady import SteadyState as SteadyState
    from taccl.analysis.simulation.steady import initiation_interval as initiation_interval
    from taccl.analysis.verification.verify import verify as verify
    from taccl.analysis.verification.violation import Verification as Verification
    from taccl.collective import Collective as Collective
    from taccl.errors import CacheWarning as CacheWarning
    from taccl.errors import CollectiveError as CollectiveError
    from taccl.errors import ExecutionError as ExecutionError
    from taccl.errors import ExportError as ExportError
    from taccl.errors import FallbackWarning as FallbackWarning
    from taccl.errors import FormatError as FormatError
    from taccl.errors import InfeasibleError as InfeasibleError
    from taccl.errors import InputError as InputError
    from taccl.errors import LossyConversionWarning as LossyConversionWarning
    from taccl.errors import NoSolutionError as NoSolutionError
    from taccl.errors import NumericsWarning as NumericsWarning
    from taccl.errors import SketchError as SketchError
    from taccl.errors import SolverError as SolverError
    from taccl.errors import SolverUnavailableError as SolverUnavailableError
    from taccl.errors import TacclError as TacclError
    from taccl.errors import TacclWarning as TacclWarning
    from taccl.errors import TopologyError as TopologyError
    from taccl.errors import VerificationError as VerificationError
    from taccl.errors import WorkloadError as WorkloadError
    from taccl.explore.cache import Cache as Cache
    from taccl.explore.compare import compare as compare
    from taccl.explore.compare import sweep as sweep
    from taccl.explore.plan import Plan as Plan
    from taccl.explore.plan import plan as plan
    from taccl.formats.native import load as load
    from taccl.formats.native import save as save
    from taccl.formats.registry import convert as convert
    from taccl.formats.registry import write as write
    from taccl.measure.fit import Fit as Fit
    from taccl.measure.fit import fit as fit
    from taccl.placement.measuring import probe as probe
    from taccl.placement.placement import Placement as Placement
    from taccl.placement.probe import Probe as Probe
    from taccl.placement.reorder import reorder as reorder
    from taccl.plot.report.page import report as report
    from taccl.plot.report.page import write_report as write_report
    from taccl.problem import Problem as Problem
    from taccl.problem import alltoallv_problem as alltoallv_problem
    from taccl.problem import make_problem as make_problem
    from taccl.program.interpret import Interpretation as Interpretation
    from taccl.program.interpret import interpret as interpret
    from taccl.program.lift import lift as lift
    from taccl.program.lower import lower as lower
    from taccl.program.program import Program as Program
    from taccl.runtime.execute import execute as execute
    from taccl.runtime.report import Execution as Execution
    from taccl.schedule.compact import CompactSchedule as CompactSchedule
    from taccl.schedule.implicit import ImplicitSchedule as ImplicitSchedule
    from taccl.schedule.schedule import Schedule as Schedule
    from taccl.schedule.spill import load_spilled as load_spilled
    from taccl.sketch.library import load_sketch as load_sketch
    from taccl.sketch.library import shipped_sketches as shipped_sketches
    from taccl.sketch.sketch import Sketch as Sketch
    from taccl.synthesis.backends import backends as backends
    from taccl.synthesis.explaining.explain import Explanation as Explanation
    from taccl.synthesis.explaining.explain import explain as explain
    from taccl.synthesis.parameters import SearchParameters as SearchParameters
    from taccl.synthesis.replan import Replan as Replan
    from taccl.synthesis.replan import replan as replan
    from taccl.synthesis.result import Result as Result
    from taccl.synthesis.suggesting.check import SketchReport as SketchReport
    from taccl.synthesis.suggesting.check import check_sketch as check_sketch
    from taccl.synthesis.suggesting.chunks import choose_chunks as choose_chunks
    from taccl.synthesis.suggesting.proposals import SketchProposal as SketchProposal
    from taccl.synthesis.suggesting.suggest import suggest_sketches as suggest_sketches
    from taccl.synthesis.symmetric.implicit import ImplicitResult as ImplicitResult
    from taccl.synthesis.symmetric.implicit import synthesize_implicit as synthesize_implicit
    from taccl.synthesis.synthesize import synthesize as synthesize
    from taccl.topology.products import Dimensions as Dimensions
    from taccl.topology.recognise import dimensions as dimensions
    from taccl.topology.topology import Topology as Topology
    from taccl.workload.workload import Workload as Workload

    __version__: str

_MODULES = {
    "aggregation": "taccl.aggregation", "baselines": "taccl.baselines",
    "collectives": "taccl.collectives", "topologies": "taccl.topologies", "plot": "taccl.plot",
    "workload": "taccl.workload",
}  # fmt: skip

_NAMES_OF_MODULE = {
    "taccl.analysis.certificates.bounds": ("lower_bound",),
    "taccl.analysis.certificates.cost_of_sketch": ("Prices", "prices"),
    "taccl.analysis.certificates.certificate": ("Certificate",),
    "taccl.analysis.simulation.simulate": ("simulate",),
    "taccl.analysis.simulation.simulation": ("Simulation",),
    "taccl.analysis.simulation.steady": ("SteadyState", "initiation_interval"),
    "taccl.analysis.verification.verify": ("verify",),
    "taccl.analysis.verification.violation": ("Verification",),
    "taccl.collective": ("Collective",),
    "taccl.errors": (
        "CacheWarning", "CollectiveError", "ExecutionError", "ExportError", "FallbackWarning", "FormatError",
        "InfeasibleError", "InputError", "LossyConversionWarning", "NoSolutionError", "NumericsWarning",
        "SketchError", "SolverError", "SolverUnavailableError", "TacclError", "TacclWarning", "TopologyError",
        "VerificationError", "WorkloadError",
    ),
    "taccl.explore.cache": ("Cache",),
    "taccl.explore.compare": ("compare", "sweep"),
    "taccl.explore.plan": ("Plan", "plan"),
    "taccl.formats.native": ("load", "save"),
    "taccl.formats.registry": ("convert", "write"),
    "taccl.measure.fit": ("Fit", "fit"),
    "taccl.placement.measuring": ("probe",),
    "taccl.placement.placement": ("Placement",),
    "taccl.placement.probe": ("Probe",),
    "taccl.placement.reorder": ("reorder",),
    "taccl.plot.report.page": ("report", "write_report"),
    "taccl.program.interpret": ("Interpretation", "interpret"),
    "taccl.program.lift": ("lift",),
    "taccl.program.lower": ("lower",),
    "taccl.program.program": ("Program",),
    "taccl.runtime.execute": ("execute",),
    "taccl.runtime.report": ("Execution",),
    "taccl.problem": ("Problem", "alltoallv_problem", "make_problem"),
    "taccl.schedule.compact": ("CompactSchedule",),
    "taccl.schedule.implicit": ("ImplicitSchedule",),
    "taccl.schedule.schedule": ("Schedule",),
    "taccl.schedule.spill": ("load_spilled",),
    "taccl.sketch.library": ("load_sketch", "shipped_sketches"),
    "taccl.sketch.sketch": ("Sketch",),
    "taccl.synthesis.backends": ("backends",),
    "taccl.synthesis.explaining.explain": ("Explanation", "explain"),
    "taccl.synthesis.suggesting.chunks": ("choose_chunks",),
    "taccl.synthesis.suggesting.check": ("SketchReport", "check_sketch"),
    "taccl.synthesis.suggesting.proposals": ("SketchProposal",),
    "taccl.synthesis.suggesting.suggest": ("suggest_sketches",),
    "taccl.synthesis.symmetric.implicit": ("ImplicitResult", "synthesize_implicit"),
    "taccl.synthesis.parameters": ("SearchParameters",),
    "taccl.synthesis.synthesize": ("synthesize",),
    "taccl.synthesis.replan": ("Replan", "replan"),
    "taccl.synthesis.result": ("Result",),
    "taccl.topology.products": ("Dimensions",),
    "taccl.topology.recognise": ("dimensions",),
    "taccl.topology.topology": ("Topology",),
    "taccl.workload.workload": ("Workload",),
}  # fmt: skip
_MODULE_OF_NAME = {name: module for module, names in _NAMES_OF_MODULE.items() for name in names}

__all__ = [*_MODULES, *_MODULE_OF_NAME, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name in _MODULES:
        value = import_module(_MODULES[name])
    elif name in _MODULE_OF_NAME:
        value = getattr(import_module(_MODULE_OF_NAME[name]), name)
    else:
        raise AttributeError(f"module 'taccl' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__doc__", "__name__", "__file__", "__path__"})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("taccl")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"

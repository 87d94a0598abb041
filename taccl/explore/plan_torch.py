"""PyTorch files of a plan: a Python module for each range of sizes, which needs only PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from taccl.errors import ExportError
from taccl.formats.torch.module import dump_torch_module
from taccl.formats.torch.rounds import call_of, rounds_of
from taccl.runtimes.runtime import PlanFiles, Runtime

if TYPE_CHECKING:
    from taccl.explore.plan_ranges import Plan
    from taccl.problem.collective import Collective
    from taccl.program.program import Program


def why_not(_runtime: Runtime, collective: Collective, _topology: object, protocol: str) -> str:
    """Reason why PyTorch has no call for a collective; empty if it has one, or if `protocol` is given."""
    try:
        call_of(collective)
    except ExportError as error:
        return "" if protocol else str(error).partition(";")[0]
    return ""


def check(_runtime: Runtime, program: Program) -> None:
    """Raise `ExportError` for a program that no generated PyTorch module can run."""
    rounds_of(program)


def files(_runtime: Runtime, plan: Plan) -> PlanFiles:
    """A PyTorch module for each range of sizes, which serves calls both in place and out of place."""
    found = PlanFiles.of_ranges(plan, "torch", ".py", lambda each: dump_torch_module(each.lowered))
    both = [replace(each, in_place=place) for place in (True, False) for each in found.served]
    how = "with PyTorch: taccl.torch.load of the folder, or without taccl `Collective` of"
    return replace(found, served=both, registration={next(iter(found.contents)): how})

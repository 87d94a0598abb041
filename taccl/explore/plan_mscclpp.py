"""MSCCL++ files of a plan: execution plans (in place, out of place or both) and code that registers them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from taccl.analysis.simulation.simulate import simulate
from taccl.errors import ExportError, InputError
from taccl.explore.plan_programs import runnable
from taccl.explore.plan_runtimes import NAMED
from taccl.formats.mscclpp.plan import build_mscclpp_plan, text_of_plan, why_no_packets
from taccl.formats.mscclpp.registration import registration_snippet, unit_bytes
from taccl.problem.collective import Collective
from taccl.program.program import Program
from taccl.runtimes.registry import runtime_named
from taccl.runtimes.runtime import PlanFiles, Runtime, ServedSizes

if TYPE_CHECKING:
    from taccl.explore.plan_ranges import Plan, PlanRange
    from taccl.topology.topology import Topology

#: Collectives for which MSCCL++'s NCCL interface can use plans.
_SERVED = ("allreduce", "allgather", "reduce-scatter", "broadcast")
#: Name of the module that registers plans.
_MODULE = "register_plans"


def why_not(runtime: Runtime, collective: Collective, topology: Topology, protocol: str) -> str:
    """Reason why MSCCL++ plans cannot hold a collective, or cannot run it under `protocol`; empty if none."""
    if protocol == "ll":
        return why_no_packets(collective, topology.node_of_rank)
    if protocol or collective.name in NAMED:
        return ""
    for end, buffer in (("origins", "input"), ("destinations", "output")):
        ranks = {rank for chunk in collective.chunks for rank in getattr(chunk, end)}
        if len(ranks) < collective.num_ranks:
            return f"{runtime.title} has no {collective.name}, as some ranks have no {buffer}"
    return ""


def check(_runtime: Runtime, program: Program) -> None:
    """Raise `ExportError` if an MSCCL++ execution plan cannot hold a program."""
    build_mscclpp_plan(program, split=True)


def files(runtime: Runtime, plan: Plan) -> PlanFiles:
    """MSCCL++ execution plans for each range of sizes, and a Python module that registers them."""
    counts = {len(ranks) for ranks in plan.topology.ranks_of_node}
    ranks_per_node = counts.pop() if len(counts) == 1 else None
    built: dict[str | os.PathLike[str], dict[str, Any]] = {}
    rows: list[dict[str, str]] = []
    served: list[ServedSizes] = []
    notes: list[str] = []
    for number, each in enumerate(plan.ranges, 1):
        rows.append({})
        for key, file, program in _placed(plan, each, f"range-{number:02}", notes):
            found = _plan_of(runtime, plan, each, program, file, ranks_per_node, notes)
            if found is not None:
                rows[-1][key], built[file] = file, found
                own = (found["min_message_size"], found["max_message_size"])
                served.append(ServedSizes(file, *own, program.in_place, unit_bytes(found)))
    contents = {str(file): text_of_plan(each) for file, each in built.items()}
    registration = {}
    if built:
        script = f"{_MODULE}.py"
        contents[script] = registration_snippet(built, ranks_per_node=ranks_per_node or 0, module=_MODULE)
        registration[script] = f"with mscclpp, in Python: {_MODULE}.register(rank), from"
    unserved = f"its NCCL interface has no {plan.collective}: only for its own executor"
    remarks = [] if plan.collective in _SERVED else [unserved]
    return PlanFiles(contents, rows, served, registration, remarks, notes)


def _placed(plan: Plan, each: PlanRange, stem: str, notes: list[str]) -> Iterator[tuple[str, str, Program]]:
    """Yield (key in the index, file, program) of a range: a program in place or out of place, or both."""
    program = each.program
    yield "mscclpp", f"{stem}.plan.json", program
    if not plan.both_places:
        return
    place = "out of place" if program.in_place else "in place"
    try:
        other = runnable(
            each.schedule,
            {**plan.lowering, "in_place": not program.in_place},
            runtime_named(plan.runtimes[0]),
        )
    except (ExportError, InputError) as error:
        notes.append(f"{stem} has no MSCCL++ plan {place}: {error}")
        return
    yield f"mscclpp_{place.replace(' ', '_')}", f"{stem}.{place.replace(' ', '-')}.plan.json", other


def _plan_of(
    runtime: Runtime,
    plan: Plan,
    each: PlanRange,
    program: Program,
    file: str,
    ranks_per_node: int | None,
    notes: list[str],
) -> dict[str, Any] | None:
    """MSCCL++ plan of a range, under the first of `_protocols` that allows one; None if none does."""
    ranged = replace(program, sizes_bytes=(each.min_bytes, each.max_bytes))
    name = f"taccl-{plan.collective}-{file.removesuffix('.plan.json').removeprefix('range-').lstrip('0')}"
    lacking = program.protocol not in runtime.protocols
    reasons = [f"MSCCL++ has no {program.protocol}"] if lacking else []
    for protocol in _protocols(runtime, plan, each, program):
        try:
            # The offsets of MSCCL++ have 32 bits, which limits the sizes of the plan.
            built = build_mscclpp_plan(
                replace(ranged, protocol=protocol), ranks_per_node=ranks_per_node, split=True, name=name
            )
        except (ExportError, InputError) as error:
            reasons.append(str(error))
            continue
        if protocol != program.protocol:
            why = ", and ".join(reason.partition(";")[0] for reason in reasons)
            notes.append(f"{file} is for {protocol}, not {program.protocol}: {why}")
        return built
    notes.append(f"{file.removesuffix('.plan.json')} has no MSCCL++ plan: {'; '.join(reasons)}")
    return None


def _protocols(runtime: Runtime, plan: Plan, each: PlanRange, program: Program) -> list[str]:
    """MSCCL++'s protocols in order of preference: the program's own first, then by predicted time."""
    timed: list[tuple[float, str]] = []
    for protocol in runtime.protocols:
        predicted = 0.0
        if protocol.lower() in plan.topology.protocols:
            under = plan.topology.under(protocol.lower())
            with contextlib.suppress(InputError):  # the order of sends is infeasible under this protocol
                predicted = simulate(each.schedule, topology=under).as_schedule().predicted_us
        timed.append((predicted, protocol))
    return [protocol for _, protocol in sorted(timed, key=lambda each: (each[1] != program.protocol, each))]

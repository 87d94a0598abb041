"""MSCCL++ files of a plan: execution plans (in place, out of place or both) and code that registers them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from taccl._internal.deadline import NEVER, OutOfTime, busy_factor
from taccl._internal.names import first_of, notes_by_text
from taccl.analysis.simulation.simulate import simulate
from taccl.errors import ExportError, InputError
from taccl.explore.plan_runtimes import NAMED, runnable
from taccl.formats.mscclpp.plan import (
    build_mscclpp_plan,
    served_bytes,
    text_of_plan,
    why_no_nodes,
    why_no_packets,
)
from taccl.formats.mscclpp.registration import ranks_per_host, registration_snippet, unit_bytes
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
#: `_PLAN_S`: CPU seconds per transfer to build an MSCCL++ plan and check it.
#: `_PROGRAM_S`: CPU seconds per transfer to lower a schedule and check the program.
#: `_LEAST_S`: min seconds for all MSCCL++ files of a plan, even after its deadline.
_PLAN_S, _PROGRAM_S, _LEAST_S = 2e-4, 8e-5, 0.5


def why_not(runtime: Runtime, collective: Collective, topology: Topology, protocol: str) -> str:
    """Reason why MSCCL++ plans cannot hold a collective, or cannot run it under `protocol`; empty if none."""
    if reason := why_no_nodes(topology.node_of_rank):
        return reason
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
    made: dict[tuple[int, bool], _PlacedPlan] = {}
    late: list[str] = []
    # First the programs of all ranges for usual calls, then those for others (in place or not), if in time.
    for is_other in (False, True)[: 1 + plan.both_places]:
        until = NEVER if runtime.name == plan.runtimes[0] and not is_other else plan.until.at_least(_LEAST_S)
        for number, each in enumerate(plan.ranges):
            stem = f"range-{number + 1:02}" + f".{_other_place(each).replace(' ', '-')}" * is_other
            found = None
            if _takes_s(each, is_other=is_other) <= until.left_s:
                with suppress(OutOfTime), until.enforced():
                    found = _placed(runtime, plan, each, stem, is_other=is_other)
            if found is None:
                late.append(stem)
            else:
                made[number, is_other] = found
    rows: list[dict[str, str]] = [{} for _ in plan.ranges]
    built: dict[str | os.PathLike[str], dict[str, Any]] = {}
    served: list[ServedSizes] = []
    named: list[tuple[str, str]] = []
    for (number, _), placed in sorted(made.items(), key=itemgetter(0)):
        named += placed.notes
        if placed.content is not None:
            rows[number][placed.key], built[placed.file] = placed.file, placed.content
            sizes = served_bytes(placed.content)
            served.append(ServedSizes(placed.file, *sizes, placed.in_place, unit_bytes(placed.content)))
    notes = [f"too little time for the MSCCL++ plan of {first_of(late, 3)}; give more time"] if late else []
    notes += notes_by_text(named)
    contents = {str(file): text_of_plan(each) for file, each in built.items()}
    registration = {}
    if built:
        script = f"{_MODULE}.py"
        ranks_per_node = ranks_per_host(plan.topology.node_of_rank)
        contents[script] = registration_snippet(built, ranks_per_node=ranks_per_node, module=_MODULE)
        registration[script] = f"with mscclpp, in Python: {_MODULE}.register(rank), from"
    unserved = f"its NCCL interface has no {plan.collective}: only for its own executor"
    remarks = [] if plan.collective in _SERVED else [unserved]
    return PlanFiles(contents, rows, served, registration, remarks, notes)


class _PlacedPlan(NamedTuple):
    """MSCCL++ plan of a range for calls in one place.

    - `key`: Key of the file in the plan's index.
    - `content`: Content of the file; None if there is no such plan.
    - `notes`: (name of the file or range, text) pairs; names with the same text share one line.
    """

    key: str
    file: str
    content: dict[str, Any] | None
    in_place: bool
    notes: list[tuple[str, str]]


def _takes_s(each: PlanRange, *, is_other: bool) -> float:
    """Estimated seconds to build the MSCCL++ plan of a range; with its program, if that is not yet made."""
    return busy_factor() * len(each.schedule) * (_PLAN_S + _PROGRAM_S * is_other)


def _other_place(each: PlanRange) -> str:
    return "out of place" if each.lowered.in_place else "in place"


def _placed(runtime: Runtime, plan: Plan, each: PlanRange, stem: str, *, is_other: bool) -> _PlacedPlan:
    """MSCCL++ plan of a range for calls in place if its program is in place; the opposite with `is_other`."""
    file, key, notes, program = f"{stem}.plan.json", "mscclpp", list[tuple[str, str]](), each.lowered
    if is_other:
        place = _other_place(each)
        key = f"mscclpp_{place.replace(' ', '_')}"
        lowering = {**plan.lowering, "in_place": not program.in_place}
        try:
            program = runnable(each.schedule, lowering, runtime_named(plan.runtimes[0]))
        except (ExportError, InputError) as error:
            notes.append((stem.partition(".")[0], f"no MSCCL++ plan {place}: {error.reason}"))
            return _PlacedPlan(key, file, None, not program.in_place, notes)
        notes += [(file, note) for note in program.notes if note not in each.lowered.notes]
    content = _plan_of(runtime, plan, each, program, file, notes)
    return _PlacedPlan(key, file, content, program.in_place, notes)


def _plan_of(
    runtime: Runtime,
    plan: Plan,
    each: PlanRange,
    program: Program,
    file: str,
    notes: list[tuple[str, str]],
) -> dict[str, Any] | None:
    """MSCCL++ plan of a range, under the first of `_protocols` that allows one; None if none does."""
    ranged = replace(program, sizes_bytes=(each.min_bytes, each.max_bytes))
    name = f"taccl-{plan.collective}-{file.removesuffix('.plan.json').removeprefix('range-').lstrip('0')}"
    lacking = program.protocol not in runtime.protocols
    reasons = [f"MSCCL++ has no {program.protocol}"] if lacking else []
    for protocol in _protocols(runtime, plan, each, program):
        try:
            # The offsets of MSCCL++ have 32 bits, which limits the sizes of the plan.
            built = build_mscclpp_plan(replace(ranged, protocol=protocol), split=True, name=name)
        except (ExportError, InputError) as error:
            reasons.append(error.reason)
            continue
        if protocol != program.protocol:
            why = ", and as ".join(reason.partition(";")[0] for reason in reasons)
            notes.append((file, f"{protocol} in place of {program.protocol}, as {why}"))
        return built
    notes.append((file.removesuffix(".plan.json"), f"no MSCCL++ plan: {'; '.join(reasons)}"))
    return None


def _protocols(runtime: Runtime, plan: Plan, each: PlanRange, program: Program) -> Iterator[str]:
    """MSCCL++'s protocols in order of preference: the program's own first, then by predicted time."""
    if program.protocol in runtime.protocols:
        yield program.protocol
    others = [protocol for protocol in runtime.protocols if protocol != program.protocol]

    def predicted_us(protocol: str) -> float:
        if protocol.lower() in plan.topology.protocols:
            under = plan.topology.under(protocol.lower())
            with suppress(InputError):  # the order of sends is infeasible under this protocol
                return simulate(each.schedule, topology=under).as_schedule().predicted_us
        return 0.0

    # A single protocol needs no simulation.
    yield from sorted(others, key=lambda each: (predicted_us(each), each)) if len(others) > 1 else others

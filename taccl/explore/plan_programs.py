"""Lower schedules of a plan to programs within the limits of a runtime's file format."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

from taccl.baselines.ring import ring
from taccl.errors import ExportError, InputError
from taccl.problem.collectives import allgather
from taccl.problem.making import make_problem
from taccl.program.interpret import interpret
from taccl.program.lower import lower
from taccl.program.program import Program
from taccl.program.split import split_threadblocks
from taccl.runtimes.runtime import Runtime
from taccl.schedule.schedule import Schedule
from taccl.topology.registry import parse

#: Options of `lower` to try, in turn, if the program exceeds the limits of the format.
_REMEDIES: tuple[dict[str, Any], ...] = (
    {},
    {"threadblocks": "per-peer"},
    {"threadblocks": "per-peer", "channels": "round-robin", "num_channels": 2},
    {"threadblocks": "per-peer", "channels": "by-peer", "num_channels": 4},
)


def runnable(schedule: Schedule, lowering: dict[str, Any], runtime: Runtime) -> Program:
    """Lower a schedule to a program within the limits of a runtime's files."""
    last = ExportError("there is no way to lower the schedule")
    for remedy in _REMEDIES:
        if any(name in lowering for name in remedy):
            continue
        whole = runtime.made("lower", Program, schedule, **(remedy | lowering))
        for program in (whole, split_threadblocks(whole, max_steps=runtime.max_steps)):
            try:
                if runtime.check:
                    runtime.outcome("check", runtime, program)
            except ExportError as error:
                last = error
            else:
                interpret(program).raise_if_failed()
                return program
    raise last


def check_lowering(lowering: Mapping[str, Any]) -> None:
    """Raise `InputError` for options that `taccl.lower` refuses; tests them on a small schedule."""
    known = list(signature(lower).parameters)[1:]
    unknown = [name for name in lowering if name not in known]
    if unknown:
        raise InputError(f"found {unknown[0]!r}; expected some of {', '.join(known)}", where="lowering")
    lower(ring(make_problem(parse("ring:2"), allgather(2), chunk_bytes=1)), **lowering)

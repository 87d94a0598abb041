"""Lower schedules of a plan to programs within the limits of a runtime's file format."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from inspect import signature
from typing import Any

import numpy as np

from taccl.baselines.ring import ring
from taccl.errors import ExportError, InputError, LossyConversionWarning
from taccl.problem.collectives import allgather
from taccl.problem.making import make_problem
from taccl.program.interpret import interpret
from taccl.program.lower import channel_by_distance, lower
from taccl.program.program import Program
from taccl.program.runtimes import MAX_PEERS
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
    {"threadblocks": "per-peer", "channels": "by-peer", "num_channels": 8},
)


def runnable(schedule: Schedule, lowering: dict[str, Any], runtime: Runtime) -> Program:
    """Lower a schedule to a program within the limits of a runtime's files.

    Losses are in the program's notes, and no warning repeats them, as the program may be used by no plan.
    Options of `lower` under which a rank has too many peers over one channel are skipped, as lowering takes
    seconds for schedules of many sends.
    """
    last = ExportError("there is no way to lower the schedule")
    for number, remedy in enumerate(_REMEDIES, start=1):
        if any(name in lowering for name in remedy):
            continue
        peers = _most_peers(schedule, remedy | lowering) if runtime.reads_xml else 0
        if peers > MAX_PEERS and number < len(_REMEDIES):
            continue
        with warnings.catch_warnings():  # a plan states the notes of the programs that it has
            warnings.simplefilter("ignore", LossyConversionWarning)
            whole = runtime.made("lower", Program, schedule, **(remedy | lowering))
        for splits in (False, True):
            program = split_threadblocks(whole, max_steps=runtime.max_steps) if splits else whole
            try:
                if runtime.check:
                    runtime.outcome("check", runtime, program)
            except ExportError as error:
                last = error
            else:
                interpret(program).raise_if_failed()
                return program
    raise last


def _most_peers(schedule: Schedule, options: Mapping[str, Any]) -> int:
    """Max peers of a rank over one channel, in a program lowered with `options`; 0 if unknown.

    On parallel links, only the first link between two ranks counts.
    """
    problem, policy = schedule.problem, options.get("channels", "single")
    ends = [problem.topology.links[e] for e in np.unique(schedule.link).tolist()]
    sources = None if problem.collective.sums_up else 1
    pairs = Counter((src, dst) for link in ends for src in link.srcs[:sources] for dst in link.dsts)
    # Round-robin begins on the first channel for every peer, except over parallel links.
    if policy == "by-chunk" or (policy == "round-robin" and max(pairs.values(), default=1) > 1):
        return 0
    num_channels, peers = options.get("num_channels", 1), Counter[tuple[int, bool, int]]()
    for src, dst in pairs:
        channel = 0
        if policy == "by-peer":
            channel = channel_by_distance(src, dst, num_channels, problem.collective.num_ranks)
        peers[src, True, channel] += 1
        peers[dst, False, channel] += 1
    return max(peers.values(), default=0)


def check_lowering(lowering: Mapping[str, Any]) -> None:
    """Raise `InputError` for options that `taccl.lower` refuses; tests them on a small schedule."""
    known = list(signature(lower).parameters)[1:]
    unknown = [name for name in lowering if name not in known]
    if unknown:
        raise InputError(f"found {unknown[0]!r}; expected some of {', '.join(known)}", where="lowering")
    lower(ring(make_problem(parse("ring:2"), allgather(2), chunk_bytes=1)), **lowering)

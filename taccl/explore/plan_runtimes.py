"""Runtimes of a plan: supported collectives and protocols, programs within limits, sizes that files serve."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from inspect import signature
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl._internal.units import format_count, format_size
from taccl.baselines.ring import ring
from taccl.errors import ExportError, InputError, LossyConversionWarning
from taccl.formats.program_kind import serves_powers_of_two
from taccl.problem.collective import Collective
from taccl.problem.collectives import allgather
from taccl.problem.making import make_problem
from taccl.program.interpret import interpret
from taccl.program.limits import MAX_PEERS
from taccl.program.lower import channel_by_distance, lower
from taccl.program.program import Program
from taccl.program.split import split_threadblocks
from taccl.runtimes.runtime import Runtime, ServedSizes
from taccl.schedule.schedule import Schedule
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.topology.profiles import profile_of
from taccl.topology.registry import parse
from taccl.topology.topology import Topology

if TYPE_CHECKING:
    from taccl.explore.plan_ranges import Plan


#: Collectives that every runtime of MSCCL XML knows by name.
NAMED = ("allgather", "allreduce", "alltoall", "broadcast", "reduce", "reduce-scatter")
#: Options of `lower` to try, in turn, if the program exceeds the limits of the format.
_REMEDIES: tuple[dict[str, Any], ...] = (
    {},
    {"threadblocks": "per-peer"},
    {"threadblocks": "per-peer", "channels": "round-robin", "num_channels": 2},
    {"threadblocks": "per-peer", "channels": "by-peer", "num_channels": 4},
    {"threadblocks": "per-peer", "channels": "by-peer", "num_channels": 8},
)


def check_collective(runtime: Runtime, collective: Collective, fabric: Topology) -> None:
    """Raise `InputError` for a collective that no file of the runtime can hold."""
    why = runtime.reason_against(collective, fabric)
    if why:
        others = f"{', '.join(NAMED)}, or " if collective.name in why else ""
        remedy = f"choose {others}another runtime"
        raise InputError(f"{why}; {remedy}", where="collective")


def under_protocols_of(
    runtime: Runtime, fabric: Topology, collective: Collective, protocol: str, lowering: Mapping[str, Any]
) -> list[Topology]:
    """Variants of a topology, one for each protocol that a plan compares and the runtime supports.

    Protocols by which the runtime cannot run the collective are left out. The runtime's launch time replaces
    that of the stock library.
    """
    asked = [str(lowering["protocol"])] if lowering.get("protocol") else []
    asked += [] if protocol == "auto" else [fabric.protocol or protocol]
    known = [
        each.lower()
        for each in runtime.protocols
        if not runtime.reason_against(collective, fabric, each.lower())
    ]
    for each in asked:
        if each.lower() not in known:
            runs = f"{runtime.title} runs {collective.name} on {fabric.name}"
            said = f"found {each}; {runs} by {' or '.join(known) or 'none: leave it out'}"
            raise InputError(said, where="protocol")
    named = [each for each in fabric.protocols if protocol == "auto" and each in known]
    found = [fabric.under(each) for each in named] or [fabric]
    return [under_launch(runtime, each) for each in found]


def protocol_besides_simple(runtime: Runtime, fabric: Topology, collective: Collective) -> dict[str, str]:
    """Option ``protocol`` of `lower` on a topology without protocols, if the runtime cannot use Simple."""
    if fabric.protocols or not runtime.reason_against(collective, fabric, "simple"):
        return {}
    known = (
        each for each in runtime.protocols if not runtime.reason_against(collective, fabric, each.lower())
    )
    return {"protocol": each for each in islice(known, 1)}


def under_launch(runtime: Runtime, fabric: Topology) -> Topology:
    """The topology with the runtime's launch time, if known, in place of the stock library's.

    The profile's value for that runtime takes precedence over the runtime's usual one.
    """
    if runtime.launch_us is None or not fabric.launch_us:
        return fabric
    profile = profile_of(fabric)
    own = None if profile is None else profile.launch_under(runtime.name)
    return replace(fabric, launch_us=Fraction(str(runtime.launch_us)) if own is None else own)


def coverage_text(runtime: Runtime, plan: Plan, served: Sequence[ServedSizes]) -> str:
    """One line of text: sizes that a runtime's files serve, and sizes of the plan that no file serves."""
    parts = []
    for in_place, group in groupby(
        sorted(served, key=lambda each: (each.in_place, each.max_bytes, each.min_bytes)),
        lambda each: each.in_place,
    ):
        files = sorted(group, key=lambda each: each.min_bytes)[: runtime.max_files]
        place = "in place" if in_place else "out of place"
        sizes = ", ".join(f"{format_size(low)} to {format_size(high)}" for low, high in _joined(files))
        multiples = _multiples_text(files, plan)
        parts.append(f"{sizes} in {format_count(len(files), 'file')}, {place}{multiples}")
        gaps = ", ".join(f"{format_size(low)} to {format_size(high)}" for low, high in _gaps(plan, files))
        if gaps:
            parts[-1] += f" (nothing for {gaps})"
    return f"{runtime.name}: {'; '.join(parts) or 'no file'}"


def _multiples_text(files: Sequence[ServedSizes], plan: Plan) -> str:
    """Limit on sizes, such as ``", multiples of 8 elements"``; empty if the files serve all sizes."""
    text = ""
    units = sorted({each.unit_bytes for each in files} - {1})
    if units:
        text += f", multiples of {' or '.join(map(format_size, units))}"
    chunks = sorted({each.num_chunks for each in files} - {1})
    if chunks:
        text += f", multiples of {' or '.join(map(str, chunks))} elements"
    of_plan = plan.collective, plan.topology.num_ranks
    steps = [each.unit_bytes * each.num_chunks for each in files]  # in bytes, for the smallest elements
    num_idle = sum(each.max_bytes // n * n < each.min_bytes for each, n in zip(files, steps, strict=True))
    if num_idle:
        text += f" (which leaves out every size of {format_count(num_idle, 'file')})"
    elif not all(serves_powers_of_two(each, *of_plan) for each in (*units, *chunks)):
        text += " (which leaves out powers of two)"
    return text


def serving_parameters(collective: Collective) -> tuple[SearchParameters, list[str]]:
    """Search parameters, and notes on them, for numbers of chunks that divide power-of-two sizes.

    A runtime uses a file only if its chunks divide the data of a call. Sizes of calls are mostly powers of
    two, or small multiples of these. If no number of chunks qualifies, the parameters are the defaults.
    """
    usual = DEFAULTS.suggesting
    counts, partitions = (serving_counts(collective, each) for each in (usual.counts, usual.partitions))
    if counts == list(usual.counts):
        return DEFAULTS, []
    chosen = replace(
        usual, counts=tuple(counts), partitions=tuple(partitions), counts_only=1,
        first_partition=max(each for each in partitions if each <= usual.first_partition),
    )  # fmt: skip
    *fewer, most = map(str, counts)
    note = (
        f"only {', '.join(fewer)} or {most} chunks per rank tried, so that files serve powers of two "
        "(a sketch's chunks.per_rank sets another)"
    )
    return replace(DEFAULTS, suggesting=chosen), [note]


def serving_counts(collective: Collective, counts: Sequence[int]) -> list[int]:
    """Select numbers of parts per chunk with which files serve power-of-two sizes; all if none qualifies.

    - `collective`: A collective that leaves the number of chunks open, with one chunk per rank for now.
    """
    name, num_ranks = collective.name, collective.num_ranks
    whole = collective.size_chunks
    serving = [each for each in counts if serves_powers_of_two(whole * each, name, num_ranks)]
    return serving or list(counts)


def _joined(files: Sequence[ServedSizes]) -> list[tuple[int, int]]:
    """(first, last) size of each contiguous range that files serve."""
    joined: list[tuple[int, int]] = []
    for each in files:
        if joined and each.min_bytes <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], each.max_bytes))
        else:
            joined.append((each.min_bytes, each.max_bytes))
    return joined


def _gaps(plan: Plan, files: Sequence[ServedSizes]) -> list[tuple[int, int]]:
    """(first, last) size of each range of the plan that no file serves."""
    gaps, begin, end = [], plan.ranges[0].min_bytes, plan.ranges[-1].max_bytes
    for low, high in _joined(files):
        if low > begin:
            gaps.append((begin, low - 1))
        begin = high + 1
    return [*gaps, (begin, end)] if begin <= end else gaps


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

"""Runtimes of a plan: the collectives and protocols they support, and the sizes that their files serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import groupby
from typing import TYPE_CHECKING, Any

from taccl._internal.units import format_count, format_size
from taccl.errors import InputError
from taccl.formats.program_kind import serves_powers_of_two
from taccl.problem.collective import Collective
from taccl.runtimes.runtime import Runtime, ServedSizes
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.topology.profiles import profile_of
from taccl.topology.topology import Topology

if TYPE_CHECKING:
    from taccl.explore.plan_ranges import Plan

#: Collectives that every runtime of MSCCL XML knows by name.
NAMED = ("allgather", "allreduce", "alltoall", "broadcast", "reduce", "reduce-scatter")


def check_collective(runtime: Runtime, collective: Collective, fabric: Topology) -> None:
    """Raise `InputError` for a collective that no file of the runtime can hold."""
    why = runtime.reason_against(collective, fabric)
    if why:
        remedy = f"choose {', '.join(NAMED)}, or another runtime"
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
            said = f"found {each}; {runs} by {' or '.join(known)}"
            raise InputError(said, where="protocol")
    named = [each for each in fabric.protocols if protocol == "auto" and each in known]
    found = [fabric.under(each) for each in named] or [fabric]
    return [under_launch(runtime, each) for each in found]


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
    if not all(serves_powers_of_two(each, *of_plan) for each in (*units, *chunks)):
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

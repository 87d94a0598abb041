"""A plan for runtimes: protocols that compete, how a shell tells of its files, and sizes that they serve.

Variables and folders are those that the sources named in `taccl.program.runtimes` read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from taccl._internal.names import shown
from taccl._internal.units import format_count, format_size
from taccl.errors import InputError
from taccl.formats.msccl.xml import unseen_root
from taccl.formats.mscclpp.plan import why_no_packets
from taccl.formats.program_kind import kind_of, serves_powers_of_two
from taccl.problem.collective import Collective
from taccl.program.runtimes import Runtime
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.topology.profiles import profile_of
from taccl.topology.topology import Topology

if TYPE_CHECKING:
    from taccl.explore.plan_ranges import Plan

#: Folder of the files of runtimes that load every file of a folder, and so may hold nothing else.
XML_FOLDER = "msccl-algorithms"
#: Collectives whose calls MSCCL++ gives to plans, of those that it takes for NCCL.
_SERVED_BY_MSCCLPP = ("allreduce", "allgather", "reduce-scatter", "broadcast")
#: Collectives with a name in MSCCL XML for every runtime.
_NAMED = ("allgather", "allreduce", "alltoall", "broadcast", "reduce", "reduce-scatter")


class ServedSizes(NamedTuple):
    """One file: the sizes that it is for, multiples of `unit_bytes`, and the place of the data.

    - `num_chunks`: Runtimes of MSCCL XML use it for numbers of elements that this divides.
    """

    file: str
    min_bytes: int
    max_bytes: int
    in_place: bool
    unit_bytes: int = 1
    num_chunks: int = 1


def check_collective(runtime: Runtime, collective: Collective) -> None:
    """Raise `InputError` for a collective that no file of the runtime can hold."""
    if collective.name in _NAMED:
        return
    found = f"{runtime.title} has no {collective.name}"
    remedy = f"choose {', '.join(_NAMED)}, or another runtime"
    if runtime.reads_xml and not runtime.takes_custom:
        raise InputError(f"{found}, as it takes no custom collectives; {remedy}", where="collective")
    for end in ("origins", "destinations"):
        ranks = {rank for chunk in collective.chunks for rank in getattr(chunk, end)}
        if not runtime.reads_xml and len(ranks) < collective.num_ranks:
            empty = "input" if end == "origins" else "output"
            raise InputError(f"{found}, as some ranks have no {empty}; {remedy}", where="collective")


def under_protocols_of(
    runtime: Runtime, fabric: Topology, collective: Collective, protocol: str, lowering: Mapping[str, Any]
) -> list[Topology]:
    """The topology under each protocol that competes: of those that were asked for, the runtime's.

    LL of MSCCL++ is left out if packets are not safe. Its launch takes the place of a library's launch and
    base latency, if the topology has these.
    """
    asked = [str(lowering["protocol"])] if lowering.get("protocol") else []
    asked += [] if protocol == "auto" else [fabric.protocol or protocol]
    known = [each.lower() for each in runtime.protocols]
    if not runtime.reads_xml and why_no_packets(collective, fabric.node_of_rank):
        known.remove("ll")
    for each in asked:
        if each.lower() not in known:
            runs = f"{runtime.title} runs {collective.name} on {fabric.name}"
            said = f"found {each}; {runs} by {' or '.join(known)}"
            raise InputError(said, where="protocol")
    named = [each for each in fabric.protocols if protocol == "auto" and each in known]
    found = [fabric.under(each) for each in named] or [fabric]
    return [under_launch(runtime, each) for each in found]


def under_launch(runtime: Runtime, fabric: Topology) -> Topology:
    """The topology with the launch of the runtime in place of a library's launch and base, if it has these.

    It is the profile's for that runtime, or else the usual one.
    """
    if runtime.launch_us is None or not fabric.launch_us:
        return fabric
    profile = profile_of(fabric)
    own = None if profile is None else profile.launch_under(runtime.name)
    return replace(fabric, launch_us=Fraction(str(runtime.launch_us)) if own is None else own)


def coverage_text(runtime: Runtime, plan: Plan, served: Sequence[ServedSizes]) -> str:
    """One line: the sizes that a runtime has files for, and those of the plan that it has none for."""
    parts = []
    for in_place, group in groupby(sorted(served, key=lambda each: each[3:0:-1]), lambda each: each.in_place):
        files = sorted(group, key=lambda each: each.min_bytes)[: runtime.max_files]
        place = "in place" if in_place else "out of place"
        sizes = ", ".join(f"{format_size(low)} to {format_size(high)}" for low, high in _joined(files))
        multiples = _multiples_text(files, plan)
        parts.append(f"{sizes} in {format_count(len(files), 'file')}, {place}{multiples}")
        gaps = ", ".join(f"{format_size(low)} to {format_size(high)}" for low, high in _gaps(plan, files))
        if gaps:
            parts[-1] += f" (nothing for {gaps})"
    said = "; ".join(parts) or "no file"
    root = _root(plan)
    if runtime.reads_xml and root is not None:
        said += f"; {unseen_root(plan.collective, root)}"
    if runtime.name == "mscclpp" and plan.collective not in _SERVED_BY_MSCCLPP:
        said += f"; its interface of NCCL has no {plan.collective}: for its own executor only"
    return f"{runtime.name}: {said}"


def _multiples_text(files: Sequence[ServedSizes], plan: Plan) -> str:
    """The multiples of bytes or elements that files serve, after a comma; empty if every size is one."""
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
    """Parameters of a search that cuts data into numbers of chunks whose files serve powers of two; notes.

    A runtime uses a file only if its chunks divide the data of a call, which mostly are powers of two times a
    few. The parameters are the usual ones where no number of chunks does.
    """
    usual = DEFAULTS.suggesting
    counts, partitions = (serving_counts(collective, each) for each in (usual.counts, usual.partitions))
    if counts == list(usual.counts):
        return DEFAULTS, []
    chosen = replace(
        usual, counts=tuple(counts), partitions=tuple(partitions), counts_only=1,
        first_partition=max(each for each in partitions if each <= usual.first_partition),
    )  # fmt: skip
    note = (
        f"data are cut into {', '.join(map(str, counts))} chunks per rank alone, so that files serve powers "
        "of two; a sketch with chunks.per_rank gives another number"
    )
    return replace(DEFAULTS, suggesting=chosen), [note]


def serving_counts(collective: Collective, counts: Sequence[int]) -> list[int]:
    """The numbers to cut each chunk into whose files runtimes use for powers of two; all if none is so.

    - `collective`: Where the number of chunks is open; in one chunk per rank.
    """
    name, num_ranks = collective.name, collective.num_ranks
    whole = collective.size_chunks
    serving = [each for each in counts if serves_powers_of_two(whole * each, name, num_ranks)]
    return serving or list(counts)


def _root(plan: Plan) -> int | None:
    """The root of the plan's collective, if runtimes know it for one with a root."""
    first = plan.ranges[0].program
    return None if first is None else kind_of(first, "a plan").root


def _joined(files: Sequence[ServedSizes]) -> list[tuple[int, int]]:
    """Sizes that files serve one after the other, each stretch from its first to its last."""
    joined: list[tuple[int, int]] = []
    for each in files:
        if joined and each.min_bytes <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], each.max_bytes))
        else:
            joined.append((each.min_bytes, each.max_bytes))
    return joined


def _gaps(plan: Plan, files: Sequence[ServedSizes]) -> list[tuple[int, int]]:
    """Sizes of the plan that no file serves."""
    gaps, begin, end = [], plan.ranges[0].min_bytes, plan.ranges[-1].max_bytes
    for low, high in _joined(files):
        if low > begin:
            gaps.append((begin, low - 1))
        begin = high + 1
    return [*gaps, (begin, end)] if begin <= end else gaps


def environment_text(plan: Plan, runtime: Runtime, files: Sequence[str]) -> str:
    """Shell script to source before a program starts on a runtime of MSCCL XML, with files beside it."""
    first = plan.ranges[0].program
    place = "in place" if first is not None and first.in_place else "out of place"
    lines = [
        f"# {plan.collective} on {shown(plan.topology.name)}, {place}, for {runtime.title}: source it.",
        "# Other sizes, and those that do not divide into chunks, are left to the library's own algorithms.",
    ]
    lines += [
        f"#   {name}: {format_size(each.min_bytes)} to {format_size(each.max_bytes)}, "
        f"{shown(each.source)}; at most {format_size(each.scratch_bytes)} of scratch"
        for name, each in zip(files, plan.ranges, strict=True)
    ]
    if runtime.max_files is not None and len(files) > runtime.max_files:
        lines.append(
            f"# {runtime.title} loads {runtime.max_files} files at most; the others are left out here: plan "
            "fewer ranges."
        )
    root = _root(plan)
    if root is not None:
        lines.append(f"# Careful: {unseen_root(plan.collective, root)}.")
    folder = 'TACCL_PLAN="$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")" && pwd)"'
    return "\n".join([*lines, *_SETTINGS[runtime.name](folder, files[: runtime.max_files]), ""])


def _msccl(folder: str, files: Sequence[str]) -> list[str]:
    paths = ":".join(f"$TACCL_PLAN/{name}" for name in files)
    return [
        "# For microsoft/msccl (NCCL 2.12.12).",
        folder,
        f'export MSCCL_XML_FILES="{paths}"',
        "export NCCL_ALGO=MSCCL,RING,TREE",
    ]


_OWN_FOLDER = [
    "# The library loads every file of this folder, in place of the algorithms that it ships with: leave",
    "# nothing else in it.",
]


def _executor(folder: str, _: Sequence[str]) -> list[str]:
    return [
        "# For Azure/msccl-executor-nccl (NCCL 2.23.4), built with at least 64 steps per threadblock.",
        folder,
        *_OWN_FOLDER,
        f'export MSCCL_ALGO_DIR="$TACCL_PLAN/{XML_FOLDER}"',
        "export NCCL_MSCCL_ENABLE=1",
    ]


def _rccl(folder: str, _: Sequence[str]) -> list[str]:
    return [
        "# For RCCL 2.21.5 (ROCm 6.3) to 2.27.7 (ROCm 7.2); 2.28.3 (ROCm 7.13) no longer has MSCCL.",
        folder,
        *_OWN_FOLDER,
        f'export MSCCL_ALGO_DIR="$TACCL_PLAN/{XML_FOLDER}"',
        "export RCCL_MSCCL_ENABLE=1",
        "# On by itself only where RCCL knows the server, such as eight MI300X in one.",
        "export RCCL_MSCCL_FORCE_ENABLE=1",
        "# In graphs its own MSCCL++ kernels would take allreduce and allgather up to 1 MiB before any file.",
        "export RCCL_MSCCLPP_ENABLE=0",
    ]


_SETTINGS = {"msccl": _msccl, "msccl-executor": _executor, "rccl": _rccl}

"""MSCCL XML files of a plan, one for each range of sizes, and a shell script that makes runtimes load them.

The script's variables and folders are from the source code of the runtimes (see `taccl.runtimes.table`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taccl._internal.names import shown
from taccl._internal.units import format_size
from taccl.errors import LossyConversionWarning
from taccl.explore.plan_runtimes import NAMED
from taccl.formats.msccl.xml import (
    check_msccl_xml,
    dump_msccl_xml,
    unseen_root,
    why_not_between_nodes,
)
from taccl.formats.program_kind import kind_of
from taccl.problem.collective import Collective
from taccl.program.program import Program
from taccl.runtimes.runtime import PlanFiles, Runtime, ServedSizes

if TYPE_CHECKING:
    from taccl.explore.plan_ranges import Plan, PlanRange
    from taccl.topology.topology import Topology

#: Folder with nothing but XML files, for runtimes that load every file in a folder.
XML_FOLDER = "msccl-algorithms"
#: Name of the shell script that sets a runtime's environment variables.
_SCRIPT = "environment.sh"


def why_not(runtime: Runtime, collective: Collective, topology: Topology, protocol: str) -> str:
    """Reason why no MSCCL XML file can hold a collective for a runtime; empty if one can."""
    if topology.num_nodes > 1 and (reason := why_not_between_nodes(collective.name, protocol)):
        return f"{runtime.title} {reason}"
    if protocol or collective.name in NAMED or runtime.takes_custom:
        return ""
    return f"{runtime.title} has no {collective.name}, which does not support custom collectives"


def check(runtime: Runtime, program: Program) -> None:
    """Raise `ExportError` if an MSCCL XML file for the runtime cannot hold a program."""
    check_msccl_xml(program, runtime)


def files(runtime: Runtime, plan: Plan) -> PlanFiles:
    """An MSCCL XML file for each range, and a shell script that makes the runtime load these files."""
    folder = "" if runtime.name == "msccl" else f"{XML_FOLDER}/"
    names = [f"{folder}range-{number:02}.xml" for number in range(1, len(plan.ranges) + 1)]
    contents, served = {}, []
    for number, (name, each) in enumerate(zip(names, plan.ranges, strict=True), 1):
        contents[name] = _xml_text(each, f"taccl-{plan.collective}-{number}", runtime)
        sizes = (each.min_bytes, each.max_bytes)
        served.append(ServedSizes(name, *sizes, each.lowered.in_place, num_chunks=each.lowered.size_chunks))
    contents[_SCRIPT] = environment_text(plan, runtime, names)
    remarks = _cautions(plan)
    rows = [{"msccl_xml": name} for name in names]
    return PlanFiles(contents, rows, served, {_SCRIPT: f"with {runtime.name}: source"}, remarks)


def _xml_text(each: PlanRange, name: str, runtime: Runtime) -> str:
    # MSCCL serves sizes from minBytes up to, but not including, maxBytes; some runtimes include it.
    most = each.max_bytes + (not runtime.includes_most)
    return _xml_of(each.lowered, runtime, min_bytes=each.min_bytes, max_bytes=most, name=name)


def _xml_of(program: Program, runtime: Runtime, **options: Any) -> str:
    """MSCCL XML text of a program, without loss warnings: `coverage_text` states losses once per plan."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LossyConversionWarning)
        return dump_msccl_xml(program, split=False, runtime=runtime.name, **options)


def _cautions(plan: Plan) -> list[str]:
    """Texts on calls that would use the files wrongly, or not at all."""
    kind = kind_of(plan.ranges[0].lowered, "a plan")
    if kind.name == "custom":
        return [f"{plan.collective} has no call of NCCL: only for ncclCustomCollective, by the file's number"]
    return [] if kind.root is None else [unseen_root(plan.collective, kind.root)]


def environment_text(plan: Plan, runtime: Runtime, files: Sequence[str]) -> str:
    """Shell script that makes an MSCCL XML runtime load the plan's files; source it before a job starts."""
    place = "in place" if plan.ranges[0].lowered.in_place else "out of place"
    lines = [
        f"# {plan.collective} on {shown(plan.topology.name)}, {place}, for {runtime.title}: source it.",
        "# The library's own algorithms serve other sizes, and those that do not divide into chunks.",
    ]
    lines += [
        f"#   {name}: {format_size(each.min_bytes)} to {format_size(each.max_bytes)}, "
        f"{shown(each.source)}; at most {format_size(each.scratch_bytes or 0)} of scratch"
        for name, each in zip(files, plan.ranges, strict=True)
    ]
    if runtime.max_files is not None and len(files) > runtime.max_files:
        lines.append(
            f"# {runtime.title} loads at most {runtime.max_files} files; the others are omitted: plan "
            "fewer ranges."
        )
    lines += [f"# Careful: {each}." for each in _cautions(plan)]
    paths = ":".join(f"$TACCL_PLAN/{name}" for name in files[: runtime.max_files])
    settings = (each.replace("PATHS", paths) for each in _SETTINGS[runtime.name])
    return "\n".join([*lines, *settings, ""])


_FOLDER = 'TACCL_PLAN="$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")" && pwd)"'
_OWN_FOLDER = (
    _FOLDER,
    "# The library loads all files of this folder instead of its own algorithms: keep",
    "# no other files in it.",
    f'export MSCCL_ALGO_DIR="$TACCL_PLAN/{XML_FOLDER}"',
)
#: {runtime: lines of the script that make it load the XML files, whose paths replace ``PATHS``}.
_SETTINGS: dict[str, tuple[str, ...]] = {
    "msccl": (
        "# For microsoft/msccl (NCCL 2.12.12).",
        _FOLDER,
        'export MSCCL_XML_FILES="PATHS"',
        "export NCCL_ALGO=MSCCL,RING,TREE",
    ),
    "msccl-executor": (
        "# For Azure/msccl-executor-nccl (NCCL 2.23.4), built with at least 64 steps per threadblock.",
        *_OWN_FOLDER,
        "export NCCL_MSCCL_ENABLE=1",
    ),
    "rccl": (
        "# For RCCL 2.21.5 (ROCm 6.3) to 2.27.7 (ROCm 7.2); 2.28.3 (ROCm 7.13) no longer has MSCCL.",
        *_OWN_FOLDER,
        "export RCCL_MSCCL_ENABLE=1",
        "# On by default only for servers known to RCCL, such as eight MI300X in one.",
        "export RCCL_MSCCL_FORCE_ENABLE=1",
        "# In graphs, RCCL's MSCCL++ kernels would otherwise serve allreduce and allgather up to 1 MiB.",
        "export RCCL_MSCCLPP_ENABLE=0",
    ),
}

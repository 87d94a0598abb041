"""A plan as a folder: programs for runtimes, schedules, an index, and how to register it all.

``plan.json`` is the index. Each range has its schedule in taccl's own format, an MSCCL XML file with its
sizes, and an MSCCL++ plan where one can hold it. ``environment.sh`` is for the shell that starts a program:
it names the XML files to the runtime, wherever the folder is. ``register_plans.py`` makes the MSCCL++ plans
known. The folder is there whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taccl.baselines.ring import ring
from taccl.collectives import allgather
from taccl.errors import ExportError, FormatError, InputError
from taccl.formats.msccl.limits import MAX_STEPS
from taccl.formats.msccl.xml import dump_msccl_xml
from taccl.formats.mscclpp.plan import build_mscclpp_plan
from taccl.formats.mscclpp.registration import registration_snippet
from taccl.formats.native import save
from taccl.names import shown
from taccl.problem import make_problem
from taccl.program.interpret import interpret
from taccl.program.lower import lower
from taccl.program.program import Program
from taccl.program.split import split_threadblocks
from taccl.reading import parse_json, read_text
from taccl.schedule.schedule import Schedule
from taccl.topology.registry import parse
from taccl.units import format_size

if TYPE_CHECKING:
    from taccl.explore.plan_ranges import Plan

INDEX = "plan.json"
#: What may be in a folder that is replaced: what `save_plan` writes, and what Python makes of it.
_OWN = re.compile(
    r"plan\.json|environment\.sh|register_plans\.py|range-\d+\.(xml|json|plan\.json)|__pycache__"
)
#: Files that the MSCCL runtime loads at most.
_MAX_FILES = 4
#: How to lower a schedule again when the format has no room for the program.
_REMEDIES: tuple[dict[str, Any], ...] = (
    {},
    {"threadblocks": "per-peer"},
    {"threadblocks": "per-peer", "channels": "round-robin", "num_channels": 2},
    {"threadblocks": "per-peer", "channels": "by-peer", "num_channels": 4},
)


def runnable(schedule: Schedule, lowering: dict[str, Any]) -> Program:
    """A program of the schedule that its file has room for."""
    last = ExportError("there is no way to lower the schedule")
    for remedy in _REMEDIES:
        if any(name in lowering for name in remedy):
            continue
        whole = lower(schedule, **(remedy | lowering))
        for program in (whole, split_threadblocks(whole, max_steps=MAX_STEPS)):
            try:
                dump_msccl_xml(program, split=False)
            except ExportError as error:
                last = error
            else:
                interpret(program).raise_if_failed()
                return program
    raise last


def check_lowering(lowering: Mapping[str, Any]) -> None:
    """Raise `InputError` for options that `taccl.lower` does not take: it is asked about a small schedule."""
    known = list(signature(lower).parameters)[1:]
    unknown = [name for name in lowering if name not in known]
    if unknown:
        raise InputError(f"found {unknown[0]!r}; expected some of {', '.join(known)}", where="lowering")
    lower(ring(make_problem(parse("ring:2"), allgather(2), chunk_bytes=1)), **lowering)


def check_folder(folder: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """The folder to write; `InputError` if something speaks against it."""
    where = os.fspath(folder)
    path = Path(os.path.abspath(folder))
    try:
        names = sorted(os.listdir(path))
    except FileNotFoundError:
        names = []
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be used ({reason}); give another path", where=where) from None
    if names and not overwrite:
        said = "the folder exists; pass --force (overwrite=True) to replace it, or give another path"
        raise InputError(said, where=where)
    others = [name for name in names if not _OWN.fullmatch(name)]
    if others or (names and not _is_plan(path)):
        found = f", {others[0]!r}" if others else ""
        said = f"the folder holds something other than a plan{found}; give another path"
        raise InputError(said, where=where)
    if not os.access(path.parent, os.W_OK):
        said = f"there is no folder {path.parent} to write in; give another path"
        raise InputError(said, where=where)
    return path


def save_plan(plan: Plan, folder: str | os.PathLike[str], *, overwrite: bool = False) -> tuple[Path, ...]:
    """Write a plan; returns its files."""
    path = check_folder(folder, overwrite=overwrite)
    draft, old = (path.parent / f".{path.name[:100]}.{secrets.token_hex(8)}.{end}" for end in ("tmp", "old"))
    try:
        draft.mkdir()
        names = _fill(plan, draft)
        if path.exists():
            os.replace(path, old)
        os.replace(draft, path)
    except InputError as error:  # of a file in the draft, of which nobody has heard
        raise InputError(error.message, where=str(folder)) from None
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot be written ({reason}); give another path", where=str(folder)) from None
    finally:
        if old.exists() and not path.exists():  # stopped between the two
            os.replace(old, path)
        for each in (draft, old):
            shutil.rmtree(each, ignore_errors=True)
    return tuple(path / name for name in names)


def _is_plan(path: Path) -> bool:
    try:
        return parse_json(read_text(path / INDEX), source=INDEX).get("format") == "taccl-plan"
    except FormatError:
        return False


def _fill(plan: Plan, folder: Path) -> list[str]:
    names: list[str] = []
    rows: list[dict[str, Any]] = []
    notes = list(plan.notes)
    counts = {len(ranks) for ranks in plan.topology.ranks_of_node}
    ranks_per_node = counts.pop() if len(counts) == 1 else None
    mscclpp: dict[str | os.PathLike[str], dict[str, Any]] = {}
    for number, each in enumerate(plan.ranges, 1):
        if each.program is None:
            raise ExportError(f"range {number} of the plan has no program; make the plan with one")
        stem, name = f"range-{number:02}", f"taccl-{plan.collective}-{number}"
        files = {"msccl_xml": f"{stem}.xml", "schedule": f"{stem}.json"}
        # The runtime takes sizes from minBytes up to, but not, maxBytes.
        text = dump_msccl_xml(each.program, min_bytes=each.min_bytes, max_bytes=each.max_bytes + 1, name=name)
        (folder / files["msccl_xml"]).write_text(text, encoding="utf-8")
        save(each.schedule, folder / files["schedule"])
        try:
            # As far as that runtime's offsets reach.
            ranged = replace(each.program, sizes_bytes=(each.min_bytes, each.max_bytes))
            built = build_mscclpp_plan(ranged, ranks_per_node=ranks_per_node, split=True, name=name)
        except (ExportError, InputError) as error:
            notes.append(f"range {number} has no MSCCL++ plan: {error}")
        else:
            files["mscclpp"] = f"{stem}.plan.json"
            mscclpp[files["mscclpp"]] = built
            (folder / files["mscclpp"]).write_text(json.dumps(built, indent=1) + "\n", encoding="utf-8")
        names += files.values()
        rows.append({"files": files, **each.to_dict()})
    (folder / "environment.sh").write_text(_environment(plan), encoding="utf-8")
    register = ["environment.sh"]
    if mscclpp:
        snippet = registration_snippet(mscclpp, ranks_per_node=ranks_per_node or 0, module="register_plans")
        (folder / "register_plans.py").write_text(snippet, encoding="utf-8")
        register.append("register_plans.py")
    index = {
        "format": "taccl-plan", "version": 1, "register": register, **plan.to_dict(), "notes": notes,
        "ranges": rows,
    }  # fmt: skip
    (folder / INDEX).write_text(json.dumps(index, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return [INDEX, *register, *names]


def _environment(plan: Plan) -> str:
    """What a shell reads before it starts a program on the MSCCL runtime."""
    programs = [f"range-{number:02}.xml" for number in range(1, len(plan.ranges) + 1)]
    first = plan.ranges[0].program
    place = "in place" if first is not None and first.in_place else "out of place"
    lines = [
        f"# {plan.collective} on {shown(plan.topology.name)}, {place}, for the MSCCL runtime: source it.",
        "# Other sizes, and those that do not divide into chunks, are left to the library's own algorithms.",
    ]
    lines += [
        f"#   {name}: {format_size(each.min_bytes)} to {format_size(each.max_bytes)}, "
        f"{shown(each.source)}; at most {format_size(each.scratch_bytes)} of scratch"
        for name, each in zip(programs, plan.ranges, strict=True)
    ]
    if len(programs) > _MAX_FILES:
        lines.append(f"# The runtime loads {_MAX_FILES} files at most: leave some out, or plan fewer ranges.")
    files = ":".join(f"$TACCL_PLAN/{name}" for name in programs)
    lines += [
        'TACCL_PLAN="$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")" && pwd)"',
        f'export MSCCL_XML_FILES="{files}"',
        "export NCCL_ALGO=MSCCL,RING,TREE",
    ]
    return "\n".join([*lines, ""])

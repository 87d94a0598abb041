"""A plan as a folder: programs for runtimes, schedules, an index, and how to register it all.

``plan.json`` is the index. Each range has its schedule in taccl's own format and an MSCCL XML file with its
sizes. It also has MSCCL++ plans if that runtime can hold them. Files for other runtimes than the plan's are
left out. ``environment.sh`` is for the shell that starts a program: it names the XML files, or their folder,
to the runtime, wherever the plan is. ``register_plans.py`` makes the MSCCL++ plans known. The folder is
written whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taccl._internal.reading import parse_json, read_text
from taccl.analysis.simulation.simulate import simulate
from taccl.baselines.ring import ring
from taccl.errors import ExportError, FormatError, InputError, LossyConversionWarning
from taccl.explore.plan_runtimes import XML_FOLDER, ServedSizes, coverage_text, environment_text
from taccl.formats.msccl.xml import dump_msccl_xml
from taccl.formats.mscclpp.plan import build_mscclpp_plan
from taccl.formats.mscclpp.registration import registration_snippet, unit_bytes
from taccl.formats.native import save
from taccl.problem.collectives import allgather
from taccl.problem.problem import make_problem
from taccl.program.interpret import interpret
from taccl.program.lower import lower
from taccl.program.program import Program
from taccl.program.runtimes import RUNTIMES, Runtime
from taccl.program.split import split_threadblocks
from taccl.schedule.schedule import Schedule
from taccl.topology.registry import parse

if TYPE_CHECKING:
    from taccl.explore.plan_ranges import Plan, PlanRange

INDEX = "plan.json"
#: Files allowed in a folder that is replaced: those of `save_plan`, and Python's caches of them.
_OWN = re.compile(
    r"plan\.json|environment\.sh|register_plans\.py|range-\d+\.(xml|json|([a-z-]+\.)?plan\.json)|__pycache__|"
    + XML_FOLDER
)
_OWN_XML = re.compile(r"range-\d+\.xml")
#: How to lower a schedule again when the format has no room for the program.
_REMEDIES: tuple[dict[str, Any], ...] = (
    {},
    {"threadblocks": "per-peer"},
    {"threadblocks": "per-peer", "channels": "round-robin", "num_channels": 2},
    {"threadblocks": "per-peer", "channels": "by-peer", "num_channels": 4},
)


def runnable(schedule: Schedule, lowering: dict[str, Any], runtime: Runtime) -> Program:
    """A program of the schedule that a file for the runtime has room for."""
    last = ExportError("there is no way to lower the schedule")
    for remedy in _REMEDIES:
        if any(name in lowering for name in remedy):
            continue
        whole = lower(schedule, **(remedy | lowering))
        for program in (whole, split_threadblocks(whole, max_steps=runtime.max_steps)):
            try:
                if runtime.reads_xml:
                    _xml_of(program, runtime)
                else:
                    build_mscclpp_plan(program, split=True)
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
    if XML_FOLDER in names and (path / XML_FOLDER).is_dir():
        others += [name for name in os.listdir(path / XML_FOLDER) if not _OWN_XML.fullmatch(name)]
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
    runtimes = [RUNTIMES[name] for name in plan.runtimes]
    counts = {len(ranks) for ranks in plan.topology.ranks_of_node}
    ranks_per_node = counts.pop() if len(counts) == 1 else None
    mscclpp: dict[str | os.PathLike[str], dict[str, Any]] = {}
    served: dict[str, list[ServedSizes]] = {each.name: [] for each in runtimes}
    xml: list[str] = []
    for number, each in enumerate(plan.ranges, 1):
        if each.program is None:
            raise ExportError(f"range {number} of the plan has no program; make the plan with one")
        stem, name = f"range-{number:02}", f"taccl-{plan.collective}-{number}"
        files = {"schedule": f"{stem}.json"}
        save(each.schedule, folder / files["schedule"])
        sizes = (each.min_bytes, each.max_bytes)
        for runtime in runtimes:
            if runtime.reads_xml:
                files["msccl_xml"] = _xml_file(stem, runtime)
                xml.append(files["msccl_xml"])
                (folder / xml[-1]).parent.mkdir(exist_ok=True)
                (folder / xml[-1]).write_text(_xml_text(each, name, runtime), encoding="utf-8")
                served[runtime.name].append(
                    ServedSizes(xml[-1], *sizes, each.program.in_place, num_chunks=each.program.size_chunks)
                )
                continue
            for key, file, program in _placed(plan, each, stem, notes):
                built = _mscclpp_plan(plan, each, program, file, ranks_per_node, notes)
                if built is None:
                    continue
                files[key], mscclpp[file] = file, built
                (folder / file).write_text(json.dumps(built, indent=1) + "\n", encoding="utf-8")
                own = (built["min_message_size"], built["max_message_size"])
                served[runtime.name].append(ServedSizes(file, *own, program.in_place, unit_bytes(built)))
        names += files.values()
        rows.append({"files": files, **each.to_dict()})
    register = []
    for runtime in runtimes:
        if runtime.reads_xml:
            register.append("environment.sh")
            (folder / register[-1]).write_text(environment_text(plan, runtime, xml), encoding="utf-8")
    if mscclpp:
        register.append("register_plans.py")
        snippet = registration_snippet(mscclpp, ranks_per_node=ranks_per_node or 0, module="register_plans")
        (folder / register[-1]).write_text(snippet, encoding="utf-8")
    index = {
        "format": "taccl-plan", "version": 1, "register": register, **plan.to_dict(), "notes": notes,
        "coverage": {each.name: coverage_text(each, plan, served[each.name]) for each in runtimes},
        "ranges": rows,
    }  # fmt: skip
    (folder / INDEX).write_text(json.dumps(index, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return [INDEX, *register, *names]


def _xml_file(stem: str, runtime: Runtime) -> str:
    return f"{stem}.xml" if runtime.name == "msccl" else f"{XML_FOLDER}/{stem}.xml"


def _xml_text(each: PlanRange, name: str, runtime: Runtime) -> str:
    assert each.program is not None, "it is written where there is one"
    # MSCCL takes sizes from minBytes up to, but not, maxBytes.
    most = each.max_bytes + (not runtime.includes_most)
    return _xml_of(each.program, runtime, min_bytes=each.min_bytes, max_bytes=most, name=name)


def _xml_of(program: Program, runtime: Runtime, **options: Any) -> str:
    """The text of a file, without warnings: what it lacks is said once of the plan (`coverage_text`)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LossyConversionWarning)
        return dump_msccl_xml(program, split=False, runtime=runtime.name, **options)


def _placed(plan: Plan, each: PlanRange, stem: str, notes: list[str]) -> Iterator[tuple[str, str, Program]]:
    """The programs of a range for MSCCL++, one for each place: key in the index, file, program."""
    program = each.program
    assert program is not None, "it is written where there is one"
    yield "mscclpp", f"{stem}.plan.json", program
    if not plan.both_places:
        return
    place = "out of place" if program.in_place else "in place"
    try:
        other = runnable(
            each.schedule, {**plan.lowering, "in_place": not program.in_place}, RUNTIMES[plan.runtimes[0]]
        )
    except (ExportError, InputError) as error:
        notes.append(f"{stem} has no MSCCL++ plan {place}: {error}")
        return
    yield f"mscclpp_{place.replace(' ', '_')}", f"{stem}.{place.replace(' ', '-')}.plan.json", other


def _mscclpp_plan(
    plan: Plan, each: PlanRange, program: Program, file: str, ranks_per_node: int | None, notes: list[str]
) -> dict[str, Any] | None:
    """The MSCCL++ plan of a range, by the fastest protocol that it can be written for; None if none."""
    ranged = replace(program, sizes_bytes=(each.min_bytes, each.max_bytes))
    name = f"taccl-{plan.collective}-{file.removesuffix('.plan.json').removeprefix('range-').lstrip('0')}"
    lacking = program.protocol not in RUNTIMES["mscclpp"].protocols
    reasons = [f"MSCCL++ has no {program.protocol}"] if lacking else []
    for protocol in _protocols(plan, each, program):
        try:
            # As far as that runtime's offsets reach.
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


def _protocols(plan: Plan, each: PlanRange, program: Program) -> list[str]:
    """Protocols of MSCCL++: the program's first, if it has that, then the fastest first."""
    known = RUNTIMES["mscclpp"].protocols
    timed: list[tuple[float, str]] = []
    for protocol in known:
        predicted = 0.0
        if protocol.lower() in plan.topology.protocols:
            under = plan.topology.under(protocol.lower())
            with contextlib.suppress(InputError):  # its order cannot be kept there
                predicted = simulate(each.schedule, topology=under).as_schedule().predicted_us
        timed.append((predicted, protocol))
    return [protocol for _, protocol in sorted(timed, key=lambda each: (each[1] != program.protocol, each))]

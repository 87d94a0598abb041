"""A plan as a folder: schedules, an index, and the files of runtimes.

``plan.json`` is the index. Each range has its schedule in taccl's own format, and the files of the plan's
runtimes (`Runtime.files`). Examples are MSCCL XML with a shell script that names the files, or execution
plans of MSCCL++ with a module that registers them. The folder is written whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from taccl._internal.garbage import rarely_collected
from taccl._internal.reading import parse_json, read_text
from taccl.errors import FormatError, InputError
from taccl.explore.plan_runtimes import coverage_text
from taccl.explore.plan_xml import XML_FOLDER
from taccl.formats.files import folder_path
from taccl.formats.native import bounds_of, save
from taccl.runtimes.registry import runtime_named
from taccl.runtimes.runtime import PlanFiles, Runtime

if TYPE_CHECKING:
    from taccl.explore.plan_ranges import Plan

INDEX = "plan.json"
#: Names allowed in a folder that is replaced: files of `save_plan`, and Python's bytecode caches.
_OWN = re.compile(
    r"plan\.json|environment\.sh|register_plans\.py|range-\d+\.(xml|json|([a-z-]+\.)?plan\.json)|__pycache__|"
    + XML_FOLDER
)
_OWN_XML = re.compile(r"range-\d+\.xml")


def check_folder(folder: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """Path of the folder to write a plan to; `InputError` if it cannot or must not be written."""
    where, path = os.fspath(folder), folder_path(folder)
    try:
        names = sorted(os.listdir(path))
    except FileNotFoundError:
        names = []
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be used ({reason}); give another path", where=where) from None
    if names and not overwrite:
        said = "the folder exists; pass --overwrite (overwrite=True) to replace it, or give another path"
        raise InputError(said, where=where)
    index = _index_of(path)
    files = index.get("files")
    listed = {each for each in files if isinstance(each, str)} if isinstance(files, list) else set()
    within = listed | {each.partition("/")[0] for each in listed}
    others = [name for name in names if not (_OWN.fullmatch(name) or name in within)]
    for name in names:
        if name != "__pycache__" and (path / name).is_dir() and not (path / name).is_symlink():
            inner = os.listdir(path / name)
            others += [
                each for each in inner if f"{name}/{each}" not in listed and not _OWN_XML.fullmatch(each)
            ]
    if others or (names and index.get("format") != "taccl-plan"):
        found = f", {others[0]!r}" if others else ""
        said = f"the folder holds something other than a plan{found}; give another path"
        raise InputError(said, where=where)
    if not os.access(path.parent, os.W_OK):
        said = f"there is no folder {path.parent}; make it first, or give another path"
        raise InputError(said, where=where)
    return path


@rarely_collected()
def save_plan(plan: Plan, folder: str | os.PathLike[str], *, overwrite: bool = False) -> tuple[Path, ...]:
    """Write a plan to a folder; return the paths of the written files, the index first."""
    path = check_folder(folder, overwrite=overwrite)
    draft, old = (path.parent / f".{path.name[:100]}.{secrets.token_hex(8)}.{end}" for end in ("tmp", "old"))
    try:
        draft.mkdir()
        names = _fill(plan, draft)
        if path.exists():
            os.replace(path, old)
        os.replace(draft, path)
    except InputError as error:  # its `where` is a file in the draft folder, which the caller does not know
        raise InputError(error.message, where=str(folder)) from None
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot be written ({reason}); give another path", where=str(folder)) from None
    finally:
        if old.exists() and not path.exists():  # the write was interrupted between its two renames
            os.replace(old, path)
        for each in (draft, old):
            shutil.rmtree(each, ignore_errors=True)
    return tuple(path / name for name in names)


def _index_of(path: Path) -> dict[str, Any]:
    """The index of the plan in a folder; empty if there is none."""
    try:
        return parse_json(read_text(path / INDEX), source=INDEX)
    except FormatError:
        return {}


def _check_files(found: PlanFiles, runtime: Runtime, plan: Plan, taken: Iterable[str]) -> None:
    """Raise `InputError` if a runtime's files do not match the plan's ranges, or have unusable names."""
    if len(found.ranges) != len(plan.ranges):
        said = f"files has {len(found.ranges)} rows; expected one for each of {len(plan.ranges)} ranges"
        raise InputError(f"{runtime.title}: {said}", where="runtime")
    own = {INDEX, *taken, *(f"range-{number:02}.json" for number in range(1, len(plan.ranges) + 1))}
    for name in found.contents:
        parts = PurePosixPath(name).parts
        if not 1 <= len(parts) <= 2 or ".." in parts or parts[0] == "/" or name in own:
            said = f"files has a file {name!r}; expected a new name, in one folder at most"
            raise InputError(f"{runtime.title}: {said}", where="runtime")


def _fill(plan: Plan, folder: Path) -> list[str]:
    rows = [{"schedule": f"range-{number:02}.json"} for number in range(1, len(plan.ranges) + 1)]
    for each, row in zip(plan.ranges, rows, strict=True):
        # If time ran out, state the plan's bound, instead of computing one for the schedule's own chunks.
        is_late = plan.stopped == "time limit"
        extra = bounds_of(each.schedule, each.bound, each.bound) if is_late else None
        save(each.schedule, folder / row["schedule"], extra=extra)
    notes, names, registration, coverage = list(plan.notes), dict[str, None](), dict[str, str](), {}
    for runtime in map(runtime_named, plan.runtimes):
        found = PlanFiles({}, [{} for _ in rows], ())
        if plan.has_programs:
            found = runtime.made("files", PlanFiles, runtime, plan)
        _check_files(found, runtime, plan, names)
        for name, text in found.contents.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        for row, more in zip(rows, found.ranges, strict=True):
            row |= more
        registration |= found.registration
        names |= dict.fromkeys(found.contents)
        notes += found.notes
        coverage[runtime.name] = "; ".join([coverage_text(runtime, plan, found.served), *found.remarks])
    names = dict.fromkeys([*registration, *(name for row in rows for name in row.values()), *names])
    figures = {name: value for name, value in plan.to_dict().items() if name != "stages"}
    index = {
        "format": "taccl-plan", "version": 1, "register": list(registration), **figures,
        "notes": notes, "coverage": coverage, "registration": registration, "files": list(names),
        "ranges": [
            {"files": row, **each.to_dict()} for row, each in zip(rows, plan.ranges, strict=True)
        ],
    }  # fmt: skip
    (folder / INDEX).write_text(json.dumps(index, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return [INDEX, *names]

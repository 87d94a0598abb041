"""Save and load schedules, results, topologies, problems and sketches.

A topology or a problem is saved as JSON with its plain values, in the field ``topology`` or ``problem``, and
its notes. Every topology and problem can be saved. ``docs/formats.md`` lists the fields.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from taccl._internal.arguments import checked, quoted
from taccl._internal.reading import kinds_of, parse_json, read_text, reads
from taccl.errors import FormatError, InputError
from taccl.formats import native
from taccl.formats.files import write_whole
from taccl.formats.table import FORMATS
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.synthesis.result import Result
from taccl.topology.topology import Topology

if TYPE_CHECKING:
    from taccl.sketch.sketch import Sketch

VERSION = 1
_LIMIT_BYTES = 10**9
#: Schema name in sketch files, for editors; it also keeps a short sketch from being read as a topology.
_SCHEMA = "sketch.schema.json"
#: {class that `save` does not support: the call or command that saves its objects}.
_SAVED_BY = {
    "Collective": "taccl.save(taccl.make_problem(topology, collective), 'problem.json')",
    "Fit": "taccl fit -o profile.toml, or write the text of fit.to_toml(),",
    "Placement": "taccl reorder -o placement.json, or write placement.to_dict() as JSON,",
    "Plan": "plan.save('folder')",
    "Probe": "probe.save('probe.json')",
    "Program": "taccl.write(program, 'program.xml')",
    "SketchProposal": "taccl.save(proposal.sketch, 'sketch.toml')",
    "Step": "taccl.workload.save_workload(step.workload, 'step.toml')",
    "Workload": "taccl.workload.save_workload(workload, 'workload.toml')",
}

#: File extensions of formats other than JSON.
_OTHER_ENDINGS = {ending for each in FORMATS for ending in each.extensions if each.dump} - {".json"}

T = TypeVar("T")


@checked
def save(
    thing: Any, path: str | os.PathLike[str], *, overwrite: bool = False, extra: dict[str, Any] | None = None
) -> None:
    """Write a schedule, a result, a topology, a problem or a sketch to a file; `load` reads it.

    The file is JSON, and is written whole or not at all. If the path ends in ``.toml``, a topology or a
    sketch is written as TOML, which is easier to edit.

    Parameters
    ----------
    thing : Schedule, Result, Topology, Problem or Sketch
        The object. An implicit schedule is expanded first. A schedule is saved with its bound and
        gap; a result as its schedule, with the result's own figures.
    path : path
        Path of the file.
    overwrite : bool
        True to replace an existing file.
    extra : dict, optional
        Origin of a schedule. Default: ``result.to_dict()`` for a result, otherwise bounds and gaps, which are
        computed.

    Raises
    ------
    InputError
        If `thing` is of another kind, or the path has the extension of another format. If the file exists
        and `overwrite` is False, or it cannot be written; or if `extra` is given without a schedule.
    ExportError
        If a TOML file cannot hold the topology; JSON can.
    """
    if isinstance(thing, (Topology, Problem)) or _is_sketch(thing):
        if extra is not None:
            raise InputError("found extra without a schedule; leave it out", where="extra")
        write_whole(path, _text(thing, is_toml=_ending(path) == ".toml"), overwrite=overwrite)
        return
    if isinstance(thing, Result) and extra is None:
        extra = thing.to_dict()
    schedule = _schedule_in(thing)
    if ending := other_ending(path):
        said = f"a schedule is saved as JSON; give a path that ends in .json (taccl.write writes {ending})"
        raise InputError(said, where="path")
    native.save(schedule, path, overwrite=overwrite, extra=extra)


def _is_sketch(thing: object) -> TypeGuard[Sketch]:
    """True for a sketch.

    If the sketch module is not loaded, no sketch exists, so pydantic is not imported here.
    """
    module = sys.modules.get("taccl.sketch.sketch")
    return module is not None and isinstance(thing, module.Sketch)


def other_ending(path: str | os.PathLike[str]) -> str:
    """Extension of a path if it belongs to another format than taccl's own; otherwise empty."""
    ending = _ending(path)
    return ending if ending in _OTHER_ENDINGS else ""


def _ending(path: str | os.PathLike[str]) -> str:
    return Path(path).suffix.lower()


def _schedule_in(thing: Any) -> Schedule:
    """The schedule of an object to save; if it has none, `InputError` names a call that saves it, if any."""
    if (saves := _SAVED_BY.get(type(thing).__name__)) is not None:
        raise InputError(f"found {quoted(thing)}; {saves} saves it", where="thing")
    try:
        return _as_schedule(thing)
    except InputError as error:
        found = error.message.partition(";")[0]
        said = f"{found}; expected a schedule, a result, a topology, a problem or a sketch"
        raise InputError(said, where="thing") from None


@checked
def _as_schedule(thing: Schedule) -> Schedule:
    return thing


def _text(thing: Topology | Problem | Sketch, *, is_toml: bool) -> str:
    if isinstance(thing, Topology):
        if is_toml:
            from taccl.topology.file_writer import dump_topology as dump_toml

            return dump_toml(thing)
        return dump_topology(thing)
    if isinstance(thing, Problem):
        if is_toml:
            raise InputError("a problem is saved as JSON; give a path that ends in .json", where="path")
        return dump_problem(thing)
    if is_toml:
        return f'"$schema" = "{_SCHEMA}"\n{thing.to_toml()}'
    return json.dumps({"$schema": _SCHEMA, **thing.to_dict()}, indent=2) + "\n"


@checked
def load(path: str | os.PathLike[str]) -> Any:
    """Load the schedule, topology, problem or sketch in a file, or the object in another tool's file.

    The content determines the kind. `load` reads files of `save`, and all files that `taccl.topologies.load`,
    `taccl.load_sketch` and ``taccl convert`` read.

    Raises
    ------
    InputError
        If the file cannot be read; `FormatError` if its content is unknown.
    """
    from taccl.formats import detection, registry
    from taccl.sketch.library import load_sketch

    try:
        known = detection.format_of_content(path)
    except FormatError as unknown:
        kinds = kinds_of(path)
        if "upstream topology" in kinds or "topology" in kinds:
            return registry.load_topology(path)
        if "sketch" in kinds or "upstream sketch" in kinds:
            return load_sketch(path)
        try:  # the file may be a topology that only names a machine
            return registry.load_topology(path)
        except InputError:
            raise unknown from None
    return (
        registry.load_topology(path) if known.holds == "topology" else registry.read(path, format=known.name)
    )


def dump_topology(topology: Topology) -> str:
    """Text of a topology's JSON file."""
    return _document("topology", topology.to_dict(), notes=list(topology.notes))


@reads("saved topology")
def load_topology(path: str | os.PathLike[str]) -> Topology:
    """Load the topology in a JSON file that `dump_topology` wrote."""
    return _made(path, "topology", lambda plain, data: replace(Topology.from_dict(plain), notes=_notes(data)))


def dump_problem(problem: Problem) -> str:
    """Text of a problem's JSON file."""
    notes = {"notes": list(problem.notes), "topology_notes": list(problem.topology.notes)}
    return _document("problem", problem.to_dict(), **notes, chunks_open=problem.chunks_open)


@reads("problem")
def load_problem(path: str | os.PathLike[str]) -> Problem:
    """Load the problem in a JSON file that `dump_problem` wrote."""

    def made(plain: dict[str, Any], data: dict[str, Any]) -> Problem:
        problem = Problem.from_dict(plain)
        topology = replace(problem.topology, notes=_notes(data, "topology_notes"))
        chunks_open = data["chunks_open"]
        if not isinstance(chunks_open, bool):
            raise TypeError("chunks_open is true or false")
        return replace(problem, topology=topology, notes=_notes(data), chunks_open=chunks_open)

    return _made(path, "problem", made)


def _document(kind: str, plain: dict[str, Any], **more: Any) -> str:
    head = {"format": f"taccl-{kind}", "version": VERSION, **more}
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in (head | {kind: plain}).items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _notes(data: dict[str, Any], name: str = "notes") -> tuple[str, ...]:
    return tuple(map(str, data[name]))


def _made(path: str | os.PathLike[str], kind: str, make: Callable[[dict[str, Any], dict[str, Any]], T]) -> T:
    """Load an object of a kind from a JSON file; `FormatError` if the content is not one.

    - `make`: Function that makes the object from its plain values and the whole document.
    """
    where = str(Path(path))
    data = parse_json(read_text(path, _LIMIT_BYTES), source=where)
    if data.get("format") != f"taccl-{kind}" or data.get("version") != VERSION:
        said = f"found no {kind} of version {VERSION}; expected a file that taccl.save wrote"
        raise FormatError(said, where=where)
    try:
        return make(data[kind], data)
    except InputError as error:
        raise FormatError(str(error), where=where) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        said = f"found values that make no {kind} ({error}); save it again"
        raise FormatError(said, where=where) from None

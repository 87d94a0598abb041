"""Read, write and convert files in the formats of `taccl.formats.table`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

from taccl._internal.arguments import checked
from taccl._internal.file_kinds import a
from taccl._internal.names import did_you_mean, quoted
from taccl._internal.reading import kinds_of
from taccl._internal.units import format_us
from taccl.errors import (
    FormatError,
    InputError,
    LossyConversionWarning,
    TopologyError,
    VerificationError,
    warn,
)
from taccl.formats.detection import format_of_content, readable, writable
from taccl.formats.files import check_writable, write_all
from taccl.formats.native import dump_text, read_document
from taccl.formats.program_kind import note_of_multiples
from taccl.formats.table import CONVERSIONS, FORMATS, KINDS, FileFormat
from taccl.program.limits import USUALLY_IN_PLACE
from taccl.program.program import PROTOCOLS, Program
from taccl.schedule.schedule import Schedule
from taccl.sketch.upstream import load_upstream_topology
from taccl.synthesis.result import Result
from taccl.topology.files import load_topology as load_own_topology
from taccl.topology.topology import Topology

#: Maximum number of steps for which a conversion times the program (about 2 s of CPU).
_MOST_STEPS = 40_000


class Conversion(NamedTuple):
    """Outcome of a conversion: source and target format, files written, and notes.

    - `schedule_us`, `program_us`: Finish of the schedule, and of the program that it was lowered to, as
      `taccl.lift` times it. None if no schedule was lowered, or its program has too many steps.
    """

    source: FileFormat
    target: FileFormat
    paths: tuple[Path, ...]
    notes: tuple[str, ...] = ()
    schedule_us: float | None = None
    program_us: float | None = None


@checked
def write(
    schedule: object,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    overwrite: bool = False,
    **options: Any,
) -> tuple[Path, ...]:
    """Write a schedule, or another object of `taccl.formats.table.KINDS`, to a file whole or not at all.

    Parameters
    ----------
    schedule : object
        The object to write; of a result, its schedule.
    path : path
        Path of the file, or a prefix for formats with a file per rank.
    format : str, optional
        A name in `taccl.formats.table.FORMATS`; by default the format of the path's extension.
    overwrite : bool
        True to replace existing files.
    options
        Options of the format's writer.

    Returns
    -------
    tuple of Path
        The files written; several if the format has a file per rank, or an option adds a file.

    Raises
    ------
    InputError
        If the format is unknown or holds other kinds of object, or its writer does not have an option. Also
        if the file exists and `overwrite` is False, or it cannot be written.
    ExportError
        If the format cannot hold this particular schedule.
    """
    schedule = schedule.schedule if isinstance(schedule, Result) else schedule
    kind = _kind(schedule)
    target = for_kind(writable(path, format), kind, path if format is None else None)
    return _write(
        schedule, path, target, _route(kind, target), overwrite=overwrite, options=options, is_timed=False
    )[0]


@checked
def read(path: str | os.PathLike[str], *, format: str | None = None, **options: Any) -> Any:
    """Read the object in a file; the content determines the format.

    Raises `InputError` if the file cannot be read, the format is unknown or write-only, or its reader does
    not have an option. `FormatError` if the content matches no format, or is invalid in its format.
    """
    source = readable(path, format)
    load = resolve_name(source.load)
    _check_options(options, (load,), source)
    return load(path, **options)


@checked
def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    from_: str | None = None,
    to: str | None = None,
    overwrite: bool = False,
    load_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Conversion:
    """Read a file in one format and write it in another; warnings state the losses.

    Parameters
    ----------
    source, target : path
        File to read, and file or prefix to write.
    from_, to : str, optional
        Names in `taccl.formats.table.FORMATS`; by default the formats of the content of `source` and of the
        extension of `target`.
    overwrite : bool
        True to replace existing files.
    load_options : mapping, optional
        Options of the reader.
    options
        Options of the writer, or of the reader if the writer has none of that name.

    Returns
    -------
    Conversion
        Formats, files written, and notes.

    Raises
    ------
    InputError
        As `read` and `write`; or if the object in `source` cannot be converted to one of the target format.
    ExportError
        If the target format cannot hold the object.
    """
    reading, writing = readable(source, from_, "from"), writable(target, to, "to")
    writing = for_kind(writing, reading.holds, target if to is None else None)
    route = _route(reading.holds, writing)
    writers = (*route, resolve_name(writing.dump))
    to_write = {name: value for name, value in options.items() if any(name in options_of(w) for w in writers)}
    to_read = {**(load_options or {}), **{n: value for n, value in options.items() if n not in to_write}}
    of_both = resolve_name(reading.load), *writers
    _check_options(load_options or {}, of_both, reading, writing, where="load_options")
    _check_options(to_read, of_both, reading, writing)
    check_writable(target, overwrite=overwrite)
    thing = read(source, format=reading.name, **to_read)
    if reading.name == writing.name == "taccl-schedule":  # a copy keeps the record of the search
        text = dump_text(thing, read_document(source).get("result"))
        return Conversion(reading, writing, write_all({Path(target): text}, overwrite=overwrite), ())
    paths, notes, times = _write(thing, target, writing, route, overwrite=overwrite, options=to_write)
    if writing.loses and writing.name != reading.name:
        warn(f"format {writing.name} cannot hold {writing.loses}", LossyConversionWarning)
    return Conversion(reading, writing, paths, notes, *times)


def for_kind(target: FileFormat, kind: str, path: str | os.PathLike[str] | None = None) -> FileFormat:
    """First format whose name or family is `target`'s name and that can hold the kind; else `target`.

    - `path`: Path whose extension determined `target`; other formats with this extension then suit as well.
    """
    alike = [each for each in FORMATS if target.name in (each.name, each.family)]
    if path is not None:
        ends = {end for end in target.extensions if os.fspath(path).lower().endswith(end)}
        alike += [each for each in FORMATS if each.dump and ends.intersection(each.extensions)]
    return next((each for each in alike if _steps(kind, each.holds) is not None), target)


def foreign_topology(path: str | os.PathLike[str]) -> tuple[str, Callable[..., Topology]] | None:
    """Name and reader of another tool's topology file; None for any other file.

    Raises `InputError` if the file cannot be read.
    """
    try:
        found = format_of_content(path)
    except FormatError:
        if "upstream topology" in kinds_of(path):
            return "a topology of the published TACCL tool", load_upstream_topology
        return None
    return (found.name, resolve_name(found.load)) if is_foreign_topology(found) else None


def takes_nodes(path: str | os.PathLike[str]) -> bool:
    """True if a topology file describes one server, of which any number can be loaded with ``nodes=``.

    Raises `InputError` if the file cannot be read.
    """
    found = foreign_topology(path)
    return found is not None and "nodes" in options_of(found[1])


def is_foreign_topology(found: FileFormat) -> bool:
    """True if a format holds topologies that `taccl.topology.files` does not read."""
    return found.holds == "topology" and bool(found.load) and found.name != "taccl-topology"


def load_topology(path: str | os.PathLike[str], **arguments: Any) -> Topology:
    """Load a topology from a file of taccl or of another tool; see `taccl.topologies.load`."""
    found = foreign_topology(path)
    if found is None:
        own = load_own_topology(path)  # first, as it names files of another kind
        if arguments:
            said = f"found a file in taccl's own format, which takes no {', '.join(arguments)}; leave it out"
            raise TopologyError(said, where=os.fspath(path))
        return own
    name, reader = found
    try:
        return reader(path, **arguments)
    except TypeError as error:
        unknown = str(error).partition("argument ")[2] or str(error)
        said = f"found {name}, which takes no {unknown}; leave it out"
        raise TopologyError(said, where=os.fspath(path)) from None


def _kind(thing: object) -> str:
    for kind, name in KINDS.items():
        if isinstance(thing, resolve_name(name)):
            return kind
    raise InputError(f"found {quoted(thing)}; expected {' or '.join(map(a, KINDS))}", where="schedule")


def _route(kind: str, target: FileFormat) -> tuple[Callable[..., Any], ...]:
    """Functions that convert, in sequence, a kind of object into one that a format's writer accepts."""
    steps = _steps(kind, target.holds)
    if steps is not None:
        return tuple(resolve_name(CONVERSIONS[step]) for step in steps)
    others = [each.name for each in FORMATS if each.dump and _steps(kind, each.holds) is not None]
    remedy = f"expected one of {', '.join(others)}" if others else f"no format is written from a {kind}"
    raise InputError(f"found {target.name}, which cannot hold a {kind}; {remedy}", where="format")


def _steps(kind: str, wanted: str) -> list[tuple[str, str]] | None:
    """Conversions, as pairs of kinds, that lead from one kind of object to another; None if impossible."""
    if kind == wanted:
        return []
    # Without a direct conversion, the object becomes a schedule first.
    for steps in ([(kind, wanted)], [(kind, "schedule"), ("schedule", wanted)]):
        if all(step in CONVERSIONS for step in steps):
            return steps
    return None


def _write(
    thing: object,
    path: str | os.PathLike[str],
    target: FileFormat,
    route: tuple[Callable[..., Any], ...],
    *,
    overwrite: bool,
    options: Mapping[str, Any],
    is_timed: bool = True,
) -> tuple[tuple[Path, ...], tuple[str, ...], tuple[float, float] | tuple[()]]:
    """Convert and write an object.

    Returns the paths of the files, notes for the user, and two finishes in us: of a schedule, and of its
    program. They are empty if no schedule becomes a program, or `is_timed` is False.
    """
    dump = resolve_name(target.dump)
    _check_options(options, (*route, dump), target)
    times: tuple[float, float] | tuple[()] = ()
    said: tuple[str, ...] = ()
    for step in route:
        given = _taken(step, options)
        usual = not target.any_call and "in_place" in options_of(step) and "in_place" not in given
        if usual and _is_usually_in_place(thing):
            given["in_place"] = True
            said = ("in place, as PyTorch calls it (in_place=false for separate buffers)",)
        before, thing = thing, step(thing, **given)
        if is_timed and isinstance(before, Schedule) and isinstance(thing, Program):
            times = _finishes(before, thing)
    notes = (*getattr(thing, "notes", ()), *said) if route else ()
    if isinstance(thing, Program) and not target.any_call and (note := note_of_multiples(thing)):
        notes = (*notes, note)
    taken = _taken(dump, options)
    if "path" in inspect.signature(dump).parameters:
        return write_all(dump(thing, path, **taken), overwrite=overwrite), notes, times
    check_writable(path, overwrite=overwrite)
    return write_all({Path(path): dump(thing, **taken)}, overwrite=overwrite), notes, times


def _finishes(schedule: Schedule, program: Program) -> tuple[float, float] | tuple[()]:
    """Finish in us of a schedule, and of the program that it was lowered to; empty if that is not timed.

    Warns with the reasons if the program takes longer.
    """
    from taccl.program.lift import lift  # imports the verifier

    problem = schedule.problem
    if sum(1 for _ in program.steps()) > _MOST_STEPS:
        return ()
    sizes: dict[str, Any] = {"size": problem.size_bytes}
    if problem.size_bytes is None and program.collective is not None:
        parts = program.collective.num_chunks // problem.collective.num_chunks  # parallel instances
        sizes = {"chunk_size": problem.chunk_bytes[0] // parts}
    try:
        takes_us = lift(program, topology=problem.topology, **sizes).finish_us
    except (InputError, VerificationError):
        return ()
    if takes_us > schedule.finish_us:
        took = f"the program takes {format_us(takes_us)}, the schedule {format_us(schedule.finish_us)}"
        room = f"a queue holds {PROTOCOLS[program.protocol]} sends ({program.protocol})"
        why = "steps of a threadblock run one after another, and each part of a split send has latency"
        warn(f"{took}: {room}, {why}", LossyConversionWarning)
    return schedule.finish_us, takes_us


def _is_usually_in_place(schedule: Any) -> bool:
    """True if PyTorch usually calls a schedule's collective in place."""
    return schedule.problem.collective.name in USUALLY_IN_PLACE


def _check_options(
    options: Mapping[str, Any],
    functions: tuple[Callable[..., Any], ...],
    *formats: FileFormat,
    where: str = "options",
) -> None:
    """Raise `InputError` for an option that none of `functions`, which belong to `formats`, has.

    - `where`: Name of the argument that holds the options.
    """
    known = list(dict.fromkeys(name for function in functions for name in options_of(function)))
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        names = [each.name for each in formats]
        lacks = f"{names[0]} has no" if len(names) == 1 else f"neither {' nor '.join(names)} has an"
        takes = f"expected one of {', '.join(known)}" if known else "there are none"
        near = did_you_mean(unknown, known)
        raise InputError(f"{lacks} option {unknown!r}; {takes}{near}", where=where)


def _taken(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    known = options_of(function)
    return {name: value for name, value in options.items() if name in known}


def options_of(function: Callable[..., Any]) -> list[str]:
    """Names of a function's options: its keyword-only parameters."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]

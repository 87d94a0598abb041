"""``taccl convert``: write a file in another format, and report what is lost."""

from __future__ import annotations

import argparse
import inspect
import re
import warnings
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from taccl._internal.names import shown, table
from taccl.cli.advice import on_command_line
from taccl.cli.inputs import topology_from_word
from taccl.cli.options import add_options, flag_of, option, reader
from taccl.cli.output import Answer, picked
from taccl.errors import InputError, LossyConversionWarning, TacclWarning

if TYPE_CHECKING:
    from taccl.formats.table import FileFormat

#: Number of a pair of ranks, such as ``0-1:4``.
_PAIR = re.compile(r"(\d{1,6})-(\d{1,6}):(\d{1,6})", re.ASCII)


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    verb.add_argument("file", nargs="?", metavar="IN", help="input file; its content determines the format")
    verb.add_argument("target", nargs="?", metavar="OUT", help="output file")
    option(verb, "--from FORMAT", "format of IN (default: by its content)")
    option(verb, "--to FORMAT", "format of OUT (default: by its ending)")
    option(verb, "--list", "list the formats")
    option(verb, "--overwrite", "replace OUT if it exists")
    setting = reader(_setting, bool, "NAME=VALUE, e.g. instances=2")
    help = "an option of the format of OUT or IN, with commas in a list; repeatable"
    option(verb, "--set NAME=VALUE", help, setting, action="append", default=[])
    group = verb.add_argument_group("if IN is a program or an algorithm of the published TACCL tool")
    add_options(group, "--topology", help="topology to re-time the schedule on")
    add_options(group, "--nodes", help="number of nodes of the topology")
    add_options(group, "--size", help="for a program: larger of a rank's input and output buffer, e.g. 16MB")
    add_options(group, "--chunk-size")
    add_options(group, "--time-unit-us", help="for an algorithm: microseconds in the file's unit of time")


def run(options: argparse.Namespace) -> Answer:
    """Write a file in another format, and say what is lost."""
    from taccl.formats.detection import format_named, format_of_name, readable
    from taccl.formats.registry import convert

    if options.list:
        return _listed()
    for where, given in (("IN", options.file), ("OUT", options.target)):
        if given is None:
            raise InputError("found none; give a file, or --list to see the formats", where=where)
    asked = picked(options, "topology", "size", "chunk_size", "time_unit_us")
    given = {name: value for name, value in asked.items() if value is not None}
    if options.topology is not None:
        given["topology"] = topology_from_word(options.topology, nodes=options.nodes)
    elif options.nodes is not None:
        raise InputError(
            "found no --topology for it; for a server's file give --set nodes=N", where="--nodes"
        )
    source = getattr(options, "from")
    reading = readable(options.file, source, "from")
    writing = (
        format_of_name(options.target, "--to") if options.to is None else format_named(options.to, where="to")
    )
    of_program = reading.holds == "program"
    if of_program and options.topology is None and writing.holds != "program":
        example = "give a topology and a size, e.g. --topology dgx2 --nodes 2 --size 1MB"
        raise InputError(f"found a program; to make a schedule of it, {example}", where="--topology")
    # The options in `given` are for the conversion if IN is a program or a workload, else for reading IN.
    load_options, on_the_way = ({}, given) if of_program or reading.holds == "workload" else (given, {})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TacclWarning)
        try:
            done = convert(
                options.file, options.target, from_=source, to=options.to, overwrite=options.overwrite,
                load_options=load_options, **{**on_the_way, **_as_read(dict(options.set), reading)},
            )  # fmt: skip
        except InputError as error:
            if error.where in ("options", "load_options"):
                for name in (each for each in given if f" option {each!r}" in error.message):
                    said = f"{options.file} is neither a program nor an algorithm; leave it out"
                    raise InputError(said, where=flag_of(name)) from None
            places = {"format": "--to" if options.to else options.target}
            places |= dict.fromkeys(("options", "load_options"), "--set")
            raise InputError(error.message, where=places.get(error.where or "", error.where)) from None
    for each in caught:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    lost = [
        on_command_line(str(each.message), options.flags)
        for each in caught
        if issubclass(each.category, LossyConversionWarning)
    ]
    notes = [on_command_line(note, options.flags) for note in done.notes]
    notes = [note for note in notes if note not in lost]  # warnings already show what is lost
    paths = [str(path) for path in done.paths]
    few = " and ".join(paths)
    where = few if len(paths) <= 2 else f"{paths[0]} ... {paths[-1]} ({len(paths)} files)"
    lines = [f"{done.source.name} -> {done.target.name}: written to {shown(where)}", *notes]
    values: dict[str, Any] = {"from": done.source.name, "to": done.target.name, "files": paths, "lost": lost}
    values = {**values, "notes": notes, "schedule_us": done.schedule_us, "program_us": done.program_us}
    return Answer("\n".join(lines), values)


def _listed() -> Answer:
    """Answer of ``--list``: each format, the objects it holds, and whether taccl reads and writes it."""
    from taccl.formats.table import FORMATS

    rows = [("format", "holds", "read", "written", "endings", "")]
    values = []
    for each in FORMATS:
        told = picked(each, "name", "holds") | {"read": bool(each.load), "written": bool(each.dump)}
        values.append({**told, "extensions": list(each.extensions), "description": each.description})
        read, written = ("yes" if way else "no" for way in (each.load, each.dump))
        endings = " ".join(each.extensions) or "-"
        rows.append((each.name, each.holds, read, written, endings, each.description))
    return Answer(table(rows), {"formats": values})


def _as_read(settings: dict[str, Any], reading: FileFormat) -> dict[str, Any]:
    """Settings with lists and mappings in place of texts, for options of the reader that take these.

    A list is written ``mlx5_0,mlx5_1``, and numbers of pairs of ranks ``0-1:4,2-3:4``.
    """
    if reading.load is None or not settings:
        return settings
    parameters = inspect.signature(resolve_name(reading.load)).parameters
    made = dict(settings)
    for name in settings.keys() & parameters.keys():
        kind, items = str(parameters[name].annotation), str(settings[name]).split(",")
        if isinstance(settings[name], str) and "Sequence[str]" in kind:
            made[name] = items
        elif "Mapping[tuple[int, int], int]" in kind and all(pairs := list(map(_PAIR.fullmatch, items))):
            made[name] = {(int(each[1]), int(each[2])): int(each[3]) for each in pairs if each}
    return made


def _setting(word: str) -> tuple[str, bool | float | str]:
    """Parse ``NAME=VALUE`` to (name, value); the value is true, false or a number, and otherwise text."""
    name, equals, value = word.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not name.isidentifier():
        raise ValueError("it names nothing")
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    if value.isascii() and value.isdigit() and len(value) < 19:
        return name, int(value)
    if re.fullmatch(r"\d{1,18}\.\d{1,18}", value, re.ASCII):
        return name, float(value)
    return name, value

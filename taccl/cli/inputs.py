"""Inputs on the command line: files (recognised by content), and names of sketches, machines and fabrics."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Literal, get_args

import taccl
from taccl._internal.names import did_you_mean
from taccl.errors import FormatError, InputError, SketchError
from taccl.topology.networks import INSTANCES
from taccl.topology.registry import fabric_names, machine_names

if TYPE_CHECKING:
    from taccl.formats.table import FileFormat
    from taccl.program.program import Program
    from taccl.schedule.schedule import Schedule
    from taccl.sketch.sketch import Sketch
    from taccl.topology.topology import Topology

Kind = Literal["schedule", "upstream topology", "upstream sketch", "topology", "sketch"]

_FILE_SUFFIXES = (".toml", ".json", ".xml", ".yml", ".yaml", ".txt", ".csv")


def topology_from_word(
    word: str, *, nodes: int | None = None, profile: str | None = None, protocol: str | None = None
) -> Topology:
    """Topology in a file, or of the machine or fabric that `word` names.

    - `protocol`: Protocol of the topology; None or ``"auto"`` for the default.
    """
    return under_protocol(_topology_from_word(word, nodes, profile), protocol)


def under_protocol(topology: Topology, protocol: str | None) -> Topology:
    """The topology under a protocol; unchanged for None or ``"auto"``."""
    return topology if protocol in (None, "auto") else topology.under(protocol)


def _topology_from_word(word: str, nodes: int | None, profile: str | None) -> Topology:
    if not is_file(word):
        check_path(word)
        return taccl.topologies.parse(word, nodes=nodes, profile=profile)
    if profile is not None:
        raise InputError("a topology file names its own profile; leave --profile out", where="--profile")
    if kind_of(word) == "upstream topology":
        from taccl.sketch.upstream import load_upstream_topology

        return load_upstream_topology(word, nodes=nodes)
    from taccl.formats.registry import takes_nodes

    if nodes is not None and takes_nodes(word):
        return taccl.topologies.load(word, nodes=nodes)
    topology = taccl.topologies.load(word)
    if nodes is not None and nodes != topology.num_nodes:
        said = f"found --nodes {nodes}, but the topology has {topology.num_nodes}"
        way = f"make one from a server's file (`taccl convert IN OUT --set nodes={nodes}`)"
        raise InputError(f"{said}; change the file, {way}, or leave --nodes out", where=word)
    return topology


def check_path(word: str) -> None:
    """Raise `InputError` if a word is the path of a missing file, or of a folder that names no topology."""
    if is_file(word) and not os.path.exists(word):
        raise InputError("there is no such file; check the path", where=word)
    if os.path.isdir(word) and not names_topology(word):
        raise InputError("is a folder; give the path of a file", where=word)


def names_topology(word: str) -> bool:
    """True if a word names a topology, by a file's content or by name, and cannot be a sketch."""
    if is_file(word):
        return kind_of(word, unclear="sketch") in ("topology", "upstream topology")
    from taccl.topology.registry import find_kind

    try:
        find_kind(word.partition(":")[0], word)
    except InputError:
        return False
    return True


def kind_of(word: str, *, unclear: Kind = "topology") -> Kind:
    """Kind of the object in a file, by its content, or of the object that a name stands for.

    - `unclear`: Result for a file that only names a machine, which may be a sketch or a topology.
    """
    if not is_file(word):
        return "sketch" if word in taccl.shipped_sketches() or "/" in word else "topology"
    from taccl._internal.reading import kinds_of
    from taccl.formats.registry import is_foreign_topology

    known = format_in(word)  # None for sketches and unknown formats, which `kinds_of` judges
    if known is not None and is_foreign_topology(known):
        return "topology"
    if known is not None and known.name == "taccl-schedule":
        return "schedule"
    if known is not None and known.holds != "topology":
        return unclear  # the reader of such files reports what it found
    found = kinds_of(word)
    return next((each for each in get_args(Kind) if each in found), unclear)


def format_in(word: str | None) -> FileFormat | None:
    """Format of a file by its content; None for an unknown format, and for a word that is not a file."""
    from taccl.formats.detection import format_of_content

    if word is None or not is_file(word):
        return None
    try:
        return format_of_content(word)
    except FormatError:
        return None


def held_by(word: str | None) -> str:
    """Kind of the object in a file by its format; empty if unknown, or if the format cannot be read."""
    found = format_in(word)
    return found.holds if found is not None and found.load else ""


def program_in(word: str) -> Program | None:
    """The program in a file; None if the word names anything else."""
    from taccl.formats.registry import read

    return read(word) if held_by(word) == "program" else None


def followed(
    program: Program, options: argparse.Namespace, *, size: int | str | None, chunk_size: str | None = None
) -> Schedule:
    """Schedule of a program's transfers, timed on the topology of the options."""
    if options.topology is None:
        said = (
            f"a program has no topology; give one of {program.num_ranks} ranks, such as ndv2 with --nodes 2"
        )
        raise InputError(said, where="--topology")
    if size is None and chunk_size is None:
        raise InputError("a program has no size of its own; give one, e.g. --size 1MB", where="--size")
    topology = topology_from_word(options.topology, nodes=options.nodes, profile=options.profile)
    return taccl.lift(program, topology=topology, size=size, chunk_size=chunk_size)


def sketch_from_word(word: str | None, *, or_topology: bool = False) -> Sketch | None:
    """Sketch in a file, or shipped sketch of the given name; None for None.

    - `or_topology`: True if a machine or fabric may replace the sketch; messages then suggest these as well.
    """
    if word is None:
        return None
    known = taccl.shipped_sketches()
    if or_topology and not is_file(word) and not os.path.lexists(word) and word not in known:
        near = did_you_mean(word[:100], [*known, *machine_names(), *fabric_names()])
        machines = [name for name in machine_names() if name not in INSTANCES]
        listed = f"; shipped are {', '.join(known)}, and machines are {', '.join(machines)}"
        said = f"found no such file, and no shipped sketch, machine or fabric of that name{near or listed}"
        raise SketchError(said, where=word)
    if word not in known and names_topology(word):
        raise SketchError(
            "found a topology; expected a sketch; leave it out, or give the topology by itself", where=word
        )
    return taccl.load_sketch(word)


def is_file(word: str) -> bool:
    """True if a word is a path rather than a name."""
    # A folder may have the name of a machine. A dangling symbolic link is a path to a missing file.
    return word.lower().endswith(_FILE_SUFFIXES) or (os.path.lexists(word) and not os.path.isdir(word))

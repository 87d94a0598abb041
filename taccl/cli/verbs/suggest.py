"""``taccl suggest``: sketches for a topology, a collective and a size; or what your own costs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import taccl
from taccl.cli.answer import Answer
from taccl.cli.options import add_verb, at_least_zero, collective_name, positive, seconds
from taccl.cli.output import progress_shown
from taccl.cli.things import sketch_from_word, topology_from_word
from taccl.errors import InputError, NoSolutionError
from taccl.names import shown
from taccl.units import format_size, format_us

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from taccl.topology.topology import Topology

__all__ = ["add", "run"]

_SCHEMA_FILE = "sketch.schema.json"


def add(verbs: Any) -> None:
    """Declare the verb."""
    help = "Suggest sketches for a topology, a collective and a size; or check one that you write."
    verb = add_verb(verbs, "suggest", run, help)
    add = verb.add_argument
    add("topology", metavar="TOPOLOGY", help="a file, a machine (ndv2), or a fabric (torus:4x4)")
    verb.set_defaults(positionals=("topology",))
    add("--nodes", type=positive, metavar="N", help="number of nodes of a machine")
    add("--profile", metavar="P", help="which constants of the machine, e.g. nominal")
    names = ", ".join(taccl.collectives.COLLECTIVES)
    add("--collective", required=True, type=collective_name, metavar="NAME", help=names)
    size = verb.add_mutually_exclusive_group()
    size.add_argument("--size", metavar="S", help="larger of one rank's input and output buffer, e.g. 16MB")
    size.add_argument("--chunk-size", metavar="S", help="bytes of one chunk, e.g. 1MB")
    add("--chunks-per-rank", type=positive, metavar="K", help="default: as many as finish first")
    add("--root", type=at_least_zero, metavar="R", help="of broadcast, scatter, gather and reduce")
    add("--most", type=positive, default=5, metavar="N", help="how many sketches (default 5)")
    add("--time-limit", type=seconds, default=20.0, metavar="S", help="seconds (default 20)")
    add("--seed", type=at_least_zero, default=0, metavar="N", help="default 0")
    how = verb.add_mutually_exclusive_group()
    how.add_argument("-o", "--output", metavar="DIR", help="write each as a TOML file into a folder")
    how.add_argument("--best", action="store_true", help="print the best as TOML, and no more")
    how.add_argument("--check", metavar="SKETCH", help="say what each clause of your sketch does and costs")
    add("--overwrite", action="store_true", help="replace files that exist")


def run(options: argparse.Namespace) -> Answer:
    """Suggest sketches, or check one."""
    topology = topology_from_word(options.topology, nodes=options.nodes, profile=options.profile)
    if options.check is not None:
        return _checked(options, topology)
    if options.size is None and options.chunk_size is None:
        raise InputError("found neither --size nor --chunk-size; give one, e.g. --size 16MB", where="--size")
    if options.output is not None and os.path.lexists(options.output) and not os.path.isdir(options.output):
        raise InputError("found a file; expected a folder, which is made if it is missing", where="--output")
    with progress_shown(wanted=True) as progress:
        found = taccl.suggest_sketches(
            topology,
            options.collective,
            options.size,
            chunk_size=options.chunk_size,
            chunks_per_rank=options.chunks_per_rank,
            root=options.root,
            most=options.most,
            time_limit_s=options.time_limit,
            seed=options.seed,
            progress=progress,
        )
    if not found:
        raise NoSolutionError("no sketch could be scheduled in time; give more time, or fewer chunks")
    if options.best:
        return Answer(found[0].to_toml().rstrip(), _values(topology, found[:1]))
    text = _text(topology, options.collective, found)
    if options.output is not None:
        files = _write(found, Path(options.output), overwrite=options.overwrite)
        text += "\n\n" + "\n".join(f"written to {shown(str(file))}" for file in files)
    return Answer(text, _values(topology, found))


def _checked(options: argparse.Namespace, topology: Topology) -> Answer:
    sketch = sketch_from_word(options.check)
    assert sketch is not None
    if options.nodes is not None and sketch.nodes is not None:
        sketch = sketch.with_nodes(options.nodes, ranks_per_node=len(topology.ranks_of_node[0]))
    collective = taccl.collectives.make(
        options.collective,
        topology.num_ranks,
        root=options.root,
        chunks_per_rank=options.chunks_per_rank or sketch.chunks.per_rank,
    )
    report = taccl.check_sketch(
        sketch,
        topology,
        collective,
        chunk_size=options.chunk_size,
        size=options.size,
        time_limit_s=options.time_limit,
    )
    return Answer(
        repr(report).removeprefix("SketchReport: "),
        report.to_dict(),
        exit_code=0 if report.usable else 1,
        complaint="" if report.usable else "the sketch cannot be used as it is",
    )


def _text(topology: Topology, collective: str, found: Sequence[taccl.SketchProposal]) -> str:
    from taccl.cli.text import table
    from taccl.synthesis.suggesting.symmetry_finding import count_symmetries, find_shifts

    shifts = ", ".join(f"{shift.offset} in {shift.group}" for shift in find_shifts(topology)) or "none"
    many = count_symmetries(topology)
    size = found[0].problem.size_bytes
    head = ("sketch", "finish", "bound", "chunks a rank", "why")
    rows = [
        (
            each.sketch.name,
            format_us(each.finish_us),
            format_us(each.bound_us),
            str(each.sketch.chunks.per_rank),
            each.why,
        )
        for each in found
    ]
    title = f"{collective} on {shown(topology.name)}" + (f", {format_size(size)}" if size else "")
    facts = [("symmetries", "not counted" if many is None else str(many)), ("offsets among them", shifts)]
    return "\n".join([title, table(facts, indent="  "), "", table([head, *rows], indent="  ")])


def _values(topology: Topology, found: Sequence[taccl.SketchProposal]) -> dict[str, Any]:
    return {
        "topology": topology.name,
        "collective": found[0].problem.collective.name,
        "size_bytes": found[0].problem.size_bytes,
        "proposals": [
            {
                "name": each.sketch.name,
                "finish_us": each.finish_us,
                "bound_us": each.bound_us,
                "limits": each.limits,
                "chunks_per_rank": each.sketch.chunks.per_rank,
                "why": each.why,
                "toml": each.to_toml(),
            }
            for each in found
        ],
    }


def _write(found: Sequence[taccl.SketchProposal], folder: Path, *, overwrite: bool) -> list[Path]:
    """A file for each sketch, its place first, and the schema that editors look for beside them."""
    from taccl.formats.files import check_writable, write_whole
    from taccl.sketch.sketch import sketch_json_schema

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"the folder cannot be made ({reason}); give another path", where=str(folder)
        ) from None
    files = [folder / f"{place}-{each.sketch.name}.toml" for place, each in enumerate(found, 1)]
    for file in files:
        check_writable(file, overwrite=overwrite)
    for file, each in zip(files, found, strict=True):
        write_whole(file, each.to_toml(), overwrite=overwrite)
    write_whole(folder / _SCHEMA_FILE, json.dumps(sketch_json_schema(), indent=2) + "\n", overwrite=True)
    return files

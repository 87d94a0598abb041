"""``taccl show``: a schedule, a program, a sketch, or a topology with its constants' sources."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import taccl
from taccl.cli.answer import Answer
from taccl.cli.options import add_verb, positive
from taccl.cli.programs import holds_program, load_program, program_text, program_values
from taccl.cli.things import is_file, kind_of, topology_from_word
from taccl.errors import InputError

if TYPE_CHECKING:
    from taccl.cli.things import Kind

__all__ = ["add", "run"]


def add(verbs: Any) -> None:
    """Declare the verb."""
    verb = add_verb(
        verbs, "show", run, "Show a schedule, a program, a sketch, or a topology with its constants' sources."
    )
    verb.add_argument("thing", metavar="THING", help="a file, a shipped sketch, a machine, or a fabric")
    verb.add_argument("--nodes", type=positive, metavar="N", help="number of nodes")
    verb.add_argument("--profile", metavar="P", help="which constants of a machine")
    verb.add_argument(
        "--transfers",
        type=_rows,
        default=20,
        metavar="N",
        help="rows of transfers, or of a program's steps (default 20, -1: all)",
    )


def run(options: argparse.Namespace) -> Answer:
    """Show what a word names."""
    if holds_program(options.thing):
        for name, given in (("--nodes", options.nodes), ("--profile", options.profile)):
            if given is not None:
                raise InputError("found a program, which has none; leave it out", where=name)
        program = load_program(options.thing)
        limit = program.num_steps if options.transfers < 0 else options.transfers
        return Answer(program_text(program, limit=limit), program_values(program))
    try:
        kind = kind_of(options.thing)
        return _shown(options, kind)
    except InputError as error:
        if error.where != "topology" or is_file(options.thing):
            raise
        raise InputError(
            f"{error.message}; there is no such file and no such shipped sketch either", where="THING"
        ) from None


def _shown(options: argparse.Namespace, kind: Kind) -> Answer:
    from taccl.cli import text

    if options.profile is not None and "topology" not in kind:
        raise InputError(f"found a {kind}, which has no profiles; leave it out", where="--profile")
    if options.nodes is not None and kind == "schedule":
        raise InputError("found a schedule, whose nodes are fixed; leave it out", where="--nodes")
    if kind == "schedule":
        from taccl.formats.native import found_by, load_schedule, read_document

        document = read_document(options.thing)
        schedule = load_schedule(document, where=options.thing)
        found = found_by(document)
        return Answer(
            text.schedule_text(schedule, found, limit=options.transfers),
            text.schedule_values(schedule, found),
        )
    if kind in ("sketch", "upstream sketch"):
        sketch = taccl.load_sketch(options.thing)
        if options.nodes is not None:
            sketch = sketch.with_nodes(options.nodes)
        return Answer(text.sketch_text(sketch), text.sketch_values(sketch))
    topology = topology_from_word(options.thing, nodes=options.nodes, profile=options.profile)
    return Answer(text.topology_text(topology), text.topology_values(topology))


def _rows(word: str) -> int:
    try:
        number = int(word)
    except ValueError:
        number = -2
    if number < -1:
        raise argparse.ArgumentTypeError(f"found {word!r}; expected a number of rows, or -1 for all")
    return number

"""``taccl show``: a schedule, a program, a sketch, or a topology with its constants' sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import taccl
from taccl.cli.options import add_options, number
from taccl.cli.output import Answer
from taccl.cli.programs import holds_program, load_program, program_text, program_values
from taccl.cli.things import is_file, kind_of, topology_from_word
from taccl.errors import InputError

if TYPE_CHECKING:
    import argparse

    from taccl.cli.things import Kind

EXAMPLES = (
    "taccl show schedule.json --transfers 40",
    "taccl show ndv2 --nodes 2 --profile nominal",
)


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    verb.add_argument("thing", metavar="THING", help="a file, a shipped sketch, a machine, or a fabric")
    add_options(verb, "--nodes", help="number of nodes")
    add_options(verb, "--profile", help="which constants of a machine, by name or in a file")
    add_options(verb, "--protocol", default=None, help="by which messages are sent (default simple)")
    rows = number(int, lambda n: n >= -1, "a number of rows, or -1 for all")
    help = "rows of transfers, or of a program's steps (default 20, -1: all)"
    verb.add_argument("--transfers", type=rows, default=20, metavar="N", help=help)


def run(options: argparse.Namespace) -> Answer:
    """Show a schedule, a program, a sketch, or a topology with its constants' sources."""
    if holds_program(options.thing):
        for name in ("nodes", "profile", "protocol"):
            if getattr(options, name) is not None:
                raise InputError("found a program, which has none; leave it out", where=f"--{name}")
        program = load_program(options.thing)
        limit = program.num_steps if options.transfers < 0 else options.transfers
        return Answer(program_text(program, limit=limit), program_values(program))
    try:
        return _shown(options, kind_of(options.thing))
    except InputError as error:
        if error.where != "topology" or is_file(options.thing):
            raise
        raise InputError(
            f"{error.message}; there is no such file and no such shipped sketch either", where="THING"
        ) from None


def _shown(options: argparse.Namespace, kind: Kind) -> Answer:
    from taccl.cli import text

    for name in ("profile", "protocol"):
        if getattr(options, name) is not None and "topology" not in kind:
            raise InputError(f"found a {kind}, which has no {name}s; leave it out", where=f"--{name}")
    if options.nodes is not None and kind == "schedule":
        raise InputError("found a schedule, whose nodes are fixed; leave it out", where="--nodes")
    if kind == "schedule":
        from taccl.formats.native import load_schedule, read_document

        document = read_document(options.thing)
        schedule = load_schedule(document, where=options.thing)
        found = document.get("result") or {}
        said = text.schedule_text(schedule, found, limit=options.transfers)
        return Answer(said, text.schedule_values(schedule, found))
    if kind in ("sketch", "upstream sketch"):
        sketch = taccl.load_sketch(options.thing)
        if options.nodes is not None:
            sketch = sketch.with_nodes(options.nodes)
        return Answer(sketch.to_toml().rstrip(), {"kind": "sketch", **sketch.to_dict()})
    topology = topology_from_word(
        options.thing, nodes=options.nodes, profile=options.profile, protocol=options.protocol
    )
    return Answer(text.topology_text(topology), text.topology_values(topology))

"""``taccl sweep``: what is found for every combination of sketches, sizes, cuts and backends."""

from __future__ import annotations

import argparse

import taccl
from taccl.cli.options import A_TOPOLOGY, add_options, option, positive, resized, several, sizes
from taccl.cli.output import Answer, picked
from taccl.cli.things import sketch_from_word, topology_from_word
from taccl.cli.verbs.compare import add_run_options, check_table, run_options, table_answer, words


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    verb.add_argument("topology", metavar="TOPOLOGY", help=A_TOPOLOGY)
    group = verb.add_argument_group("combinations")
    add_options(group, "--collective", "--nodes", "--profile", "--root")
    add_options(group, "--protocol", default=None, help="by which messages are sent (default simple)")
    help = "shipped names or files, with commas between; none for no sketch (the default)"
    option(group, "--sketches A,B", help, words, default=("none",))
    help = "e.g. 1KB,1MB; or FIRST:LAST[:FACTOR], 10 unless given: 1KB:1GB, 1KiB:1MiB:4"
    option(group, "--sizes S,S|S:S", help, sizes)
    add_options(group, "--chunks-per-rank", type=several(positive), metavar="K,K")
    add_run_options(verb, backends="auto")


def run(options: argparse.Namespace) -> Answer:
    """Show what is found for every combination of sketches, sizes and backends."""
    check_table(options)
    topology = topology_from_word(options.topology, **picked(options, "nodes", "profile", "protocol"))
    sketches = [sketch_from_word(None if word == "none" else word) for word in options.sketches]
    found = taccl.sweep(
        topology, options.collective, **picked(options, "sizes", "chunks_per_rank", "root"), full=True,
        sketches=[each and resized(each, options, topology) for each in sketches], **run_options(options),
    )  # fmt: skip
    return table_answer(found, options)

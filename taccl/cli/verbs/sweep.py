"""``taccl sweep``: what is found for every combination of sketches, sizes, cuts and backends."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import taccl
from taccl.cli.options import add_verb, at_least_zero, collective_name, positive
from taccl.cli.tables import add_run_options, check_table, run_options, table_answer, words
from taccl.cli.things import sketch_from_word, topology_from_word
from taccl.errors import InputError
from taccl.units import parse_size

if TYPE_CHECKING:
    from taccl.cli.answer import Answer
    from taccl.sketch.sketch import Sketch
    from taccl.topology.topology import Topology

__all__ = ["add", "run"]


def add(verbs: Any) -> None:
    """Declare the verb."""
    from taccl.collectives import COLLECTIVES

    verb = add_verb(
        verbs, "sweep", run, "Show what is found for every combination of sketches, sizes and backends."
    )
    verb.add_argument(
        "topology", metavar="TOPOLOGY", help="a file, a machine (ndv2), or a fabric (torus:4x4)"
    )
    add = verb.add_argument_group("combinations").add_argument
    add("--collective", required=True, type=collective_name, metavar="NAME", help=", ".join(COLLECTIVES))
    add("--nodes", type=positive, metavar="N", help="number of nodes; rescales the sketches")
    add("--profile", metavar="P", help="which constants of the machine, e.g. nominal")
    add("--root", type=at_least_zero, metavar="R", help="of broadcast, scatter, gather and reduce")
    help = "shipped names or files, with commas between; none for no sketch (the default)"
    add("--sketches", type=words, default=("none",), metavar="A,B", help=help)
    help = "e.g. 1KB,1MB; or FIRST:LAST[:FACTOR], 10 unless given: 1KB:1GB, 1KiB:1MiB:4"
    add("--sizes", type=_sizes, metavar="S,S|S:S", help=help)
    add("--chunks-per-rank", type=_cuts, metavar="K,K", help="pieces a rank's part of the data is cut into")
    add_run_options(verb, backends="auto")


def run(options: argparse.Namespace) -> Answer:
    """Sweep."""
    check_table(options)
    topology = topology_from_word(options.topology, nodes=options.nodes, profile=options.profile)
    found = taccl.sweep(
        topology,
        options.collective,
        sketches=[_sketch(word, options, topology) for word in options.sketches],
        sizes=options.sizes,
        chunks_per_rank=options.chunks_per_rank,
        root=options.root,
        **run_options(options),
    )
    return table_answer(found, options)


def _sketch(word: str, options: argparse.Namespace, topology: Topology) -> Sketch | None:
    if word == "none":
        return None
    sketch = sketch_from_word(word)
    assert sketch is not None
    if options.nodes is None:
        return sketch
    return sketch.with_nodes(options.nodes, ranks_per_node=len(topology.ranks_of_node[0]))


def _sizes(text: str) -> tuple[int, ...]:
    """Sizes such as ``1KB,1MB`` or ``1KB:1GB`` in bytes, for argparse."""
    try:
        if ":" not in text:
            return tuple(parse_size(word) for word in text.split(","))
        first, last, factor = (*text.split(":"), "10")[:3] if text.count(":") < 3 else ("", "", "")
        size, end = parse_size(first), parse_size(last)
    except InputError as error:
        raise argparse.ArgumentTypeError(error.message) from None
    if not factor.isascii() or not factor.isdigit() or len(factor) > 9 or int(factor) < 2 or size > end:
        raise argparse.ArgumentTypeError(
            f"found {text!r}; expected FIRST:LAST or FIRST:LAST:FACTOR, from a smaller size to a larger one "
            "by a whole factor of at least 2"
        )
    sizes = []
    while size <= end:
        sizes.append(size)
        size *= int(factor)
    return tuple(sizes)


def _cuts(text: str) -> tuple[int, ...]:
    return tuple(positive(word) for word in text.split(","))

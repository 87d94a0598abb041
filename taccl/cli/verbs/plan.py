"""``taccl plan``: the best schedule for every size of a range, as files that a runtime registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import taccl
from taccl.cli.answer import Answer
from taccl.cli.options import add_verb, at_least_zero, collective_name, positive, seconds
from taccl.cli.output import say
from taccl.cli.things import names_topology, sketch_from_word, topology_from_word
from taccl.errors import InputError
from taccl.names import shown

if TYPE_CHECKING:
    import argparse

    from taccl.sketch.sketch import Sketch
    from taccl.topology.topology import Topology

__all__ = ["add", "run"]


def add(verbs: Any) -> None:
    """Declare the verb."""
    help = "Find the best schedule for every size of a range, and write files that a runtime registers."
    verb = add_verb(verbs, "plan", run, help)
    verb.add_argument(
        "sketches", nargs="*", metavar="SKETCH", help="shipped names or files; without any, none is used"
    )
    verb.add_argument(
        "--collective", required=True, type=collective_name, metavar="NAME", help="e.g. allgather"
    )
    verb.add_argument(
        "--sizes",
        default="1KB:1GB",
        metavar="S:S",
        help="from:to, or S,S,... where to synthesize (default 1KB:1GB)",
    )
    verb.add_argument("-o", "--output", metavar="DIR", help="the folder to write, whole or not at all")
    verb.add_argument(
        "--force", "--overwrite", dest="overwrite", action="store_true", help="replace an older plan in DIR"
    )
    add = verb.add_argument_group("problem").add_argument
    add("--topology", metavar="FILE|NAME", help="a file, a machine, or a fabric (default: the sketch's)")
    add("--nodes", type=positive, metavar="N", help="number of nodes; rescales the sketches")
    add("--profile", metavar="P", help="which constants of the machine, e.g. nominal")
    add("--root", type=at_least_zero, metavar="R", help="of broadcast, scatter, gather and reduce")
    add = verb.add_argument_group("search").add_argument
    add("--no-baselines", action="store_true", help="leave the well-known algorithms out")
    add("--backend", default="auto", metavar="NAME", help="auto, or one of `taccl backends`")
    add("--time-limit", type=seconds, default=300.0, metavar="S", help="seconds in all (default 300)")
    add("--threads", type=positive, metavar="N", help="threads of a solver")
    add("--seed", type=at_least_zero, default=0, metavar="N", help="default 0")
    add(
        "--max-ranges",
        type=positive,
        default=4,
        metavar="N",
        help="ranges at most (default 4, which the MSCCL runtime loads)",
    )
    add = verb.add_argument_group("programs").add_argument
    add("--in-place", action="store_true", help="for calls whose input and output are one buffer")
    add(
        "--protocol",
        choices=("Simple", "LL", "LL128"),
        default="Simple",
        help="of the runtime (default Simple)",
    )
    add(
        "--instances",
        type=positive,
        default=1,
        metavar="N",
        help="cut every chunk into so many parts (default 1)",
    )


def run(options: argparse.Namespace) -> Answer:
    """Make a plan, and write it."""
    from taccl.explore.plan_files import check_folder

    if options.output is not None:
        check_folder(options.output, overwrite=options.overwrite)
    topology, sketches = _topology_and_sketches(options)
    found = taccl.plan(
        topology,
        options.collective,
        sketches=sketches,
        sizes=options.sizes,
        root=options.root,
        baselines=not options.no_baselines,
        backend=options.backend,
        time_limit_s=options.time_limit,
        threads=options.threads,
        seed=options.seed,
        max_ranges=options.max_ranges,
        lowering={
            "in_place": options.in_place, "protocol": options.protocol, "instances": options.instances,
        },
        progress=say,
    )  # fmt: skip
    if found.stopped != "done":
        why = "Ctrl-C" if found.stopped == "interrupted" else "the time limit"
        say(f"warning: the search was stopped by {why}; this is the best plan of what was found")
    text, values = repr(found), found.to_dict()
    if options.output is None:
        return Answer(f"{text}\n\nnothing was written; -o DIR writes it", values)
    paths = [str(path) for path in found.save(options.output, overwrite=options.overwrite)]
    register = [path for path in paths if path.endswith((".sh", ".py"))]
    lines = [text, "", f"written to {shown(options.output)}: {len(paths)} files; to register them"]
    lines.append(f"  with the MSCCL runtime:  source {shown(register[0])}")
    if len(register) > 1:
        lines.append(f"  with MSCCL++, in Python: register_plans.register(rank), from {shown(register[1])}")
    return Answer("\n".join(lines), {**values, "files": paths})


def _topology_and_sketches(options: argparse.Namespace) -> tuple[Topology, list[Sketch | None]]:
    """The one topology, and the sketches for it.

    Raises
    ------
    InputError
        If there is neither a sketch nor a topology, or a word cannot be used.
    """
    words: list[str] = list(options.sketches)
    if len(words) == 1 and options.topology is None and names_topology(words[0]):
        options.topology, words = words[0], []
    if not words and options.topology is None:
        raise InputError("found neither a sketch nor --topology; give at least one", where="SKETCH")
    sketches = [sketch for sketch in map(sketch_from_word, words) if sketch is not None]
    if options.topology is None:
        topology = sketches[0].topology(nodes=options.nodes, profile=options.profile)
    else:
        nodes, profile = options.nodes, options.profile
        if sketches and options.topology in taccl.topologies.machine_names():
            nodes, profile = nodes or sketches[0].nodes, profile or sketches[0].profile or None
        topology = topology_from_word(options.topology, nodes=nodes, profile=profile)
    if options.nodes is not None:
        per_node = len(topology.ranks_of_node[0])
        sketches = [each.with_nodes(options.nodes, ranks_per_node=per_node) for each in sketches]
    return topology, list(sketches) or [None]

"""Options that verbs share, and from them to a problem."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

import taccl
from taccl.cli.things import is_file, kind_of, names_topology, sketch_from_word, topology_from_word
from taccl.errors import InputError
from taccl.names import did_you_mean, matching
from taccl.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from taccl.cli.answer import Answer
    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.sketch.sketch import Sketch
    from taccl.topology.topology import Topology

__all__ = [
    "add_problem_options", "add_schedule", "add_sketch", "add_verb", "at_least_zero", "collective_name",
    "jitter", "positive", "problem_from_options", "schedule_from_options", "seconds", "settle_topology",
    "sizes",
]  # fmt: skip


def add_verb(
    verbs: Any, name: str, run: Callable[[argparse.Namespace], Answer], help: str
) -> argparse.ArgumentParser:
    """Declare a verb with ``--json``; `verbs` is what ``add_subparsers`` returned."""
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=help, description=help, allow_abbrev=False)
    verb.add_argument("--json", action="store_true", help="print one JSON object")
    verb.set_defaults(run=run)
    return verb


def add_sketch(verb: argparse.ArgumentParser) -> None:
    """Declare the sketch, which may be left out where a topology is given."""
    help = "a shipped name (ndv2/sk1), a TOML or JSON file, an upstream sketch file; or a topology"
    verb.add_argument("sketch", nargs="?", metavar="SKETCH", help=help)


def add_schedule(verb: argparse.ArgumentParser, *, also: str = "") -> None:
    """Declare a schedule's file, or `also` another thing's, and what the published tool's do not say."""
    help = "a schedule (of `taccl synthesize -o`), an algorithm of the published tool"
    verb.add_argument("file", metavar="FILE", help=f"{help}{also and ', ' + also}")
    add = verb.add_argument_group("of an algorithm of the published tool").add_argument
    add("--topology", metavar="FILE|NAME", help="where it is to run instead, timed anew")
    add("--chunk-size", metavar="S", help="bytes of one chunk, e.g. 1MB")
    add("--time-unit-us", metavar="US", help="microseconds in the file's unit of time")


def schedule_from_options(options: argparse.Namespace) -> Schedule:
    """The schedule in the file that `add_schedule` declares.

    Raises
    ------
    InputError
        If the file cannot be read or holds no schedule, or an option does not apply to it.
    """
    from taccl.cli.programs import holds_program
    from taccl.formats.recognise import UPSTREAM_ALGORITHM, recognise

    given = {name: getattr(options, name) for name in ("topology", "chunk_size", "time_unit_us")}
    if recognise(options.file) == UPSTREAM_ALGORITHM:
        from taccl.formats.published.algorithm import load_upstream_algorithm

        if options.topology is not None:
            given["topology"] = topology_from_word(options.topology)
        return load_upstream_algorithm(options.file, **given)
    if holds_program(options.file):
        raise InputError(
            "found a program; make a schedule of it first: "
            f"taccl convert {options.file} OUT.json --topology T --size S",
            where=options.file,
        )
    for name, value in given.items():
        if value is not None:
            raise InputError(
                "found a schedule of taccl's own, whose file says it; leave the option out",
                where="--" + name.replace("_", "-"),
            )
    return taccl.load(options.file)


def add_problem_options(parser: argparse.ArgumentParser, *, collective_required: bool = True) -> None:
    """Declare the options that make a problem."""
    from taccl.collectives import COLLECTIVES

    add = parser.add_argument_group("problem").add_argument
    names = ", ".join(COLLECTIVES)
    add("--collective", required=collective_required, type=collective_name, metavar="NAME", help=names)
    add("--topology", metavar="FILE|NAME", help="a file, a machine (ndv2), or a fabric (torus:4x4)")
    add(
        "--cost-model",
        choices=("upstream", "physical"),
        help="what to make of the costs in an upstream topology file",
    )
    add("--time-unit-us", metavar="US", help="microseconds in an upstream file's unit of time")
    add("--nodes", type=positive, metavar="N", help="number of nodes; rescales the sketch")
    add("--profile", metavar="P", help="which constants of the machine, e.g. nominal")
    size = parser.add_argument_group("size, one of").add_mutually_exclusive_group()
    size.add_argument("--size", metavar="S", help="larger of one rank's input and output buffer, e.g. 16MB")
    size.add_argument("--chunk-size", metavar="S", help="bytes of one chunk, e.g. 1MB")
    add("--chunks-per-rank", type=positive, metavar="K", help="pieces a rank's part of the data is cut into")
    add("--root", type=at_least_zero, metavar="R", help="rank; of broadcast, scatter, gather and reduce")
    add("--roots", type=_ranks, metavar="R,R", help="ranks; of the multi-root collectives")


def problem_from_options(options: argparse.Namespace, *, reachable: bool = True) -> Problem:
    """The problem that the options of `add_problem_options`, and a sketch, describe.

    Parameters
    ----------
    reachable : bool
        Whether a sketch that keeps a chunk from a destination is an error.

    Raises
    ------
    InputError
        If options clash or are missing, or a file or a name cannot be used.
    """
    settle_topology(options)
    if options.topology is None and options.sketch is None:
        raise InputError("found neither a sketch nor --topology; give at least one", where="SKETCH")
    if options.topology is not None and is_file(options.topology):
        kind = kind_of(options.topology)
        if kind == "upstream topology":
            return _upstream_problem(options)
        if kind != "topology":
            raise InputError(f"found a {kind}; expected a topology file", where=options.topology)
    if options.cost_model == "upstream" or options.time_unit_us is not None:
        name = "--time-unit-us" if options.cost_model != "upstream" else "--cost-model upstream"
        raise InputError(
            f"{name} needs an upstream topology file; give one with --topology, or leave it out",
            where=name.partition(" ")[0],
        )
    sketch = sketch_from_word(options.sketch)
    return _apply(options, sketch, _topology(options, sketch), reachable=reachable)


def settle_topology(options: argparse.Namespace) -> None:
    """Take a topology that stands where a sketch may stand for what it is."""
    if options.topology is None and options.sketch is not None and names_topology(options.sketch):
        options.topology, options.sketch = options.sketch, None


def positive(word: str) -> int:
    """A positive whole number, for argparse."""
    if not word.isascii() or not word.isdigit() or len(word) > 18 or int(word) < 1:
        raise argparse.ArgumentTypeError(f"found {word!r}; expected a positive whole number")
    return int(word)


def at_least_zero(word: str) -> int:
    """A whole number that is not negative, for argparse."""
    if not word.isascii() or not word.isdigit() or len(word) > 18:
        raise argparse.ArgumentTypeError(f"found {word!r}; expected a whole number of at least 0")
    return int(word)


def seconds(word: str) -> float:
    """A positive number of seconds, for argparse."""
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"found {word!r}; expected a positive number of seconds")
    return number


def _topology(options: argparse.Namespace, sketch: Sketch | None) -> Topology:
    if options.topology is None:
        assert sketch is not None
        return sketch.topology(nodes=options.nodes, profile=options.profile)
    of_name = not is_file(options.topology)
    nodes, profile = options.nodes, options.profile
    if sketch is not None and of_name and options.topology in taccl.topologies.machine_names():
        nodes = nodes or sketch.nodes
        profile = profile or sketch.profile or None
    return topology_from_word(options.topology, nodes=nodes, profile=profile)


def _apply(
    options: argparse.Namespace, sketch: Sketch | None, topology: Topology, *, reachable: bool
) -> Problem:
    chunks_per_rank = options.chunks_per_rank or (sketch.chunks.per_rank if sketch else 1)
    collective = taccl.collectives.make(
        options.collective,
        topology.num_ranks,
        root=options.root,
        roots=options.roots,
        chunks_per_rank=chunks_per_rank,
    )
    if sketch is None:
        size, chunk_size = options.size, options.chunk_size
        if size is None and chunk_size is None:
            raise InputError(
                "found neither --size nor --chunk-size; give one, e.g. --size 16MB", where="--size"
            )
        return taccl.make_problem(
            topology,
            collective,
            size_bytes=None if size is None else parse_size(size, where="--size"),
            chunk_bytes=None if chunk_size is None else parse_size(chunk_size, where="--chunk-size"),
        )
    if options.nodes is not None:
        sketch = sketch.with_nodes(options.nodes, ranks_per_node=len(topology.ranks_of_node[0]))
    from taccl.sketch.apply import apply

    return apply(
        sketch,
        topology,
        collective,
        chunk_size=options.chunk_size,
        size=options.size,
        reachable=reachable,
    )


def _upstream_problem(options: argparse.Namespace) -> Problem:
    """The problem on an upstream topology file; its costs are kept where the sketch is upstream's too."""
    from taccl.sketch.upstream import load_problem

    if options.profile is not None:
        raise InputError("an upstream topology file has no profiles; leave --profile out", where="--profile")
    sketch = sketch_from_word(options.sketch)
    both = options.sketch is not None and kind_of(options.sketch) == "upstream sketch"
    return load_problem(
        taccl.Sketch() if sketch is None else sketch,
        options.topology,
        collective=options.collective,
        cost_model=options.cost_model or ("upstream" if both else "physical"),
        nodes=options.nodes,
        chunk_size=options.chunk_size,
        size=options.size,
        time_unit_us=options.time_unit_us,
        chunks_per_rank=options.chunks_per_rank,
        root=options.root,
        roots=options.roots,
    )


def sizes(text: str) -> tuple[int, ...]:
    """Sizes such as ``1KB,1MB`` in bytes, for argparse."""
    try:
        return tuple(parse_size(word) for word in text.split(","))
    except InputError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def jitter(word: str) -> float:
    """A number from 0 up to, but not, 1, for argparse."""
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"found {word!r}; expected a number from 0 up to, but not, 1")
    return number


def collective_name(word: str) -> str:
    """The name of a collective, however it is spelt, for argparse."""
    known = taccl.collectives.COLLECTIVES
    name = matching(word, known)
    if name is None:
        raise argparse.ArgumentTypeError(
            f"found {word!r}; expected one of {', '.join(known)}{did_you_mean(word, known)}"
        )
    return name


def _ranks(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(rank) for rank in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected ranks such as 0,4") from None

"""From the command line's options to a problem, and from a word or a file to what it names."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import taccl
from taccl.errors import InputError
from taccl.units import parse_size

if TYPE_CHECKING:
    from taccl.problem import Problem
    from taccl.sketch.sketch import Sketch
    from taccl.topology.topology import Topology

__all__ = [
    "Kind", "add_problem_options", "kind_of", "positive", "problem_from_options", "seconds",
    "topology_from_word",
]  # fmt: skip

Kind = Literal["schedule", "sketch", "upstream sketch", "topology", "upstream topology"]

_FILE_SUFFIXES = (".toml", ".json")
_FIELDS_OF_TOPOLOGIES = frozenset(
    ("fabric", "constants", "link", "resource", "ranks_per_node", "rails", "alpha_meaning", "alpha_us")
)
_FIELDS_OF_SKETCHES = frozenset(
    ("chunks", "internode", "intranode", "symmetry", "objective", "routing", "merging", "description")
)
_MAX_FILE_BYTES = 10**9


def add_problem_options(parser: argparse.ArgumentParser, *, collective_required: bool = True) -> None:
    """Declare the options that make a problem."""
    from taccl.collective import COLLECTIVES

    add = parser.add_argument_group("problem").add_argument
    add("--collective", required=collective_required, metavar="NAME", help=", ".join(COLLECTIVES))
    add("--topology", metavar="FILE|NAME", help="a file, a machine (ndv2), or a fabric (torus:4x4)")
    add("--cost-model", choices=("upstream", "physical"), help="of an upstream topology file")
    add("--time-unit-us", metavar="US", help="microseconds in an upstream file's unit of time")
    add("--nodes", type=positive, metavar="N", help="number of nodes; rescales the sketch")
    add("--profile", metavar="P", help="which constants of the machine, e.g. nominal")
    size = parser.add_argument_group("size, one of").add_mutually_exclusive_group()
    size.add_argument("--size", metavar="S", help="larger of one rank's input and output buffer, e.g. 16MB")
    size.add_argument("--chunk-size", metavar="S", help="bytes of one chunk, e.g. 1MB")
    add("--chunks-per-rank", type=positive, metavar="K", help="pieces a rank's part of the data is cut into")
    add("--root", type=int, metavar="R", help="of broadcast, scatter, gather and reduce")
    add("--roots", type=_ranks, metavar="R,R", help="of the multi-root collectives")


def problem_from_options(options: argparse.Namespace) -> Problem:
    """The problem that the options of `add_problem_options`, and a sketch, describe.

    Raises
    ------
    InputError
        If options clash or are missing, or a file or a name cannot be used.
    """
    if options.topology is None and options.sketch is None:
        raise InputError("found neither a sketch nor --topology; give at least one", where="problem")
    if options.topology is not None and _looks_like_file(options.topology):
        kind = kind_of(options.topology)
        if kind == "upstream topology":
            return _upstream_problem(options)
        if kind != "topology":
            raise InputError(f"found a {kind}; expected a topology file", where=options.topology)
    if options.cost_model == "upstream" or options.time_unit_us is not None:
        name = "--time-unit-us" if options.cost_model != "upstream" else "--cost-model upstream"
        raise InputError(
            f"{name} needs an upstream topology file; give one with --topology, or leave it out",
            where="cost_model" if options.cost_model == "upstream" else "time_unit_us",
        )
    sketch = _load_sketch(options.sketch)
    return _apply(options, sketch, _topology(options, sketch))


def topology_from_word(word: str, *, nodes: int | None = None, profile: str | None = None) -> Topology:
    """The topology in a file, or of a machine's or fabric's name.

    Raises
    ------
    InputError
        If the word cannot be used, or a file is given nodes or a profile of its own.
    """
    if not _looks_like_file(word):
        return taccl.topologies.parse(word, nodes=nodes, profile=profile)
    if profile is not None:
        raise InputError("a topology file names its own profile; leave --profile out", where="profile")
    if kind_of(word) == "upstream topology":
        from taccl.sketch.upstream import load_upstream_topology

        return load_upstream_topology(word, nodes=nodes)
    topology = taccl.topologies.load(word)
    if nodes is not None and nodes != topology.num_nodes:
        raise InputError(
            f"found --nodes {nodes}, but the topology has {topology.num_nodes}; change the file, or leave "
            "--nodes out",
            where=word,
        )
    return topology


def kind_of(word: str, *, unclear: Kind = "topology") -> Kind:
    """What a file holds, by its content, or what a name stands for.

    Parameters
    ----------
    unclear : str
        What a file is taken for that could be a sketch or a topology: a machine and no more.

    Raises
    ------
    InputError
        If it is a file that cannot be read.
    """
    if not _looks_like_file(word):
        return "sketch" if word in taccl.shipped_sketches() or "/" in word else "topology"
    from taccl.formats.files import read_limited
    from taccl.sketch.reading import parse_json, parse_toml

    text = read_limited(word, _MAX_FILE_BYTES)
    is_json = text.lstrip().startswith("{") or word.lower().endswith(".json")
    fields = set((parse_json if is_json else parse_toml)(text, source=word))
    if {"format", "transfers"} & fields:
        return "schedule"
    if "gpus_per_node" in fields:
        return "upstream topology"
    if "nnodes" in fields:
        return "upstream sketch"
    if fields & _FIELDS_OF_TOPOLOGIES:
        return "topology"
    return "sketch" if fields & _FIELDS_OF_SKETCHES else unclear


def positive(word: str) -> int:
    """A positive whole number, for argparse."""
    if not word.isascii() or not word.isdigit() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"found {word!r}; expected a positive whole number")
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


def _looks_like_file(word: str) -> bool:
    path = Path(word)
    # A folder may bear the name of a machine.
    return word.lower().endswith(_FILE_SUFFIXES) or (path.exists() and not path.is_dir())


def _load_sketch(word: str | None) -> Sketch | None:
    if word is None:
        return None
    if _looks_like_file(word):
        kind = kind_of(word, unclear="sketch")
        if kind not in ("sketch", "upstream sketch"):
            raise InputError(
                f"found a {kind}; expected a sketch (a topology goes with --topology)", where=word
            )
    return taccl.load_sketch(word)


def _topology(options: argparse.Namespace, sketch: Sketch | None) -> Topology:
    if options.topology is None:
        assert sketch is not None
        return sketch.topology(nodes=options.nodes, profile=options.profile)
    of_name = not _looks_like_file(options.topology)
    nodes, profile = options.nodes, options.profile
    if sketch is not None and of_name and options.topology in taccl.topologies.machine_names():
        nodes = nodes or sketch.nodes
        profile = profile or sketch.profile or None
    return topology_from_word(options.topology, nodes=nodes, profile=profile)


def _apply(options: argparse.Namespace, sketch: Sketch | None, topology: Topology) -> Problem:
    collective = taccl.collectives.make(
        options.collective,
        topology.num_ranks,
        root=options.root,
        roots=options.roots,
        chunks_per_rank=options.chunks_per_rank or (sketch.chunks.per_rank if sketch else 1),
    )
    if sketch is None:
        size, chunk_size = options.size, options.chunk_size
        if size is None and chunk_size is None:
            raise InputError(
                "found neither --size nor --chunk-size; give one, e.g. --size 16MB", where="size"
            )
        return taccl.make_problem(
            topology,
            collective,
            size_bytes=None if size is None else parse_size(size, where="--size"),
            chunk_bytes=None if chunk_size is None else parse_size(chunk_size, where="--chunk-size"),
        )
    if options.nodes is not None:
        sketch = sketch.with_nodes(options.nodes, ranks_per_node=len(topology.ranks_of_node[0]))
    return sketch.apply(topology, collective, chunk_size=options.chunk_size, size=options.size)


def _upstream_problem(options: argparse.Namespace) -> Problem:
    """The problem on an upstream topology file; its costs are kept where the sketch is upstream's too."""
    from taccl.sketch.upstream import load_problem

    if options.profile is not None:
        raise InputError("an upstream topology file has no profiles; leave --profile out", where="profile")
    sketch = _load_sketch(options.sketch)
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


def _ranks(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(rank) for rank in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected ranks such as 0,4") from None

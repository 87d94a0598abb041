"""Problems from command-line options (topology, sketch, size, servers, protocol), and schedules in files."""

from __future__ import annotations

import argparse
import os
import shlex
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import taccl
from taccl._internal.names import in_runs
from taccl._internal.units import format_size, parse_size
from taccl.cli import inputs
from taccl.cli.options import BY_MATRIX, EXCHANGE, MATRICES, ROLES, USUAL_SIZE, refuse, was_given
from taccl.cli.output import picked, say
from taccl.errors import InputError
from taccl.problem.alltoallv import is_skew, skewed_sizes
from taccl.problem.byte_matrices import load_sizes
from taccl.problem.collectives import ARGUMENTS
from taccl.synthesis.problems import exchange_under, nodes_and_profile, under_asked_protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from taccl.problem.collective import Collective
    from taccl.problem.collectives import CollectiveArguments
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.sketch.sketch import Sketch
    from taccl.topology.named import NamedFabric
    from taccl.topology.topology import Topology


#: Kind of file that the commands on schedules expect, for messages.
_SCHEDULE = "a schedule"
#: `_LEAST_CHUNK`: min bytes of a chunk of layers, as in the paper on PHub.
#: `_CHUNKS_PER_SERVER`: default number of chunks per server, if chunks are no smaller than `_LEAST_CHUNK`.
_LEAST_CHUNK, _CHUNKS_PER_SERVER = 32_000, 64
#: Work on all pairs of ranks may take this number of seconds even if the time limit is shorter.
_BRIEF_S = 0.5
#: Options that change a fabric given by name, so that it may not look alike from every rank.
_CHANGING = ("sketch", "ranks", "without_rank", "nodes", "profile", "matrix", "layers")
#: Options beside a collective's name, its size and its chunks that change a problem, or that do not fit it.
_BESIDE = ("along", *ARGUMENTS, *ROLES, "cost_model", "time_unit_us")


def schedule_in(file: str, options: argparse.Namespace) -> Schedule:
    """Load the schedule in a file of taccl or another tool, with the options of `add_schedule`."""
    return schedule_and_details(file, options)[0]


def schedule_and_details(file: str, options: argparse.Namespace) -> tuple[Schedule, dict[str, Any]]:
    """(schedule that a file holds, details of its search that the file records or {}); see `schedule_in`."""
    from taccl.formats.detection import readable, wrong_format
    from taccl.formats.native import load_schedule, read_document

    given, found = picked(options, "topology", "chunk_size", "time_unit_us"), readable(file, wanted=_SCHEDULE)
    if found.name == "upstream-algorithm":
        from taccl.formats.published.algorithm import load_upstream_algorithm

        if options.topology is not None:
            given["topology"] = inputs.topology_from_word(options.topology)
        return load_upstream_algorithm(file, **given), {}
    if found.holds == "program":
        remedy = f"`taccl convert {shlex.quote(file)} OUT.json --topology NAME --size 1MB`"
        raise InputError(f"found a program; make a schedule of it first: {remedy}", where=file)
    if found.holds != "schedule":
        raise wrong_format(file, found, _SCHEDULE)
    refuse(options, given, "a schedule in taccl's own format contains it; leave the option out")
    document = read_document(file)
    return load_schedule(document, where=file), document.get("result") or {}


def problem_from_options(options: argparse.Namespace, *, reachable: bool = True) -> Problem:
    """The problem that the options of `add_problem_options` describe.

    - `reachable`: True if a sketch under which some chunk cannot reach a destination is an error.
    """
    if options.collective is None:
        raise InputError("found none; give one, e.g. --collective allgather", where="--collective")
    _check_roles(options)
    settle_topology(options)
    if options.topology is None and options.sketch is None:
        raise InputError("found neither a sketch nor --topology; give at least one", where="SKETCH")
    named = options.topology
    if named is not None and inputs.is_file(named) and inputs.kind_of(named) == "upstream topology":
        return _upstream_problem(options)
    if options.cost_model == "upstream" or options.time_unit_us is not None:
        name = "--time-unit-us" if options.cost_model != "upstream" else "--cost-model upstream"
        needed = "needs a topology file of the published TACCL tool"
        said = f"{name} {needed}; give one with --topology, or leave it out"
        raise InputError(said, where=name.partition(" ")[0])
    sketch = inputs.sketch_from_word(options.sketch, or_topology=options.topology is None)
    topology = subset_for(options, topology_for(options, sketch), sketch)
    if options.collective == BY_MATRIX or options.matrix is not None:
        return _by_matrix(options, topology)
    if options.layers is not None:
        return under_asked_protocol(_by_layers(options, topology), options.protocol, options.deadline)
    collective = collective_of(options, topology)
    cut = {**picked(options, "chunks_per_rank"), **arguments_of(options)}
    if sketch is not None:
        problem = resized(sketch, options, topology).apply(
            topology, collective, **picked(options, "chunk_size", "size"), **cut, reachable=reachable
        )
    else:
        settle_size(options)
        given = {"size_bytes": options.size, "chunk_bytes": options.chunk_size}
        problem = taccl.make_problem(topology, collective, **cut, **given)
    return under_asked_protocol(problem, options.protocol, options.deadline)


def subset_for(options: argparse.Namespace, topology: Topology, sketch: Sketch | None) -> Topology:
    """Topology of the ranks that take part; prints a note on how they are renumbered."""
    from taccl.topology.transform import subset

    if options.ranks is None and not options.without_rank:
        return topology
    if sketch is not None:
        said = "a sketch covers all ranks of its nodes; leave the sketch or this option out"
        raise InputError(said, where="--ranks" if options.ranks is not None else "--without-rank")
    kept = sorted(set(options.ranks or range(topology.num_ranks)) - set(options.without_rank))
    found = subset(topology, ranks=options.ranks, without_ranks=options.without_rank)
    say(f"note: ranks {in_runs(kept)} of {topology.num_ranks} take part, renumbered from 0")
    return found


def _by_matrix(options: argparse.Namespace, topology: Topology) -> Problem:
    """Alltoallv problem with given bytes for each pair of ranks."""
    sizes = sizes_of_pairs(options, topology.num_ranks)
    unused = ("sketch", "chunks_per_rank", *ARGUMENTS) + ("size",) * (not is_skew(options.matrix))
    refuse(options, unused, f"{BY_MATRIX} takes none; leave it out")
    return exchange_under(topology, sizes, options.protocol, options.deadline, chunk_bytes=options.chunk_size)


def _by_layers(options: argparse.Namespace, topology: Topology) -> Problem:
    """Parameter-server exchange of a model's layers; each chunk gets the server whose NIC is done first."""
    from taccl.aggregation import layer_bytes, place_shards

    refuse(options, ("sketch", "size", "chunks_per_rank"), "--layers sets it; leave it out")
    plain = _with_roles(options, topology)
    layers = layer_bytes(options.layers)
    chunk = options.chunk_size or max(
        _LEAST_CHUNK, -(-sum(layers.values()) // (_CHUNKS_PER_SERVER * len(options.servers)))
    )
    placed = place_shards(layers, topology, options.servers, chunk=chunk)
    say(f"note: {placed!r}, chunks of at most {format_size(chunk)}")
    first = plain.chunks[0]
    chunks = tuple(replace(first, root=server) for server in placed.servers)
    collective = replace(plain, chunks=chunks, chunks_open=False)
    return taccl.make_problem(topology, collective, chunk_bytes=placed.chunk_bytes)


def _in_groups(options: argparse.Namespace, topology: Topology) -> Collective:
    """Collective that runs the named one in each group of ranks that ``--along`` describes."""
    from taccl.sketch.apply import in_groups

    refuse(options, ("matrix", *ARGUMENTS), "--along does not combine with it; leave it out")
    along = options.along
    if isinstance(along, str):
        has_sketch = "sketch" in options
        sketch = inputs.sketch_from_word(options.sketch) if has_sketch else None
        if sketch is None:
            also = ", or a sketch with this group; give one" if has_sketch else ""
            raise InputError(f"found {along!r}; expected dimensions such as 1,3{also}", where="--along")
        along = sketch.along(along)
    found = in_groups(topology, options.collective, along, where="--along")
    first, count = found.groups[0].ranks, len(found.groups)
    say(f"note: {count} groups of {len(first)} ranks, the first {in_runs(first)}")
    return found


def _check_roles(options: argparse.Namespace) -> None:
    """Raise `InputError` for options that the collective does not take."""
    if options.along is not None and options.collective in (EXCHANGE, BY_MATRIX):
        raise InputError(f"{options.collective} takes none; leave it out", where="--along")
    if options.collective != EXCHANGE:
        refuse(options, ROLES, f"{options.collective} does not take it, only {EXCHANGE} does; leave it out")


def _with_roles(options: argparse.Namespace, topology: Topology) -> Collective:
    """Parameter-server exchange between the workers and servers that the options name."""
    if options.servers is None:
        said = f"found none; {EXCHANGE} needs server ranks, such as 8-15"
        raise InputError(said, where="--servers")
    refuse(options, ARGUMENTS, f"{EXCHANGE} takes none; leave it out")
    everyone = range(topology.num_ranks)
    others = tuple(rank for rank in everyone if rank not in options.servers)
    return taccl.collectives.exchange(
        options.worker_ranks or others or everyone,
        options.servers,
        num_ranks=topology.num_ranks,
        update_us_per_mb=options.update_us_per_mb or 0,
    )


def settle_topology(options: argparse.Namespace) -> None:
    """Use the positional argument as the topology if it names one, not a sketch."""
    if options.topology is None and options.sketch is not None and inputs.names_topology(options.sketch):
        options.topology, options.sketch = options.sketch, None


def named_fabric(options: argparse.Namespace) -> NamedFabric | None:
    """Fabric that the options give by its name alone; None for any other topology."""
    from taccl.topology.named import parse_named

    settle_topology(options)
    is_changed = any(getattr(options, each, None) for each in _CHANGING)
    if is_changed or options.topology is None or inputs.is_file(options.topology):
        return None
    with suppress(InputError):
        return parse_named(options.topology)
    return None


def is_by_name(options: argparse.Namespace) -> bool:
    """True if the options give the collective by its name alone, apart from its size and chunks."""
    return options.protocol == "auto" and all(getattr(options, each) is None for each in _BESIDE)


def exceeds_limit(fabric: NamedFabric, options: argparse.Namespace, *, s_per_pair: float) -> bool:
    """True if work on all pairs of ranks takes longer than the time limit that the command line gives.

    - `s_per_pair`: CPU seconds per pair of ranks.
    """
    most_s = max(_BRIEF_S, options.time_limit)
    return was_given("time_limit", options) and s_per_pair * fabric.num_ranks**2 > most_s


def settle_size(options: argparse.Namespace) -> None:
    """Set the default size if neither a size nor a chunk size is given; prints a note."""
    if options.size is None and options.chunk_size is None:
        options.size = parse_size(USUAL_SIZE)
        say(f"note: the size is {USUAL_SIZE}, as neither --size nor --chunk-size is given")


def topology_for(options: argparse.Namespace, sketch: Sketch | None) -> Topology:
    """Topology of the options; for a machine, the sketch supplies nodes and profile that are not given."""
    nodes, profile, protocol = options.nodes, options.profile, options.protocol
    if options.topology is None:
        assert sketch is not None
        return inputs.under_protocol(sketch.topology(nodes=nodes, profile=profile), protocol)
    if sketch is not None and not inputs.is_file(options.topology):
        nodes, profile = nodes_and_profile(sketch, options.topology, nodes, profile)
    return inputs.topology_from_word(options.topology, nodes=nodes, profile=profile, protocol=protocol)


def resized(sketch: Sketch, options: argparse.Namespace, topology: Topology) -> Sketch:
    """The sketch, rescaled to ``--nodes`` if given."""
    if options.nodes is None:
        return sketch
    return sketch.with_nodes(options.nodes, ranks_per_node=len(topology.ranks_of_node[0]))


def _upstream_problem(options: argparse.Namespace) -> Problem:
    """Problem on a topology file of the published TACCL tool, by default with the costs of its machine.

    If the sketch is also a file of that tool, the default is the topology file's own costs.
    """
    refuse(options, ("along",), "a topology file of the published TACCL tool has no dimensions; leave it out")
    from taccl.sketch.upstream import load_problem

    for name, given in (("profile", options.profile), ("protocol", options.protocol)):
        if given not in (None, "auto"):
            said = f"a topology file of the published TACCL tool has no {name}; leave --{name} out"
            raise InputError(said, where=f"--{name}")
    both = options.sketch is not None and inputs.kind_of(options.sketch) == "upstream sketch"
    names = ("collective", "nodes", "chunk_size", "size", "time_unit_us", "chunks_per_rank")
    given = picked(options, *names, *ARGUMENTS)
    given["cost_model"] = options.cost_model or ("upstream" if both else "physical")
    return load_problem(inputs.sketch_from_word(options.sketch) or taccl.Sketch(), options.topology, **given)


def arguments_of(options: argparse.Namespace) -> CollectiveArguments:
    """Arguments of the collective, such as its root, that were given as options."""
    return cast("CollectiveArguments", picked(options, *ARGUMENTS))


def collective_of(options: argparse.Namespace, topology: Topology) -> Collective | str:
    """Collective that the options name; the name alone for a standard collective without ``--along``.

    Other collectives are built here: a parameter-server exchange, the same collective in each group of ranks,
    or an all-to-all of the sizes in ``--matrix``, in chunks of one size.
    """
    _check_roles(options)
    if options.collective == EXCHANGE:
        refuse(options, ("layers",), "this verb has equal chunks only; leave it out")
        return _with_roles(options, topology)
    if options.along is not None:
        return _in_groups(options, topology)
    if options.collective != BY_MATRIX and options.matrix is None:
        name: str = options.collective
        return name
    refuse(options, ARGUMENTS, f"{BY_MATRIX} takes none; leave it out")
    sizes = sizes_of_pairs(options, topology.num_ranks)
    collective = taccl.alltoallv_collective(sizes)
    busiest = max(sizes.sum(axis=0).max(), sizes.sum(axis=1).max())
    say(
        f"note: {BY_MATRIX} in equal chunks, {collective.size_chunks} at the busiest rank for "
        f"{format_size(int(busiest))}; pairs are rounded up to whole chunks"
    )
    return collective


def sizes_of_pairs(options: argparse.Namespace, num_ranks: int) -> NDArray[np.int64]:
    """Bytes from each rank (row) to each rank, from the file or the skew in ``--matrix``.

    With a skew, the mean of the bytes that a rank sends is ``--size``.
    """
    if options.collective != BY_MATRIX:
        raise InputError(
            f"{options.collective} takes none, only {BY_MATRIX} does; leave it out", where="--matrix"
        )
    if options.matrix is None:
        raise InputError(f"found none; {BY_MATRIX} takes its sizes from {MATRICES}", where="--matrix")
    if is_skew(options.matrix):
        if num_ranks < 2:
            raise InputError("found a skew for 1 rank; expected two or more ranks", where="--matrix")
        return skewed_sizes(
            num_ranks, getattr(options, "size", None) or parse_size(USUAL_SIZE), options.matrix
        )
    if not os.path.exists(options.matrix):
        said = f"found {options.matrix!r}, which is no file; expected {MATRICES}"
        raise InputError(said, where="--matrix")
    sizes = load_sizes(options.matrix, num_ranks=num_ranks)
    if len(sizes) != num_ranks:
        said = f"found a matrix of {len(sizes)} ranks; expected one of {num_ranks}, as the topology has"
        raise InputError(said, where=options.matrix)
    return sizes

"""Problems from command-line options (topology, sketch, size, servers, protocol), and schedules in files."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import taccl
from taccl._internal.deadline import OutOfTime, busy_factor
from taccl._internal.names import in_runs
from taccl._internal.units import format_size, parse_size
from taccl.cli import things
from taccl.cli.options import BY_MATRIX, EXCHANGE, MATRICES, ROLES, USUAL_SIZE, refuse
from taccl.cli.output import picked, say
from taccl.errors import CollectiveError, InputError
from taccl.problem.alltoallv import is_skew, is_uneven, load_sizes, skewed_sizes
from taccl.problem.collectives import ARGUMENTS
from taccl.topology.profiles import PROFILES

if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

    from taccl._internal.deadline import Deadline
    from taccl.problem.collective import Collective
    from taccl.problem.collectives import CollectiveArguments
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.sketch.sketch import Sketch
    from taccl.topology.topology import Topology


#: NCCL's protocols are compared by the finish of baselines, or by estimates or bounds above these numbers.
#: `_TRIED_ARRIVALS`: max arrivals of chunks and contributions for baselines (2 s, or 9 s if 32 ranks reduce).
#: `_BOUNDED_ARRIVALS`: max arrivals of chunks for lower bounds.
_TRIED_ARRIVALS, _BOUNDED_ARRIVALS = 1_024, 100_000


#: `_BOUND_S`: expected CPU seconds for the fixed part of a bound under one protocol.
#: `_BOUND_S_PER_LINK`: expected CPU seconds per link of a bound.
#: `_ESTIMATE_S`: expected CPU seconds for the fixed part of an estimate under one protocol.
#: `_ESTIMATE_S_PER_LINK`: expected CPU seconds per link of an estimate.
#: `_BASELINE_S_PER_LINK`: expected CPU seconds per link of a baseline.
_BOUND_S, _BOUND_S_PER_LINK, _BASELINE_S_PER_LINK = 0.1, 8e-5, 2e-5
_ESTIMATE_S, _ESTIMATE_S_PER_LINK = 0.005, 4.5e-6


#: `_LEAST_CHUNK`: min bytes of a chunk of layers, as in the paper on PHub.
#: `_CHUNKS_PER_SERVER`: default number of chunks per server, if chunks are no smaller than `_LEAST_CHUNK`.
_LEAST_CHUNK, _CHUNKS_PER_SERVER = 32_000, 64


#: `_PROTOCOL_SHARE`: max share of a verb's remaining time for comparing protocols by baselines and bounds.
#: `_ESTIMATE_SHARE`: max share of a verb's remaining time for comparing protocols by estimates.
#: `_ESTIMATE_SHARE` is larger, as another protocol can be ten times as fast for small messages.
#: `_LEAST_ESTIMATE_S`: min seconds for estimates of protocols, whatever the time limit.
_PROTOCOL_SHARE, _ESTIMATE_SHARE, _LEAST_ESTIMATE_S = 0.3, 0.5, 0.4
#: `_SLOW_SHARE`: max share of the `_PROTOCOL_SHARE` time that baselines or bounds may be expected to need.
#: Estimates replace baselines or bounds that need more, if chunks are of equal size.
#: `_SLOW_LIMIT`: share of the `_PROTOCOL_SHARE` time after which estimates replace baselines and bounds.
_SLOW_SHARE, _SLOW_LIMIT = 0.3, 0.7


def schedule_in(file: str, options: argparse.Namespace) -> Schedule:
    """Load the schedule in a file of taccl or another tool, with the options of `add_schedule`."""
    from taccl.formats.detection import readable, wrong_format

    given, found = picked(options, "topology", "chunk_size", "time_unit_us"), readable(file)
    if found.name == "upstream-algorithm":
        from taccl.formats.published.algorithm import load_upstream_algorithm

        if options.topology is not None:
            given["topology"] = things.topology_from_word(options.topology)
        return load_upstream_algorithm(file, **given)
    if found.holds == "program":
        remedy = f"`taccl convert {shlex.quote(file)} OUT.json --topology NAME --size 1MB`"
        raise InputError(f"found a program; make a schedule of it first: {remedy}", where=file)
    if found.holds != "schedule":
        raise wrong_format(file, found, "a schedule")
    refuse(options, given, "a schedule in taccl's own format contains it; leave the option out")
    schedule: Schedule = taccl.load(file)
    return schedule


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
    if named is not None and things.is_file(named) and things.kind_of(named) == "upstream topology":
        return _upstream_problem(options)
    if options.cost_model == "upstream" or options.time_unit_us is not None:
        name = "--time-unit-us" if options.cost_model != "upstream" else "--cost-model upstream"
        said = f"{name} needs an upstream topology file; give one with --topology, or leave it out"
        raise InputError(said, where=name.partition(" ")[0])
    sketch = things.sketch_from_word(options.sketch)
    topology = subset_for(options, topology_for(options, sketch), sketch)
    if options.collective == BY_MATRIX or options.matrix is not None:
        return _under_best_protocol(_by_matrix(options, topology), options)
    if options.layers is not None:
        return _under_best_protocol(_by_layers(options, topology), options)
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
    return _under_best_protocol(problem, options)


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
    return taccl.alltoallv_problem(topology, sizes, chunk_bytes=options.chunk_size)


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
        sketch = things.sketch_from_word(options.sketch)
        if sketch is None:
            said = f"found {along!r}; expected dimensions such as 1,3, or a sketch with this group; give one"
            raise InputError(said, where="--along")
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


def _under_best_protocol(problem: Problem, options: argparse.Namespace) -> Problem:
    """The problem under the protocol predicted to be the fastest, unless one was given; prints a note.

    A protocol is rated by the earliest finish of all baselines, re-timed under it. On large problems, or if
    baselines would exceed their share of the time limit, the rating is an estimated finish of the baseline
    `multiplying`; if that does not apply, a lower bound. Protocols for which there is no time are left out.
    Without time for a second one, the topology's own protocol is used.
    """
    protocols, size = problem.topology.protocols, problem.size_bytes
    if options.protocol != "auto" or len(protocols) < 2 or size is None:
        return problem
    chunks = problem.collective.chunks
    wanted = sum(len(chunk.destinations) for chunk in chunks)
    arrivals = wanted + problem.collective.sums_up * sum(len(chunk.origins) for chunk in chunks)
    if wanted > _BOUNDED_ARRIVALS:
        taken = problem.topology.protocol
        say(f"note: protocol {taken} is used uncompared, at this number of ranks (--protocol chooses)")
        return problem

    from taccl.baselines.multiplying import estimated_us

    limit: Deadline = options.deadline
    last = limit.sooner(_ESTIMATE_SHARE * limit.left_s).at_least(_LEAST_ESTIMATE_S)
    limit = limit.sooner(_PROTOCOL_SHARE * limit.left_s)
    links = len(problem.topology.links)
    is_even, is_tried = len(set(problem.chunk_bytes)) < 2, arrivals <= _TRIED_ARRIVALS
    is_regular = is_even and not is_uneven(problem)  # estimates assume that all ranks take part alike
    slow_s = len(protocols) * (_BOUND_S + links * _BOUND_S_PER_LINK)
    if is_tried:
        slow_s = len(taccl.baselines.BASELINES) * links * _BASELINE_S_PER_LINK
    is_short = is_regular and busy_factor() * slow_s > _SLOW_SHARE * limit.left_s
    sized: dict[str, Any] = {"size_bytes": size} if is_even else {"chunk_bytes": problem.chunk_bytes}

    def plain(topology: Topology) -> Problem:
        return taccl.make_problem(topology, problem.collective, **sized)

    def promise(topology: Topology, schedules: Iterable[Schedule]) -> float:
        is_own = topology.protocol == problem.topology.protocol
        finishes_us = [
            each.finish_us if is_own else taccl.simulate(each, topology=topology).finish_us
            for each in schedules
        ]
        least_us = min(finishes_us, default=None)
        if least_us is None:
            least_us = float(taccl.lower_bound(plain(topology), budget_s=0.1).bound)
        return least_us + float(topology.launch_us)

    def estimate(topology: Topology) -> float:
        return estimated_us(plain(topology)) + float(topology.launch_us)

    own_first = sorted(protocols, key=lambda each: each != problem.topology.protocol)
    promised: dict[str, float] = {}
    by = ""

    def compare_by_schedules() -> None:
        """Rate protocols by all baselines, or by lower bounds."""
        nonlocal promised, by
        if not is_short:
            with limit.sooner(_SLOW_LIMIT * limit.left_s).enforced():
                made = _baselines_of(plain(problem.topology)) if is_tried else []
                by = "by the fastest baseline in uncut chunks" if made else "by lower bounds"
                promised = {each: promise(problem.topology.under(each), made) for each in protocols}

    def compare_by_estimates() -> None:
        """Rate those protocols for which there is time by an estimated finish."""
        nonlocal by
        estimate_s = busy_factor() * (_ESTIMATE_S + links * _ESTIMATE_S_PER_LINK)
        if is_regular and 2 * estimate_s <= last.left_s:
            by = "by an estimate of the baseline multiplying"
            for each in own_first:
                with last.enforced():
                    promised[each] = estimate(problem.topology.under(each))
                if promised[each] == math.inf:
                    promised.clear()
                    return

    # Estimates predict finishes better than bounds do, and take a tenth of the time.
    ways = compare_by_schedules, compare_by_estimates
    for compare in ways if is_tried else reversed(ways):
        if len(promised) < 2:
            with suppress(CollectiveError, OutOfTime):
                compare()
    if len(promised) < 2:
        taken = problem.topology.protocol
        say(f"note: protocol {taken} is used without a comparison, for lack of time (--protocol chooses)")
        return problem
    chosen, *others = sorted(promised, key=promised.__getitem__)
    said = [f"{promised[chosen]:.4g} us", *(f"{name} {promised[name]:.4g} us" for name in others)]
    times = "; ".join((said[0], ", ".join(said[1:])))
    if len(promised) < len(protocols):
        times += f"; no time for {', '.join(each for each in protocols if each not in promised)}"
    say(f"note: protocol {chosen} is predicted to be the fastest for {format_size(size)} ({by}: {times})")
    topology = problem.topology.under(chosen)
    is_plain = problem.clauses == plain(problem.topology).clauses  # the defaults differ by protocol
    clauses = plain(topology).clauses if is_plain else problem.clauses
    return replace(problem, topology=topology, clauses=clauses)


def _baselines_of(problem: Problem) -> list[Schedule]:
    """Schedules of all baselines that apply to the problem, without changing its chunks."""
    found = []
    for name in taccl.baselines.BASELINES:
        with suppress(InputError):
            found.append(taccl.baselines.baseline(name, problem, cut=False))
    return found


def settle_topology(options: argparse.Namespace) -> None:
    """Use the positional argument as the topology if it names one, not a sketch."""
    if options.topology is None and options.sketch is not None and things.names_topology(options.sketch):
        options.topology, options.sketch = options.sketch, None


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
        return things.under_protocol(sketch.topology(nodes=nodes, profile=profile), protocol)
    is_machine = not things.is_file(options.topology) and options.topology in taccl.topologies.machine_names()
    if sketch is not None and is_machine:
        nodes = nodes or sketch.nodes
        named = {each.name for each in PROFILES[options.topology]}
        if options.topology == sketch.machine or sketch.profile in named:  # else the machine is refused later
            profile = profile or sketch.profile or None
    return things.topology_from_word(options.topology, nodes=nodes, profile=profile, protocol=protocol)


def resized(sketch: Sketch, options: argparse.Namespace, topology: Topology) -> Sketch:
    """The sketch, rescaled to ``--nodes`` if given."""
    if options.nodes is None:
        return sketch
    return sketch.with_nodes(options.nodes, ranks_per_node=len(topology.ranks_of_node[0]))


def _upstream_problem(options: argparse.Namespace) -> Problem:
    """Problem on a topology file of the published TACCL tool, by default with the costs of its machine.

    If the sketch is also a file of that tool, the default is the topology file's own costs.
    """
    refuse(options, ("along",), "an upstream topology file has no dimensions; leave it out")
    from taccl.sketch.upstream import load_problem

    for name, given in (("profile", options.profile), ("protocol", options.protocol)):
        if given not in (None, "auto"):
            said = f"an upstream topology file has no {name}; leave --{name} out"
            raise InputError(said, where=f"--{name}")
    both = options.sketch is not None and things.kind_of(options.sketch) == "upstream sketch"
    names = ("collective", "nodes", "chunk_size", "size", "time_unit_us", "chunks_per_rank")
    given = picked(options, *names, *ARGUMENTS)
    given["cost_model"] = options.cost_model or ("upstream" if both else "physical")
    return load_problem(things.sketch_from_word(options.sketch) or taccl.Sketch(), options.topology, **given)


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
        return skewed_sizes(
            num_ranks, getattr(options, "size", None) or parse_size(USUAL_SIZE), options.matrix
        )
    if not os.path.exists(options.matrix):
        said = f"found {options.matrix!r}, which is no file; expected {MATRICES}"
        raise InputError(said, where="--matrix")
    return load_sizes(options.matrix)

"""Options that verbs share, and from them to a problem."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import taccl
from taccl._internal.cpu_share import busy_factor
from taccl._internal.deadline import OutOfTime
from taccl._internal.names import did_you_mean, in_runs, matching
from taccl._internal.units import format_size, format_us, parse_size
from taccl.cli import things
from taccl.cli.exchanges import BY_MATRIX, MATRICES, USUAL_SIZE, sizes_of_pairs
from taccl.cli.output import picked, say
from taccl.errors import CollectiveError, InputError
from taccl.problem.alltoallv import is_skew

if TYPE_CHECKING:
    from typing import Any

    from taccl._internal.deadline import Deadline
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.sketch.sketch import Sketch
    from taccl.topology.topology import Topology

T = TypeVar("T")


def reader(make: Callable[[str], T], fits: Callable[[T], object], expected: str) -> Callable[[str], T]:
    """A function that reads a word for argparse, or says what was `expected` of it."""

    def read(word: str) -> T:
        try:
            found = make(word)
        except ValueError:
            pass
        else:
            if fits(found):
                return found
        raise argparse.ArgumentTypeError(f"found {word!r}; expected {expected}")

    return read


def whole(word: str) -> int:
    """A whole number of at least 0 and at most 18 digits; ValueError for anything else."""
    return int(word if word.isascii() and word.isdigit() and len(word) <= 18 else "")


positive = reader(whole, lambda n: n > 0, "a positive whole number")
at_least_zero = reader(whole, lambda n: n >= 0, "a whole number of at least 0")
jitter = reader(float, lambda x: 0 <= x < 1, "a number of at least 0 and below 1")
seconds = reader(float, lambda x: 0 < x < math.inf, "a positive number of seconds")
_ranks = reader(lambda text: tuple(map(int, text.split(","))), bool, "ranks such as 0,4")


def _ranks_and_runs(text: str) -> tuple[int, ...]:
    """Ranks and runs of ranks: ``0-3,8``; ValueError for anything else."""
    runs = [word.partition("-") for word in text.split(",")]
    return tuple(rank for a, dash, b in runs for rank in range(whole(a), whole(b if dash else a) + 1))


_subset = reader(_ranks_and_runs, bool, "ranks such as 0-3,8")


def several(read: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """A function that reads things with commas between for argparse."""
    return lambda text: tuple(map(read, text.split(",")))


def size(word: str) -> int:
    """A size such as ``1MB`` in bytes, for argparse."""
    try:
        return parse_size(word)
    except InputError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def sizes(text: str) -> tuple[int, ...]:
    """Sizes such as ``1KB,1MB``, or ``FIRST:LAST``, each ten or ``:FACTOR`` times the one before."""
    if ":" not in text:
        return several(size)(text)
    first, last, factor = (*text.split(":"), "10")[:3] if text.count(":") < 3 else ("", "", "")
    found, most, times = [size(first)], size(last), positive(factor)
    while times > 1 and found[-1] <= most:
        found.append(found[-1] * times)
    if len(found) == 1:
        expected = "FIRST:LAST[:FACTOR], from a smaller size to a larger one by a factor of 2 or more"
        raise argparse.ArgumentTypeError(f"found {text!r}; expected {expected}")
    return tuple(found[:-1])


def _collective(word: str, *more: str) -> str:
    """The name of a collective, or of one `more`, however it is spelt."""
    known = (*taccl.collectives.COLLECTIVES, *more)
    name = matching(word, known)
    if name is None:
        near = did_you_mean(word, known)
        raise argparse.ArgumentTypeError(f"found {word!r}; expected one of {', '.join(known)}{near}")
    return name


#: Most arrivals of chunks and contributions for which baselines compare protocols (about 2 s; 9 s if 32 ranks
#: reduce), and most arrivals for which bounds do.
_TRIED_ARRIVALS, _BOUNDED_ARRIVALS = 1_024, 100_000
#: CPU seconds for the bound of a protocol, and for an estimate instead of it, for each link; what would end
#: late is not begun.
_BOUND_S_PER_LINK, _ESTIMATE_S_PER_LINK = 8e-5, 2e-5
#: Seconds for a verb's work in any case, however long what comes before it takes.
LEAST_S = 0.1
#: Share of a verb's time limit for that comparison.
_PROTOCOL_SHARE = 0.3
A_TOPOLOGY = "a file, a machine (ndv2), or a fabric (torus:4x4)"
_COLLECTIVES = ", ".join(taccl.collectives.COLLECTIVES)
_PROTOCOL = "by which messages are sent (default auto: the one that promises least for the size)"
_SIZE = "larger of one rank's input and output buffer, e.g. 16MB (default: the sketch's, or 64MB)"
#: Options of several verbs: what the value is called, the help, and what else argparse is told.
_SHARED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "--topology": ("FILE|NAME", A_TOPOLOGY, {}),
    "--nodes": ("N", "number of nodes; rescales sketches", {"type": positive}),
    "--profile": ("P", "which constants of the machine, e.g. nominal", {}),
    "--protocol": ("auto|simple|ll|ll128", _PROTOCOL, {"type": str.lower, "default": "auto"}),
    "--collective": ("NAME", _COLLECTIVES, {"type": _collective, "required": True}),
    "--size": ("S", _SIZE, {"type": size}),
    "--chunk-size": ("S", "bytes of one chunk, e.g. 1MB", {"type": size}),
    "--chunks-per-rank": ("K", "pieces a rank's part of the data is cut into", {"type": positive}),
    "--root": ("R", "rank; of broadcast, scatter, gather and reduce", {"type": at_least_zero}),
    "--time-unit-us": ("US", "microseconds in the file's unit of time", {}),
    "--backend": ("NAME", "auto, or one of `taccl backends`", {"default": "auto"}),
    "--time-limit": ("S", "seconds", {"type": seconds, "default": 30.0}),
    "--threads": ("N", "threads of a solver", {"type": positive}),
    "--seed": ("N", "default 0", {"type": at_least_zero, "default": 0}),
}


def option(
    parser: argparse._ActionsContainer, words: str, help: str, read: Callable[[str], Any] | None = None,
    **how: Any,
) -> None:  # fmt: skip
    """Declare an option as its help shows it: flags, then what its value is called, or ``one|other`` choices.

    Without a word for its value it is a switch. A default is told, unless the help speaks of it.
    """
    *flags, value = words.split(" ")
    if value.startswith("-"):
        flags, how = [*flags, value], {"action": "store_true"} | how
    elif value.islower():
        how = {"choices": value.split("|")} | how
    else:
        how = {"metavar": value, "type": read} | how
    default = how.get("default")
    if default and default != "auto" and "default" not in help:
        help += f" (default {default:g})" if isinstance(default, float) else f" (default {default})"
    parser.add_argument(*flags, help=help, **how)


def add_options(parser: argparse._ActionsContainer, *names: str, help: str = "", **changed: Any) -> None:
    """Declare options that verbs share, with what is `changed` of them."""
    for name in names:
        value, usual, how = _SHARED[name]
        option(parser, f"{name} {value}", help or usual, **(how | changed))


def add_limit(
    verb: argparse.ArgumentParser, group: argparse._ActionsContainer | None = None, *,
    option_name: str = "--time-limit", default: float = 30.0, help: str = "seconds of the whole verb",
) -> None:  # fmt: skip
    """Declare the time limit of a verb, in a group of its options; `options.deadline` then holds it."""
    option(group or verb, f"{option_name} S", help, seconds, default=default)
    verb.set_defaults(limited_by=option_name.removeprefix("--").replace("-", "_"))


def add_output(verb: argparse.ArgumentParser, help: str, *, required: bool = False) -> None:
    """Declare the file to write."""
    option(verb, "-o --output FILE", help, required=required)
    option(verb, "--overwrite", "replace the file if it exists")


def add_subset(parser: argparse._ActionsContainer) -> None:
    """Declare the ranks of a topology that take part, which are renumbered from 0."""
    help = "ranks that take part, as CUDA_VISIBLE_DEVICES says (default: all)"
    option(parser, "--ranks R-R,R", help, _subset)
    option(parser, "--without-rank R,R", "ranks that do not take part", _subset, default=())


def add_size(parser: argparse._ActionsContainer) -> None:
    """Declare the size, or that of a chunk."""
    add_options(parser.add_mutually_exclusive_group(), "--size", "--chunk-size")


def add_schedule(verb: argparse.ArgumentParser, *, also: str = "") -> None:
    """Declare a schedule's file, or `also` another thing's, and what the published tool's do not say."""
    help = "a schedule (of `taccl synthesize -o`), an algorithm of the published tool"
    verb.add_argument("file", metavar="FILE", help=f"{help}{also and ', ' + also}")
    group = verb.add_argument_group("of an algorithm of the published tool")
    add_options(group, "--topology", help="where it is to run instead, timed anew")
    add_options(group, "--chunk-size", "--time-unit-us")


def schedule_in(file: str, options: argparse.Namespace) -> Schedule:
    """The schedule in a file, of whichever tool, with the options of `add_schedule`."""
    from taccl.formats.registry import readable, wrong_format

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
    refuse(options, given, "found a schedule of taccl's own, whose file says it; leave the option out")
    schedule: Schedule = taccl.load(file)
    return schedule


def flag_of(name: str) -> str:
    """The option as it is typed, by its name among the options."""
    return "--" + name.replace("_", "-")


def was_given(name: str, options: argparse.Namespace) -> bool:
    """True if an option was typed, and does not have its default."""
    return any(word.partition("=")[0] == flag_of(name) for word in options.words)


def refuse(options: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Raise `InputError` for the first of some options that was given, and has nothing to say."""
    for name in names:
        if getattr(options, name) is not None:
            raise InputError(why, where=flag_of(name))


def add_collective(parser: argparse._ActionsContainer, *, required: bool = True) -> None:
    """Declare the collective, and the matrix of an exchange."""
    help = f"{_COLLECTIVES}, or {BY_MATRIX} with --matrix"
    add_options(
        parser, "--collective", help=help, required=required, type=lambda word: _collective(word, BY_MATRIX)
    )
    option(parser, "--matrix FILE|SKEW", f"bytes from each rank (row) to each, of {BY_MATRIX}: {MATRICES}")


def add_problem_options(
    parser: argparse.ArgumentParser, *, also: str = "", collective_required: bool = True
) -> None:
    """Declare the sketch, in place of which `also` another thing may stand, and the options of a problem."""
    help = "a shipped name (ndv2/sk1), a TOML or JSON file, an upstream sketch file; or a topology"
    parser.add_argument("sketch", nargs="?", metavar="SKETCH", help=help + also)
    group = parser.add_argument_group("problem")
    add_collective(group, required=collective_required)
    add_options(group, "--topology")
    option(group, "--cost-model upstream|physical", "what to make of the costs in an upstream topology file")
    add_options(group, "--time-unit-us", help="microseconds in an upstream file's unit of time")
    add_options(group, "--nodes", "--profile", "--protocol")
    add_subset(group)
    add_size(parser.add_argument_group("size, one of"))
    add_options(group, "--chunks-per-rank", "--root")
    option(group, "--roots R,R", "ranks; of the multi-root collectives", _ranks)


def problem_from_options(options: argparse.Namespace, *, reachable: bool = True) -> Problem:
    """The problem that the options of `add_problem_options` describe.

    - `reachable`: Whether a sketch that keeps a chunk from a destination is an error.
    """
    if options.collective is None:
        raise InputError("found none; give one, e.g. --collective allgather", where="--collective")
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
        return _under_best_protocol(_exchange(options, topology), options)
    cut = picked(options, "chunks_per_rank", "root", "roots")
    if sketch is not None:
        problem = resized(sketch, options, topology).apply(
            topology, options.collective, **picked(options, "chunk_size", "size"), **cut, reachable=reachable
        )
    else:
        settle_size(options)
        given = {"size_bytes": options.size, "chunk_bytes": options.chunk_size}
        problem = taccl.make_problem(topology, options.collective, **cut, **given)
    return _under_best_protocol(problem, options)


def subset_for(options: argparse.Namespace, topology: Topology, sketch: Sketch | None) -> Topology:
    """The topology of the ranks that take part; says how they are renumbered."""
    from taccl.topology.transform import subset

    if options.ranks is None and not options.without_rank:
        return topology
    if sketch is not None:
        said = "a sketch speaks of all ranks of its nodes; leave it out, or take all ranks"
        raise InputError(said, where="--ranks" if options.ranks is not None else "--without-rank")
    kept = sorted(set(options.ranks or range(topology.num_ranks)) - set(options.without_rank))
    found = subset(topology, ranks=options.ranks, without_ranks=options.without_rank)
    say(f"note: ranks {in_runs(kept)} of {topology.num_ranks} take part, renumbered from 0")
    return found


def _exchange(options: argparse.Namespace, topology: Topology) -> Problem:
    """The exchange whose sizes are given."""
    sizes = sizes_of_pairs(options, topology.num_ranks)
    unused = ("sketch", "chunks_per_rank", "root", "roots") + ("size",) * (not is_skew(options.matrix))
    refuse(options, unused, f"{BY_MATRIX} takes none; leave it out")
    return taccl.alltoallv_problem(topology, sizes, chunk_bytes=options.chunk_size)


def _under_best_protocol(problem: Problem, options: argparse.Namespace) -> Problem:
    """The problem under the protocol that promises least, unless one is asked for; says so.

    The promise of a protocol is the soonest finish of the baselines, re-timed under it; where these take
    long, its bound, or in a short time the estimate of a baseline. Without time to compare protocols the
    topology's own is taken.
    """
    protocols, size = problem.topology.protocols, problem.size_bytes
    if options.protocol != "auto" or len(protocols) < 2 or size is None:
        return problem
    chunks = problem.collective.chunks
    wanted = sum(len(chunk.destinations) for chunk in chunks)
    arrivals = wanted + problem.collective.sums_up * sum(len(chunk.origins) for chunk in chunks)
    if wanted > _BOUNDED_ARRIVALS:
        taken = problem.topology.protocol
        say(f"note: protocol {taken} is taken; so many ranks are not compared: --protocol takes others")
        return problem

    from taccl.baselines.multiplying import estimated_us

    limit: Deadline = options.deadline
    limit = limit.sooner(_PROTOCOL_SHARE * limit.left_s)
    each_s = busy_factor() * len(problem.topology.links) * len(protocols)
    is_even = len(set(problem.chunk_bytes)) < 2
    is_short = is_even and arrivals > _TRIED_ARRIVALS and each_s * _BOUND_S_PER_LINK > limit.left_s
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

    try:
        with limit.enforced():
            if is_short and each_s * _ESTIMATE_S_PER_LINK > limit.left_s:
                raise OutOfTime("estimates would take longer")
            made = _baselines_of(plain(problem.topology)) if arrivals <= _TRIED_ARRIVALS else []
            promised = {
                each: estimate(under) if is_short else promise(under, made)
                for each, under in ((each, problem.topology.under(each)) for each in protocols)
            }
    except (CollectiveError, OutOfTime):
        taken = problem.topology.protocol
        say(f"note: protocol {taken} is used: too little time to compare protocols; --protocol chooses one")
        return problem
    chosen = min(promised, key=promised.__getitem__)
    said = ", ".join(f"{name} {format_us(us)}" for name, us in promised.items())
    say(f"note: protocol {chosen} promises least for {format_size(size)} ({said})")
    topology = problem.topology.under(chosen)
    is_plain = problem.clauses == plain(problem.topology).clauses  # the defaults differ by protocol
    clauses = plain(topology).clauses if is_plain else problem.clauses
    return replace(problem, topology=topology, clauses=clauses)


def _baselines_of(problem: Problem) -> list[Schedule]:
    """Schedules of all baselines that can do the problem, in its own chunks."""
    found = []
    for name in taccl.baselines.BASELINES:
        with suppress(InputError):
            found.append(taccl.baselines.baseline(name, problem, cut=False))
    return found


def settle_topology(options: argparse.Namespace) -> None:
    """Take a topology that stands where a sketch may stand for what it is."""
    if options.topology is None and options.sketch is not None and things.names_topology(options.sketch):
        options.topology, options.sketch = options.sketch, None


def settle_size(options: argparse.Namespace) -> None:
    """Take the usual size where there is no sketch and no option that says one, and say so."""
    if options.size is None and options.chunk_size is None:
        options.size = parse_size(USUAL_SIZE)
        say(f"note: found neither --size nor --chunk-size; {USUAL_SIZE} is taken")


def topology_for(options: argparse.Namespace, sketch: Sketch | None) -> Topology:
    """The topology of the options; of a machine, with the nodes and the profile of the sketch."""
    nodes, profile, protocol = options.nodes, options.profile, options.protocol
    if options.topology is None:
        assert sketch is not None
        return things.under_protocol(sketch.topology(nodes=nodes, profile=profile), protocol)
    is_machine = not things.is_file(options.topology) and options.topology in taccl.topologies.machine_names()
    if sketch is not None and is_machine:
        nodes, profile = nodes or sketch.nodes, profile or sketch.profile or None
    return things.topology_from_word(options.topology, nodes=nodes, profile=profile, protocol=protocol)


def resized(sketch: Sketch, options: argparse.Namespace, topology: Topology) -> Sketch:
    """The sketch for as many nodes as the options ask for, if they do."""
    if options.nodes is None:
        return sketch
    return sketch.with_nodes(options.nodes, ranks_per_node=len(topology.ranks_of_node[0]))


def _upstream_problem(options: argparse.Namespace) -> Problem:
    """The problem on an upstream topology file; its costs are kept where the sketch is upstream's too."""
    from taccl.sketch.upstream import load_problem

    for name, given in (("profile", options.profile), ("protocol", options.protocol)):
        if given not in (None, "auto"):
            said = f"an upstream topology file has no {name}s; leave --{name} out"
            raise InputError(said, where=f"--{name}")
    both = options.sketch is not None and things.kind_of(options.sketch) == "upstream sketch"
    names = ("collective", "nodes", "chunk_size", "size", "time_unit_us", "chunks_per_rank", "root", "roots")
    given = picked(options, *names)
    given["cost_model"] = options.cost_model or ("upstream" if both else "physical")
    return load_problem(things.sketch_from_word(options.sketch) or taccl.Sketch(), options.topology, **given)

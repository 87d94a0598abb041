"""A plan: the best schedule for every size of a range, and the sizes at which the winner changes.

Schedules are synthesized at some sizes. They and the baselines are compared at all sizes of the range by
their simulated times (`taccl.simulate`). The size at which the winner changes is found to the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Unpack

from taccl._internal.arguments import Count, Natural, Seconds, Size, checked
from taccl._internal.deadline import Deadline
from taccl._internal.garbage import rarely_collected
from taccl._internal.units import parse_size
from taccl.errors import InputError, NoSolutionError
from taccl.explore.compare import loaded, name_of
from taccl.explore.plan_ranges import Plan
from taccl.explore.plan_runtimes import (
    check_collective,
    check_lowering,
    protocol_besides_simple,
    serving_parameters,
    under_protocols_of,
)
from taccl.explore.plan_search import LEAST_SYNTHESIS_S, PlanSearch, finishing_time
from taccl.problem.collective import Collective
from taccl.problem.collectives import CollectiveArguments
from taccl.problem.making import make_problem, merged
from taccl.problem.problem import Problem
from taccl.program.limits import IN_BOTH_PLACES, USUALLY_IN_PLACE
from taccl.runtimes.registry import runtime_named, usual_runtimes
from taccl.sketch.apply import apply
from taccl.synthesis.options import called, raising_errors_of_callbacks
from taccl.synthesis.parameters import DEFAULTS
from taccl.synthesis.problems import asked_topology
from taccl.synthesis.result import StageLog
from taccl.topology.topology import Topology

if TYPE_CHECKING:
    from taccl.runtimes.runtime import Runtime
    from taccl.sketch.sketch import Sketch

#: Max seconds past the time limit for the first baseline to build variants, once one schedule is complete.
_VARIANTS_S = 1.0
#: `_BASELINES_SHARE`: share of the time limit for baselines, which have more if none is left for syntheses.
#: `_FINISHING_SHARE`: share of the time limit for programs and bounds at the end.
#: `_MOST_FINISHING_S`: max seconds for programs and bounds, unless schedules have many sends.
#: `_MOST_FINISHING_SHARE`: max share of the time limit for programs and bounds of schedules with many sends.
_BASELINES_SHARE, _FINISHING_SHARE, _MOST_FINISHING_S, _MOST_FINISHING_SHARE = 0.3, 0.35, 60.0, 0.6
#: Factor between successive sizes at which schedules are synthesized.
_FACTOR = 4


@checked
@rarely_collected()
@raising_errors_of_callbacks()
def plan(
    topology: Topology | str,
    collective: Collective | str,
    *,
    nodes: Count | None = None,
    profile: str | None = None,
    sketches: Iterable[Sketch | str | PathLike[str] | None] = (None,),
    sizes: str | Iterable[Size] = "1KB:1GB",
    baselines: bool = True,
    backend: str = "auto",
    time_limit_s: Seconds = 300.0,
    threads: Count | None = None,
    seed: Natural = 0,
    max_ranges: Count = 4,
    protocol: str = "auto",
    lowering: Mapping[str, Any] | None = None,
    runtime: str | None = None,
    progress: Callable[[str], None] | None = None,
    **arguments: Unpack[CollectiveArguments],
) -> Plan:
    """Find the best schedule for every size of a range, and the sizes at which the winner changes.

    Parameters
    ----------
    topology : Topology or str
        A topology, or a machine or fabric by name.
    nodes, profile : optional
        Number of nodes and profile of a machine by name, as for `taccl.make_problem`.
    collective : str or Collective
        A name, or an object such as `taccl.alltoallv_collective` returns. For a name, the number of chunks is
        chosen at every size, unless a sketch states it.
    sketches : iterable of sketch, shipped name or path
        A schedule is synthesized with each sketch at every size; None for no sketch.
    sizes : str or iterable of sizes
        A range such as ``"1KB:1GB"``, with a synthesis at sizes that grow by a factor of 4; or the sizes at
        which to synthesize.
    baselines : bool
        True to compare the baselines (well-known algorithms), too.
    backend, threads, seed
        As for `taccl.synthesize`.
    time_limit_s : float
        Seconds for everything. Baselines, syntheses, programs and bounds have shares of it; unused time of
        one synthesis goes to the later ones. A plan that runs out of time has fewer ranges.
    max_ranges : int
        Max number of ranges; the MSCCL runtime loads at most four files. A note of the plan states how much
        time the limit costs.
    protocol : str
        Protocol of messages, one of the topology's; ``"auto"`` compares all, and chooses at every size the
        one with the least sum of launch and finish.
    lowering : mapping, optional
        Options of `taccl.lower`. Without ``in_place``, programs are for the calls that PyTorch makes: in
        place for allreduce, reduce and broadcast, else out of place. MSCCL++ gets programs of allgather and
        reduce-scatter for both kinds of calls.
    runtime : str, optional
        Name of the only runtime to write for (see `taccl.runtimes`), such as ``"rccl"`` or ``"mscclpp"``.
        Only its protocols are compared, and programs keep within its limits. Default: MSCCL (on AMD's
        machines, RCCL) and MSCCL++.
    progress : callable, optional
        Called with a line of text after every size. Its exceptions end the search, and are raised.
    **arguments : CollectiveArguments
        `root`, `roots` or `counts` of a named collective, as `taccl.collectives.make` takes them.

    Returns
    -------
    Plan
        After Ctrl-C, the plan is made of the schedules found so far; ``plan.stopped`` says so.

    Raises
    ------
    InputError
        If a sketch, a size or an option cannot be used.
    InfeasibleError, NoSolutionError
        If there is no schedule at all.
    KeyboardInterrupt
        If Ctrl-C came before there was a schedule.
    """
    log, limit = StageLog(), Deadline.after(time_limit_s)
    fabric, protocol = asked_topology(topology, nodes=nodes, profile=profile, protocol=protocol)
    grid = _grid(sizes)
    chosen = loaded(sketches)
    runtimes = usual_runtimes(fabric) if runtime is None else (runtime_named(runtime),)
    _check_instances((lowering or {}).get("instances", 1), runtimes)
    check_lowering(lowering or {})
    cases = []
    for sketch in chosen:
        name = f"sketch {name_of(sketch)}" if sketch else "no sketch"
        cases.append((name, _problems(fabric, collective, arguments, sketch, grid)))
    collective_of = cases[0][1][0].collective
    if not collective_of.size_chunks:
        said = f"found an {collective_of.name} without data; expected bytes for a pair of ranks"
        raise InputError(said, where="collective")
    check_collective(runtimes[0], collective_of, fabric)
    topologies = under_protocols_of(runtimes[0], fabric, collective_of, protocol, lowering or {})
    tell: Callable[[str], None] = (lambda _: None) if progress is None else partial(called, progress)
    search = PlanSearch(grid, tell, topologies, runtimes[0], log)
    parameters, remarks = DEFAULTS, list[str]()
    if all(problem.chunks_open for _, problems in cases for problem in problems):
        parameters, remarks = serving_parameters(collective_of)
    finishing_s = max(
        min(_FINISHING_SHARE * time_limit_s, _MOST_FINISHING_S),
        min(finishing_time(cases[0][1][0]), _MOST_FINISHING_SHARE * time_limit_s),
    )
    searching = limit.later(-finishing_s)
    log.end("preparation")
    try:
        if baselines:
            until = searching.sooner(_BASELINES_SHARE * time_limit_s)
            is_short = searching.at_s - until.at_s < LEAST_SYNTHESIS_S * len(grid) * len(cases)
            first_until = limit.later(_VARIANTS_S)
            search.add_baselines(cases, searching if is_short else until, first_until)
        search.synthesize(
            cases, searching, backend=backend, threads=threads, seed=seed, parameters=parameters
        )
    except KeyboardInterrupt:
        if not search.candidates:
            raise
        search.stopped = "interrupted"
        log.end("synthesis", status="interrupted", message="stopped by Ctrl-C")
    if not search.candidates:
        raise search.failure or NoSolutionError("no schedule was found; give more time, or another sketch")
    name = collective_of.name
    usual = protocol_besides_simple(runtimes[0], fabric, collective_of)
    lowered = {"in_place": name in USUALLY_IN_PLACE, **usual, **(lowering or {})}
    ranges, notes = search.ranges(max_ranges, lowered, limit)
    return Plan(
        fabric, name, ranges, len(search.candidates), log.seconds, search.stopped,
        (*search.notes, *notes, *remarks), tuple(each.name for each in runtimes), lowered,
        both_places="in_place" not in (lowering or {}) and name in IN_BOTH_PLACES, stages=log.stages,
    )  # fmt: skip


def _check_instances(instances: int | str, runtimes: Sequence[Runtime]) -> None:
    """Raise `InputError` if no runtime has a channel for each of the program's instances."""
    roomiest = max(runtimes, key=lambda each: each.max_channels)
    if isinstance(instances, int) and instances > roomiest.max_channels:
        most = f"at most {roomiest.max_channels}, the channels of {roomiest.title}"
        raise InputError(f"found {instances}; expected {most}", where="instances")


def _grid(sizes: str | Iterable[Size]) -> list[int]:
    """Sizes at which schedules are synthesized, in increasing order."""
    if isinstance(sizes, str) and ":" in sizes:
        ends = [parse_size(end, where="sizes") for end in sizes.split(":")]
        if len(ends) != 2 or ends[0] > ends[1]:
            said = f"found {sizes!r}; expected two sizes such as '1KB:1GB', the smaller size first"
            raise InputError(said, where="sizes")
        grid = ends[:1]
        while grid[-1] * _FACTOR < ends[1]:
            grid.append(grid[-1] * _FACTOR)
        return sorted({*grid, ends[1]})
    words = sizes.split(",") if isinstance(sizes, str) else list(sizes)
    if not words:
        raise InputError("found none; expected sizes such as '1KB:1GB'", where="sizes")
    try:
        return sorted({parse_size(word, where="sizes") for word in words})
    except InputError:
        if not isinstance(sizes, str) or len(words) > 1:
            raise
        said = f"found {sizes!r}; expected a range such as '1KB:1GB', or sizes such as '1KB,1MB'"
        raise InputError(said, where="sizes") from None


def _problems(
    topology: Topology,
    collective: Collective | str,
    arguments: CollectiveArguments,
    sketch: Sketch | None,
    grid: Sequence[int],
) -> list[Problem]:
    """Problem at each size of the grid; its number of chunks is open, unless the sketch fixes it.

    Chunks of a given number may merge where their latency exceeds their transmission time.
    """
    if sketch is None:
        problems = [make_problem(topology, collective, size_bytes=size, **arguments) for size in grid]
        return [each if each.chunks_open else merged(each) or each for each in problems]
    first = apply(sketch, topology, collective, size=grid[0], **arguments)
    sized = [make_problem(topology, first.collective, size_bytes=size) for size in grid]
    return [replace(each, clauses=first.clauses, chunks_open=first.chunks_open) for each in sized]

"""A plan: the best schedule for every size of a range, and where one takes over from the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

from taccl.arguments import Count, Natural, Seconds, Size, checked
from taccl.errors import InputError, NoSolutionError
from taccl.explore.compare import loaded, name_of
from taccl.explore.plan_files import check_lowering
from taccl.explore.plan_ranges import Plan
from taccl.explore.plan_search import PlanSearch
from taccl.problem import Problem, make_problem
from taccl.sketch.apply import apply
from taccl.sketch.sketch import Sketch
from taccl.topology.registry import parse
from taccl.topology.topology import Topology
from taccl.units import parse_size

#: Sizes at which schedules are synthesized grow by this factor.
_FACTOR = 4


@checked
def plan(
    topology: Topology | str,
    collective: str,
    *,
    sketches: Iterable[Sketch | str | PathLike[str] | None] = (None,),
    sizes: str | Iterable[Size] = "1KB:1GB",
    root: Natural | None = None,
    baselines: bool = True,
    backend: str = "auto",
    time_limit_s: Seconds = 300.0,
    threads: Count | None = None,
    seed: Natural = 0,
    max_ranges: Count = 4,
    protocol: str = "auto",
    lowering: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """The best schedule for every size of a range, with the sizes at which one takes over from another.

    Parameters
    ----------
    topology : Topology or str
        A name such as ``"dgx2"`` stands for its topology with one node.
    collective : str
        The name of one. The number of chunks is chosen for every size, unless a sketch says it.
    sketches : iterable of sketch, shipped name or path
        Each is synthesized at every size; None for no sketch.
    sizes : str or iterable of sizes
        ``"1KB:1GB"``: from the one to the other, synthesized at every fourfold. Or where to synthesize.
    root : int, optional
        Of broadcast, scatter, gather and reduce.
    baselines : bool
        Whether the well-known algorithms compete, too.
    backend, threads, seed
        As of `taccl.synthesize`.
    time_limit_s : float
        Of all syntheses; what one leaves over is for those after it.
    max_ranges : int
        At most so many; the MSCCL runtime loads four files. What is lost by the limit is noted.
    protocol : str
        By which messages are sent, of those that the topology has; ``"auto"`` compares all of them, and takes
        at every size the one whose launch and finish come to least.
    lowering : mapping, optional
        Options of `taccl.lower`.
    progress : callable, optional
        Called with a line of text after every size.

    Returns
    -------
    Plan
        Ctrl-C stops the search, and the plan is made of what there is; ``plan.stopped`` says so.

    Raises
    ------
    InputError
        If a sketch, a size or an option cannot be used.
    InfeasibleError, NoSolutionError
        If there is no schedule at all.
    KeyboardInterrupt
        If Ctrl-C came before there was a schedule.
    """
    began = time.monotonic()
    fabric = topology if isinstance(topology, Topology) else parse(topology)
    fabric = fabric if protocol == "auto" else fabric.under(protocol)
    grid = _grid(sizes)
    chosen = loaded(sketches)
    check_lowering(lowering or {})
    cases = []
    for sketch in chosen:
        name = f"sketch {name_of(sketch)}" if sketch else "no sketch"
        cases.append((name, _problems(fabric, collective, root, sketch, grid)))
    topologies = [fabric.under(each) for each in fabric.protocols if protocol == "auto"] or [fabric]
    search = PlanSearch(grid, progress or (lambda _: None), topologies)
    try:
        if baselines:
            search.add_baselines(cases)
        search.synthesize(cases, time_limit_s, backend=backend, threads=threads, seed=seed)
    except KeyboardInterrupt:
        if not search.candidates:
            raise
        search.stopped = "interrupted"
    if not search.candidates:
        raise search.failure or NoSolutionError("no schedule was found; give more time, or another sketch")
    ranges, notes = search.ranges(max_ranges, dict(lowering or {}))
    return Plan(
        fabric, cases[0][1][0].collective.name, ranges, len(search.candidates), time.monotonic() - began,
        search.stopped, (*search.notes, *notes),
    )  # fmt: skip


def _grid(sizes: str | Iterable[Size]) -> list[int]:
    """The sizes to synthesize at, in order."""
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
    return sorted({parse_size(word, where="sizes") for word in words})


def _problems(
    topology: Topology, collective: str, root: int | None, sketch: Sketch | None, grid: Sequence[int]
) -> list[Problem]:
    """The problem at every size; the number of chunks is open at each, unless the sketch says it."""
    if sketch is None:
        return [make_problem(topology, collective, size_bytes=size, root=root) for size in grid]
    first = apply(sketch, topology, collective, size=grid[0], root=root)
    sized = [make_problem(topology, first.collective, size_bytes=size) for size in grid]
    return [replace(each, clauses=first.clauses, chunks_open=first.chunks_open) for each in sized]

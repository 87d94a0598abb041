"""Tables of runs, with several backends and seeds, or also several sketches, sizes and chunkings."""

from __future__ import annotations

import functools
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, Unpack

from taccl._internal.arguments import Count, Natural, Seconds, Size, checked
from taccl._internal.deadline import Deadline
from taccl._internal.units import parse_sizes
from taccl.errors import CollectiveError, InputError
from taccl.explore.cache import Cache
from taccl.explore.parallel_runs import num_at_once, rows_of
from taccl.explore.rows import DETAILS, NO_SKETCH, SHORT, frame, new_row, shortened
from taccl.problem import collectives
from taccl.problem.collective import Collective
from taccl.problem.collectives import CollectiveArguments
from taccl.problem.making import make_problem
from taccl.problem.problem import Problem
from taccl.sketch.apply import apply
from taccl.solvers.registry import OWN_BACKENDS, require_known
from taccl.synthesis.parameters import SearchParameters
from taccl.synthesis.problems import asked_topology, under_asked_protocol
from taccl.topology.topology import Topology

if TYPE_CHECKING:
    import pandas as pd

    from taccl.sketch.sketch import Sketch

#: Max runs of a table; more would take too long, and their rows would fill the memory.
_MOST_RUNS = 100_000

#: Backends that are compared by default: those that require no licence.
BACKENDS = ("auto", "greedy", "highs", "scip", "cbc", "cpsat")


@checked
@dataclass(frozen=True, kw_only=True)
class Runs:
    """Options of the runs of a table, which `compare` documents; the total limit counts from now on."""

    backends: Iterable[str]
    seeds: Iterable[Natural] = (0,)
    time_limit_s: Seconds = 30.0
    total_limit_s: Seconds | None = None
    num_workers: Count | None = None
    threads: Count = 1
    cache: bool | Cache | str | PathLike[str] = True
    progress: bool | Callable[[int, int], None] | None = None
    parameters: Iterable[SearchParameters] | None = None
    began_s: float = field(default_factory=time.time, init=False)

    def option_rows(self) -> list[dict[str, Any]]:
        """A row for each combination of parameters, backend and seed, with all options of its run."""
        names = _some(dict.fromkeys(self.backends), "backends")
        numbers = _some(dict.fromkeys(self.seeds), "seeds")
        changes = [{}] if self.parameters is None else [each.to_dict() for each in self.parameters]
        changed = _some(dict.fromkeys(json.dumps(each) if each else None for each in changes), "parameters")
        for name in names:
            if name not in OWN_BACKENDS:
                require_known(name, others=OWN_BACKENDS, where="backends")
        self.check_number(len(names) * len(numbers) * len(changed))
        return [
            new_row(backend=backend, seed=seed, threads=self.threads, parameters=each)
            for each, backend, seed in itertools.product(changed, names, numbers)
        ]

    def check_number(self, num_runs: int) -> None:
        """Raise `InputError` if there are too many runs for one table."""
        if num_runs > _MOST_RUNS:
            raise InputError(
                f"found {num_runs} runs or more, of up to {self.time_limit_s:g} s each; expected at most "
                f"{_MOST_RUNS} in one table: ask for fewer seeds, backends, sizes or sketches",
                where="seeds",
            )

    def rows_of(self, asked: Sequence[tuple[Callable[[], Problem], dict[str, Any]]]) -> list[dict[str, Any]]:
        """Rows of runs, as of `parallel_runs.rows_of`; successive runs share the total limit."""
        limited = [(made, row | {"time_limit_s": self.run_limit_s(len(asked))}) for made, row in asked]
        given: dict[str, Any] = {
            "num_workers": self.num_workers,
            "cache": self.cache,
            "progress": self.progress,
        }
        return rows_of(limited, until_s=self.until_s, **given)

    @property
    def until_s(self) -> float:
        """End of the total limit, as of `time.time`; infinite without one."""
        return math.inf if self.total_limit_s is None else self.began_s + self.total_limit_s

    def run_limit_s(self, num_runs: int) -> float:
        """Time limit of each run in seconds: runs that follow one another share the total limit."""
        if self.total_limit_s is None:
            return self.time_limit_s
        return self.time_limit_s / -(-num_runs // num_at_once(self.num_workers, num_runs))


@checked
def compare(
    problem: Problem,
    *,
    backends: Iterable[str] = BACKENDS,
    seeds: Iterable[Natural] = (0,),
    time_limit_s: Seconds = 30.0,
    total_limit_s: Seconds | None = None,
    num_workers: Count | None = None,
    threads: Count = 1,
    cache: bool | Cache | str | PathLike[str] = True,
    progress: bool | Callable[[int, int], None] | None = None,
    parameters: Iterable[SearchParameters] | None = None,
    full: bool = False,
    details: bool = False,
) -> pd.DataFrame:
    """Compare backends on a problem, in a table with a row for each backend and seed.

    Runs share this machine's cores, or a Dask cluster within ``joblib.parallel_config(backend="dask")``.
    Cached runs are not repeated. Ctrl-C returns the finished rows; the others have the status
    "not run", and the same call resumes.

    Parameters
    ----------
    problem : Problem
        If it leaves the number of chunks open, every run chooses it as `taccl.synthesize` does, and the
        column ``chunks_per_rank`` states the choice.
    backends : iterable of str
        Names from `taccl.backends`. One that is missing or fails is a row that says why.
    seeds : iterable of int
    time_limit_s : float
        Seconds for each run.
    total_limit_s : float, optional
        Seconds after which all runs must have ended. The limit of each run is then an equal share of
        `time_limit_s`, which the table and the cache list, or of the time that is left when it begins if that
        is less.
    num_workers : int, optional
        Number of runs at a time; default: one per core. A Dask cluster uses all of its cores.
    threads : int
        Threads of each solver.
    cache : bool, Cache or path
        True for the user's cache, False for none, or the cache or its folder.
    progress : bool or callable, optional
        True for a progress bar on stderr (default: on a terminal or in a notebook), or a function that is
        called with the numbers of finished runs and of all runs. If it raises an exception, no further run
        starts, and the exception is raised; finished runs are in the cache.
    parameters : iterable of SearchParameters, optional
        Sets of constants of the search; each backend and seed runs with every set. The column ``parameters``
        says how a set differs from the defaults.
    full : bool
        True to show all columns, such as the seconds of each stage, versions, and the key in the cache.
    details : bool
        True to show what each backend did: statuses of routing and ordering, the solver's bound, sizes,
        nodes, rounds, and seconds to the first and to the best schedule (`taccl.explore.rows.DETAILS`).

    Returns
    -------
    DataFrame
        Its columns are `taccl.explore.rows.SHORT` (or `DETAILS`, with `details`), and those of `LABELS` in
        which rows differ; with `full`, all of `COLUMNS`.

    Raises
    ------
    InputError
        If a backend is unknown, or an option makes no sense.
    KeyboardInterrupt
        If Ctrl-C came before the first run was done.
    """
    runs = Runs(
        backends=backends, seeds=seeds, time_limit_s=time_limit_s, total_limit_s=total_limit_s,
        num_workers=num_workers, threads=threads, cache=cache, progress=progress, parameters=parameters,
    )  # fmt: skip
    return _table(compare_rows(problem, runs), full=full, details=details)


def compare_rows(problem: Problem, runs: Runs) -> list[dict[str, Any]]:
    """Rows of the table of `compare`, without pandas, which takes half a second to load."""
    sketch = {"sketch": problem.clauses.name or NO_SKETCH}
    return runs.rows_of([(lambda: problem, row | sketch) for row in runs.option_rows()])


def _table(rows: list[dict[str, Any]], *, full: bool, details: bool) -> pd.DataFrame:
    """Rows as a table: with all columns if `full`, else with those of `DETAILS` or `SHORT`."""
    table = frame(rows)
    return table if full else shortened(table, DETAILS if details else SHORT)


@checked
def sweep(
    topology: Topology | str,
    collective: Collective | str,
    *,
    sketches: Iterable[Sketch | str | PathLike[str] | None] = (None,),
    sizes: str | Iterable[Size] | None = None,
    chunks_per_rank: Iterable[Count] | None = None,
    nodes: Count | None = None,
    profile: str | None = None,
    protocol: str | None = None,
    backends: Iterable[str] = ("auto",),
    seeds: Iterable[Natural] = (0,),
    time_limit_s: Seconds = 30.0,
    total_limit_s: Seconds | None = None,
    num_workers: Count | None = None,
    threads: Count = 1,
    cache: bool | Cache | str | PathLike[str] = True,
    progress: bool | Callable[[int, int], None] | None = None,
    parameters: Iterable[SearchParameters] | None = None,
    full: bool = False,
    details: bool = False,
    **arguments: Unpack[CollectiveArguments],
) -> pd.DataFrame:
    """Compare results for every combination of sketches, sizes, numbers of chunks, backends and seeds.

    The table has a row for each combination, in the order of the arguments: sketches first, seeds last.
    If a combination does not fit together, such as a sketch for another machine, its row says why.

    Parameters
    ----------
    topology : Topology or str
        A topology, or a machine or a fabric by name, e.g. ``"ring:8"``.
    collective : Collective or str
    sketches : iterable of Sketch, name, path or None
        None stands for no sketch.
    sizes : str or iterable of int or str, optional
        Sizes of the larger of one rank's input and output buffer, e.g. ``"1MB"``, or a range such as
        ``"1KB:1MB"`` by a factor of 10; default: as each sketch states.
    chunks_per_rank : iterable of int, optional
        Default: that of the collective, or of each sketch. If neither states it, every run chooses it as
        `taccl.synthesize` does.
    nodes, profile, protocol : optional
        As for `taccl.make_problem`. The protocol of a machine by name is chosen for each size, unless given.
    backends, seeds, time_limit_s, total_limit_s, num_workers, threads, cache, progress, parameters, full,
    details
        As for `compare`.
    **arguments : CollectiveArguments
        `root`, `roots` or `counts` of a named collective, as `taccl.collectives.make` takes them.

    Returns
    -------
    DataFrame
        With the columns of `compare`.

    Raises
    ------
    InputError
        If a name, a file or an option cannot be used at all.
    KeyboardInterrupt
        If Ctrl-C came before the first run was done.
    """
    runs = Runs(
        backends=backends, seeds=seeds, time_limit_s=time_limit_s, total_limit_s=total_limit_s,
        num_workers=num_workers, threads=threads, cache=cache, progress=progress, parameters=parameters,
    )  # fmt: skip
    cuts: dict[str, Any] = {"sketches": sketches, "sizes": sizes, "chunks_per_rank": chunks_per_rank}
    cuts |= {"nodes": nodes, "profile": profile, "protocol": protocol}
    return _table(sweep_rows(topology, collective, runs, **cuts, **arguments), full=full, details=details)


@checked
def sweep_rows(
    topology: Topology | str,
    collective: Collective | str,
    runs: Runs,
    *,
    sketches: Iterable[Sketch | str | PathLike[str] | None] = (None,),
    sizes: str | Iterable[Size] | None = None,
    chunks_per_rank: Iterable[Count] | None = None,
    nodes: Count | None = None,
    profile: str | None = None,
    protocol: str | None = None,
    **arguments: Unpack[CollectiveArguments],
) -> list[dict[str, Any]]:
    """Rows of the table of `sweep`, without pandas."""
    topology, protocol = asked_topology(topology, nodes=nodes, profile=profile, protocol=protocol)
    for where, given in (*arguments.items(), ("chunks_per_rank", chunks_per_rank)):
        is_open = where == "chunks_per_rank" and getattr(collective, "chunks_open", False)
        if isinstance(collective, Collective) and given is not None and not is_open:
            said = "found one with a collective object; name the collective instead"
            raise InputError(said, where=where)
    if isinstance(collective, str):
        collective = collectives.make(collective, topology.num_ranks, **arguments).name
    options = runs.option_rows()
    cuts = [None] if chunks_per_rank is None else _some(dict.fromkeys(chunks_per_rank), "chunks_per_rank")
    if isinstance(sizes, str):
        sizes = parse_sizes(sizes)
    every_size = [None] if sizes is None else _some(dict.fromkeys(sizes), "sizes", ", such as '1MB'")
    every_sketch = loaded(sketches)
    num_runs = len(every_sketch) * len(every_size) * len(cuts) * len(options)
    runs.check_number(num_runs)

    def problem(sketch: Sketch | None, size: int | None, cut: int | None) -> Problem:
        """Problem of one combination of sketch, size and number of chunks."""
        named: dict[str, Any] = {"chunks_per_rank": cut, **arguments}
        left_s = max(0.0, runs.until_s - time.time())
        until = Deadline.after(min(left_s, runs.run_limit_s(num_runs)))
        if sketch is not None:
            applied = apply(sketch, topology, collective, size=size, **named, reachable=False)
            return under_asked_protocol(applied, protocol, until)
        if size is None:
            said = "found no size; give sizes (--sizes), as no sketch states one"
            raise CollectiveError(said, where="sizes")
        made = make_problem(topology, collective, size_bytes=size, **named)
        return under_asked_protocol(made, protocol, until)

    asked: list[tuple[Callable[[], Problem], dict[str, Any]]] = []
    for each, size, cut in itertools.product(every_sketch, every_size, cuts):
        made = functools.cache(functools.partial(problem, each, size, cut))
        known = {
            "topology": topology.name, "num_ranks": topology.num_ranks, "size_bytes": size,
            "collective": collective if isinstance(collective, str) else collective.name,
            "sketch": name_of(each) or NO_SKETCH, "chunks_per_rank": cut,
        }  # fmt: skip
        asked += [(made, row | known) for row in options]
    return runs.rows_of(asked)


def loaded(sketches: Iterable[Sketch | str | PathLike[str] | None]) -> list[Sketch | None]:
    """Load the sketches that are given by name or path; keep `Sketch` objects and None as they are."""
    return _some(map(_loaded, sketches), "sketches", ", or None for no sketch")


def _loaded(sketch: Sketch | str | PathLike[str] | None) -> Sketch | None:
    if not isinstance(sketch, (str, PathLike)):
        return sketch
    from taccl.sketch.library import load_sketch  # imports pydantic, which takes 0.12 s of CPU

    return load_sketch(sketch)


def _some(found: Iterable[Any], where: str, such_as: str = "") -> list[Any]:
    """List of the items in `found`; `InputError` if there are none."""
    several = list(found)
    if not several:
        raise InputError(f"found none; expected at least one{such_as}", where=where)
    return several


def name_of(sketch: Sketch | None) -> str:
    """Name of a sketch, or its source; empty for None."""
    return "" if sketch is None else sketch.name or sketch.source or "unnamed"

"""Backends and seeds side by side on one problem: `compare`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from taccl.arguments import checked
from taccl.errors import InputError
from taccl.explore.many import table_of
from taccl.explore.rows import NO_SKETCH, new_row
from taccl.explore.run import Case
from taccl.solvers.registry import require_known

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    import pandas as pd

    from taccl.arguments import Count, Natural, Seconds
    from taccl.explore.cache import Cache
    from taccl.problem import Problem
    from taccl.synthesis.parameters import SearchParameters

__all__ = ["BACKENDS", "check_num_runs", "compare", "option_rows"]

#: More runs than this are refused: nobody waits for so many, and their rows fill the memory.
_MOST_RUNS = 100_000

#: What is compared unless backends are named: those that need no licence.
BACKENDS = ("auto", "greedy", "highs", "scip", "cbc", "cpsat")


@checked
def compare(
    problem: Problem,
    *,
    backends: Iterable[str] = BACKENDS,
    seeds: Iterable[Natural] = (0,),
    time_limit_s: Seconds = 30.0,
    num_workers: Count | None = None,
    threads: Count = 1,
    cache: bool | Cache | str | os.PathLike[str] = True,
    progress: bool | Callable[[int, int], None] | None = None,
    parameters: Iterable[SearchParameters] | None = None,
) -> pd.DataFrame:
    """A table of what backends find for a problem, one row for each backend and seed.

    Runs share this machine's cores, or a Dask cluster within ``joblib.parallel_config(backend="dask")``.
    Those that the cache knows are not run again. Ctrl-C returns what is done; the other rows have the status
    "not run", and the same call resumes.

    Parameters
    ----------
    problem : Problem
    backends : iterable of str
        Of `taccl.backends`. One that is missing or fails is a row that says why.
    seeds : iterable of int
    time_limit_s : float
        Of each run.
    num_workers : int, optional
        How many run at a time; default: one for each core. A Dask cluster uses all that it has.
    threads : int
        Of each solver.
    cache : bool, Cache or path
        True for the user's cache, False for none, or the cache or its folder.
    progress : bool or callable, optional
        Whether a bar on stderr counts runs (default: on a terminal or in a notebook), or what to call with
        the number of runs done and of all.
    parameters : iterable of SearchParameters, optional
        Constants of the search, one row for each; the column ``parameters`` says how they differ from the
        defaults.

    Returns
    -------
    DataFrame
        Its columns are those of `taccl.explore.rows.COLUMNS`.

    Raises
    ------
    InputError
        If a backend is unknown, or an option makes no sense.
    KeyboardInterrupt
        If Ctrl-C came before the first run was done.
    """
    case = Case(lambda: problem)
    rows = option_rows(backends, seeds, time_limit_s, threads, parameters)
    sketch = problem.clauses.name or NO_SKETCH
    asked = [(case, row | {"sketch": sketch}) for row in rows]
    return table_of(asked, num_workers=num_workers, cache=cache, progress=progress)


@checked
def option_rows(
    backends: Iterable[str],
    seeds: Iterable[Natural],
    time_limit_s: Seconds,
    threads: Count,
    parameters: Iterable[SearchParameters] | None = None,
) -> list[dict[str, Any]]:
    """A row for each set of parameters, backend and seed, with the options of its run.

    Raises
    ------
    InputError
        If a backend is unknown, or an option makes no sense.
    """
    names, numbers = dict.fromkeys(backends), dict.fromkeys(seeds)
    several_parameters: dict[str | None, None] = dict.fromkeys([None])
    if parameters is not None:
        changes = (each.to_dict() for each in parameters)
        several_parameters = dict.fromkeys(json.dumps(each) if each else None for each in changes)
    chosen = (("backends", names), ("seeds", numbers), ("parameters", several_parameters))
    for where, several in chosen:
        if not several:
            raise InputError("found none; expected at least one", where=where)
    for name in names:
        if name not in ("auto", "greedy"):
            require_known(name, others=("auto", "greedy"), where="backends")
    check_num_runs(len(names) * len(numbers) * len(several_parameters), time_limit_s)
    return [
        new_row(backend=backend, seed=seed, time_limit_s=time_limit_s, threads=threads, parameters=changed)
        for changed in several_parameters
        for backend in names
        for seed in numbers
    ]


def check_num_runs(num_runs: int, time_limit_s: float) -> None:
    """Raise `InputError` for more runs than one table can mean."""
    if num_runs > _MOST_RUNS:
        raise InputError(
            f"found {num_runs} runs or more, of up to {time_limit_s:g} s each; expected at most {_MOST_RUNS} "
            "in one table: ask for fewer seeds, backends, sizes or sketches",
            where="seeds",
        )

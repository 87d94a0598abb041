"""Sketches, sizes, cuts and backends side by side on one topology: `sweep`."""

from __future__ import annotations

import itertools
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from taccl import collectives
from taccl.arguments import checked
from taccl.collective import Collective
from taccl.errors import CollectiveError, InputError
from taccl.explore.compare import check_num_runs, option_rows
from taccl.explore.many import table_of
from taccl.explore.rows import NO_SKETCH
from taccl.explore.run import Case
from taccl.problem import make_problem
from taccl.sketch.apply import apply
from taccl.sketch.library import load_sketch
from taccl.topology.registry import parse
from taccl.topology.topology import Topology
from taccl.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pandas as pd

    from taccl.arguments import Count, Natural, Seconds, Size
    from taccl.explore.cache import Cache
    from taccl.problem import Problem
    from taccl.sketch.sketch import Sketch
    from taccl.synthesis.parameters import SearchParameters

__all__ = ["sweep"]


@checked
def sweep(
    topology: Topology | str,
    collective: Collective | str,
    *,
    sketches: Iterable[Sketch | str | PathLike[str] | None] = (None,),
    sizes: Iterable[Size] | None = None,
    chunks_per_rank: Iterable[Count] | None = None,
    root: Natural | None = None,
    backends: Iterable[str] = ("auto",),
    seeds: Iterable[Natural] = (0,),
    time_limit_s: Seconds = 30.0,
    num_workers: Count | None = None,
    threads: Count = 1,
    cache: bool | Cache | str | PathLike[str] = True,
    progress: bool | Callable[[int, int], None] | None = None,
    parameters: Iterable[SearchParameters] | None = None,
) -> pd.DataFrame:
    """A table of what is found for every combination, one row for each.

    The order is that of the arguments: sketches first, seeds last. A combination that makes no problem, such
    as a sketch of another machine, is a row that says why. All else is as for `compare`.

    Parameters
    ----------
    topology : Topology or str
        Or a machine or a fabric by name, e.g. ``"ring:8"``.
    collective : Collective or str
    sketches : iterable of Sketch, name, path or None
        None stands for no sketch.
    sizes : iterable of int or str, optional
        Of the larger of one rank's input and output buffer, e.g. ``"1MB"``; default: what each sketch says.
    chunks_per_rank : iterable of int, optional
        Default: that of the collective, or of each sketch where the collective is named.
    root : int, optional
        Of a named broadcast, scatter, gather or reduce.
    backends, seeds, time_limit_s, num_workers, threads, cache, progress, parameters
        As for `compare`.

    Returns
    -------
    DataFrame
        Its columns are those of `taccl.explore.rows.COLUMNS`.

    Raises
    ------
    InputError
        If a name, a file or an option cannot be used at all.
    KeyboardInterrupt
        If Ctrl-C came before the first run was done.
    """
    topology = topology if isinstance(topology, Topology) else parse(topology)
    if isinstance(collective, Collective) and root is not None:
        raise InputError("found one beside a collective that is made already; name it instead", where="root")
    if isinstance(collective, str):
        collective = collectives.make(collective, topology.num_ranks, root=root).name
    elif not isinstance(collective, Collective):
        raise InputError(f"found {collective!r}; expected a collective or its name", where="collective")
    options = option_rows(backends, seeds, time_limit_s, threads, parameters)
    asked: list[tuple[Case, dict[str, Any]]] = []
    for each, size, cut in itertools.product(
        _loaded(sketches), _sizes(sizes), _cuts(chunks_per_rank, collective)
    ):
        case = Case(partial(_problem, topology, collective, each, size, cut, root))
        known = {
            "topology": topology.name,
            "collective": collective if isinstance(collective, str) else collective.name,
            "num_ranks": topology.num_ranks,
            "sketch": _name(each),
            "size_bytes": size,
            "chunks_per_rank": cut or _own_cut(each),
        }
        check_num_runs(len(asked) + len(options), time_limit_s)
        asked += [(case, row | known) for row in options]
    return table_of(asked, num_workers=num_workers, cache=cache, progress=progress)


def _problem(
    topology: Topology,
    collective: Collective | str,
    sketch: Sketch | None,
    size: int | None,
    cut: int | None,
    root: int | None,
) -> Problem:
    """The problem of one combination.

    Raises
    ------
    InputError
        If there is none.
    """
    if isinstance(collective, str):
        collective = collectives.make(
            collective, topology.num_ranks, root=root, chunks_per_rank=cut or _own_cut(sketch)
        )
    if sketch is not None:
        return apply(sketch, topology, collective, size=size, reachable=False)
    if size is None:
        raise CollectiveError("found no size; expected one where there is no sketch that says", where="sizes")
    return make_problem(topology, collective, size_bytes=size)


def _own_cut(sketch: Sketch | None) -> int:
    return 1 if sketch is None else sketch.chunks.per_rank


def _loaded(
    sketches: Iterable[Sketch | str | PathLike[str] | None],
) -> list[Sketch | None]:
    """The sketches by name, path or themselves; a single one will do."""
    found = [load_sketch(each) if isinstance(each, (str, PathLike)) else each for each in sketches]
    if not found:
        raise InputError("found none; expected at least one, or None for no sketch", where="sketches")
    return found


def _sizes(sizes: Iterable[Size] | None) -> Sequence[int | None]:
    if sizes is None:
        return (None,)
    several = list(dict.fromkeys(parse_size(size, where="sizes") for size in sizes))
    if not several:
        raise InputError("found none; expected at least one, such as '1MB'", where="sizes")
    return several


def _cuts(chunks_per_rank: Iterable[int] | None, collective: Collective | str) -> Sequence[int | None]:
    if chunks_per_rank is None:
        return (None if isinstance(collective, str) else collective.chunks_per_rank,)
    several = list(chunks_per_rank)
    if not several:
        raise InputError("found none; expected at least one", where="chunks_per_rank")
    if isinstance(collective, Collective) and several != [collective.chunks_per_rank]:
        raise InputError(
            f"found {several}, but the collective was made with {collective.chunks_per_rank}; name the "
            "collective instead, such as 'allgather'",
            where="chunks_per_rank",
        )
    return list(dict.fromkeys(several))


def _name(sketch: Sketch | None) -> str:
    return NO_SKETCH if sketch is None else sketch.name or sketch.source or "unnamed"

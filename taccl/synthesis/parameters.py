"""`SearchParameters`: constants of the search that a person could wish to change, with unit and meaning.

A group for each part of the search, which names the benchmarks that it moves; constants that nobody needs to
change are in the modules that use them. Shares are parts of a time, 0 to 1; names that end in ``_s`` are
seconds, in ``_us`` microseconds, in ``_bytes`` bytes. Hops are chunks times links.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from taccl._internal.arguments import checked
from taccl._internal.names import did_you_mean
from taccl._internal.reading import parse_toml, read_text, reads
from taccl.errors import InputError


class _Group:
    """A group of constants, each of the kind of its default."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            value = _read(each.default, getattr(self, each.name), each.name)
            object.__setattr__(self, each.name, value)


@dataclass(frozen=True, slots=True)
class ChoiceParameters(_Group):
    """Choice of the search (``benchmarks.quality``, ``benchmarks.scale``)."""

    # Most hops, once reduced, for models: larger problems go to the compiled search. Problems with few hops
    # go to models however short the time is.
    most_hops: int = 200_000
    few_hops: int = 100_000
    # Shorter time limits compile only kernels that a first schedule needs. The compiled search then gets no
    # suggested sketch. The second number is the least time for kernels that are compiled already.
    compiling_s: float = 5.0
    compiled_s: float = 0.5
    cold_s: float = 12.0  # least time to compile kernels that are not cached, from the start of that


@dataclass(frozen=True, slots=True)
class BudgetParameters(_Group):
    """Shares of the time limit for what every search has (``benchmarks.limits``, ``benchmarks.bounds``)."""

    reserve_s: float = 0.2  # kept back, at least, to verify what is found and for its bound
    late_s: float = 10.0  # work on a first schedule beyond the time limit, at most
    # After which the bound is no longer improved, by what takes long and by anything.
    bound_share: float = 0.2
    most_bound_share: float = 0.5
    least_bound_s: float = 0.1  # of the bound, in any case
    last_bound_s: float = 0.6  # least time limit of a bound that begins at the end
    # For the bound over all chunkings: seconds of work that it gets in any case, and at most.
    least_every_s: float = 0.5
    most_every_s: float = 1.0
    improve_share: float = 0.5  # kept for ruin and recreate, where there is a sketch


@dataclass(frozen=True, slots=True)
class ListParameters(_Group):
    """The list scheduler and its restarts (``benchmarks.quality``)."""

    # In the portfolio: share of the time, and most seconds.
    share: float = 0.1
    most_s: float = 1.0
    # Alone, before the compiled scheduler: share of the time, and least seconds.
    alone_share: float = 0.2
    least_alone_s: float = 2.0


@dataclass(frozen=True, slots=True)
class PortfolioParameters(_Group):
    """Baselines, models and improvement in the portfolio (``benchmarks.quality``, ``benchmarks.sums``)."""

    # Most hops for which routing, ordering and contiguity are one job shop from the start, and shares of the
    # time for it, for routing, and for the job shop after that.
    joint_hops: int = 600
    joint_share: float = 0.3
    routing_share: float = 0.25
    job_shop_share: float = 0.15
    # Share of the time without progress after which improvement ends; larger within one phase of a reduction,
    # which has a share of the time only; and least seconds.
    improve_share: float = 0.4
    half_improve_share: float = 0.5
    least_improve_s: float = 3.0
    # Most arrivals of chunks for which baselines compete after the search, and their share of the time where
    # more comes after them.
    baseline_arrivals: int = 20_000
    baseline_share: float = 0.5
    baseline_least_s: float = 0.1  # baselines that take less are tried once the time is over, too
    # Shares of the time for baselines before the search, and for the best of them as a rule; and the most
    # transfers of each.
    first_share: float = 0.2
    best_share: float = 0.5
    first_transfers: int = 100_000
    # Most transfers of chunks balanced over dimensions, which alone compete at more arrivals.
    balanced_transfers: int = 2_000_000
    registered_share: float = 0.3  # of the time left, for each proposer that a user registered
    exchanged: int = 4  # schedules whose sums are exchanged at their roots, the earliest first
    # Most hops for which unreduced contributions are searched too, in a share of the time.
    apart_hops: int = 10_000
    apart_share: float = 0.3


@dataclass(frozen=True, slots=True)
class SuggestingParameters(_Group):
    """Sketches and numbers of chunks that are tried where none is given (``benchmarks.suggest``)."""

    # Problems with fewer hops need no guidance; with more than the second number no candidate is quick to
    # try.
    few_hops: int = 600
    most_hops: int = 3_000_000
    most_suggest_s: float = 20.0  # for suggestions
    give_up_share: float = 0.5  # of the time, after which no first suggestion is waited for
    sketches: int = 3  # that are tried, as long as their bounds are below the best schedule
    # Numbers of chunks per rank that are tried under a sketch; the first is the one that plans are compared
    # with.
    partitions: tuple[int, ...] = (1, 2, 4, 8)
    first_partition: int = 2
    # Those that are tried where their number is open; the part of the time for that; and 1 to have baselines
    # cut data into these numbers alone, too.
    counts: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 16)
    chunks_share: float = 0.3
    counts_only: int = 0
    ranking_runs: int = 15  # of the list scheduler for each candidate, of each half of a reduction


@dataclass(frozen=True, slots=True)
class LargeParameters(_Group):
    """The compiled search of problems that no model reaches (``benchmarks.scale``)."""

    grace_s: float = 0.5  # what a run gets beyond the time limit where there is no schedule yet
    told_after_s: float = 2.0  # progress is told of what takes longer
    merging_share: float = 0.03  # sends merge if latency is at least this share of the time one holds a link


@dataclass(frozen=True, slots=True)
class RuinParameters(_Group):
    """Ruin and recreate over routes and order (``benchmarks.quality``)."""

    most_routes: int = 40_000  # problems with more (trees times ranks) are left as they are
    # Turns of the first run, at most; every further run has twice the last's. So many runs in a row that
    # found nothing better are the last.
    run_turns: int = 10_000
    idle_runs: int = 2
    s_per_transfer: float = 4e-5  # to read and write a schedule; with less time nothing is tried


@dataclass(frozen=True, slots=True)
class SolverParameters(_Group):
    """Shares of the time where one solver works alone (``benchmarks.quality --plain``)."""

    routing_share: float = 0.6
    contiguity_share: float = 0.4
    least_round_s: float = 0.5  # least time left for another routing


@dataclass(frozen=True, slots=True)
class SymmetricParameters(_Group):
    """Implicit schedules of fabrics that look alike from every rank (``benchmarks.scale``)."""

    most_bytes: int = 4 * 2**30  # of the memory for one tree over all offsets
    most_hops: int = 3 * 10**7  # of all of one rank's chunks in an alltoall


@checked
@dataclass(frozen=True, slots=True)
class SearchParameters:
    """Every constant of the search, in groups; immutable, and part of what a result is cached under.

    Parameters
    ----------
    choice, budget, list, portfolio, suggesting, large, ruin, solver, symmetric
        One group for each part of the search, with a field for every constant.

    Examples
    --------
    >>> SearchParameters().portfolio.joint_hops
    600
    >>> SearchParameters.from_dict({"portfolio": {"joint_hops": 100}}).portfolio.joint_hops
    100
    """

    choice: ChoiceParameters = field(default_factory=ChoiceParameters)
    budget: BudgetParameters = field(default_factory=BudgetParameters)
    list: ListParameters = field(default_factory=ListParameters)
    portfolio: PortfolioParameters = field(default_factory=PortfolioParameters)
    suggesting: SuggestingParameters = field(default_factory=SuggestingParameters)
    large: LargeParameters = field(default_factory=LargeParameters)
    ruin: RuinParameters = field(default_factory=RuinParameters)
    solver: SolverParameters = field(default_factory=SolverParameters)
    symmetric: SymmetricParameters = field(default_factory=SymmetricParameters)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SearchParameters:
        """The parameters of a TOML file, with a table for every group; what it does not name stays as it is.

        Raises
        ------
        InputError
            If the file cannot be read, is no TOML, names what is unknown, or gives a value of the wrong kind.
        """
        return _load(path)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, where: str = "parameters") -> SearchParameters:
        """The parameters with those of `data` in place of the defaults: a mapping for every group.

        Raises
        ------
        InputError
            If it names what is unknown, or gives a value of the wrong kind.
        """
        made: SearchParameters = _read(cls(), data, where)
        return made

    def to_dict(self) -> dict[str, Any]:
        """Parameters that differ from the defaults, as `from_dict` reads them."""
        return _differing(self, DEFAULTS)


def _read(default: Any, data: Any, where: str) -> Any:
    """A value in place of a default, of the default's kind; groups field by field."""
    if is_dataclass(default):
        names = [each.name for each in fields(default)]
        listed = ", ".join(names)
        if not hasattr(data, "items"):
            raise InputError(f"found {data!r}; expected a table of {listed}", where=where)
        for name in data:
            if name not in names:
                meant = did_you_mean(str(name), names)
                raise InputError(f"found {name!r}; expected one of {listed}{meant}", where=where)
        given = {
            name: _read(getattr(default, name), value, f"{where}: {name}") for name, value in data.items()
        }
        changed: Any = replace(default, **given)  # type: ignore[type-var]
        return changed
    if isinstance(default, tuple):
        if not isinstance(data, list | tuple) or not data:
            raise InputError(f"found {data!r}; expected a list of at least one number", where=where)
        return tuple(_read(default[0], each, where) for each in data)
    kind = type(default)
    fits = isinstance(data, int | float) and not isinstance(data, bool) and math.isfinite(data) and data >= 0
    if not fits or (kind is int and data != int(data)):
        number = "whole number" if kind is int else "finite number"
        raise InputError(f"found {data!r}; expected a {number} of at least 0", where=where)
    if where.endswith("share") and data > 1:
        raise InputError(f"found {data!r}; expected a share, 0 to 1", where=where)
    return kind(data)


def _differing(values: Any, defaults: Any) -> dict[str, Any]:
    pairs = {each.name: (getattr(values, each.name), getattr(defaults, each.name)) for each in fields(values)}
    return {
        name: _differing(value, default) if is_dataclass(value) else value
        for name, (value, default) in pairs.items()
        if value != default
    }


#: The default parameters.
DEFAULTS = SearchParameters()


@reads("set of search parameters")
def _load(path: str | os.PathLike[str]) -> SearchParameters:
    where = str(path)
    return SearchParameters.from_dict(parse_toml(read_text(path), source=where), where=where)

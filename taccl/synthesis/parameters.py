"""`SearchParameters`: the constants of the search that users may want to change, with units and meaning.

There is one group for each part of the search; its docstring names the benchmarks that it affects. Other
constants are in the modules that use them. Shares are fractions of the available time, 0 to 1. Names that end
in ``_s`` are seconds, in ``_bytes`` bytes. A hop is a pair of a chunk and a link.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from taccl._internal.arguments import checked, quoted
from taccl._internal.names import did_you_mean
from taccl._internal.reading import parse_toml, read_text, reads
from taccl.errors import InputError


class _Group:
    """Base of the groups: checks that each value has the type and range of its default."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            value = _read(each.default, getattr(self, each.name), each.name)
            object.__setattr__(self, each.name, value)


@dataclass(frozen=True, slots=True)
class ChoiceParameters(_Group):
    """Limits of solver models and of the compiled search (``benchmarks.quality``, ``benchmarks.scale``)."""

    # Max hops, after symmetry reduction, for MILP and job shop; larger problems go to the compiled search.
    most_hops: int = 200_000
    few_hops: int = 100_000  # problems of at most this many hops go to the models whatever the time limit
    # Min seconds left to compile kernels of improvement, or to suggest sketches to the compiled search.
    compiling_s: float = 5.0
    compiled_s: float = 0.5  # min seconds left to run kernels that only improve, if they are cached on disk
    cold_s: float = 12.0  # min seconds left to compile the kernels of a first schedule if not cached


@dataclass(frozen=True, slots=True)
class BudgetParameters(_Group):
    """Shares of the time limit that every search uses (``benchmarks.limits``, ``benchmarks.bounds``)."""

    reserve_s: float = 0.2  # min seconds reserved to verify the result and for its bound
    late_s: float = 10.0  # max seconds past the time limit for a first schedule
    bound_share: float = 0.2  # share of the time after which no slow bound is started
    most_bound_share: float = 0.5  # share of the time after which the bound is stopped
    least_bound_s: float = 0.1  # min seconds for the bound, even with less time left
    last_bound_s: float = 0.6  # min seconds until a bound that begins near the deadline is stopped
    least_every_s: float = 0.5  # min seconds of work on the bound over all chunkings
    most_every_s: float = 2.0  # max seconds of work on the bound over all chunkings
    last_every_s: float = 3600.0  # max seconds in which it is computed again at the end of a search
    improve_share: float = 0.5  # share reserved for ruin and recreate if the search uses a sketch


@dataclass(frozen=True, slots=True)
class ListParameters(_Group):
    """Time limits and shares of the list scheduler in a search (``benchmarks.quality``)."""

    share: float = 0.1  # the list scheduler's share of the time in the portfolio
    most_s: float = 1.0  # max seconds of the list scheduler in the portfolio
    # As the backend, the list scheduler has this share of the time before the compiled list scheduler runs.
    alone_share: float = 0.2
    least_alone_s: float = 2.0  # min seconds, even if `alone_share` gives less


@dataclass(frozen=True, slots=True)
class PortfolioParameters(_Group):
    """Baselines, models and improvement in the portfolio (``benchmarks.quality``, ``benchmarks.sums``)."""

    # Max hops for which routing, ordering and contiguity are solved as one joint job shop from the start.
    joint_hops: int = 600
    joint_share: float = 0.3  # share of a round (turn) of the portfolio for the joint job shop
    # Improvement of a whole problem by job shop ends after this share of a turn's time without progress.
    improve_share: float = 0.4
    half_improve_share: float = 0.5  # `improve_share` for one phase of a reduction
    least_improve_s: float = 3.0  # min seconds without progress before improvement by job shop ends
    # Max arrivals (chunks times destinations) for which baselines compare numbers of chunks.
    # With more arrivals, the search also proposes the schedule balanced over dimensions.
    baseline_arrivals: int = 20_000
    first_share: float = 0.2  # share of the time for baselines that run before the search
    best_share: float = 0.5  # share of the time that the usually best baseline may take before the search
    first_transfers: int = 100_000  # max transfers per phase of a baseline before the search
    # Max transfers of the schedule balanced over dimensions.
    balanced_transfers: int = 2_000_000
    registered_share: float = 0.3  # share of the time left for each proposer that a user registered


@dataclass(frozen=True, slots=True)
class SuggestingParameters(_Group):
    """Sketches and numbers of chunks tried if the problem leaves them open (``benchmarks.suggest``)."""

    few_hops: int = 600  # problems of fewer hops need no suggested sketch
    most_hops: int = 3_000_000  # for problems of more hops, trying one candidate takes too long
    most_suggest_s: float = 20.0  # max seconds to suggest sketches
    give_up_share: float = 0.5  # share of the time after which a search stops waiting for a first suggestion
    sketches: int = 3  # max suggested sketches searched, while their bounds are below the best finish
    # Numbers of chunks per rank tried under a sketch; candidates are compared in `first_partition` chunks.
    partitions: tuple[int, ...] = (1, 2, 4, 8)
    first_partition: int = 2
    # Numbers of chunks per rank that are tried for problems that leave this number open.
    # Numbers beyond and between them follow where they pay, except for sums at several ranks.
    counts: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 16)
    chunks_share: float = 0.3  # share of the time to try several numbers of chunks
    counts_only: int = 0  # 1: baselines, too, use only numbers of chunks in `counts`; 0: they use any number
    ranking_runs: int = 15  # runs of the list scheduler to rank a candidate, for each phase of a reduction


@dataclass(frozen=True, slots=True)
class LargeParameters(_Group):
    """The compiled search of problems too large for models (``benchmarks.scale``)."""

    grace_s: float = 1.5  # seconds past the time limit for a run while there is no schedule
    told_after_s: float = 2.0  # seconds after which progress of a run is reported
    merging_share: float = 0.03  # sends may merge if latency is at least this share of a send's link time


@dataclass(frozen=True, slots=True)
class RuinParameters(_Group):
    """Ruin and recreate over routes and order of sends (``benchmarks.quality``)."""

    most_routes: int = 40_000  # max routes (trees times ranks); larger problems are skipped
    # Max turns of the first run; each further run has twice as many, until `idle_runs` runs gain nothing.
    run_turns: int = 10_000
    idle_runs: int = 2
    s_per_transfer: float = 4e-5  # min seconds left per transfer, to read and write the schedule


@dataclass(frozen=True, slots=True)
class SolverParameters(_Group):
    """Shares of the time if one solver works alone (``benchmarks.quality --plain``)."""

    routing_share: float = 0.6
    contiguity_share: float = 0.4
    least_round_s: float = 0.5  # min seconds left to start another routing


@dataclass(frozen=True, slots=True)
class SymmetricParameters(_Group):
    """Implicit schedules of fabrics that look the same from every rank (``benchmarks.scale``)."""

    most_bytes: int = 4 * 2**30  # max memory for one broadcast tree over all rank offsets
    most_hops: int = 3 * 10**7  # max hops of all chunks of one rank in an alltoall


@checked
@dataclass(frozen=True, slots=True)
class SearchParameters:
    """All constants of the search, in groups. Immutable, and part of the cache key of results.

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
    @checked
    def load(cls, path: str | os.PathLike[str]) -> SearchParameters:
        """Read parameters from a TOML file, a table for each group; omitted values keep their defaults.

        Raises
        ------
        InputError
            If the file cannot be read, is not TOML, names an unknown constant, or has an invalid value.
        """
        return _load(path)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, where: str = "parameters") -> SearchParameters:
        """The default parameters with those of `data` replaced: ``{group: {constant: value}}``.

        Raises
        ------
        InputError
            If `data` names an unknown group or constant, or gives a value of the wrong type.
        """
        made: SearchParameters = _read(cls(), data, where)
        return made

    def to_dict(self) -> dict[str, Any]:
        """Parameters that differ from the defaults, as `from_dict` reads them."""
        return _differing(self, DEFAULTS)

    def __repr__(self) -> str:
        changed = self.to_dict()
        return f"SearchParameters.from_dict({changed})" if changed else "SearchParameters()"


def _read(default: Any, data: Any, where: str) -> Any:
    """Value of `data`, checked and converted to the type of `default`; groups are read field by field."""
    if is_dataclass(default):
        names = [each.name for each in fields(default)]
        listed = ", ".join(names)
        if not hasattr(data, "items"):
            raise InputError(f"found {quoted(data)}; expected a table of {listed}", where=where)
        for name in data:
            if name not in names:
                meant = did_you_mean(str(name), names)
                raise InputError(f"found {quoted(name)}; expected one of {listed}{meant}", where=where)
        given = {
            name: _read(getattr(default, name), value, f"{where}: {name}") for name, value in data.items()
        }
        changed: Any = replace(default, **given)  # type: ignore[type-var]
        return changed
    if isinstance(default, tuple):
        if not isinstance(data, list | tuple) or not data:
            raise InputError(f"found {quoted(data)}; expected a list of at least one number", where=where)
        return tuple(_read(default[0], each, where) for each in data)
    kind = type(default)
    fits = isinstance(data, int | float) and not isinstance(data, bool) and math.isfinite(data) and data >= 0
    if not fits or (kind is int and data != int(data)):
        number = "whole number" if kind is int else "finite number"
        raise InputError(f"found {quoted(data)}; expected a {number} of at least 0", where=where)
    if where.endswith("share") and data > 1:
        raise InputError(f"found {quoted(data)}; expected a share, 0 to 1", where=where)
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

"""`SearchParameters`: constants of the search that a person could wish to change, with unit and meaning.

A group for each part of the search. Shares are parts of a time, 0 to 1; names that end in ``_s`` are seconds,
in ``_us`` microseconds, in ``_ns`` nanoseconds, in ``_bytes`` bytes. Hops are chunks times links.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from taccl.arguments import checked
from taccl.errors import InputError
from taccl.names import did_you_mean
from taccl.reading import parse_toml, read_text, reads


class _Group:
    """A group of constants, each of the kind of its default."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            value = _read(each.default, getattr(self, each.name), each.name)
            object.__setattr__(self, each.name, value)


@dataclass(frozen=True, slots=True)
class ChoiceParameters(_Group):
    """Choice of the search."""

    # Most hops, once reduced, for models; larger problems go to the compiled search. So do problems with more
    # hops for each second of the time limit, unless they have few, which is the last number.
    most_hops: int = 200_000
    hops_per_s: int = 50_000
    few_hops: int = 100_000
    # Shorter time limits compile only kernels that a first schedule needs. The compiled search then gets no
    # suggested sketch. The second number is the least time limit for kernels that are compiled already.
    compiling_s: float = 5.0
    compiled_s: float = 0.5
    # Least time left to compile kernels that are not cached on disk (about 25 s of CPU).
    cold_s: float = 20.0


@dataclass(frozen=True, slots=True)
class BudgetParameters(_Group):
    """Shares of the time limit for stages that every search has."""

    # Kept back for verifying what the last stage finds and for its bound: in any case, for each link and for
    # each transfer, in seconds of work, which take longer on a busy machine; and at most.
    reserve_s: float = 0.2
    reserve_s_per_link: float = 3e-5
    reserve_s_per_transfer: float = 1.5e-5
    most_reserve_share: float = 0.4
    least_s: float = 0.05  # of the search, however long what comes before it took
    # Work on a first schedule beyond the time limit, at most; shorter than it takes to compile kernels.
    late_s: float = 10.0
    # After which the bound is no longer improved, by what takes long and by anything.
    bound_share: float = 0.2
    most_bound_share: float = 0.5
    least_bound_s: float = 0.1  # of it, in any case
    # Least time limit of a bound that begins at the end; problems with at most this many hops have none.
    last_bound_s: float = 2.0
    brief_hops: int = 5_000
    # For the bound over all chunkings, once the search has ended: what it gets in any case, and at most.
    least_every_s: float = 0.3
    most_every_s: float = 1.0
    explain_s: float = 10.0  # for saying why a problem is infeasible, at most
    # Kept for ruin and recreate: without a sketch, which leaves models few hops, and with one.
    improve_share: float = 0.5
    sketched_share: float = 0.3


@dataclass(frozen=True, slots=True)
class ListParameters(_Group):
    """The list scheduler and its restarts."""

    # In the portfolio: share of the time, and most seconds.
    share: float = 0.1
    most_s: float = 1.0
    # Alone, before the compiled scheduler: share of the time, and least seconds.
    alone_share: float = 0.2
    least_alone_s: float = 2.0
    # CPU seconds of a run per hop of the quotient, by which a budget becomes a number of runs; and how many
    # times the budget the runs may take on a busy machine.
    run_s_per_hop: float = 6e-6
    patience: float = 4.0
    noises: tuple[float, ...] = (0.0, 0.1, 0.5, 2.0, 8.0)  # relative, of priorities, in turn


@dataclass(frozen=True, slots=True)
class PortfolioParameters(_Group):
    """The stages of the portfolio after the list scheduler, each with its share of the time."""

    compiled_share: float = 0.1
    # Most hops for which routing, ordering and contiguity are one job shop from the start.
    joint_hops: int = 600
    joint_share: float = 0.3
    most_joint_s: float = 5.0
    routing_share: float = 0.25
    job_shop_share: float = 0.15
    most_job_shop_s: float = 4.0
    # Share of the time without progress after which improvement ends; larger within one phase of a reduction,
    # which has a share of the time only.
    improve_share: float = 0.4
    half_improve_share: float = 0.5
    least_improve_s: float = 3.0
    # Most arrivals of chunks for which baselines compete, and the cost of each baseline: none begins with
    # less time left.
    baseline_arrivals: int = 6_000
    baseline_s_per_arrival: float = 3e-4
    baseline_s_per_link: float = 2e-5
    named_s_per_transfer: float = 1e-5  # where what travels is named
    baseline_share: float = 0.5  # of the time, where more comes after them
    # Shares of the time for baselines before the search, and for the best of them as a rule; and the most
    # transfers of each.
    first_share: float = 0.2
    best_share: float = 0.4
    # They have this many seconds of work in any case, but at most this share of the time.
    least_first_s: float = 1.0
    most_first_share: float = 0.6
    # Where the number of chunks is open, for those of so few transfers in finer chunks.
    cut_share: float = 0.25
    cut_transfers: int = 2_000
    first_transfers: int = 100_000
    baseline_least_s: float = 0.1  # what takes less is tried once the time is over, too
    # Most transfers of chunks balanced over dimensions, which alone compete at more arrivals.
    balanced_transfers: int = 2_000_000
    balanced_s_per_transfer: float = 5e-6
    balanced_least_s: float = 0.3  # once, what takes less is tried after the time is over, too
    # Cost of exchanging sums at their roots; skipped if it exceeds this share of the time.
    exchange_s_per_transfer: float = 1.5e-4
    exchange_share: float = 0.1
    # Share of the time for a search in one chunk per rank, where all chunks may travel together.
    fused_share: float = 0.4
    registered_share: float = 0.3  # of the time left, for each proposer that a user registered
    exchanged: int = 4  # schedules of which this is tried, the earliest first
    # Most hops for which unreduced contributions are searched too, in a share of the time.
    apart_hops: int = 10_000
    apart_share: float = 0.3


@dataclass(frozen=True, slots=True)
class NeighbourhoodParameters(_Group):
    """Improvement by the job shop: which routes are freed in every round."""

    # Share of chunk-rank states that are free at first, at least and at most; and factors on the share after
    # a round, one of them at random.
    first_share: float = 0.2
    least_share: float = 0.1
    most_share: float = 0.6
    steps: tuple[float, ...] = (0.8, 1.0, 1.3)
    # Share of rounds that free the last arrivals, and the factor on it after a failure. The third number is
    # the share of these that ask for a schedule that meets the bound.
    last_share: float = 0.5
    less_often: float = 0.7
    bound_share: float = 0.7
    # Share of the other rounds that free states at random; the rest free arrivals at about one time.
    random_share: float = 0.5
    # Seconds of a round: at least, more for every free hop, at most.
    round_s: float = 1.0
    last_round_s: float = 0.6
    s_per_hop: float = 0.001
    most_round_s: float = 4.0


@dataclass(frozen=True, slots=True)
class SolverParameters(_Group):
    """Shares of the time where one solver works alone."""

    # Shares of a MILP solver, and of CP-SAT.
    routing_share: float = 0.6
    contiguity_share: float = 0.4
    cpsat_routing_share: float = 0.5
    # Least seconds of a job shop, and of a contiguity model; and least seconds left for another routing.
    least_s: float = 0.2
    least_contiguity_s: float = 1.0
    least_round_s: float = 0.5
    # Most pairs of hops that share a resource for which routing also decides their order. Each requires up to
    # a binary and two rows; with more pairs solvers mostly do not end within some seconds.
    most_pairs: int = 1_000


@dataclass(frozen=True, slots=True)
class HalvesParameters(_Group):
    """The halves of a reduction that also spreads."""

    # Share of the time for the reduce phase; and where both phases are one problem. The rest is for the
    # broadcast phase.
    first_share: float = 0.5
    isomorphic_share: float = 0.8
    large_share: float = 0.5  # of the time for each half in the compiled search


@dataclass(frozen=True, slots=True)
class SuggestingParameters(_Group):
    """Sketches that are suggested where none is given."""

    # Problems with fewer hops need no guidance; with more than the second number no candidate is quick to
    # try.
    few_hops: int = 600
    most_hops: int = 3_000_000
    # Shares of the time: for a first schedule without a sketch, for suggestions, and of the rest for one
    # sketch.
    first_share: float = 0.1
    suggest_share: float = 0.25
    sketch_share: float = 0.7
    most_suggest_s: float = 20.0
    suggest_s_per_hop: float = 1.5e-6  # the first sketch; with less time none is suggested
    # After which no first suggestion is waited for where there is a schedule without.
    give_up_share: float = 0.5
    large_share: float = 0.5  # of the time that the compiled search has before anything is suggested
    # Seconds per hop of the list scheduler's first schedule. With less time left the compiled one replaces
    # it, which needs no quotient. The second number is the least time for the compiled one.
    s_per_hop: float = 1e-4
    least_compiled_s: float = 1.0
    sketches: int = 3  # that are tried, as long as their bounds are below the best schedule
    # Chunks per rank that are tried, and those that plans are compared with.
    partitions: tuple[int, ...] = (1, 2, 4, 8)
    first_partition: int = 2
    # Those that are tried where their number is open and no sketch suits; and the part of the time for that.
    counts: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 16)
    chunks_share: float = 0.3
    counts_only: int = 0  # 1: baselines cut data into these numbers of chunks, too, and no others
    merging_pays: float = 0.97  # chunks merge in nodes, too, where that takes this share of the time or less
    most_merged: int = 6  # chunks in one send between nodes
    # For the bound of the best proposal, and of each other; and of the time for all of them at most.
    bounds_share: float = 0.3
    first_bound_s: float = 5.0
    bound_s: float = 2.0
    # With more hops, once reduced, a candidate is scheduled by the compiled list scheduler; with fewer by so
    # many runs of the other, of each half of a reduction.
    most_ranked_hops: int = 40_000
    ranking_runs: int = 15
    ranking_s: float = 0.5


@dataclass(frozen=True, slots=True)
class LargeParameters(_Group):
    """The compiled search of problems that no model reaches."""

    # Share of the time left for the bound, and least seconds.
    bound_share: float = 0.8
    least_bound_s: float = 0.25
    # A better bound is computed if this multiple of the first one's time is left.
    more_bound_times: float = 3.0
    grace_s: float = 0.5  # what a run gets beyond the time limit where there is no schedule yet
    # Fewest ranks for which a result waits for its bound, however long the first claim takes.
    patient_ranks: int = 1_000
    # Microseconds per transfer for chunks to one rank, and for others.
    verify_us_per_transfer: float = 2.0
    verify_copy_us: float = 0.2
    # Largest share of the time left that is kept for verifying; and least seconds.
    verify_share: float = 0.5
    brief_s: float = 0.5
    told_after_s: float = 2.0  # progress is told of what takes longer
    most_expanded: int = 300_000  # schedules with more transfers stay compact
    # Most sends that merge where they may, if latency is at least this share of the time that one holds a
    # link.
    most_merged: int = 100_000
    merging_share: float = 0.03
    memory_share: float = 0.8  # of what is free, which may be taken where no limit is given


@dataclass(frozen=True, slots=True)
class RouterParameters(_Group):
    """Routes of the compiled search that load a fabric evenly."""

    # Exponents of the load (at most powers of 2) in the prices of trees, pass by pass. They are low at first,
    # so that trees spread out, and steep in the end, when only the largest loads are to be avoided.
    tree_exponents: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 5, 6)
    # Cost of a tick of the most loaded resource beyond its time; and of a tick for which a rank waits for a
    # chunk.
    tree_weight: float = 8.0
    path_weight: float = 4.0
    waiting: float = 0.25
    # Links that all passes over all trees look at, which takes some seconds.
    most_steps: int = 1_000_000_000
    # Most links that all passes of the search for relays' routes may visit. For more chunks the number of
    # passes falls, to one at least.
    kept_steps: int = 480_000_000
    # For every tree that is added to those that paths are chosen from, the exponent in the search for it, and
    # those in the choices that follow. Flat at first, so that paths differ, and steep in the end.
    path_exponents: tuple[int, ...] = (0, 2, 3, 4, 4, 4, 5, 5)
    path_choices: tuple[tuple[int, ...], ...] = ((1,), (3,), (4,), (5,), (5, 6), (5, 6), (6,), (6,))
    patience: int = 2  # no further tree after so many that did not help
    # Nanoseconds, about: to visit a link in the search for a tree; for a hop, a tree and a resource in a
    # choice; to order a hop; and to send it. No pass begins that leaves less than `margin` times its
    # estimated time for sending.
    link_ns: int = 25
    choice_ns: int = 35
    order_ns: int = 70
    queue_ns: int = 1000
    margin: float = 1.3


@dataclass(frozen=True, slots=True)
class QueueParameters(_Group):
    """Number of orders of sends along routes in the compiled search."""

    # Sends of all runs together; then the most runs, and the most runs along trees. There are at least two.
    total_sends: int = 200_000
    most_runs: int = 40
    most_tree_runs: int = 100
    # Runs of open spreading at least; and, where rarest chunks are not looked for, after how many slow sends'
    # time behind others a rank gets over a slow link what these have already.
    spreading_runs: int = 4
    behind: tuple[float, ...] = (1.0, 2.0, 0.5, 0.0)
    # Orders that are tried along the same paths, and along the same trees.
    path_orders: int = 5
    tree_orders: int = 2
    waiting: tuple[float, ...] = (0.25, 4.0, 1.0, 16.0)  # of a tick, in the search for trees, by turns
    many_steps: int = 30_000_000  # of searches for trees, a second, which all runs may take


@dataclass(frozen=True, slots=True)
class RuinParameters(_Group):
    """Ruin and recreate over routes and order."""

    most_routes: int = 40_000  # problems with more (trees times ranks) are left as they are
    most_merged: int = 16  # chunks in a send that is made
    most_holds: int = 4_096  # of one resource; a schedule that needs more is not found
    # Turns of the first run, fewer if there are few sends, or if turns times sends exceed the third number;
    # every further run has twice the last's.
    run_turns: int = 10_000
    turns_per_send: int = 100
    run_sends: int = 10_000_000
    idle_runs: int = 2  # so many in a row that found nothing better are the last
    # Sends of all turns that improve a schedule of the compiled search, and least turns.
    turn_sends: int = 6_000_000
    least_turns: int = 200
    s_per_transfer: float = 4e-5  # to read and write a schedule; with less time nothing is tried
    most_ruined: int = 40  # sends that a turn takes out at most, about
    # Number of backward and forward re-timings; one turn in `every` has them.
    passes: int = 1
    every: int = 16
    threshold: float = 0.01  # how much worse, relatively, what is gone on from may get in the first turn
    # Weights of lateness of sends and use of resources among schedules of equal finish, as parts of the
    # finish. They are squared `sharpness` times, so that sends in its last tenth count most.
    lateness: float = 0.5
    economy: float = 0.1
    sharpness: int = 5

    def turns_of(self, num_sends: int) -> int:
        """The turns of the first run over a schedule of `num_sends` sends."""
        most = min(self.run_turns, self.turns_per_send * num_sends, self.run_sends // max(1, num_sends))
        return max(1, most)


@dataclass(frozen=True, slots=True)
class ReplanParameters(_Group):
    """Re-planning after a failure."""

    reserve_share: float = 0.3  # of the time, kept for the schedule itself and for verifying it
    least_sends: int = 400_000  # that ruin and recreate times in its turns however little time there is
    most_routes: int = 250_000  # with more (trees times ranks) nothing is improved


@dataclass(frozen=True, slots=True)
class SymmetricParameters(_Group):
    """Implicit schedules of fabrics that look alike from every rank."""

    most_bytes: int = 4 * 2**30  # of the memory for one tree over all offsets
    most_hops: int = 3 * 10**7  # of all of one rank's chunks in an alltoall
    # Random orders: how many, and rows of all of them together.
    restarts: int = 60
    restart_rows: int = 400_000


@checked
@dataclass(frozen=True, slots=True)
class SearchParameters:
    """Every constant of the search, in groups; immutable, and part of what a result is cached under.

    Parameters
    ----------
    choice, budget, list, portfolio, neighbourhood, solver, halves, suggesting, large, router, queues, ruin,
    replan, symmetric
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
    neighbourhood: NeighbourhoodParameters = field(default_factory=NeighbourhoodParameters)
    solver: SolverParameters = field(default_factory=SolverParameters)
    halves: HalvesParameters = field(default_factory=HalvesParameters)
    suggesting: SuggestingParameters = field(default_factory=SuggestingParameters)
    large: LargeParameters = field(default_factory=LargeParameters)
    router: RouterParameters = field(default_factory=RouterParameters)
    queues: QueueParameters = field(default_factory=QueueParameters)
    ruin: RuinParameters = field(default_factory=RuinParameters)
    replan: ReplanParameters = field(default_factory=ReplanParameters)
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

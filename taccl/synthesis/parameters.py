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
    """Which search runs."""

    # Problems with more hops than this, once reduced, are left to the compiled search; so are those with more
    # for each second of the time limit, unless they have few, which are so many.
    most_hops: int = 200_000
    hops_per_s: int = 50_000
    few_hops: int = 100_000
    # With a shorter time limit nothing is compiled that is not needed for a first schedule, and where the
    # compiled search runs no sketch is suggested. What is compiled already runs from so many seconds on.
    compiling_s: float = 5.0
    compiled_s: float = 0.5
    # Kernels that no earlier run has left on disk are compiled only with at least this much time left (they
    # take about 25 s of CPU).
    cold_s: float = 20.0


@dataclass(frozen=True, slots=True)
class BudgetParameters(_Group):
    """How the time limit is spent on what every search does."""

    reserve_s: float = 0.2  # kept back for expanding and verifying what the last stage finds
    least_s: float = 0.05  # of the search, however long what comes before it took
    late_s: float = 10.0  # Wait for a first schedule beyond the time limit, at most.
    # After which the bound is no longer improved, by what takes long and by anything.
    bound_share: float = 0.2
    most_bound_share: float = 0.5
    least_bound_s: float = 0.1  # of it, in any case
    # After which a bound that is begun at the end is broken off, and with up to so many hops never.
    last_bound_s: float = 0.5
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

    # Of the time in the portfolio, and how much at most.
    share: float = 0.1
    most_s: float = 1.0
    # Of the time where it works alone, before the compiled one; and how much at least.
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
    # Up to so many hops, routing, ordering and contiguity are solved as one job shop from the start.
    joint_hops: int = 600
    joint_share: float = 0.3
    most_joint_s: float = 5.0
    routing_share: float = 0.25
    job_shop_share: float = 0.15
    most_job_shop_s: float = 4.0
    # Improvement ends when nothing got better for so long; within one half of a reduction, which has a
    # share of the time only, the share is larger.
    improve_share: float = 0.4
    half_improve_share: float = 0.5
    least_improve_s: float = 3.0
    # Up to so many arrivals of chunks the baselines compete; and what each of them takes: with less time left
    # they are not begun.
    baseline_arrivals: int = 6_000
    baseline_s_per_arrival: float = 3e-4
    baseline_s_per_link: float = 2e-5
    named_s_per_transfer: float = 1e-5  # where what travels is named
    baseline_share: float = 0.5  # of the time, where more comes after them
    # Share of the time for baselines before the search, and the most transfers of each.
    first_share: float = 0.2
    first_transfers: int = 100_000
    baseline_least_s: float = 0.1  # what takes less is tried once the time is over, too
    # Of more arrivals only chunks balanced over dimensions compete, in up to so many transfers.
    balanced_transfers: int = 2_000_000
    balanced_s_per_transfer: float = 5e-6
    balanced_least_s: float = 0.3  # once, what takes less is tried after the time is over, too
    # What it takes to exchange sums at their roots; not begun where that is a larger share of the time.
    exchange_s_per_transfer: float = 1.5e-4
    exchange_share: float = 0.1
    # Of the time, for a search in one chunk a rank, where all chunks may travel together.
    fused_share: float = 0.4
    exchanged: int = 4  # schedules of which this is tried, the earliest first
    # Up to so many hops contributions that ranks keep apart are searched too, in a share of the time.
    apart_hops: int = 10_000
    apart_share: float = 0.3


@dataclass(frozen=True, slots=True)
class NeighbourhoodParameters(_Group):
    """Improvement by the job shop: which routes are freed in every round."""

    # Of the chunk-rank states, freed at first, at least and at most; and what the share is multiplied by
    # after a round, one of them at random.
    first_share: float = 0.2
    least_share: float = 0.1
    most_share: float = 0.6
    steps: tuple[float, ...] = (0.8, 1.0, 1.3)
    # Of the rounds, those that free what arrives last, by how much rarer they become when that does not help,
    # and how many of them ask for a schedule that meets the bound.
    last_share: float = 0.5
    less_often: float = 0.7
    bound_share: float = 0.7
    # Of the others, those that free states at random; the rest free what arrives about one time.
    random_share: float = 0.5
    # Of a round: at least, more for every hop that is free, at most.
    round_s: float = 1.0
    last_round_s: float = 0.6
    s_per_hop: float = 0.001
    most_round_s: float = 4.0


@dataclass(frozen=True, slots=True)
class SolverParameters(_Group):
    """Shares of the time where one solver works alone."""

    # Of a MILP solver; and of CP-SAT.
    routing_share: float = 0.6
    contiguity_share: float = 0.4
    cpsat_routing_share: float = 0.5
    # What a job shop, and a contiguity model, get in any case; and what must be left for routing again.
    least_s: float = 0.2
    least_contiguity_s: float = 1.0
    least_round_s: float = 0.5
    # Of hops that share a resource, up to which routing may also decide who goes first: each makes at most a
    # binary and two rows, and with more of them solvers are mostly not done in some seconds.
    most_pairs: int = 1_000


@dataclass(frozen=True, slots=True)
class HalvesParameters(_Group):
    """The halves of a reduction that also spreads."""

    # Of the time for the reduction; and where both halves are one problem. The rest is for the spreading.
    first_share: float = 0.5
    isomorphic_share: float = 0.8
    large_share: float = 0.5  # of the time for each half in the compiled search


@dataclass(frozen=True, slots=True)
class SuggestingParameters(_Group):
    """Sketches that are suggested where none is given."""

    # Problems with fewer hops need no guidance; of those with more no candidate is tried in a moment.
    few_hops: int = 600
    most_hops: int = 3_000_000
    # Of the time: for a first schedule without a sketch, for suggestions, and for one sketch of what is left.
    first_share: float = 0.1
    suggest_share: float = 0.25
    sketch_share: float = 0.7
    most_suggest_s: float = 20.0
    suggest_s_per_hop: float = 1.5e-6  # the first sketch; with less time none is suggested
    # After which no first suggestion is waited for where there is a schedule without.
    give_up_share: float = 0.5
    large_share: float = 0.5  # of the time that the compiled search has before anything is suggested
    # What the list scheduler takes for each hop before it has a schedule. Where less is left the compiled
    # one takes its place, which takes no quotient; with less than this it is not begun.
    s_per_hop: float = 1e-4
    least_compiled_s: float = 1.0
    sketches: int = 3  # that are tried, as long as their bounds are below the best schedule
    # Chunks per rank that are tried, and those that plans are compared with.
    partitions: tuple[int, ...] = (1, 2, 4, 8)
    first_partition: int = 2
    # Those that are tried where their number is open and no sketch suits; and the part of the time for that.
    counts: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 16)
    chunks_share: float = 0.3
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

    # Of what time is left for the bound, and what it gets in any case.
    bound_share: float = 0.8
    least_bound_s: float = 0.25
    # A better bound is looked for where there is so many times the time that the first one took.
    more_bound_times: float = 3.0
    grace_s: float = 0.5  # what a run gets beyond the time limit where there is no schedule yet
    # With so many ranks a result waits for its bound, however long the first claim takes.
    patient_ranks: int = 1_000
    # Of chunks that go to one rank, and of others.
    verify_us_per_transfer: float = 2.0
    verify_copy_us: float = 0.2
    # Of what time is left, kept for verifying at most; and what is always granted.
    verify_share: float = 0.5
    brief_s: float = 0.5
    told_after_s: float = 2.0  # progress is told of what takes longer
    most_expanded: int = 300_000  # schedules with more transfers stay compact
    # Up to so many sends merge where they may, if latency is such a share of the time that one holds a link.
    most_merged: int = 100_000
    merging_share: float = 0.03
    memory_share: float = 0.8  # of what is free, which may be taken where no limit is given


@dataclass(frozen=True, slots=True)
class RouterParameters(_Group):
    """Routes of the compiled search that load a fabric evenly."""

    # By which power of the load (of 2, to so many) prices of trees rise, pass after pass. Low at first, so
    # that trees spread out; steep in the end, when only what is loaded most is to be led round.
    tree_exponents: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 5, 6)
    # What a tick of the most loaded resource costs beyond its time; and for which a rank waits for a chunk.
    tree_weight: float = 8.0
    path_weight: float = 4.0
    waiting: float = 0.25
    # Links that all passes over all trees look at, which takes some seconds.
    most_steps: int = 1_000_000_000
    # Routes by which relays are told are kept where all passes of the search for them look at up to so many
    # links. Of more chunks there are as many passes as that leaves, and one at least.
    kept_steps: int = 480_000_000
    # For every tree that is added to those that paths are chosen from, the exponent in the search for it, and
    # those in the choices that follow. Flat at first, so that paths differ, and steep in the end.
    path_exponents: tuple[int, ...] = (0, 2, 3, 4, 4, 4, 5, 5)
    path_choices: tuple[tuple[int, ...], ...] = ((1,), (3,), (4,), (5,), (5, 6), (5, 6), (6,), (6,))
    patience: int = 2  # no further tree after so many that did not help
    # Nanoseconds, about: to look at a link in the search for a tree; for a hop, a tree and a resource in a
    # choice; to put a hop in order; and to send it. No pass is begun that leaves less than so many times the
    # time for sending that it would take.
    link_ns: int = 25
    choice_ns: int = 35
    order_ns: int = 70
    queue_ns: int = 1000
    margin: float = 1.3


@dataclass(frozen=True, slots=True)
class QueueParameters(_Group):
    """How often sends along routes are put in order by the compiled search."""

    # As many runs as make about so many sends, two at least, but no more than so many; along trees as well.
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
    # The first run has so many turns, but fewer where there are few sends, or turns times sends would be
    # more; every further one has twice the last's.
    run_turns: int = 10_000
    turns_per_send: int = 100
    run_sends: int = 10_000_000
    idle_runs: int = 2  # so many in a row that found nothing better are the last
    # What the compiled search finds is improved in turns of so many sends in all, and so many turns at least.
    turn_sends: int = 6_000_000
    least_turns: int = 200
    s_per_transfer: float = 4e-5  # to read and write a schedule; with less time nothing is tried
    most_ruined: int = 40  # sends that a turn takes out at most, about
    # How often all is timed backwards and forwards again, in one of so many turns.
    passes: int = 1
    every: int = 16
    threshold: float = 0.01  # how much worse, relatively, what is gone on from may get in the first turn
    # Of two schedules that finish alike, what counts is how late sends end, and how busy resources are; both
    # as parts of the finish. These are squared so often, that sends in its last tenth count most.
    lateness: float = 0.5
    economy: float = 0.1
    sharpness: int = 5

    def turns_of(self, num_sends: int) -> int:
        """The turns of the first run over a schedule of so many sends."""
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
        """What differs from the defaults, as `from_dict` reads it."""
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


#: What is used where nothing else is given.
DEFAULTS = SearchParameters()


@reads("set of search parameters")
def _load(path: str | os.PathLike[str]) -> SearchParameters:
    where = str(path)
    return SearchParameters.from_dict(parse_toml(read_text(path), source=where), where=where)

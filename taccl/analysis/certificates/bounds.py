"""Lower bounds on the finish of any schedule of a problem, each with a witness and one sentence on its cause.

`lower_bound` tries several arguments, each from a module of its own, and returns the best bound. It holds for
the declared problem: topology, collective and sketch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, Literal

from taccl._internal.address_space import require_address_space
from taccl._internal.arguments import Duration, checked
from taccl._internal.deadline import Deadline, OutOfTime, busy_factor
from taccl.analysis.certificates.borders import counted, counting, single_machine
from taccl.analysis.certificates.byte_counting import byte_counting_bounds
from taccl.analysis.certificates.certificate import Certificate, Claim, InNetworkGrant, Late
from taccl.analysis.certificates.dynamic_cut import dynamic_cut_bounds
from taccl.analysis.certificates.exchange_time import exchange_time_bounds
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.finding.volume import Volume
from taccl.analysis.certificates.first_arrivals import byte_dissemination_bounds, dissemination_bounds
from taccl.analysis.certificates.first_arrivals import latency as latency_of
from taccl.analysis.certificates.flow_time import flow_time_bounds
from taccl.analysis.certificates.hop_time import hop_time_bounds
from taccl.analysis.certificates.hub_time import hub_time_bounds
from taccl.analysis.certificates.level_sets import level_cut, node_cut
from taccl.analysis.certificates.link_time import link_time_bounds
from taccl.analysis.certificates.node_entry import node_entry_bounds
from taccl.analysis.certificates.node_exit import node_exit_bounds
from taccl.analysis.certificates.node_sums import node_sum_bounds
from taccl.analysis.certificates.pair_counting import pair_counting_bounds
from taccl.analysis.certificates.rail_exchange import rail_exchange_bounds
from taccl.analysis.certificates.server_time import server_time_bounds
from taccl.analysis.certificates.spread_tail import spread_tail_bounds
from taccl.analysis.certificates.sum_flow import sum_flow_bounds
from taccl.analysis.certificates.switch_counting import switch_counting
from taccl.analysis.certificates.throughput import cut_claims, node_data_bounds, throughput_claims
from taccl.analysis.certificates.transformed import (
    as_spreading,
    by_switches_alone,
    check_switches_add,
    is_reversed,
    late_part,
    merging_freely,
    release_dates,
    share_of_data,
    without_padding,
)
from taccl.problem.problem import Problem
from taccl.sketch.group import Symmetries
from taccl.sketch.reachability import check_possible

#: Max origins plus destinations, over all kinds of chunks, for cut bounds that use release dates and tails.
#: Above this, cut bounds only count sends. Chunks of one `ChunkKind` count once.
_MAX_TIMED = 60_000
#: `_MAX_CUT`: max origins plus destinations of different chunks for early cuts around nodes and ranks.
#: These cuts come before other bounds of divisible data (1.1 s of CPU and 330 MB for 10,000 ranks).
#: `_MAX_FOUND`: max origins plus destinations for finders of bounds without linear programs.
_MAX_CUT, _MAX_FOUND = 120_000_000, 2_500_000
#: Max origins plus destinations of different chunks, up to symmetry, of a small problem.
#: On small problems, all finders without linear programs run, even beyond the time limit (fractions of 1 s).
_MAX_BRIEF = 3_000
#: Default budget of `lower_bound`, in seconds.
_CUTS_S = 20.0
#: Share of the whole time for the first linear programs, which run before most other finders of bounds.
_FIRST_SHARE = 0.5
#: Share of the time for cut counting, which runs before the first linear programs.
_COUNTING_SHARE = 0.5
#: `_FIRST_S`: min seconds for the first linear programs, more on a busy machine.
#: `_SMALL_S`: min seconds for all kinds of bounds together, on small problems.
#: Both minima hold even beyond the time limit, and are ten times the usual need, for slow machines.
_FIRST_S, _SMALL_S = 1.0, 1.5
#: `_LEVELS_SHARE`: share of the time for cuts along level sets of one node's ranks.
#: `_LEVELS_S`: min seconds for cuts along level sets.
_LEVELS_SHARE, _LEVELS_S = 0.1, 0.1
#: Max links per rank of a network that is likely to have a narrow cut through its middle, such as a mesh.
_SPARSE_LINKS = 16
#: Min seconds for the last linear programs, if the time limit permits, and for the bound of one release date.
_LEAST_S = 1.0

Finder = Callable[[], Iterable[Claim]]
#: A finder, and the time of `time.monotonic` at which it usually ends.
_Timed = tuple[Finder, float]
#: Finders of bounds without linear programs, for whole chunks and for all chunkings, in running order.
#: Each finder takes a `NeededSends` and ``in_network=``; `throughput_claims` runs the linear programs.
#: The first finder of each list may run before the linear programs.
WHOLE_CHUNKS: list[Callable[..., Iterable[Claim]]] = [
    counting, dissemination_bounds, pair_counting_bounds, sum_flow_bounds, spread_tail_bounds,
    dynamic_cut_bounds, single_machine,
]  # fmt: skip
ALL_CHUNKINGS: list[Callable[..., Iterable[Claim]]] = [
    flow_time_bounds,
    server_time_bounds,
    byte_counting_bounds,
    node_sum_bounds,
    sum_flow_bounds,
    link_time_bounds,
    hub_time_bounds,
    exchange_time_bounds,
    node_exit_bounds,
    node_data_bounds,
    node_entry_bounds,
    hop_time_bounds,
    byte_dissemination_bounds,
]
#: Finders of bounds over all chunkings that take hundredths of a second. They run first, even without time.
AT_ONCE: list[Callable[..., Iterable[Claim]]] = [rail_exchange_bounds]
#: Finders of bounds over all chunkings above the size `_MAX_TIMED`; on still larger networks they find none.
OF_MANY_RANKS: list[Callable[..., Iterable[Claim]]] = [flow_time_bounds, link_time_bounds]


@checked
def lower_bound(
    problem: Problem,
    *,
    divisible: bool | None = None,
    in_network: bool | Literal["only"] = False,
    budget_s: Duration = _CUTS_S,
    limit_s: Duration | None = None,
    end_s: Duration | None = None,
    finish: Fraction | None = None,
) -> Certificate:
    """Best proven lower bound of the declared problem: topology, collective and sketch.

    Parameters
    ----------
    problem : Problem
        The problem; the bound respects its clauses.
    divisible : bool, optional
        True bounds data that may be cut arbitrarily finely, rather than whole chunks. Sends may then carry
        any number of chunks, unless a sketch limits it, and bytes that pad chunks do not count. Default: True
        if the problem leaves the number of chunks open.
    in_network : bool or "only"
        True assumes that all switches can reduce and multicast without limit. Without it, only links that
        the topology declares do so. ``"only"`` bounds schedules whose sums are all made by the topology's
        reducing switches: contributions are added in their links, and ranks add no other data to their own.
    budget_s : float
        Seconds for the search; then the best bound so far is returned. The latency bound is always computed.
        Two minimum times hold even beyond the budget. Linear programs for throughput get at least 1 s if
        different chunks have at most 60,000 origins and destinations together. All other kinds of bounds get
        at least 1.5 s on small problems, about ten times the usual need.
    limit_s : float, optional
        Seconds after which the search ends even if no bound exceeds the latency. The minimum times under
        `budget_s` end then, too, except that of small problems. Default: `budget_s`, at least 1.5 s. Beyond
        60,000 origins and destinations, the result may then be the latency bound; for divisible data, it is
        at least the bound of cuts around nodes and ranks.
    end_s : float, optional
        Hard limit in seconds, also for small problems: the best bound so far is returned. If that is the
        latency, cuts around nodes and ranks are evaluated first (fractions of a second), for divisible data
        of at most 2.5 million origins and destinations. For whole chunks, `OutOfTime` is raised if there is
        no bound.
    finish : Fraction, optional
        Finish of a schedule, in microseconds. A bound that meets it is the best possible, and ends the
        search.

    Raises
    ------
    InputError
        If a chunk cannot reach a destination, or if contributions cannot reach a destination through any rank
        that adds them up. The error names the rank, the chunk and the clause. Also if `in_network` is
        ``"only"`` and no switch adds.
    """
    require_address_space()
    if in_network == "only":
        check_switches_add(problem.topology)
    has_dates = bool(problem.release_us or problem.due_us)
    if (divisible or (divisible is None and problem.chunks_open and not has_dates)) and (
        share_of_data(problem) < 1
    ):
        return _of_data(
            problem, in_network=in_network, budget_s=budget_s, limit_s=limit_s, end_s=end_s, finish=finish
        )
    if has_dates:
        given: dict[str, Any] = {
            "divisible": divisible,
            "in_network": in_network,
            "limit_s": limit_s,
            "end_s": end_s,
        }
        return _of_late_parts(problem, partial(lower_bound, **given), budget_s, finish)
    divisible = problem.chunks_open if divisible is None else divisible
    if divisible:
        problem = merging_freely(problem)
    claims: list[Claim] = []
    is_cut_off = True
    try:
        until = Deadline() if end_s is None else Deadline.after(end_s)
        with until.enforced():
            found = claims_of(
                problem, divisible=divisible, in_network=in_network, budget_s=budget_s, limit_s=limit_s,
                end=until.at_s, finish=finish,
            )  # fmt: skip
            is_cut_off = _collected(found, claims)
    except OutOfTime:
        if divisible and not claims:
            claims.append(_latency(problem, divisible=True, in_network=in_network))
        if divisible and max(claims, key=lambda claim: claim.ticks).kind in ("latency", "none"):
            claims += _late_border(problem, in_network=in_network)
        if not claims:
            raise
    best = max(claims, key=lambda claim: (claim.ticks, -claim.preference))
    certificate = _certified(problem, best, divisible=divisible, in_network=in_network)
    return replace(certificate, is_cut_off=is_cut_off)


def _of_data(problem: Problem, *, end_s: float | None, **options: Any) -> Certificate:
    """Bound for divisible data without the bytes that pad its chunks.

    If time is too short to take the padding off each link, the bound for padded data is reduced by its share.
    Costs of the data are at least its share of the costs of the padded data, and so are finishes.
    """
    end = Deadline() if end_s is None else Deadline.after(end_s)
    try:
        with end.enforced():
            data, share = without_padding(merging_freely(problem)), Fraction(1)
    except OutOfTime:
        data, share = replace(problem, size_bytes=None), share_of_data(problem)
    end_s = None if end_s is None else max(0.0, end.left_s)
    found = lower_bound(data, divisible=True, end_s=end_s, **options)
    return of_size(replace(found, bound=share * found.bound), problem.size_bytes)


def of_size(certificate: Certificate, size_bytes: int | None) -> Certificate:
    """The certificate with the size of its problem's data set, by which it states bandwidths."""
    return replace(certificate, problem=replace(certificate.problem, size_bytes=size_bytes))


def _collected(found: Generator[Claim, None, bool], claims: list[Claim]) -> bool:
    """Append all claims of `claims_of` to a list; return True if time cut its search off."""
    while True:
        try:
            claims.append(next(found))
        except StopIteration as end:
            return bool(end.value)


def latency_bound(problem: Problem) -> Certificate:
    """Latency bound of a problem without release dates; takes hundredths of a second.

    Raises the error of `lower_bound` if a chunk cannot reach a destination.
    """
    return _certified(problem, _latency(problem))


def _latency(problem: Problem, *, divisible: bool = False, in_network: InNetworkGrant = False) -> Claim:
    """Latency claim from a few chunks."""
    return next(claims_of(problem, divisible=divisible, in_network=in_network, budget_s=0.0, limit_s=0.0))


def _certified(
    problem: Problem, claim: Claim, *, divisible: bool = False, in_network: InNetworkGrant = False
) -> Certificate:
    """Certificate of a problem's bound, in microseconds, from a claim: a bound in ticks with its witness."""
    bound = Fraction(claim.ticks) / problem.costs.ticks_per_us
    return Certificate(problem, bound, claim.kind, claim.limits, claim.witness, divisible, in_network)


def claims_of(
    problem: Problem,
    *,
    divisible: bool = False,
    in_network: InNetworkGrant = False,
    budget_s: float = _CUTS_S,
    limit_s: float | None = None,
    end: float = math.inf,
    finish: Fraction | None = None,
) -> Generator[Claim, None, bool]:
    """Yield bounds of a problem without release dates as they are found, each with its witness.

    The generator returns True if time cut the search off, so that more time may prove a larger bound.
    Parameters, and the error if a chunk cannot reach a destination, are those of `lower_bound`.

    - `end`: Time of `time.monotonic` at which even linear programs under way end.

    If other finders might use up the time, linear programs run early. They may then run past `limit_s`.
    """
    began, is_only = time.monotonic(), in_network == "only"
    if is_only:
        problem = by_switches_alone(problem)
    check_possible(problem)
    demand = NeededSends(as_spreading(problem), is_reversed=is_reversed(problem))
    limit = began + (max(budget_s, _SMALL_S) if limit_s is None else limit_s)
    latency = latency_of(demand, divisible=divisible, limit=min(limit, end))
    yield latency
    finders = _Finders(
        demand,
        divisible=divisible,
        in_network=in_network is True,
        times=(began + budget_s, limit, end),
        enough=math.inf if finish is None else finish * problem.costs.ticks_per_us,
        best=latency.ticks,
    )
    yield from finders.cuts()
    demand.deadline = Deadline(max(finders.limit, finders.first_until))
    try:
        symmetries = demand.symmetries
    except OutOfTime:
        return True
    if is_only:
        yield from switch_counting(finders.volume)
    yield from finders.claims(symmetries)
    return finders.is_cut_off


def _of_late_parts(
    problem: Problem, bound_of: Callable[..., Certificate], budget_s: float, finish: Fraction | None
) -> Certificate:
    """Best bound over the release dates tried: each date plus a bound for the data released then or later."""
    found = bound_of(problem.without_dates(), budget_s=budget_s, finish=finish)
    best, until = replace(found, problem=problem), time.monotonic() + budget_s
    for date in release_dates(problem):
        if finish is not None and best.bound >= finish:
            break
        part = late_part(problem, date)
        if part is None or time.monotonic() > until:
            continue
        left_us = None if finish is None else finish - date
        found = bound_of(part, budget_s=max(until - time.monotonic(), _LEAST_S), finish=left_us)
        if date + found.bound > best.bound:
            limits = f"data released from {float(date):.6g} us on: {found.limits}"
            late = Late(date, found.witness)
            best = replace(found, problem=problem, bound=date + found.bound, limits=limits, witness=late)
    return best


class _Finders:
    """Finders of bounds for a problem, and the times of `time.monotonic` until which they run.

    - `best`: Highest bound so far, in ticks; none above `enough` is sought.
    - `limit`: End of finders while no bound exceeds the latency; afterwards, they end at `_soon`.
    - `first_until`: End of the first linear programs.
    - `is_cut_off`: True if time cut off a finder, or its linear programs, once `claims` has run.
    """

    def __init__(
        self,
        demand: NeededSends,
        *,
        divisible: bool,
        in_network: bool,
        times: tuple[float, float, float],
        enough: Fraction | float,
        best: int | Fraction,
    ) -> None:
        deadline, limit, self._end = times
        self._deadline, self.limit = min(deadline, self._end), min(limit, self._end)
        self._demand, self._divisible, self._in_network = demand, divisible, in_network
        self.best, self._enough, self._latency = best, enough, int(best)
        self._crossings = demand.num_ends
        self._is_countable = self._crossings <= _MAX_TIMED
        self._now, self._soon = time.monotonic(), min(self._deadline, self.limit)
        least = min(self._now + _FIRST_S * busy_factor(), self._end) if self._is_countable else self._soon
        self.first_until = max(self._now + _FIRST_SHARE * (self._soon - self._now), least)
        self.volume = Volume(demand.problem, divisible=divisible, sends=demand)
        self.until_levelled = self._now + max(_LEVELS_SHARE * (self._soon - self._now), _LEVELS_S)
        self._is_levelled = self._is_priced = False
        self.is_cut_off = True

    def cuts(self) -> Iterator[Claim]:
        """Yield bounds that take hundredths of a second, or counts without symmetry for many chunks."""
        found: Iterable[Claim] = ()
        if self._divisible and self._crossings <= _MAX_CUT and self.best < self._enough:
            found = cut_claims(self.volume, node_cut(self.volume, in_network=self._in_network))
        elif not self._divisible and not self._is_countable:
            found = counted(self._demand, self.volume)
        for claim in found:
            yield claim
            self.best = max(self.best, claim.ticks)
        if self._divisible and self._crossings <= _MAX_TIMED and self.best < self._enough:
            for find in AT_ONCE:
                for claim in find(self._demand, in_network=self._in_network):
                    yield claim
                    self.best = max(self.best, claim.ticks)
        # The narrowest cut of a mesh is through its middle: tenths of a second on 256 ranks.
        is_one_node = self._demand.topology.num_nodes == 1
        if self._divisible and is_one_node and self._crossings <= _MAX_FOUND and self.best < self._enough:
            levels = level_cut(self.volume, budget_s=self.until_levelled - time.monotonic())
            self._is_levelled = time.monotonic() < self.until_levelled
            for claim in cut_claims(self.volume, levels):
                if claim.ticks > self.best:
                    yield claim
                    self.best = claim.ticks

    def claims(self, symmetries: Symmetries) -> Iterator[Claim]:
        """Yield bounds of all finders in order, until one is high enough or the time is over."""
        early, late = self._in_order(symmetries)
        some = is_late = False
        for place, (find, usual) in enumerate((*early, *late)):
            until = usual if some or place < len(early) else self.limit
            if self.best >= self._enough:
                break
            if time.monotonic() >= until:
                is_late = True
                continue
            self._demand.deadline, self._demand.known = Deadline(until), self.best
            try:
                for claim in find():
                    yield claim
                    some, self.best = True, max(self.best, claim.ticks)
                    self._demand.deadline = Deadline(usual)
                    if self.best >= self._enough or time.monotonic() >= usual:
                        is_late = True
                        break
            except OutOfTime:
                is_late = True
        self.is_cut_off = self.best < self._enough and (is_late or not self._is_priced)

    def _in_order(self, symmetries: Symmetries) -> tuple[list[_Timed], list[_Timed]]:
        """Finders of bounds in the order in which they run: (early, late) lists of (finder, its deadline).

        Early finders stop at their deadlines. Late ones may go on to `limit` while no bound is found.
        """
        now, soon = self._now, self._soon
        pairs = self._crossings * len(set(symmetries.ranks.tolist())) // len(symmetries.ranks)
        is_small, is_timed = pairs <= _MAX_BRIEF and self._is_countable, pairs <= _MAX_TIMED
        if is_small:
            self.limit = max(self.limit, min(now + _SMALL_S, self._end))
        quick = self._quick(is_timed=is_timed)
        first_prices = partial(self._first_prices, symmetries)
        early: list[_Timed] = []
        if quick and self._divisible:  # flow times take hundredths of a second, on 256 ranks half a second
            early = [(quick.pop(0), self.first_until), (first_prices, self.first_until)]
        if not self._divisible and not (is_small and self._enough < math.inf):  # counting often suffices
            # Counting is fast if symmetry leaves few ranks; otherwise it must leave time for linear programs.
            count_until = now + _COUNTING_SHARE * (min(self.limit, max(soon, now + _FIRST_S)) - now)
            early = [(quick.pop(0), count_until)] if is_timed else []
            early.append((first_prices, self.first_until))
        late = [(find, self.limit if is_small else soon) for find in quick]
        return early, [*late, (partial(self._last_prices, symmetries), soon)]

    def _quick(self, *, is_timed: bool) -> list[Finder]:
        """Finders without linear programs."""
        finders = ALL_CHUNKINGS if self._is_countable else OF_MANY_RANKS
        if not self._divisible:
            finders = WHOLE_CHUNKS if is_timed else [spread_tail_bounds]
        elif self._crossings > _MAX_FOUND:
            finders = []
        return [partial(find, self._demand, in_network=self._in_network) for find in finders]

    def _prices(self, symmetries: Symmetries, deadline: float) -> Generator[Claim, None, bool]:
        return throughput_claims(
            self.volume, symmetries, in_network=self._in_network, known=self._latency, deadline=deadline,
            levels=not self._is_levelled,
        )  # fmt: skip

    def _first_prices(self, symmetries: Symmetries) -> Iterator[Claim]:
        """Yield throughput bounds early, within a share of the time, as they are often the highest."""
        self._is_priced = yield from self._prices(symmetries, self.first_until)

    def _last_prices(self, symmetries: Symmetries) -> Iterator[Claim]:
        """Yield throughput bounds in the remaining time, unless `_first_prices` solved its programs."""
        if not self._is_priced:
            until = max(self._deadline, min(self.limit, time.monotonic() + _LEAST_S))
            self._is_priced = yield from self._prices(symmetries, until)


def _late_border(problem: Problem, *, in_network: bool | Literal["only"]) -> list[Claim]:
    """Bounds for divisible data from the best cut around a node or a rank, the best level cut, and rails.

    There are none if the different chunks together have more than `_MAX_CUT` origins and destinations. Level
    cuts are tried on single nodes of few links up to `_MAX_FOUND` of these; rails up to `_MAX_TIMED`.
    """
    problem = by_switches_alone(problem) if in_network == "only" else problem
    demand = NeededSends(as_spreading(problem), is_reversed=is_reversed(problem))
    volume = Volume(demand.problem, divisible=True, sends=demand)
    if volume.num_ends > _MAX_CUT:
        return []
    found = [*cut_claims(volume, node_cut(volume, in_network=in_network is True))]
    topology = problem.topology
    is_sparse = topology.num_nodes == 1 and len(topology.links) <= _SPARSE_LINKS * topology.num_ranks
    if is_sparse and volume.num_ends <= _MAX_FOUND:
        found += cut_claims(volume, level_cut(volume, budget_s=_LEVELS_S))
    if volume.problem.collective.sums_up and volume.num_ends <= _MAX_TIMED:  # all `AT_ONCE` bound sums
        found += [claim for find in AT_ONCE for claim in find(demand, in_network=bool(in_network))]
    return found

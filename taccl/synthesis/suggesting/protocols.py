"""Choice among NCCL's protocols for a problem: the one that is predicted to be the fastest."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from taccl import baselines
from taccl._internal.arguments import Seconds, checked
from taccl._internal.deadline import Deadline, OutOfTime, busy_factor
from taccl._internal.units import format_size
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.simulation.simulate import simulate
from taccl.baselines.table import row_of
from taccl.errors import CollectiveError, InputError
from taccl.problem.alltoallv import is_uneven
from taccl.problem.making import make_problem
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.topology.topology import Topology

#: NCCL's protocols are compared by the finish of baselines, or by estimates or bounds above these numbers.
#: `_TRIED_ARRIVALS`: max arrivals of chunks and contributions for baselines (0.2 s of CPU).
#: `_BOUNDED_ARRIVALS`: max arrivals of chunks for lower bounds.
_TRIED_ARRIVALS, _BOUNDED_ARRIVALS = 1_024, 100_000
#: Remedy that notes state.
_REMEDY = "protocol= or --protocol chooses"
#: `_BOUND_S`: expected CPU seconds for the fixed part of a bound under one protocol.
#: `_BOUND_S_PER_LINK`: expected CPU seconds per link of a bound.
#: `_ESTIMATE_S`: expected CPU seconds for the fixed part of an estimate under one protocol.
#: `_ESTIMATE_S_PER_LINK`, `_ESTIMATE_S_PER_ARRIVAL`: CPU seconds of an estimate per link and per arrival.
#: Half of an estimate's time is for the topology under the protocol.
#: `_BASELINES_S_PER_LINK`: expected CPU seconds per link of all usual baselines.
#: `_USUAL_PLACE`: max `Baseline.place` of usual baselines. They alone choose as all do in 224 of 224 cases.
_BOUND_S, _BOUND_S_PER_LINK, _BASELINES_S_PER_LINK, _USUAL_PLACE = 0.1, 8e-5, 2e-4, 3
_ESTIMATE_S, _ESTIMATE_S_PER_LINK, _ESTIMATE_S_PER_ARRIVAL = 0.005, 7e-6, 3e-7
#: `_TRIED_SHARE`: max share of a verb's remaining time for comparing protocols by baselines. It is large, so
#: that the choice on small problems depends on the time limit only if that is shorter than a second or so.
#: `_BOUND_SHARE`: max share for comparing them by lower bounds.
#: `_SLOW_SHARE`: max share that bounds may be expected to need; estimates replace slower bounds.
_TRIED_SHARE, _BOUND_SHARE, _SLOW_SHARE = 0.5, 0.2, 0.1
#: `_ESTIMATE_SHARE`: max share for comparing them by estimates, as a wrong protocol can cost a factor of 10.
#: `_LEAST_ESTIMATE_S`: min CPU seconds for estimates of protocols, whatever the time limit.
#: `_LAST_ESTIMATE_S`: the same after baselines or bounds that did not end in time.
_ESTIMATE_SHARE, _LEAST_ESTIMATE_S, _LAST_ESTIMATE_S = 0.5, 0.3, 0.1
#: Default time limit of `choose_protocol` in seconds.
AMPLE_S = 30.0


@checked
def choose_protocol(problem: Problem, *, time_limit_s: Seconds = AMPLE_S) -> Problem:
    """The problem under the protocol with the least predicted sum of launch and finish.

    `make_problem` and the command line make this choice if a machine is given by name. A note of the problem,
    which results show, has the predicted times.

    Parameters
    ----------
    problem : Problem
        Its topology may be under any protocol. A problem without a size, or on a topology with fewer than two
        protocols, is returned unchanged.
    time_limit_s : float
        Upper limit; 0.2 s of CPU on 16 ranks and 0.4 s on 256 are usual.

    Returns
    -------
    Problem
        Default clauses are derived again under the protocol; those of a sketch are kept.
    """
    return under_fastest_protocol(problem, Deadline.after(time_limit_s))


def under_fastest_protocol(problem: Problem, limit: Deadline) -> Problem:
    """The problem under the protocol predicted to be the fastest, with a note; see `choose_protocol`.

    A protocol is rated by the earliest finish of the usual baselines, re-timed under it. On large problems,
    or if baselines would exceed their share of the time limit, the rating is an estimated finish of the
    baseline `multiplying`; if that does not apply, a lower bound. Broadcasts and reductions on several nodes
    are rated by an estimated finish of the baseline `hierarchical`. Protocols for which there is no time are
    left out. Without time for a second one, the topology's own protocol is used.
    """
    protocols, size, taken = problem.topology.protocols, problem.size_bytes, problem.topology.protocol
    if len(protocols) < 2 or size is None:
        return problem
    if problem.collective.destination_sets.sizes.sum() > _BOUNDED_ARRIVALS:
        return _noted(problem, f"protocol {taken} is used uncompared, at this number of ranks ({_REMEDY})")
    ratings = Ratings(problem, limit)
    promised = ratings.promised_us
    if len(promised) < 2:
        said = f"protocol {taken} is used without a comparison, for lack of time ({_REMEDY})"
        return _noted(problem, said)
    chosen, *others = sorted(promised, key=promised.__getitem__)
    shown = [f"{promised[chosen]:.4g} us", *(f"{name} {promised[name]:.4g} us" for name in others)]
    times = "; ".join((shown[0], ", ".join(shown[1:])))
    if len(promised) < len(protocols):
        times += f"; no time for {', '.join(each for each in protocols if each not in promised)}"
    told = f"({ratings.by}: {times})"
    topology = problem.topology.under(chosen)
    is_plain = problem.clauses == ratings.plain(problem.topology).clauses  # the defaults differ by protocol
    clauses = ratings.plain(topology).clauses if is_plain else problem.clauses
    said = f"protocol {chosen} is predicted to be the fastest for {format_size(size)} {told}"
    return _noted(problem, said, topology=topology, clauses=clauses)


def _noted(problem: Problem, said: str, **changes: Any) -> Problem:
    """The problem with a note on its protocol in place of earlier ones, and with other changes."""
    earlier = problem.protocol_notes()
    kept = (each for each in problem.notes if each not in earlier)
    return replace(problem, notes=(*kept, said), **changes)


class Ratings:
    """Predicted times of a problem under each protocol; none on very large problems.

    - `promised_us`: {protocol: predicted time in us, with the launch}; without those that were not rated.
    - `by`: Source of these times, for a note.
    """

    def __init__(self, problem: Problem, limit: Deadline) -> None:
        self.problem, self._topology = problem, problem.topology
        self.promised_us: dict[str, float] = {}
        self.by = ""
        self._last = limit.sooner(_ESTIMATE_SHARE * limit.left_s).at_least(busy_factor() * _LEAST_ESTIMATE_S)
        self._limit = limit
        self._is_even = len(set(problem.chunk_bytes)) < 2
        # Estimates assume that all ranks take part alike.
        self._is_regular = self._is_even and not is_uneven(problem)
        starting, ending = problem.collective.origin_sets, problem.collective.destination_sets
        contributions = starting.sizes.sum() if problem.collective.sums_up else 0
        self._is_tried = ending.sizes.sum() + contributions <= _TRIED_ARRIVALS
        if ending.sizes.sum() <= _BOUNDED_ARRIVALS:
            self._compare()

    def _compare(self) -> None:
        """Rate the protocols, in the way that suits the problem and the time."""
        # Estimates predict finishes better than bounds do, and take a tenth of the time.
        ways = self._by_schedules, self._by_estimates
        for rate in (self._over_nodes, *(ways if self._is_tried else reversed(ways))):
            if len(self.promised_us) < 2:
                with suppress(CollectiveError, OutOfTime):
                    rate()

    def plain(self, topology: Topology) -> Problem:
        """The problem on a topology, without a sketch."""
        sized: dict[str, Any] = {"size_bytes": self.problem.size_bytes}
        if not self._is_even:
            sized = {"chunk_bytes": self.problem.chunk_bytes}
        return make_problem(topology, self.problem.collective, **sized)

    def _by_schedules(self) -> None:
        """Rate protocols by usual baselines, or by lower bounds, if they are likely to end in time."""
        protocols, links, left_s = self._topology.protocols, len(self._topology.links), self._limit.left_s
        needed_s = len(protocols) * (_BOUND_S + links * _BOUND_S_PER_LINK)
        most_s, share = _SLOW_SHARE * left_s, _BOUND_SHARE
        if self._is_tried:
            needed_s = links * _BASELINES_S_PER_LINK
            most_s, share = _TRIED_SHARE * left_s, _TRIED_SHARE
        if self._is_regular and busy_factor() * needed_s > most_s:
            return
        with self._limit.sooner(share * left_s).enforced():
            made = _baselines_of(self.plain(self._topology)) if self._is_tried else []
            self.by = "by the fastest baseline in uncut chunks" if made else "by lower bounds"
            self.promised_us = {each: self._promise_us(each, made) for each in protocols}

    def _promise_us(self, protocol: str, schedules: Iterable[Schedule]) -> float:
        """Earliest finish of schedules under a protocol, or else a lower bound, with the launch."""
        topology, is_own = self._topology.under(protocol), protocol == self._topology.protocol
        finishes_us = [
            each.finish_us if is_own else simulate(each, topology=topology).finish_us for each in schedules
        ]
        least_us = min(finishes_us, default=None)
        if least_us is None:
            least_us = float(lower_bound(self.plain(topology), budget_s=0.1).bound)
        return least_us + float(topology.launch_us)

    def _over_nodes(self) -> None:
        """Rate protocols by estimates of `hierarchical`, if few ranks copy to, or add up from, several nodes.

        Whole chunks would say little about these, as only finer chunks use all NICs.
        """
        if not self._is_even or not self.problem.chunks_open:
            return
        from taccl.baselines.rails import estimated_us

        promised_us: dict[str, float] = {}
        with self._last.enforced():
            for each in self._topology.protocols:
                topology = self._topology.under(each)
                time_us = estimated_us(replace(self.plain(topology), chunks_open=True))
                if time_us == math.inf:
                    return
                promised_us[each] = time_us + float(topology.launch_us)
        self.by, self.promised_us = "by an estimate of the baseline hierarchical", promised_us

    def _by_estimates(self) -> None:
        """Rate those protocols for which there is time by an estimated finish, the topology's own first."""
        self._last = self._last.at_least(busy_factor() * _LAST_ESTIMATE_S)
        own = self._topology.protocol
        arrivals = self.problem.collective.destination_sets.sizes.sum()
        estimate_s = _ESTIMATE_S + len(self._topology.links) * _ESTIMATE_S_PER_LINK
        estimate_s += arrivals * _ESTIMATE_S_PER_ARRIVAL
        if not self._is_regular or 2 * busy_factor() * estimate_s > self._last.left_s:
            return
        from taccl.baselines.multiplying import estimated_us
        from taccl.synthesis.proposers.finer import is_at_one_rank

        self.by = "by an estimate of the baseline multiplying"
        for each in sorted(self._topology.protocols, key=lambda each: each != own):
            topology = self._topology.under(each)
            with self._last.enforced():
                plain = self.plain(topology)
                time_us = estimated_us(plain) + float(topology.launch_us)
                if is_at_one_rank(plain):  # estimates leave out that all data passes its ports
                    least_us = lower_bound(plain, divisible=True, end_s=0.0).bound_us
                    time_us = max(time_us, least_us + float(topology.launch_us))
            if time_us == math.inf:
                self.promised_us.clear()
                return
            self.promised_us[each] = time_us


def _baselines_of(problem: Problem) -> list[Schedule]:
    """Schedules of the usually fastest baselines, or of others if none applies; in the problem's chunks."""
    found: list[Schedule] = []
    for name in sorted(baselines.BASELINES, key=lambda name: row_of(name).place):
        if found and row_of(name).place > _USUAL_PLACE:
            break
        with suppress(InputError):
            found.append(baselines.baseline(name, problem, cut=False))
    return found

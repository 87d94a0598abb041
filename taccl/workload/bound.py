"""What no schedule of a step, in its tiles, finishes before.

A rank computes one tile at a time, and what is sent takes what `lower_bound` proves of it. Of any operations
of one of the two kinds, none begins before the least of their *heads*, and after the last of them has ended
the least of their *tails* is left; in between is all that they take. That is the single-machine relaxation
(Carlier 1982) with what is sent as one machine, and what a processor computes as the other.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from taccl.analysis.certificates.bounds import lower_bound
from taccl.caching import cached
from taccl.workload.exchange import parts_of, problem_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from taccl.topology.topology import Topology
    from taccl.workload.workload import Workload

#: So many sets of collectives are bounded: those that promise most.
_MOST_SETS = 6
#: Seconds for each.
_BOUND_S = 4.0


class StepBound:
    """What every schedule of a step takes, in microseconds; its tiles cost what `tile_costs` says."""

    def __init__(self, workload: Workload, topology: Topology, costs: Mapping[str, Fraction]) -> None:
        self.workload, self.topology = workload, topology
        self.parts = parts_of(workload)
        self.cache: dict[Any, Any] = {}
        self.tile = dict(costs)
        self.whole = {name: us * workload.tiling(name).tiles for name, us in costs.items()}
        for each in workload.operations:
            if each.is_collective:
                self.tile[each.name] = self.sent(frozenset([each.name]), one=True)
                self.whole[each.name] = self.sent(frozenset([each.name]))
        before = {
            each.name: [name for name in each.inputs if name in self.tile] for each in workload.operations
        }
        self.head = self._reach(before, list(before))
        behind = {name: list(workload.readers[name]) for name in before}
        self.tail = self._reach(behind, list(before)[::-1])

    @cached
    def sent(self, names: frozenset[str], *, one: bool = False) -> Fraction:
        """What the parts of some collectives take; `one`: a tile alone."""
        halves = {} if one else self._halves(names)
        parts = [part for part in self.parts if part.operation in names - set(halves.values())]
        if one:
            parts = [part for part in parts if part.tile == 0]
        problem = problem_of(self.workload, self.topology, parts, sums=halves)
        return lower_bound(problem, budget_s=_BOUND_S).bound

    def _halves(self, names: frozenset[str]) -> dict[str, str]:
        """Allgathers of what reduce-scatters brought, by name: together they add up and spread each chunk."""
        found: dict[str, str] = {}
        operation = self.workload.operation
        cut = {name: [p.chunk_bytes for p in self.parts if p.operation == name] for name in names}
        for name in sorted(each for each in names if operation[each].kind == "allgather"):
            for each in sorted(self.workload.needed(name) & names - set(found.values())):
                if operation[each].kind == "reduce_scatter" and cut[each] == cut[name]:
                    found[name] = each
                    break
        return found

    def takes(self, name: str, other: str) -> Fraction:
        """How long an operation keeps another waiting at least: one tile of it where both overlap."""
        overlap = self.workload.tiling(name).overlap
        together = overlap is not None and overlap is self.workload.tiling(other).overlap
        return (self.tile if together else self.whole)[name]

    def _reach(self, near: Mapping[str, list[str]], order: list[str]) -> dict[str, Fraction]:
        """The least time between each operation and the beginning, or the end."""
        reach: dict[str, Fraction] = {}
        # What a rank computes itself on that side; `send` alone leads away from the rank.
        own: dict[str, set[str]] = {}
        operation = self.workload.operation
        for name in order:
            own[name] = set()
            for other in near[name]:
                if operation[name].kind != "send" and operation[other].kind != "send":
                    own[name] |= {other, *own[other]}
            computed = sum(self.takes(each, name) for each in own[name] if not operation[each].is_collective)
            reach[name] = max(
                [Fraction(computed), *self._ways(name, near, order[: order.index(name)], reach)]
            )
        return reach

    def _ways(
        self, name: str, near: Mapping[str, list[str]], order: list[str], reach: Mapping[str, Fraction]
    ) -> Iterator[Fraction]:
        """The least reach of an operation by way of each on that side.

        That takes its time, all tiles of it where the two do not overlap; and so does what is between, of
        which only the last tile follows where it overlaps with the far one.
        """
        overlap_of = {each: self.workload.tiling(each).overlap for each in self.tile}
        for key in {overlap_of[each] for each in order}:
            after: dict[str, Fraction] = {}  # from the end of an operation
            since = {name: Fraction(0)}  # from its beginning
            for each in (name, *reversed(order)):
                for far in near[each] if each in since else ():
                    tiled = key is not None and overlap_of[far] is key
                    takes = self.tile[far] if tiled else self.takes(far, each)
                    after[far] = max(after.get(far, since[each]), since[each])
                    since[far] = max(since.get(far, Fraction(0)), takes + since[each])
            for far, us in after.items():
                if overlap_of[far] is key:
                    yield reach[far] + self.takes(far, name) + us

    def best(self) -> Fraction:
        """The best over sets of operations with at least some head and some tail."""
        found = Fraction(0)
        candidates: dict[frozenset[str], Fraction] = {}
        for is_sent in (False, True):
            names = [each.name for each in self.workload.operations if each.is_collective == is_sent]
            for head in {self.head[name] for name in names}:
                for tail in {self.tail[name] for name in names}:
                    some = frozenset(n for n in names if self.head[n] >= head and self.tail[n] >= tail)
                    if some and is_sent:
                        candidates[some] = max(candidates.get(some, Fraction(0)), head + tail)
                    elif some:
                        found = max(found, head + sum(self.whole[name] for name in some) + tail)
        for name in self.whole:
            found = max(found, self.head[name] + self.whole[name] + self.tail[name])
        # All together take at most what each takes alone, and mostly that.
        ranked = sorted(
            candidates, key=lambda some: candidates[some] + sum(self.whole[name] for name in some)
        )
        for some in ranked[-_MOST_SETS:]:
            found = max(found, candidates[some] + self.sent(some))
        return found

"""Lower bound on the finish of every schedule of a step with given tiles.

A rank computes one tile at a time. Transfers last at least as long as `lower_bound` proves. A *head* is the
minimum time before an operation starts at a rank (its release date). A *tail* is the minimum time after it
ends there (its delivery time). Both are kept by rank, because ranks may begin and end with different
operations. The tail after a rank's contribution to a collective counts only this contribution, as others may
have arrived before.

Four arguments give bounds; the largest is used:

1. No rank starts an operation before its minimum head. Then at least its *span* remains: the minimum time
   from its first start at any rank to the end of the step.
2. Some rank is the last to end an operation; the minimum tail follows.
3. One rank computes some operations one after another, between their minimum head and their minimum tail: the
   single-machine relaxation (Carlier 1982), for the rank with the largest bound.
4. The transfers of several collectives together last as long as `lower_bound` proves, between their minimum
   head and their minimum tail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from taccl._internal.caching import cached
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.transformed import late_part
from taccl.problem.problem import Problem
from taccl.sketch.group import find_symmetries
from taccl.topology.topology import Topology
from taccl.workload.exchange import CollectivePart, parts_of, problem_of
from taccl.workload.meaning import groups_of
from taccl.workload.operations import Operation
from taccl.workload.workload import Workload

#: Max number of sets of collectives whose joint bound is computed: the sets with the largest estimates.
_MOST_SETS = 6
#: Time limit in s for a bound on the transfers of a collective, or of a set of collectives.
#: The bounds per contributing rank share one limit, and so do the bounds per receiving rank.
_BOUND_S = 4.0
_NOTHING = Fraction(0)


class Transfers(NamedTuple):
    """Lower bounds in us on the transfers of a collective.

    - `all_us`: Time from the last contribution to the last result.
    - `from_us`: Time by rank, from its contribution to the last result that needs it.
    - `to_us`: Time by rank, from all contributions to its result.
    """

    all_us: Fraction
    from_us: list[Fraction]
    to_us: list[Fraction]


class StepBound:
    """Lower bounds of a step, in us; `costs` are the times of its tiles (`tile_costs`).

    - `starts`, `ends`: Minimum time by operation and rank before its first tile starts, and before its last
      one ends. A collective starts at a rank with the rank's first contribution, and ends there with the
      result.
    - `last`: Minimum time by operation before it has ended at all ranks.
    - `tails`: Minimum time by operation and rank from the end of any of its tiles to the end of the step.
    - `spans`: Minimum time by operation from its first start at any rank to the end of the step.
    """

    def __init__(self, workload: Workload, topology: Topology, costs: Mapping[str, Fraction]) -> None:
        self.workload, self.topology = workload, topology
        self.parts = parts_of(workload)
        #: Clauses of the step's problem: alone, a collective may be allowed to merge fewer sends by default.
        self.clauses = problem_of(workload, topology, self.parts).clauses
        self._merging = tuple(self.clauses.values("merge").items())
        self.cache: dict[Any, Any] = {}
        self.tile = dict(costs)
        self.whole = {name: us * workload.tiling(name).tiles for name, us in costs.items()}
        self.before = {name: [i for i in names if i in costs] for name, names in workload.waits.items()}
        self.behind = {name: [i for i, names in self.before.items() if name in names] for name in costs}
        # The first operation of a fused kernel may wait for an operation that comes later in the program.
        names = dict.fromkeys(name for name, _ in workload.tiles)
        self.order = [workload.operation[name] for name in names]
        self.starts: dict[str, list[Fraction]] = {}
        self.ends: dict[str, list[Fraction]] = {}
        self.last: dict[str, Fraction] = {}
        self.tails: dict[str, list[Fraction]] = {}
        self.spans: dict[str, Fraction] = {}
        self._look_ahead()
        self._look_back()

    def together(self, one: str, two: str) -> bool:
        """True if two operations are in the same overlap, and so may pass data tile by tile."""
        overlap = self.workload.tiling(one).overlap
        return overlap is not None and overlap is self.workload.tiling(two).overlap

    def takes(self, name: str, other: str) -> Fraction:
        """Minimum time of `name` before `other` can start: one tile if they overlap, otherwise all tiles."""
        return (self.tile if self.together(name, other) else self.whole)[name]

    def _look_ahead(self) -> None:
        """Compute `starts`, `ends` and `last` of all operations, in the order of execution."""
        ranks, own = range(self.topology.num_ranks), dict[str, set[str]]()
        for each in self.order:
            name, inputs = each.name, self.before[each.name]
            # Operations on which this one depends at the same rank; those before a send run at the sender.
            own[name] = set[str]().union(*(own[i] | {i} for i in inputs if not self._is_send(i)))
            computed = [i for i in own[name] if not self.workload.operation[i].is_collective]
            least, all_of = sum(self.takes(i, name) for i in computed), sum(self.whole[i] for i in computed)
            self.starts[name] = [
                max([Fraction(least), *(self._reads(i, name)[rank] for i in inputs)]) for rank in ranks
            ]
            ready = [max([Fraction(all_of), *(self.ends[i][rank] for i in inputs)]) for rank in ranks]
            last = max([*ready, *(self.last[i] for i in inputs)])
            if each.is_collective:
                self._end_collective(each, ready, last)
                continue
            # If the operation overlaps an input, only its last tile must follow the end of all inputs.
            final = self.tile[name] if any(self.together(i, name) for i in inputs) else self.whole[name]
            self.ends[name] = [
                max(start + self.whole[name], at + final)
                for start, at in zip(self.starts[name], ready, strict=True)
            ]
            self.ends[name] = [max(end, Fraction(all_of) + self.whole[name]) for end in self.ends[name]]
            self.last[name] = max(*self.ends[name], last + final, last)

    def _reads(self, name: str, reader: str) -> list[Fraction]:
        """Earliest start of `reader` at each rank: after one tile of `name` if they overlap, else all."""
        if not self.together(name, reader):
            return self.ends[name]
        starts = self.starts[name]
        if not self.workload.operation[name].is_collective:
            return [start + self.tile[name] for start in starts]
        given = self._everyones(name, max(starts))
        return [max(given, min(starts) + us) for us in self.transfers(name, one=True).to_us]

    def _end_collective(self, operation: Operation, ready: list[Fraction], last: Fraction) -> None:
        """Bound the times at which a collective ends: at each rank (`ends`), and at all ranks (`last`).

        - `ready`: Minimum time by rank until all contributions of the rank are ready.
        - `last`: Minimum time until the contributions of all ranks are ready.
        """
        name = operation.name
        found, first = self.transfers(name), min(self.starts[name])
        self.ends[name] = [max(self._everyones(name, last), first + us) for us in found.to_us]
        # Ranks may contribute different tiles last, so each rank's contribution is bounded by itself.
        given = self.transfers(name, one=any(self.together(i, name) for i in self.before[name])).from_us
        late = [at + us for at, us in zip(ready, given, strict=True)]
        self.last[name] = max(*self.ends[name], *late, first + found.all_us, last + min(given))

    def _look_back(self) -> None:
        """Compute `tails` and `spans` of all operations, in reverse order of execution."""
        ranks, own = range(self.topology.num_ranks), dict[str, set[str]]()
        for each in reversed(self.order):
            name, readers = each.name, self.behind[each.name]
            own[name] = set[str]().union(*(own[i] | {i} for i in readers if not self._is_send(i)))
            computed = [i for i in own[name] if not self.workload.operation[i].is_collective]
            least = Fraction(sum(self.takes(i, name) for i in computed))
            behind = [self._tail_by(name, reader) for reader in readers]
            self.tails[name] = [max([least, *(some[rank] for some in behind)]) for rank in ranks]
            tails = self.tails[name]
            if each.is_collective:
                found = self.transfers(name)
                spans = [us + tail for us, tail in zip(found.to_us, tails, strict=True)]
                spans.append(found.all_us + min(tails))
            else:
                spans = [self.whole[name] + tail for tail in tails]
            spans += [self._first_end(name, reader) + self.spans[reader] for reader in readers]
            self.spans[name] = max(spans)

    def _tail_by(self, name: str, reader: str) -> list[Fraction]:
        """Minimum time, by rank, from the end of a tile of `name`, read by `reader`, to the end of a step."""
        if not self.workload.operation[reader].is_collective:
            return [self.takes(reader, name) + tail for tail in self.tails[reader]]
        given = self.transfers(reader, one=self.together(name, reader)).from_us
        spans = [self.spans[each] for each in self.behind[reader] if not self.together(reader, each)]
        results = self._everyones(reader, max([*self.tails[reader], *spans]))
        least = min(self.tails[reader])
        return [max(results, us + least) for us in given]

    def _first_end(self, name: str, reader: str) -> Fraction:
        """Minimum time from the first start of an operation at any rank to the first start of a reader."""
        if self.workload.operation[name].is_collective:
            return min(self.transfers(name, one=self.together(name, reader)).to_us)
        return self.takes(name, reader)

    def _is_send(self, name: str) -> bool:
        return self.workload.operation[name].kind == "send"

    def _everyones(self, name: str, us: Fraction) -> Fraction:
        """Return `us`, or 0 if some result does not depend on all ranks, as for a send or several groups."""
        groups = groups_of(self.workload, self.workload.operation[name])
        return _NOTHING if self._is_send(name) or len(groups) > 1 else us

    @cached
    def transfers(self, name: str, *, one: bool = False) -> Transfers:
        """Lower bounds on the transfers of a collective; with `one`, only on those of its first tile."""
        parts = [part for part in self.parts if part.operation == name and not (one and part.tile)]
        return self._transfers_of(parts)

    def _transfers_of(self, parts: Sequence[CollectivePart]) -> Transfers:
        """Lower bounds on the transfers of some parts (pieces of tiles) of a collective.

        The bounds are cached for all steps on the topology.
        """
        cache: dict[Any, Any] = self.topology.cache
        key = "bound of transfers", self._merging, *map(self._alike, parts)
        if key in cache:
            known: Transfers = cache[key]
            return known
        problem, one = (
            problem_of(self.workload, self.topology, some, clauses=self.clauses)
            for some in (parts, parts[:1])
        )
        # All parts have equal groups, so a symmetry of one part is a symmetry of all.
        orbits = find_symmetries(one).ranks.tolist()
        limit_s = _BOUND_S / len(set(orbits))
        from_us, to_us = (
            {rank: _bound_us(only(problem, rank), limit_s) for rank in set(orbits)}
            for only in (_contributed, _received)
        )
        found = Transfers(
            _bound_us(problem, _BOUND_S), [from_us[r] for r in orbits], [to_us[r] for r in orbits]
        )
        cache[key] = found
        return found

    def _alike(self, part: CollectivePart) -> tuple[object, ...]:
        """Key of a part: equal for parts with the same collective, groups and size in any step."""
        operation = self.workload.operation[part.operation]
        return operation.kind, operation.shift, part.groups, part.chunk_bytes

    def sent(self, names: frozenset[str]) -> Fraction:
        """Lower bound in us on the transfers of several collectives together; cached by topology."""
        sums = self._sums(names)
        parts = [part for part in self.parts if part.operation in names - set(sums.values())]
        cache: dict[Any, Any] = self.topology.cache
        each = ((*self._alike(part), part.operation in sums) for part in parts)
        key = ("bound of sends", self._merging, *each)
        if key not in cache:
            problem = problem_of(self.workload, self.topology, parts, sums=sums, clauses=self.clauses)
            cache[key] = _bound_us(problem, _BOUND_S)
        known: Fraction = cache[key]
        return known

    def _sums(self, names: frozenset[str]) -> dict[str, str]:
        """{allgather: reduce-scatter} pairs that together form an allreduce of each chunk."""
        found: dict[str, str] = {}
        operation = self.workload.operation
        cut = {name: [(p.chunk_bytes, p.groups) for p in self.parts if p.operation == name] for name in names}
        for name in sorted(each for each in names if operation[each].kind == "allgather"):
            for each in sorted(self.workload.needed(name) & names - set(found.values())):
                if operation[each].kind == "reduce_scatter" and cut[each] == cut[name]:
                    found[name] = each
                    break
        return found

    def best(self) -> Fraction:
        """Largest of the lower bounds on the step's finish, in us; the module docstring derives all four."""
        found = max(
            (
                max(min(self.starts[name]) + self.spans[name], self.last[name] + min(self.tails[name]))
                for name in self.starts
            ),
            default=_NOTHING,
        )
        found = max(found, self._computed())
        sent = [each.name for each in self.workload.operations if each.is_collective]
        head, tail = ({name: min(some[name]) for name in sent} for some in (self.starts, self.tails))
        candidates = {
            frozenset(n for n in sent if head[n] >= a and tail[n] >= b): a + b
            for a in sorted(set(head.values()))
            for b in sorted(set(tail.values()))
        }
        candidates.pop(frozenset(), None)
        # The bound of several collectives is at most the sum of their bounds, and usually close to it.
        ranked = sorted(
            candidates, key=lambda some: candidates[some] + sum(self.transfers(name).all_us for name in some)
        )
        for some in ranked[-_MOST_SETS:]:
            found = max(found, candidates[some] + self.sent(some))
        return found

    def _computed(self) -> Fraction:
        """Largest bound over ranks from the single-machine relaxation of their computation."""
        names = [each.name for each in self.workload.operations if not each.is_collective]
        alike = {
            tuple((self.starts[name][rank], self.whole[name], self.tails[name][rank]) for name in names)
            for rank in range(self.topology.num_ranks)
        }
        return max((_single_machine(jobs) for jobs in alike), default=_NOTHING)


def _single_machine(jobs: Iterable[tuple[Fraction, Fraction, Fraction]]) -> Fraction:
    """Carlier's single-machine bound, the largest over all sets of jobs (head, time, tail)."""
    by_tail, found = sorted(jobs, key=lambda job: -job[2]), _NOTHING
    for least in {head for head, _, _ in by_tail}:
        us = least
        for head, takes, tail in by_tail:
            if head >= least:
                us += takes
                found = max(found, us + tail)
    return found


def _bound_us(problem: Problem | None, limit_s: float) -> Fraction:
    return _NOTHING if problem is None else lower_bound(problem, budget_s=limit_s).bound


def _contributed(problem: Problem, rank: int) -> Problem | None:
    """Problem in which only one rank's contributions are sent; None if no other rank needs them."""
    chunks = problem.collective.chunks
    late = tuple((index, rank, Fraction(1)) for index, chunk in enumerate(chunks) if rank in chunk.origins)
    return late_part(replace(problem, release_us=late), Fraction(1))


def _received(problem: Problem, rank: int) -> Problem | None:
    """Problem in which only one rank needs its results; None if it has them from the start."""
    collective = problem.collective
    root = rank if collective.combining else None
    kept = {
        index: replace(chunk, destinations=(rank,), root=root)
        for index, chunk in enumerate(collective.chunks)
        if rank in chunk.destinations
    }
    kept = {index: each for index, each in kept.items() if not each.is_met(is_sum=collective.sums_up)}
    if not kept:
        return None
    part = replace(collective, chunks=tuple(kept.values()), groups=())
    sizes = tuple(problem.chunk_bytes[index] for index in kept)
    return replace(problem, collective=part, chunk_bytes=sizes)

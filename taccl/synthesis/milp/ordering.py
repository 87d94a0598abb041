"""Stages 2 and 3: the order of a routing's sends on each resource, and the merging of consecutive sends.

Ordering uses a named rule, which gives priorities for the list scheduler; it always starts the most urgent
send that can start. Source: the heuristics of Shah et al., "TACCL", NSDI 2023, section 5.2; their tool
selects them by number.

Contiguity is a MILP of linear size: sends keep their order, and a binary per send of a merging link says
whether it starts a batch. Merging saves alpha, but the first chunks of a batch wait for its last. Every block
of rows has a tag (`TAGS`). The rows are exact: their optimum is the optimum over all ways to merge. Source:
section 5.3 of that paper; the rows here are those of a cumulative completion time, which avoids products of
binaries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from numpy.typing import NDArray

from taccl.errors import InputError
from taccl.solvers.model import MilpModel
from taccl.synthesis.milp.solutions import needed_entries, project
from taccl.synthesis.proposers.greedy import ListSchedule, Send, expand, list_schedule, send_of
from taccl.synthesis.symmetry.quotient import Held, Hop, Quotient

if TYPE_CHECKING:
    import numpy as np


def order(quotient: Quotient, rule: str = "longest-path-first") -> ListSchedule | None:
    """Schedule of a routing's hops under an ordering rule; None if the list scheduler finds none.

    - `quotient`: Restricted to the hops of a routing.
    - `rule`: One of `RULES`.

    Raises `InputError` if the rule is unknown.
    """
    if rule not in RULES:
        raise InputError(f"found {rule!r}; expected one of {', '.join(RULES)}", where="rule")
    remaining = _remaining(quotient)
    longest = max(remaining, default=0)
    priorities = [
        RULES[rule](quotient, hop, left, longest) for hop, left in zip(quotient.hops, remaining, strict=True)
    ]
    return list_schedule(quotient, priorities)


def best_order(
    quotient: Quotient, starts: Mapping[tuple[int, int], int] | None = None
) -> tuple[ListSchedule, str] | None:
    """(best schedule over all rules, name of its rule); None if no rule gives one.

    - `starts`: {(chunk, link): start in ticks} of the routing model, whose order is then tried, too.
    """
    tried = [(order(quotient, rule), rule) for rule in RULES]
    if starts is not None:
        tried.append((_as_planned(quotient, starts), "as routed"))
    found = [(schedule, rule) for schedule, rule in tried if schedule is not None]
    return min(found, key=lambda each: each[0].finish_ticks, default=None)


def _as_planned(quotient: Quotient, starts: Mapping[tuple[int, int], int]) -> ListSchedule | None:
    """Schedule of unmerged hops in the order of `starts`, re-timed; None if the order would deadlock."""
    sends = [
        Send(hop.link_orbit, (m,), start := starts[hop.chunk, hop.link], start + hop.duration)
        for m, hop in enumerate(quotient.hops)
    ]
    try:
        return project(quotient, expand(quotient, sends, producer="as routed"))
    except ValueError:
        return None


def _remaining(quotient: Quotient) -> list[int]:
    """Ticks of the longest path from the start of each hop to the last arrival that depends on it.

    A multicast may lead back to a state that the chunk has passed; such cycles are ignored.
    """
    heights: dict[int, int] = {}
    under_way: set[int] = set()
    pending = list(range(len(quotient.hops)))
    while pending:
        m = pending[-1]
        after = {n for p in quotient.hops[m].dsts for n in quotient.states[p].hops_out}
        unknown = after - heights.keys() - under_way if m not in heights else ()
        if not unknown:
            longest = max((heights[n] for n in after if n in heights), default=0)
            heights[pending.pop()] = quotient.hops[m].duration + longest
        else:
            under_way.add(m)
        pending += unknown
    return [heights[m] for m in range(len(quotient.hops))]


#: {rule: function (quotient, hop, remaining, longest) -> priority of the hop}.
#: `remaining`: ticks of the longest path from the hop's start. `longest`: maximum of this over all hops.
RULES: dict[str, Callable[[Quotient, Hop, int, int], float]] = {
    "longest-path-first": lambda quotient, hop, remaining, longest: remaining,
    # Own chunks of the sender come before relayed ones; each kind is ordered by remaining path.
    "own-chunk-first": lambda quotient, hop, remaining, longest: remaining + longest * hop.is_own,
    # The hop with the earliest possible start comes first.
    "earliest-first": lambda quotient, hop, remaining, longest: -quotient.earliest_start(hop),
}


#: Tags of the blocks of rows of the contiguity model.
TAGS = (
    "contiguity.availability",
    "contiguity.finish",
    "contiguity.completion",
    "contiguity.batch",
    "contiguity.resource",
    "contiguity.max-merge",
)


class ContiguityModel:
    """The contiguity MILP of an ordering, and its variables.

    - `schedule`: A schedule whose order is kept: of hops on each resource, and of chunks in each merged send.
      Hops on which no destination depends are left out.
    - `start`, `arrival`: {hop: variable}.
    - `begins`: {hop: variable u, 1 if the hop starts a batch}, for hops on merging links.
    - `order` (tuple of hop): The hops by start.
    """

    def __init__(self, quotient: Quotient, schedule: ListSchedule) -> None:
        entries = needed_entries(quotient, schedule)
        needed = set(entries.values())
        self.quotient, self.upper = quotient, schedule.finish_ticks / quotient.problem.costs.ticks_per_us
        self.model = model = MilpModel()
        finish = model.add_variable(0, self.upper, cost=1.0)
        self.order = tuple(m for send in schedule.sends for m in send.hops if m in needed)
        self.start = {m: model.add_variable(0, self.upper) for m in self.order}
        self.arrival = {m: model.add_variable(0, self.upper) for m in self.order}
        merging = [m for m in self.order if quotient.merging[quotient.hops[m].link_orbit]]
        self.begins = {m: model.add_variable(0, 1, integer=True) for m in merging}
        self._availability(entries)
        rows: dict[int, list[int]] = defaultdict(list)
        for m in self.order:
            self.add("finish", [(1.0, finish), (-1.0, self.arrival[m])])
            rows[quotient.hops[m].link_orbit].append(m)
        lanes = {link: _Lane(self, link, row) for link, row in sorted(rows.items())}
        self._resources(lanes, schedule)

    def add(self, tag: str, terms: Iterable[tuple[float, int]], least: float = 0.0) -> None:
        """Add a row ``terms >= least``."""
        self.model.add_row(terms, least, tag=f"contiguity.{tag}")

    def _availability(self, entries: Mapping[int, int]) -> None:
        """Let a chunk be forwarded only after its arrival."""
        for m in self.order:
            for p in self.quotient.hops[m].srcs:
                if not self.quotient.states[p].is_origin:
                    self.add("availability", [(1.0, self.start[m]), (-1.0, self.arrival[entries[p]])])

    def _resources(self, lanes: Mapping[int, _Lane], schedule: ListSchedule) -> None:
        """Add rows that let each hop start only once the previous hop on a shared resource has ended.

        Hops that merge into one send do not wait for each other.
        """
        queues: dict[int, list[tuple[int, int, int, Held]]] = defaultdict(list)
        for number, send in enumerate(schedule.sends):
            units = sum(self.quotient.hops[m].units for m in send.hops)
            for held in self.quotient.holds[send.link]:
                length = held.alpha + units * held.beta
                begin = send.end_ticks - length if held.receives else send.start_ticks
                queues[held.resource] += [(begin, number, m, held) for m in send.hops if m in self.start]
        for _, queue in sorted(queues.items()):
            queue.sort(key=lambda each: each[:2])
            for (_, one, a, held_by_a), (_, other, b, held_by_b) in pairwise(queue):
                first, second = (lanes[schedule.sends[i].link] for i in (one, other))
                end, end_us = first.hold_end(a, held_by_a)
                begins, begin_us = second.hold_begin(b, held_by_b)
                row, least = [*begins, *((-factor, variable) for factor, variable in end)], end_us - begin_us
                if first is second and first.merges:
                    row.append((-self.upper, self.begins[b]))
                    least -= self.upper
                self.add("resource", row, least)


class _Lane:
    """The hops of one link in order, with their completion times and occupations of resources."""

    def __init__(self, whole: ContiguityModel, link: int, row: list[int]) -> None:
        quotient, self.whole, self.row = whole.quotient, whole, row
        costs, rep = quotient.problem.costs, quotient.link_rep[link]
        self.per_us, self.upper = costs.ticks_per_us, whole.upper
        self.merges = quotient.merging[link]
        self.alpha = int(costs.link_alpha[rep]) / self.per_us
        self.beta = int(costs.link_beta[rep]) / self.per_us
        self.units = {m: quotient.hops[m].units for m in row}
        holds = quotient.holds[link]
        # Min time between the ends of two successive batches, less beta times the units of the second.
        even = [alpha for alpha, beta in map(self.costs, holds) if beta == self.beta]
        self.done = self._cumulative("completion", self.alpha, self.beta, max(even, default=-self.upper))
        for m in row:
            whole.add("completion", [(1.0, whole.arrival[m]), (-1.0, self.done[m])])
        uneven = [held for held in holds if self.merges and self.costs(held)[1] != self.beta]
        self.released = {
            held: self._cumulative("resource", *self.costs(held), self.costs(held)[0])
            for held in uneven
            if not held.receives
        }
        self.rest = self._rest() if any(held.receives for held in uneven) else {}
        is_own = {m: quotient.hops[m].is_own for m in row if rep in quotient.problem.clauses.own_first}
        if len(set(is_own.values())) > 1:
            self._own_first(is_own)
        if self.merges:
            self._batches(is_own, quotient.problem.clauses.max_merge)

    def costs(self, held: Held) -> tuple[float, float]:
        """(alpha, beta) costs, in us, of the occupation of a resource by a send."""
        return held.alpha / self.per_us, held.beta / self.per_us

    def _cumulative(self, tag: str, alpha: float, beta: float, gap: float) -> dict[int, int]:
        """{hop: variable of the start of its batch + alpha + beta * units of the batch up to this hop}."""
        whole = self.whole
        so_far = {m: whole.model.add_variable(0, self.upper) for m in self.row}
        for m in self.row:
            whole.add(tag, [(1.0, so_far[m]), (-1.0, whole.start[m])], alpha + beta * self.units[m])
        for before, m in self.neighbours():
            step = [(1.0, so_far[m]), (-1.0, so_far[before]), (-gap, whole.begins[m])]
            whole.add(tag, step, beta * self.units[m])
        return so_far

    def _rest(self) -> dict[int, int]:
        """{hop: variable for the total units of this hop and of all later hops in its batch}.

        The rows only bound the variable from above.
        """
        whole, total = self.whole, sum(self.units.values())
        rest = {m: whole.model.add_variable(0, total) for m in self.row}
        for m, after in self.neighbours():
            whole.add("resource", [(1.0, rest[after]), (-1.0, rest[m])], -self.units[m])
            alone = [(-1.0, rest[m]), (-float(total), whole.begins[after])]
            whole.add("resource", alone, -self.units[m] - total)
        whole.add("resource", [(-1.0, rest[self.row[-1]])], -self.units[self.row[-1]])
        return rest

    def neighbours(self) -> list[tuple[int, int]]:
        """Pairs of consecutive hops that may be in one batch."""
        return list(pairwise(self.row)) if self.merges else []

    def hold_begin(self, m: int, held: Held) -> tuple[list[tuple[float, int]], float]:
        """(terms, constant) of the time from which the send that begins with hop m occupies a resource."""
        alpha, beta = self.costs(held)
        terms = [(1.0, self.whole.start[m])]
        if not held.receives:
            return terms, 0.0
        if beta != self.beta and self.merges:
            return [*terms, (self.beta - beta, self.rest[m])], self.alpha - alpha
        return terms, self.alpha - alpha + (self.beta - beta) * self.units[m]

    def hold_end(self, m: int, held: Held) -> tuple[list[tuple[float, int]], float]:
        """(terms, constant) of the time at which the send that ends with hop m releases a resource."""
        alpha, beta = self.costs(held)
        if held.receives:
            return [(1.0, self.done[m])], 0.0
        if beta == self.beta:
            return [(1.0, self.done[m])], alpha - self.alpha
        if not self.merges:
            return [(1.0, self.whole.start[m])], alpha + beta * self.units[m]
        return [(1.0, self.released[held][m])], 0.0

    def _own_first(self, is_own: Mapping[int, bool]) -> None:
        """Let relayed chunks start at least an unmerged send's duration after each own chunk starts."""
        free = self.whole.model.add_variable(0, self.upper)
        for m, own in is_own.items():
            start = self.whole.start[m]
            latency = self.alpha + self.beta * self.units[m] if own else 0.0
            row = [(1.0, free), (-1.0, start)] if own else [(1.0, start), (-1.0, free)]
            self.whole.add("availability", row, latency)

    def _batches(self, is_own: Mapping[int, bool], max_merge: int) -> None:
        """Let hops of one batch, at most `max_merge`, share their start and their arrival."""
        whole = self.whole
        start, arrival, begins = whole.start, whole.arrival, whole.begins
        whole.add("batch", [(1.0, begins[self.row[0]])], 1)
        for before, m in self.neighbours():
            whole.add("batch", [(1.0, start[m]), (-1.0, start[before])])
            whole.add("batch", [(1.0, arrival[before]), (-1.0, arrival[m]), (self.upper, begins[m])])
            whole.add("batch", [(1.0, start[before]), (-1.0, start[m]), (self.upper, begins[m])])
            if is_own and is_own[m] != is_own[before]:
                whole.add("batch", [(1.0, begins[m])], 1)
        for place in range(max_merge, len(self.row)):
            window = self.row[place - max_merge + 1 : place + 1]
            whole.add("max-merge", [(1.0, begins[n]) for n in window], 1)


def merged(contiguity: ContiguityModel, values: NDArray[np.float64]) -> ListSchedule:
    """Schedule from a solution of the contiguity MILP: each batch is one send, at a time in whole ticks."""
    quotient = contiguity.quotient
    batches: list[list[int]] = []
    open_batch: dict[int, list[int]] = {}
    for m in contiguity.order:
        link = quotient.hops[m].link_orbit
        if m in contiguity.begins and values[contiguity.begins[m]] < 0.5:
            open_batch[link].append(m)
            continue
        open_batch[link] = [m]
        batches.append(open_batch[link])
    per_us = quotient.problem.costs.ticks_per_us
    sends = [
        send_of(quotient, hops, max(round(values[contiguity.start[m]] * per_us) for m in hops))
        for hops in batches
    ]
    sends.sort(key=lambda send: send.start_ticks)
    return ListSchedule(tuple(sends), max(send.end_ticks for send in sends))

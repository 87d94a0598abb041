"""Event-driven list scheduler: whenever a link and its resources are free, it sends the most urgent chunk.

It works on a `Quotient`, so it obeys every clause of the sketch. It makes the first schedule of every
synthesis (all hops allowed) and the schedules of the ordering rules (only the hops of one routing). It also
repairs the output of solvers.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taccl._internal.deadline import NEVER, Deadline
from taccl.schedule.combine import prune
from taccl.schedule.timing import exact_times

if TYPE_CHECKING:
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.symmetry.quotient import Quotient


@dataclass(frozen=True, slots=True)
class Send:
    """Hops that start together over one orbit of links, merged into one send."""

    link: int
    hops: tuple[int, ...]
    start_ticks: int
    end_ticks: int


def send_of(quotient: Quotient, hops: Sequence[int], start_ticks: int) -> Send:
    """Merge hops over one orbit of links into a send that starts at `start_ticks`."""
    link = quotient.hops[hops[0]].link_orbit
    units = sum(quotient.hops[m].units for m in hops)
    end_ticks = start_ticks + quotient.problem.costs.duration(quotient.link_rep[link], units)
    return Send(link, tuple(hops), start_ticks, end_ticks)


@dataclass(frozen=True, slots=True)
class ListSchedule:
    """Sends on the quotient, in order of start; and the last arrival at a destination, in ticks."""

    sends: tuple[Send, ...]
    finish_ticks: int


def critical_priorities(quotient: Quotient, *, noise: float = 0.0, seed: int = 0) -> list[float]:
    """Priority per hop in ticks: time from the hop's start to the farthest destination behind it, plus noise.

    Only destinations to which a shortest path contains the hop count. A hop without such destinations has its
    negative duration as priority. The noise is uniform, from 0 to `noise` times the median duration of a hop.
    """
    rng = random.Random(seed)
    durations = sorted(hop.duration for hop in quotient.hops) or [1]
    width = noise * durations[len(durations) // 2]
    priorities = []
    for hop in quotient.hops:
        urgency = hop.duration + hop.tail_ticks if hop.tail_ticks >= 0 else -hop.duration
        priorities.append(urgency - 0.01 * hop.duration + width * rng.random())
    return priorities


def list_schedule(
    quotient: Quotient,
    priorities: Sequence[float],
    *,
    limit_ticks: int | None = None,
    deadline: Deadline = NEVER,
) -> ListSchedule | None:
    """Schedule on the quotient by event-driven list scheduling; None if it cannot finish before the limit.

    Once a chunk is in a node, or on its way there, it is copied within the node. It is sent there again over
    the slow links between nodes only if nothing else is under way.

    - `priorities` (sequence of float, per hop): Higher goes first.
    - `limit_ticks`: Finish to beat; None for no limit.

    Raises `OutOfTime` once the deadline has passed.
    """
    # Settings (enter_once, detours, fewest) to try until one finds a schedule, as each may end in a dead end.
    # If there is a limit, a schedule is known already, and only the first setting is tried.
    # Detours: a chunk with one destination may reach a rank that it cannot leave; shortest paths avoid that.
    # `enter_once`: no link sends a chunk into a node that the chunk has entered, or is on its way to.
    # So a local-first link may skip its own rank's chunk, and cannot send it after relayed chunks.
    # Limited paths: a chunk may come over too many links to continue; paths of the fewest links avoid that.
    tries = [(True, True, False), (True, False, False), (False, True, False), (False, False, False)]
    if quotient.hop_limit is not None:
        tries.append((False, True, True))
    for enter_once, detours, fewest in tries:
        machine = _Machine(
            quotient, priorities, limit_ticks, enter_once=enter_once, detours=detours, fewest=fewest
        )
        found = machine.run(deadline)
        if found is not None or limit_ticks is not None:
            return found
    return None


class _Machine:
    """State of one run of the list scheduler."""

    def __init__(
        self, quotient: Quotient, priorities: Sequence[float], limit_ticks: int | None,
        *, enter_once: bool, detours: bool, fewest: bool,
    ) -> None:  # fmt: skip
        self.quotient, self.priorities, self.limit = quotient, priorities, limit_ticks
        self.enter_once, self.detours = enter_once, detours
        self.entered = [False] * quotient.num_entries
        clauses, costs, count = quotient.problem.clauses, quotient.problem.costs, len(quotient.states)
        self.max_merge = clauses.max_merge
        self.own_first = [e in clauses.own_first for e in quotient.link_rep]
        self.alpha = [int(costs.link_alpha[e]) for e in quotient.link_rep]
        self.beta = [int(costs.link_beta[e]) for e in quotient.link_rep]
        self.claimed = [state.is_origin for state in quotient.states]
        self.stays = [_stays(quotient, m) for m in range(len(quotient.hops))]
        #: `leaves`: Source states (chunk, rank) of each hop. `left`: Source states of all sends so far.
        #: Where a rank derives a chunk, it shares a state with its base chunk; an offset tells them apart.
        apart = count * bool(quotient.problem.collective.derivations)
        self.leaves = [[p + apart * hop.chunk for p in hop.srcs] for hop in quotient.hops]
        self.left: set[int] = set()
        #: `passed`: Number of links that the copy at each state has passed.
        #: `hop_limit`: Max number of links that a copy may pass; None if there is no limit.
        self.passed, self.hop_limit = [0] * count, quotient.hop_limit
        counts = quotient.hop_limit if fewest else None
        #: With `fewest`, true for each hop on a path of fewest links; otherwise true for all hops.
        self.is_short = [
            counts is None or counts.is_shortest(m, hop, alone=quotient.single_path[hop.chunk])
            for m, hop in enumerate(quotient.hops)
        ]
        self.sources_missing = [len(hop.srcs) for hop in quotient.hops]
        self.missing = sum(p.is_destination and not p.is_origin for p in quotient.states)
        self.free_at = [0] * quotient.num_resources
        self.ready: list[list[tuple[float, int]]] = [[] for _ in quotient.link_rep]
        self.relayed_from = [0] * len(quotient.link_rep)
        self.relayed_gone: set[int] = set()
        self.events: list[tuple[int, int, int]] = []
        self.sends: list[Send] = []
        self.finish = 0
        self.under_way = 0

    def run(self, deadline: Deadline) -> ListSchedule | None:
        quotient, time = self.quotient, 0
        dirty: set[int] = set()
        for p, state in enumerate(quotient.states):
            if state.is_origin:
                self._arrive(p, dirty)
        while self.missing:
            deadline.check()
            self._start(time, dirty, force=False)
            if self.missing and not self.under_way:
                self._start(time, set(range(len(quotient.link_rep))), force=True)
            if self.limit is not None and self.finish >= self.limit:
                return None
            if not self.missing:
                break
            if not self.events:
                return None
            time, dirty = self.events[0][0], set()
            while self.events and self.events[0][0] == time:
                _, kind, what = heapq.heappop(self.events)
                if kind == 0:
                    self._arrive(what, dirty)
                elif kind == 1:
                    dirty.update(quotient.links_of_resource[what])
                elif kind == 2:
                    dirty.add(what)
                else:
                    self.under_way -= 1
        return ListSchedule(tuple(self.sends), self.finish)

    def _arrive(self, state: int, dirty: set[int]) -> None:
        """Record the arrival of a chunk at a rank, and queue the hops that can now go.

        A hop is queued once all its sources have arrived, if `_may_go` permits.

        - `state`: Index of the chunk and rank in the quotient's `states`.
        - `dirty`: Links to try next; the links of queued hops are added.
        """
        for m in self.quotient.states[state].hops_out:
            self.sources_missing[m] -= 1
            if not self.sources_missing[m] and self._may_go(m, force=False):
                link = self.quotient.hops[m].link_orbit
                heapq.heappush(self.ready[link], (-self.priorities[m], m))
                dirty.add(link)

    def _useful(self, m: int) -> bool:
        hop = self.quotient.hops[m]
        if self.quotient.single_path[hop.chunk] and (
            self.stays[m]
            or any(p in self.left for p in self.leaves[m])
            or (hop.tail_ticks < 0 and not self.detours)
        ):
            return False
        if self.hop_limit is None:
            return not all(self.claimed[p] for p in hop.dsts)
        after = self.hop_limit.after(m, hop, self.passed)
        return self.is_short[m] and any(
            not self.claimed[p] and self.hop_limit.leads_on(after, p) for p in hop.dsts
        )

    def _may_go(self, m: int, force: bool) -> bool:
        """True if the hop is useful and, with `enter_once`, enters no node that its chunk enters already.

        - `force`: True to allow chunks that are already in that node, or on their way there.
        """
        entry = self.quotient.hops[m].enters
        return self._useful(m) and (force or not (self.enter_once and entry >= 0 and self.entered[entry]))

    def _start(self, time: int, dirty: set[int], *, force: bool) -> None:
        """Start all sends that can start at `time`, the most urgent first.

        - `force`: True to start one send only, which may enter a node that has its chunk already.
        """
        while dirty:
            offers = []
            for link in sorted(dirty):
                chosen = self._choose(link, time, force)
                if chosen:
                    offers.append((-self.priorities[chosen[0]], link, chosen))
            offers.sort()
            dirty = set()
            for _, link, chosen in offers:
                if self._is_free(link, chosen, time) and all(self._may_go(m, force) for m in chosen):
                    self._send(link, chosen, time)
                    if force:
                        return
                dirty.add(link)

    def _choose(self, link: int, time: int, force: bool) -> list[int]:
        """Hops that the link would send now: one, or as many as may merge; empty if none can start."""
        quotient = self.quotient
        if force:
            self.ready[link] = sorted(
                (-self.priorities[m], m)
                for m in quotient.hops_of_link[link]
                if not self.sources_missing[m] and self._useful(m)
            )
        queue = self.ready[link]
        while queue and not self._may_go(queue[0][1], force):
            heapq.heappop(queue)
        if not queue or not self._is_free(link, [queue[0][1]], time):
            return []
        if not quotient.merging[link] and not self.own_first[link]:
            return [queue[0][1]]
        self.ready[link] = sorted(entry for entry in queue if self._may_go(entry[1], force))
        candidates = [m for _, m in self.ready[link]]
        if self.own_first[link]:
            candidates = self._own_before_relayed(link, candidates, time, force)
        return candidates[: self.max_merge if quotient.merging[link] else 1]

    def _own_before_relayed(self, link: int, candidates: Sequence[int], time: int, force: bool) -> list[int]:
        """Candidates under local-first priority: own chunks; relayed ones once all own sends have begun.

        Relayed chunks also wait until the latency and transmission time of the last own send have passed.
        """
        hops = self.quotient.hops
        if link not in self.relayed_gone:
            own = (m for m in self.quotient.hops_of_link[link] if hops[m].is_own)
            if any(self._may_go(m, force) for m in own):
                return [m for m in candidates if hops[m].is_own]
            if time < self.relayed_from[link]:
                heapq.heappush(self.events, (self.relayed_from[link], 2, link))
                return []
        return [m for m in candidates if not hops[m].is_own]

    def _is_free(self, link: int, chosen: Sequence[int], time: int) -> bool:
        """True if every resource of the link is free; if not, it is tried again once one is released."""
        units = sum(self.quotient.hops[m].units for m in chosen)
        duration = self.alpha[link] + units * self.beta[link]
        for held in self.quotient.holds[link]:
            lead = duration - held.alpha - units * held.beta if held.receives else 0
            if self.free_at[held.resource] > time + lead:
                if lead:
                    heapq.heappush(self.events, (self.free_at[held.resource] - lead, 2, link))
                return False
        return True

    def _send(self, link: int, chosen: list[int], time: int) -> None:
        quotient = self.quotient
        units = sum(quotient.hops[m].units for m in chosen)
        end = time + self.alpha[link] + units * self.beta[link]
        for held in quotient.holds[link]:
            length = held.alpha + units * held.beta
            until = end if held.receives else time + length
            self.free_at[held.resource] = until
            heapq.heappush(self.events, (until, 1, held.resource))
        for m in chosen:
            hop = quotient.hops[m]
            if self.own_first[link] and hop.is_own:
                later = time + self.alpha[link] + hop.units * self.beta[link]
                self.relayed_from[link] = max(self.relayed_from[link], later)
            elif self.own_first[link]:
                self.relayed_gone.add(link)
            if hop.enters >= 0:
                self.entered[hop.enters] = True
            self.left.update(self.leaves[m])
            for p in hop.dsts:
                if not self.claimed[p]:
                    self.claimed[p] = True
                    if self.hop_limit is not None:
                        self.passed[p] = self.hop_limit.after(m, hop, self.passed)
                    heapq.heappush(self.events, (end, 0, p))
                    if quotient.states[p].is_destination:
                        self.missing -= 1
                        self.finish = max(self.finish, end)
        self.under_way += 1
        heapq.heappush(self.events, (end, 3, link))
        self.sends.append(Send(link, tuple(chosen), time, end))


def _stays(quotient: Quotient, m: int) -> bool:
    """True if the hop would move a chunk with a single destination away from that destination."""
    hop = quotient.hops[m]
    # A hop of a derived chunk may start at a state of its base chunk, which this check leaves out.
    shared = bool(quotient.problem.collective.derivations)
    ends = [quotient.states[p] for p in hop.srcs if not shared or quotient.states[p].chunk == hop.chunk]
    return any(state.is_destination and not state.is_origin for state in ends)


def expand(quotient: Quotient, sends: Sequence[Send], *, producer: str) -> Schedule:
    """Expand sends on the quotient to the schedule of the whole problem, pruned and exactly timed."""
    whole = [
        (send, pairs)
        for send in sends
        for pairs in quotient.group.sends(
            [(quotient.hops[m].chunk, quotient.hops[m].link) for m in send.hops]
        )
    ]
    rows = [(*pair, send.start_ticks, group) for group, (send, pairs) in enumerate(whole) for pair in pairs]
    columns = zip(*rows, strict=True) if rows else ((),) * 4
    timing = dict(zip(("chunk", "link", "starts", "group"), columns, strict=True))
    return prune(exact_times(quotient.problem, producer=producer, **timing))

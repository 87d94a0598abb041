"""When each message of a program is under way on a topology, if every rank goes on as soon as it can.

A step begins when the one before it in its threadblock, and those that it depends on, are done. A message
starts when its step has begun, the queue has room for it, and every resource that it holds is free; of
several that could go, the one that could start first goes first, and of equals the one to the next rank, then
to the one after that, so that ranks do not all send to one. What is received is taken out of the queue once
the receiving step has begun. Steps within a rank take no time.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from taccl.errors import InputError
from taccl.program.program import OPERATIONS, PROTOCOLS, Program, Queue, StepAddress

if TYPE_CHECKING:
    from taccl.problem import Problem
    from taccl.program.lift import TracedMessage


class Clock:
    """The run of one program on one topology.

    - `sent`: What the program sends, as `taccl.program.lift` traces it.
    - `links`: The link that each goes over.
    """

    def __init__(
        self, problem: Problem, program: Program, sent: Sequence[TracedMessage], links: Sequence[int]
    ) -> None:
        self.program, self.sent = program, sent
        self.room = PROTOCOLS[program.protocol]
        self.steps = {address: step for address, step in program.steps()}
        self.message_of = {each.step: m for m, each in enumerate(sent)}
        self.messages_into: dict[StepAddress, set[int]] = defaultdict(set)
        self.in_queue: dict[Queue, list[int]] = defaultdict(list)
        for m, each in enumerate(sent):
            self.in_queue[each.queue].append(m)
            for address in each.receivers:
                self.messages_into[address].add(m)
        self.followers: dict[StepAddress, list[StepAddress]] = defaultdict(list)
        self.num_awaited: dict[StepAddress, int] = {}
        for address, step in self.steps.items():
            rank, t, s = address
            awaited = {StepAddress(rank, *each) for each in step.depends}
            if s:
                awaited.add(StepAddress(rank, t, s - 1))
            self.num_awaited[address] = len(awaited)
            for other in awaited:
                self.followers[other].append(address)
        costs, units = problem.costs, problem.costs.chunk_units.tolist()
        holds_of_link: dict[int, list[int]] = defaultdict(list)
        for index, hold in enumerate(problem.topology.holds):
            holds_of_link[hold.link].append(index)
        #: By message: ticks from start to end, and until its step is done; (resource, begin, until) it holds.
        self.duration: list[int] = []
        self.occupied: list[int] = []
        self.holds: list[list[tuple[int, int, int]]] = []
        for each, link in zip(sent, links, strict=True):
            total = sum(units[chunk] for chunk in each.chunks)
            duration, occupied, holds = costs.duration(link, total), 0, []
            for index in holds_of_link[link]:
                hold = problem.topology.holds[index]
                held = int(costs.hold_alpha[index]) + total * int(costs.hold_beta[index])
                if hold.side == "send":
                    occupied = max(occupied, held)
                    holds.append((hold.resource, 0, held))
                else:
                    holds.append((hold.resource, duration - held, duration))
            self.duration.append(duration)
            self.occupied.append(occupied or duration)
            self.holds.append(holds)

    def run(self) -> list[int]:
        """The start of every message in ticks."""
        count = len(self.sent)
        self.start, self.ready = [-1] * count, [-1] * count
        self.taken: list[list[int]] = [[] for _ in range(count)]  # when each of its chunks was taken out
        self.missing = dict(self.num_awaited)
        self.begin = dict.fromkeys(self.steps, 0)
        self.begun: set[StepAddress] = set()
        self.coming = {address: len(messages) for address, messages in self.messages_into.items()}
        self.waiting: list[tuple[int, int, int, int]] = []
        self.free: dict[int, int] = defaultdict(int)
        for address in [each for each, num in self.num_awaited.items() if not num]:
            self._begin(address)
        while self.waiting:
            first, ready, turn, m = heapq.heappop(self.waiting)
            start = ready
            for resource, begin, _ in self.holds[m]:
                start = max(start, self.free[resource] - begin)
            if start > first:
                heapq.heappush(self.waiting, (start, ready, turn, m))
            else:
                self._send(m, start)
        if min(self.start, default=0) < 0:
            stuck = self.sent[self.start.index(-1)]
            raise InputError(
                f"{stuck.step} waits for room {stuck.queue} for ever when a queue holds {self.room} whole "
                "sends; send fewer chunks in a step",
                where="program",
            )
        return self.start

    def _begin(self, address: StepAddress) -> None:
        """What a step waits for within its rank is done."""
        # Without recursion: chains of steps are long.
        pending = [address]
        while pending:
            address = pending.pop()
            self.begun.add(address)
            for m in self.messages_into.get(address, ()):
                if self.start[m] >= 0:
                    self._take(m, address)
            pending += self._go_on(address)

    def _go_on(self, address: StepAddress) -> list[StepAddress]:
        """Send or end a step that has begun, once all it receives is there; returns what then begins."""
        if self.coming.get(address):
            return []
        when = self.begin[address]
        for m in self.messages_into.get(address, ()):
            when = max(when, self.start[m] + self.duration[m])
        if OPERATIONS[self.steps[address].operation].sends:
            m = self.message_of[address]
            self.ready[m] = when
            self._offer(m)
            return []
        return self._done(address, when)

    def _done(self, address: StepAddress, when: int) -> list[StepAddress]:
        begins = []
        for follower in self.followers.get(address, ()):
            self.begin[follower] = max(self.begin[follower], when)
            self.missing[follower] -= 1
            if not self.missing[follower]:
                begins.append(follower)
        return begins

    def _offer(self, m: int) -> None:
        """Let a message compete for its resources, if it is ready and its queue has room."""
        queue, place = self.in_queue[self.sent[m].queue], self.sent[m].place
        if self.ready[m] < 0 or self.start[m] >= 0:
            return
        ready = self.ready[m]
        if place >= self.room:
            before = queue[place - self.room]
            if len(self.taken[before]) < len(self.sent[before].chunks):
                return
            ready = max(ready, *self.taken[before])
        turn = (self.sent[m].queue.dst - self.sent[m].queue.src) % self.program.num_ranks
        heapq.heappush(self.waiting, (ready, ready, turn, m))

    def _send(self, m: int, start: int) -> None:
        assert self.start[m] < 0, "a message is sent once"
        self.start[m] = start
        for resource, _, until in self.holds[m]:
            self.free[resource] = max(self.free[resource], start + until)
        for address in self._done(self.sent[m].step, start + self.occupied[m]):
            self._begin(address)
        receivers = dict.fromkeys(self.sent[m].receivers)
        for address in receivers:
            self.coming[address] -= 1
        # Those that begin because of the others take it when they do.
        for address in [each for each in receivers if each in self.begun]:
            self._take(m, address)
            for follower in self._go_on(address):
                self._begin(follower)

    def _take(self, m: int, address: StepAddress) -> None:
        """Take out of the queue what a step that has begun receives of a message that is under way."""
        when = max(self.begin[address], self.start[m] + self.duration[m])
        self.taken[m] += [when] * self.sent[m].receivers.count(address)
        if len(self.taken[m]) == len(self.sent[m].chunks):
            queue, later = self.in_queue[self.sent[m].queue], self.sent[m].place + self.room
            if later < len(queue):
                self._offer(queue[later])

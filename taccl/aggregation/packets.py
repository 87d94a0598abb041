"""Packet protocol by which a switch sums, simulated packet by packet over a network with losses.

Data is cut into packets. A worker keeps one packet in flight for each slot: packet p of a slot is followed by
p + slots, sent once the sum of p has arrived. A slot has two versions, used alternately. The switch records
for each version which workers have contributed, so that duplicates are not added twice. The version not in
use keeps its sum (the shadow copy) for workers that did not receive it. No worker can be two packets of a
slot ahead of another, as no sum is complete without all of them. A worker without an answer sends again after
a timeout.

Protocol: A. Sapio et al., "Scaling distributed machine learning with in-network aggregation", NSDI 2021. Here
packets carry their number, so that duplicates that are late by two versions are recognised as well.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from taccl._internal.arguments import Count, Natural, checked
from taccl._internal.units import format_count
from taccl.errors import InputError

#: Max sends of a packet, after which the worker gives up.
_MOST_SENDS = 200
#: Upper limit of the simulated contributions, so large that a wrong sum is never right by chance.
_LARGEST = 2**48


@checked
@dataclass(frozen=True)
class PacketRun:
    """Counts of packets sent, lost and summed.

    Parameters
    ----------
    wrong : tuple of (int, int)
        (worker, packet) pairs whose sum was wrong: it did not contain each worker's contribution exactly
        once.
    missing : int
        Number of sums that never arrived.
    sent, lost, repeated : int
        Numbers of packets that workers sent, that the network lost in either direction, and that workers sent
        again, respectively.
    time_us : float
        Time in us until the last sum arrived.
    goodput_gb_per_s : float
        Data summed per time, in GB/s (10**9 bytes per second).
    """

    wrong: tuple[tuple[int, int], ...]
    missing: int
    sent: int
    lost: int
    repeated: int
    time_us: float
    goodput_gb_per_s: float

    @property
    def ok(self) -> bool:
        """True if every worker received every sum, and all sums are correct."""
        return not self.wrong and not self.missing

    def __str__(self) -> str:
        verdict = "every sum right" if self.ok else f"{len(self.wrong)} wrong, {self.missing} missing"
        return (
            f"{format_count(self.sent, 'packet')} sent, {self.lost} lost, {self.repeated} repeated: "
            f"{verdict}, {self.goodput_gb_per_s:.3f} GB/s"
        )


@checked
def simulate_packets(
    packets: Count,
    *,
    workers: Count = 8,
    slots: Count = 512,
    payload_bytes: Count = 1024,
    gb_per_s: float = 12.5,
    rtt_us: float = 10.0,
    loss: float = 0.0,
    duplicates: float = 0.0,
    reordering: float = 0.0,
    timeout_us: float | None = None,
    shadow_copy: bool = True,
    seed: Natural = 0,
) -> PacketRun:
    """Simulate summation of packets at a switch, over a network that loses, duplicates and delays packets.

    Parameters
    ----------
    packets : int
        Number of packets that each worker contributes.
    workers, slots, payload_bytes, gb_per_s, rtt_us
        As in `taccl.topologies.in_network`.
    loss, duplicates, reordering : float
        Probabilities that a packet, in either direction, is lost, is duplicated, or is late by up to three
        round trips, respectively.
    timeout_us : float, optional
        Timeout in us after which a worker sends again; default: four round trips.
    shadow_copy : bool
        False for slots with one version, which is reused for the next sum as soon as a sum is complete.
    seed : int
        Seed of the contributions, and of losses, duplicates and delays.
    """
    for name, part in (("loss", loss), ("duplicates", duplicates), ("reordering", reordering)):
        if not 0 <= part < 1:
            raise InputError(f"found {part}; expected a share of the packets, from 0 to below 1", where=name)
    for name, value in (("gb_per_s", gb_per_s), ("rtt_us", rtt_us), ("timeout_us", timeout_us or 1)):
        if not 0 < value < float("inf"):
            raise InputError(f"found {value}; expected a number above 0", where=name)
    numbers = random.Random(f"contributions {seed}")
    run = _Run(
        [[numbers.randrange(_LARGEST) for _ in range(workers)] for _ in range(packets)], slots,
        payload_bytes / gb_per_s / 1000, rtt_us, timeout_us or 4 * rtt_us, (loss, duplicates, reordering),
        shadow_copy, random.Random(seed),
    )  # fmt: skip
    run.play()
    missing = packets * workers - len(run.got)
    summed = (packets - missing / workers) * payload_bytes
    rate = summed / run.last_us / 1000 if run.last_us else 0.0
    sent = sum(run.num_sends.values())
    repeated = sent - len(run.num_sends)
    return PacketRun(tuple(run.wrong), missing, sent, run.lost, repeated, run.last_us, rate)


@dataclass(slots=True)
class _Slot:
    """One version of a slot: its packet, the workers that contributed (as bits), and the partial sum."""

    packet: int = -1
    seen: int = 0
    sum: int = 0


@dataclass
class _Run:
    """State of the workers, the switch and the packets in flight.

    - `given`: Contribution of each worker to each packet, indexed [packet][worker].
    """

    given: list[list[int]]
    slots: int
    send_us: float
    rtt_us: float
    timeout_us: float
    odds: tuple[float, float, float]  # probabilities that a packet is lost, is duplicated, is late
    shadow_copy: bool
    random: random.Random
    lost: int = 0
    last_us: float = 0.0
    wrong: list[tuple[int, int]] = field(default_factory=list)
    got: set[tuple[int, int]] = field(default_factory=set)
    num_sends: Counter[tuple[int, int]] = field(default_factory=Counter)
    queue: list[tuple[float, int, Callable[..., None], tuple[int, ...]]] = field(default_factory=list)

    def play(self) -> None:
        """Process all events in order of time."""
        workers = len(self.given[0])
        self.pool = [(_Slot(), _Slot()) for _ in range(self.slots)]
        self.out_free, self.in_free = [0.0] * workers, [0.0] * workers
        self.everyone, self.counter = (1 << workers) - 1, count()
        for worker in range(workers):
            for packet in range(min(self.slots, len(self.given))):
                self._send(0.0, worker, packet)
        while self.queue:
            now, _, happens, what = heappop(self.queue)
            happens(now, *what)

    def _post(self, when: float, happens: Callable[..., None], *what: int) -> None:
        heappush(self.queue, (when, next(self.counter), happens, what))

    def _pass(self, free: list[float], now: float, happens: Callable[..., None], *what: int) -> float:
        """Send a packet through a worker's port; return the time at which the transmission begins.

        Half a round trip later, or later still, `happens` is called for each arrival: once, twice or never.
        """
        worker = what[0]
        begin = max(now, free[worker])
        free[worker] = begin + self.send_us
        loss, duplicates, reordering = self.odds
        for _ in range(1 + self._is(duplicates)):
            if self._is(loss):
                self.lost += 1
                continue
            late = self._is(reordering) and self.random.random() * 3 * self.rtt_us
            self._post(begin + self.rtt_us / 2 + late, happens, *what)
        return begin

    def _is(self, odds: float) -> bool:
        return odds > 0 and self.random.random() < odds

    def _send(self, now: float, worker: int, packet: int) -> None:
        """Send a packet from a worker, and start its timeout."""
        self.num_sends[worker, packet] += 1
        begin = self._pass(self.out_free, now, self._at_switch, worker, packet)
        self._post(begin + self.timeout_us, self._at_timeout, worker, packet)

    def _at_timeout(self, now: float, worker: int, packet: int) -> None:
        if (worker, packet) not in self.got and self.num_sends[worker, packet] < _MOST_SENDS:
            self._send(now, worker, packet)

    def _at_switch(self, now: float, worker: int, packet: int) -> None:
        versions, turn = self.pool[packet % self.slots], packet // self.slots % 2
        slot = versions[turn if self.shadow_copy else 0]
        if self.shadow_copy:
            if packet < slot.packet:
                return  # a duplicate from two versions ago, whose sum all workers have
            if packet > slot.packet:
                slot.packet, slot.seen, slot.sum = packet, 0, 0
        if slot.seen >> worker & 1:
            if slot.seen == self.everyone:  # the worker has not received the sum yet: send it again
                self._pass(self.in_free, now, self._at_worker, worker, packet, slot.sum)
            return
        slot.seen |= 1 << worker
        slot.sum += self.given[packet][worker]
        if slot.seen == self.everyone:
            for each in range(len(self.in_free)):
                self._pass(self.in_free, now, self._at_worker, each, packet, slot.sum)
            if not self.shadow_copy:
                slot.seen = slot.sum = 0

    def _at_worker(self, now: float, worker: int, packet: int, value: int) -> None:
        if (worker, packet) in self.got:
            return
        self.got.add((worker, packet))
        self.last_us = now
        if value != sum(self.given[packet]):
            self.wrong.append((worker, packet))
        if packet + self.slots < len(self.given):
            self._send(now, worker, packet + self.slots)

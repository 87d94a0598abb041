"""The protocol by which a switch adds packets, replayed packet by packet over a network that loses some.

Data is cut into packets. A worker keeps one packet in flight for each slot: the one after packet p of a slot
is p + slots, and is sent once the sum of p is back. A slot has two versions, used in turn. The switch
remembers of each who has contributed, so that a packet that comes twice is not added twice; and the version
that is not in use keeps its sum (the shadow copy) for workers that did not get it. No worker can be two
packets of a slot ahead of another, as no sum is whole without all of them. A worker that hears nothing sends
again after a timeout.

Protocol: A. Sapio et al., "Scaling distributed machine learning with in-network aggregation", NSDI 2021.
Packets name their number here, so that duplicates that are late by two versions are known as well.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from taccl.arguments import checked
from taccl.errors import InputError
from taccl.units import format_count

if TYPE_CHECKING:
    from taccl.arguments import Count, Natural

__all__ = ["PacketRun", "simulate_packets"]

#: A packet that is sent again so often goes nowhere.
_MOST_SENDS = 200
#: Contributions are whole numbers below this, so that wrong sums do not look right by chance.
_LARGEST = 2**48


@checked
@dataclass(frozen=True)
class PacketRun:
    """What became of the packets.

    Parameters
    ----------
    wrong : tuple of (int, int)
        (worker, packet) that got another sum than that of all contributions, each once.
    missing : int
        Sums that never came.
    sent, lost, repeated : int
        Packets that workers sent, that the network lost in either direction, and that were sent again.
    time_us : float
        Until the last sum came.
    goodput_gb_per_s : float
        Data summed over time, in 10**9 bytes a second.
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
        """Whether every worker got every sum, once, and right."""
        return not self.wrong and not self.missing

    def __str__(self) -> str:
        verdict = "every sum right" if self.ok else f"{len(self.wrong)} wrong, {self.missing} missing"
        return (
            f"{format_count(self.sent, 'packet')} sent, {self.lost} lost, {self.repeated} again: {verdict}, "
            f"{self.goodput_gb_per_s:.3f} GB/s"
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
    """Sum packets at a switch, over a network that loses, repeats and delays them.

    Parameters
    ----------
    packets : int
        That each worker contributes to.
    workers, slots, payload_bytes, gb_per_s, rtt_us
        As in `taccl.topologies.in_network`.
    loss, duplicates, reordering : float
        The part of packets, either way, that is lost; comes twice; comes up to three round trips late.
    timeout_us : float, optional
        After which a worker sends again; default: four round trips.
    shadow_copy : bool
        Without, a slot has one version, which is free for the next sum as soon as it is whole.
    seed : int
        Of what is contributed, and of what happens to packets.
    """
    for name, part in (("loss", loss), ("duplicates", duplicates), ("reordering", reordering)):
        if not 0 <= part < 1:
            raise InputError(f"found {part}; expected a part of the packets, from 0 to below 1", where=name)
    for name, value in (("gb_per_s", gb_per_s), ("rtt_us", rtt_us), ("timeout_us", timeout_us or 1)):
        if not 0 < value < float("inf"):
            raise InputError(f"found {value}; expected a number above 0", where=name)
    network = _Network(random.Random(seed), loss, duplicates, reordering, rtt_us)
    run = _Run(packets, workers, slots, payload_bytes / gb_per_s / 1000, network, shadow_copy, seed)
    return run.result(payload_bytes, timeout_us or 4 * rtt_us)


@dataclass(slots=True)
class _Network:
    """What happens to packets on their way, which takes half a round trip."""

    random: random.Random
    loss: float
    duplicates: float
    reordering: float
    rtt_us: float
    lost: int = 0

    def arrivals(self, sent_us: float) -> list[float]:
        """When a packet arrives: once, twice or never."""
        found = []
        copies = 1 + (self.duplicates > 0 and self.random.random() < self.duplicates)
        for _ in range(copies):
            if self.loss > 0 and self.random.random() < self.loss:
                self.lost += 1
                continue
            late = self.reordering > 0 and self.random.random() < self.reordering
            found.append(sent_us + self.rtt_us / 2 + late * self.random.random() * 3 * self.rtt_us)
        return found


class _Slot:
    """One version of a slot: the packet that it is for, who contributed, and the sum so far."""

    __slots__ = ("packet", "seen", "sum", "whole")

    def __init__(self) -> None:
        self.packet, self.seen, self.sum, self.whole = -1, 0, 0, False

    def begin(self, packet: int) -> None:
        self.packet, self.seen, self.sum, self.whole = packet, 0, 0, False


class _Run:
    """Workers, switch and what is on the way between them."""

    def __init__(
        self,
        packets: int,
        workers: int,
        slots: int,
        send_us: float,
        network: _Network,
        shadow_copy: bool,
        seed: int,
    ) -> None:
        self.packets, self.workers, self.slots, self.send_us = packets, workers, slots, send_us
        self.network, self.shadow_copy = network, shadow_copy
        numbers = random.Random(f"contributions {seed}")
        self.given = [[numbers.randrange(_LARGEST) for _ in range(packets)] for _ in range(workers)]
        self.expected = [sum(column) for column in zip(*self.given, strict=True)]
        self.pool = [(_Slot(), _Slot()) for _ in range(slots)]
        self.got = [[False] * packets for _ in range(workers)]
        self.wrong: list[tuple[int, int]] = []
        self.out_free, self.in_free = [0.0] * workers, [0.0] * workers
        self.num_sends: dict[tuple[int, int], int] = {}
        self.sent = self.repeated = self.counter = 0
        self.queue: list[tuple[float, int, str, int, int, int]] = []
        self.last_us = 0.0

    def result(self, payload_bytes: int, timeout_us: float) -> PacketRun:
        self.timeout_us = timeout_us
        for worker in range(self.workers):
            for packet in range(min(self.slots, self.packets)):
                self._send(0.0, worker, packet)
        while self.queue:
            now, _, what, worker, packet, value = heappop(self.queue)
            if what == "at the switch":
                self._at_switch(now, worker, packet)
            elif what == "sum":
                self._at_worker(now, worker, packet, value)
            elif not self.got[worker][packet] and self.num_sends[worker, packet] < _MOST_SENDS:
                self.repeated += 1
                self._send(now, worker, packet)
        missing = sum(row.count(False) for row in self.got)
        summed = (self.packets * self.workers - missing) / self.workers * payload_bytes
        rate = summed / self.last_us / 1000 if self.last_us else 0.0
        return PacketRun(
            tuple(self.wrong), missing, self.sent, self.network.lost, self.repeated, self.last_us, rate
        )

    def _post(self, when: float, what: str, worker: int, packet: int, value: int = 0) -> None:
        self.counter += 1
        heappush(self.queue, (when, self.counter, what, worker, packet, value))

    def _send(self, now: float, worker: int, packet: int) -> None:
        """A worker sends once its port is free, and looks again after the timeout."""
        begin = max(now, self.out_free[worker])
        self.out_free[worker] = begin + self.send_us
        self.sent += 1
        self.num_sends[worker, packet] = self.num_sends.get((worker, packet), 0) + 1
        for when in self.network.arrivals(begin):
            self._post(when, "at the switch", worker, packet)
        self._post(begin + self.timeout_us, "timeout", worker, packet)

    def _at_switch(self, now: float, worker: int, packet: int) -> None:
        versions, turn = self.pool[packet % self.slots], packet // self.slots % 2
        slot = versions[turn if self.shadow_copy else 0]
        if self.shadow_copy:
            if packet < slot.packet:
                return  # a duplicate from two versions ago: that sum has long been everywhere
            if packet > slot.packet:
                slot.begin(packet)
            if slot.seen >> worker & 1:
                if slot.whole:
                    self._answer(now, worker, packet, slot.sum)
                return
        elif slot.seen >> worker & 1:
            return
        slot.seen |= 1 << worker
        slot.sum += self.given[worker][packet]
        if slot.seen == (1 << self.workers) - 1:
            slot.whole = True
            for each in range(self.workers):
                self._answer(now, each, packet, slot.sum)
            if not self.shadow_copy:
                slot.begin(-1)

    def _answer(self, now: float, worker: int, packet: int, value: int) -> None:
        """A sum goes to a worker, over its port."""
        begin = max(now, self.in_free[worker])
        self.in_free[worker] = begin + self.send_us
        for when in self.network.arrivals(begin):
            self._post(when, "sum", worker, packet, value)

    def _at_worker(self, now: float, worker: int, packet: int, value: int) -> None:
        if self.got[worker][packet]:
            return
        self.got[worker][packet], self.last_us = True, now
        if value != self.expected[packet]:
            self.wrong.append((worker, packet))
        if packet + self.slots < self.packets:
            self._send(now, worker, packet + self.slots)

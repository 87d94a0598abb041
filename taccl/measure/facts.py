"""Figures of a measured series relative to what is expected, from which causes are judged."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from taccl.measure.curve import Kink

#: Min bytes of a message that shows bandwidth.
LARGE = 64 * 2**20
#: Min bytes of a message that a static fault slows by the same factor as larger messages.
SETTLED = 256 * 2**20
#: `HEALTHY`: min share of the expected bandwidth that a healthy series reaches.
#: `USUAL`: max ratio of times of small messages to usual times in a healthy series.
HEALTHY, USUAL = 0.93, 1.5
WITHIN_ERROR = 0.85  #: Min share of the expected bandwidth that an error of the model may explain.
#: Limits for kinds of machines that no published log confirms.
#: `UNTESTED`: min share of the expected bandwidth that an error of the model may explain.
#: Known shares of bandwidth: 0.32 to 0.62 on 20 racks of GB200 (coreweave/nccl-tests).
#: Known share of bandwidth with NCCL 2.8 on EFA: 0.42 (aws-samples/aws-efa-eks).
#: `UNTESTED_USUAL`: max ratio of times of small messages to usual times that an error may explain.
UNTESTED, UNTESTED_USUAL = 0.3, 3.0
#: Min ratio of the fastest NIC's rate to the slowest NIC's rate that shows a slow rail.
UNEQUAL = 1.15


class OtherNics(NamedTuple):
    """Number of NICs per node, other than the assumed one, that would explain the measured rate.

    - `gb_per_s`: Expected bus bandwidth in GB/s with this number of NICs.
    - `is_listed`: True if the number is that of the NICs that the log lists; False if it is a guess.
    """

    num: int
    gb_per_s: float
    is_listed: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """Figures of a series relative to what is expected.

    - `share`: Measured over expected bandwidth of large messages; None without large messages.
    - `small_ratio`: Measured over usual time of small messages; None if either is unknown.
    - `network_shares`: {algorithm: share of the NICs' rate that explains `share`}; empty in a single node.
    - `nic_gb_per_s`, `nics_per_node`: Rate that messages reach on a NIC, and NICs of a node.
    - `may_be_bridged`: True if NVLink bridges, which the log does not show, may join the boards in pairs.
    - `path_gb_per_s`, `busbw_gb_per_s`: Rate of one path of PCIe between bridged GPUs, and measured bus
      bandwidth of large messages; 0 without bridges.
    - `own_choice`: Algorithm that the library's own model chooses, if it is not the predicted best but has
      the rate of large messages; else empty.
    - `hosts`: Hosts of a node: several for a rack whose GPUs NVLinks join.
    - `joint`: Links of a node: ``"NVSwitch"``, ``"NVLink"``, ``"xGMI"``, ``"PCIe"``, or ``"bridges"``
      if NVLinks join some GPUs, and PCIe the others.
    - `lists_links`: True if a file lists the node's links, rather than the name of a machine.
    - `shares`: {protocol, or ``"no nvls"``: expected bandwidth under it, divided by that of the best choice}.
    - `algorithm_shares`: {algorithm: expected bandwidth with it, divided by that of the best choice}.
    - `share_of_nodes`: {number of nodes: share}, of all series of this collective.
    - `nics_gb_per_s`: Rates of single NICs, from logs of perftest.
    - `launches_ratio`: Measured time of small messages over the time in which one process launches all GPUs
      of a node; None if the log states its processes, or the launch is unknown.
    - `irregularity`: Mean relative distance of the times from the nearest curve that rises with the size.
    - `unaligned_bytes`: Bytes of a rank's part at the largest size, if NCCL cannot copy it in whole packs;
      otherwise 0.
    - `ll_ratio`: Measured over expected increase of the time, from small messages to the largest size at
      which protocol LL is expected; None if unknown.
    - `named_network`: True if the user named the topology, False if it follows from names of GPUs.
    - `network`: Network between nodes that the usual times assume, such as ``"EFA"``; empty if unknown.
    - `is_instance`: True if the user named an instance type, which has one network.
    - `log_network`: Network that the log names; empty if it names none.
    - `other_share`: Highest share at smaller sizes of 256 MiB and more; None if unknown.
    - `place_share`: Share of the largest size in the other place (in place or out of place); None if unknown.
    - `full_network`: Other collective of the same log that reaches the rate of all NICs; empty if unknown.
    - `middle`: Clause on middle sizes that take notably longer than expected; empty if none do.
    - `other_library`: Evidence that another library than NCCL or RCCL ran the collective; empty if none.
    - `untested`, `small_untested`: Kind that no published log confirms at large messages, and at small ones;
      empty for other kinds.
    - `small_ratios`: {algorithm: predicted time of small messages with it, divided by the measured time}.
    - `small_protocols`: {protocol that the library does not choose for small messages: their predicted time
      with it, divided by the measured time}.
    - `other_nics`: Number of NICs of a node that explains the rate, if their number is assumed; None if no
      number does.
    - `stated`: {cause that lines of NCCL_DEBUG=INFO show: evidence}.
    - `excluded`: Causes that such lines exclude.
    """

    collective: str
    num_nodes: int
    share: float | None = None
    small_ratio: float | None = None
    network_shares: dict[str, float] = field(default_factory=dict)
    nic_gb_per_s: float = 0.0
    nics_per_node: int = 0
    joint: str = ""
    is_amd: bool = False
    shares: dict[str, float] = field(default_factory=dict)
    share_of_nodes: dict[int, float] = field(default_factory=dict)
    nics_gb_per_s: tuple[float, ...] = ()
    named_network: bool = True
    kinks: tuple[Kink, ...] = ()
    irregularity: float = 0.0
    unaligned_bytes: int = 0
    launches_ratio: float | None = None
    ll_ratio: float | None = None
    network: str = ""
    is_instance: bool = False
    log_network: str = ""
    other_share: float | None = None
    place_share: float | None = None
    full_network: str = ""
    middle: str = ""
    other_library: str = ""
    stated: Mapping[str, str] = field(default_factory=dict)
    excluded: Collection[str] = ()
    algorithm_shares: Mapping[str, float] = field(default_factory=dict)
    untested: str = ""
    small_untested: str = ""
    small_ratios: Mapping[str, float] = field(default_factory=dict)
    small_protocols: Mapping[str, float] = field(default_factory=dict)
    other_nics: OtherNics | None = None
    may_be_bridged: bool = False
    lists_links: bool = False
    path_gb_per_s: float = 0.0
    busbw_gb_per_s: float = 0.0
    hosts: int = 1
    own_choice: str = ""

    @property
    def library(self) -> str:
        """Name of the stock library of the GPUs."""
        return "RCCL" if self.is_amd else "NCCL"

    @property
    def is_slow(self) -> bool:
        """True if large messages are slower than expected."""
        return self.share is not None and self.share < HEALTHY

    @property
    def alike(self) -> str:
        """Slower algorithm whose expected rate matches that of large messages; empty if there is none."""
        shares = {name: part / (self.share or part) for name, part in self.algorithm_shares.items()}
        return _nearest(shares)

    @property
    def small_alike(self) -> str:
        """Algorithm whose expected time matches that of small messages; empty if there is none."""
        return _nearest(self.small_ratios)

    @property
    def fills_path(self) -> bool:
        """True if the bus bandwidth is that of the path of PCIe that the rings of bridged GPUs share."""
        return (
            WITHIN_ERROR * self.path_gb_per_s <= self.busbw_gb_per_s <= self.path_gb_per_s / WITHIN_ERROR > 0
        )

    @property
    def within_error(self) -> float:
        """Min share of the expected bandwidth that an error of the model may explain."""
        return UNTESTED if self.untested else WITHIN_ERROR

    @property
    def slow_network(self) -> float | None:
        """Least share of the NICs' rate that explains the slow series; None if the network is not slow."""
        if self.full_network:
            return None
        share = min(self.network_shares.values(), default=1.0)
        return share if self.is_slow and self.num_nodes > 1 and share < HEALTHY else None

    @property
    def falls(self) -> bool:
        """True if only the largest messages are slow, and smaller ones have the expected bandwidth."""
        return self.share is not None and is_below(self.share, self.other_share)

    @property
    def depends_on_place(self) -> bool:
        """True if the largest messages are slow in the place read (in or out), but not in the other."""
        return self.share is not None and is_below(self.share, self.place_share)

    @property
    def is_slow_pcie(self) -> bool:
        """True if large messages are slow in a node whose GPUs are joined by PCIe alone."""
        return self.is_slow and self.num_nodes == 1 and self.joint == "PCIe"

    @property
    def slows_ll(self) -> bool | None:
        """True if the fault also slows sizes for which protocol LL is usual; None if unknown."""
        if self.ll_ratio is None or not self.share:
            return None
        return bool(self.ll_ratio > self.share**-0.5)  # geometric mean of 1 and large messages' slowdown

    @property
    def is_late(self) -> bool:
        """True if small messages take longer than usual."""
        usual = UNTESTED_USUAL if self.small_untested else USUAL
        return self.small_ratio is not None and self.small_ratio > usual

    @property
    def is_unjudged(self) -> bool:
        """True if small messages take longer than usual, but an error of the model may explain it.

        It may on kinds of machines that no published log confirms.
        """
        return self.small_ratio is not None and self.small_ratio > USUAL and not self.is_late

    @property
    def measured_share(self) -> float:
        """Share of a NIC's expected rate that the fastest measured NIC reaches; 1 if healthy or unknown."""
        share = max(self.nics_gb_per_s, default=self.nic_gb_per_s) / (self.nic_gb_per_s or 1.0)
        return share if 0 < share < HEALTHY else 1.0

    @property
    def nics_differ(self) -> bool:
        """True if the NICs that were measured one by one have unequal rates."""
        rates = self.nics_gb_per_s
        return len(rates) > 1 and max(rates) > UNEQUAL * min(rates)

    @property
    def may_hide_rail(self) -> bool:
        """True if all NICs that were measured one by one are healthy, but others may have a slow rail."""
        is_healthy = self.measured_share == 1 and not self.nics_differ
        return is_healthy and len(self.nics_gb_per_s) < max(self.nics_per_node, 1)


def is_below(share: float, other_share: float | None) -> bool:
    """True if other messages have the expected bandwidth, and the largest ones do not."""
    return other_share is not None and other_share >= HEALTHY and share < WITHIN_ERROR * other_share


def _nearest(ratios: Mapping[str, float]) -> str:
    """Name with the ratio nearest to 1; empty unless an error of the model may explain the difference."""
    off = {name: abs(ratio - 1) for name, ratio in ratios.items()}
    name = min(off, key=lambda each: off[each], default="")
    return name if name and off[name] <= 1 - WITHIN_ERROR else ""

"""Reductions in switches: parameters of a switch, and known switches with their sources."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from taccl._internal.arguments import checked_as, known_word
from taccl.errors import TopologyError
from taccl.topology.parts import exact_cost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taccl._internal.arguments import Count, Number
    from taccl.topology.topology import Topology

#: Data types that switches reduce; int32 carries fixed-point numbers.
DTYPES = ("int32", "float16", "bfloat16", "float32", "float64")


@checked_as(TopologyError)
@dataclass(frozen=True)
class InNetwork:
    """Reductions and multicasts that a switch supports.

    Parameters
    ----------
    slots : int, optional
        Maximum number of packets that the switch sums concurrently; None: limited by its ports only.
    payload_bytes : int, optional
        Bytes of data per packet; required with `slots`.
    dtype : str
        Data type of sums, one of `DTYPES`; ``"int32"`` for fixed-point numbers.
    rtt_us : number, optional
        Round-trip time from a rank's send of a packet to the arrival of the sum, during which its slot is in
        use; required with `slots`. None: twice the latency of the switch.
    efficiency : number
        Part of a port's bandwidth that sums and multicasts reach, above 0 and at most 1.

    Raises
    ------
    TopologyError
        If a value is out of its range; the message names the field.
    """

    slots: Count | None = None
    payload_bytes: Count | None = None
    dtype: str = "int32"
    rtt_us: Number | None = None
    efficiency: Number = Fraction(1)

    def __post_init__(self) -> None:
        known_word(self.dtype, DTYPES, "dtype", TopologyError)
        for name in ("rtt_us", "efficiency"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, exact_cost(value, where=name))
        if not 0 < Fraction(self.efficiency) <= 1:
            found = f"found {self.efficiency}; expected a part of the bandwidth, above 0 and at most 1"
            raise TopologyError(found, where="efficiency")
        if self.slots is not None and not (self.payload_bytes and self.rtt_us):
            raise TopologyError(
                "found slots without payload_bytes and an rtt_us above 0; give both", where="slots"
            )

    @property
    def pool_beta_us_per_mb(self) -> Fraction | None:
        """Time in us for which each MB occupies the pool of slots: round-trip time / bytes of all slots.

        None if the number of slots is not limited.
        """
        if self.slots is None or self.payload_bytes is None or self.rtt_us is None:
            return None
        return Fraction(self.rtt_us) * 10**6 / (self.slots * self.payload_bytes)


#: SwitchML: A. Sapio et al., "Scaling distributed machine learning with in-network aggregation", NSDI 2021.
#: The slots are from this paper; packets of 32 or 256 numbers and a round trip of 10 us are our choice.
#: NVLink SHARP: NVLS efficiency in NCCL 2.30 (0.85 on Hopper, 0.74 on Blackwell) * (channels - 1) / channels.
#: The factor (channels - 1) / channels is 5 / 6 on Hopper and 7 / 8 on Blackwell.
#: InfiniBand SHARP: about 95 % of the network's bandwidth.
#: Source: R. Graham et al., "Scalable hierarchical aggregation and reduction protocol (SHARP) ...", ISC 2020.
PROFILES: Mapping[str, InNetwork] = {
    "switchml-10g": InNetwork(128, 128, "int32", 10),
    "switchml-100g": InNetwork(512, 1024, "int32", 10),
    "nvls-hopper": InNetwork(dtype="float32", efficiency=Fraction(17, 24)),
    "nvls-blackwell": InNetwork(dtype="float32", efficiency=Fraction(259, 400)),
    "sharp": InNetwork(dtype="float32", efficiency="0.95"),
}


def shared_links(topology: Topology) -> list[int]:
    """Indices of the multicast and reduction links of switches that reduce."""
    through = {e for switch in topology.switches if switch.reduces for e in switch.links}
    links = topology.links
    return sorted(e for e in through if len(links[e].srcs) + len(links[e].dsts) > 2)

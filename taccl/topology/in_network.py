"""Links of a switch that reduces, and known switches with their sources."""

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

#: Data types that switches reduce; with int32, numbers are sent in fixed point.
DTYPES = ("int32", "float16", "bfloat16", "float32", "float64")


@checked_as(TopologyError)
@dataclass(frozen=True)
class InNetwork:
    """Operations that a switch can do at once.

    Parameters
    ----------
    slots : int, optional
        Packets whose sums the switch holds at once; None: as many as its ports bring.
    payload_bytes : int, optional
        Bytes of data in a packet; needed with `slots`.
    dtype : str
        What it adds, one of `DTYPES`; ``"int32"`` is for fixed point.
    rtt_us : number, optional
        From a rank's send of a packet until the sum is back, for which its slot is taken; needed with
        `slots`. None: twice the latency of the switch.
    efficiency : number
        The part of a port's bandwidth at which sums and multicasts pass, above 0 and at most 1.

    Raises
    ------
    TopologyError
        Says which of them is wrong.
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
                "found slots without payload_bytes and an rtt_us above 0; give both: what a slot holds, and "
                "for how long",
                where="slots",
            )

    @property
    def pool_beta_us_per_mb(self) -> Fraction | None:
        """For how long each MB takes the pool: a round trip for as much as all slots hold; None without."""
        if self.slots is None or self.payload_bytes is None or self.rtt_us is None:
            return None
        return Fraction(self.rtt_us) * 10**6 / (self.slots * self.payload_bytes)


#: SwitchML: A. Sapio et al., "Scaling distributed machine learning with in-network aggregation", NSDI 2021,
#: whose slots these are; packets of 32 numbers of 4 bytes, or of 256, and 10 us to and fro are our choice.
#: NVLink SHARP: what NCCL 2.30 grants NVLS of the links' bandwidth on Hopper (0.85 on 5 of 6 channels) and on
#: Blackwell (0.74 on 7 of 8), (channels - 1) / channels of `taccl.topology.tuning.NVLS_CHANNELS`.
#: InfiniBand SHARP: R. Graham et al., "Scalable hierarchical aggregation and reduction protocol (SHARP)
#: streaming-aggregation hardware design and evaluation", ISC 2020: about 95 % of the network's bandwidth.
PROFILES: Mapping[str, InNetwork] = {
    "switchml-10g": InNetwork(128, 128, "int32", 10),
    "switchml-100g": InNetwork(512, 1024, "int32", 10),
    "nvls-hopper": InNetwork(dtype="float32", efficiency=Fraction(17, 24)),
    "nvls-blackwell": InNetwork(dtype="float32", efficiency=Fraction(259, 400)),
    "sharp": InNetwork(dtype="float32", efficiency="0.95"),
}


def shared_links(topology: Topology) -> list[int]:
    """Indices of the links of several ends that run through switches that add."""
    through = {e for switch in topology.switches if switch.reduces for e in switch.links}
    links = topology.links
    return sorted(e for e in through if len(links[e].srcs) + len(links[e].dsts) > 2)

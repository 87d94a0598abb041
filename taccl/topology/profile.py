"""Profile of a machine: constants with their sources, launch time, and protocols."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from taccl.errors import TopologyError
from taccl.topology.parts import exact_cost, thousandths

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taccl.topology.profile_files import Correction, Range


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of a machine with its source; the end of its name, such as ``_us``, is its unit."""

    name: str
    value: Fraction
    source: str


@dataclass(frozen=True, slots=True)
class ProtocolCosts:
    """Costs of messages under a protocol.

    - `base_us`: Time before the first step of a collective, in addition to the launch.
    - `node_hop_us`, `network_hop_us`: Alpha of a send inside a node and of one between nodes, respectively.
    - `bandwidth_share`: Fraction of the profile's bandwidth (1 / beta) that the protocol reaches.
    - `node_gb_per_s`: Maximum rate inside a node; None if not limited.
    """

    name: str
    base_us: Constant
    node_hop_us: Constant
    network_hop_us: Constant
    bandwidth_share: Constant
    node_gb_per_s: Constant | None = None

    def of(self, constant: Constant) -> Constant:
        """Value and source that a constant of the profile has under this protocol."""
        kind, _, cost = constant.name.partition("_")
        if kind == "nic":
            return constant
        between = kind == "internode"
        if cost == "alpha_us":
            hop = self.network_hop_us if between else self.node_hop_us
            return Constant(constant.name, hop.value, hop.source)
        if not cost.endswith("beta_us_per_mb"):
            return constant
        beta = constant.value / self.bandwidth_share.value
        source = constant.source
        if self.bandwidth_share.value != 1:
            beta = thousandths(beta)
            source += f"; {float(self.bandwidth_share.value):.4g} of it: {self.bandwidth_share.source}"
        if not between and self.node_gb_per_s is not None and beta < 1000 / self.node_gb_per_s.value:
            beta = 1000 / self.node_gb_per_s.value
            source = f"at most {float(self.node_gb_per_s.value):g} GB/s: {self.node_gb_per_s.source}"
        return Constant(constant.name, beta, source)


@dataclass(frozen=True, slots=True)
class Profile:
    """Constants of a machine under one name, e.g. ``"nominal"``.

    - `launch`: Time of a collective before its first step, under every protocol.
    - `protocols`: Available protocols; empty if the constants apply to all messages.
    - `ranges`: Size ranges of messages, each with the protocol that a library used for it.
    - `protocol`: Protocol to which the constants apply; empty if no protocol was chosen.
    - `channel`: Time that each further channel adds, as a library uses more channels for larger messages.
    - `runtime`: Runtime, such as ``"nccl"``, to which launch and protocols belong; empty if unknown.
    - `launches`: Launch times of other runtimes, with names such as ``"mscclpp.launch_us"``.
    - `corrections`: Ratios of measured times to the cost model, by size, for single collectives.
    """

    machine: str
    name: str
    constants: tuple[Constant, ...]
    launch: Constant | None = None
    protocols: tuple[ProtocolCosts, ...] = ()
    ranges: tuple[Range, ...] = ()
    protocol: str = ""
    channel: Constant | None = None
    runtime: str = ""
    launches: tuple[Constant, ...] = ()
    corrections: tuple[Correction, ...] = ()

    def __getitem__(self, name: str) -> Fraction:
        """Value of a constant. Raises `KeyError` if it does not exist."""
        return {constant.name: constant.value for constant in self.constants}[name]

    def overhead_us(self, *, between: bool) -> Fraction | None:
        """Part of alpha in us during which a send occupies a link inside or `between` nodes; None for all."""
        inside = next((each.value for each in self.constants if each.name.endswith("_overhead_us")), None)
        return self["nic_alpha_us"] if between and inside is not None else inside

    def told(self) -> tuple[Constant, ...]:
        """All constants, launch times and protocol costs; a protocol cost is named ``PROTOCOL.CONSTANT``."""
        of_protocols = (
            replace(constant, name=f"{each.name}.{constant.name}")
            for each in self.protocols
            for constant in (getattr(each, field.name) for field in fields(each))
            if isinstance(constant, Constant)
        )
        starts = (each for each in (self.launch, self.channel) if each is not None)
        return (*self.constants, *starts, *self.launches, *of_protocols)

    @property
    def launch_us(self) -> Fraction:
        """Time in us of a collective before its first step, including the base of the protocol."""
        bases = [each.base_us.value for each in self.protocols if each.name == self.protocol]
        return sum(bases, Fraction(0) if self.launch is None else self.launch.value)

    def launch_under(self, runtime: str) -> Fraction | None:
        """Launch time of another runtime in us, without a protocol's base; None if it is not listed."""
        return next((each.value for each in self.launches if each.name == f"{runtime}.launch_us"), None)

    def correction(self, collective: str, num_ranks: int, num_nodes: int, size_bytes: int) -> float:
        """Ratio of measured time to the cost model; 1 for collectives and numbers of ranks not measured."""
        asked = collective, num_ranks, num_nodes
        found = (e for e in self.corrections if (e.collective, e.ranks, e.nodes) == asked)
        return next((each.factor(size_bytes) for each in found), 1.0)

    def under(self, protocol: str | None = None) -> Profile:
        """Profile with the constants of a protocol; by default ``"simple"``, or else the first protocol.

        A profile without protocols is returned unchanged by default.

        Raises `TopologyError` for an unknown protocol.
        """
        known = {each.name: each for each in self.protocols}
        if protocol is None:
            protocol = "simple" if "simple" in known else next(iter(known), "")
        if not protocol:
            return self
        if protocol not in known:
            has = f"has the protocols {', '.join(known)}" if known else "has no protocols: leave it out"
            said = f"found {protocol!r}; {self.machine} in profile {self.name} {has}"
            raise TopologyError(said, where="protocol")
        return replace(self, constants=tuple(map(known[protocol].of, self.constants)), protocol=protocol)

    def replaced(self, values: Mapping[str, int | float | str | Fraction]) -> Profile:
        """Profile with some constants replaced; `TopologyError` for unknown names and invalid costs."""
        constants = {constant.name: constant for constant in self.constants}
        for name, value in values.items():
            if name not in constants:
                raise TopologyError(
                    f"{self.machine} has no constant {name!r}; it has {', '.join(constants)}",
                    where="constants",
                )
            cost = exact_cost(value, where=f"constants: {name}")
            constants[name] = Constant(name, cost, "given by the user")
        return replace(self, constants=tuple(constants.values()))

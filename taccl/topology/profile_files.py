"""Profiles in files, as `taccl fit` writes them: constants of a machine, each with its source and interval.

Beside them are what a launch and each protocol cost, and which protocol was taken at which sizes.
"""

from __future__ import annotations

from typing import Literal

from taccl.errors import TopologyError
from taccl.reading import parse, read_text
from taccl.topology.profile import Constant, Profile, ProtocolCosts
from taccl.units import format_count, format_size
from taccl.validation import Cost, Positive, Table, validated


class Measured(Table):
    """A value, the interval that holds it with 90 %, and where it comes from."""

    value: Cost
    low: Cost | None = None
    high: Cost | None = None
    source: str

    def told(self) -> str:
        """The source, with the interval."""
        if self.low is None or self.high is None:
            return self.source
        return f"{self.source} (90 %: {float(self.low):.4g} to {float(self.high):.4g})"


class Launch(Table):
    """What every collective takes before its first step."""

    latency_us: Measured


class ProtocolTable(Table):
    """What a protocol takes: a scale of tabled latencies, what they come to, and its share of bandwidth."""

    latency_scale: Measured
    base_us: Measured
    node_hop_us: Measured
    network_hop_us: Measured
    bandwidth_share: Measured

    def costs(self, name: str) -> ProtocolCosts:
        """The costs of the protocol of that name."""
        fields = ("base_us", "node_hop_us", "network_hop_us", "bandwidth_share")
        return ProtocolCosts(name, *(_constant(field, getattr(self, field)) for field in fields))


class Protocols(Table):
    """Those that the machine has."""

    simple: ProtocolTable | None = None
    ll: ProtocolTable | None = None
    ll128: ProtocolTable | None = None


class Range(Table):
    """Which protocol was taken at which sizes."""

    collective: str
    ranks: Positive
    nodes: Positive
    protocol: Literal["simple", "ll", "ll128"]
    from_bytes: Positive
    up_to_bytes: Positive

    def told(self) -> str:
        """What was done where, and how."""
        where = (
            f"{self.collective} on {format_count(self.ranks, 'rank')} in {format_count(self.nodes, 'node')}"
        )
        return (
            f"{where}: {self.protocol} from {format_size(self.from_bytes)} to {format_size(self.up_to_bytes)}"
        )


class ProfileFile(Table):
    """The whole file."""

    machine: str
    source: str = ""
    constants: dict[str, Measured]
    launch: Launch | None = None
    protocol: Protocols = Protocols()
    range: list[Range] = []


def load_profile(path: str, nominal: Profile) -> Profile:
    """The profile in a file, under the path as its name, of the machine that `nominal` is of.

    Raises `FormatError` if the file cannot be read. Raises `TopologyError` if it is of another machine, or a
    constant is unknown, missing (but for overheads) or no bandwidth.
    """
    file = validated(
        ProfileFile, parse(read_text(path), source=path, exact=True), source=path, error=TopologyError
    )
    machine = nominal.machine
    if file.machine != machine:
        said = f"found a profile of {file.machine}; expected one of {machine}: give another file"
        raise TopologyError(said, where=f"{path}: machine")
    known = {constant.name: constant for constant in nominal.constants}
    overheads = {name: each for name, each in known.items() if name.endswith("_overhead_us")}
    for name in (*(each for each in known if each not in file.constants), *file.constants):
        where = f"{path}: constants.{name}"
        if name not in file.constants and name not in overheads:
            raise TopologyError("found nothing; this constant is required; add it", where=where)
        if name not in known:
            said = f"found an unknown constant; {machine} has {', '.join(known)}: remove it"
            raise TopologyError(said, where=where)
        if "_beta_" in name and not file.constants[name].value:
            raise TopologyError("found 0 us per MB; expected a positive number", where=where)
    found = overheads | {name: _constant(name, each) for name, each in file.constants.items()}
    protocols = {name: getattr(file.protocol, name) for name in type(file.protocol).model_fields}
    for name, each in protocols.items():
        if each is not None and not 0 < each.bandwidth_share.value <= 1:
            raise TopologyError(
                f"found {each.bandwidth_share.value}; expected a share above 0 and at most 1",
                where=f"{path}: protocol.{name}.bandwidth_share",
            )
    return Profile(
        machine,
        path,
        tuple(found[name] for name in known),
        None if file.launch is None else _constant("launch_us", file.launch.latency_us),
        tuple(each.costs(name) for name, each in protocols.items() if each is not None),
        tuple(file.range),
    )


def _constant(name: str, measured: Measured) -> Constant:
    return Constant(name, measured.value, measured.told())

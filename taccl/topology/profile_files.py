"""Profile files, as written by `taccl fit`: constants of a machine, each with source and confidence interval.

They also contain the costs of a launch and of each protocol, the protocol used for each message size, and
corrections by size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, model_validator

from taccl._internal.arrays import Floats
from taccl._internal.reading import parse, read_text, reads
from taccl._internal.units import format_count, format_size
from taccl._internal.validation import Cost, Positive, Table, validated
from taccl.errors import TopologyError
from taccl.topology.profile import Constant, Profile, ProtocolCosts

ProtocolName = Literal["simple", "ll", "ll128"]


class Measured(Table):
    """A value, its 90 % confidence interval, and its source."""

    value: Cost
    low: Cost | None = None
    high: Cost | None = None
    source: str

    def constant(self, name: str) -> Constant:
        """Convert to a `Constant`, whose source includes the confidence interval."""
        source = self.source
        if self.low is not None and self.high is not None:
            source += f" (90 %: {float(self.low):.4g} to {float(self.high):.4g})"
        return Constant(name, self.value, source)


class Share(Measured):
    """Measured fraction of a nominal value, above 0 and at most 1."""

    value: Annotated[Cost, Field(gt=0, le=1)]


class LaunchTable(Table):
    """Launch time of a collective, time of each further channel, and launch times in other runtimes."""

    latency_us: Measured
    channel_us: Measured | None = None
    runtime: dict[Literal["mscclpp"], Measured] = {}


class ProtocolTable(Table):
    """Costs of a protocol: factor on NCCL's latencies, resulting latencies, and share of the bandwidth."""

    latency_scale: Measured
    base_us: Measured
    node_hop_us: Measured
    network_hop_us: Measured
    bandwidth_share: Share

    def costs(self, name: str) -> ProtocolCosts:
        """Costs of the protocol with this name."""
        fields = ("base_us", "node_hop_us", "network_hop_us", "bandwidth_share")
        return ProtocolCosts(name, *(getattr(self, field).constant(field) for field in fields))


class Range(Table):
    """Protocol that a library used in a range of message sizes."""

    collective: str
    ranks: Positive
    nodes: Positive
    protocol: ProtocolName
    from_bytes: Positive
    up_to_bytes: Positive

    def told(self) -> str:
        """Describe the range in a line of text: collective, ranks, protocol and sizes."""
        where = (
            f"{self.collective} on {format_count(self.ranks, 'rank')} in {format_count(self.nodes, 'node')}"
        )
        return (
            f"{where}: {self.protocol} from {format_size(self.from_bytes)} to {format_size(self.up_to_bytes)}"
        )


def factors_at(asked_bytes: ArrayLike, size_bytes: ArrayLike, factors: Sequence[float] | Floats) -> Floats:
    """Factors at other sizes: linear in the size's logarithm, and constant beyond both ends."""
    return np.asarray(np.interp(np.log2(asked_bytes), np.log2(size_bytes), factors))


class Correction(Table):
    """Ratios of measured times to the cost model, by message size, for one collective on equal nodes."""

    collective: str
    ranks: Positive
    nodes: Positive
    bytes: Annotated[list[Positive], Field(min_length=1)]
    factors: Annotated[list[Annotated[float, Field(gt=0, allow_inf_nan=False)]], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_sizes(self) -> Correction:
        if len(self.bytes) != len(self.factors) or sorted(set(self.bytes)) != self.bytes:
            raise ValueError("expected ascending bytes, with a factor for each")
        return self

    def factor(self, size_bytes: int) -> float:
        """Factor at a size; beyond the measured sizes, that of the nearest one."""
        return float(factors_at(size_bytes, self.bytes, self.factors))

    def told(self) -> str:
        """Describe the correction in a line of text: collective, ranks, range of factors and of sizes."""
        where = (
            f"{self.collective} on {format_count(self.ranks, 'rank')} in {format_count(self.nodes, 'node')}"
        )
        sizes = f"{format_size(self.bytes[0])} to {format_size(self.bytes[-1])}"
        return f"{where}: {min(self.factors):.2f} to {max(self.factors):.2f} times the model from {sizes}"


class ProfileFile(Table):
    """Contents of a profile file."""

    machine: str
    source: str = ""
    runtime: str = ""
    constants: dict[str, Measured]
    launch: LaunchTable | None = None
    protocol: dict[ProtocolName, ProtocolTable] = {}
    range: list[Range] = []
    correction: list[Correction] = []


@reads("profile")
def machine_of(path: str) -> str:
    """Name of the machine whose costs a profile file has."""
    return _contents(path).machine


@reads("profile")
def load_profile(path: str, nominal: Profile) -> Profile:
    """Load the profile of a machine from a file; the profile is named by the file's path.

    - `nominal`: Nominal profile of the machine, with all its constants.

    Raises `FormatError` if the file cannot be read. Raises `TopologyError` if it is for
    another machine, has an unknown constant or a beta of 0, or lacks a constant other than an overhead.
    """
    file, machine = _contents(path), nominal.machine
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
    found = overheads | {name: each.constant(name) for name, each in file.constants.items()}
    return Profile(
        machine,
        path,
        tuple(found[name] for name in known),
        None if file.launch is None else file.launch.latency_us.constant("launch_us"),
        tuple(file.protocol[each].costs(each) for each in get_args(ProtocolName) if each in file.protocol),
        tuple(file.range),
        channel=None if file.launch is None or file.launch.channel_us is None
        else file.launch.channel_us.constant("channel_us"),
        runtime=file.runtime,
        corrections=tuple(file.correction),
        launches=() if file.launch is None else tuple(
            each.constant(f"{name}.launch_us") for name, each in file.launch.runtime.items()
        ),
    )  # fmt: skip


def _contents(path: str) -> ProfileFile:
    text = parse(read_text(path), source=path, exact=True)
    return validated(ProfileFile, text, source=path, error=TopologyError)

"""Schema of topology files as pydantic models; imported only when a file is read."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from taccl._internal.arguments import known_name, quoted
from taccl._internal.units import exact
from taccl._internal.validation import Cost, Index, Positive, Table
from taccl.errors import TopologyError
from taccl.topology.in_network import PROFILES, InNetwork
from taccl.topology.parts import OVERHEAD_US, beta_of_bandwidth


def _positive(value: object) -> Fraction:
    number = exact(value)  # type: ignore[arg-type]
    if number == 0:
        raise ValueError("found 0; expected a positive number")
    return number


def _pair(value: object) -> object:
    if not isinstance(value, list) or len(value) not in (2, 3):
        raise ValueError(
            f"found {quoted(value)}; expected [source, destination], or also the name of the link"
        )
    return value if len(value) == 3 else [*value, None]


def _which(value: object) -> str | int | None:
    """Selector among links between the same ranks: a name, or a position from 0; None for all."""
    if value is None or isinstance(value, str) or (type(value) is int and value >= 0):
        return value
    raise ValueError(
        f"found {quoted(value)}; expected a link's name, or its number among those of the same ends"
    )


def _version(value: object) -> object:
    # In Python, 1.0 and True also equal 1.
    if type(value) is not int or value != 1:
        raise ValueError(f"found {quoted(value)}; expected 1, the version of the schema")
    return value


def _as_list(value: object) -> Any:
    return value if isinstance(value, (list, tuple)) else [value]


def _in_network(value: object) -> InNetwork:
    """Parameters of a reducing switch, from a profile's name or from its fields."""
    if isinstance(value, str):
        return PROFILES[known_name(value, PROFILES, "reduces", TopologyError)]
    known = [field.name for field in fields(InNetwork)]
    strange = [name for name in value if name not in known] if isinstance(value, dict) else [value]
    if strange or not isinstance(value, dict):
        said = f"found {quoted(strange[0])}; expected a name such as 'nvls-hopper', or {', '.join(known)}"
        raise ValueError(said)
    try:
        return InNetwork(**value)
    except TopologyError as error:
        raise ValueError(f"{error.where}: {error.message}") from None


_InNetwork = Annotated[Any, PlainValidator(_in_network)]
_PositiveCost = Annotated[Fraction, BeforeValidator(_positive)]
_Ranks = Annotated[list[Index], BeforeValidator(_as_list), Field(min_length=1)]
_Pair = Annotated[tuple[_Ranks, _Ranks, Annotated[Any, PlainValidator(_which)]], BeforeValidator(_pair)]


class _Costed(Table):
    """Entry with an optional rate: either us/MB or GB/s."""

    _must_have: ClassVar[bool] = False
    beta_us_per_mb: _PositiveCost | None = None
    bandwidth_gb_per_s: _PositiveCost | None = None

    @model_validator(mode="after")
    def _one_rate(self) -> _Costed:
        if self.beta_us_per_mb is not None and self.bandwidth_gb_per_s is not None:
            raise ValueError("found both beta_us_per_mb and bandwidth_gb_per_s; give one of them")
        if self._must_have and not self.has_rate:
            raise ValueError("found no rate; give beta_us_per_mb or bandwidth_gb_per_s")
        return self

    @property
    def has_rate(self) -> bool:
        return self.beta_us_per_mb is not None or self.bandwidth_gb_per_s is not None

    def rate(self) -> Fraction:
        """The rate in us/MB."""
        if self.bandwidth_gb_per_s is not None:
            return beta_of_bandwidth(self.bandwidth_gb_per_s)
        assert self.beta_us_per_mb is not None
        return self.beta_us_per_mb


class _Rated(_Costed):
    """Entry of a topology file that requires a rate."""

    _must_have: ClassVar[bool] = True


class LinkEntry(_Rated):
    """Entry of a link from src to dst, or of one link in each direction."""

    src: _Ranks
    dst: _Ranks
    alpha_us: Cost = Fraction(0)
    #: Part of alpha during which the link is busy; default: all of it.
    overhead_us: Cost | None = None
    bidirectional: Annotated[bool, Field(strict=True)] = False
    #: True if several destinations mean one multicast link, not one link each.
    multicast: Annotated[bool, Field(strict=True)] = False
    #: True if a multicast or reduction link shares no port with other links, unless a [[resource]] lists it.
    own_port: Annotated[bool, Field(strict=True)] = False
    name: str = ""

    @model_validator(mode="after")
    def _multicast_is_meant(self) -> LinkEntry:
        several = next((ranks for ranks in (self.dst, self.src) if len(ranks) > 1), None)
        to_several = len(self.dst) > 1 or (self.bidirectional and len(self.src) > 1)
        if to_several and not self.multicast:
            raise ValueError(
                f"found several destinations, {several}; give a [[link]] for each, or multicast = true for "
                "a multicast link to all of them"
            )
        if self.multicast and not to_several:
            raise ValueError(
                "found multicast = true on a link to one rank; leave it out, or give several in dst"
            )
        if self.own_port and several is None:
            raise ValueError("found own_port = true on a link between two ranks; leave it out")
        return self


def _multicasts_beside_links(value: object) -> object:
    """Mark a link as a multicast if ordinary links also join its source to each of its destinations."""
    if not isinstance(value, list):
        return value
    tables = [each for each in value if isinstance(each, dict)]
    ends = [(_as_list(each.get("src")), _as_list(each.get("dst"))) for each in tables]
    pairs = {(repr(src[0]), repr(dst[0])) for src, dst in ends if len(src) == len(dst) == 1}
    for at, (table, (src, dst)) in enumerate(zip(tables, ends, strict=True)):
        if len(src) == 1 < len(dst) and pairs.issuperset((repr(src[0]), repr(each)) for each in dst):
            tables[at] = {"multicast": True, **table}
    return tables if len(tables) == len(value) else value


class ResourceEntry(_Costed):
    """A shared resource and the links that hold it.

    With a rate, alpha_us defaults to 0. Without a rate or an alpha, a send holds the resource for as long as
    its link.
    """

    name: str
    alpha_us: Cost | None = None
    links: Annotated[list[_Pair], Field(min_length=1)]
    side: Literal["send", "receive"] = "send"
    #: True if the entry adds links, at another rate or on the other side, to an earlier resource of its name.
    continues: Annotated[bool, Field(strict=True)] = False


class SwitchEntry(_Costed):
    """A switch; without a rate, it consists of the links listed among its ranks."""

    name: str = "switch"
    ranks: Annotated[list[Index], Field(min_length=2)]
    alpha_us: Cost = Fraction(0)
    overhead_us: Cost | None = None
    reduces: _InNetwork = None

    @model_validator(mode="after")
    def _a_rate_with_alpha(self) -> SwitchEntry:
        if not self.has_rate and (self.alpha_us or self.overhead_us is not None):
            raise ValueError(
                "found alpha_us or overhead_us without a rate; give beta_us_per_mb or bandwidth_gb_per_s too"
            )
        if len(set(self.ranks)) < len(self.ranks):
            raise ValueError("found a rank twice in ranks; name each once")
        return self


class NodeEntry(_Rated):
    """Links between the GPUs of a node; the rate is that of a link, or of a GPU's port at the switch.

    The overhead is the part of alpha during which a link, port or NIC is busy; the rest is latency of the
    path.
    """

    gpus: Positive
    fabric: Literal["mesh", "switch", "ring", "hybrid"]
    alpha_us: Cost = Fraction(0)
    overhead_us: Cost = OVERHEAD_US
    reduces: _InNetwork = None

    @model_validator(mode="after")
    def _a_switch_reduces(self) -> NodeEntry:
        if self.reduces is not None and self.fabric != "switch":
            raise ValueError(f"found reduces in a {self.fabric}; only a switch reduces: leave it out")
        return self


class NicsEntry(_Rated):
    """NICs of a node; without `gpus`, the GPUs share them evenly in order."""

    count: Positive
    alpha_us: Cost = Fraction(0)
    overhead_us: Cost = OVERHEAD_US
    gpus: list[_Ranks] | None = None


class NetworkEntry(Table):
    """Links between nodes; with `rails`, only between GPUs of equal local rank."""

    nodes: Positive
    oversubscription: Annotated[_PositiveCost, Field(ge=1)] = Fraction(1)
    rails: Annotated[bool, Field(strict=True)] = False


class TopologyFile(Table):
    """Fields common to all topology files."""

    schema_: Annotated[int, BeforeValidator(_version), Field(alias="schema")]
    name: str | None = None
    alpha_meaning: Literal["occupies", "pipelined"] = "occupies"
    #: Assumptions of the import from which the file was written.
    assumed: list[str] = []


class MachineFile(TopologyFile):
    """A machine model by name."""

    machine: str
    nodes: Positive | None = None
    profile: str | None = None
    protocol: str | None = None
    rails: Annotated[bool, Field(strict=True)] | None = None
    nvls: Annotated[bool, Field(strict=True)] = False
    constants: dict[str, Cost] | None = None


class FabricFile(TopologyFile):
    """A fabric by name, optionally divided into nodes."""

    fabric: str
    nodes: Positive | None = None
    ranks_per_node: Positive | None = None
    bandwidth_gb_per_s: Annotated[list[_PositiveCost], BeforeValidator(_as_list)] | None = None
    alpha_us: Cost = Fraction(0)

    @model_validator(mode="after")
    def _cut_once(self) -> FabricFile:
        if self.nodes is not None and self.ranks_per_node is not None:
            raise ValueError("found both nodes and ranks_per_node; give one of them")
        return self


class NodeFile(TopologyFile):
    """A machine described by its node, NICs and network."""

    node: NodeEntry
    nics: NicsEntry | None = None
    network: NetworkEntry | None = None
    #: Time in us of a collective before its first step.
    launch_us: Cost = Fraction(0)


class LinksFile(TopologyFile):
    """A topology with every link listed."""

    ranks_per_node: Annotated[list[Positive], BeforeValidator(_as_list), Field(min_length=1)]
    nodes: Positive | None = None
    launch_us: Cost = Fraction(0)
    link: Annotated[list[LinkEntry], BeforeValidator(_multicasts_beside_links)] = []
    resource: list[ResourceEntry] = []
    switch: list[SwitchEntry] = []

"""Witnesses of lower bounds, all of them arithmetic to check (`taccl.analysis.certificates.check`).

latency
    A chunk and a destination: the shortest way there.
cut counting
    A set of ranks: the whole chunks that must cross its border, over the rate of what they can pass.
delayed source
    Sets of ranks that hold nothing at first, and a rank of each: what can have entered them by some moment,
    when only few can feed them until an earlier one, and how long the rest then takes to those ranks.
spread tail
    A node, or ranks or nodes without chunks at first, and how many of the last chunks that enter: they must
    still spread to all there that want them, from one rank to another.
dissemination
    A rank or a node: data of many ranks must come to a rank there, by merged sends that have no more of it
    than their senders can have by then.
pair counting
    A rank or a node: each contribution from outside must come to each rank there that wants the sum, by sends
    that bring no more of them than their senders can have, to no more ranks than time is left for.
single machine
    A resource: the batches of chunks that must all pass it, from their releases to the tail behind them.
throughput
    A price per resource and sets of ranks. In a schedule that finishes at T each resource is held for T at
    most, so T times the sum of prices is at least what all sends pay; and every chunk that must cross the
    border of a set pays what the set charges. Linear-programming duality makes the best prices tight.
multicommodity
    A price per resource: every chunk pays at least the cheapest way to its destination.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

from taccl.topology.topology import Topology
from taccl.units import format_count


class Witness:
    """What proves a bound.

    - `kind`: What it is called where it is written down.
    - `proves`: The kind of bound that it proves.
    """

    __slots__ = ()
    kind: ClassVar[str]
    proves: ClassVar[str]

    def describe(self, topology: Topology) -> str:
        """What it is, in words."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The witness as plain values."""
        return {"kind": self.kind, **_plain_fields(self)}


class Claim(NamedTuple):
    """A bound in ticks, a fraction where data is divisible; one sentence on what limits; what proves it."""

    ticks: int | Fraction
    limits: str
    witness: Witness | None

    @property
    def kind(self) -> str:
        """The kind of bound."""
        return "none" if self.witness is None else self.witness.proves


def _plain_fields(value: Any) -> dict[str, Any]:
    return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}


def _plain(value: Any) -> Any:
    match value:
        case frozenset():
            return sorted(value)
        case tuple():
            return [_plain(each) for each in value]
        case Fraction():
            return str(value)
        case SetCharge():
            return _plain_fields(value)
        case Witness():
            return value.to_dict()
    return value


@dataclass(frozen=True, slots=True)
class Path(Witness):
    """The shortest way of a chunk to a destination."""

    kind, proves = "path", "latency"
    chunk: int
    destination: int

    def describe(self, topology: Topology) -> str:
        return f"the shortest way of chunk {self.chunk} to rank {self.destination}"


@dataclass(frozen=True, slots=True)
class Border(Witness):
    """What must enter (or leave) a set of ranks.

    Of sums that many need `ranks` may be all: then what ranks must send one another, or, where `entering` is
    False, what nodes must.
    """

    kind, proves = "border", "cut counting"
    ranks: frozenset[int]
    entering: bool

    def describe(self, topology: Topology) -> str:
        way = "enter" if self.entering else "leave"
        if len(self.ranks) == topology.num_ranks:
            return f"what must {way} {'ranks' if self.entering else 'nodes'}, all taken together"
        return f"what must {way} {_ranks_shown(self.ranks)}"


@dataclass(frozen=True, slots=True)
class DelayedSource(Witness):
    """Disjoint sets of ranks that hold nothing at first of some chunks, and a rank of each that wants them.

    - `targets`: A rank of every set.
    - `fed`: Ticks: what starts to enter a set before is fed by those who hold it at first, or were reached
      since. What starts later only has to enter.
    - `since`: Ticks: what has not entered before comes to the targets, and to all others, after.
    - `backwards`: Whether all is read backwards in time: what enters sets leaves them, and starts at the
      targets.
    """

    kind = proves = "delayed source"
    sets: tuple[frozenset[int], ...]
    targets: tuple[int, ...]
    fed: int
    since: int
    backwards: bool = False

    def describe(self, topology: Topology) -> str:
        early = frozenset(range(topology.num_ranks)).difference(*self.sets)
        sets = format_count(len(self.sets), "set")
        if self.backwards:
            return f"what {_ranks_shown(early)} must take from {sets} of ranks that want nothing"
        return f"what {_ranks_shown(early)} must feed to {sets} of ranks that hold nothing at first"


@dataclass(frozen=True, slots=True)
class SpreadTail(Witness):
    """The last of the chunks that must enter sets and are wanted by so many ranks of these, or more."""

    kind = proves = "spread tail"
    sets: tuple[frozenset[int], ...]
    least: int
    last: int

    def describe(self, topology: Topology) -> str:
        chunks = format_count(self.last, "chunk")
        into = _ranks_shown(frozenset().union(*self.sets))
        into += f", in {len(self.sets)} sets," if len(self.sets) > 1 else ","
        return f"the last {chunks} to enter {into} which must then spread there"


@dataclass(frozen=True, slots=True)
class Dissemination(Witness):
    """Ranks of which one wants data of many that are not among them."""

    kind = proves = "dissemination"
    ranks: frozenset[int]

    def describe(self, topology: Topology) -> str:
        return f"how soon a rank of {_ranks_shown(self.ranks)} can have all that it lacks"


@dataclass(frozen=True, slots=True)
class PairCounting(Witness):
    """Ranks that want sums of what others contribute."""

    kind = proves = "pair counting"
    ranks: frozenset[int]

    def describe(self, topology: Topology) -> str:
        return f"contributions that must come to each of {_ranks_shown(self.ranks)}, in few sends"


@dataclass(frozen=True, slots=True)
class SingleMachine(Witness):
    """A resource that chunks must pass as they enter (or leave) ranks, or nodes (`family`)."""

    kind = proves = "single machine"
    resource: int
    family: str
    entering: bool

    def describe(self, topology: Topology) -> str:
        way = "enter" if self.entering else "leave"
        name = topology.resources[self.resource].name
        return f"the batches that must pass {name} as they {way} {self.family}s"


@dataclass(frozen=True, slots=True)
class SetCharge:
    """What the sends between sets of ranks are charged each.

    With one set, sends that enter it; with several (a partition), sends from one to another: a sum that k
    of them share takes 2(k - 1) sends at least, of which one over a link of several ends counts for each
    pair of parts that it joins.
    """

    parts: tuple[frozenset[int], ...]
    charge: Fraction


@dataclass(frozen=True, slots=True)
class CutDual(Witness):
    """Prices of resources per tick, and what sets of ranks charge: no send is charged more than it pays."""

    kind, proves = "cut dual", "throughput"
    prices: tuple[int, ...]
    charges: tuple[SetCharge, ...]

    def describe(self, topology: Topology) -> str:
        sets = format_count(len(self.charges), "set")
        return f"{_priced(self.prices)}, and what {sets} of ranks charge"


@dataclass(frozen=True, slots=True)
class FlowDual(Witness):
    """Prices of resources per tick: each chunk pays its cheapest way at least."""

    kind, proves = "flow dual", "multicommodity"
    prices: tuple[int, ...]

    def describe(self, topology: Topology) -> str:
        return f"{_priced(self.prices)}: each chunk pays its cheapest way at least"


@dataclass(frozen=True, slots=True)
class Late(Witness):
    """What is there only from a moment on, and what proves how long that takes from there."""

    kind, proves = "late part", "release"
    moment_us: Fraction
    inner: Witness | None

    def describe(self, topology: Topology) -> str:
        told = "" if self.inner is None else f": {self.inner.describe(topology)}"
        return f"what is there from {float(self.moment_us):.6g} us on{told}"


def _priced(prices: tuple[int, ...]) -> str:
    return f"prices of {format_count(sum(price > 0 for price in prices), 'resource')}"


def _ranks_shown(ranks: frozenset[int]) -> str:
    shown = sorted(ranks)
    if len(shown) == 1:
        return f"rank {shown[0]}"
    if len(shown) > 2 and shown == list(range(shown[0], shown[-1] + 1)):
        return f"ranks {shown[0]}-{shown[-1]}"
    return f"ranks {', '.join(map(str, shown[:12]))}{', ...' if len(shown) > 12 else ''}"

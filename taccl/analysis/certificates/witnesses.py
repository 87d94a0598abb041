"""Witnesses of lower bounds, all of them arithmetic to check (`taccl.analysis.certificates.check`).

latency
    A chunk and a destination: the shortest path there.
cut counting
    A set of ranks: the whole chunks that must cross its border, over the rate of what they can pass. Or a
    border that moves, on the way to one rank.
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
byte counting
    A rank or a node, over all chunkings: each byte must come to each rank there that wants it, in sends that
    each pay their latency, bring no more than their senders can have, and serve ranks that time is left for.
single machine
    A resource: the batches of chunks that must all pass it, from their releases to the tail behind them.
throughput
    A price per resource and sets of ranks. In a schedule that finishes at T each resource is held for T at
    most, so T times the sum of prices is at least what all sends pay; and every chunk that must cross the
    border of a set pays what the set charges. Linear-programming duality makes the best prices tight.
multicommodity
    A price per resource: every chunk pays at least the cheapest path to its destination.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

#: So many ranks of a set are named, unless they follow one another.
_MOST_SHOWN = 12


class Witness:
    """What proves a bound.

    - `kind`: What it is called where it is written down.
    - `proves`: The kind of bound that it proves.
    """

    __slots__ = ()
    kind: ClassVar[str]
    proves: ClassVar[str]

    def __str__(self) -> str:
        said = (f"{name.replace('_', ' ')} {_shown(value)}" for name, value in _fields(self).items())
        return f"{self.kind}: {', '.join(said)}"

    def to_dict(self) -> dict[str, Any]:
        """The witness as plain values."""
        return {"kind": self.kind, **_plain(_fields(self))}


class Claim(NamedTuple):
    """A bound in ticks, a fraction where data is divisible; one sentence on what limits; what proves it."""

    ticks: int | Fraction
    limits: str
    witness: Witness | None

    @property
    def kind(self) -> str:
        """The kind of bound."""
        return "none" if self.witness is None else self.witness.proves


def _fields(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case frozenset():
            return sorted(value)
        case tuple():
            return [_plain(each) for each in value]
        case Fraction():
            return str(value)
        case SetCharge():
            return _plain(_fields(value))
        case Witness():
            return value.to_dict()
    return value


def _shown(value: Any) -> str:
    """A field in words: of several sets or prices how many there are."""
    match value:
        case frozenset() if len(value) > 2 and max(value) - min(value) == len(value) - 1:
            return f"{min(value)}-{max(value)}"
        case frozenset():
            return " ".join(map(str, sorted(value)[:_MOST_SHOWN])) + " ..." * (len(value) > _MOST_SHOWN)
        case (frozenset() as alone,):
            return _shown(alone)
        case tuple():
            return f"({len(value)})"
        case bool():
            return "yes" if value else "no"
        case Fraction():
            return f"{float(value):.6g}"
    return str(value)


@dataclass(frozen=True, slots=True)
class Path(Witness):
    """The shortest path of a chunk to a destination."""

    kind, proves = "path", "latency"
    chunk: int
    destination: int


@dataclass(frozen=True, slots=True)
class Border(Witness):
    """What must enter (or leave) a set of ranks; of all ranks, what nodes must send one another for sums."""

    kind, proves = "border", "cut counting"
    ranks: frozenset[int]
    entering: bool


@dataclass(frozen=True, slots=True)
class Gossip(Witness):
    """What all ranks, or those of a node, must send one another for sums that they share."""

    kind, proves = "gossip", "cut counting"
    ranks: frozenset[int]


@dataclass(frozen=True, slots=True)
class DynamicCut(Witness):
    """Chunks that must reach a rank, from ranks that are on this side of a border at 0.

    - `moments`: Of every rank, in ticks, since when it is; the target never is.
    - `backwards`: Whether all is read backwards in time.
    """

    kind, proves = "dynamic cut", "cut counting"
    target: int
    moments: tuple[int, ...]
    backwards: bool = False


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


@dataclass(frozen=True, slots=True)
class SpreadTail(Witness):
    """The last of the chunks that must enter sets and are wanted by so many ranks of these, or more."""

    kind = proves = "spread tail"
    sets: tuple[frozenset[int], ...]
    least: int
    last: int


@dataclass(frozen=True, slots=True)
class Dissemination(Witness):
    """Ranks of which one wants data of many that are not among them."""

    kind = proves = "dissemination"
    ranks: frozenset[int]


@dataclass(frozen=True, slots=True)
class PairCounting(Witness):
    """Ranks that want sums of what others contribute."""

    kind = proves = "pair counting"
    ranks: frozenset[int]


@dataclass(frozen=True, slots=True)
class ByteCounting(Witness):
    """Ranks that want data from outside, and the resources that share out the links into them, in turn."""

    kind = proves = "byte counting"
    ranks: frozenset[int]
    resources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SingleMachine(Witness):
    """A resource that chunks must pass as they enter (or leave) ranks, or nodes (`family`)."""

    kind = proves = "single machine"
    resource: int
    family: str
    entering: bool


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


@dataclass(frozen=True, slots=True)
class FlowDual(Witness):
    """Prices of resources per tick: each chunk pays its cheapest path at least."""

    kind, proves = "flow dual", "multicommodity"
    prices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Late(Witness):
    """What is there only from a moment on, and what proves how long that takes from there."""

    kind, proves = "late part", "release"
    moment_us: Fraction
    inner: Witness | None

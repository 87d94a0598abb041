"""Witnesses of lower bounds; arithmetic alone checks them (`taccl.analysis.certificates.check`).

latency
    A chunk and a destination: the shortest path there.
cut counting
    A set of ranks: the whole chunks that must cross its border, over the rate of the resources there. Or a
    moving border on the way to one rank.
spread tail
    A node, or ranks or nodes without data at first, and a number of last chunks to enter. These must still
    spread to all ranks there that want them, from one rank to another.
dissemination
    A rank or node: data of many ranks must reach a rank there. Merged sends carry only what their senders can
    hold by then.
pair counting
    A rank or node: each outside contribution must reach each rank there that wants the sum. Sends carry only
    what their senders can hold, to ranks that they can still reach in time.
byte counting
    A rank or node, over all chunkings: each byte must reach each rank there that wants it. Each send pays its
    latency, carries only what its sender can hold, and serves ranks that it can still reach in time.
single machine
    A resource: the batches of chunks that must all pass it, from their releases to the tail after them.
throughput
    A price per resource, and sets of ranks. In a schedule that finishes at T, each resource is held for T at
    most. The sum of prices times T is therefore at least what all sends pay. Every chunk that must cross the
    border of a set pays the charge of the set. Linear-programming duality makes the best prices tight.
multicommodity
    A price per resource: every chunk pays at least the cheapest path to its destination.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

#: Max ranks of a set to list, unless they are consecutive.
_MOST_SHOWN = 12


class Witness:
    """Proof of a bound.

    - `kind`: Name of the witness in files and reports.
    - `proves`: Kind of bound that it proves.
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
    """A bound in ticks (a fraction if data is divisible), one sentence on what limits, and the witness."""

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
    """Text of a field; of several sets or prices, only their number."""
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
    """Sends that must enter (or leave) a set of ranks; for all ranks, sends between nodes for shared sums."""

    kind, proves = "border", "cut counting"
    ranks: frozenset[int]
    entering: bool


@dataclass(frozen=True, slots=True)
class Gossip(Witness):
    """Sends between all ranks, or those of a node, that shared sums require."""

    kind, proves = "gossip", "cut counting"
    ranks: frozenset[int]


@dataclass(frozen=True, slots=True)
class DynamicCut(Witness):
    """Chunks that must reach a rank across a moving border, from ranks on its near side at time 0.

    - `moments`: Time in ticks from which each rank is on the near side; the target never is.
    - `backwards`: True for the time-reversed problem.
    """

    kind, proves = "dynamic cut", "cut counting"
    target: int
    moments: tuple[int, ...]
    backwards: bool = False


@dataclass(frozen=True, slots=True)
class SpreadTail(Witness):
    """The last chunks to enter sets, among those that at least `least` ranks of a set want.

    - `last`: Number of these chunks.
    - `backwards`: True for the time-reversed problem.
    """

    kind = proves = "spread tail"
    sets: tuple[frozenset[int], ...]
    least: int
    last: int
    backwards: bool = False


@dataclass(frozen=True, slots=True)
class Dissemination(Witness):
    """Ranks of which one wants data of many ranks outside the set."""

    kind = proves = "dissemination"
    ranks: frozenset[int]


@dataclass(frozen=True, slots=True)
class PairCounting(Witness):
    """Ranks that want sums with contributions of others."""

    kind = proves = "pair counting"
    ranks: frozenset[int]


@dataclass(frozen=True, slots=True)
class ByteCounting(Witness):
    """Ranks that want data from outside, and the resources that cover the links into them, in order."""

    kind = proves = "byte counting"
    ranks: frozenset[int]
    resources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SingleMachine(Witness):
    """A resource that chunks must pass when they enter (or leave) ranks, or nodes (`family`)."""

    kind = proves = "single machine"
    resource: int
    family: str
    entering: bool


@dataclass(frozen=True, slots=True)
class SetCharge:
    """Charge for each send into a set, or between the parts of a partition.

    With one set, it applies to sends that enter the set. With several (a partition), it applies to sends from
    one to another: a sum that k of them share takes at least 2(k - 1). A send over a link of several ends
    counts once for each pair of parts that it joins.
    """

    parts: tuple[frozenset[int], ...]
    charge: Fraction


@dataclass(frozen=True, slots=True)
class CutDual(Witness):
    """Prices of resources per tick, and charges of sets of ranks: no send is charged more than it pays."""

    kind, proves = "cut dual", "throughput"
    prices: tuple[int, ...]
    charges: tuple[SetCharge, ...]


@dataclass(frozen=True, slots=True)
class FlowDual(Witness):
    """Prices of resources per tick: each chunk pays at least its cheapest path."""

    kind, proves = "flow dual", "multicommodity"
    prices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Late(Witness):
    """Data available only from some time on, and the witness for the duration from there."""

    kind, proves = "late part", "release"
    moment_us: Fraction
    inner: Witness | None

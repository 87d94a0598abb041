"""The certificate: a proven lower bound on the finish of any schedule, with the witness that proves it.

Eight kinds of witness, all of them arithmetic to check (`taccl.analysis.certificates.check`):

latency
    A chunk and a destination: the shortest way there.
cut counting
    A set of ranks: the whole chunks that must cross its border, over the rate of what they can pass.
nested cuts
    A rank and the ranks of its node: what must cross both borders, the one after the other.
delayed source
    Sets of ranks that hold nothing at first, and a rank of each: what can have entered them by some moment,
    when only few can feed them until an earlier one, and how long the rest then takes to those ranks.
spread tail
    A node, and how many of the last chunks that enter it: they must still spread to all of its ranks that
    want them, from one rank to another.
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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taccl.arguments import checked
from taccl.names import shown
from taccl.units import format_count, format_us, gb_per_s

if TYPE_CHECKING:
    from fractions import Fraction

    from taccl.problem import Problem

__all__ = [
    "Border", "Certificate", "CutDual", "DelayedSource", "FlowDual", "NestedCuts", "Path", "SetCharge",
    "SingleMachine", "SpreadTail", "Witness", "describe_witness",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Path:
    """The shortest way of a chunk to a destination."""

    chunk: int
    destination: int

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "path", "chunk": self.chunk, "destination": self.destination}


@dataclass(frozen=True, slots=True)
class Border:
    """What must enter (or leave) a set of ranks.

    Of sums that many need `ranks` may be all: then what ranks must send one another, or, where `entering` is
    False, what nodes must.
    """

    ranks: frozenset[int]
    entering: bool

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "border", "ranks": sorted(self.ranks), "entering": self.entering}


@dataclass(frozen=True, slots=True)
class NestedCuts:
    """What must enter `outer` and then `inner`, a part of it (or leave `inner`, and then `outer`)."""

    inner: frozenset[int]
    outer: frozenset[int]
    entering: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "nested cuts",
            "inner": sorted(self.inner),
            "outer": sorted(self.outer),
            "entering": self.entering,
        }


@dataclass(frozen=True, slots=True)
class DelayedSource:
    """Disjoint sets of ranks that hold nothing at first of some chunks, and a rank of each that wants them.

    Parameters
    ----------
    sets : tuple of frozenset of int
    targets : tuple of int
        A rank of every set.
    fed : int
        Ticks: what starts to enter a set before is fed by those who hold it at first, or were reached since.
        What starts later only has to enter.
    since : int
        Ticks: what has not entered before comes to the targets after.
    """

    sets: tuple[frozenset[int], ...]
    targets: tuple[int, ...]
    fed: int
    since: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "delayed source",
            "sets": [sorted(ranks) for ranks in self.sets],
            "targets": list(self.targets),
            "fed": self.fed,
            "since": self.since,
        }


@dataclass(frozen=True, slots=True)
class SpreadTail:
    """The last of the chunks that must enter a set of ranks and are wanted by so many of these, or more."""

    ranks: frozenset[int]
    least: int
    last: int

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "spread tail", "ranks": sorted(self.ranks), "least": self.least, "last": self.last}


@dataclass(frozen=True, slots=True)
class SingleMachine:
    """A resource that chunks must pass as they enter (or leave) ranks, or nodes (`family`)."""

    resource: int
    family: str
    entering: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "single machine",
            "resource": self.resource,
            "family": self.family,
            "entering": self.entering,
        }


@dataclass(frozen=True, slots=True)
class SetCharge:
    """What the sends between sets of ranks are charged each.

    With one set, sends that enter it; with several (a partition), sends from one to another: a sum that k
    of them share takes 2(k - 1) sends at least.
    """

    parts: tuple[frozenset[int], ...]
    charge: Fraction

    def to_dict(self) -> dict[str, Any]:
        return {"parts": [sorted(part) for part in self.parts], "charge": str(self.charge)}


@dataclass(frozen=True, slots=True)
class CutDual:
    """Prices of resources per tick, and what sets of ranks charge: no send is charged more than it pays."""

    prices: tuple[int, ...]
    charges: tuple[SetCharge, ...]

    def to_dict(self) -> dict[str, Any]:
        charges = [each.to_dict() for each in self.charges]
        return {"kind": "cut dual", "prices": list(self.prices), "charges": charges}


@dataclass(frozen=True, slots=True)
class FlowDual:
    """Prices of resources per tick: each chunk pays its cheapest way at least."""

    prices: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "flow dual", "prices": list(self.prices)}


Witness = Path | Border | NestedCuts | DelayedSource | SpreadTail | SingleMachine | CutDual | FlowDual


@dataclass(frozen=True)
class Certificate:
    """A proven lower bound on the finish of any schedule of a problem; see `lower_bound`.

    Parameters
    ----------
    problem : Problem
        What the bound holds for: topology, collective and sketch.
    bound : Fraction
        Microseconds, exact.
    kind : str
        ``"latency"``, ``"cut counting"``, ``"nested cuts"``, ``"delayed source"``, ``"spread tail"``,
        ``"single machine"``, ``"throughput"`` or ``"multicommodity"``; ``"none"`` where nothing must be sent.
    limits : str
        One sentence that says what limits.
    witness : Witness, optional
        What `check` needs; None where nothing must be sent.
    divisible : bool
        Whether data may be cut as finely as one likes: then no alpha is paid for throughput.
    in_network : bool
        Whether switches are granted to reduce what passes them, even where this topology's do not.
    """

    problem: Problem
    bound: Fraction
    kind: str
    limits: str
    witness: Witness | None = None
    divisible: bool = False
    in_network: bool = False

    @property
    def bound_us(self) -> float:
        """The bound in microseconds."""
        return float(self.bound)

    @property
    def algbw_gb_per_s(self) -> float | None:
        """The bandwidth that no schedule can pass, in GB/s as nccl-tests counts it; None without a size."""
        return gb_per_s(self.problem.size_bytes, self.bound)

    @checked
    def gap(self, finish: Fraction) -> float:
        """(finish - bound) / bound; 0 is a proven optimum, infinite without a positive bound."""
        if not self.bound:
            return float("inf") if finish else 0.0
        return float((finish - self.bound) / self.bound)

    def check(self) -> bool:
        """Whether the witness proves the bound, by arithmetic alone: no solver, none of what found it."""
        from taccl.analysis.certificates.check import check_certificate

        return check_certificate(self)

    def to_dict(self) -> dict[str, Any]:
        """The certificate as plain values."""
        return {
            "bound_us": self.bound_us,
            "kind": self.kind,
            "bound_limits": self.limits,
            "divisible": self.divisible,
            "in_network": self.in_network,
            "algbw_gb_per_s": self.algbw_gb_per_s,
            "witness": None if self.witness is None else self.witness.to_dict(),
        }

    def _repr_html_(self) -> str:
        """What a notebook shows: the bound, what limits, and what proves it."""
        from taccl.html import card, facts

        bandwidth = self.algbw_gb_per_s
        granted = [(self.divisible, "data may be cut anywhere"), (self.in_network, "switches may reduce")]
        rows = [
            ("bound", format_us(self.bound)),
            ("bandwidth", "" if bandwidth is None else f"{bandwidth:.4g} GB/s at most"),
            ("limited by", self.limits),
            ("kind", self.kind),
            ("witness", describe_witness(self)),
            ("granted", ", ".join(text for given, text in granted if given)),
        ]
        problem = self.problem
        return card(f"bound of {problem.title}", facts(rows))

    def __repr__(self) -> str:
        bandwidth = self.algbw_gb_per_s
        return (
            f"Certificate({format_us(self.bound_us)}"
            + (f", {bandwidth:.4g} GB/s" if bandwidth is not None else "")
            + f": {self.kind}, limited by {shown(self.limits, 300)})"
        )


def describe_witness(certificate: Certificate) -> str:
    """What proves a certificate, in one sentence; empty where there is no witness."""
    topology, witness = certificate.problem.topology, certificate.witness
    match witness:
        case Path():
            return f"the shortest way of chunk {witness.chunk} to rank {witness.destination}"
        case Border():
            way = "enter" if witness.entering else "leave"
            if len(witness.ranks) == topology.num_ranks:
                return f"what must {way} {'ranks' if witness.entering else 'nodes'}, all taken together"
            return f"what must {way} {_ranks_shown(witness.ranks)}"
        case NestedCuts():
            first, then = (
                (witness.outer, witness.inner) if witness.entering else (witness.inner, witness.outer)
            )
            way = "enter" if witness.entering else "leave"
            return f"what must {way} {_ranks_shown(first)}, and then {_ranks_shown(then)}"
        case DelayedSource():
            early = frozenset(range(topology.num_ranks)).difference(*witness.sets)
            sets = format_count(len(witness.sets), "set")
            return f"what {_ranks_shown(early)} must feed to {sets} of ranks that hold nothing at first"
        case SpreadTail():
            chunks = format_count(witness.last, "chunk")
            return f"the last {chunks} to enter {_ranks_shown(witness.ranks)}, which must then spread there"
        case SingleMachine():
            way = "enter" if witness.entering else "leave"
            name = topology.resources[witness.resource].name
            return f"the batches that must pass {name} as they {way} {witness.family}s"
        case CutDual():
            priced = sum(price > 0 for price in witness.prices)
            sets = format_count(len(witness.charges), "set")
            return f"prices of {format_count(priced, 'resource')}, and what {sets} of ranks charge"
        case FlowDual():
            priced = sum(price > 0 for price in witness.prices)
            return f"prices of {format_count(priced, 'resource')}: each chunk pays its cheapest way at least"
        case _:
            return ""


def _ranks_shown(ranks: frozenset[int]) -> str:
    shown = sorted(ranks)
    if len(shown) == 1:
        return f"rank {shown[0]}"
    if len(shown) > 2 and shown == list(range(shown[0], shown[-1] + 1)):
        return f"ranks {shown[0]}-{shown[-1]}"
    return f"ranks {', '.join(map(str, shown[:12]))}{', ...' if len(shown) > 12 else ''}"

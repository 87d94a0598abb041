"""The certificate: a proven lower bound on the finish of any schedule, with the witness that proves it.

Each kind of bound has a module with its witness, its finder, and the evaluation of the witness. The
evaluation is exact arithmetic on the problem, without a solver. It shares two things with the finder: the
problem data (costs in ticks, links, `Problem.open_links`), and the time reversal of problems (module
`transformed`). docs/formulation.md, "Checking", explains why this is sound.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, fields, is_dataclass, replace
from fractions import Fraction
from types import UnionType
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_origin, get_type_hints

from taccl._internal.arguments import checked
from taccl._internal.names import shown
from taccl._internal.units import format_count, format_rates, format_us, gb_per_s
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.transformed import as_spreading, by_switches_alone, late_part, time_reversed
from taccl.problem.collectives import COLLECTIVES
from taccl.problem.problem import Problem

#: Max ranks of a set that a text lists one by one; consecutive ranks are shown as a range.
_MOST_SHOWN = 12
#: ((ticks, most), ...), both ascending: at most `most` of the counted events can happen before `ticks`.
Labels = tuple[tuple[int, int], ...]
#: Assumption about switches under which a bound holds.
#: False: only switches that the topology declares can reduce. True: all switches can reduce.
#: ``"only"``: declared switches make all sums; ranks only add switch output to their own data.
InNetworkGrant = bool | Literal["only"]


class Witness:
    """Base class of witnesses: data from which arithmetic proves a bound.

    - `kind`: Name of the witness in files and reports.
    - `proves`: Kind of bound that it proves.
    - `preference`: Order of kinds among equal bounds; the kind with the lowest number is reported.
    - `any_chunking`: True if the witness can prove a bound over all chunkings.
    """

    __slots__ = ()
    kind: ClassVar[str]
    proves: ClassVar[str]
    preference: ClassVar[int] = 100
    any_chunking: ClassVar[bool] = False

    def fits(self, problem: Problem) -> bool:
        """True if the ranks, links and resources that the witness names exist in the problem."""
        raise NotImplementedError

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        raise NotImplementedError

    def __str__(self) -> str:
        stated = {name: value for name, value in _fields(self).items() if value != ()}
        said = (f"{name.replace('_', ' ')} {_shown(value)}" for name, value in stated.items())
        return f"{self.kind}: {', '.join(said)}"

    def to_dict(self) -> dict[str, Any]:
        """The witness as plain values."""
        return {"kind": self.kind, **_plain(_fields(self))}


class OfRanks(Witness):
    """Witness that names a set of ranks."""

    __slots__ = ()
    ranks: frozenset[int]

    def fits(self, problem: Problem) -> bool:
        """True if the problem has all ranks of the set."""
        return self.ranks <= frozenset(range(problem.topology.num_ranks))


class OfResources(Witness):
    """Witness that names resources, each once."""

    __slots__ = ()
    resources: tuple[int, ...]

    def fits(self, problem: Problem) -> bool:
        """True if the problem has the resources, and none is named twice."""
        named = set(self.resources)
        return len(named) == len(self.resources) and named <= set(range(len(problem.topology.resources)))


class OfPrices(Witness):
    """Witness with a price for each resource; it proves bounds of whole chunks and over all chunkings."""

    __slots__ = ()
    any_chunking = True
    prices: tuple[int, ...]

    def proven(self, facts: Facts) -> int | Fraction:
        """Bound in ticks that the prices prove, evaluated exactly."""
        raise NotImplementedError

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return ticks <= self.proven(facts)


@dataclass(frozen=True, slots=True)
class BorderJob:
    """A required send: in every schedule, a chunk of `units` crosses a border over one of `links`.

    The border is that of a set of ranks. The send starts at `release` or later, and at least `tail` ticks
    follow its end. If `tail` is positive, the chunk then leaves the receiver, and holds each resource in
    `onward` for the given ticks: pairs of (resource, ticks).
    """

    links: frozenset[int]
    units: int
    release: int
    tail: int
    onward: frozenset[tuple[int, int]]


class Claim(NamedTuple):
    """A bound in ticks (a fraction if data is divisible), one sentence on its cause, and its witness."""

    ticks: int | Fraction
    limits: str
    witness: Witness | None

    @property
    def kind(self) -> str:
        """Kind of bound; ``"none"`` without a witness."""
        return "none" if self.witness is None else self.witness.proves

    @property
    def preference(self) -> int:
        """Order of the kind among equal bounds; the kind with the lowest number is reported."""
        return 0 if self.witness is None else self.witness.preference


def kinds_of_bounds() -> tuple[str, ...]:
    """Kinds of bounds that imported witness classes prove, in the order of preference among equal bounds."""
    found: dict[str, int] = {}
    classes = [Witness]
    for each in classes:  # the list grows while it is read
        classes += each.__subclasses__()
        if hasattr(each, "proves") and each.__module__.startswith("taccl."):
            found.setdefault(each.proves, each.preference)
    return tuple(sorted(found, key=lambda kind: (found[kind], kind)))


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
        case Witness():
            return value.to_dict()
    return _plain(_fields(value)) if is_dataclass(value) else value


def _shown(value: Any) -> str:
    """Text of the value of a witness's field; for a tuple of several sets or prices, only their number."""
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
class Late(Witness):
    """Witness for data released at `date_us` or later: `inner` proves the time needed from this date on."""

    kind = "late part"
    date_us: Fraction
    inner: Witness | None


#: Scope of a bound for which data may be cut anywhere.
ALL_CHUNKINGS = "all chunkings"


@dataclass(frozen=True)
class Certificate:
    """A proven lower bound on the finish of any schedule of a problem; see `lower_bound`.

    Parameters
    ----------
    problem : Problem
        The problem that the bound holds for: topology, collective and sketch.
    bound : Fraction
        The bound in microseconds, exact.
    kind : str
        Kind of argument, such as ``"latency"`` or ``"throughput"``, of those that `kinds_of_bounds` lists;
        ``"none"`` if nothing must be sent, or no bound above 0 was found.
    limits : str
        One sentence that names the bottleneck.
    witness : Witness, optional
        The witness that `check` verifies; None if nothing must be sent.
    divisible : bool
        True if data may be cut arbitrarily finely. Sends may then carry any number of chunks, unless a sketch
        limits it.
    in_network : bool or "only"
        True if all switches are assumed to reduce data in transit, even if this topology's do not. ``"only"``
        if all sums are made by this topology's reducing switches.
    is_cut_off : bool
        True if time ended the search for the bound, so that more time may prove a larger one.
    """

    problem: Problem
    bound: Fraction
    kind: str
    limits: str
    witness: Witness | None = None
    divisible: bool = False
    in_network: InNetworkGrant = False
    is_cut_off: bool = field(default=False, compare=False)

    @property
    def bound_us(self) -> float:
        """The bound in microseconds."""
        return float(self.bound)

    @property
    def scope(self) -> str:
        """Chunks that the bound holds for: ``"all chunkings"``, or a number, as ``"2 chunks per rank"``."""
        collective = self.problem.collective
        if self.divisible:
            return ALL_CHUNKINGS
        if collective.name not in COLLECTIVES or len(set(self.problem.chunk_bytes)) > 1:
            return "these chunks"
        return f"{format_count(collective.chunks_per_rank, 'chunk')} per rank"

    @property
    def text(self) -> str:
        """The bound and the chunks that it holds for: ``"30 us over all chunkings"``."""
        return f"{format_us(self.bound)} {'over' if self.divisible else 'for'} {self.scope}"

    @property
    def algbw_gb_per_s(self) -> float | None:
        """Bandwidth that no schedule can exceed, in GB/s as nccl-tests counts it; None without a size."""
        return gb_per_s(self.problem.size_bytes, self.bound)

    @property
    def busbw_gb_per_s(self) -> float | None:
        """Bus bandwidth that no schedule can exceed, in GB/s; None without a size."""
        algbw = self.algbw_gb_per_s
        return None if algbw is None else algbw * self.problem.collective.busbw_factor

    @property
    def bandwidth_text(self) -> str:
        """Algorithm and bus bandwidth as text; empty if they are unknown."""
        return format_rates(self.algbw_gb_per_s, self.problem.collective.busbw_factor)

    @checked
    def gap(self, finish: Fraction) -> float:
        """(finish - bound) / bound; 0 for an optimal schedule, infinite if the bound is 0."""
        if not self.bound:
            return float("inf") if finish else 0.0
        return float((finish - self.bound) / self.bound)

    @property
    def witness_text(self) -> str:
        """Witness of the bound, field by field; empty if there is none."""
        return "" if self.witness is None else str(self.witness)

    def check(self) -> bool:
        """True if the witness proves the bound, by arithmetic on the problem: no solver is called."""
        return is_proven(
            self.problem, self.bound, self.witness, divisible=self.divisible, in_network=self.in_network
        )

    def to_dict(self) -> dict[str, Any]:
        """The certificate as plain values."""
        return {
            "bound_us": self.bound_us,
            "kind": self.kind,
            "bound_limits": self.limits,
            "divisible": self.divisible,
            "scope": self.scope,
            "in_network": self.in_network,
            "algbw_gb_per_s": self.algbw_gb_per_s,
            "busbw_gb_per_s": self.busbw_gb_per_s,
            "witness": None if self.witness is None else self.witness.to_dict(),
        }

    def _repr_html_(self) -> str:
        """HTML for notebooks: the bound, its limit, and its witness."""
        from taccl._internal.html import card, facts

        switches = "switches alone add" if self.in_network == "only" else "switches may reduce"
        granted = [(self.divisible, "data may be cut anywhere"), (self.in_network, switches)]
        rows = [
            ("bound", self.text),
            ("bandwidth", self.bandwidth_text and f"{self.bandwidth_text} at most"),
            ("limited by", self.limits),
            ("kind", self.kind),
            ("witness", self.witness_text),
            ("granted", ", ".join(text for given, text in granted if given)),
        ]
        return card(f"bound of {self.problem.title}", facts(rows))

    def __repr__(self) -> str:
        return (
            f"Certificate({self.text}"
            + (f", {self.bandwidth_text}" if self.bandwidth_text else "")
            + f": {self.kind}, limited by {shown(self.limits, 300)})"
        )


def is_proven(
    problem: Problem, bound: Fraction, witness: Witness | None, *, divisible: bool, in_network: InNetworkGrant
) -> bool:
    """True if the witness proves the bound, given in microseconds.

    Numbers that are not exact, in the bound or anywhere in the witness, prove nothing.
    """
    if not (is_exact(bound, Fraction) and (witness is None or is_exact(witness, type(witness)))):
        return False
    if isinstance(witness, Late):
        part, left = late_part(problem, witness.date_us), bound - witness.date_us
        return part is not None and is_proven(
            part, left, witness.inner, divisible=divisible, in_network=in_network
        )
    problem = problem.without_dates()  # a bound that ignores release dates also holds with them
    ticks = bound * problem.costs.ticks_per_us
    if witness is None:
        return ticks <= 0
    if (divisible and not witness.any_chunking) or not witness.fits(problem):
        return False
    if ticks <= 0:  # no schedule finishes before 0, whatever the witness proves
        return True
    if in_network == "only":
        problem = by_switches_alone(problem)
    reading: Problem | None = as_spreading(problem)
    if reading is not None and getattr(witness, "backwards", False):
        reading = time_reversed(reading)
    if reading is None:
        return False
    return witness.holds(Facts(reading, divisible=divisible, in_network=in_network), ticks)


def by_its_prices(bound: Certificate, problem: Problem) -> Certificate | None:
    """Bound over all chunkings that the prices of a bound of whole chunks prove; None if it has none.

    - `problem`: The problem of the bound without limits on merging, release dates and padding.
    """
    if not isinstance(bound.witness, OfPrices) or bound.in_network == "only":
        return None
    ticks = bound.witness.proven(Facts(as_spreading(problem), divisible=True, in_network=bound.in_network))
    every = Fraction(ticks) / problem.costs.ticks_per_us
    return replace(bound, problem=problem, bound=every, divisible=True, is_cut_off=True)


def is_exact(value: Any, annotated: Any) -> bool:
    """True if the value and all its parts have the annotated types, so that arithmetic on them is exact.

    An integer may stand for a fraction. Floats and numpy's numbers, which round or overflow, are refused.
    """
    if annotated is Fraction:
        return type(value) in (int, Fraction)
    if isinstance(annotated, UnionType):
        return any(is_exact(value, each) for each in get_args(annotated))
    outer, inner = get_origin(annotated), get_args(annotated)
    if outer is not None:
        if type(value) is not outer:
            return False
        if outer is tuple and inner[-1] is not ...:
            return len(value) == len(inner) and all(map(is_exact, value, inner))
        return all(is_exact(each, inner[0]) for each in value)
    kind: Any = type(value)
    parts = _parts(kind)
    if not isinstance(value, annotated) or not (parts or kind is annotated):
        return False
    return all(is_exact(getattr(value, name), each) for name, each in parts.items())


@functools.cache
def _parts(kind: type) -> dict[str, Any]:
    """{field of a dataclass or named tuple: its annotation}; empty for other classes."""
    names = getattr(kind, "_fields", ())
    if is_dataclass(kind):
        names = [each.name for each in fields(kind)]
    hints = get_type_hints(kind) if names else {}
    return {name: hints[name] for name in names}

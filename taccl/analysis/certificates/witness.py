"""Witnesses of lower bounds; arithmetic alone evaluates them.

Each kind of bound has a module with its witness, its finder, and the evaluation of the witness. An evaluation
shares with the finder only the reading of the problem.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from taccl.analysis.certificates.evaluation.facts import Facts
    from taccl.problem.problem import Problem

#: Max ranks of a set to list, unless they are consecutive.
_MOST_SHOWN = 12
#: ((ticks, most), ...), both ascending: before `ticks`, at most `most` of the counted items can be there.
Labels = tuple[tuple[int, int], ...]


class Witness:
    """Proof of a bound.

    - `kind`: Name of the witness in files and reports.
    - `proves`: Kind of bound that it proves.
    - `any_chunking`: True if it can prove a bound over all chunkings.
    """

    __slots__ = ()
    kind: ClassVar[str]
    proves: ClassVar[str]
    any_chunking: ClassVar[bool] = False

    def fits(self, problem: Problem) -> bool:
        """True if the witness names only what the problem has, and nothing twice."""
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
        """True if the problem has these ranks."""
        return self.ranks <= frozenset(range(problem.topology.num_ranks))


@dataclass(frozen=True, slots=True)
class BorderJob:
    """A send that every schedule has: a chunk enters or leaves a set of ranks over one of `links`.

    It starts at `release` or later, and at least `tail` ticks remain after its end. If the tail is positive,
    the chunk then holds the resources that all its onward links share, for the ticks in `onward`.
    """

    links: frozenset[int]
    units: int
    release: int
    tail: int
    onward: frozenset[tuple[int, int]]


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
        case Witness():
            return value.to_dict()
    return _plain(_fields(value)) if is_dataclass(value) else value


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
class Late(Witness):
    """Data available only from some time on, and the witness for the duration from there."""

    kind, proves = "late part", "release"
    moment_us: Fraction
    inner: Witness | None

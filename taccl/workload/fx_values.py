"""Values of the nodes of a PyTorch graph: tensors of a step, and forms of them that a step need not make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl.workload.fx_graph import Graph


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor of the step, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class View:
    """A tensor of the step with its elements in another local shape, in the same order."""

    name: str
    shape: tuple[int, ...]
    is_squeezed: bool = False  # only axes of length 1 came or went


@dataclass(frozen=True, slots=True)
class Stacked:
    """Equal pieces of a local tensor along an axis, one for each rank of a group, concatenated along axis 0.

    In PyTorch, this is the result of an all-gather along an axis other than 0, and the operand of such a
    reduce-scatter.
    """

    name: str
    axis: int
    count: int


@dataclass(frozen=True, slots=True)
class Piece:
    """One of the equal pieces of a value along an axis, by position."""

    whole: Named | Stacked
    axis: int
    position: int
    count: int


@dataclass(frozen=True, slots=True)
class Filled:
    """A tensor filled with one number."""

    number: float


@dataclass(frozen=True, slots=True)
class Positions:
    """Whole numbers from a start to before a stop along an axis, in a local shape of one such axis."""

    start: int
    stop: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """A tensor whose axes of length 1, also in front, are repeated to a local shape."""

    source: Named | View | Positions
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Whole:
    """Whole numbers that the graph computes, as numbers of float32, which are exact up to 2**24."""

    value: Named | View


class Deferred:
    """A value that is made once an operation reads it.

    - `make`: Makes it; None if a step cannot have it.
    - `what`: What it is, for messages.
    - `note`: What readers of gradients know of it without making it; one without is made where it is taken.
    """

    def __init__(self, what: str, make: Callable[[], Any] | None, note: Any = None) -> None:
        self.what, self.note, self._make, self._made = what, note, make, None
        self.is_taken = make is not None and note is None

    def value(self, graph: Graph) -> Any:
        """The value, made at the first call."""
        if self._make is None:
            raise graph.refused(f"{graph.node.target} reads {self.what}, which a step does not have")
        if self._made is None:
            self._made = self._make()
        return self._made


def number_of(value: Any) -> float | None:
    """Number that a value is, or is filled with; None for a tensor."""
    if isinstance(value, Filled):
        return value.number
    return float(value) if isinstance(value, (int, float)) else None


def described(value: Any) -> str:
    """Description of a value for messages."""
    if isinstance(value, Filled):
        return f"a tensor filled with {value.number:g}"
    if isinstance(value, Whole):
        return f"whole numbers {described(value.value)}"
    if isinstance(value, Repeated):
        return f"{described(value.source)} repeated as {list(value.shape)}"
    if isinstance(value, Positions):
        return f"whole numbers from {value.start} to before {value.stop}"
    if isinstance(value, View):
        return f"{value.name} as {list(value.shape)}"
    if isinstance(value, Stacked):
        return f"the concatenated slices of {value.name} along axis {value.axis}"
    if isinstance(value, Piece):
        return f"piece {value.position} of {value.count} of {value.whole.name} along axis {value.axis}"
    if isinstance(value, list):
        return f"[{', '.join(map(described, value))}]"
    if isinstance(value, Deferred):
        return value.what
    return value.name if isinstance(value, Named) else repr(value)

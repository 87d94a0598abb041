"""Values of nodes of a PyTorch graph: tensors of a step, and values that become tensors only if needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taccl.errors import WorkloadError

if TYPE_CHECKING:
    from taccl.workload.fx_graph import Graph

#: Arguments of a node, by their names in PyTorch.
Arguments = dict[str, Any]
#: Function that converts a node with these arguments, and returns the node's value.
Reader = Callable[["Graph", Arguments], Any]


class Unread(WorkloadError):
    """Error for a PyTorch operation without a converter, or with arguments that its converter rejects."""


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor of the step, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class View:
    """A tensor of the step viewed in another local shape, with its elements in the same order."""

    name: str
    shape: tuple[int, ...]
    is_squeezed: bool = False  # True if only axes of length 1 were added or removed


@dataclass(frozen=True, slots=True)
class Stacked:
    """Equal pieces of a local tensor along an axis, one for each rank of a group, concatenated along axis 0.

    In PyTorch, this is the result of an all-gather along an axis other than 0, and the operand of a
    reduce-scatter along such an axis.
    """

    name: str
    axis: int
    count: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Piece number `position` of `count` equal pieces into which a value is cut along an axis."""

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
    """Integers from `start` to before `stop`, in a local shape with at most one axis longer than 1."""

    start: int
    stop: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Own:
    """A tensor that each rank computes from its own data: its slice of `name` along the first axis.

    - `shape`: Shape at one rank.
    """

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """A tensor to be broadcast to a local shape; point-wise operations read the original tensor instead."""

    source: Named | View | Own | Positions
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Whole:
    """Integers that the graph computes, stored in a float32 tensor, which holds up to 2**24 exactly."""

    value: Named | View | Own


class Deferred:
    """A value whose operations are added to the step only if another operation reads it.

    - `make`: Function that adds the operations and returns the value; None if the value is not supported.
    - `what`: Description of the value, for messages.
    - `note`: Number that gradients use instead of the value, such as a layernorm's epsilon; None if they use
      the value itself. A value without a note is computed once a node selects it from several results.
    """

    def __init__(self, what: str, make: Callable[[], Any] | None, note: Any = None) -> None:
        self.what, self.note, self._make, self._made = what, note, make, None
        self.is_taken = make is not None and note is None

    def value(self, graph: Graph) -> Any:
        """The value; the first call adds its operations to the step."""
        if self._make is None:
            raise graph.refused(f"{graph.node.target} reads {self.what}, which is not supported")
        if self._made is None:
            self._made = self._make()
        return self._made


def arguments_of(node: Any) -> Arguments:
    """Arguments of a node that calls an operator of PyTorch, by name, with the operator's defaults."""
    defaults = {each.name: each.default_value for each in node.target._schema.arguments}
    return defaults | dict(zip(defaults, node.args, strict=False)) | dict(node.kwargs)


def number_of(value: Any) -> float | None:
    """Value of a constant, or of every element of a `Filled` tensor; None for any other value."""
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
    if isinstance(value, Own):
        return f"what each rank has of {value.name}"
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

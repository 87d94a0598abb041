"""What a step is made of: tensors with layouts, operations, and the layout that each operation's result has.

Source of the layouts and of what follows from them: Jangda et al., "Breaking the Computation and
Communication Abstraction Barrier in Distributed Machine Learning Workloads" (CoCoNet), ASPLOS 2022.

A tensor stands for one array. Where it is *replicated*, every rank has it; *sliced* along an axis, rank r has
the r-th of equal pieces; *partial*, it is the sum of what ranks have. Collectives change layouts and no
values (`send` moves slices along). Every other operation is given a layout only where the array that it
stands for is then its function of the arrays that its inputs stand for; so an operation may be put before a
collective wherever `infer` still finds a layout, and nowhere else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from taccl.errors import WorkloadError
from taccl.names import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BINARY", "COLLECTIVES", "DTYPE_BYTES", "KINDS", "POINTWISE", "Operation", "Tensor",
    "infer", "layout_axis", "operand_axes", "sliced",
]  # fmt: skip

DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
UNARY = ("relu", "gelu", "tanh", "square", "sqrt", "scale", "offset", "dropout")
BINARY = ("add", "subtract", "multiply", "divide", "maximum")
POINTWISE = UNARY + BINARY
COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "alltoall", "send")
KINDS = ("matmul", "compute", *POINTWISE, "layernorm", "norm", "sum_of_squares", *COLLECTIVES)
#: Options that a kind takes, of which it needs those in capitals.
_OPTIONS = {
    "reduce_scatter": ("AXIS",), "alltoall": ("AXIS",), "send": ("shift",), "scale": ("VALUE",),
    "offset": ("VALUE",), "dropout": ("VALUE", "seed"), "compute": ("SHAPE", "dtype", "layout", "seed"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array that ranks have together.

    Parameters
    ----------
    shape : tuple of int
        Of the array that it stands for, not of one rank's piece.
    dtype : {"float64", "float32", "float16", "bfloat16"}
        Of its elements.
    layout : str
        ``"replicated"``, ``"partial"``, or ``"sliced(AXIS)"``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: str = "replicated"

    @property
    def axis(self) -> int | None:
        """The axis that it is sliced along, if it is."""
        return layout_axis(self.layout)

    @property
    def num_bytes(self) -> int:
        """Of the whole array."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    def local_bytes(self, num_ranks: int) -> int:
        """Of what one rank has of it."""
        return self.num_bytes // (1 if self.axis is None else num_ranks)

    def check(self, num_ranks: int) -> Tensor:
        """Itself; `WorkloadError` unless shape, type and layout are some that ranks can have."""
        if self.dtype not in DTYPE_BYTES:
            raise WorkloadError(
                f"found dtype {self.dtype!r}; expected one of {', '.join(DTYPE_BYTES)}", where=self.name
            )
        if any(length < 1 for length in self.shape):
            raise WorkloadError(
                f"found shape {self.shape}; every axis needs a length of 1 or more", where=self.name
            )
        axis = self.axis
        if axis is None and self.layout not in ("replicated", "partial"):
            raise WorkloadError(
                f"found layout {self.layout!r}; expected replicated, partial, or sliced(0) with some axis",
                where=self.name,
            )
        if axis is not None and not 0 <= axis < len(self.shape):
            raise WorkloadError(
                f"found {self.layout} of {len(self.shape)} axes; name one of them", where=self.name
            )
        if axis is not None and self.shape[axis] % num_ranks:
            raise WorkloadError(
                f"axis {axis} of length {self.shape[axis]} does not divide into {num_ranks} equal slices; "
                "choose another axis, or pad it",
                where=self.name,
            )
        return self

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}] {self.layout}"


@dataclass(frozen=True, slots=True)
class Operation:
    """What makes a tensor of its own name.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    axis : int, optional
        What `reduce_scatter` and `alltoall` slice along.
    value : float, optional
        What `scale` multiplies by and `offset` adds; the share of elements that `dropout` sets to 0.
    seed : int
        Chooses those, by the place of an element in the whole array; and the numbers that `compute` makes.
    shift : int
        By how many ranks `send` moves slices on, round and round.
    shape, dtype, layout
        Of what `compute` makes, whose inner workings are not known.
    reads : tuple of str
        The layouts in which `compute` was written to read its inputs; no others will do.
    cost_us : float, optional
        How long all of it takes a rank; by default its FLOPs or its bytes at a machine's rates, whichever is
        longer.
    flops, memory_bytes : float, optional
        Of one rank, where they do not follow from the shapes.
    fused : str
        The collective into whose last step it is fused.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    axis: int | None = None
    value: float | None = None
    seed: int = 0
    shift: int = 1
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    layout: str = "replicated"
    reads: tuple[str, ...] = ()
    cost_us: float | None = None
    flops: float | None = None
    memory_bytes: float | None = None
    fused: str = ""

    @property
    def is_collective(self) -> bool:
        """Whether it moves data between ranks."""
        return self.kind in COLLECTIVES

    def options(self) -> dict[str, object]:
        """The options that were given, by name."""
        names = tuple(option.lower() for option in _OPTIONS.get(self.kind, ()))
        found = {name: getattr(self, name) for name in names}
        costs = {name: getattr(self, name) for name in ("cost_us", "flops", "memory_bytes")}
        return found | {name: value for name, value in costs.items() if value is not None}

    def check(self) -> Operation:
        """Itself; `WorkloadError` unless it is of a kind that there is, with its options and costs."""
        if self.kind not in KINDS:
            advice = did_you_mean(self.kind, KINDS)
            said = f"found an operation {self.kind!r}; expected one of {', '.join(KINDS)}{advice}"
            raise WorkloadError(said, where=self.name)
        count = 2 if self.kind in (*BINARY, "matmul") else None if self.kind == "compute" else 1
        if count is not None and len(self.inputs) != count:
            raise WorkloadError(
                f"found {len(self.inputs)} inputs; {self.kind} takes {count}", where=self.name
            )
        for option in _OPTIONS.get(self.kind, ()):
            if option.isupper() and option != "SHAPE" and getattr(self, option.lower()) is None:
                raise WorkloadError(f"{self.kind} needs {option.lower()}; give it", where=self.name)
        if self.kind == "dropout" and self.value is not None and not 0 <= self.value < 1:
            raise WorkloadError(f"found a share of {self.value}; expected 0 <= value < 1", where=self.name)
        for what in ("cost_us", "flops", "memory_bytes"):
            cost = getattr(self, what)
            if cost is not None and not (math.isfinite(cost) and cost >= 0):
                raise WorkloadError(f"found {what} {cost}; expected a number of 0 or more", where=self.name)
        if self.is_collective and (self.cost_us, self.flops, self.memory_bytes) != (None,) * 3:
            said = f"{self.kind} takes what the topology says it takes; leave its cost out"
            raise WorkloadError(said, where=self.name)
        return self

    def __str__(self) -> str:
        given = [*self.inputs, *(f"{name}={value!r}" for name, value in self.options().items())]
        return f"{self.name} = {self.kind}({', '.join(given)})"


def sliced(axis: int) -> str:
    """The layout of slices along an axis."""
    return f"sliced({axis})"


def layout_axis(layout: str) -> int | None:
    """The axis of slices; None for other layouts."""
    inner = layout.removeprefix("sliced(").removesuffix(")")
    return int(inner) if layout == f"sliced({inner})" and inner.isdecimal() and inner.isascii() else None


def operand_axes(operation: Operation, inputs: Sequence[Tensor], out: Tensor, at: int) -> list[int | None]:
    """For each axis of an input, that of the result whose places it is read at; None: it is read whole."""
    shape, places = inputs[at].shape, len(out.shape)
    kind = operation.kind
    if kind == "matmul":
        mine = len(shape)
        other_batch = len(inputs[1].shape) > 2
        if at == 0:
            return [*range(mine - 1), None]
        batch: list[int | None] = list(range(places - 2)) if other_batch else []
        return [*batch, None, places - 1]
    if kind in ("norm", "sum_of_squares") or (kind == "compute" and shape != out.shape):
        return [None] * len(shape)
    off = places - len(shape)
    axes: list[int | None] = [
        axis + off if shape[axis] == out.shape[axis + off] else None for axis in range(len(shape))
    ]
    if kind == "layernorm":
        axes[-1] = None
    return axes


def infer(operation: Operation, inputs: Sequence[Tensor], num_ranks: int) -> Tensor:
    """What an operation makes of tensors; `WorkloadError` says why it cannot.

    Parameters
    ----------
    operation : Operation
        Of known kind.
    inputs : sequence of Tensor
        In its order.
    num_ranks : int
        Ranks that slices are of.
    """
    operation.check()
    kind = operation.kind
    if kind == "compute":
        return _of_compute(operation, inputs, num_ranks)
    if operation.is_collective:
        return _of_collective(operation, inputs[0], num_ranks)
    shape = _shape(operation, inputs)
    dtype = max((each.dtype for each in inputs), key=lambda name: DTYPE_BYTES[name])
    out = Tensor(operation.name, shape, dtype)
    if kind in ("norm", "sum_of_squares", "layernorm"):
        layout = _of_norm(operation, inputs[0])
    elif any(each.layout == "partial" for each in inputs):
        layout = _of_partial(operation, inputs)
    else:
        layout = _of_slices(operation, inputs, out)
    return replace(out, layout=layout).check(num_ranks)


def _refused(operation: Operation, said: str) -> WorkloadError:
    return WorkloadError(f"{operation.kind} {said}", where=operation.name)


def _shape(operation: Operation, inputs: Sequence[Tensor]) -> tuple[int, ...]:
    shapes = [each.shape for each in inputs]
    if operation.kind in ("norm", "sum_of_squares"):
        return ()
    if operation.kind == "layernorm" and not shapes[0]:
        raise _refused(operation, "needs an axis; found a scalar")
    if operation.kind == "matmul":
        a, b = shapes
        fits = len(a) >= 2 and len(b) >= 2 and a[-1] == b[-2] and (len(b) == 2 or a[:-2] == b[:-2])
        if not fits:
            said = f"found shapes {a} and {b}; expected (..., m, k) and (k, n), or as many matrices in both"
            raise _refused(operation, said)
        return (*a[:-1], b[-1])
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise _refused(
            operation, f"found shapes {shapes[0]} and {shapes[1]}, which do not fit each other"
        ) from None


def _of_compute(operation: Operation, inputs: Sequence[Tensor], num_ranks: int) -> Tensor:
    for each, layout in zip(inputs, operation.reads, strict=True):
        if each.layout != layout:
            said = (
                f"was written to read {each.name} {layout}, and found it {each.layout}; what it "
                f"does is not known"
            )
            raise _refused(operation, said)
    return Tensor(operation.name, operation.shape, operation.dtype, operation.layout).check(num_ranks)


def _of_collective(operation: Operation, given: Tensor, num_ranks: int) -> Tensor:
    kind = operation.kind
    wanted = "partial" if kind in ("allreduce", "reduce_scatter") else "sliced"
    if not given.layout.startswith(wanted):
        raise _refused(operation, f"needs a {wanted} tensor; {given.name} is {given.layout}")
    if kind == "alltoall" and given.axis == operation.axis:
        raise _refused(
            operation, f"found {given.name} sliced along axis {operation.axis} already; name another"
        )
    if kind in ("reduce_scatter", "alltoall"):
        assert operation.axis is not None
        layout = sliced(operation.axis)
    else:
        layout = given.layout if kind == "send" else "replicated"
    return Tensor(operation.name, given.shape, given.dtype, layout).check(num_ranks)


def _of_norm(operation: Operation, given: Tensor) -> str:
    if given.layout == "partial":
        raise _refused(operation, f"is not linear, and {given.name} is partial; it needs its sum first")
    if operation.kind == "layernorm":
        if given.axis == len(given.shape) - 1:
            raise _refused(
                operation, f"is over the last axis, along which {given.name} is sliced; allgather it first"
            )
        return given.layout
    if given.axis is None:
        return "replicated"
    if operation.kind == "norm":
        said = (
            f"is over all of {given.name}, of which a rank has a slice; it needs a collective "
            f"first (split it)"
        )
        raise _refused(operation, said)
    return "partial"


def _of_partial(operation: Operation, inputs: Sequence[Tensor]) -> str:
    kind, layouts = operation.kind, [each.layout for each in inputs]
    partial = next(each for each in inputs if each.layout == "partial").name
    if kind in ("scale", "dropout"):
        return "partial"
    if kind in ("add", "subtract"):
        if layouts == ["partial", "partial"]:
            return "partial"
        said = (
            f"of {partial}, which is partial, and a tensor that is not, would count the latter "
            f"once for every rank"
        )
        raise _refused(operation, said)
    if kind in ("multiply", "matmul") and sorted(layouts) == ["partial", "replicated"]:
        return "partial"
    if kind == "divide" and layouts == ["partial", "replicated"]:
        return "partial"
    raise _refused(
        operation, f"of these is not linear in {partial}, which is partial; it needs its sum first"
    )


def _of_slices(operation: Operation, inputs: Sequence[Tensor], out: Tensor) -> str:
    """The layout of what is read at the same places, or summed over the places of one axis."""
    found = set()
    for at, each in enumerate(inputs):
        if each.axis is not None:
            axis = operand_axes(operation, inputs, out, at)[each.axis]
            found.add("partial" if axis is None else sliced(axis))
    if len(found) > 1:
        told = " and ".join(f"{each.name} {each.layout}" for each in inputs)
        raise _refused(operation, f"found {told}, which do not meet; alltoall or allgather one of them first")
    return found.pop() if found else "replicated"

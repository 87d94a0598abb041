"""Tensors with layouts, operations, and layout inference for the result of each operation.

Source of the layouts and their rules: Jangda et al., "Breaking the Computation and Communication Abstraction
Barrier in Distributed Machine Learning Workloads" (CoCoNet), ASPLOS 2022.

A tensor stands for one global array. If it is *replicated*, every rank has the whole array. If it is *sliced*
along an axis, rank r has the r-th of equal slices. If it is *partial*, the array is the sum of the ranks'
arrays. Collectives change layouts and keep values, except that `send` moves slices between ranks. Any other
operation gets a layout only if its local results make up the operation applied to the global arrays. So an
operation may move before a collective exactly where `infer` still finds a layout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from taccl._internal.arguments import checked_as, known_word
from taccl.errors import WorkloadError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl._internal.arguments import Count, Natural

DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
UNARY = (
    "relu", "gelu", "tanh", "sigmoid", "exp", "square", "sqrt", "scale", "offset", "dropout", "cast",
)  # fmt: skip
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "relu_grad")
POINTWISE = UNARY + BINARY
REDUCTIONS = ("norm", "sum_of_squares")
COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "alltoall", "send")
#: Kinds that need whole rows: all elements along the last axis.
ROWWISE = ("layernorm", "softmax")
KINDS = ("matmul", "compute", *POINTWISE, *ROWWISE, "transpose", "sum", *REDUCTIONS, *COLLECTIVES)
#: {kind: its options}; those in capitals are required.
_OPTIONS = {
    "reduce_scatter": ("AXIS",), "alltoall": ("AXIS",), "sum": ("AXIS",), "send": ("shift",),
    "scale": ("VALUE",), "offset": ("VALUE",), "dropout": ("VALUE", "seed"),
    "compute": ("shape", "dtype", "layout", "seed"), "cast": ("dtype",), "transpose": ("axes",),
}  # fmt: skip
_COSTS = ("cost_us", "flops", "memory_bytes")


def refuse_first(where: str, *faults: tuple[object, str]) -> None:
    """Raise `WorkloadError` for the first true fault; each is (condition, message)."""
    for is_there, said in faults:
        if is_there:
            raise WorkloadError(said, where=where)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A distributed array.

    - `shape`: Shape of the global array, not of one rank's part.
    - `dtype`: Type of its elements, a key of `DTYPE_BYTES`.
    - `layout`: ``"replicated"``, ``"partial"``, or ``"sliced(AXIS)"``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: str = "replicated"

    @property
    def axis(self) -> int | None:
        """The axis that it is sliced along; None if it is not sliced."""
        inner = self.layout.removeprefix("sliced(").removesuffix(")")
        is_axis = self.layout == f"sliced({inner})" and inner.isdecimal() and inner.isascii()
        return int(inner) if is_axis else None

    @property
    def num_bytes(self) -> int:
        """Size of the global array in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    def local_shape(self, num_ranks: int) -> tuple[int, ...]:
        """Shape of one rank's part."""
        of_axis = enumerate(self.shape)
        return tuple(length // (num_ranks if axis == self.axis else 1) for axis, length in of_axis)

    def local_bytes(self, num_ranks: int) -> int:
        """Size of one rank's part in bytes."""
        return math.prod(self.local_shape(num_ranks)) * DTYPE_BYTES[self.dtype]

    def check(self, num_ranks: int) -> Tensor:
        """The tensor itself; raises `WorkloadError` if its shape, type or layout is invalid."""
        axis, shape, count = self.axis, self.shape, len(self.shape)
        is_known = axis is not None or self.layout in ("replicated", "partial")
        length = shape[axis] if axis is not None and axis < count else 0
        layouts, types = "replicated, partial, or sliced(0) with some axis", ", ".join(DTYPE_BYTES)
        pad = f"does not divide into {num_ranks} equal slices; choose another axis, or pad it"
        outside = axis is not None and not length
        refuse_first(
            self.name,
            (self.dtype not in DTYPE_BYTES, f"found dtype {self.dtype!r}; expected one of {types}"),
            (min(shape, default=1) < 1, f"found shape {shape}; every axis needs a length of 1 or more"),
            (not is_known, f"found layout {self.layout!r}; expected {layouts}"),
            (outside, f"found {self.layout} of {count} axes; name an axis that it has"),
            (length % num_ranks, f"axis {axis} of length {length} {pad}"),
        )
        return self

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}] {self.layout}"


@checked_as(WorkloadError)
@dataclass(frozen=True, slots=True)
class Operation:
    """An operation, whose result is a tensor of the same name.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    axis : int, optional
        Axis along which `reduce_scatter` and `alltoall` slice their result, or over which `sum` adds.
    value : float, optional
        Factor of `scale`, summand of `offset`, or share of elements that `dropout` sets to 0.
    seed : int, optional
        Seed of `dropout` and `compute`; by default it follows from the name. `dropout` chooses elements by
        their index in the global array.
    shift : int
        Number of ranks by which `send` moves slices on, cyclically.
    axes : tuple of int
        Order of the operand's axes in the result of `transpose`; by default the last two are exchanged.
    shape, dtype, layout
        Shape, element type and layout of the result of `compute`, a kernel whose function is unknown. `cast`
        has a `dtype`, too.
    cost_us : float, optional
        Time of the whole operation at one rank, in microseconds. The default is the longer of its FLOPs and
        its memory bytes at the machine's rates.
    flops, memory_bytes : float, optional
        Floating-point operations and bytes of memory traffic of one rank, instead of those from the shapes.
    fused : str
        Name of the collective into whose last step the operation is fused, or of the first operation of its
        kernel; empty if none.
    """

    name: str
    kind: str
    inputs: tuple[str, ...] = ()
    axis: Natural | None = None
    value: float | None = None
    seed: Natural | None = None
    shift: int = 1
    axes: tuple[Natural, ...] = ()
    shape: tuple[Count, ...] = ()
    dtype: str = "float32"
    layout: str = "replicated"
    cost_us: float | None = None
    flops: float | None = None
    memory_bytes: float | None = None
    fused: str = ""

    def __post_init__(self) -> None:
        if self.seed is None and "seed" in _OPTIONS.get(self.kind, ()):
            object.__setattr__(self, "seed", crc32(self.name.encode()))

    @property
    def is_collective(self) -> bool:
        """True if the operation moves data between ranks."""
        return self.kind in COLLECTIVES

    def check(self) -> Operation:
        """The operation itself; raises `WorkloadError` if its kind, inputs, options or costs are invalid."""
        kind, count = self.kind, len(self.inputs)
        known_word(kind, KINDS, self.name, WorkloadError)
        takes = {"compute": count, "matmul": 2}.get(kind, 2 if kind in BINARY else 1)
        needed = [name.lower() for name in _OPTIONS.get(kind, ()) if name.isupper()]
        absent = next((name for name in needed if getattr(self, name) is None), "")
        costs = {name: getattr(self, name) for name in _COSTS if getattr(self, name) is not None}
        bad = next((f"{name} {us}" for name, us in costs.items() if not 0 <= us < math.inf), "")
        no_share = kind == "dropout" and not 0 <= (self.value or 0) < 1
        said = f"{kind} takes what the topology says it takes; leave its cost out"
        refuse_first(
            self.name,
            (count != takes, f"found {count} inputs; {kind} takes {takes}"),
            (absent, f"{kind} needs {absent}; give it"),
            (no_share, f"found a share of {self.value}; expected 0 <= value < 1"),
            (bad, f"found {bad}; expected a number of 0 or more"),
            (self.is_collective and costs, said),
        )
        return self

    def __str__(self) -> str:
        options = {name.lower(): getattr(self, name.lower()) for name in _OPTIONS.get(self.kind, ())}
        options |= {name: getattr(self, name) for name in _COSTS if getattr(self, name) is not None}
        given = [*self.inputs, *(f"{name}={value!r}" for name, value in options.items())]
        return f"{self.name} = {self.kind}({', '.join(given)})"


def operand_axes(operation: Operation, inputs: Sequence[Tensor], out: Tensor, at: int) -> list[int | None]:
    """The axis of the result that each axis of an input corresponds to; None if the axis is read whole.

    - `at`: Position of the input among the operation's inputs.
    """
    shape, places, kind = inputs[at].shape, len(out.shape), operation.kind
    if kind == "matmul":
        if at == 0:
            return [*range(len(shape) - 1), None]
        return [*(range(places - 2) if len(shape) > 2 else ()), None, places - 1]
    is_apart = kind == "compute" and (shape != out.shape or inputs[at].axis not in (None, out.axis))
    if kind == "transpose":
        order = permutation(operation, len(shape))
        return [order.index(axis) for axis in range(len(shape))]
    if kind == "sum":
        at_axis = operation.axis or 0
        return [None if axis == at_axis else axis - (axis > at_axis) for axis in range(len(shape))]
    if kind in REDUCTIONS or is_apart:
        return [None] * len(shape)
    off = places - len(shape)
    axes = [axis + off if length == out.shape[axis + off] else None for axis, length in enumerate(shape)]
    return [*axes[:-1], None] if kind in ROWWISE else axes


def permutation(operation: Operation, count: int) -> tuple[int, ...]:
    """The axis of the operand, of `count` axes, that each axis of a transpose's result is."""
    return operation.axes or (*range(count - 2), count - 1, count - 2)


def infer(operation: Operation, inputs: Sequence[Tensor], num_ranks: int) -> Tensor:
    """Infer the result of an operation with its layout; `WorkloadError` says why there is none.

    - `operation`: An operation of any kind.
    - `inputs`: Its operands, in its order.
    - `num_ranks`: Number of ranks, and so of slices.
    """
    operation.check()
    kind = operation.kind
    if kind == "compute":
        out = Tensor(operation.name, operation.shape, operation.dtype)
        layout = _of_compute(operation, inputs)
    elif operation.is_collective:
        out, layout = inputs[0], _of_collective(operation, inputs[0])
    else:
        dtype = max((each.dtype for each in inputs), key=lambda name: DTYPE_BYTES[name])
        dtype = operation.dtype if kind == "cast" else dtype
        out = Tensor(operation.name, _shape(operation, inputs), dtype)
        if any(each.layout == "partial" for each in inputs):
            layout = _of_partial(operation, inputs)
        else:
            layout = _of_slices(operation, inputs, out)
    return replace(out, name=operation.name, layout=layout).check(num_ranks)


def _refused(operation: Operation, said: str) -> WorkloadError:
    return WorkloadError(f"{operation.kind} {said}", where=operation.name)


def _shape(operation: Operation, inputs: Sequence[Tensor]) -> tuple[int, ...]:
    shapes = [each.shape for each in inputs]
    if operation.kind in REDUCTIONS:
        return ()
    if operation.kind in ROWWISE and not shapes[0]:
        raise _refused(operation, "needs an axis; found a scalar")
    if operation.kind == "sum":
        axis = operation.axis or 0
        if axis >= len(shapes[0]):
            raise _refused(operation, f"is over axis {axis} of {shapes[0]}; name an axis that it has")
        return (*shapes[0][:axis], *shapes[0][axis + 1 :])
    if operation.kind == "transpose":
        count = len(shapes[0])
        order = permutation(operation, count)
        if sorted(order) != [*range(count)]:
            said = f"found axes {order} for {shapes[0]}; name each of its axes once"
            raise _refused(operation, said)
        return tuple(shapes[0][axis] for axis in order)
    if operation.kind == "matmul":
        a, b = shapes
        if len(a) >= 2 and len(b) >= 2 and a[-1] == b[-2] and (len(b) == 2 or a[:-2] == b[:-2]):
            return (*a[:-1], b[-1])
        said = f"found shapes {a} and {b}; expected (..., m, k) and (k, n), or as many matrices in both"
        raise _refused(operation, said)
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        said = f"found shapes {shapes[0]} and {shapes[1]}, which do not fit each other; make them fit"
        raise _refused(operation, said) from None


def _of_compute(operation: Operation, inputs: Sequence[Tensor]) -> str:
    """The stated layout of a `compute`; `WorkloadError` if it would need communication."""
    fits = {"partial": ("replicated", "sliced", "partial"), "replicated": ("replicated",)}
    for each in inputs:
        if not each.layout.startswith(fits.get(operation.layout, ("replicated", "sliced"))):
            said = f"makes {operation.layout} of {each.name}, which is {each.layout}"
            raise _refused(operation, f"{said}; it needs a collective first")
    return operation.layout


def _of_collective(operation: Operation, given: Tensor) -> str:
    kind, axis = operation.kind, operation.axis
    wanted = "partial" if kind in ("allreduce", "reduce_scatter") else "sliced"
    if not given.layout.startswith(wanted):
        raise _refused(operation, f"needs a {wanted} tensor; {given.name} is {given.layout}")
    if kind == "alltoall" and given.axis == axis:
        raise _refused(operation, f"found {given.name} sliced along axis {axis} already; name another")
    if kind in ("reduce_scatter", "alltoall"):
        return f"sliced({axis})"
    return given.layout if kind == "send" else "replicated"


def _of_partial(operation: Operation, inputs: Sequence[Tensor]) -> str:
    kind, layouts = operation.kind, [each.layout for each in inputs]
    partial = next(each for each in inputs if each.layout == "partial").name
    both, one = layouts == ["partial", "partial"], "replicated" in layouts
    before, after = DTYPE_BYTES[inputs[0].dtype], DTYPE_BYTES.get(operation.dtype, 0)
    is_linear = {
        "scale": True, "dropout": True, "add": both, "subtract": both, "multiply": one, "matmul": one,
        "divide": layouts[-1] == "replicated", "relu_grad": layouts[-1] == "replicated",
        "transpose": True, "sum": True,
        # A wider type holds every part exactly.
        "cast": before < after or inputs[0].dtype == operation.dtype,
    }  # fmt: skip
    if is_linear.get(kind, False):
        return "partial"
    said = f"of these is not linear in {partial}, which is partial; it needs its sum first"
    if kind == "cast":
        said = f"to {operation.dtype} rounds each part of {partial}, which is partial; it needs its sum first"
    if kind in ("add", "subtract"):
        said = f"of {partial}, which is partial, and a tensor that is not, would count the latter "
        said += "once for every rank; add them behind the sum"
    raise _refused(operation, said)


def _of_slices(operation: Operation, inputs: Sequence[Tensor], out: Tensor) -> str:
    """Layout of a result of sliced or replicated inputs; partial if it sums over a sliced axis."""
    found = set()
    for at, each in enumerate(inputs):
        if each.axis is not None:
            axis = operand_axes(operation, inputs, out, at)[each.axis]
            if axis is None and operation.kind in ("norm", *ROWWISE):
                said = f"is over axis {each.axis} of {each.name}, of which a rank has a slice"
                raise _refused(operation, f"{said}; it needs a collective first, or to be split")
            found.add("partial" if axis is None else f"sliced({axis})")
    if len(found) > 1:
        told = " and ".join(f"{each.name} {each.layout}" for each in inputs)
        raise _refused(operation, f"found {told}, which do not meet; alltoall or allgather one of them first")
    return found.pop() if found else "replicated"

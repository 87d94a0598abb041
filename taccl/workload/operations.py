"""Operations of a step, and distributed tensors with layouts.

Source of the layouts and their rules: Jangda et al., "Breaking the Computation and Communication Abstraction
Barrier in Distributed Machine Learning Workloads" (CoCoNet), ASPLOS 2022.

A tensor stands for one global array. If it is *replicated*, every rank has the whole array. If it is *sliced*
along an axis, rank r has the r-th of equal slices. If it is *partial*, the array is the sum of the ranks'
arrays. Collectives change layouts and keep values, except that `send` moves slices between ranks. Any other
operation has a valid layout only if the ranks' local results together form its result on global arrays. So an
operation may move before a collective exactly if `taccl.workload.layouts.infer` still finds a layout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from zlib import crc32

from taccl._internal.arguments import Count, Extended, Natural, checked_as, known_word
from taccl._internal.units import format_count
from taccl.errors import WorkloadError
from taccl.workload.kinds import TABLE
from taccl.workload.mesh import Mesh, mesh_of, parts_of_layout

#: {element type: bytes per element}. Integers are ids and bools are masks; arithmetic supports neither.
DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "bool": 1,
}  # fmt: skip
INTEGERS = ("int64", "int32")
FLOATS = tuple(name for name in DTYPE_BYTES if name not in (*INTEGERS, "bool"))
POINTWISE = tuple(name for name, kind in TABLE.items() if kind.pointwise)
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
REDUCTIONS = ("norm", "sum_of_squares")
COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "alltoall", "send")
KINDS = ("compute", *TABLE, *COLLECTIVES)
#: {kind: its options}; those in capitals are required.
_OPTIONS = {
    "reduce_scatter": ("AXIS",), "alltoall": ("AXIS",), "send": ("shift",),
    "compute": ("shape", "dtype", "layout", "seed"), **{name: kind.options for name, kind in TABLE.items()},
}  # fmt: skip
_COSTS = ("cost_us", "flops", "memory_bytes")


def refuse_first(where: str, *faults: tuple[object, str]) -> None:
    """Raise `WorkloadError` with the message of the first (condition, message) pair whose condition holds."""
    for is_there, said in faults:
        if is_there:
            raise WorkloadError(said, where=where)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A distributed array.

    - `shape`: Shape of the global array, not of one rank's part.
    - `dtype`: Type of its elements, a key of `DTYPE_BYTES`.
    - `layout`: ``"replicated"``, ``"partial"``, or ``"sliced(AXIS)"``. In a step with groups each is over a
      group, e.g. ``"sliced(0) over dp, partial over tp"``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: str = "replicated"

    @property
    def axis(self) -> int | None:
        """Axis along which the tensor is sliced; None if it is not sliced."""
        inner = self.layout.removeprefix("sliced(").removesuffix(")")
        is_axis = self.layout == f"sliced({inner})" and inner.isdecimal() and inner.isascii()
        return int(inner) if is_axis else None

    @property
    def num_bytes(self) -> int:
        """Size of the global array in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    def along(self, dim: str) -> str:
        """Layout of the tensor along one dimension of the mesh."""
        for kind, dims in parts_of_layout(self.layout):
            if not dims or dim in dims:
                return kind
        return "replicated"

    def local_shape(self, ranks: Mesh | int) -> tuple[int, ...]:
        """Shape of one rank's part."""
        mesh = mesh_of(ranks)
        return tuple(length // mesh.slices(self, axis) for axis, length in enumerate(self.shape))

    def local_bytes(self, ranks: Mesh | int) -> int:
        """Size of one rank's part in bytes."""
        return math.prod(self.local_shape(ranks)) * DTYPE_BYTES[self.dtype]

    @lru_cache(maxsize=4096)  # each operation added to a step checks all earlier tensors again
    def check(self, ranks: Mesh | int) -> Tensor:
        """Return the tensor with its layout in normal form: groups named in the mesh's order.

        Raises `WorkloadError` if its shape, type or layout is invalid.
        """
        mesh, shape, count = mesh_of(ranks), self.shape, len(self.shape)
        types = ", ".join(DTYPE_BYTES)
        refuse_first(
            self.name,
            (self.dtype not in DTYPE_BYTES, f"found dtype {self.dtype!r}; expected one of {types}"),
            (min(shape, default=1) < 1, f"found shape {shape}; every axis needs a length of 1 or more"),
        )
        named: list[str] = []
        for kind, dims in parts_of_layout(self.layout):
            axis = replace(self, layout=kind).axis
            layouts = "replicated, partial, or sliced(0) with some axis"
            refuse_first(
                self.name,
                (axis is None and kind not in ("replicated", "partial"), f"found layout {kind!r}; expected "
                 f"{layouts}"),
                (axis is not None and axis >= count, f"found layout {kind!r} for {count} axes; name "
                 "an axis that it has"),
                (kind == "partial" and self.dtype not in FLOATS, f"is partial and of {self.dtype}; partial "
                 f"tensors need one of {', '.join(FLOATS)}"),
            )  # fmt: skip
            named += mesh.dims_of("+".join(dims), where=self.name)
        twice = next((name for name in named if named.count(name) > 1), None)
        refuse_first(self.name, (twice is not None, f"found layout {self.layout!r}; name each group once"))
        for axis, length in enumerate(shape):
            pad = (
                f"does not divide into {mesh.slices(self, axis)} equal slices; choose another axis, or pad it"
            )
            refuse_first(
                self.name, (length % mesh.slices(self, axis), f"axis {axis} of length {length} {pad}")
            )
        return replace(self, layout=mesh.layout({name: self.along(name) for name in mesh.names}))

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
        Axis along which `reduce_scatter` and `alltoall` slice their result, `sum` adds, `narrow` cuts or
        `concat` joins.
    value : float, optional
        Number that the kind has: the factor of `scale` or the exponent of `power`, for example (`TABLE` of
        `taccl.workload.kinds`). Masks and comparisons may have an infinity, ``"inf"`` or ``"-inf"`` in files.
    seed : int, optional
        Seed of `dropout` and `compute`; by default it follows from the name. `dropout` chooses elements by
        their index in the global array.
    shift : int
        Number of ranks by which `send` moves slices on, cyclically in each group.
    group : str
        Group of a collective: a dimension of the step's mesh, or some as ``"dp+tp"``; empty for all ranks.
    axes : tuple of int
        Order of the operand's axes in the result of `transpose`; by default the last two are exchanged.
    start, stop : int
        Range that `narrow` takes; `stop` is also the number of rows of an `embedding_grad`, and of the
        elements in a row of a `one_hot`.
    causal : bool
        True if each query of `attention` reads only keys up to its own position.
    shape, dtype, layout
        Shape, element type and layout of the result of `compute`, a kernel whose function is unknown.
        `reshape` has a `shape`, `cast` and `one_hot` have a `dtype`, and `aten` has both.
    call, arguments, labels, item
        Operator of PyTorch that `aten` calls, its arguments as JSON, the axes of operands and result that
        match, and the number of the result if the operator has several (`taccl.workload.aten`).
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
    value: Extended | None = None
    seed: Natural | None = None
    shift: int = 1
    group: str = ""
    axes: tuple[Natural, ...] = ()
    start: Natural = 0
    stop: Natural = 0
    causal: bool = False
    shape: tuple[Count, ...] = ()
    dtype: str = "float32"
    layout: str = "replicated"
    call: str = ""
    arguments: str = ""
    labels: str = ""
    item: Natural | None = None
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
        """Return the operation; raise `WorkloadError` if its kind, inputs, options or costs are invalid."""
        kind, count = self.kind, len(self.inputs)
        known_word(kind, KINDS, self.name, WorkloadError)
        takes = TABLE[kind].operands if kind in TABLE else (count,) if kind == "compute" else (1,)
        told = f"{takes[0]} to {takes[-1]}" if len(takes) > 1 else f"{takes[0]}"
        needed = [name.lower() for name in _OPTIONS.get(kind, ()) if name.isupper()]
        absent = next((name for name in needed if getattr(self, name) in (None, "")), "")
        costs = {name: getattr(self, name) for name in _COSTS if getattr(self, name) is not None}
        bad = next((f"{name} {us}" for name, us in costs.items() if not 0 <= us < math.inf), "")
        has_no_end = kind not in (*COMPARISONS, "masked_fill") and math.isinf(self.value or 0.0)
        no_share = kind == "dropout" and not 0 <= (self.value or 0) < 1
        said = f"the topology determines the cost of {kind}; leave it out"
        refuse_first(
            self.name,
            (count not in takes, f"found {format_count(count, 'input')}; {kind} takes {told}"),
            (absent, f"{kind} needs {absent}; give it"),
            (has_no_end, f"found value {self.value}; {kind} takes a finite number"),
            (kind in COMPARISONS and (count == 1) != (self.value is not None),
             f"compares {count} inputs, and has value {self.value}; give two inputs, or one and a value"),
            (no_share, f"found a share of {self.value}; expected 0 <= value < 1"),
            (bad, f"found {bad}; expected a number of 0 or more"),
            (self.is_collective and costs, said),
            (self.group and not self.is_collective, f"is a {kind}, which needs no group; leave it out"),
        )  # fmt: skip
        return self

    def __repr__(self) -> str:
        return f"Operation({self})"

    def __str__(self) -> str:
        options = {name.lower(): getattr(self, name.lower()) for name in _OPTIONS.get(self.kind, ())}
        options = {name: one for name, one in options.items() if one is not None and one is not False}
        options |= {"group": self.group} if self.group else {}
        options |= {name: getattr(self, name) for name in _COSTS if getattr(self, name) is not None}
        given = [*self.inputs, *(f"{name}={value!r}" for name, value in options.items())]
        return f"{self.name} = {self.kind}({', '.join(given)})"


def labels_of(operation: Operation, inputs: Sequence[Tensor], out: Tensor) -> list[list[int | None]]:
    """Label of each axis of each operand of a computation; see `taccl.workload.kinds`."""
    shapes = [each.shape for each in inputs]
    if operation.kind in TABLE:
        return TABLE[operation.kind].labels(operation, shapes, out.shape)
    return [
        [None] * len(each.shape)
        if operation.kind == "compute" and (each.shape != out.shape or _is_sliced_otherwise(each, out))
        else [*range(len(each.shape))]
        for each in inputs
    ]


def operand_axes(operation: Operation, inputs: Sequence[Tensor], out: Tensor, at: int) -> list[int | None]:
    """For each axis of an input, the matching axis of the result; None if the result has no matching axis.

    - `at`: Position of the input among the operation's inputs.
    """
    labels = labels_of(operation, inputs, out)[at]
    return [None if label is None or label < 0 else label for label in labels]


def inner_axes(labels: Sequence[Sequence[int | None]]) -> dict[int, dict[int, int]]:
    """{label of an axis that the result lacks: {position of an operand: its axis with this label}}."""
    found: dict[int, dict[int, int]] = {}
    for at, each in enumerate(labels):
        for axis, label in enumerate(each):
            if label is not None and label < 0:
                found.setdefault(label, {})[at] = axis
    return found


def free_axes(operation: Operation, inputs: Sequence[Tensor], out: Tensor) -> list[int]:
    """Axes of the result that no operand has; along them, ranks compute all elements and keep their own."""
    made = {label for labels in labels_of(operation, inputs, out) for label in labels}
    return [axis for axis in range(len(out.shape)) if axis not in made and operation.kind in TABLE]


def _is_sliced_otherwise(tensor: Tensor, out: Tensor) -> bool:
    """True if, along some mesh dimension, a tensor is sliced and the result has another layout."""
    names = {name for each in (tensor, out) for _, dims in parts_of_layout(each.layout) for name in dims}
    pairs = ((tensor.along(name), out.along(name)) for name in names or {""})
    return any(one.startswith("sliced") and one != two for one, two in pairs)

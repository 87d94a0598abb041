"""Convert a PyTorch graph of one rank into a step, whose operations act on distributed tensors.

The caller gives the layouts of the graph's inputs. Each operation on local tensors becomes an operation on
global tensors, and the layout of its result is inferred (`taccl.workload.layouts.infer`). The local shape and
element type of every result must equal those that the graph states. This module does not import PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from taccl.errors import WorkloadError
from taccl.workload.fx_parts import of_parts, rows_of, spread, total_of
from taccl.workload.fx_values import (
    Deferred,
    Filled,
    Named,
    Own,
    Piece,
    Positions,
    Reader,
    Repeated,
    Stacked,
    Unread,
    View,
    Whole,
    described,
)
from taccl.workload.fx_views import (
    alike_sliced,
    have_whole_rows,
    in_memory,
    made_whole,
    of_each_slice,
    unviewed,
)
from taccl.workload.kinds import TABLE
from taccl.workload.layouts import has_types, infer
from taccl.workload.mesh import Mesh
from taccl.workload.operations import COLLECTIVES, DTYPE_BYTES, FLOATS, INTEGERS, POINTWISE, Operation, Tensor

#: Kinds of operations that read an `Own` (tensor that each rank computes from its data) as a partial tensor.
_OF_PARTS = ("allreduce", "reduce_scatter", "aten", "reshape")
#: Kinds of operations on each row (last axis) of their operands, which all have the same shape.
_OF_ROWS = ("softmax", "softmax_grad", "log_softmax", "log_softmax_grad", "layernorm", "layernorm_grad")
TRACE = "trace the step with torch.export or make_fx"
#: Remedy for operations that write in place.
FUNCTIONAL = "call run_decompositions() after torch.export, or trace make_fx(torch.func.functionalize(step))"


class Graph:
    """Step that is built from a PyTorch graph, node by node.

    - `mesh`: The ranks.
    - `groups`: {process group of the graph: group of the step}; empty if there is one process group.
    - `readers`: {name of a PyTorch operation: function that returns the value of a node}.
    - `node`: The current node.
    - `parts`: {partial tensor: tensor whose index r along an additional first axis is rank r's part}.
    - `keeps_lengths`: Choice for views that may be sliced along either of two axes. True: the axis whose
      local length the view keeps. False: as a rule, the first of the two.
    - `has_choice`: True once a view could be sliced along either of two axes.
    """

    def __init__(
        self,
        mesh: Mesh,
        groups: Mapping[str, str],
        readers: Mapping[str, Reader],
        *,
        keeps_lengths: bool = False,
    ) -> None:
        self.mesh, self.groups, self.readers = mesh, groups, readers
        self.keeps_lengths, self.has_choice = keeps_lengths, False
        self.seen: dict[str, None] = {}
        self.node: Any = None
        self.inputs: list[Tensor] = []
        self.operations: list[Operation] = []
        self.tensors: dict[str, Tensor] = {}
        self.values: dict[Any, Any] = {}
        self.state: dict[str, str] = {}
        self.reshaped: dict[View | Own | Stacked, str] = {}
        self.parts: dict[str, str] = {}

    def refused(self, said: str) -> WorkloadError:
        """Error with the text `said` and the name of the current node."""
        return WorkloadError(said, where=self.node.name)

    def unread(self, said: str) -> Unread:
        """Error with the text `said`, for a node whose converter does not support its arguments."""
        return Unread(said, where=self.node.name)

    def make(self, kind: str, *values: Any, **options: Any) -> Any:
        """Add an operation to the step; return its result, a `View` if point-wise operands are views."""
        found = self._of_computed(kind, values, options)
        if found is not None:
            return found
        shape, is_squeezed = None, False
        if kind in POINTWISE and any(isinstance(value, View) for value in values):
            is_squeezed = all(value.is_squeezed for value in values if isinstance(value, View))
            values, shape = unviewed(self, values)
        elif kind in _OF_ROWS and have_whole_rows(self, values):
            values, shape = tuple(Named(value.name) for value in values), values[0].shape
        if kind not in (*_OF_PARTS, *POINTWISE) and any(isinstance(value, Own) for value in values):
            found = self._of_rows(kind, values, **options)
            if found is not None:
                return found
            if kind in TABLE and hasattr(self.node.target, "tags"):
                told = " and ".join(described(value) for value in values)
                raise self.unread(f"{kind} of {told} is not one operation on a global tensor")
        names = tuple(self.name_of(value) for value in values)
        operation = Operation(self._fresh(f"{self.node.name}_{kind}"), kind, names, **options)
        try:
            made = infer(operation, [self.tensors[name] for name in names], self.mesh)
        except WorkloadError as error:
            return self._in_other_layouts(operation, values, options, shape, error)
        self.tensors[operation.name] = made
        self.operations.append(operation)
        return Named(operation.name) if shape is None else View(operation.name, shape, is_squeezed)

    def _of_computed(self, kind: str, values: Sequence[Any], options: dict[str, Any]) -> Any:
        """Result of an operation on values that are no tensors of the step yet; None if there are none.

        Such values are whole numbers that the graph computes, repeated values, and ranks' own tensors.
        """
        if any(isinstance(value, (Positions, Whole)) for value in values):
            numbers = [
                self.cast(value, "float32") if isinstance(value, (Positions, Whole)) else value
                for value in values
            ]
            found = self.make(kind, *numbers, **options)
            is_whole = isinstance(found, (Named, View, Own)) and self.stated()[1] in INTEGERS
            return Whole(found) if is_whole and self.dtype(found) in FLOATS else found
        if kind in POINTWISE and any(isinstance(value, Repeated) for value in values):
            shapes = {value.shape if isinstance(value, Repeated) else None for value in values}
            plain = (value.source if isinstance(value, Repeated) else value for value in values)
            # Compute with the values before they are repeated; readers of the result broadcast it.
            found = self.make(kind, *plain, **options)
            alike = shapes.pop() if len(shapes) == 1 else None
            return found if alike is None else Repeated(found, alike)
        has_own = any(isinstance(value, Own) for value in values)
        return of_parts(self, kind, values, **options) if has_own else None

    def _in_other_layouts(
        self, operation: Operation, values: Sequence[Any], options: dict[str, Any],
        shape: tuple[int, ...] | None, error: WorkloadError,
    ) -> Any:  # fmt: skip
        """Result of an operation whose operands do not fit together, after a change of their layouts.

        Raises `WorkloadError` if no change makes them fit.

        - `shape`: Local shape in which the result is viewed; None for its own.
        - `error`: Reason why they do not fit.
        """
        kind, names = operation.kind, operation.inputs
        if kind in TABLE and not has_types(operation, [self.tensors[name] for name in names]):
            raise self.unread(error.message) from None
        matched = alike_sliced(self, names) if kind in POINTWISE else None
        if matched is not None:
            found = self.make(kind, *map(Named, matched), **options)
        else:
            found = of_parts(self, kind, [Named(name) for name in names], **options)
        if found is not None:
            return found if shape is None else self.viewed(found, shape)
        found = self._of_rows(kind, values, **options)
        if found is not None:
            return found
        is_own = any(isinstance(value, (Own, Repeated)) for value in values)
        if kind in TABLE and (is_own or self._are_distributed(names)):
            raise self.unread(error.message) from None
        advice = "; correct the layouts of the inputs" if kind in COLLECTIVES else ""
        raise self.refused(error.message + advice) from None

    def _of_rows(self, kind: str, values: Sequence[Any], **options: Any) -> Any:
        """Result of an operation whose per-rank operands (`Own`) become tensors sliced along the first axis.

        None if no operand is an `Own` with axes, or if the operation has no valid layout on slices.
        """
        if not any(isinstance(value, Own) and value.shape for value in values):
            return None
        first = len(self.operations)
        try:
            sliced = [spread(self, value) for value in values]
            return self.make(kind, *sliced, **options)
        except WorkloadError:
            self.forget(first)
            return None

    def _are_distributed(self, names: Sequence[str]) -> bool:
        """True if the tensors have several sliced axes, all sliced over the same mesh dimensions."""
        tensors = [self.tensors[name] for name in names]
        dims = [self.mesh.slicing(each, axis) for each in tensors for axis in self.mesh.sliced_axes(each)]
        return len(dims) > 1 and len({*dims}) == 1

    def forget(self, first: int) -> None:
        """Remove all operations from index `first` on, with their results."""
        names = {each.name for each in self.operations[first:]}
        del self.operations[first:]
        for name in names:
            del self.tensors[name]
        self.reshaped = {key: name for key, name in self.reshaped.items() if name not in names}
        self.parts = {key: name for key, name in self.parts.items() if not {key, name} & names}

    def name_of(self, value: Any) -> str:
        """Name of the tensor that holds a value; if there is none yet, operations that make it are added.

        Raises `WorkloadError` for unsupported values, such as a number.
        """
        if isinstance(value, Named):
            return value.name
        if isinstance(value, Deferred):
            return self.name_of(value.value(self))
        if isinstance(value, Stacked):
            if value not in self.reshaped:
                found = in_memory(self, value)
                self.reshaped[value] = found.name if isinstance(found, Named) else rows_of(self, found)
            return self.reshaped[value]
        if isinstance(value, Piece):
            whole = Named(self.name_of(value.whole))
            length = self.local_shape(whole)[value.axis] // value.count
            start = value.position * length
            return self.name_of(self.part(whole, value.axis, start, start + length))
        if isinstance(value, Repeated):
            return self.name_of(self._repeated(value))
        if isinstance(value, Own):
            if value not in self.reshaped:
                is_summed = self.tensors[value.name].dtype in FLOATS or not value.shape
                self.reshaped[value] = (total_of if is_summed else rows_of)(self, value)
            return self.reshaped[value]
        if isinstance(value, View):
            if value.shape == self.local_shape(Named(value.name)):
                return value.name
            if value not in self.reshaped:
                self.reshaped[value] = made_whole(self, value)
            return self.reshaped[value]
        said = f"{self.node.target} reads {described(value)}"
        if isinstance(value, (Whole, Positions)):
            raise self.unread(f"{said}, which the graph computes; convert them to float32")
        raise self.unread(f"{said}; only whole tensors are supported")

    def viewed(self, value: Named | View | Own, shape: tuple[int, ...]) -> View | Own:
        """View of a value in another local shape, with its elements in the same order."""
        return Own(value.name, shape) if isinstance(value, Own) else View(value.name, shape)

    def _repeated(self, value: Repeated) -> Any:
        """Expand a `Repeated` value into a tensor with all its elements in memory."""
        before = self.local_shape(value.source)
        source = (*(len(value.shape) - len(before)) * (1,), *before)
        found: Any = value.source
        if source != before:
            found = View(self.name_of(found), source, is_squeezed=True)
        for axis, (old, new) in enumerate(zip(source, value.shape, strict=True)):
            if old != new:
                found = self.make("repeat", found, axis=axis, stop=new)
        return found

    def part(self, value: Any, axis: int, start: int, stop: int) -> Any:
        """Part of a value from index `start` to before `stop` along an axis.

        Indices are local: if the axis is sliced over ranks, they count within each rank's slice.
        """
        return of_each_slice(self, "narrow", [value], axis, start=start, stop=stop)

    def padded(self, value: Any, axis: int, start: int, length: int) -> Any:
        """Gradient of `part`: a value padded with zeros to `length` along an axis; it begins at `start`."""
        if self.local_shape(value)[axis] == length:
            return value
        return of_each_slice(self, "pad", [value], axis, start=start, stop=length)

    def joined(self, values: list[Any], axis: int) -> Any:
        """Concatenation of values along an axis; if the axis is sliced, each rank joins its own slices."""
        return of_each_slice(self, "concat", values, axis)

    def only(self, given: dict[str, Any], **expected: Any) -> None:
        """Raise `WorkloadError` if an argument is given with another value than the expected one."""
        for name, value in expected.items():
            if name in given and given[name] != value:
                said = f"{self.node.target} has {name}={given[name]!r}; only {value!r} is supported"
                raise self.unread(said)

    def lazily(self, *makers: Callable[[], Any]) -> list[Deferred]:
        """Deferred results of the current node; each is added to the step once another node selects it."""
        node = self.node
        return [Deferred(f"result {place} of {node.target}", make) for place, make in enumerate(makers)]

    def first(self, make: Callable[[], Any]) -> list[Deferred]:
        """Deferred results of the current node, of which only the first is supported."""
        name = f"of {self.node.target}"
        return [*self.lazily(make), *(Deferred(f"result {place} {name}", None) for place in range(1, 10))]

    def note_of(self, value: Any, expected: str) -> Any:
        """Note of a `Deferred` value, such as a layernorm's epsilon; raises `WorkloadError` if it has none.

        - `expected`: Description of the expected value, for the message.
        """
        if isinstance(value, Deferred) and value.note is not None:
            return value.note
        raise self.unread(f"{self.node.target} reads {described(value)}; expected {expected}")

    def tensor(self, value: Any) -> Tensor:
        """Tensor of the step that holds a value; if there is none yet, it is added."""
        return self.tensors[self.name_of(value)]

    def cast(self, value: Any, dtype: Any) -> Any:
        """Value converted to element type `dtype`; unchanged if `dtype` is its own type or None."""
        name = str(dtype).removeprefix("torch.")
        if isinstance(value, Whole):
            return value if name in INTEGERS else self.cast(value.value, name)
        if dtype is None or isinstance(value, Filled) or name == self.dtype(value):
            return value
        if isinstance(value, Positions):
            made = self.make("arange", start=value.start, stop=value.stop, dtype=name)
            return View(made.name, value.shape, is_squeezed=True)
        if name in INTEGERS and self.dtype(value) == "bool":
            return Whole(self.make("cast", value, dtype="float32"))
        return self.make("cast", value, dtype=name)

    def numeric(self, value: Any) -> Any:
        """Value for arithmetic, in which a mask becomes numbers 0 and 1."""
        if isinstance(value, (Named, View, Repeated)) and self.dtype(value) == "bool":
            _, dtype = self.stated()
            return self.cast(value, dtype if dtype in FLOATS else "int64")
        return value

    def dtype(self, value: Any) -> str:
        """Element type of a value."""
        if isinstance(value, (Positions, Whole)):
            return "int64"
        if isinstance(value, Repeated):
            return self.dtype(value.source)
        is_named = isinstance(value, (View, Own))
        return self.tensors[value.name].dtype if is_named else self.tensor(value).dtype

    def local_shape(self, value: Any) -> tuple[int, ...]:
        """Shape of a value at one rank."""
        if isinstance(value, (Positions, Repeated, Own)):
            return value.shape
        if isinstance(value, Whole):
            return self.local_shape(value.value)
        if not isinstance(value, (Named, View, Stacked)):
            value = Named(self.name_of(value))
        if isinstance(value, View):
            return value.shape
        shape = list(self.tensors[value.name].local_shape(self.mesh))
        if isinstance(value, Stacked):
            shape[value.axis] //= value.count
            shape[0] *= value.count
        return tuple(shape)

    def value(self, argument: Any) -> Any:
        """Value of an argument of a node; constants are returned unchanged, and lists as lists of values."""
        if isinstance(argument, (list, tuple)):
            return [self.value(each) for each in argument]
        return self.values[argument] if type(argument).__name__ == "Node" else argument

    def group(self, given: dict[str, Any]) -> tuple[str, int]:
        """(group of a collective in the step, such as ``"dp+tp"``, number of ranks in the group)."""
        name = str(given["group_name"])
        self.seen[name] = None
        if self.groups and name not in self.groups:
            known = ", ".join(self.groups)
            raise self.refused(f"is over process group {name!r}; name it in groups=, which has {known}")
        if not self.groups and len(self.seen) > 1:
            told = " and ".join(map(repr, self.seen))
            raise self.refused(f"found process groups {told}; give mesh= and groups={{name: dimension}}")
        group = self.groups.get(name, "")
        size = self.mesh.size(self.mesh.dims_of(group, where=f"groups: {name}"))
        if given.get("group_size", size) != size:
            said = f"is over a process group of {given['group_size']} ranks"
            raise self.refused(f"{said}, but {group or 'the step'} has {size} ranks")
        return group, size

    def add_input(self, node: Any, layout: str) -> Named:
        """Add an input to the step for a placeholder node of the graph, in the given layout."""
        self.node = node
        shape, dtype = _shape_and_dtype(node)
        if shape is None or dtype not in DTYPE_BYTES:
            known = ", ".join(DTYPE_BYTES)
            found = "no shape" if shape is None else f"{dtype}"
            raise self.refused(f"found {found}; expected a tensor of {known}: {TRACE} with such inputs")
        local = Tensor(node.name, shape, dtype, layout)
        whole = tuple(length * self.mesh.slices(local, axis) for axis, length in enumerate(shape))
        self.tensors[node.name] = replace(local, shape=whole).check(self.mesh)
        self.inputs.append(self.tensors[node.name])
        return Named(node.name)

    def _fresh(self, name: str) -> str:
        while name in self.tensors:
            name += "_"
        return name

    def stated(self) -> tuple[tuple[int, ...] | None, str]:
        """Local shape and element type that the graph states for the current node, or (None, "")."""
        return _shape_and_dtype(self.node)

    def stated_by(self, meta: Any) -> tuple[tuple[int, ...] | None, str]:
        """Local shape and element type of one result of the current node, from its metadata in the graph."""
        return _stated(meta, self.node.name)


def has_effects(node: Any) -> bool:
    """True if a node may have side effects; other nodes can be left out if no node reads their values."""
    is_item = getattr(node.target, "__name__", "") == "getitem"
    return not is_item and getattr(getattr(node.target, "_schema", None), "is_mutable", True)


def _shape_and_dtype(node: Any) -> tuple[tuple[int, ...] | None, str]:
    """Local shape and element type of a node's result; (None, "") if the graph does not state one tensor."""
    return _stated(node.meta.get("val", node.meta.get("tensor_meta")), node.name)


def _stated(meta: Any, where: str) -> tuple[tuple[int, ...] | None, str]:
    if not hasattr(meta, "shape") or not hasattr(meta, "dtype"):
        return None, ""
    if not all(type(length) is int for length in meta.shape):
        said = f"found shape {list(meta.shape)} with unknown lengths; trace the step without dynamic shapes"
        raise WorkloadError(said, where=where)
    return tuple(meta.shape), str(meta.dtype).removeprefix("torch.")

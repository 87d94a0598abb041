"""Convert operators without a converter of their own into `aten` operations: calls on a rank's tensors.

An operator of ATen is a function of a rank's local tensors. `_RULES` says which axes of its operands and
result match. An operator with a rule is called on global tensors, and its result is sliced as the operands
are. Otherwise each rank calls it on its own tensors. The result then has a further first axis with one index
per rank (`Own`).
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from taccl.workload.aten import operand
from taccl.workload.fx_graph import Graph
from taccl.workload.fx_parts import own_of, parts_of
from taccl.workload.fx_values import (
    Arguments,
    Filled,
    Named,
    Own,
    Positions,
    View,
    Whole,
    arguments_of,
    described,
)
from taccl.workload.fx_views import by_rank
from taccl.workload.operations import DTYPE_BYTES

Shape = tuple[int, ...]
Names = list[str]
#: Function that returns the names of the axes of each operand, and of the axes of the result.
#: A rule is called with the arguments, and the local shapes of operands and result.
#: A rule returns None for a call that it does not cover.
Rule = Callable[[Arguments, list[Shape], Shape], tuple[list[Names], Names] | None]

#: Arguments of operators that do not change the values of results.
_PLACES = ("device", "layout", "memory_format", "pin_memory", "generator", "non_blocking")


@dataclass(slots=True)
class _Call:
    """A call of an operator: its arguments as JSON, its operands, and the shape and type of its result."""

    graph: Graph
    given: Arguments
    item: int | None
    shape: Shape
    dtype: str
    operands: list[Any]
    shapes: list[Shape]
    arguments: str = ""

    def make(self, values: Sequence[Any], shape: Shape, labels: str, **options: Any) -> Named:
        """Add the call to the step as an `aten` operation and return its result."""
        found: Named = self.graph.make(
            "aten", *values, call=str(self.graph.node.target), arguments=self.arguments, labels=labels,
            item=self.item, shape=shape, dtype=self.dtype, **options,
        )  # fmt: skip
        return found


def called(graph: Graph, given: Arguments | None = None, *, item: int | None = None, **options: Any) -> Any:
    """Convert the current node into a call of its operator; a list of values if it has several results.

    Raises `Unread` if the operator draws random numbers, writes in place, or is not of ATen. Also raises it
    if operands are sliced or partial in ways that calls do not support.

    - `given`: Arguments by name; default: those of the node.
    - `item`: Number of the result, if there are several. Default: all.
    """
    node = graph.node
    target, schema = node.target, node.target._schema
    tags = getattr(target, "tags", None)
    is_random = any("nondeterministic" in str(tag) for tag in tags or ())
    if tags is None or not str(target).startswith("aten.") or schema.is_mutable or is_random:
        raise graph.unread("" if tags is None else _obstacle(node))
    raw = arguments_of(node)
    if given is None:
        given = {name: graph.value(each) for name, each in raw.items()}
    meta = node.meta.get("val", node.meta.get("tensor_meta"))
    if isinstance(meta, (list, tuple)) and item is None:
        some = (functools.partial(called, graph, given, item=each, **options) for each in range(len(meta)))
        return graph.lazily(*some)
    result = meta if item is None else meta[item]
    shape, dtype = graph.stated_by(result)
    if shape is None or dtype not in DTYPE_BYTES:
        raise graph.unread(f"gives {dtype or 'no tensor'}")
    call = _Call(graph, given, item, shape, dtype, [], [])
    call.arguments = _json(call, raw)
    factor = {"mm": 0, "bmm": 0, "matmul": 0, "addmm": 1, "baddbmm": 1, "linear": 0}.get(
        str(target).split(".")[1]
    )
    if factor is not None:
        options = {"flops": 2.0 * math.prod(shape) * call.shapes[factor][-1]}
    return _by_rule(call, options) or _by_ranks(call, options)


def _obstacle(node: Any) -> str:
    """Reason why a node's operator must not be called, as text; empty if it may be called.

    Attention without dropout may be called: PyTorch marks it as random, but it draws no numbers.
    """
    if not str(node.target).startswith("aten."):
        return "is not of ATen"
    if node.target._schema.is_mutable:
        return "writes in place"
    return "" if arguments_of(node).get("dropout_p") == 0 else "is random"


def _json(call: _Call, raw: Arguments) -> str:
    """Arguments of a call as JSON; its tensors are added to the operands of the call."""
    graph, schema = call.graph, call.graph.node.target._schema
    positional, named = list[Any](), dict[str, Any]()
    for argument in schema.arguments:
        name, default = argument.name, argument.default_value
        value = default if name in _PLACES else call.given.get(name, default)
        if not argument.kwarg_only:
            positional.append(_plain(call, value, raw.get(name)))
        elif value != default:
            named[name] = _plain(call, value, raw.get(name))
    if not call.operands and any(each.name == "device" for each in schema.arguments):
        named["device"] = {"device": "own"}
    try:
        return json.dumps([positional, named])
    except TypeError:
        raise graph.unread(f"has arguments {described(list(call.given.values()))}") from None


def _plain(call: _Call, value: Any, raw: Any) -> Any:
    """JSON value of an argument of a call; a tensor is added to the operands and gives a placeholder."""
    if isinstance(value, list):
        parts = raw if isinstance(raw, (list, tuple)) else [None] * len(value)
        return [_plain(call, each, part) for each, part in zip(value, parts, strict=True)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value).__name__ == "dtype":
        return {"dtype": str(value).removeprefix("torch.")}
    graph = call.graph
    if type(value).__module__.startswith("torch"):
        raise graph.unread(f"reads {described(value)}")
    if value in call.operands and not isinstance(value, Filled):
        return operand(call.operands.index(value))
    if isinstance(value, Filled):
        shape, dtype = graph.stated_by(getattr(raw, "meta", {}).get("val"))
        if shape is None:
            return value.number
        value = (value.number, dtype)
    elif isinstance(value, Own):
        shape = value.shape
    else:
        value = exact(graph, value)
        shape = graph.local_shape(value)
    call.operands.append(value)
    call.shapes.append(shape)
    return operand(len(call.operands) - 1)


def exact(graph: Graph, value: Any) -> Named:
    """Tensor of a value, as the operand of a call; values that are whole numbers get an integer type."""
    if isinstance(value, Positions):
        count = value.stop - value.start
        arguments = json.dumps(
            [[value.start, value.stop], {"dtype": {"dtype": "int64"}, "device": {"device": "own"}}]
        )
        made = graph.make(
            "aten", call="aten.arange.start", arguments=arguments, shape=(count,), dtype="int64"
        )
        return Named(graph.name_of(View(made.name, value.shape, is_squeezed=True)))
    if isinstance(value, Whole):
        tensor = graph.tensor(value.value)
        axes = " ".join(f"a{axis}" for axis in range(len(tensor.shape)))
        arguments = json.dumps([[operand(0)], {"dtype": {"dtype": "int64"}}])
        cast: Named = graph.make(
            "aten", Named(tensor.name), call="aten._to_copy.default", arguments=arguments,
            labels=f"{axes} -> {axes}", shape=tensor.shape, dtype="int64",
        )  # fmt: skip
        return cast
    return Named(graph.name_of(value))


def _full(graph: Graph, filling: tuple[float, str], shape: Shape) -> Named:
    """Tensor of the given shape, filled with one number; `filling` is (number, element type)."""
    number, dtype = filling
    filled: Any = number if dtype not in ("bool", "int64", "int32") else int(number)
    arguments = json.dumps([[list(shape), filled], {"dtype": {"dtype": dtype}, "device": {"device": "own"}}])
    made: Named = graph.make("aten", call="aten.full.default", arguments=arguments, shape=shape, dtype=dtype)
    return made


def _by_rule(call: _Call, options: dict[str, Any]) -> Named | None:
    """Result of a call on global tensors; None if no rule covers the call, or its rule forbids the slices."""
    graph, mesh = call.graph, call.graph.mesh
    rule = _rule_of(graph.node.target, call.item)
    found = None if rule is None else rule(call.given, call.shapes, call.shape)
    if found is None or any(isinstance(each, Own) for each in call.operands):
        return None
    read, made = found
    slices: dict[str, int] = {}
    for value, names in zip(call.operands, read, strict=True):
        if isinstance(value, tuple):
            continue
        tensor = graph.tensor(value)
        if mesh.partial(tensor):
            return None
        for axis, name in enumerate(names):
            count = mesh.slices(tensor, axis)
            if count > 1 and name in (".", "1"):
                return None
            slices[name] = max(slices.get(name, 1), count)

    def whole(names: Names, local: Shape) -> Shape:
        return tuple(n * slices.get(name, 1) for name, n in zip(names, local, strict=True))

    values = list[Any]()
    for value, names, local in zip(call.operands, read, call.shapes, strict=True):
        if isinstance(value, tuple):
            values.append(_full(graph, value, whole(names, local)))
        elif graph.tensor(value).shape != whole(names, local):
            return None
        else:
            values.append(value)
    labels = f"{', '.join(map(' '.join, read))} -> {' '.join(made)}"
    return call.make(values, whole(made, call.shape), labels, **options)


def _by_ranks(call: _Call, options: dict[str, Any]) -> Named | Own:
    """Result of a call that each rank makes on its own tensors."""
    graph, mesh = call.graph, call.graph.mesh
    dims, values, read = set[tuple[str, ...]](), list[Any](), list[str]()
    for value, local in zip(call.operands, call.shapes, strict=True):
        rest = len(local) * " ."
        if isinstance(value, tuple):
            values.append(_full(graph, value, local))
            read.append(rest)
            continue
        own = value if isinstance(value, Own) else None
        if own is None:
            tensor = graph.tensor(value)
            axes = mesh.sliced_axes(tensor)
            if len(axes) == 1 and not mesh.partial(tensor):
                dims.add(tuple(mesh.slicing(tensor, axes[0])))
                values.append(by_rank(graph, tensor.name, axes[0])[1])
                read.append(f"*{rest}")
                continue
            own = own_of(graph, value) if mesh.partial(tensor) and not axes else None
            if own is None and (axes or mesh.partial(tensor)):
                said = f"reads {tensor.name}, which is {tensor}, and of which no rank's part is known apart"
                raise graph.unread(said)
        if own is None:
            values.append(value)
            read.append(rest)
        else:
            dims.add(tuple(mesh.slicing(graph.tensors[own.name], 0)))
            values.append(Named(parts_of(graph, own, local)))
            read.append(f"*{rest}")
    if not dims:
        return call.make(values, call.shape, "", **options)
    if len(dims) > 1:
        told = " and ".join("+".join(each) for each in sorted(dims))
        raise graph.unread(f"reads tensors that are distributed over {told}; gather one of them first")
    labels = f"{','.join(read)} -> *{len(call.shape) * ' .'}"
    found = call.make(values, (mesh.size(dims.pop()), *call.shape), labels, **options)
    return Own(found.name, call.shape)


# A rule is a function from the arguments and shapes of a call to the names of its axes.


def _letters(count: int) -> Names:
    return [f"a{axis}" for axis in range(count)]


def _elementwise(given: Arguments, shapes: list[Shape], out: Shape) -> tuple[list[Names], Names] | None:
    """Rule for element-wise operators: all axes match, as in NumPy's broadcasting."""
    names = _letters(len(out))
    read = []
    for shape in shapes:
        if len(shape) > len(out):
            return None
        mine = names[len(out) - len(shape) :]
        read.append([name if n == out[int(name[1:])] else "1" for name, n in zip(mine, shape, strict=True)])
    return read, names


def _of_planes(num: int) -> Rule:
    """Rule for operators on the last `num` axes, such as pooling: the axes before them match."""

    def rule(given: Arguments, shapes: list[Shape], out: Shape) -> tuple[list[Names], Names] | None:
        names = [*_letters(len(out) - num), *num * "."]
        if len(out) <= num or any(len(each) != len(out) for each in shapes):
            return None
        return [names for _ in shapes], names

    return rule


def _along(given: Arguments, shapes: list[Shape], out: Shape) -> tuple[list[Names], Names] | None:
    """Rule for operators along some axes: all other axes match."""
    dim = next((given[name] for name in ("dim", "dims") if given.get(name) is not None), None)
    count = len(shapes[0]) if shapes else 0
    if not count or any(len(each) != count for each in shapes):
        return None
    some = dim if isinstance(dim, list) else [] if dim is None else [dim]
    dims = {each % count for each in some} or {*range(count)}
    kept = [axis for axis in range(count) if axis not in dims]
    alike = [axis for axis in kept if len({each[axis] for each in shapes}) == 1]
    names = [f"a{axis}" if axis in alike else "." for axis in range(count)]
    if len(out) == count:
        return [names for _ in shapes], names
    return ([names for _ in shapes], [names[axis] for axis in kept]) if len(out) == len(kept) else None


def _indexed(given: Arguments, shapes: list[Shape], out: Shape) -> tuple[list[Names], Names] | None:
    """Rule for an operand indexed by a tensor along one axis: the axes of the index replace that axis."""
    indices = given.get("indices", [])
    if "index" in given:  # given to the operator index_select
        indices = [None] * (given["dim"] % len(shapes[0])) + [given["index"]]
    axes = [axis for axis, each in enumerate(indices) if each is not None]
    if len(axes) != 1 or len(shapes) != 2:
        return None
    names = _letters(len(shapes[0]))
    names[axes[0]] = "."
    rows = [f"i{axis}" for axis in range(len(shapes[1]))]
    return [names, rows], [*names[: axes[0]], *rows, *names[axes[0] + 1 :]]


def _convolved(given: Arguments, shapes: list[Shape], out: Shape) -> tuple[list[Names], Names] | None:
    """Axes of convolutions, which sum over input channels unless they are grouped or transposed."""
    rest = [*(len(out) - 2) * "."]
    if len(shapes) != 2 or any(len(each) != len(out) for each in shapes):
        return None
    if given.get("groups", 1) != 1 or given.get("transposed"):
        return [["n", ".", *rest], [".", ".", *rest]], ["n", ".", *rest]
    return [["n", "c", *rest], ["o", "c", *rest]], ["n", "o", *rest]


def _convolution_grad(item: int | None) -> Rule:
    """Rule for a gradient of a convolution, with respect to its operand (0) or its kernels (1)."""

    def rule(given: Arguments, shapes: list[Shape], out: Shape) -> tuple[list[Names], Names] | None:
        rest = [*(len(out) - 2) * "."]
        if len(shapes) != 3:
            return None
        o, c = (".", ".") if given["groups"] != 1 or given["transposed"] else ("o", "c")
        read = [["n", o, *rest], ["n", c, *rest], [o, c, *rest]]
        return read, ["n", c, *rest] if item == 0 else [o, c, *rest]

    return rule


#: Operators that work along the axes `dim`; each index of the other axes is treated separately.
_ALONG = (
    "topk", "sort", "argsort", "msort", "kthvalue", "mode", "cumsum", "cumprod", "cummax", "cummin",
    "logcumsumexp", "logsumexp", "argmax", "argmin", "amax", "amin", "max", "min", "median", "nanmedian",
    "var", "std", "var_mean", "std_mean", "prod", "all", "any", "flip", "roll", "gather", "scatter",
    "scatter_add", "scatter_reduce", "_softmax", "softmax", "_log_softmax", "log_softmax", "glu",
    "linalg_vector_norm",
)  # fmt: skip
#: Names of operators on images; ``{}`` stands for the number of axes of an image.
_PLANES = (
    "max_pool{}d", "max_pool{}d_with_indices", "max_pool{}d_with_indices_backward", "avg_pool{}d",
    "avg_pool{}d_backward", "adaptive_avg_pool{}d", "_adaptive_avg_pool{}d", "_adaptive_avg_pool{}d_backward",
    "adaptive_max_pool{}d", "adaptive_max_pool{}d_backward", "reflection_pad{}d", "replication_pad{}d",
    "reflection_pad{}d_backward", "replication_pad{}d_backward", "upsample_nearest{}d",
)  # fmt: skip
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ALONG, _along),
    **{name.format(num): _of_planes(num) for name in _PLANES for num in (1, 2, 3)},
    "upsample_bilinear2d": _of_planes(2), "upsample_bicubic2d": _of_planes(2),
    "index": _indexed, "index_select": _indexed,
    **dict.fromkeys(("convolution", "conv1d", "conv2d", "conv3d"), _convolved),
}  # fmt: skip


def _rule_of(target: Any, item: int | None) -> Rule | None:
    """Rule that names the matching axes of an operator's operands and result; None if there is none."""
    name = str(target).split(".")[1]
    if name == "convolution_backward":
        return _convolution_grad(item)
    if any("pointwise" in str(tag) for tag in target.tags):
        return _elementwise
    return _RULES.get(name)

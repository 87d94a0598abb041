"""Convert point-wise functions in PyTorch graphs: comparisons, masks, gradients of activations, softmax."""

from __future__ import annotations

import math
from typing import Any

from taccl.workload.fx_graph import Graph
from taccl.workload.fx_parts import spread
from taccl.workload.fx_values import Arguments, Filled, Positions, Reader, described, number_of
from taccl.workload.fx_views import have_whole_rows, with_axis_last


def _relu_grad(graph: Graph, given: Arguments) -> Any:
    graph.only(given, threshold=0)
    return graph.make("relu_grad", given["grad_output"], given["self"])


def _tanh_grad(graph: Graph, given: Arguments) -> Any:
    return graph.make(
        "multiply", given["grad_output"], _one_minus(graph, graph.make("square", given["output"]))
    )


def _sigmoid_grad(graph: Graph, given: Arguments) -> Any:
    slope = graph.make("multiply", given["output"], _one_minus(graph, given["output"]))
    return graph.make("multiply", given["grad_output"], slope)


def _one_minus(graph: Graph, value: Any) -> Any:
    return graph.make("offset", graph.make("scale", value, value=-1.0), value=1.0)


def _silu(graph: Graph, given: Arguments) -> Any:
    return graph.make("multiply", given["self"], graph.make("sigmoid", given["self"]))


def _silu_grad(graph: Graph, given: Arguments) -> Any:
    x, sigmoid = given["self"], graph.make("sigmoid", given["self"])
    inner = graph.make("offset", graph.make("multiply", x, _one_minus(graph, sigmoid)), value=1.0)
    return graph.make("multiply", given["grad_output"], graph.make("multiply", sigmoid, inner))


def _share(graph: Graph, x: Any) -> Any:
    """(1 + erf(x / √2)) / 2, by which the exact GELU multiplies x."""
    found = graph.make("erf", graph.make("scale", x, value=math.sqrt(0.5)))
    return graph.make("scale", graph.make("offset", found, value=1.0), value=0.5)


def _gelu(graph: Graph, given: Arguments) -> Any:
    if given["approximate"] == "tanh":
        return graph.make("gelu", given["self"])
    return graph.make("multiply", given["self"], _share(graph, given["self"]))


def _gelu_grad(graph: Graph, given: Arguments) -> Any:
    x, squares = given["self"], graph.make("square", given["self"])
    if given["approximate"] == "tanh":
        factor, cubic = math.sqrt(2 / math.pi), 0.044715
        inner = graph.make("offset", graph.make("scale", squares, value=factor * cubic), value=factor)
        tanh = graph.make("tanh", graph.make("multiply", x, inner))
        share = graph.make("scale", graph.make("offset", tanh, value=1.0), value=0.5)
        inner = graph.make("scale", squares, value=3 * factor * cubic / 2)
        inner = graph.make("offset", inner, value=factor / 2)
        slope = graph.make("multiply", _one_minus(graph, graph.make("square", tanh)), inner)
    else:
        share = _share(graph, x)
        slope = graph.make("exp", graph.make("scale", squares, value=-0.5))
        slope = graph.make("scale", slope, value=1 / math.sqrt(2 * math.pi))
    whole = graph.make("add", share, graph.make("multiply", x, slope))
    return graph.make("multiply", given["grad_output"], whole)


def _rows_grad(kind: str) -> Reader:
    """Converter of the gradient of softmax or log-softmax into an operation of the given kind."""

    def read(graph: Graph, given: Arguments) -> Any:
        grad, output = (spread(graph, given[name]) for name in ("grad_output", "output"))
        count = len(graph.local_shape(output))
        axis = given["dim"] % max(count, 1)
        if axis == count - 1 and have_whole_rows(graph, (grad, output)):
            return graph.make(kind, grad, output)
        tensors = [graph.tensor(each) for each in (grad, output)]
        if axis == count - 1 and not any(graph.mesh.slicing(each, len(each.shape) - 1) for each in tensors):
            return graph.make(kind, grad, output)
        (one, _), (two, back) = (with_axis_last(graph, each, axis) for each in (grad, output))
        return back(graph.make(kind, one, two))

    return read


#: {comparison in PyTorch: kind of operation}.
_KINDS = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal",
}  # fmt: skip
_LOGICAL = {
    "logical_not": "logical_not", "bitwise_not": "logical_not", "logical_and": "logical_and",
    "bitwise_and": "logical_and", "__and__": "logical_and", "logical_or": "logical_or",
    "bitwise_or": "logical_or", "__or__": "logical_or",
}  # fmt: skip


def _compared(kind: str) -> Reader:
    def read(graph: Graph, given: Arguments) -> Any:
        number = number_of(given["other"])
        if number is not None:
            return graph.make(kind, given["self"], value=number)
        return graph.make(kind, given["self"], given["other"])

    return read


def _of_masks(kind: str) -> Reader:
    def read(graph: Graph, given: Arguments) -> Any:
        read = [given[name] for name in ("self", "other") if name in given]
        known = next((number_of(each) for each in read if number_of(each) is not None), None)
        if known is None or len(read) == 1:
            return graph.make(kind, *read)
        is_decided = bool(known) == (kind == "logical_or")
        return Filled(known) if is_decided else next(each for each in read if number_of(each) is None)

    return read


def _filled(graph: Graph, given: Arguments) -> Any:
    number = number_of(given["value"])
    if number is None:
        return graph.make("where", given["mask"], given["value"], given["self"])
    return graph.make("masked_fill", given["self"], given["mask"], value=number)


def _where(graph: Graph, given: Arguments) -> Any:
    mask, one, two = given["condition"], given["self"], given["other"]
    a, b = number_of(one), number_of(two)
    if a is not None and b is None:
        return graph.make("masked_fill", two, mask, value=a)
    if b is not None and a is None:
        return graph.make("masked_fill", one, graph.make("logical_not", mask), value=b)
    if a is not None and b is not None:
        return _numbers(graph, mask, a, b)
    return graph.make("where", mask, one, two)


def _numbers(graph: Graph, mask: Any, one: float, two: float) -> Any:
    """Tensor of `one` where a mask is true, and `two` elsewhere."""
    _, dtype = graph.stated()
    made = graph.make("cast", mask, dtype=dtype)
    made = graph.make("masked_fill", made, mask, value=one)
    return graph.make("masked_fill", made, graph.make("logical_not", mask), value=two)


def _triangle(kind: str) -> Reader:
    """Converter of tril or triu, which keep one side of a diagonal of each matrix, and set the other to 0."""

    def read(graph: Graph, given: Arguments) -> Any:
        source, (shape, dtype) = given["self"], graph.stated()
        number = number_of(source)
        whole = shape if number is not None else graph.tensor(source).shape
        if shape is None or whole is None or len(shape) < 2 or whole[-2:] != shape[-2:]:
            said = f"{graph.node.target} reads {described(source)}"
            raise graph.unread(f"{said}; only matrices that every rank holds whole are supported")
        rows, columns = shape[-2:]
        column, row = Positions(0, columns, (1, columns)), Positions(0, rows, (rows, 1))
        distance = graph.make("subtract", *(graph.cast(each, "float32") for each in (column, row)))
        kept = graph.make(kind, distance, value=float(given["diagonal"]))
        if number is None:
            return graph.make("masked_fill", source, graph.make("logical_not", kept), value=0.0)
        return kept if dtype == "bool" else _numbers(graph, kept, number, 0.0)

    return read


def _clamped(graph: Graph, given: Arguments) -> Any:
    """Tensor limited to a minimum and a maximum, either of which may be absent."""
    found = given["self"]
    for name, kind in (("min", "less"), ("max", "greater")):
        number = number_of(given.get(name))
        if number is not None:
            found = graph.make("masked_fill", found, graph.make(kind, found, value=number), value=number)
        elif given.get(name) is not None:
            found = graph.make("maximum" if name == "min" else "minimum", found, given[name])
    return found


#: {operator of an FX graph, without its overload name: function that converts a node of this operator}.
POINTWISE_READERS: dict[str, Reader] = {
    "aten.threshold_backward": _relu_grad,
    "aten.tanh_backward": _tanh_grad,
    "aten.sigmoid_backward": _sigmoid_grad,
    "aten.silu": _silu,
    "aten.silu_backward": _silu_grad,
    "aten.gelu": _gelu,
    "aten.gelu_backward": _gelu_grad,
    "aten._softmax_backward_data": _rows_grad("softmax_grad"),
    "aten._log_softmax_backward_data": _rows_grad("log_softmax_grad"),
    **{f"aten.{name}": _compared(kind) for name, kind in _KINDS.items()},
    **{f"aten.{name}": _of_masks(kind) for name, kind in _LOGICAL.items()},
    **dict.fromkeys(("aten.clamp", "aten.clamp_min", "aten.clamp_max"), _clamped),
    "aten.masked_fill": _filled,
    "aten.where": _where,
    "aten.tril": _triangle("less_equal"),
    "aten.triu": _triangle("greater_equal"),
}

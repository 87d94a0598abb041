"""Convert gradients of activation functions and softmax in PyTorch graphs; also SiLU and GELU themselves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from taccl.workload.fx_parts import spread
from taccl.workload.fx_views import have_whole_rows, with_axis_last

if TYPE_CHECKING:
    from taccl.workload.fx_graph import Graph
    from taccl.workload.fx_values import Arguments, Reader


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


#: {operator of an FX graph, without its overload name: function that converts a node of this operator}.
GRADIENT_READERS: dict[str, Reader] = {
    "aten.threshold_backward": _relu_grad,
    "aten.tanh_backward": _tanh_grad,
    "aten.sigmoid_backward": _sigmoid_grad,
    "aten.silu": _silu,
    "aten.silu_backward": _silu_grad,
    "aten.gelu": _gelu,
    "aten.gelu_backward": _gelu_grad,
    "aten._softmax_backward_data": _rows_grad("softmax_grad"),
    "aten._log_softmax_backward_data": _rows_grad("log_softmax_grad"),
}

"""Convert layernorms, RMS norms, vector norms, sums and means in PyTorch graphs."""

from __future__ import annotations

import math
from typing import Any

from taccl.workload.fx_graph import Graph
from taccl.workload.fx_values import Arguments, Deferred, Named, Reader, View, Whole
from taccl.workload.kind_values import EPSILON


def _layernorm(graph: Graph, given: Arguments) -> Any:
    _whole_rows(graph, given)
    value = None if given["eps"] == EPSILON else given["eps"]
    found = graph.make("layernorm", given["input"], value=value)
    if given["weight"] is not None:
        found = graph.make("multiply", found, given["weight"])
    return found if given["bias"] is None else graph.make("add", found, given["bias"])


def _layernorm_and_moments(graph: Graph, given: Arguments) -> Any:
    """(layernorm, mean, reciprocal standard deviation) of each row; each is added to the step only if read.

    Gradients recompute means and deviations, so the `Deferred.note` of both is epsilon.
    """
    x = given["input"]

    def spread() -> Any:
        apart = graph.make("subtract", x, _row_mean(graph, x))
        varied = _row_mean(graph, graph.make("square", apart))
        return graph.make("power", graph.make("offset", varied, value=given["eps"]), value=-0.5)

    of = f"of {graph.node.name}"
    return [
        Deferred(f"the layernorm {of}", lambda: _layernorm(graph, given)),
        Deferred(f"the mean {of}", lambda: _row_mean(graph, x), given["eps"]),
        Deferred(f"the reciprocal deviation {of}", spread, given["eps"]),
    ]


def _sum(graph: Graph, given: Arguments) -> Any:
    """Sum over axes of a local tensor."""
    found = given["self"]
    local = graph.local_shape(found)
    count = len(local)
    axes = {each % max(count, 1) for each in given.get("dim") or range(count)} if count else set()
    if isinstance(found, View) and not given.get("keepdim"):
        whole = graph.local_shape(Named(found.name))
        # A sum over all rows of a view equals the sum over all rows of the viewed tensor.
        if axes == {*range(count)} or (axes == {*range(count - 1)} and local[-1] == whole[-1]):
            found, axes = Named(found.name), {*range(len(whole) - (count - len(axes)))}
    if graph.dtype(found) == "bool":  # the sum of a mask is a count
        found = Whole(graph.cast(found, "float32"))
    if given.get("dtype") is not None:
        found = graph.cast(found, given["dtype"])
    for axis in sorted(axes, reverse=True):
        found = graph.make("sum", found, axis=axis)
    kept = tuple(1 if i in axes else n for i, n in enumerate(local))
    if isinstance(found, Whole):
        return Whole(View(found.value.name, kept)) if given.get("keepdim") else found
    return View(graph.name_of(found), kept, is_squeezed=True) if given.get("keepdim") else found


def _mean(graph: Graph, given: Arguments) -> Any:
    local = graph.local_shape(given["self"])
    number = math.prod([local[each % len(local)] for each in given.get("dim") or range(len(local))])
    total = _sum(graph, given)
    return graph.make("scale", total, value=1 / number)


def _any(graph: Graph, given: Arguments) -> Any:
    """Mask that is true where at least one element along the reduced axes is true."""
    numbers = graph.cast(given["self"], "float32")
    dim = given.get("dim")
    dims = [dim] if isinstance(dim, int) else dim
    return graph.make("greater", _sum(graph, given | {"self": numbers, "dim": dims}), value=0.0)


def _norm(graph: Graph, given: Arguments) -> Any:
    graph.only(given, ord=2, dim=None, keepdim=False, dtype=None)
    return graph.make("norm", given["self"])


def _whole_rows(graph: Graph, given: Arguments) -> None:
    """Raise `WorkloadError` unless a norm is over the last axis alone."""
    last = graph.tensor(given["input"]).shape[-1:]
    if tuple(given["normalized_shape"]) != last:
        said = f"is over axes of lengths {list(given['normalized_shape'])}; only the last axis is supported"
        raise graph.unread(said)


def _layernorm_grad(graph: Graph, given: Arguments) -> Any:
    """Gradients of a layernorm with respect to the input, the weight and the bias."""
    _whole_rows(graph, given)
    epsilon = graph.note_of(given["rstd"], "a layernorm's own rstd")
    grad, x = given["grad_out"], given["input"]

    def by_input() -> Any:
        weighted = grad if given["weight"] is None else graph.make("multiply", grad, given["weight"])
        return graph.make("layernorm_grad", weighted, x, value=epsilon)

    def by_weight() -> Any:
        return _over_rows(graph, graph.make("multiply", grad, graph.make("layernorm", x, value=epsilon)))

    return graph.lazily(by_input, by_weight, lambda: _over_rows(graph, grad))


def _over_rows(graph: Graph, value: Any) -> Any:
    """Sum over all axes but the last."""
    for _ in graph.tensor(value).shape[1:]:
        value = graph.make("sum", value, axis=0)
    return value


def _row_mean(graph: Graph, value: Any) -> Any:
    return _mean(graph, {"self": value, "dim": [-1], "keepdim": True})


def _reciprocal_rms(graph: Graph, x: Any, epsilon: float) -> Any:
    """1 / √(mean of squares + epsilon) of each row."""
    squares = graph.make("offset", _row_mean(graph, graph.make("square", x)), value=epsilon)
    return graph.make("power", squares, value=-0.5)


def _rms_epsilon(graph: Graph, given: Arguments) -> float:
    dtype = graph.dtype(given["input"])
    return float(_STEPS[dtype]) if given["eps"] is None else float(given["eps"])


def _rms_norm(graph: Graph, given: Arguments) -> Any:
    """RMS norm of rows; 16-bit types are computed in float32, as in PyTorch."""
    _whole_rows(graph, given)
    dtype, epsilon = graph.dtype(given["input"]), _rms_epsilon(graph, given)
    x = graph.cast(given["input"], "float64" if dtype == "float64" else "float32")
    found = graph.make("multiply", x, _reciprocal_rms(graph, x, epsilon))
    found = graph.cast(found, dtype)
    return found if given["weight"] is None else graph.make("multiply", found, given["weight"])


def _rms_norm_and_moment(graph: Graph, given: Arguments) -> Any:
    """(RMS norm, reciprocal root mean square) of each row; each is added to the step only if read.

    Gradients recompute the root mean square, so its `Deferred.note` is epsilon.
    """
    epsilon, of = _rms_epsilon(graph, given), f"of {graph.node.name}"
    return [
        Deferred(f"the RMS norm {of}", lambda: _rms_norm(graph, given)),
        Deferred(
            f"the reciprocal root {of}", lambda: _reciprocal_rms(graph, given["input"], epsilon), epsilon
        ),
    ]


def _rms_norm_grad(graph: Graph, given: Arguments) -> Any:
    """Gradients of an RMS norm with respect to the input and the weight."""
    _whole_rows(graph, given)
    epsilon = graph.note_of(given["rstd"], "an RMS norm's own rstd")
    grad, x = given["grad_out"], given["input"]

    def by_input() -> Any:
        weighted = grad if given["weight"] is None else graph.make("multiply", grad, given["weight"])
        root = _reciprocal_rms(graph, x, epsilon)
        normed = graph.make("multiply", x, root)
        along = _row_mean(graph, graph.make("multiply", weighted, normed))
        return graph.make(
            "multiply", graph.make("subtract", weighted, graph.make("multiply", normed, along)), root
        )

    def by_weight() -> Any:
        normed = graph.make("multiply", x, _reciprocal_rms(graph, x, epsilon))
        return _over_rows(graph, graph.make("multiply", grad, normed))

    return graph.lazily(by_input, by_weight)


#: {element type: machine epsilon}, the default `eps` of an RMS norm; 16-bit types are computed in float32.
_STEPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-23, "bfloat16": 2.0**-23}
#: {operator of an FX graph, without its overload name: function that converts a node of this operator}.
NORM_READERS: dict[str, Reader] = {
    "aten.layer_norm": _layernorm,
    "aten.native_layer_norm": _layernorm_and_moments,
    "aten.native_layer_norm_backward": _layernorm_grad,
    "aten.rms_norm": _rms_norm,
    "aten._fused_rms_norm": _rms_norm_and_moment,
    "aten._fused_rms_norm_backward": _rms_norm_grad,
    "aten.sum": _sum,
    "aten.mean": _mean,
    "aten.any": _any,
    "aten.linalg_vector_norm": _norm,
}

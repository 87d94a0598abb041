"""Convert norms (of rows, of batches, of vectors), sums and means in PyTorch graphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from taccl.errors import LossyConversionWarning, warn
from taccl.workload.fx_graph import Graph
from taccl.workload.fx_parts import spread
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

    def deviation() -> Any:
        apart = graph.make("subtract", x, _row_mean(graph, x))
        varied = _row_mean(graph, graph.make("square", apart))
        return graph.make("power", graph.make("offset", varied, value=given["eps"]), value=-0.5)

    of = f"of {graph.node.name}"
    return [
        Deferred(f"the layernorm {of}", lambda: _layernorm(graph, given)),
        Deferred(f"the mean {of}", lambda: _row_mean(graph, x), given["eps"]),
        Deferred(f"the reciprocal deviation {of}", deviation, given["eps"]),
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


def _of_channel(graph: Graph, value: Any, count: int) -> Any:
    """Tensor of one number per channel, reshaped to broadcast to an image tensor of `count` axes."""
    shape = (*graph.local_shape(value), *(count - 2) * (1,))
    return Named(graph.name_of(View(graph.name_of(value), shape, is_squeezed=True)))


def weighted_channels(graph: Graph, value: Any, count: int, *, weight: Any = None, bias: Any = None) -> Any:
    """Multiply each channel of a value of `count` axes by its weight, then add its bias, if there are any."""
    for kind, each in (("multiply", weight), ("add", bias)):
        if each is not None:
            value = graph.make(kind, value, _of_channel(graph, each, count))
    return value


def _in_evaluation(graph: Graph, given: Arguments) -> Any:
    """Batch norm in evaluation, with the running means and variances from training."""
    x = given["input"]
    count = len(graph.local_shape(x))
    varied = graph.make("offset", given["running_var"], value=given["eps"])
    factor = graph.make("power", varied, value=-0.5)
    if given["weight"] is not None:
        factor = graph.make("multiply", factor, given["weight"])
    made = graph.make("subtract", x, _of_channel(graph, given["running_mean"], count))
    return weighted_channels(graph, made, count, weight=factor, bias=given["bias"])


def _by_channel(graph: Graph, value: Any) -> tuple[Any, Callable[[Any], Any]]:
    """(values grouped by rank and channel, function that restores the shape of `value`).

    The grouped values have the shape (ranks, channels, number of values per channel at one rank).
    """
    named = Named(graph.name_of(spread(graph, value)))
    tensor, mesh = graph.tensor(named), graph.mesh
    if any(mesh.slicing(tensor, axis) for axis in range(1, len(tensor.shape))):
        said = f"{graph.node.target} reads {tensor.name}, which is {tensor}; only images may be distributed"
        raise graph.refused(said)
    ranks, (images, channels, *rest) = mesh.slices(tensor, 0), tensor.shape
    places = range(3, len(rest) + 3)
    cut = (ranks, images // ranks, channels, *rest)
    made = graph.make("reshape", named, shape=cut)
    made = graph.make("transpose", made, axes=(0, 2, 1, *places))
    made = graph.make("reshape", made, shape=(ranks, channels, math.prod(cut) // (ranks * channels)))

    def back(found: Any) -> Any:
        found = graph.make("reshape", found, shape=(ranks, channels, images // ranks, *rest))
        found = graph.make("transpose", found, axes=(0, 2, 1, *places))
        return graph.make("reshape", found, shape=tensor.shape)

    return made, back


def _in_training(graph: Graph, given: Arguments) -> list[Deferred]:
    """Results of a batch norm in training, with the statistics of each rank's own images.

    These are the normalised images, the means, the reciprocal standard deviations, and the updated running
    means and variances. Gradients recompute means and deviations, so the `Deferred.note` of both is epsilon.
    """
    x, epsilon, of = given["input"], given["eps"], f"of {graph.node.name}"
    count = len(graph.local_shape(x))

    def normed() -> Any:
        rows, back = _by_channel(graph, x)
        made = back(graph.make("layernorm", rows, value=epsilon))
        return weighted_channels(graph, made, count, weight=given["weight"], bias=given.get("bias"))

    def moments(*, deviations: bool) -> tuple[Any, int]:
        """(mean, or sum of the squared deviations, of each channel at each rank; number of values)."""
        rows, _ = _by_channel(graph, x)
        ranks, channels, number = graph.tensor(rows).shape
        mean = graph.make("scale", graph.make("sum", rows, axis=2), value=1 / number)
        if not deviations:
            return mean, number
        apart = graph.make("subtract", rows, graph.make("reshape", mean, shape=(ranks, channels, 1)))
        return graph.make("sum", graph.make("square", apart), axis=2), number

    def flat(value: Any) -> Any:
        return graph.make("reshape", value, shape=(math.prod(graph.tensor(value).shape),))

    def deviation() -> Any:
        squares, number = moments(deviations=True)
        varied = graph.make("offset", graph.make("scale", squares, value=1 / number), value=epsilon)
        return flat(graph.make("power", varied, value=-0.5))

    def updated(name: str) -> Callable[[], Any]:
        def make() -> Any:
            before, share = graph.tensor(given[name]), given["momentum"]
            found, number = moments(deviations=name == "running_var")
            if name == "running_var":
                found = graph.make("scale", found, value=1 / max(number - 1, 1))
            found = flat(found)
            if before.shape != graph.tensor(found).shape:
                said = f"each rank updates {before.name} by its own images, so its values differ from rank to"
                raise graph.refused(
                    f"{said} rank; give it the layout 'sliced(0)', which is one part per rank"
                )
            kept = graph.make("scale", Named(before.name), value=1 - share)
            return graph.make("add", kept, graph.make("scale", found, value=share))

        return make

    return [
        *graph.lazily(normed),
        Deferred(f"the mean {of}", lambda: flat(moments(deviations=False)[0]), epsilon),
        Deferred(f"the reciprocal deviation {of}", deviation, epsilon),
        *graph.lazily(updated("running_mean"), updated("running_var")),
    ]


def _batch_norm(graph: Graph, given: Arguments) -> Any:
    """Results of a batch norm: in training by each rank's own statistics, else by running statistics."""
    is_trained = given.get("training", given.get("train", False))
    is_functional = "functional" in str(graph.node.target)
    if is_trained and given.get("running_mean") is not None and not is_functional:
        said = f"{graph.node.name} updates its running statistics in place; the step leaves them as they are"
        warn(said, LossyConversionWarning)
    return _in_training(graph, given) if is_trained else graph.first(lambda: _in_evaluation(graph, given))


def _functional_batch_norm(graph: Graph, given: Arguments) -> Any:
    """Batch norm with one result; raises `WorkloadError` if it updates running statistics in place."""
    if given["training"] and given["running_mean"] is not None:
        said = f"{graph.node.target} updates its running statistics in place"
        raise graph.refused(f"{said}; call run_decompositions(), which makes the update functional")
    return _batch_norm(graph, given)[0].value(graph)


def _batch_norm_grad(graph: Graph, given: Arguments) -> Any:
    """Gradients of a batch norm with respect to the operand, the weights and the biases."""
    grad, x = given.get("grad_out", given.get("grad_output")), given["input"]
    if not given.get("train", given.get("update")):
        raise graph.unread(f"found {graph.node.target} in evaluation, which is not supported")
    epsilon = graph.note_of(given.get("save_invstd", given.get("save_var")), "a batch norm's own deviation")

    def by_input() -> Any:
        weighted = weighted_channels(graph, grad, len(graph.local_shape(x)), weight=given["weight"])
        (rows, back), (values, _) = (_by_channel(graph, each) for each in (weighted, x))
        return back(graph.make("layernorm_grad", rows, values, value=epsilon))

    def summed(of: Any) -> Any:
        return graph.make("sum", graph.make("sum", of, axis=2), axis=0)

    def by_weight() -> Any:
        (rows, _), (values, _) = (_by_channel(graph, each) for each in (grad, x))
        return summed(graph.make("multiply", rows, graph.make("layernorm", values, value=epsilon)))

    return graph.lazily(by_input, by_weight, lambda: summed(_by_channel(graph, grad)[0]))


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
    **dict.fromkeys(
        ("aten._native_batch_norm_legit_no_training", "aten._native_batch_norm_legit_functional",
         "aten.native_batch_norm", "aten._native_batch_norm_legit"), _batch_norm,
    ),
    "aten.batch_norm": _functional_batch_norm,
    "aten.native_batch_norm_backward": _batch_norm_grad,
}  # fmt: skip

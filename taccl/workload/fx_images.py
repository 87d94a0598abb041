"""Operations on images in PyTorch graphs: batch norm and convolutions, with their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from taccl.errors import LossyConversionWarning, warn
from taccl.workload.fx_calls import called
from taccl.workload.fx_graph import Graph
from taccl.workload.fx_parts import spread
from taccl.workload.fx_values import Arguments, Deferred, Named, Reader, View


def _of_channel(graph: Graph, value: Any, count: int) -> Any:
    """Tensor of one number per channel, reshaped to broadcast to an image tensor of `count` axes."""
    shape = (*graph.local_shape(value), *(count - 2) * (1,))
    return Named(graph.name_of(View(graph.name_of(value), shape, is_squeezed=True)))


def _weighted(graph: Graph, value: Any, count: int, *, weight: Any = None, bias: Any = None) -> Any:
    """Multiply each channel of a value of `count` axes by its weight, then add its bias, if there are any."""
    for kind, each in (("multiply", weight), ("add", bias)):
        if each is not None:
            value = graph.make(kind, value, _of_channel(graph, each, count))
    return value


def _in_evaluation(graph: Graph, given: Arguments) -> Any:
    """Batch norm in evaluation, with the running means and variances from training."""
    x = given["input"]
    count = len(graph.local_shape(x))
    spread = graph.make("offset", given["running_var"], value=given["eps"])
    factor = graph.make("power", spread, value=-0.5)
    if given["weight"] is not None:
        factor = graph.make("multiply", factor, given["weight"])
    made = graph.make("subtract", x, _of_channel(graph, given["running_mean"], count))
    return _weighted(graph, made, count, weight=factor, bias=given["bias"])


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
        return _weighted(graph, made, count, weight=given["weight"], bias=given.get("bias"))

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
        spread = graph.make("offset", graph.make("scale", squares, value=1 / number), value=epsilon)
        return flat(graph.make("power", spread, value=-0.5))

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
        weighted = _weighted(graph, grad, len(graph.local_shape(x)), weight=given["weight"])
        (rows, back), (values, _) = (_by_channel(graph, each) for each in (weighted, x))
        return back(graph.make("layernorm_grad", rows, values, value=epsilon))

    def summed(of: Any) -> Any:
        return graph.make("sum", graph.make("sum", of, axis=2), axis=0)

    def by_weight() -> Any:
        (rows, _), (values, _) = (_by_channel(graph, each) for each in (grad, x))
        return summed(graph.make("multiply", rows, graph.make("layernorm", values, value=epsilon)))

    return graph.lazily(by_input, by_weight, lambda: summed(_by_channel(graph, grad)[0]))


def _convolution(graph: Graph, given: Arguments) -> Any:
    """Convert a convolution to a matrix product if its windows tile the image, else to an `aten` call.

    Vision transformers cut images into patches by such convolutions.
    """
    x, weight = (Named(graph.name_of(given[name])) for name in ("input", "weight"))
    shape, (out, channels, *kernel) = graph.tensor(x).shape, graph.tensor(weight).shape
    fits = list(given["stride"]) == kernel and not isinstance(given["padding"], str)
    fits = fits and not any(length % k for length, k in zip(shape[2:], kernel, strict=False))
    fits = fits and given["groups"] == 1 and not given.get("transposed") and not any(given["padding"])
    if not fits or any(step != 1 for step in given["dilation"]) or len(shape) != len(kernel) + 2:
        local, _ = graph.stated()
        # Each output element sums a product per element of its filter; the weight's axis 0 counts filters.
        # In a transposed convolution, each input element is multiplied by all elements of its filter.
        elements = graph.local_shape(x) if given.get("transposed") else local or ()
        flops = 2.0 * math.prod(elements) * (math.prod(graph.local_shape(weight)) // out)
        made = called(graph, given | {"bias": None}, flops=flops)
        return _weighted(graph, made, len(graph.local_shape(made)), bias=given["bias"])
    counts = [n // k for n, k in zip(shape[2:], kernel, strict=True)]
    cut = [length for pair in zip(counts, kernel, strict=True) for length in pair]
    made = graph.make("reshape", x, shape=(*shape[:2], *cut))
    places, inner = range(2, len(cut) + 2, 2), range(3, len(cut) + 3, 2)
    made = graph.make("transpose", made, axes=(0, *places, 1, *inner))
    made = graph.make("reshape", made, shape=(shape[0], *counts, channels * math.prod(kernel)))
    flat = graph.make("reshape", weight, shape=(out, channels * math.prod(kernel)))
    made = graph.make("matmul", made, graph.make("transpose", flat, axes=(1, 0)))
    if given["bias"] is not None:
        made = graph.make("add", made, given["bias"])
    last = len(counts) + 1
    return graph.make("transpose", made, axes=(0, last, *range(1, last)))


def _convolution_grad(graph: Graph, given: Arguments) -> Any:
    """Gradients of a convolution with respect to the operand, the kernels and the biases."""
    grad, kernels = given["grad_output"], graph.local_shape(given["weight"])
    number = math.prod(graph.local_shape(given["input"] if given["transposed"] else grad))
    flops = 2.0 * number * math.prod(kernels[1:])

    def by(item: int) -> Any:
        mask = [place == item for place in range(3)]
        return called(graph, given | {"output_mask": mask}, item=item, flops=flops)

    def by_bias() -> Any:
        made: Any = Named(graph.name_of(grad))
        for axis in reversed([axis for axis in range(len(graph.tensor(made).shape)) if axis != 1]):
            made = graph.make("sum", made, axis=axis)
        return made

    return graph.lazily(lambda: by(0), lambda: by(1), by_bias)


#: {operator of an FX graph, without its overload name: function that converts a node of this operator}.
IMAGE_READERS: dict[str, Reader] = {
    **dict.fromkeys(
        ("aten._native_batch_norm_legit_no_training", "aten._native_batch_norm_legit_functional",
         "aten.native_batch_norm", "aten._native_batch_norm_legit"), _batch_norm,
    ),
    "aten.batch_norm": _functional_batch_norm,
    "aten.native_batch_norm_backward": _batch_norm_grad,
    **dict.fromkeys(("aten.convolution", "aten.conv1d", "aten.conv2d", "aten.conv3d"), _convolution),
    "aten.convolution_backward": _convolution_grad,
}  # fmt: skip

"""Convert convolutions and their gradients in PyTorch graphs."""

from __future__ import annotations

import math
from typing import Any

from taccl.workload.fx_calls import called
from taccl.workload.fx_graph import Graph
from taccl.workload.fx_norms import weighted_channels
from taccl.workload.fx_values import Arguments, Named, Reader


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
        return weighted_channels(graph, made, len(graph.local_shape(made)), bias=given["bias"])
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
CONVOLUTION_READERS: dict[str, Reader] = {
    **dict.fromkeys(("aten.convolution", "aten.conv1d", "aten.conv2d", "aten.conv3d"), _convolution),
    "aten.convolution_backward": _convolution_grad,
}

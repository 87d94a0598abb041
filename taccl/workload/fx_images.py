"""Operations on images in PyTorch graphs: batch norm in evaluation, and convolutions of patches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from taccl.workload.fx_values import Named, View

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl.workload.fx_graph import Graph

    Arguments = dict[str, Any]
    Reader = Callable[[Graph, Arguments], Any]


def _batch_norm(graph: Graph, given: Arguments) -> Any:
    """Batch norm with the means and variances of training."""
    x = given["input"]
    count = len(graph.local_shape(x))

    def of_channel(value: Any) -> Any:
        shape = (*graph.local_shape(value), *(count - 2) * (1,))
        return Named(graph.name_of(View(graph.name_of(value), shape, is_squeezed=True)))

    spread = graph.make("offset", given["running_var"], value=given["eps"])
    factor = graph.make("power", spread, value=-0.5)
    if given["weight"] is not None:
        factor = graph.make("multiply", factor, given["weight"])
    made = graph.make("subtract", x, of_channel(given["running_mean"]))
    made = graph.make("multiply", made, of_channel(factor))
    return made if given["bias"] is None else graph.make("add", made, of_channel(given["bias"]))


def _convolution(graph: Graph, given: Arguments) -> Any:
    """Convolution whose kernels do not overlap, as in the patches of a vision transformer."""
    x, weight = (Named(graph.name_of(given[name])) for name in ("input", "weight"))
    shape, (out, channels, *kernel) = graph.tensor(x).shape, graph.tensor(weight).shape
    fits = list(given["stride"]) == kernel
    fits &= not any(length % k for length, k in zip(shape[2:], kernel, strict=False))
    plain = given["groups"] == 1 and not given.get("transposed")
    plain &= not any(given["padding"]) and all(step == 1 for step in given["dilation"])
    if not fits or not plain or len(shape) != len(kernel) + 2:
        said = f"{graph.node.target} has stride={given['stride']}, padding={given['padding']} and a kernel of"
        raise graph.refused(f"{said} {kernel}; only convolutions of patches (stride = kernel) are supported")
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


#: {operator in an FX graph, without its overload: function that converts the node}.
IMAGE_READERS: dict[str, Reader] = {
    "aten._native_batch_norm_legit_no_training": lambda graph, given: graph.first(
        lambda: _batch_norm(graph, given)
    ),
    "aten.convolution": _convolution,
    "aten.conv1d": _convolution,
    "aten.conv2d": _convolution,
}

"""Embeddings and cross entropy in PyTorch graphs: lookups by ids, and their gradients."""

from __future__ import annotations

import math
from typing import Any

from taccl.errors import LossyConversionWarning, warn
from taccl.workload.fx_calls import called
from taccl.workload.fx_graph import Graph
from taccl.workload.fx_values import (
    Arguments,
    Deferred,
    Filled,
    Named,
    Positions,
    Reader,
    Repeated,
    View,
    described,
    number_of,
)


def _positions(graph: Graph, given: Arguments) -> Any:
    """Consecutive integers (arange), used as the ids of positional embeddings."""
    start, end = given.get("start", 0) or 0, given["end"]
    if given.get("step", 1) not in (None, 1) or not isinstance(start, int) or not isinstance(end, int):
        said = f"counts from {start} to {end} with step {given.get('step')}"
        raise graph.unread(f"{said}; only whole numbers with step 1 are supported")
    found = Positions(start, end, (end - start,))
    return graph.cast(found, given["dtype"]) if "float" in str(given.get("dtype")) else found


def _embedding(graph: Graph, given: Arguments) -> Any:
    table, ids = given["weight"], given["indices"]
    _only_whole(graph, table, 0)
    if isinstance(ids, Repeated) and isinstance(ids.source, Positions):
        made = _embedding(graph, given | {"indices": ids.source})
        return Repeated(made, (*ids.shape, graph.local_shape(made)[-1]))
    if isinstance(ids, Positions):
        made = graph.make("narrow", table, axis=0, start=ids.start, stop=ids.stop)
        return View(made.name, (*ids.shape, graph.local_shape(made)[-1]), is_squeezed=True)
    return graph.make("embedding", table, ids)


def _embedding_grad(graph: Graph, given: Arguments) -> Any:
    if given["scale_grad_by_freq"] or given["padding_idx"] >= 0:
        said = f"has scale_grad_by_freq or padding_idx {given['padding_idx']}"
        raise graph.unread(f"{said}; only unscaled gradients of all rows are supported")
    grad, ids, rows = given["grad_output"], given["indices"], given["num_weights"]
    if isinstance(ids, Repeated) and isinstance(ids.source, Positions):
        shape = (*(len(ids.shape) - len(ids.source.shape)) * (1,), *ids.source.shape)
        for axis in reversed(range(len(shape))):
            if shape[axis] != ids.shape[axis]:
                grad = graph.make("sum", grad, axis=axis)
        ids = ids.source
    if isinstance(ids, Positions):
        flat = View(graph.name_of(grad), (ids.stop - ids.start, graph.local_shape(grad)[-1]), True)
        return graph.padded(Named(graph.name_of(flat)), 0, ids.start, rows)
    return graph.make("embedding_grad", grad, ids, stop=rows)


def _accumulated(graph: Graph, given: Arguments) -> Any:
    """Convert `index_put` that adds rows to zeros at ids: PyTorch's form of an embedding's gradient."""
    shape, _ = graph.stated()
    ids = given["indices"]
    if number_of(given["self"]) != 0 or len(ids) != 1 or not given["accumulate"] or not shape:
        said = f"{graph.node.target} writes {described(given['values'])} at {described(ids)} of"
        said += f" {described(given['self'])}"
        raise graph.unread(f"{said}; only sums of rows in a tensor of zeros are supported")
    return graph.make("embedding_grad", given["values"], ids[0], stop=shape[0])


def _only_whole(graph: Graph, value: Any, axis: int) -> None:
    """Raise `WorkloadError` if the axis that ids index is sliced over ranks."""
    tensor = graph.tensor(value)
    if graph.mesh.slicing(tensor, axis % len(tensor.shape)):
        said = f"{graph.node.target} looks up axis {axis} of {tensor.name}, which is sliced over ranks"
        raise graph.refused(f"{said}: ids would count from the start of each slice; slice another axis")


def _cross_entropy(graph: Graph, given: Arguments) -> Any:
    if given["label_smoothing"]:
        raise graph.unread(f"has label_smoothing={given['label_smoothing']}; only 0 is supported")
    _only_rows(graph, given)
    return _nll(graph, given | {"self": graph.make("log_softmax", given["self"])})


def _nll(graph: Graph, given: Arguments) -> Any:
    """Negative log-likelihood of the targets, by row, as mean or as sum, from logarithms of probabilities."""
    _check(graph, given)
    _only_rows(graph, given)
    _only_whole(graph, given["self"], -1)
    total: Any = graph.make("pick", given["self"], given["target"])
    if given["reduction"] == 0:
        return graph.make("scale", total, value=-1.0)
    number = math.prod(graph.local_shape(total))
    for _ in graph.tensor(total).shape:
        total = graph.make("sum", total, axis=0)
    return graph.make("scale", total, value=-1 / (number if given["reduction"] == 1 else 1))


def _nll_results(graph: Graph, given: Arguments) -> list[Deferred]:
    """Loss and sum of the targets' weights, both deferred; only a call of the gradient reads the sum."""
    node = graph.node

    def weight() -> Any:
        current, graph.node = graph.node, node
        made = called(graph, item=1)
        graph.node = current
        return made

    (loss,) = graph.lazily(lambda: _nll(graph, given))
    return [loss, Deferred(f"result 1 of {node.target}", weight, note="weight")]


def _nll_grad(graph: Graph, given: Arguments) -> Any:
    _check(graph, given)
    _only_whole(graph, given["self"], -1)
    tensor, count = graph.tensor(given["self"]), math.prod(graph.local_shape(given["self"])[:-1])
    number, factor = given["grad_output"], -1 / (count if given["reduction"] == 1 else 1)
    ones = graph.make("one_hot", given["target"], stop=tensor.shape[-1], dtype=tensor.dtype)
    if isinstance(number, Filled):
        return graph.make("scale", ones, value=factor * number.number)
    if given["reduction"] == 0:
        number = View(graph.name_of(number), (*graph.local_shape(number), 1), is_squeezed=True)
    return graph.make("multiply", graph.make("scale", ones, value=factor), number)


def _check(graph: Graph, given: Arguments) -> None:
    if given["weight"] is not None:
        raise graph.unread(f"{graph.node.target} has weights of classes; only losses without are supported")
    ignored = given["ignore_index"]
    if ignored >= 0:
        said = f"{graph.node.target} has ignore_index={ignored}, which may be a target"
        raise graph.unread(f"{said}; the step counts every target: mask the loss first")
    if given["reduction"] == 1:
        said = f"{graph.node.name} omits targets of {ignored} from its mean; the step counts every target"
        warn(said, LossyConversionWarning)


def _gathered(graph: Graph, given: Arguments) -> Any:
    """Convert a gather of one element per row, at the index that the row's id gives."""
    rows = given["self"]
    shape = graph.local_shape(rows)
    ids = _one_per_row(graph, given, shape)
    _only_whole(graph, rows, -1)
    made = graph.make("pick", rows, ids)
    return View(made.name, (*shape[:-1], 1), is_squeezed=True)


def _one_per_row(graph: Graph, given: Arguments, shape: tuple[int, ...]) -> Named:
    """Check that ids select one element per row; return them without their last axis, of length 1."""
    ids = given["index"]
    if given["dim"] % len(shape) != len(shape) - 1 or graph.local_shape(ids) != (*shape[:-1], 1):
        said = f"{graph.node.target} has ids {described(ids)} along axis {given['dim']} of {list(shape)}"
        raise graph.unread(f"{said}; only one element per row, along the last axis, is supported")
    name = ids.name if isinstance(ids, View) else graph.name_of(ids)
    return Named(graph.name_of(View(name, shape[:-1], is_squeezed=True)))


def _scattered(graph: Graph, given: Arguments) -> Any:
    """Tensor filled with one number, except for another number at one id per row: gradient of `_gathered`."""
    shape, dtype = graph.stated()
    before, number = number_of(given["self"]), number_of(given.get("value"))
    if before is None or number is None or not shape:
        written = given.get("value", given.get("src"))
        said = f"{graph.node.target} writes {described(written)} into {described(given['self'])}"
        raise graph.unread(f"{said}; only one number in a tensor of another is supported")
    made = graph.make("one_hot", _one_per_row(graph, given, shape), stop=shape[-1], dtype=dtype)
    made = graph.make("scale", made, value=number - before)
    return graph.make("offset", made, value=before) if before else made


def _only_rows(graph: Graph, given: Arguments) -> None:
    """Raise `WorkloadError` if classes are not the last axis: PyTorch has them along axis 1."""
    shape = graph.local_shape(given["self"])
    if len(shape) > 2:
        said = f"{graph.node.target} has classes along axis 1 of {list(shape)}"
        raise graph.unread(f"{said}; only the last of 2 axes is supported: flatten the other axes first")


#: {operator in an FX graph, without its overload: function that converts the node}.
ID_READERS: dict[str, Reader] = {
    "aten.arange": _positions,
    "aten.embedding": _embedding,
    "aten.embedding_dense_backward": _embedding_grad,
    "aten.cross_entropy_loss": _cross_entropy,
    "aten.nll_loss_forward": _nll_results,
    "aten.gather": _gathered,
    "aten.scatter": _scattered,
    "aten.index_put": _accumulated,
    "aten._unsafe_index_put": _accumulated,
    "aten.nll_loss": _nll,
    "aten.nll_loss_nd": _nll,
    "aten.nll_loss_backward": _nll_grad,
}

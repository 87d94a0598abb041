"""Converters of PyTorch operations into operations of a step, by their name in aten or c10d.

A converter (reader) gets the step under construction and the named arguments of a node, and returns the
node's value.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from taccl.errors import LossyConversionWarning, warn
from taccl.workload.fx_attention import ATTENTION_READERS
from taccl.workload.fx_collectives import COLLECTIVE_READERS
from taccl.workload.fx_gradients import GRADIENT_READERS
from taccl.workload.fx_graph import Deferred, Filled, Named, Piece, Positions, View, described
from taccl.workload.fx_ids import ID_READERS
from taccl.workload.kind_values import EPSILON

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl.workload.fx_graph import Graph

    Arguments = dict[str, Any]
    Reader = Callable[[Graph, Arguments], Any]


def _number(value: Any) -> float | None:
    """Value of a constant, or of every element of a `Filled` tensor; None for other tensors."""
    if isinstance(value, Filled):
        return value.number
    return float(value) if isinstance(value, (int, float)) else None


def _same(graph: Graph, given: Arguments) -> Any:
    return next(iter(given.values()))


def _unary(kind: str) -> Reader:
    return lambda graph, given: graph.make(kind, next(iter(given.values())))


def _plus(sign: float) -> Reader:
    """Converter of a sum, or of a difference if `sign` is -1."""

    def read(graph: Graph, given: Arguments) -> Any:
        one, two = given["self"], given["other"]
        factor = sign * float(given.get("alpha", 1))
        a, b = _number(one), _number(two)
        if a is not None and b is not None:
            return Filled(a + factor * b)
        if b is not None:
            return graph.make("offset", one, value=factor * b)
        if a is not None:
            scaled = two if factor == 1 else graph.make("scale", two, value=factor)
            return graph.make("offset", scaled, value=a)
        if abs(factor) != 1:
            two, factor = graph.make("scale", two, value=abs(factor)), factor / abs(factor)
        return graph.make("add" if factor > 0 else "subtract", one, two)

    return read


def _reversed_difference(graph: Graph, given: Arguments) -> Any:
    given = given | {"self": given["other"], "other": given["self"]}
    return _plus(-1)(graph, given)


def _times(graph: Graph, given: Arguments) -> Any:
    one, two = given["self"], given["other"]
    a, b = _number(one), _number(two)
    if a is not None and b is not None:
        return Filled(a * b)
    if a is None and b is None:
        return graph.make("multiply", one, two)
    return graph.make("scale", two if b is None else one, value=a if b is None else b)


def _over(graph: Graph, given: Arguments) -> Any:
    graph.only(given, rounding_mode=None)
    b = _number(given["other"])
    if b is not None:
        return graph.make("scale", given["self"], value=1 / b)
    return graph.make("divide", given["self"], given["other"])


def _power(exponent: float | None = None) -> Reader:
    """Converter of a power; if `exponent` is None, the exponent is an argument of the node."""

    def read(graph: Graph, given: Arguments) -> Any:
        number = _number(given["exponent"]) if exponent is None else exponent
        if number is None:
            said = f"found exponent {described(given['exponent'])}; a step has exponents that are numbers"
            raise graph.refused(said)
        if number in (1.0, 2.0, 0.5):
            kind = {2.0: "square", 0.5: "sqrt"}.get(number)
            return graph.make(kind, given["self"]) if kind else given["self"]
        return graph.make("power", given["self"], value=number)

    return read


def _matmul(graph: Graph, given: Arguments) -> Any:
    found = (given[name] for name in ("self", "other", "mat2") if name in given)
    return _product(
        graph, *(each if isinstance(each, View) else Named(graph.name_of(each)) for each in found)
    )


def _product(graph: Graph, a: Any, b: Any) -> Any:
    """Matrix product of two values.

    If views only flatten leading axes (of rows, or of a batch of matrices), the tensors themselves are
    multiplied, and the result is a view.
    """
    views = [each if isinstance(each, View) else View(each.name, graph.local_shape(each)) for each in (a, b)]
    first, second = (graph.local_shape(Named(each.name)) for each in views)
    one, two = (each.shape for each in views)
    rows = len(one) == 2 and one[-1] == first[-1] and two == second
    matrices = len(one) == len(two) == 3 and first[:-2] == second[:-2] and len(first) > 2
    matrices = matrices and one[-2:] == first[-2:] and two[-2:] == second[-2:]
    if not (rows or matrices) or (one == first and two == second):
        return graph.make("matmul", a, b)
    made = graph.make("matmul", Named(a.name), Named(b.name))
    return View(made.name, (*one[:-1], graph.local_shape(made)[-1]))


def _biased_product(graph: Graph, given: Arguments) -> Any:
    graph.only(given, alpha=1, beta=1)
    product = _matmul(graph, {"self": given["mat1"], "mat2": given["mat2"]})
    return graph.make("add", product, given["self"])


def _linear(graph: Graph, given: Arguments) -> Any:
    weight = graph.make("transpose", given["weight"], axes=(1, 0))
    made = graph.make("matmul", given["input"], weight)
    return made if given["bias"] is None else graph.make("add", made, given["bias"])


def _transpose(graph: Graph, given: Arguments) -> Any:
    count = len(graph.tensor(given["self"]).shape)
    axes = list(range(count))
    if "dims" in given:
        axes = [each % count for each in given["dims"]]
    elif count >= 2:
        one, two = (given.get(name, i) % count for i, name in enumerate(("dim0", "dim1")))
        axes[one], axes[two] = two, one
    return graph.make("transpose", given["self"], axes=tuple(axes)) if count >= 2 else given["self"]


def _view(graph: Graph, given: Arguments) -> Any:
    """Value in another local shape, with its elements in the same order."""
    source = given["self"]
    shape, _ = graph.stated()
    if isinstance(source, Filled):
        return source
    if isinstance(source, Positions) and shape and math.prod(shape) == shape[-1]:
        return replace(source, ones=len(shape) - 1)
    if isinstance(source, (Deferred, Piece)):
        source = Named(graph.name_of(source))
    if shape is None or not isinstance(source, (Named, View)):
        raise graph.refused(f"{graph.node.target} reads {described(source)}; a step has no such tensor")
    same = shape == graph.local_shape(Named(source.name))
    squeezed = "squeeze" in str(graph.node.target) and getattr(source, "is_squeezed", True)
    return Named(source.name) if same else View(source.name, shape, squeezed)


def _expanded(graph: Graph, given: Arguments) -> Any:
    """Value of an expand that keeps the shape; `WorkloadError` for an expand that repeats elements."""
    source = given["self"]
    shape, _ = graph.stated()
    if isinstance(source, (Filled, Positions)):
        return source
    if shape != graph.local_shape(source):
        said = f"{graph.node.target} repeats {described(source)} as {list(shape or ())}"
        raise graph.refused(f"{said}; take it out, as point-wise operations repeat by themselves")
    return source


def _sliced(graph: Graph, given: Arguments) -> Any:
    """Range of a value along an axis, with step 1."""
    source, axis = given["self"], given["dim"]
    start, end = given.get("start") or 0, given.get("end")
    if isinstance(source, Positions):
        count = source.ones + 1
        if axis % count < source.ones:
            return source
        places = range(source.start, source.stop)[slice(start, end, given["step"])]
        if places.step == 1 and places:
            return replace(source, start=places.start, stop=places.stop)
    shape = graph.local_shape(Named(graph.name_of(source)))
    axis %= len(shape)
    start, stop, step = slice(start, end, given["step"]).indices(shape[axis])
    if step != 1 or start >= stop:
        raise graph.refused(
            f"takes {start} to {stop} by {step} of {described(source)}; a step has it by 1 only"
        )
    whole = Named(graph.name_of(source))
    return whole if (start, stop) == (0, shape[axis]) else graph.part(whole, axis, start, stop)


def _selected(graph: Graph, given: Arguments) -> Any:
    source = Named(graph.name_of(given["self"]))
    shape = graph.local_shape(source)
    axis = given["dim"] % len(shape)
    place = given["index"] % shape[axis]
    made = graph.part(source, axis, place, place + 1)
    return View(made.name, (*shape[:axis], *shape[axis + 1 :]), is_squeezed=True)


def _slice_grad(graph: Graph, given: Arguments) -> Any:
    axis = given["dim"] % len(given["input_sizes"])
    length = given["input_sizes"][axis]
    start, _, step = slice(given["start"], given["end"], given["step"]).indices(length)
    if step != 1:
        raise graph.refused(f"has step {step}; a step has it by 1 only")
    return graph.padded(given["grad_output"], axis, start, length)


def _select_grad(graph: Graph, given: Arguments) -> Any:
    sizes = given["input_sizes"]
    axis = given["dim"] % len(sizes)
    one = View(graph.name_of(given["grad_output"]), (*sizes[:axis], 1, *sizes[axis + 1 :]), is_squeezed=True)
    return graph.padded(one, axis, given["index"] % sizes[axis], sizes[axis])


def _where(graph: Graph, given: Arguments) -> Any:
    mask, one, two = given["condition"], given["self"], given["other"]
    if (number := _number(one)) is not None and _number(two) is None:
        return graph.make("masked_fill", two, mask, value=number)
    return graph.make("where", mask, one, two)


def _softmax(graph: Graph, given: Arguments, kind: str = "softmax") -> Any:
    count = len(graph.tensor(given["self"]).shape)
    if given["dim"] % max(count, 1) != count - 1:
        said = f"is over axis {given['dim']} of {described(given['self'])}; only the last is supported"
        raise graph.refused(f"{said}: transpose it before")
    graph.only(given, half_to_float=False)
    found = given["self"]
    if given.get("dtype") is not None:
        found = graph.make("cast", found, dtype=_dtype(given["dtype"]))
    return graph.make(kind, found)


def _layernorm(graph: Graph, given: Arguments) -> Any:
    tensor = graph.tensor(given["input"])
    if list(given["normalized_shape"]) != [tensor.shape[-1]]:
        said = f"is over axes of lengths {given['normalized_shape']}; only the last axis is supported"
        raise graph.refused(said)
    value = None if given["eps"] == EPSILON else given["eps"]
    found = graph.make("layernorm", given["input"], value=value)
    if given["weight"] is not None:
        found = graph.make("multiply", found, given["weight"])
    return found if given["bias"] is None else graph.make("add", found, given["bias"])


def _layernorm_and_moments(graph: Graph, given: Arguments) -> Any:
    """(layernorm, mean of each row, reciprocal deviation of each row), added to the step if read.

    The note of mean and deviation is epsilon, with which gradients recompute them.
    """
    x, last = given["input"], [len(graph.tensor(given["input"]).shape) - 1]

    def mean(value: Any) -> Any:
        return _mean(graph, {"self": value, "dim": last, "keepdim": True})

    def spread() -> Any:
        varied = mean(graph.make("square", graph.make("subtract", x, mean(x))))
        return graph.make("power", graph.make("offset", varied, value=given["eps"]), value=-0.5)

    of = f"of {graph.node.name}"
    return [
        Deferred(f"the layernorm {of}", lambda: _layernorm(graph, given)),
        Deferred(f"the mean {of}", lambda: mean(x), given["eps"]),
        Deferred(f"the reciprocal deviation {of}", spread, given["eps"]),
    ]


def _dtype(given: Any) -> str:
    return str(given).removeprefix("torch.")


def _cast(graph: Graph, given: Arguments) -> Any:
    if given.get("dtype") is None or _dtype(given["dtype"]) == graph.dtype(given["self"]):
        return given["self"]
    return graph.make("cast", given["self"], dtype=_dtype(given["dtype"]))


def _sum(graph: Graph, given: Arguments) -> Any:
    """Sum over axes of a local tensor."""
    found = given["self"]
    local = graph.local_shape(found)
    count = len(local)
    axes = {each % max(count, 1) for each in given.get("dim") or range(count)} if count else set()
    if isinstance(found, View) and not given.get("keepdim"):
        whole = graph.local_shape(Named(found.name))
        # A sum over all rows of a view is the sum over all rows of its tensor.
        if axes == {*range(count)} or (axes == {*range(count - 1)} and local[-1] == whole[-1]):
            found, axes = Named(found.name), {*range(len(whole) - (count - len(axes)))}
    if given.get("dtype") is not None:
        found = _cast(graph, {"self": found, "dtype": given["dtype"]})
    for axis in sorted(axes, reverse=True):
        found = graph.make("sum", found, axis=axis)
    kept = tuple(1 if i in axes else n for i, n in enumerate(local))
    return View(graph.name_of(found), kept, is_squeezed=True) if given.get("keepdim") else found


def _mean(graph: Graph, given: Arguments) -> Any:
    local = graph.local_shape(given["self"])
    number = math.prod([local[each % len(local)] for each in given.get("dim") or range(len(local))])
    total = _sum(graph, given)
    return graph.make("scale", total, value=1 / number)


def _norm(graph: Graph, given: Arguments) -> Any:
    graph.only(given, ord=2, dim=None, keepdim=False, dtype=None)
    return graph.make("norm", given["self"])


def _squared_error(graph: Graph, given: Arguments) -> Any:
    squares = graph.make("sum_of_squares", graph.make("subtract", given["self"], given["target"]))
    return _averaged(graph, squares, given, 1)


def _squared_error_grad(graph: Graph, given: Arguments) -> Any:
    error = graph.make("subtract", given["self"], given["target"])
    number = _number(given["grad_output"])
    scaled = _averaged(graph, error, given, 2 * (1 if number is None else number))
    return scaled if number is not None else graph.make("multiply", scaled, given["grad_output"])


def _averaged(graph: Graph, value: Named, given: Arguments, factor: float) -> Any:
    """Scale a value by `factor`; for a mean, also divide it by the number of local elements."""
    if given["reduction"] not in (1, 2):
        said = (
            f"{graph.node.target} has reduction={given['reduction']}; a step has the mean (1) and the sum (2)"
        )
        raise graph.refused(said)
    number = math.prod(graph.local_shape(given["self"])) if given["reduction"] == 1 else 1
    return graph.make("scale", value, value=factor / number)


def _dropout(graph: Graph, given: Arguments) -> Any:
    if not given.get("train", True) or not given["p"]:
        return given["input"]
    said = f"{graph.node.name} drops elements at random; the step drops different ones"
    warn(said, LossyConversionWarning)
    return graph.make("dropout", given["input"], value=float(given["p"]))


def _filled(number: float | None) -> Reader:
    def read(graph: Graph, given: Arguments) -> Any:
        known = (given[name] for name in ("fill_value", "value", "s") if name in given)
        return Filled(float(next(known, 0.0) if number is None else number))

    return read


def _copy(graph: Graph, given: Arguments) -> Any:
    """Value that replaces an input in place; the input becomes state of the step."""
    name = graph.name_of(given["self"])
    if name not in {each.name for each in graph.inputs}:
        raise graph.refused(f"writes {name} in place, which is no input; trace the step functionally")
    later = [node for node in graph.node.users if node.op != "output"]
    if later:
        raise graph.refused(f"writes {name} in place, and {later[0].name} reads it; trace it functionally")
    graph.state[name] = graph.name_of(given["src"])
    return given["src"]


def _nothing(graph: Graph, given: Arguments) -> None:
    return None


#: {operator in an FX graph, without its overload: function that converts the node}.
READERS: dict[str, Reader] = {
    **dict.fromkeys(
        ("aten.detach", "aten.alias", "aten.clone", "aten.contiguous", "aten.lift_fresh_copy",
         "aten.lift_fresh", "_c10d_functional.wait_tensor"), _same,
    ),
    **{f"aten.{kind}": _unary(kind) for kind in ("relu", "tanh", "sqrt", "square", "exp", "sigmoid", "erf")},
    **dict.fromkeys(
        ("aten.view", "aten.reshape", "aten._unsafe_view", "aten.unsqueeze", "aten.squeeze", "aten.flatten",
         "aten.unflatten"), _view,
    ),
    **dict.fromkeys(("aten.mm", "aten.bmm", "aten.matmul"), _matmul),
    **dict.fromkeys(("aten.t", "aten.transpose", "aten.permute"), _transpose),
    **dict.fromkeys(("aten._softmax", "aten.softmax"), _softmax),
    **dict.fromkeys(
        ("aten._log_softmax", "aten.log_softmax"), lambda graph, given: _softmax(graph, given, "log_softmax")
    ),
    "aten.where": _where, "aten.expand": _expanded, "aten.slice": _sliced, "aten.select": _selected,
    "aten.slice_backward": _slice_grad, "aten.select_backward": _select_grad,
    "aten.masked_fill": lambda graph, given: graph.make(
        "masked_fill", given["self"], given["mask"], value=float(given["value"])
    ),
    **dict.fromkeys(("aten._to_copy", "aten.to"), _cast),
    **dict.fromkeys(("aten.full", "aten.full_like", "aten.scalar_tensor"), _filled(None)),
    **dict.fromkeys(("aten.ones_like", "aten.ones"), _filled(1.0)),
    **dict.fromkeys(("aten.zeros_like", "aten.zeros"), _filled(0.0)),
    "aten.add": _plus(1), "aten.sub": _plus(-1), "aten.rsub": _reversed_difference, "aten.mul": _times,
    "aten.div": _over, "aten.neg": lambda graph, given: graph.make("scale", given["self"], value=-1.0),
    "aten.maximum": lambda graph, given: graph.make("maximum", given["self"], given["other"]),
    "aten.pow": _power(), "aten.rsqrt": _power(-0.5), "aten.reciprocal": _power(-1.0),
    "aten.addmm": _biased_product, "aten.linear": _linear, "aten.layer_norm": _layernorm,
    "aten.native_layer_norm": _layernorm_and_moments, "aten.sum": _sum, "aten.mean": _mean,
    "aten.linalg_vector_norm": _norm, "aten.mse_loss": _squared_error,
    "aten.mse_loss_backward": _squared_error_grad, "aten.dropout": _dropout,
    "aten.native_dropout": lambda graph, given: graph.first(lambda: _dropout(graph, given)),
    "aten.copy_": _copy, "aten._assert_tensor_metadata": _nothing,
    **COLLECTIVE_READERS, **GRADIENT_READERS, **ID_READERS, **ATTENTION_READERS,
}  # fmt: skip

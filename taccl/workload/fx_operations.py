"""Converters of PyTorch operations into operations of a step, in a table by the operation's PyTorch name.

A converter (reader) gets the step under construction and the named arguments of a node, and returns the
node's value. Names are those of PyTorch's namespaces aten and c10d.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

from taccl.errors import LossyConversionWarning, warn
from taccl.workload.fx_attention import ATTENTION_READERS
from taccl.workload.fx_collectives import COLLECTIVE_READERS
from taccl.workload.fx_convolutions import CONVOLUTION_READERS
from taccl.workload.fx_graph import FUNCTIONAL, Graph
from taccl.workload.fx_ids import ID_READERS
from taccl.workload.fx_norms import NORM_READERS
from taccl.workload.fx_parts import spread
from taccl.workload.fx_pointwise import POINTWISE_READERS
from taccl.workload.fx_values import (
    Arguments,
    Deferred,
    Filled,
    Named,
    Own,
    Piece,
    Positions,
    Reader,
    Repeated,
    Stacked,
    View,
    Whole,
    described,
    number_of,
)
from taccl.workload.fx_views import in_memory, in_one_batch, transposed, with_axis_last


def _same(graph: Graph, given: Arguments) -> Any:
    return next(iter(given.values()))


def _unary(kind: str) -> Reader:
    return lambda graph, given: graph.make(kind, next(iter(given.values())))


def _binary(kind: str) -> Reader:
    return lambda graph, given: graph.make(kind, given["self"], given["other"])


def _plus(sign: float) -> Reader:
    """Converter of a sum, or of a difference if `sign` is -1."""

    def read(graph: Graph, given: Arguments) -> Any:
        one, two = (graph.numeric(given[name]) for name in ("self", "other"))
        factor = sign * float(given.get("alpha", 1))
        a, b = number_of(one), number_of(two)
        if a is not None and b is not None:
            return Filled(a + factor * b)
        if (a == 0 and factor == 1) or b == 0:
            return two if b is None else one
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
    if graph.stated()[1] == "bool" and not any(number_of(each) is not None for each in given.values()):
        return graph.make("logical_and", given["self"], given["other"])
    one, two = (graph.numeric(given[name]) for name in ("self", "other"))
    a, b = number_of(one), number_of(two)
    if a is not None and b is not None:
        return Filled(a * b)
    if a is None and b is None:
        return graph.make("multiply", one, two)
    return graph.make("scale", two if b is None else one, value=a if b is None else b)


def _over(graph: Graph, given: Arguments) -> Any:
    graph.only(given, rounding_mode=None)
    b = number_of(given["other"])
    if b is not None:
        if not b:
            raise graph.unread(f"{graph.node.target} divides by 0; the result would not be finite")
        return _times(graph, {"self": given["self"], "other": 1 / b})
    if number_of(given["self"]) is not None:
        inverse = graph.make("power", given["other"], value=-1.0)
        return _times(graph, {"self": inverse, "other": given["self"]})
    return graph.make("divide", given["self"], given["other"])


def _power(exponent: float | None = None) -> Reader:
    """Converter of a power; if `exponent` is None, the exponent is an argument of the node."""

    def read(graph: Graph, given: Arguments) -> Any:
        number = number_of(given["exponent"]) if exponent is None else exponent
        if number is None:
            said = f"found exponent {described(given['exponent'])}; only numbers are supported"
            raise graph.unread(said)
        if number in (1.0, 2.0, 0.5):
            kind = {2.0: "square", 0.5: "sqrt"}.get(number)
            return graph.make(kind, given["self"]) if kind else given["self"]
        return graph.make("power", given["self"], value=number)

    return read


def _matmul(graph: Graph, given: Arguments) -> Any:
    found = [given[name] for name in ("self", "other", "mat2") if name in given]
    if isinstance(found[1], Repeated) and isinstance(found[1].source, (Named, View)):
        # If the whole batch shares one matrix, multiply by this matrix instead of by copies of it.
        # The number of copies would be the local length of the batch; a sliced batch is longer.
        one = Named(found[1].source.name)
        if graph.local_shape(one) == found[1].shape[-2:]:
            found[1] = one
    if any(isinstance(each, Own) for each in found):
        return graph.make("matmul", *found)
    return _product(
        graph, *(each if isinstance(each, View) else Named(graph.name_of(each)) for each in found)
    )


def _product(graph: Graph, a: Any, b: Any) -> Any:
    """Matrix product of two values.

    If operands are views that only flatten leading axes (of rows, or of a batch of matrices), the viewed
    tensors are multiplied. The result is then a view of their product.
    """
    views = [each if isinstance(each, View) else View(each.name, graph.local_shape(each)) for each in (a, b)]
    first, second = (graph.local_shape(Named(each.name)) for each in views)
    one, two = (each.shape for each in views)
    if one == first and two == second:
        return graph.make("matmul", a, b)
    names: tuple[str, str] | None = None
    # The shapes compared are local ones; global lengths may differ.
    if len(one) == 2 and one[-1:] == first[-1:] and two == second:
        inner = graph.tensors[a.name].shape[-1], graph.tensors[b.name].shape[-2]
        names = (a.name, b.name) if inner[0] == inner[1] else None
    elif len(one) == len(two) == 3:
        names = in_one_batch(graph, *views)
    if names is None:
        return graph.make("matmul", a, b)
    made = graph.make("matmul", *map(Named, names))
    return View(made.name, (*one[:-1], graph.local_shape(made)[-1]))


def _biased_product(graph: Graph, given: Arguments) -> Any:
    graph.only(given, alpha=1, beta=1)
    product = _matmul(graph, {"self": given["mat1"], "mat2": given["mat2"]})
    return graph.make("add", product, given["self"])


def _scaled_batch_product(graph: Graph, given: Arguments) -> Any:
    """Convert ``beta * self + alpha * (batch1 @ batch2)``; `self` is not read if `beta` is 0."""
    made = _matmul(graph, {"self": given["batch1"], "other": given["batch2"]})
    alpha, beta = given.get("alpha", 1), given.get("beta", 1)
    if alpha != 1:
        made = graph.make("scale", made, value=float(alpha))
    return made if beta == 0 else _plus(1)(graph, {"self": made, "other": given["self"], "alpha": beta})


def _linear(graph: Graph, given: Arguments) -> Any:
    weight = graph.make("transpose", given["weight"], axes=(1, 0))
    made = graph.make("matmul", given["input"], weight)
    return made if given["bias"] is None else graph.make("add", made, given["bias"])


def _transpose(graph: Graph, given: Arguments) -> Any:
    count = len(graph.local_shape(given["self"]))
    axes = list(range(count))
    if "dims" in given:
        axes = [each % count for each in given["dims"]]
    elif count >= 2:
        one, two = (given.get(name, i) % count for i, name in enumerate(("dim0", "dim1")))
        axes[one], axes[two] = two, one
    if count < 2:
        return given["self"]
    source = given["self"]
    if isinstance(source, Stacked):
        source = in_memory(graph, source)
        if isinstance(source, Own):
            # The first axis of an `Own`'s tensor counts ranks; it stays first, so views can merge others.
            made = graph.make("transpose", Named(source.name), axes=(0, *(1 + axis for axis in axes)))
            return Own(made.name, tuple(source.shape[axis] for axis in axes))
    found = transposed(graph, source, axes) if isinstance(source, View) else None
    return graph.make("transpose", source, axes=tuple(axes)) if found is None else found


def _view(graph: Graph, given: Arguments) -> Any:
    """Value in another local shape, with its elements in the same order."""
    source = given["self"]
    shape, _ = graph.stated()
    if isinstance(source, Filled):
        return source
    if isinstance(source, Positions) and shape:
        return replace(source, shape=shape)
    if isinstance(source, Whole):
        return Whole(graph.viewed(source.value, shape or ()))
    if isinstance(source, Stacked):
        source = in_memory(graph, source)
    if isinstance(source, Own):
        return graph.viewed(source, shape or ())
    if isinstance(source, Repeated) and shape == source.shape:
        return source
    if isinstance(source, (Deferred, Piece, Repeated)):
        source = Named(graph.name_of(source))
    if shape is None or not isinstance(source, (Named, View)):
        raise graph.refused(f"{graph.node.target} reshapes {described(source)}; reshape a whole tensor")
    same = shape == graph.local_shape(Named(source.name))
    squeezed = "squeeze" in str(graph.node.target) and getattr(source, "is_squeezed", True)
    return Named(source.name) if same else View(source.name, shape, squeezed)


def _expanded(graph: Graph, given: Arguments) -> Any:
    """Value broadcast to a larger shape; its copies are stored only if an operation needs them."""
    source = given["self"]
    shape, _ = graph.stated()
    if isinstance(source, Filled) or shape is None or shape == graph.local_shape(source):
        return source
    if isinstance(source, Positions):
        is_same = math.prod(shape) == source.stop - source.start
        return replace(source, shape=shape) if is_same else Repeated(source, shape)
    return Repeated(source if isinstance(source, (Named, View, Own)) else Named(graph.name_of(source)), shape)


def _type_as(graph: Graph, given: Arguments) -> Any:
    return graph.cast(given["self"], graph.dtype(given["other"]))


def _outer(graph: Graph, given: Arguments) -> Any:
    """Outer product of two vectors."""
    (count,) = graph.local_shape(given["self"])
    column = View(graph.name_of(given["self"]), (count, 1), is_squeezed=True)
    return graph.make("multiply", Named(graph.name_of(column)), given["vec2"])


def _repeated(graph: Graph, given: Arguments) -> Any:
    """Value with each element repeated along an axis."""
    if not isinstance(given["repeats"], int) or given["dim"] is None:
        said = f"{graph.node.target} has repeats={described(given['repeats'])} and dim={given['dim']}"
        raise graph.unread(f"{said}; only one whole number of repeats along one axis is supported")
    axis = given["dim"] % len(graph.local_shape(given["self"]))
    return graph.make("repeat", given["self"], axis=axis, stop=given["repeats"])


def _sliced(graph: Graph, given: Arguments) -> Any:
    """Convert a slice of a value along an axis; only step 1 is supported."""
    source, axis = given["self"], given["dim"]
    start, end = given.get("start") or 0, given.get("end")
    if isinstance(source, Positions):
        axis %= len(source.shape)
        if source.shape[axis] == 1 < source.stop - source.start:
            return source
        places = range(source.start, source.stop)[slice(start, end, given["step"])]
        if places.step == 1 and places:
            shape = tuple(len(places) if i == axis else n for i, n in enumerate(source.shape))
            return Positions(places.start, places.stop, shape)
    shape = graph.local_shape(Named(graph.name_of(source)))
    axis %= len(shape)
    start, stop, step = slice(start, end, given["step"]).indices(shape[axis])
    if step != 1 or start >= stop:
        raise graph.unread(
            f"slices {start}:{stop}:{step} of {described(source)}; expected start < stop and step 1"
        )
    whole = Named(graph.name_of(source))
    return whole if (start, stop) == (0, shape[axis]) else graph.part(whole, axis, start, stop)


def _selected(graph: Graph, given: Arguments) -> Any:
    source = Named(graph.name_of(given["self"]))
    shape = graph.local_shape(source)
    axis = given["dim"] % len(shape)
    place = given["index"] % shape[axis]
    made = graph.part(source, axis, place, place + 1)
    if graph.mesh.slicing(graph.tensor(made), axis):
        order = (axis, *(i for i in range(len(shape)) if i != axis))
        first = graph.make("transpose", made, axes=order) if axis else made
        return Own(first.name, (*shape[:axis], *shape[axis + 1 :]))
    return View(made.name, (*shape[:axis], *shape[axis + 1 :]), is_squeezed=True)


def _unbound(graph: Graph, given: Arguments) -> Any:
    """Convert a node that returns all indices of an axis as tensors of their own (``torch.unbind``)."""
    count = graph.local_shape(given["self"])[given["dim"]]
    each = (given | {"index": index} for index in range(count))
    return graph.lazily(*(functools.partial(_selected, graph, one) for one in each))


def _slice_grad(graph: Graph, given: Arguments) -> Any:
    axis = given["dim"] % len(given["input_sizes"])
    length = given["input_sizes"][axis]
    start, _, step = slice(given["start"], given["end"], given["step"]).indices(length)
    if step != 1:
        raise graph.unread(f"has step {step}; only step 1 is supported")
    return graph.padded(given["grad_output"], axis, start, length)


def _select_grad(graph: Graph, given: Arguments) -> Any:
    sizes = given["input_sizes"]
    axis = given["dim"] % len(sizes)
    one = View(graph.name_of(given["grad_output"]), (*sizes[:axis], 1, *sizes[axis + 1 :]), is_squeezed=True)
    return graph.padded(one, axis, given["index"] % sizes[axis], sizes[axis])


def _softmax(graph: Graph, given: Arguments, kind: str = "softmax") -> Any:
    """Softmax along an axis; if the axis is sliced over ranks, each rank normalises its own slice."""
    graph.only(given, half_to_float=False)
    found = given["self"]
    if given.get("dtype") is not None:
        found = graph.cast(found, given["dtype"])
    count = len(graph.local_shape(found))
    axis = given["dim"] % max(count, 1)
    if axis == count - 1 and isinstance(found, (View, Own)):
        return graph.make(kind, found)
    rows, back = with_axis_last(graph, spread(graph, found), axis)
    return back(graph.make(kind, rows))


def _cast(graph: Graph, given: Arguments) -> Any:
    return graph.cast(given["self"], given.get("dtype"))


def _squared_error(graph: Graph, given: Arguments) -> Any:
    squares = graph.make("sum_of_squares", graph.make("subtract", given["self"], given["target"]))
    return _averaged(graph, squares, given, 1)


def _squared_error_grad(graph: Graph, given: Arguments) -> Any:
    error = graph.make("subtract", given["self"], given["target"])
    number = number_of(given["grad_output"])
    scaled = _averaged(graph, error, given, 2 * (1 if number is None else number))
    return scaled if number is not None else graph.make("multiply", scaled, given["grad_output"])


def _averaged(graph: Graph, value: Named, given: Arguments, factor: float) -> Any:
    """Scale a loss by `factor`; if its reduction is a mean, also divide by the number of local elements."""
    if given["reduction"] not in (1, 2):
        said = f"{graph.node.target} has reduction={given['reduction']}"
        raise graph.unread(f"{said}; only the mean (1) and the sum (2) are supported")
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
    """Convert an in-place update of an input; the input becomes state, which the new value replaces."""
    name = graph.name_of(given["self"])
    if name not in {each.name for each in graph.inputs}:
        raise graph.refused(f"writes {name} in place, but only inputs can be updated; {FUNCTIONAL}")
    later = [node for node in graph.node.users if node.op != "output"]
    if later:
        raise graph.refused(f"writes {name} in place, and {later[0].name} reads it; {FUNCTIONAL}")
    graph.state[name] = graph.name_of(given["src"])
    return given["src"]


def _nothing(graph: Graph, given: Arguments) -> None:
    return None


#: Kinds of operations on one tensor that have the same name in a step and in PyTorch.
_UNARY = ("relu", "tanh", "sqrt", "square", "exp", "sigmoid", "erf", "log", "cos", "sin", "abs")
#: {operator of an FX graph, without its overload name: function that converts a node of this operator}.
READERS: dict[str, Reader] = {
    **dict.fromkeys(
        ("aten.detach", "aten.alias", "aten.clone", "aten.contiguous", "aten.lift_fresh_copy",
         "aten.lift_fresh", "_c10d_functional.wait_tensor"), _same,
    ),
    **{f"aten.{kind}": _unary(kind) for kind in _UNARY},
    **dict.fromkeys(
        ("aten.view", "aten.reshape", "aten._unsafe_view", "aten.unsqueeze", "aten.squeeze", "aten.flatten",
         "aten.unflatten"), _view,
    ),
    **dict.fromkeys(("aten.mm", "aten.bmm", "aten.matmul"), _matmul),
    **dict.fromkeys(("aten.t", "aten.transpose", "aten.permute", "aten.numpy_T"), _transpose),
    **dict.fromkeys(("aten._softmax", "aten.softmax"), _softmax),
    **dict.fromkeys(
        ("aten._log_softmax", "aten.log_softmax"), lambda graph, given: _softmax(graph, given, "log_softmax")
    ),
    "aten.expand": _expanded, "aten.outer": _outer, "aten.type_as": _type_as,
    "aten.repeat_interleave": _repeated, "aten.slice": _sliced,
    "aten.select": _selected, "aten.unbind": _unbound,
    "aten.slice_backward": _slice_grad, "aten.select_backward": _select_grad,
    **dict.fromkeys(("aten._to_copy", "aten.to"), _cast),
    **dict.fromkeys(("aten.full", "aten.full_like", "aten.new_full", "aten.scalar_tensor"), _filled(None)),
    **dict.fromkeys(("aten.ones_like", "aten.new_ones", "aten.ones"), _filled(1.0)),
    **dict.fromkeys(("aten.zeros_like", "aten.new_zeros", "aten.zeros"), _filled(0.0)),
    "aten.add": _plus(1), "aten.sub": _plus(-1), "aten.rsub": _reversed_difference, "aten.mul": _times,
    "aten.div": _over, "aten.neg": lambda graph, given: _times(graph, {"self": given["self"], "other": -1.0}),
    **{f"aten.{kind}": _binary(kind) for kind in ("maximum", "minimum")},
    "aten.pow": _power(), "aten.rsqrt": _power(-0.5), "aten.reciprocal": _power(-1.0),
    "aten.addmm": _biased_product,
    "aten.baddbmm": _scaled_batch_product, "aten.linear": _linear, "aten.mse_loss": _squared_error,
    "aten.mse_loss_backward": _squared_error_grad, "aten.dropout": _dropout,
    "aten.native_dropout": lambda graph, given: graph.first(lambda: _dropout(graph, given)),
    "aten.copy_": _copy, "aten._assert_tensor_metadata": _nothing,
    **COLLECTIVE_READERS, **NORM_READERS, **POINTWISE_READERS, **ID_READERS,
    **ATTENTION_READERS, **CONVOLUTION_READERS,
}  # fmt: skip

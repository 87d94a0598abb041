"""Converters of PyTorch operations into operations of a step, by their name in aten or c10d.

A converter (reader) gets the step under construction and the named arguments of a node, and returns the
node's value.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from taccl.errors import LossyConversionWarning, warn
from taccl.workload.fx_collectives import COLLECTIVE_READERS
from taccl.workload.fx_graph import Filled, Named, View, described

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl.workload.fx_graph import Graph

    Arguments = dict[str, Any]
    Reader = Callable[[Graph, Arguments], Any]

#: Epsilon of `layernorm`; others are not supported.
_EPSILON = 1e-5


def _number(value: Any) -> float | None:
    """Number that a value is, or is filled with; None for a tensor."""
    if isinstance(value, Filled):
        return value.number
    return float(value) if isinstance(value, (int, float)) else None


def _same(graph: Graph, given: Arguments) -> Any:
    return next(iter(given.values()))


def _unary(kind: str) -> Reader:
    return lambda graph, given: graph.make(kind, next(iter(given.values())))


def _plus(sign: float) -> Reader:
    """Reader of a sum, or of a difference if `sign` is -1."""

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
    _only(graph, given, rounding_mode=None)
    b = _number(given["other"])
    if b is not None:
        return graph.make("scale", given["self"], value=1 / b)
    return graph.make("divide", given["self"], given["other"])


def _power(graph: Graph, given: Arguments) -> Any:
    kinds = {2.0: "square", 0.5: "sqrt"}
    exponent = _number(given["exponent"])
    if exponent == 1:
        return given["self"]
    if exponent not in kinds:
        said = f"found exponent {described(given['exponent'])}; a step supports 2, 1 and 0.5"
        raise graph.refused(said)
    return graph.make(kinds[exponent], given["self"])


def _only(graph: Graph, given: Arguments, **expected: Any) -> None:
    """Raise `WorkloadError` unless the given arguments have the expected values."""
    for name, value in expected.items():
        if name in given and given[name] != value:
            said = f"{graph.node.target} has {name}={given[name]!r}; a step has it with {value!r} only"
            raise graph.refused(said)


def _gelu(graph: Graph, given: Arguments) -> Any:
    _only(graph, given, approximate="tanh")
    return graph.make("gelu", given["self"])


def _relu_grad(graph: Graph, given: Arguments) -> Any:
    _only(graph, given, threshold=0)
    return graph.make("relu_grad", given["grad_output"], given["self"])


def _matmul(graph: Graph, given: Arguments) -> Any:
    names = [name for name in ("self", "other", "mat2") if name in given]
    return _product(graph, *(given[name] for name in names))


def _product(graph: Graph, a: Any, b: Any) -> Any:
    """Matrix product; rows that a view flattens into one axis keep their separate axes."""
    if not isinstance(a, View):
        return graph.make("matmul", a, b)
    rows = graph.local_shape(Named(a.name))
    if len(a.shape) != 2 or a.shape[1] != rows[-1]:
        return graph.make("matmul", a, b)
    made = graph.make("matmul", Named(a.name), b)
    return View(made.name, (a.shape[0], graph.local_shape(made)[-1]))


def _biased_product(graph: Graph, given: Arguments) -> Any:
    _only(graph, given, alpha=1, beta=1)
    product = _product(graph, given["mat1"], given["mat2"])
    made = graph.make("add", Named(product.name), given["self"])
    return View(made.name, product.shape) if isinstance(product, View) else made


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
    """Elements of a value in another local shape."""
    source = given["self"]
    shape, _ = graph.stated()
    if shape is None or not isinstance(source, (Named, View)):
        raise graph.refused(f"{graph.node.target} reads {described(source)}; a step has no such tensor")
    same = shape == graph.local_shape(Named(source.name))
    return Named(source.name) if same else View(source.name, shape)


def _softmax(graph: Graph, given: Arguments) -> Any:
    count = len(graph.tensor(given["self"]).shape)
    if given["dim"] % max(count, 1) != count - 1:
        said = f"is over axis {given['dim']} of {described(given['self'])}; only the last is supported"
        raise graph.refused(f"{said}: transpose it before")
    _only(graph, given, half_to_float=False)
    found = given["self"]
    if given.get("dtype") is not None:
        found = graph.make("cast", found, dtype=_dtype(given["dtype"]))
    return graph.make("softmax", found)


def _layernorm(graph: Graph, given: Arguments) -> Any:
    _only(graph, given, eps=_EPSILON)
    tensor = graph.tensor(given["input"])
    if list(given["normalized_shape"]) != [tensor.shape[-1]]:
        said = f"is over axes of lengths {given['normalized_shape']}; only the last axis is supported"
        raise graph.refused(said)
    found = graph.make("layernorm", given["input"])
    if given["weight"] is not None:
        found = graph.make("multiply", found, given["weight"])
    return found if given["bias"] is None else graph.make("add", found, given["bias"])


def _first_only(reader: Reader) -> Reader:
    """Reader of an operation with several results, of which only the first is supported."""
    return lambda graph, given: _First(graph, reader(graph, given))


class _First:
    """Results of an operation, of which only the first is a tensor of the step."""

    def __init__(self, graph: Graph, value: Any) -> None:
        self.graph, self.value, self.target = graph, value, graph.node.target

    def __getitem__(self, position: int) -> Any:
        if position:
            said = f"reads result {position} of {self.target}; a step supports only the first"
            raise self.graph.refused(said)
        return self.value


def _dtype(given: Any) -> str:
    return str(given).removeprefix("torch.")


def _cast(graph: Graph, given: Arguments) -> Any:
    if given.get("dtype") is None or _dtype(given["dtype"]) == graph.tensor(given["self"]).dtype:
        return given["self"]
    return graph.make("cast", given["self"], dtype=_dtype(given["dtype"]))


def _sum(graph: Graph, given: Arguments) -> Any:
    """Sum over some axes of a local tensor."""
    found, shape = given["self"], graph.tensor(given["self"]).shape
    if given.get("dtype") is not None:
        found = _cast(graph, {"self": found, "dtype": given["dtype"]})
    count = max(len(shape), 1)
    axes = sorted({each % count for each in given.get("dim") or range(len(shape))}, reverse=True)
    for axis in axes:
        found = graph.make("sum", found, axis=axis)
    kept = tuple(1 if i in axes else n for i, n in enumerate(graph.local_shape(given["self"])))
    return View(found.name, kept) if given.get("keepdim") else found


def _mean(graph: Graph, given: Arguments) -> Any:
    local, count = graph.local_shape(given["self"]), len(graph.tensor(given["self"]).shape)
    number = math.prod([local[each % count] for each in given.get("dim") or range(count)])
    total = _sum(graph, given)
    made = graph.make("scale", Named(total.name), value=1 / number)
    return View(made.name, total.shape) if isinstance(total, View) else made


def _norm(graph: Graph, given: Arguments) -> Any:
    _only(graph, given, ord=2, dim=None, keepdim=False, dtype=None)
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
    """Value times a factor, divided by the number of local elements if the reduction is a mean."""
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
    """Replacement of an input in place, which becomes state of the step."""
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


#: {name in a graph, without its overload: function that converts the node}.
READERS: dict[str, Reader] = {
    **dict.fromkeys(
        ("aten.detach", "aten.alias", "aten.clone", "aten.contiguous", "aten.lift_fresh_copy",
         "aten.lift_fresh", "_c10d_functional.wait_tensor"), _same,
    ),
    **{f"aten.{kind}": _unary(kind) for kind in ("relu", "tanh", "sqrt", "square", "exp", "sigmoid")},
    **dict.fromkeys(
        ("aten.view", "aten.reshape", "aten._unsafe_view", "aten.unsqueeze", "aten.squeeze", "aten.flatten"),
        _view,
    ),
    **dict.fromkeys(("aten.mm", "aten.bmm", "aten.matmul"), _matmul),
    **dict.fromkeys(("aten.t", "aten.transpose", "aten.permute"), _transpose),
    **dict.fromkeys(("aten._softmax", "aten.softmax"), _softmax),
    **dict.fromkeys(("aten._to_copy", "aten.to"), _cast),
    **dict.fromkeys(("aten.full", "aten.full_like", "aten.scalar_tensor"), _filled(None)),
    **dict.fromkeys(("aten.ones_like", "aten.ones"), _filled(1.0)),
    **dict.fromkeys(("aten.zeros_like", "aten.zeros"), _filled(0.0)),
    "aten.add": _plus(1), "aten.sub": _plus(-1), "aten.rsub": _reversed_difference, "aten.mul": _times,
    "aten.div": _over, "aten.neg": lambda graph, given: graph.make("scale", given["self"], value=-1.0),
    "aten.maximum": lambda graph, given: graph.make("maximum", given["self"], given["other"]),
    "aten.pow": _power, "aten.gelu": _gelu, "aten.threshold_backward": _relu_grad,
    "aten.addmm": _biased_product, "aten.linear": _linear, "aten.layer_norm": _layernorm,
    "aten.native_layer_norm": _first_only(_layernorm), "aten.sum": _sum, "aten.mean": _mean,
    "aten.linalg_vector_norm": _norm, "aten.mse_loss": _squared_error,
    "aten.mse_loss_backward": _squared_error_grad, "aten.dropout": _dropout,
    "aten.native_dropout": _first_only(_dropout), "aten.copy_": _copy,
    "aten._assert_tensor_metadata": _nothing,
    **COLLECTIVE_READERS,
}  # fmt: skip

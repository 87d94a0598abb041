"""Table of the kinds of compute operations: their operands, result shapes, axis labels, work and linearity.

`taccl.workload.kind_values` computes operations of each kind on arrays, and `taccl.workload.kind_programs`
writes them as PyTorch expressions. Layouts, tiles, costs and legal transformations follow from this table.

An operation is described like an Einstein sum: each axis of an operand has a *label*. A label of 0 or more is
the number of an axis of the result, which is sliced as the operand's axis is. A negative label is an *inner*
axis, which the result lacks; operands with the same inner label are read at the same indices along it. If an
inner axis is sliced, each rank's result is a partial sum. An axis with a label below
`kind_rules.LEAST_SUMMED` must not be sliced, as the operation needs it whole. The label None is an axis of
length 1 that is broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taccl.workload import aten
from taccl.workload import kind_rules as rules

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taccl.workload.kind_rules import Labels, Shape
    from taccl.workload.operations import Operation


@dataclass(frozen=True, slots=True)
class Kind:
    """Description of a kind of operation: its operands, options, result and work.

    - `says`: The result in words, for the table in the documentation.
    - `shape`: Function that returns the result's shape, from the operation and the operands' shapes.
    - `labels`: Function that returns the labels of the operands' axes, from the operation and all shapes.
    - `operands`: Allowed numbers of operands.
    - `options`: Names of its options; those in capitals are required.
    - `linear`: Combinations of operand layouts for which the result is partial, with one letter per operand:
      ``p`` for partial, ``r`` for replicated. ``p+`` stands for any number of partial operands.
    - `work`: Function that returns the floating-point operations, from the operation and all shapes.
    - `ids`: Positions of operands that are integers; None if the operation moves elements of any type.
    - `masks`: Positions of operands that may be of type bool.
    - `pointwise`: True if an element of the result depends only on the same element of each operand.
    - `typed`: Positions of the operands that determine the result's element type; None for all operands but
      ids and masks.
    - `makes`: Element type of the result; empty if it follows from the operands or the option `dtype`.
    - `mixed`: True if operands may have any types, and the option `dtype` may state any type for the result.
    """

    says: str
    shape: Callable[[Operation, Sequence[Shape]], Shape]
    labels: Callable[[Operation, Sequence[Shape], Shape], Labels]
    operands: tuple[int, ...] = (1,)
    options: tuple[str, ...] = ()
    linear: tuple[str, ...] = ()
    work: Callable[[Operation, Shape, Sequence[Shape]], float] = lambda operation, out, read: 0.0
    ids: tuple[int, ...] | None = ()
    masks: tuple[int, ...] = ()
    pointwise: bool = False
    typed: tuple[int, ...] | None = None
    makes: str = ""
    mixed: bool = False


def _pointwise(says: str, *operands: int, **more: Any) -> Kind:
    return Kind(says, rules.broadcast, rules.same_axes, operands or (1,), pointwise=True, **more)


def _comparisons() -> dict[str, Kind]:
    """Comparisons of a with b, or with `value` if there is one operand; the results are masks."""
    says = {
        "equal": "equals", "not_equal": "differs from", "less": "is below", "less_equal": "is at most",
        "greater": "is above", "greater_equal": "is at least",
    }  # fmt: skip
    return {
        name: _pointwise(
            f"true where a {said} b, or `value`", 1, 2, options=("value",), ids=None, makes="bool"
        )
        for name, said in says.items()
    }


def _attention_grads() -> dict[str, Kind]:
    """Gradients of attention with respect to queries, keys and values.

    PyTorch's kernel computes all three gradients in five matrix products. Three of these count as work of the
    query's gradient: its own product, and the two whose results are shared by several gradients.
    """
    # Softmax normalises over all keys, so each weight depends on every key.
    axes = {
        "query": "... r ., ... r ., ... . ., ... . ., (... r .) -> ... r .",
        "key": "... r ., ... r ., ... . ., ... . ., (... r .) -> ... . .",
        "value": "... r e, ... r ., ... . ., ... . e, (... r .) -> ... . e",
    }
    return {
        f"attention_grad_{name}": Kind(
            f"the gradient of `attention` with respect to its {name}", rules.attention_grad(at),
            rules.axes(axes[name]), (4, 5), ("causal", "value"), linear=("prrr", "prrrr"), masks=(4,),
            work=rules.attention_flops(3.0 if at == 0 else 1.0, 1),
        )
        for at, name in enumerate(axes)
    }  # fmt: skip


#: Label functions of operations on each row (last axis) of one operand, and of two.
_OF_ROWS, _OF_TWO_ROWS = rules.axes("... . -> ... ."), rules.axes("... ., ... . -> ... .")
#: {kind of operation: its description}.
TABLE: dict[str, Kind] = {
    "matmul": Kind(
        "the product of matrices", rules.product, rules.axes("... m k, ... k n -> ... m n"), (2,),
        linear=("pr", "rp"), work=rules.product_flops
    ),
    "relu": _pointwise("max(x, 0)"),
    "gelu": _pointwise("the GELU in its tanh approximation"),
    "tanh": _pointwise("tanh x"),
    "sigmoid": _pointwise("1 / (1 + exp -x)"),
    "erf": _pointwise("the error function of x"),
    "exp": _pointwise("exp x"),
    "log": _pointwise("the logarithm of x"),
    "cos": _pointwise("cos x"),
    "sin": _pointwise("sin x"),
    "abs": _pointwise("the absolute value of x"),
    "square": _pointwise("x²"),
    "sqrt": _pointwise("√x"),
    "power": _pointwise("x to the power `value`", options=("VALUE",)),
    "scale": _pointwise("x times `value`", options=("VALUE",), linear=("p",)),
    "offset": _pointwise("x plus `value`", options=("VALUE",)),
    "dropout": _pointwise(
        "0 for a random share `value` of the elements, else x / (1 - `value`)", options=("VALUE", "seed"),
        linear=("p",),
    ),
    "cast": _pointwise("x in type `dtype`", options=("dtype",)),
    "add": _pointwise("a + b", 2, linear=("pp",)),
    "subtract": _pointwise("a - b", 2, linear=("pp",)),
    "multiply": _pointwise("a b", 2, linear=("pr", "rp")),
    "divide": _pointwise("a / b", 2, linear=("pr",)),
    "maximum": _pointwise("the larger of a and b", 2),
    "minimum": _pointwise("the smaller of a and b", 2),
    "relu_grad": _pointwise("a where b > 0, else 0", 2, linear=("pr",)),
    "masked_fill": _pointwise(
        "a, or `value` where b is true", 2, options=("VALUE",), masks=(1,), ids=None
    ),
    "where": _pointwise("b where a is true, else c", 3, masks=(0,), ids=None),
    "expand": _pointwise("a, repeated to the shape of a and b", 2, ids=None, typed=(0,)),
    **_comparisons(),
    "logical_not": _pointwise("true where a is false", masks=(0,), makes="bool"),
    "logical_and": _pointwise("true where a and b are true", 2, masks=(0, 1), makes="bool"),
    "logical_or": _pointwise("true where a or b is true", 2, masks=(0, 1), makes="bool"),
    "arange": Kind(
        "whole numbers from `start` to before `stop`, in type `dtype`", rules.counted,
        rules.axes("-> n"), (0,), ("start", "stop", "dtype"),
    ),
    "layernorm": Kind(
        "rows normalised to mean 0 and variance 1; `value` (default 1e-5) is added to variances",
        rules.rows, _OF_ROWS, options=("value",),
    ),
    "softmax": Kind("the softmax of rows", rules.rows, _OF_ROWS),
    "log_softmax": Kind("the logarithm of the softmax of rows", rules.rows, _OF_ROWS),
    "layernorm_grad": Kind(
        "the gradient of `layernorm` with respect to its input b, from the gradient a of its result",
        rules.two_rows, _OF_TWO_ROWS, (2,), ("value",), linear=("pr",),
    ),
    "softmax_grad": Kind(
        "the gradient of `softmax` with respect to its input, from the gradient a of its result b",
        rules.two_rows, _OF_TWO_ROWS, (2,), linear=("pr",),
    ),
    "log_softmax_grad": Kind(
        "the gradient of `log_softmax` with respect to its input, from the gradient a of its result b",
        rules.two_rows, _OF_TWO_ROWS, (2,), linear=("pr",),
    ),
    "transpose": Kind(
        "x with its axes in the order `axes` (default: the last two swapped)", rules.permuted,
        rules.of_transpose, options=("axes",), linear=("p",), ids=None
    ),
    "reshape": Kind(
        "the elements of x in the shape `shape`", rules.reshaped, rules.of_reshape, options=("shape",),
        linear=("p",), ids=None,
    ),
    "narrow": Kind(
        "the elements of x from `start` to before `stop` along `axis`", rules.narrowed, rules.but_axis,
        options=("AXIS", "start", "stop"), linear=("p",), ids=None,
    ),
    "pad": Kind(
        "x padded with zeros along `axis` to length `stop`; x begins at `start`", rules.padded,
        rules.but_axis, options=("AXIS", "start", "stop"), linear=("p",),
    ),
    "repeat": Kind(
        "x with each element repeated `stop` times along `axis`", rules.repeated, rules.axes("... -> ..."),
        options=("AXIS", "stop"), linear=("p",), ids=None,
    ),
    "concat": Kind(
        "the operands concatenated along `axis`", rules.joined, rules.but_axis, tuple(range(1, 64)),
        ("AXIS",), linear=("p+",), ids=None,
    ),
    "sum": Kind("the sum of x over `axis`", rules.summed, rules.of_sum, options=("AXIS",), linear=("p",)),
    "norm": Kind("the root of the sum of the squares of all elements", rules.scalar, rules.all_whole),
    "sum_of_squares": Kind("the sum of the squares of all elements", rules.scalar, rules.axes("... ->")),
    "embedding": Kind(
        "the row of table a for each id in b; zeros for ids outside the table", rules.looked_up,
        rules.axes("r e, ... -> ... e"), (2,), linear=("pr",), ids=(1,),
    ),
    "embedding_grad": Kind(
        "the gradient of `embedding` with respect to its table of `stop` rows, from the gradient a of its "
        "result and the ids b", rules.table_grad, rules.axes("... e, ... -> r e"), (2,), ("stop",),
        linear=("pr",), ids=(1,),
    ),
    "pick": Kind(
        "the element of each row of a at the id in b; 0 for ids outside the row", rules.picked,
        rules.axes("... r, ... -> ..."), (2,), linear=("pr",), ids=(1,),
    ),
    "one_hot": Kind(
        "a row of `stop` elements for each id: 1 at the id, else 0", rules.one_hot,
        rules.axes("... -> ... r"), options=("stop", "dtype"), ids=(0,),
    ),
    "attention": Kind(
        "softmax(`value` q kᵀ + mask) v; `value` is 1/√d by default; the mask is optional, and a `bool` mask "
        "is true for the keys to read; if `causal`, a query reads only keys up to its own position",
        rules.attended, rules.axes("... r ., ... . ., ... . e, (... r .) -> ... r e"), (3, 4),
        ("causal", "value"), linear=("rrp", "rrpr"), masks=(3,), work=rules.attention_flops(2.0, 0),
    ),
    **_attention_grads(),
    "aten": Kind(
        "the result of PyTorch's operator `call` (result number `item`, if it has several) with `arguments`, "
        "of shape `shape` and type `dtype`; `labels` tells which axes match", aten.shape_of, aten.labels_of,
        tuple(range(64)), ("CALL", "ARGUMENTS", "labels", "item", "shape", "dtype"),
        ids=None, mixed=True,
    ),
}  # fmt: skip

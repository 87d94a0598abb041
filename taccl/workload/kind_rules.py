"""Rules for each kind of operation: shape of the result, axis labels of operands, floating-point operations.

A shape function returns the shape of the result from the operation and the shapes of its operands. It raises
`WorkloadError` if the shapes do not fit. A label function, mostly named ``of_…``, returns a label for each
axis of each operand, from the same arguments and the result's shape. `taccl.workload.kinds` defines labels.
`axes` makes a label function from names of axes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from taccl.errors import WorkloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taccl.workload.operations import Operation

    Shape = tuple[int, ...]
    Labels = list[list[int | None]]

#: Labels from this one to -1 are those of axes that are summed over; axes with lower labels are read whole.
LEAST_SUMMED = -63


def refused(operation: Operation, said: str) -> WorkloadError:
    """Error for an invalid operation, with its name and kind; `said` completes the sentence."""
    return WorkloadError(f"{operation.kind} {said}", where=operation.name)


def permutation(operation: Operation, count: int) -> tuple[int, ...]:
    """Order of a transpose of `count` axes: the operand's axis for each axis of the result."""
    return operation.axes or (*range(count - 2), count - 1, count - 2)


def groups_of_axes(before: Shape, after: Shape) -> list[tuple[range, range]]:
    """Pairs of ranges of axes that a reshape maps to each other: (axes before, axes after), in order.

    Both ranges of a pair have equally many elements. In each range, the first axis longer than 1 is the outer
    axis: each of its indices selects a block of elements along the later axes.
    """
    found, i, j = [], 0, 0
    while i < len(before) or j < len(after):
        since, to, one, two = i, j, 1, 1
        if i < len(before):
            one, i = before[i], i + 1
        if j < len(after):
            two, j = after[j], j + 1
        while one != two:
            if one < two:
                one, i = one * before[i], i + 1
            else:
                two, j = two * after[j], j + 1
        found.append((range(since, i), range(to, j)))
    return found


# Shape functions, which return the shape of a result.


def broadcast(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Shape of a point-wise operation's result, by NumPy's broadcasting."""
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        told = " and ".join(map(str, shapes))
        raise refused(operation, f"found shapes {told}, which do not broadcast; make them equal") from None


def rows(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Shape of the result of an operation on each row (last axis), such as softmax: that of its operand."""
    if not shapes[0]:
        raise refused(operation, "needs an axis; found a scalar")
    return shapes[0]


def two_rows(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Shape of the result of an operation on the rows of two tensors of equal shape."""
    if shapes[0] != shapes[1]:
        raise refused(operation, f"found shapes {shapes[0]} and {shapes[1]}; make them equal")
    return rows(operation, shapes)


def scalar(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Shape of a scalar, which has no axes."""
    return ()


def reshaped(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Shape of a reshape's result, which the operation states."""
    if math.prod(shapes[0]) != math.prod(operation.shape):
        found = f"{math.prod(shapes[0])} elements of shape {shapes[0]}"
        said = f"found {found}, and {math.prod(operation.shape)} for shape {operation.shape}"
        raise refused(operation, f"{said}; make their numbers equal")
    return operation.shape


def summed(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Shape of a sum over an axis: the operand's without that axis."""
    axis = axis_of(operation, shapes[0])
    return (*shapes[0][:axis], *shapes[0][axis + 1 :])


def axis_of(operation: Operation, shape: Shape) -> int:
    """Option `axis` of an operation, 0 by default; raises `WorkloadError` if its operand has no such axis."""
    axis = operation.axis or 0
    if axis >= len(shape):
        raise refused(operation, f"found axis {axis} of shape {shape}; name an axis that it has")
    return axis


def permuted(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Shape of a transpose's result."""
    order = permutation(operation, len(shapes[0]))
    if sorted(order) != [*range(len(shapes[0]))]:
        raise refused(operation, f"found axes {order} for {shapes[0]}; name each of its axes once")
    return tuple(shapes[0][axis] for axis in order)


def product(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Shape of a product of (batches of) matrices."""
    a, b = shapes
    if len(a) >= 2 and len(b) >= 2 and a[-1] == b[-2] and (len(b) == 2 or a[:-2] == b[:-2]):
        return (*a[:-1], b[-1])
    said = f"found shapes {a} and {b}; expected (..., m, k) and (k, n), or (..., m, k) and (..., k, n)"
    raise refused(operation, said)


def narrowed(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Shape of the part of a tensor from `start` to `stop` along an axis."""
    axis = axis_of(operation, shapes[0])
    length = shapes[0][axis]
    if not 0 <= operation.start < operation.stop <= length:
        said = f"found range {operation.start} to {operation.stop} of axis {axis}, which has length {length}"
        raise refused(operation, f"{said}; expected a range within the axis")
    return (*shapes[0][:axis], operation.stop - operation.start, *shapes[0][axis + 1 :])


def padded(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Shape of the operand padded with zeros along an axis to the length `stop`."""
    axis = axis_of(operation, shapes[0])
    if operation.start + shapes[0][axis] > operation.stop:
        last = operation.start + shapes[0][axis]
        said = f"found stop {operation.stop}, but the operand ends at {last} along axis {axis}"
        raise refused(operation, f"{said}; make stop {last} or more")
    return (*shapes[0][:axis], operation.stop, *shapes[0][axis + 1 :])


def counted(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Shape of a range of integers: one axis, as long as the range."""
    return (operation.stop - operation.start,)


def repeated(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Shape of a repeated tensor: that of the operand, with an axis `stop` times as long."""
    axis = axis_of(operation, shapes[0])
    return (*shapes[0][:axis], shapes[0][axis] * operation.stop, *shapes[0][axis + 1 :])


def joined(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Shape of tensors concatenated along an axis."""
    axis = axis_of(operation, shapes[0])
    if len({(*each[:axis], *each[axis + 1 :]) for each in shapes}) > 1:
        told = " and ".join(map(str, shapes))
        raise refused(operation, f"found shapes {told}; they may differ along axis {axis} only")
    return (*shapes[0][:axis], sum(each[axis] for each in shapes), *shapes[0][axis + 1 :])


def looked_up(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Shape of an embedding lookup: a row of the table for each id."""
    table, ids = shapes
    if len(table) != 2:
        raise refused(operation, f"found a table of shape {table}; expected 2 axes")
    return (*ids, table[1])


def table_grad(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Shape of the gradient of an embedding table: `stop` rows, as wide as the rows that were looked up."""
    grad, ids = shapes
    if grad[:-1] != ids or not grad:
        said = f"found a gradient of shape {grad} and ids of shape {ids}; expected a row per id"
        raise refused(operation, said)
    return (operation.stop, grad[-1])


def picked(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Shape of a pick of one element per row, at the index that the second operand gives."""
    if shapes[0][:-1] != shapes[1] or not shapes[0]:
        said = f"found rows of shape {shapes[0]} and ids of shape {shapes[1]}; expected an id per row"
        raise refused(operation, said)
    return shapes[1]


def one_hot(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Shape of one-hot rows: for each id, a row of `stop` elements."""
    return (*shapes[0], operation.stop)


def attended(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Shape of attention's result."""
    query, key, value = shapes[:3]
    fits = min(map(len, shapes[:3])) >= 2 and query[:-2] == key[:-2] == value[:-2]
    if not fits or query[-1] != key[-1] or key[-2] != value[-2]:
        said = f"found shapes {query}, {key} and {value}; expected (..., m, d), (..., n, d) and (..., n, e)"
        raise refused(operation, said)
    weights = (*query[:-1], key[-2])
    for mask in shapes[3:]:
        pairs = zip(mask[::-1], weights[::-1], strict=False)
        if len(mask) > len(weights) or any(n not in (1, whole) for n, whole in pairs):
            raise refused(operation, f"found a mask of shape {mask}; expected one that fits {weights}")
    return (*query[:-1], value[-1])


def attention_grad(at: int) -> Callable[[Operation, Sequence[Shape]], Shape]:
    """Shape function for the gradient of attention with respect to `at` (0 query, 1 key, 2 value).

    The operands are the gradient of attention's result, then query, key and value, then an optional mask.
    """

    def shape(operation: Operation, shapes: Sequence[Shape]) -> Shape:
        grad, query, key, value = shapes[:4]
        if grad != (result := attended(operation, shapes[1:])):
            said = f"found a gradient of shape {grad}; expected {result}, the shape of attention's result"
            raise refused(operation, said)
        return (query, key, value)[at]

    return shape


# Label functions, which return the labels of the axes of each operand.


def labels_by_name(read: Sequence[Sequence[str]], made: Sequence[str]) -> Labels:
    """Labels of the operands' axes, from names of axes in the notation of `taccl.workload.aten`.

    - `read`, `made`: Names of the axes of each operand, and of the result.
    """
    found, summed, whole = list[list[int | None]](), dict[str, int](), LEAST_SUMMED
    for names in read:
        labels = list[int | None]()
        for name in names:
            if name == ".":
                whole -= 1
                labels.append(whole)
            elif name == "1":
                labels.append(None)
            elif name in made:
                labels.append([*made].index(name))
            else:
                labels.append(summed.setdefault(name, -1 - len(summed)))
        found.append(labels)
    return found


def axes(notation: str) -> Callable[[Operation, Sequence[Shape], Shape], Labels]:
    """Label function from the names of all axes, such as ``"... m k, ... k n -> ... m n"``.

    Names are as in `taccl.workload.aten`: an axis whose name the result lacks is summed over, and ``.`` is an
    axis that is read whole. ``...`` stands for any number of leading axes. An operand with fewer axes has the
    last ones. An operand in parentheses is broadcast along its axes of length 1.
    """
    read, _, made = notation.partition("->")
    operands = [(each.strip(" ()").split(), "(" in each) for each in read.split(",")]

    def labels(operation: Operation, shapes: Sequence[Shape], out: Shape) -> Labels:
        pairs = [(*each, shape) for each, shape in zip(operands, shapes, strict=False)]
        count = next((1 + len(shape) - len(names) for names, _, shape in pairs if "..." in names), 0)
        lead = [f"lead{axis}" for axis in range(count)]

        def named(names: list[str], length: int) -> list[str]:
            every = [*lead, *names[1:]] if "..." in names else names
            return every[len(every) - length :]

        found = [
            [
                "1" if n == 1 and is_spread else name
                for name, n in zip(named(names, len(shape)), shape, strict=True)
            ]
            for names, is_spread, shape in pairs
        ]
        return labels_by_name(found, named(made.split(), len(out)))

    return labels


def same_axes(operation: Operation, shapes: Sequence[Shape], out: Shape) -> Labels:
    """Axis labels of point-wise operands, aligned with the result's last axes; None for a broadcast axis."""
    return [
        [
            axis + len(out) - len(each) if n == out[axis + len(out) - len(each)] else None
            for axis, n in enumerate(each)
        ]
        for each in shapes
    ]


def all_whole(operation: Operation, shapes: Sequence[Shape], out: Shape) -> Labels:
    """Axis labels of an operand that is read whole, along all of its axes."""
    return labels_by_name([len(shapes[0]) * "."], [])


def of_transpose(operation: Operation, shapes: Sequence[Shape], out: Shape) -> Labels:
    """Axis labels of a transpose's operand: for each axis, the axis of the result that it becomes."""
    order = permutation(operation, len(out))
    return [[order.index(axis) for axis in range(len(out))]]


def of_sum(operation: Operation, shapes: Sequence[Shape], out: Shape) -> Labels:
    """Axis labels of a sum's operand: -1 for the summed axis; all other axes match the result's."""
    at = operation.axis or 0
    return [[-1 if axis == at else axis - (axis > at) for axis in range(len(shapes[0]))]]


def of_reshape(operation: Operation, shapes: Sequence[Shape], out: Shape) -> Labels:
    """Axis labels of a reshape: in each group of axes, the outer axes match if one length divides the other.

    Each index of the shorter one then corresponds to a block of indices of the longer one. Other axes are
    read whole.
    """
    whole = LEAST_SUMMED - 1
    labels: list[int | None] = [whole] * len(shapes[0])
    for before, after in groups_of_axes(shapes[0], out):
        first = next((axis for axis in before if shapes[0][axis] > 1), None)
        to = next((axis for axis in after if out[axis] > 1), None)
        if first is not None and to is not None:
            one, two = shapes[0][first], out[to]
            labels[first] = to if one % two == 0 or two % one == 0 else whole
    return [labels]


def but_axis(operation: Operation, shapes: Sequence[Shape], out: Shape) -> Labels:
    """Axis labels of operands: the operation's `axis` is read whole; other axes match the result's."""
    at = operation.axis or 0
    return [
        [LEAST_SUMMED - 1 - place if axis == at else axis for axis in range(len(each))]
        for place, each in enumerate(shapes)
    ]


# Functions that count floating-point operations.


def product_flops(operation: Operation, out: Shape, read: Sequence[Shape]) -> float:
    """Floating-point operations of a matrix product: a multiplication and an addition per term."""
    return 2.0 * math.prod(out) * read[0][-1]


def attention_flops(products: float, grad: int) -> Callable[[Operation, Shape, Sequence[Shape]], float]:
    """Function that counts the floating-point operations of attention, half as many if it is causal.

    - `products`: Number of matrix products that are counted.
    - `grad`: Position of the query among the operands: 0 for attention, 1 for its gradients.
    """

    def work(operation: Operation, out: Shape, read: Sequence[Shape]) -> float:
        query, value = read[grad], read[grad + 2]
        width = (query[-1] + value[-1]) / 2
        share = 0.5 if operation.causal else 1.0
        return 2.0 * products * math.prod(query[:-1]) * value[-2] * width * share

    return work

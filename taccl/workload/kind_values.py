"""Compute the results of operations on NumPy arrays, by kind of operation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl.workload import aten
from taccl.workload.kind_rules import permutation
from taccl.workload.kinds import TABLE
from taccl.workload.operations import Operation

Array = NDArray[Any]
Places = Sequence[NDArray[np.int64]]

#: Default epsilon of `layernorm`, which is added to variances.
EPSILON = 1e-5
_erf = np.vectorize(math.erf, otypes=[float])


def value_of(
    operation: Operation,
    read: Sequence[Array],
    places: Sequence[Places],
    shape: tuple[int, ...],
    drawn: Callable[[], Array],
) -> Any:
    """Compute the part of an operation's result that follows from the given parts of its operands.

    Along axes of the result that no operand has, the whole axis is computed.

    - `read`: The given part of each operand.
    - `places`: Indices of each given part in the operand's whole array, by axis.
    - `shape`: Shape of the computed part.
    - `drawn`: Function that returns random numbers in [0, 1), one per element of the computed part.
    """
    kind, value = operation.kind, operation.value
    if kind == "aten":
        return aten.value_of(operation, read)
    if kind in _BY_PLACE:
        return _BY_PLACE[kind](operation, read, places)
    if kind in _BY_VALUE:
        return _BY_VALUE[kind](read, 0.0 if value is None else value)
    if kind == "reshape":
        return read[0].reshape(shape)
    if kind == "layernorm":
        return _normed(read[0], EPSILON if value is None else value)
    if kind == "layernorm_grad":
        return _normed_grad(read[0], read[1], EPSILON if value is None else value)
    if kind == "dropout":
        share = value or 0.0
        return np.where(drawn() >= share, read[0] / (1 - share), 0)
    if kind in _BY_OPTIONS:
        return _BY_OPTIONS[kind](operation, read)
    # A comparison with one operand compares it with `value`, which NumPy converts to the operand's type.
    more = [value] if TABLE[kind].makes and value is not None and len(read) == 1 else []
    return getattr(np, kind)(*read, *more)  # kinds named like the NumPy function: tanh, exp, add, less


def _normed(rows: Array, epsilon: float) -> Any:
    return (rows - rows.mean(axis=-1, keepdims=True)) / np.sqrt(rows.var(axis=-1, keepdims=True) + epsilon)


def _normed_grad(grad: Array, rows: Array, epsilon: float) -> Any:
    normed = _normed(rows, epsilon)
    along = (grad * normed).mean(axis=-1, keepdims=True)
    spread = np.sqrt(rows.var(axis=-1, keepdims=True) + epsilon)
    return (grad - grad.mean(axis=-1, keepdims=True) - normed * along) / spread


def _padded(operation: Operation, read: Sequence[Array]) -> Any:
    before, axis = operation.start, operation.axis or 0
    after = operation.stop - before - read[0].shape[axis]
    return np.pad(read[0], [(before, after) if each == axis else (0, 0) for each in range(read[0].ndim)])


def _log_softmax(rows: Array) -> Any:
    below = rows - rows.max(axis=-1, keepdims=True)
    return below - np.log(np.exp(below).sum(axis=-1, keepdims=True))


def _softmax(rows: Array) -> Any:
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _rows_of(ids: Array, held: Array) -> tuple[Array, Array]:
    """(index of each id in the sorted array `held`, mask of the ids that `held` contains)."""
    at = np.minimum(np.searchsorted(held, ids), len(held) - 1)
    return at, held[at] == ids


def _looked_up(operation: Operation, read: Sequence[Array], places: Sequence[Places]) -> Any:
    table, ids = read
    at, there = _rows_of(ids, places[0][0])
    return np.where(there[..., None], table[at], 0)


def _table_grad(operation: Operation, read: Sequence[Array], places: Sequence[Places]) -> Any:
    grad, ids = read
    total = np.zeros((operation.stop, grad.shape[-1]), dtype=np.result_type(grad, np.float64))
    there = (ids >= 0) & (ids < operation.stop)
    np.add.at(total, ids[there], grad[there])
    return total


def _picked(operation: Operation, read: Sequence[Array], places: Sequence[Places]) -> Any:
    rows, ids = read
    at, there = _rows_of(ids, places[0][-1])
    return np.where(there, np.take_along_axis(rows, at[..., None], axis=-1)[..., 0], 0)


def _weights(operation: Operation, query: Array, key: Array, masks: Sequence[Array], rows: Array) -> Any:
    """Attention weights: softmax over keys of the scaled, masked products of queries and keys.

    - `rows`: Positions of the queries, which a causal mask compares with those of the keys.
    """
    found = query @ np.swapaxes(key, -1, -2) * attention_scale(operation, query.shape[-1])
    for mask in masks:
        found = np.where(mask, found, -np.inf) if mask.dtype == bool else found + mask
    if operation.causal:
        found = np.where(np.arange(key.shape[-2]) <= rows[:, None], found, -np.inf)
    hidden = np.isneginf(found).all(axis=-1, keepdims=True)  # PyTorch gives 0 to queries that read no key
    return np.where(hidden, 0, _softmax(np.where(hidden, 0, found)))


def attention_scale(operation: Operation, width: int) -> float:
    """Scale of the products of queries and keys; 1/√width by default."""
    return 1 / math.sqrt(width) if operation.value is None else operation.value


def _attended(operation: Operation, read: Sequence[Array], places: Sequence[Places]) -> Any:
    query, key, value, *masks = read
    return _weights(operation, query, key, masks, places[0][-2]) @ value


def _attention_grad(operation: Operation, read: Sequence[Array], places: Sequence[Places]) -> Any:
    grad, query, key, value, *masks = read
    weights = _weights(operation, query, key, masks, places[1][-2])
    if operation.kind == "attention_grad_value":
        return np.swapaxes(weights, -1, -2) @ grad
    by_weight = grad @ np.swapaxes(value, -1, -2)
    by_product = weights * (by_weight - (by_weight * weights).sum(axis=-1, keepdims=True))
    by_product = by_product * attention_scale(operation, query.shape[-1])
    if operation.kind == "attention_grad_query":
        return by_product @ key
    return np.swapaxes(by_product, -1, -2) @ query


_BY_PLACE: dict[str, Callable[[Operation, Sequence[Array], Sequence[Places]], Any]] = {
    "embedding": _looked_up, "embedding_grad": _table_grad, "pick": _picked, "attention": _attended,
    **{f"attention_grad_{name}": _attention_grad for name in ("query", "key", "value")},
}  # fmt: skip
#: {kind: function of the operands and the option `value`}.
_BY_VALUE: dict[str, Callable[[Sequence[Array], float], Any]] = {
    "cast": lambda read, v: read[0],
    "relu": lambda read, v: np.maximum(read[0], 0),
    "gelu": lambda read, v: (
        read[0] / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (read[0] + 0.044715 * read[0] ** 3)))
    ),
    "sigmoid": lambda read, v: 1 / (1 + np.exp(-read[0])),
    "erf": lambda read, v: _erf(read[0]),
    "scale": lambda read, v: read[0] * v,
    "offset": lambda read, v: read[0] + v,
    "relu_grad": lambda read, v: np.where(read[1] > 0, read[0], 0),
    "masked_fill": lambda read, v: np.where(read[1], v, read[0]),
    "expand": lambda read, v: np.broadcast_to(read[0], np.broadcast_shapes(read[0].shape, read[1].shape)),
    "softmax": lambda read, v: _softmax(read[0]),
    "log_softmax": lambda read, v: _log_softmax(read[0]),
    "softmax_grad": lambda read, v: read[1] * (read[0] - (read[0] * read[1]).sum(axis=-1, keepdims=True)),
    "log_softmax_grad": lambda read, v: read[0] - np.exp(read[1]) * read[0].sum(axis=-1, keepdims=True),
    "norm": lambda read, v: np.sqrt(np.sum(np.square(read[0]))),
    "sum_of_squares": lambda read, v: np.sum(np.square(read[0])),
    "power": lambda read, v: np.power(read[0], v),
}
_BY_OPTIONS: dict[str, Callable[[Operation, Sequence[Array]], Any]] = {
    "transpose": lambda operation, read: np.transpose(read[0], permutation(operation, read[0].ndim)),
    "sum": lambda operation, read: np.sum(read[0], axis=operation.axis),
    "narrow": lambda operation, read: np.take(
        read[0], np.arange(operation.start, operation.stop), axis=operation.axis
    ),
    "pad": _padded,
    "concat": lambda operation, read: np.concatenate(read, axis=operation.axis or 0),
    "repeat": lambda operation, read: np.repeat(read[0], operation.stop, axis=operation.axis),
    "arange": lambda operation, read: np.arange(operation.start, operation.stop),
    "one_hot": lambda operation, read: np.arange(operation.stop) == read[0][..., None],
}

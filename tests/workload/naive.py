"""Reference interpreter: steps on plain arrays, rank by rank, without layouts.

Behaviour follows from the shapes of the arrays. Illegal transformations are also executed, to show their
effect.
"""

from __future__ import annotations

import numpy as np


def sliced_like(array, shape, rank, ranks):
    """The rank's slice of an array along each axis that is `ranks` times longer than in `shape`."""
    for axis, length in enumerate(shape):
        if array.shape[axis] == length * ranks and ranks > 1:
            array = np.split(array, ranks, axis=axis)[rank]
    return array


def met(a, b, rank, ranks):
    """Operands of an element-wise operation; if only one is sliced along an axis, the other is sliced as well."""
    for axis in range(1, min(a.ndim, b.ndim) + 1):
        for one, two in ((a, b), (b, a)):
            if one.shape[-axis] == ranks * two.shape[-axis] and two.shape[-axis] > 1:
                cut = np.split(one, ranks, axis=one.ndim - axis)[rank]
                a, b = (cut, b) if one is a else (a, cut)
    return a, b


def one_rank(operation, read, rank, ranks, whole):
    """Result at one rank of an operation without communication; `whole` is the result's full shape."""
    kind, value = operation.kind, operation.value
    a = read[0] if read else None
    if len(read) == 2 and kind != "matmul":
        a, b = met(*read, rank, ranks)
        if kind == "relu_grad":
            return a * (b > 0)
        return getattr(np, kind)(a, b)
    if kind == "matmul":
        b = read[1]
        if a.shape[-1] > b.shape[-2]:
            a = np.split(a, a.shape[-1] // b.shape[-2], axis=-1)[rank]
        elif a.shape[-1] < b.shape[-2]:
            b = np.split(b, b.shape[-2] // a.shape[-1], axis=-2)[rank]
        return a @ b
    if kind == "layernorm":
        return (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5)
    if kind == "softmax":
        return np.exp(a) / np.exp(a).sum(-1, keepdims=True)
    if kind == "dropout":
        kept = np.random.default_rng(operation.seed).random(whole) >= value
        return np.where(sliced_like(kept, a.shape, rank, ranks), a / (1 - value), 0)
    return {
        "transpose": lambda: a.swapaxes(-1, -2),
        "cast": lambda: a.astype(operation.dtype),
        "relu": lambda: a * (a > 0),
        "tanh": lambda: np.tanh(a),
        "sum": lambda: a.sum(operation.axis),
        "gelu": lambda: 0.5 * a * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3))),
        "square": lambda: a * a,
        "sqrt": lambda: np.sqrt(a),
        "scale": lambda: value * a,
        "offset": lambda: value + a,
        "norm": lambda: np.sqrt((a * a).sum()),
        "sum_of_squares": lambda: (a * a).sum(),
    }[kind]()


def exchange(operation, arrays, ranks, whole):
    """Arrays at every rank after a collective."""
    kind = operation.kind
    if kind in ("allreduce", "reduce_scatter"):
        total = sum(arrays)
        if kind == "allreduce":
            return [total] * ranks
        return np.split(total, ranks, axis=operation.axis)
    if kind == "send":
        return [arrays[(rank - operation.shift) % ranks] for rank in range(ranks)]
    axis = next((i for i, n in enumerate(arrays[0].shape) if n * ranks == whole[i] and ranks > 1), 0)
    total = np.concatenate(arrays, axis=axis) if ranks > 1 else arrays[0]
    return [total] * ranks if kind == "allgather" else np.split(total, ranks, axis=operation.axis)


def run(operations, shapes, inputs, ranks):
    """{tensor: array at every rank}."""
    held = dict(inputs)
    for operation in operations:
        whole = shapes[operation.name]
        if operation.is_collective:
            held[operation.name] = exchange(operation, held[operation.inputs[0]], ranks, whole)
        else:
            held[operation.name] = [
                one_rank(operation, [held[name][rank] for name in operation.inputs], rank, ranks, whole)
                for rank in range(ranks)
            ]
    return held

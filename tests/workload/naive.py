"""Reference interpreter of steps: runs them on plain arrays, rank by rank, without layouts.

Whether an array is a slice follows from its shape. Steps after illegal transformations are also executed, to
compare their values.
"""

from __future__ import annotations

import numpy as np


def sliced_like(array, shape, rank, ranks):
    """The rank's slice of an array, along each axis that is `ranks` times longer than in `shape`."""
    for axis, length in enumerate(shape):
        if array.shape[axis] == length * ranks and ranks > 1:
            array = np.split(array, ranks, axis=axis)[rank]
    return array


def met(a, b, rank, ranks):
    """Operands `a` and `b` of an element-wise operation; if only one is a slice along an axis, the other is
    sliced, too."""
    for axis in range(1, min(a.ndim, b.ndim) + 1):
        for one, two in ((a, b), (b, a)):
            if one.shape[-axis] == ranks * two.shape[-axis] and two.shape[-axis] > 1:
                cut = np.split(one, ranks, axis=one.ndim - axis)[rank]
                a, b = (cut, b) if one is a else (a, cut)
    return a, b


def viewed(a, before, after, ranks):
    """A rank's array `a`, whole or a slice, after the whole array is reshaped from shape `before` to `after`.

    A slice along one axis becomes a slice along the new axis whose preceding axes have equally many elements.
    """
    if a.size == np.prod(after):
        return a.reshape(after)
    at = next((i for i, n in enumerate(before) if a.shape[i] < n), None)
    if at is None:
        raise ValueError(f"{a.shape} is no slice of {before}")
    to = [j for j in range(len(after)) if np.prod(after[:j]) == np.prod(before[:at])]
    shape = list(after)
    shape[max(to, default=0)] //= ranks
    return a.reshape(shape)


def by_id(operation, read, rank, whole, wholes):
    """Result of an embedding, an embedding's gradient or a pick, for a rank with a slice of the table or of
    the ids."""
    a, ids = read
    if operation.kind == "embedding":
        first = rank * len(a) if len(a) < wholes[0][0] else 0
        rows = np.where((ids >= first) & (ids < first + len(a)), ids - first, -1)
        return np.vstack([a, np.zeros((1, a.shape[1]))])[rows]
    if len(a) != len(ids):  # both have slices of the same rows
        count = min(len(a), len(ids))
        a, ids = (each[rank * count :][:count] if len(each) > count else each for each in (a, ids))
    if operation.kind == "pick":
        first = rank * a.shape[1] if a.shape[1] < wholes[0][1] else 0
        inside = (ids >= first) & (ids < first + a.shape[1])
        return np.where(inside, a[np.arange(len(a)), np.where(inside, ids - first, 0)], 0)
    table = np.zeros((operation.stop, a.shape[1]))
    for row, place in zip(a, ids, strict=True):
        table[place] += row
    return table


def attended(operation, read, rank, whole):
    """Attention, computed for one query after the other."""
    query, key, value = read
    first, rows = (rank * len(query) if len(query) < whole[0] else 0), []
    for place, row in enumerate(query):
        seen = len(key) if not operation.causal else min(first + place + 1, len(key))
        products = key[:seen] @ row / np.sqrt(query.shape[1])
        weights = np.exp(products - products.max())
        rows.append(weights @ value[:seen] / weights.sum())
    return np.array(rows)


def one_rank(operation, read, rank, ranks, whole, wholes):
    """Result at one rank of an operation without communication.

    `whole` and `wholes` are the full shapes of the result and of the operands.
    """
    kind, value = operation.kind, operation.value
    a = read[0] if read else None
    if kind in ("embedding", "pick", "embedding_grad"):
        return by_id(operation, read, rank, whole, wholes)
    if kind == "attention":
        return attended(operation, read, rank, whole)
    if kind == "where":
        mask, one = met(read[0], read[1], rank, ranks)
        one, two = met(one, read[2], rank, ranks)
        mask, two = met(mask, two, rank, ranks)
        mask, one = met(mask, one, rank, ranks)
        return np.where(mask, one, two)
    if len(read) == 2 and kind == "concat":
        other = 1 - operation.axis
        short = min(each.shape[other] for each in read)
        cut = [
            np.split(each, each.shape[other] // short, axis=other)[rank if each.shape[other] > short else 0]
            for each in read
        ]
        return np.concatenate(cut, axis=operation.axis)
    if len(read) == 2 and kind != "matmul":
        a, b = met(*read, rank, ranks)
        if kind == "relu_grad":
            return a * (b > 0)
        if kind == "masked_fill":
            return np.where(b, value, a)
        if kind == "softmax_grad":
            return b * (a - (a * b).sum(-1, keepdims=True))
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
    if kind in ("less", "greater_equal"):
        return getattr(np, kind)(a, value)
    return {
        "reshape": lambda: viewed(a, wholes[0], whole, ranks),
        "narrow": lambda: a.take(range(operation.start, operation.stop), operation.axis),
        "repeat": lambda: a.repeat(operation.stop, operation.axis),
        "one_hot": lambda: 1.0 * (a[:, None] == np.arange(operation.stop)),
        "log_softmax": lambda: (
            a - a.max(-1, keepdims=True) - np.log(np.exp(a - a.max(-1, keepdims=True)).sum(-1, keepdims=True))
        ),
        "sigmoid": lambda: 1 / (1 + np.exp(-a)),
        "logical_not": lambda: ~a,
        **{name: lambda name=name: getattr(np, name)(a) for name in ("cos", "abs")},
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
                one_rank(
                    operation,
                    [held[name][rank] for name in operation.inputs],
                    rank,
                    ranks,
                    whole,
                    [shapes[name] for name in operation.inputs],
                )  # fmt: skip
                for rank in range(ranks)
            ]
    return held

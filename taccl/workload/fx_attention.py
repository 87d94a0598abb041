"""Convert attention and its gradients in PyTorch graphs, for all of PyTorch's attention kernels."""

from __future__ import annotations

from typing import Any

from taccl.workload.fx_graph import Graph
from taccl.workload.fx_values import Arguments, Deferred, Named, Reader, View

#: {argument of PyTorch's attention that the operation `attention` lacks: its only accepted value}.
_PLAIN = {"dropout_p": 0, "return_debug_mask": False, "dropout_mask": None}
_OPERANDS = ("query", "key", "value")


def _options(graph: Graph, given: Arguments) -> tuple[list[Any], dict[str, Any]]:
    """Masks (at most one) and options of an `attention` operation, from the arguments of PyTorch's call."""
    for name, value in _PLAIN.items():
        if given.get(name, value) != value:
            said = f"{graph.node.target} has {name}={given[name]!r}"
            raise graph.unread(f"{said}; only {value!r} is supported")
    masks = [given[name] for name in ("attn_mask", "attn_bias") if given.get(name) is not None]
    return masks, {"causal": bool(given["is_causal"]), "value": given.get("scale")}


def _heads(graph: Graph, given: Arguments) -> tuple[int, int, int]:
    """(query heads per key head, query heads per value head, axis of heads)."""
    query, key, value = (graph.local_shape(given[name]) for name in _OPERANDS)
    may_differ = given.get("enable_gqa", True)  # calls of PyTorch's attention kernels lack this argument
    if not may_differ or min(map(len, (query, key, value))) < 3:
        return 1, 1, 0
    for name, each in (("keys", key), ("values", value)):
        if query[-3] % each[-3]:
            said = f"{graph.node.target} has {query[-3]} heads of queries, and {each[-3]} of {name}"
            raise graph.unread(f"{said}; expected a number that divides the former")
    return query[-3] // key[-3], query[-3] // value[-3], len(query) - 3


def _attention(graph: Graph, given: Arguments) -> Any:
    masks, options = _options(graph, given)
    times, operands = _heads(graph, given), [given[name] for name in _OPERANDS]
    for place, count in enumerate(times[:2], start=1):
        if count > 1:
            operands[place] = graph.make("repeat", operands[place], axis=times[2], stop=count)
    return graph.make("attention", *operands, *masks, **options)


def _attention_grad(graph: Graph, given: Arguments) -> Any:
    """Convert a node that returns the gradients of attention with respect to queries, keys and values."""
    masks, options = _options(graph, given)
    grad = given.get("grad_out", given.get("grad_out_"))
    operands, (*shares, axis) = [given[name] for name in _OPERANDS], _heads(graph, given)
    times = [1, *shares]

    def by(name: str, count: int) -> Any:
        whole = [
            each if n == 1 else graph.make("repeat", each, axis=axis, stop=n)
            for each, n in zip(operands, times, strict=True)
        ]
        found = graph.make(f"attention_grad_{name}", grad, *whole, *masks, **options)
        if count == 1:
            return found
        shape = graph.local_shape(found)
        apart = View(found.name, (*shape[:axis], shape[axis] // count, count, *shape[axis + 1 :]))
        return graph.make("sum", Named(graph.name_of(apart)), axis=axis + 1)

    made = (lambda name=name, n=n: by(name, n) for name, n in zip(_OPERANDS, times, strict=True))
    return [*graph.lazily(*made), Deferred("the gradient of attention by its mask", None)]


#: Names of attention kernels in PyTorch, after the prefix ``aten._scaled_dot_product_``.
_KERNELS = (
    "flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention", "attention_math",
)  # fmt: skip
#: {operator in an FX graph, without its overload: function that converts the node}.
ATTENTION_READERS: dict[str, Reader] = {
    "aten.scaled_dot_product_attention": _attention,
    **{
        f"aten._scaled_dot_product_{name}": lambda graph, given: graph.first(lambda: _attention(graph, given))
        for name in _KERNELS
    },
    **{f"aten._scaled_dot_product_{name}_backward": _attention_grad for name in _KERNELS[:-1]},
}

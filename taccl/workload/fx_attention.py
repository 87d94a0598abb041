"""Attention in PyTorch graphs, under the names of all its kernels, and its gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl.workload.fx_graph import Graph

    Arguments = dict[str, Any]
    Reader = Callable[[Graph, Arguments], Any]

#: {argument that a step's attention lacks: the only value that is accepted}.
_PLAIN = {"dropout_p": 0, "enable_gqa": False, "return_debug_mask": False, "dropout_mask": None}
_OPERANDS = ("query", "key", "value")


def _options(graph: Graph, given: Arguments) -> tuple[list[Any], dict[str, Any]]:
    """(masks, options) of a step's attention; at most one mask."""
    for name, value in _PLAIN.items():
        if given.get(name, value) != value:
            said = f"{graph.node.target} has {name}={given[name]!r}"
            raise graph.refused(f"{said}; a step has attention with {value!r} only")
    masks = [given[name] for name in ("attn_mask", "attn_bias") if given.get(name) is not None]
    return masks, {"causal": bool(given["is_causal"]), "value": given.get("scale")}


def _attention(graph: Graph, given: Arguments) -> Any:
    masks, options = _options(graph, given)
    return graph.make("attention", *(given[name] for name in _OPERANDS), *masks, **options)


def _attention_grad(graph: Graph, given: Arguments) -> Any:
    """Gradients with respect to queries, keys and values."""
    masks, options = _options(graph, given)
    grad = given.get("grad_out", given.get("grad_out_"))
    operands = [given[name] for name in _OPERANDS]
    return graph.lazily(
        *(
            lambda name=name: graph.make(f"attention_grad_{name}", grad, *operands, *masks, **options)
            for name in _OPERANDS
        )
    )


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
    **{f"aten._scaled_dot_product_{name}_backward": _attention_grad for name in _KERNELS},
}

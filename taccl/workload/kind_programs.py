"""PyTorch expressions for operations in a generated module, and functions that these expressions call."""

from __future__ import annotations

import math
from collections.abc import Sequence

from taccl.workload import aten
from taccl.workload.kind_rules import permutation
from taccl.workload.kind_values import EPSILON
from taccl.workload.operations import Operation

#: {kind: PyTorch expression}; `text_of` replaces `{0}` and `{1}` by operands, `{name}` by an option.
#: Kinds without an expression are named like the function of PyTorch.
_VALUES = {
    "gelu": 'torch.nn.functional.gelu({0}, approximate="tanh")', "power": "torch.pow({0}, {v})",
    "scale": "{0} * {v}", "offset": "{0} + {v}", "cast": "{0}.to(torch.{dtype})", "add": "{0} + {1}",
    "subtract": "{0} - {1}", "multiply": "{0} * {1}", "divide": "{0} / {1}",
    "equal": "{0} == {other}", "not_equal": "{0} != {other}", "less": "{0} < {other}",
    "less_equal": "{0} <= {other}", "greater": "{0} > {other}", "greater_equal": "{0} >= {other}",
    "logical_not": "~{0}", "logical_and": "{0} & {1}", "logical_or": "{0} | {1}",
    "arange": "torch.arange({start}, {stop}, dtype=torch.{dtype}, device=device())",
    "relu_grad": "torch.where({1} > 0, {0}, 0.0)", "masked_fill": "({0}).masked_fill({1}, {v})",
    "expand": "{0}.expand(torch.broadcast_shapes({0}.shape, {1}.shape))",
    "layernorm": "torch.nn.functional.layer_norm({0}, ({0}).shape[-1:], eps={v})",
    "layernorm_grad": "layernorm_grad({0}, {1}, {v})",
    "softmax_grad": "{1} * ({0} - ({0} * {1}).sum(-1, keepdim=True))",
    "log_softmax_grad": "{0} - torch.exp({1}) * ({0}).sum(-1, keepdim=True)",
    "pad": "padded({0}, {axis}, {start}, {stop})",
    "softmax": "torch.softmax({0}, -1)", "log_softmax": "torch.log_softmax({0}, -1)",
    "transpose": "{0}.permute({order})", "reshape": "({0}).reshape({shape})",
    "narrow": "({0}).narrow({axis}, {start}, {length})", "concat": "torch.cat([{all}], {axis})",
    "repeat": "({0}).repeat_interleave({stop}, {axis})",
    "sum": "({0}).sum({axis})", "norm": "torch.linalg.vector_norm({0})",
    "sum_of_squares": "torch.square({0}).sum()",
    "embedding": "looked_up({0}, {1}, {first})", "embedding_grad": "rows_added({0}, {1}, {stop})",
    "pick": "picked({0}, {1}, {first})", "one_hot": "one_hot({0}, {stop}, torch.{dtype})",
    "attention": "attention({all}{given})",
    **{
        f"attention_grad_{name}": f"attention_grad({at}, {{all}}{{given}})"
        for at, name in enumerate(("query", "key", "value"))
    },
}  # fmt: skip

#: Python source of the functions for embedding lookups, picks of elements by ids, and one-hot rows.
_IDS = '''
def _place(ids, first, count):
    """(row of each id, True if it exists) in rows `first` to `first + count - 1`; row 0 if it does not."""
    row = ids - first
    there = (row >= 0) & (row < count)
    return torch.where(there, row, 0), there


def looked_up(table, ids, first=0):
    """Row for each id, of a table or of its slice from row `first` on; zeros for ids without a row there."""
    row, there = _place(ids, first, table.shape[0])
    return torch.where(there.unsqueeze(-1), table[row], 0.0)


def rows_added(grad, ids, count):
    """Gradient of `looked_up` with respect to a table of `count` rows."""
    row, there = _place(ids, 0, count)
    table = grad.new_zeros((count, grad.shape[-1]))
    given = torch.where(there.unsqueeze(-1), grad, 0.0)
    return table.index_add_(0, row.flatten(), given.flatten(0, -2))


def picked(rows, ids, first=0):
    """Element of each row at its id; rows may be slices from index `first` on. 0 for ids outside them."""
    row, there = _place(ids, first, rows.shape[-1])
    return torch.where(there, rows.gather(-1, row.unsqueeze(-1)).squeeze(-1), 0.0)


def one_hot(ids, count, dtype):
    """Row of `count` elements for each id: 1 at the id, else 0."""
    return (ids.unsqueeze(-1) == torch.arange(count, device=ids.device)).to(dtype)
'''
#: Source of the functions for padding, and for the gradient of a layernorm.
_PADDED = '''
def padded(x, axis, start, stop):
    """Pad `x` with zeros along an axis to length `stop`; its first index becomes `start`."""
    whole = x.new_zeros((*x.shape[:axis], stop, *x.shape[axis + 1 :]))
    whole.narrow(axis, start, x.shape[axis]).copy_(x)
    return whole
'''
_LAYERNORM_GRAD = '''
def layernorm_grad(grad, x, eps):
    """Gradient with respect to the input `x` of a layernorm without weights."""
    spread = torch.rsqrt(x.var(-1, correction=0, keepdim=True) + eps)
    normed = (x - x.mean(-1, keepdim=True)) * spread
    along = (grad * normed).mean(-1, keepdim=True)
    return spread * (grad - grad.mean(-1, keepdim=True) - normed * along)
'''
#: Source of the functions for attention and its gradients.
_ATTENTION = '''
def attention(query, key, value, mask=None, scale=None, causal=False, rows=None):
    """Attention; if `causal`, a query reads only keys up to its own position in the sequence.

    `rows` are the positions of the queries if a rank has only some of them, otherwise None.
    """
    if causal and (rows is not None or mask is not None):
        rows = torch.arange(query.shape[-2], device=query.device) if rows is None else rows
        seen = torch.arange(key.shape[-2], device=query.device) <= rows.unsqueeze(-1)
        if mask is None or mask.dtype == torch.bool:
            mask = seen if mask is None else seen & mask
        else:
            mask = torch.where(seen, mask, -torch.inf)
        causal = False
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scale
    )


def attention_grad(of, grad, query, key, value, mask=None, scale=None, causal=False, rows=None):
    """Gradient of `attention` with respect to its query (`of` = 0), key (1) or value (2)."""
    given = [each.detach() for each in (query, key, value)]
    given[of].requires_grad_()
    with torch.enable_grad():
        made = attention(*given, mask, scale, causal, rows)
    return torch.autograd.grad(made, given[of], grad)[0]
'''
#: {source of functions: kinds whose expressions call them}.
_CALLED_BY = {
    aten.EACH_OWN: ("aten",),
    _PADDED: ("pad",),
    _LAYERNORM_GRAD: ("layernorm_grad",),
    _IDS: ("embedding", "embedding_grad", "pick", "one_hot"),
    _ATTENTION: ("attention", "attention_grad_query", "attention_grad_key", "attention_grad_value"),
}
#: Source of all functions that a generated module may contain.
FUNCTIONS = "".join(_CALLED_BY)


def functions_of(kinds: set[str]) -> str:
    """Source of the functions that the expressions of the given kinds call."""
    return "\n".join(text for text, some in _CALLED_BY.items() if kinds & {*some})


def text_of(
    operation: Operation, operands: Sequence[str], shape: tuple[int, ...], *, first: str = "0", rows: str = ""
) -> str:
    """Python expression that computes an operation's result at one rank.

    - `first`: Expression of the index of the first row (or element) of operand 0 that the rank has.
    - `rows`: Expression of the positions of the rank's attention queries; empty if the rank has all queries.
    """
    if operation.kind == "aten":
        return aten.text_of(operation, operands)
    default = EPSILON if operation.kind in ("layernorm", "layernorm_grad") else 0.0
    value = default if operation.value is None else operation.value
    given = f", scale={operation.value!r}" if operation.value is not None else ""
    if operation.causal:
        given += f", causal=True{f', rows={rows}' if rows else ''}"
    return _VALUES.get(operation.kind, f"torch.{operation.kind}({{all}})").format(
        *operands, v=number(value), axis=operation.axis, dtype=operation.dtype, shape=shape, first=first,
        order=permutation(operation, len(shape)), start=operation.start, stop=operation.stop,
        other=operands[1] if len(operands) > 1 else number(value),
        length=operation.stop - operation.start, all=", ".join(operands), given=given,
    )  # fmt: skip


def number(value: float) -> str:
    """Python expression of a number."""
    return repr(value) if math.isfinite(value) else f'float("{value}")'

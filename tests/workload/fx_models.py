"""Transformers for tests of graphs: a decoder in training over dp x tp, an encoder, and a decoder block.

On import this module exports a small model, because the first export loads modules for seconds. Ranks are
forked afterwards, and so do not load them again.
"""

import math

import torch
import torch.distributed._functional_collectives as functional
from torch import nn

torch.export.export(nn.Linear(1, 1), (torch.zeros(1, 1),)).run_decompositions()
VOCABULARY, WIDTH, HEADS, TOKENS = 12, 8, 4, 6


class Copied(torch.autograd.Function):
    """A tensor that is replicated over a group, whose gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx, x, group):
        """The tensor `x`, unchanged."""
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        """The gradient, summed over the ranks of the group."""
        return functional.all_reduce(grad, "sum", ctx.group), None


class Summed(torch.autograd.Function):
    """Sum over the ranks of a group, whose gradient is the same at all ranks."""

    @staticmethod
    def forward(ctx, x, group):
        """The sum of `x` over the ranks of the group."""
        return functional.all_reduce(x, "sum", group)

    @staticmethod
    def backward(ctx, grad):
        """The gradient, unchanged."""
        return grad.clone(), None


def _heads(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def shapes(tp):
    """Local shapes of a decoder's weights by name."""
    part = WIDTH // tp
    return {
        "tokens_table": (VOCABULARY, WIDTH), "places_table": (TOKENS + 2, WIDTH),
        "gain1": (WIDTH,), "shift1": (WIDTH,), "query": (WIDTH, part), "key": (WIDTH, part),
        "value": (WIDTH, part), "out": (part, WIDTH), "gain2": (WIDTH,), "shift2": (WIDTH,),
        "up": (WIDTH, 2 * part), "bias": (2 * part,), "down": (2 * part, WIDTH), "head": (WIDTH, VOCABULARY),
    }  # fmt: skip


def decoder(tokens, wanted, weights, mesh):
    """Loss of a decoder of one block, whose heads and inner features are sliced over tp (as in Megatron)."""
    w, tp = weights, mesh["tp"]
    local = HEADS // mesh["tp"].size()
    places = torch.arange(tokens.shape[1])
    x = nn.functional.embedding(tokens, w["tokens_table"]) + nn.functional.embedding(
        places, w["places_table"]
    )
    normed = Copied.apply(nn.functional.layer_norm(x, (WIDTH,), w["gain1"], w["shift1"]), tp)
    query, key, value = (_heads(normed @ w[name], local) for name in ("query", "key", "value"))
    made = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    x = x + Summed.apply(made.transpose(1, 2).flatten(2) @ w["out"], tp)
    normed = Copied.apply(nn.functional.layer_norm(x, (WIDTH,), w["gain2"], w["shift2"], 1e-6), tp)
    inner = nn.functional.gelu(normed @ w["up"] + w["bias"])
    x = x + Summed.apply(inner @ w["down"], tp)
    logits = x @ w["head"]
    return nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def training_of_decoder(mesh):
    """A function of a rank's tokens, targets and weights that returns the loss and the weights after a
    training step."""
    names = list(shapes(1))

    def step(tokens, wanted, *weights):
        weights = [each.detach().requires_grad_() for each in weights]
        loss = decoder(tokens, wanted, dict(zip(names, weights, strict=True)), mesh)
        grads = torch.autograd.grad(loss, weights)
        grads = [functional.all_reduce(each, "avg", mesh["dp"]) for each in grads]
        loss = functional.all_reduce(loss.detach(), "avg", mesh["dp"])
        return [loss, *(w - 0.1 * grad for w, grad in zip(weights, grads, strict=True))]

    return step


def layouts_of_decoder():
    """{argument of a training step, as make_fx names it: layout}."""
    columns, rows = "sliced(1) over tp", "sliced(0) over tp"
    sliced = {"query": columns, "key": columns, "value": columns, "up": columns, "out": rows, "down": rows,
              "bias": rows}  # fmt: skip
    found = dict.fromkeys(("arg0_1", "arg1_1"), "sliced(0) over dp")
    for place, name in enumerate(shapes(1)):
        if name in sliced:
            found[f"arg{place + 2}_1"] = sliced[name]
    return found


def attended_in_batches(x, all_of, out):
    """Attention as products of batches of matrices, from one product for queries, keys and values."""
    b, t, _ = x.shape
    query, key, value = (x @ all_of).view(b, t, 2, 3, 2).permute(3, 0, 2, 1, 4).unbind(0)
    query, key, value = (each.reshape(2 * b, t, 2) for each in (query, key, value))
    scores = torch.baddbmm(torch.zeros(2 * b, t, t), query, key.transpose(1, 2), beta=0, alpha=0.5)
    made = torch.bmm(torch.softmax(scores, -1), value).view(b, 2, t, 2)
    return made.transpose(1, 2).flatten(2) @ out


def attended_to_one_key_head(x, query, keys, values, out):
    """Attention of two heads of queries to one head of keys and values, which is repeated."""
    b, t, _ = x.shape
    query = _heads(x @ query, 2)
    key, value = (
        _heads(x @ each, 1)[:, :, None].expand(b, 1, 2, t, 2).reshape(b, 2, t, 2) for each in (keys, values)
    )
    scores = (query @ key.mT / math.sqrt(2)).masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -1e9)
    return (torch.softmax(scores, -1) @ value).transpose(1, 2).flatten(2) @ out


def training_of_attention(attended, mesh):
    """A function of local tokens and weights that returns the gradients of written-out attention, whose
    heads are sliced over tp."""

    def step(x, *weights):
        weights = [each.detach().requires_grad_() for each in weights]
        made = Summed.apply(attended(Copied.apply(x, mesh["tp"]), *weights), mesh["tp"])
        grads = torch.autograd.grad(made.square().mean(), weights)
        return [functional.all_reduce(each, "avg", mesh["dp"]) for each in grads]

    return step


class Encoder(nn.Module):
    """A data-parallel encoder: one product gives queries, keys and values; attention is written out in single
    operations."""

    def __init__(self):
        super().__init__()
        self.table, self.places = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.Parameter(torch.randn(TOKENS + 1, WIDTH)),
        )
        self.norm, self.all = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("hidden", torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1))

    def forward(self, tokens):
        """First token of each sequence, mean over the sequences of all ranks, and log-softmax of the dot
        products of tokens."""
        x = self.table(tokens) + self.places[: tokens.shape[1]]
        query, key, value = (_heads(each, HEADS) for each in self.all(self.norm(x)).split(WIDTH, dim=-1))
        scores = (query @ key.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)).masked_fill(self.hidden, -1e9)
        made = (torch.softmax(scores, -1) @ value).transpose(1, 2).reshape(x.shape)
        x = x + nn.functional.silu(self.out(made))
        x = torch.cat([x, made], -1)
        total = functional.all_reduce(x.mean(0), "avg", torch.distributed.group.WORLD)
        return x[:, 0], total, torch.log_softmax(x @ x.transpose(1, 2), -1)


class Rotary(nn.Module):
    """A block of a language model: RMS norm, rotary positions, grouped-query attention, and a gated MLP."""

    def __init__(self):
        super().__init__()
        part = WIDTH // HEADS
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, eps=1e-6), nn.RMSNorm(WIDTH)
        self.query, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(WIDTH, 2 * part, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def turned(self, x):
        """Rotary position embedding: pairs of elements rotated by angles proportional to the position."""
        rates = torch.exp(torch.arange(x.shape[3] // 2).float() * -0.5)
        angles = torch.outer(torch.arange(x.shape[2]).float(), rates)
        angles = torch.cat([angles, angles], -1)
        one, two = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-two, one], -1) * angles.sin()

    def forward(self, x):
        """The block's result, with causal attention: each token depends on itself and on those before it."""
        normed = self.norm1(x)
        query, key = (
            self.turned(_heads(linear(normed), count))
            for linear, count in ((self.query, HEADS), (self.key, 2))
        )
        value = _heads(self.value(normed), 2)
        made = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.out(made.transpose(1, 2).flatten(2))
        normed = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


def training_of_block(block, group):
    """A function of local tokens and the block's weights that returns the loss and the gradients, averaged
    over a group."""
    names = [name for name, _ in block.named_parameters()]

    def step(x, *weights):
        weights = [each.detach().requires_grad_() for each in weights]
        made = torch.func.functional_call(block, dict(zip(names, weights, strict=True)), (x,))
        loss = made.square().mean()
        grads = torch.autograd.grad(loss, weights)
        return [functional.all_reduce(each, "avg", group) for each in (loss.detach(), *grads)]

    return step


class Vision(nn.Module):
    """A vision transformer of one layer: image patches, a class token, and learnt position embeddings."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.token, self.places = (nn.Parameter(torch.randn(1, count, WIDTH)) for count in (1, 5))
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, 0.0, "gelu", batch_first=True)

    def forward(self, x):
        """Features of each image."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.layer(x)[:, 0]


def training_of_classifier(group):
    """A function of local tokens, targets and weights that returns the mean loss and the gradients, averaged
    over a group."""

    def step(x, wanted, up, head):
        weights = [each.detach().requires_grad_() for each in (up, head)]
        logits = torch.relu(x @ weights[0]) @ weights[1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        grads = torch.autograd.grad(loss, weights)
        return [functional.all_reduce(each, "avg", group) for each in (loss.detach(), *grads)]

    return step

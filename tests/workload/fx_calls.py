"""Models for tests of graphs whose operators are called on each rank's own tensors: images, and experts."""

import torch
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

BATCH = 3


class Images(nn.Module):
    """Convolutions of all sorts, around a batch norm in training that counts its batches."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.by_channel, self.back = nn.Conv2d(4, 4, 3, stride=2, groups=4), nn.ConvTranspose2d(4, 3, 2)

    def forward(self, x):
        """Forward pass on a rank's own images."""
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.first(x))), 2)
        return self.back(nn.functional.hardswish(self.by_channel(x)))


def residual(kernel, bias, gain, shift, second, head, images, wanted, group):
    """A data-parallel training step of a small residual network, with its backward pass."""
    weights = [each.detach().requires_grad_() for each in (kernel, bias, gain, shift, second, head)]
    kernel, bias, gain, shift, second, head = weights
    x = nn.functional.conv2d(images, kernel, bias, padding=1)
    x = torch.relu(nn.functional.batch_norm(x, None, None, gain, shift, training=True))
    x = nn.functional.max_pool2d(x, 3, 2, 1)
    x = nn.functional.conv2d(x, second, padding=1) + x
    logits = nn.functional.adaptive_avg_pool2d(x, 1).flatten(1) @ head
    loss = nn.functional.cross_entropy(logits, wanted, reduction="sum", label_smoothing=0.1)
    grads = [functional.all_reduce(each, "avg", group) for each in torch.autograd.grad(loss, weights)]
    return [w - 0.1 * grad for w, grad in zip(weights, grads, strict=True)]


def gated(x, gate, up, down, group):
    """Gradients of two experts of four for each token, with a loss that balances them."""
    weights = [each.detach().requires_grad_() for each in (gate, up, down)]
    gate, up, down = weights
    logits = x @ gate
    best, places = torch.topk(torch.softmax(logits, -1), 2)
    shares = torch.zeros_like(logits).scatter(1, places, best / best.sum(-1, keepdim=True))
    made = torch.einsum("tef,efd,te->td", torch.einsum("td,edf->tef", x, up).relu(), down, shares)
    chosen = nn.functional.one_hot(places[:, 0], gate.shape[1]).float().mean(0)
    loss = made.square().mean() + (chosen * torch.softmax(logits, -1).mean(0)).sum()
    return [functional.all_reduce(each, "avg", group) for each in torch.autograd.grad(loss, weights)]


def routed(x, gate, up, group):
    """Tokens are sent to experts, each of which accepts two tokens of every rank, and back (GShard)."""
    ranks = group.size()
    shares = torch.softmax(x @ gate, -1)
    chosen = nn.functional.one_hot(shares.argmax(-1), 4)
    place = torch.cumsum(chosen, 0) * chosen - 1
    is_sent = (place < 2) & (chosen > 0)
    where = (nn.functional.one_hot(place.clamp(0, 1), 2) * is_sent.unsqueeze(-1)).to(x.dtype)
    even = [4 // ranks] * ranks
    there = functional.all_to_all_single(
        torch.einsum("tec,td->ecd", where, x).contiguous(), even, even, group
    )
    made = torch.relu(torch.bmm(torch.cat(torch.chunk(there, ranks, 0), 1), up))
    back = functional.all_to_all_single(torch.cat(torch.chunk(made, ranks, 1), 0), even, even, group)
    return torch.einsum("tec,ecd->td", where * shares.unsqueeze(-1), back)


def indexed(x, table, ids):
    """Lookups, sorts and sums along axes, of which the first is distributed."""
    rows = torch.log_softmax(x, 0)[torch.arange(len(x)), ids]
    order = torch.argsort(x[:, 0])
    return [rows, table[ids], x[order], x.roll(1, 1), x.cumsum(0), x.std(1), x.var(0), torch.flip(x, [0]),
            nn.functional.leaky_relu(x), nn.functional.huber_loss(x, rows.unsqueeze(1))]  # fmt: skip


def cases(group):
    """{name: (graph to run, program to import, layouts, further options)}."""
    ranks = group.size()
    images = torch.export.export(Images().train(), (torch.randn(BATCH, 3, 9, 9),)).run_decompositions()
    own = dict.fromkeys(("x", "norm.running_mean", "norm.running_var"), "sliced(0)")
    x = torch.randn(6, 8)

    def traced(function, *inputs, sliced):
        made = make_fx(function, tracing_mode="fake")(*inputs)
        names = [node.name for node in made.graph.nodes if node.op == "placeholder"]
        return made, made, {names[place]: "sliced(0)" for place in sliced}, {}

    weights = [torch.randn(shape) for shape in ((4, 3, 3, 3), (4,), (4,), (4,), (4, 4, 3, 3), (4, 5))]
    pictures, wanted = torch.randn(BATCH, 3, 8, 8), torch.randint(2, (BATCH,))
    experts = [torch.randn(shape) for shape in ((8, 4), (4, 8, 5), (4, 5, 8))]
    return {
        "images": (images.graph_module, images, own, {}),
        "residual": traced(lambda *read: residual(*read, group), *weights, pictures, wanted, sliced=(6, 7)),
        "gated": traced(lambda *read: gated(*read, group), x, *experts, sliced=(0,)),
        "routed": traced(
            lambda *read: routed(*read, group), x, experts[0], torch.randn(4 // ranks, 8, 8), sliced=(0, 2)
        ),
        "indexed": traced(indexed, x, torch.randn(4, 3), torch.randint(2, (6,)), sliced=(0, 2)),
    }

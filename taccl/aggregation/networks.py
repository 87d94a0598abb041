"""Number of parameters of each layer of known neural networks, computed from the layers' shapes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: Number of parameters of each network, as published with torchvision; the shapes below add up to it.
MODELS = {
    "alexnet": 61_100_840,
    "resnet-18": 11_689_512,
    "resnet-50": 25_557_032,
    "resnet-152": 60_192_808,
    "vgg-11": 132_863_336,
    "vgg-19": 143_667_240,
}


def parameters_of(model: str) -> dict[str, int]:
    """{layer: number of parameters} of one of `MODELS`, in order.

    References
    ----------
    K. He, X. Zhang, S. Ren and J. Sun, "Deep residual learning for image recognition", CVPR 2016, table 1.
    K. Simonyan and A. Zisserman, "Very deep convolutional networks for large-scale image recognition",
    ICLR 2015, table 1, columns A and E. A. Krizhevsky, "One weird trick for parallelizing convolutional
    neural networks", 2014, for AlexNet as in torchvision.
    """
    found = _NETWORKS[model]()
    assert sum(found.values()) == MODELS[model], "the shapes add up to the published number"
    return found


def _resnet(blocks: Sequence[int], *, widens: int) -> dict[str, int]:
    """{layer: number of parameters} of a residual network with `blocks` blocks in each stage.

    A block has two convolutions if `widens` is 1. Otherwise it has three, and the last one is `widens` times
    as wide as the others.
    """
    numbers = {"conv1": 7 * 7 * 3 * 64, "bn1.scale": 64, "bn1.shift": 64}
    inputs = 64
    for stage, (width, count) in enumerate(zip((64, 128, 256, 512), blocks, strict=True), 1):
        for block in range(count):
            outputs = widens * width
            shapes = {"1": (9, inputs, width), "2": (9, width, width)}
            if widens > 1:
                shapes = {"1": (1, inputs, width), "2": (9, width, width), "3": (1, width, outputs)}
            if inputs != outputs:
                shapes["downsample"] = 1, inputs, outputs
            for name, (size, ins, outs) in shapes.items():
                where = f"layer{stage}.{block}.{name}"
                numbers |= {
                    f"{where}.conv": size * ins * outs,
                    f"{where}.scale": outs,
                    f"{where}.shift": outs,
                }
            inputs = outputs
    return {**numbers, "fc.weight": inputs * 1000, "fc.bias": 1000}


def _vgg(layers: Sequence[int]) -> dict[str, int]:
    shapes, inputs = [], 3
    for stage, (width, count) in enumerate(zip((64, 128, 256, 512, 512), layers, strict=True), 1):
        for layer in range(count):
            shapes.append((f"conv{stage}.{layer}", 9 * inputs, width))
            inputs = width
    return _weighted([*shapes, ("fc1", 7 * 7 * 512, 4096), ("fc2", 4096, 4096), ("fc3", 4096, 1000)])


def _alexnet() -> dict[str, int]:
    sizes = ((11, 3, 64), (5, 64, 192), (3, 192, 384), (3, 384, 256), (3, 256, 256))
    shapes = [(f"conv{layer}", size**2 * ins, outs) for layer, (size, ins, outs) in enumerate(sizes, 1)]
    return _weighted([*shapes, ("fc1", 6 * 6 * 256, 4096), ("fc2", 4096, 4096), ("fc3", 4096, 1000)])


def _weighted(shapes: Iterable[tuple[str, int, int]]) -> dict[str, int]:
    """{``NAME.weight`` or ``NAME.bias``: number of parameters}, from (name, inputs per output, outputs)."""
    return {
        f"{name}.{what}": count
        for name, ins, outs in shapes
        for what, count in (("weight", ins * outs), ("bias", outs))
    }


_NETWORKS: dict[str, Callable[[], dict[str, int]]] = {
    "alexnet": _alexnet,
    "resnet-18": partial(_resnet, (2, 2, 2, 2), widens=1),
    "resnet-50": partial(_resnet, (3, 4, 6, 3), widens=4),
    "resnet-152": partial(_resnet, (3, 8, 36, 3), widens=4),
    "vgg-11": partial(_vgg, (1, 1, 2, 2, 2)),
    "vgg-19": partial(_vgg, (2, 2, 4, 4, 4)),
}

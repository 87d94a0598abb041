"""The layers of known networks, in bytes, from their published shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl.arguments import checked
from taccl.errors import InputError
from taccl.names import did_you_mean, matching

if TYPE_CHECKING:
    from taccl.arguments import Count

__all__ = ["MODELS", "layer_bytes"]

#: Parameters of each, as published with torchvision's models: what the shapes below must come to.
MODELS = {"resnet-50": 25_557_032, "vgg-19": 143_667_240}


@checked
def layer_bytes(model: str, *, bytes_per_number: Count = 4) -> dict[str, int]:
    """The bytes of each layer's parameters by name, front to back: weights, biases, scales and shifts apart.

    Parameters
    ----------
    model : str
        One of `MODELS`.
    bytes_per_number : int
        4 for float32.

    References
    ----------
    K. He, X. Zhang, S. Ren and J. Sun, "Deep residual learning for image recognition", CVPR 2016, table 1;
    K. Simonyan and A. Zisserman, "Very deep convolutional networks for large-scale image recognition",
    ICLR 2015, table 1, column E.
    """
    found = matching(model, MODELS)
    if found is None:
        said = f"found {model!r}; expected one of {', '.join(MODELS)}{did_you_mean(model, MODELS)}"
        raise InputError(said, where="model")
    numbers = _resnet50() if found == "resnet-50" else _vgg19()
    assert sum(numbers.values()) == MODELS[found], "the shapes come to what is published"
    return {name: count * bytes_per_number for name, count in numbers.items()}


def _resnet50() -> dict[str, int]:
    numbers = {"conv1": 7 * 7 * 3 * 64, "bn1.scale": 64, "bn1.shift": 64}
    inputs = 64

    def convolution(name: str, size: int, ins: int, outs: int) -> None:
        numbers[f"{name}.conv"] = size * size * ins * outs
        numbers[f"{name}.scale"] = numbers[f"{name}.shift"] = outs

    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(blocks):
            where = f"layer{stage}.{block}"
            convolution(f"{where}.1", 1, inputs, width)
            convolution(f"{where}.2", 3, width, width)
            convolution(f"{where}.3", 1, width, 4 * width)
            if not block:
                convolution(f"{where}.downsample", 1, inputs, 4 * width)
            inputs = 4 * width
    return {**numbers, "fc.weight": 2048 * 1000, "fc.bias": 1000}


def _vgg19() -> dict[str, int]:
    numbers, inputs = {}, 3
    for stage, (width, layers) in enumerate(((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)), 1):
        for layer in range(layers):
            numbers[f"conv{stage}.{layer}.weight"] = 9 * inputs * width
            numbers[f"conv{stage}.{layer}.bias"] = width
            inputs = width
    for i, (ins, outs) in enumerate(((7 * 7 * 512, 4096), (4096, 4096), (4096, 1000)), 1):
        numbers[f"fc{i}.weight"] = ins * outs
        numbers[f"fc{i}.bias"] = outs
    return numbers

"""The layers of known networks, in bytes, from their published shapes."""

from __future__ import annotations

from taccl._internal.arguments import checked, known_name

#: Parameters of each, as published with torchvision's models: what the shapes below must come to.
MODELS = {"resnet-50": 25_557_032, "vgg-19": 143_667_240}


@checked
def layer_bytes(model: str) -> dict[str, int]:
    """The bytes of each layer's parameters in float32 by name: weights, biases, scales and shifts apart.

    - `model`: One of `MODELS`.

    References
    ----------
    K. He, X. Zhang, S. Ren and J. Sun, "Deep residual learning for image recognition", CVPR 2016, table 1;
    K. Simonyan and A. Zisserman, "Very deep convolutional networks for large-scale image recognition",
    ICLR 2015, table 1, column E.
    """
    found = known_name(model, MODELS, "model")
    numbers = _resnet50() if found == "resnet-50" else _vgg19()
    assert sum(numbers.values()) == MODELS[found], "the shapes come to what is published"
    return {name: 4 * count for name, count in numbers.items()}


def _resnet50() -> dict[str, int]:
    numbers = {"conv1": 7 * 7 * 3 * 64, "bn1.scale": 64, "bn1.shift": 64}
    inputs = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(blocks):
            shapes = {"1": (1, inputs, width), "2": (9, width, width), "3": (1, width, 4 * width)}
            if not block:
                shapes["downsample"] = 1, inputs, 4 * width
            for name, (size, ins, outs) in shapes.items():
                where = f"layer{stage}.{block}.{name}"
                numbers |= {
                    f"{where}.conv": size * ins * outs,
                    f"{where}.scale": outs,
                    f"{where}.shift": outs,
                }
            inputs = 4 * width
    return {**numbers, "fc.weight": 2048 * 1000, "fc.bias": 1000}


def _vgg19() -> dict[str, int]:
    shapes, inputs = [], 3
    for stage, (width, layers) in enumerate(((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)), 1):
        for layer in range(layers):
            shapes.append((f"conv{stage}.{layer}", 9 * inputs, width))
            inputs = width
    shapes += [("fc1", 7 * 7 * 512, 4096), ("fc2", 4096, 4096), ("fc3", 4096, 1000)]
    return {
        f"{name}.{what}": count
        for name, ins, outs in shapes
        for what, count in (("weight", ins * outs), ("bias", outs))
    }

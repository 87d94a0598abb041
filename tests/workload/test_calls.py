"""Operators of PyTorch that steps call (kind `aten`): layouts, values on real gloo processes, and refusals."""

import json
import sys

import numpy as np
import pytest

from taccl import Workload
from taccl.errors import LossyConversionWarning, WorkloadError
from taccl.workload import from_fx, load_workload, overlap, save_workload
from taccl.workload.torch_program import dump_torch_step
from tests.pytorch import made_once, needs_torch, started
from tests.workload.test_fx import Node, call, graph, item, placeholder

CONVOLUTION = {
    "call": "aten.convolution.default",
    "arguments": '[[{"operand": 0}, {"operand": 1}, null, [1, 1], [1, 1], [1, 1], false, [0, 0], 1], {}]',
    "labels": "n c . ., o c . . -> n o . .", "shape": (4, 6, 5, 5), "dtype": "float32",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of imported steps, with outputs of torch, of the steps and of the generated programs."""
    return made_once(
        tmp_path_factory, "calls", lambda found: started(2, "tests/workload/fx_ranks.py", found, "calls")
    )


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("name", ["images", "residual", "gated", "routed", "indexed"])
def test_a_step_with_calls_has_the_values_of_torch(folder, name):
    """Steps of a residual network and of experts, and their transformed programs, give the graph's outputs."""
    assert any(each.kind == "aten" for each in load_workload(folder / f"{name}.toml").operations)
    for rank in range(2):
        found = np.load(folder / f"{name}.{rank}.npz")
        outputs = [key.removeprefix("run_") for key in found if key.startswith("run_")]
        assert outputs
        for each in outputs:
            right = found[f"torch_{each}"]
            off = 1e-5 * max(np.abs(right).max(), 1)
            np.testing.assert_allclose(found[f"run_{each}"], right, rtol=0, atol=off)
            if found[f"ours_{each}"].shape == right.shape:  # else the transformed program slices it
                np.testing.assert_allclose(found[f"ours_{each}"], right, rtol=0, atol=10 * off)


def convolved(x="replicated", w="replicated", **given):
    """A step of one convolution on two ranks."""
    step = Workload("convolution", 2).input("x", (4, 2, 5, 5), layout=x).input("w", (6, 2, 3, 3), layout=w)
    return step.then("y", "aten", "x", "w", **CONVOLUTION | given)


@pytest.mark.parametrize(
    ("x", "w", "layout"),
    [
        ("sliced(0)", "replicated", "sliced(0)"),
        ("replicated", "sliced(0)", "sliced(1)"),
        ("sliced(1)", "sliced(1)", "partial"),
        ("replicated", "replicated", "replicated"),
    ],
)
def test_layouts_of_convolutions(x, w, layout):
    """A convolution of sliced images or filters is sliced; one of sliced channels gives partial sums."""
    assert convolved(x, w).tensors["y"].layout == layout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"x": "partial"}, "aten is not linear in x"),
        ({"call": "torch.load"}, "calls 'torch.load'; expected an operator of ATen"),
        ({"call": "aten.from_file.default"}, "expected an operator of ATen"),
        ({"call": "aten.a.b)(__import__('os'"}, "expected an operator of ATen"),
        ({"arguments": "[[], {]"}, "expected JSON of a list and of an object"),
        ({"arguments": '[[{"operand": 2}], {}]'}, "expected JSON of a list and of an object"),
        ({"arguments": '[[{"dtype": "x)"}], {}]'}, "expected JSON of a list and of an object"),
        ({"arguments": '[[], {"a=b": 1}]'}, "expected JSON of a list and of an object"),
        ({"arguments": ""}, "aten needs arguments; give it"),
        ({"labels": "n c . . -> n c . ."}, "name each axis"),
        (
            {"labels": "n . . ., o . . . -> o n . ."},
            "axis o of an operand of shape .* differs from the result",
        ),
        ({"labels": "n c * ., o c . . -> n o . ."}, r"'\*' can only be the first axis"),
        ({"dtype": "complex64"}, "found dtype complex64"),
    ],
)
def test_calls_of_another_form_are_refused(given, said):
    """The error for a call that cannot be made names the operation and the reason."""
    with pytest.raises(WorkloadError, match=f"^y: .*{said}"):
        convolved(**given)


def test_an_axis_that_is_needed_whole_may_not_be_sliced():
    """A call whose axes have no labels needs every axis whole, and is refused for sliced operands."""
    with pytest.raises(WorkloadError, match="^y: aten is over axis 0 of x, which is sliced over ranks"):
        convolved("sliced(0)", labels="")


def test_a_call_is_not_repeated_for_tiles_of_an_axis_that_it_needs_whole():
    """A convolution is cut into tiles of images, but not into tiles of rows, as it computes all rows at once."""
    step = convolved("sliced(1)", "sliced(1)").then("sum", "allreduce", "y")
    assert overlap(step, ["y", "sum"], tiles=2).overlaps
    with pytest.raises(WorkloadError, match=r"^y: computes axis 2 of its result at once, by aten\.conv"):
        overlap(step, ["y", "sum"], tiles=5, axis=2)


def test_a_step_with_calls_is_stored(tmp_path):
    """A step with a call is read from its file as it was written."""
    save_workload(convolved("sliced(0)"), tmp_path / "step.toml")
    assert load_workload(tmp_path / "step.toml") == convolved("sliced(0)")


def test_a_program_calls_the_operator():
    """The generated program has the call with its arguments, even if each rank calls on its own tensors."""
    text = dump_torch_step(convolved("sliced(0)"))
    assert "torch.ops.aten.convolution.default(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)" in text
    own = Workload("own", 2).input("x", (2, 3), layout="sliced(0)")
    own = own.then("y", "aten", "x", call="aten.sort.default", arguments='[[{"operand": 0}], {}]', item=1,
                   labels="* . -> * .", shape=(2, 3), dtype="int64")  # fmt: skip
    assert "each_own(lambda x0: torch.ops.aten.sort.default(x0)[1], (True,), x)" in dump_torch_step(own)


def test_values_of_calls_need_pytorch(monkeypatch):
    """If PyTorch is missing, the error for running a call names the operator and the package."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        WorkloadError, match=r"^y: calls aten\.convolution\.default, which needs PyTorch; install"
    ):
        convolved().run()


@pytest.mark.parametrize(
    ("name", "tags", "is_mutable", "said"),
    [
        ("aten.rand_like", ["Tag.nondeterministic_seeded"], False, r" \(it is random\)"),
        ("aten.relu_", [], True, r"torch.func.functionalize\(step\)\) \(it writes in place\)"),
        ("other.relu", [], False, r" \(it is not of ATen\)"),
    ],
)
def test_operators_that_cannot_be_called_are_refused(name, tags, is_mutable, said):
    """The error for a random operator, one that writes in place, or one of another library has the reason."""
    x = placeholder("x", (4,))
    y = Node("call_function", "y", name, (x,), (4,), schema=("self",))
    y.target.tags, y.target._schema.is_mutable = tags, is_mutable
    with pytest.raises(WorkloadError, match=f"^y: .*not supported.*{said}$"):
        from_fx(graph(x, y, returned=y), 2)


def test_attention_without_dropout_is_not_called_random():
    """PyTorch marks attention as random, even without dropout; the error has the actual reason alone."""
    x = placeholder("x", (1, 2, 4, 8))
    schema = ("query", "key", "value", "dropout_p", "is_causal")
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    y = Node("call_function", "y", name, (x, x, x, 0.0, False), (1, 2, 4, 8), schema=schema)
    y.target.tags, y.target._schema.is_mutable = ["Tag.nondeterministic_seeded"], False
    z = item("z", y, 0, (1, 2, 4, 8))
    with pytest.raises(WorkloadError, match=r"^y: attention is over axis 3 of x, [^(]*$"):
        from_fx(graph(x, y, z, returned=z), 4, layouts={"x": "sliced(3)"})


@needs_torch
@pytest.mark.slow
def test_convolutions_have_the_flops_that_torch_counts(folder):
    """Convolutions and transposed ones, in groups, have as many operations as PyTorch's own counter gives."""
    found = json.loads((folder / "flops.json").read_text())
    assert [each["step"] for each in found] == [each["torch"] for each in found]
    assert all(each["torch"] > 0 for each in found) and len(found) == 2


def normed(layout, statistics):
    """Step of a batch norm in training on two ranks, with the layout of its running statistics."""
    x = placeholder("x", (2, 3, 4))
    rows = [placeholder(name, (3,)) for name in ("gain", "shift", "mean", "spread")]
    schema = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
    name = "aten._native_batch_norm_legit_functional"
    y = Node("call_function", "y", name, (x, *rows, True, 0.25, 0.5), (2, 3, 4), schema=schema)
    items = [item(f"item{at}", y, at, (2, 3, 4) if at == 0 else (3,)) for at in (0, 3, 4)]
    nodes = graph(x, *rows, y, *items, returned=items)
    return from_fx(nodes, 2, layouts={"x": layout, "mean": statistics, "spread": statistics})


def test_batch_norm_in_training_is_by_the_images_of_each_rank():
    """Each rank normalises by its own means and variances, and updates its own running statistics."""
    step = normed("sliced(0)", "sliced(0)")
    data = [np.random.default_rng(rank).normal(size=(2, 3, 4)).astype(np.float32) for rank in range(2)]
    gain, shift, mean, spread = np.float32([[1, 2, 3], [4, 5, 6], [7, 8, 9], [0.5, 3.5, 0]])
    given = {"x": data, **{name: [row, row] for name, row in
             zip(("gain", "shift", "mean", "spread"), (gain, shift, mean, spread), strict=True)}}  # fmt: skip
    values = step.run(given)
    for rank, x in enumerate(data):
        own, var = x.mean((0, 2)), x.var((0, 2))
        right = (x - own[:, None]) / np.sqrt(var + 0.5)[:, None] * gain[:, None] + shift[:, None]
        np.testing.assert_allclose(values["item0"][rank], right, atol=1e-5)
        np.testing.assert_allclose(values["item3"][rank], 0.75 * mean + 0.25 * own, rtol=1e-5)
        np.testing.assert_allclose(values["item4"][rank], 0.75 * spread + 0.25 * var * 8 / 7, rtol=1e-5)


def test_running_statistics_of_distributed_images_are_not_replicated():
    """Replicated running statistics are refused if ranks have different images, with the layout to give."""
    assert normed("replicated", "replicated").tensors["item3"].layout == "replicated"
    with pytest.raises(WorkloadError, match="each rank updates mean by its own images.*'sliced\\(0\\)'"):
        normed("sliced(0)", "replicated")


def test_statistics_that_are_written_in_place_give_a_warning():
    """A batch norm that updates its running statistics in place is read without that update, with a warning."""
    x, rows = placeholder("x", (2, 3)), [placeholder(n, (3,)) for n in "wbmv"]
    schema = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
    y = Node(
        "call_function", "y", "aten.native_batch_norm", (x, *rows, True, 0.1, 1e-5), (2, 3), schema=schema
    )
    z = item("z", y, 0, (2, 3))
    with pytest.warns(LossyConversionWarning, match="updates its running statistics in place"):
        from_fx(graph(x, *rows, y, z, returned=z), 2, layouts={"x": "sliced(0)"})


def test_a_broadcast_of_a_replicated_tensor_is_that_tensor():
    """A broadcast adds no operation if all ranks have the tensor; one of slices is refused."""
    x = placeholder("x", (4,))
    schema = ("input", "src", "group_name")
    y = Node("call_function", "y", "_c10d_functional.broadcast", (x, 0, "0"), (4,), schema=schema)
    z = call("z", "aten.relu", (y,), (4,))
    assert [each.kind for each in from_fx(graph(x, y, z, returned=z), 2).operations] == ["relu"]
    with pytest.raises(
        WorkloadError, match=r"^y: broadcasts x, which is float32\[8\] sliced\(0\); only tensors"
    ):
        from_fx(graph(x, y, z, returned=z), 2, layouts={"x": "sliced(0)"})

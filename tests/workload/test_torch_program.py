"""Generated PyTorch programs give the values of the untransformed program, on real gloo processes."""

import json

import pytest

import taccl
from taccl import Workload
from taccl.errors import LossyConversionWarning, WorkloadError
from taccl.formats.registry import convert
from taccl.workload import fuse, overlap, reorder, save_workload, split
from taccl.workload.autotransform import fused, sharded
from taccl.workload.torch_program import dump_torch_step
from tests.pytorch import needs_torch, started
from tests.workload.test_replay import block, experts, momentum, sliced


def kinds():
    """A step with every kind of operation that the other steps here lack, in float32."""
    step = Workload("kinds", 4).input("x", (8, 16), layout="sliced(0)").input("w", (16,))
    step = step.then("a", "gelu", "x").then("b", "layernorm", "a").then("c", "softmax", "b")
    step = step.then("d", "transpose", "c").then("e", "maximum", "d", "d").then("k", "sigmoid", "e")
    step = step.then("m", "exp", "k").then("o", "relu_grad", "m", "d").then("f", "tanh", "o")
    step = step.then("g", "allgather", "f").then("h", "offset", "g", value=0.5).then("i", "sqrt", "h")
    step = step.then("l", "transpose", "i").then("j", "multiply", "l", "w").then("s", "sum_of_squares", "x")
    step = step.then("p", "sum", "x", axis=0).then("r", "allreduce", "p").then("v", "add", "j", "r")
    return step.then("n", "norm", "v").then("t", "allreduce", "s").then("q", "divide", "v", "n")


def mixed():
    """A step with gradients in bfloat16 and parameters in float32, which are cast to bfloat16 for the next
    step."""
    step = Workload("mixed", 4).input("grad", (64,), dtype="bfloat16", layout="partial").input("p", (64,))
    step = step.then("total", "allreduce", "grad").then("wide", "cast", "total", dtype="float32")
    step = step.then("p_new", "subtract", "p", "wide").then("low", "cast", "p_new", dtype="bfloat16")
    return step.updating(p="p_new").returning("low")


def kernels():
    """A step with unknown kernels, and with names that clash with Python's keywords and with names in the
    module."""
    step = Workload('odd """ names', 4).then("lambda", "compute", shape=(16, 4), layout="partial", cost_us=1)
    step = step.then("mine", "reduce_scatter", "lambda", axis=0).then("t", "scale", "mine", value=2)
    return step.then("ready", "allgather", "t").then("drawn", "compute", "ready", shape=(16, 4), cost_us=1)


def pipeline():
    """A step of a pipeline stage that sums over its ranks, and sends replicated values to the next stage."""
    step = Workload("pipeline", 4, mesh=(("pp", 2), ("tp", 2)))
    step = step.input("x", (16, 32), layout="sliced(0) over pp, sliced(1) over tp").input("b", (8,))
    step = step.input("w", (32, 8), layout="sliced(0) over tp").then("y", "matmul", "x", "w")
    step = step.then("sum", "allreduce", "y", group="tp").then("z", "add", "sum", "b")
    return step.then("sent", "send", "z", group="pp").then("out", "relu", "sent")


def hybrid():
    """A training step with data parallelism and tensor parallelism."""
    step = Workload("hybrid", 4, mesh=(("dp", 2), ("tp", 2)))
    step = step.input("x", (16, 8), layout="sliced(0) over dp").input(
        "w1", (8, 12), layout="sliced(1) over tp"
    )
    step = step.input("w2", (12, 8), layout="sliced(0) over tp").input(
        "t", (16, 8), layout="sliced(0) over dp"
    )
    step = step.then("h", "matmul", "x", "w1").then("a", "tanh", "h").then("y", "matmul", "a", "w2")
    step = step.then("sum", "allreduce", "y", group="tp").then("e", "subtract", "sum", "t")
    step = (
        step.then("at", "transpose", "a")
        .then("g", "matmul", "at", "e")
        .then("G", "allreduce", "g", group="dp")
    )
    step = step.then("u", "subtract", "w2", "G").then("q", "sum_of_squares", "G")
    step = step.then("k", "compute", "e", shape=(8, 8), layout="partial over dp").then("c", "add", "k", "k")
    step = step.then("n", "allreduce", "q", group="tp").then("m", "multiply", "c", "n")
    return step.updating(w2="u").returning("m", "sum")


def cases():
    """{name: (workload, the same workload after transforms)}."""
    layer, adam, moe = block(), momentum(), experts()
    tiled = overlap(fuse(layer, "sum", "z", "out"), ["y", "sum", "z", "out"], tiles=4)
    parts = reorder(split(layer, "sum"), "sum")
    names = [each.name for each in parts.operations]
    zero = fused(sharded(adam, ["sum"]))
    most = mixed()
    return {
        "block_tiled": (layer, tiled),
        "block_columns": (layer, overlap(layer, ["y", "sum", "z", "out"], tiles=3, axis=1)),
        "block_slices": (layer, overlap(fused(parts), names, tiles=2)),
        "momentum_tiled": (adam, sliced(adam)),
        "momentum_kernel": (adam, fuse(adam, "old", "m_new", "p_new")),
        "momentum_zero": (adam, overlap(zero, [each.name for each in zero.operations], tiles=2)),
        "experts": (moe, overlap(moe, ["to", "y", "back", "on"], tiles=2, axis=1)),
        "kinds": (kinds(), fused(reorder(kinds(), "g"))),
        "mixed": (most, fused(sharded(most, ["total"]))),
        "pipeline": (pipeline(), overlap(pipeline(), ["y", "sum", "z", "sent", "out"], tiles=2)),
        "pipeline_slices": (pipeline(), fused(sharded(pipeline(), ["sum"]))),
        "hybrid": (hybrid(), overlap(hybrid(), ["h", "a", "y", "sum", "e"], tiles=2)),
        "hybrid_slices": (hybrid(), fused(sharded(hybrid(), ["sum", "G"]))),
        "kernels": (kernels(), overlap(kernels(), ["lambda", "mine", "t", "ready"], tiles=2)),
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Results measured on four gloo processes, {case: (max difference of outputs, tolerance, seconds, True if
    taccl was imported)}."""
    folder = tmp_path_factory.mktemp("torch")
    for name, (plain, step) in cases().items():
        save_workload(plain, folder / f"{name}.toml")
        text = dump_torch_step(step, original=folder / f"{name}.toml")
        (folder / f"{name}.py").write_text(text)
        if name == "block_tiled":  # the sum is left out
            (folder / "spoilt.py").write_text(text.replace("all_reduce(y[t])", "y[t]"))
    started(4, "tests/workload/torch_ranks.py", folder)
    return json.loads((folder / "found.json").read_text())


@needs_torch
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::taccl.LossyConversionWarning")
@pytest.mark.parametrize(
    "name",
    ["block_tiled", "block_columns", "block_slices", "momentum_tiled", "momentum_kernel", "momentum_zero",
     "experts", "kinds", "mixed", "kernels", "pipeline", "pipeline_slices", "hybrid", "hybrid_slices"],
)  # fmt: skip
def test_gloo_ranks_give_what_the_untransformed_program_gives(found, name):
    """Outputs agree within rounding, both programs are timed, and taccl is not imported."""
    difference, tolerance, seconds, imported = found[name]
    assert difference <= tolerance
    assert seconds > 0
    assert not imported


@needs_torch
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::taccl.LossyConversionWarning")
def test_a_program_without_its_sum_is_found_out(found):
    """A program without its sum fails the comparison, as ranks return partial values."""
    difference, tolerance, _, _ = found["spoilt"]
    assert difference > 1000 * tolerance


def test_a_step_file_is_converted_to_a_program(tmp_path):
    """`convert` turns a step file into a program that compiles."""
    save_workload(block(), tmp_path / "step.toml")
    with pytest.warns(LossyConversionWarning, match="costs and schedule"):
        done = convert(tmp_path / "step.toml", tmp_path / "step.py", to="torch")
    assert done.target.holds == "workload"
    compile((tmp_path / "step.py").read_text(), "step.py", "exec")


def test_tiles_of_a_reader_run_an_iteration_behind():
    """In the generated loop, tiles are computed in iterations 0 to 3, and their sums are read one iteration
    later."""
    text = dump_torch_step(overlap(block(), ["y", "sum", "z"], tiles=4))
    assert "for turn in range(5):" in text
    assert text.index("t = turn\n") < text.index("all_reduce(y[t])") < text.index("t = turn - 1\n")


def test_another_original_is_refused(tmp_path):
    """An original step that lacks an output of the transformed step is refused."""
    save_workload(momentum(), tmp_path / "other.toml")
    with pytest.raises(WorkloadError, match="has no out, an output of the step"):
        dump_torch_step(block(), original=tmp_path / "other.toml")


@pytest.mark.slow
def test_a_topology_transforms_the_step():
    """If a topology is given, the step is transformed before it is written: its momentum is sliced."""
    step = Workload("momentum", 4).input("g", (64,), layout="partial").input("m", (64,))
    step = step.then("sum", "allreduce", "g").then("m_new", "add", "m", "sum", cost_us=1).updating(m="m_new")
    text = dump_torch_step(step, topology=taccl.topologies.fully_connected(4), step_s=100)
    assert "'m_new': (((0, ''),), None)" in text


def test_unknown_kernels_are_reported():
    """A warning names unknown kernels, which are replaced by stand-ins."""
    with pytest.warns(LossyConversionWarning, match="lacks kernels for lambda, drawn"):
        dump_torch_step(kernels())

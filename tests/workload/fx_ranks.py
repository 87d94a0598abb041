"""Script of one PyTorch process per rank: runs graphs in torch, imports them as steps, and runs programs
generated from these."""

import importlib.util
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from taccl.workload import from_fx, load_workload, save_workload
from taccl.workload.autotransform import fused, overlapped, sharded
from taccl.workload.meaning import random_inputs
from taccl.workload.torch_program import dump_torch_step
from tests.workload import fx_calls, fx_models

warnings.simplefilter("ignore")
torch.set_num_threads(1)


class Block(nn.Module):
    """A tensor-parallel layer whose tokens are sliced between its products (Megatron's sequence parallelism)."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 6), nn.Linear(6, 8, bias=False), nn.LayerNorm(8)
        self.register_buffer("steps", torch.zeros(8))

    def forward(self, x):
        """Forward pass on local tokens."""
        every = functional.all_gather_tensor(self.norm(x), 1, dist.group.WORLD)
        inner = nn.functional.gelu(self.up(every), approximate="tanh")
        mine = functional.reduce_scatter_tensor(self.down(inner), "sum", 1, dist.group.WORLD)
        self.steps.add_(1)
        return torch.softmax(mine + x, -1), mine.to(torch.bfloat16)


def training(w1, b1, w2, x, wanted):
    """A data-parallel training step with its backward pass."""
    w1, b1, w2 = (each.detach().requires_grad_() for each in (w1, b1, w2))
    loss = nn.functional.mse_loss(torch.relu(x @ w1 + b1) @ w2, wanted)
    grads = torch.autograd.grad(loss, [w1, b1, w2])
    summed = [functional.all_reduce(grads[0], "avg", dist.group.WORLD), *functional.all_reduce_coalesced(
        [grads[1]], "sum", dist.group.WORLD)]  # fmt: skip
    slices = functional.reduce_scatter_tensor(grads[2], "avg", 1, dist.group.WORLD)
    summed.append(functional.all_gather_tensor(slices, 1, dist.group.WORLD))
    loss = functional.all_reduce(loss, "avg", dist.group.WORLD)
    return [w - 0.1 * g for w, g in zip((w1, b1, w2), summed, strict=True)] + [loss]


def experts(x, w1, w2):
    """Mixture of experts: tokens are sent to experts and back."""
    ranks = dist.get_world_size()
    even = [x.shape[0] // ranks] * ranks
    there = functional.all_to_all_single(x, even, even, dist.group.WORLD)
    there = torch.cat(torch.chunk(there, ranks, 0), 1)
    made = torch.bmm(torch.sigmoid(torch.bmm(there, w1)), w2)
    back = torch.cat(torch.chunk(made, ranks, 1), 0)
    return functional.all_to_all_single(back, even, even, dist.group.WORLD) * 0.5 + 1


def stage(x, w1, w2, wanted, mesh):
    """A tensor-parallel layer over ranks 0-1 and 2-3, with gradients averaged over ranks 0 and 2, and over 1
    and 3."""
    inner = torch.tanh(x @ w1)
    error = functional.all_reduce(inner @ w2, "sum", mesh["tp"]) - wanted
    grad = functional.all_reduce(inner.T @ error, "avg", mesh["dp"])
    every = functional.all_gather_tensor(error.T, 1, mesh["dp"])
    return w2 - 0.1 * grad, every, functional.all_reduce((grad * grad).sum(), "sum", mesh["tp"])


def options_of(mesh):
    """Import options of a step over dp x tp: its mesh, and the dimension of each process group by name."""
    names = {mesh.get_group(name).group_name: name for name in ("dp", "tp")}
    return {"mesh": tuple(zip(("dp", "tp"), mesh.shape, strict=True)), "groups": names}


def of_groups(mesh):
    """Graphs over dp x tp, in the form that `cases` returns.

    These are a layer, and the training of a decoder and of attention that is written out.
    """
    local = [(3, 8), (8, 6), (6, 4), (3, 4)]
    layer = make_fx(lambda x, w1, w2, wanted: stage(x, w1, w2, wanted, mesh))(
        *(torch.randn(shape) for shape in local)
    )
    parts = {"w1_1": "sliced(1) over tp", "w2_1": "sliced(0) over tp"}
    parts |= {"x_1": "sliced(0) over dp", "wanted_1": "sliced(0) over dp"}
    tokens = torch.randint(fx_models.VOCABULARY, (2, fx_models.TOKENS))
    weights = [torch.randn(shape) for shape in fx_models.shapes(mesh["tp"].size()).values()]
    trained = make_fx(fx_models.training_of_decoder(mesh))(tokens, tokens, *weights)
    attentions = {}
    for name, sizes in (("batches", [12]), ("one_key_head", [4, 2, 2])):
        local = [(2, 5, 8), *((8, size) for size in sizes), (4, 8)]
        attended = {"batches": fx_models.attended_in_batches}.get(name, fx_models.attended_to_one_key_head)
        made = make_fx(fx_models.training_of_attention(attended, mesh))(*map(torch.randn, local))
        where = ["sliced(0) over dp", *["sliced(1) over tp"] * len(sizes), "sliced(0) over tp"]
        layouts = {f"arg{place}_1": layout for place, layout in enumerate(where)}
        attentions[name] = (made, made, layouts, options_of(mesh))
    return {
        "stage": (layer, layer, parts, options_of(mesh)),
        "decoder": (trained, trained, fx_models.layouts_of_decoder(), options_of(mesh)),
        **attentions,
    }


def of_tokens():
    """Graphs of data-parallel transformers, in the form that `cases` returns.

    These are two models, each before and after PyTorch's decompositions, a vision model, and the training of
    a classifier and of one model.
    """
    tokens = torch.randint(fx_models.VOCABULARY, (2, fx_models.TOKENS))
    encoder = torch.export.export(fx_models.Encoder(), (tokens,))
    x, block = torch.randn(2, fx_models.TOKENS, fx_models.WIDTH), fx_models.Rotary()
    exported = torch.export.export(block, (x,))
    plain, parts = encoder.run_decompositions(), exported.run_decompositions()
    loss = fx_models.training_of_classifier(dist.group.WORLD)
    sizes = [(fx_models.WIDTH, 16), (16, fx_models.VOCABULARY)]
    # The decomposition of the loss divides the sum of a rank's losses by the number of its targets.
    lost = make_fx(loss, torch.export.default_decompositions())(x, tokens, *map(torch.randn, sizes))
    vision = torch.export.export(fx_models.Vision().eval(), (torch.randn(2, 3, 8, 8),)).run_decompositions()
    learnt = make_fx(fx_models.training_of_block(block, dist.group.WORLD))(x, *block.parameters())
    return {
        "encoder": (plain.graph_module, plain, {"tokens": "sliced(0)"}, {}),
        "encoder_as_exported": (encoder.graph_module, encoder, {"tokens": "sliced(0)"}, {}),
        "rotary": (parts.graph_module, parts, {"x": "sliced(0)"}, {}),
        "rotary_as_exported": (exported.graph_module, exported, {"x": "sliced(0)"}, {}),
        "vision": (vision.graph_module, vision, {"x": "sliced(0)"}, {}),
        "classifier": (lost, lost, {"x_1": "sliced(0)", "wanted_1": "sliced(0)"}, {}),
        "rotary_training": (learnt, learnt, {"arg0_1": "sliced(0)"}, {}),
    }


def cases(mesh, which):
    """{name: (graph to run, program to import, layouts, further options)}.

    If `which` is "groups", only the graphs that use process groups; if it is "calls", those of `fx_calls`.
    """
    torch.manual_seed(1)
    if which == "calls":
        return fx_calls.cases(dist.group.WORLD)
    if which == "groups":
        return of_groups(mesh)
    exported = torch.export.export(Block(), (torch.randn(3, 4, 8),))
    plain = exported.run_decompositions()
    row, column = {"up.weight": "sliced(0)", "up.bias": "sliced(0)"}, {"down.weight": "sliced(1)"}
    data = {"x_1": "sliced(0)", "wanted_1": "sliced(0)"}
    shapes = [(8, 6), (6,), (6, 4), (5, 8), (5, 4)]
    traced = make_fx(training)(*(torch.randn(shape) for shape in shapes))
    routed = make_fx(experts)(
        torch.randn(dist.get_world_size(), 3, 8), torch.randn(1, 8, 6), torch.randn(1, 6, 8)
    )
    expert = {"x_1": "sliced(1)", "w1_1": "sliced(0)", "w2_1": "sliced(0)"}
    return {
        "block": (plain.graph_module, plain, {"x": "sliced(1)"} | row | column, {}),
        "training": (traced, traced, data, {}),
        "experts": (routed, routed, expert, {}),
        **of_tokens(),
        **of_groups(mesh),
    }


def convolutions():
    """Operations of a convolution and a transposed one, in groups, of the imported step and by PyTorch's counter."""
    found = []
    for each, size in (
        (nn.functional.conv2d, (6, 2, 3, 3)), (nn.functional.conv_transpose2d, (4, 3, 2, 2)),
    ):  # fmt: skip
        given = torch.randn(2, 4, 5, 5), torch.randn(size)
        with FlopCounterMode(display=False) as counter:
            each(*given, stride=2, groups=2)
        step = from_fx(make_fx(lambda x, w: each(x, w, stride=2, groups=2))(*given), 2)
        found.append({"step": step.operations[-1].flops, "torch": counter.get_total_flops()})
    return found


def main(folder, which):
    """Import each graph as a step; write outputs of the graph and of the program generated from the step."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0 and which == "calls":
        Path(folder, "flops.json").write_text(json.dumps(convolutions()))
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    for name, (graph, program, layouts, options) in cases(mesh, which).items():
        if rank == 0:
            step = from_fx(program, dist.get_world_size(), layouts=layouts, name=name, **options)
            # Long steps are written without transformations: finding fusions takes up to 48 s.
            is_short = len(step.operations) < (150 if which == "calls" else 43)
            tiled = (overlapped(fused(sharded(step, [])), 2, 0) or fused(step)) if is_short else step
            Path(folder, f"{name}.py").write_text(dump_torch_step(tiled))
            save_workload(step, Path(folder, f"{name}.toml"))
        dist.barrier()
        step = load_workload(Path(folder, f"{name}.toml"))
        given = {each: torch.from_numpy(arrays[rank]) for each, arrays in random_inputs(step).items()}
        nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        spare = {node: torch.zeros(node.meta["val"].shape) for node in nodes if not node.users}
        found = torch.fx.Interpreter(graph).run(*(spare.get(n, given.get(n.name)) for n in nodes))
        found = [each.float().numpy() for each in (found if isinstance(found, (list, tuple)) else [found])]
        outputs = [*(new for _, new in step.state), *step.returned]
        spec = importlib.util.spec_from_file_location(name, f"{folder}/{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        ours = module.transformed(**given)
        np.savez(
            f"{folder}/{name}.{rank}.npz",
            **{f"torch_{key}": value for key, value in zip(outputs, found, strict=True)},
            **{f"ours_{key}": ours[key].float().numpy() for key in outputs},
            # Operations of kind `aten` need PyTorch, even if taccl runs the whole step.
            **({f"run_{key}": values[rank] for key, values in step.run().items() if key in outputs}
               if which == "calls" else {}),
        )  # fmt: skip
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Computation and communication: in sequence, overlapped by a simple rule, synthesized, and the bound.

The steps are those of models with public shapes, on processors at the peak rates of their data sheets. In
sequence, each operation is a kernel of its own, which begins when the one before has ended at all ranks.
"fused" is the same with point-wise operations fused into kernels: an allreduce and one optimiser kernel, as
in practice. "ZeRO-1" is reduce-scatter, one kernel on the slice, allgather, for steps with state. The rule
"hand" overlaps the program's operations in four tiles, in program order, over rings (alltoall: pairwise).
"ours" is the step of `taccl.workload.autotransform`; its bound is for the same tiles. "gain" is the time of
the program in sequence over ours, "fair gain" that of the best baseline over ours. A row misses its figure if
ours is invalid, more than 5 % above its bound, or slower than one of the others. It also misses if a rank
keeps more than 1/n of the sliced state. Two rows have equal times of computation and communication, in 16 and
64 tiles. They must finish within 1.10 and 1.04 of that time.

Examples
--------
    python -m benchmarks.workload
    python -m benchmarks.workload --machine a100 --case adam
    python -m benchmarks.workload --output benchmarks/results/workload.json  # keeps other stored rows
"""

from __future__ import annotations

import sys
import time
import warnings
from itertools import product
from typing import TYPE_CHECKING

import taccl
from benchmarks.report import parser_of, shown, summed_up, wanted, with_stored
from taccl import Workload
from taccl.workload import autotransform, overlap, schedule_workload
from taccl.workload.autotransform import fused, overlapped, sharded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.report import Column, Row
    from taccl.topology.topology import Topology
    from taccl.workload import Step

MACHINES: dict[str, Callable[[], Topology]] = {
    "dgx-a100 x1": lambda: taccl.topologies.dgx_a100(1),
    "dgx-a100 x2": lambda: taccl.topologies.dgx_a100(2),
    "dgx-h100 x4": lambda: taccl.topologies.dgx_h100(4),
}
#: `MOST`: max ratio of finish to bound.
#: `EVEN`: {number of tiles: max ratio of finish to communication time}.
#: `EVEN` is for rows with equal times of computation and communication.
MOST, EVEN = 1.05, {16: 1.10, 64: 1.04}
COLUMNS: tuple[Column, ...] = (
    ("case", "case", "<20"), ("machine", "machine", "<12"), ("in sequence", "sequence_us", ">11.1f"),
    ("fused", "fused_us", ">9.1f"), ("ZeRO-1", "zero_us", ">9"), ("hand rule", "hand_us", ">11.1f"),
    ("ours", "ours_us", ">11.1f"), ("bound", "bound_us", ">11.1f"),
    ("gap", "gap", ">7.2%"), ("tiles", "tiles", ">5"), ("gain", "gain", ">6.2f"),
    ("fair gain", "fair_gain", ">9.2f"), ("of max(Tc, Tm)", "of_the_larger", ">14.4f"),
)  # fmt: skip


def mlp(n: int) -> Workload:
    """Second half of the MLP of a GPT-3 175B layer, 2048 tokens (Brown et al. 2020, table 2.1)."""
    return _block(Workload("tensor-parallel MLP", n), n, 4 * 12288)


def attention(n: int) -> Workload:
    """Output projection of the attention of a GPT-3 175B layer: 96 heads of 128."""
    return _block(Workload("attention output", n), n, 96 * 128)


def _block(step: Workload, n: int, inner: int) -> Workload:
    tokens, model, dtype = 2048, 12288, "bfloat16"
    step = step.input("x", (tokens, inner), dtype=dtype, layout="sliced(1)")
    step = step.input("w", (inner, model), dtype=dtype, layout="sliced(0)").input("b", (model,), dtype=dtype)
    step = step.input("residual", (tokens, model), dtype=dtype)
    step = step.then("y", "matmul", "x", "w").then("sum", "allreduce", "y").then("biased", "add", "sum", "b")
    return step.then("dropped", "dropout", "biased", value=0.1).then("out", "add", "dropped", "residual")


#: `_LAYER`: parameters of each of the 24 layers of BERT-large (Devlin et al. 2019).
#: `_EMBEDDING`: parameters of its embeddings, 30,522 + 512 + 2 rows of 1024.
_LAYER, _EMBEDDING = 12_596_224, 31_036 * 1024


def adam(n: int) -> Workload:
    """Adam (Kingma and Ba 2015) on eight layers of BERT-large in one buffer, padded to 2**20."""
    step = _moments(Workload("Adam", n), n)
    step = step.then("change", "scale", "direction", value=-1e-4).then("p_new", "add", "p", "change")
    return step.updating(m="m_new", v="v_new", p="p_new").returning("p_new")


def lamb(n: int) -> Workload:
    """LAMB (You et al. 2020): as `adam`, with norms of the parameters and of their updates."""
    step = _moments(Workload("LAMB", n), n)
    step = step.then("decay", "scale", "p", value=0.01).then("update", "add", "direction", "decay")
    step = (
        step.then("p_norm", "norm", "p")
        .then("u_norm", "norm", "update")
        .then("trust", "divide", "p_norm", "u_norm")
    )
    step = step.then("scaled", "multiply", "update", "trust").then("change", "scale", "scaled", value=-1e-4)
    return (
        step.then("p_new", "add", "p", "change").updating(m="m_new", v="v_new", p="p_new").returning("p_new")
    )


def _moments(step: Workload, n: int) -> Workload:
    size = _padded(8 * _LAYER, 2**20)
    step = step.input("g", (size,), layout="partial")
    for name in ("m", "v", "p"):
        step = step.input(name, (size,))
    step = step.then("sum", "allreduce", "g").then("mean", "scale", "sum", value=1 / n)
    step = step.then("m_old", "scale", "m", value=0.9).then("m_now", "scale", "mean", value=0.1)
    step = step.then("m_new", "add", "m_old", "m_now").then("squared", "square", "mean")
    step = step.then("v_old", "scale", "v", value=0.999).then("v_now", "scale", "squared", value=0.001)
    step = step.then("v_new", "add", "v_old", "v_now").then("root", "sqrt", "v_new")
    return step.then("safe", "offset", "root", value=1e-8).then("direction", "divide", "m_new", "safe")


def pipeline(n: int) -> Workload:
    """Two pipeline stages of GPT-3's width, 1024 tokens per rank; one sends its results to the next."""
    tokens, model, dtype = 1024 * n, 12288, "bfloat16"
    step = Workload("pipeline boundary", n).input("x", (tokens, model), dtype=dtype, layout="sliced(0)")
    step = step.input("w1", (model, model), dtype=dtype).input("w2", (model, model), dtype=dtype)
    step = step.then("y", "matmul", "x", "w1").then("z", "send", "y", shift=8 if n > 8 else 1)
    return step.then("out", "matmul", "z", "w2")


def experts(n: int) -> Workload:
    """Mixture of experts: one of Mixtral 8x7B's (Jiang et al. 2024) per rank, 4096 tokens per rank, top 2."""
    each, model, inner, dtype = 4096 * 2 // n, 4096, 14336, "bfloat16"
    step = Workload("MoE", n).input("x", (n, n * each, model), dtype=dtype, layout="sliced(1)")
    step = step.input("w1", (n, model, inner), dtype=dtype, layout="sliced(0)")
    step = step.input("w2", (n, inner, model), dtype=dtype, layout="sliced(0)")
    step = step.then("sent", "alltoall", "x", axis=0).then("h", "matmul", "sent", "w1").then("a", "gelu", "h")
    return step.then("y", "matmul", "a", "w2").then("back", "alltoall", "y", axis=1)


def resnet(n: int) -> Workload:
    """ResNet-50 in DeAR's order (He et al. 2016, table 1), by residual blocks, 64 images per rank."""
    layers = [(64 * 3 * 49, 112**2)]
    into = 64
    for blocks, width, side in ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)):
        for block in range(blocks):
            shortcut = into * 4 * width if block == 0 else 0
            layers.append((into * width + 9 * width**2 + 4 * width**2 + shortcut, side**2))
            into = 4 * width
    layers.append((2048 * 1000, 1))
    return _dear(Workload("DeAR, ResNet-50", n), n, layers, 64)


def bert(n: int) -> Workload:
    """BERT-large in DeAR's order, 32 sequences of 128 tokens per rank."""
    return _dear(Workload("DeAR, BERT-large", n), n, [(_EMBEDDING, 0), *[(_LAYER, 1)] * 24], 32 * 128)


def _dear(step: Workload, n: int, layers: list[tuple[int, int]], batch: int) -> Workload:
    """Add reduce-scatter after a layer's gradients, allgather before its next use (DeAR, Zhang et al. 2023).

    - `layers`: (number of parameters, number of uses of each per sample) of each layer.
    """
    before: tuple[str, ...] = ()
    for i in reversed(range(len(layers))):
        parameters, uses = layers[i]
        shape = (_padded(parameters, 1024 * n),)
        step = step.then(
            f"g{i}", "compute", *before, shape=shape, dtype="float16", layout="partial",
            flops=4.0 * parameters * uses * batch, memory_bytes=4.0 * parameters,
        )  # fmt: skip
        step = step.then(f"s{i}", "reduce_scatter", f"g{i}", axis=0).then(
            f"p{i}", "scale", f"s{i}", value=-0.1
        )
        before = (f"g{i}",)
    before = ()
    for i, (parameters, uses) in enumerate(layers):
        step = step.then(f"q{i}", "allgather", f"p{i}").then(
            f"f{i}", "compute", f"q{i}", *before, shape=(n,), dtype="float16",
            flops=2.0 * parameters * uses * batch, memory_bytes=2.0 * parameters,
        )  # fmt: skip
        before = (f"f{i}",)
    return step


def _padded(size: int, to: int) -> int:
    return -(-size // to) * to


CASES = {
    "mlp": mlp, "attention": attention, "adam": adam, "lamb": lamb, "pipeline": pipeline, "moe": experts,
    "resnet-50": resnet, "bert-large": bert,
}  # fmt: skip


def by_hand(workload: Workload, topology: Topology) -> Step:
    """Step of the rule "hand": dependent operations overlap in four tiles, in program order, over rings."""
    tiled = overlapped(workload, 4, 1 if workload.name == "MoE" else 0)
    return schedule_workload(tiled or workload, topology, order="program", algorithm="stock")


def measured(case: str, where: str, *, limit_s: float) -> Row:
    """Row of one case: finishes in us, and failed checks."""
    topology, began = MACHINES[where](), time.process_time()
    workload = CASES[case](topology.num_ranks)
    ours = autotransform(workload, topology, time_limit_s=limit_s)
    row = beside_others(workload, ours, where)
    missed = row["missed"]
    if row["fair_gain"] < 1:
        missed.append("another is faster")
    if workload.state and ours.workload.state_bytes < workload.state_bytes:
        sliced = [old for old, _ in workload.state if ours.workload.tensors[old].axis is not None]
        whole = sum(workload.tensors[name].num_bytes for name in sliced)
        kept = sum(ours.workload.tensors[name].local_bytes(topology.num_ranks) for name in sliced)
        missed += ["state"] if kept * topology.num_ranks != whole else []
    state_bytes = [workload.state_bytes, ours.workload.state_bytes]
    return row | {"state_bytes": state_bytes, "cpu_s": round(time.process_time() - began, 1)}


def beside_others(workload: Workload, ours: Step, where: str) -> Row:
    """Common columns of a row: finishes in us of the baselines and of ours, gains, and failed checks."""
    baselines = {"sequence": workload, "fused": fused(workload, collectives=False)}
    if workload.state:
        sums = [each.name for each in workload.operations if each.kind == "allreduce"]
        baselines["zero"] = fused(sharded(workload, sums), collectives=False)
    steps = {
        name: schedule_workload(each, ours.topology, order="in-sequence") for name, each in baselines.items()
    }
    steps["hand"] = by_hand(workload, ours.topology)
    missed = [
        f"{name}: {step.verify()!r}"
        for name, step in (*steps.items(), ("ours", ours))
        if not step.verify().ok
    ]
    if not 1 - 1e-9 <= ours.finish / ours.bound <= MOST:
        missed.append(f"{float(ours.finish / ours.bound):.3f} of its bound")
    finish_us = {name: round(step.finish_us, 1) for name, step in steps.items()}
    least_us = min(step.finish_us for step in steps.values())
    return {
        "case": workload.name, "machine": where, **{f"{name}_us": us for name, us in finish_us.items()},
        "ours_us": round(ours.finish_us, 1), "bound_us": round(ours.bound_us, 1), "gap": round(ours.gap, 4),
        "tiles": max((each.tiles for each in ours.workload.overlaps), default=1),
        "gain": round(steps["sequence"].finish_us / ours.finish_us, 3),
        "fair_gain": round(least_us / ours.finish_us, 3), "missed": missed,
    }  # fmt: skip


def even(where: str) -> Iterator[Row]:
    """Rows in which computation and communication take equal time.

    An allreduce adds partial sums, of which 17 MB per rank are its slice of the result.
    """
    topology = MACHINES[where]()
    shape = (128 * topology.num_ranks, 65536)

    def step(cost_us: float) -> Workload:
        made = Workload("even", topology.num_ranks)
        made = made.then("y", "compute", shape=shape, dtype="bfloat16", layout="partial", cost_us=cost_us)
        return made.then("sum", "allreduce", "y")

    sent_us = schedule_workload(step(0), topology, order="in-sequence").finish_us
    workload = step(round(sent_us, 3))
    for tiles, most in EVEN.items():
        ours = schedule_workload(overlap(workload, ["y", "sum"], tiles=tiles), topology)
        row, ratio = beside_others(workload, ours, where), ours.finish_us / sent_us
        if ratio > most:
            row["missed"].append(f"{ratio:.4f} of max(Tc, Tm); at most {most}")
        yield row | {"case": f"even, {tiles} tiles", "of_the_larger": ratio}


def main() -> int:
    """Run, print the table, and write the results; return 1 if a row misses its figure."""
    parser = parser_of(__doc__)
    parser.add_argument("--machine", action="append", help="part of a machine's name; default: all")
    parser.add_argument("--case", action="append", choices=[*CASES, "even"], help="default: all")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds of each search")
    options = parser.parse_args()
    warnings.simplefilter("ignore", taccl.NumericsWarning)
    found = (
        row
        for where, case in product(MACHINES, options.case or ["even", *CASES])
        if wanted(where, options.machine)
        for row in (even(where) if case == "even" else [measured(case, where, limit_s=options.time_limit)])
    )
    rows = with_stored(options.output, shown(COLUMNS, found, head="(times in us)"), "case", "machine")
    return summed_up(options.output, {"rows": rows})


if __name__ == "__main__":
    sys.exit(main())

"""Computation and communication together: in sequence, overlapped by a hand rule, ours, and the bound.

    python -m benchmarks.workload
    python -m benchmarks.workload --machine a100 --case adam
    python -m benchmarks.workload --output benchmarks/results/workload.json

Steps of models with public shapes, on processors at the peaks of their data sheets. In sequence each
operation begins when the one before has ended everywhere. The hand rule overlaps four tiles of what the
program has in any case, in the program's order, over rings (alltoall: pairwise). Ours is what
`taccl.workload.autotransform` finds; its bound is that of the same tiles. A row misses its figure where ours
is not verified, more than 5 % above its bound, or slower than one of the others, or where a rank keeps more
than 1/n of the state that was sliced. Two rows have as much to compute as to send, in 16 and 64 tiles: they
are to finish within 1.10 and 1.04 of either.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import taccl
from benchmarks.machine import machine
from taccl import Workload
from taccl.workload import autotransform, overlap, schedule_workload
from taccl.workload.autotransform import overlapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl.topology.topology import Topology
    from taccl.workload import Step

MACHINES: dict[str, Callable[[], Topology]] = {
    "dgx-a100 x1": lambda: taccl.topologies.dgx_a100(1),
    "dgx-a100 x2": lambda: taccl.topologies.dgx_a100(2),
    "dgx-h100 x4": lambda: taccl.topologies.dgx_h100(4),
}
#: How far above the bound ours may be; and above what there is to compute, by tiles.
MOST, EVEN = 1.05, {16: 1.10, 64: 1.04}


def mlp(n: int) -> Workload:
    """The second half of a layer of GPT-3 175B, of 2048 tokens (Brown et al. 2020, table 2.1)."""
    return _block(Workload("tensor-parallel MLP", n), n, 4 * 12288)


def attention(n: int) -> Workload:
    """The output projection of its attention: 96 heads of 128."""
    return _block(Workload("attention output", n), n, 96 * 128)


def _block(step: Workload, n: int, inner: int) -> Workload:
    tokens, model, dtype = 2048, 12288, "bfloat16"
    step = step.input("x", (tokens, inner), dtype=dtype, layout="sliced(1)")
    step = step.input("w", (inner, model), dtype=dtype, layout="sliced(0)").input("b", (model,), dtype=dtype)
    step = step.input("residual", (tokens, model), dtype=dtype)
    step = step.then("y", "matmul", "x", "w").then("sum", "allreduce", "y").then("biased", "add", "sum", "b")
    return step.then("dropped", "dropout", "biased", value=0.1).then("out", "add", "dropped", "residual")


#: BERT-large: 24 layers of 12,596,224 parameters, embeddings of 30,522 + 512 + 2 rows of 1024 (Devlin et al.
#: 2019).
_LAYER, _EMBEDDING = 12_596_224, 31_036 * 1024


def adam(n: int) -> Workload:
    """Adam (Kingma and Ba 2015) on eight layers of BERT-large in one buffer, padded to 2**20."""
    step = _moments(Workload("Adam", n), n)
    step = step.then("change", "scale", "direction", value=-1e-4).then("p_new", "add", "p", "change")
    return step.updating(m="m_new", v="v_new", p="p_new").returning("p_new")


def lamb(n: int) -> Workload:
    """LAMB (You et al. 2020): the same, and norms of parameters and of their change."""
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
    """Two stages of GPT-3's width, 1024 tokens a rank: what one computes goes on to the next."""
    tokens, model, dtype = 1024 * n, 12288, "bfloat16"
    step = Workload("pipeline boundary", n).input("x", (tokens, model), dtype=dtype, layout="sliced(0)")
    step = step.input("w1", (model, model), dtype=dtype).input("w2", (model, model), dtype=dtype)
    step = step.then("y", "matmul", "x", "w1").then("z", "send", "y", shift=8 if n > 8 else 1)
    return step.then("out", "matmul", "z", "w2")


def experts(n: int) -> Workload:
    """An expert a rank of Mixtral 8x7B's size (Jiang et al. 2024), 4096 tokens a rank to two experts each."""
    each, model, inner, dtype = 4096 * 2 // n, 4096, 14336, "bfloat16"
    step = Workload("MoE", n).input("x", (n, n * each, model), dtype=dtype, layout="sliced(1)")
    step = step.input("w1", (n, model, inner), dtype=dtype, layout="sliced(0)")
    step = step.input("w2", (n, inner, model), dtype=dtype, layout="sliced(0)")
    step = step.then("sent", "alltoall", "x", axis=0).then("h", "matmul", "sent", "w1").then("a", "gelu", "h")
    return step.then("y", "matmul", "a", "w2").then("back", "alltoall", "y", axis=1)


def resnet(n: int) -> Workload:
    """DeAR's order of ResNet-50 (He et al. 2016, table 1), by residual blocks, 64 pictures a rank."""
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
    """The same of BERT-large, 32 sequences of 128 tokens a rank."""
    return _dear(Workload("DeAR, BERT-large", n), n, [(_EMBEDDING, 0), *[(_LAYER, 1)] * 24], 32 * 128)


def _dear(step: Workload, n: int, layers: list[tuple[int, int]], batch: int) -> Workload:
    """Reduce-scatter behind a layer's gradients, allgather before its next use (DeAR, Zhang et al. 2023).

    Layers are parameters and how often each is used for one of the batch.
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
    """Four tiles of what follows each other in the program, in its order, over rings."""
    tiled = overlapped(workload, 4, 1 if workload.name == "MoE" else 0)
    return schedule_workload(tiled or workload, topology, order="program", algorithm="stock")


def measured(case: str, where: str, *, limit_s: float) -> dict[str, Any]:
    """One row: times in microseconds, and what is missed."""
    topology, began = MACHINES[where](), time.process_time()
    workload = CASES[case](topology.num_ranks)
    sequence = schedule_workload(workload, topology, order="in-sequence")
    hand = by_hand(workload, topology)
    ours = autotransform(workload, topology, time_limit_s=limit_s)
    missed = [
        f"{name}: {step.verify()!r}"
        for name, step in (("ours", ours), ("hand", hand))
        if not step.verify().ok
    ]
    if ours.finish_us > min(sequence.finish_us, hand.finish_us):
        missed.append("another is faster")
    if not 1 - 1e-9 <= ours.finish / ours.bound <= MOST:
        missed.append(f"{float(ours.finish / ours.bound):.3f} of its bound")
    if workload.state and ours.workload.state_bytes < workload.state_bytes:
        sliced = [old for old, _ in workload.state if ours.workload.tensors[old].axis is not None]
        whole = sum(workload.tensors[name].num_bytes for name in sliced)
        kept = sum(ours.workload.tensors[name].local_bytes(topology.num_ranks) for name in sliced)
        missed += ["state"] if kept * topology.num_ranks != whole else []
    return {
        "case": workload.name, "machine": where, "sequence_us": sequence.finish_us, "hand_us": hand.finish_us,
        "ours_us": ours.finish_us, "bound_us": ours.bound_us, "gap": ours.gap,
        "tiles": max((each.tiles for each in ours.workload.overlaps), default=1),
        "state_bytes": [workload.state_bytes, ours.workload.state_bytes],
        "cpu_s": round(time.process_time() - began, 1), "missed": missed,
    }  # fmt: skip


def even(tiles: int, where: str) -> dict[str, Any]:
    """As much to compute as to send: partial sums, 17 MB for every rank, and their allreduce."""
    topology = MACHINES[where]()
    shape = (128 * topology.num_ranks, 65536)

    def step(cost_us: float) -> Workload:
        made = Workload(f"even, {tiles} tiles", topology.num_ranks)
        made = made.then("y", "compute", shape=shape, dtype="bfloat16", layout="partial", cost_us=cost_us)
        return made.then("sum", "allreduce", "y")

    sent_us = schedule_workload(step(0), topology, order="in-sequence").finish_us
    workload = step(round(sent_us, 3))
    sequence = schedule_workload(workload, topology, order="in-sequence")
    hand = by_hand(workload, topology)
    ours = schedule_workload(overlap(workload, ["y", "sum"], tiles=tiles), topology)
    missed = [] if ours.verify().ok else [repr(ours.verify())]
    ratio = ours.finish_us / sent_us
    if ratio > EVEN[tiles]:
        missed.append(f"{ratio:.4f} of max(Tc, Tm); at most {EVEN[tiles]}")
    if not 1 - 1e-9 <= ours.finish / ours.bound <= MOST:
        missed.append(f"{float(ours.finish / ours.bound):.3f} of its bound")
    return {
        "case": workload.name, "machine": where, "sequence_us": sequence.finish_us, "hand_us": hand.finish_us,
        "ours_us": ours.finish_us, "bound_us": ours.bound_us, "gap": ours.gap, "tiles": tiles,
        "of_the_larger": ratio, "missed": missed,
    }  # fmt: skip


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    ratio = f"{row['of_the_larger']:.4f} of max(Tc, Tm)" if "of_the_larger" in row else ""
    return (
        f"{row['case']:<20} {row['machine']:<12} {row['sequence_us']:>11.1f} {row['hand_us']:>11.1f} "
        f"{row['ours_us']:>11.1f} {row['bound_us']:>11.1f} {row['gap']:>7.2%} {row['tiles']:>5}  "
        f"{ratio}{', '.join(row['missed'])}"
    )


def main() -> int:
    """Run, print the table, write the results; 1 if a row misses its figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--machine", action="append", help="part of a machine's name; default: all")
    parser.add_argument("--case", action="append", choices=[*CASES, "even"], help="default: all")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds of each search")
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    options = parser.parse_args()
    warnings.simplefilter("ignore", taccl.NumericsWarning)
    heads = " ".join(f"{name:>11}" for name in ("in sequence", "hand rule", "ours", "bound"))
    print(f"{'case':<20} {'machine':<12} {heads} {'gap':>7} {'tiles':>5}  (times in us)")
    rows = []
    for where in MACHINES:
        if options.machine and not any(part in where for part in options.machine):
            continue
        for case in options.case or ["even", *CASES]:
            if case == "even":
                found = [even(tiles, where) for tiles in EVEN]
            else:
                found = [measured(case, where, limit_s=options.time_limit)]
            rows += found
            for row in found:
                print(line(row), flush=True)
    missed = [row for row in rows if row["missed"]]
    print(f"\n{len(rows)} rows, {len(missed)} miss their figure; {machine()}")
    if options.output is not None:
        command = " ".join(["python -m benchmarks.workload", *sys.argv[1:]])
        document = {"command": command, "machine": machine(), "rows": rows}
        options.output.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

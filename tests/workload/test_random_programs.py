"""Random transformations of random steps: accepted ones preserve values, and others are refused."""

import contextlib
import json
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from taccl import Workload
from taccl.errors import WorkloadError
from taccl.workload import fuse, overlap, reorder, save_workload, split
from taccl.workload.autotransform import fused
from taccl.workload.meaning import random_inputs
from taccl.workload.operations import COLLECTIVES, Operation
from taccl.workload.tiling import GrowingOverlap
from taccl.workload.torch_program import dump_torch_step
from tests.fuzzing import cases
from tests.pytorch import needs_torch, started
from tests.workload import naive

BINARY = ("add", "subtract", "multiply", "divide", "maximum", "relu_grad")
UNARY = ("relu", "tanh", "gelu", "square", "scale", "offset", "dropout")
#: Kinds that move, look up or compare elements: some random steps consist mostly of these.
MOVING = ("reshape", "narrow", "repeat", "concat", "embedding", "embedding_grad", "pick", "one_hot", "attention",
          "softmax_grad", "log_softmax", "less", "greater_equal", "logical_not", "masked_fill", "where", "sigmoid",
          "cos", "abs", "minimum")  # fmt: skip
#: {kind: number of operands}, for kinds with more than one.
OPERANDS = {"matmul": 2, "concat": 2, "embedding": 2, "embedding_grad": 2, "pick": 2, "attention": 3,
            "softmax_grad": 2, "masked_fill": 2, "where": 3, "minimum": 2, **dict.fromkeys(BINARY, 2)}  # fmt: skip
#: {kind: index of the operand that has ids or a mask}.
PLACES = {"embedding": 1, "embedding_grad": 1, "pick": 1, "one_hot": 0, "masked_fill": 1, "where": 0,
          "logical_not": 0}  # fmt: skip
LAYOUTS = ("replicated", "partial", "sliced(0)", "sliced(1)")


def options_for(kind, rng, side):
    """Random options of an operation of a kind, on arrays of `side` x `side` elements."""
    options = {}
    if kind in ("reduce_scatter", "alltoall", "sum", "narrow", "repeat", "concat"):
        options["axis"] = rng.randrange(2)
    if kind in ("scale", "offset", "dropout", "less", "greater_equal", "masked_fill"):
        options["value"] = rng.choice((0.25, 0.5))
    if kind == "cast":
        options["dtype"] = "float64"
    if kind == "reshape":
        options["shape"] = rng.choice(
            ((side * side,), (side, side), (side, 2, side // 2), (side // 2, 2 * side))
        )
    if kind == "narrow":
        options |= {"start": rng.choice((0, side // 2)), "stop": side}
    if kind in ("embedding_grad", "one_hot"):
        options["stop"] = side
    if kind == "repeat":
        options["stop"] = 2
    if kind == "one_hot":
        options["dtype"] = "float64"
    if kind == "attention":
        options["causal"] = rng.random() < 0.5
    return options


def random_step(rng, ranks=(2, 3, 4)):
    """A random step of float64 operations, most of which read recent results."""
    ranks = rng.choice(ranks)
    step = Workload("random", ranks)
    side = 4 * ranks
    for i in range(rng.randint(2, 4)):
        step = step.input(f"i{i}", (side, side), dtype="float64", layout=rng.choice(LAYOUTS))
    step = step.input("bias", (side,), dtype="float64")
    moves = rng.random() < 0.5
    if moves:
        step = step.input("ids", (side,), dtype="int64", layout=rng.choice(("replicated", "sliced(0)")))
        step = step.input("mask", (side, side), dtype="bool", layout=rng.choice(("replicated", "sliced(1)")))
    for i in range(rng.randint(3, 9)):
        for _ in range(30):
            names = list(step.tensors)
            kind = rng.choice(
                (
                    *UNARY,
                    *BINARY[:3],
                    "relu_grad",
                    "sum",
                    "matmul",
                    "layernorm",
                    "softmax",
                    "transpose",
                    "cast",
                    "norm",
                    "sum_of_squares",
                    *4 * COLLECTIVES,
                    *(2 * MOVING if moves else ()),
                )
            )
            count = OPERANDS.get(kind, 1)
            read = [rng.choice(names[-4:] if rng.random() < 0.7 else names) for _ in range(count)]
            if kind in PLACES:
                read[PLACES[kind]] = rng.choice([n for n in names if step.tensors[n].dtype != "float64"])
            axes = {len(step.tensors[name].shape) for name in read}
            is_flat = kind not in PLACES or len(step.tensors[read[PLACES[kind]]].shape) == 1
            if kind in ("attention", "concat") and axes != {2}:
                continue  # the reference has it of matrices, and looks up by a row of ids
            if kind in ("embedding", "embedding_grad", "pick", "one_hot") and not is_flat:
                continue
            options = options_for(kind, rng, side)
            try:
                step = step.then(f"t{i}", kind, *read, **options)
                break
            except WorkloadError:
                continue
    return step


def close(one, two):
    """True if arrays are equal up to the order of sums."""
    return one.shape == two.shape and np.allclose(one, two, rtol=1e-6, atol=1e-6, equal_nan=True)


def same(step, one, two):
    """True if all ranks have equal outputs; for partial outputs, if the sums are equal."""
    for name in step.outputs:
        if step.tensors[name].layout == "partial":
            if not close(np.sum(one[name], axis=0), np.sum(two[name], axis=0)):
                return False
        elif not all(close(a, b) for a, b in zip(one[name], two[name], strict=True)):
            return False
    return True


def agree(step, other):
    """True if two steps have equal outputs in equal layouts, by the library's own execution."""
    inputs = random_inputs(step, seed=7)
    layouts = [
        (each.tensors[name].layout, each.tensors[name].axis)
        for each in (step, other)
        for name in step.outputs
    ]
    half = len(layouts) // 2
    return layouts[:half] == layouts[half:] and same(step, step.run(inputs), other.run(inputs))


def naively(step, operations):
    """Result of the reference interpreter on a step's inputs, or None if shapes do not fit."""
    shapes = {name: tensor.shape for name, tensor in step.tensors.items()}
    shapes |= {
        each.name: shapes.get(each.name, shapes.get(each.name.split("@")[0], ())) for each in operations
    }
    try:
        with np.errstate(all="ignore"):
            return naive.run(operations, shapes, random_inputs(step, seed=7), step.num_ranks)
    except (ValueError, IndexError):
        return None


def forced(step, collective, operation):
    """Yield variants of a step's operations, in which `operation` is moved before `collective`.

    It is not checked that a variant computes the same values. There are two choices of operands: the moved
    operation reads the input of `collective` instead of its output, or that of each operand that is a
    collective of the same kind. For each choice, one variant has no collective after the moved operation, and
    the others have one collective of each kind.
    """
    moved, after = step.operation[collective], step.operation[operation]
    alike = {each.name for each in step.operations if each.kind == moved.kind and each.name in after.inputs}
    for instead in ({collective}, alike):
        inputs = tuple(step.operation[name].inputs[0] if name in instead else name for name in after.inputs)
        early = replace(after, name=f"{operation}@early", inputs=inputs)
        yield [replace(early, name=operation) if each is after else each for each in step.operations]
        for kind in COLLECTIVES:
            for axis in (0, 1) if kind in ("reduce_scatter", "alltoall") else (None,):
                late = Operation(operation, kind, (early.name,), axis=axis, shift=moved.shift)
                yield [
                    new for each in step.operations for new in ((early, late) if each is after else (each,))
                ]


def attempts(step, rng):
    """Yield random transformations, legal or not: (kind, function that applies it, possible lists of
    operations after it).

    The lists are None except for "reorder".
    """
    for each in step.operations:
        if each.is_collective:
            for reader in step.readers[each.name]:
                if not step.operation[reader].is_collective:
                    yield (
                        "reorder",
                        lambda c=each.name, o=reader: reorder(step, c, o),
                        list(forced(step, each.name, reader)),
                    )
        if each.kind in ("allreduce", "norm"):
            yield "split", lambda o=each.name: split(step, o), None
        for reader in step.readers[each.name]:
            if each.is_collective:
                yield "fuse", lambda c=each.name, o=reader: fuse(step, c, o), None
            else:
                yield "kernel", lambda c=each.name, o=reader: fuse(step, c, o), None
                yield "kernel", lambda c=reader, o=each.name: fused(step, collectives=o < c), None
    names = [each.name for each in step.operations]
    for _ in range(4):
        some = sorted(rng.sample(names, min(len(names), rng.randint(2, 4))), key=names.index)
        tiles, axis = rng.choice((2, 4)), rng.randrange(2)
        yield "overlap", lambda s=some, t=tiles, a=axis: overlap(step, s, tiles=t, axis=a), None


@pytest.mark.fuzz
def test_random_programs_keep_their_meaning():
    """Accepted transformations keep the values of 30 random programs, or of 1,000 with TACCL_MANY."""
    seen = Counter()
    for seed in cases("random programs", few=30, many=1000):
        rng = random.Random(seed)
        step = random_step(rng)
        plain = naively(step, step.operations)
        ours = step.run(random_inputs(step, seed=7))
        assert all(close(a, b) for name in ours for a, b in zip(ours[name], plain[name], strict=True)), seed
        for what, transform, by_force in attempts(step, rng):
            changes = by_force is not None and not any(
                made is not None and same(step, plain, made)
                for made in (naively(step, operations) for operations in by_force)
            )
            try:
                other = transform()
            except WorkloadError as error:
                assert error.where, seed
                seen[what, "refused"] += 1
                seen["refused what changes it"] += changes
                continue
            seen[what, "accepted"] += 1
            assert agree(step, other), (seed, what, step, other)
            redone = naively(other, other.operations)
            assert same(step, plain, redone), (seed, what, step, other)
            assert not changes, (seed, what, step, other)
    for what in ("reorder", "split", "fuse", "kernel", "overlap"):
        assert seen[what, "accepted"] > 3, seen
    for what in ("reorder", "fuse", "kernel", "overlap"):
        assert seen[what, "refused"] > 3, seen
    assert seen["refused what changes it"] > 5, seen


@pytest.mark.fuzz
def test_overlaps_grow_exactly_as_far_as_they_are_possible():
    """A kernel is added to a growing overlap exactly if the overlap with it is possible."""
    seen = Counter()
    for seed in cases("growing overlaps", few=100, many=2000):
        rng = random.Random(seed)
        step = random_step(rng)
        step = fused(step) if seed % 2 else step
        names = [each.name for each in step.operations]
        some = sorted(rng.sample(names, min(len(names), 6)), key=names.index)
        if seed % 3 == 0:
            rng.shuffle(some)
        tiles, axis = rng.choice((2, 4)), rng.randrange(2)
        growing, held = GrowingOverlap(step, tiles, axis), []
        for name in some:
            try:
                overlap(step, [*held, name], tiles=tiles, axis=axis)
            except WorkloadError:
                seen["refused"] += 1
                with pytest.raises(WorkloadError):
                    growing.add(name)
            else:
                seen["accepted"] += 1
                growing.add(name)
                held.append(name)
    assert min(seen["refused"], seen["accepted"]) > 30, seen


def transformed(step, rng, times=4):
    """A step after some random transformations; overlaps, which make tiles, come last."""
    for last in (False, True):
        for _ in range(times):
            some = [(what, make) for what, make, _ in attempts(step, rng) if (what == "overlap") == last]
            if not some:
                break
            with contextlib.suppress(WorkloadError):
                step = rng.choice(some)[1]()
    return step


@needs_torch
@pytest.mark.slow
@pytest.mark.fuzz
def test_written_programs_keep_the_meaning(tmp_path):
    """PyTorch programs of transformed random steps give the values of the untransformed ones, on gloo."""
    for seed in cases("written programs", few=20, many=600):
        rng = random.Random(1000 + seed)
        plain = random_step(rng, ranks=(2,))
        other = transformed(plain, rng)
        save_workload(plain, tmp_path / f"s{seed}.toml")
        (tmp_path / f"s{seed}.py").write_text(dump_torch_step(other, original=tmp_path / f"s{seed}.toml"))
    started(2, "tests/workload/torch_ranks.py", tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found
    off = {name: each[0] for name, each in found.items() if not each[0] <= 1e-9}
    assert not off


def test_the_reference_distinguishes_norms_of_slices():
    """The reference interpreter gives different values for norms of slices and the norm of the whole.

    Sums of squares of slices may be added up, so splitting these is accepted.
    """
    step = (
        Workload("norm", 2)
        .input("x", (4, 4), dtype="float64", layout="sliced(0)")
        .then("g", "allgather", "x")
    )
    for kind, changes in (("norm", True), ("sum_of_squares", False)):
        whole = step.then("n", kind, "g")
        right = naively(whole, whole.operations)["n"][0]
        made = [naively(whole, operations) for operations in forced(whole, "g", "n")]
        assert any(found is not None and close(right, found["n"][0]) for found in made) != changes
    with pytest.raises(WorkloadError, match="n: norm.*insert a collective first"):
        reorder(step.then("n", "norm", "g"), "g", "n")

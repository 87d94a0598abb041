"""Operations of transformers: every layout that is accepted gives the values of the whole arrays."""

import contextlib
import itertools
import json
import random
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from taccl import Workload
from taccl.errors import WorkloadError
from taccl.workload import load_workload, overlap, save_workload
from taccl.workload.costs import work_of
from taccl.workload.fx_operations import READERS
from taccl.workload.kind_rules import groups_of_axes
from taccl.workload.kinds import TABLE
from taccl.workload.meaning import random_inputs
from taccl.workload.operations import COLLECTIVES, KINDS, Tensor
from taccl.workload.torch_program import dump_torch_step
from tests.fuzzing import MANY
from tests.pytorch import needs_torch, started

RANKS = 2
ROWS, IDS = (4, 6, 8), (4, 6)
QUERY, KEY, VALUE, MADE = (4, 2, 6, 8), (4, 2, 4, 8), (4, 2, 4, 2), (4, 2, 6, 2)
ATTENTION = ([QUERY, KEY, VALUE], {}), ([QUERY, KEY, VALUE, (6, 4)], {"causal": True, "value": 0.5})
GRADS = (
    ([MADE, QUERY, KEY, VALUE], {"causal": True}),
    ([MADE, QUERY, KEY, VALUE, (4, 1, 6, 4)], {"value": 2.0}),
)
#: {kind: [(shapes of the operands, options)]}; "ids" and "mask" stand for operands of token ids and masks.
CASES = {
    "reshape": [
        ([ROWS], {"shape": (24, 8)}),
        ([ROWS], {"shape": (4, 6, 2, 4)}),
        ([(4, 2, 4)], {"shape": (4, 8)}),
    ],
    "narrow": [([ROWS], {"axis": 1, "start": 2, "stop": 5})],
    "pad": [([ROWS], {"axis": 1, "start": 2, "stop": 9})],
    "concat": [([ROWS, (4, 2, 8)], {"axis": 1})],
    "embedding": [([(10, 8), "ids"], {})],
    "embedding_grad": [([ROWS, "ids"], {"stop": 10})],
    "pick": [([ROWS, "ids"], {})],
    "one_hot": [(["ids"], {"stop": 10})],
    "attention": ATTENTION,
    **{f"attention_grad_{name}": GRADS for name in ("query", "key", "value")},
    "layernorm": [([ROWS], {"value": 0.1})],
    "layernorm_grad": [([ROWS, ROWS], {})],
    "softmax_grad": [([ROWS, ROWS], {})],
    "log_softmax": [([ROWS], {})],
    "log_softmax_grad": [([ROWS, ROWS], {})],
    "power": [([ROWS], {"value": 2.0})],
    "erf": [([ROWS], {})],
    "where": [(["mask", ROWS, (8,)], {})],
    "repeat": [([ROWS], {"axis": 1, "stop": 3}), (["ids"], {"axis": 0, "stop": 2})],
    "less": [([ROWS, ROWS], {}), (["ids"], {"value": 1.0})],
    "equal": [(["ids", "ids"], {}), ([ROWS], {"value": 0.5})],
    "logical_not": [(["mask"], {})],
    "logical_and": [(["mask", "mask"], {})],
    "expand": [([(8,), ROWS], {}), ([(1, 1), (6, 1)], {})],
    "minimum": [([ROWS, (6, 1)], {})],
    "cos": [([ROWS], {})],
    "masked_fill": [([ROWS, "mask"], {"value": -2.0}), ([ROWS, "mask"], {"value": float("-inf")})],
}


def step_of(kind, shapes, options, layouts):
    """A step of one operation on inputs in the given layouts, or on one rank without layouts."""
    inputs = []
    for at, shape in enumerate(shapes):
        dtype = {"ids": "int64", "mask": "bool"}.get(shape, "float64")
        size = IDS if shape == "ids" else ROWS if shape == "mask" else shape
        inputs.append(Tensor(f"i{at}", size, dtype, layouts[at] if layouts else "replicated"))
    step = Workload("one", RANKS if layouts else 1, tuple(inputs))
    return step.then("out", kind, *(f"i{at}" for at in range(len(shapes))), **options)


def whole(step, name, arrays):
    """Whole array of a tensor, from the arrays of all ranks."""
    tensor = step.tensors[name]
    if tensor.layout == "partial":
        return np.sum(arrays, axis=0)
    return arrays[0] if tensor.axis is None else np.concatenate(arrays, axis=tensor.axis)


@cache
def accepted(kind, number):
    """Steps of a case with every combination of operand layouts (at most 201, drawn at random) that the operation
    accepts."""
    (shapes, options), choices = CASES[kind][number], []
    for shape in shapes:
        count = len({"ids": IDS, "mask": ROWS}.get(shape, shape))
        is_sum = not isinstance(shape, str)  # ids and masks are no sums
        choices.append(["replicated", *(f"sliced({axis})" for axis in range(count)), *["partial"] * is_sum])
    every = list(itertools.product(*choices))
    if len(every) > 200:
        every = [every[0], *random.Random(0).sample(every[1:], 200)]
    found = []
    for layouts in every:
        with contextlib.suppress(WorkloadError):
            found.append(step_of(kind, shapes, options, layouts))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_accepted_layouts_keep_the_values(kind):
    """With any accepted layouts, ranks together hold the result that one rank computes from whole arrays."""
    tried = 0
    for number, (shapes, options) in enumerate(CASES[kind]):
        alone = step_of(kind, shapes, options, ())
        for step in accepted(kind, number):
            given = random_inputs(step, seed=3)
            wanted = alone.run({name: [whole(step, name, arrays)] for name, arrays in given.items()})["out"][
                0
            ]
            np.testing.assert_allclose(
                whole(step, "out", step.run(given)["out"]), wanted, rtol=1e-9, atol=1e-12
            )
            tried += 1
    assert tried >= 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_tiles_keep_the_values(kind):
    """An operation in tiles, along any axis that allows tiles, has the same values."""
    for number in range(len(CASES[kind])):
        for step in accepted(kind, number):
            values = step.run(seed=1)["out"]
            for axis in range(len(step.tensors["out"].shape)):
                try:
                    tiled = overlap(step, ["out"], tiles=2, axis=axis)
                except WorkloadError:
                    continue
                for one, two in zip(values, tiled.run(seed=1)["out"], strict=True):
                    np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_queries_that_read_no_key_give_zeros():
    """A query whose mask hides every key gives zeros, as do its gradients, like in PyTorch."""
    arrays = [np.ones(QUERY), np.ones(KEY), np.ones(VALUE), np.zeros((6, 4), dtype=bool)]
    shapes = [each.shape for each in arrays]
    for kind, given in (("attention", arrays), ("attention_grad_key", [np.ones(MADE), *arrays])):
        step = Workload("one", 1)
        for at, each in enumerate(given):
            step = step.input(f"i{at}", each.shape, dtype="float64" if each.dtype == float else "bool")
        step = step.then("out", kind, *(f"i{at}" for at in range(len(given))))
        found = step.run({f"i{at}": [each] for at, each in enumerate(given)})["out"][0]
        assert not found.any(), shapes


def test_infinities_are_kept_in_files(tmp_path):
    """A step with a mask of minus infinity is the same when it is read again, from TOML and JSON."""
    step = step_of("masked_fill", [ROWS, "mask"], {"value": float("-inf")}, ())
    for name in ("step.toml", "step.json"):
        save_workload(step, tmp_path / name)
        assert load_workload(tmp_path / name) == step


def summed(step):
    """The step, with an allreduce of its result if that is partial."""
    if step.tensors["out"].layout != "partial":
        return step
    overlaps = tuple(replace(each, operations=("part",)) for each in step.overlaps)
    part = tuple(replace(each, name="part") for each in step.operations)
    return replace(step, operations=part, overlaps=overlaps, returned=()).then("out", "allreduce", "part")


def written(folder):
    """Write programs of every kind, on slices and in tiles, to compare with the step on whole arrays; yield
    their names."""
    rng = random.Random(0)
    for kind, some in CASES.items():
        for at, (shapes, options) in enumerate(some):
            whole_step = step_of(kind, shapes, options, ("replicated",) * len(shapes))
            save_workload(whole_step, folder / "whole.toml", overwrite=True)
            plain = [step for step in accepted(kind, at)
                     if all(each.layout != "partial" for each in step.inputs)]  # fmt: skip
            tiled = []
            for step in plain:
                for axis in range(len(step.tensors["out"].shape)):
                    with contextlib.suppress(WorkloadError):
                        tiled.append(overlap(step, ["out"], tiles=2, axis=axis))
            chosen = [
                each
                for group in (plain, tiled)
                for each in rng.sample(group, min(8 if MANY else 1, len(group)))
            ]
            for number, step in enumerate(map(summed, chosen)):
                name = f"{kind}_{at}_{number}"
                (folder / f"{name}.py").write_text(dump_torch_step(step, original=folder / "whole.toml"))
                yield name


@needs_torch
@pytest.mark.slow
def test_written_parts_keep_the_values(tmp_path):
    """On gloo, generated programs on slices and in tiles give the same values as the step on whole arrays."""
    names = [*written(tmp_path)]
    started(2, "tests/workload/torch_ranks.py", tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    assert {*found} == {*names}
    assert not {name: each[0] for name, each in found.items() if not each[0] <= 1e-9}


def test_gradients_agree_with_finite_differences():
    """Each gradient agrees with finite differences of the function along random directions."""
    rng = np.random.default_rng(0)
    pairs = [("attention", ATTENTION[0][0], {"causal": True}, f"attention_grad_{name}", at)
             for at, name in enumerate(("query", "key", "value"))]  # fmt: skip
    pairs += [("layernorm", [ROWS], {}, "layernorm_grad", 0), ("softmax", [ROWS], {}, "softmax_grad", 0),
              ("log_softmax", [ROWS], {}, "log_softmax_grad", 0)]  # fmt: skip
    for kind, shapes, options, gradient, at in pairs:
        step = step_of(kind, shapes, options, ())
        given = {f"i{i}": [rng.normal(size=shape)] for i, shape in enumerate(shapes)}
        way, eps = rng.normal(size=shapes[at]), 1e-5
        out = step.run(given)["out"][0]
        grad = rng.normal(size=out.shape)
        ends = [step.run(given | {f"i{at}": [given[f"i{at}"][0] + s * eps * way]})["out"][0] for s in (1, -1)]
        wanted = np.sum(grad * (ends[0] - ends[1])) / (2 * eps)
        read = [out] if gradient.endswith("softmax_grad") else [given[f"i{i}"][0] for i in range(len(shapes))]
        backward = step_of(gradient, [out.shape, *(each.shape for each in read)], options, ())
        found = backward.run({f"i{i}": [each] for i, each in enumerate((grad, *read))})["out"][0]
        np.testing.assert_allclose(np.sum(found * way), wanted, rtol=1e-5)


def test_the_table_has_every_kind():
    """The table of kinds has every kind of computation except `compute`, whose function is unknown."""
    assert {*KINDS} == {*TABLE, *COLLECTIVES, "compute"}


@pytest.mark.parametrize(
    ("before", "after", "groups"),
    [
        ((4, 6, 8), (24, 8), [((0, 1), (0,)), ((2,), (1,))]),
        ((4, 8), (4, 2, 4), [((0,), (0,)), ((1,), (1, 2))]),
        ((8,), (1, 8, 1), [((0,), (0, 1)), ((), (2,))]),
        ((6, 4), (4, 6), [((0, 1), (0, 1))]),
        ((1,), (), [((0,), ())]),
    ],
)
def test_groups_of_axes_have_as_many_elements(before, after, groups):
    """For a reshape, consecutive axes before and after are grouped into the shortest ranges with equal
    numbers of elements."""
    found = [(tuple(one), tuple(two)) for one, two in groups_of_axes(before, after)]
    assert found == groups


@pytest.mark.parametrize(
    ("kind", "shapes", "options", "layouts", "said"),
    [
        ("reshape", [ROWS], {"shape": (24, 8)}, ("sliced(1)",), "is over axis 1 of i0, which is sliced over ranks"),
        ("reshape", [ROWS], {"shape": (5, 8)}, ("replicated",), "found 192 elements of shape .*, and 40 for shape"),
        ("embedding", [(10, 8), (4, 6)], {}, ("replicated",) * 2, "is of float64; expected int64 or int32"),
        ("attention", [QUERY, KEY, VALUE, (3,)], {}, ("replicated",) * 4, r"a mask of shape \(3,\); expected one that"),
        ("attention", [QUERY, KEY, VALUE, (1, *QUERY)], {}, ("replicated",) * 4, "a mask of shape"),
        ("concat", ["ids", (4, 2)], {"axis": 1}, ("replicated",) * 2, "of float64; expected int64"),
        ("concat", [(4, 2), "ids"], {"axis": 1}, ("replicated",) * 2, "of int64; expected float64"),
        ("less", [ROWS], {"value": 1.0}, ("partial",), "is not linear in i0"),
        ("less", [ROWS], {}, ("replicated",), "give two inputs, or one and a value"),
        ("scale", [ROWS], {"value": float("inf")}, ("replicated",), "found value inf; scale takes a finite number"),
        ("add", ["ids", "ids"], {}, ("replicated",) * 2, "is of int64; expected float64"),
        ("attention", [QUERY, KEY, VALUE], {}, ("replicated", "sliced(2)", "sliced(2)"), "axis 2 of i1"),
        ("narrow", [ROWS], {"axis": 1, "stop": 7}, ("replicated",), "0 to 7 of axis 1, which has length 6"),
    ],
)  # fmt: skip
def test_what_has_no_layout_is_refused(kind, shapes, options, layouts, said):
    """Operands whose layouts admit no result are refused, with the operand and the reason."""
    with pytest.raises(WorkloadError, match=said):
        step_of(kind, shapes, options, layouts)


def test_ids_are_no_sum():
    """Token ids may not be partial, as a sum of ids is not an id."""
    with pytest.raises(WorkloadError, match="ids: is partial and of int64"):
        _ = Workload("ids", 2).input("ids", (4,), dtype="int64", layout="partial").tensors


def test_work_of_attention_is_that_of_its_products():
    """Attention has two products forward and five backward, half of each with a causal mask."""
    step = step_of("attention", [QUERY, (4, 2, 6, 8), (4, 2, 6, 8)], {}, ())
    product = 2 * 4 * 2 * 6 * 6 * 8
    assert work_of(step, step.operation["out"])[0] == 2 * product
    half = step_of("attention", [QUERY, (4, 2, 6, 8), (4, 2, 6, 8)], {"causal": True}, ())
    assert work_of(half, half.operation["out"])[0] == product
    grads = [step_of(f"attention_grad_{name}", 4 * [QUERY], {}, ()) for name in ("query", "key", "value")]
    assert sum(work_of(each, each.operation["out"])[0] for each in grads) == 5 * product


def test_the_page_lists_what_the_table_has():
    """The page's tables of kinds and of PyTorch operations equal those of the code."""
    page = (Path(__file__).parents[2] / "docs" / "workload.md").read_text(encoding="utf-8")
    for name, kind in TABLE.items():
        options = ", ".join(f"`{option.lower()}`" for option in kind.options)
        assert f"| `{name}` | {options} | {kind.says} |\n" in page
    names = sorted(name.removeprefix("aten.") for name in READERS if name.startswith("aten."))
    assert ", ".join(f"`{name}`" for name in names) in " ".join(page.split())


@pytest.mark.parametrize(
    ("dtype", "value", "said"),
    [
        ("int64", 0.5, "found value 0.5 for int64; give a whole number, or cast first"),
        ("int32", float("-inf"), "found value -inf for int32; give a whole number"),
        ("bool", 2.0, "found value 2.0 for bool; give 0 or 1"),
    ],
)
def test_values_that_a_type_does_not_have_are_refused(dtype, value, said):
    """The fill value of an integer tensor must be a whole number, that of a mask 0 or 1."""
    step = Workload("fill", 2).input("x", (4,), dtype=dtype).input("mask", (4,), dtype="bool")
    with pytest.raises(WorkloadError, match=re.escape(said)):
        step.then("y", "masked_fill", "x", "mask", value=value)
    assert step.then("y", "masked_fill", "x", "mask", value=1.0).tensors["y"].dtype == dtype

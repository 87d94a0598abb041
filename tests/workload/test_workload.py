"""Steps: text, values, files, transformations and errors."""

from fractions import Fraction

import numpy as np
import pytest

from benchmarks.workload import CASES
from taccl import Workload
from taccl.errors import WorkloadError
from taccl.workload import Rates, fuse, load_workload, overlap, reorder, save_workload, slice_state, split
from taccl.workload.autotransform import fused, sharded
from taccl.workload.costs import tile_costs, work_of
from taccl.workload.files import schema


@pytest.fixture
def layer():
    """A matrix product over slices of two ranks, its allreduce, a bias and dropout."""
    step = Workload("layer", 2).input("x", (4, 6), layout="sliced(1)").input("w", (6, 8), layout="sliced(0)")
    step = step.input("b", (8,)).then("y", "matmul", "x", "w").then("sum", "allreduce", "y")
    return step.then("z", "add", "sum", "b").then("out", "dropout", "z", value=0.5)


@pytest.fixture
def adam():
    """A training step with momentum on two ranks; momentum and parameters are replicated."""
    step = Workload("momentum", 2).input("g", (8,), layout="partial").input("m", (8,)).input("p", (8,))
    step = (
        step.then("sum", "allreduce", "g")
        .then("old", "scale", "m", value=0.9)
        .then("m_new", "add", "old", "sum")
    )
    step = step.then("p_new", "subtract", "p", "m_new").updating(m="m_new", p="p_new")
    return step.returning("p_new")


def test_a_step_reads_as_a_program(layer):
    """The repr of a step shows inputs with layouts, operations in order, and returned values."""
    assert repr(layer).splitlines()[1:] == [
        "  x: float32[4, 6] sliced(1)",
        "  w: float32[6, 8] sliced(0)",
        "  b: float32[8] replicated",
        "  y = matmul(x, w)    float32[4, 8] partial",
        "  sum = allreduce(y)    float32[4, 8] replicated",
        "  z = add(sum, b)    float32[4, 8] replicated",
        f"  out = dropout(z, value=0.5, seed={layer.operation['out'].seed})    float32[4, 8] replicated",
        "  return out",
    ]


def test_the_sum_of_partial_products_is_the_product(layer):
    """The allreduced partial products equal numpy's product of the whole arrays."""
    x, w = np.arange(24.0).reshape(4, 6), np.arange(48.0).reshape(6, 8)
    found = layer.run({"x": np.split(x, 2, axis=1), "w": np.split(w, 2, axis=0), "b": [np.ones(8)] * 2})
    for rank in range(2):
        np.testing.assert_allclose(found["z"][rank], x @ w + 1)


def test_files_hold_all_of_a_step(layer, adam, tmp_path):
    """TOML and JSON files keep overlaps, fused operations and state."""
    tiled = overlap(fuse(layer, "sum", "z"), ["y", "sum", "z"], tiles=2)
    kernel = Workload("k", 2).then("g", "compute", shape=(4,), layout="partial", cost_us=1.5)
    for name in ("step.toml", "step.json"):
        for step in (tiled, slice_state(reorder(split(adam, "sum"), "sum"), "m"), kernel):
            save_workload(step, tmp_path / name, overwrite=True)
            assert load_workload(tmp_path / name) == step
    with pytest.raises(ValueError, match="exists"):
        save_workload(kernel, tmp_path / "step.toml")


def test_an_invalid_path_is_named():
    """The error for a path that is a number names the value."""
    with pytest.raises(WorkloadError, match="path: found 0; expected text or a path"):
        load_workload(0)


def test_the_schema_names_what_files_may_say():
    """The schema lists exactly the fields that files may have."""
    assert set(schema()["properties"]) == {
        "name", "num_ranks", "inputs", "operations", "returned", "state", "overlaps", "mesh", "pieces",
    }  # fmt: skip
    assert schema()["additionalProperties"] is False


def test_sliced_state_is_one_nth(adam):
    """Each of two ranks keeps half of a sliced state, `m`; `p` stays replicated, as all ranks read it.

    Both have 8 floats.
    """
    sliced = slice_state(reorder(split(adam, "sum"), "sum"), "m")
    assert (adam.state_bytes, sliced.state_bytes) == (64, 16 + 32)
    with pytest.raises(WorkloadError, match="p: is replaced by p_new, which the step returns whole"):
        slice_state(reorder(split(adam, "sum"), "sum"), "p")
    inputs = {"g": [np.ones(8), np.arange(8.0)], "m": [np.ones(8)] * 2, "p": [np.zeros(8)] * 2}
    whole, parts = adam.run(inputs), sliced.run(inputs | {"m": [np.ones(4)] * 2})
    np.testing.assert_allclose(np.concatenate(parts["m_new"]), whole["m_new"][0])
    for rank in range(2):
        np.testing.assert_allclose(parts["p_new"][rank], whole["p_new"][rank])


def test_tiles_of_slices_are_a_part_of_each():
    """Along the axis that a reduce-scatter slices, a tile contains a part of every slice."""
    step = Workload("t", 2).input("g", (8,), layout="partial").then("s", "reduce_scatter", "g", axis=0)
    step = step.then("u", "square", "s").then("out", "allgather", "u")
    tiled = overlap(step, ["s", "u", "out"], tiles=2)
    given = {"g": [np.arange(8.0), np.ones(8)]}
    np.testing.assert_allclose(tiled.run(given)["out"][0], (np.arange(8.0) + 1) ** 2)


def test_a_tile_of_columns_is_normed_by_whole_rows():
    """A layernorm in two tiles of columns normalizes whole rows, and so equals the untiled one."""
    step = Workload("rows", 2).input("x", (4, 6), layout="sliced(0)").then("n", "layernorm", "x")
    step = step.then("out", "subtract", "n", "x")
    tiled = overlap(step, ["n", "out"], tiles=2, axis=1)
    values = {"x": [np.arange(12.0).reshape(2, 6) ** 2, np.arange(12.0, 24.0).reshape(2, 6) ** 2]}
    for once, twice in zip(step.run(values)["out"], tiled.run(values)["out"], strict=True):
        assert once.shape == (2, 6)
        assert np.allclose(once, twice)


@pytest.mark.slow
def test_casts_move_before_what_gathers_them():
    """If slices of parameters are cast to bfloat16 before the allgather, it sends half as many bytes."""
    step = Workload("cast", 2).input("p", (8,), layout="sliced(0)").then("all", "allgather", "p")
    step = reorder(step.then("low", "cast", "all", dtype="bfloat16"), "all", "low")
    assert [each.kind for each in step.operations] == ["cast", "allgather"]
    assert step.tensors["low"].num_bytes == 16
    values = step.run({"p": [np.full(4, 1.003), np.full(4, 1 + 2**-8)]})["low"][0]
    np.testing.assert_array_equal(values, 1)  # neighbours are 2**-7 apart, and ties go to even numbers


def test_casts_of_partial_sums_only_widen():
    """A narrowing cast of partial sums is refused, as rounded parts do not add up to the rounded sum."""
    step = Workload("cast", 2).input("g", (8,), layout="partial").then("sum", "allreduce", "g")
    low = step.then("low", "cast", "sum", dtype="bfloat16")
    with pytest.raises(WorkloadError, match="low: cast to bfloat16 rounds each part of g"):
        reorder(low, "sum", "low")
    wide = step.then("wide", "cast", "sum", dtype="float64")
    assert [each.kind for each in reorder(wide, "sum", "wide").operations] == ["cast", "allreduce"]


def test_slices_follow_a_transpose():
    """If a tensor sliced along axis 0 of three is transposed, slices are along axis 2; gathered, they equal
    numpy's transpose."""
    step = Workload("turn", 2).input("x", (4, 2, 3), layout="sliced(0)").then("all", "allgather", "x")
    step = step.then("t", "transpose", "all", axes=(2, 1, 0))
    turned = reorder(step, "all", "t")
    assert turned.tensors["t_slice"].layout == "sliced(2)"
    x = np.arange(24.0).reshape(4, 2, 3)
    np.testing.assert_array_equal(turned.run({"x": np.split(x, 2)})["t"][1], x.T)


def test_softmax_is_over_whole_rows():
    """Softmax rows add up to 1, also in tiles; sliced rows are refused."""
    step = Workload("rows", 2).input("x", (4, 6), layout="sliced(0)").then("s", "softmax", "x")
    tiled = overlap(step.then("all", "allgather", "s"), ["s", "all"], tiles=2)
    np.testing.assert_allclose(tiled.run()["all"][0].sum(axis=-1), 1, rtol=1e-6)
    with pytest.raises(WorkloadError, match="s: softmax is over axis 0 of x.*insert a collective first"):
        Workload("rows", 2).input("x", (4,), layout="sliced(0)").then("s", "softmax", "x")


def test_work_follows_from_shapes(layer):
    """For its part of a product, a rank does 2 x 4 x 3 x 8 operations.

    It reads 4 x 3 + 3 x 8 floats, and writes 4 x 8.
    """
    assert work_of(layer, layer.operation["y"]) == (192, 4 * (12 + 24 + 32))
    assert work_of(layer, layer.operation["z"]) == (0, 4 * (32 + 8 + 32))
    assert work_of(fuse(layer, "sum", "z"), layer.operation["z"].__class__("z", "add", ("sum", "b"), fused="sum")) == (
        0, 4 * 8,
    )  # fmt: skip


def test_an_input_that_is_named_twice_is_read_once():
    """An operand named twice counts once in memory traffic.

    Each of two ranks squares 8 floats, and the product of a 6 x 6 matrix with itself reads and writes 6 x 6.
    """
    step = Workload("twice", 2).input("x", (16,), layout="sliced(0)").input("a", (6, 6), layout="replicated")
    step = step.then("square", "multiply", "x", "x").then("product", "matmul", "a", "a")
    assert bytes_of(step, "square") == 4 * (8 + 8)
    assert bytes_of(step, "product") == 4 * (36 + 36)


def bytes_of(step, name):
    """Memory traffic of one rank for an operation, in bytes."""
    return work_of(step, step.operation[name])[1]


def test_fused_state_is_written(adam):
    """After fusion `m_new` reads `old` and `p_new` reads `p` from memory; new state is written (8 floats
    each)."""
    fused = fuse(adam, "sum", "m_new", "p_new")
    assert bytes_of(fused, "m_new") == 4 * (8 + 8)  # reads old, writes m_new
    assert bytes_of(fused, "p_new") == 4 * (8 + 8)  # reads p, writes p_new
    assert bytes_of(adam, "m_new") == 4 * (8 + 8 + 8)


def test_fused_state_of_slices_is_written(adam):
    """Each of two ranks writes the 4 floats of momentum that it keeps; the allgather sends from registers."""
    step = slice_state(reorder(split(adam, "sum"), "sum"), "m")
    scatter = next(each.name for each in step.operations if each.kind == "reduce_scatter")
    fused = fuse(step, scatter, "m_new", "p_new_slice")
    assert bytes_of(fused, "m_new") == 4 * (4 + 4)  # reads its part of old, writes its part of m_new
    assert bytes_of(fused, "p_new_slice") == 4 * 4  # reads its part of p


def test_what_only_fused_operations_read_is_not_written(layer):
    """A fused kernel reads only the bias: `z` stays in registers, and `out` reuses the sum's buffer."""
    fused = fuse(layer, "sum", "z", "out")
    assert bytes_of(fused, "z") == 4 * 8
    assert bytes_of(fused, "out") == 0


def test_one_result_takes_the_place_of_the_sum(layer):
    """One of two fused results is written into the sum's buffer. If the sum is returned as well, 4 x 8 more
    floats are written."""
    both = fuse(layer.returning("z", "out"), "sum", "z", "out")
    assert bytes_of(both, "z") == 4 * (8 + 32)
    assert bytes_of(both, "out") == 0
    with_sum = fuse(layer.returning("sum", "out"), "sum", "z", "out")
    assert bytes_of(with_sum, "out") == 4 * 32


def test_one_kernel_reads_and_writes_each_tensor_once(adam):
    """Momentum and parameters of 8 floats: three tensors are read, two written; `old` stays in registers."""
    fused = fuse(adam, "m_new", "old", "p_new")
    assert sum(bytes_of(fused, name) for name in ("old", "m_new", "p_new")) == 4 * 8 * (3 + 2)
    assert [each.fused for each in fused.operations] == ["", "", "old", "old"]


def test_the_time_of_a_fused_kernel_is_assigned_to_its_first_operation(adam):
    """The time of a fused kernel is assigned to its first operation: at 1 GB/s its 160 bytes take 160 ns."""
    costs = tile_costs(fuse(adam, "old", "m_new", "p_new"), Rates(1, 1))
    assert costs == {"sum": 0, "old": Fraction(160, 1000), "m_new": 0, "p_new": 0}


def test_a_kernel_waits_for_all_that_it_reads(adam):
    """A kernel waits for all its inputs: `m` of the first operation, the sum and the parameters."""
    fused = fuse(adam, "old", "m_new", "p_new")
    assert fused.waits["old"] == ("m", "sum", "p")
    assert list(fused.operation) == ["sum", "old", "m_new", "p_new"]
    assert ("sum", 0) in fused.tiles["old", 0]


def test_a_norm_may_end_a_kernel():
    """A kernel ending in a norm reads 8 floats once, and writes the square and one number."""
    step = Workload("norms", 2).input("x", (8,)).then("y", "square", "x").then("n", "norm", "y")
    fused = fuse(step.returning("y", "n"), "y", "n")
    assert bytes_of(fused, "y") + bytes_of(fused, "n") == 4 * (8 + 8 + 1)


def test_what_a_collective_is_to_combine_with_is_fused_too(adam):
    """The operation `old`, fused into the collective's kernel, runs after the sum, and its result is not
    written to memory."""
    fused = fuse(adam, "sum", "m_new", "old", "p_new")
    assert bytes_of(fused, "old") == 4 * 8
    assert fused.waits["old"] == ("m", "sum")
    inputs = {"g": [np.ones(8), np.arange(8.0)], "m": [np.ones(8)] * 2, "p": [np.zeros(8)] * 2}
    np.testing.assert_allclose(fused.run(inputs)["p_new"][0], adam.run(inputs)["p_new"][0])


def test_fair_baselines_of_adam():
    """Adam on 8 ranks: one fused kernel moves 7 tensors through memory, ZeRO-1 an eighth of that, the plain
    program 30."""
    adam = CASES["adam"](8)
    one, zero = fused(adam, collectives=False), fused(sharded(adam, ["sum"]), collectives=False)
    size = adam.tensors["p"].num_bytes
    moved = [sum(bytes_of(step, each.name) for each in step.operations if not each.is_collective) / size
             for step in (adam, one, zero)]  # fmt: skip
    assert moved == [30, 7, 7 / 8]
    assert [
        sum(not (each.fused or each.is_collective) for each in step.operations) for step in (one, zero)
    ] == [1, 1]


def test_a_larger_result_than_the_buffer_is_written_for_the_rest(layer):
    """If a fused result is larger than the collective's buffer, the part that does not fit counts as memory
    traffic.

    A float64 bias makes `z` 4 x 8 numbers of 8 bytes, of which the sum's buffer holds 4 bytes each.
    """
    step = Workload("wide", 2).input("x", (4, 8), layout="partial").input("b", (8,), dtype="float64")
    step = fuse(step.then("sum", "allreduce", "x").then("z", "add", "sum", "b"), "sum", "z")
    assert bytes_of(step, "z") == 8 * 8 + 32 * (8 - 4)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda s: s.then("n", "add", "x", "nowhere"), "n: reads 'nowhere', which nothing makes"),
        (
            lambda s: s.input("odd", (3,), layout="sliced(0)"),
            "odd: axis 0 of length 3 does not divide into 2",
        ),
        (lambda s: s.then("n", "scale", "x", value=2, cost_us=-1), "n: found cost_us -1"),
        (lambda s: s.then("n", "scale", "x"), "n: scale needs value"),
        (lambda s: s.then("n", "sclae", "x", value=2), "did you mean 'scale'"),
        (lambda s: s.then("y", "scale", "x", value=2), "y: the name is taken"),
        (lambda s: s.then("n", "add", "y", "b"), "n: add of y, which is partial"),
        (lambda s: s.then("n", "relu", "y"), "n: relu is not linear in y"),
        (lambda s: s.then("n", "allreduce", "x"), "n: allreduce needs a partial tensor; x is sliced"),
        (lambda s: s.then("n", "norm", "x"), "n: norm is over axis 1 of x.*insert a collective first"),
        (lambda s: s.then("n", "layernorm", "x"), "n: layernorm is over axis 1 of x"),
        (lambda s: s.updating(b="z"), "b: is .* its replacement z"),
        (lambda s: s.returning("zz"), "returned: found 'zz'; expected one of "),
        (lambda s: split(s, "y"), "y: is a matmul"),
        (lambda s: reorder(s, "sum", "z"), "z: add of y, which is partial"),
        (lambda s: reorder(s, "sum", "out"), "out: does not read sum"),
        (lambda s: fuse(s, "sum", "out"), "out: does not read sum"),
        (lambda s: fuse(s, "z", "y"), "z: does not read y or its fused operations"),
        (
            lambda s: fuse(s.then("n", "norm", "z").then("q", "divide", "z", "n"), "z", "q"),
            "q: reads n, which is made after z",
        ),
        (
            lambda s: fuse(s.then("n", "norm", "z").then("q", "divide", "z", "n"), "z", "n", "q"),
            "n: is a norm, which q reads in the same kernel",
        ),
        (
            lambda s: fuse(s.then("n", "norm", "z").then("q", "scale", "n", value=2), "n", "q"),
            "n: is a norm, which can only end a kernel",
        ),
        (lambda s: fuse(s.then("q", "relu", "w"), "z", "q"), "q: does not read z"),
        (lambda s: fuse(fuse(s, "z", "out"), "sum", "z"), "z: heads another kernel"),
        (lambda s: overlap(s, ["y", "sum"], tiles=8), "more tiles than chunks"),
        (lambda s: overlap(s, ["y", "sum"], tiles=3), "y: axis 0 of length 4 does not divide into 3 tiles"),
        (lambda s: overlap(s, ["y", "out"], tiles=2), "out: reads no result of the overlap"),
        (lambda s: slice_state(s, "x"), "x: is not a state of the step"),
        (lambda s: split(overlap(s, ["y", "sum"], tiles=2), "sum"), "sum: overlaps already"),
    ],
)
def test_what_is_wrong_is_named_with_its_operation(layer, make, said):
    """The error for an invalid operation or call of a step names the operation."""
    with pytest.raises(WorkloadError, match=said) as found:
        make(layer)
    assert "\n" not in str(found.value)


def test_norms_of_partial_tiles_are_refused(layer):
    """An overlap with a norm is refused, as a norm needs all tiles of its input."""
    step = layer.then("n", "norm", "out")
    with pytest.raises(WorkloadError, match="n: reads all of out along axis 0"):
        overlap(step, ["out", "n"], tiles=2)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_product_of_a_tensor_with_itself_is_no_tile(axis):
    """An overlap is refused if an operation reads one tensor twice, once by tiles and once as a whole."""
    step = Workload("w", 2).input("x", (4, 4)).then("y", "relu", "x").then("z", "matmul", "y", "y")
    with pytest.raises(WorkloadError, match=f"z: reads all of y along axis {axis} for each of its tiles"):
        overlap(step.returning("z"), ["y", "z"], tiles=2, axis=axis)


def test_an_overlap_must_not_wait_for_itself():
    """An overlap is refused if an operation outside it reads a result of the overlap, and the overlap reads
    that operation's result."""
    step = (
        Workload("w", 2)
        .input("x", (4,))
        .then("a", "relu", "x")
        .then("n", "norm", "a")
        .then("c", "multiply", "a", "n")
    )
    with pytest.raises(WorkloadError, match="overlaps with operations that depend on its results"):
        overlap(step, ["a", "c"], tiles=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "w"\nnum_ranks = 2\n[[operations]]\nname = "a"\nkind = "relu"\ninputs = ["b"]\n'
         '[[operations]]\nname = "b"\nkind = "relu"\ninputs = ["a"]\n', "a: reads b, which depends on a: a cycle"),
        ('name = "w"\nnum_ranks = 2\n[[inputs]]\nname = "x"\nshape = [2]\n[[operations]]\nname = "a"\nkind = "relu"\n'
         'inputs = ["b"]\n[[operations]]\nname = "b"\nkind = "relu"\ninputs = ["x"]\n', "a: reads b before it is made"),
        ('name = "w"\nnum_ranks = 0\n', "num_ranks: found 0"),
        ('name = "w"\nnum_ranks = 2\nranks = 3\n', "ranks: found an unknown field"),
    ],
)  # fmt: skip
def test_files_that_make_no_step_are_refused(tmp_path, text, said):
    """The error for an invalid step file names the file and the operation."""
    path = tmp_path / "step.toml"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=said) as found:
        load_workload(path)
    assert str(path) in str(found.value)


def test_rates_are_positive():
    """Processor rates of 0 or less are refused."""
    with pytest.raises(WorkloadError, match="above 0"):
        Rates(0, 1)


def test_kernels_that_wait_for_each_other_are_refused():
    """A fusion is refused if two kernels would wait for each other.

    Each kernel would read a result of the other.
    """
    step = Workload("two kernels", 2).input("x", (4,)).input("y", (4,))
    step = step.then("a", "relu", "x").then("b", "relu", "y")
    step = step.then("c", "multiply", "a", "b").then("d", "multiply", "b", "a")
    once = fuse(step, "a", "c")
    with pytest.raises(WorkloadError, match="the kernels of a and b wait for each other; fuse fewer"):
        fuse(once, "b", "d")

"""PyTorch graphs as steps: values equal those of torch on real gloo processes, also as generated programs."""

from types import SimpleNamespace

import numpy as np
import pytest

from taccl.errors import LossyConversionWarning, WorkloadError
from taccl.workload import from_fx, load_workload
from taccl.workload.meaning import TOLERANCE
from tests.fuzzing import MANY
from tests.pytorch import made_once, needs_torch, started

GROUPS = ("stage", "decoder", "batches", "one_key_head")
EVERY = ("block", "training", "experts", "encoder", "encoder_as_exported", "rotary", "rotary_as_exported",
         "rotary_training", "classifier", "vision", *GROUPS)  # fmt: skip
#: All steps run on two ranks. Those over dp x tp also run on four; with TACCL_MANY, all do.
CASES = [*((2, name) for name in EVERY), *((4, name) for name in (EVERY if MANY else GROUPS))]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """{number of ranks: folder of imported steps, with outputs of torch and of the generated programs}."""
    return {
        ranks: made_once(
            tmp_path_factory,
            f"fx{ranks}",
            lambda found, ranks=ranks: started(
                ranks, "tests/workload/fx_ranks.py", found, "all" if MANY or ranks == 2 else "groups"
            ),
        )
        for ranks in (2, 4)
    }


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "name"), CASES)
def test_an_imported_step_has_the_values_of_torch(folders, ranks, name):
    """An imported step, run by taccl, gives the outputs of the torch graph on every rank."""
    step = load_workload(folders[ranks] / f"{name}.toml")
    values = step.run()
    for rank in range(ranks):
        found = np.load(folders[ranks] / f"{name}.{rank}.npz")
        for each in step.outputs:
            right = found[f"torch_{each}"]
            off = TOLERANCE[step.tensors[each].dtype] * np.abs(right).max()
            np.testing.assert_allclose(values[each][rank], right, rtol=0, atol=off)


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "name"), CASES)
def test_a_written_step_has_the_values_of_torch(folders, ranks, name):
    """The program generated from a step, transformed if it is short, gives the outputs of the graph."""
    for rank in range(ranks):
        found = np.load(folders[ranks] / f"{name}.{rank}.npz")
        outputs = [key.removeprefix("ours_") for key in found if key.startswith("ours_")]
        assert outputs
        for each in outputs:
            right = found[f"torch_{each}"]
            np.testing.assert_allclose(found[f"ours_{each}"], right, rtol=0, atol=2e-3 * np.abs(right).max())


class Node:
    """A graph node with the fields that the importer reads."""

    def __init__(self, op, name, target="", args=(), shape=(), dtype="torch.float32", schema=()):
        self.op, self.name, self.args, self.kwargs, self.users = op, name, args, {}, {}
        self.target = Target(target, schema) if op == "call_function" else target
        self.meta = {"val": SimpleNamespace(shape=shape, dtype=dtype)}
        for each in args:
            if isinstance(each, Node):
                each.users[self] = None


class Target:
    """A graph operation with the names of its arguments."""

    def __init__(self, name, schema):
        self.name = name
        self._schema = SimpleNamespace(
            arguments=[SimpleNamespace(name=each, default_value=None) for each in schema]
        )

    def __str__(self):
        return f"{self.name}.default"


#: {operator: names of its arguments}.
SCHEMAS = {
    **dict.fromkeys(
        ("aten.add", "aten.add_", "aten.div", "aten.eq", "aten.gt", "aten.mul", "aten.sub"), "self other"
    ),
    **dict.fromkeys(("aten.relu", "aten.sum", "aten.zeros_like"), "self"),
    **dict.fromkeys(("aten.bmm", "aten.mm"), "self mat2"),
    **dict.fromkeys(("aten.cumsum", "aten.unsqueeze"), "self dim"),
    **dict.fromkeys(("aten.expand", "aten.view"), "self size"),
    "_c10d_functional.all_gather_into_tensor": "input group_size group_name",
    "_c10d_functional.all_reduce": "input reduce_op group_name",
    "_c10d_functional.all_to_all_single": "input output_split_sizes input_split_sizes group_name",
    "aten._softmax": "self dim half_to_float",
    "aten.arange": "end",
    "aten.cat": "tensors dim",
    "aten.embedding": "weight indices",
    "aten.permute": "self dims",
    "aten.slice": "self dim start end step",
    "aten.transpose": "self dim0 dim1",
}


def placeholder(name, shape, dtype="torch.float32"):
    """Node of an input."""
    return Node("placeholder", name, shape=shape, dtype=dtype)


def call(name, target, args, shape, dtype="torch.float32"):
    """Node that calls an operator of `SCHEMAS`."""
    return Node("call_function", name, target, args, shape, dtype, SCHEMAS[target].split())


def item(name, source, place, shape):
    """Node that selects one of several results."""
    found = Node("call_function", name, "", (source, place), shape)
    found.target = SimpleNamespace(__name__="getitem")
    return found


def graph(*nodes, returned):
    """A graph of nodes that returns one or several of them."""
    last = Node("output", "output")
    last.args = (returned if isinstance(returned, list) else [returned],)
    for each in last.args[0]:
        each.users[last] = None
    return SimpleNamespace(nodes=[*nodes, last])


def reduced(shape=(4, 8), size=None):
    """A graph that sums its input over ranks."""
    x = placeholder("x", shape)
    y = call("y", "_c10d_functional.all_reduce", (x, "sum", "0"), shape)
    return graph(x, y, returned=y)


def test_an_unknown_operation_is_refused_by_name():
    """The error for an unknown operation of a graph names the operation and its inputs."""
    x = placeholder("x", (4,))
    y = call("y", "aten.cumsum", (x, 0), (4,))
    with pytest.raises(
        WorkloadError, match=r"^y: found aten\.cumsum\.default of x, 0, which is not supported"
    ):
        from_fx(graph(x, y, returned=y), 2)


def test_a_graph_of_modules_is_refused():
    """Calls of modules are refused, as only aten operations have known arguments."""
    x = placeholder("x", (4,))
    y = Node("call_module", "fc", "fc", (x,), (4,))
    with pytest.raises(WorkloadError, match="found call_module fc of x; trace the step with torch.export"):
        from_fx(graph(x, y, returned=y), 2)


@pytest.mark.parametrize(
    ("nodes", "layouts", "said"),
    [
        (reduced(), None, "needs a partial tensor; x is replicated; correct the layouts"),  # as by default
        (reduced(), {"z": "partial"}, "is not an input of the graph.*expected some of x"),
        (reduced(shape=("s0", 8)), None, "trace the step without dynamic shapes"),
        ({}, None, "found a dict; expected a graph"),
    ],
)
def test_graphs_and_layouts_that_do_not_fit_are_refused(nodes, layouts, said):
    """A sum of a tensor that is not partial, an unknown input, a symbolic length, and no graph are refused."""
    with pytest.raises(WorkloadError, match=said):
        from_fx(nodes, 2, layouts=layouts)


def test_layouts_make_tensors_of_local_ones_global():
    """A slice of 4 rows at each of 2 ranks is a tensor of 8 rows."""
    x = placeholder("x", (4, 8))
    y = call("y", "aten.relu", (x,), (4, 8))
    step = from_fx(graph(x, y, returned=y), 2, layouts={"x": "sliced(0)"})
    assert (step.tensors["y"].shape, step.tensors["y"].layout) == ((8, 8), "sliced(0)")


def test_results_of_other_local_shapes_are_refused():
    """A graph whose local shapes differ from those of the layouts is refused."""
    x, b = placeholder("x", (1, 8)), placeholder("b", (2, 8))
    y = call("y", "aten.add", (x, b), (2, 8))
    y.kwargs["alpha"] = 1
    with pytest.raises(WorkloadError, match=r"gives float32\[2, 8\] at each rank.*would give.*\[1, 8\]"):
        from_fx(graph(x, b, y, returned=y), 2, layouts={"x": "sliced(0)"})


def test_a_sliced_axis_that_does_not_match_a_replicated_one_is_refused():
    """A product of slices of 4 columns with a replicated row of 4 is refused: the tensor has 8 columns."""
    x, gain = placeholder("x", (3, 4)), placeholder("gain", (4,))
    y = call("y", "aten.mul", (x, gain), (3, 4))
    with pytest.raises(WorkloadError, match=r"^y: multiply found shapes \(3, 8\) and \(4,\)"):
        from_fx(graph(x, gain, y, returned=y), 2, layouts={"x": "sliced(1)"})


def test_several_process_groups_need_names():
    """Several process groups need names, since a graph names a group without its ranks."""
    x = placeholder("x", (4,))
    y = call("y", "_c10d_functional.all_reduce", (x, "sum", "0"), (4,))
    z = call("z", "_c10d_functional.all_reduce", (x, "sum", "1"), (4,))
    nodes = graph(x, y, z, returned=z)
    layouts = {"x": "partial"}
    with pytest.raises(WorkloadError, match="found process groups '0' and '1'; give mesh= and groups="):
        from_fx(nodes, 4, layouts=layouts)
    mesh = {"mesh": (("dp", 2), ("tp", 2)), "layouts": layouts}
    with pytest.raises(WorkloadError, match="is over process group '1'; name it in groups="):
        from_fx(nodes, 4, groups={"0": "dp"}, **mesh)
    step = from_fx(nodes, 4, groups={"0": "dp", "1": "tp"}, **mesh)
    assert [each.group for each in step.operations] == ["dp", "tp"]


def test_arithmetic_on_ids_is_refused():
    """Arithmetic on token ids is refused, as ids may only be looked up."""
    x = placeholder("ids", (4,), "torch.int64")
    y = call("y", "aten.relu", (x,), (4,))
    with pytest.raises(WorkloadError, match="^y: relu reads ids, which is of int64; expected float64"):
        from_fx(graph(x, y, returned=y), 2)


def looked_up():
    """A graph that looks ids up in a table of four rows."""
    table = placeholder("table", (4, 6))
    ids = placeholder("ids", (3,), "torch.int64")
    y = call("y", "aten.embedding", (table, ids), (3, 6))
    return graph(table, ids, y, returned=y)


def test_ids_and_columns_of_tables_may_be_sliced():
    """An embedding accepts sliced ids, and a table sliced along its columns."""
    step = from_fx(looked_up(), 2, layouts={"ids": "sliced(0)"})
    assert (step.tensors["y"].shape, step.tensors["y"].layout) == ((6, 6), "sliced(0)")
    step = from_fx(looked_up(), 2, layouts={"table": "sliced(1)"})
    assert (step.tensors["y"].shape, step.tensors["y"].layout) == ((3, 12), "sliced(1)")


def test_a_table_sliced_along_its_rows_is_refused():
    """A table sliced along its rows is refused, as a rank would look up global ids in its own rows."""
    with pytest.raises(
        WorkloadError, match=r"^y: aten\.embedding\.default looks up axis 0 of table, which is sliced"
    ):
        from_fx(looked_up(), 2, layouts={"table": "sliced(0)"})


def test_attention_with_dropout_is_refused():
    """Attention with dropout is refused, with node and argument."""
    x = placeholder("x", (1, 2, 4, 8))
    schema = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    name, given = "aten.scaled_dot_product_attention", (x, x, x, None, 0.1, False)
    y = Node("call_function", "y", name, given, (1, 2, 4, 8), schema=schema)
    with pytest.raises(
        WorkloadError, match=r"^y: .*attention\.default has dropout_p=0\.1; only 0 is supported"
    ):
        from_fx(graph(x, y, returned=y), 2)


def test_a_range_along_a_sliced_axis_is_of_each_slice():
    """A range of rows is taken from each rank's slice: rows 1 and 2 of 4 at each of two ranks are 4 rows,
    sliced as the operand is."""
    x = placeholder("x", (4, 2))
    y = call("y", "aten.slice", (x, 0, 1, 3, 1), (2, 2))
    z = call("z", "aten.cat", ([y, x], 0), (6, 2))
    step = from_fx(graph(x, y, z, returned=z), 2, layouts={"x": "sliced(0)"})
    parts = [np.arange(8.0, dtype=np.float32).reshape(4, 2) + 10 * rank for rank in range(2)]
    values = step.run({"x": parts})
    for rank, part in enumerate(parts):
        np.testing.assert_array_equal(values["z"][rank], np.concatenate([part[1:3], part]))


def test_views_that_mix_slices_keep_each_rank_s_rows():
    """A view that flattens two axes keeps the order of each rank's rows, even if the inner axis is sliced."""
    x = placeholder("x", (4, 3, 2))
    y = call("y", "aten.view", (x, [12, 2]), (12, 2))
    z = call("z", "aten._softmax", (y, 0, False), (12, 2))
    back = call("back", "aten.view", (z, [4, 3, 2]), (4, 3, 2))
    y2 = call("y2", "aten.add", (x, back), (4, 3, 2))
    y2.kwargs["alpha"] = 1
    nodes = graph(x, y, z, back, y2, returned=y2)
    for layout in ("sliced(0)", "sliced(1)"):
        step = from_fx(nodes, 2, layouts={"x": layout})
        assert (step.tensors["z"].layout, step.tensors["y2"].layout) == ("sliced(0)", layout)
        parts = [np.random.default_rng(rank).random((4, 3, 2), np.float32) for rank in range(2)]
        values = step.run({"x": parts})
        for rank, part in enumerate(parts):
            rows = np.exp(part) / np.exp(part).sum((0, 1))
            np.testing.assert_allclose(values["y2"][rank], part + rows, rtol=1e-5)


def test_a_batch_of_matrices_may_have_two_sliced_axes():
    """Sequences and heads, each sliced, are merged for products of matrices, and for a softmax of rows."""
    a, b = (placeholder(name, (2, 1, 3, 4)) for name in "ab")
    one, two = (call(f"{each.name}_view", "aten.view", (each, [2, 3, 4]), (2, 3, 4)) for each in (a, b))
    turned = call("turned", "aten.transpose", (two, 1, 2), (2, 4, 3))
    product = call("product", "aten.bmm", (one, turned), (2, 3, 3))
    rows = call("rows", "aten._softmax", (product, -1, False), (2, 3, 3))
    back = call("back", "aten.view", (rows, [2, 1, 3, 3]), (2, 1, 3, 3))
    y = call("y", "aten.relu", (back,), (2, 1, 3, 3))
    layouts = dict.fromkeys("ab", "sliced(0) over dp, sliced(1) over tp")
    step = from_fx(graph(a, b, one, two, turned, product, rows, back, y, returned=y), 4, layouts=layouts,
                   mesh=(("dp", 2), ("tp", 2)))  # fmt: skip
    assert (step.tensors["y"].shape, step.tensors["y"].layout) == ((4, 2, 3, 3), layouts["a"])
    random = np.random.default_rng(1)
    given = {name: [random.random((2, 1, 3, 4), np.float32) for _ in range(4)] for name in "ab"}
    values = step.run(given)
    for rank in range(4):
        scores = np.exp(given["a"][rank] @ given["b"][rank].swapaxes(2, 3))
        np.testing.assert_allclose(values["y"][rank], scores / scores.sum(-1, keepdims=True), rtol=1e-5)


def test_a_flat_parameter_is_viewed_as_a_matrix():
    """A weight that is part of one flat parameter, as under FSDP, is viewed as a matrix for a product."""
    x, flat = placeholder("x", (4, 3)), placeholder("flat", (6,))
    weight = call("weight", "aten.view", (flat, [3, 2]), (3, 2))
    y = call("y", "aten.mm", (x, weight), (4, 2))
    step = from_fx(graph(x, flat, weight, y, returned=y), 2, layouts={"x": "sliced(0)"})
    parts, ones = [np.full((4, 3), rank + 1, np.float32) for rank in range(2)], np.ones(6, np.float32)
    values = step.run({"x": parts, "flat": [ones, ones]})
    for rank in range(2):
        np.testing.assert_array_equal(values["y"][rank], np.full((4, 2), 3 * rank + 3))


def test_new_tensors_of_one_number_are_constants():
    """Tensors of zeros or ones that are made beside an operand of two sliced axes need no tensor of the step."""
    x = placeholder("x", (2, 3))
    zeros, ones = (Node("call_function", name, f"aten.new_{name}", (x, [2, 3]), (2, 3), schema=("self", "size"))
                   for name in ("zeros", "ones"))  # fmt: skip
    y = call("y", "aten.add", (x, ones), (2, 3))
    z = call("z", "aten.add", (y, zeros), (2, 3))
    step = from_fx(graph(x, zeros, ones, y, z, returned=z), 4, mesh=(("dp", 2), ("tp", 2)),
                   layouts={"x": "sliced(0) over dp, sliced(1) over tp"})  # fmt: skip
    assert [(each.kind, each.value) for each in step.operations] == [("offset", 1.0)]


def headed(heads):
    """Nodes of rows at a rank: one head of 4 elements per key and value, and `heads` heads per query."""
    nodes = []
    for name, count in (("query", heads), ("key", 1), ("value", 1)):
        rows = placeholder(name, (2, 3, 4 * count))
        view = call(f"{name}_view", "aten.view", (rows, [2, 3, count, 4]), (2, 3, count, 4))
        nodes += [rows, view, call(f"{name}_heads", "aten.transpose", (view, 1, 2), (2, count, 3, 4))]
    return nodes


@pytest.mark.parametrize("heads", [1, 2])
def test_attention_may_have_one_key_head_per_rank(heads):
    """Each of four ranks attends with one key head, and one or two query heads, as its graph states."""
    nodes = headed(heads)
    schema = ("query", "key", "value", "is_causal", "enable_gqa")
    y = Node("call_function", "y", "aten.scaled_dot_product_attention", (*nodes[2::3], True, heads > 1),
             (2, heads, 3, 4), schema=schema)  # fmt: skip
    sliced = dict.fromkeys(("query", "key", "value"), "sliced(2)")
    step = from_fx(graph(*nodes, y, returned=y), 4, layouts=sliced)
    assert (step.tensors["y"].shape, step.tensors["y"].layout) == ((2, 4 * heads, 3, 4), "sliced(1)")
    random = np.random.default_rng(1)
    given = {name: [random.random((2, 3, n), np.float32) for _ in range(4)]
             for name, n in (("query", 4 * heads), ("key", 4), ("value", 4))}  # fmt: skip
    values = step.run(given)
    for rank in range(4):
        query, key, value = (given[name][rank].reshape(2, 3, -1, 4).swapaxes(1, 2) for name in given)
        scores = np.exp(query @ key.swapaxes(2, 3) / 2) * np.tri(3)
        right = scores / scores.sum(-1, keepdims=True) @ value
        np.testing.assert_allclose(values["y"][rank], right, rtol=1e-5)


def test_a_view_that_adds_an_axis_keeps_the_sliced_one():
    """A view adds an axis of length 1 before a sliced axis, to broadcast over another tensor sliced alike."""
    x, y = placeholder("x", (3, 4)), placeholder("y", (3, 5, 4))
    view = call("wide", "aten.view", (x, [3, 1, 4]), (3, 1, 4))
    z = call("z", "aten.mul", (view, y), (3, 5, 4))
    step = from_fx(graph(x, y, view, z, returned=z), 2, layouts={"x": "sliced(1)", "y": "sliced(2)"})
    assert (step.tensors["z"].shape, step.tensors["z"].layout) == ((3, 5, 8), "sliced(2)")


@pytest.mark.parametrize("ranks", [2, 4])
def test_received_slices_may_be_permuted(ranks):
    """Slices that an alltoall concatenates along axis 0 are moved to the axis of tokens, as in Ulysses.

    A point-wise operation may also read them as they are.
    """
    x = placeholder("x", (ranks, 3, 2, 5))
    there = call("there", "_c10d_functional.all_to_all_single", (x, [1] * ranks, [1] * ranks, "0"), (ranks, 3, 2, 5))  # fmt: skip
    moved = call("moved", "aten.permute", (there, [1, 0, 2, 3]), (3, ranks, 2, 5))
    flat = call("flat", "aten.view", (moved, [3, 2 * ranks, 5]), (3, 2 * ranks, 5))
    y = call("y", "aten._softmax", (flat, 2, False), (3, 2 * ranks, 5))
    z = call("z", "aten.relu", (there,), (ranks, 3, 2, 5))
    nodes = graph(x, there, moved, flat, y, z, returned=[y, z])
    step = from_fx(nodes, ranks, layouts={"x": "sliced(2)"})
    parts = [
        np.random.default_rng(rank).normal(size=(ranks, 3, 2, 5)).astype(np.float32) for rank in range(ranks)
    ]
    values = step.run({"x": parts})
    for rank in range(ranks):
        received = np.stack([part[rank] for part in parts])
        scores = np.exp(received.swapaxes(0, 1).reshape(3, 2 * ranks, 5))
        right = scores / scores.sum(-1, keepdims=True)
        np.testing.assert_allclose(values[step.returned[0]][rank], right, rtol=1e-5)
        np.testing.assert_array_equal(values["z"][rank], np.maximum(received, 0))


def test_rows_of_each_rank_are_sent_and_returned():
    """Each rank sends an equal part of its rows to every rank, changes those received, and returns them."""
    x = placeholder("x", (4, 3))
    there, back = (call(name, "_c10d_functional.all_to_all_single", (None, [2, 2], [2, 2], "0"), (4, 3)) for name in ("there", "back"))  # fmt: skip
    y = call("y", "aten.relu", (there,), (4, 3))
    for node, read in ((there, x), (back, y)):
        node.args = (read, *node.args[1:])
        read.users[node] = None
    nodes = graph(x, there, y, back, returned=[y, back])
    step = from_fx(nodes, 2, layouts={"x": "sliced(0)"})
    parts = [np.random.default_rng(rank).normal(size=(4, 3)).astype(np.float32) for rank in range(2)]
    values = step.run({"x": parts})
    for rank in range(2):
        received = np.concatenate([part[2 * rank : 2 * rank + 2] for part in parts])
        np.testing.assert_array_equal(values[step.returned[0]][rank], np.maximum(received, 0))
        np.testing.assert_array_equal(values[step.returned[1]][rank], np.maximum(parts[rank], 0))


def test_gathered_slices_may_be_permuted():
    """An allgather of columns, concatenated by a view and a permutation, gives a replicated tensor."""
    x = placeholder("x", (3, 2))
    every = call("every", "_c10d_functional.all_gather_into_tensor", (x, 2, "0"), (6, 2))
    apart = call("apart", "aten.view", (every, [2, 3, 2]), (2, 3, 2))
    moved = call("moved", "aten.permute", (apart, [1, 0, 2]), (3, 2, 2))
    flat = call("flat", "aten.view", (moved, [3, 4]), (3, 4))
    y = call("y", "aten.relu", (flat,), (3, 4))
    step = from_fx(graph(x, every, apart, moved, flat, y, returned=y), 2, layouts={"x": "sliced(1)"})
    parts = [np.random.default_rng(rank).normal(size=(3, 2)).astype(np.float32) for rank in range(2)]
    values = step.run({"x": parts})
    (name,) = step.returned
    assert step.tensors[name].layout == "replicated"
    np.testing.assert_array_equal(values[name][1], np.maximum(np.concatenate(parts, 1), 0))


def test_a_rank_divides_its_own_sums():
    """A rank's sum over its slice is divided by the number of positive elements of that slice, not of all ranks.

    This holds for slices along either axis.
    """
    x = placeholder("x", (3, 2))
    kept = call("kept", "aten.gt", (x, 0.0), (3, 2), "torch.bool")
    count = call("count", "aten.sum", (kept,), (), "torch.int64")
    total = call("total", "aten.sum", (x,), ())
    mean = call("mean", "aten.div", (total, count), ())
    apart = call("apart", "aten.sub", (x, mean), (3, 2))
    y = call("y", "_c10d_functional.all_reduce", (mean, "avg", "0"), ())
    nodes = graph(x, kept, count, total, mean, apart, y, returned=[y, apart])
    for layout, axis in (("sliced(0)", 0), ("sliced(1)", 1)):
        step = from_fx(nodes, 2, layouts={"x": layout})
        parts = [np.arange(6.0, dtype=np.float32).reshape(3, 2) - rank for rank in range(2)]
        values = step.run({"x": parts})
        means = [part.sum() / (part > 0).sum() for part in parts]  # 15 / 5 and 9 / 4
        assert step.tensors["apart"].axis == axis
        for rank in range(2):
            np.testing.assert_allclose(values["y"][rank], np.mean(means))
            np.testing.assert_allclose(values["apart"][rank], parts[rank] - means[rank])


def test_a_count_is_returned_in_float32():
    """A count of targets, summed over ranks, is returned as a float, with a warning that names its node."""
    y = placeholder("y", (3,), "torch.int64")
    kept = call("kept", "aten.eq", (y, 2), (3,), "torch.bool")
    count = call("count", "aten.sum", (kept,), (), "torch.int64")
    total = call("total", "_c10d_functional.all_reduce", (count, "sum", "0"), (), "torch.int64")
    with pytest.warns(LossyConversionWarning, match=r"^total has whole numbers; .* in float32"):
        step = from_fx(graph(y, kept, count, total, returned=total), 2, layouts={"y": "sliced(0)"})
    values = step.run({"y": [np.array([2, 2, 0]), np.array([1, 2, 3])]})
    (name,) = step.returned
    assert [float(each) for each in values[name]] == [3, 3]


def test_a_returned_constant_is_refused_as_an_error_of_the_step():
    """A graph that returns a constant, which no operation makes, is refused with a public kind of error."""
    x = placeholder("x", (4,))
    y = call("y", "aten.zeros_like", (x,), (4,))
    with pytest.raises(WorkloadError, match="reads a tensor filled with 0") as caught:
        from_fx(graph(x, y, returned=y), 2)
    assert type(caught.value) is WorkloadError


def test_batch_norm_in_evaluation_is_by_channel():
    """The second axis is normalised by its means and variances, scaled and shifted."""
    x = placeholder("x", (2, 3, 4))
    rows = [placeholder(name, (3,)) for name in ("gain", "shift", "mean", "spread")]
    schema = ("input", "weight", "bias", "running_mean", "running_var", "momentum", "eps")
    name = "aten._native_batch_norm_legit_no_training"
    y = Node("call_function", "y", name, (x, *rows, 0.1, 0.5), (2, 3, 4), schema=schema)
    z = item("z", y, 0, (2, 3, 4))
    step = from_fx(graph(x, *rows, y, z, returned=z), 2, layouts={"x": "sliced(0)"})
    data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    each = dict(zip(("gain", "shift", "mean", "spread"), np.float32([[1, 2, 3], [4, 5, 6], [7, 8, 9], [0.5, 3.5, 0]]),
                    strict=True))  # fmt: skip
    values = step.run({"x": [data, data], **{name: [row, row] for name, row in each.items()}})
    gain, shift, mean, spread = (row[:, None] for row in each.values())
    wanted = (data - mean) / np.sqrt(spread + 0.5) * gain + shift
    np.testing.assert_allclose(values["z"][1], wanted, rtol=1e-5)


def lost(shape, targets, **given):
    """A graph of a cross entropy."""
    schema = ("self", "target", "weight", "reduction", "ignore_index", "label_smoothing")
    rows = placeholder("rows", shape)
    wanted = placeholder("wanted", targets, "torch.int64")
    y = Node("call_function", "y", "aten.cross_entropy_loss", (rows, wanted), (), schema=schema)
    y.kwargs |= {"weight": None, "reduction": 1, "ignore_index": -100, "label_smoothing": 0.0, **given}
    return graph(rows, wanted, y, returned=y)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ignore_index": 0}, "has ignore_index=0, which may be a target"),
        ({"label_smoothing": 0.1}, r"has label_smoothing=0\.1; only 0 is supported"),
        ({"weight": 1}, "has weights of classes; only losses without"),
    ],
)
def test_other_cross_entropies_are_refused(given, said):
    """The error for an unsupported form of an operation names the option and its value."""
    with pytest.raises(WorkloadError, match=f"^y: .*{said}"):
        from_fx(lost((4, 6), (4,), **given), 2)


def test_classes_along_an_inner_axis_are_refused():
    """Classes along axis 1 of 3 are refused, even if the last axis has the same length."""
    with pytest.raises(WorkloadError, match=r"^y: .*has classes along axis 1 of \[2, 6, 6\]; only the last"):
        from_fx(lost((2, 6, 6), (2, 6)), 2)


@pytest.mark.filterwarnings("error::taccl.LossyConversionWarning")
def test_a_sum_of_losses_needs_no_warning():
    """A sum of losses gives no warning, as targets of -100 add 0, as in PyTorch.

    A mean gives a warning: it counts these targets, which PyTorch omits.
    """
    assert from_fx(lost((4, 6), (4,), reduction=2), 2).tensors["y"].shape == ()
    with pytest.raises(LossyConversionWarning, match="omits targets of -100 from its mean"):
        from_fx(lost((4, 6), (4,)), 2)


def trained_by_row(weight=None):
    """A graph of the losses of four rows, and of their gradient by the rows, each scaled by its loss's mask."""
    rows = placeholder("rows", (4, 3))
    wanted = placeholder("wanted", (4,), "torch.int64")
    mask = placeholder("mask", (4,))
    weights = [] if weight is None else [placeholder("weights", (3,))]
    given = (rows, wanted, weights[0] if weights else None, 0, -100)
    schema = ("self", "target", "weight", "reduction", "ignore_index")
    loss = Node("call_function", "loss", "aten.nll_loss_forward", given, schema=schema)
    loss.meta["val"] = [SimpleNamespace(shape=each, dtype="torch.float32") for each in ((4,), ())]
    items = [item("item0", loss, 0, (4,)), item("item1", loss, 1, ())]
    grad = Node("call_function", "grad", "aten.nll_loss_backward", (mask, *given, items[1]), (4, 3),
                schema=("grad_output", *schema, "total_weight"))  # fmt: skip
    for each in (loss, grad):
        each.target.tags, each.target._schema.is_mutable = [], False
        for argument in each.target._schema.arguments:
            argument.kwarg_only = False
    return graph(rows, wanted, mask, *weights, loss, *items, grad, returned=[items[0], grad])


def test_a_loss_of_each_row_has_a_gradient():
    """Losses that are not summed, but masked row by row, and their gradient are operations of the step."""
    layouts = dict.fromkeys(("rows", "wanted", "mask"), "sliced(0)")
    step = from_fx(trained_by_row(), 2, layouts=layouts)
    random = np.random.default_rng(1)
    rows, mask = random.random((2, 4, 3), np.float32), random.random((2, 4), np.float32)
    wanted = np.array([[0, 2, 1, -100], [1, 1, 0, 2]])
    values = step.run({"rows": [*rows], "wanted": [*wanted], "mask": [*mask]})
    for rank in range(2):
        is_wanted = wanted[rank][:, None] == np.arange(3)
        np.testing.assert_allclose(values["item0"][rank], -(rows[rank] * is_wanted).sum(1))
        np.testing.assert_allclose(values["grad"][rank], -mask[rank][:, None] * is_wanted)


def test_the_gradient_of_a_weighted_loss_reads_its_sum_of_weights():
    """A loss with weights of classes is called, as is its gradient, which reads the loss's second result."""
    layouts = dict.fromkeys(("rows", "wanted", "mask"), "sliced(0)")
    step = from_fx(trained_by_row(weight=1), 2, layouts=layouts)
    called = [each for each in step.operations if each.kind == "aten"]
    assert [each.item for each in called] == [0, 1, None]
    assert called[1].name in called[2].inputs


def written(*later):
    """A graph that adds 1 in place to a product; nodes named "y2" read the product, others the sum."""
    x = placeholder("x", (4,))
    y = call("y", "aten.mul", (x, 2.0), (4,))
    y.target.is_view = False
    z = call("z", "aten.add_", (y, 1.0), (4,))
    z.target.is_view = False
    ends = [call(name, "aten.relu", (y if name == "y2" else z,), (4,)) for name in later]
    return graph(x, y, z, *ends, returned=ends[-1])


def test_writes_in_place_are_read_if_nothing_else_reads_them():
    """An addition in place is accepted, unless a later node reads the product that it overwrites."""
    step = from_fx(written("z2"), 2)
    assert [each.kind for each in step.operations] == ["scale", "offset", "relu"]
    with pytest.raises(WorkloadError, match=r"^z: found aten\.add_\.default of y, 1\.0, which is not"):
        from_fx(written("y2"), 2)


def test_places_are_looked_up_for_every_sequence():
    """Position embeddings, looked up for 3 sequences, are imported as a slice of the table, added to each."""
    table, x = placeholder("table", (6, 8)), placeholder("x", (3, 4, 8))
    places = call("places", "aten.arange", (4,), (4,), "torch.int64")
    row = call("row", "aten.unsqueeze", (places, 0), (1, 4), "torch.int64")
    all_ = call("all_", "aten.expand", (row, [3, 4]), (3, 4), "torch.int64")
    y = call("y", "aten.embedding", (table, all_), (3, 4, 8))
    z = call("z", "aten.add", (x, y), (3, 4, 8))
    z.kwargs["alpha"] = 1
    step = from_fx(graph(table, x, places, row, all_, y, z, returned=z), 2)
    assert [each.kind for each in step.operations] == ["narrow", "reshape", "add"]

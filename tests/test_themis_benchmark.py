"""Training steps of the Themis benchmark: iterations by hand, and groups of ranks along dimensions."""

from benchmarks.themis import DATA, groups, iteration


def us(times):
    """Function that returns the time of a collective in us, which is `times[kind]`."""
    return lambda collective, size, group: times[collective]


def test_data_parallel_sums_run_beside_computation():
    """The gradient sum of the last layer is hidden behind computation; that of the first layer
    is not hidden."""
    step = {
        "loop": "data",
        "layers": [["a", 1000, 2000, 3000], ["b", 1000, 2000, 3000]],
        "collectives": [["a", "weight", "allreduce", 1, "all"], ["b", "weight", "allreduce", 1, "all"]],
    }
    clock = iteration(step, us({"allreduce": 4.0}))
    assert clock.computed == 12
    # Forward until 2 us, gradients of b until 5, their sum until 9; gradients of a until 10, sum until 14.
    assert clock.now == 14


def test_model_parallel_sums_block():
    """Sums of a model-parallel group end before the next layer begins.

    The forward pass runs twice, each time with a sum of 4 us. Then the input gradient's sum runs beside the
    weight gradient.
    """
    step = {
        "loop": "transformer",
        "recomputes": True,
        "layers": [["a", 1000, 2000, 3000]],
        "collectives": [["a", "forward", "allreduce", 1, "model"], ["a", "input", "allreduce", 1, "model"]],
    }
    assert iteration(step, us({"allreduce": 4.0})).now == 2 * (1 + 4) + 2 + 4


def test_embeddings_travel_beside_bottom_layers():
    """The forward alltoall ends after the bottom layer; the backward one starts once the top layer is done."""
    step = {
        "loop": "dlrm",
        "last_bottom": "bottom",
        "layers": [["embedding", 1000, 0, 0], ["bottom", 1000, 1000, 1000], ["top", 1000, 1000, 1000]],
        "collectives": [["embedding", "forward", "alltoall", 1, "all"],
                        ["embedding", "input", "alltoall", 1, "all"]],
    }  # fmt: skip
    # Alltoall until 6 us, top layer until 7 and back until 9; alltoall until 14, bottom layer until 11.
    assert iteration(step, us({"alltoall": 5.0})).now == 14


def test_groups_split_a_shared_dimension():
    """A model-parallel group of 128 ranks in 16 x 64 spans the first dimension, and 8 ranks of the second.

    It shares the second dimension with the data-parallel groups.
    """
    found = groups(("switch16@150", "switch64@100"), 128)
    assert found["model"] == ("switch16@150", "switch8@100")
    assert found["data"] == ("switch8@100",)


def test_published_steps_have_their_sizes():
    """The published inputs have six networks of 1,024 ranks; ResNet-50 has 25.5 million gradients of two bytes."""
    assert len(DATA["network"]) == 6
    resnet = DATA["workload"][0]
    assert len(resnet["layers"]) == 54
    assert resnet["collectives"][0][3] == 51_005_824

"""Steps executed by MPI ranks."""

import json

import pytest

import taccl
from taccl.cli import main
from taccl.runtime.step import execute_step
from taccl.workload import Rates, overlap, save_workload, schedule_workload
from tests.fuzzing import thinned
from tests.workload.test_replay import block, momentum, sliced
from tests.workload.test_torch_program import pipeline

pytestmark = pytest.mark.slow
RANKS = taccl.topologies.fully_connected(4, alpha_us=1, bandwidth_gb_per_s=10)


def squares(num_ranks=4):
    """A workload of purely local work: each rank squares its slice."""
    return taccl.Workload("squares", num_ranks).input("x", (8,), layout="sliced(0)").then("y", "square", "x")


@pytest.mark.parametrize(
    ("plain", "transformed"),
    [
        *thinned([(momentum, lambda: sliced(momentum())), (block, block), (squares, squares)]),
        (pipeline, lambda: overlap(pipeline(), ["y", "sum", "z", "sent", "out"], tiles=2)),
    ],
)
def test_ranks_give_what_the_program_says(plain, transformed, ranks):
    """Ranks that execute a transformed workload end with the values of the untransformed one.

    The cases are a product and its sum, a sliced update in tiles, local work without sends, and a tiled
    pipeline stage with tensor-parallel ranks.
    """
    step = schedule_workload(transformed(), RANKS, rates=Rates(1, 100))
    assert execute_step(step, reference=plain()) < 1e-12


def test_another_program_differs(mpiexec):
    """The comparison can fail: a reference that doubles in place of squaring has other values. The ranks are started for it."""
    pair = taccl.topologies.fully_connected(2, alpha_us=1, bandwidth_gb_per_s=10)
    step = schedule_workload(squares(2), pair, rates=Rates(1, 100))
    other = taccl.Workload("other", 2, squares(2).inputs).then("y", "add", "x", "x")
    assert execute_step(step, reference=other) > 1e-3


@pytest.fixture
def step_file(tmp_path):
    """Path of a step file: a product of sliced matrices, the sum of the results over ranks, and further operations.

    The products, additions and dropouts have a cost in us.
    """
    path = tmp_path / "step.toml"
    save_workload(block(), path)
    lines = path.read_text().replace('kind = "matmul"', 'kind = "matmul"\ncost_us = 20')
    for kind in ("add", "dropout"):
        lines = lines.replace(f'kind = "{kind}"', f'kind = "{kind}"\ncost_us = 1')
    path.write_text(lines)
    return path


def test_a_step_file_is_transformed_and_executed(capsys, step_file, ranks):
    """``taccl run`` of a step file: outputs equal those of the untransformed program within rounding.

    Rounding is 256 times 2.2e-16 for float64.
    """
    words = ["run", str(step_file), "--topology", "fully_connected:4", "--step-s", "0.2", "--json"]
    assert main(words) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["ok"]
    assert values["difference"] <= values["most"] == pytest.approx(256 * 2**-52)
    assert values["finish_us"] < 40
    assert "for each of" in values["program"]

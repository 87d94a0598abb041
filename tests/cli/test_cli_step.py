"""``taccl run`` of a step file, from the command line."""

import pytest

from taccl.workload import save_workload
from tests.workload.test_replay import block


@pytest.fixture
def step(tmp_path):
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


@pytest.mark.slow
def test_a_step_is_transformed_and_executed(run_json, step):
    """Outputs equal those of the untransformed program within rounding: 256 times 2.2e-16 for float64."""
    pytest.importorskip("mpi4py")
    code, values = run_json("run", step, "--topology", "fully_connected:4", "--step-s", 1)
    assert code == 0
    assert values["ok"]
    assert values["difference"] <= values["most"] == pytest.approx(256 * 2**-52)
    assert values["finish_us"] < 40
    assert "for each of" in values["program"]

"""``taccl run`` of 1 MB on 6 ranks (32 with ``TACCL_MANY=1``): every main collective, bit for bit."""

import json
from contextlib import redirect_stdout
from io import StringIO

import pytest

import taccl
from taccl.cli import main
from tests.runtime.conftest import NUM_RANKS
from tests.runtime.small_programs import schedule_for

COLLECTIVES = {
    "allgather": "MPI_Allgather", "alltoall": "MPI_Alltoall", "reduce-scatter": "MPI_Reduce_scatter_block",
    "allreduce": "MPI_Allreduce",
}  # fmt: skip
TOPOLOGY = {6: "torus:2x3", 32: "torus:4x8"}[NUM_RANKS]


@pytest.fixture(scope="module")
def answers(rank_session, tmp_path_factory):
    """{collective: JSON report of ``taccl run``}."""
    folder, found = tmp_path_factory.mktemp("figures"), {}
    for name in COLLECTIVES:
        file = folder / f"{name}.json"
        taccl.save(schedule_for(name, TOPOLOGY), file)
        words = ["run", str(file), "--size", "1MB", "--repetitions", "1", "--json"]
        with rank_session.serving(), redirect_stdout(StringIO()) as said:
            assert main(words) == 0
        found[name] = json.loads(said.getvalue())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTIVES)
def test_agrees_with_mpi_bit_for_bit(name, answers):
    """All outputs equal those of MPI's own collective."""
    values = answers[name]
    assert values["ok"], values["failure"]
    assert values["collective"] == name
    assert values["num_ranks"] == NUM_RANKS
    assert (values["compared_with"], values["tolerance"]) == (COLLECTIVES[name], 0.0)
    assert 10**6 <= values["size_bytes"] < 10**6 + 4 * NUM_RANKS


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTIVES)
def test_both_are_timed(name, answers):
    """Bus bandwidth is (n - 1) / n times algorithm bandwidth, twice that for an allreduce."""
    factor = (NUM_RANKS - 1) / NUM_RANKS * (2 if name == "allreduce" else 1)
    for which in ("times", "mpi_times"):
        times = answers[name][which]
        assert len(times["each_us"]) == 1
        assert 0 < times["min_us"] == times["median_us"]
        assert times["algbw_gb_per_s"] == pytest.approx(
            answers[name]["size_bytes"] / times["median_us"] / 1e3
        )
        assert times["busbw_gb_per_s"] == pytest.approx(times["algbw_gb_per_s"] * factor)

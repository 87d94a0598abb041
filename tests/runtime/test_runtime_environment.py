"""Detection of MPI launchers by their environment variables."""

import pytest

from taccl.runtime.environment import launched_by


@pytest.mark.parametrize(
    ("variables", "rank", "num_ranks"),
    [
        ({"PMI_RANK": "3", "PMI_SIZE": "16"}, 3, 16),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}, 0, 4),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "1"}, 1, 4),
        ({"PMIX_RANK": "2"}, 2, None),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"}, 5, 8),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, 0, 1),
    ],
)
def test_launchers_are_known(variables, rank, num_ranks):
    """MPICH and derivatives, Open MPI, PMIx and srun are recognised, with rank and number of ranks."""
    launch = launched_by(variables)
    assert (launch.rank, launch.num_ranks) == (rank, num_ranks)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"PMI_RANK": "none"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "16"},
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
    ],
    ids=["nothing", "no number", "batch script", "shell of srun"],
)
def test_others_are_none(variables):
    """Other variables are ignored: a batch script has SLURM's, too, but is not a rank."""
    assert launched_by(variables) is None

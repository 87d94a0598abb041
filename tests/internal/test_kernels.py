"""The cache of compiled kernels: unwritable folders and damaged files."""

import ast
import errno
import importlib.util
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
import warnings
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

import taccl
from taccl._internal import kernel_cache, kernels
from taccl.errors import CacheWarning
from tests.fuzzing import MANY
from tests.hardships import without_privileges

SOURCE = """
from taccl._internal.kernels import compiled

@compiled
def scaled(x):
    return 2 * x

@compiled
def shifted(x):
    return x + 1
"""
#: Prints an answer, the number of kernels loaded from the cache, and the warnings.
SCRIPT = """
import sys, warnings
sys.path.insert(0, sys.argv[1])
with warnings.catch_warnings(record=True) as said:
    from small import scaled, shifted
    answer = shifted(scaled(20))
print(answer, sum(f.stats.cache_hits[s] for f in (scaled, shifted) for s in f.signatures))
for warning in said:
    print(warning.category.__name__, warning.message)
"""


@pytest.fixture(autouse=True)
def _no_cache_named(monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    kernel_cache._warn.cache_clear()


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The kernels of SOURCE as a new process sees them, without bytecode compiled before."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "small.py"
    path.write_text(SOURCE)

    def load():
        spec = importlib.util.spec_from_file_location("small", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    load.path = path
    return load


def hits(kernel):
    return sum(kernel.stats.cache_hits.values())


def run_small(folder, **environment):
    """(first line, warnings) that SCRIPT prints as a process without root privileges."""
    names = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)], capture_output=True, text=True, cwd=folder,
        env={name: str(value) for name, value in names.items()}, preexec_fn=without_privileges,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer, *said = done.stdout.splitlines()
    return answer, said


@pytest.mark.slow
def test_what_is_compiled_is_known_before_it_is_loaded(small):
    """In a new process `is_compiled` is right before the kernel is loaded, and False for a changed source."""
    scaled = small().scaled
    assert not kernels.is_compiled(scaled)
    scaled(1)
    assert kernels.is_compiled(scaled) and kernels.is_loaded(scaled)
    later = small().scaled
    assert not later.signatures and not kernels.is_loaded(later)
    assert kernels.is_compiled(later)
    assert not kernels.is_compiled(small().shifted)
    small.path.write_text(SOURCE.replace("2 * x", "3 * x  # more"))
    assert not kernels.is_compiled(small().scaled)


@pytest.mark.slow
def test_numba_is_imported_at_the_first_call_of_a_kernel(small, tmp_path):
    """numba is imported at a kernel's first call, not by its module or by `is_compiled`; SciPy's BLAS is not."""
    assert small().scaled(2) == 4  # which compiles it
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from small import scaled, shifted\n"
        "from taccl._internal.kernels import is_compiled\n"
        "print(is_compiled(scaled), is_compiled(shifted), 'numba' in sys.modules)\n"
        "print(scaled(2), 'numba' in sys.modules, 'scipy.linalg' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True False False\n4 True False\n"


def test_a_kernel_is_pickled_by_its_name(monkeypatch, small):
    """A kernel is pickled by name; another process imports, compiles or loads it itself."""
    monkeypatch.setitem(sys.modules, "small", small())
    scaled = sys.modules["small"].scaled
    assert pickle.loads(pickle.dumps(scaled)) is scaled


@pytest.mark.slow
def test_threads_share_one_dispatcher(small):
    """Threads that first call a kernel at the same time prepare it once."""
    scaled, together = small().scaled, threading.Barrier(4)
    found = []

    def work():
        together.wait()
        found.append((scaled(20), id(scaled._dispatcher)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [(40, id(scaled._dispatcher))] * 4


@pytest.mark.slow
def test_kernels_are_kept_in_a_private_folder_where_neither_package_nor_home_can_be_written(
    read_only, tmp_path
):
    """If package and home are read-only, kernels are cached in a private folder, with one warning per
    process. So they are without a home, if the cache folder is read-only."""
    (read_only / "small.py").write_text(SOURCE)
    read_only.chmod(0o555)
    answers = [
        run_small(read_only, TMPDIR=tmp_path, **{name: read_only}) for name in ("HOME", "XDG_CACHE_HOME")
    ]
    folder = tmp_path / f"taccl-kernels-{os.geteuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [answer for answer, _ in answers] == ["41 0", "41 2"]
    for _, (said,) in answers:
        assert said.startswith(f"CacheWarning compiled functions are kept in {folder}, as neither")


@pytest.mark.slow
def test_kernels_are_not_cached_where_no_folder_can_be_trusted(read_only, tmp_path):
    """If no folder can be trusted (others may write there), nothing is cached, with one warning."""
    (read_only / "small.py").write_text(SOURCE)
    read_only.chmod(0o555)
    (tmp_path / f"taccl-kernels-{os.geteuid()}").mkdir(mode=0o777)
    (tmp_path / f"taccl-kernels-{os.geteuid()}").chmod(0o777)
    answer, (said,) = run_small(read_only, HOME=read_only, TMPDIR=tmp_path)
    assert answer == "41 0"
    assert said.startswith("CacheWarning compiled functions are not kept")


@pytest.mark.slow
def test_an_ordinary_command_works_where_neither_package_nor_home_can_be_written(read_only, tmp_path):
    """If package and home are read-only, commands without compilation give no warning."""
    # With its bytecode, but without kernels.
    shutil.copytree(
        Path(taccl.__file__).parent, read_only / "taccl", ignore=shutil.ignore_patterns("*.nbi", "*.nbc")
    )
    folders = [read_only, *(path for path in read_only.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    words = ["synthesize", "ring:3", "--collective", "allgather", "--size", "3KB", "--backend", "greedy"]
    done = subprocess.run(
        [sys.executable, "-m", "taccl", *words], capture_output=True, text=True, cwd=read_only,
        env={"PATH": os.environ["PATH"], "HOME": str(read_only), "TMPDIR": str(tmp_path)},
        preexec_fn=without_privileges,
    )  # fmt: skip
    for folder in folders:
        folder.chmod(0o755)
    assert (done.returncode, done.stderr) == (0, "")
    assert "0.00%" in done.stdout


def test_a_folder_of_another_user_is_not_used(small, tmp_path, monkeypatch):
    """A folder of another user, or a link to one, holds no kernels."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"taccl-kernels-{os.geteuid()}").symlink_to(tmp_path)
    assert kernel_cache._TemporaryLocator.from_function(small().scaled.py_func, str(small.path)) is None
    (tmp_path / "taccl-kernels-12345").mkdir(mode=0o700)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    assert kernel_cache._TemporaryLocator.from_function(small().scaled.py_func, str(small.path)) is None


def test_kernels_are_kept_beside_the_source_where_it_can_be_written(small, tmp_path):
    """The default cache is beside the source, as numba's, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert small().scaled(20) == 40
    assert len(list((tmp_path / "__pycache__").glob("small.scaled.*.nbc"))) == 1


INNER = """
from taccl._internal.kernels import compiled, inner

@inner
def divided(x, by):
    return x // by

@compiled
def halved(x, by):
    return divided(x, by) + 1
"""


@pytest.fixture
def nested(small):
    """The module of `small`, with a kernel that calls an inner function."""
    small.path.write_text(INNER)
    return small


@pytest.mark.parametrize(
    "path", [*Path(taccl.__file__).parent.glob("synthesis/kernels/*_kernel.py")], ids=lambda path: path.stem
)
def test_no_kernel_copies_an_array_by_a_slice(path):
    """Kernels assign only constants to slices, as numba would compile a check of shapes for 1.6 s."""
    assignments = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assign)]
    for node in assignments:
        if any(isinstance(each, ast.Slice) for target in node.targets for each in ast.walk(target)):
            assert re.fullmatch(r"-?\w*[A-Z\d]|False|True", ast.unparse(node.value)), ast.unparse(node)


def test_an_inner_function_has_no_machine_code(nested):
    """An inner function has no machine code of its own; it is part of the calling kernel."""
    module = nested()
    assert module.halved(40, 2) == 21
    (code,) = module.divided.overloads.values()
    assert "cpython" not in code.library.get_llvm_str()
    with pytest.raises(RuntimeError, match="no compiled object"):
        code.library._get_compiled_object()


SUMS = """
from taccl._internal.kernels import compiled

def total(values):
    found = 0
    for value in values:
        found += value
    return found

plain, vectorized = compiled(total), compiled(vectorizes=True)(total)
"""


@pytest.mark.slow
def test_loops_are_vectorized_on_request(small):
    """Loops of a kernel are vectorized if its decorator says so."""
    small.path.write_text(SUMS)
    module = small()
    for kernel, is_vectorized in ((module.plain, False), (module.vectorized, True)):
        assert kernel(np.arange(100)) == 4950
        (code,) = kernel.overloads.values()
        assert ("x i64> " in code.library.get_llvm_str()) == is_vectorized


def test_a_kernel_is_kept_with_the_functions_that_it_calls(nested, tmp_path):
    """A kernel is cached together with the functions that it calls: a later process compiles nothing."""
    assert nested().halved(40, 2) == 21
    assert [each.name.partition(".py")[0] for each in (tmp_path / "__pycache__").glob("*.nbc")] == [
        "small.halved"
    ]
    later = nested()
    assert (later.halved(40, 2), hits(later.halved), later.divided.overloads) == (21, 1, {})


def test_a_kept_kernel_runs_without_numbas_tables_of_operations(small, monkeypatch):
    """Code from the cache is loaded without numba's tables of types and operations, which take 0.15 s."""
    assert small().scaled(20) == 40

    def refresh(self):
        raise AssertionError("compilation alone needs these tables")

    later = small()
    monkeypatch.setattr("numba.core.cpu.CPUContext.refresh", refresh)
    assert (later.scaled(21), hits(later.scaled)) == (42, 1)


def test_an_error_in_an_inner_function_is_raised(nested):
    """An error in an inner function is raised, whether compiled here or loaded."""
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            nested().halved(40, 0)


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize(
    "content", [b"", b"\0" * 500, b"no pickle", pickle.dumps(3), pickle.dumps((1, 2, 3)), None]
)
def test_a_damaged_file_is_compiled_again_and_repaired(small, tmp_path, kind, content):
    """A damaged cache file (empty, garbage, other types, cut) is compiled again and repaired."""
    assert small().scaled(20) == 40
    (path,) = (tmp_path / "__pycache__").glob(f"small.scaled.*.{kind}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if content is None else content)
    damaged = small()
    assert (damaged.scaled(20), hits(damaged.scaled)) == (40, 0)
    mended = small()
    assert (mended.scaled(20), hits(mended.scaled)) == (40, 1)


@pytest.mark.slow
def test_code_for_other_types_is_not_run(small, tmp_path):
    """Code for other types, as after two concurrent writes, is not run."""
    first = small()
    assert (first.scaled(20), first.scaled(2.5)) == (40, 5.0)
    one, two = sorted((tmp_path / "__pycache__").glob("small.scaled.*.nbc"))
    one_bytes = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(one_bytes)
    mixed = small()
    assert (mixed.scaled(20), mixed.scaled(2.5), hits(mixed.scaled)) == (40, 5.0, 0)


@pytest.mark.slow
def test_code_of_an_older_source_is_not_run(small, tmp_path):
    """Code of an older source, as after an interrupted write, is not run."""
    assert small().scaled(20) == 40
    (path,) = (tmp_path / "__pycache__").glob("small.scaled.*.nbc")
    older = path.read_bytes()
    small.path.write_text(SOURCE.replace("2 * x", "3 * x"))
    assert small().scaled(20) == 60
    path.write_bytes(older)
    assert small().scaled(20) == 60


def test_a_full_disk_costs_one_warning(small, monkeypatch):
    """If the disk is full, kernels run uncached, with one warning."""

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._save_data", fail)
    module = small()
    with pytest.warns(CacheWarning) as said:
        assert module.shifted(module.scaled(20)) == 41
    assert [str(warning.message).partition(";")[0] for warning in said] == [
        "compiled functions cannot be kept (No space left on device)"
    ]


#: Prints the finish, the CPU seconds, and the kernels compiled during the time limit.
TIMED = """
import sys, time, traceback
import taccl
from taccl._internal import kernel_cache

late = []
save = kernel_cache.KernelCache.save_overload

def noted(self, sig, data):
    if not any(frame.name.startswith("compile_") for frame in traceback.extract_stack()):
        late.append(self._function.__qualname__)
    return save(self, sig, data)

kernel_cache.KernelCache.save_overload = noted
problem = taccl.make_problem(taccl.topologies.dgx2(2), getattr(taccl.collectives, sys.argv[1])(32), size_bytes=2**24)
result = taccl.synthesize(problem, time_limit_s=8)
print(result.finish_us, time.process_time(), *late)
"""


@pytest.mark.slow
@pytest.mark.skipif(not MANY, reason="compiles all kernels, for two minutes of CPU; set TACCL_MANY=1")
@pytest.mark.parametrize("collective", ["allgather", "alltoall"])
def test_a_cold_start_answers_as_well_as_a_warm_one(collective, tmp_path):
    """A cold start compiles nothing within the time limit; its CPU time is a small multiple of a warm start's."""

    def run():
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", TIMED, collective], capture_output=True, text=True, check=True,
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
        )  # fmt: skip
        finish, seconds, *late = done.stdout.split()
        return float(finish), float(seconds), late

    cold, warm = run(), run()
    print(f"{collective}: cold {cold[1] / warm[1]:.1f} times the CPU of warm")
    assert cold[2] == warm[2] == []
    assert cold[0] <= 1.01 * warm[0]
    assert cold[1] <= 60 * warm[1]


#: Prints schedules of a list scheduler, digests of implicit schedules, and True if they ran uncompiled.
SEARCHES = """
import numba, taccl
from taccl.synthesis.kernels.fabric import problem_arrays
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.proposers.spreading import spread
from taccl.synthesis.symmetry.implicit import synthesize_implicit as make
for topology, name in ((taccl.topologies.dgx_a100(2, profile="nominal"), "allgather"), (taccl.topologies.mesh(3, 3), "scatter")):
    fabric, demand = problem_arrays(taccl.make_problem(topology, name, chunks_per_rank=1, chunk_bytes=10**6))
    found = spread(fabric, demand, Limits(seed=3, num_runs=2))
    print(found.chunk.tolist(), found.link.tolist(), found.start.tolist())
for name, collective in (("torus:3x7", "allgather"), ("torus:4x4", "alltoall"), ("star:4", "allreduce")):
    print(make(name, collective).schedule.digest())
print(make("torus:4x4", bandwidth_gb_per_s=[75, 50]).schedule.digest())
print(bool(numba.config.DISABLE_JIT))
"""  # noqa: E501


@pytest.mark.slow
def test_searches_are_the_same_uncompiled():
    """Uncompiled searches give the same columns and patterns as compiled ones."""
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SEARCHES], env=environment, capture_output=True, text=True, check=True
    )
    with redirect_stdout(StringIO()) as said:
        exec(SEARCHES, {})
    (*found, disabled), (*compiled, not_disabled) = done.stdout.splitlines(), said.getvalue().splitlines()
    assert (disabled, not_disabled, len(found)) == ("True", "False", 6)
    assert found == compiled

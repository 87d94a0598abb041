"""Fixtures and hooks of all tests."""

from __future__ import annotations

import fcntl
import gc
import itertools
import logging
import os
import signal
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.foreign import REAL
from tests.fuzzing import MANY, MATTERED, TRIED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taccl.measure.fitted import Fit


def pytest_configure() -> None:
    """Let Ctrl-C reach tests that send it, as shells make background processes ignore it; save CPU."""
    gc.disable()  # until all tests are collected, none of which is garbage
    # Write bytecode even in container images that disable it, else many processes would compile all.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Each process computes in one thread, before it loads numpy: threads for small matrices would only spin.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Exclude modules and collected tests from garbage collection."""
    gc.freeze()
    gc.set_threshold(400_000, 10, 50)  # as the command line does; the last is 10 by default
    gc.enable()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Number of test workers: one per core, and one more for slow tests, which wait for other processes.

    Each worker needs 3 to 4 s of CPU to load the tests.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + (config.option.markexpr != "not slow")


def _quicken_clock(times: float) -> None:
    """Run the clock faster by a factor, as on a slower machine."""
    now, began = time.monotonic, time.monotonic()
    time.monotonic = lambda: began + times * (now() - began)


if float(os.environ.get("TACCL_CLOCK", "1")) != 1:
    _quicken_clock(float(os.environ["TACCL_CLOCK"]))

_LEFT_OUT = pytest.StashKey[int]()
_BEGAN = pytest.StashKey[float]()
#: CPU seconds above which a test counts as slow, including its setup.
_SLOW_S = 0.1
#: Number of selected tests from which all kernels are compiled first.
_WHOLE_RUN = 2000


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark fuzz tests as slow. Without the real files of other tools, one test of them stands for all (on CI
    each fails)."""
    for item in items:
        if item.get_closest_marker("fuzz"):
            item.add_marker("slow")
    readers = [item for item in items if "shared_data" in getattr(item, "fixturenames", ())]
    config.stash[_LEFT_OUT] = len(readers)
    if REAL.is_dir() or os.environ.get("CI") or not readers:
        return
    left_out = set(readers[1:])
    config.hook.pytest_deselected(items=readers[1:])
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def shared_data(request: pytest.FixtureRequest) -> Path:
    """The folder of real files of other tools; ours are in ``tests/data/foreign``."""
    if not REAL.is_dir():
        reason = (
            f"no real files of other tools at {REAL}: {request.config.stash[_LEFT_OUT]} tests of them are left "
            "out; set TACCL_TEST_DATA to a folder that has them"
        )
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return REAL


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Give tests a cache folder of their own, so that they do not use results in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACCL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _short_mixes():
    """Shorten searches for mixed plans, which otherwise take much of the time of searches and plans."""
    from tests.effort import shorten_mixes

    with pytest.MonkeyPatch.context() as patch:
        shorten_mixes(patch)
        yield


@pytest.fixture(scope="session")
def _numbered_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Iterator over paths of folders that are named by successive numbers."""
    parent = tmp_path_factory.mktemp("tests")
    return (parent / str(number) for number in itertools.count())


@pytest.fixture
def tmp_path(_numbered_folders: Iterator[Path]) -> Path:
    """A folder for one test; pytest's own fixture takes 1.4 ms of CPU longer, as it links the newest
    folder."""
    path = next(_numbered_folders)
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def read_only(tmp_path: Path):
    """A folder that a test fills and then makes read-only; after the test it is writable again."""
    if os.geteuid() == 0 and sys.platform != "linux":
        pytest.skip("root may write everything here")
    folder = tmp_path / "read-only"
    folder.mkdir()
    yield folder
    folder.chmod(0o755)


def compile_list_schedulers() -> None:
    """Compile the kernels of the compiled search, unless they are in the cache."""
    from taccl.synthesis.proposers import compiling

    for name in ("allgather", "alltoall", "reduce-scatter"):
        compiling.compile_named(name)


@pytest.fixture(scope="session")
def compiled_search() -> None:
    """Compile the kernels of the compiled search, for tests whose searches take less time than the
    compilation."""
    from taccl.synthesis.improve.improvement import compile_improvement

    compile_list_schedulers()
    compile_improvement()


@pytest.fixture(scope="session", autouse=True)
def _kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let workers of a whole run compile each kernel once; later ones wait and load it."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or request.session.testscollected < _WHOLE_RUN:
        return
    from taccl.synthesis.improve.improvement import compile_improvement

    halves = [compile_improvement, compile_list_schedulers]
    for compile_half in halves[:: 1 if int(worker.removeprefix("gw")) % 2 else -1]:
        with (tmp_path_factory.getbasetemp().parent / f"{compile_half.__name__}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            compile_half()
    gc.freeze()  # what that has loaded, too


def _cpu_s() -> float:
    """Seconds of CPU of this process and of its children that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item):
    """Store the process's CPU seconds before a test's fixtures are set up."""
    item.stash[_BEGAN] = _cpu_s()
    return (yield)


class _Faults(logging.Handler):
    """Collect errors that taccl logs: a refused proposal, or a bound above a verified schedule."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """Record each test's number of random cases and CPU seconds; fail it if taccl logged a fault.

    A test that makes such a fault on purpose is marked ``faulty``.
    """
    before, mattered, faults = TRIED.copy(), MATTERED.copy(), _Faults()
    logger = logging.getLogger("taccl")
    logger.addHandler(faults)
    try:
        result = yield
        if faults.said and item.get_closest_marker("faulty") is None:
            pytest.fail("a fault of taccl's own was logged: " + "; ".join(faults.said))
        return result
    finally:
        logger.removeHandler(faults)
        counts = MATTERED - mattered
        item.user_properties += [
            ("fuzz", [name, tried, counts[name]]) for name, tried in (TRIED - before).items()
        ]
        item.user_properties.append(("cpu_s", _cpu_s() - item.stash[_BEGAN]))


def pytest_terminal_summary(terminalreporter) -> None:
    """Print slow tests that lack the mark; with TACCL_MANY=1, print fuzz cases and failures as a table."""
    if not MANY:
        _tell_unmarked(terminalreporter)
        return
    tried, failed, cpu_s, mattered = Counter(), Counter(), Counter(), Counter()
    for report in [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, [])]:
        counts = [value for key, value in report.user_properties if key == "fuzz"]
        taken_s = sum(value for key, value in report.user_properties if key == "cpu_s")
        for name, count, of_feature in counts:
            tried[name] += count
            mattered[name] += of_feature
            failed[name] += report.failed
            cpu_s[name] += taken_s / len(counts)
    terminalreporter.section("random cases: number, wrong ones, seconds of CPU")
    for name, count in sorted(tried.items()):
        number = f"{count:,} ({mattered[name]:,} where it mattered)" if mattered[name] else f"{count:,}"
        terminalreporter.line(f"| {name} | {number} | {failed[name] or 'none'} | {cpu_s[name]:.1f} |")
    all_s, wrong = sum(cpu_s.values()), sum(failed.values()) or "none"
    terminalreporter.line(f"| all | {sum(tried.values()):,} | {wrong} | {all_s:.0f} |")


def _tell_unmarked(terminalreporter) -> None:
    """Print tests to be marked as slow: those above ten times the threshold, as machines and load differ."""
    taken = {
        report.nodeid: value
        for report in terminalreporter.stats.get("passed", [])
        for key, value in report.user_properties
        if key == "cpu_s" and value > 10 * _SLOW_S and "slow" not in report.keywords
    }
    if taken:
        terminalreporter.section(f"not marked slow, and more than {10 * _SLOW_S:g} s of CPU")
    for name, seconds in sorted(taken.items(), key=lambda item: -item[1]):
        terminalreporter.line(f"{seconds:6.1f} s  {name}")


@pytest.fixture(scope="session")
def exchange():
    """Two ranks exchange 1 MB in 1 us, then rank 0 sends chunk 0 again, redundantly: 2 us."""
    from taccl.problem.collectives import allgather
    from taccl.schedule.schedule import make_schedule
    from tests.synthesis.small_problems import full, problem_of

    problem = problem_of(full(2), allgather(2))
    return make_schedule(
        problem, chunk=[0, 1, 0], link=[0, 1, 0], start=[0, 0, problem.costs.ticks_per_us],
        end=[problem.costs.ticks_per_us] * 2 + [2 * problem.costs.ticks_per_us], producer="by hand",
    )  # fmt: skip


@pytest.fixture(scope="session")
def mpiexec() -> Path:
    """Path of this environment's MPI launcher."""
    from taccl.errors import ExecutionError
    from taccl.runtime.environment import find_mpiexec

    try:
        return find_mpiexec()
    except ExecutionError as error:
        pytest.skip(f"MPI cannot be run here: {error}")


@pytest.fixture
def log(tmp_path):
    """Function that writes a text to a log file."""

    def written(text, name="a.log"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return written


@pytest.fixture(scope="session")
def line_log(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Log of an allreduce on 8 ranks, whose times follow from 20 us of latency and 200 GB/s of algbw."""
    from tests.measure.logs import table

    log = tmp_path_factory.mktemp("line") / "a.log"
    log.write_text(table())
    return str(log)


@pytest.fixture(scope="session")
def line_fit(line_log: str) -> Fit:
    """Fit of the log `line_log` to a DGX H100."""
    import taccl
    from tests.effort import quick_fits

    with quick_fits():
        return taccl.fit([line_log], "dgx-h100")


@pytest.fixture
def _quick_fits():
    """Run every test with fast fits (see `quick_fits`)."""
    from tests.effort import quick_fits

    with quick_fits():
        yield


@pytest.fixture(scope="session")
def found():
    """Allreduce over two nodes of two ranks, searched in two phases."""
    import taccl
    from tests.effort import brief_synthesis
    from tests.synthesis.small_problems import problem_of, two_nodes

    problem = problem_of(two_nodes(), taccl.collectives.allreduce(4))
    return brief_synthesis(problem, backend="greedy")

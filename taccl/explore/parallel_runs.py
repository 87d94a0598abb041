"""Run many problems in parallel through joblib: read cached results, share out the rest, show progress.

joblib's configuration decides where runs are performed: by default on the cores of this machine, and within
``joblib.parallel_config(backend="dask")`` on a Dask cluster. Only this process reads and writes the cache.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import math
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from types import FrameType
from typing import Any

from taccl._internal.deadline import busy_factor, leave, signals_to
from taccl.errors import InputError, TacclError, warn
from taccl.explore.cache import Cache, Entry, warn_of_damage
from taccl.explore.rows import LABELS, with_best_bounds
from taccl.explore.run import RunRequest, failed_row, known_row, perform, this_process
from taccl.explore.workers import Parent, interrupts_held, perform_for
from taccl.problem.problem import Problem
from taccl.solvers.registry import OWN_BACKENDS
from taccl.synthesis.options import called, raising_errors_of_callbacks

Asked = Sequence[tuple[Callable[[], Problem], dict[str, Any]]]
Answer = tuple[int, dict[str, Any], dict[str, Any] | None]
#: `_WORKER_S`: CPU seconds to start a worker process.
#: `_MOST_START_SHARE`: max share of the remaining time to start workers; above it, runs are not parallel.
_WORKER_S, _MOST_START_SHARE = 1.0, 0.5
#: Exceptions of joblib and Dask for a dead worker. A failed run raises none, as its row states the error.
_DEATHS = ("BrokenProcessPool", "TerminatedWorkerError", "KilledWorker")


@raising_errors_of_callbacks()
def rows_of(
    asked: Asked, *, num_workers: int | None, cache: bool | Cache | str | os.PathLike[str],
    progress: bool | Callable[[int, int], None] | None, until_s: float = math.inf,
) -> list[dict[str, Any]]:  # fmt: skip
    """Run all problems; return a row for each, in their order, including those that fail.

    Ctrl-C stops the runs; those under way return their best schedules so far. `KeyboardInterrupt` is raised
    only if there is no schedule. An exception of `progress` stops the runs, too, and is raised.

    - `asked`: (function that makes the problem, known values of its row), for each run.
    - `until_s`: End of all runs on the clock of `time.time`; by default, each run has its row's time limit.
    """
    rows = [labels for _, labels in asked]
    done = 0
    if isinstance(cache, bool):
        chosen = Cache() if cache else None
    else:
        chosen = cache if isinstance(cache, Cache) else Cache(cache)
    try:
        with (
            signals_to(leave, "SIGTERM", "SIGHUP", only=signal.SIG_DFL),
            _counter(len(asked), progress) as count,
            contextlib.closing(_rows(asked, num_workers, chosen, until_s)) as coming,
        ):
            for index, row in coming:
                rows[index] = row
                done += 1
                count(done, len(asked))
    except InputError:
        raise
    except (Exception, KeyboardInterrupt) as error:
        if all(row["status"] in ("not run", "interrupted") for row in rows):
            raise
        interrupted = isinstance(error, KeyboardInterrupt)
        why = "stopped by Ctrl-C" if interrupted else f"stopped by {type(error).__name__}: {error}"
        rows = [row if row["status"] != "not run" else row | {"error": why} for row in rows]
        left = sum(row["status"] == "not run" for row in rows)
        onward = "run the same again" + ("" if chosen is None else " to resume")
        cut = sum(row["stopped"] == "interrupted" for row in rows)
        early = f", and {cut} ended early" if cut else ""
        if left or cut:
            warn(f"{why}; {left} of {len(rows)} runs are left{early}: {onward}")
    return with_best_bounds(rows)


def _rows(
    asked: Asked, num_workers: int | None, cache: Cache | None, until_s: float
) -> Generator[tuple[int, dict[str, Any]]]:
    """Yield (index, row) of each run: first cached runs and invalid problems, then other runs as they end."""
    waiting: list[tuple[int, RunRequest]] = []
    damage: list[str] = []
    for index, (make, labels) in enumerate(asked):
        try:
            problem = make()
            row = known_row(problem, labels)
        except TacclError as error:
            yield index, failed_row(labels, error)
            continue
        entry = None if cache is None else cache.find(row["key"], problem)
        if isinstance(entry, Entry):
            labels = {name: row[name] for name in LABELS if row[name] is not None}
            yield index, entry.row | labels | {"from_cache": True}
            continue
        damage += [entry] if entry else []
        # `replace` drops the problem's cached data, which are too large to send.
        run = RunRequest(replace(problem), row, this_process(), cache is not None, until_s)
        waiting.append((index, run))
    warn_of_damage(damage)
    if not waiting:
        return
    with contextlib.closing(_answers(waiting, num_workers)) as answers:
        for index, row, document in answers:
            if cache is not None and document is not None and not cache.store(document):
                cache = None  # use the cache no longer, so that it warns only once
            yield index, row


def _answers(waiting: Sequence[tuple[int, RunRequest]], num_workers: int | None) -> Generator[Answer]:
    """Yield the outcome of each run, in the order in which runs end.

    If a worker dies, the runs under way are repeated one at a time, to find the run that kills its worker.
    """
    num_jobs = num_at_once(num_workers, len(waiting))
    if num_workers is None and not _may_start_workers(min(run.until_s for _, run in waiting)):
        num_jobs = 1
    # One run is performed however late it begins: one that has a schedule at once, if there is one.
    own = (place for place, (_, run) in enumerate(waiting) if run.row["backend"] in OWN_BACKENDS)
    first = next(own, 0)
    left = {
        index: run._replace(rounds=-(-(len(waiting) - place) // num_jobs), is_first=place == first)
        for place, (index, run) in enumerate(waiting)
    }
    alone = 0  # number of next runs to perform one at a time
    while left:
        some = list(left.items())[: 1 if alone else None]
        try:
            with contextlib.closing(_in_parallel(some, num_jobs)) as answers:
                for answer in answers:
                    del left[answer[0]]
                    yield answer
        except Exception as error:
            death = type(error).__name__
            if death not in _DEATHS:
                raise
            if alone:
                index, run = some[0]
                del left[index]
                why = f"its process died, also when run alone ({death})"
                yield index, failed_row(run.row, TacclError(why)), None
            else:
                alone = min(len(left), 2 * num_jobs) + 1  # joblib dispatches 2 * num_jobs runs ahead
        alone = max(0, alone - 1)


def _may_start_workers(until_s: float) -> bool:
    """True if there is time to start joblib's worker processes, or joblib uses threads or a cluster.

    - `until_s`: End of all runs on the clock of `time.time`.
    """
    from joblib.parallel import get_active_backend

    starts = type(get_active_backend()[0]).__name__ == "LokyBackend"
    left_s = until_s - time.time()
    return not starts or busy_factor() * _WORKER_S <= _MOST_START_SHARE * left_s


def num_at_once(num_workers: int | None, num_runs: int) -> int:
    """Number of runs at a time: `num_workers`, else as joblib is configured, else one for each core."""
    from joblib import effective_n_jobs
    from joblib.parallel import get_active_backend

    if num_workers is None:
        configured = get_active_backend()[1]
        num_workers = configured if isinstance(configured, int) and configured != 1 else -1
    return min(int(effective_n_jobs(num_workers)), num_runs)


def _in_parallel(some: Sequence[tuple[int, RunRequest]], num_jobs: int) -> Generator[Answer]:
    """Outcome of each run, in the order in which runs end, until a worker dies."""
    from joblib import Parallel, delayed

    # joblib's batches have one run each, so that each result arrives as soon as it is ready.
    parallel = Parallel(n_jobs=num_jobs, return_as="generator_unordered", batch_size=1)
    _mend_dask(parallel._backend)
    # True if workers are processes that joblib starts, rather than threads or a cluster.
    starts_processes = type(parallel._backend).__name__ in ("LokyBackend", "MultiprocessingBackend")
    stop, parent = "", None
    if num_jobs > 1 and starts_processes:
        stop = os.path.join(_solver_files(), f"{secrets.token_hex(8)}.stop")
        parent = Parent(os.getpid(), _solver_files(), stop)
    left = itertools.takewhile(lambda _: not os.path.exists(stop), some)
    with _stopped_by(stop), contextlib.ExitStack() as stack:
        with interrupts_held() if stop else contextlib.nullcontext():
            answers = parallel(delayed(_numbered)(*one, parent) for one in left)
            stack.enter_context(_closing(answers))
        try:
            for index, row, document in answers:
                if row["status"] == "not run" and os.path.exists(stop):
                    continue
                yield index, row, document
                if not stop and "interrupted" in (row["status"], row["stopped"]):
                    raise KeyboardInterrupt
        except Exception:
            if not os.path.exists(stop):
                raise
        if os.path.exists(stop):
            raise KeyboardInterrupt


@contextlib.contextmanager
def _closing(answers: Generator[Answer]) -> Iterator[None]:
    """Context that closes a generator of joblib without its warning that not all results were consumed."""
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answers.close()


@contextlib.contextmanager
def _stopped_by(path: str) -> Iterator[None]:
    """Context in which the first Ctrl-C writes a file, which stops all workers; a second one acts at once.

    An exception here would end joblib's workers, and with them the runs under way.
    """
    known = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: FrameType | None) -> None:
        if callable(known) and os.path.exists(path):
            known(number, frame)
        else:
            open(path, "w").close()

    with signals_to(stop, "SIGINT") if path and callable(known) else contextlib.nullcontext():
        yield


def _mend_dask(backend: Any) -> None:
    """Patch joblib's Dask backend to report tasks of dead workers, and to run every task on the cluster.

    Without the patch, it waits forever for tasks of dead workers. On a cluster with one core, it would run
    tasks in this process.
    """
    if type(backend).__name__ != "DaskDistributedBackend" or "submit" in vars(backend):
        return
    from joblib.externals.loky.process_executor import _ExceptionWithTraceback

    submit, cores = backend.submit, backend.effective_n_jobs

    def heard(task: Any, callback: Callable[[Any], None]) -> Any:
        def tell(done: Any) -> None:
            if not done.cancelled() and done.exception() is not None:
                callback(_ExceptionWithTraceback(done.exception()))

        future = submit(task, callback)
        future.add_done_callback(tell)
        return future

    backend.submit = heard
    backend.effective_n_jobs = lambda n_jobs: max(2, cores(n_jobs))


@cache
def _solver_files() -> str:
    """Folder for solver files of joblib's workers; this process removes it, as joblib may kill workers."""
    folder = tempfile.mkdtemp(prefix="taccl-runs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _numbered(index: int, run: RunRequest, parent: Parent | None) -> Answer:
    return index, *(perform(run) if parent is None else perform_for(parent, run))


@contextlib.contextmanager
def _counter(
    num_runs: int, progress: bool | Callable[[int, int], None] | None
) -> Iterator[Callable[[int, int], None]]:
    """Callback (finished runs, all runs) that moves a progress bar on stderr, or the caller's function."""
    if callable(progress):
        yield partial(called, progress)
        return
    if not (_seen() if progress is None else progress):
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("runs", total=num_runs)
        yield lambda done, total: bar.update(task, completed=done)


def _seen() -> bool:
    """True if a progress bar would be visible: stderr is a terminal, or Python runs in a notebook."""
    if sys.stderr is not None and sys.stderr.isatty():
        return True
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"

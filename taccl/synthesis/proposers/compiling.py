"""Compilation of the search's kernels, in worker processes beside the search.

Workers fill the cache of compiled functions, from which this process loads them. Meanwhile baselines and the
list scheduler answer. Without a cache, this process compiles.
"""

from __future__ import annotations

import gc
import logging
import os
import tempfile
import threading
import time
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from taccl._internal.deadline import NEVER, Deadline, OutOfTime, busy_factor
from taccl._internal.interrupts import start
from taccl._internal.kernels import is_compiled
from taccl.analysis.verification.loops import accept_copies, accept_trees, compiled_loop
from taccl.analysis.verification.verify import compile_verifier
from taccl.errors import TacclError
from taccl.problem.collectives import make
from taccl.problem.problem import Clauses, make_problem
from taccl.solvers.worker import Outcome, run_task
from taccl.synthesis.improve.improvement import compile_improvement, suits_improvement
from taccl.synthesis.kernels.fabric import problem_arrays
from taccl.synthesis.kernels.improvement_kernel import improve
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.kernels.queue_kernel import send_along
from taccl.synthesis.kernels.router_kernel import route
from taccl.synthesis.kernels.spreading_kernel import spread_chunks
from taccl.synthesis.proposers.large import effort, schedule_large, suits
from taccl.synthesis.proposers.queues import send_along_trees, send_at_once
from taccl.synthesis.proposers.router import find_paths, find_trees
from taccl.topology.fabrics import ring

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.problem.problem import Problem
    from taccl.synthesis.options import Options
    from taccl.synthesis.search import Search

logger = logging.getLogger(__name__)

#: Name of the kernels of ruin and recreate. The others have the name of a collective, whose list schedulers
#: and verifier they are.
IMPROVEMENT = "ruin and recreate"
#: All kernels, a row for each worker: those of a row share functions.
_EVERY = (("allgather", "reduce-scatter", "alltoall"), (IMPROVEMENT,))
#: Note of a search that had no kernels.
COLD = (
    "the compiled search was left out, as compiling it takes about 20 s of CPU, once; run `taccl warmup`, or "
    "give a longer time limit (--time-limit 60) once"
)
#: Least seconds of compiling or loading kernels that are a row of the stages.
_NOTABLE_S = 0.005
#: Longest time for a worker to compile, and seconds between two looks at it.
_LONGEST_S, _TICK_S = 900.0, 0.05
#: Nice value of workers: the search goes first.
_NICE = 5


def needed(problem: Problem) -> tuple[str, ...]:
    """Names of the kernels that search a problem; a reduction is searched in phases that spread, too."""
    lists: tuple[str, ...] = ("alltoall",) if _goes_to_one(problem) else ("allgather",)
    if problem.collective.combining:
        lists = ("reduce-scatter", "allgather")
    return (*lists, IMPROVEMENT) if suits_improvement(problem) else lists


def are_kept(problem: Problem) -> bool:
    """True if an earlier run, or this one, has compiled the kernels that a problem needs."""
    return all(map(is_kept, needed(problem)))


def is_kept(name: str) -> bool:
    """True if the kernels of a name are compiled, here or in the cache."""
    if name == IMPROVEMENT:
        return is_compiled(improve)
    kernels: list[Any] = [send_along, route] if name == "alltoall" else [spread_chunks]
    verifying = accept_trees if name == "reduce-scatter" else accept_copies
    return all(map(is_compiled, [*kernels, compiled_loop(verifying)]))


def compile_kernels(problem: Problem) -> None:
    """Compile the kernels of a problem in this process, or load them."""
    paths = tuple(problem.clauses.only("path").values("path").items())
    for name in needed(problem):
        compile_named(name, paths)


@cache
def compile_named(name: str, paths: tuple[tuple[str, Any], ...] = ()) -> None:
    """Run every kernel of a name once, on two ranks.

    - `paths`: Clauses on paths, under which further kernels run.
    """
    if name == IMPROVEMENT:
        compile_improvement()
        return
    pair = make_problem(ring(2), make(name, 2), chunk_bytes=1, clauses=Clauses(**dict(paths)))
    compile_verifier(schedule_large(pair, num_runs=1))
    if name == "alltoall":
        fabric, demand = problem_arrays(pair)
        send_at_once(fabric, demand, find_paths(fabric, demand))
    # Any chunks go along trees where a sketch guides them, be it a suggested one.
    some = problem_arrays(make_problem(ring(2), make("allgather", 2), chunk_bytes=1))
    send_along_trees(*some, Limits(num_runs=1), find_trees(*some), partial(find_trees, *some))


class Compilation:
    """Compilation of some kernels in a worker process, which begins at once.

    - `outcome`: Outcome of the worker's task; None until it has ended.
    - `is_told`: True if a row of the stages has its CPU.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.began_s = names, time.monotonic()
        self.outcome: Outcome | None = None
        self.is_told = False
        start(threading.Thread(target=self._run, name="taccl-kernels", daemon=True))

    def wait(self, deadline: Deadline) -> None:
        """Wait until it has ended; `OutOfTime` at the deadline."""
        while self.outcome is None:
            deadline.check()
            time.sleep(_TICK_S)

    def _run(self) -> None:
        payload = {"names": list(self.names), "temporary": tempfile.gettempdir()}
        task = f"{__name__}:compile_in_worker"
        try:
            self.outcome = run_task("kernels", task, payload, time_limit_s=_LONGEST_S)
        finally:
            self.outcome = self.outcome or Outcome("crashed")
            logger.debug("kernels %s: %s", self.names, self.outcome)


#: Compilations that this process has begun, by name.
_BEGUN: dict[str, Compilation] = {}


def compile_in_worker(payload: dict[str, Any], control: object) -> dict[str, Any]:
    """Compile kernels for the cache; returns the seconds of CPU. The task of a worker process.

    - `payload`: Their ``"names"``, and the ``"temporary"`` folder of the process that waits, which may have
      the cache.
    """
    tempfile.tempdir = payload["temporary"]
    gc.disable()  # 7 % of the CPU; the process ends soon
    if hasattr(os, "nice"):
        os.nice(_NICE)
    for name in payload["names"]:
        compile_named(name)
    return {"cpu_s": time.process_time()}


def begin_compiling(search: Search) -> None:
    """Begin to compile what a search of many hops will need, if there is a core and time for it."""
    problem, parameters = search.problem, search.parameters
    if (
        search.backend in ("auto", "greedy")
        and search.options.threads > 1
        and effort(problem) > parameters.suggesting.few_hops
        and search.deadline.left_s >= parameters.choice.cold_s
        and suits(problem)
    ):
        _begin(problem)


def compile_every() -> float:
    """Compile all kernels that are not kept, in two workers; returns the seconds of CPU.

    Raises `TacclError` if a worker dies, or there is no folder to keep them in.
    """
    begun = [Compilation(names) for names in _EVERY if not all(map(is_kept, names))]
    cpu_s = 0.0
    for each in begun:
        each.wait(NEVER)
        if each.outcome is None or each.outcome.result is None:
            said = each.outcome.message if each.outcome else ""
            raise TacclError(f"the kernels of {', '.join(each.names)} could not be compiled: {said}")
        cpu_s += float(each.outcome.result["cpu_s"])
    if not all(map(is_kept, (name for names in _EVERY for name in names))):
        raise TacclError("compiled kernels cannot be kept; name a folder to write to in NUMBA_CACHE_DIR")
    return cpu_s


def have_compiled(search: Search) -> bool:
    """Have the kernels compiled, if they are not; true if they are. The time it takes counts."""
    deadline = search.deadline
    if search.top.best is None:
        deadline = search.patience.later(search.parameters.budget.late_s * busy_factor())
    found = compile_in_a_row(search, search.problem, deadline)
    if not found:
        search.notes.append(COLD)
    return found


def compile_in_a_row(search: Search, problem: Problem, deadline: Deadline) -> bool:
    """Have the kernels of a problem compiled, if they are not, as a row of a search; true if they are."""
    since, was_kept = time.monotonic(), are_kept(problem)
    found = compile_telling(problem, search.options, deadline)
    if not found:
        if all(each.message != COLD for each in search.stages):  # each part of the search asks
            search.record("kernels", "compiled", "skipped", since, message=COLD)
    elif time.monotonic() - since >= _NOTABLE_S:  # otherwise this process has them already
        said = "loaded" if was_kept else _told(problem)
        search.record("kernels", "compiled", "done", since, message=said)
    return found


def compile_telling(problem: Problem, options: Options, deadline: Deadline) -> bool:
    """Have the kernels compiled, if they are not, and say so; false if the time does not suffice.

    Kernels compiled by then are kept on disk, which shortens the next run.
    """
    choice, told_s = options.parameters.choice, options.parameters.large.told_after_s

    def tell(past_s: float, *_: object) -> None:
        if past_s >= told_s:
            options.observer.report(f"compiling, for this time only, {past_s:.0f} s so far", None)

    if not are_kept(problem):
        begun = [each.began_s for each in _begun(problem)]
        past_s = time.monotonic() - min(begun) if begun else 0.0
        if deadline.left_s < busy_factor() * choice.cold_s - past_s:
            return False
        _begin(problem)
    deadline = deadline.at_least(choice.compiled_s)
    try:  # in this thread Ctrl-C would be lost
        deadline.run(partial(_await, problem, deadline), tell=tell)
    except OutOfTime:
        return False
    return True


def _begin(problem: Problem) -> None:
    """Begin to compile the kernels of a problem that are neither kept nor under way."""
    missing = [name for name in needed(problem) if name not in _BEGUN and not is_kept(name)]
    improving = [name for name in missing if name == IMPROVEMENT]
    for names in ([name for name in missing if name != IMPROVEMENT], improving):
        if names:
            _BEGUN.update(dict.fromkeys(names, Compilation(names)))


def _await(problem: Problem, deadline: Deadline) -> None:
    """Wait for the workers, then load what they compiled, or compile what they could not."""
    for each in _begun(problem):
        each.wait(deadline)
    compile_kernels(problem)


def _begun(problem: Problem) -> list[Compilation]:
    """The compilations of a problem's kernels."""
    return list(dict.fromkeys(_BEGUN[name] for name in needed(problem) if name in _BEGUN))


def _told(problem: Problem) -> str:
    """Message of the row, with the CPU of the workers that no other row has."""
    cpu_s = 0.0
    for each in _begun(problem):
        if each.outcome is not None and each.outcome.result is not None and not each.is_told:
            each.is_told, cpu_s = True, cpu_s + float(each.outcome.result["cpu_s"])
    return f"compiled, once: {cpu_s:.1f} s of CPU beside the search" if cpu_s else "compiled, once"


def _goes_to_one(problem: Problem) -> bool:
    """True if every chunk has one destination."""
    return all(len(ranks) == 1 for ranks in problem.collective.destination_sets.sets)
